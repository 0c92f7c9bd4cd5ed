// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers of OpenAI's Responses API.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocol/answer_calls.hpp"
#include "protocol/answer_form.hpp"
#include "protocol/token_logprobs.hpp"

namespace episodic::server {

/// One response, whose output is a message, or thoughts, messages and calls in their order; its
/// events are numbered. What it says of itself at the end is what is stored: `settle` makes it,
/// once.
class ResponsesForm final : public AnswerForm {
 public:
  struct Head {
    std::string id, model;
    std::string previous, conversation;  ///< ids; may be empty
    std::int64_t created = 0;
    bool store = false;
    bool recall = false;  ///< tells what was recalled
    Json said;            ///< what it repeats of the request
    TokenTexts logprobs;  ///< of the log-probabilities that it tells; not asked: none
    std::shared_ptr<const ToolUse> tools = {};  ///< how its text is parted; null: it is a message
  };
  explicit ResponsesForm(Head head)
      : head_(std::move(head)), calls_(head_.tools), logprobs_(head_.logprobs) {}

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
  /// An event with its number. \param more what it says beside its type
  std::string event(const char* type, Json more);
  /// The events of what was found in the text.
  std::string events_of(const std::vector<ToolCallEvent>& found);
  std::string open(Json item);
  std::string open_message();
  std::string say(const std::string& text);
  std::string think(const std::string& text);
  std::string close();
  std::string close_message(Json& item);
  std::string close_thought(Json& item);
  std::string close_call(Json& item);
  /// The item of now, and where it stands in the output.
  Json& item() { return output_.back(); }
  Json place() const;
  Json part_place();

  const Head head_;
  AnswerCalls calls_;
  TextLogprobs logprobs_;
  Json output_ = Json::array();  // items so far
  bool open_ = false;            // the last of them
  bool streamed_ = false;        // parts have come
  bool cut_ = false;             // the answer has ended, by its limit of tokens
  Json settled_;
  std::string last_events_;  // of what the end made certain
  std::int64_t events_ = 0;
};

}  // namespace episodic::server
