// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stories that people marked events in, and what they marked (EM appendix B).

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace episodic::analysis {

/// A story as it was told.
struct Story {
  std::string name;  ///< as its file: "pieman" of pieman.csv and of story_pieman.txt
  std::string text;
  /// Byte of the text where each clause begins, ascending from 0. Empty if the file was text alone.
  std::vector<std::size_t> clauses;
  /// Milliseconds from the recording's start at which each clause begins; empty if unknown.
  std::vector<double> onsets;
};

/// A table of clauses (columns `id` and `clause`, and `onset_ms` if it is known; who speaks,
/// in <angle brackets>, is no part of what was heard) or a text file. \throws FileError, DataError
Story read_story(const std::filesystem::path& path);

/// All *.csv and *.txt of a folder in order of their names, or one file. A folder with a folder
/// `stories` in it means that. \throws FileError if there are none, DataError for two of one name
std::vector<Story> read_stories(const std::filesystem::path& path);

/// What people marked in one story.
struct HumanMarks {
  std::vector<double> times_ms;  ///< boundaries that enough listeners agreed on; ascending
  /// Dimensions that changed with each clause, the mean over the raters; empty if there are none.
  std::vector<double> changes;
  int raters = 0;
};

/// Of each story, by its name in small letters. From a JSON object of lists of times in
/// milliseconds; a table of ratings `STORY_WHO.csv` (columns id, clause and one of 0 and 1 for
/// every dimension), or a folder with any of these (its own files and those in `ratings`).
/// \throws FileError naming the file and the column, key or row
std::map<std::string, HumanMarks> read_human_marks(const std::filesystem::path& path);

/// Byte of the story where what is heard at a time begins: the start of the word nearest to it.
/// Between known onsets time runs evenly with the letters; where none are known, over the whole
/// story. \param end_ms when the recording ends
std::size_t word_at(const Story& story, double time_ms, double end_ms);

/// The first token that has a byte at or behind `byte`. \param ends byte behind each token
std::int64_t token_at(std::span<const std::size_t> ends, std::size_t byte);

}  // namespace episodic::analysis
