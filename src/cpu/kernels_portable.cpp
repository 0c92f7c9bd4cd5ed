// SPDX-License-Identifier: Apache-2.0
// No other includes: see kernels_impl.inc.
#include <cstdint>

#include "episodic/cpu/kernels.hpp"

namespace episodic::cpu {
namespace {
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;

#include "vector_portable.inc"

#include "kernels_impl.inc"
}  // namespace

extern const Kernels kernels_portable;
constinit const Kernels kernels_portable = table("portable", InstructionSet::portable);

}  // namespace episodic::cpu
