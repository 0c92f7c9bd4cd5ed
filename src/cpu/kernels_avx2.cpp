// SPDX-License-Identifier: Apache-2.0
// No other includes: see kernels_impl.inc.
#include <immintrin.h>

#include <cstdint>

#include "episodic/cpu/kernels.hpp"

namespace episodic::cpu {
namespace {
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;

#include "vector_avx2.inc"

#include "episodic/cpu/impl/kernels_impl.inc"
}  // namespace

extern const Kernels kernels_avx2;
constinit const Kernels kernels_avx2 = table("avx2", InstructionSet::avx2);

}  // namespace episodic::cpu
