// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every reader of tensors promises of what it accepted.

#include <cstddef>
#include <span>
#include <vector>

#include "episodic/model/tensor_source.hpp"
#include "target.hpp"

namespace fuzz {

inline void check_tensors(const std::vector<episodic::StoredTensor>& tensors,
                          std::span<const std::byte> file) {
  const episodic::StoredTensor* before = nullptr;
  for (const episodic::StoredTensor& t : tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t d : t.shape) elements *= d;
    require(t.elements() == elements, "the shape is the number of elements");
    require(!before || before->name < t.name, "names rise");
    before = &t;
    if (t.bytes == 0) continue;
    require(t.data >= file.data() && t.data + t.bytes <= file.data() + file.size(),
            "data lie within the file");
  }
}

}  // namespace fuzz
