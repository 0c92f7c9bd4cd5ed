// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers of OpenAI's completions and chat completions.

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/answer_form.hpp"

namespace episodic::server {

class OpenAiForm final : public AnswerForm {
 public:
  struct Head {
    RequestKind kind = RequestKind::completion;
    std::string id, model;
    std::int64_t created = 0;
    bool usage = false;   ///< ends a stream with the counts of tokens
    bool recall = false;  ///< tells what was recalled
  };
  explicit OpenAiForm(Head head) : head_(std::move(head)) {}

  Json whole(std::span<const Served> choices) override;
  std::string progress(std::int64_t read, std::int64_t of) override;
  std::string part(std::size_t choice, const Part& part) override;
  std::string end_of_choice(std::size_t choice, const Served& served) override;
  std::string end(std::span<const Served> choices) override;
  std::string failure(int status, const std::string& message) override;

  static Json usage(std::span<const Served> choices);

 private:
  bool chat() const { return head_.kind == RequestKind::chat; }
  Json head(bool part) const;
  /// A part of a stream. \param finish null but in the last one
  Json chunk(std::size_t choice, std::string_view text, Json finish);

  Head head_;
  std::vector<bool> begun_;  // choices that sent their role
};

}  // namespace episodic::server
