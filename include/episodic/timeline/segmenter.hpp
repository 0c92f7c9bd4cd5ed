// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Who sets the raw boundary flags (spec 4): surprise, fixed steps, the caller, or a seeded draw.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/config.hpp"

namespace episodic {

/// One flag per token, given step by step in order.
class Segmenter {
 public:
  virtual ~Segmenter() = default;

  /// Raw flags of the step's n tokens first .. first + n - 1.
  /// \param surprise [n] of these tokens (0 for token 0)
  /// \param threshold [n], written: +inf where the segmenter has none
  /// \param flags [n], written: 0 or 1
  virtual void step(std::int64_t first, std::span<const float> surprise, std::span<float> threshold,
                    std::span<std::uint8_t> flags) = 0;

  /// An independent copy of the present state (for rewind and fork).
  virtual std::unique_ptr<Segmenter> clone() const = 0;

  /// The present state, for a twin elsewhere, and taken over from one (MemoryState). A segmenter
  /// that looks at token numbers alone has none.
  virtual std::vector<float> recent_surprise() const { return {}; }
  virtual void resume(std::int64_t tokens, std::span<const float> recent) {
    (void)tokens, (void)recent;
  }

  /// The present state to bytes, and back into a segmenter made by the same settings.
  virtual void save(ByteWriter& to) const = 0;
  virtual void load(ByteReader& from) = 0;
};

/// By configuration. \param given sorted token numbers, only for segmenter `given`: a boundary
/// opens at each of them. `random` draws each token with probability 2 / (min_block + max_block)
/// from a counter-based generator of (seed, token), so that the flags do not depend on the steps.
std::unique_ptr<Segmenter> make_segmenter(const MemoryConfig& config,
                                          std::vector<std::int64_t> given = {});

}  // namespace episodic
