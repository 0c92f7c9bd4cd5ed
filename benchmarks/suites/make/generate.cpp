// SPDX-License-Identifier: Apache-2.0
#include "make/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "episodic/base/error.hpp"
#include "scoring/unicode.hpp"

namespace episodic::suites {
namespace {

constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr std::int64_t kNoiseWords = 19;

Json row_of(std::string context, std::string input, Json answer) {
  return {{"id", 0},
          {"context", std::move(context)},
          {"input", std::move(input)},
          {"answer", std::move(answer)},
          {"options", Json::array()}};
}

/// The same with the field "prompt" that the released mathematical tasks have.
Json math_row(std::string prompt, std::string context, std::string input, Json answer) {
  Json row = row_of(std::move(context), std::move(input), std::move(answer));
  row["prompt"] = std::move(prompt);
  return row;
}

std::string hidden(const Haystack& haystack, std::int64_t lines, std::int64_t before,
                   const std::string& needle) {
  std::string text;
  const auto n = static_cast<std::int64_t>(haystack.lines.size());
  for (std::int64_t i = 0; i < lines; ++i) {
    if (i == before) text += needle;
    text += haystack.lines[static_cast<std::size_t>(i % n)];
  }
  return before >= lines ? text + needle : text;
}

const char* name_of(Extreme kind) {
  switch (kind) {
    case Extreme::largest:
      return "largest number";
    case Extreme::second_largest:
      return "second largest number";
    case Extreme::third_largest:
      return "third largest number";
    case Extreme::smallest:
      return "smallest number";
    case Extreme::second_smallest:
      return "second smallest number";
    case Extreme::third_smallest:
      return "third smallest number";
    case Extreme::median:
      break;
  }
  return "median";
}

Json extreme_of(std::vector<std::int64_t> numbers, Extreme kind) {
  std::sort(numbers.begin(), numbers.end());
  if (kind == Extreme::median) {
    const std::size_t n = numbers.size();
    if (n % 2 == 1) return numbers[n / 2];
    return static_cast<double>(numbers[n / 2 - 1] + numbers[n / 2]) / 2;
  }
  // The k-th of the different values.
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  const auto rank = static_cast<std::size_t>(kind) % 3;
  const std::size_t at = std::min(rank, numbers.size() - 1);
  return kind < Extreme::smallest ? numbers[numbers.size() - 1 - at] : numbers[at];
}

// -- a task's rows of n units --

/// A task of infinity-Bench.
class Generator : public RowMaker {
 public:
  using RowMaker::RowMaker;
  bool fills_each() const override { return false; }  // units are alike

 protected:
  /// Depth asked for, or that of the row where they are spread evenly.
  double depth(std::int64_t index) const {
    if (options_.depth >= 0) return options_.depth;
    return options_.count == 1
               ? 0.5
               : static_cast<double>(index) / static_cast<double>(options_.count - 1);
  }
};

class NeedleGenerator final : public Generator {
 public:
  NeedleGenerator(const MakeOptions& options, bool number) : Generator(options), number_(number) {}
  std::int64_t smallest() const override { return 1; }
  Json row(Draw& draw, std::int64_t lines, std::int64_t index) const override {
    const double depth = this->depth(index);
    const auto before = std::llround(depth * static_cast<double>(lines));
    Json row = number_
                   ? number_string_row(options_.haystack, lines, before, random_digit_string(draw))
                   : passkey_row(options_.haystack, lines, before, random_pass_key(draw));
    row["depth"] = depth;
    return row;
  }

 private:
  bool number_;
};

class KeyValueGenerator final : public Generator {
 public:
  using Generator::Generator;
  std::int64_t smallest() const override { return 1; }
  Json row(Draw& draw, std::int64_t pairs, std::int64_t index) const override {
    // the released file asks for pair 5 * index of 2500, with 500 rows
    const std::int64_t gold = options_.depth >= 0
                                  ? std::llround(options_.depth * static_cast<double>(pairs - 1))
                                  : index * pairs / options_.count;
    Json row = kv_row(random_key_values(draw, pairs), static_cast<std::size_t>(gold));
    row["depth"] =
        static_cast<double>(gold) / static_cast<double>(std::max<std::int64_t>(pairs - 1, 1));
    return row;
  }
};

class FindGenerator final : public Generator {
 public:
  using Generator::Generator;
  std::int64_t smallest() const override { return 3; }
  bool has_depth() const override { return false; }
  Json row(Draw& draw, std::int64_t numbers, std::int64_t index) const override {
    const auto kind = static_cast<Extreme>(index * kExtremes / options_.count);
    return math_find_row(random_numbers(draw, kind, numbers), kind);
  }
};

class CalcGenerator final : public Generator {
 public:
  using Generator::Generator;
  std::int64_t smallest() const override { return 1; }
  bool has_depth() const override { return false; }
  Json row(Draw& draw, std::int64_t operations, std::int64_t) const override {
    return math_calc_row(random_expression(draw, operations));
  }
};

class CodeGenerator final : public Generator {
 public:
  using Generator::Generator;
  std::int64_t smallest() const override { return 10; }
  bool has_depth() const override { return false; }
  Json row(Draw& draw, std::int64_t functions, std::int64_t index) const override {
    return code_run_row(random_program(draw, 2 * (1 + index * 5 / options_.count), functions));
  }
};

std::unique_ptr<RowMaker> generator_of(const MakeOptions& options) {
  const std::string& task = options.task;
  if (task == "passkey" || task == "number_string")
    return std::make_unique<NeedleGenerator>(options, task == "number_string");
  if (task == "kv_retrieval") return std::make_unique<KeyValueGenerator>(options);
  if (task == "math_find") return std::make_unique<FindGenerator>(options);
  if (task == "math_calc") return std::make_unique<CalcGenerator>(options);
  if (task == "code_run") return std::make_unique<CodeGenerator>(options);
  throw ConfigError(
      fmt::format("--task {}: not generated here; there are passkey, number_string, kv_retrieval, "
                  "math_find, math_calc, code_run, passkey__long",
                  task));
}

Haystack haystack_of(const std::filesystem::path& file) {
  Haystack haystack;
  for (const std::string& piece : sentences_of(file)) haystack.lines.push_back(piece + "\n");
  return haystack;
}

/// EM-LLM's construction, of every row of a passkey file.
void stretch_rows(const MakeOptions& options, const TokenCounter& count, const RowSink& emit) {
  if (options.source.empty())
    throw ConfigError("--source: passkey__long needs a file of passkey rows to stretch");
  for (const Row& row : read_rows(options.source)) {
    Json longer;
    try {
      row.text("context");
      row.at("answer");
      longer = stretch_passkey(row.object(), options.tokens / 1000);
    } catch (const DataError& e) {
      row.fail(e.what());
    }
    longer["tokens"] = count(longer["context"].get_ref<const std::string&>());
    emit(std::move(longer));
  }
}

}  // namespace

std::string random_pass_key(Draw& draw) {
  std::string key;
  for (int i = 0; i < 5; ++i) key.push_back(static_cast<char>('0' + draw.between(0, 9)));
  return key;
}

std::string random_digit_string(Draw& draw) {
  std::string digits = random_pass_key(draw);
  for (int k = 0; k < 5; ++k) {
    const auto at = static_cast<std::size_t>(draw.between(0, 4 + k));
    digits.insert(at, 1, digits[at]);
  }
  return digits;
}

std::string random_uuid(Draw& draw) {
  std::string text;
  for (int i = 0; i < 32; ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) text.push_back('-');
    const std::int64_t digit = i == 12 ? 4 : i == 16 ? draw.between(8, 11) : draw.between(0, 15);
    text.push_back("0123456789abcdef"[digit]);
  }
  return text;
}

KeyValues random_key_values(Draw& draw, std::int64_t n) {
  KeyValues pairs;
  for (std::int64_t i = 0; i < n; ++i) {
    std::string key = random_uuid(draw);
    pairs.emplace_back(std::move(key), random_uuid(draw));
  }
  return pairs;
}

std::vector<std::int64_t> random_numbers(Draw& draw, Extreme kind, std::int64_t n) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < n; ++i) numbers.push_back(draw.between(0, 99));
  const bool large = kind == Extreme::median ? draw.coin() : kind < Extreme::smallest;
  if (large)
    *std::max_element(numbers.begin(), numbers.end()) = draw.between(79, 99);
  else
    *std::min_element(numbers.begin(), numbers.end()) = draw.between(0, 19);
  return numbers;
}

Expression random_expression(Draw& draw, std::int64_t n_operations) {
  Expression e;
  e.start = draw.between(0, 99);
  std::int64_t value = e.start;
  for (std::int64_t i = 0; i < n_operations; ++i) {
    const bool plus = draw.coin();
    std::int64_t x = draw.between(0, 99);
    const std::int64_t most = plus ? 99 - value : value;
    if (x > most) x = draw.between(0, most);
    value += plus ? x : -x;
    e.steps.push_back({plus, x});
  }
  return e;
}

Program random_program(Draw& draw, std::int64_t depth, std::int64_t n) {
  const std::int64_t per_level = n / depth;
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 1; id <= 2 * n; ++id) ids.push_back(id);
  draw.shuffle(ids);
  ids.resize(static_cast<std::size_t>(per_level * depth));
  Program program;
  for (std::int64_t level = 0; level < depth; ++level)
    for (std::int64_t i = 0; i < per_level; ++i) {
      Function f;
      f.id = ids[static_cast<std::size_t>(level * per_level + i)];
      f.add = draw.between(-12, 17);
      if (level + 1 < depth)
        f.callee =
            ids[static_cast<std::size_t>((level + 1) * per_level + draw.between(0, per_level - 1))];
      program.functions.push_back(f);
    }
  program.called = ids[static_cast<std::size_t>(draw.between(0, per_level - 1))];
  program.argument = draw.between(-10, 10);
  return program;
}

Haystack Haystack::noise() { return {{std::string(kNoise) + "\n"}}; }

Json passkey_row(const Haystack& haystack, std::int64_t lines, std::int64_t before,
                 const std::string& key) {
  return row_of(
      hidden(haystack, lines, before,
             fmt::format("The pass key is {0}. Remember it. {0} is the pass key.\n", key)),
      "What is the pass key?", Json::array({key}));
}

Json number_string_row(const Haystack& haystack, std::int64_t lines, std::int64_t before,
                       const std::string& digits) {
  return row_of(
      hidden(haystack, lines, before,
             fmt::format("The sequence of digits is {0}. Remember it. {0} is the sequence of "
                         "digits.\n",
                         digits)),
      "What is the sequence of digits?", digits);
}

Json kv_row(const KeyValues& pairs, std::size_t gold) {
  std::string context = "JSON data:\n{";
  for (std::size_t i = 0; i < pairs.size(); ++i)
    context += fmt::format("{}\"{}\": \"{}\"", i == 0 ? "" : ", ", pairs[i].first, pairs[i].second);
  context += "}";
  return row_of(std::move(context),
                fmt::format("\nKey: \"{}\"\nThe value associated with the specified key is: ",
                            pairs[gold].first),
                pairs[gold].second);
}

Json math_find_row(const std::vector<std::int64_t>& numbers, Extreme kind) {
  std::string context = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    context += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  const std::string name = name_of(kind);
  return math_row(
      kind == Extreme::median ? "Calculate the median from the list below:"
                              : fmt::format("Find the {} from the list below:", name),
      context + "]",
      fmt::format("You should answer with only one number, no other words. The {} of the "
                  "list is: ",
                  name),
      extreme_of(numbers, kind));
}

Json math_calc_row(const Expression& expression) {
  std::string context = std::to_string(expression.start);
  std::int64_t value = expression.start;
  Json values = Json::array();  // after each operation: without the start
  for (const Expression::Step& step : expression.steps) {
    context += fmt::format(" {} {}", step.plus ? '+' : '-', step.operand);
    value += step.plus ? step.operand : -step.operand;
    values.push_back(value);
  }
  return math_row("", std::move(context),
                  "The value of the numerical expression is: ", std::move(values));
}

Json code_run_row(const Program& program) {
  std::vector<Function> functions = program.functions;
  std::sort(functions.begin(), functions.end(),
            [](const Function& a, const Function& b) { return a.id < b.id; });
  std::string context = "\nHere is the content of functions_module.py:\n\n";
  for (const Function& f : functions) {
    const std::string inner = f.callee < 0 ? "x" : fmt::format("func_{}(x)", f.callee);
    const std::string term = f.add == 0  ? ""
                             : f.add > 0 ? fmt::format(" + {}", f.add)
                                         : fmt::format(" - {}", -f.add);
    context += fmt::format("def func_{}(x):\n    return {}{}\n\n", f.id, inner, term);
  }
  std::int64_t value = program.argument;
  for (std::int64_t id = program.called; id >= 0;) {
    const auto f = std::lower_bound(functions.begin(), functions.end(), id,
                                    [](const Function& a, std::int64_t b) { return a.id < b; });
    value += f->add;
    id = f->callee;
  }
  return row_of(std::move(context),
                fmt::format("Please give me the exact number of the return value of func_{}({}). "
                            "Your response should end with the sentence 'The return value is:'.",
                            program.called, program.argument),
                value);
}

Json stretch_passkey(const Json& row, std::int64_t thousand_tokens) {
  const auto context = row.at("context").get<std::string>();
  const Json& answer = row.at("answer");
  const Json& one = answer.is_array() && !answer.empty() ? answer.front() : answer;
  if (!one.is_string()) throw DataError("passkey__long: the row's answer must be a string");
  const auto key = one.get<std::string>();
  const std::string needle =
      fmt::format("The pass key is {0}. Remember it. {0} is the pass key.", key);
  const std::size_t at = context.find(needle);
  if (at == std::string::npos)
    throw DataError("passkey__long: the row's context does not hold its pass key's sentence");
  const std::int64_t words = count_words(context);
  const std::int64_t target = thousand_tokens * 790;
  if (target < words + kNoiseWords)
    throw DataError(
        fmt::format("passkey__long: {} thousand tokens are {} words, and the row has {} "
                    "already",
                    thousand_tokens, target, words));
  const std::int64_t insertions = (target - words) / kNoiseWords;
  const double position = static_cast<double>(at) / static_cast<double>(context.size());
  const auto before = static_cast<std::int64_t>(position * static_cast<double>(insertions));
  const std::string noise = std::string(kNoise) + " ";
  std::string stretched = context.substr(0, at);
  for (std::int64_t i = 0; i < before; ++i) stretched += noise;
  stretched += needle;
  stretched += ' ';  // in the place of the character that followed the needle
  for (std::int64_t i = before; i < insertions; ++i) stretched += noise;
  const std::size_t after = std::min(at + needle.size() + 1, context.size());
  stretched += context.substr(after);
  Json out = row;
  out["context"] = std::move(stretched);
  return out;
}

void make_rows(const MakeOptions& options, const TokenCounter& count_tokens, const RowSink& emit) {
  if (options.task == "passkey__long") return stretch_rows(options, count_tokens, emit);
  MakeOptions made = options;
  if (!options.haystack_file.empty()) made.haystack = haystack_of(options.haystack_file);
  make_rows(*generator_of(made), made, count_tokens, emit);
}

}  // namespace episodic::suites
