// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Byte-pair encoding with ranked merges ("model" of type BPE in tokenizer.json).

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json_node.hpp"

namespace episodic::text {

/// Lets an unordered map of strings be asked for a string_view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
using StringToId = std::unordered_map<std::string, std::int64_t, StringHash, std::equal_to<>>;

/// "vocab" of a model: entries and their ids. \throws FileError
StringToId read_ids(const JsonNode& vocab);

/// Two tokens that make a third one.
struct IdMerge {
  std::int32_t left, right, both;
};

/// Merges by ids, in the order of their ranks, and the texts of all tokens.
struct IdMerges {
  std::vector<IdMerge> merges;
  std::vector<std::string> tokens;
};

/// Vocabulary and merges; immutable.
class Bpe {
 public:
  /// \param byte_level words are bytes in GPT-2's alphabet, not characters
  /// \param merges instead of the model's own; null: those \throws FileError
  Bpe(const JsonNode& model, bool byte_level, const IdMerges* merges = nullptr);

  const StringToId& vocabulary() const { return ids_; }

  /// Ids of words, remembering those it saw. Not for several threads; cheap to make. The words
  /// must stay where they are while it lives.
  class Encoder {
   public:
    Encoder(const Bpe& bpe, std::vector<std::int64_t>& out) : bpe_(bpe), out_(out) {}
    /// Appends the ids of a word to `out`.
    void add(std::string_view word);

   private:
    struct Symbol {
      std::int32_t id, prev, next;  // neighbours, -1: none; id < 0: merged away
    };
    struct Candidate {
      std::int32_t rank, at, id;
      bool operator>(const Candidate& o) const {
        return rank != o.rank ? rank > o.rank : at > o.at;
      }
    };
    struct Range {
      std::size_t begin, end;
    };

    void add_cut(std::string_view word);
    void start(std::string_view word);
    void merge_short();
    void merge_long();

    const Bpe& bpe_;
    std::vector<std::int64_t>& out_;
    std::unordered_map<std::string_view, Range> seen_;  // word -> its ids in out_
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

 private:
  struct Merge {
    std::int32_t rank, id;
  };
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };

  void read_vocabulary(const JsonNode& node);
  void read_merges(const JsonNode& node);
  void take_merges(const IdMerges& merges);
  void insert(std::uint64_t key, Merge merge);
  const Merge* find(std::int32_t left, std::int32_t right) const;

  bool byte_level_, byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  std::int64_t unknown_ = -1;
  StringToId ids_;
  StringToId words_;                        // bytes -> id, for ignore_merges
  std::array<std::int32_t, 256> byte_ids_;  // a byte as a symbol of its own, -1: there is none
  std::vector<Slot> slots_;                 // open addressing; empty slots have rank -1
  std::string cut_mark_;                    // words may be cut before it, empty: they may not
};

}  // namespace episodic::text
