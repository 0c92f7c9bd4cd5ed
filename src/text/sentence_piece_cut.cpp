// SPDX-License-Identifier: Apache-2.0
#include "sentence_piece_cut.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>

#include "prefix_table.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

/// Bytes of the character that the text begins with.
std::size_t character(std::string_view text) {
  return std::max<std::size_t>(1, utf8_length(text, 0));
}

class Unigram final : public PieceCutter {
 public:
  explicit Unigram(const SentencePieceFile& file) : file_(&file) {
    std::vector<PrefixTable::Entry> entries;
    float lowest = std::numeric_limits<float>::max();
    highest_ = std::numeric_limits<float>::lowest();
    for (std::size_t id = 0; id < file.pieces.size(); ++id) {
      const SentencePiece& piece = file.pieces[id];
      if (piece.in_text()) entries.emplace_back(piece.text, static_cast<std::int64_t>(id));
      if (piece.type != PieceType::kNormal) continue;
      lowest = std::min(lowest, piece.score);
      highest_ = std::max(highest_, piece.score);
    }
    pieces_ = PrefixTable(std::move(entries));
    unknown_score_ = lowest - kUnknownPenalty;
  }

  std::vector<Cut> cut(std::string_view text) const override {
    std::vector<Best> best(text.size() + 1);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::string_view rest = text.substr(begin);
      const std::size_t one = character(rest);
      const float so_far = best[begin].score;
      const auto offer = [&](std::size_t length, std::int64_t id, float score) {
        Best& end = best[begin + length];
        const float sum = score + so_far;
        if (end.length > 0 && sum <= end.score) return;
        end = {sum, static_cast<std::int32_t>(length), id};
      };
      bool whole = false;  // the character is a piece
      pieces_.each(rest, [&](std::size_t length, std::int64_t id) {
        offer(length, id, score_of(id, length));
        whole = whole || length == one;
      });
      if (!whole) offer(one, file_->unknown, unknown_score_);
      begin += one;
    }
    std::vector<Cut> cuts;
    for (std::size_t end = text.size(); end > 0;) {
      const auto length = static_cast<std::size_t>(best[end].length);
      cuts.push_back({text.substr(end - length, length), best[end].id});
      end -= length;
    }
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
  }

 private:
  static constexpr float kUnknownPenalty = 10;  // the library's, as the 0.1 below

  /// The best way to cut the text up to here.
  struct Best {
    float score = 0;
    std::int32_t length = 0;  // bytes of its last piece; 0: no way yet
    std::int64_t id = -1;     // of its last piece
  };

  float score_of(std::int64_t id, std::size_t length) const {
    const SentencePiece& piece = file_->pieces[static_cast<std::size_t>(id)];
    // user-defined pieces are always taken
    return piece.type == PieceType::kUserDefined
               ? static_cast<float>(static_cast<double>(static_cast<float>(length) * highest_) -
                                    0.1)
               : piece.score;
  }

  const SentencePieceFile* file_;
  PrefixTable pieces_;
  float unknown_score_, highest_;
};

class ScoredBpe final : public PieceCutter {
 public:
  ScoredBpe(const SentencePieceFile& file, const SentencePieceNormalizer& normalizer)
      : file_(&file), normalizer_(&normalizer) {
    for (std::size_t id = 0; id < file.pieces.size(); ++id)
      if (file.pieces[id].in_text() || file.pieces[id].type == PieceType::kUnused)
        ids_.emplace(file.pieces[id].text, static_cast<std::int64_t>(id));
  }

  std::vector<Cut> cut(std::string_view text) const override {
    std::vector<Symbol> symbols = characters(text);
    std::priority_queue<Pair> pairs;
    Halves halves;
    const auto consider = [&](std::int32_t left) {
      if (left < 0) return;
      const Symbol& l = symbols[static_cast<std::size_t>(left)];
      if (l.next < 0) return;
      const Symbol& r = symbols[static_cast<std::size_t>(l.next)];
      if (l.whole || r.whole) return;
      const std::string_view both = text.substr(l.begin, l.length + r.length);
      const auto it = ids_.find(both);
      if (it == ids_.end()) return;
      pairs.push({piece(it->second).score, left, both.size()});
      if (piece(it->second).type == PieceType::kUnused) halves[both] = l.length;
    };
    for (std::size_t i = 0; i < symbols.size(); ++i) consider(static_cast<std::int32_t>(i));
    while (!pairs.empty()) {
      const Pair top = pairs.top();
      pairs.pop();
      Symbol& left = symbols[static_cast<std::size_t>(top.left)];
      if (left.length == 0 || left.next < 0) continue;
      Symbol& right = symbols[static_cast<std::size_t>(left.next)];
      if (left.length + right.length != top.length) continue;  // one of the two has grown since
      left.length += right.length;
      left.next = right.next;
      right.length = 0;
      if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].before = top.left;
      consider(left.before);
      consider(top.left);
    }
    std::vector<Cut> cuts;
    for (const Symbol& s : symbols)
      if (s.length > 0) add(text.substr(s.begin, s.length), halves, cuts);
    return cuts;
  }

 private:
  struct Symbol {
    std::size_t begin, length;  // bytes of the text; length 0: joined to the one before
    std::int32_t before, next;  // neighbours; -1: none
    bool whole;                 // a user-defined piece, which is not joined
  };
  /// Bytes of the left one of the two that made an unused piece.
  using Halves = std::unordered_map<std::string_view, std::size_t>;
  struct Pair {
    float score;
    std::int32_t left;
    std::size_t length;
    bool operator<(const Pair& o) const {
      return score != o.score ? score < o.score : left > o.left;
    }
  };

  const SentencePiece& piece(std::int64_t id) const {
    return file_->pieces[static_cast<std::size_t>(id)];
  }

  /// What was joined, an unused piece as what it was joined from.
  void add(std::string_view joined, const Halves& halves, std::vector<Cut>& cuts) const {
    const auto it = ids_.find(joined);
    const std::int64_t id = it == ids_.end() ? file_->unknown : it->second;
    const auto half = halves.find(joined);
    if (piece(id).type != PieceType::kUnused || half == halves.end()) {
      cuts.push_back({joined, id});
      return;
    }
    add(joined.substr(0, half->second), halves, cuts);
    add(joined.substr(half->second), halves, cuts);
  }

  std::vector<Symbol> characters(std::string_view text) const {
    std::vector<Symbol> symbols;
    for (std::size_t at = 0; at < text.size();) {
      const std::string_view rest = text.substr(at);
      const std::size_t own = normalizer_->user_defined(rest);
      const auto n = static_cast<std::int32_t>(symbols.size());
      symbols.push_back({at, own > 0 ? own : character(rest), n - 1, n + 1, own > 0});
      at += symbols.back().length;
    }
    if (!symbols.empty()) symbols.back().next = -1;
    return symbols;
  }

  const SentencePieceFile* file_;
  const SentencePieceNormalizer* normalizer_;
  std::unordered_map<std::string_view, std::int64_t> ids_;
};

}  // namespace

std::unique_ptr<PieceCutter> make_piece_cutter(const SentencePieceFile& file,
                                               const SentencePieceNormalizer& normalizer) {
  if (file.model == PieceModel::kBpe) return std::make_unique<ScoredBpe>(file, normalizer);
  return std::make_unique<Unigram>(file);
}

}  // namespace episodic::text
