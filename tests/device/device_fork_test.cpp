// SPDX-License-Identifier: Apache-2.0
// Forks of a DeviceMemory: the same bits as a memory that read all of it itself, whatever they
// share and whichever of them ends first.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "steps.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

namespace device_fork_test {

using namespace device_steps;

constexpr std::int64_t kTokens = 360;

/// Texts that sequences read from, as they are stored.
class Texts {
 public:
  Texts(const MemoryShape& shape, DType dtype) {
    for (std::uint32_t seed = 21; seed < 24; ++seed) {
      all_.push_back(driver::random_tokens(shape, kTokens, seed));
      round_to(all_.back(), dtype);
    }
  }
  /// Up to `end` tokens, in steps that depend on the position alone. \return outputs of the last
  std::vector<std::vector<float>> read(DeviceMemory& memory, std::size_t which,
                                       std::int64_t end) const {
    std::vector<std::vector<float>> last;
    while (memory.tokens() < end) {
      const std::int64_t at = memory.tokens();
      const std::int64_t n = at / 36 % 4 == 1 ? 1 : std::min<std::int64_t>(12, end - at);
      last = step(memory, all_[which], at, n);
    }
    return last;
  }

 private:
  std::vector<std::vector<Token>> all_;
};

/// All that a host's memory has of it, which only a memory that was never saved can be saved to.
std::uint64_t digest(DeviceMemory& memory) {
  EpisodicMemory host(memory.config(), memory.shape());
  memory.fork().save(host, {}, {});
  return host.digest();
}

/// What is recalled next, and what was.
void require_same(DeviceMemory& memory, DeviceMemory& straight) {
  REQUIRE(memory.tokens() == straight.tokens());
  for (std::int64_t s = 0; s < memory.scopes(); ++s) {
    REQUIRE(memory.events(s).all() == straight.events(s).all());
    REQUIRE(memory.forgotten(s) == straight.forgotten(s));
    REQUIRE(memory.last_step(s).surprise == straight.last_step(s).surprise);
  }
  for (std::int64_t l = 0; l < memory.lanes(); ++l) {
    REQUIRE(memory.recall_lists(l).similarity == straight.recall_lists(l).similarity);
    REQUIRE(memory.recall_lists(l).contiguity == straight.recall_lists(l).contiguity);
  }
  REQUIRE(memory.recalled_events() == straight.recalled_events());
  REQUIRE(digest(memory) == digest(straight));
}

/// Three memories that read the first text to `forked`: the first goes on with it, a fork with the
/// second, a fork of that one with the third. The first two end before the third does.
/// \param every_one looks at all three, else at the third alone
void go_apart(const MemoryConfig& config, const MemoryShape& shape,
              const DeviceMemoryOptions& options, std::int64_t forked, bool every_one) {
  CAPTURE(forked);
  const Texts texts(shape, options.dtype);
  DeviceMemory straight(config, shape, options, nullptr);
  auto first = std::make_unique<DeviceMemory>(config, shape, options, nullptr);
  texts.read(*first, 0, forked);
  auto second = std::make_unique<DeviceMemory>(first->fork());
  if (forked > 0 && every_one) {
    texts.read(straight, 0, forked);
    require_same(*second, straight);
  }
  const std::int64_t again = std::min(kTokens, forked + 60), end = std::min(kTokens, again + 60);
  const auto of_first = texts.read(*first, 0, end);
  texts.read(*second, 1, again);
  DeviceMemory third = second->fork();
  const auto of_second = texts.read(*second, 1, end);
  if (every_one) {
    texts.read(straight, 0, end);
    require_same(*first, straight);
    straight.reset();
  }
  first.reset();
  texts.read(third, 2, again + 20);

  if (every_one) {
    texts.read(straight, 0, forked);
    texts.read(straight, 1, again);
    const auto of_straight = texts.read(straight, 1, end);
    REQUIRE(of_second == of_straight);
    require_same(*second, straight);
    straight.reset();
  }
  second.reset();

  const auto of_third = texts.read(third, 2, end);
  texts.read(straight, 0, forked);
  texts.read(straight, 1, again);
  texts.read(straight, 2, again + 20);
  REQUIRE(texts.read(straight, 2, end) == of_third);
  require_same(third, straight);
}

MemoryConfig fork_config() {
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  return config;
}

#if defined(EPISODIC_EMULATED_CUDA)
/// By how many bytes the emulated device maps memory, while it lives.
struct Granularity {
  explicit Granularity(std::int64_t bytes) { emulator::set_mapping_granularity(bytes); }
  emulator::DefaultsBehind behind;
};
#else
struct Granularity {
  explicit Granularity(std::int64_t) {}
};
#endif

TEST_CASE("device forks go on as memories that read all of it") {
  EPISODIC_NEEDS_DEVICE();
  const Granularity pages(4096);
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float16, kTokens};
  for (const std::int64_t forked : {0, 3, 25, 200})
    go_apart(fork_config(), shape, options, forked, true);
}

TEST_CASE("device forks go on as memories that read all of it, in all settings") {
  EPISODIC_NEEDS_DEVICE();
  const Granularity pages(4096);
  const MemoryShape shape = shape_of();
  MemoryConfig config = fork_config();
  DeviceMemoryOptions options{DType::float16, kTokens};
  SECTION("events in 8 bits") { config.kv_dtype = DType::int8; }
  SECTION("events of heads") { config.scope = EventScope::head; }
  SECTION("groups of heads") { config.recall_groups = 2; }
  SECTION("codes of representatives") { options.codes_from = 1; }
  SECTION("individual representatives") { config.score = RepresentativeScore::max; }
  SECTION("boundaries from keys") {
    config.segmenter = SegmenterKind::k_similarity;
    config.refine = Refinement::none;
  }
  SECTION("boundaries at random") { config.segmenter = SegmenterKind::random; }
  SECTION("association and forgetting") {
    config.retention.emplace();
    config.retention->memoria.short_term_capacity = 6;
    config.retention->memoria.initial_lifespan = 4;
  }
  SECTION("recall now and then") { config.recall_every = 3; }
  SECTION("layers that recall nothing") { config.recall_layers = std::vector<std::int64_t>{1}; }
  SECTION("no room for snapshots") { options.room_for_snapshots = false; }
  go_apart(config, shape, options, 150, false);
}

/// With events at home in page-locked memory, and slots for a third of them.
MemoryConfig over_host(const MemoryConfig& config, const MemoryShape& shape,
                       const DeviceMemoryOptions& options) {
  MemoryConfig over = tiers(config, shape, options, {})[1];
  over.host_bytes = 0;
  return over;
}

TEST_CASE("device forks go on over page-locked memory too") {
  EPISODIC_NEEDS_DEVICE();
  MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float16, kTokens};
  MemoryConfig config = fork_config();
  std::int64_t granularity = 4096;
  SECTION("that grows") { shape = shape_of(3, 4, 4); }
  SECTION("that is there at once") { granularity = 2 << 20; }
  SECTION("with events of heads") { config.scope = EventScope::head; }
  SECTION("with events in 8 bits") { config.kv_dtype = DType::int8; }
  const Granularity pages(granularity);
  const MemoryConfig over = over_host(config, shape, options);
  {
    DeviceMemory memory(over, shape, options, nullptr);
    REQUIRE(memory.bytes().host > 0);
    Texts(shape, options.dtype).read(memory, 0, 200);
    const DeviceMemory fork = memory.fork();
    if (shape.n_layers == 3) REQUIRE(2 * fork.bytes().host_taken < memory.bytes().host_taken);
  }
  go_apart(over, shape, options, 150, true);
}

TEST_CASE("device forks: what one forgets, pins and goes back to is its own") {
  EPISODIC_NEEDS_DEVICE();
  const Granularity pages(4096);
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens};
  const Texts texts(shape, options.dtype);
  DeviceMemory memory(fork_config(), shape, options, nullptr),
      straight(fork_config(), shape, options, nullptr);
  texts.read(memory, 0, 200);
  texts.read(straight, 0, 200);
  memory.pin(3);
  memory.forget(2);
  const auto before = memory.snapshot();
  DeviceMemory fork = memory.fork();
  REQUIRE(fork.forgotten() == std::vector<EventId>{2});
  REQUIRE_THROWS_AS(fork.forget(3), DataError);  // it is pinned there too
  fork.pin(3, false);
  fork.forget(3);
  REQUIRE(memory.forgotten() == std::vector<EventId>{2});
  REQUIRE(mentions(refusal<ConfigError>([&] { memory.restore(*before); }), "forked"));
  REQUIRE_THROWS_AS(fork.restore(*before), ConfigError);  // it is another memory's

  const auto forked = memory.snapshot(), of_fork = fork.snapshot();
  texts.read(memory, 1, 290);
  texts.read(fork, 2, 340);
  memory.restore(*forked);
  fork.restore(*of_fork);
  texts.read(memory, 0, 300);
  texts.read(fork, 1, 300);
  straight.forget(2);
  const auto straight_at = straight.snapshot();
  texts.read(straight, 0, 300);
  REQUIRE(memory.events().all() == straight.events().all());
  for (std::int64_t l = 0; l < memory.lanes(); ++l)
    REQUIRE(memory.recall_lists(l).similarity == straight.recall_lists(l).similarity);
  straight.restore(*straight_at);
  straight.forget(3);
  texts.read(straight, 1, 300);
  REQUIRE(fork.events().all() == straight.events().all());
  for (std::int64_t l = 0; l < fork.lanes(); ++l)
    REQUIRE(fork.recall_lists(l).similarity == straight.recall_lists(l).similarity);
}

TEST_CASE("device forks: a memory that begins anew, or becomes another, leaves its forks theirs") {
  EPISODIC_NEEDS_DEVICE();
  const Granularity pages(4096);
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens};
  const Texts texts(shape, options.dtype);
  const bool at_host = GENERATE(false, true);
  CAPTURE(at_host);
  const MemoryConfig config = at_host ? over_host(fork_config(), shape, options) : fork_config();
  DeviceMemory memory(config, shape, options, nullptr), straight(config, shape, options, nullptr);
  texts.read(memory, 0, 250);
  DeviceMemory fork = memory.fork();
  texts.read(fork, 1, 270);
  const std::uint64_t of_fork = digest(fork);
  SECTION("reset") {
    const auto kind = [&] {  // of a graph, which is told where events lie
      memory.begin_step(1);
      const std::uint32_t of_step = memory.step_kind().value();
      memory.abandon_step();
      return of_step;
    };
    memory.reset();
    const std::uint32_t before = kind();
    const DeviceMemory another = memory.fork();
    memory.reset();
    REQUIRE((kind() != before) == at_host);
    texts.read(memory, 2, 290);
    texts.read(straight, 2, 290);
  }
  SECTION("load") {
    EpisodicMemory host(config, shape);
    texts.read(straight, 2, 200);
    straight.save(host, {}, {});
    memory.load(host);
    texts.read(memory, 2, 290);
    texts.read(straight, 2, 290);
  }
  require_same(memory, straight);
  REQUIRE(digest(fork) == of_fork);

  const std::uint64_t of_memory = digest(memory);
  fork.reset();
  texts.read(fork, 1, 270);
  REQUIRE(digest(memory) == of_memory);
  straight.reset();
  texts.read(straight, 1, 270);
  require_same(fork, straight);
}

TEST_CASE("device forks: what cannot be forked is refused by name") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens};
  const TempDir dir;
  const auto all = tiers(fork_config(), shape, options, dir.path());
  {
    DeviceMemory memory(all[2], shape, options, nullptr);
    REQUIRE(mentions(refusal<ConfigError>([&] { memory.fork(); }), "raise device_bytes"));
  }
  DeviceMemory memory(all[0], shape, options, nullptr);
  memory.begin_step(3);
  REQUIRE(mentions(refusal<DataError>([&] { memory.fork(); }), "a step is open"));
  memory.abandon_step();
  REQUIRE(memory.fork().tokens() == 0);
}

#if defined(EPISODIC_EMULATED_CUDA)

TEST_CASE("device forks share what is final, and copy where a device shares nothing") {
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float16, kTokens};
  const MemoryConfig config = fork_config();
  struct Case {
    std::int64_t granularity;
    int driver;
    bool shares;
  };
  for (const Case& of :
       {Case{4096, 13000, true}, Case{4096, 10020, false}, Case{0, 13000, false}}) {
    const Granularity pages(of.granularity);
    emulator::set_driver_version(of.driver);
    CAPTURE(of.granularity, of.driver);
    const Texts texts(shape, options.dtype);
    DeviceMemory memory(config, shape, options, nullptr);
    texts.read(memory, 0, 340);
    const std::int64_t alone = emulator::device_bytes();
    {
      DeviceMemory fork = memory.fork();
      const std::int64_t more = emulator::device_bytes() - alone;
      // Keys and values of some 312 closed tokens are 79,872 bytes; the last pieces are copied.
      REQUIRE((more <= alone - 55'000) == of.shares);
      REQUIRE((fork.bytes().taken <= memory.bytes().taken - 55'000) == of.shares);
      REQUIRE(fork.bytes().taken == more);
      texts.read(memory, 0, kTokens);
      texts.read(fork, 0, kTokens);
      REQUIRE(digest(fork) == digest(memory));
    }
    REQUIRE(emulator::device_bytes() == memory.bytes().taken);
  }
  REQUIRE(emulator::device_bytes() == 0);
}

TEST_CASE("device forks: where there is no room for one the memory goes on") {
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float16, kTokens};
  const MemoryConfig config = fork_config();
  const Granularity pages(4096);
  const Texts texts(shape, options.dtype);
  DeviceMemory memory(config, shape, options, nullptr), straight(config, shape, options, nullptr);
  texts.read(memory, 0, 300);
  const std::int64_t alone = emulator::device_bytes();
  std::optional<DeviceMemory> fork;
  std::int64_t refused = 0;
  for (std::int64_t left = 0; !fork; left += 3) {
    REQUIRE(left < 400);
    emulator::set_mappings_left(left);
    try {
      fork.emplace(memory.fork());
    } catch (const BudgetError&) {
      ++refused;
      REQUIRE(emulator::device_bytes() == alone);
    }
  }
  REQUIRE(refused > 2);
  emulator::set_mappings_left(-1);
  texts.read(memory, 0, 350);
  texts.read(straight, 0, 350);
  require_same(memory, straight);
  texts.read(*fork, 0, 350);
  require_same(*fork, straight);
}

#endif

}  // namespace device_fork_test
