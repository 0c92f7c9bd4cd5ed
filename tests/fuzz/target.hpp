// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a fuzz target is here: libFuzzer's entry point, and for driver.cpp valid inputs to start
// from.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

/// Runs the loader. Only episodic::Error may come out of it, and it is caught here.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

/// Valid inputs.
std::vector<std::string> seeds();

/// Makes redundant fields of a mutated input agree again, so that deeper code is reached.
void repair(std::string& input);

/// Like assert, in every build.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: accepted an input, but not: %s\n", what);
  std::abort();
}

}  // namespace fuzz
