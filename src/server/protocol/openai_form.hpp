// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers of OpenAI's completions and chat completions.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/answer_calls.hpp"
#include "protocol/answer_form.hpp"
#include "protocol/token_logprobs.hpp"

namespace episodic::server {

class OpenAiForm final : public AnswerForm {
 public:
  struct Head {
    RequestKind kind = RequestKind::completion;
    std::string id, model;
    std::int64_t created = 0;
    bool usage = false;   ///< ends a stream with the counts of tokens
    bool recall = false;  ///< tells what was recalled
    bool logprobs = false;
    TokenTexts tokens;                     ///< for log-probabilities
    std::shared_ptr<const ToolUse> tools;  ///< how its text is parted; null: it is content
  };
  explicit OpenAiForm(Head head) : head_(std::move(head)) {}

  Json whole(std::span<const Served> choices) override;
  std::string progress(std::int64_t read, std::int64_t of) override;
  std::string part(std::size_t choice, const Part& part) override;
  std::string end_of_choice(std::size_t choice, const Served& served) override;
  std::string end(std::span<const Served> choices) override;
  std::string failure(int status, const std::string& message) override;

  Json usage(std::span<const Served> choices) const;

 private:
  bool chat() const { return head_.kind == RequestKind::chat; }
  Json head(bool part) const;
  Json logprobs_json(std::span<const Logprobs> of, std::size_t offset) const;
  /// A part of a stream. \param finish null but in the last one
  Json chunk(std::size_t choice, std::string_view text, Json finish, Json logprobs = nullptr);
  Json chunk_of(std::size_t choice, Json delta, Json finish, Json logprobs);

  Head head_;
  /// Of a choice whose text may hold calls.
  struct Calls {
    AnswerCalls calls;
    std::vector<Logprobs> untold;  ///< of tokens that no chunk has told of
  };
  Calls& calls_of(std::size_t choice);
  Json untold(std::size_t choice);
  /// The chunks of what was found in the text.
  std::string events_of(std::size_t choice, const std::vector<ToolCallEvent>& found);

  std::vector<bool> begun_;        // choices that sent their role
  std::vector<std::size_t> sent_;  // bytes of each choice
  std::map<std::size_t, Calls> calls_;
};

}  // namespace episodic::server
