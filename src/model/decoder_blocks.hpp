// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder does with rows between its products, by what its configuration says.

#include <cstdint>
#include <span>

#include "decoder_buffers.hpp"
#include "decoder_weights.hpp"
#include "episodic/model/hf_config.hpp"

namespace episodic {

/// Rows of the embedding, [tokens, hidden].
void embed(const DecoderWeights& w, std::span<const std::int64_t> ids, float* to);

/// y = the norm of n rows of x, each as wide as its factors; y may be x.
void norm_rows(const ModelConfig& c, const DecoderNorm& w, const float* x, std::int64_t n,
               float* y);

/// Rows of x to rows of a layer's queries, keys and values, as its attention wants them.
void attention_heads(const ModelConfig& c, const LayerSpec& spec, const DecoderLayer& w,
                     const float* x, std::int64_t first, std::int64_t n, Cut cut,
                     StepBuffers& step);

/// What stands between the products of a feed-forward network: gate[i] becomes the input of the
/// last one. Without a gate these are the rows of up, and `up` is not read.
void activate(const LayerSpec& spec, const Xielu& xielu, float* gate, const float* up,
              std::int64_t n);

/// Multiplies the queries of rows [first, first + n) by what their positions say.
void scale_queries(const QueryScale& scale, std::span<const SequenceRows> sequences,
                   std::int64_t first, std::int64_t n, std::int64_t width, float* q);

}  // namespace episodic
