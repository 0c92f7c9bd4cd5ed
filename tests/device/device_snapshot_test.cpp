// SPDX-License-Identifier: Apache-2.0
// Snapshots of a DeviceMemory: the same bits whatever they share with the memory that goes on, and
// what goes over the host's link for them.
#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "episodic/base/error.hpp"
#include "steps.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_snapshot_test {

using namespace device_steps;

constexpr std::int64_t kTokens = 300;

/// What a sequence read: of each token, which text it is from.
using Path = std::vector<std::size_t>;

/// Texts of which a sequence may read any at each position, in steps that depend on the position
/// alone.
class Texts {
 public:
  Texts(const MemoryShape& shape, DType dtype) {
    for (std::uint32_t seed = 11; seed < 14; ++seed) {
      all_.push_back(driver::random_tokens(shape, kTokens, seed));
      round_to(all_.back(), dtype);
    }
  }
  /// One step from text `which`, appended to the path. \return outputs
  std::vector<std::vector<float>> step(DeviceMemory& memory, Path& path, std::size_t which) const {
    const std::int64_t at = memory.tokens();
    const std::int64_t n = std::min<std::int64_t>(at / 36 % 2 == 1 ? 1 : 12, kTokens - at);
    path.insert(path.end(), static_cast<std::size_t>(n), which);
    return device_steps::step(memory, all_[which], at, n);
  }
  /// The same steps of a memory that never went back. \return the outputs of the last one
  std::vector<std::vector<float>> replay(DeviceMemory& memory, const Path& path) const {
    memory.reset();
    std::vector<std::vector<float>> last;
    Path again;
    while (again.size() < path.size()) last = step(memory, again, path[again.size()]);
    return last;
  }

 private:
  std::vector<std::vector<Token>> all_;
};

/// All that a host's memory has of it.
std::uint64_t digest(DeviceMemory& memory) {
  EpisodicMemory host(memory.config(), memory.shape());
  memory.save(host, {}, {});
  return host.digest();
}

/// A memory that goes back and on many times, to any of its snapshots, gives at each look the bits
/// of one that read the same without going back.
void walk(const MemoryConfig& config, const MemoryShape& shape, const DeviceMemoryOptions& options,
          std::uint32_t seed, bool expects_room) {
  const Texts texts(shape, options.dtype);
  DeviceMemory memory(config, shape, options, nullptr), straight(config, shape, options, nullptr);
  REQUIRE((memory.bytes().snapshots > 0) == expects_room);
  struct Taken {
    Path path;
    std::shared_ptr<const MemorySnapshot> snapshot;
  };
  std::vector<Taken> taken;
  Path path;
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int looked = 0, gone_back = 0, far_back = 0;
  for (int round = 0; round < 13; ++round) {
    if (taken.size() < 5 && below(3) > 0) taken.push_back({path, memory.snapshot()});
    // Few tokens within the room behind a snapshot, or many beyond the ring.
    const std::size_t which = below(3);
    std::vector<std::vector<float>> last;
    const std::size_t end = path.size() + (below(2) == 0 ? 1 + below(12) : 60 + below(40));
    while (path.size() < std::min<std::size_t>(end, kTokens))
      last = texts.step(memory, path, which);
    if (!last.empty() && round % 4 == 0) {
      ++looked;
      REQUIRE(texts.replay(straight, path) == last);
      REQUIRE(memory.events().all() == straight.events().all());
      for (std::int64_t l = 0; l < memory.lanes(); ++l) {
        REQUIRE(memory.recall_lists(l).similarity == straight.recall_lists(l).similarity);
        REQUIRE(memory.recall_lists(l).contiguity == straight.recall_lists(l).contiguity);
      }
    }
    if (taken.empty() || (below(3) == 0 && memory.tokens() < 120)) continue;
    const std::size_t to = below(taken.size());
    const Taken back = taken[to];
    far_back += path.size() > back.path.size() + 60 ? 1 : 0;
    memory.restore(*back.snapshot);
    ++gone_back;
    path = back.path;
    REQUIRE(memory.tokens() == static_cast<std::int64_t>(path.size()));
    // What was taken behind it is refused; one of the others ends, on another thread.
    for (const Taken& other : taken)
      if (other.path.size() > path.size())
        REQUIRE_THROWS_AS(memory.restore(*other.snapshot), ConfigError);
    std::erase_if(taken, [&](const Taken& other) { return other.path.size() > path.size(); });
    if (taken.size() > 3)
      std::thread([gone = std::exchange(taken[below(2)], taken.back())] {}).join();
  }
  REQUIRE(looked > 1);
  REQUIRE(gone_back > 4);
  REQUIRE(far_back > 0);
}

MemoryConfig walk_config() {
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 12;
  return config;
}

TEST_CASE("device snapshots: going back and on gives the bits of a straight way, in every tier") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const DType dtype = DType::float16;
  const TempDir dir;
  for (const auto& [recall_every, room, tier] :
       episodic_test::combined<std::int64_t, bool, std::uint32_t>({1, 3}, {true, false},
                                                                  {0, 1, 2})) {
    INFO("recall_every " << recall_every << ", room " << room << ", tier " << tier);
    MemoryConfig plain = walk_config();
    plain.recall_every = recall_every;
    DeviceMemoryOptions options{dtype, kTokens};
    options.room_for_snapshots = room;
    walk(tiers(plain, shape, options, dir.path())[tier], shape, options, (room ? 3 : 4) + 2 * tier,
         room);
  }
}

// Every run has these kinds go back elsewhere: heads and groups with lanes, by keys and with codes
// in device_state_test.cpp.
TEST_CASE("device snapshots: going back and on gives the bits of a straight way, in all settings",
          "[long]") {
  EPISODIC_NEEDS_DEVICE();
  std::vector<MemoryConfig> configs;
  const auto with = [&](auto change) {
    configs.push_back(walk_config());
    change(configs.back());
  };
  with([](MemoryConfig& c) { c.kv_dtype = DType::int8; });
  with([](MemoryConfig& c) {
    c.scope = EventScope::head;
    c.segmenter = SegmenterKind::gaussian;
    c.min_count = 8;
    c.gamma = 0.5;
  });
  with([](MemoryConfig& c) {
    c.segmenter = SegmenterKind::fixed;
    c.refine = Refinement::none;
    c.n_init = 20;  // a snapshot within the sinks
  });
  with([](MemoryConfig& c) {
    c.segmenter = SegmenterKind::k_similarity;
    c.gamma = 0.5;
    c.n_init = 0;
  });
  with([](MemoryConfig& c) { c.recall_groups = 2; });
  with([](MemoryConfig& c) {
    c.refine = Refinement::modularity;
    c.reweight = Reweighting::exact;
    c.window = ThresholdWindow::chunked;
  });
  for (const std::size_t i : episodic_test::sampled_range<std::size_t>(0, configs.size(), 3)) {
    INFO(i);
    DeviceMemoryOptions options{i % 2 == 0 ? DType::float32 : DType::bfloat16, kTokens};
    options.room_for_snapshots = i % 3 != 2;
    walk(configs[i], shape_of(2, 4, 2), options, 20 + static_cast<std::uint32_t>(i),
         options.room_for_snapshots);
  }
}

TEST_CASE("device snapshots: a memory that went back is saved as one that did not") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const MemoryConfig config = walk_config();
  for (const auto& [room, behind] :
       episodic_test::combined<bool, std::size_t>({true, false}, {6, 30, 120})) {
    INFO("room " << room << ", tokens behind " << behind);
    DeviceMemoryOptions options{DType::float32, kTokens};
    options.room_for_snapshots = room;
    const Texts texts(shape, options.dtype);
    DeviceMemory memory(config, shape, options, nullptr), same(config, shape, options, nullptr);
    Path path, same_path;
    while (path.size() < 170) texts.step(memory, path, 0);
    const auto snapshot = memory.snapshot();
    const Path here = path;
    while (path.size() < here.size() + behind) texts.step(memory, path, 1);
    memory.restore(*snapshot);
    texts.replay(same, here);
    REQUIRE(digest(memory) == digest(same));
    REQUIRE(memory.relevance(1, 130, 40) == same.relevance(1, 130, 40));
  }
}

TEST_CASE("device snapshots: they wait for what runs beside the stream, however it overlaps") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  DeviceMemoryOptions options{DType::float32, kTokens};
  const TempDir dir;
  for (const bool room : episodic_test::sampled(std::vector{false, true}, 1)) {
    options.room_for_snapshots = room;
    const MemoryConfig config = tiers(walk_config(), shape, options, dir.path())[1];
    const Texts texts(shape, options.dtype);
    std::vector<std::vector<float>> expected;
    episodic_test::in_every_overlap([&] {
      DeviceMemory memory(config, shape, options, nullptr);
      REQUIRE(memory.bytes().host > 0);
      Path path;
      while (path.size() < 120) texts.step(memory, path, 0);
      const auto snapshot = memory.snapshot();
      while (path.size() < 190) texts.step(memory, path, 1);
      memory.restore(*snapshot);
      path.resize(120);
      const auto next = texts.step(memory, path, 2);
      if (expected.empty()) expected = texts.replay(memory, path);
      REQUIRE(next == expected);
    });
  }
}

TEST_CASE("device snapshots: one within a step is not taken for the one behind it") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(1, 2, 1);
  const DeviceMemoryOptions options{DType::float32, kTokens};
  const Texts texts(shape, options.dtype);
  DeviceMemory memory(walk_config(), shape, options, nullptr),
      straight(walk_config(), shape, options, nullptr);
  Path path;
  while (path.size() < 72) texts.step(memory, path, 0);
  texts.replay(straight, path);
  const DeviceArray<unsigned char> rows(std::vector<unsigned char>(12 * 2 * 16 * 4, 1)),
      out(12 * 2 * 16 * 4);
  const DeviceArray<float> surprise(std::vector<float>(12, 3.0f));
  std::shared_ptr<const MemorySnapshot> within, behind;
  for (DeviceMemory* m : {&memory, &straight}) {
    m->begin_step(12);
    m->attend(0, layer_step(*m, rows.data(), rows.data(), rows.data(), out.data()));
    if (m == &memory) within = m->snapshot();
    m->end_step(surprise.data());
    if (m == &memory) behind = m->snapshot();
  }
  path.insert(path.end(), 12, 0);
  const Path here = path;
  texts.step(memory, path, 1);
  memory.restore(*behind);
  path = here;
  Path other = here;
  REQUIRE(memory.relevance(0, 60, 24) == straight.relevance(0, 60, 24));
  for (int i = 0; i < 9; ++i)
    REQUIRE(texts.step(memory, path, 2) == texts.step(straight, other, 2));
  REQUIRE(memory.events().all() == straight.events().all());
}

TEST_CASE(
    "device snapshots: more of them than device memory has room for, and after their memory") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens};
  const Texts texts(shape, options.dtype);
  std::vector<std::shared_ptr<const MemorySnapshot>> snapshots;
  std::vector<std::vector<std::vector<float>>> expected;
  std::vector<Path> paths;
  auto memory = std::make_unique<DeviceMemory>(walk_config(), shape, options, nullptr);
  Path path;
  for (int i = 0; i < 6; ++i) {
    for (int steps = 0; steps < 9; ++steps) texts.step(*memory, path, 0);
    snapshots.push_back(memory->snapshot());
    paths.push_back(path);
    Path on = path;
    expected.push_back(texts.step(*memory, on, 1));
    memory->restore(*snapshots.back());
  }
  for (std::size_t i = snapshots.size(); i-- > 0;) {
    memory->restore(*snapshots[i]);
    Path on = paths[i];
    REQUIRE(texts.step(*memory, on, 1) == expected[i]);
  }
  // None is another memory's, wherever that one lies.
  memory.reset();
  memory = std::make_unique<DeviceMemory>(walk_config(), shape, options, nullptr);
  for (const auto& snapshot : snapshots) REQUIRE_THROWS_AS(memory->restore(*snapshot), ConfigError);
  snapshots.clear();
  // A reset, or another memory's state, ends what was taken before; but for the empty sequence.
  const auto empty = memory->snapshot();
  path.clear();
  for (int steps = 0; steps < 20; ++steps) texts.step(*memory, path, 0);
  const auto later = memory->snapshot();
  memory->reset();
  REQUIRE_THROWS_AS(memory->restore(*later), ConfigError);
  path.clear();
  for (int steps = 0; steps < 30; ++steps) texts.step(*memory, path, 2);
  REQUIRE_THROWS_AS(memory->restore(*later), ConfigError);
  memory->restore(*empty);
  REQUIRE(memory->tokens() == 0);
}

#if defined(EPISODIC_EMULATED_CUDA)

/// Bytes that go over the link while f runs.
template <class F>
std::int64_t link_bytes(F&& f) {
  const std::int64_t before = emulator::calls().link_bytes;
  f();
  return emulator::calls().link_bytes - before;
}

/// A step whose inputs lie on the device: what it sends over the link is the memory's.
std::int64_t link_bytes_of_step(DeviceMemory& memory, std::int64_t n, const void* rows, void* out,
                                const float* surprise) {
  return link_bytes([&] {
    memory.begin_step(n);
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)
      memory.attend(l, layer_step(memory, rows, rows, rows, out));
    memory.end_step(surprise);
    memory.abandon_step();
  });
}

TEST_CASE("device snapshots: an ask copies the rows that it overwrites, not the window") {
  const MemoryShape shape = shape_of(2, 2, 1);
  MemoryConfig config = walk_config();
  config.n_local = 640;
  config.tau = 32;
  config.chunk = 64;
  config.gamma = 1e6;  // few events, of max_block
  const std::int64_t kv_row = shape.head_dim * 4, rows_of_token = shape.n_layers * 3 * kv_row;
  std::vector<unsigned char> zeros(static_cast<std::size_t>(64 * 2 * shape.head_dim * 4), 0);
  const DeviceArray<unsigned char> rows(zeros), out(zeros.size());
  const DeviceArray<float> surprise(std::vector<float>(64, 1.0f));
  // What going back takes besides: timelines, lists, counts.
  constexpr std::int64_t kSmall = 6'000;
  for (const bool room : {true, false}) {
    DeviceMemoryOptions options{DType::float32, 2000};
    options.room_for_snapshots = room;
    DeviceMemory memory(config, shape, options, nullptr);
    REQUIRE(memory.bytes().window > 50 * kSmall);
    while (memory.tokens() < 1024)
      link_bytes_of_step(memory, 64, rows.data(), out.data(), surprise.data());
    for (const std::int64_t asked : {1, 20, 64, 200}) {
      INFO("room " << room << ", tokens " << asked);
      std::shared_ptr<const MemorySnapshot> here;
      std::int64_t bytes = link_bytes([&] { here = memory.snapshot(); });
      for (std::int64_t left = asked, n = 0; left > 0; left -= n) {
        n = left > 64 ? 64 : left > 8 ? left - 8 : 1;  // a question, and an answer of 8
        bytes += link_bytes_of_step(memory, n, rows.data(), out.data(), surprise.data());
      }
      bytes += link_bytes([&] { memory.restore(*here); });
      // Each row that is copied goes both ways. They are copied some ahead, without room from the
      // first token on, with it from the second chunk on.
      constexpr std::int64_t kAhead = 64;
      const std::int64_t overwritten = room ? std::max<std::int64_t>(0, asked - 64) : asked;
      const std::int64_t copied = overwritten == 0 ? 0 : overwritten + kAhead;
      const std::int64_t state = room ? 0 : 2 * (memory.bytes().window / 6);  // in place
      REQUIRE(bytes <= 2 * copied * rows_of_token + kSmall + state);
      if (overwritten > kAhead) REQUIRE(bytes >= 2 * overwritten * rows_of_token);
    }
    // A snapshot that nothing follows, or whose state is known already, copies next to nothing.
    const auto first = memory.snapshot();
    REQUIRE(link_bytes([&] {
              const auto again = memory.snapshot();
              memory.restore(*again);
            }) <= kSmall + (room ? 0 : memory.bytes().window / 6));
  }
}

TEST_CASE("device snapshots: where the device has no memory for them, the host has") {
  const emulator::DefaultsBehind defaults;
  const MemoryShape shape = shape_of();
  const MemoryConfig config = walk_config();
  const DeviceMemoryOptions options{DType::float32, kTokens};
  const Texts texts(shape, options.dtype);
  const DeviceMemoryBytes bytes = DeviceMemory::bytes_needed(config, shape, options);
  REQUIRE(bytes.snapshots > 0);
  std::vector<std::vector<std::vector<float>>> all;
  // On the device; the device's own bound; device_bytes, by a byte.
  for (int i = 0; i < 3; ++i) {
    MemoryConfig bounded = config;
    if (i == 1)
      emulator::set_device_capacity(emulator::device_bytes() + bytes.total() - bytes.snapshots);
    if (i == 2) bounded.device_bytes = bytes.total() - 1;
    DeviceMemory memory(bounded, shape, options, nullptr);
    emulator::restore_defaults();
    REQUIRE((memory.bytes().snapshots > 0) == (i == 0));
    REQUIRE(memory.bytes().host == 0);
    REQUIRE(memory.bytes().total() == bytes.total() - (i == 0 ? 0 : bytes.snapshots));
    Path path;
    while (path.size() < 150) texts.step(memory, path, 0);
    const auto here = memory.snapshot();
    const Path before = path;
    while (path.size() < 300) texts.step(memory, path, 1);
    memory.restore(*here);
    path = before;
    while (path.size() < 300) all.push_back(texts.step(memory, path, 2));
  }
  const std::size_t third = all.size() / 3;
  for (std::size_t i = 0; i < third; ++i) {
    REQUIRE(all[i] == all[third + i]);
    REQUIRE(all[i] == all[2 * third + i]);
  }
}

TEST_CASE("device snapshots: a copy that fails leaves the step unmade and the snapshot whole") {
  const emulator::DefaultsBehind defaults;
  const MemoryShape shape = shape_of();
  DeviceMemoryOptions options{DType::float32, kTokens};
  options.room_for_snapshots = GENERATE(true, false);
  const Texts texts(shape, options.dtype);
  DeviceMemory memory(walk_config(), shape, options, nullptr),
      straight(walk_config(), shape, options, nullptr);
  Path path;
  while (path.size() < 170) texts.step(memory, path, 0);
  // Of the snapshot itself: there is none.
  for (int left = 0; left < 3; ++left) {
    emulator::set_link_copies_left(left);
    REQUIRE_THROWS_AS(memory.snapshot(), DeviceError);
  }
  emulator::restore_defaults();
  const auto here = memory.snapshot();
  const Path before = path;
  // Of rows that a step overwrites, at each of its copies.
  int failed = 0;
  while (path.size() < episodic_test::all_or(260u, 215u)) {
    const std::int64_t tokens = memory.tokens();
    for (int left = 0; left < 100; ++left) {
      emulator::set_link_copies_left(left);
      bool threw = false;
      try {
        memory.begin_step(1);
      } catch (const DeviceError&) {
        threw = true;
      }
      emulator::set_link_copies_left(-1);
      memory.abandon_step();
      REQUIRE(memory.tokens() == tokens);
      if (!threw) break;
      ++failed;
    }
    texts.step(memory, path, 1);
  }
  REQUIRE(failed > 10);
  const auto last = texts.step(memory, path, 1);
  REQUIRE(texts.replay(straight, path) == last);
  // Of going back: it may be done again.
  memory.restore(*here);
  path = before;
  const auto next = texts.step(memory, path, 2);
  REQUIRE(texts.replay(straight, path) == next);
}

#endif

}  // namespace device_snapshot_test
