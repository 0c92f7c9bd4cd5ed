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
/// All sources of a program must agree on these two macros.

#if defined(EPISODIC_COMPILED) || defined(EPISODIC_SEPARATE)
#define EPISODIC_DECLARE_ONLY
#define EPISODIC_INLINE
#else
#define EPISODIC_INLINE inline
#endif
