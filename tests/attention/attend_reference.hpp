// SPDX-License-Identifier: Apache-2.0
#pragma once
// Slow float64 attention over segments, and random cases for it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "episodic/attention/attend.hpp"
#include "episodic/attention/state.hpp"
#include "support/fp8_reference.hpp"

namespace episodic::testing {

using Random = std::mt19937_64;

inline std::vector<float> normal(Random& random, std::int64_t n, float sigma = 1.0f) {
  std::normal_distribution<float> draw(0.0f, sigma);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = draw(random);
  return x;
}

inline std::int64_t uniform(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

/// Owns what its segments point to.
struct SegmentStore {
  std::vector<std::unique_ptr<std::vector<float>>> floats;
  std::vector<std::unique_ptr<std::vector<std::uint16_t>>> halves;
  std::vector<std::unique_ptr<std::vector<std::int8_t>>> codes;

  /// A segment of random keys and values, each row and head padded by `pad` elements of NaN (codes:
  /// of one that no element has).
  KvSegment make(Random& random, std::int64_t heads, std::int64_t d, std::int64_t length,
                 std::int64_t first_token, Position position, DType dtype = DType::float32,
                 std::int64_t pad = 0, float weight = 1.0f, bool tokens_first = false,
                 std::int64_t value_d = 0) {
    KvSegment s;
    s.length = length;
    s.first_token = first_token;
    s.position = position;
    s.dtype = dtype;
    s.value_weight = weight;
    s.row_stride = tokens_first ? heads * (d + pad) : d + pad;
    s.head_stride = tokens_first ? d + pad : length * (d + pad) + pad;
    if (value_d > 0) {
      s.value_row_stride = tokens_first ? heads * (value_d + pad) : value_d + pad;
      s.value_head_stride = tokens_first ? value_d + pad : length * (value_d + pad) + pad;
    }
    KvSegment v = s;  // as if its keys were the values
    if (value_d > 0) v.row_stride = s.value_row_stride, v.head_stride = s.value_head_stride;
    s.key = array(random, heads, d, s, s.key_scale);
    s.value = array(random, heads, value_d > 0 ? value_d : d, v, s.value_scale);
    return s;
  }

 private:
  const void* array(Random& random, std::int64_t heads, std::int64_t d, const KvSegment& s,
                    const float*& scale) {
    const std::int64_t size =
        (heads - 1) * s.head_stride + std::max<std::int64_t>(0, s.length - 1) * s.row_stride + d;
    auto x = std::make_unique<std::vector<float>>(static_cast<std::size_t>(size),
                                                  std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t g = 0; g < heads; ++g) {
      for (std::int64_t i = 0; i < s.length; ++i) {
        const std::vector<float> row = normal(random, d);
        std::copy(row.begin(), row.end(), x->begin() + g * s.head_stride + i * s.row_stride);
      }
    }
    if (s.dtype == DType::float32) {
      floats.push_back(std::move(x));
      return floats.back()->data();
    }
    if (is_code(s.dtype)) {
      const bool fp8 = s.dtype == DType::fp8;
      auto code = std::make_unique<std::vector<std::int8_t>>(x->size(), fp8 ? INT8_MAX : INT8_MIN);
      auto scales = std::make_unique<std::vector<float>>();
      for (std::int64_t g = 0; g < heads; ++g) {
        scales->push_back(0.01f + 0.02f * static_cast<float>(uniform(random, 0, 100)) / 100.0f);
        for (std::int64_t i = 0; i < s.length; ++i) {
          for (std::int64_t c = 0; c < d; ++c) {
            const auto at = static_cast<std::size_t>(g * s.head_stride + i * s.row_stride + c);
            const float units = (*x)[at] / scales->back();
            (*code)[at] = static_cast<std::int8_t>(
                fp8 ? nearest_fp8(units) : std::lround(std::clamp(units, -127.0f, 127.0f)));
          }
        }
      }
      codes.push_back(std::move(code));
      floats.push_back(std::move(scales));
      scale = floats.back()->data();
      return codes.back()->data();
    }
    auto h = std::make_unique<std::vector<std::uint16_t>>(x->size());
    for (std::size_t i = 0; i < x->size(); ++i) {
      (*h)[i] = s.dtype == DType::float16 ? to_float16((*x)[i]) : to_bfloat16((*x)[i]);
    }
    halves.push_back(std::move(h));
    return halves.back()->data();
  }
};

/// Channel c of token i of kv head g of a segment's keys or values, decoded.
inline double element(const KvSegment& s, bool value, std::int64_t g, std::int64_t i,
                      std::int64_t c) {
  const void* base = value ? s.value : s.key;
  const bool own = value && s.value_row_stride > 0;
  const std::int64_t at = (g - s.first_head) * (own ? s.value_head_stride : s.head_stride) +
                          i * (own ? s.value_row_stride : s.row_stride) + c;
  switch (s.dtype) {
    case DType::float32:
      return static_cast<const float*>(base)[at];
    case DType::bfloat16:
      return from_bfloat16(static_cast<const std::uint16_t*>(base)[at]);
    case DType::float16:
      return from_float16(static_cast<const std::uint16_t*>(base)[at]);
    case DType::int8:
    case DType::fp8:
      break;
  }
  const float* scale = value ? s.value_scale : s.key_scale;
  const double number = s.dtype == DType::fp8
                            ? fp8_number(static_cast<const std::uint8_t*>(base)[at])
                            : static_cast<const std::int8_t*>(base)[at];
  return static_cast<double>(scale[g - s.first_head]) * number;
}

struct Attended {
  std::vector<float> out, lse;
  std::vector<std::vector<float>> column_sums;  // added to what is here
  std::vector<double> segment_mass;             // likewise
  std::vector<float> weighted_mass;
};

/// Element (i, h, c) of queries or outputs where they lie.
inline double element(const TensorView& view, std::int64_t i, std::int64_t h, std::int64_t c) {
  const void* row = view.at(i, h);
  if (view.dtype == DType::float32) return static_cast<const float*>(row)[c];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row)[c];
  return view.dtype == DType::float16 ? from_float16(bits) : from_bfloat16(bits);
}

inline std::vector<double> row_of(const TensorView& view, std::int64_t i, std::int64_t h) {
  std::vector<double> x;
  for (std::int64_t c = 0; view.data != nullptr && c < view.sizes.dim; ++c)
    x.push_back(element(view, i, h, c));
  return x;
}

/// Rows of random elements in an array of NaN, for rows with any strides and dtype.
struct RowStore {
  std::vector<float> wide;
  std::vector<std::uint16_t> narrow;

  /// An array of `size` elements, all `fill`.
  void* make(std::int64_t size, DType dtype, float fill) {
    if (dtype == DType::float32) {
      wide.assign(static_cast<std::size_t>(size), fill);
      return wide.data();
    }
    const std::uint16_t bits = dtype == DType::float16 ? to_float16(fill) : to_bfloat16(fill);
    narrow.assign(static_cast<std::size_t>(size), bits);
    return narrow.data();
  }
  TensorView random(Random& random, std::int64_t n, std::int64_t heads, std::int64_t d, DType dtype,
                    std::int64_t row_stride, std::int64_t head_stride) {
    const std::int64_t size = (n - 1) * row_stride + (heads - 1) * head_stride + d;
    void* data = make(size, dtype, std::numeric_limits<float>::quiet_NaN());
    const MutableTensorView rows(data, dtype, {n, heads, d}, {row_stride, head_stride});
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::vector<float> x = normal(random, d);
        for (std::int64_t c = 0; c < d; ++c) {
          if (dtype == DType::float32) {
            static_cast<float*>(rows.at(i, h))[c] = x[static_cast<std::size_t>(c)];
          } else {
            static_cast<std::uint16_t*>(rows.at(i, h))[c] =
                dtype == DType::float16 ? to_float16(x[static_cast<std::size_t>(c)])
                                        : to_bfloat16(x[static_cast<std::size_t>(c)]);
          }
        }
      }
    }
    return rows;
  }
};

/// Largest relative error of rounding to a dtype.
inline double rounding_of(DType dtype) {
  return dtype == DType::float32 ? 6e-8 : dtype == DType::float16 ? 4.9e-4 : 3.95e-3;
}

/// Which column sums to ask for: one set for all lists, one for each list.
enum class ColumnSets { none, shared, each_list };

/// The definition: for each query and head a list of all keys it sees, one softmax, one sum.
inline Attended attend_reference(const AttendShape& shape, const AttendInput& input, double before,
                                 ColumnSets sets = ColumnSets::shared) {
  const std::int64_t n = shape.n_queries, heads = shape.n_heads, d = shape.head_dim;
  const std::int64_t group = heads / shape.n_kv_heads;
  const std::int64_t width = shape.value_dim > 0 ? shape.value_dim : d;
  const auto lists = static_cast<std::int64_t>(input.segments.size());
  const std::int64_t list_heads = heads / lists;
  const double scale = shape.scale == 0.0f ? 1.0 / std::sqrt(static_cast<double>(d)) : shape.scale;
  Attended result;
  result.out.assign(static_cast<std::size_t>(n * heads * width), 0.0f);
  result.lse.assign(static_cast<std::size_t>(n * heads), 0.0f);
  result.weighted_mass.assign(static_cast<std::size_t>(n * heads), 0.0f);
  std::vector<std::vector<double>> columns;
  std::vector<std::size_t> first_column, first_segment;  // of each list
  std::size_t segments = 0;
  for (const auto& list : input.segments) {
    first_column.push_back(sets == ColumnSets::shared ? 0 : columns.size());
    first_segment.push_back(segments);
    segments += list.size();
    if (sets == ColumnSets::none || (sets == ColumnSets::shared && first_column.size() > 1))
      continue;
    for (const KvSegment& s : list) {
      if (s.position != Position::relative) continue;
      const std::int64_t columns_of = sets == ColumnSets::shared ? heads : list_heads;
      columns.emplace_back(static_cast<std::size_t>(s.length * columns_of), before);
    }
  }
  result.segment_mass.assign(segments * static_cast<std::size_t>(list_heads), before);
  struct Seen {
    const KvSegment* segment;
    std::int64_t token, number, relative;
    double score;
  };
  std::vector<Seen> seen;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t g = h / group, p = shape.first_position + i;
      const std::int64_t l = h / list_heads;
      const auto list = input.segments[static_cast<std::size_t>(l)];
      const auto q_relative = row_of(input.q_relative, i, h);
      const auto q_fixed = row_of(input.q_fixed, i, h);
      seen.clear();
      std::int64_t relative = -1;
      double max = -std::numeric_limits<double>::infinity();
      for (const KvSegment& s : list) {
        const bool local = s.position == Position::relative;
        relative += local;
        for (std::int64_t t = 0; t < s.length; ++t) {
          const std::int64_t distance = p - (s.first_token + t);
          if (local ? distance < 0 || distance >= shape.n_local : distance < shape.n_local)
            continue;
          const std::vector<double>& row = local ? q_relative : q_fixed;
          double dot = 0.0;
          for (std::int64_t c = 0; c < d; ++c) dot += row[c] * element(s, false, g, t, c);
          double score = dot * scale;
          if (shape.softcap > 0.0f) score = shape.softcap * std::tanh(score / shape.softcap);
          seen.push_back({&s, t, &s - list.data(), local ? relative : -1, score});
          max = std::max(max, score);
        }
      }
      double sum = 0.0, weighted = 0.0;
      std::vector<double> beside;  // what takes part and gives no value
      if (input.other_lse != nullptr) beside.push_back(input.other_lse[i * heads + h]);
      if (input.sink_logits != nullptr) beside.push_back(input.sink_logits[h]);
      for (const double x : beside) max = std::max(max, x);
      for (const Seen& k : seen) sum += std::exp(k.score - max);
      for (const double x : beside)
        if (std::isfinite(max)) sum += std::exp(x - max);
      result.lse[i * heads + h] = static_cast<float>(max + std::log(sum));
      std::vector<double> out(static_cast<std::size_t>(width), 0.0);
      for (const Seen& k : seen) {
        const double probability = std::exp(k.score - max) / sum;
        const double weight = k.segment->value_weight;
        for (std::int64_t c = 0; c < width; ++c) {
          out[c] += probability * weight * element(*k.segment, true, g, k.token, c);
        }
        weighted += probability * weight;
        const std::size_t segment = first_segment[l] + static_cast<std::size_t>(k.number);
        result.segment_mass[segment * list_heads + h % list_heads] += probability;
        if (k.relative < 0 || sets == ColumnSets::none) continue;
        std::vector<double>& column = columns[first_column[l] + k.relative];
        if (sets == ColumnSets::shared) {
          column[k.token * heads + h] += probability;
        } else {
          column[k.token * list_heads + h % list_heads] += probability;
        }
      }
      result.weighted_mass[i * heads + h] = static_cast<float>(weighted);
      for (std::int64_t c = 0; c < width; ++c) {
        result.out[(i * heads + h) * width + c] = static_cast<float>(out[c]);
      }
    }
  }
  for (const auto& c : columns) result.column_sums.emplace_back(c.begin(), c.end());
  return result;
}

/// attend() into fresh arrays whose contents before are `before` (what is added to) and garbage.
inline Attended run_attend(const AttendShape& shape, const AttendInput& input, float before,
                           AttendWorkspace& workspace, ColumnSets sets = ColumnSets::shared,
                           bool masses = true) {
  Attended result;
  const float garbage = 1.0e30f;
  const auto rows = static_cast<std::size_t>(shape.n_queries * shape.n_heads);
  const auto lists = static_cast<std::int64_t>(input.segments.size());
  result.out.assign(
      rows * static_cast<std::size_t>(shape.value_dim > 0 ? shape.value_dim : shape.head_dim),
      garbage);
  result.lse.assign(rows, garbage);
  std::size_t segments = 0;
  for (const auto& list : input.segments) {
    segments += list.size();
    const bool first = &list == input.segments.data();
    if (sets == ColumnSets::none || (sets == ColumnSets::shared && !first)) continue;
    const std::int64_t width = shape.n_heads / (sets == ColumnSets::shared ? 1 : lists);
    for (const KvSegment& s : list) {
      if (s.position != Position::relative) continue;
      result.column_sums.emplace_back(static_cast<std::size_t>(s.length * width), before);
    }
  }
  std::vector<float*> columns;
  for (auto& c : result.column_sums) columns.push_back(c.data());
  AttendOutput output;
  output.out = {result.out.data(), shape.of_outputs()};
  output.lse = result.lse.data();
  output.column_sums = columns;
  if (masses) {
    result.segment_mass.assign(segments * static_cast<std::size_t>(shape.n_heads / lists), before);
    result.weighted_mass.assign(rows, garbage);
    output.segment_mass = result.segment_mass.data();
    output.weighted_mass = result.weighted_mass.data();
  }
  attend(shape, input, output, workspace);
  return result;
}

/// Tokens [begin, end) of a segment.
inline KvSegment slice(const KvSegment& s, std::int64_t begin, std::int64_t end) {
  KvSegment part = s;
  const auto bytes = [&](const void* data, std::int64_t stride) -> const void* {
    return static_cast<const char*>(data) + begin * stride * size_of(s.dtype);
  };
  part.key = bytes(s.key, s.row_stride);
  part.value = bytes(s.value, s.value_row_stride > 0 ? s.value_row_stride : s.row_stride);
  part.first_token = s.first_token + begin;
  part.length = end - begin;
  return part;
}

/// The state that a call of attend left.
inline AttentionState state_of(Attended& a, std::int64_t width) {
  return {static_cast<std::int64_t>(a.lse.size()), width, a.out.data(), a.lse.data(),
          a.weighted_mass.data()};
}

inline bool near(double a, double b, double relative) {
  return std::abs(a - b) <= relative * std::abs(b);
}

/// Largest |a - b| / (1 + |b|); infinity if only one of two is finite, or the sizes differ.
template <class T>
double difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double e = std::abs(static_cast<double>(a[i]) - b[i]) / (1.0 + std::abs(b[i]));
    worst = std::max(worst, std::isfinite(e) ? e : std::numeric_limits<double>::infinity());
  }
  return worst;
}

}  // namespace episodic::testing
