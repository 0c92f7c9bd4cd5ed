// SPDX-License-Identifier: Apache-2.0
#include "kernels/relevance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "episodic/recall/representatives.hpp"
#include "kernels/device.hpp"

namespace relevance_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

/// One layer's rings and the events that a step closes in them.
struct Layer {
  std::int64_t heads, kv_heads, d, n_repr, capacity;
  std::vector<float> key;        // [G, capacity, d], as stored
  std::vector<float> relevance;  // [capacity, H]
  std::vector<std::int64_t> start, end;
  std::int64_t first_id;
};

struct Chosen {
  std::vector<float> mean, each;
  std::int32_t full;
  bool operator==(const Chosen&) const = default;
};

constexpr float kUntouched = -77.0f;

/// What the kernel writes into `rows` rows of kUntouched, as the second of two layers; the first is
/// the same but for its values.
Chosen select(Layer& layer, DType key_dtype, DType repr_dtype, std::int64_t rows, bool with_each,
              std::int32_t count, std::int64_t max_count) {
  const DeviceArray<unsigned char> key(episodic_test::stored(layer.key, key_dtype));
  const DeviceArray<float> relevance(layer.relevance);
  std::vector<float> ones(layer.key.size(), 1.0f);
  const DeviceArray<unsigned char> key_of_first(episodic_test::stored(ones, key_dtype));
  const DeviceArray<float> relevance_of_first(std::vector<float>(layer.relevance.size(), 0.0f));
  const DeviceArray<std::int64_t> start(layer.start), end(layer.end),
      first_id(std::vector<std::int64_t>{layer.first_id});
  const DeviceArray<std::int32_t> n_events(std::vector<std::int32_t>{count}),
      full(std::vector<std::int32_t>{0});
  const auto width = static_cast<std::size_t>(layer.heads * layer.d);
  std::vector<float> no_mean(static_cast<std::size_t>(rows) * width, kUntouched);
  std::vector<float> no_each(no_mean.size() * static_cast<std::size_t>(layer.n_repr), kUntouched);
  const DeviceArray<unsigned char> mean(episodic_test::stored(no_mean, repr_dtype)),
      each(episodic_test::stored(no_each, repr_dtype)),
      mean_of_first(episodic_test::stored(no_mean, repr_dtype));
  const DeviceArray<RepresentativeLayer> layers(std::vector<RepresentativeLayer>{
      {key_of_first.data(), relevance_of_first.data(), mean_of_first.data(), nullptr},
      {key.data(), relevance.data(), mean.data(), with_each ? each.data() : nullptr}});
  RepresentativeParams p;
  p.events = {start.data(), end.data(), n_events.data(), first_id.data(), max_count};
  p.key_dtype = key_dtype;
  p.n_heads = layer.heads;
  p.n_kv_heads = layer.kv_heads;
  p.head_dim = layer.d;
  p.n_repr = layer.n_repr;
  p.ring_capacity = layer.capacity;
  p.ring_head_stride = layer.capacity * layer.d;
  p.repr_dtype = repr_dtype;
  p.capacity = rows;
  p.layers = layers.data();
  p.n_layers = 2;
  p.full = full.data();
  REQUIRE(select_representatives(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  // the means of nothing but ones, in the same rows
  const std::vector<float> first = episodic_test::floats(mean_of_first.host(), repr_dtype);
  const std::vector<float> second = episodic_test::floats(mean.host(), repr_dtype);
  for (std::size_t i = 0; i < first.size(); ++i)
    REQUIRE(first[i] == (second[i] == kUntouched ? kUntouched : 1.0f));
  return {second, episodic_test::floats(each.host(), repr_dtype), full.host()[0]};
}

Layer random_layer(std::int64_t heads, std::int64_t kv_heads, std::int64_t d, std::int64_t n_repr,
                   std::int64_t capacity, const std::vector<std::int64_t>& cuts,
                   std::mt19937& random) {
  Layer layer{heads, kv_heads, d, n_repr, capacity, {}, {}, {}, {}, 0};
  layer.key =
      episodic_test::normal_floats(static_cast<std::size_t>(kv_heads * capacity * d), random);
  layer.relevance.resize(static_cast<std::size_t>(capacity * heads));
  // few values, so that there are ties; negative zero is a tie with zero
  const float values[] = {0.0f, -0.0f, 0.25f, 1.0f, 3.5f};
  for (float& r : layer.relevance) r = values[random() % 5];
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    layer.start.push_back(cuts[i]);
    layer.end.push_back(cuts[i + 1]);
  }
  return layer;
}

/// The CPU's choice for event `e`, from the same stored keys.
std::int64_t twin(const Layer& layer, std::size_t e, std::vector<float>& mean,
                  std::vector<float>& each) {
  const std::int64_t n = layer.end[e] - layer.start[e];
  std::vector<float> keys(static_cast<std::size_t>(layer.kv_heads * n * layer.d));
  std::vector<float> relevance(static_cast<std::size_t>(n * layer.heads));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t slot = (layer.start[e] + i) % layer.capacity;
    for (std::int64_t g = 0; g < layer.kv_heads; ++g)
      std::copy_n(layer.key.data() + (g * layer.capacity + slot) * layer.d, layer.d,
                  keys.data() + (g * n + i) * layer.d);
    std::copy_n(layer.relevance.data() + slot * layer.heads, layer.heads,
                relevance.data() + i * layer.heads);
  }
  mean.resize(static_cast<std::size_t>(layer.heads * layer.d));
  each.resize(mean.size() * static_cast<std::size_t>(layer.n_repr));
  return episodic::select_representatives({keys.data(), n * layer.d, layer.d}, relevance.data(), n,
                                          layer.heads, layer.kv_heads, layer.d, layer.n_repr,
                                          mean.data(), each.data());
}

TEST_CASE("commit_relevance zeroes the step's tokens and adds the column sums") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(2);
  struct Case {
    std::int64_t n, heads, n_local, first, capacity;
  };
  for (const Case& c : {Case{1, 1, 1, 0, 1}, Case{5, 4, 9, 0, 13}, Case{5, 3, 9, 4, 14},
                        Case{6, 4, 3, 100, 8}, Case{4, 8, 70, 1000, 75}, Case{1, 2, 6, 3, 6}}) {
    const std::int64_t local = std::max<std::int64_t>(0, c.first + 1 - c.n_local);
    const std::int64_t rows = c.first + c.n - local;
    constexpr std::size_t kLayers = 3;
    std::vector<std::vector<float>> before, sums, expected;
    for (std::size_t l = 0; l < kLayers; ++l) {
      before.push_back(
          episodic_test::normal_floats(static_cast<std::size_t>(c.capacity * c.heads), random));
      sums.push_back(episodic_test::normal_floats(
          static_cast<std::size_t>((c.n_local + c.n - 1) * c.heads), random));
      expected.push_back(before[l]);
      for (std::int64_t i = 0; i < c.n; ++i)
        for (std::int64_t h = 0; h < c.heads; ++h)
          expected[l][static_cast<std::size_t>((c.first + i) % c.capacity * c.heads + h)] = 0.0f;
      for (std::int64_t j = 0; j < rows; ++j)
        for (std::int64_t h = 0; h < c.heads; ++h)
          expected[l][static_cast<std::size_t>((local + j) % c.capacity * c.heads + h)] +=
              sums[l][static_cast<std::size_t>(j * c.heads + h)];
    }
    const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{c.first});
    episodic_test::in_every_order([&] {
      std::deque<DeviceArray<float>> column_sums, relevance;
      std::vector<RelevanceLayer> each;
      for (std::size_t l = 0; l < kLayers; ++l)
        each.push_back(
            {column_sums.emplace_back(sums[l]).data(), relevance.emplace_back(before[l]).data()});
      const DeviceArray<RelevanceLayer> layers(each);
      RelevanceParams p;
      p.n = c.n;
      p.n_heads = c.heads;
      p.n_local = c.n_local;
      p.first_position = position.data();
      p.capacity = c.capacity;
      p.layers = layers.data();
      p.n_layers = kLayers;
      REQUIRE(commit_relevance(p, nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      for (std::size_t l = 0; l < kLayers; ++l) REQUIRE(relevance[l].host() == expected[l]);
    });
  }
}

TEST_CASE("select_representatives chooses and sums as its CPU twin, to the bit") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(7);
  struct Case {
    std::int64_t heads, kv_heads, d, n_repr, capacity;
    std::vector<std::int64_t> cuts;
  };
  const Case cases[] = {
      {1, 1, 8, 1, 4, {0, 1}},                       // one token
      {6, 2, 40, 4, 90, {80, 83, 90, 130, 160}},     // shorter than n_repr; wraps
      {4, 4, 16, 40, 200, {9'999'900, 10'000'050}},  // more than a warp of them, far out
      {3, 1, 6, 3, 33, {33, 66}},                    // the whole ring
  };
  for (const DType key_dtype : kDTypes)
    for (const DType repr_dtype : kDTypes)
      for (const Case& c : cases) {
        Layer layer = random_layer(c.heads, c.kv_heads, c.d, c.n_repr, c.capacity, c.cuts, random);
        layer.first_id = 2;
        const auto n_events = static_cast<std::int32_t>(layer.start.size());
        const std::int64_t rows = layer.first_id + n_events + 1;
        std::vector<Chosen> results;
        episodic_test::in_every_order([&] {
          results.push_back(select(layer, key_dtype, repr_dtype, rows, true, n_events, n_events));
        });
        for (const Chosen& result : results) REQUIRE(result == results.front());
        const auto width = static_cast<std::size_t>(c.heads * c.d);
        std::vector<float> mean(static_cast<std::size_t>(rows) * width, kUntouched);
        std::vector<float> each(mean.size() * static_cast<std::size_t>(c.n_repr), kUntouched);
        for (std::size_t e = 0; e < layer.start.size(); ++e) {
          std::vector<float> event_mean, event_each;
          const auto count = static_cast<std::size_t>(twin(layer, e, event_mean, event_each));
          std::copy(event_mean.begin(), event_mean.end(),
                    mean.begin() + static_cast<std::ptrdiff_t>((e + 2) * width));
          std::copy_n(event_each.begin(), count * width,
                      each.begin() + static_cast<std::ptrdiff_t>(
                                         (e + 2) * width * static_cast<std::size_t>(c.n_repr)));
        }
        static_cast<void>(episodic_test::stored(mean, repr_dtype));
        static_cast<void>(episodic_test::stored(each, repr_dtype));
        REQUIRE(results.front().mean == mean);
        REQUIRE(results.front().each == each);
        REQUIRE(results.front().full == 0);
      }
}

TEST_CASE("select_representatives reads the count on the device and keeps to the matrix") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  Layer layer = random_layer(4, 2, 8, 2, 64, {0, 10, 20, 30, 40, 50}, random);
  constexpr std::size_t kWidth = 32;
  const auto written = [&](const Chosen& result) {
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < result.mean.size() / kWidth; ++row)
      if (result.mean[row * kWidth] != kUntouched) rows.push_back(row);
    return rows;
  };
  using Rows = std::vector<std::size_t>;
  const auto f32 = DType::float32;
  REQUIRE(written(select(layer, f32, f32, 6, false, 0, 5)).empty());
  REQUIRE(written(select(layer, f32, f32, 6, false, 2, 5)) == Rows{0, 1});
  REQUIRE(written(select(layer, f32, f32, 6, false, 9, 3)) == Rows{0, 1, 2});
  layer.first_id = 4;
  const Chosen result = select(layer, f32, f32, 6, true, 5, 5);
  REQUIRE(written(result) == Rows{4, 5});
  REQUIRE(result.full == 1);
}

TEST_CASE("select_representatives takes NaN for the smallest relevance") {
  EPISODIC_NEEDS_DEVICE();
  Layer layer{1, 1, 1, 2, 8, {1, 2, 4, 8, 16, 32, 64, 128}, {}, {0}, {5}, 0};
  layer.relevance = {NAN, -INFINITY, NAN, 0.5f, NAN, 9.0f, 9.0f, 9.0f};
  // token 3, and the earliest of those that are tied for the last place
  REQUIRE(select(layer, DType::float32, DType::float32, 1, false, 1, 1).mean[0] == (1.0f + 8) / 2);
}

TEST_CASE("relevance kernels refuse what makes no sense, before any launch") {
  alignas(16) float memory[64] = {};
  alignas(8) std::int64_t number = 0;
  std::int32_t count = 0;
  RelevanceParams r;
  r.n = 3;
  r.n_heads = 1;
  r.n_local = 4;
  r.first_position = &number;
  const RelevanceLayer relevance_layer{memory, memory};
  r.layers = &relevance_layer;
  r.n_layers = 1;
  const auto relevance_refused = [&](auto change, cudaError_t error = cudaErrorInvalidValue) {
    RelevanceParams changed = r;
    changed.capacity = 6;
    change(changed);
    return commit_relevance(changed, nullptr) == error;
  };
  REQUIRE(relevance_refused([](auto& x) { x.capacity = 5; }));  // 6 local tokens
  REQUIRE(relevance_refused([](auto& x) { x.layers = nullptr; }));
  REQUIRE(relevance_refused([](auto& x) { x.n_layers = 65'536; }));
  REQUIRE(relevance_refused([](auto& x) { x.n_layers = -1; }));
  REQUIRE(relevance_refused(
      [&](auto& x) {
        x.layers = reinterpret_cast<const RelevanceLayer*>(reinterpret_cast<char*>(memory) + 4);
      },
      cudaErrorMisalignedAddress));
  REQUIRE(relevance_refused([](auto& x) { x.n = 0; }, cudaSuccess));
  REQUIRE(relevance_refused([](auto& x) { x.n_layers = 0; }, cudaSuccess));

  RepresentativeParams p;
  p.events = {&number, &number, &count, &number, 1};
  p.n_heads = 4;
  p.n_kv_heads = 2;
  p.head_dim = 8;
  p.n_repr = 2;
  p.ring_capacity = 2;
  p.ring_head_stride = 16;
  const RepresentativeLayer layer{memory, memory, memory, nullptr};
  p.layers = &layer;
  p.n_layers = 1;
  p.capacity = 1;
  p.full = &count;
  const auto refused = [&](auto change, cudaError_t error = cudaErrorInvalidValue) {
    RepresentativeParams changed = p;
    change(changed);
    return select_representatives(changed, nullptr) == error;
  };
  REQUIRE(refused([](auto& x) { x.n_kv_heads = 3; }));
  REQUIRE(refused([](auto& x) { x.n_repr = 0; }));
  REQUIRE(refused([](auto& x) { x.n_repr = 1025; }));
  REQUIRE(refused([](auto& x) { x.ring_head_stride = 15; }));
  REQUIRE(refused([](auto& x) { x.repr_dtype = DType::int8; }));
  REQUIRE(refused([](auto& x) { x.key_dtype = DType::int8; }));
  REQUIRE(refused([](auto& x) { x.events.end = nullptr; }));
  REQUIRE(refused([](auto& x) { x.full = nullptr; }));
  REQUIRE(refused([](auto& x) { x.capacity = std::int64_t{1} << 53; }));
  REQUIRE(refused([](auto& x) { x.n_layers = -1; }));
  REQUIRE(refused([](auto& x) { x.n_layers = std::int64_t{1} << 55; }));
  REQUIRE(refused([](auto& x) { x.layers = nullptr; }));
  REQUIRE(refused(
      [&](auto& x) {
        x.layers =
            reinterpret_cast<const RepresentativeLayer*>(reinterpret_cast<char*>(memory) + 4);
      },
      cudaErrorMisalignedAddress));
  REQUIRE(refused([](auto& x) { x.n_layers = 0; }, cudaSuccess));
  REQUIRE(refused([](auto& x) { x.events.max_count = 0; }, cudaSuccess));
}

}  // namespace relevance_test
