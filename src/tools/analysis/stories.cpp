// SPDX-License-Identifier: Apache-2.0
#include "analysis/stories.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "csv.hpp"
#include "episodic/base/error.hpp"

namespace episodic::analysis {
namespace {

namespace fs = std::filesystem;

std::string small_letters(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

/// What was heard of a clause: without the names of who speaks, in angle brackets.
std::string heard(const std::string& clause, const std::string& label, std::size_t row) {
  std::string out;
  for (std::size_t i = 0; i < clause.size(); ++i) {
    if (clause[i] == '<') {
      const std::size_t close = clause.find('>', i);
      if (close == std::string::npos)
        throw FileError(fmt::format("{}: row {}: a '<' without '>'; close the name of the speaker",
                                    label, row));
      i = close;
      continue;
    }
    out.push_back(clause[i]);
  }
  return trimmed(out);
}

/// Column of a name in a table's first row. \return its number, nothing if it is not there
std::optional<std::size_t> column(const std::vector<std::string>& head, std::string_view name) {
  for (std::size_t c = 0; c < head.size(); ++c)
    if (small_letters(trimmed(head[c])) == name) return c;
  return std::nullopt;
}

std::size_t required_column(const std::vector<std::string>& head, std::string_view name,
                            const std::string& label) {
  if (const auto c = column(head, name)) return *c;
  throw FileError(fmt::format("{}: no column '{}'; its columns are {}", label, name,
                              printable(fmt::format("{}", fmt::join(head, ", ")))));
}

double number(const std::string& field, const std::string& label, std::size_t row,
              const std::string& name) {
  const std::string text = trimmed(field);
  char* end = nullptr;
  const double x = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(x))
    throw FileError(fmt::format("{}: row {}, column '{}': '{}' is no number", label, row,
                                printable(name), printable(field)));
  return x;
}

std::vector<fs::path> files_of(const fs::path& folder, const std::set<std::string>& kinds) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && kinds.count(entry.path().extension().string()))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void read_times(const fs::path& path, std::map<std::string, HumanMarks>& marks) {
  const tools::Json json = tools::read_json(path);
  if (!json.is_object())
    throw FileError(path.string() +
                    ": expected a JSON object, a list of times in milliseconds for every story");
  for (const auto& [name, list] : json.items()) {
    HumanMarks& m = marks[small_letters(name)];
    if (!list.is_array())
      throw FileError(fmt::format("{}: '{}' is no list of times in milliseconds", path.string(),
                                  printable(name)));
    m.times_ms.clear();
    for (const auto& time : list) {
      const double before = m.times_ms.empty() ? 0.0 : m.times_ms.back();
      if (!time.is_number() || !(time.get<double>() > before))
        throw FileError(fmt::format(
            "{}: '{}': {} is no time in milliseconds behind the one before; give them in order",
            path.string(), printable(name), printable_value(time)));
      m.times_ms.push_back(time.get<double>());
    }
  }
}

void read_ratings(const fs::path& path, std::map<std::string, HumanMarks>& marks) {
  const std::string label = path.string();
  const auto rows = tools::parse_csv(tools::read_text(path), label);
  const std::vector<std::string>& head = rows.front();
  const std::size_t id = required_column(head, "id", label);
  const std::size_t clause = required_column(head, "clause", label);
  if (head.size() < 3)
    throw FileError(label +
                    ": no column beside id and clause; ratings need one for every "
                    "dimension that raters judged, of 0 and 1");
  std::vector<double> changes;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < head.size(); ++c) {
      if (c == id || c == clause) continue;
      const double x = number(rows[r][c], label, r, head[c]);
      if (x != 0 && x != 1)
        throw FileError(fmt::format("{}: row {}, column '{}': {} is neither 0 nor 1", label, r,
                                    printable(head[c]), printable(rows[r][c])));
      sum += x;
    }
    changes.push_back(sum);
  }
  const std::string stem = small_letters(path.stem().string());
  HumanMarks& m = marks[stem.substr(0, stem.find('_'))];
  if (m.raters > 0 && m.changes.size() != changes.size())
    throw FileError(fmt::format("{}: {} clauses, but another rater of the story judged {}", label,
                                changes.size(), m.changes.size()));
  if (m.raters == 0) m.changes.assign(changes.size(), 0.0);
  ++m.raters;
  for (std::size_t i = 0; i < changes.size(); ++i)
    m.changes[i] += (changes[i] - m.changes[i]) / m.raters;
}

}  // namespace

Story read_story(const fs::path& path) {
  const std::string label = path.string();
  Story story;
  story.name = path.stem().string();
  if (story.name.starts_with("story_")) story.name.erase(0, 6);
  if (path.extension() != ".csv") {
    std::string text = tools::read_document(path, "utf-8");
    if (text.starts_with(tools::kByteOrderMark)) text.erase(0, tools::kByteOrderMark.size());
    story.text = trimmed(text);
    return story;
  }
  const auto rows = tools::parse_csv(tools::read_text(path), label);
  required_column(rows.front(), "id", label);
  const std::size_t clause = required_column(rows.front(), "clause", label);
  const auto onset = column(rows.front(), "onset_ms");
  for (std::size_t r = 1; r < rows.size(); ++r) {
    const std::string said = heard(rows[r][clause], label, r);
    if (!story.text.empty() && !said.empty()) story.text += ' ';
    story.clauses.push_back(story.text.size());
    story.text += said;
    if (!onset) continue;
    const double at = number(rows[r][*onset], label, r, "onset_ms");
    if (at < 0 || (!story.onsets.empty() && at < story.onsets.back()))
      throw FileError(
          fmt::format("{}: row {}: onset_ms goes back; give the clauses as they are "
                      "told",
                      label, r));
    story.onsets.push_back(at);
  }
  if (story.text.empty()) throw FileError(label + ": every clause is empty");
  return story;
}

std::vector<Story> read_stories(const fs::path& path) {
  if (!fs::exists(path)) throw FileError(path.string() + ": there is no such file or folder");
  if (!fs::is_directory(path)) return {read_story(path)};
  const fs::path folder = fs::is_directory(path / "stories") ? path / "stories" : path;
  std::vector<Story> stories;
  std::set<std::string> names;
  for (const fs::path& file : files_of(folder, {".csv", ".txt"})) {
    stories.push_back(read_story(file));
    if (!names.insert(small_letters(stories.back().name)).second)
      throw DataError(fmt::format("{}: two stories are called '{}'; keep one of them",
                                  folder.string(), stories.back().name));
  }
  if (stories.empty())
    throw FileError(folder.string() +
                    ": no story; put tables of clauses (.csv) or texts (.txt) "
                    "there");
  return stories;
}

std::map<std::string, HumanMarks> read_human_marks(const fs::path& path) {
  if (!fs::exists(path)) throw FileError(path.string() + ": there is no such file or folder");
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    files = files_of(path, {".csv", ".json"});
    if (fs::is_directory(path / "ratings"))
      for (const fs::path& file : files_of(path / "ratings", {".csv", ".json"}))
        files.push_back(file);
    if (files.empty())
      throw FileError(path.string() + ": no times (.json) and no ratings (.csv) there");
  } else {
    files.push_back(path);
  }
  std::map<std::string, HumanMarks> marks;
  for (const fs::path& file : files)
    if (file.extension() == ".csv")
      read_ratings(file, marks);
    else
      read_times(file, marks);
  return marks;
}

std::size_t word_at(const Story& story, double time_ms, double end_ms) {
  const std::size_t size = story.text.size();
  // The place in letters, between the two moments that are known before and after it.
  double from_ms = 0, to_ms = end_ms;
  std::size_t from = 0, to = size;
  for (std::size_t i = 0; i < story.onsets.size(); ++i)
    if (story.onsets[i] <= time_ms)
      from_ms = story.onsets[i], from = story.clauses[i];
    else if (to == size)
      to_ms = story.onsets[i], to = story.clauses[i];
  const double share =
      to_ms > from_ms ? std::clamp((time_ms - from_ms) / (to_ms - from_ms), 0.0, 1.0) : 0.0;
  const double place = static_cast<double>(from) + share * static_cast<double>(to - from);
  std::size_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < size; ++i) {
    if (is_space(story.text[i]) || (i > 0 && !is_space(story.text[i - 1]))) continue;
    const double d = std::abs(static_cast<double>(i) - place);
    if (d < distance) best = i, distance = d;
  }
  return best;
}

std::int64_t token_at(std::span<const std::size_t> ends, std::size_t byte) {
  return std::upper_bound(ends.begin(), ends.end(), byte) - ends.begin();
}

}  // namespace episodic::analysis
