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

#include "vector_avx512.inc"

#include "episodic/cpu/impl/kernels_impl.inc"
}  // namespace

extern const Kernels kernels_avx512;
constinit const Kernels kernels_avx512 = table("avx512", InstructionSet::avx512);

}  // namespace episodic::cpu
