// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Chinese words as Python's jieba 0.42.1 cuts them (accurate mode with HMM), from the data files
/// of that package: the most probable path through the words of its dictionary, and its hidden
/// Markov model for runs of characters that are no word.

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace episodic::suites {

class Jieba {
 public:
  /// \param folder with dict.txt and finalseg/prob_emit.py: of the Python package
  /// \throws FileError naming the file, and the line where there is one
  explicit Jieba(const std::filesystem::path& folder);

  /// The package's folder: EPISODIC_JIEBA, else Debian's python3-jieba.
  /// \throws FileError that says how to get it
  static std::filesystem::path find();

  /// One loaded from find() at the first call. \throws FileError
  static const Jieba& shared();

  /// The words; together they are the text.
  std::vector<std::u32string_view> cut(std::u32string_view text) const;

 private:
  using Words = std::vector<std::u32string_view>;

  /// Frequency of a word, 0 for the beginning of one, -1 for neither.
  int frequency(std::u32string_view word) const;
  void cut_block(std::u32string_view block, Words& words) const;
  void cut_unknown(std::u32string_view run, Words& words) const;
  void cut_by_hmm(std::u32string_view run, Words& words) const;
  void read_dictionary(const std::filesystem::path& path);
  void read_emissions(const std::filesystem::path& path);

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::u32string_view s) const {
      return std::hash<std::u32string_view>()(s);
    }
  };
  std::unordered_map<std::u32string, int, Hash, std::equal_to<>> frequency_;
  double log_total_ = 0;
  /// log P(character | state) of the states B(egin), E(nd), M(iddle), S(ingle).
  std::array<std::unordered_map<char32_t, double>, 4> emission_;
};

}  // namespace episodic::suites
