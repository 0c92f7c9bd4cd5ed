// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Boundary refinement by graph modularity, conductance or intra/inter ratio, without ever building
/// the graph (EM 3.3, eqs. 2-4, algorithm 1).

#include <cstdint>
#include <span>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/group/group.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/key_ring.hpp"

namespace EPISODIC_NAMESPACE {

/// Refines the raw flags of one step after another.
class BoundaryRefiner {
 public:
  BoundaryRefiner() = default;
  BoundaryRefiner(Refinement objective, std::int64_t n_init, std::int64_t min_block,
                  std::int64_t n_kv_heads, std::int64_t head_dim);

  /// Moves the raw boundaries of the step [first, first + raw.size()).
  ///
  /// Sums run from each window's start, in float64; one pass costs O(tokens * D), D the key width
  /// over all layers used.
  /// \param layers keys of the layers that enter the graph; every token from the start of the
  ///        previous step on must still be in the rings
  /// \param raw, final_flags [n] 0 or 1; must not overlap
  /// \param group whose ranks have the keys of other heads: the sums of each window are added up;
  ///        null: all heads are here
  void step(std::span<const KeyRing> layers, std::int64_t first, std::span<const std::uint8_t> raw,
            std::span<std::uint8_t> final_flags, Group* group = nullptr);

  /// Last final boundary of any step so far, -1 if none.
  std::int64_t last_boundary() const { return last_boundary_; }
  /// Last final boundary inside the last step, -1 if none.
  std::int64_t last_in_previous() const { return last_in_previous_; }
  /// Goes on behind steps that left these (Timeline::State).
  void resume(std::int64_t last_boundary, std::int64_t last_in_previous) noexcept {
    last_boundary_ = last_boundary;
    last_in_previous_ = last_in_previous;
  }

 private:
  /// Best split t in [from, to] of `window` into [start, t) and [t, end); ties: the latest.
  std::int64_t best_split(std::span<const KeyRing> layers, TokenRange window, std::int64_t from,
                          std::int64_t to, Group* group);

  Refinement objective_ = Refinement::none;
  std::int64_t n_init_ = 0, min_block_ = 1, n_kv_heads_ = 0, head_dim_ = 0;
  std::int64_t last_boundary_ = -1;     // last final boundary of any step; -1: none, use n_init
  std::int64_t last_in_previous_ = -1;  // last final boundary inside the previous step; -1: none
  std::vector<double> scratch_, sums_;  // sums_: [splits, 3], of all units
  std::vector<float> rows_;             // [units, d], keys of 16 bits as float32
};

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/timeline/impl/refine.hpp"
#endif
