// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

/// What a small memory made of the same steps.
struct Outcome {
  std::vector<float> last;  // output of the last step
  std::int64_t events = 0;
  std::string name;  // of the memory's type
};

Outcome of_headers();
Outcome of_library();
