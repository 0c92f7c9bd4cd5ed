// SPDX-License-Identifier: Apache-2.0
// Every family against the reference implementation: random checkpoints and their logits, made by
// models/reference/make_checkpoints.py.

#include "support/test.hpp"

#include <algorithm>
#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/model/host_only.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/session/engine.hpp"
#include "expected_logits.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;

namespace families_test {

/// Rows [0, rows) of both, within 1e-4 of the largest logit.
void same(const LogitsView& got, const std::vector<float>& expected, std::int64_t rows) {
  const std::int64_t vocab = got.vocab;
  REQUIRE(got.rows >= rows);
  REQUIRE(static_cast<std::int64_t>(expected.size()) >= rows * vocab);
  float largest = 0;
  for (const float x : expected) largest = std::max(largest, std::abs(x));
  REQUIRE(largest > 0.1f);
  const float* from = got.floats().data();
  for (std::int64_t i = 0; i < rows * vocab; ++i) {
    const float difference = std::abs(from[i] - expected[static_cast<std::size_t>(i)]);
    if (difference <= 1e-4f * largest) continue;  // not so for NaN
    INFO("row " << i / vocab << ", logit " << i % vocab << ": " << from[i] << " instead of "
                << expected[static_cast<std::size_t>(i)] << ", logits up to " << largest);
    REQUIRE(difference <= 1e-4f * largest);
  }
}

std::int64_t best(const LogitsView& logits) {
  const float* row = logits.floats().data() + (logits.rows - 1) * logits.vocab;
  return std::max_element(row, row + logits.vocab) - row;
}

std::vector<std::int64_t> greedy(Decoder& model, std::span<const std::int64_t> prompt,
                                 std::size_t n) {
  std::vector<std::int64_t> out{best(model.forward(prompt))};
  while (out.size() < n) out.push_back(best(model.forward({&out.back(), 1})));
  return out;
}

TEST_CASE("families: logits and greedy tokens are the reference's", "[proof]") {
  const ExactActivations exact;
  REQUIRE(family_checkpoints().size() >= 31);
  for (const std::filesystem::path& dir : family_checkpoints()) {
    INFO(dir.filename().string());
    const ExpectedLogits expected(dir);
    Decoder model = Decoder::load(dir);
    const auto n = static_cast<std::int64_t>(expected.ids.size());
    same(model.forward(expected.ids), expected.logits, n);
    model.reset();
    const std::span<const std::int64_t> ids(expected.ids);
    same(model.forward(ids.first(expected.few)), expected.first_logits,
         static_cast<std::int64_t>(expected.few));
    model.reset();
    REQUIRE(greedy(model, ids.first(expected.start), expected.greedy.size()) == expected.greedy);
  }
}

TEST_CASE("families: as GGUF files they give the reference's logits", "[proof]") {
  const ExactActivations exact;
  const TempDir scratch;
  int written = 0;
  for (const std::filesystem::path& dir : family_checkpoints()) {
    INFO(dir.filename().string());
    const OpenModel opened = open_model(dir);
    const bool has_words =
        opened.config.ropes[0].factor == 0 &&  // dynamic rope
        (opened.config.model_type == "phi3" || opened.config.ropes.size() > 1 ||
         opened.config.model_type == "gemma2" || opened.config.model_type == "exaone4" ||
         opened.config.model_type == "cohere2" ||
         std::all_of(opened.config.layers.begin(), opened.config.layers.end(),
                     [](const LayerSpec& l) { return l.window == 0; }));
    const auto experts = std::count_if(opened.config.layers.begin(), opened.config.layers.end(),
                                       [](const LayerSpec& l) { return bool(l.mixture); });
    if (!has_words || (experts > 0 && experts < opened.config.n_layers)) continue;
    const std::filesystem::path file = scratch / (dir.filename().string() + ".gguf");
    if (!host_only_part(opened.config).empty() ||
        std::any_of(opened.config.layers.begin(), opened.config.layers.end(),
                    [](const LayerSpec& l) { return bool(l.recurrence); })) {  // read, not written
      REQUIRE(mentions(refusal<ConfigError>([&] { write_gguf(opened, file); }),
                       opened.config.model_type));
      continue;
    }
    write_gguf(opened, file);
    const ExpectedLogits expected(dir);
    Decoder model = Decoder::load(file);
    same(model.forward(expected.ids), expected.logits,
         static_cast<std::int64_t>(expected.ids.size()));
    ++written;
  }
  REQUIRE(written >= 25);
}

TEST_CASE("families: pieces of any size give what one step gives") {
  const ExactActivations exact;
  for (const std::filesystem::path& dir : family_checkpoints()) {
    Decoder model = Decoder::load(dir);
    if (model.config().ropes[0].depends_on_length()) continue;  // a step's length decides its table
    INFO(dir.filename().string());
    const ExpectedLogits expected(dir);
    const std::int64_t vocab = model.config().vocab_size;
    for (const std::size_t piece : {1, 3, 17}) {
      model.reset();
      for (std::size_t at = 0; at < expected.ids.size(); at += piece) {
        const std::size_t n = std::min(piece, expected.ids.size() - at);
        const auto begin = expected.logits.begin() + static_cast<std::ptrdiff_t>(at) * vocab;
        same(model.forward(std::span(expected.ids).subspan(at, n)),
             {begin, begin + static_cast<std::ptrdiff_t>(n) * vocab}, static_cast<std::int64_t>(n));
      }
    }
  }
}

TEST_CASE("families: the memory inside its window gives the reference's logits", "[proof]") {
  const ExactActivations exact;
  int served = 0;
  for (const std::filesystem::path& dir : family_checkpoints()) {
    INFO(dir.filename().string());
    const ExpectedLogits expected(dir);
    Decoder model = Decoder::load(dir);
    const ModelConfig& c = model.config();
    const auto n = static_cast<std::int64_t>(expected.ids.size());
    // the reference sees all ids, or a window that a memory of the same window sees too
    const std::int64_t window = c.layers[static_cast<std::size_t>(c.memory_layers()[0])].window;
    MemoryConfig config;
    config.n_init = 4;
    config.n_local = window ? window : n;
    config.chunk = n;
    const auto memory = patch(model, config);
    REQUIRE(memory->shape().n_layers == static_cast<std::int64_t>(c.memory_layers().size()));
    const std::int64_t rows = window ? window : n;
    same(model.forward(std::span(expected.ids).first(static_cast<std::size_t>(rows))),
         expected.logits, rows);
    ++served;
  }
  REQUIRE(served >= 31);  // soft caps and layers without rotary embedding among them
}

TEST_CASE("families: a kept memory has the sliding layers' windows with it, to the bit") {
  const std::filesystem::path dir = family_checkpoint("gemma3");
  const TempDir scratch;
  const ExpectedLogits expected(dir);
  std::vector<std::int64_t> ids;  // beyond the sliding windows, and past the memory's own
  for (int i = 0; i < 6; ++i) ids.insert(ids.end(), expected.ids.begin(), expected.ids.end());
  const std::span<const std::int64_t> text(ids);
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = 32;
  config.n_mem = 32;
  config.chunk = 16;
  config.min_block = 4;
  config.max_block = 16;
  const std::size_t half = 112, third = 48;
  const auto read = [&](Engine& engine, std::size_t first, std::size_t end) {
    engine.read(text.subspan(first, end - first));
    const std::span<const float> last = engine.logits();
    return std::vector<float>(last.begin(), last.end());
  };
  const auto whole = load_engine(dir);
  whole->attach(config);
  read(*whole, 0, half);
  const std::vector<float> wanted = read(*whole, half, ids.size());

  KeptFolder folder;
  folder.dir = scratch / "kept";
  std::uint64_t digest = 0;
  {
    const auto engine = load_engine(dir);
    const auto memory = std::make_shared<EpisodicMemory>(create_memory(dir, folder, config));
    engine->attach(memory);
    read(*engine, 0, third);
    engine->commit();
    read(*engine, third, half);
    engine->commit();
    digest = memory->digest();
  }
  const auto engine = load_engine(dir);
  SECTION("it goes on as if it had never been closed") {
    const auto memory = engine->attach(folder);
    REQUIRE(memory->tokens() == static_cast<std::int64_t>(half));
    REQUIRE(memory->digest() == digest);
    REQUIRE(read(*engine, half, ids.size()) == wanted);
    engine->rewind(static_cast<std::int64_t>(third));  // a state that was kept
    read(*engine, third, half);
    REQUIRE(memory->digest() == digest);
    engine->rewind(60);  // read again from there
    read(*engine, 60, half);
    REQUIRE(read(*engine, half, ids.size()) == wanted);
  }
  SECTION("an edit without the model leaves them as they are; going on without it is refused") {
    EpisodicMemory memory = open_memory(dir, folder);
    REQUIRE(memory.digest() == digest);
    memory.forget(EventId{1});
    memory.commit();
    const std::vector<float> zeros(
        static_cast<std::size_t>(memory.shape().n_heads * memory.shape().head_dim));
    std::vector<float> out(zeros.size());
    const float surprise = 0.0f;
    memory.begin_step(1);
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)
      memory.attend(l, zeros.data(), zeros.data(), zeros.data(), out.data());
    memory.end_step(&surprise);
    REQUIRE(mentions(refusal<DataError>([&] { memory.commit(); }), "sliding layers"));
  }
  SECTION("many go on from one base") {
    const auto memory = engine->attach(folder);
    const std::shared_ptr<const MemoryBase> base = memory->share();
    REQUIRE(read(*engine, half, ids.size()) == wanted);
    for (int i = 0; i < 2; ++i) {
      const auto other = load_engine(dir);
      other->attach(std::make_shared<EpisodicMemory>(base));
      REQUIRE(read(*other, half, ids.size()) == wanted);
    }
  }
  SECTION("a snapshot of the memory alone, gone back to, is not committed") {
    const auto memory = engine->attach(folder);
    const auto snapshot = memory->snapshot();
    read(*engine, half, half + 8);
    memory->restore(*snapshot);
    REQUIRE(mentions(refusal<DataError>([&] { memory->commit(); }), "snapshots of the model"));
    REQUIRE(open_memory(dir, {folder.dir, OpenMode::read}).digest() == digest);
  }
}

TEST_CASE("families: a memory beside sliding layers") {
  Decoder model = Decoder::load(family_checkpoint("gemma3"));
  const ExpectedLogits expected(family_checkpoint("gemma3"));
  const std::span<const std::int64_t> ids(expected.ids);
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = 64;
  config.chunk = 64;
  const auto memory = patch(model, config);
  const auto half = ids.first(20), rest = ids.subspan(20);
  const auto rows = static_cast<std::ptrdiff_t>(20 * model.config().vocab_size);
  const std::vector<float> last(expected.logits.begin() + rows, expected.logits.end());

  SECTION("the memory's own reset is followed") {
    model.forward(half);
    memory->reset();
    model.forward(half);
    same(model.forward(rest), last, 20);
  }
  SECTION("a step that the memory refuses leaves the sliding layers as they were") {
    model.forward(half);
    const std::vector<std::int64_t> too_long(65, 3);
    REQUIRE_THROWS_AS(model.forward(too_long), Error);
    same(model.forward(rest), last, 20);
  }
  SECTION("the state goes back whole") {
    model.forward(half);
    const auto snapshot = model.state()->snapshot();
    for (int round = 0; round < 2; ++round) {
      model.forward(ids.first(13));
      model.state()->restore(*snapshot);
      REQUIRE(model.state()->tokens() == 20);
      REQUIRE(memory->tokens() == 20);
      same(model.forward(rest), last, 20);
    }
    Decoder other = model.share_weights();
    REQUIRE_THROWS_AS(other.state()->restore(*snapshot), ConfigError);
    other.forward(half);
    const auto full = other.state()->snapshot();
    other.forward(ids.first(5));
    other.state()->restore(*full);
    same(other.forward(rest), last, 20);
    REQUIRE_THROWS_AS(model.state()->restore(*full), ConfigError);
  }
  SECTION("going back by the memory alone is refused") {
    model.forward(half);
    const auto snapshot = memory->snapshot();
    model.forward(rest);
    memory->restore(*snapshot);
    REQUIRE(mentions(refusal<DataError>([&] { model.forward(rest); }), "sliding layers"));
    model.reset();
    same(model.forward(ids), expected.logits, 40);
  }
  SECTION("a memory with tokens goes on in another model, sliding layers too") {
    model.forward(half);
    Decoder other = model.share_weights();
    patch(other, memory);
    same(other.forward(rest), last, 20);
    REQUIRE(mentions(refusal<DataError>([&] { model.forward(rest); }), "sliding layers"));
  }
  SECTION("a memory that was stepped without its model is refused") {
    EpisodicMemory alone(config, memory->shape());
    const std::vector<float> zeros(
        static_cast<std::size_t>(memory->shape().n_heads * memory->shape().head_dim));
    std::vector<float> out(zeros.size());
    alone.begin_step(1);
    for (std::int64_t l = 0; l < memory->shape().n_layers; ++l)
      alone.attend(l, zeros.data(), zeros.data(), zeros.data(), out.data());
    const float surprise = 0.0f;
    alone.end_step(&surprise);
    Decoder other = model.share_weights();
    const auto stepped = std::make_shared<EpisodicMemory>(std::move(alone));
    REQUIRE(mentions(refusal<DataError>([&] { patch(other, stepped); }), "sliding layers"));
    REQUIRE(memory_of(other) == nullptr);
  }
  SECTION("unpatching gives back the attention that was there") {
    model.forward(half);
    REQUIRE(unpatch(model));
    REQUIRE(model.state()->tokens() == 0);
    same(model.forward(ids), expected.logits, 40);
  }
}

TEST_CASE("families: a memory's window and the model's") {
  Decoder model = Decoder::load(family_checkpoint("mistral_window"));
  MemoryConfig config;
  config.n_local = 10;
  REQUIRE(mentions(refusal<ConfigError>([&] { patch(model, config); }),
                   "n_local = 10 exceeds the sliding window of 9 tokens"));
  REQUIRE(memory_of(model) == nullptr);

  Decoder full = Decoder::load(family_checkpoint("qwen3"));
  std::vector<std::string> heard;
  const LogCallback log = [&](LogLevel level, std::string_view line) {
    REQUIRE(level == LogLevel::warning);
    heard.emplace_back(line);
  };
  config.n_local = 512;
  patch(full, config, {}, log);
  REQUIRE(heard.empty());
  config.n_local = 513;
  patch(full, config, {}, log);
  REQUIRE(heard.size() == 1);
  REQUIRE(mentions(heard[0], "n_local = 513 exceeds the window of 512 tokens"));
}

TEST_CASE("families: weights of another family are refused by the tensor that does not fit") {
  const auto load_as = [](const char* weights, const char* config) {
    OpenModel model = open_model(family_checkpoint(config));
    model.tensors = open_model(family_checkpoint(weights)).tensors;
    return refusal<FileError>([&] { Decoder::load(model); });
  };
  REQUIRE(mentions(load_as("qwen2", "llama2"), "self_attn.k_proj.weight' has shape"));
  // Qwen files that say llama: what LLaMA has no place for is named
  OpenModel model = open_model(family_checkpoint("qwen2"));
  std::string text = model.config_json;
  text.replace(text.find("\"qwen2\""), 7, "\"llama\"");
  model.config = parse_model_config(text, "", "disguised");
  const std::string error = refusal<FileError>([&] { Decoder::load(model); });
  REQUIRE(mentions(error, "_proj.bias' has no place in a model of model_type \"llama\""));
  REQUIRE(mentions(load_as("llama3", "qwen3"), "has shape"));
}

TEST_CASE("families: hooks are shown queries times the model's scale over 1 / sqrt(d)") {
  const std::vector<std::int64_t> ids = ExpectedLogits(family_checkpoint("granite")).ids;
  MemoryConfig config;
  config.n_init = 2, config.n_local = 6, config.chunk = 4, config.n_mem = 8;
  config.min_block = 2, config.max_block = 4;
  config.segmenter = SegmenterKind::fixed;  // the same steps recall, whatever attention says
  config.refine = Refinement::none;
  /// Queries of the first layer, whose input does not depend on attention.
  const auto shown = [&](double scale) {
    OpenModel model = open_model(family_checkpoint("granite"));
    REQUIRE(model.config.layers[0].scale == 0.2);
    for (LayerSpec& layer : model.config.layers) layer.scale = scale;
    Decoder decoder = Decoder::load(model);
    const auto memory = patch(decoder, config);
    std::vector<float> all;
    memory->set_recall_hook([&](const RecalledEvents& of) {
      if (of.layer == 0) all.insert(all.end(), of.query.begin(), of.query.end());
    });
    for (std::size_t at = 0; at + 4 <= ids.size(); at += 4)
      decoder.step(std::span(ids).subspan(at, 4));
    return all;
  };
  const double usual = 1 / std::sqrt(6.0);  // of heads of 6 channels
  const std::vector<float> own = shown(usual), scaled = shown(0.2);
  REQUIRE(own.size() > 3 * 24);
  REQUIRE(scaled.size() == own.size());
  const auto factor = static_cast<float>(0.2 / usual);
  float largest = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    REQUIRE(std::abs(scaled[i] - factor * own[i]) <= 1e-5f * (1 + std::abs(own[i])));
    largest = std::max(largest, std::abs(own[i]));
  }
  REQUIRE(largest > 0.1f);
}

}  // namespace families_test
