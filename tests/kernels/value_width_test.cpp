// SPDX-License-Identifier: Apache-2.0
// Values of another width than keys through all that a step does with them: into the window, out of
// it into blocks, far rows over sinks, pending tokens and blocks, and attention over all of it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "episodic/base/rules/fp8.hpp"
#include "kernels/attention.hpp"
#include "kernels/copies.hpp"
#include "kernels/device.hpp"
#include "kernels/rows.hpp"
#include "kernels/window.hpp"

namespace value_width_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;
using Bytes = std::vector<unsigned char>;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

struct Case {
  std::int64_t d, e, group, n;  // n: queries
  std::int64_t lanes;
  bool pages;
  DType block_dtype;  // int8 and fp8 alone are looked at: else that of keys and values
};

constexpr std::int64_t kKvHeads = 4, kInit = 3, kLocal = 20, kCapacity = 61, kRotary = 16;
constexpr std::int64_t kBefore = 70;  // tokens before the queries'
const std::vector<std::int64_t> kSteps = {1, 16, 28, 25};
constexpr std::size_t kClosing = 2;  // the step behind which events are closed
const std::vector<EventRange> kEvents = {{3, 10}, {10, 11}, {11, 31}};
const std::vector<std::vector<DeviceEventId>> kRecalled = {{0, 2}, {1, 2}};  // of a lane
constexpr float kWeights[] = {0.5f, 1.0f, 0.75f};                            // of values

class Problem {
 public:
  Problem(const Case& c, DType dtype) : c_(c), dtype_(dtype), element_(episodic::size_of(dtype)) {
    std::mt19937 random(static_cast<unsigned>(c.d * 1000 + c.e));
    const std::int64_t tokens = kBefore + c.n;
    k_ = episodic_test::normal_floats(size(tokens * kKvHeads * c.d), random);
    v_ = episodic_test::normal_floats(size(tokens * kKvHeads * c.e), random);
    q_ = episodic_test::normal_floats(size(c.n * heads() * c.d), random);
    k_bytes_ = episodic_test::stored(k_, dtype);
    v_bytes_ = episodic_test::stored(v_, dtype);
    q_bytes_ = episodic_test::stored(q_, dtype);
    for (std::int64_t i = 0; i < kRotary / 2; ++i)
      frequency_.push_back(std::pow(1000.0, -static_cast<double>(i) / (kRotary / 2)));
    coded_ = episodic::is_code(c.block_dtype);
  }

  std::vector<float> on_device() const {
    // the rings: NaN, so that nothing is read that was not written
    const std::int64_t page = 4, table_size = (kCapacity + page - 1) / page;
    std::vector<std::uint32_t> table;
    for (std::int64_t i = 0; i < table_size; ++i)
      table.push_back(static_cast<std::uint32_t>(2 * (table_size - i)));
    const DeviceArray<std::uint32_t> d_table(table);
    const std::int64_t slots = c_.pages ? page : kCapacity;
    const std::int64_t head_stride = slots * c_.d, value_head_stride = slots * c_.e;
    RingPages pages;
    std::uint32_t value_page_stride = 0;
    if (c_.pages) {
      pages = {d_table.data(), static_cast<std::uint32_t>(kKvHeads * head_stride + 8), 2};
      value_page_stride = static_cast<std::uint32_t>(kKvHeads * value_head_stride + 24);
    }
    const std::int64_t in_pool = c_.pages ? 2 * table_size + 1 : 1;
    const auto nothing = [&](std::int64_t elements) {
      return Bytes(size(elements * element_), 0xff);
    };
    const DeviceArray<unsigned char> ring_key(nothing(in_pool * (kKvHeads * head_stride + 8))),
        ring_rotated(nothing(in_pool * (kKvHeads * head_stride + 8))),
        ring_value(nothing(in_pool * (kKvHeads * value_head_stride + 24))),
        sink_key(nothing(kKvHeads * kInit * c_.d)), sink_value(nothing(kKvHeads * kInit * c_.e));

    const std::int64_t of_lane = kKvHeads / c_.lanes, token_elements = of_lane * (c_.d + c_.e);
    const auto n_events = static_cast<std::int64_t>(kEvents.size());
    const std::int64_t in_events = kEvents.back().end - kEvents.front().start;
    const std::int64_t stored = coded_ ? 1 : element_;
    const DeviceArray<unsigned char> blocks(
        Bytes(size(c_.lanes * in_events * token_elements * stored), 0xff));
    const DeviceArray<float> scales(std::vector<float>(size(c_.lanes * n_events * 2 * of_lane),
                                                       std::numeric_limits<float>::quiet_NaN()));
    std::vector<void*> places;
    for (std::int64_t lane = 0; lane < c_.lanes; ++lane)
      for (const EventRange& event : kEvents)
        places.push_back(blocks.data() + (lane * in_events + event.start - kEvents.front().start) *
                                             token_elements * stored);
    const DeviceArray<void*> d_places(places);

    const DeviceArray<unsigned char> k(k_bytes_), v(v_bytes_), q(q_bytes_);
    const DeviceArray<double> frequency(frequency_);
    std::int64_t first = 0;
    std::vector<std::int64_t> steps = kSteps;
    steps.push_back(c_.n);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{first});
      const DeviceArray<float> cos(size(steps[step] * kRotary / 2)),
          sin(size(steps[step] * kRotary / 2));
      write_angles(frequency, position, steps[step], cos, sin);
      AppendParams p;
      p.dtype = dtype_;
      p.n = steps[step];
      p.n_kv_heads = kKvHeads;
      p.head_dim = c_.d;
      p.value_dim = c_.e;
      p.rotary_dim = kRotary;
      p.first_position = position.data();
      p.k_row_stride = kKvHeads * c_.d;
      p.v_row_stride = kKvHeads * c_.e;
      p.k = k.data() + first * p.k_row_stride * element_;
      p.v = v.data() + first * p.v_row_stride * element_;
      p.cos = cos.data();
      p.sin = sin.data();
      p.ring_key = ring_key.data();
      p.ring_rotated_key = ring_rotated.data();
      p.ring_value = ring_value.data();
      p.ring_capacity = kCapacity;
      p.ring_head_stride = head_stride;
      p.value_head_stride = value_head_stride;
      p.ring_pages = pages;
      p.value_page_stride = value_page_stride;
      p.sink_key = sink_key.data();
      p.sink_value = sink_value.data();
      p.n_init = kInit;
      REQUIRE(append_window(p, nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      first += steps[step];
      if (step != kClosing) continue;

      std::vector<std::int64_t> start, end;
      for (const EventRange& event : kEvents) {
        start.push_back(event.start);
        end.push_back(event.end);
      }
      const DeviceArray<std::int64_t> d_start(start), d_end(end),
          first_id(std::vector<std::int64_t>{0});
      const DeviceArray<std::int32_t> count(
          std::vector<std::int32_t>{static_cast<std::int32_t>(n_events)}),
          not_finite(std::vector<std::int32_t>{0});
      std::vector<EventBlockLayer> layers;
      for (std::int64_t lane = 0; lane < c_.lanes; ++lane)
        layers.push_back({ring_key.data() + lane * of_lane * head_stride * element_,
                          ring_value.data() + lane * of_lane * value_head_stride * element_,
                          scales.data() + lane * n_events * 2 * of_lane});
      const DeviceArray<EventBlockLayer> d_layers(layers);
      EventBlockParams b;
      b.events = {d_start.data(), d_end.data(), count.data(), first_id.data(), n_events};
      b.dtype = dtype_;
      b.block_dtype = coded_ ? c_.block_dtype : dtype_;
      b.n_kv_heads = of_lane;
      b.head_dim = c_.d;
      b.value_dim = c_.e;
      b.layers = d_layers.data();
      b.n_layers = c_.lanes;
      b.ring_capacity = kCapacity;
      b.ring_head_stride = head_stride;
      b.value_head_stride = value_head_stride;
      b.ring_pages = pages;
      b.value_page_stride = value_page_stride;
      b.block = d_places.data();
      b.not_finite = not_finite.data();
      REQUIRE(event_to_block(b, nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      REQUIRE(not_finite.host()[0] == 0);
    }
    REQUIRE(first == kBefore + c_.n);

    const std::int64_t max_rows = 90, list_capacity = 2;
    const DeviceArray<std::int64_t> before(std::vector<std::int64_t>{kBefore}),
        event_count(std::vector<std::int64_t>{n_events});
    const DeviceArray<EventRange> events(kEvents);
    std::vector<DeviceEventId> recalled;
    std::vector<std::int32_t> n_recalled;
    std::vector<float> weights;
    for (std::int64_t lane = 0; lane < c_.lanes; ++lane) {
      const std::vector<DeviceEventId>& own = kRecalled[size(lane)];
      recalled.insert(recalled.end(), own.begin(), own.end());
      n_recalled.insert(n_recalled.end(), {static_cast<std::int32_t>(own.size()), -1, -1});
      weights.insert(weights.end(), std::begin(kWeights), std::end(kWeights));
    }
    const DeviceArray<DeviceEventId> d_recalled(recalled);
    const DeviceArray<std::int32_t> d_n_recalled(n_recalled), n_rows(size(c_.lanes)),
        overflow(std::vector<std::int32_t>{0});
    const DeviceArray<float> d_weights(weights);
    const DeviceArray<KvRow> rows(size(c_.lanes * max_rows));
    const DeviceArray<const float*> row_scales(size(c_.lanes * max_rows));
    RowsParams r;
    r.dtype = dtype_;
    r.n_kv_heads = kKvHeads;
    r.head_dim = c_.d;
    r.value_dim = c_.e;
    r.n_lanes = c_.lanes;
    r.tokens = before.data();
    r.n = c_.n;
    r.n_init = kInit;
    r.n_local = kLocal;
    r.sink_key = sink_key.data();
    r.sink_value = sink_value.data();
    r.ring_key = ring_key.data();
    r.ring_value = ring_value.data();
    r.ring_capacity = kCapacity;
    r.ring_head_stride = head_stride;
    r.value_head_stride = value_head_stride;
    r.ring_pages = pages;
    r.value_page_stride = value_page_stride;
    r.n_events = event_count.data();
    r.events = events.data();
    r.event_block = d_places.data();
    r.maybe_event_scales = coded_ ? scales.data() : nullptr;
    r.maybe_event_weight = d_weights.data();
    r.max_events = n_events;
    r.recalled = d_recalled.data();
    r.n_recalled = d_n_recalled.data();
    r.list_capacity = list_capacity;
    r.rows = rows.data();
    r.row_scales = row_scales.data();
    r.n_rows = n_rows.data();
    r.max_rows = max_rows;
    r.overflow = overflow.data();
    REQUIRE(far_rows(r, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(overflow.host()[0] == 0);

    const DeviceArray<std::int64_t> fixed(std::vector<std::int64_t>{kLocal - 1});
    const DeviceArray<float> cos(size(c_.n * kRotary / 2)), sin(size(c_.n * kRotary / 2)),
        fixed_cos(size(kRotary / 2)), fixed_sin(size(kRotary / 2));
    write_angles(frequency, before, c_.n, cos, sin);
    write_angles(frequency, fixed, 1, fixed_cos, fixed_sin);
    const DeviceArray<unsigned char> out(size(c_.n * heads() * c_.e * element_));
    AttentionParams a;
    a.dtype = dtype_;
    a.n_queries = c_.n;
    a.n_heads = heads();
    a.n_kv_heads = kKvHeads;
    a.head_dim = c_.d;
    a.value_dim = c_.e;
    a.n_local = kLocal;
    a.q = q.data();
    a.q_row_stride = heads() * c_.d;
    a.first_position = before.data();
    a.rotary_dim = kRotary;
    a.query_cos = cos.data();
    a.query_sin = sin.data();
    a.fixed_cos = fixed_cos.data();
    a.fixed_sin = fixed_sin.data();
    a.rows = rows.data();
    a.n_rows = n_rows.data();
    a.max_rows = max_rows;
    a.n_lists = c_.lanes;
    a.max_code_rows = coded_ ? in_events : 0;
    a.code_dtype = coded_ ? c_.block_dtype : DType::int8;
    a.row_scales = coded_ ? row_scales.data() : nullptr;
    a.local_key = ring_rotated.data();
    a.local_value = ring_value.data();
    a.ring_capacity = kCapacity;
    a.ring_head_stride = head_stride;
    a.value_head_stride = value_head_stride;
    a.ring_pages = pages;
    a.value_page_stride = value_page_stride;
    a.out = out.data();
    a.workspace_bytes = attention_workspace_bytes(a);
    const DeviceArray<unsigned char> workspace(a.workspace_bytes);
    a.workspace = workspace.data();
    REQUIRE(segmented_attention(a, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    return episodic_test::floats(out.host(), dtype_);
  }

  /// In float64, of keys, values and queries as they were given.
  std::vector<double> reference() const {
    std::vector<double> result;
    const std::int64_t of_lane = kKvHeads / c_.lanes;
    for (std::int64_t i = 0; i < c_.n; ++i)
      for (std::int64_t h = 0; h < heads(); ++h) {
        const std::int64_t g = h / c_.group, position = kBefore + i;
        const float* const query = &q_[size((i * heads() + h) * c_.d)];
        std::vector<double> score, weight;
        std::vector<std::vector<double>> value;
        const auto see = [&](const std::vector<double>& own, const std::vector<double>& key,
                             std::vector<double> of, double value_weight) {
          double dot = 0.0;
          for (std::size_t c = 0; c < key.size(); ++c) dot += own[c] * key[c];
          score.push_back(dot / std::sqrt(static_cast<double>(c_.d)));
          weight.push_back(value_weight);
          value.push_back(std::move(of));
        };
        const std::vector<double> turned = rotated(query, position),
                                  far = rotated(query, kLocal - 1);
        for (std::int64_t t = 0; t <= position; ++t) {
          const float* const key = &k_[size((t * kKvHeads + g) * c_.d)];
          const float* const own = &v_[size((t * kKvHeads + g) * c_.e)];
          const std::vector<double> plain_key(key, key + c_.d), plain_value(own, own + c_.e);
          if (position - t < kLocal) {
            see(turned, rotated(key, t), plain_value, 1.0);
          } else if (t < kInit || t >= kEvents.back().end) {
            see(far, plain_key, plain_value, 1.0);
          } else {
            for (const DeviceEventId id : kRecalled[size(g / of_lane)]) {
              const EventRange& event = kEvents[size(id)];
              if (t < event.start || t >= event.end) continue;
              see(far, kept(k_, c_.d, g, event, t), kept(v_, c_.e, g, event, t),
                  static_cast<double>(kWeights[id]));
            }
          }
        }
        const double most = *std::max_element(score.begin(), score.end());
        double sum = 0.0;
        std::vector<double> out(size(c_.e), 0.0);
        for (std::size_t j = 0; j < score.size(); ++j) {
          const double p = std::exp(score[j] - most);
          sum += p;
          for (std::size_t c = 0; c < out.size(); ++c) out[c] += p * weight[j] * value[j][c];
        }
        for (const double x : out) result.push_back(x / sum);
      }
    return result;
  }

 private:
  std::int64_t heads() const { return kKvHeads * c_.group; }

  static void write_angles(const DeviceArray<double>& frequency,
                           const DeviceArray<std::int64_t>& position, std::int64_t n,
                           const DeviceArray<float>& cos, const DeviceArray<float>& sin) {
    RotaryAnglesParams p;
    p.n = n;
    p.n_frequencies = kRotary / 2;
    p.first_position = position.data();
    p.inverse_frequency = frequency.data();
    p.cos = cos.data();
    p.sin = sin.data();
    REQUIRE(rotary_angles(p, nullptr) == cudaSuccess);
  }

  std::vector<double> rotated(const float* x, std::int64_t position) const {
    std::vector<double> out(x, x + c_.d);
    constexpr std::size_t half = kRotary / 2;
    for (std::size_t c = 0; c < half; ++c) {
      const double angle = static_cast<double>(position) * frequency_[c];
      const double a = out[c], b = out[c + half];
      out[c] = a * std::cos(angle) - b * std::sin(angle);
      out[c + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
  }

  /// Token t's key or value of head g as its event keeps it.
  std::vector<double> kept(const std::vector<float>& of, std::int64_t row, std::int64_t g,
                           const EventRange& event, std::int64_t t) const {
    const auto at = [&](std::int64_t token, std::int64_t c) {
      return of[size((token * kKvHeads + g) * row + c)];
    };
    float most = 0.0f;
    for (std::int64_t token = event.start; token < event.end; ++token)
      for (std::int64_t c = 0; c < row; ++c) most = std::max(most, std::abs(at(token, c)));
    std::vector<double> out;
    for (std::int64_t c = 0; c < row; ++c) {
      float x = at(t, c);
      if (coded_ && c_.block_dtype == DType::int8) {
        const float scale = most / 127.0f, inverse = 1.0f / scale;
        x = std::nearbyint(x * inverse) * scale;
      } else if (coded_) {
        const episodic::rules::Fp8Scale scale = episodic::rules::fp8_scale(most);
        x = episodic::rules::from_fp8(episodic::rules::to_fp8(x * scale.inverse)) * scale.scale;
      }
      out.push_back(static_cast<double>(x));
    }
    return out;
  }

  Case c_;
  DType dtype_;
  std::int64_t element_;
  bool coded_ = false;
  std::vector<float> k_, v_, q_;  // [tokens, heads, channels]
  Bytes k_bytes_, v_bytes_, q_bytes_;
  std::vector<double> frequency_;
};

TEST_CASE("values of another width than keys: window, blocks, far rows and attention") {
  EPISODIC_NEEDS_DEVICE();
  const Case cases[] = {
      {48, 16, 2, 1, 1, false, DType::bfloat16}, {24, 40, 2, 5, 1, true, DType::bfloat16},
      {24, 40, 3, 17, 2, true, DType::int8},     {48, 16, 1, 5, 2, false, DType::fp8},
      {192, 128, 2, 17, 1, true, DType::fp8},    {16, 72, 1, 1, 2, true, DType::int8},
      {32, 32, 2, 5, 2, true, DType::int8},
  };
  for (const Case& c : cases)
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      INFO("d " << c.d << " e " << c.e << " n " << c.n << " lanes " << c.lanes << " dtype "
                << episodic::name_of(dtype) << " blocks " << episodic::name_of(c.block_dtype));
      const Problem problem(c, dtype);
      const std::vector<float> got = problem.on_device();
      const std::vector<double> expected = problem.reference();
      REQUIRE(got.size() == expected.size());
      double worst = 0.0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        REQUIRE(std::isfinite(got[i]));
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected[i]));
      }
      CHECK(worst < (dtype == DType::float32 ? 2e-5 : dtype == DType::float16 ? 5e-3 : 4e-2));
    }
}

}  // namespace value_width_test
