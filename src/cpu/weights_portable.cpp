// SPDX-License-Identifier: Apache-2.0
// No other includes: see weights_float.inc.
#include <cstdint>

#include "episodic/cpu/kernels.hpp"
#include "weights_loops.hpp"

namespace episodic::cpu {
namespace {
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

#include "episodic/cpu/impl/vector_portable.inc"

#include "weights_table.inc"

static inline float half_to_float(uint16_t h) { return widen_half(I{h, h, h, h})[0]; }

#include "weights_float.inc"
}  // namespace

extern const FloatLoops float_loops_portable;
constinit const FloatLoops float_loops_portable{.widen = widen, .few = few};

}  // namespace episodic::cpu
