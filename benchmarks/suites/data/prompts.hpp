// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Prompts: the official templates from a file that the user has, our own wording for the tasks
/// that are generated here, and how an example fills them.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/examples.hpp"

namespace episodic::suites {

/// A prompt, cut where the question begins: after the context.
struct Prompt {
  std::string document, question;
  std::string text() const { return document + question; }
};

/// A task's prompt with slots in braces.
class Template {
 public:
  /// \param origin named in errors: the file or "built in"
  /// \throws ConfigError for braces that Python's str.format would refuse
  Template(std::string text, const std::string& origin);

  /// What str.format makes of it: text put in is never looked at for braces.
  /// \throws ConfigError naming a slot that has no value
  Prompt fill(const std::map<std::string, std::string>& slots) const;

  const std::string& text() const { return text_; }
  /// SHA-256 of its text, hexadecimal.
  std::string sha256() const;
  /// Which published template it is ("official longbench", "official gpt4", "EM-LLM", ...), or
  /// empty.
  std::string published_as(std::string_view task) const;

 private:
  struct Piece {
    std::string text;
    bool slot;
  };
  std::string text_, origin_;
  std::vector<Piece> pieces_;
};

/// A task's template from a file {task: text} (LongBench's and EM-LLM's dataset2prompt.json) or
/// {family: {task: text}}. \param family of the second kind
/// \throws FileError, ConfigError naming what is missing
Template load_template(const std::filesystem::path& file, const std::string& family,
                       const std::string& task);

/// Our own wording for a generated task.
/// \throws ConfigError for the others, that says where the official prompts are
Template own_template(const std::string& task);

/// Slots that LongBench's templates have: context, input.
std::map<std::string, std::string> longbench_slots(const Example& example);
/// infinity-Bench: context, input, question, OPTION_A..D, func, func_call, prefix, key.
/// \throws DataError naming the example whose input has not what the task's slots are made of
std::map<std::string, std::string> infinitebench_slots(const Example& example,
                                                       std::string_view task);

}  // namespace episodic::suites
