// SPDX-License-Identifier: Apache-2.0
#include "kernels/refine.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "episodic/timeline/refine.hpp"
#include "kernels/device.hpp"
#include "support/refine_reference.hpp"

namespace refine_test {

using episodic::DType;
using episodic::Refinement;
using episodic::kernels::initial_timeline;
using episodic::kernels::refine_boundaries;
using episodic::kernels::refine_workspace_bytes;
using episodic::kernels::RefineObjective;
using episodic::kernels::RefineParams;
using episodic::kernels::TimelineState;
using episodic_test::DeviceArray;
using episodic_test::KeyStream;
using episodic_test::RefineReference;

RefineObjective objective_of(Refinement kind) {
  switch (kind) {
    case Refinement::modularity:
      return RefineObjective::modularity;
    case Refinement::conductance:
      return RefineObjective::conductance;
    case Refinement::intra_inter:
      return RefineObjective::intra_inter;
    case Refinement::none:
      break;
  }
  return RefineObjective::none;
}

constexpr Refinement kObjectives[] = {Refinement::modularity, Refinement::conductance,
                                      Refinement::intra_inter};

struct Settings {
  Refinement kind = Refinement::modularity;
  DType dtype = DType::float32;
  std::int64_t n_init = 0, min_block = 1;
  std::int64_t max_previous = 0;
};

/// A sequence on the device. Its key rings hold what the contract promises and NaN elsewhere.
class DeviceRefiner {
 public:
  DeviceRefiner(const Settings& settings, const KeyStream& stream, std::int64_t longest)
      : settings_(settings),
        stream_(stream),
        capacity_(settings.max_previous + longest),
        pitch_((stream.d + 15) / 8 * 8),
        state_(std::vector<TimelineState>{initial_timeline(settings.n_init)}),
        flags_(static_cast<std::size_t>(kFlags)) {
    const std::size_t elements = static_cast<std::size_t>(stream.n_heads * capacity_ * pitch_);
    std::vector<const void*> pointers;
    for (std::int64_t layer = 0; layer < stream.n_layers; ++layer) {
      rings_.push_back(std::make_unique<DeviceArray<unsigned char>>(
          elements * static_cast<std::size_t>(episodic::size_of(settings.dtype))));
      pointers.push_back(rings_.back()->data());
    }
    keys_ = std::make_unique<DeviceArray<const void*>>(pointers);
  }

  RefineParams params(std::int64_t n) const {
    RefineParams p;
    p.objective = objective_of(settings_.kind);
    p.n_init = settings_.n_init;
    p.min_block = settings_.min_block;
    p.n = n;
    p.max_previous = settings_.max_previous;
    p.state = state_.data();
    p.flags = flags_.data();
    p.flag_capacity = kFlags;
    p.dtype = settings_.dtype;
    p.n_layers = stream_.n_layers;
    p.n_kv_heads = stream_.n_heads;
    p.head_dim = stream_.d;
    p.keys = keys_->data();
    p.key_capacity = capacity_;
    p.key_head_stride = capacity_ * pitch_;
    p.key_row_stride = pitch_;
    return p;
  }

  /// Final flags of the next n tokens.
  std::vector<std::uint8_t> step(std::int64_t n) {
    const std::int64_t first = state().tokens;
    load_keys(first + n);
    const auto begin = stream_.raw.begin() + first;
    const DeviceArray<std::uint8_t> raw(std::vector<std::uint8_t>(begin, begin + n));
    RefineParams p = params(n);
    p.raw = raw.data();
    const DeviceArray<unsigned char> workspace(refine_workspace_bytes(p));  // no more than that
    p.workspace = workspace.data();
    p.workspace_bytes = workspace.size();
    REQUIRE(cudaMemset(p.workspace, 0xff, p.workspace_bytes) == cudaSuccess);  // NaNs
    REQUIRE(refine_boundaries(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    TimelineState now = state();
    REQUIRE(now.tokens == first);
    now.tokens += n;  // as close_events would
    REQUIRE(cudaMemcpy(state_.data(), &now, sizeof(now), cudaMemcpyHostToDevice) == cudaSuccess);
    previous_ = first;
    const std::vector<std::uint8_t> ring = flags_.host();
    std::vector<std::uint8_t> out;
    for (std::int64_t t = first; t < first + n; ++t)
      out.push_back(ring[static_cast<std::size_t>(t % kFlags)]);
    return out;
  }

  TimelineState state() const { return state_.host()[0]; }

 private:
  static constexpr std::int64_t kFlags = 331;

  void load_keys(std::int64_t end) {
    for (std::int64_t layer = 0; layer < stream_.n_layers; ++layer) {
      std::vector<float> ring(static_cast<std::size_t>(stream_.n_heads * capacity_ * pitch_),
                              std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t t = previous_; t < end; ++t)
        for (std::int64_t h = 0; h < stream_.n_heads; ++h)
          std::copy_n(stream_.all[static_cast<std::size_t>(layer)].data() +
                          (t * stream_.n_heads + h) * stream_.d,
                      stream_.d, ring.data() + (h * capacity_ + t % capacity_) * pitch_);
      const std::vector<unsigned char> bytes = episodic_test::stored(ring, settings_.dtype);
      REQUIRE(cudaMemcpy(rings_[static_cast<std::size_t>(layer)]->data(), bytes.data(),
                         bytes.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    }
  }

  Settings settings_;
  const KeyStream& stream_;
  std::int64_t capacity_, pitch_, previous_ = 0;
  DeviceArray<TimelineState> state_;
  DeviceArray<std::uint8_t> flags_;
  std::vector<std::unique_ptr<DeviceArray<unsigned char>>> rings_;
  std::unique_ptr<DeviceArray<const void*>> keys_;
};

void round_keys(KeyStream& stream, DType dtype) {
  for (std::vector<float>& layer : stream.all) episodic_test::stored(layer, dtype);
}

std::vector<std::int64_t> random_steps(std::mt19937& random, std::int64_t n, std::int64_t longest) {
  std::vector<std::int64_t> steps;
  while (n > 0) {
    const std::int64_t most = random() % 4 ? longest : 1;
    steps.push_back(
        std::min(n, 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most))));
    n -= steps.back();
  }
  return steps;
}

std::vector<std::uint8_t> run(const Settings& settings, const KeyStream& stream,
                              const std::vector<std::int64_t>& steps) {
  DeviceRefiner refiner(settings, stream, *std::max_element(steps.begin(), steps.end()));
  std::vector<std::uint8_t> flags;
  for (const std::int64_t n : steps)
    for (const std::uint8_t flag : refiner.step(n)) flags.push_back(flag);
  REQUIRE(refiner.state().errors == 0);
  return flags;
}

std::vector<std::uint8_t> run_twin(const Settings& settings, KeyStream& stream,
                                   const std::vector<std::int64_t>& steps) {
  episodic::BoundaryRefiner twin(settings.kind, settings.n_init, settings.min_block, stream.n_heads,
                                 stream.d);
  std::vector<std::uint8_t> flags(stream.raw.size());
  std::int64_t first = 0;
  for (const std::int64_t n : steps) {
    stream.load(first, first + n);
    const auto at = static_cast<std::size_t>(first), count = static_cast<std::size_t>(n);
    twin.step(stream.views(), first, std::span(stream.raw).subspan(at, count),
              std::span(flags).subspan(at, count));
    first += n;
  }
  return flags;
}

struct Counts {
  int moved = 0, kept = 0, dropped = 0, steps = 0;
};

/// One stream against the graph itself, until two candidates are too close to tell; all of it
/// against the CPU twin if it never was so.
void compare(const Settings& settings, KeyStream& stream, const std::vector<std::int64_t>& steps,
             double margin, Counts& counts) {
  RefineReference reference{settings.kind, settings.n_init, settings.min_block};
  reference.margin = margin;
  std::vector<std::uint8_t> expected;
  std::int64_t first = 0;
  bool clear = true;
  for (const std::int64_t n : steps) {
    const auto flags = reference.step(stream, first, first + n, clear);
    if (!clear) break;
    expected.insert(expected.end(), flags.begin(), flags.end());
    first += n;
    ++counts.steps;
  }
  if (clear) REQUIRE(run_twin(settings, stream, steps) == expected);
  episodic_test::in_every_order([&] {
    std::vector<std::uint8_t> got = run(settings, stream, steps);
    got.resize(expected.size());
    REQUIRE(got == expected);
  });
  counts.moved += reference.moved;
  counts.kept += reference.kept;
  counts.dropped += reference.dropped;
}

TEST_CASE("refinement kernel equals the textbook objectives on the explicit graph, float32") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(51);
  Counts counts;
  for (int seed = 0; seed < 12; ++seed) {
    Settings settings;
    settings.kind = kObjectives[seed % 3];
    settings.n_init = static_cast<std::int64_t>(random() % 9);
    settings.min_block = 1 + static_cast<std::int64_t>(random() % 6);
    const std::int64_t n = 60 + static_cast<std::int64_t>(random() % 90);
    const std::int64_t heads = 1 + static_cast<std::int64_t>(random() % 3);
    const std::int64_t longest = 1 + static_cast<std::int64_t>(random() % 60);
    const std::int64_t dim = 3 + static_cast<std::int64_t>(random() % 20);
    settings.max_previous = longest;
    KeyStream stream(random, n, 1 + seed % 3, heads, dim, 2 * longest,
                     0.03 + 0.3 * (seed % 4) / 3.0);
    compare(settings, stream, random_steps(random, n, longest), 1e-9, counts);
  }
  REQUIRE(counts.steps > 60);
  REQUIRE(counts.moved > 30);
  REQUIRE(counts.kept > 5);
  REQUIRE(counts.dropped > 30);
}

TEST_CASE("refinement kernel on 16-bit keys, heads of one and of several stages") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(52);
  Counts counts;
  int seed = 0;
  for (const std::int64_t dim : {8, 40, 136}) {
    Settings settings;
    settings.kind = kObjectives[seed % 3];
    settings.dtype = seed % 2 ? DType::float16 : DType::bfloat16;
    settings.n_init = 3;
    settings.min_block = 3;
    settings.max_previous = 70;
    KeyStream stream(random, 130, 2, 1 + seed % 2, dim, 140, 0.08);
    round_keys(stream, settings.dtype);
    compare(settings, stream, {70, 1, 59}, 1e-5, counts);
    ++seed;
  }
  REQUIRE(counts.steps > 6);
  REQUIRE(counts.moved > 10);
}

TEST_CASE("refinement kernel with windows over many tiles of the graph") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(53);
  for (const Refinement kind : kObjectives)
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      Settings settings;
      settings.kind = kind;
      settings.dtype = dtype;
      settings.min_block = 8;
      settings.max_previous = 100;
      KeyStream stream(random, 300, 1, 1, 8, 300, 0.0);
      round_keys(stream, dtype);
      for (const int t : {30, 75, 250, 290}) stream.raw[static_cast<std::size_t>(t)] = 1;
      const std::vector<std::int64_t> steps{100, 200};
      REQUIRE(run(settings, stream, steps) == run_twin(settings, stream, steps));
    }
}

TEST_CASE("refinement kernel: equal tokens tie, and the latest split wins") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(54);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    Settings settings;
    settings.dtype = dtype;
    settings.n_init = 4;
    settings.min_block = 3;
    KeyStream stream(random, 90, 2, 2, 16, 90, 0.0);
    for (auto& layer : stream.all)
      for (std::int64_t t = 1; t < 90; ++t) std::copy_n(layer.data(), 32, layer.data() + t * 32);
    stream.raw[31] = stream.raw[83] = 1;
    for (const Refinement kind : {Refinement::modularity, Refinement::intra_inter}) {
      settings.kind = kind;
      REQUIRE(run(settings, stream, {90}) == stream.raw);
    }
    // Conductance of n equal tokens is best in the middle; for odd n two splits tie.
    settings.kind = Refinement::conductance;
    settings.n_init = 0;
    stream.raw[31] = stream.raw[83] = 0;
    stream.raw[21] = 1;
    const std::vector<std::uint8_t> flags = run(settings, stream, {90});
    for (std::size_t t = 0; t < flags.size(); ++t)
      REQUIRE(flags[t] == (t == 16 ? 1 : 0));  // window [0, 31): splits 15 and 16 tie
  }
}

TEST_CASE("refinement kernel: zeros, and sides that have no channel in common") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(55);
  for (const Refinement kind : kObjectives) {
    Settings settings;
    settings.kind = kind;
    settings.min_block = 2;
    KeyStream stream(random, 80, 1, 2, 8, 80, 0.0);
    stream.raw[40] = 1;
    const auto erase = [&](std::int64_t from, std::int64_t to, std::int64_t c0, std::int64_t c1) {
      for (std::int64_t t = from; t < to; ++t)
        for (std::int64_t c = c0; c < c1; ++c)
          stream.all[0][static_cast<std::size_t>(t * 16 + c)] = 0.0f;
    };
    const auto final_boundary = [&] {
      const std::vector<std::uint8_t> flags = run(settings, stream, {80});
      REQUIRE(flags == run_twin(settings, stream, {80}));
      return std::find(flags.begin(), flags.end(), 1) - flags.begin();
    };
    erase(0, 33, 0, 8);
    erase(33, 80, 8, 16);
    const auto between = final_boundary();
    if (kind == Refinement::intra_inter) REQUIRE(between == 33);  // no edge crosses it
    erase(0, 33, 8, 16);  // the left side is nothing but zeros
    final_boundary();
    erase(33, 80, 0, 8);
    REQUIRE(final_boundary() == 40);
  }
}

TEST_CASE("refinement kernel: cancellation does not choose the boundary") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(56);
  KeyStream stream(random, 160, 1, 1, 8, 160, 0.0);
  for (std::int64_t t = 0; t < 160; ++t)
    for (std::int64_t c = 0; c < 8; ++c)
      stream.all[0][static_cast<std::size_t>(t * 8 + c)] =
          4096.0f + (c == (t < 83 ? 0 : 1) ? 0.25f : 0.0f);
  stream.raw[100] = 1;
  Settings settings;
  settings.min_block = 2;
  const std::vector<std::uint8_t> flags = run(settings, stream, {160});
  REQUIRE(std::count(flags.begin(), flags.end(), 1) == 1);
  REQUIRE(flags[83] == 1);
}

TEST_CASE("refinement kernel: keys that are not numbers leave the boundary where it is") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(57);
  for (const Refinement kind : kObjectives) {
    KeyStream stream(random, 40, 1, 1, 8, 40, 0.0);
    stream.all[0][12 * 8] = std::numeric_limits<float>::quiet_NaN();
    stream.raw[20] = 1;
    Settings settings;
    settings.kind = kind;
    settings.min_block = 2;
    REQUIRE(run(settings, stream, {40}) == stream.raw);
  }
}

TEST_CASE("refinement kernel: steps without a choice read no key") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(58);
  KeyStream stream(random, 30, 1, 1, 8, 30, 0.0);
  for (auto& layer : stream.all)
    std::fill(layer.begin(), layer.end(), std::numeric_limits<float>::quiet_NaN());
  Settings settings;
  settings.min_block = 4;
  settings.max_previous = 12;
  DeviceRefiner refiner(settings, stream, 12);
  stream.raw[10] = stream.raw[11] = 1;
  REQUIRE(refiner.step(10) == std::vector<std::uint8_t>(10, 0));
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::reset_calls();
#endif
  REQUIRE(refiner.step(1) == std::vector<std::uint8_t>{1});
#if defined(EPISODIC_EMULATED_CUDA)
  REQUIRE(emulator::calls().launches == 1);
#endif
  REQUIRE(refiner.state().last_boundary == 10);
  REQUIRE(refiner.state().last_in_previous == 10);
  REQUIRE(refiner.step(1) == std::vector<std::uint8_t>{0});  // too near to the last
  REQUIRE(refiner.state().last_boundary == 10);
  REQUIRE(refiner.state().last_in_previous == -1);
  REQUIRE(refiner.state().errors == 0);
}

TEST_CASE("refinement kernel says when a step was longer than it was told") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(59);
  KeyStream stream(random, 60, 1, 1, 8, 60, 0.0);
  stream.raw[5] = stream.raw[50] = 1;
  Settings settings;
  settings.min_block = 2;
  settings.max_previous = 10;
  DeviceRefiner refiner(settings, stream, 40);
  refiner.step(40);
  REQUIRE(refiner.state().errors == 0);
  refiner.step(20);  // the tokens at hand begin at the boundary near 5
  REQUIRE(refiner.state().errors == episodic::kernels::kStepsTooLong);
}

TEST_CASE("without an objective the kernel keeps the flags, of any number of timelines") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(60);
  constexpr std::int64_t kTimelines = 3, kTokens = 300, kFlags = 311;
  std::vector<std::uint8_t> raw(kTimelines * kTokens);
  for (std::size_t i = 0; i < 2 * kTokens; ++i) raw[i] = random() % 5 == 0;  // none in the last
  const DeviceArray<std::uint8_t> d_raw(raw);
  const DeviceArray<std::uint8_t> flags(kTimelines * kFlags);
  std::vector<TimelineState> states(kTimelines, initial_timeline(4));
  for (TimelineState& state : states) state.tokens = 77, state.last_boundary = 70;
  const DeviceArray<TimelineState> state(states);
  RefineParams p;
  p.n = kTokens;
  p.n_timelines = kTimelines;
  p.state = state.data();
  p.raw = d_raw.data();
  p.flags = flags.data();
  p.flag_capacity = kFlags;
  REQUIRE(refine_workspace_bytes(p) == 0);
  episodic_test::in_every_order([&] {
    REQUIRE(refine_boundaries(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const std::vector<std::uint8_t> got = flags.host();
    const std::vector<TimelineState> after = state.host();
    for (std::int64_t u = 0; u < kTimelines; ++u) {
      std::int64_t last = -1;
      for (std::int64_t i = 0; i < kTokens; ++i) {
        const std::uint8_t flag = raw[static_cast<std::size_t>(u * kTokens + i)];
        REQUIRE(got[static_cast<std::size_t>(u * kFlags + (77 + i) % kFlags)] == flag);
        if (flag) last = 77 + i;
      }
      const TimelineState& s = after[static_cast<std::size_t>(u)];
      REQUIRE(s.last_in_previous == last);
      REQUIRE(s.last_boundary == (last >= 0 ? last : 70));
      REQUIRE(s.tokens == 77);
    }
  });
}

TEST_CASE("refinement's workspace is for every shorter step too") {
  RefineParams p;
  p.objective = RefineObjective::conductance;
  p.n_kv_heads = 8;
  p.head_dim = 128;
  for (const std::int64_t layers : {1, 12}) {
    p.n_layers = layers;
    p.max_previous = 512;
    std::size_t before = 0;
    for (p.n = 1; p.n <= 1500; ++p.n) {
      const std::size_t bytes = refine_workspace_bytes(p);
      REQUIRE(bytes > 0);
      REQUIRE(bytes >= before);
      before = bytes;
    }
  }
}

TEST_CASE("refinement kernel refuses parameters that make no sense, without a device") {
  RefineParams p;
  REQUIRE(refine_boundaries(p, nullptr) == cudaSuccess);  // no tokens
  p.n = 4;
  REQUIRE(refine_boundaries(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  TimelineState state;
  std::uint8_t flags[4];
  alignas(256) static unsigned char workspace[256];
  const void* keys[1] = {workspace};
  p.state = &state;
  p.raw = p.flags = flags;
  p.flag_capacity = 4;
  p.objective = RefineObjective::modularity;
  p.n_layers = p.n_kv_heads = 1;
  p.head_dim = 8;
  p.keys = keys;
  p.key_capacity = 4;
  p.key_row_stride = 8;
  p.workspace = workspace;
  p.workspace_bytes = sizeof(workspace);
  REQUIRE(refine_workspace_bytes(p) > sizeof(workspace));
  REQUIRE(refine_boundaries(p, nullptr) == cudaErrorInvalidValue);
  p.workspace_bytes = refine_workspace_bytes(p);
  RefineParams bad = p;
  bad.workspace = workspace + 16;
  REQUIRE(refine_boundaries(bad, nullptr) == cudaErrorMisalignedAddress);
  bad = p, bad.key_row_stride = 12;
  REQUIRE(refine_boundaries(bad, nullptr) == cudaErrorMisalignedAddress);
  bad = p, bad.max_previous = 1;  // more than the rings hold
  bad.workspace_bytes = refine_workspace_bytes(bad);
  REQUIRE(refine_boundaries(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.head_dim = 12;
  REQUIRE(refine_boundaries(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.n_timelines = 2;
  REQUIRE(refine_boundaries(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.dtype = DType::int8;
  REQUIRE(refine_workspace_bytes(bad) == 0);
  REQUIRE(refine_boundaries(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.n = (1 << 16) + 1, bad.flag_capacity = 1 << 20, bad.key_capacity = 1 << 20;
  REQUIRE(refine_workspace_bytes(bad) == 0);
  REQUIRE(refine_boundaries(bad, nullptr) == cudaErrorInvalidValue);
}

}  // namespace refine_test
