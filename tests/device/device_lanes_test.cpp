// SPDX-License-Identifier: Apache-2.0
// Lanes on a device: key/value heads, or groups of them, with events or recall of their own. Held
// to the host's memory of the same lanes, and to a memory on the device for each lane alone.
#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "steps.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_lanes_test {

using namespace device_steps;

/// The heads of one lane of one layer, as if the model had no others.
std::vector<Token> only(const std::vector<Token>& tokens, const MemoryShape& s, std::int64_t layer,
                        std::int64_t group, std::int64_t groups) {
  const auto part = [&](const std::vector<float>& x, std::int64_t heads) {
    const std::int64_t width = heads / groups * s.head_dim;
    return std::vector<float>(x.begin() + group * width, x.begin() + (group + 1) * width);
  };
  std::vector<Token> out;
  for (const Token& t : tokens) {
    Token& one = out.emplace_back();
    const auto l = static_cast<std::size_t>(layer);
    one.q = {part(t.q[l], s.n_heads)};
    one.k = {part(t.k[l], s.n_kv_heads)};
    one.v = {part(t.v[l], s.n_kv_heads)};
    one.surprise = t.surprise;
  }
  return out;
}

void near(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    REQUIRE(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) < tolerance);
}

/// A lane's part of a layer's outputs [n, H, d].
std::vector<float> heads_of(const std::vector<float>& rows, std::int64_t n, std::int64_t group,
                            std::int64_t groups) {
  const std::int64_t all = static_cast<std::int64_t>(rows.size()) / n, width = all / groups;
  std::vector<float> out;
  for (std::int64_t i = 0; i < n; ++i)
    out.insert(out.end(), rows.begin() + i * all + group * width,
               rows.begin() + i * all + (group + 1) * width);
  return out;
}

/// Feeds a memory of all lanes on the device, the host's of the same lanes, and, where `alone` says
/// so, a memory on the device for each lane that knows of nothing else.
void compare(const MemoryConfig& config, const MemoryShape& shape, DType dtype, std::int64_t total,
             bool alone = true, std::int64_t codes_from = 4096) {
  const std::int64_t groups = config.lanes_per_layer(shape.n_kv_heads);
  std::vector<Token> tokens = driver::random_tokens(shape, total, 5);
  round_to(tokens, dtype);
  MemoryConfig of_host = config, of_one = config;
  if (!is_code(config.kv_dtype)) of_host.kv_dtype = dtype;
  EpisodicMemory host(of_host, shape);
  const DeviceMemoryOptions options{dtype, total, DType::float32, codes_from};
  DeviceMemory device(config, shape, options, nullptr);
  REQUIRE(device.lanes() == host.lanes());
  REQUIRE(device.scopes() == host.scopes());
  of_one.scope = EventScope::sequence;
  of_one.recall_groups = 1;
  of_one.recall_layers.reset();
  of_one.refine_layers = 0;
  const MemoryShape narrow{1, shape.n_heads / groups, shape.n_kv_heads / groups, shape.head_dim,
                           shape.rotary};
  std::deque<DeviceMemory> singles;
  std::vector<std::vector<Token>> parts;
  for (std::int64_t lane = 0; alone && lane < device.lanes(); ++lane) {
    MemoryConfig c = of_one;
    c.recall = recalls(config, lane / groups);
    singles.emplace_back(c, narrow, options, nullptr);
    parts.push_back(only(tokens, shape, lane / groups, lane % groups, groups));
  }
  // In 16 bits host and device round at other places, and what is near falls the other way.
  const bool exact = dtype == DType::float32;
  std::mt19937 random(9);
  std::int64_t recalled = 0, lists = 0, equal_lists = 0;
  bool lists_differ = false, events_differ = false;
  for (std::int64_t first = 0; first < total;) {
    const std::int64_t n = std::min<std::int64_t>(
        total - first,
        random() % 3 == 0 ? 1 : 1 + static_cast<std::int64_t>(random()) % config.chunk);
    const auto expected = driver::step(host, tokens, first, n);
    const auto got = step(device, tokens, first, n);
    REQUIRE(device.tokens() == host.tokens());
    for (std::int64_t scope = 0; scope < device.scopes(); ++scope) {
      const StepRecord a = host.last_step(scope), b = device.last_step(scope);
      REQUIRE(b.threshold == a.threshold);
      REQUIRE(b.raw_boundaries == a.raw_boundaries);
      if (!exact && config.refine != Refinement::none) continue;
      REQUIRE(b.events_before == a.events_before);
      REQUIRE(b.final_boundaries == a.final_boundaries);
      REQUIRE((device.events(scope).all() == host.events(scope).all()));
      events_differ |= host.events(scope).all() != host.events(0).all();
    }
    for (std::int64_t lane = 0; lane < device.lanes(); ++lane) {
      const auto layer = static_cast<std::size_t>(lane / groups);
      const std::vector<float> out = heads_of(got[layer], n, lane % groups, groups);
      const std::vector<EventId> ids = device.recalled(lane);
      const LaneRecall of_lane = device.recall_lists(lane);
      recalled += static_cast<std::int64_t>(ids.size());
      lists_differ |= ids != device.recalled(0);
      lists += !ids.empty();
      equal_lists += !ids.empty() && ids == host.recalled(lane).recalled();
      if (exact) {
        std::vector<EventId> similarity = host.recalled(lane).similarity();
        if (config.reweight == Reweighting::narrow)  // which a device lists by time
          std::sort(similarity.begin(), similarity.end());
        REQUIRE(of_lane.similarity == similarity);
        REQUIRE(of_lane.contiguity == host.recalled(lane).contiguity());
        near(out, heads_of(expected[layer], n, lane % groups, groups), tolerance(dtype));
      }
      if (!alone) continue;
      const auto s = static_cast<std::size_t>(lane);
      const std::vector<float> one = step(singles[s], parts[s], first, n).front();
      const std::int64_t scope = device.scopes() > 1 ? lane : 0;
      if (device.scopes() > 1 || !reads_keys(config.segmenter))
        REQUIRE((device.events(scope).all() == singles[s].events().all()));
      if (!exact) continue;
      REQUIRE(of_lane.similarity == singles[s].recall_lists(0).similarity);
      REQUIRE(of_lane.contiguity == singles[s].recall_lists(0).contiguity);
      near(out, one, tolerance(dtype));
    }
    first += n;
  }
  REQUIRE(recalled > 30);
  REQUIRE(lists_differ);
  REQUIRE((!events_differ || config.scope == EventScope::head));
  if (exact && config.scope == EventScope::head) REQUIRE(events_differ);
  INFO(equal_lists << " of " << lists << " recall lists are the host's");
  if (config.refine == Refinement::none) REQUIRE(10 * equal_lists >= 9 * lists);
  for (std::int64_t lane = 0; exact && lane < device.lanes(); ++lane) {
    const std::int64_t scope = device.scopes() > 1 ? lane : 0;
    for (EventId e = 0; recalls(config, lane / groups) && e < host.events(scope).size(); e += 5)
      near(device.representative(lane, e), host.representative(lane, e), 1e-5);
  }
  REQUIRE_THROWS_AS(device.events(device.scopes()), DataError);
  REQUIRE_THROWS_AS(device.last_step(-1), DataError);
  REQUIRE_THROWS_AS(device.recalled(device.lanes()), DataError);
  REQUIRE_THROWS_AS(device.recall_lists(-1), DataError);
  REQUIRE_THROWS_AS(device.representative(0, host.events(0).size()), DataError);
}

MemoryConfig head_config(SegmenterKind kind) {
  MemoryConfig c = driver::small_config();
  c.segmenter = kind;
  c.scope = EventScope::head;
  c.gamma = 0.5;
  c.contiguity = 0.3;
  return c;
}

constexpr std::int64_t kTokens = 200;

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

std::vector<std::vector<TokenRange>> all_events(const SequenceMemory& memory, std::int64_t scopes) {
  std::vector<std::vector<TokenRange>> all;
  for (std::int64_t s = 0; s < scopes; ++s) all.push_back(memory.events(s).all());
  return all;
}

std::vector<std::vector<EventId>> all_lists(const DeviceMemory& memory) {
  std::vector<std::vector<EventId>> all;
  for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
    all.push_back(memory.recall_lists(lane).similarity);
    all.push_back(memory.recall_lists(lane).contiguity);
  }
  return all;
}

/// Settings with lanes: heads by their keys, heads refined, groups.
std::vector<MemoryConfig> lane_configs() {
  std::vector<MemoryConfig> all{head_config(SegmenterKind::gaussian),
                                head_config(SegmenterKind::surprise), driver::small_config()};
  all[0].recall_layers = {{1}};
  all[1].refine = Refinement::modularity;
  all[2].recall_groups = 2;
  all[2].contiguity = 0.3;
  for (MemoryConfig& c : all) {
    c.n_mem = 12;
    c.min_block = 6;
  }
  return all;
}

KeepOptions in(const std::filesystem::path& dir) {
  KeepOptions keep;
  keep.dir = dir;
  return keep;
}

TEST_CASE("each head's events and recall on a device are the host's, and those of it alone") {
  EPISODIC_NEEDS_DEVICE();
  compare(head_config(SegmenterKind::k_similarity), shape_of(2, 4, 2), DType::float32, 110);
  MemoryConfig c = head_config(SegmenterKind::gaussian);
  c.n_init = 0;
  c.min_count = 2;
  c.recall_every = 3;
  compare(c, shape_of(1, 6, 3), DType::float32, 110);  // three query heads a head in GQA
  c.recall_every = 1;
  c.recall_layers = {{1}};
  compare(c, shape_of(3, 2, 2), DType::float32, 90);
}

TEST_CASE("heads on a device are refined by their own keys") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig c = head_config(SegmenterKind::surprise);
  c.gamma = 1.0;
  c.refine = Refinement::modularity;
  compare(c, shape_of(2, 4, 2), DType::float32, 110);
  c.segmenter = SegmenterKind::k_similarity;
  c.refine = Refinement::conductance;
  c.refine_layers = 1;  // of the sequence's graph; a head's is its own keys' in every layer
  compare(c, shape_of(2, 2, 2), DType::float32, 100);
  c.segmenter = SegmenterKind::fixed;
  c.refine = Refinement::intra_inter;
  c.refine_layers = 0;
  compare(c, shape_of(1, 4, 4), DType::float32, 100, false);
}

TEST_CASE("heads on a device go by 16 bits too") {
  EPISODIC_NEEDS_DEVICE();
  compare(head_config(SegmenterKind::k_similarity), shape_of(1, 4, 2), DType::bfloat16, 100);
  compare(head_config(SegmenterKind::gaussian), shape_of(1, 4, 2), DType::float16, 100);
  MemoryConfig c = driver::small_config();
  c.recall_groups = 2;
  compare(c, shape_of(1, 4, 2), DType::bfloat16, 110);
}

TEST_CASE("lanes on a device keep their events as codes, each with scales of its own") {
  EPISODIC_NEEDS_DEVICE();
  const DType code = GENERATE(DType::int8, DType::fp8);
  MemoryConfig c = head_config(SegmenterKind::k_similarity);
  c.kv_dtype = code;
  compare(c, shape_of(2, 4, 2), DType::float32, 110);
  compare(c, shape_of(1, 4, 2), DType::bfloat16, 100);
  c = driver::small_config();
  c.kv_dtype = code;
  c.recall_groups = 2;
  c.contiguity = 0.3;
  compare(c, shape_of(2, 8, 4), DType::float32, 110);
}

TEST_CASE("groups of heads on a device recall by themselves over one table of events") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig c = driver::small_config();
  c.contiguity = 0.2;
  c.recall_groups = 2;
  compare(c, shape_of(2, 8, 4), DType::float32, 110);
  c.recall_groups = 4;
  c.recall_every = 3;
  c.refine = Refinement::modularity;
  compare(c, shape_of(1, 4, 4), DType::float32, 110, false);
  c.recall_groups = 3;
  REQUIRE(mentions(refusal<ConfigError>([&] {
                     DeviceMemory::bytes_needed(c, shape_of(), {DType::float32, 100});
                   }),
                   "recall_groups = 3"));
}

TEST_CASE("lanes on a device are reweighted, and searched by codes, each by itself") {
  EPISODIC_NEEDS_DEVICE();
  for (const EventScope scope : {EventScope::head, EventScope::sequence}) {
    MemoryConfig c = head_config(SegmenterKind::k_similarity);
    c.scope = scope;
    c.recall_groups = scope == EventScope::head ? 1 : 2;
    c.reweight = Reweighting::exact;
    compare(c, shape_of(1, 4, 2), DType::float32, 90, false);
    c.contiguity = 0;
    c.reweight = Reweighting::narrow;
    c.reweight_top = 3;
    compare(c, shape_of(1, 4, 2), DType::float32, 90, false);
    c.reweight = Reweighting::none;
    c.contiguity = 0.3;
    c.min_block = 1;
    c.max_block = 2;  // slabs of events, not the last one full
    compare(c, shape_of(1, 4, 2), DType::float32, 190, false, 70);
  }
}

TEST_CASE("lanes on a device give the same bits wherever events lie, and come back to a snapshot") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7),
                           other = driver::random_tokens(shape, kTokens, 8);
  const DeviceMemoryOptions options{DType::float16, kTokens};
  std::size_t number = 0;
  for (const MemoryConfig& plain : lane_configs()) {
    const TempDir dir;
    DeviceMemory all_there(plain, shape, options, nullptr);
    const auto expected = feed(all_there, tokens, kTokens);
    for (const MemoryConfig& config : episodic_test::in_turn(
             tiers(plain, shape, {DType::float16, kTokens}, dir.path()), number++)) {
      DeviceMemory memory(config, shape, options, nullptr);
      if (config.device_bytes > 0) REQUIRE(memory.bytes().total() <= config.device_bytes);
      auto got = feed(memory, tokens, 120);
      const auto events = all_events(memory, memory.scopes());
      const auto lists = all_lists(memory);
      const auto snapshot = memory.snapshot();
      feed(memory, other, 190);  // other events in their places
      memory.restore(*snapshot);
      REQUIRE(memory.tokens() == 120);
      REQUIRE((all_events(memory, memory.scopes()) == events));
      REQUIRE(all_lists(memory) == lists);
      for (auto& rows : feed(memory, tokens, kTokens)) got.push_back(std::move(rows));
      REQUIRE(got == expected);
      REQUIRE((all_events(memory, memory.scopes()) == all_events(all_there, all_there.scopes())));
      if (!config.disk_dir.empty()) REQUIRE(memory.lower_tiers().events > 0);
      memory.reset();
      REQUIRE(memory.n_events() == 0);
      const auto anew = feed(memory, tokens, 110);
      REQUIRE(std::equal(anew.begin(), anew.end(), expected.begin()));
    }
  }
}

// Every run has the next test, and that of host and device in turn.
TEST_CASE("lanes that were kept and opened again go on on a device with the same bits", "[long]") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const TempDir dir;
  std::size_t number = 0;
  for (MemoryConfig config : lane_configs()) {
    const DType dtype = number == 1 ? DType::bfloat16 : DType::float32;
    config.kv_dtype = dtype;
    const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
    const std::filesystem::path at = dir / std::to_string(number++);
    DeviceMemory straight(config, shape, {dtype, kTokens}, nullptr);
    EpisodicMemory kept_once = EpisodicMemory::create(in(at.string() + "a"), config, shape);
    std::vector<std::vector<float>> expected, got;
    { EpisodicMemory first = EpisodicMemory::create(in(at.string() + "b"), config, shape); }
    MemoryConfig slots = config;  // in which it goes on
    const DeviceMemoryBytes bytes = DeviceMemory::bytes_needed(config, shape, {dtype, kTokens});
    slots.device_bytes = bytes.total() - bytes.snapshots - bytes.events / 3;
    for (const std::int64_t end : {7, 36, 101, 150, 200}) {
      expected = feed(straight, tokens, end);
      EpisodicMemory kept = EpisodicMemory::open(in(at.string() + "b"), OpenMode::write);
      DeviceMemory again(end == 150 ? slots : config, shape, {dtype, kTokens}, nullptr);
      again.load(kept);
      REQUIRE(again.tokens() == kept.tokens());
      got = feed(again, tokens, end);
      REQUIRE(got == expected);
      REQUIRE((all_events(again, again.scopes()) == all_events(straight, straight.scopes())));
      again.save(kept, {}, {});
      kept.commit();
    }
    // Saved once at the end it is the same memory.
    straight.save(kept_once, {}, {});
    kept_once.commit();
    EpisodicMemory kept = EpisodicMemory::open(in(at.string() + "b"), OpenMode::read);
    REQUIRE(kept.digest() == kept_once.digest());
    REQUIRE((all_events(kept, kept.scopes()) == all_events(straight, straight.scopes())));
    REQUIRE(verify_memory(at.string() + "b").damages.empty());
  }
}

TEST_CASE("lanes on a device over files go on with a memory of the host") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
  for (const MemoryConfig& plain : lane_configs()) {
    const TempDir dir;
    const std::vector<MemoryConfig> where =
        tiers(plain, shape, {DType::float32, kTokens}, dir.path());
    DeviceMemory straight(plain, shape, {DType::float32, kTokens}, nullptr);
    EpisodicMemory kept(plain, shape);
    feed(straight, tokens, 130);
    straight.save(kept, {}, {});
    DeviceMemory files(where[2], shape, {DType::float32, kTokens}, nullptr);
    files.load(kept);
    REQUIRE(feed(files, tokens, kTokens) == feed(straight, tokens, kTokens));
    files.save(kept, {}, {});
    REQUIRE((all_events(kept, kept.scopes()) == all_events(straight, straight.scopes())));
  }
}

// Every run has lanes of codes, and lanes in every tier, apart.
TEST_CASE(
    "lanes of 8-bit events on a device give the same bits in every tier, and go to the host and "
    "back",
    "[long]") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = driver::small_shape(2, 4, 2, 64);
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
  const DType code = GENERATE(DType::int8, DType::fp8);
  for (MemoryConfig plain : lane_configs()) {
    if (plain.refine != Refinement::none) continue;
    plain.recall_layers.reset();
    plain.kv_dtype = code;
    const TempDir dir;
    DeviceMemory straight(plain, shape, {DType::float16, kTokens}, nullptr);
    EpisodicMemory saved(plain, shape);
    const auto expected = feed(straight, tokens, 130);
    straight.save(saved, {}, {});
    const std::uint64_t half = saved.digest();
    const auto rest = feed(straight, tokens, kTokens);
    straight.save(saved, {}, {});
    for (const MemoryConfig& config : tiers(plain, shape, {DType::float16, kTokens}, dir.path())) {
      DeviceMemory memory(config, shape, {DType::float16, kTokens}, nullptr);
      REQUIRE(feed(memory, tokens, 130) == expected);
      if (!config.disk_dir.empty()) REQUIRE(memory.lower_tiers().events > 0);
      EpisodicMemory kept(plain, shape);
      memory.save(kept, {}, {});
      REQUIRE(kept.digest() == half);
      DeviceMemory again(config, shape, {DType::float16, kTokens}, nullptr);
      again.load(kept);
      REQUIRE(feed(again, tokens, kTokens) == rest);
      again.save(kept, {}, {});
      REQUIRE(kept.digest() == saved.digest());
    }
  }
}

TEST_CASE("lanes of host and device go on with each other's memories, also after going back") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 11),
                           other = driver::random_tokens(shape, kTokens, 12);
  const auto feed_host = [&](EpisodicMemory& memory, const std::vector<Token>& from,
                             std::int64_t end) {
    while (memory.tokens() < end)
      driver::step(memory, from, memory.tokens(),
                   std::min<std::int64_t>(12, end - memory.tokens()));
  };
  const auto feed_device = [&](DeviceMemory& memory, const std::vector<Token>& from,
                               std::int64_t end) {
    while (memory.tokens() < end)
      step(memory, from, memory.tokens(), std::min<std::int64_t>(12, end - memory.tokens()));
  };
  for (const MemoryConfig& config : lane_configs()) {
    EpisodicMemory whole(config, shape), here(config, shape);
    feed_host(whole, tokens, 100);
    feed_host(here, tokens, 100);
    DeviceMemory there(config, shape, {DType::float32, kTokens}, nullptr);
    there.load(here);
    for (std::int64_t lane = 0; lane < there.lanes(); ++lane) {
      REQUIRE(there.recall_lists(lane).similarity == here.recalled(lane).similarity());
      REQUIRE(there.recall_lists(lane).contiguity == here.recalled(lane).contiguity());
    }
    // Forth, saved, back behind that, and on with another text.
    feed_device(there, tokens, 120);
    const auto snapshot = there.snapshot();
    feed_device(there, tokens, 180);
    there.save(here, {}, {});
    feed_host(whole, tokens, 120);
    const auto then = whole.snapshot();
    feed_host(whole, tokens, 180);
    REQUIRE((all_events(here, here.scopes()) == all_events(whole, whole.scopes())));
    there.restore(*snapshot);
    whole.restore(*then);
    feed_device(there, other, 170);
    feed_host(whole, other, 170);
    there.save(here, {}, {});
    REQUIRE(here.tokens() == 170);
    REQUIRE((all_events(here, here.scopes()) == all_events(whole, whole.scopes())));
    feed_host(here, other, kTokens);
    feed_host(whole, other, kTokens);
    REQUIRE((all_events(here, here.scopes()) == all_events(whole, whole.scopes())));
    for (std::int64_t lane = 0; lane < here.lanes(); ++lane)
      REQUIRE(here.recalled(lane).recalled() == whole.recalled(lane).recalled());
  }
}

TEST_CASE("a step of lanes is as many launches as one of whole layers, and allocates nothing") {
  EPISODIC_NEEDS_DEVICE();
#if defined(EPISODIC_EMULATED_CUDA)
  const MemoryShape shape = shape_of(2, 8, 4);
  const std::vector<Token> tokens = driver::random_tokens(shape, 120, 3);
  const DeviceArray<unsigned char> rows(std::vector<unsigned char>(12 * 128 * 2, 0)),
      out(12 * 128 * 2);
  const DeviceArray<float> surprise(std::vector<float>(12, 1.0f));
  // Of a step of 12 tokens, and of one behind it.
  const auto launches = [&](const MemoryConfig& config) {
    const DeviceMemoryOptions options{DType::bfloat16, 200};
    const std::int64_t before = emulator::device_bytes();
    DeviceMemory memory(config, shape, options, nullptr);
    REQUIRE(memory.bytes().total() == emulator::device_bytes() - before);
    feed(memory, tokens, 84);
    std::vector<std::int64_t> counts;
    for (const std::int64_t n : {12, 1}) {
      emulator::reset_calls();
      memory.begin_step(n);
      for (std::int64_t l = 0; l < shape.n_layers; ++l)
        memory.attend(l, layer_step(memory, rows.data(), rows.data(), rows.data(), out.data()));
      memory.end_step(surprise.data());
      REQUIRE(emulator::calls().allocations == 0);
      REQUIRE(emulator::calls().synchronisations == 0);
      counts.push_back(emulator::calls().launches);
      memory.check();
    }
    return counts;
  };
  MemoryConfig plain = driver::small_config(), groups = plain, heads = plain, slots = plain;
  groups.recall_groups = 2;
  heads.scope = EventScope::head;
  const std::vector<std::int64_t> expected = launches(plain), of_heads = launches(heads);
  REQUIRE(launches(groups) == expected);
  REQUIRE(of_heads == expected);
  // Each head's own boundaries from keys are one launch, as many heads as there are; refinement is
  // as for the sequence where all heads' tiles fit.
  MemoryConfig by_keys = heads, refined = heads;
  by_keys.segmenter = SegmenterKind::k_similarity;
  refined.refine = plain.refine = Refinement::modularity;
  const std::vector<std::int64_t> one_more{of_heads[0] + 1, of_heads[1] + 1};
  REQUIRE(launches(by_keys) == one_more);
  REQUIRE(launches(refined) == launches(plain));
  // Nor are slots a launch more: lanes share a layer's.
  const DeviceMemoryBytes bytes = DeviceMemory::bytes_needed(slots, shape, {DType::bfloat16, 200});
  slots.device_bytes = bytes.total() - bytes.snapshots - bytes.events / 3;
  MemoryConfig grouped = slots;
  grouped.recall_groups = 2;
  REQUIRE(launches(grouped) == launches(slots));
  // Nor are the weights of events, and what is recalled by them.
  for (const Reweighting mode : episodic_test::sampled(
           std::vector{Reweighting::exact, Reweighting::narrow, Reweighting::broad}, 2)) {
    MemoryConfig whole = driver::small_config();
    whole.reweight = mode;
    whole.reweight_top = 2;
    MemoryConfig by_groups = whole, by_heads = whole;
    by_groups.recall_groups = 2;
    by_heads.scope = EventScope::head;
    const std::vector<std::int64_t> of_whole = launches(whole);
    REQUIRE(launches(by_groups) == of_whole);
    REQUIRE(launches(by_heads) == of_whole);
  }
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

}  // namespace device_lanes_test
