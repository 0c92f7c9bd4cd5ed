// SPDX-License-Identifier: Apache-2.0
// Every family on the device against the reference implementation: the checkpoints of
// tests/model/families, which models/reference/make_checkpoints.py made.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/device/device_decoder.hpp"
#include "episodic/model/host_only.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/patch.hpp"
#include "kernels/device.hpp"
#include "model/expected_logits.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"

using namespace episodic;

namespace {

/// Rows [first, first + rows) of the reference's logits, within 1e-4 of the largest.
void same(std::span<const float> got, const ExpectedLogits& expected, std::size_t first) {
  const float tolerance = 1e-4f * expected.largest();
  const std::span<const float> rows =
      std::span(expected.logits).subspan(first * expected.vocab(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float difference = std::abs(got[i] - rows[i]);
    if (difference <= tolerance) continue;  // not so for NaN
    INFO("row " << first + i / expected.vocab() << ", logit " << i % expected.vocab() << ": "
                << got[i] << " instead of " << rows[i]);
    REQUIRE(difference <= tolerance);
  }
}

/// Feeds ids in steps of at most `piece` and compares the logits of every row.
void read(DeviceDecoder& model, const ExpectedLogits& expected, std::size_t end,
          std::size_t piece) {
  for (std::size_t at = 0; at < end; at += piece) {
    const std::size_t n = std::min(piece, end - at);
    std::vector<float> logits(n * expected.vocab());
    model.step(std::span(expected.ids).subspan(at, n), logits);
    same(logits, expected, at);
  }
}

std::vector<std::int64_t> greedy(DeviceDecoder& model, std::span<const std::int64_t> prompt,
                                 std::size_t n) {
  std::vector<std::int64_t> out;
  model.step(prompt);
  while (true) {
    const std::span<const float> row = model.logits();
    out.push_back(std::max_element(row.begin(), row.end()) - row.begin());
    if (out.size() == n) return out;
    model.step({&out.back(), 1});
  }
}

/// Whether a rotary table would change while so many tokens are read: a device's does not.
bool table_changes(const ModelConfig& config, std::int64_t tokens) {
  return std::any_of(config.ropes.begin(), config.ropes.end(),
                     [&](const Rope& rope) { return !(rope.at(tokens) == rope.at(1)); });
}

/// Whether the model has a part that only the host computes, which a device says.
bool refused_by_name(const std::filesystem::path& dir) {
  const std::string part = host_only_part(open_model(dir).config);
  if (part.empty()) return false;
  const std::string said = refusal<ConfigError>([&] { DeviceDecoder::load(dir); });
  REQUIRE(mentions(said, part));
  REQUIRE(mentions(said, "run it there"));
  return true;
}

MemoryConfig memory_of(std::int64_t n_local, std::int64_t chunk) {
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = n_local;
  config.chunk = chunk;
  return config;
}

}  // namespace

TEST_CASE("families: their own attention on the device gives the reference's logits and tokens",
          "[proof]") {
  const ExactActivations exact;
  EPISODIC_NEEDS_DEVICE();
  REQUIRE(family_checkpoints().size() >= 20);
  int decoded = 0;
  std::size_t number = 0;
  for (const auto& dir : family_checkpoints()) {
    INFO(dir.filename().string());
    if (refused_by_name(dir)) continue;
    if (++number % 2 == 0 && !episodic_test::all_cases()) continue;  // in the next test
    const ExpectedLogits expected(dir);
    DeviceDecoder model = DeviceDecoder::load(dir);
    const auto n = static_cast<std::int64_t>(expected.ids.size());
    for (const std::size_t piece :
         episodic_test::in_turn(std::vector{expected.ids.size(), std::size_t{3}}, number / 2)) {
      model.attend_fully(n, static_cast<std::int64_t>(piece));
      read(model, expected, expected.ids.size(), piece);
    }
    const std::vector<float> surprise = model.surprise();
    // That of the sequence's first token is 0; it is in the last step where that has all of them.
    const auto first = surprise.begin() + (surprise.size() == expected.ids.size() ? 1 : 0);
    REQUIRE(std::all_of(first, surprise.end(), [](float s) { return s > 0; }));
    const auto tokens = static_cast<std::int64_t>(expected.start + expected.greedy.size());
    if (table_changes(model.config(), tokens)) continue;
    ++decoded;
    model.attend_fully(tokens);
    const std::span<const std::int64_t> prompt = std::span(expected.ids).first(expected.start);
    REQUIRE(greedy(model, prompt, expected.greedy.size()) == expected.greedy);
  }
  REQUIRE(decoded >= episodic_test::all_or(20, 10));
}

TEST_CASE("families: the memory on the device gives the reference's logits inside its window",
          "[proof]") {
  const ExactActivations exact;
  EPISODIC_NEEDS_DEVICE();
  int mixed = 0;
  std::size_t number = 0;
  for (const auto& dir : family_checkpoints()) {
    INFO(dir.filename().string());
    if (refused_by_name(dir)) continue;
    if (++number % 2 == 1 && !episodic_test::all_cases()) continue;  // in the test before
    const ExpectedLogits expected(dir);
    DeviceDecoder model = DeviceDecoder::load(dir);
    const ModelConfig& c = model.config();
    const std::vector<std::int64_t> served = c.memory_layers();
    mixed += static_cast<std::int64_t>(served.size()) < c.n_layers;
    // the reference sees all ids, or a window that a memory of the same window sees too
    const std::int64_t window = c.layers[static_cast<std::size_t>(served[0])].window;
    const auto n = static_cast<std::int64_t>(expected.ids.size());
    const auto rows = static_cast<std::size_t>(window > 0 ? window : n);
    for (const std::size_t piece :
         episodic_test::in_turn(std::vector{std::size_t{3}, rows}, number / 2)) {
      model.attach_memory(memory_of(window > 0 ? window : n, static_cast<std::int64_t>(piece)), n);
      REQUIRE(model.memory().shape().n_layers == static_cast<std::int64_t>(served.size()));
      read(model, expected, rows, piece);
    }
    const auto tokens = static_cast<std::int64_t>(expected.start + expected.greedy.size());
    if (window > 0 || table_changes(c, tokens)) continue;
    model.attach_memory(memory_of(tokens, tokens), tokens);
    const std::span<const std::int64_t> prompt = std::span(expected.ids).first(expected.start);
    REQUIRE(greedy(model, prompt, expected.greedy.size()) == expected.greedy);
  }
  REQUIRE(mixed >= episodic_test::all_or(3, 1));
}

TEST_CASE("families: a memory on the device recalls what the host's recalls") {
  const ExactActivations exact;
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = parse_memory_config(
      R"({"n_init": 3, "n_local": 9, "n_mem": 12, "chunk": 5, "min_block": 2, "max_block": 4,
          "n_repr": 2, "contiguity": 0.3, "gamma": 0.5, "refine": "modularity"})");
  const std::vector<std::filesystem::path> all = family_checkpoints();
  for (const auto& dir : episodic_test::sampled(all, all.size() / 3)) {
    INFO(dir.filename().string());
    if (refused_by_name(dir)) continue;
    const ExpectedLogits expected(dir);
    Decoder host = Decoder::load(dir);
    const ModelConfig& c = host.config();
    const std::int64_t window = c.layers[static_cast<std::size_t>(c.memory_layers()[0])].window;
    config.n_local = window > 0 ? window : 9;
    const auto memory = patch(host, config);
    DeviceDecoder device = DeviceDecoder::load(dir);
    device.attach_memory(config, static_cast<std::int64_t>(expected.ids.size()));
    for (std::size_t at = 0; at < expected.ids.size();) {
      const std::size_t n = std::min<std::size_t>(at % 3 == 0 ? 1 : 5, expected.ids.size() - at);
      host.step({expected.ids.data() + at, n});
      device.step({expected.ids.data() + at, n});
      at += n;
      const std::span<const float> a = host.logits(), b = device.logits();
      for (std::size_t i = 0; i < a.size(); ++i)
        REQUIRE(std::abs(a[i] - b[i]) <= 1e-4f * expected.largest());
      REQUIRE(memory->last_step().final_boundaries == device.memory().last_step().final_boundaries);
    }
    REQUIRE(memory->events().size() > 3);
    REQUIRE((device.memory().events().all() == memory->events().all()));
    for (std::int64_t l = 0; l < memory->shape().n_layers; ++l)
      REQUIRE(device.memory().recalled(l) == memory->recalled(l).recalled());
  }
}

TEST_CASE("families: sequences at other positions in one step give the reference's logits") {
  EPISODIC_NEEDS_DEVICE();
  for (const char* name : {"ministral3", "cohere2", "apertus", "nemotron"}) {
    INFO(name);
    const ExpectedLogits expected(family_checkpoint(name));
    const std::span<const std::int64_t> ids(expected.ids);
    DeviceDecoder ahead = DeviceDecoder::load(family_checkpoint(name));
    DeviceDecoder behind = ahead.share_weights();
    for (DeviceDecoder* model : {&ahead, &behind}) model->attend_fully(40, 20);
    ahead.step(ids.first(20));
    behind.step(ids.first(5));
    for (std::size_t i = 0; i < 10; ++i) {
      const std::vector<DeviceDecoder::SequenceStep> both{{&ahead, ids.subspan(20 + i, 1)},
                                                          {&behind, ids.subspan(5 + i, 1)}};
      DeviceDecoder::step_batch(both);
      same(ahead.logits(), expected, 20 + i);
      same(behind.logits(), expected, 5 + i);
    }
  }
}

TEST_CASE("families: sliding layers beside a memory on the device go back with the model") {
  EPISODIC_NEEDS_DEVICE();
  const ExpectedLogits expected(family_checkpoint("gemma3"));
  DeviceDecoder model = DeviceDecoder::load(family_checkpoint("gemma3"));
  const auto rest = [&](std::size_t from) {
    std::vector<float> logits((expected.ids.size() - from) * expected.vocab());
    model.step(std::span(expected.ids).subspan(from), logits);
    same(logits, expected, from);
  };
  model.attach_memory(memory_of(64, 64), 64);
  read(model, expected, 20, 20);
  const auto snapshot = model.snapshot();
  const auto of_memory = model.memory().snapshot();
  for (int round = 0; round < 2; ++round) {
    model.step(std::span(expected.ids).first(13));
    model.restore(*snapshot);
    REQUIRE(model.tokens() == 20);
    rest(20);
    model.restore(*snapshot);
  }
  // going back by the memory alone leaves the sliding layers where they were
  model.memory().restore(*of_memory);
  REQUIRE(mentions(refusal<DataError>([&] { model.step(expected.ids); }), "sliding layers"));
  model.memory().reset();
  rest(0);
  // with their own attention
  model.attend_fully(64, 64);
  REQUIRE_THROWS_AS(model.restore(*snapshot), ConfigError);
  REQUIRE_THROWS_AS(model.memory(), DataError);
  read(model, expected, 20, 20);
  const auto full = model.snapshot();
  model.step(std::span(expected.ids).first(5));
  model.restore(*full);
  rest(20);
}

TEST_CASE("families: sliding windows come back however far the model went on") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::size_t kEnd = 60;
  std::size_t number = 0;
  for (const std::int64_t chunk : {1, 4, 16}) {
    DeviceDecoder model = DeviceDecoder::load(family_checkpoint("gemma3")),
                  straight = model.share_weights();
    for (DeviceDecoder* of : {&model, &straight}) of->attach_memory(memory_of(8, chunk), kEnd);
    /// To token `end` in chunks, of a text that `seed` tells.
    const auto read_to = [&](DeviceDecoder& of, std::size_t end, std::int64_t seed) {
      while (of.tokens() < static_cast<std::int64_t>(end)) {
        std::vector<std::int64_t> ids;
        for (std::int64_t t = of.tokens();
             t < static_cast<std::int64_t>(end) && t < of.tokens() + chunk; ++t)
          ids.push_back((t * (7 + seed) + seed) % 50);
        of.step(ids);
      }
      return std::vector<float>(of.logits().begin(), of.logits().end());
    };
    read_to(model, 25, 0);
    const auto early = model.snapshot();
    read_to(model, 30, 0);
    const auto late = model.snapshot();
    for (const std::size_t behind :
         episodic_test::in_turn(std::vector<std::size_t>{30, 5, 1}, number++)) {
      INFO("chunk " << chunk << ", tokens behind " << behind);
      read_to(model, 30 + behind, 1);
      model.restore(*late);
      const auto got = read_to(model, 37, 2);
      straight.memory().reset();
      read_to(straight, 25, 0);
      read_to(straight, 30, 0);
      REQUIRE(read_to(straight, 37, 2) == got);
      model.restore(*late);
    }
    read_to(model, kEnd, 1);
    model.restore(*early);
    const auto got = read_to(model, 47, 3);
    straight.memory().reset();
    read_to(straight, 25, 0);
    REQUIRE(read_to(straight, 47, 3) == got);
    REQUIRE_THROWS_AS(model.restore(*late), ConfigError);
  }
}

TEST_CASE("families: what a decoder on the device cannot attend to is refused by name") {
  EPISODIC_NEEDS_DEVICE();
  const std::vector<std::int64_t> ids{1, 2, 3};
  DeviceDecoder model = DeviceDecoder::load(family_checkpoint("mistral_window"));
  REQUIRE(mentions(refusal<DataError>([&] { model.step(ids); }), "attend_fully"));
  REQUIRE(mentions(refusal<ConfigError>([&] { model.attach_memory(memory_of(10, 8), 40); }),
                   "n_local = 10 exceeds the sliding window of 9 tokens"));
  REQUIRE(mentions(refusal<ConfigError>([&] { model.attend_fully(0); }), "max_tokens = 0"));
  model.attend_fully(4, 2);
  REQUIRE(mentions(refusal<DataError>([&] { model.step(ids); }), "chunk = 2"));
  model.step(std::span(ids).first(2));
  model.step(std::span(ids).first(2));
  REQUIRE(mentions(refusal<BudgetError>([&] { model.step(std::span(ids).first(1)); }),
                   "max_tokens = 4"));

  // Heads of 6 channels are padded on the device, those in a memory of the host are not.
  const MemoryConfig config = memory_of(9, 8);
  EpisodicMemory host(config, memory_shape(model.config(), config.n_local));
  REQUIRE(mentions(refusal<ConfigError>([&] { model.attach_memory(host, 40); }), "padded"));
}
