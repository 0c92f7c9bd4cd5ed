// SPDX-License-Identifier: Apache-2.0
#include "scoring/infinitebench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "scoring/python_random.hpp"
#include "scoring/rouge.hpp"
#include "scoring/unicode.hpp"
#include "scoring/words.hpp"

namespace episodic::suites {
namespace {

constexpr std::array<InfiniteTask, 12> kInfiniteTasks{{
    // name, name in the papers, examples, most new tokens official and EM-LLM, in EM-LLM's table
    {"passkey", "Retrieve.PassKey", 590, 6, 32, true},
    {"number_string", "Retrieve.Number", 590, 12, 32, true},
    {"kv_retrieval", "Retrieve.KV", 500, 50, 100, true},
    {"longbook_sum_eng", "En.Sum", 103, 1200, 1536, false},
    {"longbook_qa_eng", "En.QA", 351, 40, 32, false},
    {"longbook_choice_eng", "En.MC", 229, 40, 32, true},
    {"longdialogue_qa_eng", "En.Dia", 200, 40, 32, false},
    {"longbook_qa_chn", "Zh.QA", 175, 40, 32, false},
    {"code_debug", "Code.Debug", 394, 5, 32, true},
    {"code_run", "Code.Run", 400, 5, 32, false},
    {"math_find", "Math.Find", 350, 3, 32, true},
    {"math_calc", "Math.Calc", 50, 30000, 64000, false},
}};

using Text = std::u32string;
using View = std::u32string_view;

// -- gold answers --

[[noreturn]] void bad_gold(const InfiniteTask& task, const char* expected, const Json& gold) {
  throw DataError(fmt::format("{}: the answer must be {}, found {}", task.name, expected,
                              printable_value(gold)));
}

/// The first element of a list, else the value itself.
const Json& first_of(const Json& gold) {
  return gold.is_array() && !gold.empty() ? gold.front() : gold;
}

std::string string_of(const InfiniteTask& task, const Json& gold) {
  const Json& one = first_of(gold);
  if (!one.is_string()) bad_gold(task, "a string", gold);
  return one.get<std::string>();
}

std::vector<std::string> strings_of(const InfiniteTask& task, const Json& gold) {
  if (gold.is_string()) return {gold.get<std::string>()};
  std::vector<std::string> all;
  if (!gold.is_array()) bad_gold(task, "a string or a list of strings", gold);
  for (const Json& one : gold) all.push_back(string_of(task, one));
  return all;
}

/// [text, letter] of the multiple-choice tasks.
struct Choice {
  std::string text, letter;
};
Choice choice_of(const InfiniteTask& task, const Json& gold) {
  if (!gold.is_array() || gold.size() != 2 || !gold[0].is_string() || !gold[1].is_string())
    bad_gold(task, "[text, letter]", gold);
  return {gold[0].get<std::string>(), gold[1].get<std::string>()};
}

// -- what the scorers read off a prediction --

Text with_spaces_for(View text, View characters) {
  Text out(text);
  for (char32_t& c : out)
    if (characters.find(c) != View::npos) c = U' ';
  return out;
}

void replace_all(Text& text, View what, View by) {
  Text out;
  std::size_t from = 0;
  for (std::size_t at; (at = text.find(what, from)) != Text::npos; from = at + what.size()) {
    out.append(text, from, at - from);
    out += by;
  }
  out.append(text, from);
  text = std::move(out);
}

/// Runs of the space character become one.
void collapse_spaces(Text& text) {
  const auto end = std::unique(text.begin(), text.end(),
                               [](char32_t a, char32_t b) { return a == U' ' && b == U' '; });
  text.erase(end, text.end());
}

bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }

std::vector<View> ascii_digit_runs(View text) {
  std::vector<View> runs;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    while (at < text.size() && is_ascii_digit(text[at])) ++at;
    if (at > start)
      runs.push_back(text.substr(start, at - start));
    else
      ++at;
  }
  return runs;
}

bool contains_word(const Text& text, View word) {
  const auto words = split_words(text);
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// What follows the first of the prefixes that occurs, without one character more.
struct AfterPrefix {
  bool found = false;
  std::optional<Text> rest;  ///< absent where the text ends with the prefix
};
AfterPrefix after_prefix(const Text& text, std::initializer_list<View> prefixes) {
  for (const View prefix : prefixes) {
    const std::size_t at = text.find(prefix);
    if (at == Text::npos) continue;
    if (text.size() < at + prefix.size() + 1) return {true, std::nullopt};
    return {true, text.substr(at + prefix.size() + 1)};
  }
  return {};
}

bool starts_with_either(const std::optional<Text>& text, const Text& a, const Text& b) {
  return text && (text->starts_with(a) || text->starts_with(b));
}

// -- retrieval --

double first_number_is(View prediction, const Text& gold) {
  const auto runs = ascii_digit_runs(prediction);
  return (runs.empty() ? View() : runs.front()) == gold;
}

constexpr View kWordEnds = U"\n:\"'.,?!{}";

double kv_retrieval(View prediction, const Text& gold) {
  return contains_word(with_spaces_for(prediction, kWordEnds), gold);
}

// -- code --

double code_run(const InfiniteTask& task, View prediction, const Json& gold) {
  const Json& one = first_of(gold);
  if (!one.is_number()) bad_gold(task, "a number", gold);
  const Text text = with_spaces_for(strip(prediction), U"\n.`'\":");
  const auto words = split_words(text);
  if (words.empty()) return 0;
  const std::optional<std::int64_t> value = python_int(words.back());
  return value && static_cast<double>(*value) == one.get<double>();
}

Text without_decoration(View prediction) {
  Text text = with_spaces_for(strip(prediction), U"\n`'\"-*");
  replace_all(text, U"Option", U" ");
  replace_all(text, U"option", U" ");
  collapse_spaces(text);
  return text;
}

bool begins_with_letter(View text, View letter) {
  return letter.size() == 1 && text.size() > 1 && text[0] == letter[0] &&
         (text[1] == '.' || text[1] == ':');
}

double code_debug(View prediction, const Text& name, const Text& letter) {
  if (begins_with_letter(strip(prediction), letter)) return 1;
  return starts_with_either(after_prefix(without_decoration(prediction),
                                         {U"answer is:", U"is:", U"answer:", U"correct option is:"})
                                .rest,
                            letter, name);
}

ExampleScore em_code_debug(View prediction, const Text& name, const Text& letter) {
  if (begins_with_letter(prediction, letter)) return {1.0};
  Text text = without_decoration(prediction);
  const AfterPrefix first = after_prefix(text, {U"answer is:", U"is:", U"answer:"});
  if (first.rest) text = *first.rest;  // the second search goes on where the first one ended
  const AfterPrefix second = after_prefix(text, {U"answer is", U"error is"});
  if (!first.found && !second.found) {
    const char32_t drawn = U"ABCD"[python_choice(to_utf8(name), 4)];
    return {letter == Text(1, drawn) ? 1.0 : 0.0, true};
  }
  return {starts_with_either(first.rest, letter, name) ||
                  starts_with_either(second.rest, letter, name)
              ? 1.0
              : 0.0};
}

// -- books and dialogues --

constexpr View kChoiceEnds = U"\n\"'.,?!{}";
constexpr View kLetters = U"ABCD";

bool is_letter(char32_t c) { return kLetters.find(c) != View::npos; }

/// The first word that is a part of "ABCD", as the published `in` has it.
std::optional<Text> first_letter_word(const Text& text) {
  for (const View word : split_words(text))
    if (kLetters.find(word) != View::npos) return Text(word);
  return std::nullopt;
}

double choice(View prediction, const Text& answer, const Text& letter) {
  prediction = strip(prediction);
  if (prediction.empty()) return 0;
  if (is_letter(prediction.front())) return letter == prediction.substr(0, 1);
  if (prediction == answer) return 1;
  Text text = with_spaces_for(prediction, kChoiceEnds);
  collapse_spaces(text);
  const AfterPrefix after =
      after_prefix(text, {U"answer is:", U"answer:", U"answer is", U"option is"});
  if (after.found) return starts_with_either(after.rest, answer, letter);
  const std::optional<Text> word = first_letter_word(text);
  return word && (*word == answer || *word == letter);
}

/// EM-LLM's program takes text and letter for two golds, each a string whose letters count.
double em_choice(View prediction, const Text& gold) {
  if (is_letter(prediction.front())) return gold == prediction.substr(0, 1);
  Text text = with_spaces_for(prediction, kChoiceEnds);
  collapse_spaces(text);
  const AfterPrefix after =
      after_prefix(text, {U"answer is:", U"answer:", U"answer is", U"option is"});
  if (after.found)
    return after.rest && !after.rest->empty() && gold.find(after.rest->front()) != Text::npos;
  const std::optional<Text> word = first_letter_word(text);
  return word && *word == gold;
}

double dialogue(View prediction, View gold) {
  return contains_word(upper(with_spaces_for(prediction, kWordEnds)), gold);
}

double words_f1(View prediction, const std::vector<Text>& golds) {
  double best = 0;
  for (const Text& gold : golds)
    best = std::max(best, bag_f1(normalized_words(prediction), normalized_words(gold)));
  return best;
}

double characters_f1(View prediction, const std::vector<Text>& golds) {
  double best = 0;
  for (const Text& gold : golds)
    best = std::max(best, bag_f1(normalized_chinese(prediction), normalized_chinese(gold)));
  return best;
}

/// The golds as EM-LLM's program walks them: the characters of a string.
std::vector<Text> characters_of(View gold) {
  std::vector<Text> all;
  for (const char32_t c : gold) all.emplace_back(1, c);
  return all;
}

std::vector<Text> texts_of(const std::vector<std::string>& all) {
  std::vector<Text> out;
  for (const std::string& one : all) out.push_back(to_code_points(one));
  return out;
}

// -- mathematics --

/// The first match of \d+\.\d+|\d+, in ASCII digits.
std::optional<std::string> first_decimal(View text) {
  const auto runs = digit_runs(text);
  if (runs.empty()) return std::nullopt;
  std::string number;
  for (const char32_t c : runs.front()) number.push_back(static_cast<char>('0' + digit_value(c)));
  const View rest = text.substr(static_cast<std::size_t>(runs.front().data() - text.data()) +
                                runs.front().size());
  if (rest.size() >= 2 && rest[0] == '.' && is_digit(rest[1])) {
    number.push_back('.');
    for (std::size_t i = 1; i < rest.size() && is_digit(rest[i]); ++i)
      number.push_back(static_cast<char>('0' + digit_value(rest[i])));
  }
  return number;
}

ExampleScore math_find(const InfiniteTask& task, View prediction, const Json& gold) {
  const Json& one = first_of(gold);
  if (!one.is_number()) bad_gold(task, "a number", gold);
  const std::optional<std::string> number = first_decimal(prediction);
  if (!number) return {0.0};
  // int("88.0") raises in the published programs
  if (one.is_number_integer() && number->find('.') != std::string::npos) return {0.0, false, true};
  return {std::strtod(number->c_str(), nullptr) == one.get<double>() ? 1.0 : 0.0};
}

double math_calc(const InfiniteTask& task, View prediction, const Json& gold, bool drop_first) {
  const Json& values =
      gold.is_array() && !gold.empty() && gold.front().is_array() ? gold.front() : gold;
  if (!values.is_array() || values.empty()) bad_gold(task, "a list of numbers", gold);
  const auto runs = ascii_digit_runs(prediction);
  std::size_t right = 0;
  for (std::size_t i = drop_first ? 1 : 0; i < runs.size() && right < values.size(); ++i) {
    const std::optional<std::int64_t> value = python_int(runs[i]);
    if (!values[right].is_number()) bad_gold(task, "a list of numbers", gold);
    if (!value || static_cast<double>(*value) != values[right].get<double>()) break;
    ++right;
  }
  return static_cast<double>(right) / static_cast<double>(values.size());
}

// -- the two programs --

ExampleScore official(const InfiniteTask& task, View prediction, const Json& gold,
                      const InfiniteScoring& how) {
  const std::string_view name = task.name;
  const auto gold_text = [&] { return to_code_points(string_of(task, gold)); };
  if (name == "passkey" || name == "number_string")
    return {first_number_is(prediction, gold_text())};
  if (name == "kv_retrieval") return {kv_retrieval(prediction, gold_text())};
  if (name == "code_run") return {code_run(task, prediction, gold)};
  if (name == "math_find") return math_find(task, prediction, gold);
  if (name == "math_calc") return {math_calc(task, prediction, gold, how.drop_first_number)};
  if (name == "longdialogue_qa_eng") return {dialogue(strip(prediction), gold_text())};
  if (name == "code_debug" || name == "longbook_choice_eng") {
    const Choice c = choice_of(task, gold);
    const Text text = to_code_points(c.text), letter = to_code_points(c.letter);
    return {name == "code_debug" ? code_debug(prediction, text, letter)
                                 : choice(prediction, text, letter)};
  }
  const std::vector<Text> golds = texts_of(strings_of(task, gold));
  if (name == "longbook_qa_eng") return {words_f1(prediction, golds)};
  if (name == "longbook_qa_chn") return {characters_f1(prediction, golds)};
  double best = 0;  // longbook_sum_eng
  for (const Text& one : golds) best = std::max(best, rouge_lsum(prediction, one));
  return {best};
}

/// One gold element, as EM-LLM's program hands it to the scorers.
ExampleScore em_llm_one(const InfiniteTask& task, View prediction, const Json& gold) {
  const std::string_view name = task.name;
  if (name == "code_run") return {code_run(task, prediction, gold)};
  if (name == "math_find") return math_find(task, prediction, gold);
  if (name == "math_calc") {
    if (!gold.is_array())
      throw ConfigError(
          "--scorer em-llm: the authors' program raises on math_calc (it hands its scorer single "
          "numbers); use --scorer official");
    return {math_calc(task, prediction, gold, false)};
  }
  if (!gold.is_string()) bad_gold(task, "a string or a list of strings", gold);
  const Text text = to_code_points(gold.get<std::string>());
  if (name == "passkey" || name == "number_string") return {first_number_is(prediction, text)};
  if (name == "kv_retrieval") return {kv_retrieval(prediction, text)};
  if (name == "longdialogue_qa_eng") return {dialogue(prediction, View(text).substr(0, 1))};
  if (name == "longbook_qa_eng") return {words_f1(prediction, characters_of(text))};
  if (name == "longbook_qa_chn") return {characters_f1(prediction, characters_of(text))};
  if (prediction.empty()) return {0.0, false, true};  // longbook_choice_eng looks at pred[0]
  return {em_choice(prediction, text)};
}

ExampleScore em_llm(const InfiniteTask& task, View prediction, const Json& gold) {
  if (task.name == "longbook_sum_eng")
    throw ConfigError(
        "--scorer em-llm: the authors' program has no score for longbook_sum_eng (it raises); use "
        "--scorer official");
  if (task.name == "code_debug") {
    const Choice c = choice_of(task, gold);
    return em_code_debug(prediction, to_code_points(c.text), to_code_points(c.letter));
  }
  if (!gold.is_array()) return em_llm_one(task, prediction, gold);
  ExampleScore best;
  for (const Json& one : gold) {
    const ExampleScore s = em_llm_one(task, prediction, one);
    best.score = std::max(best.score, s.score);
    best.undefined = best.undefined || s.undefined;
  }
  return best;
}

}  // namespace

std::span<const InfiniteTask> infinitebench_tasks() { return kInfiniteTasks; }

const InfiniteTask& infinitebench_task(std::string_view name) {
  std::string known;
  for (const InfiniteTask& task : kInfiniteTasks) {
    if (task.name == name) return task;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", task.name);
  }
  throw ConfigError(
      fmt::format("--task {}: not an infinity-Bench task; there are {}", name, known));
}

ExampleScore score_infinitebench(const InfiniteTask& task, std::string_view prediction,
                                 const Json& gold, const InfiniteScoring& how) {
  const Text text = to_code_points(prediction);
  return how.scorer == Scorer::official ? official(task, text, gold, how)
                                        : em_llm(task, text, gold);
}

}  // namespace episodic::suites
