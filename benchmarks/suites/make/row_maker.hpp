// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rows of a length in tokens: how many units of text they are made of is found here, what a unit
/// is and what is hidden between them belongs to a task.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data/jsonl.hpp"

namespace episodic::suites {

/// Random numbers that are the same with every standard library.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  /// Uniform in [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high);
  bool coin() { return between(0, 1) == 1; }
  /// One of a list.
  template <class List>
  const auto& from(const List& list) {
    return list[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(list.size()) - 1))];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (auto i = static_cast<std::int64_t>(values.size()); i > 1; --i)
      std::swap(values[static_cast<std::size_t>(i - 1)],
                values[static_cast<std::size_t>(between(0, i - 1))]);
  }
  /// Different numbers of [0, of), in no order. \param count at most `of`
  std::vector<std::int64_t> sample(std::int64_t of, std::int64_t count);

 private:
  std::mt19937_64 engine_;
};

/// Number of tokens of a text.
using TokenCounter = std::function<std::int64_t(const std::string&)>;
/// Takes rows one by one.
using RowSink = std::function<void(Json)>;

/// What a text is hidden in: lines that are repeated as often as needed.
struct Haystack {
  std::vector<std::string> lines;  ///< each with its end
  /// infinity-Bench's own: five sentences about grass and sky, 19 words.
  static Haystack noise();
};

struct MakeOptions {
  std::string task;
  std::int64_t tokens = 0;  ///< at most, of what the suite bounds
  double depth = -1;        ///< 0 to 1; negative: as the suite spreads them
  std::int64_t count = 1;
  std::uint64_t seed = 1;
  Haystack haystack = Haystack::noise();  ///< of infinity-Bench's passkey and number_string
  std::filesystem::path haystack_file;    ///< empty: what the suite takes where none is named
  std::filesystem::path source;           ///< of tasks that are made from a file
};

/// How a task is made of n units: noise lines, sentences, pairs, words, documents.
class RowMaker {
 public:
  explicit RowMaker(const MakeOptions& options) : options_(options) {}
  virtual ~RowMaker() = default;
  virtual std::int64_t smallest() const = 0;
  virtual std::int64_t largest() const { return std::numeric_limits<std::int64_t>::max() / 2; }
  virtual bool has_depth() const { return true; }
  /// Each row is filled by itself: units differ in length. Else the first row's number serves all.
  virtual bool fills_each() const { return true; }
  /// What `tokens` bounds: the context where no suite says otherwise.
  virtual std::int64_t length_of(const Json& row, const TokenCounter& count) const;
  /// \param index of the row
  virtual Json row(Draw& draw, std::int64_t units, std::int64_t index) const = 0;

 protected:
  const MakeOptions& options_;
};

/// `count` rows, each with an `id`, and with `tokens` of its length.
/// \throws ConfigError naming the flag: a length below the task's smallest, a depth for a task that
///   has none
void make_rows(const RowMaker& maker, const MakeOptions& options, const TokenCounter& count_tokens,
               const RowSink& emit);

/// Sentences of the file, or of the King James Bible where none is named.
/// \throws FileError as tools::open_book
std::vector<std::string> sentences_of(const std::filesystem::path& file);

}  // namespace episodic::suites
