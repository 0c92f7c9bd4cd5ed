// SPDX-License-Identifier: Apache-2.0
// How many launches a step of a decoder on the device is, and what its kernels are given to read:
// the tables of docs/kernels.md.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "device/step_cost.hpp"
#include "episodic/device/device_decoder.hpp"
#include "kernels/device.hpp"
#include "model/tiny_llama.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"
#if defined(EPISODIC_EMULATED_CUDA)
#include "kernels/attention.cuh"
#include "kernels/product.cuh"
#include "kernels/recall.cuh"
#endif

namespace {

using namespace episodic;
using device::Cost;
using device::DecodeContext;
using device::DecodeCost;
using device::DecoderSizes;

/// Whether the documentation has these lines, up to what it says behind them.
bool documented(const std::string& lines) {
  std::ifstream file(std::string(EPISODIC_SOURCE_DIR) + "/docs/kernels.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find("\n" + lines) != std::string::npos;
}

DecoderSizes llama_8b() {
  DecoderSizes s;
  s.layers = 32;
  s.hidden = 4096;
  s.inner = 14'336;
  s.vocab = 128'256;
  s.n_heads = 32;
  s.n_kv_heads = 8;
  s.head_dim = 128;
  return s;
}

/// 1234567 as 1,234,567.
std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}
double giga(std::int64_t number) { return 1e-9 * static_cast<double>(number); }

}  // namespace

#if defined(EPISODIC_EMULATED_CUDA)
namespace {

/// Launches of one step of each number of tokens, one after the other, behind `before` others.
/// Attention is split over its keys, as it is for one sequence of any real model.
std::vector<std::int64_t> launches(const TempDir& dir, const MemoryConfig* memory,
                                   std::size_t before, const std::vector<std::size_t>& numbers,
                                   std::int64_t max_tokens) {
  DeviceDecoder::Options options{std::nullopt, 0, false};
  options.codes_from = 4096;
  DeviceDecoder model = DeviceDecoder::load(dir.path(), options);
  if (memory)
    model.attach_memory(*memory, max_tokens);
  else
    model.attend_fully(400, 40);
  const std::vector<std::int64_t> ids(40, 7);
  for (std::size_t done = 0; done < before; done += 40) model.step(ids);
  std::vector<std::int64_t> all;
  for (const std::size_t n : numbers) {
    emulator::reset_calls();
    model.step(std::span(ids).first(n));
    all.push_back(emulator::calls().launches);
  }
  return all;
}

/// Launches of one step of a token of each of n sequences, for each number, behind `before` others
/// of each.
std::vector<std::int64_t> launches_of_batches(const TempDir& dir, const MemoryConfig& memory,
                                              std::size_t before,
                                              const std::vector<std::size_t>& numbers,
                                              std::int64_t max_tokens) {
  std::vector<DeviceDecoder> models;
  models.push_back(DeviceDecoder::load(dir.path(), {std::nullopt, 0, false}));
  models[0].attach_memory(memory, max_tokens);
  const std::vector<std::int64_t> ids(40, 7);
  for (std::size_t done = 0; done < before; done += 40) models[0].step(ids);
  // What one has read, all have.
  EpisodicMemory read(memory, models[0].memory().shape());
  models[0].save(read);
  std::vector<std::int64_t> all;
  for (const std::size_t n : numbers) {
    while (models.size() < n) {
      models.push_back(models[0].share_weights());
      models.back().attach_memory(read, max_tokens);
    }
    std::vector<DeviceDecoder::SequenceStep> batch;
    for (std::size_t i = 0; i < n; ++i) batch.push_back({&models[i], std::span(ids).first(1)});
    emulator::reset_calls();
    DeviceDecoder::step_batch(batch);
    all.push_back(emulator::calls().launches);
  }
  return all;
}

struct Counted {
  std::int64_t each_layer, rest;
};

/// By the difference that a layer makes. \param launches_of(the model's folder) of several steps
template <class Launches>
std::vector<Counted> count_all(bool biased, const Launches& launches_of) {
  std::vector<std::int64_t> of[2];
  for (const std::int64_t layers : {2, 3}) {
    TinyShape shape;
    shape.dim = 16;
    shape.hidden = 40;
    shape.inner = 48;  // as in any real model, rows of whole 16 bytes
    shape.layers = layers;
    shape.attention_bias = shape.mlp_bias = biased;
    shape.type = TensorType::bf16;
    const TempDir dir;
    TinyLlama(shape, 7).write(dir.path());
    of[layers - 2] = launches_of(dir);
  }
  std::vector<Counted> counted;
  for (std::size_t i = 0; i < of[0].size(); ++i) {
    const std::int64_t of_layer = of[1][i] - of[0][i];
    counted.push_back({of_layer, of[0][i] - 2 * of_layer});
  }
  return counted;
}

}  // namespace
#endif

TEST_CASE("a step of a decoder is as many launches as docs/kernels.md says") {
#if defined(EPISODIC_EMULATED_CUDA)
  MemoryConfig config = parse_memory_config(
      R"({"n_init": 3, "n_local": 300, "n_mem": 40, "chunk": 40, "min_block": 4, "max_block": 10,
          "refine": "modularity"})");
  // Room for fewer events than codes are kept for, and for more.
  constexpr std::int64_t kFew = 700, kMany = 5 * 4096;
  struct Setting {
    const char* name;
    const MemoryConfig* memory;
    std::size_t before;
    std::int64_t max_tokens = kFew;
  };
  const std::vector<std::size_t> numbers{1, 40};
  for (const Setting& setting :
       {Setting{"full attention", nullptr, 40}, Setting{"inside the window", &config, 40},
        Setting{"with recall", &config, 480},
        Setting{"with recall by codes", &config, 480, kMany}}) {
    const auto launches_of = [&](const TempDir& dir) {
      return launches(dir, setting.memory, setting.before, numbers, setting.max_tokens);
    };
    const std::vector<Counted> plain = count_all(false, launches_of);
    // Biases are the same launches whatever is recalled.
    const bool counts_biases = setting.max_tokens == kMany || setting.before < 480;
    const std::vector<Counted> biased = episodic_test::all_cases() || counts_biases
                                            ? count_all(true, launches_of)
                                            : std::vector<Counted>();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const bool decode = numbers[i] == 1;
      const std::string line = fmt::format("| {}, {} | {} | {} |", decode ? "decode" : "prefill",
                                           setting.name, plain[i].each_layer, plain[i].rest);
      INFO(line);
      REQUIRE(documented(line));
      if (biased.empty()) continue;
      // Biases of q, k and v are a launch more where the products are cuBLAS's.
      REQUIRE(biased[i].each_layer == plain[i].each_layer + !decode);
      REQUIRE(biased[i].rest == plain[i].rest);
    }
  }
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("a step of several sequences is as many launches as docs/kernels.md says") {
#if defined(EPISODIC_EMULATED_CUDA)
  const MemoryConfig config = parse_memory_config(
      R"({"n_init": 3, "n_local": 300, "n_mem": 40, "chunk": 40, "min_block": 4, "max_block": 10,
          "refine": "modularity"})");
  constexpr std::int64_t kLayers = 32;
  const auto all = [&](const Counted& c) { return kLayers * c.each_layer + c.rest; };
  std::int64_t of_one = 0;
  std::string table;
  const std::vector<std::size_t> numbers{1, 2, 4, 8, 16};
  const std::vector<Counted> counted = count_all(false, [&](const TempDir& dir) {
    return launches_of_batches(dir, config, 480, numbers, 700);
  });
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t n = numbers[i];
    const Counted& c = counted[i];
    if (n == 1) of_one = all(c);
    const auto apart = static_cast<std::int64_t>(n) * of_one;
    table += fmt::format("| {} | {} | {} | {} | {} | {:.1f} |\n", n, c.each_layer, c.rest,
                         grouped(all(c)), grouped(apart),
                         static_cast<double>(apart) / static_cast<double>(all(c)));
    if (n > 1) REQUIRE(all(c) < apart);
  }
  INFO("\n" << table);
  REQUIRE(documented(table));
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("a step's bytes and flops are computed as its kernels are given them") {
#if defined(EPISODIC_EMULATED_CUDA)
  using namespace episodic::kernels;
  TinyShape shape;
  shape.dim = 16;
  shape.hidden = 40;
  shape.inner = 48;
  shape.layers = 3;
  shape.type = TensorType::bf16;
  const TempDir dir;
  TinyLlama(shape, 7).write(dir.path());
  const MemoryConfig config = parse_memory_config(
      R"({"n_init": 3, "n_local": 300, "n_mem": 40, "chunk": 40, "min_block": 4, "max_block": 10,
          "refine": "modularity"})");
  DeviceDecoder model = DeviceDecoder::load(dir.path(), {std::nullopt, 0, false});
  model.attach_memory(config, 700);
  const std::vector<std::int64_t> ids = random_ids(480, shape.vocab, 5);
  for (std::size_t done = 0; done < ids.size(); done += 40)
    model.step(std::span(ids).subspan(done, 40));
  const EventTable before = model.memory().events();

  DecodeCost given;
  emulator::Listener<ProductArgs>::heard = [&](const ProductArgs& a) {
    const std::int64_t weights = a.p.in * a.p.out;
    Cost& of = a.use == ProductUse::store ? given.head : given.products;
    of = of + Cost{weights * size_of(a.p.dtype), 2 * weights};
  };
  emulator::Listener<Batch<AttentionArgs>>::heard = [&](const Batch<AttentionArgs>& batch) {
    REQUIRE(batch.n == 1);
    const AttentionArgs& a = batch.of[0];
    const std::int64_t keys = *a.p.n_rows + std::min(a.p.n_local, *a.p.first_position + 1);
    given.attention =
        given.attention + Cost{2 * keys * a.p.n_kv_heads * a.p.head_dim * size_of(a.p.dtype),
                               4 * keys * a.p.n_heads * a.p.head_dim};
  };
  emulator::Listener<RecallBatch>::heard = [&](const RecallBatch& batch) {
    REQUIRE(batch.n == 1);
    const RecallArgs& a = batch.of[0];
    const std::int64_t searched = *a.p.n_events * a.p.width;
    given.search = given.search + Cost{searched * size_of(a.p.dtype), 2 * searched};
  };
  emulator::reset_calls();
  model.step(std::span(ids).first(1));
  const std::int64_t launches = emulator::calls().launches;
  emulator::Listener<ProductArgs>::heard = nullptr;
  emulator::Listener<Batch<AttentionArgs>>::heard = nullptr;
  emulator::Listener<RecallBatch>::heard = nullptr;

  DecoderSizes sizes;
  sizes.layers = 1;
  sizes.hidden = shape.hidden;
  sizes.inner = shape.inner;
  sizes.vocab = shape.vocab;
  sizes.n_heads = shape.heads;
  sizes.n_kv_heads = shape.kv_heads;
  sizes.head_dim = shape.dim;
  DecodeCost computed;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    // The last n_local tokens, all before them that are in no event, and what was recalled.
    DecodeContext context;
    context.keys = 481 - before.tokens();
    for (const EventId e : model.memory().recalled(l)) context.keys += before[e].size();
    context.events = before.size();
    context.representatives = DType::float32;
    const DecodeCost layer = device::decode_cost(sizes, context);
    computed.products = computed.products + layer.products;
    computed.attention = computed.attention + layer.attention;
    computed.search = computed.search + layer.search;
    computed.head = layer.head;
    computed.launches_of_layer = layer.launches_of_layer;
    computed.launches_besides = layer.launches_besides;
  }
  REQUIRE(before.size() > 10);
  REQUIRE(given.products == computed.products);
  REQUIRE(given.head == computed.head);
  REQUIRE(given.attention == computed.attention);
  REQUIRE(given.search == computed.search);
  REQUIRE(launches == computed.launches(shape.layers));
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("docs/kernels.md has the bytes and flops of a decode step as they are computed") {
  const DecoderSizes s = llama_8b();
  DecodeContext context;
  context.keys = 4096 + 2048 + 128;  // window, recalled, sinks
  context.events = 1'000'000 / 32;
  const DecodeCost cost = device::decode_cost(s, context);
  context.representatives = DType::float32;
  const DecodeCost wide = device::decode_cost(s, context);
  context.candidates = 1000;
  const DecodeCost coded = device::decode_cost(s, context);
  const auto row = [](const std::string& of, const std::string& bytes, Cost c) {
    return fmt::format("| {} | {}{:.2f} GB | {:.2f} G |\n", of, bytes, giga(c.bytes),
                       giga(c.flops));
  };
  const auto total = [](const char* representatives, Cost c) {
    const double gb = giga(c.bytes);
    return fmt::format(
        "| together, {} | {:.1f} GB: {:.1f} ms at 3.35 TB/s, {:.1f} ms at 4.8 TB/s | {:.1f} G |\n",
        representatives, gb, gb / 3.35, gb / 4.8, giga(c.flops));
  };
  const std::string keys = grouped(context.keys), events = grouped(context.events);
  std::string table = "| of one step | bytes | flops |\n|---|---|---|\n";
  table += row("products of the layers",
               fmt::format("{} x {:.1f} M x {} B = ", s.layers,
                           1e-6 * static_cast<double>(s.layer_weights()), size_of(s.dtype)),
               cost.products);
  table += row("the head", "", cost.head);
  table += row(fmt::format("attention: {} keys and values", keys),
               fmt::format("{} x {} x {} B = ", s.layers, keys, grouped(s.token_bytes())),
               cost.attention);
  const auto search = [&](const char* representatives, const DecodeCost& of) {
    return row(fmt::format("search of {} representatives, {}", events, representatives),
               fmt::format("{} x {} x {} B = ", s.layers, events,
                           grouped(of.search.bytes / (s.layers * context.events))),
               of.search);
  };
  table += search("16 bits", cost) + search("float32", wide);
  table += row(
      fmt::format("search of codes, and of {} candidates, float32", grouped(*context.candidates)),
      fmt::format("{} x ({} x {} B + {} x {} B) = ", s.layers,
                  grouped(kernels::coded_rows(context.events)),
                  grouped(kernels::code_bytes(s.width())), grouped(*context.candidates),
                  grouped(4 * s.width())),
      coded.search);
  table += total("scan of 16 bits", cost.total()) + total("scan of float32", wide.total()) +
           total("codes and float32", coded.total());
  table += fmt::format("| launches, scan | {} x {} + {} = {} | |\n", cost.launches_of_layer,
                       s.layers, cost.launches_besides, cost.launches(s.layers));
  table += fmt::format("| launches, codes | {} x {} + {} = {} | |", coded.launches_of_layer,
                       s.layers, coded.launches_besides, coded.launches(s.layers));
  INFO("\n" << table);
  REQUIRE(documented(table));
}

TEST_CASE("docs/kernels.md has the bytes of the head as they are computed") {
  constexpr std::int64_t kRows = 512, kRowsBefore = 64;
  std::vector<device::HeadCost> costs;
  std::string head =
      fmt::format("| computed for one step of {} tokens, 16 bits, d = {} | vocabulary", kRows,
                  llama_8b().hidden);
  for (const std::int64_t vocab : {32'000, 128'256, 262'144}) {
    DecoderSizes s = llama_8b();
    s.vocab = vocab;
    costs.push_back(device::head_cost(s, kRows));
    head += (costs.size() > 1 ? " | " : " ") + grouped(vocab);
  }
  const auto line = [&](const std::string& name, auto&& cell) {
    std::string text = "| " + name + " |";
    for (const device::HeadCost& c : costs) text += " " + cell(c) + " |";
    return text;
  };
  const auto megabytes = [](std::int64_t bytes) {
    return grouped((bytes + 500'000) / 1'000'000) + " MB";
  };
  const std::string table =
      head + " |\n|---|---|---|---|\n" +
      line("bytes of the head's weights",
           [&](const auto& c) { return megabytes(c.weight_bytes); }) +
      "\n" +
      line(fmt::format("read before ({} rows at a time: {} times)", kRowsBefore,
                       kRows / kRowsBefore),
           [&](const auto& c) {
             return fmt::format("{:.1f} GB", giga(c.weight_bytes * (kRows / kRowsBefore)));
           }) +
      "\n" +
      line("float32 logits that are not written and read, each way",
           [&](const auto& c) { return megabytes(c.logit_bytes); }) +
      "\n" +
      line("pieces, two launches each", [](const auto& c) { return std::to_string(c.pieces); });
  INFO("\n" << table);
  REQUIRE(documented(table));
}
