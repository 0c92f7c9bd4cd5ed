// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The marks that models write around what they think before an answer: a table.

#include <string_view>

namespace episodic::text {

struct ReasoningForm {
  std::string_view open, close;
  /// What an answer behind a thought may be put between, and is told without.
  std::string_view answer_open = {}, answer_close = {};
};

/// The marks that a template has; null where it has none.
const ReasoningForm* find_reasoning(std::string_view template_text);

/// <think> and </think>: for templates that do not mention any.
const ReasoningForm& general_reasoning();

}  // namespace episodic::text
