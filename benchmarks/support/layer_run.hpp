// SPDX-License-Identifier: Apache-2.0
#pragma once
// Drives an EpisodicMemory with random input and counts what a step had to compute and to move.

#include <cstdint>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "support/environment.hpp"
#include "support/layer_flags.hpp"

namespace episodic::bench {

/// Queries, keys, values: standard normal. Surprise: noise below 1, and 10 for one token in
/// `boundary_every`, which any gamma up to 4 tells apart. Every number is a hash of (seed, layer,
/// kind, token, channel): the same for all variants and however the tokens are cut into steps.
class RandomInput {
 public:
  explicit RandomInput(const LayerFlags& flags);

  /// Fills q [n, H, d], k and v [n, G, d] of a layer.
  void draw(std::int64_t layer, std::int64_t first, std::int64_t n);
  /// Fills surprise [n].
  void draw_surprise(std::int64_t first, std::int64_t n);

  std::vector<float> q, k, v, surprise;

 private:
  void fill(std::vector<float>& out, std::int64_t width, std::uint64_t stream, std::int64_t first,
            std::int64_t n) const;

  std::uint64_t seed_;
  std::int64_t q_width_, kv_width_, boundary_every_;
  std::vector<float> normal_;  // quantiles of the normal distribution at (i + 1/2) / 65536
};

/// What one step had to do, per layer (mean over the layers).
struct StepWork {
  double keys_seen = 0;        ///< (query, visible key) pairs
  double keys_listed = 0;      ///< the same with masked pairs counted: n * keys of all segments
  double tokens_attended = 0;  ///< different tokens whose key and value some query sees
  double event_tokens = 0;     ///< of these, those in recalled events
  double recalled_events = 0;
  double representative_bytes = 0;  ///< of the events that were searched

  /// 4 H d per pair: dot product and weighted sum.
  double flops(const LayerFlags& f) const;
  double flops_listed(const LayerFlags& f) const;
  /// Keys and values of all attended tokens, each once.
  double kv_bytes(const LayerFlags& f) const;
};

/// Seconds of one step, per layer.
struct StepTimes {
  double wall = 0, cpu = 0;
  double recall = 0, attend = 0, append = 0, close = 0, refine = 0, store = 0;
};

class LayerRun {
 public:
  explicit LayerRun(const LayerFlags& flags) : LayerRun(flags, flags.config()) {}
  /// With settings of the memory besides the flags'. \param given boundaries, of segmenter `given`
  LayerRun(const LayerFlags& flags, const MemoryConfig& config,
           std::vector<std::int64_t> given = {});

  /// Reads `tokens` tokens in chunks, with a bar on stderr. \return seconds, drawing not counted
  double fill(std::int64_t tokens);

  /// One timed step of n tokens. The clock stands still while input is drawn.
  StepTimes step(std::int64_t n);

  /// Of the last step.
  const StepWork& work() const { return work_; }
  const EpisodicMemory& memory() const { return memory_; }
  /// Tokens that were flagged as boundaries, before refinement; of scope `head` the first head's.
  const std::vector<std::int64_t>& raw_boundaries() const { return raw_boundaries_; }
  /// Mean length of a closed event, over all tables of events; 0 without events.
  double mean_event_tokens() const;
  /// Events, boundary rate and bytes, for the result file.
  Json state_json() const;
  /// \throws DataError if an output of the last step is not finite: then the figures mean nothing
  void check_output() const;

 private:
  void count_work(std::int64_t first, std::int64_t n,
                  const std::vector<std::int64_t>& pending_starts, std::int64_t events_before);

  LayerFlags flags_;
  EpisodicMemory memory_;
  RandomInput input_;
  std::vector<float> out_;
  StepWork work_;
  std::vector<std::int64_t> raw_boundaries_;
};

/// {"recall", "attend", "append", "close", "refine", "store", "other"}: medians over the steps,
/// seconds per layer; `other` is the rest of the whole.
Json parts_json(const std::vector<StepTimes>& steps);

}  // namespace episodic::bench
