// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rotary embeddings of model files as data: default, linear, dynamic, llama3, yarn, longrope.
/// Torch-free.

#include <cstdint>
#include <vector>

#include "episodic/attention/rotary.hpp"

namespace episodic {

/// A rotary table, and how it changes in contexts longer than those the model was first trained on.
struct Rope {
  RotaryTable table;  ///< of contexts of up to `original` tokens; of all if original is 0
  std::int64_t original = 0;
  /// longrope: inverse frequencies of longer contexts; empty for all other kinds
  std::vector<double> long_inverse_frequency;
  double theta = 0;   ///< dynamic: base of the table
  double factor = 0;  ///< dynamic: how fast the base grows with the context; 0 for all other kinds

  bool depends_on_length() const { return original > 0; }

  /// The table of a context: the distance that a query looks back at most.
  RotaryTable at(std::int64_t context) const;

  bool operator==(const Rope& other) const;
};

}  // namespace episodic
