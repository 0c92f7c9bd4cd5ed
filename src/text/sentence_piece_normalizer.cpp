// SPDX-License-Identifier: Apache-2.0
#include "sentence_piece_normalizer.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

std::uint32_t little_endian(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

PrefixTable user_defined_pieces(const SentencePieceFile& file) {
  std::vector<PrefixTable::Entry> entries;
  for (std::size_t id = 0; id < file.pieces.size(); ++id)
    if (file.pieces[id].type == PieceType::kUserDefined)
      entries.emplace_back(file.pieces[id].text, static_cast<std::int64_t>(id));
  return PrefixTable(std::move(entries));
}

[[noreturn]] void damaged(const SentencePieceFile& file) {
  throw FileError(
      fmt::format("{}: its table of characters (precompiled_charsmap) is damaged; fetch "
                  "the file again",
                  file.path.string()));
}

// Nodes of a double array, as the library Darts-clone writes them.
bool has_leaf(std::uint32_t node) { return (node >> 8 & 1) != 0; }
std::uint32_t leaf_value(std::uint32_t node) { return node & 0x7fffffff; }
std::uint32_t label(std::uint32_t node) { return node & 0x800000ff; }
std::size_t offset(std::uint32_t node) { return (node >> 10) << ((node & 0x200) >> 6); }

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceFile& file)
    : file_(&file), user_defined_(user_defined_pieces(file)) {
  const std::string_view table = file.rules.characters;
  if (table.empty()) return;
  // The trie's bytes, the trie, and what its leaves point into.
  const std::size_t bytes = table.size() < 4 ? 0 : little_endian(table, 0);
  if (bytes == 0 || bytes % 4 != 0 || bytes >= table.size() - 4 || table.back() != '\0')
    damaged(file);
  for (std::size_t at = 0; at < bytes; at += 4) trie_.push_back(little_endian(table, 4 + at));
  becomes_ = table.substr(4 + bytes);
}

std::uint32_t SentencePieceNormalizer::node(std::size_t at) const {
  if (at < trie_.size()) return trie_[at];
  damaged(*file_);
}

SentencePieceNormalizer::Change SentencePieceNormalizer::first(std::string_view text) const {
  if (const std::size_t n = user_defined(text); n > 0) return {n, text.substr(0, n)};
  Change longest{0, {}};
  if (!trie_.empty()) {
    std::size_t at = offset(node(0));
    for (std::size_t n = 0; n < text.size(); ++n) {
      const auto byte = static_cast<unsigned char>(text[n]);
      at ^= byte;
      const std::uint32_t here = node(at);
      if (label(here) != byte) break;
      at ^= offset(here);
      if (!has_leaf(here)) continue;
      const std::size_t begin = leaf_value(node(at));
      const std::string_view tail = begin < becomes_.size() ? becomes_.substr(begin) : "";
      longest = {n + 1, tail.substr(0, tail.find('\0'))};
    }
  }
  if (longest.length > 0) return longest;
  const std::size_t n = utf8_length(text, 0);
  return n > 0 ? Change{n, text.substr(0, n)} : Change{1, kReplacement};
}

std::string SentencePieceNormalizer::operator()(std::string_view text) const {
  const SentencePieceRules& rules = file_->rules;
  const std::string_view space = rules.marks_spaces ? kSpaceMark : " ";
  std::string out;
  if (rules.drops_spaces) {
    while (!text.empty()) {
      const Change change = first(text);
      if (change.becomes != " ") break;
      text.remove_prefix(change.length);
    }
  }
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (rules.space_before && !rules.space_behind) out += space;
  bool drop = rules.drops_spaces;  // spaces that come now
  while (!text.empty()) {
    Change change = first(text);
    text.remove_prefix(change.length);
    while (drop && change.becomes.starts_with(' ')) change.becomes.remove_prefix(1);
    for (const char c : change.becomes)
      if (c == ' ')
        out += space;
      else
        out += c;
    if (!change.becomes.empty()) drop = rules.drops_spaces && change.becomes.ends_with(' ');
  }
  while (rules.drops_spaces && out.ends_with(space)) out.erase(out.size() - space.size());
  if (rules.space_before && rules.space_behind) out += space;
  return out;
}

}  // namespace episodic::text
