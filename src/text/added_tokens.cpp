// SPDX-License-Identifier: Apache-2.0
#include "added_tokens.hpp"

#include <utf8proc.h>

#include <algorithm>

#include "utf8.hpp"

namespace episodic::text {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

bool white_space(std::uint32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool word_character(std::uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200c || c == 0x200d;  // the joiners
  }
}

/// Length of the character that ends at `end`, 0 if there is none.
std::size_t length_before(std::string_view text, std::size_t end) {
  for (std::size_t n = 1; n <= std::min<std::size_t>(4, end); ++n)
    if (utf8_length(text.substr(0, end), end - n) == n) return n;
  return 0;
}

bool word_ends_at(std::string_view text, std::size_t end) {
  const std::size_t n = length_before(text, end);
  return n > 0 && word_character(utf8_code_point(text, end - n, n));
}

bool word_begins_at(std::string_view text, std::size_t at) {
  const std::size_t n = at < text.size() ? utf8_length(text, at) : 0;
  return n > 0 && word_character(utf8_code_point(text, at, n));
}

}  // namespace

void AddedTokens::add(std::string_view content, const AddedToken& token) {
  if (content.empty()) return;
  first_[byte_at(content, 0)] = true;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const auto [it, fresh] =
        edges_.try_emplace(static_cast<std::uint64_t>(node) << 8 | byte_at(content, i),
                           static_cast<std::uint32_t>(nodes_.size()));
    if (fresh) nodes_.emplace_back();
    node = it->second;
  }
  nodes_[node] = {token.id, token.single_word, token.lstrip, token.rstrip};
}

std::size_t AddedTokens::longest(std::string_view text, std::size_t at, const Leaf*& leaf,
                                 const Allowed& allowed) const {
  std::size_t length = 0;
  std::uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto it = edges_.find(static_cast<std::uint64_t>(node) << 8 | byte_at(text, i));
    if (it == edges_.end()) break;
    node = it->second;
    const Leaf& found = nodes_[node];
    if (found.id >= 0 && (!allowed || allowed(found.id, at, i + 1))) {
      leaf = &found;
      length = i + 1 - at;
    }
  }
  return length;
}

void AddedTokens::split(std::string_view text, const std::function<void(std::string_view)>& gap,
                        const std::function<void(std::int64_t)>& found,
                        const Allowed& allowed) const {
  std::size_t done = 0;  // up to here the text is handed out
  const auto hand_out = [&](std::size_t end) {
    if (end > done) gap(text.substr(done, end - done));
  };
  for (std::size_t at = 0; at < text.size();) {
    const Leaf* leaf = nullptr;
    const std::size_t length = first_[byte_at(text, at)] ? longest(text, at, leaf, allowed) : 0;
    if (length == 0) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + length;
    at = end;
    if (leaf->single_word && (word_ends_at(text, begin) || word_begins_at(text, end))) continue;
    if (leaf->lstrip) {
      while (begin > done) {
        const std::size_t n = length_before(text, begin);
        if (n == 0 || !white_space(utf8_code_point(text, begin - n, n))) break;
        begin -= n;
      }
    }
    if (leaf->rstrip) {
      while (end < text.size()) {
        const std::size_t n = utf8_length(text, end);
        if (n == 0 || !white_space(utf8_code_point(text, end, n))) break;
        end += n;
      }
    }
    hand_out(begin);
    found(leaf->id);
    done = std::max(done, end);
  }
  hand_out(text.size());
}

}  // namespace episodic::text
