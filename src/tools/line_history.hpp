// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lines that were typed in a terminal, kept for the next time.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace episodic::tools {

/// A file with one line for each that was typed, the oldest first. Only its owner may read it.
/// Several programs may add to it at once; a line is added when it comes, so that none is lost when
/// a program is killed.
class LineHistory {
 public:
  /// The file has at most twice as many lines, each of at most kLongest bytes.
  static constexpr std::size_t kLines = 1000, kLongest = 4096;

  /// \param file made with its folders when the first line is added
  explicit LineHistory(std::filesystem::path file) : file_(std::move(file)) {}

  /// $XDG_STATE_HOME/episodic/NAME, with ~/.local/state where that is not set; empty where there is
  /// no home either.
  static std::filesystem::path file_named(const std::string& name);

  const std::filesystem::path& file() const { return file_; }
  /// The newest kLines lines; none where there is no file. A file that has grown to twice as many
  /// is cut to them. \throws FileError
  std::vector<std::string> load() const;
  /// Adds a line; not one that is empty, too long or of several lines, nor one that begins with a
  /// space, which is how shells are told to keep nothing. \throws FileError
  void add(const std::string& line) const;

 private:
  std::filesystem::path file_;
};

}  // namespace episodic::tools
