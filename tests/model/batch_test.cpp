// SPDX-License-Identifier: Apache-2.0
// Several sequences that share one model's weights, in one step.

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/lora.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/safetensors.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "tiny_llama.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace batch_test {

using Ids = std::vector<std::int64_t>;

const fs::path kModels = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families";
const fs::path kAdapters = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/adapters";

MemoryConfig small_config() {
  return parse_memory_config(
      R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2, "max_block": 6,
          "n_repr": 2, "contiguity": 0.3, "gamma": 0.5, "refine": "modularity"})");
}

/// One sequence of the test: its steps, in turn, and what it attends with.
struct Sequence {
  bool has_memory = true;
  std::vector<std::int64_t> lengths;
  std::vector<AppliedLora> adapters;
};

/// What a step leaves to be seen of a sequence.
struct Seen {
  std::vector<float> logits;
  std::vector<TokenRange> events;
  std::vector<std::vector<EventId>> recalled;
};

Seen seen_of(Decoder& model) {
  Seen seen;
  const std::span<const float> row = model.logits();
  seen.logits.assign(row.begin(), row.end());
  if (const auto memory = memory_of(model)) {
    seen.events = memory->events().all();
    for (std::int64_t l = 0; l < memory->shape().n_layers; ++l)
      seen.recalled.push_back(memory->recalled(l).recalled());
  }
  return seen;
}

/// Ids of a step, of each sequence its own.
Ids step_ids(const Decoder& model, std::size_t sequence, std::size_t step, std::int64_t n) {
  return random_ids(n, model.config().vocab_size, static_cast<unsigned>(100 * sequence + step));
}

std::vector<Decoder> models_of(const OpenModel& opened, const std::vector<Sequence>& sequences) {
  std::vector<Decoder> models;
  models.push_back(Decoder::load(opened));
  while (models.size() < sequences.size()) models.push_back(models[0].share_weights());
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (sequences[i].has_memory) patch(models[i], small_config());
    models[i].use_adapters(sequences[i].adapters);
  }
  return models;
}

/// [sequence][step]
std::vector<std::vector<Seen>> run(const OpenModel& opened, const std::vector<Sequence>& sequences,
                                   bool together) {
  std::vector<Decoder> models = models_of(opened, sequences);
  std::vector<std::vector<Seen>> all(models.size());
  for (std::size_t step = 0; step < sequences[0].lengths.size(); ++step) {
    std::vector<Ids> ids;
    for (std::size_t i = 0; i < models.size(); ++i)
      ids.push_back(step_ids(models[i], i, step, sequences[i].lengths[step]));
    std::vector<Decoder::SequenceStep> batch;
    for (std::size_t i = 0; i < models.size(); ++i) batch.push_back({&models[i], ids[i]});
    if (together)
      Decoder::step_batch(batch);
    else
      for (const Decoder::SequenceStep& s : batch) s.sequence->step(s.ids, s.kind);
    for (std::size_t i = 0; i < models.size(); ++i) all[i].push_back(seen_of(models[i]));
  }
  return all;
}

/// To the bit: which way a row's products are summed depends on its own sequence alone.
void same_together_as_alone(const OpenModel& opened, const std::vector<Sequence>& sequences) {
  const auto expected = run(opened, sequences, false), got = run(opened, sequences, true);
  for (std::size_t i = 0; i < sequences.size(); ++i)
    for (std::size_t step = 0; step < sequences[i].lengths.size(); ++step) {
      INFO("sequence " << i << ", step " << step);
      const Seen &a = expected[i][step], &b = got[i][step];
      REQUIRE((a.events == b.events));
      REQUIRE(a.recalled == b.recalled);
      REQUIRE(a.logits == b.logits);
    }
}

/// Some steps of `first` tokens, then of one.
std::vector<std::int64_t> lengths(std::int64_t first, std::size_t n) {
  std::vector<std::int64_t> of(n, 1);
  std::fill_n(of.begin(), 4, first);
  return of;
}

TEST_CASE("batch: sequences in one step are what they are alone") {
  const OpenModel opened = open_model(kModels / "llama2");
  const auto adapter = [&](const char* name, double scale) {
    return AppliedLora{LoraAdapter::load(kAdapters / name, opened), scale};
  };
  // Of different lengths, with and without a memory and adapters: chunks together, chunks beside
  // tokens, tokens together.
  const std::vector<Sequence> four{{true, lengths(9, 20), {}},
                                   {false, lengths(4, 20), {adapter("llama2_all", 1.0)}},
                                   {true, lengths(1, 20), {}},
                                   {true, lengths(10, 20), {adapter("llama2_rslora", 0.5)}}};
  same_together_as_alone(opened, four);
  const auto seen = run(opened, four, true);
  REQUIRE(seen[0].back().events.size() > 3);
  REQUIRE(!seen[0].back().recalled[0].empty());
}

TEST_CASE("batch: models of many parts, and quantised weights") {
  const std::vector<Sequence> three{
      {false, lengths(7, 12), {}}, {false, lengths(1, 12), {}}, {false, lengths(10, 12), {}}};
  for (const char* name :
       {"gemma3", "qwen3", "phi3", "ministral3", "cohere2", "apertus", "nemotron"}) {
    INFO(name);
    same_together_as_alone(open_model(kModels / name), three);
  }
  TinyShape shape;
  shape.dim = 32;
  shape.hidden = 64;
  shape.inner = 96;
  const TempDir dir;
  TinyLlama(shape, 3).write(dir.path());
  ModelOptions options;
  options.quantize = TensorType::q8_0;
  same_together_as_alone(open_model(dir.path(), options), three);
}

TEST_CASE("batch: any mix of sequences, of sizes that fill no vector, gives each its own bits") {
  std::mt19937 random(41);
  for (const TensorType type : {TensorType::f32, TensorType::bf16, TensorType::f16}) {
    TinyShape shape{.vocab = 131, .hidden = 54, .inner = 101, .layers = 2, .dim = 18};
    shape.type = type;
    const TempDir dir;
    TinyLlama(shape, 11).write(dir.path());
    const OpenModel opened = open_model(dir.path());
    for (int trial = 0; trial < 4; ++trial) {
      std::vector<Sequence> sequences(2 + random() % 20);
      for (Sequence& s : sequences) {
        s.has_memory = random() % 2;
        for (int step = 0; step < 5; ++step)
          s.lengths.push_back(
              trial == 0 || random() % 2 ? 1 : 1 + static_cast<std::int64_t>(random() % 10));
      }
      INFO(name_of(type) << ", " << sequences.size() << " sequences, trial " << trial);
      same_together_as_alone(opened, sequences);
    }
  }
}

TEST_CASE("batch: who cannot begin is named, and the others make their steps") {
  const TempDir dir;
  TinyLlama({}, 7).write(dir.path());
  Decoder first = Decoder::load(dir.path()), second = first.share_weights(),
          stranger = Decoder::load(dir.path());
  patch(first, small_config());
  const Ids ids = random_ids(3, 61, 1), unknown{1, 61}, too_long = random_ids(11, 61, 1);
  /// \param makes of the two, which one makes its step; null: none
  const auto refused = [&](const std::vector<Decoder::SequenceStep>& batch, const Decoder* makes) {
    first.reset();
    if (second.state()) second.reset();
    const std::string said = refusal<DataError>([&] { Decoder::step_batch(batch); });
    REQUIRE(first.tokens() == (makes == &first ? 3 : 0));
    REQUIRE(second.tokens() == (makes == &second ? 3 : 0));
    return said;
  };
  REQUIRE(mentions(refused({{&first, ids}, {&second, unknown}}, &first), "not in the vocabulary"));
  REQUIRE(mentions(refused({{&second, ids}, {&first, too_long}}, &second), "chunk"));
  // Which of them it was, is said too.
  REQUIRE(
      mentions(refused({{&first, ids}, {&second, unknown}}, &first), "(sequence 1 of the batch)"));
  REQUIRE(
      mentions(refused({{&first, unknown}, {&second, ids}}, &second), "(sequence 0 of the batch)"));
  REQUIRE(mentions(refused({{&second, ids}, {&first, too_long}}, &second),
                   "(sequence 1 of the batch)"));
  REQUIRE(mentions(refused({{&first, ids}, {&second, ids}, {&first, ids}}, nullptr), "0 and 2"));
  REQUIRE(mentions(refused({{&first, ids}, {&stranger, ids}}, nullptr), "sequence 1"));
  REQUIRE(mentions(refused({{&first, ids}, {&second, Ids{}}}, &first), "no tokens"));
  second.attention(1) = nullptr;
  REQUIRE(mentions(refused({{&first, ids}, {&second, ids}}, &first), "slot of layer 1 is empty"));
  use_full_attention(second);
  second.state() = nullptr;
  REQUIRE(mentions(refused({{&first, ids}, {&second, ids}}, &first), "no sequence state"));
  use_full_attention(second);
  first.reset();

  Decoder::step_batch({});
  const std::vector<Decoder::SequenceStep> batch{{&first, ids}, {&second, ids}};
  Decoder::step_batch(batch);
  REQUIRE(first.tokens() == 3);
  REQUIRE(second.tokens() == 3);
  const std::vector<float> logits(first.logits().begin(), first.logits().end());
  Decoder alone = first.share_weights();
  patch(alone, small_config());
  alone.step(ids);
  REQUIRE(std::vector<float>(alone.logits().begin(), alone.logits().end()) == logits);
}

TEST_CASE("batch: a sequence that goes wrong harms no other") {
  const TempDir dir;
  const TinyLlama tiny({}, 7);
  {  // an embedding that is NaN: the head is another matrix, so that only who reads it is spoiled
    std::vector<TensorToWrite> tensors = tiny.tensors();
    std::vector<float> embedding;
    for (TensorToWrite& t : tensors)
      if (t.name == "model.embed_tokens.weight") {
        const auto* values = static_cast<const float*>(t.data);
        embedding.assign(values, values + t.shape[0] * t.shape[1]);
        const std::ptrdiff_t width = t.shape[1];
        std::fill(embedding.end() - width, embedding.end(),
                  std::numeric_limits<float>::quiet_NaN());
        t.data = embedding.data();
      }
    std::ofstream(dir / "config.json") << tiny.config().dump();
    write_safetensors(dir / "model.safetensors", tensors);
  }
  for (const std::int64_t n : {1, 5}) {
    Decoder good = Decoder::load(dir.path()), bad = good.share_weights(),
            reference = good.share_weights();
    for (Decoder* model : {&good, &bad, &reference}) patch(*model, small_config());
    for (unsigned step = 0; step < 6; ++step) {
      Ids sound = random_ids(n, 60, 3 + step);
      Ids spoiled = sound;
      if (step == 2) spoiled[0] = 60;
      const std::vector<Decoder::SequenceStep> batch{{&bad, spoiled}, {&good, sound}};
      if (step == 2)
        REQUIRE_THROWS_AS(Decoder::step_batch(batch), FileError);  // it names the weight
      else
        Decoder::step_batch(batch);
      reference.step(sound);
      INFO(n << " tokens, step " << step);
      REQUIRE((seen_of(good).events == seen_of(reference).events));
      REQUIRE(std::equal(good.logits().begin(), good.logits().end(), reference.logits().begin(),
                         reference.logits().end()));
    }
    REQUIRE(good.tokens() == 6 * n);
    REQUIRE(bad.tokens() == 5 * n);
  }
}

}  // namespace batch_test
