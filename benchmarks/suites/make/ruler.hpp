// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// RULER's 13 tasks at any length, after the description in its paper (Hsieh et al. 2024, appendix
/// B to D). Words of keys and the text that needles lie in are ours; questions of qa_1 and qa_2
/// come from SQuAD's and HotpotQA's files.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "make/row_maker.hpp"

namespace episodic::suites {

struct RulerTask {
  std::string_view name;
  std::int64_t max_new;       ///< generated tokens
  bool any_answer;            ///< scored by one of the answers; else by the share of them
  std::string_view asks;      ///< what its question begins with in a row of the published program
  std::string_view asks_too;  ///< the same of several needles; empty: none
};
std::span<const RulerTask> ruler_tasks();
std::span<const std::string_view> ruler_names();
/// \throws ConfigError listing the tasks
const RulerTask& ruler_task(std::string_view name);

/// Rows {id, head, context, question, answer_prefix, outputs, length, depth, tokens}. `tokens`
/// bounds the length as the published program counts it: head, context, question, the answer's
/// first words and the tokens to generate. `source` is the file of qa_1 or qa_2.
/// \throws ConfigError, FileError
void make_ruler_rows(const MakeOptions& options, const TokenCounter& count, const RowSink& emit);

}  // namespace episodic::suites
