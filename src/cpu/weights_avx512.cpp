// SPDX-License-Identifier: Apache-2.0
// No other includes: see weights_float.inc.
#include <immintrin.h>

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

#include "vector_avx512.inc"

#include "weights_table.inc"

static inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }

#include "weights_float.inc"
}  // namespace

extern const FloatLoops float_loops_avx512;
constinit const FloatLoops float_loops_avx512{.widen = widen, .few = few};

}  // namespace episodic::cpu
