// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests of OpenAI's completions and chat completions, as far as `episodic serve` answers them.

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/session/session.hpp"
#include "episodic/text/chat_template.hpp"

namespace episodic::tools {

/// What a client did wrong.
class RequestError : public std::runtime_error {
 public:
  /// \param parameter what of it comes from the client is cut and cleaned
  /// \param code OpenAI's word for it, which some clients look at
  RequestError(const std::string& message, const std::string& parameter, int status = 400,
               std::string code = "");

  /// The field at fault, or nothing.
  const std::string& parameter() const { return parameter_; }
  const std::string& code() const { return code_; }
  int status() const { return status_; }

 private:
  std::string parameter_, code_;
  int status_;
};

enum class RequestKind : std::uint8_t { completion, chat };

struct ServedRequest {
  RequestKind kind = RequestKind::completion;
  std::string prompt;                            ///< of a completion: a text,
  std::optional<std::vector<std::int64_t>> ids;  ///< or tokens
  std::vector<ChatMessage> messages;             ///< of a chat
  std::string variables;                         ///< of a chat's template, as JSON; may be empty
  GenerateOptions options;
  bool stream = false;
  bool stream_usage = false;  ///< ends the stream with the counts of tokens
};

/// \param body JSON from outside: deep nesting and endless lists are refused
/// \param defaults of everything that the request leaves open, but a seed: without one it is drawn
/// \throws RequestError naming the field: absent, of the wrong type or range, or one that would
///         change the answer in a way that is not built
ServedRequest parse_request(RequestKind kind, std::string_view body,
                            const GenerateOptions& defaults);

}  // namespace episodic::tools
