// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What each suite does in its own way, by its row of suite_table.hpp.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/examples.hpp"

namespace episodic::suites {

enum class Suite : std::uint8_t {
  longbench,
  infinitebench,
  ruler,
  babilong,
  needles,
  longbench_v2,
  longmemeval
};
enum class Limits : std::uint8_t { official, em_llm };  ///< whose number of generated tokens

const char* name_of(Suite suite);

/// A task's template, and whose wording it is: "own wording", or "official" and more.
struct BuiltInPrompt {
  std::string text, source;
};
/// \throws ConfigError for a task that needs a file of prompts
BuiltInPrompt built_in_prompt(Suite suite, const std::string& task);

/// \throws ConfigError listing the suite's tasks
void check_task(Suite suite, const std::string& task);

std::vector<Example> read_examples(Suite suite, const std::filesystem::path& path,
                                   const std::string& task);
std::map<std::string, std::string> slots_of(Suite suite, const Example& example,
                                            const std::string& task);
std::int64_t max_new_of(Suite suite, const std::string& task, Limits limits);

/// Whether the task's prompt goes into the model's chat format.
bool in_chat_format(Suite suite, const std::string& task);

/// samsum alone: an answer of at least one token that ends with its line.
bool ends_with_line(Suite suite, const std::string& task);

}  // namespace episodic::suites
