// SPDX-License-Identifier: Apache-2.0
// Recall by individual representatives (score max) on a device: what the host recalls, wherever
// events lie; their vectors there and back with all their bits.
#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "beside_host.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_each_test {

using namespace device_steps;

constexpr std::int64_t kTokens = 170;

MemoryConfig each_config() {
  MemoryConfig config = driver::small_config();  // events of 3 to 9 tokens
  config.score = RepresentativeScore::max;
  config.n_repr = 5;
  config.contiguity = 0.3;
  config.n_mem = 12;
  return config;
}

/// Of the sequence, of groups of heads, of heads by themselves; some layers; lists that stay.
std::vector<MemoryConfig> all_configs() {
  std::vector<MemoryConfig> all(5, each_config());
  all[1].recall_groups = 2;
  all[2].scope = EventScope::head;
  all[2].segmenter = SegmenterKind::k_similarity;
  all[2].gamma = 0.5;
  all[3].recall_layers = {{1}};
  all[3].recall_every = 3;
  all[3].kv_dtype = DType::int8;
  all[4].n_repr = 1;
  all[4].contiguity = 0;
  all[4].scope = EventScope::head;
  return all;
}

void feed(DeviceMemory& memory, const std::vector<Token>& tokens, std::int64_t end) {
  while (memory.tokens() < end)
    step(memory, tokens, memory.tokens(), std::min<std::int64_t>(12, end - memory.tokens()));
}

/// All that a memory of the host keeps of its events to score them by.
std::vector<std::vector<float>> vectors_of(const EpisodicMemory& memory) {
  std::vector<std::vector<float>> all;
  const std::int64_t per_layer = memory.lanes() / memory.shape().n_layers;
  for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
    const std::int64_t scope = memory.scopes() > 1 ? lane : 0;
    if (!recalls(memory.config(), lane / per_layer)) continue;
    for (EventId e = 0; e < memory.events(scope).size(); ++e) {
      all.push_back(memory.representative(lane, e));
      all.push_back(memory.individual_representatives(lane, e));
      const std::int64_t count = std::min(memory.config().n_repr, memory.events(scope)[e].size());
      REQUIRE(all.back().size() == static_cast<std::size_t>(count) * all[all.size() - 2].size());
    }
  }
  return all;
}

TEST_CASE("a device scores events by the best of their representatives as the host does") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
  const TempDir dir;
  const DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 1};
  bool differs = false;  // from what means would recall
  int number = 0;
  for (const MemoryConfig& plain : all_configs()) {
    CAPTURE(number);
    for (const MemoryConfig& config : episodic_test::in_turn(
             tiers(plain, shape, options, dir.path()), static_cast<std::size_t>(number++))) {
      MemoryConfig by_mean = plain;
      by_mean.score = RepresentativeScore::mean;
      EpisodicMemory host(plain, shape), other(by_mean, shape);
      DeviceMemory device(config, shape, options, nullptr);
      std::mt19937 random(5);
      std::shared_ptr<const MemorySnapshot> of_host, of_device;
      bool went_back = false;
      while (host.tokens() < kTokens) {
        const std::int64_t n = std::min<std::int64_t>(
            kTokens - host.tokens(),
            random() % 3 == 0 ? 1 : 1 + static_cast<std::int64_t>(random()) % config.chunk);
        if (!went_back && other.tokens() <= host.tokens()) {
          driver::step(other, tokens, other.tokens(), n);
          differs |= other.recalled(1).recalled() != host.recalled(1).recalled();
        }
        step_both(host, device, tokens, n);
        if (!of_host && host.tokens() > 80)
          of_host = host.snapshot(), of_device = device.snapshot();
        if (host.tokens() > 120 && !went_back) {
          went_back = true;
          host.restore(*of_host);
          device.restore(*of_device);
          require_same(host, device);
        }
      }
      REQUIRE_FALSE(device.recalled(device.lanes() - 1).empty());
      device.reset();
      REQUIRE(device.tokens() == 0);
    }
  }
  REQUIRE(differs);
}

TEST_CASE("a device's individual representatives are the host's to the bit, there and back") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const TempDir dir;
  int number = 0;
  const std::vector<MemoryConfig> configs = all_configs();
  for (std::size_t i = 0; i < configs.size(); ++i)
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      if (dtype != DType::float32 && i != 2) continue;
      MemoryConfig plain = configs[i];
      if (!is_code(plain.kv_dtype)) plain.kv_dtype = dtype;
      std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
      round_to(tokens, dtype);
      const DeviceMemoryOptions options{dtype, kTokens};
      for (const MemoryConfig& config : tiers(plain, shape, options, dir.path())) {
        if (i != 0 && config.disk_dir.empty()) continue;  // every tier once, files always
        CAPTURE(number, name_of(dtype), config.device_bytes);
        // Made by the device at once, and kept in between on the host's side.
        DeviceMemory straight(config, shape, options, nullptr);
        KeepOptions keep;
        keep.dir = dir / std::to_string(number++);
        { EpisodicMemory first = EpisodicMemory::create(keep, plain, shape); }
        for (const std::int64_t end : {50, 51, 110, 150}) {
          feed(straight, tokens, end);
          EpisodicMemory kept = EpisodicMemory::open(keep, OpenMode::write);
          DeviceMemory again(config, shape, options, nullptr);
          again.load(kept);
          feed(again, tokens, end);
          for (std::int64_t lane = 0; lane < again.lanes(); ++lane) {
            REQUIRE(again.recall_lists(lane).similarity == straight.recall_lists(lane).similarity);
            REQUIRE(again.recall_lists(lane).contiguity == straight.recall_lists(lane).contiguity);
          }
          again.save(kept, {}, {});
          kept.commit();
        }
        KeepOptions keep_once;
        keep_once.dir = dir / std::to_string(number++);
        EpisodicMemory once = EpisodicMemory::create(keep_once, plain, shape);
        straight.save(once, {}, {});
        once.commit();
        EpisodicMemory kept = EpisodicMemory::open(keep, OpenMode::write);
        REQUIRE(kept.digest() == once.digest());
        REQUIRE(verify_memory(keep.dir).damages.empty());
        // By the host alone: the same tokens stand for each event, and so the same vectors.
        if (dtype == DType::float32) {
          EpisodicMemory host(plain, shape);
          for (const std::int64_t end : {50, 51, 110, 150})  // in the same steps
            while (host.tokens() < end)
              driver::step(host, tokens, host.tokens(),
                           std::min<std::int64_t>(12, end - host.tokens()));
          REQUIRE(vectors_of(kept) == vectors_of(host));
        }
        // What is forgotten has none, on both sides, and the host goes on with the rest.
        DeviceMemory other(config, shape, options, nullptr);
        other.load(kept);
        other.forget(EventId{1}, other.scopes() - 1);
        feed(other, tokens, kTokens);
        other.save(kept, {}, {});
        REQUIRE(refusal([&] {
                  kept.individual_representatives(kept.lanes() - 1, EventId{1});
                }).find("forgotten") != std::string::npos);
        DeviceMemory last(config, shape, options, nullptr);
        last.load(kept);
        for (std::int64_t lane = 0; lane < last.lanes(); ++lane)
          REQUIRE(last.recall_lists(lane).similarity == other.recall_lists(lane).similarity);
        kept.commit();
        REQUIRE(verify_memory(keep.dir).damages.empty());
      }
    }
}

TEST_CASE("individual representatives are counted, and go without codes") {
  const MemoryShape shape = shape_of();
  MemoryConfig config = each_config(), mean = each_config();
  mean.score = RepresentativeScore::mean;
  constexpr std::int64_t kLong = 100'000, kRounding = 256;  // of each array
  const auto bytes = [&](const MemoryConfig& of, std::int64_t codes_from) {
    return DeviceMemory::bytes_needed(of, shape,
                                      {DType::bfloat16, kLong, DType::float32, codes_from})
        .representatives;
  };
  const std::int64_t events = (kLong - config.n_init) / config.min_block + 1;
  const std::int64_t each = shape.n_layers * events * config.n_repr * shape.n_heads *
                            shape.head_dim * static_cast<std::int64_t>(sizeof(float));
  REQUIRE(bytes(config, 0) - bytes(mean, 0) >= each);
  REQUIRE(bytes(config, 0) - bytes(mean, 0) <= each + shape.n_layers * kRounding);
  REQUIRE(bytes(config, 4096) == bytes(config, 0));
  config.recall_layers = {{1}};
  mean.recall_layers = {{1}};
  REQUIRE(bytes(config, 0) - bytes(mean, 0) <= each / 2 + kRounding);
  config.reweight = Reweighting::exact;
  REQUIRE(refusal([&] { bytes(config, 0); }).find("max") != std::string::npos);
}

/// Steps of several memories as one.
std::vector<std::vector<float>> step_together(const std::vector<DeviceMemory*>& memories,
                                              const std::vector<std::vector<Token>>& tokens,
                                              std::int64_t n) {
  const MemoryShape& s = memories.front()->shape();
  std::vector<std::vector<float>> out;
  for (DeviceMemory* const memory : memories) memory->begin_step(n);
  const auto sent = [&](std::size_t i, auto member, std::int64_t l) {
    return std::make_unique<DeviceArray<float>>(
        rows_of(tokens[i], member, l, memories[i]->tokens(), n));
  };
  for (std::int64_t l = 0; l < s.n_layers; ++l) {
    std::vector<std::array<std::unique_ptr<DeviceArray<float>>, 4>> rows;
    std::vector<DeviceMemory::SequenceStep> steps;
    for (std::size_t i = 0; i < memories.size(); ++i) {
      rows.push_back({sent(i, &Token::q, l), sent(i, &Token::k, l), sent(i, &Token::v, l),
                      std::make_unique<DeviceArray<float>>(
                          static_cast<std::size_t>(n * s.n_heads * s.head_dim))});
      const auto& [q, k, v, to] = rows.back();
      steps.push_back(
          {memories[i], layer_step(*memories[i], q->data(), k->data(), v->data(), to->data())});
    }
    DeviceMemory::attend_batch(l, steps);
    for (const auto& of : rows) out.push_back(of[3]->host());
  }
  std::vector<std::unique_ptr<DeviceArray<float>>> surprises;
  std::vector<DeviceMemory::EndOfStep> ends;
  for (std::size_t i = 0; i < memories.size(); ++i) {
    std::vector<float> surprise;
    for (std::int64_t t = 0; t < n; ++t)
      surprise.push_back(tokens[i][static_cast<std::size_t>(memories[i]->tokens() + t)].surprise);
    surprises.push_back(std::make_unique<DeviceArray<float>>(surprise));
    ends.push_back({memories[i], surprises.back()->data()});
  }
  for (const std::exception_ptr& failure : DeviceMemory::end_step_batch(ends))
    REQUIRE(failure == nullptr);
  for (DeviceMemory* const memory : memories) memory->check();
  return out;
}

TEST_CASE("memories that score by several vectors step together with others, each as alone") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 1};
  // Neighbours that share launches, and one by means that shares none.
  std::vector<MemoryConfig> configs(4, each_config());
  configs[2].score = RepresentativeScore::mean;
  configs[3].n_mem = 24;
  std::vector<std::unique_ptr<DeviceMemory>> alone, together;
  std::vector<DeviceMemory*> all;
  std::vector<std::vector<Token>> tokens;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    alone.push_back(std::make_unique<DeviceMemory>(configs[i], shape, options, nullptr));
    together.push_back(std::make_unique<DeviceMemory>(configs[i], shape, options, nullptr));
    all.push_back(together.back().get());
    tokens.push_back(driver::random_tokens(shape, kTokens, static_cast<std::uint32_t>(20 + i)));
  }
  for (int i = 0; alone[0]->tokens() < 150; ++i) {
    const std::int64_t n = i % 4 == 3 ? 1 : 12;
    std::vector<std::vector<std::vector<float>>> expected;
    for (std::size_t s = 0; s < alone.size(); ++s)
      expected.push_back(step(*alone[s], tokens[s], alone[s]->tokens(), n));
    const auto got = step_together(all, tokens, n);
    for (std::size_t r = 0; r < got.size(); ++r)
      REQUIRE(got[r] == expected[r % alone.size()][r / alone.size()]);
  }
  for (std::size_t s = 0; s < alone.size(); ++s) {
    REQUIRE(together[s]->recalled_events() > 20);
    REQUIRE(together[s]->recalled_events() == alone[s]->recalled_events());
    REQUIRE(together[s]->recalled(1) == alone[s]->recalled(1));
  }
}

}  // namespace device_each_test
