// SPDX-License-Identifier: Apache-2.0
// What is wrong with a command line, in one line, with what was probably meant.

#include "usage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace episodic::tools {
namespace {

/// Edits (a letter in, out, changed, or two neighbours swapped) from one word to another.
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names)
    if (const std::size_t n = edits(word, name); n < least) {
      least = n;
      best = name;
    }
  return best;
}

std::string usage_problem(const Command& app, int argc, const char* const* argv,
                          const UsageError& error) {
  const std::vector<std::string> commands = app.subcommand_names();
  if (argc < 2)
    return fmt::format("a command is missing; there are {} (episodic --help)",
                       fmt::join(commands, ", "));
  const std::string command = argv[1];
  if (std::find(commands.begin(), commands.end(), command) == commands.end()) {
    if (command.starts_with("-")) return fmt::format("{} (episodic --help)", error.what());
    const std::string meant = nearest(command, commands);
    return meant.empty()
               ? fmt::format("there is no command '{}'; there are {}", command,
                             fmt::join(commands, ", "))
               : fmt::format("there is no command '{}'; did you mean '{}'?", command, meant);
  }
  const std::vector<std::string> flags = app.subcommand(command).flag_names();
  for (int i = 2; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--") break;
    if (!word.starts_with("--")) continue;
    word = word.substr(0, word.find('='));
    if (std::find(flags.begin(), flags.end(), word) != flags.end()) continue;
    const std::string meant = nearest(word, flags);
    return fmt::format("{} has no flag {}{} (episodic {} --help)", command, word,
                       meant.empty() ? ";" : fmt::format("; did you mean {}?", meant), command);
  }
  return fmt::format("{}: {} (episodic {} --help)", command, error.what(), command);
}

}  // namespace episodic::tools
