// SPDX-License-Identifier: Apache-2.0
#pragma once
// How fast a model reads here, found out in a moment.

#include <cstdint>

#include "episodic/session/engine.hpp"

namespace episodic::tools {

struct Speed {
  std::int64_t tokens = 0;  ///< of the step that was timed
  double reading = 0;       ///< tokens a second in such a step, with next to nothing before it
  /// The same by the processor time of the thread that leads: what an idle machine would do, where
  /// others compute beside it. On a device as `reading`.
  double reading_alone = 0;
  double writing = 0;  ///< tokens a second one by one; 0: not measured
  double seconds = 0;  ///< that it took to find out
};

/// A short step, then one of as many tokens, up to a chunk, as are likely to be read within
/// `budget` seconds of processor time; that one counts. The engine is left with an empty memory.
Speed measure_speed(Engine& engine, const MemoryConfig& config, double budget, bool writing);

/// Seconds that reading n tokens takes at `rate`, that of a probe. Attention over the window and
/// what is recalled, of which the probe saw little, is reckoned by its operations beside those of
/// the model's products; the memory's own work by what was measured.
double reading_seconds(const Speed& probe, double rate, const ModelConfig& model,
                       const MemoryConfig& config, std::int64_t n);

}  // namespace episodic::tools
