// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// One code, two ways to have it. The bodies of the header-only core (episodic/core.hpp) lie in
/// `<room>/impl/*.hpp`, beside the headers that people read.
///
/// By default a header takes its bodies along, as inline functions: nothing is linked, nothing but
/// a C++20 compiler is needed. Whoever links the compiled library (`episodic::core`, or a component
/// that stands on it) gets EPISODIC_COMPILED defined by its target: headers then declare only, and
/// the library's sources, which include the same bodies, define.
///
/// All sources of a program must agree on EPISODIC_COMPILED.

#ifdef EPISODIC_COMPILED
#define EPISODIC_INLINE
#else
#define EPISODIC_INLINE inline
#endif
