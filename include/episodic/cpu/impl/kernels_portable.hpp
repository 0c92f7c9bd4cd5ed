// SPDX-License-Identifier: Apache-2.0
#pragma once
// The portable loops: a unit of the compiled library beside those of the instruction sets, and the
// only ones of the header-only core. No other includes: see kernels_impl.inc.
#include <cstdint>

#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::cpu {
namespace portable {
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;

#include "vector_portable.inc"

#include "kernels_impl.inc"
}  // namespace portable

#ifdef EPISODIC_DECLARE_ONLY
extern const Kernels kernels_portable;
#endif
EPISODIC_INLINE constinit const Kernels kernels_portable =
    portable::table("portable", InstructionSet::portable);

}  // namespace EPISODIC_NAMESPACE::cpu
