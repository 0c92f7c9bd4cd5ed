// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a protocol writes an answer. Each protocol has a form of its own; what computes, waits and
// looks after the client is the same for all (http/answering.hpp).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "episodic/server/service.hpp"
#include "protocol/json.hpp"

namespace episodic::server {

/// One answer, of one choice or several. Streams are server-sent events: each call gives those to
/// be sent now, whole, or nothing. Of one thread.
class AnswerForm {
 public:
  virtual ~AnswerForm() = default;

  /// The body of an answer that does not stream. \param choices whole, in their order
  virtual Json whole(std::span<const Served> choices) = 0;

  /// Before anything is known.
  virtual std::string begin() { return {}; }
  /// So many tokens of the prompt are read; called where the request asked for it.
  virtual std::string progress(std::int64_t /*read*/, std::int64_t /*of*/) { return {}; }
  /// Says nothing, so that nobody on the way takes a silent stream for dead.
  virtual std::string silence() { return ": waiting\n\n"; }
  virtual std::string part(std::size_t choice, const Part& part) = 0;
  virtual std::string end_of_choice(std::size_t choice, const Served& served) = 0;
  virtual std::string end(std::span<const Served> choices) = 0;
  /// Ends a stream whose status has been sent. \param status that it would have had
  virtual std::string failure(int status, const std::string& message) = 0;
};

/// "data: ...\n\n", with "event: NAME" before it where it has a name.
std::string event_of(const Json& data, const char* name = nullptr);

/// An error in OpenAI's form. \param parameter the field at fault, may be empty
std::string error_body(int status, const std::string& message, const std::string& parameter = "",
                       const std::string& code = "");

/// An error in the form of the protocol whose path it is: Anthropic's below /v1/messages, OpenAI's
/// elsewhere. \param path as it was sent
std::string error_body_at(std::string_view path, int status, const std::string& message,
                          const std::string& parameter = "", const std::string& code = "");

/// Adds `recalled`, [{"event", "start", "end", "text", "layers", "rank", "attention"}], best first,
/// and `passages`, [{"start", "end", "text", "score"}], where some were read again.
void add_recalled(Json& to, const Served& served);

}  // namespace episodic::server
