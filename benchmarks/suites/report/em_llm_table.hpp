// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Results in the layout of EM-LLM's first table: a row a method, LongBench by groups of tasks,
/// infinity-Bench by tasks.

#include <cstdint>
#include <string>
#include <vector>

namespace episodic::suites {

/// The score of a task's data with a method.
struct TaskScore {
  std::string suite;  ///< "longbench" or "infinitebench"; others have no place in the table
  std::string task, method;
  double percent = 0;
  std::int64_t examples = 0;
};

/// The table as Markdown, and what it holds of the paper's data; empty if no score has a place.
/// Columns are means over those of their tasks that are there, and say how many those are where
/// some are missing. A task with several files of data counts with their mean. LongBench-E's tasks
/// are others and have no place.
std::string em_llm_table(const std::vector<TaskScore>& scores);

}  // namespace episodic::suites
