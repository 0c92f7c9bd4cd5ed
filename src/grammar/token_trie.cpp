// SPDX-License-Identifier: Apache-2.0
#include "episodic/grammar/token_trie.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

// Bytes of a token that may be drawn; longer ones are passed over. Real vocabularies end below 300.
constexpr std::size_t kLongestToken = 4096;

std::size_t common_bytes(std::string_view a, std::string_view b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<std::size_t>(end - a.begin());
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer) {
  // Behind another text: at the beginning decoders drop the space that encoders put there.
  std::vector<std::int64_t> before;
  for (const std::int64_t id : tokenizer.encode("a", false)) before.push_back(id);
  const std::string known = tokenizer.decode(before);
  ends_.reserve(static_cast<std::size_t>(tokenizer.vocab_size()));
  std::vector<std::int64_t> ids = before;
  ids.push_back(0);
  for (std::int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    ids.back() = id;
    const std::string shown = tokenizer.decode(ids, true);
    // special tokens are those that are left out
    const bool special = shown.size() <= known.size() && tokenizer.decode(ids, false) != shown;
    if (!special && shown.starts_with(known)) text_.append(shown, known.size());
    ends_.push_back(static_cast<std::uint32_t>(text_.size()));
  }
  build();
}

TokenTrie::TokenTrie(std::span<const std::string> bytes) {
  for (const std::string& token : bytes) {
    text_ += token;
    ends_.push_back(static_cast<std::uint32_t>(text_.size()));
  }
  build();
}

std::string_view TokenTrie::bytes(std::int64_t id) const {
  if (id < 0 || id >= vocab_size())
    throw DataError(fmt::format("token {} is not in the vocabulary of {}", id, vocab_size()));
  const auto i = static_cast<std::size_t>(id);
  const std::uint32_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(text_).substr(begin, ends_[i] - begin);
}

void TokenTrie::build() {
  if (text_.size() > std::numeric_limits<std::uint32_t>::max())
    throw DataError("the tokens of the vocabulary have 4 GiB of text; check its file");
  std::vector<std::uint32_t> order;
  for (std::int64_t id = 0; id < vocab_size(); ++id) {
    const std::size_t n = bytes(id).size();
    if (n == 0 || n > kLongestToken) continue;
    order.push_back(static_cast<std::uint32_t>(id));
    longest_ = std::max(longest_, n);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes(a) < bytes(b); });
  tokens_.reserve(order.size());
  std::vector<std::uint32_t> open;  // nodes from the root to here
  std::string_view last;
  const auto leave = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back())
      nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
  };
  for (const std::uint32_t id : order) {
    const std::string_view token = bytes(id);
    leave(common_bytes(token, last));
    while (open.size() < token.size()) {
      open.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({0, 0, static_cast<std::uint16_t>(open.size()),
                        static_cast<std::uint8_t>(token[open.size() - 1]), false});
    }
    TokenTrie::Node& node = nodes_[open.back()];
    if (!node.has_tokens) node.first_token = static_cast<std::uint32_t>(tokens_.size());
    node.has_tokens = true;
    tokens_.push_back({open.back(), id});
    last = token;
  }
  leave(0);
}

}  // namespace episodic
