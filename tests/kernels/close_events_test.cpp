// SPDX-License-Identifier: Apache-2.0
// The CPU twin, which its own tests hold against the rule, must give the same table.
#include "kernels/close_events.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/surprise.hpp"
#include "kernels/device.hpp"
#include "kernels/refine.hpp"
#include "kernels/threshold.hpp"
#include "support/refine_reference.hpp"

namespace close_events_test {

using episodic::EventTable;
using episodic::TokenRange;
using episodic::kernels::close_events;
using episodic::kernels::CloseEventsParams;
using episodic::kernels::EventRange;
using episodic::kernels::initial_timeline;
using episodic::kernels::TimelineState;
using episodic_test::DeviceArray;

struct Settings {
  std::int64_t n_init = 0, n_local = 1, min_block = 1, max_block = 1;
  std::int64_t event_capacity = 400;
};

/// Timelines with final flags [timeline][token] on the device.
class DeviceTables {
 public:
  DeviceTables(const Settings& settings, const std::vector<std::vector<std::uint8_t>>& flags,
               std::int64_t longest)
      : settings_(settings),
        given_(flags),
        flag_capacity_(settings.n_local + settings.max_block + longest),
        state_(std::vector<TimelineState>(flags.size(), initial_timeline(settings.n_init))),
        events_(flags.size() * static_cast<std::size_t>(settings.event_capacity)),
        // never written: any but this sequence's flags would be seen
        ring_(flags.size() * static_cast<std::size_t>(flag_capacity_), 1) {}

  void step(std::int64_t n) {
    const std::int64_t first = state(0).tokens;
    for (std::size_t u = 0; u < given_.size(); ++u)
      for (std::int64_t t = first; t < first + n; ++t)
        ring_[u * static_cast<std::size_t>(flag_capacity_) +
              static_cast<std::size_t>(t % flag_capacity_)] =
            given_[u][static_cast<std::size_t>(t)];
    const DeviceArray<std::uint8_t> flags(ring_);
    CloseEventsParams p;
    p.n_local = settings_.n_local;
    p.min_block = settings_.min_block;
    p.max_block = settings_.max_block;
    p.n = n;
    p.n_timelines = static_cast<std::int64_t>(given_.size());
    p.state = state_.data();
    p.flags = flags.data();
    p.flag_capacity = flag_capacity_;
    p.events = events_.data();
    p.event_capacity = settings_.event_capacity;
    REQUIRE(close_events(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(state(0).tokens == first + n);
  }

  TimelineState state(std::size_t timeline) const { return state_.host()[timeline]; }

  std::vector<TokenRange> events(std::size_t timeline) const {
    const std::vector<EventRange> all = events_.host();
    std::vector<TokenRange> out;
    for (std::int64_t i = 0; i < state(timeline).n_events; ++i) {
      const EventRange& e = all[timeline * static_cast<std::size_t>(settings_.event_capacity) +
                                static_cast<std::size_t>(i)];
      out.push_back({e.start, e.end});
    }
    return out;
  }

 private:
  Settings settings_;
  const std::vector<std::vector<std::uint8_t>>& given_;
  std::int64_t flag_capacity_;
  DeviceArray<TimelineState> state_;
  DeviceArray<EventRange> events_;
  std::vector<std::uint8_t> ring_;
};

std::vector<std::uint8_t> random_flags(std::mt19937& random, std::int64_t n, unsigned one_in) {
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(n));
  for (std::uint8_t& flag : flags) flag = random() % one_in == 0;
  return flags;
}

std::int64_t up_to(std::mt19937& random, std::int64_t most) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
}

TEST_CASE("close_events kernel gives the table of its CPU twin, step by step") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(71);
  std::int64_t closed = 0, forced = 0;
  for (int seed = 0; seed < 14; ++seed) {
    Settings settings;
    settings.n_init = up_to(random, 10);
    settings.n_local = 1 + up_to(random, 40);
    settings.min_block = 1 + up_to(random, 8);
    settings.max_block = settings.min_block + (seed % 3 ? up_to(random, 20) : 0);
    if (seed % 5 == 4) settings.max_block += 300;  // flags of more than one round pending
    const std::int64_t n = 1 + up_to(random, 400);
    const std::int64_t longest = seed % 4 == 0 ? n : 30;
    std::vector<std::int64_t> steps;
    for (std::int64_t left = n; left > 0; left -= steps.back())
      steps.push_back(std::min(left, 1 + (random() % 4 ? up_to(random, longest) : 0)));
    std::vector<std::vector<std::uint8_t>> flags;
    for (int timeline = 0; timeline < 1 + seed % 3; ++timeline)
      flags.push_back(random_flags(random, n, timeline == 1 ? 60 : 7));
    episodic_test::in_every_order([&] {
      DeviceTables device(settings, flags, longest);
      std::vector<EventTable> twins(
          flags.size(), EventTable(settings.n_init, settings.min_block, settings.max_block));
      std::int64_t so_far = 0;
      for (const std::int64_t m : steps) {
        so_far += m;
        device.step(m);
        for (std::size_t u = 0; u < flags.size(); ++u) {
          const std::int64_t count = twins[u].close_up_to(
              so_far - settings.n_local,
              [&](std::int64_t t) { return flags[u][static_cast<std::size_t>(t)] != 0; });
          const TimelineState state = device.state(u);
          REQUIRE(state.n_closed == count);
          REQUIRE(state.n_events == twins[u].size());
          REQUIRE(state.pending_start == twins[u].pending_start());
          REQUIRE(state.errors == 0);
          closed += count;
        }
      }
      for (std::size_t u = 0; u < flags.size(); ++u) {
        REQUIRE(device.events(u) == twins[u].all());
        for (const TokenRange& e : twins[u].all()) forced += e.size() == settings.max_block;
      }
    });
  }
  REQUIRE(closed > 300);
  REQUIRE(forced > 50);
  REQUIRE(forced < closed);
}

TEST_CASE("close_events kernel leaves pending what a full table does not hold, and says so") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(72);
  Settings settings;
  settings.n_init = 2;
  settings.n_local = 5;
  settings.min_block = 3;
  settings.max_block = 9;
  const std::vector<std::vector<std::uint8_t>> flags{random_flags(random, 500, 6),
                                                     std::vector<std::uint8_t>(500)};
  std::vector<EventTable> twins(2, EventTable(2, 3, 9));
  for (std::size_t u = 0; u < 2; ++u)
    twins[u].close_up_to(495,
                         [&](std::int64_t t) { return flags[u][static_cast<std::size_t>(t)]; });
  for (const std::int64_t capacity : {1, 7}) {
    settings.event_capacity = capacity;
    DeviceTables device(settings, flags, 100);
    for (int step = 0; step < 5; ++step) device.step(100);
    for (std::size_t u = 0; u < 2; ++u) {
      const TimelineState state = device.state(u);
      REQUIRE(state.errors == episodic::kernels::kEventTableIsFull);
      REQUIRE(state.n_events == capacity);
      REQUIRE(state.n_closed == 0);
      REQUIRE(state.tokens == 500);
      const auto& all = twins[u].all();
      REQUIRE(device.events(u) == std::vector<TokenRange>(all.begin(), all.begin() + capacity));
      REQUIRE(state.pending_start == all[static_cast<std::size_t>(capacity - 1)].end);
    }
  }
  // Exactly full is no fault.
  settings.event_capacity = twins[1].size();
  const std::vector<std::vector<std::uint8_t>> none{flags[1]};
  DeviceTables device(settings, none, 500);
  device.step(500);
  REQUIRE(device.state(0).errors == 0);
  REQUIRE(device.events(0) == twins[1].all());
}

TEST_CASE("threshold, refine and close_events make the CPU's events, and never ask the host") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kTokens = 400, kInit = 4, kLocal = 40, kMin = 3, kMax = 24;
  constexpr double kGamma = 0.7;
  std::mt19937 random(73);
  std::vector<std::int64_t> steps{64, 50, 3};
  steps.insert(steps.end(), 60, 1);  // decoding
  for (const std::int64_t n : {64, 1, 64, 33, 61}) steps.push_back(n);
  constexpr std::int64_t kLongest = 64;
  episodic_test::KeyStream stream(random, kTokens, 2, 2, 8, kTokens, 0.0);
  stream.load(0, kTokens);
  std::gamma_distribution<float> draw(0.7f, 3.0f);
  std::vector<float> surprise(kTokens);
  for (float& x : surprise) x = draw(random);

  episodic::SurpriseThreshold threshold(episodic::ThresholdWindow::moving, kLocal, kGamma, kInit);
  episodic::BoundaryRefiner refiner(episodic::Refinement::modularity, kInit, kMin, 2, 8);
  EventTable table(kInit, kMin, kMax);
  std::vector<float> thresholds(kTokens);
  std::vector<std::uint8_t> raw(kTokens), final_flags(kTokens);
  std::int64_t first = 0;
  for (const std::int64_t n : steps) {
    const auto at = static_cast<std::size_t>(first), count = static_cast<std::size_t>(n);
    threshold.step(surprise.data() + first, n, thresholds.data() + first);
    for (std::size_t t = at; t < at + count; ++t) raw[t] = surprise[t] > thresholds[t];
    refiner.step(stream.views(), first, std::span(raw).subspan(at, count),
                 std::span(final_flags).subspan(at, count));
    first += n;
    table.close_up_to(first - kLocal, [&](std::int64_t t) {
      return final_flags[static_cast<std::size_t>(t)] != 0;
    });
  }
  REQUIRE(first == kTokens);
  REQUIRE(raw != final_flags);
  REQUIRE(table.size() > 20);

  const DeviceArray<float> ring0(stream.rings[0]), ring1(stream.rings[1]);
  const DeviceArray<const void*> keys(std::vector<const void*>{ring0.data(), ring1.data()});
  const DeviceArray<float> d_surprise(surprise), recent(kLocal + kLongest), d_threshold(kLongest);
  const DeviceArray<std::uint8_t> d_raw(kLongest), flags(kLocal + kMax + kLongest);
  const DeviceArray<EventRange> events(100);
  episodic::kernels::RefineParams refine;
  refine.objective = episodic::kernels::RefineObjective::modularity;
  refine.n_init = kInit;
  refine.min_block = kMin;
  refine.n = refine.max_previous = kLongest;
  refine.raw = d_raw.data();
  refine.flags = flags.data();
  refine.flag_capacity = static_cast<std::int64_t>(flags.size());
  refine.dtype = episodic::DType::float32;
  refine.n_layers = refine.n_kv_heads = 2;
  refine.head_dim = 8;
  refine.keys = keys.data();
  refine.key_capacity = kTokens;
  refine.key_head_stride = kTokens * 9;
  refine.key_row_stride = 9;
  const DeviceArray<unsigned char> workspace(refine_workspace_bytes(refine));
  refine.workspace = workspace.data();
  refine.workspace_bytes = workspace.size();
  episodic::kernels::ThresholdParams flag;
  flag.tau = kLocal;
  flag.n_init = kInit;
  flag.gamma = kGamma;
  flag.recent = recent.data();
  flag.recent_capacity = static_cast<std::int64_t>(recent.size());
  flag.threshold = d_threshold.data();
  flag.raw = d_raw.data();
  CloseEventsParams close;
  close.n_local = kLocal;
  close.min_block = kMin;
  close.max_block = kMax;
  close.flags = flags.data();
  close.flag_capacity = static_cast<std::int64_t>(flags.size());
  close.events = events.data();
  close.event_capacity = static_cast<std::int64_t>(events.size());
  episodic_test::in_every_order([&] {
    const DeviceArray<TimelineState> state(std::vector<TimelineState>{initial_timeline(kInit)});
    flag.state = refine.state = close.state = state.data();
    flag.surprise = d_surprise.data();
#if defined(EPISODIC_EMULATED_CUDA)
    emulator::reset_calls();
#endif
    for (const std::int64_t n : steps) {
      flag.n = refine.n = close.n = n;
      REQUIRE(surprise_threshold(flag, nullptr) == cudaSuccess);
      REQUIRE(refine_boundaries(refine, nullptr) == cudaSuccess);
      REQUIRE(close_events(close, nullptr) == cudaSuccess);
      flag.surprise += n;
    }
#if defined(EPISODIC_EMULATED_CUDA)
    const emulator::Calls calls = emulator::calls();
    REQUIRE(calls.allocations + calls.frees + calls.synchronisations + calls.copies == 0);
#endif
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const TimelineState after = state.host()[0];
    REQUIRE(after.tokens == kTokens);
    REQUIRE(after.errors == 0);
    REQUIRE(after.n_events == table.size());
    REQUIRE(after.last_boundary == refiner.last_boundary());
    REQUIRE(after.pending_start == table.pending_start());
    const std::vector<EventRange> got = events.host();
    for (std::int64_t i = 0; i < table.size(); ++i) {
      REQUIRE(got[static_cast<std::size_t>(i)].start == table[i].start);
      REQUIRE(got[static_cast<std::size_t>(i)].end == table[i].end);
    }
  });
}

TEST_CASE("close_events kernel refuses parameters that make no sense, without a device") {
  CloseEventsParams p;
  REQUIRE(close_events(p, nullptr) == cudaErrorInvalidValue);  // no window
  p.n_local = 4;
  p.event_capacity = 2;
  REQUIRE(close_events(p, nullptr) == cudaSuccess);  // no tokens
  p.n = 2;
  p.flag_capacity = 7;
  REQUIRE(close_events(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  TimelineState state;
  std::uint8_t flags[7] = {};
  EventRange events[2];
  p.state = &state;
  p.flags = flags;
  p.events = events;
  CloseEventsParams bad = p;
  bad.flag_capacity = 6;  // a pending flag would be overwritten
  REQUIRE(close_events(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.min_block = 2;  // more than max_block
  REQUIRE(close_events(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.event_capacity = 0;
  REQUIRE(close_events(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.n_timelines = 0;
  REQUIRE(close_events(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.max_block = INT64_MAX;
  REQUIRE(close_events(bad, nullptr) == cudaErrorInvalidValue);
}

}  // namespace close_events_test
