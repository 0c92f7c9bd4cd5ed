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

namespace reweight_test {

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

struct Lists {
  std::vector<DeviceEventId> similarity, contiguity, recalled;
  bool operator==(const Lists&) const = default;
};

/// \param gone not 0 where an event was forgotten; empty: none was
Lists top(bool neighbours, std::int64_t top_k, const std::vector<float>& scores,
          std::int64_t n_events, const std::vector<std::uint8_t>& gone = {}) {
  const auto max_events = static_cast<std::int64_t>(scores.size());
  const std::int64_t list = std::min(max_events, neighbours ? 3 * top_k : top_k);
  const auto room = static_cast<std::size_t>(list);
  const DeviceArray<float> score(scores);
  const DeviceArray<std::uint8_t> is_top(scores.size());
  const DeviceArray<std::int64_t> count(std::vector<std::int64_t>{n_events});
  const DeviceArray<DeviceEventId> similarity(room), contiguity(room), recalled(room);
  const DeviceArray<std::int32_t> sizes(3);
  RecallTopParams p;
  p.top_k = top_k;
  p.neighbours = neighbours;
  p.score = score.data();
  p.n_events = count.data();
  p.max_events = max_events;
  p.is_top = is_top.data();
  const DeviceArray<std::uint8_t> forgotten(gone);
  if (!gone.empty()) p.maybe_forgotten = forgotten.data();
  p.similarity = similarity.data();
  p.contiguity_list = contiguity.data();
  p.recalled = recalled.data();
  p.list_capacity = list;
  p.sizes = sizes.data();
  REQUIRE(recall_top(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const std::vector<std::int32_t> n = sizes.host();
  const auto first = [&](const DeviceArray<DeviceEventId>& ids, std::int32_t size) {
    REQUIRE(size >= 0);
    REQUIRE(size <= list);
    std::vector<DeviceEventId> all = ids.host();
    all.resize(static_cast<std::size_t>(size));
    return all;
  };
  return {first(similarity, n[0]), first(contiguity, n[1]), first(recalled, n[2])};
}

Lists reference(bool neighbours, std::size_t top_k, const std::vector<float>& scores, std::size_t n,
                const std::vector<std::uint8_t>& gone = {}) {
  const auto kept = [&](std::size_t e) { return gone.empty() || gone[e] == 0; };
  const auto clamped = [&](std::size_t e) { return scores[e] > 0.0f ? scores[e] : 0.0f; };
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return clamped(a) > clamped(b); });
  std::erase_if(order, [&](std::size_t e) { return !kept(e); });
  order.resize(std::min(top_k, order.size()));
  std::vector<bool> is_top(n + 2, false);  // of event e at e + 1
  for (const std::size_t e : order) is_top[e + 1] = true;
  Lists lists;
  for (std::size_t e = 0; e < n; ++e) {
    const auto id = static_cast<DeviceEventId>(e);
    if (is_top[e + 1])
      lists.similarity.push_back(id);
    else if (neighbours && kept(e) && (is_top[e] || is_top[e + 2]))
      lists.contiguity.push_back(id);
    else
      continue;
    lists.recalled.push_back(id);
  }
  return lists;
}

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

TEST_CASE("score_events of a list scores its events and no others") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(16);
  constexpr std::size_t kWidth = 40, kEvents = 30;
  const std::vector<float> query = episodic_test::normal_floats(kWidth, random);
  std::vector<float> vectors = episodic_test::normal_floats(kWidth * kEvents, random);
  const std::vector<float> all = score(query, vectors, DType::float32, kEvents, kEvents, 0);
  const std::vector<DeviceEventId> listed{2, 3, 17, 29};
  const DeviceArray<float> d_query(query), d_vectors(vectors),
      out(std::vector<float>(kEvents, kUntouched));
  const DeviceArray<DeviceEventId> d_listed(listed);
  const DeviceArray<std::int32_t> n_listed(std::vector<std::int32_t>{3});  // the last is no member
  const DeviceArray<std::int64_t> count(std::vector<std::int64_t>{kEvents});
  EventScoreParams p;
  p.query = d_query.data();
  p.width = kWidth;
  p.representative = d_vectors.data();
  p.n_events = count.data();
  p.max_events = kEvents;
  p.score = out.data();
  p.maybe_listed = d_listed.data();
  p.n_listed = n_listed.data();
  p.max_listed = 4;
  REQUIRE(score_events(p, nullptr) == cudaSuccess);
  const std::vector<float> got = out.host();
  for (std::size_t e = 0; e < kEvents; ++e)
    REQUIRE(got[e] == (e == 2 || e == 3 || e == 17 ? all[e] : kUntouched));
}

TEST_CASE("recall_top chooses, extends and orders as a plain reference does") {
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
      for (const bool neighbours : {false, true})
        for (const std::size_t top_k : {1u, 5u, 39u, 4000u}) {
          const Lists expected = reference(neighbours, top_k, scores, n);
          episodic_test::in_every_order([&] {
            REQUIRE(top(neighbours, static_cast<std::int64_t>(top_k), scores,
                        static_cast<std::int64_t>(n)) == expected);
          });
        }
    }
}

TEST_CASE("recall_top lists no event that was forgotten") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(19);
  for (const std::size_t n : {1u, 5u, 300u, 1500u})
    for (const std::int64_t top_k : {1, 4, 40})
      for (const unsigned of_8 : {1u, 4u, 8u}) {
        std::vector<float> scores = episodic_test::normal_floats(n, random);
        for (float& x : scores)
          if (random() % 3 == 0) x = 0.5f;  // ties
        std::vector<std::uint8_t> gone(n);
        for (std::uint8_t& g : gone) g = random() % 8 < of_8 ? 9 : 0;
        for (const bool neighbours : {false, true})
          REQUIRE((top(neighbours, top_k, scores, static_cast<std::int64_t>(n), gone) ==
                   reference(neighbours, static_cast<std::size_t>(top_k), scores, n, gone)));
      }
}

TEST_CASE("recall_top lists nothing where there are no events") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool neighbours : {false, true})
    REQUIRE(top(neighbours, 2, std::vector<float>(3, 1.0f), 0) == Lists{});
}

TEST_CASE("reweighting refuses what makes no sense, before any launch") {
  float value = 0.0f;
  alignas(8) std::int64_t number = 0;
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

  REQUIRE(score_refused([](auto& p) { p.max_listed = -1; }));
  DeviceEventId id = 0;
  REQUIRE(score_refused([&](auto& p) { p.maybe_listed = &id; }));  // without their number

  std::uint8_t mark = 0;
  std::int32_t sizes[3];
  RecallTopParams t;
  t.neighbours = true;
  t.top_k = 2;
  t.score = &value;
  t.n_events = &number;
  t.max_events = 9;
  t.is_top = &mark;
  t.similarity = t.contiguity_list = t.recalled = &id;
  t.list_capacity = 6;
  t.sizes = sizes;
  const auto top_refused = [&](auto change) {
    RecallTopParams p = t;
    change(p);
    return recall_top(p, nullptr) == cudaErrorInvalidValue;
  };
  REQUIRE(top_refused([](auto& p) { p.list_capacity = 5; }));
  REQUIRE(top_refused([](auto& p) { p.top_k = 0; }));
  REQUIRE(top_refused([](auto& p) { p.top_k = INT64_MAX; }));  // all nine may take part
  REQUIRE(top_refused([](auto& p) { p.max_events = INT32_MAX; }));
  REQUIRE(top_refused([](auto& p) { p.score = nullptr; }));
  REQUIRE(top_refused([](auto& p) { p.recalled = nullptr; }));
}

}  // namespace reweight_test
