// SPDX-License-Identifier: Apache-2.0
#include "data/examples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "scoring/unicode.hpp"

namespace episodic::suites {
namespace {

constexpr std::string_view kLetters = "ABCD";

/// [text, letter] of a multiple-choice row, whose answer is the text, a list of it, or both.
Json choice_gold(const Row& row, const Json& answer, const std::vector<std::string>& options) {
  if (answer.is_array() && answer.size() == 2 && answer[0].is_string() && answer[1].is_string() &&
      answer[1].get<std::string>().size() == 1 &&
      kLetters.find(answer[1].get<std::string>()) != std::string_view::npos)
    return answer;
  const Json& one = answer.is_array() && answer.size() == 1 ? answer.front() : answer;
  if (!one.is_string()) row.fail("\"answer\" must be an option's text");
  const auto found = std::find(options.begin(), options.end(), one.get<std::string>());
  if (found == options.end()) row.fail("\"answer\" is none of \"options\"");
  return {one, std::string(1, kLetters[static_cast<std::size_t>(found - options.begin())])};
}

/// The first of the fields that the row has.
std::string_view first_of(const Row& row, std::initializer_list<std::string_view> fields,
                          std::string_view otherwise) {
  for (const std::string_view field : fields)
    if (row.has(field)) return field;
  return otherwise;
}

}  // namespace

const Json& or_null(const Json* found) {
  static const Json none;
  return found ? *found : none;
}

DataRows::DataRows(const std::filesystem::path& path, std::string_view id)
    : rows_(read_rows(path)) {
  if (rows_.empty())
    throw FileError(fmt::format("{}: holds no example; download or make it anew", path.string()));
  const bool have =
      std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.has(id); });
  std::unordered_map<std::string, const Row*> places;
  for (const Row& row : rows_) {
    ids_.push_back(have ? row.id(id) : std::to_string(ids_.size()));
    if (const auto [first, added] = places.emplace(ids_.back(), &row); !added)
      row.fail(fmt::format("the {} \"{}\" stands in {} too; give each row one of its own", id,
                           printable(first->first), first->second->place()));
  }
}

std::vector<Example> read_longbench(const std::filesystem::path& path) {
  std::vector<Example> all;
  for (const Row& row : DataRows(path, "_id")) {
    Example e;
    e.id = row.id("_id");
    e.context = row.text("context");
    e.input = row.text("input");
    e.gold = row.texts("answers");
    row.texts("all_classes");  // a list of strings or null, checked
    e.all_classes = row.at("all_classes");
    e.length = row.integer("length");
    all.push_back(std::move(e));
  }
  return all;
}

std::vector<Example> read_infinitebench(const std::filesystem::path& path, std::string_view task) {
  const bool choice = task == "code_debug" || task == "longbook_choice_eng";
  std::vector<Example> all;
  for (const Row& row : DataRows(path, "id")) {
    Example e;
    e.id = row.id("id");
    e.context = row.text(row.has("content") ? "content" : "context");
    e.input = row.text("input");
    const Json& answer = row.at("answer");
    if (row.has("options") || choice) e.options = row.texts("options");
    if (choice && e.options.size() != kLetters.size())
      row.fail(fmt::format("\"options\" must hold {} texts", kLetters.size()));
    if (answer.is_null() || answer.is_object() || answer.is_boolean())
      row.fail("\"answer\" must be a string, a number or a list");
    e.gold = choice ? choice_gold(row, answer, e.options) : answer;
    e.length = count_words(e.context);
    e.depth = or_null(row.find({"depth"}));
    e.tokens = or_null(row.find({"tokens"}));
    all.push_back(std::move(e));
  }
  return all;
}

Predictions read_predictions(const std::filesystem::path& path, const std::vector<Example>* data) {
  Predictions out;
  std::unordered_set<std::string> seen;
  for (const Row& row : read_rows(path)) {
    Prediction p;
    // LongBench v2's own rows have the letter that was read off the answer in "pred"
    p.text = row.text(first_of(row, {"response", "pred", "prediction", "hypothesis"}, "pred"));
    const std::string_view id = first_of(row, {"id", "_id", "question_id", "index"}, "");
    p.id = id.empty() ? std::to_string(row.number()) : row.id(id);
    p.gold = or_null(row.find({"answers", "answer", "ground_truth", "outputs", "label"}));
    if (row.has("all_classes")) row.texts("all_classes");
    p.all_classes = or_null(row.find({"all_classes"}));
    p.details = or_null(row.find({"details"}));
    // a word in LongBench v2
    if (row.has("length") && !row.at("length").is_string()) p.length = row.integer("length");
    if (p.gold.is_null() && !data)
      row.fail(
          "no gold answer (\"answers\", \"answer\", \"ground_truth\", \"outputs\" or \"label\"); "
          "name the "
          "task's data with --data");
    p.row = row.object();
    if (seen.insert(p.id).second)
      out.kept.push_back(std::move(p));
    else
      out.doubled.push_back(p.id);
  }
  if (!data) return out;
  std::unordered_map<std::string, std::size_t> at;
  for (std::size_t i = 0; i < out.kept.size(); ++i) at[out.kept[i].id] = i;
  std::vector<Prediction> ordered;
  for (const Example& e : *data) {
    const auto found = at.find(e.id);
    if (found == at.end()) {
      out.missing.push_back(e.id);
      continue;
    }
    Prediction p = std::move(out.kept[found->second]);
    at.erase(found);
    p.gold = e.gold;
    p.all_classes = e.all_classes;
    p.details = e.details;
    p.length = e.length;
    ordered.push_back(std::move(p));
  }
  for (const Prediction& p : out.kept)
    if (at.contains(p.id)) out.unknown.push_back(p.id);
  out.kept = std::move(ordered);
  return out;
}

}  // namespace episodic::suites
