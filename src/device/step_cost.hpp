// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a step of a LLaMA-shaped decoder reads and computes, from its sizes alone: the arithmetic
/// of docs/kernels.md, held to what the launches are given by
/// tests/device/device_launches_test.cpp.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "episodic/base/dtype.hpp"
#include "kernels/codes.hpp"

namespace episodic::device {

/// Logits of a step that are held at once: 8 MiB, which stay in the cache between the product that
/// makes them and the kernel that reads them.
inline constexpr std::int64_t kTileLogits = 2 << 20;
/// Of each row at least so many, so that a product has work for the whole device.
inline constexpr std::int64_t kLeastPiece = 1024;

/// Logits of each of n rows in a piece of the vocabulary.
inline std::int64_t piece_width(std::int64_t n, std::int64_t vocab) {
  const std::int64_t width = kTileLogits / n / kLeastPiece * kLeastPiece;
  return std::min(vocab, std::max(kLeastPiece, width));
}

/// Bytes that must come from device memory, each once, and floating-point operations (an addition
/// and a multiplication are two).
struct Cost {
  std::int64_t bytes = 0, flops = 0;
  Cost operator+(const Cost& other) const { return {bytes + other.bytes, flops + other.flops}; }
  bool operator==(const Cost&) const = default;
};

/// A decoder whose layers are all alike: RMS norm, grouped heads, gated feed-forward.
struct DecoderSizes {
  DType dtype = DType::bfloat16;  ///< of weights, keys and values
  std::int64_t layers = 0, hidden = 0, inner = 0, vocab = 0;
  std::int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;

  std::int64_t width() const { return n_heads * head_dim; }
  /// Weights of a layer's products: q, k, v, o; gate, up, down.
  std::int64_t layer_weights() const {
    return hidden * (2 * n_heads + 2 * n_kv_heads) * head_dim + 3 * hidden * inner;
  }
  /// Bytes of the key and the value of one token in a layer.
  std::int64_t token_bytes() const { return 2 * n_kv_heads * head_dim * size_of(dtype); }
};

/// What a layer attends and searches in a step of one token.
struct DecodeContext {
  std::int64_t keys = 0;    ///< sinks, pending, recalled and the window's
  std::int64_t events = 0;  ///< whose representatives are searched; 0: nothing is recalled
  DType representatives = DType::bfloat16;
  /// With codes of representatives: events whose vectors are read too, those without codes among
  /// them. Absent: all vectors are, and there are no codes.
  std::optional<std::int64_t> candidates;
};

/// Of a step of one token of one sequence. Left out, together below a hundredth at real sizes: rows
/// of activations, norms, biases, the scores of events and what attention's splits hand on.
struct DecodeCost {
  Cost products;   ///< of the layers
  Cost head;       ///< the logits
  Cost attention;  ///< of all layers
  Cost search;     ///< of all layers' representatives
  std::int64_t launches_of_layer = 0, launches_besides = 0;

  Cost total() const { return products + head + attention + search; }
  std::int64_t launches(std::int64_t layers) const {
    return layers * launches_of_layer + launches_besides;
  }
};

/// With a memory, all layers recall. Launches are those of events that lie in device memory.
inline DecodeCost decode_cost(const DecoderSizes& s, const DecodeContext& c) {
  const std::int64_t element = size_of(s.dtype);
  const auto product = [&](std::int64_t weights) { return Cost{weights * element, 2 * weights}; };
  DecodeCost cost;
  cost.products = product(s.layers * s.layer_weights());
  cost.head = product(s.hidden * s.vocab);
  cost.attention = {s.layers * c.keys * s.token_bytes(), s.layers * c.keys * 4 * s.width()};
  const std::int64_t coded = c.candidates ? kernels::coded_rows(c.events) : 0;
  const std::int64_t scored = c.candidates.value_or(c.events);
  cost.search = {s.layers * (coded * kernels::code_bytes(s.width()) +
                             scored * s.width() * size_of(c.representatives)),
                 s.layers * 2 * (coded + scored) * s.width()};
  // heads_product, recall_rows, attention, add_product, gated_product, add_product; before
  // recall_rows, the search of codes; at the end of the step, what was recalled is counted, and the
  // codes of closed events
  cost.launches_of_layer = c.candidates ? 7 : 6;
  cost.launches_besides = c.candidates ? 13 : 12;
  return cost;
}

/// The head of a step of several tokens: pieces of the vocabulary, the weights read once.
struct HeadCost {
  std::int64_t weight_bytes = 0;
  std::int64_t logit_bytes = 0;  ///< float32 logits of all rows, which are never in memory
  std::int64_t pieces = 0;       ///< each a product and surprise_piece
};

inline HeadCost head_cost(const DecoderSizes& s, std::int64_t n) {
  const std::int64_t width = piece_width(n, s.vocab);
  return {s.vocab * s.hidden * size_of(s.dtype), 4 * n * s.vocab, (s.vocab + width - 1) / width};
}

}  // namespace episodic::device
