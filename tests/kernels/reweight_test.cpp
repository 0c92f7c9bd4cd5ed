// SPDX-License-Identifier: Apache-2.0
#include "kernels/reweight.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/device.hpp"

namespace {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr float kUntouched = -5.0f;

std::vector<float> score(const std::vector<float>& query, std::vector<float>& vectors, DType dtype,
                         std::int64_t n_events, std::int64_t max_events, std::size_t shift) {
  std::vector<unsigned char> bytes = episodic_test::stored(vectors, dtype);
  bytes.insert(bytes.begin(), shift * static_cast<std::size_t>(episodic::size_of(dtype)), 0);
  const DeviceArray<unsigned char> representative(bytes);
  const DeviceArray<float> d_query(query),
      out(std::vector<float>(static_cast<std::size_t>(max_events), kUntouched));
  const DeviceArray<std::int64_t> count(std::vector<std::int64_t>{n_events});
  EventScoreParams p;
  p.query = d_query.data();
  p.width = static_cast<std::int64_t>(query.size());
  p.dtype = dtype;
  p.representative =
      representative.data() + shift * static_cast<std::size_t>(episodic::size_of(dtype));
  p.n_events = count.data();
  p.max_events = max_events;
  p.score = out.data();
  REQUIRE(score_events(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return out.host();
}

struct Weights {
  std::vector<float> weight;
  std::vector<std::int64_t> events;
  bool operator==(const Weights&) const = default;
};

Weights weigh(Reweight mode, std::int64_t top_k, const std::vector<float>& scores,
              std::int64_t n_events) {
  const auto max_events = static_cast<std::int64_t>(scores.size());
  const std::int64_t list = mode == Reweight::exact
                                ? max_events
                                : std::min(max_events, mode == Reweight::broad ? 3 * top_k : top_k);
  const DeviceArray<float> score(scores), weight(std::vector<float>(scores.size(), kUntouched));
  const DeviceArray<std::int64_t> count(std::vector<std::int64_t>{n_events}),
      events(static_cast<std::size_t>(list));
  const DeviceArray<std::int32_t> listed(1);
  EventWeightParams p;
  p.mode = mode;
  p.top_k = top_k;
  p.score = score.data();
  p.n_events = count.data();
  p.max_events = max_events;
  p.value_weight = weight.data();
  p.events = events.data();
  p.list_capacity = list;
  p.count = listed.data();
  REQUIRE(weigh_events(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  Weights w = {weight.host(), events.host()};
  const std::int32_t n = listed.host()[0];
  REQUIRE(n >= 0);
  REQUIRE(n <= list);
  w.events.resize(static_cast<std::size_t>(n));
  return w;
}

Weights reference(Reweight mode, std::size_t top_k, const std::vector<float>& scores,
                  std::size_t n) {
  Weights w;
  w.weight.assign(scores.size(), kUntouched);
  const auto clamped = [&](std::size_t e) { return scores[e] > 0.0f ? scores[e] : 0.0f; };
  if (mode == Reweight::exact) {
    for (std::size_t e = 0; e < n; ++e) {
      w.weight[e] = clamped(e);
      w.events.push_back(static_cast<std::int64_t>(e));
    }
    return w;
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return clamped(a) > clamped(b); });
  std::fill_n(w.weight.begin(), n, 0.0f);
  for (std::size_t i = 0; i < std::min(top_k, n); ++i) {
    const std::size_t e = order[i];
    w.weight[e] = 1.0f;
    if (mode != Reweight::broad) continue;
    if (e > 0) w.weight[e - 1] = 1.0f;
    if (e + 1 < n) w.weight[e + 1] = 1.0f;
  }
  for (std::size_t e = 0; e < n; ++e)
    if (w.weight[e] == 1.0f) w.events.push_back(static_cast<std::int64_t>(e));
  return w;
}

}  // namespace

TEST_CASE("score_events gives the cosine, and 0 where it is negative or there is none") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(14);
  struct Case {
    std::int64_t width, n_events, max_events;
    std::size_t shift;
  };
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const Case& c :
         {Case{1, 1, 1, 0}, Case{264, 21, 25, 0}, Case{264, 9, 9, 1}, Case{31, 10, 12, 0}}) {
      const auto width = static_cast<std::size_t>(c.width);
      const std::vector<float> query = episodic_test::normal_floats(width, random);
      std::vector<float> vectors =
          episodic_test::normal_floats(width * static_cast<std::size_t>(c.max_events), random);
      if (c.n_events > 4) {
        std::fill_n(vectors.begin(), width, 0.0f);
        vectors[width] = NAN;
        vectors[2 * width] = INFINITY;
        for (std::size_t i = 0; i < width; ++i) vectors[3 * width + i] = 3.0f * query[i];
      }
      std::vector<std::vector<float>> results;
      episodic_test::in_every_order([&] {
        results.push_back(score(query, vectors, dtype, c.n_events, c.max_events, c.shift));
      });
      for (const auto& result : results) REQUIRE(result == results.front());
      const std::vector<float>& got = results.front();
      for (std::size_t e = 0; e < got.size(); ++e) {
        if (e >= static_cast<std::size_t>(c.n_events)) {
          REQUIRE(got[e] == kUntouched);
          continue;
        }
        double dot = 0.0, square = 0.0, query_square = 0.0;
        for (std::size_t i = 0; i < width; ++i) {
          const auto x = static_cast<double>(vectors[e * width + i]);
          const auto q = static_cast<double>(query[i]);
          dot += x * q;
          square += x * x;
          query_square += q * q;
        }
        const double cosine = dot / std::sqrt(square * query_square);
        const double expected = std::isfinite(cosine) && cosine > 0.0 ? cosine : 0.0;
        REQUIRE(std::abs(static_cast<double>(got[e]) - expected) < 1e-6);
      }
      if (c.n_events > 4) REQUIRE(got[3] > 0.999f);
      const std::vector<float> zero(width, 0.0f);
      for (const float s : score(zero, vectors, dtype, c.n_events, c.n_events, c.shift))
        REQUIRE(s == 0.0f);
    }
}

TEST_CASE("weigh_events chooses, extends and orders as a plain reference does") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(15);
  for (const std::size_t n : {1u, 2u, 40u, 2500u})
    for (const bool tied : {false, true}) {
      std::vector<float> scores(n + 2);
      for (float& s : scores)
        s = tied ? 0.25f * static_cast<float>(random() % 4)
                 : std::uniform_real_distribution<float>(-0.2f, 1.0f)(random);
      scores[n / 2] = NAN;
      scores[n - 1] = 1.0f;              // the last event has no successor
      scores[n] = scores[n + 1] = 2.0f;  // not there yet
      for (const Reweight mode : {Reweight::exact, Reweight::narrow, Reweight::broad})
        for (const std::size_t top_k : {1u, 5u, 39u, 4000u}) {
          if (mode == Reweight::exact && top_k > 1) continue;
          const Weights expected = reference(mode, top_k, scores, n);
          episodic_test::in_every_order([&] {
            REQUIRE(weigh(mode, static_cast<std::int64_t>(top_k), scores,
                          static_cast<std::int64_t>(n)) == expected);
          });
        }
    }
}

TEST_CASE("weigh_events lists nothing where there are no events") {
  EPISODIC_NEEDS_DEVICE();
  const std::vector<float> scores(3, 1.0f);
  for (const Reweight mode : {Reweight::exact, Reweight::narrow, Reweight::broad})
    REQUIRE(weigh(mode, 2, scores, 0) == Weights{std::vector<float>(3, kUntouched), {}});
}

TEST_CASE("reweighting refuses what makes no sense, before any launch") {
  float value = 0.0f;
  alignas(8) std::int64_t number = 0;
  std::int32_t count = 0;
  EventScoreParams s{&value, 1, DType::float32, &value, &number, 1, &value};
  const auto score_refused = [&](auto change, cudaError_t error = cudaErrorInvalidValue) {
    EventScoreParams p = s;
    change(p);
    return score_events(p, nullptr) == error;
  };
  REQUIRE(score_refused([](auto& p) { p.width = 0; }));
  REQUIRE(score_refused([](auto& p) { p.width = (48 << 10) + 1; }));
  REQUIRE(score_refused([](auto& p) { p.dtype = DType::int8; }));
  REQUIRE(score_refused([](auto& p) { p.n_events = nullptr; }));
  REQUIRE(score_refused(
      [](auto& p) { p.representative = static_cast<const char*>(p.representative) + 2; },
      cudaErrorMisalignedAddress));
  REQUIRE(score_refused([](auto& p) { p.max_events = 0; }, cudaSuccess));

  EventWeightParams w;
  w.mode = Reweight::broad;
  w.top_k = 2;
  w.score = w.value_weight = &value;
  w.n_events = &number;
  w.max_events = 9;
  w.events = &number;
  w.list_capacity = 6;
  w.count = &count;
  const auto weigh_refused = [&](auto change) {
    EventWeightParams p = w;
    change(p);
    return weigh_events(p, nullptr) == cudaErrorInvalidValue;
  };
  REQUIRE(weigh_refused([](auto& p) { p.list_capacity = 5; }));
  REQUIRE(weigh_refused([](auto& p) { p.top_k = 0; }));
  REQUIRE(weigh_refused([](auto& p) { p.top_k = INT64_MAX; }));  // all nine may take part
  REQUIRE(weigh_refused([](auto& p) { p.mode = Reweight::exact; }));
  REQUIRE(weigh_refused([](auto& p) { p.mode = static_cast<Reweight>(3); }));
  REQUIRE(weigh_refused([](auto& p) { p.max_events = INT32_MAX; }));
  REQUIRE(weigh_refused([](auto& p) { p.score = nullptr; }));
}
