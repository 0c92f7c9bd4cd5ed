// SPDX-License-Identifier: Apache-2.0
// DeviceDecoder against float64, and against the host's model and memory.
#include "episodic/device/device_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "damaged_files.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/session.hpp"
#include "kernels/device.hpp"
#include "model/tiny_adapter.hpp"
#include "model/tiny_llama.hpp"
#include "support/compare.hpp"
#include "support/temp_dir.hpp"

namespace device_decoder_test {

using namespace episodic;

TinyShape shape_of(bool biased, TensorType type) {
  TinyShape
      s;  // rows of 44 elements: in 16 bits no multiple of 16 bytes, so that cuBLAS takes them
  s.dim = 16;
  s.hidden = 40;
  s.tied = !biased;
  s.attention_bias = s.mlp_bias = biased;
  s.type = type;
  return s;
}

MemoryConfig small_config() {
  return parse_memory_config(
      R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2, "max_block": 6,
          "n_repr": 2, "contiguity": 0.3, "gamma": 0.5, "refine": "modularity"})");
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = worse_of(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

TEST_CASE("a decoder on the device computes what float64 does while all is in the window") {
  EPISODIC_NEEDS_DEVICE();
  for (const int kind : {0, 1, 2, 3})
    for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16}) {
      const bool biased = kind % 2;
      const TempDir dir;
      TinyShape shape = shape_of(biased, type);
      if (kind / 2) shape.inner = 48;  // one token's products are the library's own
      const TinyLlama tiny(shape, 3);
      tiny.write(dir.path());
      DeviceDecoder model = DeviceDecoder::load(dir.path());
      MemoryConfig config = small_config();
      config.n_local = 64;
      model.attach_memory(config, 40);
      REQUIRE(model.chunk() == 10);
      const std::vector<std::int64_t> ids = random_ids(23, 61, 5);
      const auto expected = tiny.logits(ids);
      double scale = 0;
      for (const double x : expected.back()) scale = std::max(scale, std::abs(x));
      const double tolerance = type == TensorType::f32   ? 2e-5
                               : type == TensorType::f16 ? 1e-2
                                                         : 8e-2;
      for (std::size_t done = 0; done < ids.size();) {
        const std::size_t n = std::min<std::size_t>(done == 10 ? 1 : 10, ids.size() - done);
        model.step({ids.data() + done, n});
        done += n;
        const std::span<const float> logits = model.logits();
        for (std::size_t i = 0; i < logits.size(); ++i)
          REQUIRE(std::abs(static_cast<double>(logits[i]) - expected[done - 1][i]) <
                  tolerance * scale);
      }
    }
}

TEST_CASE("a decoder on the device remembers as the host's does") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(true, TensorType::f32), 8).write(dir.path());
  Decoder host = Decoder::load(dir.path());
  const std::shared_ptr<EpisodicMemory> memory = patch(host, small_config());
  DeviceDecoder device = DeviceDecoder::load(dir.path());
  device.attach_memory(small_config(), 90);
  const std::vector<std::int64_t> ids = random_ids(90, 61, 2);
  for (std::size_t done = 0; done < ids.size();) {
    const std::size_t n = std::min<std::size_t>(done % 7 == 0 ? 10 : 1, ids.size() - done);
    host.step({ids.data() + done, n});
    device.step({ids.data() + done, n});
    done += n;
    REQUIRE(largest_difference(host.logits(), device.logits()) < 2e-4);
    const StepRecord a = memory->last_step(), b = device.memory().last_step();
    REQUIRE(largest_difference(a.surprise, b.surprise) < 2e-4);
    REQUIRE(a.final_boundaries == b.final_boundaries);
  }
  REQUIRE(memory->events().size() > 8);
  REQUIRE((device.memory().events().all() == memory->events().all()));
  for (std::int64_t l = 0; l < 2; ++l) {
    REQUIRE(!device.memory().recalled(l).empty());
    REQUIRE(device.memory().recalled(l) == memory->recalled(l).recalled());
  }
}

TEST_CASE("a decoder on the device gives the logits of every row of a step") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(true, TensorType::f32), 8).write(dir.path());
  Decoder host = Decoder::load(dir.path());
  patch(host, small_config());
  DeviceDecoder device = DeviceDecoder::load(dir.path()), plain = DeviceDecoder::load(dir.path());
  device.attach_memory(small_config(), 90);
  plain.attach_memory(small_config(), 90);
  const std::vector<std::int64_t> ids = random_ids(60, 61, 2);
  for (std::size_t done = 0; done < ids.size();) {
    const std::size_t n = done == 20 ? 1 : std::min<std::size_t>(10, ids.size() - done);
    const LogitsView expected = host.forward({ids.data() + done, n});
    std::vector<float> got(n * 61);
    device.step({ids.data() + done, n}, got);
    plain.step({ids.data() + done, n});
    REQUIRE(largest_difference({expected.floats().data(), got.size()}, got) < 2e-4);
    REQUIRE(largest_difference(plain.logits(), std::span(got).last(61)) == 0);
    done += n;
  }
  std::vector<float> few(60);
  REQUIRE_THROWS_AS(device.step({ids.data(), 1}, few), DataError);
}

TEST_CASE("a decoder on the device shows the keys that the host's layers are given") {
  EPISODIC_NEEDS_DEVICE();
  for (const std::int64_t dim : {16, 6}) {  // heads as they are, and padded on the device
    const TempDir dir;
    TinyShape shape = shape_of(true, TensorType::f32);
    shape.dim = dim;
    shape.inner = 48;  // one token's products are the library's own, which show no keys
    TinyLlama(shape, 8).write(dir.path());
    const std::unique_ptr<Engine> host = load_engine(dir.path());
    DeviceDecoder device = DeviceDecoder::load(dir.path());
    using Keys = std::vector<std::vector<float>>;
    const auto into = [](Keys& keys) {
      return [&keys](std::int64_t layer, std::span<const float> of_step) {
        std::vector<float>& to = keys[static_cast<std::size_t>(layer)];
        to.insert(to.end(), of_step.begin(), of_step.end());
      };
    };
    Keys of_host(2), of_device(2);
    host->set_keys_hook(into(of_host));  // whatever is attached later
    device.set_keys_hook(into(of_device));
    const std::vector<std::int64_t> ids = random_ids(60, 61, 2);
    for (const bool with_memory : {true, false}) {
      if (with_memory) {
        host->attach(small_config());
        device.attach_memory(small_config(), 60);
      } else {
        host->attach_full_attention();
        device.attend_fully(60, 10);
      }
      for (Keys* keys : {&of_host, &of_device})
        for (std::vector<float>& layer : *keys) layer.clear();
      for (std::size_t done = 0; done < ids.size();) {
        const std::size_t n = done >= 20 && done < 25 ? 1 : std::min<std::size_t>(10, 60 - done);
        host->step({ids.data() + done, n});
        device.step({ids.data() + done, n});
        done += n;
      }
      for (std::size_t l = 0; l < 2; ++l) {
        REQUIRE(of_host[l].size() == static_cast<std::size_t>(60 * 2 * dim));
        REQUIRE(largest_difference(of_host[l], of_device[l]) < 2e-4);
      }
    }
    // Without it graphs are made again, and nothing is shown.
    host->set_keys_hook({});
    device.set_keys_hook({});
    const std::size_t before = of_device[0].size();
    device.attend_fully(60, 10);
    host->attach_full_attention();
    for (const std::int64_t id : std::span(ids).first(5)) {
      host->step({&id, 1});
      device.step({&id, 1});
    }
    REQUIRE(largest_difference(host->logits(), device.logits()) < 2e-4);
    REQUIRE(of_device[0].size() == before);
    REQUIRE(of_host[0].size() == before);
  }
}

TEST_CASE("a decoder on the device comes back to a snapshot, logits and all") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::bf16), 4).write(dir.path());
  DeviceDecoder model = DeviceDecoder::load(dir.path());
  model.attach_memory(small_config(), 150);
  const std::vector<std::int64_t> ids = random_ids(150, 61, 2);
  const auto empty = model.snapshot();
  const auto feed = [&](std::size_t first, std::size_t end) {
    std::vector<std::vector<float>> all;
    while (first < end) {
      const std::size_t n = first / 20 % 2 == 1 ? 1 : std::min<std::size_t>(10, end - first);
      model.step({ids.data() + first, n});
      const std::span<const float> row = model.logits();
      all.emplace_back(row.begin(), row.end());
      first += n;
    }
    return all;
  };
  const auto begin = feed(0, 60);
  const auto snapshot = model.snapshot();
  const auto expected = feed(60, 120);
  const std::vector<float> surprise = model.memory().last_step().surprise;
  const auto late = model.snapshot();
  model.restore(*snapshot);
  const std::span<const float> row = model.logits();
  REQUIRE((std::vector<float>(row.begin(), row.end()) == begin.back()));
  REQUIRE_THROWS_AS(model.restore(*late), ConfigError);  // its last tokens are gone
  REQUIRE(feed(60, 120) == expected);  // also what the logits before say of the first token
  REQUIRE(model.memory().last_step().surprise == surprise);
  model.restore(*empty);
  REQUIRE_THROWS_AS(model.logits(), DataError);
  REQUIRE(feed(0, 60) == begin);
}

TEST_CASE("a step whose events could not be read leaves a decoder as it was") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir, files;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  MemoryConfig config = small_config();
  const std::vector<std::int64_t> ids = random_ids(150, 61, 2);
  DeviceDecoder twin = DeviceDecoder::load(dir.path()), model = DeviceDecoder::load(dir.path());
  twin.attach_memory(config, 150);
  const MemoryShape shape = memory_shape(model.config());
  const DeviceMemoryBytes bytes = DeviceMemory::bytes_needed(config, shape, {DType::float32, 150});
  config.device_bytes = bytes.total() - bytes.snapshots - bytes.events / 4;
  config.host_bytes =
      least_host_bytes({shape.n_layers, shape.n_kv_heads, shape.head_dim, DType::float32},
                       config.max_block, most_recalled_tokens(config));
  config.disk_dir = files.path().string();
  model.attach_memory(config, 150);
  for (std::size_t at = 0; at < 130; at += 10)
    for (DeviceDecoder* const m : {&twin, &model}) m->step({ids.data() + at, 10});
  damage(files.path());
  REQUIRE_THROWS_AS(model.step({ids.data() + 140, 10}), FileError);
  REQUIRE(model.tokens() == 130);
  damage(files.path());  // back
  for (DeviceDecoder* const m : {&twin, &model}) m->step({ids.data() + 130, 10});
  REQUIRE(model.surprise() == twin.surprise());  // of the first token by the logits before it
  const std::span<const float> got = model.logits(), expected = twin.logits();
  REQUIRE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()));
}

TEST_CASE("a step whose events files cannot keep leaves a decoder as it was") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  const std::vector<std::int64_t> ids = random_ids(160, 61, 2);
  const MemoryShape shape = [&] {
    return memory_shape(DeviceDecoder::load(dir.path()).config());
  }();
  for (const bool batch : {false, true}) {
    const TempDir files;
    MemoryConfig config = small_config();
    DeviceDecoder twin = DeviceDecoder::load(dir.path()), model = DeviceDecoder::load(dir.path());
    twin.attach_memory(config, 160);
    const DeviceMemoryBytes bytes =
        DeviceMemory::bytes_needed(config, shape, {DType::float32, 160});
    config.device_bytes = bytes.total() - bytes.snapshots - bytes.events / 4;
    config.host_bytes =
        least_host_bytes({shape.n_layers, shape.n_kv_heads, shape.head_dim, DType::float32},
                         config.max_block, most_recalled_tokens(config));
    config.disk_dir = files.path().string();
    model.attach_memory(config, 160);
    const auto step = [&](std::size_t at, std::size_t n) {
      const std::span<const std::int64_t> of_step(ids.data() + at, n);
      if (batch)
        DeviceDecoder::step_batch(
            std::vector<DeviceDecoder::SequenceStep>{{&model, of_step, StepKind::decode}});
      else
        model.step(of_step);
    };
    int refused = 0;
    for (std::size_t at = 0, n = 10; at < 150; at += n, n = n == 10 ? 1 : 10) {
      bool was_refused = false;
      {
        const FullFiles full;
        try {
          step(at, n);
        } catch (const Error& e) {
          INFO(e.what());
          was_refused = true;
        }
      }
      if (was_refused) {
        ++refused;
        REQUIRE(model.tokens() == static_cast<std::int64_t>(at));
        step(at, n);
      }
      twin.step({ids.data() + at, n});
      REQUIRE(model.surprise() == twin.surprise());  // of the first token by the logits before it
      const std::span<const float> got = model.logits(), expected = twin.logits();
      REQUIRE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()));
    }
    REQUIRE(refused > 3);
  }
}

TEST_CASE("a kept memory is read on the device, by another process and by the host") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  MemoryConfig config = small_config();
  Decoder host = Decoder::load(dir.path());
  const MemoryShape shape = memory_shape(host.config());
  KeepOptions keep;
  keep.dir = dir / "kept";
  const std::vector<std::int64_t> ids = random_ids(150, 61, 2);
  { EpisodicMemory created = EpisodicMemory::create(keep, config, shape); }
  for (const std::size_t end : {30u, 70u, 130u}) {
    // The second time events lie in files below the device, in the memory's folder.
    MemoryConfig budgets = config;
    if (end == 70) {
      const DeviceMemoryBytes bytes =
          DeviceMemory::bytes_needed(config, shape, {DType::float32, 150});
      budgets.device_bytes = bytes.total() - bytes.snapshots - bytes.events / 4;
      budgets.host_bytes =
          least_host_bytes({shape.n_layers, shape.n_kv_heads, shape.head_dim, DType::float32},
                           config.max_block, most_recalled_tokens(config));
    }
    EpisodicMemory kept = EpisodicMemory::open(keep, OpenMode::write, &shape, &budgets);
    DeviceDecoder model = DeviceDecoder::load(dir.path());
    model.attach_memory(kept, 150);
    REQUIRE((model.memory().lower_tiers().events > 0) == (end == 70));
    const auto steps = [&](std::size_t to) {
      while (static_cast<std::size_t>(model.memory().tokens()) < to) {
        const auto at = static_cast<std::size_t>(model.memory().tokens());
        model.step({ids.data() + at, std::min<std::size_t>(10, to - at)});
      }
    };
    steps(end - 10);
    model.save(kept);
    const auto snapshot = model.snapshot();
    model.step({ids.data() + 140, 5});
    model.restore(*snapshot);
    steps(end);
    model.save(kept);
    kept.commit();
    REQUIRE((kept.token_ids(0, static_cast<std::int64_t>(end)) ==
             std::vector<std::int64_t>(ids.begin(), ids.begin() + static_cast<long>(end))));
  }
  DeviceDecoder straight = DeviceDecoder::load(dir.path());
  keep.dir = dir / "straight";
  EpisodicMemory once = EpisodicMemory::create(keep, config, shape);
  straight.attach_memory(once, 150);
  for (std::size_t at = 0; at < 130; at += 10) straight.step({ids.data() + at, 10});
  straight.save(once);
  keep.dir = dir / "kept";
  auto kept = std::make_shared<EpisodicMemory>(EpisodicMemory::open(keep, OpenMode::read, &shape));
  REQUIRE(kept->digest() == once.digest());

  patch(host, kept);
  host.step({ids.data() + 130, 10});
  straight.step({ids.data() + 130, 10});
  REQUIRE(largest_difference(host.logits(), straight.logits()) < 2e-4);
  REQUIRE(largest_difference(kept->last_step().surprise, straight.memory().last_step().surprise) <
          2e-4);
}

TEST_CASE("a kept memory of a model with sliding layers goes on in turn on device and host") {
  EPISODIC_NEEDS_DEVICE();
  TinyShape shape = shape_of(false, TensorType::f32);
  shape.layers = 3;
  const TempDir dir;
  const TinyLlama tiny(shape, 4);
  nlohmann::json json = tiny.config();
  json["model_type"] = "smollm3";
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  json["use_sliding_window"] = true;
  json["sliding_window"] = 8;
  json["no_rope_layers"] = {1, 1, 0};
  std::ofstream(dir / "config.json") << json.dump();
  write_safetensors(dir / "model.safetensors", tiny.tensors());

  KeepOptions keep;
  keep.dir = dir / "kept";
  Decoder whole = Decoder::load(dir.path());
  const MemoryConfig config = small_config();
  const MemoryShape of_memory = memory_shape(whole.config(), config.n_local);
  REQUIRE(of_memory.n_layers == 1);
  const auto in_one = patch(whole, config);
  { EpisodicMemory created = EpisodicMemory::create(keep, config, of_memory); }
  const std::vector<std::int64_t> ids = random_ids(90, 61, 2);
  std::size_t at = 0;
  for (const std::size_t end : {6u, 30u, 50u, 70u, 90u}) {
    const bool on_device = end != 50;
    auto kept =
        std::make_shared<EpisodicMemory>(EpisodicMemory::open(keep, OpenMode::write, &of_memory));
    REQUIRE(kept->tokens() == static_cast<std::int64_t>(at));
    std::optional<DeviceDecoder> device;
    std::optional<Decoder> host;
    if (on_device) {
      device.emplace(DeviceDecoder::load(dir.path()));
      device->attach_memory(*kept, 90);
    } else {
      host.emplace(Decoder::load(dir.path()));
      patch(*host, kept);
    }
    LanguageModel& model = on_device ? static_cast<LanguageModel&>(*device) : *host;
    while (at < end) {
      const std::span<const std::int64_t> step =
          std::span(ids).subspan(at, at % 3 == 0 ? 1 : std::min<std::size_t>(5, end - at));
      whole.step(step);
      model.step(step);
      at += step.size();
      REQUIRE(largest_difference(whole.logits(), model.logits()) < 2e-4);
    }
    if (on_device) device->save(*kept);
    kept->commit();
  }
  EpisodicMemory kept = EpisodicMemory::open(keep, OpenMode::read, &of_memory);
  REQUIRE((kept.events().all() == in_one->events().all()));
  REQUIRE(kept.events().size() > 8);
  DeviceDecoder short_one = DeviceDecoder::load(dir.path());
  REQUIRE_THROWS_AS(short_one.attach_memory(kept, 80), BudgetError);
  REQUIRE_THROWS_AS(short_one.memory(), DataError);  // nothing is half there
}

TEST_CASE("adapters and rounded weights on the device are the host's") {
  EPISODIC_NEEDS_DEVICE();
  TinyShape shape = shape_of(false, TensorType::f32);
  shape.hidden = 64;  // whole blocks
  shape.inner = 96;
  shape.tied = false;
  const TempDir dir;
  std::filesystem::create_directories(dir / "model");
  TinyLlama(shape, 4).write(dir / "model");
  TinyAdapter(shape).write(dir / "adapter");
  const std::vector<std::int64_t> ids = random_ids(10, 61, 6);
  const auto host_logits = [&](const ModelOptions& changes) {
    Decoder host = Decoder::load(open_model(dir / "model", changes));
    const LogitsView all = host.forward(ids);
    return std::vector<float>(all.floats().data(), all.floats().data() + 610);
  };
  const auto logits = [&](const ModelOptions& changes) {
    DeviceDecoder device =
        DeviceDecoder::load(open_model(dir / "model", changes), {DType::float32, 0, true});
    device.attend_fully(20, 10);
    std::vector<float> got(610);
    device.step(ids, got);
    return got;
  };
  const std::vector<float> plain = logits({});
  ModelOptions beside, merged, rounded, both;
  beside.lora = merged.lora = {{dir / "adapter", 0.5}};
  merged.merge_lora = true;
  rounded.quantize = TensorType::q8_0;
  both = beside;
  both.quantize = TensorType::q8_0;
  REQUIRE(largest_difference(logits(beside), plain) > 0.1);
  REQUIRE(largest_difference(logits(beside), logits(merged)) == 0);
  REQUIRE(largest_difference(logits(beside), host_logits(beside)) < 2e-4);
  const double moved = largest_difference(logits(rounded), plain);
  REQUIRE(moved > 1e-3);
  REQUIRE(moved < 0.2);
  REQUIRE(largest_difference(logits(rounded), host_logits(rounded)) < 0.1);
  REQUIRE_THROWS_AS(logits(both), ConfigError);  // merge before rounding
  both.merge_lora = true;
  REQUIRE(largest_difference(logits(both), logits(merged)) < 0.2);
}

TEST_CASE("a session generates the same tokens on the device as on the host") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  Decoder host = Decoder::load(dir.path());
  patch(host, small_config());
  DeviceDecoder device = DeviceDecoder::load(dir.path());
  device.attach_memory(small_config(), 60);
  const std::vector<std::int64_t> prompt = random_ids(40, 61, 6);
  GenerateOptions options;
  options.max_new = 12;
  const GenerateResult a = Session(host).generate(prompt, options);
  const GenerateResult b = Session(device).generate(prompt, options);
  REQUIRE(a.ids.size() == 12);
  REQUIRE(a.ids == b.ids);
}

/// All that a sequence of steps leaves to be seen, step by step.
struct Seen {
  std::vector<std::vector<float>> logits, surprise;
  std::vector<std::vector<std::uint8_t>> boundaries;
  std::vector<std::vector<EventId>> recalled;
  std::vector<TokenRange> events;
  bool operator==(const Seen&) const = default;
};

constexpr std::int64_t kTokens = 58, kDecoded = 45;

/// Decodes kDecoded tokens behind a prompt, with a longer step amid them.
Seen decode(DeviceDecoder& model) {
  const std::vector<std::int64_t> ids = random_ids(kTokens, 61, 12);
  Seen seen;
  for (std::size_t done = 0; done < ids.size();) {
    const std::size_t n = done == 0 ? 8 : done == 35 ? 5 : 1;
    model.step({ids.data() + done, n});
    done += n;
    const std::span<const float> logits = model.logits();
    seen.logits.emplace_back(logits.begin(), logits.end());
    const StepRecord record = model.memory().last_step();
    seen.surprise.push_back(record.surprise);
    seen.boundaries.push_back(record.final_boundaries);
    for (std::int64_t l = 0; l < 2; ++l) seen.recalled.push_back(model.memory().recalled(l));
  }
  seen.events = model.memory().events().all();
  return seen;
}

DeviceDecoder with_graphs(const TempDir& dir, bool graphs) {
  return DeviceDecoder::load(dir.path(), {std::nullopt, 0, graphs});
}

TEST_CASE("a decoder's steps launched as graphs are those enqueued kernel by kernel, to the bit") {
  EPISODIC_NEEDS_DEVICE();
  const episodic_test::DefaultsBehind defaults;
  for (const TensorType type : {TensorType::f32, TensorType::bf16})
    for (const std::int64_t recall_every : {1, 3}) {
      if (type == TensorType::f32 && recall_every == 1) continue;  // no other kinds of steps
      const TempDir dir;
      TinyLlama(shape_of(false, type), 7).write(dir.path());
      MemoryConfig config = small_config();
      config.recall_every = recall_every;
      DeviceDecoder plain = with_graphs(dir, false), model = with_graphs(dir, true);
      REQUIRE_FALSE(plain.graphs());
      REQUIRE(model.graphs());
      plain.attach_memory(config, kTokens);
      model.attach_memory(config, kTokens);
      const Seen expected = decode(plain);
      REQUIRE(expected.events.size() > 4);
      REQUIRE(expected.recalled.back().size() > 1);
      REQUIRE(decode(model) == expected);
      REQUIRE(model.graphs());
      if (type == TensorType::f32) continue;
      // Graphs hold addresses, which a reset leaves and a new memory does not.
      model.memory().reset();
      REQUIRE(decode(model) == expected);
      model.attach_memory(config, 2 * kTokens);
      REQUIRE(decode(model) == expected);
      // Events in page-locked host memory, the device's slots filled within the graphs.
      model.attach_memory(config, kTokens);
      const DeviceMemoryBytes all = model.memory().bytes();
      config.device_bytes = all.total() - all.snapshots - all.events / 2;
      episodic_test::in_every_overlap([&] {
        model.attach_memory(config, kTokens);
        REQUIRE(model.memory().bytes().host > 0);
        REQUIRE(decode(model) == expected);
        REQUIRE(model.graphs());
      });
#if defined(EPISODIC_EMULATED_CUDA)
      // Memory that comes as events close, beneath graphs that were made before.
      emulator::set_mapping_granularity(4096);
      const std::int64_t of_pages = config.device_bytes + 4 * 4096;  // arrays end within pages
      for (const std::int64_t bound : {std::int64_t{0}, of_pages}) {
        config.device_bytes = bound;
        model.attach_memory(config, kTokens);
        const std::int64_t at_start = model.memory().bytes().taken;
        REQUIRE(at_start < model.memory().bytes().total());
        REQUIRE(decode(model) == expected);
        REQUIRE(model.memory().bytes().taken > at_start);
        REQUIRE(model.graphs());
      }
      emulator::set_mapping_granularity(2 << 20);
#endif
    }
}

TEST_CASE("a token's surprise and its step's end beside its layers leave the same bits") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::bf16), 7).write(dir.path());
  std::vector<MemoryConfig> configs(5, small_config());
  configs[1].segmenter = SegmenterKind::gaussian;
  configs[2].refine = Refinement::none;
  configs[2].retention.emplace();
  configs[3].reweight = Reweighting::exact;
  configs[4].scope = EventScope::head;
  configs[4].recall_every = 2;
  for (const MemoryConfig& config : configs) {
    DeviceDecoder plain = with_graphs(dir, false), model = with_graphs(dir, true);
    plain.attach_memory(config, kTokens);
    const Seen expected = decode(plain);
    REQUIRE(expected.events.size() > 2);
    episodic_test::in_every_overlap([&] {
      model.attach_memory(config, kTokens);
      REQUIRE(decode(model) == expected);
      REQUIRE(model.graphs());
    });
  }
  // In one chain instead, where launches begin early.
  DeviceDecoder::Options options;
  options.early_launches = true;
  DeviceDecoder plain = with_graphs(dir, false), early = DeviceDecoder::load(dir.path(), options);
  plain.attach_memory(configs.front(), kTokens);
  early.attach_memory(configs.front(), kTokens);
  REQUIRE(decode(early) == decode(plain));
  REQUIRE(early.graphs());
}

TEST_CASE("tokens of several sequences, each one's end beside the layers, leave the same bits") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::bf16), 7).write(dir.path());
  // The third has no memory.
  const auto run = [&](bool graphs) {
    std::vector<DeviceDecoder> all;
    all.push_back(with_graphs(dir, graphs));
    for (int i = 0; i < 2; ++i) all.push_back(all.front().share_weights());
    for (int i = 0; i < 2; ++i) all[static_cast<std::size_t>(i)].attach_memory(small_config(), 60);
    all.back().attend_fully(60, 8);
    std::vector<std::vector<std::int64_t>> ids;
    for (std::size_t i = 0; i < all.size(); ++i)
      ids.push_back(random_ids(50, 61, static_cast<unsigned>(20 + i)));
    std::vector<std::vector<float>> seen;
    for (std::size_t t = 0; t < 50; ++t) {
      std::vector<DeviceDecoder::SequenceStep> steps;
      for (std::size_t i = 0; i < all.size(); ++i) steps.push_back({&all[i], {&ids[i][t], 1}});
      DeviceDecoder::step_batch(steps);
      for (DeviceDecoder& of : all) {
        const std::span<const float> logits = of.logits();
        seen.emplace_back(logits.begin(), logits.end());
        seen.push_back(of.surprise());
      }
    }
    for (int i = 0; i < 2; ++i) {
      const DeviceMemory& memory = all[static_cast<std::size_t>(i)].memory();
      for (const TokenRange& e : memory.events().all())
        seen.push_back({static_cast<float>(e.start), static_cast<float>(e.end)});
    }
    return seen;
  };
  const std::vector<std::vector<float>> expected = run(false);
  episodic_test::in_every_overlap([&] { REQUIRE(run(true) == expected); });
}

TEST_CASE("a decoder's heads have events and recall of their own on the device as on the host") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig by_keys = small_config(), refined = small_config(), groups = small_config();
  by_keys.scope = refined.scope = EventScope::head;
  by_keys.segmenter = SegmenterKind::k_similarity;
  by_keys.refine = Refinement::none;
  groups.recall_groups = 2;
  const std::vector<std::int64_t> ids = random_ids(90, 61, 2);
  for (const MemoryConfig& config : {by_keys, refined, groups}) {
    const TempDir dir;
    TinyLlama(shape_of(true, TensorType::f32), 8).write(dir.path());
    Decoder host = Decoder::load(dir.path());
    const std::shared_ptr<EpisodicMemory> memory = patch(host, config);
    DeviceDecoder device = with_graphs(dir, true), plain = with_graphs(dir, false);
    device.attach_memory(config, 90);
    plain.attach_memory(config, 90);
    for (std::size_t done = 0; done < ids.size();) {
      const std::size_t n = std::min<std::size_t>(done % 7 == 0 ? 10 : 1, ids.size() - done);
      host.step({ids.data() + done, n});
      device.step({ids.data() + done, n});
      plain.step({ids.data() + done, n});
      done += n;
      REQUIRE(largest_difference(host.logits(), device.logits()) < 2e-4);
      REQUIRE(largest_difference(plain.logits(), device.logits()) == 0);
      for (std::int64_t s = 0; s < memory->scopes(); ++s)
        REQUIRE(memory->last_step(s).final_boundaries ==
                device.memory().last_step(s).final_boundaries);
    }
    REQUIRE(device.graphs());
    REQUIRE(memory->lanes() == 4);
    REQUIRE(device.memory().lanes() == 4);
    for (std::int64_t s = 0; s < memory->scopes(); ++s)
      REQUIRE((device.memory().events(s).all() == memory->events(s).all()));
    for (std::int64_t lane = 0; lane < 4; ++lane) {
      REQUIRE(!device.memory().recalled(lane).empty());
      REQUIRE(device.memory().recalled(lane) == memory->recalled(lane).recalled());
    }
  }
}

TEST_CASE("a decoder's step in steady state is an upload and a graph") {
#if defined(EPISODIC_EMULATED_CUDA)
  const TempDir dir;
  TinyLlama(shape_of(true, TensorType::bf16), 7).write(dir.path());
  MemoryConfig config = small_config();
  config.recall_every = 3;
  DeviceDecoder model = with_graphs(dir, true);
  model.attach_memory(config, 200);
  emulator::reset_calls();
  decode(model);
  // Inside the window; past its edge with and without recall. The first step of a kind is no
  // graph's.
  constexpr std::int64_t kKinds = 3;
  REQUIRE(emulator::calls().graph_launches == kDecoded - kKinds);
  REQUIRE(emulator::calls().captures == kKinds);
  model.memory().reset();
  decode(model);
  REQUIRE(emulator::calls().captures == kKinds);
  model.memory().reset();
  emulator::reset_calls();
  decode(model);  // all kinds are known now
  REQUIRE(emulator::calls().captures == 0);
  REQUIRE(emulator::calls().graph_launches == kDecoded);

  const std::vector<std::int64_t> id{3};
  const std::int64_t bytes = emulator::device_bytes();
  emulator::reset_calls();
  for (int i = 0; i < 30; ++i) model.step(id);
  const emulator::Calls calls = emulator::calls();
  REQUIRE(calls.graph_launches == 30);
  REQUIRE(calls.copies == 30);  // ids
  REQUIRE(calls.launches == 0);
  REQUIRE(calls.captures == 0);
  REQUIRE(calls.synchronisations == 0);
  REQUIRE(calls.allocations + calls.frees == 0);
  emulator::reset_calls();
  model.logits();
  REQUIRE(emulator::calls().synchronisations == 1);
  REQUIRE(emulator::calls().allocations == 0);
  REQUIRE(emulator::device_bytes() == bytes);

  // Graphs are given back with the memory that they were made for.
  model.attach_memory(config, 200);
  REQUIRE(emulator::device_bytes() < bytes);
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("a decoder does without graphs where they cannot be made") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::bf16), 7).write(dir.path());
  DeviceDecoder plain = with_graphs(dir, false);
  emulator::reset_calls();
  plain.attach_memory(small_config(), kTokens);
  const Seen expected = decode(plain);
  REQUIRE(emulator::calls().captures == 0);

  {  // in the midst of a capture
    DeviceDecoder model = with_graphs(dir, true);
    model.attach_memory(small_config(), kTokens);
    emulator::set_cublas_captures(false);
    emulator::reset_calls();
    REQUIRE(decode(model) == expected);
    REQUIRE(emulator::calls().captures == 1);
    REQUIRE(emulator::calls().graph_launches == 0);
    REQUIRE_FALSE(model.graphs());
    REQUIRE(cudaGetLastError() == cudaSuccess);
    emulator::set_cublas_captures(true);
    model.attach_memory(small_config(), kTokens);
    REQUIRE(decode(model) == expected);  // for good
    REQUIRE(emulator::calls().captures == 1);
  }
  {  // behind it, for want of memory
    DeviceDecoder model = with_graphs(dir, true);
    model.attach_memory(small_config(), kTokens);
    emulator::set_device_capacity(emulator::device_bytes());
    REQUIRE(decode(model) == expected);
    emulator::set_device_capacity(std::int64_t{8} << 30);
    REQUIRE_FALSE(model.graphs());
    REQUIRE(cudaGetLastError() == cudaSuccess);
  }
  {  // a segmenter on the host
    MemoryConfig config = small_config();
    config.segmenter = SegmenterKind::fixed;
    DeviceDecoder model = with_graphs(dir, true);
    plain.attach_memory(config, kTokens + 1);
    model.attach_memory(config, kTokens + 1);
    emulator::reset_calls();
    REQUIRE(decode(model) == decode(plain));
    REQUIRE(emulator::calls().captures == 0);
    model.memory().begin_step(1);
    REQUIRE_FALSE(model.memory().step_kind());
    REQUIRE_THROWS_AS(model.memory().end_launched_step(), DataError);
  }
  plain.attach_memory(small_config(), kTokens);
  REQUIRE_THROWS_AS(plain.memory().end_launched_step(), DataError);  // no step is open
#else
  EPISODIC_SKIP("the emulated device refuses at will");
#endif
}

TEST_CASE("a decoder on the device refuses by name, and goes on") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  DeviceDecoder model = DeviceDecoder::load(dir.path());
  REQUIRE_THROWS_AS(model.chunk(), DataError);
  REQUIRE_THROWS_AS(model.memory(), DataError);
  REQUIRE_THROWS_AS(model.logits(), DataError);
  model.attach_memory(small_config(), 12);
  REQUIRE_THROWS_AS(model.logits(), DataError);
  const std::vector<std::int64_t> bad{1, 61}, good{1, 2};
  REQUIRE_THROWS_AS(model.step(bad), DataError);
  model.step(good);
  REQUIRE(model.logits().size() == 61);
  REQUIRE_THROWS_AS(model.step(random_ids(11, 61, 1)), DataError);  // more than a chunk
  model.step(random_ids(9, 61, 1));
  REQUIRE_THROWS_AS(model.step(good), BudgetError);  // more than there is room for
  REQUIRE_THROWS_AS(DeviceDecoder::load(dir.path(), {DType::int8, 0}), ConfigError);
  REQUIRE_THROWS_AS(DeviceDecoder::load(dir.path(), {DType::fp8, 0}), ConfigError);
}

TEST_CASE("a decoder's memories are planned for events of the length that it is told") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  DeviceDecoder::Options options;
  options.event_tokens = small_config().min_block + 1;
  DeviceDecoder model = DeviceDecoder::load(dir.path(), options);
  REQUIRE(model.attach_memory(small_config(), 100).options().event_tokens == options.event_tokens);
  DeviceDecoder other = model.share_weights();
  REQUIRE(other.attach_memory(small_config(), 100).options().event_tokens == options.event_tokens);
  options.event_tokens = small_config().max_block + 1;
  DeviceDecoder wrong = DeviceDecoder::load(dir.path(), options);
  REQUIRE_THROWS_AS(wrong.attach_memory(small_config(), 100), ConfigError);
}

TEST_CASE("a decoder without room for a step's activations has no memory, and takes another") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  DeviceDecoder model = DeviceDecoder::load(dir.path());
  const std::vector<std::int64_t> ids = random_ids(10, 61, 3);
  const auto logits_of = [&] {
    model.step(ids);
    const std::span<const float> row = model.logits();
    return std::vector<float>(row.begin(), row.end());
  };
  model.attach_memory(small_config(), 40);
  const std::vector<float> expected = logits_of();

  MemoryConfig longer = small_config();
  longer.chunk = 200;
  const ModelConfig& c = model.config();
  const std::int64_t memory =
      DeviceMemory::bytes_needed(longer, memory_shape(c, longer.n_local), {model.dtype(), 400})
          .total();
  const std::int64_t activations = DeviceDecoder::bytes_needed(dir.path(), {}, 200).activations;
  const std::int64_t rest =
      emulator::device_bytes() - model.memory().bytes().total() - model.bytes().activations;
  emulator::set_device_capacity(rest + memory + activations - 1);
  try {
    model.attach_memory(longer, 400);
    REQUIRE(false);
  } catch (const BudgetError& e) {
    REQUIRE(std::string(e.what()).find("lower chunk") != std::string::npos);
  }
  REQUIRE_THROWS_AS(model.step(ids), DataError);  // nothing that was made for another chunk is used
  REQUIRE_THROWS_AS(model.memory(), DataError);
  REQUIRE_THROWS_AS(model.logits(), DataError);
  emulator::set_device_capacity(rest + memory + activations);
  model.attach_memory(longer, 400);  // no byte was left behind
  REQUIRE(logits_of() == expected);
  emulator::set_device_capacity(std::int64_t{8} << 30);
#else
  EPISODIC_SKIP("told to the emulated device");
#endif
}

TEST_CASE("a decoder works on its own device and leaves the current one as it was") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_device_count(2);
  const auto current = [] {
    int device = -1;
    REQUIRE(cudaGetDevice(&device) == cudaSuccess);
    return device;
  };
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  {
    DeviceDecoder model = DeviceDecoder::load(dir.path(), {std::nullopt, 1});
    REQUIRE(current() == 0);
    model.attach_memory(small_config(), 60);
    REQUIRE(current() == 0);
    for (int i = 0; i < 3; ++i) model.step(random_ids(10, 61, 3));
    for (int i = 0; i < 3; ++i) model.step(random_ids(1, 61, 3));  // and their graph
    REQUIRE(current() == 0);
    REQUIRE(model.logits().size() == 61);
    const auto snapshot = model.snapshot();
    model.step(random_ids(1, 61, 4));
    model.restore(*snapshot);
    model.memory().reset();
    REQUIRE(current() == 0);
  }
  REQUIRE(current() == 0);
  emulator::set_device_count(1);
  REQUIRE(cudaGetLastError() == cudaSuccess);
#else
  EPISODIC_SKIP("needs two devices: told to the emulated one");
#endif
}

TEST_CASE("a device that cannot serve is refused by what it lacks") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  const auto refusal = [] {
    try {
      require_device();
    } catch (const DeviceError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto names = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  REQUIRE(refusal().empty());
  REQUIRE(has_device());
  emulator::set_device_count(0);
  REQUIRE(names(refusal(), "no device"));
  REQUIRE_FALSE(has_device());
  emulator::set_device_count(1);
  emulator::set_compute_capability(7, 5);
  REQUIRE(names(refusal(), "7.5"));
  emulator::set_compute_capability(9, 0);
  emulator::set_driver_version(12080);
  REQUIRE(names(refusal(), "12.8"));
  emulator::set_driver_version(0);
  REQUIRE(names(refusal(), "no driver"));
  emulator::set_driver_version(13000);
  REQUIRE_THROWS_AS(require_device(1), DeviceError);
  emulator::set_kernel_image(false);
  REQUIRE(names(refusal(), "compute capability 9.0"));
  REQUIRE(names(refusal(), "EPISODIC_CUDA_ARCHITECTURES=90-real"));
  emulator::set_kernel_image(true);

  // Too little memory: what was needed is said, nothing is left behind.
  const TempDir dir;
  TinyLlama(shape_of(false, TensorType::f32), 4).write(dir.path());
  const std::int64_t before = emulator::device_bytes();
  emulator::set_device_capacity(before + (33 << 20));
  {
    DeviceDecoder model = DeviceDecoder::load(dir.path());
    try {
      model.attach_memory(small_config(), 1000000);
      REQUIRE(false);
    } catch (const BudgetError& e) {
      REQUIRE(names(e.what(), "bytes of device memory"));
      REQUIRE(names(e.what(), "number of tokens"));
    }
    model.attach_memory(small_config(), 20);  // and this fits
    model.step(random_ids(3, 61, 1));
    REQUIRE(model.logits().size() == 61);
  }
  emulator::set_device_capacity(std::int64_t{8} << 30);
  REQUIRE(emulator::device_bytes() == before);
  REQUIRE(cudaGetLastError() == cudaSuccess);
#else
  EPISODIC_SKIP("told to the emulated device");
#endif
}

}  // namespace device_decoder_test
