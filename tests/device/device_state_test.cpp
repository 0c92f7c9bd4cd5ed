// SPDX-License-Identifier: Apache-2.0
// States of a DeviceMemory: snapshots, and the way to a memory of the host and back.
#include <algorithm>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "kernels/codes.hpp"
#include "steps.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace {

using namespace device_steps;

constexpr std::int64_t kTokens = 260;

/// Steps that depend on the position alone: chunks, with runs of single tokens between them.
std::vector<std::vector<float>> feed(DeviceMemory& memory, const std::vector<Token>& tokens,
                                     std::int64_t end) {
  std::vector<std::vector<float>> all;
  while (memory.tokens() < end) {
    const std::int64_t at = memory.tokens();
    const std::int64_t n = at / 36 % 2 == 1 ? 1 : std::min<std::int64_t>(12, end - at);
    for (auto& rows : step(memory, tokens, at, n)) all.push_back(std::move(rows));
  }
  return all;
}

MemoryConfig tier_config(DType dtype) {
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 12;
  config.min_block = 6;
  config.kv_dtype = dtype;
  return config;
}

KeepOptions in(const std::filesystem::path& dir) {
  KeepOptions keep;
  keep.dir = dir;
  return keep;
}

}  // namespace

TEST_CASE("a device's memory comes back to a snapshot, in every tier") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7),
                           other = driver::random_tokens(shape, kTokens, 8);
  const TempDir dir;
  // Many short events, of which a list has more than the slots keep behind a restore; gaussian's
  // moments come back too.
  for (const auto& [dtype, segmenter, tier] :
       episodic_test::combined<DType, SegmenterKind, std::size_t>(
           {DType::float16, DType::int8, DType::fp8},
           {SegmenterKind::gaussian, SegmenterKind::surprise}, {0, 1, 2})) {
    MemoryConfig plain = tier_config(dtype);
    plain.recall_every = 3;
    plain.segmenter = segmenter;
    plain.min_count = 8;
    plain.gamma = plain.segmenter == SegmenterKind::gaussian ? 0.5 : -1;
    const MemoryConfig config = tiers(plain, shape, {DType::float16, kTokens}, dir.path())[tier];
    DeviceMemory memory(config, shape, {DType::float16, kTokens}, nullptr);
    const auto empty = memory.snapshot();
    const auto from_start = feed(memory, tokens, 130);
    const auto events = memory.events().all();
    const auto lists = memory.recall_lists(1);
    REQUIRE_FALSE(lists.similarity.empty());
    const auto snapshot = memory.snapshot();
    const auto expected = feed(memory, tokens, 220);
    const auto events_then = memory.events().all();
    memory.restore(*snapshot);
    REQUIRE(memory.tokens() == 130);
    REQUIRE((memory.events().all() == events));
    REQUIRE((memory.recall_lists(1).similarity == lists.similarity));
    REQUIRE((memory.recall_lists(1).contiguity == lists.contiguity));
    feed(memory, other, kTokens);  // overwrites all that came after
    const auto late = memory.snapshot();
    memory.restore(*snapshot);
    REQUIRE(feed(memory, tokens, 220) == expected);
    REQUIRE((memory.events().all() == events_then));
    // `late` tells of events that were given anew
    REQUIRE_THROWS_AS(memory.restore(*late), ConfigError);
    memory.restore(*empty);
    REQUIRE(feed(memory, tokens, 130) == from_start);
    REQUIRE_THROWS_AS(memory.restore(*snapshot), ConfigError);
    DeviceMemory another(config, shape, {DType::float16, kTokens}, nullptr);
    REQUIRE_THROWS_AS(another.restore(*snapshot), ConfigError);
  }
}

TEST_CASE("codes of representatives change nothing but the bytes that a search reads") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 17),
                           other = driver::random_tokens(shape, kTokens, 18);
  MemoryConfig config = driver::small_config();
  config.min_block = 1;  // three slabs of events, not the last one full
  config.max_block = 1;
  config.contiguity = 0.3;
  for (const DType representatives :
       episodic_test::sampled(std::vector{DType::float32, DType::bfloat16}, 1)) {
    const DeviceMemoryOptions scan{DType::float32, kTokens, representatives, 0},
        through{DType::float32, kTokens, representatives, 2 * kernels::kCodeSlab - 3};
    DeviceMemory expected(config, shape, scan, nullptr), memory(config, shape, through, nullptr);
    const auto same_lists = [&] {
      for (std::int64_t l = 0; l < shape.n_layers; ++l) {
        REQUIRE((memory.recall_lists(l).similarity == expected.recall_lists(l).similarity));
        REQUIRE((memory.recall_lists(l).contiguity == expected.recall_lists(l).contiguity));
      }
    };
    REQUIRE(feed(memory, tokens, 150) == feed(expected, tokens, 150));
    same_lists();
    const auto snapshot = memory.snapshot(), same = expected.snapshot();
    REQUIRE(feed(memory, tokens, kTokens) == feed(expected, tokens, kTokens));
    same_lists();
    REQUIRE(memory.events().size() > 3 * kernels::kCodeSlab);
    if (representatives != DType::float32) continue;
    // Other events take the places, and so the codes, of those that were there.
    memory.restore(*snapshot);
    expected.restore(*same);
    REQUIRE(feed(memory, other, kTokens) == feed(expected, other, kTokens));
    same_lists();
    // A memory that is handed over gets its codes then.
    EpisodicMemory host(config, shape);
    for (std::int64_t first = 0; first < 204; first += 12) driver::step(host, tokens, first, 12);
    memory.load(host);
    expected.load(host);
    REQUIRE(feed(memory, tokens, kTokens) == feed(expected, tokens, kTokens));
    same_lists();
  }
}

TEST_CASE("codes of representatives are counted, and kept for many events alone") {
  const MemoryShape shape = shape_of();
  const MemoryConfig config = driver::small_config();
  const auto bytes = [&](std::int64_t max_tokens, std::int64_t codes_from, const MemoryConfig& of) {
    return DeviceMemory::bytes_needed(of, shape,
                                      {DType::bfloat16, max_tokens, DType::float32, codes_from})
        .representatives;
  };
  constexpr std::int64_t kMany = 100'000, kRounding = 2 * 256;  // an array is rounded up by 256
  const std::int64_t events = (kMany - config.n_init) / config.min_block + 1;
  const std::int64_t width = shape.n_heads * shape.head_dim;
  const std::int64_t codes = bytes(kMany, 4096, config) - bytes(kMany, 0, config);
  REQUIRE(codes >= shape.n_layers * events * kernels::code_bytes(width));
  REQUIRE(codes <= shape.n_layers * (events * kernels::code_bytes(width) + kRounding));
  REQUIRE(bytes(kMany, events + 1, config) == bytes(kMany, 0, config));
  REQUIRE(bytes(3 * 4000, 4096, config) == bytes(3 * 4000, 0, config));
  MemoryConfig top = config;  // reads the vectors alone
  top.reweight = Reweighting::narrow;
  REQUIRE(bytes(kMany, 4096, top) == bytes(kMany, 0, top));
  REQUIRE_THROWS_AS(bytes(kMany, -2, config), ConfigError);
  // By default they are kept from where they pay (docs/search.md).
  REQUIRE(kernels::codes_pay_from(4096, 1, DType::float32) == 2761);
  REQUIRE(kernels::codes_pay_from(4096, 1, DType::bfloat16) == 8465);
  REQUIRE(kernels::codes_pay_from(512, 8, DType::bfloat16) > 8465);  // lanes have a reach each
  REQUIRE(kernels::codes_pay_from(8, 1, DType::bfloat16) == 0);      // codes would be longer
  const std::int64_t paid = kernels::codes_pay_from(width, 1, DType::float32);
  const std::int64_t enough_tokens = config.n_init + paid * config.min_block;
  REQUIRE(DeviceMemoryOptions().codes_from == DeviceMemoryOptions::kCodesWherePaid);
  REQUIRE(bytes(enough_tokens, DeviceMemoryOptions::kCodesWherePaid, config) ==
          bytes(enough_tokens, paid, config));
  REQUIRE(bytes(enough_tokens, paid, config) > bytes(enough_tokens, 0, config));
  REQUIRE(bytes(kMany, DeviceMemoryOptions::kCodesWherePaid, config) == bytes(kMany, 0, config));

  // Where device_bytes has room for all but them, they are left out.
  MemoryConfig tight = config;
  const auto fits = [&](std::int64_t device_bytes) {
    tight.device_bytes = device_bytes;
    try {
      bytes(kMany, 0, tight);
      return true;
    } catch (const BudgetError&) {
      return false;
    }
  };
  std::int64_t enough = 1 << 30, too_few = 0;
  REQUIRE(fits(enough));
  while (enough - too_few > 1) {
    const std::int64_t middle = too_few + (enough - too_few) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  tight.device_bytes = enough;
  REQUIRE(bytes(kMany, 4096, tight) == bytes(kMany, 0, config));
  tight.device_bytes = enough + 2 * codes;  // and what a search of them works with
  REQUIRE(bytes(kMany, 4096, tight) == bytes(kMany, 4096, config));
}

TEST_CASE("a NaN surprise is gone with the step that had it") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(1);
  std::vector<Token> tokens = driver::random_tokens(shape, 60, 3);
  DeviceMemory memory(driver::small_config(), shape, {DType::float32, 60}, nullptr);
  feed(memory, tokens, 36);
  const auto snapshot = memory.snapshot();
  std::vector<Token> wrong = tokens;
  wrong[36].surprise = std::nanf("");
  REQUIRE_THROWS_AS(feed(memory, wrong, 37), DataError);
  REQUIRE_THROWS_AS(memory.snapshot(), DataError);
  memory.restore(*snapshot);
  const auto got = feed(memory, tokens, 60);
  DeviceMemory never(driver::small_config(), shape, {DType::float32, 60}, nullptr);
  feed(never, tokens, 36);
  REQUIRE(feed(never, tokens, 60) == got);
}

TEST_CASE("a sequence that was kept and opened again goes on with the same bits") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  std::vector<std::pair<MemoryConfig, DType>> cases;
  const TempDir dir;
  for (const MemoryConfig& config :
       tiers(tier_config(DType::float16), shape, {DType::float16, kTokens}, dir.path()))
    cases.emplace_back(config, DType::float16);
  for (const DType code : {DType::int8, DType::fp8})  // in the other tiers: the next tests
    cases.emplace_back(
        tiers(tier_config(code), shape, {DType::float16, kTokens}, dir.path()).back(),
        DType::float16);
  cases.emplace_back(tier_config(DType::bfloat16), DType::bfloat16);
  cases.back().first.refine = Refinement::modularity;
  cases.back().first.n_init = 0;
  cases.emplace_back(driver::small_config(), DType::float32);
  cases.back().first.window = ThresholdWindow::chunked;
  cases.back().first.recall_layers = {{1}};
  cases.emplace_back(driver::small_config(), DType::bfloat16);  // kept as float32
  cases.back().first.segmenter = SegmenterKind::random;
  for (const SegmenterKind segmenter : {SegmenterKind::k_similarity, SegmenterKind::gaussian}) {
    cases.emplace_back(driver::small_config(), DType::float32);
    cases.back().first.segmenter = segmenter;
    cases.back().first.gamma = 0.5;
    cases.back().first.reweight =
        segmenter == SegmenterKind::gaussian ? Reweighting::exact : Reweighting::none;
  }
  std::size_t number = 0;
  for (const auto& [config, dtype] : episodic_test::sampled(cases, 3)) {
    INFO(number);
    const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
    const std::filesystem::path at = dir / std::to_string(number++);
    DeviceMemory straight(config, shape, {dtype, kTokens}, nullptr);
    EpisodicMemory kept_once = EpisodicMemory::create(in(at.string() + "a"), config, shape);
    std::vector<std::vector<float>> expected;
    { EpisodicMemory first = EpisodicMemory::create(in(at.string() + "b"), config, shape); }
    std::vector<std::vector<float>> got;
    for (const std::int64_t end : {7, 36, 101, 180, 260}) {
      expected = feed(straight, tokens, end);
      EpisodicMemory kept = EpisodicMemory::open(in(at.string() + "b"), OpenMode::write);
      DeviceMemory again(config, shape, {dtype, kTokens}, nullptr);
      again.load(kept);
      REQUIRE(again.tokens() == kept.tokens());
      got = feed(again, tokens, end);
      REQUIRE(got == expected);
      REQUIRE((again.events().all() == straight.events().all()));
      again.save(kept, {}, {});
      kept.commit();
    }
    // Saved once at the end it is the same memory.
    straight.save(kept_once, {}, {});
    kept_once.commit();
    EpisodicMemory kept = EpisodicMemory::open(in(at.string() + "b"), OpenMode::read);
    REQUIRE(kept.events().size() > (config.segmenter == SegmenterKind::surprise ? 8 : 4));
    REQUIRE(kept.digest() == kept_once.digest());
    REQUIRE(verify_memory(at.string() + "b").damages.empty());
  }
}

TEST_CASE("host and device go on with each other's memories") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.refine = Refinement::modularity;
  config.kv_dtype = GENERATE(DType::float32, DType::int8, DType::fp8);
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 11);
  const auto feed_host = [&](EpisodicMemory& memory, std::int64_t end) {
    std::vector<std::vector<float>> all;
    while (memory.tokens() < end)
      for (auto& rows : driver::step(memory, tokens, memory.tokens(),
                                     std::min<std::int64_t>(12, end - memory.tokens())))
        all.push_back(std::move(rows));
    return all;
  };
  const auto feed_device = [&](DeviceMemory& memory, std::int64_t end) {
    std::vector<std::vector<float>> all;
    while (memory.tokens() < end)
      for (auto& rows :
           step(memory, tokens, memory.tokens(), std::min<std::int64_t>(12, end - memory.tokens())))
        all.push_back(std::move(rows));
    return all;
  };
  const auto near = [](const auto& a, const auto& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      REQUIRE(a[i].size() == b[i].size());
      for (std::size_t c = 0; c < a[i].size(); ++c)
        REQUIRE(std::abs(a[i][c] - b[i][c]) < tolerance(DType::float32));
    }
  };
  EpisodicMemory whole(config, shape), here(config, shape);
  feed_host(whole, 130);
  feed_host(here, 130);
  DeviceMemory there(config, shape, {DType::float32, kTokens}, nullptr);
  there.load(here);
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    REQUIRE((there.recall_lists(l).contiguity == here.recalled(l).contiguity()));
  near(feed_device(there, 200), feed_host(whole, 200));
  REQUIRE((there.events().all() == whole.events().all()));
  const std::vector<float> r = there.relevance(1, 190, 10);
  for (std::int64_t t = 0; t < 10; ++t)
    for (std::int64_t h = 0; h < shape.n_heads; ++h)
      REQUIRE(std::abs(r[static_cast<std::size_t>(t * shape.n_heads + h)] -
                       whole.relevance(1, 190 + t)[h]) < 1e-5f);
  there.save(here, {}, {});
  REQUIRE(here.tokens() == 200);
  near(feed_host(here, kTokens), feed_host(whole, kTokens));
  REQUIRE((here.events().all() == whole.events().all()));
  REQUIRE((here.recalled(0).recalled() == whole.recalled(0).recalled()));
}

TEST_CASE("a device's 8-bit events are the host's to the bit, in every tier and there and back") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const TempDir dir;
  for (const auto& [of_code, dtype, tier] : episodic_test::combined<DType, DType, std::size_t>(
           {DType::int8, DType::fp8}, {DType::float32, DType::float16, DType::bfloat16},
           {0, 1, 2})) {
    const DType code = of_code;
    std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
    round_to(tokens, dtype);
    const MemoryConfig plain = tier_config(code);
    EpisodicMemory host(plain, shape);
    while (host.tokens() < kTokens)
      driver::step(host, tokens, host.tokens(),
                   std::min<std::int64_t>(12, kTokens - host.tokens()));
    const auto blocks_of = [&](const EpisodicMemory& memory) {
      std::vector<std::vector<std::byte>> all;
      const StoreShape of_store{shape.n_layers, shape.n_kv_heads, shape.head_dim, code};
      for (std::int64_t lane = 0; lane < shape.n_layers; ++lane)
        memory.read_events(0, memory.events().size(), lane, [&](EventId e) {
          all.emplace_back(
              static_cast<std::size_t>(block_bytes(of_store, memory.events()[e].size())));
          return all.back().data();
        });
      return all;
    };
    const MemoryConfig config = tiers(plain, shape, {dtype, kTokens}, dir.path())[tier];
    DeviceMemory device(config, shape, {dtype, kTokens}, nullptr);
    while (device.tokens() < kTokens)
      step(device, tokens, device.tokens(), std::min<std::int64_t>(12, kTokens - device.tokens()));
    REQUIRE((device.events().all() == host.events().all()));
    EpisodicMemory saved(plain, shape);
    device.save(saved, {}, {});
    REQUIRE(host.events().size() > 10);
    REQUIRE(blocks_of(saved) == blocks_of(host));
    // and as they were once more, from the host to a device and on
    DeviceMemory other(config, shape, {dtype, kTokens}, nullptr);
    other.load(saved);
    other.forget(EventId{2});
    const auto snapshot = other.snapshot();
    other.restore(*snapshot);
    REQUIRE(other.forgotten() == std::vector<EventId>{2});
  }
}

TEST_CASE("a memory is saved to what it came from, also after it went back") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const MemoryConfig config = tier_config(GENERATE(from_range(
      episodic_test::sampled(std::vector{DType::bfloat16, DType::int8, DType::fp8}, 2))));
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7),
                           other = driver::random_tokens(shape, kTokens, 8);
  const TempDir dir;
  EpisodicMemory kept = EpisodicMemory::create(in(dir / "kept"), config, shape);
  DeviceMemory memory(config, shape, {DType::bfloat16, kTokens}, nullptr);
  feed(memory, tokens, 100);
  const auto snapshot = memory.snapshot();
  feed(memory, tokens, 200);
  memory.save(kept, {}, {});
  memory.restore(*snapshot);
  feed(memory, other, 210);
  const std::vector<std::int64_t> few(109, 5), ids(110, 5);
  REQUIRE_THROWS_AS(memory.save(kept, few, {}), DataError);
  REQUIRE(kept.tokens() == 200);
  memory.save(kept, ids, std::vector<float>{1.0f, 2.0f});
  EpisodicMemory same = EpisodicMemory::create(in(dir / "same"), config, shape);
  DeviceMemory straight(config, shape, {DType::bfloat16, kTokens}, nullptr);
  feed(straight, tokens, 100);
  straight.save(same, {}, {});
  feed(straight, other, 210);
  straight.save(same, ids, std::vector<float>{1.0f, 2.0f});
  REQUIRE(kept.digest() == same.digest());
  REQUIRE((kept.token_ids(99, 2) == std::vector<std::int64_t>{-1, 5}));

  // one that has gone on by itself, one of other settings, an open step
  driver::step(kept, tokens, 210, 3);
  REQUIRE_THROWS_AS(memory.save(kept, {}, {}), ConfigError);
  MemoryConfig changed = config;
  changed.gamma = 0.5;
  EpisodicMemory stranger(changed, shape);
  DeviceMemory fresh(config, shape, {DType::bfloat16, kTokens}, nullptr);
  REQUIRE_THROWS_AS(fresh.save(stranger, {}, {}), ConfigError);
  fresh.begin_step(1);
  EpisodicMemory empty(config, shape);
  REQUIRE_THROWS_AS(fresh.save(empty, {}, {}), DataError);

  // and to go on from
  REQUIRE_THROWS_AS(fresh.load(stranger), ConfigError);
  EpisodicMemory narrow(config, shape_of(1));
  REQUIRE_THROWS_AS(fresh.load(narrow), ConfigError);
  DeviceMemory small(config, shape, {DType::bfloat16, 209}, nullptr);
  REQUIRE_THROWS_AS(small.load(same), BudgetError);
}

TEST_CASE("a store without room for what a device closed says so, and takes it later") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  MemoryConfig config = tier_config(DType::float16);
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
  DeviceMemory memory(config, shape, {DType::float16, kTokens}, nullptr);
  feed(memory, tokens, 60);
  config.host_bytes = 20000;
  EpisodicMemory kept(config, shape);
  memory.save(kept, {}, {});
  const std::uint64_t before = kept.digest();
  feed(memory, tokens, kTokens);
  REQUIRE_THROWS_AS(memory.save(kept, {}, {}), BudgetError);
  REQUIRE(kept.digest() == before);
  REQUIRE_THROWS_AS(memory.save(kept, {}, {}), BudgetError);
  // The device has lost nothing by it.
  DeviceMemory straight(config, shape, {DType::float16, kTokens}, nullptr);
  feed(straight, tokens, kTokens);
  REQUIRE((memory.events().all() == straight.events().all()));
}

namespace {

/// What a memory shows of itself through the interface that all kinds have.
struct Shown {
  explicit Shown(const SequenceMemory& memory)
      : tokens(memory.tokens()),
        events(memory.events().all()),
        boundaries(memory.last_step().final_boundaries) {
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l) {
      lists.push_back(memory.recall_lists(l).similarity);
      lists.push_back(memory.recall_lists(l).contiguity);
    }
  }
  bool operator==(const Shown&) const = default;

  std::int64_t tokens;
  std::vector<TokenRange> events;
  std::vector<std::uint8_t> boundaries;
  std::vector<std::vector<EventId>> lists;
};

constexpr Capability kAll[] = {Capability::inspect, Capability::snapshot, Capability::rewind,
                               Capability::forget,  Capability::pin,      Capability::commit};

/// What `refusal` says is what the call throws, and what can be done can be done.
void keeps_its_word(SequenceMemory& memory) {
  const auto call = [&](Capability c) {
    if (c == Capability::inspect) static_cast<void>(memory.events());
    if (c == Capability::snapshot) memory.restore(*memory.snapshot());
    if (c == Capability::forget) memory.forget(EventId{0});
    if (c == Capability::pin) memory.pin(1);
    if (c == Capability::commit) memory.commit();
  };
  for (const Capability c : kAll) {
    INFO(name_of(c));
    const std::string why = memory.refusal(c);
    REQUIRE(memory.can(c) == why.empty());
    if (why.empty()) {
      call(c);
    } else {
      REQUIRE(why.rfind(std::string(name_of(c)) + ": ", 0) == 0);
      REQUIRE(why.find('\n') == std::string::npos);
      if (c != Capability::rewind) REQUIRE(refusal([&] { call(c); }) == why);
    }
  }
  REQUIRE_THROWS_AS(memory.events(memory.shape().n_layers * 100), DataError);
}

}  // namespace

TEST_CASE("through one interface, memories on the host and on a device show and keep the same") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 11);
  const MemoryConfig config = tier_config(DType::float32);
  EpisodicMemory host(config, shape);
  DeviceMemory device(config, shape, {DType::float32, kTokens}, nullptr);
  SequenceMemory* const both[] = {&host, &device};
  const auto feed_to = [&](std::int64_t end) {
    while (host.tokens() < end) {
      const std::int64_t n = std::min<std::int64_t>(12, end - host.tokens());
      driver::step(host, tokens, host.tokens(), n);
      step(device, tokens, device.tokens(), n);
    }
  };
  feed_to(130);
  REQUIRE(Shown(*both[0]) == Shown(*both[1]));
  std::vector<Shown> then;
  std::vector<std::shared_ptr<const MemorySnapshot>> snapshots;
  for (const SequenceMemory* memory : both) {
    then.emplace_back(*memory);
    snapshots.push_back(memory->snapshot());
    REQUIRE(snapshots.back()->tokens() == 130);
  }
  const std::vector<float> a = both[0]->relevance(1, 120, 10), b = both[1]->relevance(1, 120, 10);
  const std::vector<float> x = both[0]->representative(1, 2), y = both[1]->representative(1, 2);
  REQUIRE(a.size() == b.size());
  REQUIRE(x.size() == y.size());
  for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(std::abs(a[i] - b[i]) < 1e-5f);
  for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(x[i] - y[i]) < 1e-5f);
  feed_to(200);
  REQUIRE(Shown(*both[0]) == Shown(*both[1]));
  REQUIRE_FALSE(Shown(*both[0]) == then[0]);
  for (std::size_t i = 0; i < 2; ++i) {
    // the other's snapshot is none of its own
    REQUIRE_THROWS_AS(both[i]->restore(*snapshots[1 - i]), ConfigError);
    both[i]->restore(*snapshots[i]);
    REQUIRE(Shown(*both[i]).events == then[i].events);
    REQUIRE(Shown(*both[i]).lists == then[i].lists);
  }
  feed_to(200);
  REQUIRE(Shown(*both[0]) == Shown(*both[1]));
  for (SequenceMemory* memory : both) keeps_its_word(*memory);

  const TempDir dir;
  EpisodicMemory kept = EpisodicMemory::create(in(dir / "kept"), config, shape);
  while (kept.tokens() < 130) driver::step(kept, tokens, kept.tokens(), 10);
  for (const Capability c : kAll) REQUIRE(kept.can(c));
  keeps_its_word(kept);
  REQUIRE(kept.committed_tokens() == 130);
  std::shared_ptr<const MemoryBase> base = kept.share();
  EpisodicMemory over(base);
  REQUIRE(refusal([&] { over.commit(); }) == over.refusal(Capability::commit));
  REQUIRE(over.refusal(Capability::commit).find("goes on from a base") != std::string::npos);
  for (SequenceMemory* memory : both) {
    memory->reset();
    REQUIRE(memory->tokens() == 0);
    REQUIRE(memory->events().size() == 0);
  }
}
