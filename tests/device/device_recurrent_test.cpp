// SPDX-License-Identifier: Apache-2.0
// What stands in place of attention on the device (short convolutions, the delta rule, Mamba2): its
// state in snapshots, batches, failing steps, and in memories that go from the host to the device
// and back.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "device/recurrences.hpp"
#include "episodic/base/error.hpp"
#include "episodic/device/device_decoder.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/kept_folder.hpp"
#include "kernels/device.hpp"
#include "model/expected_logits.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;

namespace device_recurrent_test {

MemoryConfig memory_of(std::int64_t n_local, std::int64_t chunk) {
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = n_local;
  config.n_mem = 16;
  config.chunk = chunk;
  config.min_block = 2;
  config.max_block = 8;
  return config;
}

std::vector<std::int64_t> text(std::int64_t from, std::int64_t end, std::int64_t seed) {
  std::vector<std::int64_t> ids;
  for (std::int64_t t = from; t < end; ++t) ids.push_back((t * (7 + seed) + seed) % 50);
  return ids;
}

template <class D>
std::vector<float> read(D& model, std::span<const std::int64_t> ids, std::size_t piece) {
  for (std::size_t at = 0; at < ids.size(); at += piece)
    model.step(ids.subspan(at, std::min(piece, ids.size() - at)));
  const std::span<const float> last = model.logits();
  return {last.begin(), last.end()};
}

void near(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float largest = 0;
  for (const float x : a) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(std::abs(a[i] - b[i]) <= 1e-4f * largest);
}

TEST_CASE("recurrent state on the device: snapshots have it however far the model went on") {
  EPISODIC_NEEDS_DEVICE();
  const std::vector<std::pair<const char*, std::vector<std::int64_t>>> cases{
      {"lfm2", {1, 4, 16}}, {"lfm2_biases", {1, 4, 16}}, {"qwen3_5", {4}}, {"granite4", {1}}};
  std::size_t number = 0;
  for (const auto& [name, chunks] : cases)
    for (const std::int64_t chunk : episodic_test::in_turn(chunks, number++)) {
      INFO(name << ", chunk " << chunk);
      DeviceDecoder model = DeviceDecoder::load(family_checkpoint(name)),
                    straight = model.share_weights();
      for (DeviceDecoder* of : {&model, &straight}) of->attach_memory(memory_of(8, chunk), 80);
      const auto go = [&](DeviceDecoder& of, std::int64_t end, std::int64_t seed) {
        const std::vector<std::int64_t> ids = text(of.tokens(), end, seed);
        return read(of, ids, static_cast<std::size_t>(chunk));
      };
      go(model, 1, 0);
      const auto first = model.snapshot();  // of fewer tokens than a convolution sees
      go(model, 25, 0);
      const auto early = model.snapshot();
      go(model, 30, 0);
      const auto late = model.snapshot();
      const auto of_memory = model.memory().snapshot();
      for (const std::int64_t behind : {1, 5, 30}) {
        go(model, 30 + behind, 1);
        model.restore(*late);
        const auto got = go(model, 37, 2);
        straight.memory().reset();
        for (const std::int64_t end : {1, 25, 30}) go(straight, end, 0);
        REQUIRE(go(straight, 37, 2) == got);
        model.restore(*late);
      }
      model.memory().restore(*of_memory);
      REQUIRE(mentions(refusal<DataError>([&] { go(model, 31, 0); }), "recurrent states"));
      model.restore(*early);
      const auto got = go(model, 47, 3);
      model.restore(*first);
      const auto again = go(model, 9, 4);
      straight.memory().reset();
      for (const std::int64_t end : {1, 25}) go(straight, end, 0);
      REQUIRE(go(straight, 47, 3) == got);
      straight.memory().reset();
      go(straight, 1, 0);
      REQUIRE(go(straight, 9, 4) == again);
    }
}

TEST_CASE("recurrent state on the device: a step that fails leaves no trace") {
  EPISODIC_NEEDS_DEVICE();
  for (const char* name : {"lfm2", "qwen3_5", "granite4"}) {
    INFO(name);
    DeviceDecoder model = DeviceDecoder::load(family_checkpoint(name)),
                  straight = model.share_weights();
    for (DeviceDecoder* of : {&model, &straight}) {
      of->attach_memory(memory_of(8, 8), 80);
      read(*of, text(0, 30, 0), 8);
    }
    int calls = 0;
    const std::int64_t last = model.config().memory_layers().back();  // behind layers with a state
    model.set_keys_hook([&](std::int64_t layer, std::span<const float>) {
      if (layer == last && ++calls < 3) throw FileError("a hook that fails");
    });
    for (int i = 0; i < 2; ++i) REQUIRE_THROWS_AS(model.step(text(50, 57, 1)), FileError);
    model.set_keys_hook({});
    REQUIRE(calls == 2);
    REQUIRE(model.tokens() == 30);
    REQUIRE(read(model, text(30, 44, 0), 7) == read(straight, text(30, 44, 0), 7));
  }
}

TEST_CASE("recurrent state on the device: sequences of a batch have their own") {
  EPISODIC_NEEDS_DEVICE();
  for (const char* name : {"lfm2_biases", "qwen3_5", "qwen3_5_biases", "granite4_biases"}) {
    INFO(name);
    DeviceDecoder root = DeviceDecoder::load(family_checkpoint(name));
    std::vector<DeviceDecoder> together, alone;
    for (std::vector<DeviceDecoder>* of : {&together, &alone})
      for (int i = 0; i < 3; ++i) {
        of->push_back(root.share_weights());
        if (i == 1)
          of->back().attend_fully(80, 8);
        else
          of->back().attach_memory(memory_of(8, 8), 80);
      }
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{8, 3, 5}, {1, 1, 1}, {1, 7, 1}, {1, 1, 1}, {1, 1, 1}}) {
      std::vector<std::vector<std::int64_t>> ids;
      for (std::size_t i = 0; i < 3; ++i)
        ids.push_back(text(together[i].tokens(), together[i].tokens() + lengths[i],
                           static_cast<std::int64_t>(i)));
      std::vector<DeviceDecoder::SequenceStep> batch;
      for (std::size_t i = 0; i < 3; ++i) {
        batch.push_back({&together[i], ids[i]});
        alone[i].step(ids[i]);
      }
      DeviceDecoder::step_batch(batch);
      for (std::size_t i = 0; i < 3; ++i) {
        const std::span<const float> a = alone[i].logits(), b = together[i].logits();
        near({a.begin(), a.end()}, {b.begin(), b.end()});
      }
    }
  }
}

TEST_CASE("recurrent state on the device: a fork has it, and sliding windows, as they were") {
  EPISODIC_NEEDS_DEVICE();
  for (const char* const name : {"lfm2", "qwen3_5", "granite4", "gemma3", "qwen3"})
    for (const bool with_memory : {true, false})
      for (const std::int64_t forked : {0, 1, 30}) {
        INFO(name << (with_memory ? ", memory" : ", full attention") << ", forked at " << forked);
        DeviceDecoder model = DeviceDecoder::load(family_checkpoint(name)),
                      straight = model.share_weights();
        const auto begin = [&](DeviceDecoder& of) {
          if (with_memory)
            of.attach_memory(memory_of(8, 4), 80);
          else
            of.attend_fully(80, 4);
        };
        const auto go = [&](DeviceDecoder& of, std::int64_t end, std::int64_t seed) {
          return read(of, text(of.tokens(), end, seed), 4);
        };
        begin(model);
        std::vector<float> there;
        if (forked > 0) there = go(model, forked, 0);
        DeviceDecoder fork = model.fork();
        REQUIRE(fork.tokens() == forked);
        if (forked > 0) {
          REQUIRE(std::vector<float>(fork.logits().begin(), fork.logits().end()) == there);
          REQUIRE(fork.surprise() == model.surprise());
        }
        go(model, 45, 1);
        const std::vector<float> of_fork = go(fork, 52, 2);
        const std::vector<float> of_model = go(model, 52, 1);
        for (const auto& [seed, expected] : {std::pair(1, of_model), std::pair(2, of_fork)}) {
          begin(straight);
          if (forked > 0) go(straight, forked, 0);
          if (seed == 1) go(straight, 45, 1);
          REQUIRE(go(straight, 52, seed) == expected);
        }
      }
}

TEST_CASE("recurrent state on the device: a kept memory goes from host to device and back") {
  EPISODIC_NEEDS_DEVICE();
  // heads of 16, which are not padded
  const std::filesystem::path dir =
      family_checkpoint(GENERATE("lfm2_biases", "qwen3_5_biases", "granite4_biases"));
  const TempDir scratch;
  const MemoryConfig config = memory_of(16, 8);
  const std::vector<std::int64_t> ids = text(0, 120, 0);
  const std::span<const std::int64_t> all(ids);
  Decoder whole = Decoder::load(dir);
  patch(whole, config);
  const std::vector<float> at_50 = read(whole, all.first(50), 8);
  const std::vector<float> at_83 = read(whole, all.subspan(50, 33), 8);
  const std::vector<float> at_120 = read(whole, all.subspan(83), 8);

  KeptFolder folder;
  folder.dir = scratch / "kept";
  {
    const auto kept = std::make_shared<EpisodicMemory>(create_memory(dir, folder, config));
    Decoder host = Decoder::load(dir);
    patch(host, kept);
    REQUIRE(read(host, all.first(50), 8) == at_50);
    kept->commit();
  }
  {
    EpisodicMemory kept = open_memory(dir, folder);
    DeviceDecoder device = DeviceDecoder::load(dir);
    device.attach_memory(kept, 120);
    near(read(device, all.subspan(50, 33), 8), at_83);
    device.save(kept);
    kept.commit();
  }
  const auto kept = std::make_shared<EpisodicMemory>(open_memory(dir, folder));
  REQUIRE(kept->tokens() == 83);
  Decoder host = Decoder::load(dir);
  patch(host, kept);
  near(read(host, all.subspan(83), 8), at_120);
}

TEST_CASE("recurrent state on the device: heads that no kernel has are refused by name") {
  ModelConfig config = load_model_config(family_checkpoint("qwen3_5"));
  const std::vector<std::int64_t> layers{0, 1, 2};
  const device::Recurrences known(config, layers, 4);
  REQUIRE(known.params(2, 3, nullptr).key_dim == 10);
  REQUIRE_THROWS_AS(known.params(3, 3, nullptr), DataError);  // which attends
  config.layers[1].recurrence.key_dim = 4096;
  REQUIRE(mentions(refusal<ConfigError>([&] { device::Recurrences(config, layers, 4); }),
                   "recurrent heads of 4096 key channels, at most 2048"));
}

}  // namespace device_recurrent_test
