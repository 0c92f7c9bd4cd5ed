// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `episodic trace` computes the cases without a model by: the host's classes, or a device's
// kernels. Both are told the same and give the same, to rounding.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common.hpp"
#include "episodic/recall/reweight.hpp"
#include "episodic/retention/memoria.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/key_segmenter.hpp"

namespace episodic::tools {

/// Keys to be cut into events: by the whole sequence, or by each key/value head of each layer.
struct KeysToCut {
  std::span<const float> keys;  ///< [tokens, layers, heads, head_dim]
  std::int64_t tokens = 0, layers = 0, heads = 0, head_dim = 0;
  KeySegmenterSettings settings;
  bool per_head = false;
  std::int64_t min_block = 1, max_block = 1;

  std::int64_t units() const { return per_head ? layers * heads : 1; }
};

/// What the keys said, [units, tokens] each.
struct KeyVerdicts {
  std::vector<std::uint8_t> opens;
  std::vector<float> signal, threshold;  ///< NaN where there is none
};

/// A unit's events, closed up to the last token.
struct EventsOfUnit {
  std::vector<TokenRange> events;
  std::int64_t pending_start = 0;
};

/// One chunk of queries in one layer, with events that may take part in its attention.
struct WeightedAttention {
  std::span<const float> q;       ///< [n, heads, head_dim], unrotated like k
  std::span<const float> k;       ///< [start + n, kv_heads, head_dim]
  std::span<const float> v;       ///< as k
  std::int64_t n = 0, start = 0;  ///< queries, and the position of the first
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t n_init = 0, n_local = 1;
  double rope_theta = 0;
  std::vector<TokenRange> events;  ///< from n_init on without gaps, all outside the window

  std::int64_t tokens() const { return start + n; }
  /// Tokens that some query of the chunk no longer has in its window.
  std::int64_t outside() const { return std::max<std::int64_t>(0, tokens() - n_local); }
};

struct WeightedOutput {
  std::vector<float> out;   ///< [n, heads, head_dim]
  std::vector<float> mass;  ///< [n, heads]: sum of probability * weight
};

class TraceParts {
 public:
  virtual ~TraceParts() = default;

  // -- boundaries from keys (HEM 2.2) --
  virtual KeyVerdicts cut(const KeysToCut& keys) = 0;
  virtual std::vector<EventsOfUnit> close(const KeysToCut& keys,
                                          const std::vector<std::uint8_t>& opens) = 0;

  // -- reweighted attention (EpMAN 3.2) --
  /// Relevance of [events, query.size()] encodings.
  virtual std::vector<float> scores(std::span<const float> query,
                                    std::span<const float> encodings) = 0;
  virtual std::vector<WeightedEvent> choose(Reweight mode, std::int64_t top_k,
                                            const std::vector<float>& scores) = 0;
  virtual WeightedOutput attend(const WeightedAttention& attention,
                                const std::vector<WeightedEvent>& present) = 0;

  // -- what engrams receive, and which are forgotten (Memoria 3); the graph is Memoria's --
  /// What recalled engrams received, short-term ones first. \param attention by engram, >= 0
  virtual std::vector<double> received(const Memoria::Recall& recall,
                                       std::span<const float> attention) = 0;
  /// Marks engrams as forgotten. \param total that came so far
  /// \return those that have a mark now and had none before, sorted
  virtual std::vector<std::int64_t> forget(const Memoria::Recall& recall,
                                           const std::vector<std::int64_t>& engrams,
                                           std::int64_t total) = 0;
};

std::unique_ptr<TraceParts> trace_parts_of_host();

/// trace_on_device.cpp, and in builds without a CUDA path no_device.cpp: null where --device means
/// the host. \throws NotBuiltError, DeviceError as load_engine
std::unique_ptr<TraceParts> trace_parts_of_device(const CommonFlags& common);

}  // namespace episodic::tools
