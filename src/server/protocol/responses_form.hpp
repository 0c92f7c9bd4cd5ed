// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers of OpenAI's Responses API.

#include <cstdint>
#include <string>

#include "protocol/answer_form.hpp"

namespace episodic::server {

/// One response; its events are numbered. What it says of itself at the end is what is stored:
/// `settle` makes it, once.
class ResponsesForm final : public AnswerForm {
 public:
  struct Head {
    std::string id, model, message_id;
    std::string previous, conversation;  ///< ids; may be empty
    std::int64_t created = 0;
    bool store = false;
    bool recall = false;  ///< tells what was recalled
    Json said;            ///< what it repeats of the request
  };
  explicit ResponsesForm(Head head) : head_(std::move(head)) {}

  /// The whole response. Before the calls that end it.
  const Json& settle(const Served& served);

  Json whole(std::span<const Served> choices) override;
  std::string begin() override;
  std::string progress(std::int64_t read, std::int64_t of) override;
  std::string part(std::size_t choice, const Part& part) override;
  std::string end_of_choice(std::size_t choice, const Served& served) override;
  std::string end(std::span<const Served> choices) override;
  std::string failure(int status, const std::string& message) override;

 private:
  Json response(const char* status) const;
  Json message(const char* status) const;
  /// An event with its number. \param more what it says beside its type
  std::string event(const char* type, Json more);
  std::string begin_message();

  const Head head_;
  Json settled_;
  std::int64_t events_ = 0;
  bool begun_ = false;
};

}  // namespace episodic::server
