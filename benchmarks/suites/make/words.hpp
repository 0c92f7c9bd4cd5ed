// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// English words that generated keys are made of: "amber-anchor".

#include <cstdint>
#include <string>

namespace episodic::suites {

/// How many different keys there are.
std::int64_t word_keys();
/// \param i in [0, word_keys())
std::string word_key(std::int64_t i);

}  // namespace episodic::suites
