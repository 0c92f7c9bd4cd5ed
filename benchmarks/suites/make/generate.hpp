// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The generated tasks of infinity-Bench, after OpenBMB/InfiniteBench's
/// construct_synthetic_dataset.py, at any length and depth. What is drawn and how a row is built
/// from it are apart, so that the building can be compared with rows made elsewhere.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "make/row_maker.hpp"

namespace episodic::suites {

// -- what is drawn --

std::string random_pass_key(Draw& draw);      ///< 5 digits
std::string random_digit_string(Draw& draw);  ///< 10 digits with runs of equal ones
std::string random_uuid(Draw& draw);          ///< version 4
using KeyValues = std::vector<std::pair<std::string, std::string>>;
KeyValues random_key_values(Draw& draw, std::int64_t n);

/// Kinds of math_find, in the order of the released file.
enum class Extreme : std::uint8_t {
  largest,
  second_largest,
  third_largest,
  smallest,
  second_smallest,
  third_smallest,
  median
};
inline constexpr std::int64_t kExtremes = 7;
/// n numbers of 0 to 99, of which the largest or the smallest is then drawn anew from 79 to 99 or
/// 0 to 19; for the median one of the two by coin. \param n >= 3
std::vector<std::int64_t> random_numbers(Draw& draw, Extreme kind, std::int64_t n);

/// A number and what is added to it and taken from it in turn.
struct Expression {
  struct Step {
    bool plus;
    std::int64_t operand;
  };
  std::int64_t start = 0;
  std::vector<Step> steps;
};
/// Every value on the way lies in [0, 99].
Expression random_expression(Draw& draw, std::int64_t n_operations);

/// func_id(x) returns (callee < 0 ? x : func_callee(x)) + add.
struct Function {
  std::int64_t id = 0, callee = -1, add = 0;
};
struct Program {
  std::vector<Function> functions;
  std::int64_t called = 0, argument = 0;
};
/// \param depth functions that the call runs through \param n functions, rounded down to a multiple
/// of depth
Program random_program(Draw& draw, std::int64_t depth, std::int64_t n);

// -- rows {id, context, input, answer, options} --

/// \param lines of the haystack in all \param before of them before the needle
Json passkey_row(const Haystack& haystack, std::int64_t lines, std::int64_t before,
                 const std::string& key);
Json number_string_row(const Haystack& haystack, std::int64_t lines, std::int64_t before,
                       const std::string& digits);
/// \param gold index of the pair that is asked for
Json kv_row(const KeyValues& pairs, std::size_t gold);
Json math_find_row(const std::vector<std::int64_t>& numbers, Extreme kind);
Json math_calc_row(const Expression& expression);
Json code_run_row(const Program& program);

/// EM-LLM's passkey__long: the context of a passkey row stretched with noise on both sides of its
/// needle to 790 words for each thousand tokens.
/// \throws DataError for a row of another kind, and for one that is longer already
Json stretch_passkey(const Json& row, std::int64_t thousand_tokens);

// -- rows of a length in tokens --

/// `count` rows of a generated task, each with its `depth` where it has one. `tokens` bounds the
/// context. passkey__long stretches the rows of `source`.
/// \throws ConfigError as the other, and for a task that is not generated
void make_rows(const MakeOptions& options, const TokenCounter& count_tokens, const RowSink& emit);

}  // namespace episodic::suites
