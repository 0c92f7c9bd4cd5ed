// SPDX-License-Identifier: Apache-2.0
// A decoder on the device whose weights stay in blocks, beside the host's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/rules/fp8.hpp"
#include "episodic/device/device_decoder.hpp"
#include "episodic/model/activations.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/quantize.hpp"
#include "kernels/block_problem.hpp"
#include "kernels/device.hpp"
#include "model/changed_tensors.hpp"
#include "model/tiny_adapter.hpp"
#include "model/tiny_llama.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_blocks_test {

using namespace episodic;
using block_problem::Kind;
using block_problem::kKinds;

constexpr std::int64_t kVocab = 64, kIds = 12;

TinyShape shape_of(bool tied) {
  TinyShape s;
  s.vocab = kVocab;
  s.hidden = 256;
  s.inner = 512;
  s.heads = 4;
  s.kv_heads = 2;
  s.dim = 64;
  s.tied = tied;
  s.attention_bias = !tied;
  return s;
}

/// The model with random blocks in place of every matrix. \param values of v and down
OpenModel in_blocks(const std::filesystem::path& dir, TensorType type, TensorType values,
                    unsigned seed) {
  OpenModel model = open_model(dir);
  std::mt19937 random(seed);
  const auto changed = std::make_shared<ChangedTensors>(model.tensors);
  for (const StoredTensor* t : model.tensors->tensors()) {
    if (t->shape.size() != 2) continue;
    const bool other = t->name.find("v_proj") != std::string::npos ||
                       t->name.find("down_proj") != std::string::npos;
    const TensorType as = other ? values : type;
    const std::vector<unsigned char> blocks =
        block_problem::random_blocks(as, t->shape[0], t->shape[1], random, -4);
    std::vector<std::byte> bytes(blocks.size());
    std::memcpy(bytes.data(), blocks.data(), blocks.size());
    changed->put(t->name, as, t->shape, std::move(bytes));
  }
  model.tensors = changed;
  return model;
}

struct Run {
  std::vector<std::vector<float>> logits;  // behind the first step, and each that follows
  std::vector<std::int64_t> greedy;
};

std::int64_t best(std::span<const float> row) {
  return std::max_element(row.begin(), row.end()) - row.begin();
}

/// \param step (ids): the last row's logits \param first ids of the first step, the others one by
/// one \param maybe_fed the tokens to go on with; null: its own
template <class F>
Run run(const F& step, std::size_t first, const Run* maybe_fed) {
  const std::vector<std::int64_t> ids = random_ids(kIds, kVocab, 8);
  Run r;
  r.logits.push_back(step(std::span(ids).first(first)));
  for (std::size_t i = first; i < kIds; ++i) r.logits.push_back(step({ids.data() + i, 1}));
  for (std::size_t i = 0; i < 6; ++i) {
    r.greedy.push_back(best(r.logits.back()));
    const std::int64_t fed = maybe_fed ? maybe_fed->greedy[i] : r.greedy.back();
    r.logits.push_back(step({&fed, 1}));
  }
  return r;
}

constexpr std::size_t kFirst = kIds - 4;

Run on_host(const OpenModel& model, std::size_t first = kFirst) {
  Decoder host = Decoder::load(model);
  return run(
      [&](std::span<const std::int64_t> ids) {
        host.step(ids);
        return std::vector<float>(host.logits().begin(), host.logits().end());
      },
      first, nullptr);
}

Run on_device(const OpenModel& model, const DeviceDecoder::Options& options, const Run& host,
              std::size_t first = kFirst) {
  DeviceDecoder device = DeviceDecoder::load(model, options);
  device.attend_fully(40, 10);
  return run(
      [&](std::span<const std::int64_t> ids) {
        device.step(ids);
        return std::vector<float>(device.logits().begin(), device.logits().end());
      },
      first, &host);
}

Run on_device(const OpenModel& model, DType dtype, const Run& host) {
  return on_device(model, DeviceDecoder::Options{dtype, 0, true}, host);
}

/// Of the logits' own size.
double apart(const Run& a, const Run& b) {
  double largest = 0, size = 0;
  for (std::size_t i = 0; i < a.logits.size(); ++i)
    for (std::size_t j = 0; j < a.logits[i].size(); ++j) {
      largest = std::max(largest, std::abs(static_cast<double>(a.logits[i][j] - b.logits[i][j])));
      size = std::max(size, std::abs(static_cast<double>(a.logits[i][j])));
    }
  return largest / size;
}

/// As far apart as rounding is, and the same choice wherever the best is best by more than that.
/// Where both round activations, a code that differs by one changes most codes behind it: then they
/// are as far apart as rounding and not rounding is, a few hundredths.
/// \return how many choices were so clear
int require_alike(const Run& host, const Run& device, double within) {
  REQUIRE(apart(host, device) < within);
  int clear = 0;
  for (std::size_t i = 0; i < host.greedy.size(); ++i) {
    std::vector<float> row = host.logits[host.logits.size() - 7 + i];
    double size = 0;
    for (const float x : row) size = std::max(size, std::abs(static_cast<double>(x)));
    std::nth_element(row.begin(), row.begin() + 1, row.end(), std::greater<>());
    if (static_cast<double>(row[0] - row[1]) <= 2 * within * size) continue;
    REQUIRE(device.greedy[i] == host.greedy[i]);
    ++clear;
  }
  return clear;
}

struct Behind {
  ~Behind() { set_activations(cpu::Activations::rounded); }
};

TEST_CASE("a decoder on the device with weights in blocks is the host's, of every type") {
  EPISODIC_NEEDS_DEVICE();
  int clear = 0;
  for (const bool tied : {false, true}) {
    const TempDir dir;
    TinyLlama(shape_of(tied), 3).write(dir.path());
    for (std::size_t k = tied ? 1 : 0; k < std::size(kKinds); k += 2) {  // each type once
      const Kind& kind = kKinds[k];
      INFO(name_of(kind.stored));
      const TensorType values = tied ? TensorType::q6_k : kind.stored;
      const OpenModel model = in_blocks(dir.path(), kind.stored, values, 40);
      for (const auto& [first, dtype] : episodic_test::combined<std::size_t, DType>(
               {kFirst, 1}, {DType::float32, DType::bfloat16})) {
        const Run host = on_host(model, first);
        clear += require_alike(
            host, on_device(model, DeviceDecoder::Options{dtype, 0, true}, host, first),
            dtype == DType::float32 ? 0.05 : 0.3);  // random weights magnify bfloat16
      }
    }
  }
  REQUIRE(clear > 5);
}

TEST_CASE("weights stay in blocks on the device, and what is needed says so") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false), 3).write(dir.path());
  const auto bytes = [](const OpenModel& model) {
    return DeviceDecoder::load(model, {DType::bfloat16, 0, true}).bytes().weights;
  };
  const OpenModel plain = open_model(dir.path());
  std::int64_t elements = 0;
  for (const StoredTensor* t : plain.tensors->tensors())
    if (t->shape.size() == 2) elements += t->elements();
  const std::int64_t of_plain = bytes(plain);
  constexpr std::int64_t kSlab = 2 * 512 * 256 * 2, kPlaces = 16 << 10;  // of gate and up
  for (const Kind& kind : kKinds) {
    const std::int64_t stored = elements / block_elements(kind.stored) * block_bytes(kind.stored);
    const std::int64_t taken = bytes(in_blocks(dir.path(), kind.stored, kind.stored, 41));
    REQUIRE(taken >= of_plain - 2 * elements + stored + kSlab - kPlaces);
    REQUIRE(taken <= of_plain - 2 * elements + stored + kSlab + kPlaces);
  }
}

TEST_CASE("with exact activations the device multiplies with widened weights") {
  EPISODIC_NEEDS_DEVICE();
  const Behind behind;
  const TempDir dir;
  TinyLlama(shape_of(false), 3).write(dir.path());
  const OpenModel model = in_blocks(dir.path(), TensorType::q4_0, TensorType::q5_1, 42);
  set_activations(cpu::Activations::exact);
  const Run host = on_host(model);
  REQUIRE(require_alike(host, on_device(model, DType::float32, host), 1e-4) == 6);
  set_activations(cpu::Activations::rounded);
  REQUIRE(apart(host, on_device(model, DType::float32, host)) > 1e-3);
}

TEST_CASE("types that no kernel has are widened, beside others that stay in blocks") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false), 3).write(dir.path());
  for (const TensorType other : {TensorType::q2_k, TensorType::iq4_nl}) {
    const OpenModel model = in_blocks(dir.path(), TensorType::q8_0, other, 43);
    const Run host = on_host(model);
    require_alike(host, on_device(model, DType::float32, host), 0.04);
  }
}

TEST_CASE("a GGUF file of every type runs on the device as on the host") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  std::filesystem::create_directories(dir / "model");
  const TinyLlama tiny(shape_of(false), 3);
  tiny.write(dir / "model");
  nlohmann::json config = tiny.config();
  config["max_position_embeddings"] = 64;
  std::ofstream(dir / "model" / "config.json") << config;
  for (const Kind& kind : kKinds) {
    INFO(name_of(kind.stored));
    const std::filesystem::path file = dir / "m.gguf";
    write_gguf(in_blocks(dir / "model", kind.stored, kind.stored, 44), file, true);
    const OpenModel model = open_model(file);
    const Run host = on_host(model);
    require_alike(host, on_device(model, DType::float32, host), 0.04);
    DeviceDecoder::Options options{DType::bfloat16, 0, true};
    REQUIRE(DeviceDecoder::bytes_needed(file, options, 10).weights ==
            DeviceDecoder::load(model, options).bytes().weights);
  }
}

TEST_CASE("what a device needs counts weights that will be rounded, and adapters") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  std::filesystem::create_directories(dir / "model");
  const TinyShape shape = shape_of(false);
  TinyLlama(shape, 3).write(dir / "model");
  TinyAdapter(shape).write(dir / "adapter");
  const DeviceDecoder::Options options{DType::bfloat16, 0, true};
  for (const bool adapted : {false, true})
    for (const TensorType type : {TensorType::q8_0, TensorType::q4_0}) {
      ModelOptions changes;
      changes.quantize = type;
      if (adapted) changes.lora = {{dir / "adapter", 0.5}};
      changes.merge_lora = adapted;
      REQUIRE(DeviceDecoder::bytes_needed(dir / "model", options, 10, changes).weights ==
              DeviceDecoder::load(open_model(dir / "model", changes), options).bytes().weights);
    }
}

TEST_CASE("plain weights are rounded to E4M3 on the device, where that is asked for") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false), 3).write(dir.path());
  const OpenModel plain = open_model(dir.path());
  // The same rounding in the files' numbers.
  OpenModel rounded = plain;
  const auto changed = std::make_shared<ChangedTensors>(plain.tensors);
  for (const StoredTensor* t : plain.tensors->tensors()) {
    if (t->shape.size() != 2 || t->name.find("layers") == std::string::npos) continue;
    const auto columns = static_cast<std::size_t>(t->shape[1]);
    std::vector<float> x(static_cast<std::size_t>(t->elements()));
    std::memcpy(x.data(), t->data, x.size() * sizeof(float));
    for (std::size_t row = 0; row < x.size(); row += columns) {
      float largest = 0;
      for (std::size_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(x[row + c]));
      const float scale = largest / 448.0f;
      for (std::size_t c = 0; c < columns; ++c)
        x[row + c] = rules::from_fp8(rules::to_fp8(x[row + c] / scale)) * scale;
    }
    std::vector<std::byte> bytes(x.size() * sizeof(float));
    std::memcpy(bytes.data(), x.data(), bytes.size());
    changed->put(t->name, TensorType::f32, t->shape, std::move(bytes));
  }
  rounded.tensors = changed;
  DeviceDecoder::Options options{DType::float32, 0, true};
  options.fp8_weights = true;
  const Run wanted = on_host(rounded), got = on_device(plain, options, wanted);
  REQUIRE(require_alike(wanted, got, 1e-4) == 6);
  REQUIRE(apart(on_host(plain), got) > 1e-3);
  const std::int64_t bytes = DeviceDecoder::load(plain, options).bytes().weights;
  REQUIRE(DeviceDecoder::bytes_needed(dir.path(), options, 10).weights == bytes);
  options.fp8_weights = false;
  constexpr std::int64_t kLayers = 2 * (256 * (2 * 256 + 2 * 128) + 3 * 512 * 256);  // numbers
  constexpr std::int64_t kSlab = 2 * 512 * 256 * 4, kPlaces = 16 << 10;
  const std::int64_t of_plain = DeviceDecoder::load(plain, options).bytes().weights;
  REQUIRE(of_plain - bytes >= 3 * kLayers - kSlab - kPlaces);
}

TEST_CASE("several sequences in one step read weights in blocks, each the bits of alone") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(false), 3).write(dir.path());
  const OpenModel model = in_blocks(dir.path(), TensorType::q4_k, TensorType::q6_k, 45);
  DeviceDecoder first = DeviceDecoder::load(model, {DType::bfloat16, 0, true});
  DeviceDecoder second = first.share_weights(), alone = first.share_weights();
  for (DeviceDecoder* d : {&first, &second, &alone}) d->attend_fully(40, 10);
  const std::vector<std::int64_t> ids = random_ids(16, kVocab, 9);
  first.step({ids.data(), 4});
  second.step({ids.data() + 4, 6});
  alone.step({ids.data() + 4, 6});
  for (std::size_t i = 10; i < 14; ++i) {
    const std::span<const std::int64_t> one{ids.data() + i, 1};
    const DeviceDecoder::SequenceStep batch[] = {{&first, one}, {&second, one}};
    DeviceDecoder::step_batch(batch);
    alone.step(one);
    REQUIRE(std::equal(alone.logits().begin(), alone.logits().end(), second.logits().begin()));
  }
}

#if defined(EPISODIC_EMULATED_CUDA)
TEST_CASE("a decoder with a memory is within the shared memory of devices of every architecture") {
  const episodic_test::DefaultsBehind defaults;
  struct Capability {
    int major, minor;
  };
  for (const auto& [dim, dtype] : episodic_test::combined<std::int64_t, DType>(
           {64, 128, 256}, {DType::float32, DType::bfloat16})) {
    INFO("heads of " << dim << ", " << name_of(dtype));
    TinyShape shape = shape_of(true);
    shape.heads = 2;
    shape.kv_heads = 1;
    shape.dim = dim;
    const TempDir dir;
    TinyLlama(shape, 5).write(dir.path());
    const OpenModel model = in_blocks(dir.path(), TensorType::q8_0, TensorType::q8_0, 46);
    MemoryConfig config = parse_memory_config(
        R"({"n_init": 3, "n_local": 20, "n_mem": 16, "chunk": 20, "min_block": 2, "max_block": 6,
            "n_repr": 2, "contiguity": 0.3, "gamma": 0.5, "refine": "modularity"})");
    std::vector<float> first;
    for (const Capability& c : {Capability{9, 0}, {8, 0}, {8, 6}, {12, 0}}) {
      emulator::set_compute_capability(c.major, c.minor);
      DeviceDecoder device = DeviceDecoder::load(model, {dtype, 0, true});
      device.attach_memory(config, 90);
      const std::vector<std::int64_t> ids = random_ids(42, kVocab, 7);
      device.step({ids.data(), 20});
      device.step({ids.data() + 20, 20});
      for (std::size_t i = 40; i < 42; ++i) device.step({ids.data() + i, 1});
      const std::vector<float> logits(device.logits().begin(), device.logits().end());
      if (first.empty()) first = logits;
      REQUIRE(logits == first);  // the plans are those of every device
    }
  }
}
#endif

}  // namespace device_blocks_test
