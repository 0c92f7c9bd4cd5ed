// SPDX-License-Identifier: Apache-2.0
#include "scoring/jieba.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "episodic/base/error.hpp"
#include "scoring/unicode.hpp"

namespace episodic::suites {
namespace {

constexpr const char* kRemedy =
    "install Debian's python3-jieba, or unpack jieba 0.42.1 of PyPI and name its folder jieba/ in "
    "EPISODIC_JIEBA";

/// States in alphabetical order: jieba compares (probability, name), so the later name wins a tie.
enum State : std::uint8_t { kBegin, kEnd, kMiddle, kAlone };
constexpr std::string_view kStateNames = "BEMS";
constexpr double kNever = -3.14e100;  // jieba's log of zero

// The model's transition and starting probabilities (finalseg/prob_trans.py, prob_start.py).
constexpr double kStart[4] = {-0.26268660809250016, kNever, kNever, -1.4652633398537678};
constexpr double kTransition[4][4] = {
    // to B, E, M, S
    {kNever, -0.510825623765990, -0.916290731874155, kNever},     // from B
    {-0.5897149736854513, kNever, kNever, -0.8085250474669937},   // from E
    {kNever, -0.33344856811948514, -1.2603623820268226, kNever},  // from M
    {-0.7211965654669841, kNever, kNever, -0.6658631448798212}};  // from S
/// What may come before each state.
constexpr State kBefore[4][2] = {
    {kEnd, kAlone}, {kBegin, kMiddle}, {kBegin, kMiddle}, {kEnd, kAlone}};

bool is_han(char32_t c) { return c >= 0x4e00 && c <= 0x9fd5; }

bool is_ascii_alnum(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Characters that words are made of; all others are words of their own.
bool in_block(char32_t c) {
  return is_han(c) || is_ascii_alnum(c) ||
         (c < 0x80 && std::string_view("+#&._%-").find(static_cast<char>(c)) != std::string::npos);
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw FileError(fmt::format("{}: cannot be read; {}", path.string(), kRemedy));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// Length of the run of characters that satisfy `is` at the start of the text.
template <class Predicate>
std::size_t run_length(std::u32string_view text, Predicate is) {
  std::size_t n = 0;
  while (n < text.size() && is(text[n])) ++n;
  return n;
}

/// Length of [a-zA-Z0-9]+(?:\.\d+)?%? at the start of the text, 0 if there is none.
std::size_t latin_length(std::u32string_view text) {
  std::size_t n = run_length(text, is_ascii_alnum);
  if (n == 0) return 0;
  if (n < text.size() && text[n] == '.')
    if (const std::size_t decimals = run_length(text.substr(n + 1), is_digit); decimals > 0)
      n += 1 + decimals;
  if (n < text.size() && text[n] == '%') ++n;
  return n;
}

}  // namespace

Jieba::Jieba(const std::filesystem::path& folder) {
  read_dictionary(folder / "dict.txt");
  read_emissions(folder / "finalseg" / "prob_emit.py");
}

std::filesystem::path Jieba::find() {
  if (const char* named = std::getenv("EPISODIC_JIEBA"); named && *named) return named;
  const std::filesystem::path debian = "/usr/lib/python3/dist-packages/jieba";
  if (std::filesystem::exists(debian / "dict.txt")) return debian;
  throw FileError(fmt::format("{}: not there, and Chinese tasks are scored by jieba's words; {}",
                              debian.string(), kRemedy));
}

const Jieba& Jieba::shared() {
  static const Jieba jieba(find());
  return jieba;
}

void Jieba::read_dictionary(const std::filesystem::path& path) {
  const std::string text = file_text(path);
  std::int64_t total = 0;
  int line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view entry(text.data() + at, end - at);
    at = end + 1;
    ++line;
    const std::size_t space = entry.find(' ');
    int count = 0;
    const bool ok =
        space != std::string_view::npos &&
        std::from_chars(entry.data() + space + 1, entry.data() + entry.size(), count).ec ==
            std::errc();
    if (!ok)
      throw FileError(fmt::format("{}:{}: not `word count`; {}", path.string(), line, kRemedy));
    const std::u32string word = to_code_points(entry.substr(0, space));
    frequency_[word] = count;
    total += count;
    for (std::size_t n = 1; n < word.size(); ++n) frequency_.try_emplace(word.substr(0, n), 0);
  }
  if (total <= 0) throw FileError(fmt::format("{}: holds no words; {}", path.string(), kRemedy));
  log_total_ = std::log(static_cast<double>(total));
}

void Jieba::read_emissions(const std::filesystem::path& path) {
  // A Python literal {'B': {'\u4e00': -3.65, ...}, 'E': ...}: quoted strings, each followed by a
  // colon and either a brace or a number.
  const std::string text = file_text(path);
  int state = -1;
  for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos;) {
    const std::size_t end = text.find('\'', at + 1);
    const std::size_t value =
        end == std::string::npos ? end : text.find_first_not_of(": ", end + 1);
    if (value == std::string::npos) break;
    const std::string_view key(text.data() + at + 1, end - at - 1);
    at = value;
    if (text[value] == '{') {
      const std::size_t named = kStateNames.find(key);
      state = key.size() == 1 && named != std::string_view::npos ? static_cast<int>(named) : -1;
      continue;
    }
    double log_probability = 0;
    std::uint32_t code = 0;
    const char* first = key.data() + 2;
    const char* last = key.data() + key.size();
    const bool number =
        std::from_chars(text.data() + value, text.data() + text.size(), log_probability).ec ==
        std::errc();
    const bool character = key.size() == 6 && key.substr(0, 2) == "\\u" &&
                           std::from_chars(first, last, code, 16).ptr == last;
    if (state < 0 || !number || !character)
      throw FileError(
          fmt::format("{}: not jieba's emission table (at '{}'); {}", path.string(), key, kRemedy));
    emission_[static_cast<std::size_t>(state)].emplace(code, log_probability);
  }
  for (const auto& table : emission_)
    if (table.empty())
      throw FileError(fmt::format("{}: a state has no emissions; {}", path.string(), kRemedy));
}

int Jieba::frequency(std::u32string_view word) const {
  const auto found = frequency_.find(word);
  return found == frequency_.end() ? -1 : found->second;
}

std::vector<std::u32string_view> Jieba::cut(std::u32string_view text) const {
  Words words;
  while (!text.empty()) {
    const std::size_t n = run_length(text, in_block);
    if (n > 0) {
      cut_block(text.substr(0, n), words);
      text.remove_prefix(n);
      continue;
    }
    // All else is a word a character, but for a line's end of two.
    const std::size_t one = text.substr(0, 2) == U"\r\n" ? 2 : 1;
    words.push_back(text.substr(0, one));
    text.remove_prefix(one);
  }
  return words;
}

void Jieba::cut_block(std::u32string_view block, Words& words) const {
  // The most probable path, from the end: best[i] is that of block[i, ...), next[i] the end of its
  // first word.
  const std::size_t n = block.size();
  std::vector<double> best(n + 1, 0);
  std::vector<std::size_t> next(n + 1, 0);
  for (std::size_t i = n; i-- > 0;) {
    bool any = false;
    const auto consider = [&](std::size_t end, int count) {
      const double p = std::log(static_cast<double>(std::max(count, 1))) - log_total_ + best[end];
      if (!any || p >= best[i]) best[i] = p, next[i] = end;  // of equals the longer word
      any = true;
    };
    for (std::size_t end = i + 1; end <= n; ++end) {
      const int count = frequency(block.substr(i, end - i));
      if (count < 0) break;
      if (count > 0) consider(end, count);
    }
    if (!any) consider(i + 1, frequency(block.substr(i, 1)));
  }
  // Runs of single characters may hold words that the dictionary lacks.
  std::size_t run = 0;
  for (std::size_t i = 0; i < n; i = next[i]) {
    if (next[i] == i + 1) continue;
    cut_unknown(block.substr(run, i - run), words);
    words.push_back(block.substr(i, next[i] - i));
    run = next[i];
  }
  cut_unknown(block.substr(run), words);
}

void Jieba::cut_unknown(std::u32string_view run, Words& words) const {
  if (run.size() == 1 || frequency(run) > 0) {
    for (std::size_t i = 0; i < run.size(); ++i) words.push_back(run.substr(i, 1));
    return;
  }
  while (!run.empty()) {
    std::size_t n = run_length(run, is_han);
    if (n > 0) {
      cut_by_hmm(run.substr(0, n), words);
    } else if (n = latin_length(run); n > 0) {
      words.push_back(run.substr(0, n));
    } else {  // what stands between those two kinds
      n = run_length(run, [](char32_t c) { return !is_han(c) && !is_ascii_alnum(c); });
      words.push_back(run.substr(0, n));
    }
    run.remove_prefix(n);
  }
}

void Jieba::cut_by_hmm(std::u32string_view run, Words& words) const {
  const auto emission = [&](int state, char32_t c) {
    const auto& table = emission_[static_cast<std::size_t>(state)];
    const auto found = table.find(c);
    return found == table.end() ? kNever : found->second;
  };
  // Viterbi: score of the best path that ends in each state, and the state before it.
  const std::size_t n = run.size();
  std::vector<std::array<State, 4>> before(n);
  std::array<double, 4> score{}, next{};
  for (int y = 0; y < 4; ++y) score[y] = kStart[y] + emission(y, run[0]);
  for (std::size_t t = 1; t < n; ++t) {
    for (int y = 0; y < 4; ++y) {
      const double e = emission(y, run[t]);
      const State first = kBefore[y][0], second = kBefore[y][1];
      const double a = score[first] + kTransition[first][y] + e;
      const double b = score[second] + kTransition[second][y] + e;
      next[y] = std::max(a, b);
      before[t][y] = b >= a ? second : first;
    }
    score = next;
  }
  std::vector<State> states(n);
  states[n - 1] = score[kAlone] >= score[kEnd] ? kAlone : kEnd;
  for (std::size_t t = n - 1; t > 0; --t) states[t - 1] = before[t][states[t]];
  // Words end where a state says so; what is left open at the end is one too.
  std::size_t begin = 0, done = 0;
  for (std::size_t t = 0; t < n; ++t) {
    if (states[t] == kBegin || states[t] == kAlone) begin = t;
    if (states[t] == kBegin || states[t] == kMiddle) continue;
    words.push_back(run.substr(begin, t + 1 - begin));
    done = t + 1;
  }
  if (done < n) words.push_back(run.substr(done));
}

}  // namespace episodic::suites
