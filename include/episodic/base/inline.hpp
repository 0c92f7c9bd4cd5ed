// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// One code, three ways to have it. The bodies of the header-only core (episodic/core.hpp) lie in
/// `<room>/impl/*.hpp`, beside the headers that people read.
///
/// - By default a header includes its bodies, as inline functions: nothing is linked, and nothing
///   but a C++20 compiler is needed. Each source that includes core.hpp compiles all of it.
/// - With EPISODIC_SEPARATE defined for the whole program, headers only declare. One source of the
///   program includes episodic/core_bodies.hpp, which defines. A program of many sources compiles
///   faster so: core.hpp then takes a second, not ten.
/// - The targets of the compiled library (`episodic::core`, or a component that stands on it)
/// define
///   EPISODIC_COMPILED: headers only declare, and the library's own sources define.
///
/// A source with EPISODIC_COMPILED and one without may meet in one program: `EPISODIC_NAMESPACE`
/// keeps their code apart. Those without it must agree on EPISODIC_SEPARATE.

#if defined(EPISODIC_COMPILED) || defined(EPISODIC_SEPARATE)
#define EPISODIC_DECLARE_ONLY
#define EPISODIC_INLINE
#else
#define EPISODIC_INLINE inline
#endif

// Code of headers alone has an inline namespace of its own, so that neither it nor the compiled
// library takes the other's functions for its own (a plugin of the one in a host of the other).
// Headers that kernels share (base/dtype.hpp, base/rules) are the same in both and stay outside.
#if defined(EPISODIC_COMPILED)
#define EPISODIC_NAMESPACE episodic
#else
#define EPISODIC_NAMESPACE episodic::inline headers
#endif
