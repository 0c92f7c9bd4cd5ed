// SPDX-License-Identifier: Apache-2.0
#include "word_piece.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "utf8.hpp"

namespace episodic::text {
namespace {

/// Characters of a word; a byte that is part of none counts as one.
std::int64_t characters(std::string_view word) {
  std::int64_t n = 0;
  for (std::size_t at = 0; at < word.size(); ++n)
    at += std::max<std::size_t>(1, utf8_length(word, at));
  return n;
}

/// Whether the word may be cut before this byte.
bool at_boundary(std::string_view word, std::size_t at) {
  return at == word.size() || (static_cast<unsigned char>(word[at]) & 0xc0) != 0x80;
}

}  // namespace

WordPiece::WordPiece(const JsonNode& model) : ids_(read_ids(model.at("vocab"))) {
  const JsonNode prefix = model.at("continuing_subword_prefix"), unknown = model.at("unk_token"),
                 longest = model.at("max_input_chars_per_word");
  prefix_ = prefix.null() ? "##" : prefix.str();
  const std::string token = unknown.null() ? "[UNK]" : unknown.str();
  const auto it = ids_.find(token);
  if (it == ids_.end()) unknown.fail(fmt::format("'{}' is not in the vocabulary", token));
  unknown_ = it->second;
  // finding a word's pieces takes the square of its length
  constexpr std::int64_t kMostCharacters = 1024;
  longest_word_ = longest.null() ? 100 : longest.index(kMostCharacters + 1);
  for (const auto& [entry, id] : ids_) longest_entry_ = std::max(longest_entry_, entry.size());
}

void WordPiece::Encoder::add(std::string_view word) {
  const std::size_t before = out_.size();
  bool known = characters(word) <= model_.longest_word_;
  for (std::size_t start = 0; known && start < word.size();) {
    piece_ = start > 0 ? model_.prefix_ : "";
    const std::size_t prefix = piece_.size();
    std::size_t end = std::min(word.size(), start + model_.longest_entry_);
    piece_.append(word.substr(start, end - start));
    const auto found = [&] {
      for (; end > start; piece_.resize(prefix + --end - start))
        if (at_boundary(word, end))
          if (const auto it = model_.ids_.find(piece_); it != model_.ids_.end()) return it;
      return model_.ids_.end();
    }();
    known = found != model_.ids_.end();
    if (known) out_.push_back(found->second);
    start = end;
  }
  if (known) return;
  out_.resize(before);
  out_.push_back(model_.unknown_);
}

}  // namespace episodic::text
