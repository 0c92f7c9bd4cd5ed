// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call of segmented_attention with random inputs, and what comes of it in float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/device.hpp"
#include "support/fp8_reference.hpp"

namespace attention_test {

using episodic::DType;
using episodic::kernels::attention_workspace_bytes;
using episodic::kernels::AttentionParams;
using episodic::kernels::KvRow;
using episodic::kernels::segmented_attention;
using episodic::kernels::segmented_attention_batch;
using episodic_test::DeviceArray;

inline constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

/// A call: sizes, and what is random in it.
struct Case {
  std::int64_t n = 1, group = 1, kv_heads = 2, d = 64, n_local = 40;
  std::int64_t first_position = 100;
  std::int64_t far = 0;  ///< rows of the first list, all tokens before the window's end
  std::int64_t rotary_dim = 0;
  std::int64_t max_rows = -1;  ///< -1: as many as there are
  std::int64_t lists = 1;      ///< of far rows, each of kv_heads / lists heads
  bool weights = false;
  bool far_unseen = false;  ///< all far tokens are still in every query's window
  float scale = 0.0f, soft_cap = 0.0f;
  bool interleaved = false;
  std::int64_t value_d = 0;  ///< channels of values; 0: d
  std::int64_t spare = 0;    ///< slots of the ring beyond what is needed
  std::int64_t codes = 0;    ///< of a list's rows, the last ones: codes and their scales
  DType code = DType::int8;
  bool large_codes = false;  ///< values of fp8 are 65536, which float16 has not
  float sigma = 1.0f;        ///< of the queries
  bool sinks = false;        ///< of the heads: none of the first, much of the last
};

struct Result {
  std::vector<float> out, lse, column_sums;
};

inline double rounded(double x, DType dtype) {
  std::vector<float> one{static_cast<float>(x)};
  static_cast<void>(episodic_test::stored(one, dtype));
  return static_cast<double>(one[0]);
}

/// The inputs of a call, as they are stored, and the float64 reference over them.
class Problem {
 public:
  Problem(const Case& c, DType dtype, unsigned seed) : c_(c), dtype_(dtype), random_(seed) {
    heads_ = c.kv_heads * c.group;
    e_ = c.value_d > 0 ? c.value_d : c.d;
    // a row's keys and values head by head, or all keys and then all values
    const bool alike = e_ == c.d;
    far_row_ = c.kv_heads * (c.d + e_);
    head_stride_ = alike ? 2 * c.d : c.d;
    values_at_ = alike ? c.d : c.kv_heads / c.lists * c.d;
    capacity_ = c.n_local + c.n - 1 + c.spare;
    ring_stride_ = capacity_ * c.d + 16;
    value_ring_stride_ = alike ? ring_stride_ : capacity_ * e_ + 24;
    q_stride_ = heads_ * c.d + 8;
    q = episodic_test::normal_floats(size(c.n * q_stride_), random_, c.sigma);
    q_bytes_ = episodic_test::stored(q, dtype);
    key_ = episodic_test::normal_floats(size(c.kv_heads * ring_stride_), random_);
    value_ = episodic_test::normal_floats(size(c.kv_heads * value_ring_stride_), random_);
    // what lies in slots of no token must not be read
    for (std::int64_t g = 0; g < c.kv_heads; ++g)
      for (std::int64_t s = 0; s < capacity_; ++s) {
        bool used = false;
        for (std::int64_t t = first_local(); t < c.first_position + c.n; ++t)
          used = used || t % capacity_ == s;
        if (used) continue;
        constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();
        std::fill_n(key_.begin() + g * ring_stride_ + s * c.d, c.d, kNothing);
        std::fill_n(value_.begin() + g * value_ring_stride_ + s * e_, e_, kNothing);
      }
    key_bytes_ = episodic_test::stored(key_, dtype);
    value_bytes_ = episodic_test::stored(value_, dtype);
    make_far();
    make_angles();
    if (c.sinks) {
      sinks_ = episodic_test::normal_floats(size(heads_), random_, 2.0f);
      sinks_.back() = 30.0f;
      sinks_.front() = -std::numeric_limits<float>::infinity();
    }
  }

  std::int64_t first_local() const {
    return std::max<std::int64_t>(0, c_.first_position + 1 - c_.n_local);
  }
  std::int64_t window() const { return c_.first_position + c_.n - first_local(); }
  std::int64_t heads() const { return heads_; }
  std::int64_t max_rows() const { return max_rows_; }
  /// Of far rows of each list.
  const std::vector<std::int32_t>& counts() const { return counts_; }

  /// `f` changes the parameters before the call, `then` makes more calls behind it.
  template <class F, class Then>
  Result run(F&& f, Then&& then) const {
    const DeviceArray<unsigned char> d_q(q_bytes_), d_key(key_bytes_), d_value(value_bytes_),
        d_far(far_bytes_), d_codes(code_bytes_),
        d_out(size(c_.n * heads_ * e_ * episodic::size_of(dtype_)));
    const DeviceArray<std::int64_t> d_first(std::vector<std::int64_t>{c_.first_position});
    const DeviceArray<float> d_qc(query_cos_), d_qs(query_sin_), d_fc(fixed_cos_), d_fs(fixed_sin_);
    const DeviceArray<float> d_lse(size(c_.n * heads_));
    std::vector<float> untouched(size((c_.n_local + c_.n - 1) * heads_), -7.0f);
    const DeviceArray<float> d_columns(untouched);
    const DeviceArray<float> d_scales(scales_), d_sinks(sinks_);
    std::vector<KvRow> rows = rows_;
    std::vector<const float*> row_scales;
    for (KvRow& row : rows) {
      const std::int64_t scales = scales_at_[row_scales.size()];
      row_scales.push_back(scales >= 0 ? d_scales.data() + scales : nullptr);
      if (!row.key) continue;
      if (scales >= 0) {
        const auto offset =
            static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row.key)) - 1;
        row.key = d_codes.data() + offset;
        row.value = d_codes.data() + offset + values_at_;
        continue;
      }
      const auto element = static_cast<std::int64_t>(episodic::size_of(dtype_));
      const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row.key)) - 1;
      row.key = d_far.data() + at * element;
      row.value = d_far.data() + (at + values_at_) * element;
    }
    const DeviceArray<KvRow> d_rows(rows);
    const DeviceArray<std::int32_t> d_counts(counts_);
    const DeviceArray<const float*> d_row_scales(row_scales);
    AttentionParams p;
    p.dtype = dtype_;
    p.n_queries = c_.n;
    p.n_heads = heads_;
    p.n_kv_heads = c_.kv_heads;
    p.head_dim = c_.d;
    p.value_dim = c_.value_d;
    p.n_local = c_.n_local;
    p.scale = c_.scale;
    p.soft_cap = c_.soft_cap;
    if (c_.sinks) p.maybe_sink_logits = d_sinks.data();
    p.interleaved = c_.interleaved;
    p.q = d_q.data();
    p.q_row_stride = q_stride_;
    p.first_position = d_first.data();
    p.rotary_dim = c_.rotary_dim;
    p.query_cos = d_qc.data();
    p.query_sin = d_qs.data();
    p.fixed_cos = d_fc.data();
    p.fixed_sin = d_fs.data();
    p.rows = d_rows.data();
    p.n_rows = d_counts.data();
    p.max_rows = max_rows_;
    p.n_lists = c_.lists;
    p.max_code_rows = std::min(c_.codes > 0 ? c_.codes + 3 : 0, max_rows_);  // room to spare
    p.row_scales = c_.codes > 0 ? d_row_scales.data() : nullptr;
    p.code_dtype = c_.code;
    p.local_key = d_key.data();
    p.local_value = d_value.data();
    p.ring_capacity = capacity_;
    p.ring_head_stride = ring_stride_;
    p.value_head_stride = c_.value_d > 0 ? value_ring_stride_ : 0;
    p.out = d_out.data();
    p.maybe_lse = d_lse.data();
    p.maybe_column_sums = d_columns.data();
    p.workspace_bytes = attention_workspace_bytes(p);
    REQUIRE(p.workspace_bytes > 0);
    const DeviceArray<unsigned char> d_workspace(p.workspace_bytes);
    p.workspace = d_workspace.data();
    const DeviceArray<std::uint32_t> d_arrived(
        std::vector<std::uint32_t>(size(episodic::kernels::kAttentionCounters * c_.kv_heads), 0));
    p.maybe_arrived = d_arrived.data();
    f(p);
    const cudaError_t error = segmented_attention(p, nullptr);
    REQUIRE(error == cudaSuccess);
    then(p);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    for (const std::uint32_t count : d_arrived.host()) REQUIRE(count == 0);  // for the next call
    return {episodic_test::floats(d_out.host(), dtype_), d_lse.host(), d_columns.host()};
  }
  template <class F>
  Result run(F&& f) const {
    return run(f, [](const AttentionParams&) {});
  }
  Result run() const {
    return run([](AttentionParams&) {});
  }

  /// In float64; queries are rounded once more after they were rotated, as the kernels must.
  Result reference() const {
    Result result;
    result.out.assign(size(c_.n * heads_ * e_), 0.0f);
    result.lse.assign(size(c_.n * heads_), 0.0f);
    std::vector<double> columns(size(window() * heads_), 0.0);
    const double scale = c_.scale == 0.0f ? 1.0 / std::sqrt(static_cast<double>(c_.d))
                                          : static_cast<double>(c_.scale);
    struct Seen {
      double score, weight;
      const float* value;
      std::int64_t local, row;  // -1: not one
    };
    far_mass.assign(size(c_.n * heads_), 0.0);
    row_mass.assign(rows_.size(), 0.0);
    for (std::int64_t i = 0; i < c_.n; ++i)
      for (std::int64_t h = 0; h < heads_; ++h) {
        const std::int64_t g = h / c_.group, p = c_.first_position + i;
        const std::vector<double> fixed = rotated(i, h, false), own = rotated(i, h, true);
        std::vector<Seen> seen;
        const auto add = [&](const std::vector<double>& query, const float* key, const float* value,
                             double weight, std::int64_t local, std::int64_t row) {
          double dot = 0.0;
          for (std::int64_t e = 0; e < c_.d; ++e)
            dot += query[size(e)] * static_cast<double>(key[e]);
          const double cap = static_cast<double>(c_.soft_cap);
          const double score = cap > 0 ? cap * std::tanh(dot * scale / cap) : dot * scale;
          seen.push_back({score, weight, value, local, row});
        };
        const std::int64_t of_list = c_.kv_heads / c_.lists, list = g / of_list;
        for (std::int64_t r = 0; r < counts_[size(list)]; ++r) {
          const KvRow& row = rows_[size(list * max_rows_ + r)];
          if (p - row.token < c_.n_local) continue;
          const float* first = far_.data() + (reinterpret_cast<std::uintptr_t>(row.key) - 1);
          add(fixed, first + far_place(0, g % of_list), first + far_place(1, g % of_list),
              static_cast<double>(row.value_weight), -1, list * max_rows_ + r);
        }
        for (std::int64_t t = std::max<std::int64_t>(0, p - c_.n_local + 1); t <= p; ++t) {
          add(own, key_.data() + g * ring_stride_ + t % capacity_ * c_.d,
              value_.data() + g * value_ring_stride_ + t % capacity_ * e_, 1.0, t - first_local(),
              -1);
        }
        double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
        if (c_.sinks) max = sinks_[size(h)];
        for (const Seen& s : seen) max = std::max(max, s.score);
        for (const Seen& s : seen) sum += std::exp(s.score - max);
        if (c_.sinks) sum += std::exp(sinks_[size(h)] - max);
        result.lse[size(i * heads_ + h)] = static_cast<float>(max + std::log(sum));
        std::vector<double> out(size(e_), 0.0);
        for (const Seen& s : seen) {
          const double probability = std::exp(s.score - max) / sum;
          for (std::int64_t e = 0; e < e_; ++e)
            out[size(e)] += probability * s.weight * static_cast<double>(s.value[e]);
          if (s.local >= 0)
            columns[size(s.local * heads_ + h)] += probability;
          else
            far_mass[size(i * heads_ + h)] += probability;
          if (s.row >= 0) row_mass[size(s.row)] += probability;
        }
        for (std::int64_t e = 0; e < e_; ++e)
          result.out[size((i * heads_ + h) * e_ + e)] = static_cast<float>(out[size(e)]);
      }
    result.column_sums.assign(columns.begin(), columns.end());
    result.column_sums.resize(size((c_.n_local + c_.n - 1) * heads_), -7.0f);
    return result;
  }

  /// The rows of codes as rows of dtype with the same elements.
  void widen_codes() {
    far_bytes_ = episodic_test::stored(far_, dtype_);
    scales_at_.assign(scales_at_.size(), -1);
    c_.codes = 0;
  }

  std::vector<float> q;
  mutable std::vector<double> far_mass;  ///< [n, H] of the last reference
  mutable std::vector<double> row_mass;  ///< [lists, max_rows] of it, from the list's heads

  void set_query(std::int64_t i, std::int64_t h, float x) {
    for (std::int64_t e = 0; e < c_.d; ++e) q[size(i * q_stride_ + h * c_.d + e)] = x;
    q_bytes_ = episodic_test::stored(q, dtype_);
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  /// Rows lie anywhere, heads of a row `head_stride` apart; every third token is still in the
  /// window of the first queries. Keys and values of a row are neighbours; `key` holds its offset
  /// plus 1 until there is memory.
  void make_far() {
    const std::int64_t lists = c_.lists;
    max_rows_ = c_.max_rows >= 0 ? c_.max_rows : c_.far;
    rows_.assign(size(lists * max_rows_), KvRow{});
    far_ = episodic_test::normal_floats(size(lists * c_.far * far_row_), random_);
    far_bytes_ = episodic_test::stored(far_, dtype_);
    for (std::int64_t list = 0; list < lists; ++list) {
      const std::int64_t count = std::max<std::int64_t>(0, c_.far - 5 * list);
      counts_.push_back(static_cast<std::int32_t>(count));
      std::vector<std::int64_t> places(size(c_.far));
      for (std::int64_t r = 0; r < c_.far; ++r) places[size(r)] = r;
      std::shuffle(places.begin(), places.end(), random_);
      for (std::int64_t r = 0; r < count; ++r) {
        KvRow& row = rows_[size(list * max_rows_ + r)];
        const std::int64_t at = (list * c_.far + places[size(r)]) * far_row_;
        row.key = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(at + 1));
        row.head_stride = static_cast<std::int32_t>(head_stride_);
        const std::int64_t left =
            c_.first_position + c_.n - c_.n_local;  // the last query sees < left
        row.token = r % 3 == 0 ? left - 1 - static_cast<std::int64_t>(random_() % size(c_.n))
                               : left - c_.n - static_cast<std::int64_t>(random_() % 1000);
        if (c_.far_unseen) row.token += 1000 + 2 * c_.n;
        if (c_.weights) row.value_weight = 0.25f + 0.5f * static_cast<float>(random_() % 4);
      }
    }
    scales_at_.assign(rows_.size(), -1);
    // of codes that no row has
    code_bytes_.assign(size(lists * c_.far * far_row_), c_.code == DType::fp8 ? 0x7f : 0x80);
    for (std::int64_t list = 0; list < lists; ++list)
      for (std::int64_t r = std::max<std::int64_t>(0, counts_[size(list)] - c_.codes);
           r < counts_[size(list)]; ++r)
        make_codes(list * max_rows_ + r);
  }

  /// Where the keys (side 0) or values of a row's head begin behind the row.
  std::int64_t far_place(std::int64_t side, std::int64_t head) const {
    return side == 0 ? head * head_stride_ : values_at_ + head * (head_stride_ / c_.d) * e_;
  }

  /// Row number `at` becomes codes, and what it was of dtype is nothing to be read.
  void make_codes(std::int64_t at) {
    const std::int64_t heads = c_.kv_heads / c_.lists;
    scales_at_[size(at)] = static_cast<std::int64_t>(scales_.size());
    const bool fp8 = c_.code == DType::fp8;
    std::normal_distribution<float> code(0.0f, 40.0f);
    const std::int64_t first =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows_[size(at)].key)) - 1;
    for (const std::int64_t side : {0, 1})
      for (std::int64_t j = 0; j < heads; ++j) {
        float scale = random_() % 20 == 0 ? 0.0f
                      : fp8               ? std::ldexp(1.0f, -7 + static_cast<int>(random_() % 3))
                            : 0.01f + 0.01f * static_cast<float>(random_() % 7) / 7.0f;
        const bool large = c_.large_codes && side == 1;
        if (large) scale = 256.0f;
        scales_.push_back(scale);
        for (std::int64_t e = 0; e < (side == 0 ? c_.d : e_); ++e) {
          const std::int64_t place = first + far_place(side, j) + e;
          const float drawn = large ? 256.0f : std::clamp(code(random_), -127.0f, 127.0f);
          const std::uint8_t byte =
              fp8 ? episodic::testing::nearest_fp8(static_cast<double>(drawn))
                  : static_cast<std::uint8_t>(static_cast<std::int8_t>(drawn));
          code_bytes_[size(place)] = byte;
          const double x = fp8 ? episodic::testing::fp8_number(byte)
                               : static_cast<double>(static_cast<std::int8_t>(byte));
          const double most = dtype_ == DType::float16 ? 65504.0 : 1e30;
          const double wide = static_cast<double>(static_cast<float>(x) * scale);
          far_[size(place)] = static_cast<float>(rounded(std::clamp(wide, -most, most), dtype_));
          for (std::int64_t b = 0; b < episodic::size_of(dtype_); ++b)
            far_bytes_[size(place * episodic::size_of(dtype_) + b)] = 0xff;  // NaN
        }
      }
  }

  void make_angles() {
    const std::int64_t half = c_.rotary_dim / 2;
    const auto fill = [&](std::vector<float>& cosine, std::vector<float>& sine, double position) {
      for (std::int64_t e = 0; e < half; ++e) {
        const double angle =
            position * std::pow(10000.0, -static_cast<double>(e) / static_cast<double>(half));
        cosine.push_back(static_cast<float>(1.1 * std::cos(angle)));
        sine.push_back(static_cast<float>(1.1 * std::sin(angle)));
      }
    };
    for (std::int64_t i = 0; i < c_.n; ++i)
      fill(query_cos_, query_sin_, static_cast<double>(c_.first_position + i));
    fill(fixed_cos_, fixed_sin_, static_cast<double>(c_.n_local - 1));
  }

  std::vector<double> rotated(std::int64_t i, std::int64_t h, bool own) const {
    std::vector<double> x(size(c_.d));
    const float* from = q.data() + i * q_stride_ + h * c_.d;
    const std::int64_t half = c_.rotary_dim / 2;
    const float* cosine = own ? query_cos_.data() + i * half : fixed_cos_.data();
    const float* sine = own ? query_sin_.data() + i * half : fixed_sin_.data();
    for (std::int64_t e = 0; e < c_.d; ++e) {
      float y = from[e];
      if (c_.interleaved && e < c_.rotary_dim)
        y = std::fma(from[e], cosine[e / 2], (e % 2 == 0 ? -1 : 1) * (from[e ^ 1] * sine[e / 2]));
      else if (e < half)
        y = std::fma(from[e], cosine[e], -(from[e + half] * sine[e]));
      else if (e < c_.rotary_dim)
        y = std::fma(from[e], cosine[e - half], from[e - half] * sine[e - half]);
      x[size(e)] = rounded(static_cast<double>(y), dtype_);
    }
    return x;
  }

  Case c_;
  DType dtype_;
  std::mt19937 random_;
  std::int64_t heads_, capacity_, ring_stride_, q_stride_, max_rows_ = 0;
  std::int64_t e_, far_row_, head_stride_, values_at_, value_ring_stride_;
  std::vector<float> key_, value_, far_;
  std::vector<unsigned char> q_bytes_, key_bytes_, value_bytes_, far_bytes_, code_bytes_;
  std::vector<float> scales_;            // of rows of codes, one after the other
  std::vector<std::int64_t> scales_at_;  // of each row; -1: it is none of them
  std::vector<float> sinks_;
  std::vector<KvRow> rows_;
  std::vector<std::int32_t> counts_;
  std::vector<float> query_cos_, query_sin_, fixed_cos_, fixed_sin_;
};

/// Largest |a - b| / (1 + |b|); infinity if only one of two is finite, or the sizes differ.
inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double e = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) /
                     (1.0 + std::abs(static_cast<double>(b[i])));
    worst = std::max(worst, std::isfinite(e) ? e : std::numeric_limits<double>::infinity());
  }
  return worst;
}

inline Case of(std::int64_t n, std::int64_t group, std::int64_t d, std::int64_t far) {
  Case c;
  c.n = n;
  c.group = group;
  c.d = d;
  c.far = far;
  c.rotary_dim = d / 16 * 16;
  c.weights = far > 0;
  return c;
}

}  // namespace attention_test
