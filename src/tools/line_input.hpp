// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines that a person types, or that come through a pipe.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace episodic::tools {

/// Lines of stdin. On a terminal they can be edited and called back, where the build has libedit:
/// its keys are those of Emacs, or what ~/.editrc says. Elsewhere they are taken as they come.
class LineInput {
 public:
  struct Options {
    bool prompts = true;                   ///< on a terminal
    bool edits = true;                     ///< where stdin and stdout are terminals
    std::filesystem::path history;         ///< of lines that were edited; empty: none is kept
    std::vector<std::string> completions;  ///< of a line's first word, at the Tab key
  };

  explicit LineInput(const Options& options);
  ~LineInput();
  LineInput(const LineInput&) = delete;
  LineInput& operator=(const LineInput&) = delete;

  /// \param line without its end \return false at the end of the input
  bool next(const std::string& prompt, std::string& line);
  /// What was wrong with the history since the last call, for people; empty if nothing was. Lines
  /// come all the same.
  std::string trouble();

 private:
  class Editor;

  bool prompts_;
  std::unique_ptr<Editor> editor_;  // null: lines are taken as they come
};

}  // namespace episodic::tools
