// SPDX-License-Identifier: Apache-2.0
#include "make/row_maker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "episodic/base/error.hpp"
#include "hidden_facts.hpp"

namespace episodic::suites {
namespace {

/// Most units whose length is at most `tokens`, 0 units less than the smallest if there are none:
/// by the slope between two lengths, then step by step. Encoding ten million tokens takes long, so
/// few lengths are tried.
/// \param guess units to begin at, with the slope between there and the smallest; 0: none
std::int64_t fit_units(const std::function<std::int64_t(std::int64_t)>& tokens_of,
                       const RowMaker& maker, std::int64_t tokens, std::int64_t guess) {
  const std::int64_t smallest = maker.smallest(), largest = maker.largest();
  const std::int64_t first = tokens_of(smallest);
  if (first > tokens) return smallest - 1;
  const std::int64_t other = std::min(largest, guess > smallest ? guess : smallest + 64);
  if (other == smallest) return smallest;
  std::int64_t units = smallest, found = first;
  const std::int64_t there = tokens_of(other);
  const double slope =
      std::max(0.1, static_cast<double>(there - first) / static_cast<double>(other - smallest));
  if (guess > smallest) units = other, found = there;
  for (int tries = 0; tries < 6; ++tries) {
    const auto more =
        static_cast<std::int64_t>(std::floor(static_cast<double>(tokens - found) / slope));
    const std::int64_t next = std::clamp(units + more, smallest, largest);
    if (next == units) break;
    units = next;
    found = tokens_of(units);
  }
  while (units > smallest && found > tokens) found = tokens_of(--units);
  return units;
}

}  // namespace

std::int64_t Draw::between(std::int64_t low, std::int64_t high) {
  const auto n = static_cast<std::uint64_t>(high - low) + 1;
  const std::uint64_t most = std::mt19937_64::max() - std::mt19937_64::max() % n;
  std::uint64_t drawn = engine_();
  while (drawn >= most) drawn = engine_();
  return low + static_cast<std::int64_t>(drawn % n);
}

std::vector<std::int64_t> Draw::sample(std::int64_t of, std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(of));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t i = 0; i < count; ++i)
    std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(between(i, of - 1))]);
  all.resize(static_cast<std::size_t>(count));
  return all;
}

std::int64_t RowMaker::length_of(const Json& row, const TokenCounter& count) const {
  return count(row.at("context").get_ref<const std::string&>());
}

void make_rows(const RowMaker& maker, const MakeOptions& options, const TokenCounter& count_tokens,
               const RowSink& emit) {
  if (options.depth >= 0 && !maker.has_depth())
    throw ConfigError(
        fmt::format("--depth: the task {} has no place in the text to choose", options.task));
  const auto length_of = [&](Draw draw, std::int64_t n, std::int64_t index) {
    return maker.length_of(maker.row(draw, n, index), count_tokens);
  };
  const std::int64_t smallest = maker.smallest();
  Draw draw(options.seed);
  std::int64_t units = 0;
  for (std::int64_t i = 0; i < options.count; ++i) {
    if (i == 0 || maker.fills_each())
      units = fit_units([&](std::int64_t n) { return length_of(draw, n, i); }, maker,
                        options.tokens, units);
    if (units < smallest)
      throw ConfigError(fmt::format("--tokens {}: too few for the smallest context of task {}",
                                    options.tokens, options.task));
    // Rows of one number of units differ by a few tokens; one that is too long loses a unit.
    Json row;
    std::int64_t tokens = 0;
    for (std::int64_t n = units; n >= smallest; --n) {
      Draw here = draw;
      row = maker.row(here, n, i);
      tokens = maker.length_of(row, count_tokens);
      if (tokens > options.tokens && n > smallest) continue;
      draw = here;
      break;
    }
    row["id"] = i;
    row["tokens"] = tokens;
    emit(std::move(row));
  }
}

std::vector<std::string> sentences_of(const std::filesystem::path& file) {
  return tools::open_book(file).pieces;
}

}  // namespace episodic::suites
