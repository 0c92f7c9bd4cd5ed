// SPDX-License-Identifier: Apache-2.0
// The CPU twin, which its own tests hold against the definition, must agree to the bit.
#include "kernels/threshold.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "episodic/timeline/surprise.hpp"
#include "kernels/device.hpp"
#include "support/same_bits.hpp"

namespace threshold_test {

using episodic::kernels::initial_timeline;
using episodic::kernels::surprise_threshold;
using episodic::kernels::ThresholdParams;
using episodic::kernels::ThresholdWindow;
using episodic::kernels::TimelineState;
using episodic_test::DeviceArray;

struct Settings {
  ThresholdWindow window = ThresholdWindow::moving;
  std::int64_t tau = 1, n_init = 0;
  double gamma = 1.0;
};

struct Result {
  std::vector<float> threshold;
  std::vector<std::uint8_t> raw;
  std::uint32_t errors = 0;
};

using episodic_test::same_bits;

/// The stream `surprise` in these steps; token positions come from the state alone.
Result run(const Settings& settings, const std::vector<float>& surprise,
           const std::vector<std::int64_t>& steps) {
  const std::int64_t longest = *std::max_element(steps.begin(), steps.end());
  TimelineState host = initial_timeline(settings.n_init);
  const DeviceArray<TimelineState> state(std::vector<TimelineState>{host});
  const DeviceArray<float> recent(static_cast<std::size_t>(settings.tau + longest));
  Result result;
  std::int64_t first = 0;
  for (const std::int64_t n : steps) {
    const DeviceArray<float> values(
        std::vector<float>(surprise.begin() + first, surprise.begin() + first + n));
    const DeviceArray<float> threshold(values.size());
    const DeviceArray<std::uint8_t> raw(values.size());
    ThresholdParams p;
    p.window = settings.window;
    p.tau = settings.tau;
    p.n_init = settings.n_init;
    p.gamma = settings.gamma;
    p.n = n;
    p.state = state.data();
    p.surprise = values.data();
    p.recent = recent.data();
    p.recent_capacity = settings.tau + longest;
    p.threshold = threshold.data();
    p.raw = raw.data();
    const DeviceArray<float> kept(values.size());
    if (first % 2 == 0) p.maybe_kept = kept.data();
    REQUIRE(surprise_threshold(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    if (p.maybe_kept) REQUIRE(same_bits(kept.host(), values.host()));
    for (const float x : threshold.host()) result.threshold.push_back(x);
    for (const std::uint8_t x : raw.host()) result.raw.push_back(x);
    host = state.host()[0];
    REQUIRE(host.tokens == first);
    first = host.tokens += n;  // as close_events would
    REQUIRE(cudaMemcpy(state.data(), &host, sizeof(host), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  result.errors = host.errors;
  return result;
}

std::vector<float> run_twin(const Settings& settings, const std::vector<float>& surprise,
                            const std::vector<std::int64_t>& steps) {
  const bool moving = settings.window == ThresholdWindow::moving;
  episodic::SurpriseThreshold twin(
      moving ? episodic::ThresholdWindow::moving : episodic::ThresholdWindow::chunked, settings.tau,
      settings.gamma, settings.n_init);
  std::vector<float> threshold(surprise.size());
  std::int64_t first = 0;
  for (const std::int64_t n : steps) {
    twin.step(surprise.data() + first, n, threshold.data() + first);
    first += n;
  }
  return threshold;
}

std::vector<float> random_surprise(std::mt19937& random, std::int64_t n) {
  std::gamma_distribution<float> draw(0.7f, 3.0f);
  std::vector<float> s(static_cast<std::size_t>(n));
  for (float& x : s) x = draw(random);
  return s;
}

std::vector<std::int64_t> random_steps(std::mt19937& random, std::int64_t n, std::int64_t longest) {
  std::vector<std::int64_t> steps;
  while (n > 0) {
    const std::int64_t most = random() % 3 ? longest : 1;
    steps.push_back(
        std::min(n, 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most))));
    n -= steps.back();
  }
  return steps;
}

TEST_CASE("threshold kernel has the bits of its CPU twin, in steps of any length") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(41);
  int flagged = 0, infinite = 0;
  for (int seed = 0; seed < 24; ++seed) {
    Settings settings;
    settings.window = seed % 2 ? ThresholdWindow::chunked : ThresholdWindow::moving;
    const std::int64_t n = seed == 0 ? 1 : 1 + static_cast<std::int64_t>(random() % 400);
    settings.tau = 1 + static_cast<std::int64_t>(random() % (seed % 4 < 2 ? 300 : 12));
    if (seed >= 20) settings.tau = 30'000;  // more than a block keeps in shared memory
    settings.n_init = static_cast<std::int64_t>(random() % 20);
    settings.gamma = 0.5 * (seed % 5);
    const std::vector<float> surprise = random_surprise(random, n);
    const auto steps = random_steps(random, n, seed % 3 ? 60 : 400);
    const std::vector<float> expected = run_twin(settings, surprise, steps);
    episodic_test::in_every_order([&] {
      const Result got = run(settings, surprise, steps);
      REQUIRE(same_bits(got.threshold, expected));
      for (std::size_t t = 0; t < surprise.size(); ++t) {
        REQUIRE(got.raw[t] == (surprise[t] > expected[t] ? 1 : 0));
        flagged += got.raw[t];
        infinite += std::isinf(expected[t]);
      }
      REQUIRE(got.errors == 0);
    });
  }
  REQUIRE(flagged > 200);
  REQUIRE(infinite > 50);
}

TEST_CASE("threshold kernel adds in the order of its CPU twin, as sums that cancel show") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(43);
  std::vector<float> surprise = random_surprise(random, 200);
  for (std::size_t t = 0; t + 1 < surprise.size(); t += 8) {
    surprise[t] = 0x1p60f;
    surprise[t + 1] = -0x1p60f;
  }
  Settings settings;
  settings.tau = 64;
  settings.gamma = 0.0;
  for (const ThresholdWindow window : {ThresholdWindow::moving, ThresholdWindow::chunked}) {
    settings.window = window;
    const std::vector<std::int64_t> steps{70, 1, 40, 89};
    REQUIRE(
        same_bits(run(settings, surprise, steps).threshold, run_twin(settings, surprise, steps)));
  }
}

TEST_CASE("moving threshold of the kernel does not feel the cut, to the bit") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(42);
  Settings settings;
  settings.tau = 150;
  const std::vector<float> surprise = random_surprise(random, 420);
  const Result whole = run(settings, surprise, {420});
  for (int cut = 0; cut < 3; ++cut) {
    const Result parts = run(settings, surprise, random_steps(random, 420, 50));
    REQUIRE(same_bits(parts.threshold, whole.threshold));
    REQUIRE(parts.raw == whole.raw);
  }
}

TEST_CASE("threshold kernel reports a NaN, and sets no boundary where it reaches") {
  EPISODIC_NEEDS_DEVICE();
  std::vector<float> surprise(40, 1.0f);
  for (std::size_t t = 0; t < surprise.size(); t += 2) surprise[t] = 2.0f;
  surprise[0] = std::numeric_limits<float>::quiet_NaN();  // token 0 has none: whatever it is
  Settings settings;
  settings.tau = 6;
  const Result clean = run(settings, surprise, {15, 25});
  REQUIRE(clean.errors == 0);
  REQUIRE(same_bits(clean.threshold, run_twin(settings, surprise, {40})));
  surprise[14] = std::numeric_limits<float>::quiet_NaN();
  surprise[18] = surprise[22] = 50.0f;
  const Result broken = run(settings, surprise, {15, 25});
  REQUIRE(broken.errors == episodic::kernels::kSurpriseIsNaN);
  REQUIRE(broken.raw[14] == 0);
  REQUIRE(broken.raw[18] == 0);  // the NaN is in its window
  REQUIRE(broken.raw[22] == 1);
}

TEST_CASE("threshold kernel refuses parameters that make no sense, without a device") {
  ThresholdParams p;
  REQUIRE(surprise_threshold(p, nullptr) == cudaErrorInvalidValue);  // tau 0
  p.tau = 4;
  REQUIRE(surprise_threshold(p, nullptr) == cudaSuccess);  // no tokens
  p.n = 3;
  p.recent_capacity = 7;
  REQUIRE(surprise_threshold(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  TimelineState state;
  float floats[7];
  std::uint8_t flags[3];
  p.state = &state;
  p.surprise = p.recent = p.threshold = floats;
  p.raw = flags;
  p.recent_capacity = 6;
  REQUIRE(surprise_threshold(p, nullptr) == cudaErrorInvalidValue);  // would overwrite the window
  p.recent_capacity = 7;
  p.window = static_cast<ThresholdWindow>(7);
  REQUIRE(surprise_threshold(p, nullptr) == cudaErrorInvalidValue);
  p.window = ThresholdWindow::moving;
  p.n = -1;
  REQUIRE(surprise_threshold(p, nullptr) == cudaErrorInvalidValue);
}

}  // namespace threshold_test
