// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Who sets the raw boundary flags (EM 3.2, HEM 2.2): surprise, keys, fixed steps, the caller, or a
/// seeded draw.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/timeline/key_ring.hpp"

namespace EPISODIC_NAMESPACE {

/// All that a segmenter may look at in a step of n tokens.
struct StepSignal {
  std::int64_t first = 0;           ///< token number of the step's first
  std::span<const float> surprise;  ///< [n] nats (0 for token 0)
  /// Unrotated keys of the layers in its scope, the step's own among them; each ring reaches back
  /// to the start of the step before. One ring of one head where a lane has events of its own.
  std::span<const KeyRing> keys;
  std::int64_t n_kv_heads = 0, head_dim = 0;  ///< of each ring
};

/// One flag per token, given step by step in order. A step is prepared, and counts from commit on.
class Segmenter {
 public:
  virtual ~Segmenter() = default;

  /// Raw flags of the step's n tokens. Nothing counts before `commit`: after a step that failed
  /// elsewhere, the next prepare begins from the same state.
  /// \param threshold [n], written: +inf where the segmenter has none
  /// \param flags [n], written: 0 or 1
  virtual void prepare(const StepSignal& signal, std::span<float> threshold,
                       std::span<std::uint8_t> flags) = 0;
  /// The step of the last prepare has come.
  virtual void commit() noexcept {}

  /// Both at once, for segmenters that need no keys.
  void step(std::int64_t first, std::span<const float> surprise, std::span<float> threshold,
            std::span<std::uint8_t> flags) {
    prepare({first, surprise, {}, 0, 0}, threshold, flags);
    commit();
  }

  /// An independent copy of the present state.
  virtual std::unique_ptr<Segmenter> clone() const = 0;

  // -- what is carried from step to step (Timeline::State); nothing where token numbers alone
  // decide

  /// Surprise of the last tokens, for a segmenter that looks back on it, and taken over.
  /// \throws DataError for a list that cannot belong to `tokens` tokens
  virtual std::vector<float> recent_surprise() const { return {}; }
  virtual void resume(std::int64_t tokens, std::span<const float> recent) {
    (void)tokens, (void)recent;
  }
  /// Anything else, as bytes, and back into a segmenter made by the same settings.
  /// \throws FileError for bytes that cannot be its own
  virtual void save(ByteWriter& to) const { (void)to; }
  virtual void load(ByteReader& from) { (void)from; }
};

/// Whether a segmenter decides by keys, so that each lane can have boundaries of its own.
bool reads_keys(SegmenterKind kind);

/// By configuration. \param keys that a token has in its scope (only looked at by the segmenters
/// that read keys; others serve any) \param given sorted token numbers, only for segmenter `given`:
/// a boundary opens at each of them. `random` draws each token with probability 2 / (min_block +
/// max_block) from a counter-based generator of (seed, token), so that the flags do not depend on
/// the steps.
std::unique_ptr<Segmenter> make_segmenter(const MemoryConfig& config,
                                          std::vector<std::int64_t> given = {},
                                          const KeyShape& keys = {});

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/timeline/impl/segmenter.hpp"
#endif
