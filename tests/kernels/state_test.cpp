// SPDX-License-Identifier: Apache-2.0
// States of attention merged on the device, beside the host's.
#include "kernels/state.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "batches.hpp"
#include "episodic/attention/state.hpp"
#include "kernels/device.hpp"

namespace kernels_state_test {

using episodic_test::Arena;
using episodic_test::DeviceArray;
using episodic_test::normal_floats;
using namespace episodic::kernels;

constexpr float kNoKey = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The state of some rows, of which some have no key: what stands there must not matter.
struct State {
  State(std::int64_t n_rows, std::int64_t width, bool with_mass, double share_empty,
        std::mt19937& random)
      : rows(n_rows), dim(width) {
    const auto n = static_cast<std::size_t>(rows);
    out = normal_floats(n * static_cast<std::size_t>(dim), random);
    lse = normal_floats(n, random, 20.0f);
    if (with_mass) mass = normal_floats(n, random);
    for (std::size_t row = 0; row < n; ++row) {
      if (std::uniform_real_distribution<>()(random) >= share_empty) continue;
      lse[row] = kNoKey;
      for (std::int64_t c = 0; c < dim; ++c)
        out[row * static_cast<std::size_t>(dim) + static_cast<std::size_t>(c)] = kNan;
      if (with_mass) mass[row] = kNan;
    }
  }
  episodic::AttentionState view() {
    return {rows, dim, out.data(), lse.data(), mass.empty() ? nullptr : mass.data()};
  }
  std::int64_t rows, dim;
  std::vector<float> out, lse, mass;
};

/// To the bit on the emulated device, whose functions are the host's; else to rounding.
void require_equal(const std::vector<float>& got, const std::vector<float>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      REQUIRE(std::isnan(got[i]));
      continue;
    }
#if defined(EPISODIC_EMULATED_CUDA)
    REQUIRE(got[i] == want[i]);
#else
    if (std::isinf(want[i]))
      REQUIRE(got[i] == want[i]);
    else
      REQUIRE(std::abs(got[i] - want[i]) <= 3e-7f * (1.0f + std::abs(want[i])));
#endif
  }
}

TEST_CASE("states merge on the device as on the host, rows without a key too") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(3);
  for (const std::int64_t rows : {1, 2, 7, 8, 9, 300})
    for (const std::int64_t dim : {0, 1, 31, 64, 200})
      for (const bool with_mass : {false, true})
        for (const double empty : {0.0, 0.4, 1.0}) {
          State a(rows, dim, with_mass, empty, random), b(rows, dim, with_mass, empty, random);
          INFO(rows << " rows of " << dim);
          episodic_test::in_every_order([&] {
            const DeviceArray<float> out(a.out), lse(a.lse), mass(a.mass), part_out(b.out),
                part_lse(b.lse), part_mass(b.mass);
            MergeStatesParams p;
            p.n_rows = rows;
            p.value_dim = dim;
            p.out = out.data();
            p.lse = lse.data();
            p.part_out = part_out.data();
            p.part_lse = part_lse.data();
            if (with_mass) {
              p.maybe_weighted_mass = mass.data();
              p.maybe_part_weighted_mass = part_mass.data();
            }
            REQUIRE(merge_states(p, nullptr) == cudaSuccess);
            REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
            State want = a;
            episodic::merge_states(want.view(), b.view());
            require_equal(out.host(), want.out);
            require_equal(lse.host(), want.lse);
            if (with_mass) require_equal(mass.host(), want.mass);
            REQUIRE(part_lse.host() == b.lse);
          });
        }
  REQUIRE(merge_states({}, nullptr) == cudaSuccess);
}

TEST_CASE("sums and masses of a part are rescaled on the device as on the host") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(5);
  for (const std::int64_t heads : {1, 3, 32})
    for (const std::int64_t keys : {0, 1, 13, 700})
      for (const std::int64_t events : {0, 1, 40}) {
        const std::vector<float> sums =
            normal_floats(static_cast<std::size_t>(keys * heads), random);
        const std::vector<float> drawn =
            normal_floats(static_cast<std::size_t>(events * heads), random);
        const std::vector<double> masses(drawn.begin(), drawn.end());
        std::vector<float> part = normal_floats(static_cast<std::size_t>(heads), random), whole;
        for (float& x : part) whole.push_back(x + 0.5f);
        part.back() = kNoKey;
        std::vector<float> want_sums = sums;
        std::vector<double> want_masses = masses;
        if (keys > 0)
          episodic::rescale_sums(keys, heads, part.data(), whole.data(), want_sums.data());
        if (events > 0)
          episodic::rescale_sums(events, heads, part.data(), whole.data(), want_masses.data());
        episodic_test::in_every_order([&] {
          const DeviceArray<float> d_sums(sums), d_part(part), d_whole(whole);
          const DeviceArray<double> d_masses(masses);
          REQUIRE(rescale_sums(
                      {heads, keys, events, d_part.data(), d_whole.data(),
                       keys > 0 ? d_sums.data() : nullptr, events > 0 ? d_masses.data() : nullptr},
                      nullptr) == cudaSuccess);
          REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
          require_equal(d_sums.host(), want_sums);
          const std::vector<double> got = d_masses.host();
          for (std::size_t i = 0; i < got.size(); ++i)
            REQUIRE(std::abs(got[i] - want_masses[i]) <= 1e-15 * std::abs(want_masses[i]));
        });
      }
}

TEST_CASE("batches of states and sums have the bits of their sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  episodic_test::check_batches<MergeStatesParams>(
      [](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<std::uint32_t>(i));
        const std::int64_t rows = 1 + 7 * i;
        State a(rows, 5 + i, i % 2 == 1, 0.3, random), b(rows, 5 + i, i % 2 == 1, 0.3, random);
        MergeStatesParams p;
        p.n_rows = rows;
        p.value_dim = a.dim;
        p.out = arena.out(a.out);
        p.lse = arena.out(a.lse);
        p.part_out = arena.in(b.out);
        p.part_lse = arena.in(b.lse);
        if (!a.mass.empty()) {
          p.maybe_weighted_mass = arena.out(a.mass);
          p.maybe_part_weighted_mass = arena.in(b.mass);
        }
        return p;
      },
      merge_states, merge_states_batch,
      [](std::int64_t n) { return episodic_test::launches_of(n); });
  episodic_test::check_batches<RescaleSumsParams>(
      [](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<std::uint32_t>(i));
        const std::int64_t heads = 1 + i % 3, keys = 2 * i + 1;
        RescaleSumsParams p;
        p.n_heads = heads;
        p.n_keys = keys;
        p.n_events = i % 2;
        p.part_lse = arena.in(normal_floats(static_cast<std::size_t>(heads), random));
        p.whole_lse = arena.in(normal_floats(static_cast<std::size_t>(heads), random));
        p.maybe_sums = arena.out(normal_floats(static_cast<std::size_t>(keys * heads), random));
        if (p.n_events > 0)
          p.maybe_masses = arena.out(std::vector<double>(static_cast<std::size_t>(heads), 0.25));
        return p;
      },
      rescale_sums, rescale_sums_batch,
      [](std::int64_t n) { return episodic_test::launches_of(n); });
}

}  // namespace kernels_state_test
