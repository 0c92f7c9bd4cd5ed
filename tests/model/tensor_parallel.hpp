// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the tests of models over ranks share.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/patch.hpp"
#include "support/ranks.hpp"
#include "support/temp_dir.hpp"
#include "tiny_llama.hpp"

namespace tensor_parallel_test {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw episodic::Error(what);
}

/// Layers, heads and channels that 2 and 4 ranks divide.
inline TinyShape divided_shape() {
  TinyShape s;
  s.hidden = 32;
  s.inner = 64;
  s.heads = 8;
  s.kv_heads = 4;
  s.dim = 8;
  s.attention_bias = s.mlp_bias = true;
  return s;
}

/// Largest difference over the largest magnitude.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  require(a.size() == b.size(), "other sizes");
  double worst = 0, most = 1e-6;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    most = std::max(most, std::fabs(static_cast<double>(a[i])));
  }
  return std::isfinite(worst) ? worst / most : HUGE_VAL;
}

/// Lengths of steps: chunks, and single tokens between them.
inline std::int64_t step_length(std::int64_t at, std::int64_t left) {
  const std::int64_t n = at % 4 == 2 ? 1 : 10;
  return n < left ? n : left;
}

/// A model of the test's, opened by a rank; by null: as a whole.
inline episodic::Decoder opened(const std::filesystem::path& dir,
                                const std::shared_ptr<episodic::Group>& group) {
  episodic::ModelOptions options;
  options.group = group;
  return episodic::Decoder::load(episodic::open_model(dir, options));
}

}  // namespace tensor_parallel_test
