// SPDX-License-Identifier: Apache-2.0
// Batches of what some settings ask for: reweighted recall.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/batches.hpp"
#include "kernels/reweight.hpp"

namespace batch_settings_test {

using episodic::DType;
using episodic_test::Arena;
using episodic_test::check_batches;
using episodic_test::check_shared;
using episodic_test::launches_of;
using episodic_test::normal_floats;
using episodic_test::random_elements;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

alignas(256) unsigned char memory[4096];

TEST_CASE("a batch of scores has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const bool packs : {true, false})
      for (const bool listed : {false, true}) {
        const std::int64_t lanes = listed ? 1 : 2;
        // Every fifth has no event, every third of the others a width that is no multiple of packs.
        const auto is_single = [&](std::int64_t i) { return !packs && i % 3 == 1; };
        const auto make = [&](std::int64_t i, Arena& arena) {
          std::mt19937 random(static_cast<unsigned>(i));
          EventScoreParams p;
          p.dtype = dtype;
          p.width = is_single(i) ? 33 + 2 * i : 8 * (3 + i);
          p.n_lanes = lanes;
          p.max_events = i % 5 == 4 ? 0 : 5 + 9 * i;
          p.query = arena.in(normal_floats(static_cast<std::size_t>(lanes * p.width), random));
          p.representative =
              arena.in(random_elements(lanes * p.max_events * p.width + 1, dtype, random));
          p.n_events = arena.in(std::vector<std::int64_t>{p.max_events - i % 3});
          p.score = arena.out<float>(lanes * p.max_events);
          if (listed && i % 2 == 0 && p.max_events > 0) {
            p.maybe_listed = arena.in(std::vector<DeviceEventId>{0, 1, 3});
            p.n_listed = arena.in(std::vector<std::int32_t>{2});
            p.max_listed = 3;
          }
          return p;
        };
        check_batches<EventScoreParams>(make, score_events, score_events_batch,
                                        [&](std::int64_t n) {
                                          std::int64_t single = 0;
                                          for (std::int64_t i = 0; i < n; ++i)
                                            single += i % 5 != 4 && is_single(i);
                                          return launches_of(n - n / 5 - single, kMostInLaunch) +
                                                 launches_of(single, kMostInLaunch);
                                        });
      }
}

TEST_CASE("a batch of recalls by score has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const std::int64_t lanes : {1, 3}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      RecallTopParams p;
      p.top_k = 1 + i % 4;
      p.neighbours = i % 2 == 1;
      p.n_lanes = lanes;
      p.max_events = i % 5 == 4 ? 0 : 3 + 13 * i;
      std::vector<float> scores =
          normal_floats(static_cast<std::size_t>(lanes * p.max_events), random);
      for (float& s : scores) s = std::round(4.0f * s);  // some alike
      p.score = arena.in(scores);
      p.n_events = arena.in(std::vector<std::int64_t>{p.max_events - i % 3});
      if (i % 3 == 2) {
        std::vector<std::uint8_t> gone;
        for (std::int64_t e = 0; e < lanes * p.max_events; ++e) gone.push_back(random() % 3 == 0);
        p.maybe_forgotten = arena.in(gone);
        p.mark_stride = p.max_events;
      }
      p.is_top = arena.out<std::uint8_t>(lanes * p.max_events);
      p.list_capacity = 3 * p.top_k + i % 2;
      p.similarity = arena.out<DeviceEventId>(lanes * p.list_capacity);
      p.contiguity_list = arena.out<DeviceEventId>(lanes * p.list_capacity);
      p.recalled = arena.out<DeviceEventId>(lanes * p.list_capacity);
      p.sizes = arena.out(std::vector<std::int32_t>(static_cast<std::size_t>(3 * lanes), -1));
      return p;
    };
    check_batches<RecallTopParams>(make, recall_top, recall_top_batch, [](std::int64_t n) {
      return launches_of(n, kMostInLaunch);  // without events sizes are still written
    });
  }
}

TEST_CASE("batches of reweighted recall name the field that their sequences do not share") {
  EventScoreParams score;
  score.width = 8;
  check_shared<EventScoreParams>(score, score_events_batch, "dtype",
                                 [](EventScoreParams& p) { p.dtype = DType::float16; });
  check_shared<EventScoreParams>(score, score_events_batch, "n_lanes",
                                 [](EventScoreParams& p) { p.n_lanes = 2; });
  check_shared<EventScoreParams>(score, score_events_batch, "width",
                                 [](EventScoreParams& p) { p.width = 0; });
  RecallTopParams top;
  top.top_k = 1;
  top.n_events = reinterpret_cast<const std::int64_t*>(memory);
  top.sizes = reinterpret_cast<std::int32_t*>(memory);
  check_shared<RecallTopParams>(top, recall_top_batch, "n_lanes",
                                [](RecallTopParams& p) { p.n_lanes = 2; });
  check_shared<RecallTopParams>(top, recall_top_batch, "top_k",
                                [](RecallTopParams& p) { p.top_k = 0; });
}

}  // namespace batch_settings_test
