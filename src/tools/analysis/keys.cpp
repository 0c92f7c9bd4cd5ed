// SPDX-License-Identifier: Apache-2.0
#include "analysis/keys.hpp"

#include <cmath>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic::analysis {

void RecordedKeys::check() const {
  if (n_tokens < 1 || n_layers < 1 || n_kv_heads < 1 || head_dim < 1 ||
      static_cast<std::int64_t>(layers.size()) != n_layers)
    throw DataError("recorded keys: no tokens, layers, heads or channels; read a text first");
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (static_cast<std::int64_t>(layers[l].size()) != n_tokens * row())
      throw DataError("recorded keys: layer " + std::to_string(l) + " has " +
                      std::to_string(layers[l].size()) + " values, expected " +
                      std::to_string(n_tokens * row()));
    for (const float x : layers[l])
      if (!std::isfinite(x))
        throw DataError("recorded keys: a key of layer " + std::to_string(l) + " is not finite");
  }
}

KeySums::KeySums(const RecordedKeys& keys)
    : units_(keys.units()), head_dim_(keys.head_dim), n_tokens_(keys.n_tokens) {
  prefix_.resize(static_cast<std::size_t>(units_));
  parallel_for(units_, [&](std::int64_t unit) {
    std::vector<double>& sums = prefix_[static_cast<std::size_t>(unit)];
    const auto d = static_cast<std::size_t>(head_dim_);
    sums.assign(static_cast<std::size_t>(n_tokens_ + 1) * d, 0.0);
    for (std::int64_t t = 0; t < n_tokens_; ++t) {
      const std::span<const float> key = keys.key(unit, t);
      const double* before = sums.data() + static_cast<std::size_t>(t) * d;
      double* after = sums.data() + static_cast<std::size_t>(t + 1) * d;
      for (std::size_t c = 0; c < d; ++c) after[c] = before[c] + static_cast<double>(key[c]);
    }
  });
}

void KeySums::range(std::int64_t unit, std::int64_t start, std::int64_t end,
                    std::span<double> sum) const {
  const double* p = prefix_[static_cast<std::size_t>(unit)].data();
  for (std::size_t c = 0; c < sum.size(); ++c)
    sum[c] = p[static_cast<std::size_t>(end * head_dim_) + c] -
             p[static_cast<std::size_t>(start * head_dim_) + c];
}

}  // namespace episodic::analysis
