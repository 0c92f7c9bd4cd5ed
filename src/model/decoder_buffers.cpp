// SPDX-License-Identifier: Apache-2.0
#include "decoder_buffers.hpp"

#include <algorithm>

#include "elementwise.hpp"

namespace episodic {
namespace {

/// Rows [from, to) of products whose x and y begin with row `first`.
void multiply_rows(std::int64_t first, std::span<const Product> products, std::int64_t from,
                   std::int64_t to, Cut cut, RowClass rows) {
  constexpr std::size_t kMost = 4;
  Product part[kMost];
  for (std::size_t p = 0; p < products.size(); p += kMost) {
    const std::size_t count = std::min(kMost, products.size() - p);
    for (std::size_t i = 0; i < count; ++i) {
      part[i] = products[p + i];
      part[i].x += (from - first) * part[i].linear->in;
      part[i].y += (from - first) * part[i].linear->out;
    }
    episodic::multiply(to - from, {part, count}, cut, rows);
  }
}

}  // namespace

bool all_finite(const float* x, std::int64_t n) {
  constexpr std::int64_t kAtOnce = 4096;  // without a choice for each: states have megabytes
  for (std::int64_t first = 0; first < n; first += kAtOnce) {
    const std::int64_t end = std::min(n, first + kAtOnce);
    float zero = 0.0f;  // NaN, if any of them is none or infinite
#pragma omp simd reduction(+ : zero)
    for (std::int64_t i = first; i < end; ++i) zero += x[i] * 0.0f;
    if (!(zero == 0.0f)) return false;
  }
  return true;
}

bool StepBuffers::finite(std::int64_t n, bool heads) const {
  const auto good = [&](const RowBuffer& rows) {
    return n == 0 || all_finite(rows.from(0), n * rows.width());
  };
  return good(hidden) && (!heads || (good(q) && good(k) && good(v)));
}

void StepBuffers::multiply(std::int64_t first, std::int64_t n, std::span<const Product> products,
                           Cut cut) {
  const auto touches = [&](const SequenceRows& s) {
    return s.end() > first && s.first < first + n;
  };
  over_classes(first, n, [&](std::int64_t from, std::int64_t to, RowClass rows) {
    multiply_rows(first, products, from, to, cut, rows);
  });
  for (const SequenceRows& s : sequences)
    if (touches(s) && !s.low_ranks->empty())
      add_low_ranks(*s.low_ranks, first, products, std::max(first, s.first),
                    std::min(first + n, s.end()), cut, class_of(s.n));
}

void StepBuffers::add_low_ranks(const LowRanks& adapted, std::int64_t first,
                                std::span<const Product> products, std::int64_t from,
                                std::int64_t to, Cut cut, RowClass rows) {
  for (const Product& p : products) {
    const auto found = adapted.find(p.linear);
    if (found == adapted.end()) continue;
    for (const LowRank& added : found->second) {
      float* between = low.from(from);  // [rows, rank], of these tokens alone
      const Product down{&added.a, p.x + (from - first) * p.linear->in, between};
      episodic::multiply(to - from, {&down, 1}, cut, rows);
      scale(added.factor, between, (to - from) * added.a.out);
      const Product back{&added.b, between, p.y + (from - first) * p.linear->out, true};
      episodic::multiply(to - from, {&back, 1}, cut, rows);
    }
  }
}

}  // namespace episodic
