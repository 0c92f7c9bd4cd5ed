// SPDX-License-Identifier: Apache-2.0
#include "bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "byte_level.hpp"
#include "episodic/base/error.hpp"
#include "sentence_piece_file.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

constexpr std::size_t kShortWord = 24;    // symbols; up to here a plain scan beats the heap
constexpr std::size_t kLongestSeen = 64;  // bytes; longer words hardly come again

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::size_t hash_of(std::uint64_t key) {
  key *= 0x9e3779b97f4a7c15ull;
  return static_cast<std::size_t>(key ^ key >> 29);
}

/// A mark stands right after something else inside of the entry.
bool mark_inside(std::string_view entry, std::string_view mark) {
  for (std::size_t at = 0; (at = entry.find(mark, at)) != std::string_view::npos; at += mark.size())
    if (at > 0 && !entry.substr(0, at).ends_with(mark)) return true;
  return false;
}

}  // namespace

StringToId read_ids(const JsonNode& vocab) {
  if (!vocab.is_object()) vocab.fail("must be an object of tokens and ids");
  StringToId ids;
  ids.reserve(vocab.size());
  for (const auto& [token, id] : vocab.json().items()) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() >= static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
      vocab.fail(fmt::format("the id of '{}' must be an integer from 0 to 2^31 - 2", token));
    ids.emplace(token, id.get<std::int64_t>());
  }
  return ids;
}

Bpe::Bpe(const JsonNode& model, bool byte_level, const IdMerges* merges) : byte_level_(byte_level) {
  const JsonNode type = model.at("type");
  if (!type.null() && type.str() != "BPE")
    type.fail(fmt::format("model '{}' is not supported (BPE and WordPiece are)", type.str()));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode node = model.at(key);
    if (!node.null() && !node.str().empty()) node.fail("is not supported, must be empty");
  }
  const JsonNode dropout = model.at("dropout");
  if (!dropout.null() && !(dropout.json().is_number() && dropout.json().get<double>() == 0))
    dropout.fail("is not supported, must be null");
  byte_fallback_ = model.at("byte_fallback").boolean(false);
  fuse_unknown_ = model.at("fuse_unk").boolean(false);
  ignore_merges_ = model.at("ignore_merges").boolean(false);

  read_vocabulary(model.at("vocab"));
  const JsonNode unknown = model.at("unk_token");
  if (!unknown.null()) {
    const auto it = ids_.find(unknown.str());
    if (it == ids_.end()) unknown.fail(fmt::format("'{}' is not in the vocabulary", unknown.str()));
    unknown_ = it->second;
  }
  merges != nullptr ? take_merges(*merges) : read_merges(model.at("merges"));
}

void Bpe::read_vocabulary(const JsonNode& node) {
  ids_ = read_ids(node);
  const auto id_or_none = [&](const std::string& token) {
    const auto it = ids_.find(token);
    return it == ids_.end() ? -1 : static_cast<std::int32_t>(it->second);
  };
  for (int b = 0; b < 256; ++b)
    byte_ids_[static_cast<std::size_t>(b)] =
        byte_level_ ? id_or_none(byte_level_character(static_cast<unsigned char>(b)))
                    : id_or_none(byte_piece(static_cast<unsigned char>(b)));
  if (!ignore_merges_) return;
  for (const auto& [token, id] : ids_) {
    if (!byte_level_)
      words_.emplace(token, id);
    else if (auto bytes = byte_level_bytes(token))
      words_.emplace(std::move(*bytes), id);
  }
}

void Bpe::read_merges(const JsonNode& node) {
  if (!node.json().is_array()) node.fail("must be an array");
  const std::size_t n = node.size();
  slots_.assign(std::bit_ceil(std::max<std::size_t>(16, 2 * n)), Slot{0, {-1, -1}});
  bool can_cut = !byte_level_ && ids_.contains(kSpaceMark);
  for (std::size_t i = 0; i < n; ++i) {
    const auto& json = node.json()[i];
    std::string left, right;
    if (json.is_string()) {
      const auto& text = json.get_ref<const std::string&>();
      std::size_t space = text.find(' ');
      if (space == std::string::npos)
        node.at(i).fail("must be two tokens and a space between them");
      // tokens with spaces in them: the first cut that names three tokens
      for (std::size_t at = space; at != std::string::npos; at = text.find(' ', at + 1)) {
        const std::string one = text.substr(0, at), two = text.substr(at + 1);
        if (!ids_.contains(one) || !ids_.contains(two) || !ids_.contains(one + two)) continue;
        space = at;
        break;
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      // without a JsonNode each: there are half a million
      if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_string())
        node.at(i).fail("must be a pair of tokens");
      left = json[0].get_ref<const std::string&>();
      right = json[1].get_ref<const std::string&>();
    }
    const auto id = [&](const std::string& token) {
      const auto it = ids_.find(token);
      if (it == ids_.end()) node.at(i).fail(fmt::format("'{}' is not in the vocabulary", token));
      return static_cast<std::int32_t>(it->second);
    };
    const std::int32_t a = id(left), b = id(right), c = id(left + right);
    insert(key_of(a, b), {static_cast<std::int32_t>(i), c});
    can_cut = can_cut && !mark_inside(left + right, kSpaceMark);
  }
  // no merge reaches over "x|mark": what stands on both sides cannot influence each other, so a
  // whole text without pre-tokenizer falls into words
  if (can_cut) cut_mark_ = kSpaceMark;
}

void Bpe::take_merges(const IdMerges& all) {
  const std::size_t n = all.merges.size();
  slots_.assign(std::bit_ceil(std::max<std::size_t>(16, 2 * n)), Slot{0, {-1, -1}});
  bool can_cut = !byte_level_ && ids_.contains(kSpaceMark);
  for (std::size_t i = 0; i < n; ++i) {
    const auto& [left, right, both] = all.merges[i];
    insert(key_of(left, right), {static_cast<std::int32_t>(i), both});
    can_cut = can_cut && !mark_inside(all.tokens[static_cast<std::size_t>(both)], kSpaceMark);
  }
  if (can_cut) cut_mark_ = kSpaceMark;
}

void Bpe::insert(std::uint64_t key, Merge merge) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash_of(key) & mask;
  while (slots_[i].merge.rank >= 0 && slots_[i].key != key) i = (i + 1) & mask;
  slots_[i] = {key, merge};
}

const Bpe::Merge* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = key_of(left, right);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash_of(key) & mask; slots_[i].merge.rank >= 0; i = (i + 1) & mask)
    if (slots_[i].key == key) return &slots_[i].merge;
  return nullptr;
}

void Bpe::Encoder::add(std::string_view word) {
  if (word.empty()) return;
  if (bpe_.ignore_merges_) {
    const auto it = bpe_.words_.find(word);
    if (it != bpe_.words_.end()) return out_.push_back(it->second);
  }
  const std::string& mark = bpe_.cut_mark_;
  if (mark.empty()) return add_cut(word);
  std::size_t begin = 0;
  for (std::size_t at = 0; (at = word.find(mark, at)) != std::string_view::npos;
       at += mark.size()) {
    if (at == begin || word.substr(0, at).ends_with(mark)) continue;
    add_cut(word.substr(begin, at - begin));
    begin = at;
  }
  add_cut(word.substr(begin));
}

void Bpe::Encoder::add_cut(std::string_view word) {
  const std::size_t begin = out_.size();
  if (word.size() <= kLongestSeen) {
    const auto [it, fresh] = seen_.try_emplace(word, Range{begin, begin});
    if (!fresh) {
      const Range range = it->second;
      for (std::size_t i = range.begin; i < range.end; ++i) out_.push_back(out_[i]);
      return;
    }
    start(word);
    symbols_.size() <= kShortWord ? merge_short() : merge_long();
    it->second.end = out_.size();
    return;
  }
  if (word.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw DataError("a word of 2 GiB or more cannot be tokenized, cut the text");
  start(word);
  merge_long();
}

void Bpe::Encoder::start(std::string_view word) {
  symbols_.clear();
  // Room for one a character, not for twice as many as a growing list would take: a text without
  // any white space is one word.
  symbols_.reserve(static_cast<std::size_t>(std::count_if(word.begin(), word.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  })));
  const auto push = [&](std::int64_t id) {
    const auto n = static_cast<std::int32_t>(symbols_.size());
    symbols_.push_back({static_cast<std::int32_t>(id), n - 1, n + 1});
  };
  // An unknown is pushed with the next known one, and takes in further ones until then; bytes go
  // before it. So has it Hugging Face's.
  bool waiting = false;
  const auto push_waiting = [&] {
    if (waiting) push(bpe_.unknown_);
    waiting = false;
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length =
        bpe_.byte_level_ ? 1 : std::max<std::size_t>(1, utf8_length(word, at));
    const std::string_view character = word.substr(at, length);
    at += length;
    const auto byte_id = [&](char c) { return bpe_.byte_ids_[static_cast<unsigned char>(c)]; };
    std::int64_t id = -1;
    if (bpe_.byte_level_) {
      id = byte_id(character[0]);
    } else if (const auto it = bpe_.ids_.find(character); it != bpe_.ids_.end()) {
      id = it->second;
    }
    if (id >= 0) {
      push_waiting();
      push(id);
    } else if (bpe_.byte_fallback_ && !bpe_.byte_level_ &&
               std::all_of(character.begin(), character.end(),
                           [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : character) push(byte_id(c));
    } else if (bpe_.unknown_ >= 0) {
      if (!bpe_.fuse_unknown_) push_waiting();
      waiting = true;
    }
  }
  push_waiting();
  if (!symbols_.empty()) symbols_.back().next = -1;
}

// Both merge the pair of lowest rank, leftmost first, until no pair has a rank.
void Bpe::Encoder::merge_short() {
  std::size_t n = symbols_.size();
  std::array<Merge, kShortWord> pair;  // of the symbol and its right neighbour, rank -1: none
  const auto look = [&](std::size_t i) {
    const Merge* m = i + 1 < n ? bpe_.find(symbols_[i].id, symbols_[i + 1].id) : nullptr;
    pair[i] = m ? *m : Merge{-1, -1};
  };
  for (std::size_t i = 0; i < n; ++i) look(i);
  while (true) {
    std::size_t best = n;
    for (std::size_t i = 0; i + 1 < n; ++i)
      if (pair[i].rank >= 0 && (best == n || pair[i].rank < pair[best].rank)) best = i;
    if (best == n) break;
    symbols_[best].id = pair[best].id;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      symbols_[i] = symbols_[i + 1];
      pair[i] = pair[i + 1];
    }
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  for (std::size_t i = 0; i < n; ++i) out_.push_back(symbols_[i].id);
}

void Bpe::Encoder::merge_long() {
  heap_.clear();
  heap_.reserve(symbols_.size());
  const auto consider = [&](std::int32_t at) {
    const std::int32_t next = symbols_[static_cast<std::size_t>(at)].next;
    if (next < 0) return;
    const Merge* m = bpe_.find(symbols_[static_cast<std::size_t>(at)].id,
                               symbols_[static_cast<std::size_t>(next)].id);
    if (m) heap_.push_back({m->rank, at, m->id});
  };
  const auto sift = [&](std::size_t before) {
    for (std::size_t i = before; i < heap_.size();)
      std::push_heap(heap_.begin(), heap_.begin() + static_cast<std::ptrdiff_t>(++i),
                     std::greater<>());
  };
  for (std::size_t i = 0; i < symbols_.size(); ++i) consider(static_cast<std::int32_t>(i));
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate top = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(top.at)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
    const Merge* m = bpe_.find(left.id, right.id);
    if (!m || m->rank != top.rank) continue;  // one of the two has grown since
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols_[static_cast<std::size_t>(left.next)].prev = top.at;
    const std::size_t before = heap_.size();
    if (left.prev >= 0) consider(left.prev);
    consider(top.at);
    sift(before);
  }
  for (const Symbol& s : symbols_)
    if (s.id >= 0) out_.push_back(s.id);
}

}  // namespace episodic::text
