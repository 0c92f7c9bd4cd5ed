// SPDX-License-Identifier: Apache-2.0
#include "reasoning_form.hpp"

#include <iterator>

namespace episodic::text {
namespace {

constexpr ReasoningForm kReasoning[] = {
    {"<seed:think>", "</seed:think>"},                     // Seed-OSS
    {"[THINK]", "[/THINK]"},                               // Ministral 3, Magistral
    {"<|inner_prefix|>", "<|inner_suffix|>"},              // Apertus
    {"<|START_THINKING|>", "<|END_THINKING|>"},            // Command R7B, Command A
    {"<|channel>thought\n", "<channel|>"},                 // Gemma 4
    {"<think>", "</think>", "<response>", "</response>"},  // Granite 3
    {"<think>", "</think>"}};

}  // namespace

const ReasoningForm* find_reasoning(std::string_view template_text) {
  const auto has = [&](std::string_view mark) {
    if (mark.ends_with('\n')) mark.remove_suffix(1);  // a template writes it in another way
    return template_text.find(mark) != std::string_view::npos;
  };
  for (const ReasoningForm& form : kReasoning)
    if ((has(form.open) || has(form.close)) && (form.answer_open.empty() || has(form.answer_open)))
      return &form;
  return nullptr;
}

const ReasoningForm& general_reasoning() { return kReasoning[std::size(kReasoning) - 1]; }

}  // namespace episodic::text
