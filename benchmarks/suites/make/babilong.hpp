// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BABILong's first five tasks: facts of a short story between sentences of a book. Stories are
/// those of a file of bAbI, or of our own in its manner.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "make/row_maker.hpp"

namespace episodic::suites {

/// qa1 to qa5.
std::span<const std::string_view> babilong_names();

/// What happens, a question about it, and the one word that answers it.
struct Story {
  std::vector<std::string> facts;
  std::string question, answer;
};

/// A story of our own. \param task of babilong_names()
Story draw_story(std::string_view task, Draw& draw);

/// The stories of a file of bAbI: numbered lines, a question with its answer behind a tab. What
/// stands before a question of the same story is its facts.
/// \throws FileError naming file and line
std::vector<Story> read_babi(const std::filesystem::path& file, std::string_view task);

/// Rows of BABILong's form, {id, input, question, target}, with `tokens` of the input, which is
/// what `tokens` bounds. `source` is a file of bAbI, or empty. \throws ConfigError, FileError
void make_babilong_rows(const MakeOptions& options, const TokenCounter& count, const RowSink& emit);

}  // namespace episodic::suites
