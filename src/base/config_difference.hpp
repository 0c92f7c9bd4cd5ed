// SPDX-License-Identifier: Apache-2.0
#pragma once
// For messages: in what two configurations differ.

#include <string>

#include "episodic/base/config.hpp"

namespace episodic {

/// The settings that change results and are not alike ("scope is "sequence", not "head"; ...");
/// empty if there are none (MemoryConfig::same_results).
std::string difference(const MemoryConfig& made, MemoryConfig given);

}  // namespace episodic
