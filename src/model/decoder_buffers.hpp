// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder keeps from step to step: rows of each stage, and pieces of the head.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/aligned_buffer.hpp"
#include "decoder_adapters.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/timeline/surprise.hpp"
#include "linear.hpp"

namespace episodic {

struct DecoderLayer;

/// Steps of a sequence up to so many tokens multiply as few rows (linear.hpp), whatever is beside
/// them in a batch: a token that is written alone, or with a few guesses behind it, is bound by
/// reading weights.
inline constexpr std::int64_t kFewTokens = 4;

inline RowClass class_of(std::int64_t tokens) {
  return tokens <= kFewTokens ? RowClass::few : RowClass::many;
}

bool all_finite(const float* x, std::int64_t n);

/// One sequence's rows of a step.
struct SequenceRows {
  std::int64_t first = 0, n = 0;
  const LowRanks* low_ranks = nullptr;  // of the sequence's adapters; set for each step
  // of the first row, and the largest that a query has; set for each step
  std::int64_t position = 0, last_position = 0;

  std::int64_t end() const { return first + n; }
};

/// Rows of one width, kept from step to step.
class RowBuffer {
 public:
  void fit(std::int64_t rows, std::int64_t width) {
    width_ = width;
    memory_.floats(rows * width);
  }
  float* from(std::int64_t row) { return memory_.floats() + row * width_; }
  const float* from(std::int64_t row) const { return memory_.floats() + row * width_; }
  std::int64_t width() const { return width_; }
  /// Rows of another width from now on. \pre not more than there is room for
  void set_width(std::int64_t width) { width_ = width; }

 private:
  AlignedBuffer memory_;
  std::int64_t width_ = 0;
};

/// The outputs of one step's stages, kept from step to step: a row is a token, those of a sequence
/// lie together.
struct StepBuffers {
  RowBuffer hidden, normed;    // [n, hidden]
  RowBuffer partial;           // the same, of a group: what a rank has of a sum
  RowBuffer q, k, v;           // [n, heads * d]
  RowBuffer gate, up;          // [n, intermediate]
  RowBuffer low;               // [n, the largest rank of an adapter]
  RowBuffer attended;          // [n, heads * d]
  RowBuffer mixing, mixed;     // into and out of what a layer has in place of attention
  RowBuffer routed, mixed_in;  // [n, hidden]: into a mixture that is beside a dense network
  RowBuffer mix_gate, mix_step, mix_write;  // of a recurrence (RecurrenceRows)
  RowBuffer gated_q;                        // [n, heads * 2 d]: queries, and the gate of each head
  // of latent attention: [n, q_rank], [n, heads * query], [n, width], [n, heads * value]
  RowBuffer latent_q, latent_queries, latent_low, latent_values;
  std::vector<SequenceRows> sequences;

  /// Rows of a layer's queries, keys and values, which may differ from layer to layer.
  void begin_heads(const LayerSpec& l) {
    const std::int64_t keys = l.keys_of < 0 ? l.n_kv_heads * l.head_dim : 0;
    q.set_width(l.n_heads * l.head_dim);
    k.set_width(keys);
    v.set_width(keys);
  }

  /// Room for sequences of these lengths. \return their rows
  std::int64_t fit(const ModelConfig& c, std::span<const std::int64_t> lengths, std::int64_t rank) {
    const std::int64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    hidden.fit(rows, c.hidden_size);
    if (c.ranks > 1) partial.fit(rows, c.hidden_size);
    normed.fit(rows, c.hidden_size);
    std::int64_t queries = 0, keys = 0;  // of the layer that has the widest rows
    std::int64_t inner = 0;              // of dense layers: a mixture has buffers of its own
    bool beside = false;
    for (const LayerSpec& l : c.layers) {
      queries = std::max(queries, l.n_heads * l.head_dim);
      keys = std::max(keys, l.n_kv_heads * l.head_dim);
      if (!l.mixture || l.dense_beside) inner = std::max(inner, l.intermediate_size);
      beside = beside || l.dense_beside;
      if (l.latent) fit_latent(rows, l);
    }
    q.fit(rows, queries);
    k.fit(rows, keys);
    v.fit(rows, keys);
    if (beside) {
      routed.fit(rows, c.hidden_size);
      mixed_in.fit(rows, c.hidden_size);
    }
    gate.fit(rows, std::max(inner, c.per_layer_width));
    up.fit(rows, inner);
    if (rank > 0) low.fit(rows, rank);
    attended.fit(rows, queries);
    fit_mixers(c, rows);
    sequences.clear();
    std::int64_t first = 0;
    for (const std::int64_t n : lengths) {
      sequences.push_back({.first = first, .n = n});
      first += n;
    }
    return rows;
  }

  /// Room for rows within latent attention, which is the same in all layers that have it.
  void fit_latent(std::int64_t rows, const LayerSpec& l) {
    latent_q.fit(rows, l.latent.q_rank);
    latent_queries.fit(rows, l.n_heads * l.latent.query());
    latent_low.fit(rows, l.latent.width());
    latent_values.fit(rows, l.n_heads * l.latent.value);
  }

  /// Whether the first n rows of the residual stream, and of queries, keys and values if there are
  /// any, are finite.
  bool finite(std::int64_t n, bool heads) const;

  /// The products by which what a layer has in place of attention reads x.
  void multiply_mixer(const DecoderLayer& of, const float* x, std::int64_t first, std::int64_t n,
                      Cut cut);
  /// What stands in place of attention: one sequence's rows, from those products to `mixed`.
  /// \throws DataError where the state after it is not finite
  void mix(const DecoderLayer& of, std::size_t layer, const SequenceRows& rows,
           RecurrentState& state);

  /// Queries of rows [first, first + n), from `gated_q` to `q`.
  void take_queries(const LayerSpec& spec, std::int64_t first, std::int64_t n);
  /// Multiplies what attention gave those rows by the gates that lie between their queries.
  void gate_attended(const LayerSpec& spec, std::int64_t first, std::int64_t n);

  /// All products of rows [first, first + n), with what the adapters of their sequences add. Rows
  /// of each sequence go as its own step would (class_of), so that its bits do not depend on the
  /// batch.
  void multiply(std::int64_t first, std::int64_t n, std::span<const Product> products, Cut cut);
  /// f(from, to, class) for stretches of rows [first, first + n) whose sequences' steps are of one
  /// class.
  template <class F>
  void over_classes(std::int64_t first, std::int64_t n, F&& f) const {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].end() <= first || sequences[i].first >= first + n) continue;
      const RowClass rows = class_of(sequences[i].n);
      const std::int64_t from = std::max(first, sequences[i].first);
      while (i + 1 < sequences.size() && class_of(sequences[i + 1].n) == rows) ++i;
      const std::int64_t to = std::min(first + n, sequences[i].end());
      if (to > from) f(from, to, rows);
    }
  }
  /// What adapters add to rows [from, to) of products whose x and y begin with row `first`.
  void add_low_ranks(const LowRanks& adapted, std::int64_t first, std::span<const Product> products,
                     std::int64_t from, std::int64_t to, Cut cut, RowClass rows);

 private:
  void fit_mixers(const ModelConfig& c, std::int64_t rows);
};

/// How the head is computed where only the last row of logits is asked for: for all rows, a piece
/// of the vocabulary at a time, which stays in cache while the log-sum-exp of each row is carried
/// on.
struct HeadPieces {
  AlignedBuffer tile;            // [n, longest piece]
  AlignedBuffer last;            // [vocab]
  SurpriseInPieces surprise;     // of all rows but the last, which has no successor
  std::vector<float> following;  // [n - 1]

  /// Logits of a piece for each of n rows, but for the last piece, which has up to twice as many.
  static std::int64_t width(std::int64_t n) {
    constexpr std::int64_t kTile = (2 << 20) / sizeof(float), kPiece = SurpriseInPieces::kPiece;
    return std::max(kPiece, kTile / n / kPiece * kPiece);
  }
};

}  // namespace episodic
