// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// "added_tokens" of tokenizer.json: tokens found in the text before BPE sees it.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace episodic::text {

struct AddedToken {
  std::int64_t id;
  std::string content;
  bool special, single_word, lstrip, rstrip, normalized;
};

/// Finds tokens in a text: leftmost first, of those that begin there the longest.
class AddedTokens {
 public:
  using Allowed = std::function<bool(std::int64_t id, std::size_t begin, std::size_t end)>;

  void add(std::string_view content, const AddedToken& token);

  /// Calls `gap` for the text between tokens and `found` for tokens, from left to right. White
  /// space that a token strips belongs to neither.
  /// \param allowed asked of each token that is found and where it stands, from left to right:
  ///        false where that is text. Null: all are tokens
  void split(std::string_view text, const std::function<void(std::string_view)>& gap,
             const std::function<void(std::int64_t)>& found, const Allowed& allowed = {}) const;

 private:
  struct Leaf {
    std::int64_t id = -1;
    bool single_word = false, lstrip = false, rstrip = false;
  };
  /// Index of the leaf of the longest token at `at` and its length, 0 if there is none.
  std::size_t longest(std::string_view text, std::size_t at, const Leaf*& leaf,
                      const Allowed& allowed) const;

  std::array<bool, 256> first_{};                           // bytes that a token begins with
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // node * 256 + byte -> node
  std::vector<Leaf> nodes_{1};
};

}  // namespace episodic::text
