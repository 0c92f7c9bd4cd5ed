// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What products on the host do with activations, for every model of the process.

#include <string_view>

#include "episodic/cpu/weights.hpp"

namespace episodic {

/// "rounded", "exact" or "bfloat16". \throws ConfigError for another word
cpu::Activations parse_activations(std::string_view word);

/// From the next product on, whatever EPISODIC_ACTIVATIONS says: that is read where nothing was
/// set. Steps that ran before keep what they made.
void set_activations(cpu::Activations activations);

/// What counts now. \throws ConfigError where EPISODIC_ACTIVATIONS counts and is no such word
cpu::Activations activations();

}  // namespace episodic
