// SPDX-License-Identifier: Apache-2.0
// Several sequences that share one model's weights, in one step.
#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "damaged_files.hpp"
#include "episodic/base/error.hpp"
#include "episodic/device/device_decoder.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/memory_layers.hpp"
#include "kernels/device.hpp"
#include "model/tiny_llama.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_batch_test {

using namespace episodic;
using Ids = std::vector<std::int64_t>;

TinyShape shape_of(TensorType type) {
  TinyShape s;
  s.dim = 16;
  s.hidden = 40;
  s.inner = 48;
  s.type = type;
  return s;
}

MemoryConfig small_config() {
  return parse_memory_config(
      R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2, "max_block": 6,
          "n_repr": 2, "contiguity": 0.3, "gamma": 0.5, "refine": "modularity"})");
}

Ids random_ids(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  Ids ids(static_cast<std::size_t>(n));
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % 61u);
  return ids;
}

/// What a step leaves to be seen of a sequence.
struct Seen {
  std::vector<float> logits, surprise;
  Ids boundaries;
  std::vector<TokenRange> events;
  std::vector<std::vector<EventId>> recalled;
  std::vector<EventId> forgotten;
  bool operator==(const Seen&) const = default;
};

Seen seen_of(DeviceDecoder& model, bool has_memory) {
  Seen seen;
  const std::span<const float> row = model.logits();
  seen.logits.assign(row.begin(), row.end());
  seen.surprise = model.surprise();
  if (!has_memory) return seen;
  const StepRecord record = model.memory().last_step();
  seen.boundaries.assign(record.final_boundaries.begin(), record.final_boundaries.end());
  seen.events = model.memory().events().all();
  for (std::int64_t l = 0; l < 2; ++l) seen.recalled.push_back(model.memory().recalled(l));
  seen.forgotten = model.memory().forgotten();
  return seen;
}

/// Settings with room on the device for half of the events that 120 tokens may make: all are
/// at home in host memory.
MemoryConfig over_host(const TempDir& dir) {
  MemoryConfig config = small_config();
  DeviceDecoder model = DeviceDecoder::load(dir.path());
  const DeviceMemoryBytes all = model.attach_memory(config, 120).bytes();
  config.device_bytes = all.total() - all.snapshots - all.events / 2;
  REQUIRE(model.attach_memory(config, 120).bytes().host > 0);
  return config;
}

/// cuBLAS may add in another order where there are more rows; its emulation does not.
#if defined(EPISODIC_EMULATED_CUDA)
constexpr bool kExact = true;
#else
constexpr bool kExact = false;
#endif

/// One sequence of the test: its steps, in turn.
struct Sequence {
  bool has_memory = true;
  std::vector<Ids> steps;
  MemoryConfig config = small_config();
};

void attach(DeviceDecoder& model, const Sequence& s) {
  if (s.has_memory)
    model.attach_memory(s.config, 120);
  else
    model.attend_fully(120, 10);
}

/// Steps of these lengths, of ids of its own.
Sequence sequence_of(bool has_memory, const std::vector<std::int64_t>& lengths, unsigned seed) {
  Sequence s;
  s.has_memory = has_memory;
  for (const std::int64_t n : lengths) s.steps.push_back(random_ids(n, ++seed));
  return s;
}

std::vector<std::vector<Seen>> alone(const TempDir& dir, const std::vector<Sequence>& sequences) {
  std::vector<std::vector<Seen>> all;
  for (const Sequence& s : sequences) {
    DeviceDecoder model = DeviceDecoder::load(dir.path());
    attach(model, s);
    std::vector<Seen> seen;
    for (const Ids& ids : s.steps) {
      model.step(ids);
      seen.push_back(seen_of(model, s.has_memory));
    }
    all.push_back(std::move(seen));
  }
  return all;
}

std::vector<std::vector<Seen>> together(const TempDir& dir, const std::vector<Sequence>& sequences,
                                        bool graphs = true) {
  std::vector<DeviceDecoder> models;
  models.push_back(DeviceDecoder::load(dir.path(), {std::nullopt, 0, graphs}));
  while (models.size() < sequences.size()) models.push_back(models[0].share_weights());
  for (std::size_t i = 0; i < models.size(); ++i) attach(models[i], sequences[i]);
  std::vector<std::vector<Seen>> all(models.size());
  for (std::size_t step = 0; step < sequences[0].steps.size(); ++step) {
    std::vector<DeviceDecoder::SequenceStep> batch;
    for (std::size_t i = 0; i < models.size(); ++i)
      batch.push_back({&models[i], sequences[i].steps[step]});
    DeviceDecoder::step_batch(batch);
    for (std::size_t i = 0; i < models.size(); ++i)
      all[i].push_back(seen_of(models[i], sequences[i].has_memory));
  }
  return all;
}

/// Lengths of n steps: some of many tokens, then of one.
std::vector<std::int64_t> lengths(std::int64_t first, std::size_t n) {
  std::vector<std::int64_t> of(n, 1);
  of[0] = of[1] = of[2] = of[3] = first;
  return of;
}

TEST_CASE("sequences that share a model's weights in one step are what they are alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const TensorType type : {TensorType::bf16, TensorType::f32}) {
    const TempDir dir;
    TinyLlama(shape_of(type), 7).write(dir.path());
    // Of different lengths, in windows and beyond them, with and without a memory: chunks together,
    // tokens together.
    const std::vector<Sequence> two{sequence_of(true, lengths(9, 20), 10),
                                    sequence_of(true, lengths(4, 20), 50)};
    const std::vector<Sequence> three{sequence_of(true, lengths(9, 12), 10),
                                      sequence_of(false, lengths(6, 12), 50),
                                      sequence_of(true, lengths(1, 12), 90)};
    for (const std::vector<Sequence>& sequences : {two, three}) {
      const auto expected = alone(dir, sequences), got = together(dir, sequences);
      REQUIRE(expected[0].back().events.size() > 3);
      REQUIRE(!expected[0].back().recalled[0].empty());
      for (std::size_t i = 0; i < sequences.size(); ++i)
        for (std::size_t step = 0; step < sequences[i].steps.size(); ++step) {
          INFO("sequence " << i << ", step " << step);
          const Seen &a = expected[i][step], &b = got[i][step];
          REQUIRE((a.events == b.events));
          REQUIRE(a.boundaries == b.boundaries);
          REQUIRE(a.recalled == b.recalled);
          REQUIRE(a.logits.size() == b.logits.size());
          // The third one's tokens beside longer steps are cuBLAS's, and alone they are not.
          if (kExact && i != 2) {
            REQUIRE(a.logits == b.logits);
            REQUIRE(a.surprise == b.surprise);
          } else {
            for (std::size_t c = 0; c < a.logits.size(); ++c)
              REQUIRE(std::abs(a.logits[c] - b.logits[c]) <
                      (type == TensorType::f32 ? 1e-4f : 6e-2f));
          }
        }
    }
  }
}

TEST_CASE("sequences of a batch over host memory are what they are alone, however copies overlap") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(TensorType::bf16), 7).write(dir.path());
  std::vector<Sequence> three{sequence_of(true, lengths(9, 12), 10),
                              sequence_of(true, lengths(4, 12), 50),
                              sequence_of(true, lengths(7, 12), 90)};
  three[0].config = three[2].config = over_host(dir);
  const auto expected = alone(dir, three);
  REQUIRE(!expected[2].back().recalled[1].empty());
  episodic_test::in_every_overlap([&] {
    const auto got = together(dir, three);
    for (std::size_t i = 0; i < three.size(); ++i)
      for (std::size_t step = 0; step < three[i].steps.size(); ++step) {
        INFO("sequence " << i << ", step " << step);
        const Seen &a = expected[i][step], &b = got[i][step];
        REQUIRE((a.events == b.events));
        REQUIRE(a.recalled == b.recalled);
        if (kExact) REQUIRE((a == b));
      }
  });
}

TEST_CASE("sequences of a batch forget together what they forget alone") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(TensorType::f32), 7).write(dir.path());
  std::vector<Sequence> three{sequence_of(true, lengths(9, 14), 10),
                              sequence_of(true, lengths(10, 14), 50),
                              sequence_of(true, lengths(8, 14), 90)};
  for (const std::size_t i : {0u, 2u}) {
    three[i].config.retention.emplace();
    three[i].config.retention->memoria.initial_lifespan = 1;
    three[i].config.retention->memoria.alpha = 0.1;
  }
  const auto expected = alone(dir, three), got = together(dir, three);
  for (std::size_t i = 0; i < three.size(); ++i) {
    REQUIRE(expected[i].back().forgotten.empty() == (i == 1));
    for (std::size_t step = 0; step < three[i].steps.size(); ++step) {
      INFO("sequence " << i << ", step " << step);
      REQUIRE(got[i][step].forgotten == expected[i][step].forgotten);
      REQUIRE(got[i][step].recalled == expected[i][step].recalled);
      if (kExact) REQUIRE((got[i][step] == expected[i][step]));
    }
  }
}

TEST_CASE("sequences of a batch launched as graphs are those enqueued kernel by kernel") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(TensorType::bf16), 7).write(dir.path());
  std::vector<Sequence> sequences{sequence_of(true, lengths(9, 20), 10),
                                  sequence_of(false, lengths(6, 20), 50),
                                  sequence_of(true, lengths(4, 20), 90)};
  sequences[0].config.recall_every = 3;
  sequences[2].config = over_host(dir);
  for (const std::size_t n : {3u, 5u}) {  // of five the products are cuBLAS's
    while (sequences.size() < n)
      sequences.push_back(sequence_of(true, lengths(5, 20), 30 * static_cast<unsigned>(n)));
    const auto expected = together(dir, sequences, false);
#if defined(EPISODIC_EMULATED_CUDA)
    emulator::reset_calls();
#endif
    REQUIRE((together(dir, sequences) == expected));
#if defined(EPISODIC_EMULATED_CUDA)
    REQUIRE(emulator::calls().captures > 1);
    REQUIRE(emulator::calls().graph_launches > emulator::calls().captures);
#endif
  }
}

TEST_CASE("a batch in steady state is an upload and a graph") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  const TempDir dir;
  TinyLlama(shape_of(TensorType::bf16), 7).write(dir.path());
  std::vector<DeviceDecoder> models;
  models.push_back(DeviceDecoder::load(dir.path()));
  while (models.size() < 3) models.push_back(models[0].share_weights());
  for (DeviceDecoder& model : models) model.attach_memory(small_config(), 200);
  static const Ids one{3};
  std::vector<DeviceDecoder::SequenceStep> batch;
  for (DeviceDecoder& model : models) batch.push_back({&model, one});
  for (DeviceDecoder& model : models)
    for (unsigned step = 0; step < 4; ++step) model.step(random_ids(10, step));
  const auto calls_of = [&](int steps) {
    emulator::reset_calls();
    for (int i = 0; i < steps; ++i) DeviceDecoder::step_batch(batch);
    return emulator::calls();
  };
  REQUIRE(calls_of(10).captures > 0);
  const auto steady = [&] {
    const std::int64_t bytes = emulator::device_bytes();
    const emulator::Calls calls = calls_of(6);
    return calls.graph_launches == 6 && calls.copies == 6 && calls.launches == 0 &&
           calls.captures == 0 && calls.synchronisations == 0 &&
           calls.allocations + calls.frees == 0 && emulator::device_bytes() == bytes;
  };
  REQUIRE(steady());
  // In another order they are other graphs.
  std::swap(batch[0], batch[1]);
  REQUIRE(calls_of(6).captures > 0);
  REQUIRE(steady());
  // With a sequence's memory go the graphs that it has a part in.
  models[1].attach_memory(small_config(), 200);
  models[1].step(random_ids(10, 7));
  REQUIRE(calls_of(1).graph_launches == 0);
  // Where a graph cannot be made, kernels are enqueued, for good.
  emulator::set_cublas_captures(false);
  for (int i = 0; i < 2; ++i) models.push_back(models[0].share_weights());
  for (std::size_t i = 3; i < 5; ++i) {
    models[i].attend_fully(200, 10);
    models[i].step(random_ids(10, 7));
  }
  batch.clear();
  for (DeviceDecoder& model : models) batch.push_back({&model, one});
  const emulator::Calls refused = calls_of(6);
  emulator::set_cublas_captures(true);
  REQUIRE(refused.captures == 1);
  REQUIRE(refused.graph_launches == 0);
  for (const DeviceDecoder& model : models) REQUIRE_FALSE(model.graphs());
  REQUIRE(cudaGetLastError() == cudaSuccess);
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("more sequences than the library's own products take go by cuBLAS") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(TensorType::f32), 7).write(dir.path());
  std::vector<Sequence> five;
  for (unsigned i = 0; i < 5; ++i) five.push_back(sequence_of(i % 2 == 0, lengths(5, 8), 100 * i));
  const auto expected = alone(dir, five), got = together(dir, five);
  for (std::size_t i = 0; i < five.size(); ++i) {
    REQUIRE((expected[i].back().events == got[i].back().events));
    for (std::size_t c = 0; c < 61; ++c)
      REQUIRE(std::abs(expected[i].back().logits[c] - got[i].back().logits[c]) < 1e-4f);
  }
}

TEST_CASE("a batch reads the weights once, and its sequences share them") {
#if defined(EPISODIC_EMULATED_CUDA)
  const TempDir dir;
  TinyLlama(shape_of(TensorType::bf16), 7).write(dir.path());
  DeviceDecoder first = DeviceDecoder::load(dir.path(), {std::nullopt, 0, false});
  const std::int64_t bytes = emulator::device_bytes();
  std::optional<DeviceDecoder> second = first.share_weights();
  REQUIRE(emulator::device_bytes() == bytes);
  first.attend_fully(60, 10);
  second->attend_fully(60, 10);
  const auto launches = [&](const std::vector<DeviceDecoder::SequenceStep>& batch) {
    emulator::reset_calls();
    DeviceDecoder::step_batch(batch);
    return emulator::calls().launches;
  };
  const Ids many = random_ids(7, 1), one{3};
  launches({{&first, many}, {&*second, many}});  // takes room
  launches({{&first, one}, {&*second, one}});
  // Whatever the number of sequences: they share products, attention and surprise.
  DeviceDecoder third = first.share_weights();
  third.attend_fully(60, 10);
  launches({{&first, one}, {&*second, one}, {&third, one}});
  const std::int64_t of_one = launches({{&first, one}});
  REQUIRE(launches({{&first, one}, {&*second, one}}) == of_one);
  REQUIRE(launches({{&first, one}, {&*second, one}, {&third, one}}) == of_one);
  REQUIRE(emulator::calls().allocations == 0);
  REQUIRE(emulator::calls().synchronisations == 0);
  // Whoever is left keeps the weights.
  { const DeviceDecoder gone = std::move(first); }
  second->step(one);
  REQUIRE(second->logits().size() == 61);
  second.reset();
  third.step(one);
  REQUIRE(third.logits().size() == 61);
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

#if defined(EPISODIC_EMULATED_CUDA)
/// Sequences with memories of these settings and texts of their own, that make steps together, and
/// the same ones alone.
class Beside {
 public:
  Beside(const TempDir& dir, const std::vector<MemoryConfig>& configs) {
    models_.push_back(DeviceDecoder::load(dir.path(), {std::nullopt, 0, false}));
    while (models_.size() < configs.size()) models_.push_back(models_[0].share_weights());
    for (std::size_t i = 0; i < configs.size(); ++i) {
      alone_.push_back(DeviceDecoder::load(dir.path(), {std::nullopt, 0, false}));
      models_[i].attach_memory(configs[i], 120);
      alone_[i].attach_memory(configs[i], 120);
    }
    for (unsigned step = 0; step < 5; ++step)
      for (std::size_t i = 0; i < configs.size(); ++i) {
        const Ids ids =
            random_ids(10 - static_cast<std::int64_t>(i) % 2, 10 * step + static_cast<unsigned>(i));
        models_[i].step(ids);
        alone_[i].step(ids);
      }
  }
  /// A step of one token of the first n. \return its launches, and those of each alone
  std::pair<std::int64_t, std::vector<std::int64_t>> step(std::size_t n) {
    std::vector<DeviceDecoder::SequenceStep> batch;
    static const Ids one{3};
    for (std::size_t i = 0; i < n; ++i) batch.push_back({&models_[i], one});
    emulator::reset_calls();
    DeviceDecoder::step_batch(batch);
    const std::int64_t launches = emulator::calls().launches;
    std::vector<std::int64_t> of_alone;
    for (std::size_t i = 0; i < n; ++i) {
      emulator::reset_calls();
      alone_[i].step(one);
      of_alone.push_back(emulator::calls().launches);
      REQUIRE((seen_of(models_[i], true) == seen_of(alone_[i], true)));
      REQUIRE(models_[i].memory().n_events() > 3);
    }
    return {launches, of_alone};
  }

 private:
  std::vector<DeviceDecoder> models_, alone_;
};
#endif

TEST_CASE("memories of a batch share the launches of a step, where their settings allow it") {
#if defined(EPISODIC_EMULATED_CUDA)
  const TempDir dir;
  TinyLlama(shape_of(TensorType::bf16), 7).write(dir.path());
  // The last two are of other settings: another window, and representatives of unit length.
  MemoryConfig other = small_config(), scored = small_config();
  other.n_local = 14;
  other.n_mem = 12;
  scored.reweight = Reweighting::narrow;
  scored.contiguity = 0.0;
  Beside beside(dir, {small_config(), small_config(), other, scored});
  beside.step(4);                         // takes room
  for (const std::size_t n : {2u, 3u}) {  // lengths, windows and budgets of their own
    const auto [launches, of_alone] = beside.step(n);
    REQUIRE(launches == of_alone[0]);
  }
  // What cannot be shared is added: not the products, of which there are as many as for one.
  const auto [launches, of_alone] = beside.step(4);
  constexpr std::int64_t kProducts = 4 * 2 + 2;  // of two layers; the embedding and the head
  REQUIRE(launches == of_alone[0] + of_alone[3] - kProducts - 2);  // nor angles nor surprise
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("memories of a batch share launches of every setting that has some of its own") {
#if defined(EPISODIC_EMULATED_CUDA)
  const TempDir dir;
  TinyLlama(shape_of(TensorType::bf16), 7).write(dir.path());
  std::vector<MemoryConfig> configs(7, small_config());
  for (const std::size_t i : {0u, 1u, 2u}) {
    constexpr Reweighting kModes[] = {Reweighting::narrow, Reweighting::broad, Reweighting::exact};
    configs[i].reweight = kModes[i];
    configs[i].contiguity = 0.0;
    configs[i].reweight_top = 3;
  }
  configs[3].retention.emplace();
  configs[3].retention->memoria.initial_lifespan = 1000;  // no launches that forget
  configs[4].segmenter = SegmenterKind::k_similarity;
  configs[5].segmenter = SegmenterKind::gaussian;
  configs[6] = over_host(dir);
  for (std::size_t i = 0; i < configs.size(); ++i) {
    INFO("settings " << i);
    const MemoryConfig& config = configs[i];
    Beside beside(dir, {config, config, config});
    beside.step(3);  // takes room
    const auto [launches, of_alone] = beside.step(3);
    REQUIRE(launches == of_alone[0]);
  }
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("a sequence of a batch that goes wrong on the device harms no other") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  const TinyLlama tiny(shape_of(TensorType::f32), 7);
  {  // an embedding that is NaN: the head is another matrix, so that only who reads it is spoiled
    std::vector<TensorToWrite> tensors = tiny.tensors();
    std::vector<float> embedding;
    for (TensorToWrite& t : tensors)
      if (t.name == "model.embed_tokens.weight") {
        const auto* values = static_cast<const float*>(t.data);
        embedding.assign(values, values + 61 * 40);
        std::fill_n(embedding.begin() + 60 * 40, 40, NAN);
        t.data = embedding.data();
      }
    std::ofstream(dir / "config.json") << tiny.config().dump();
    write_safetensors(dir / "model.safetensors", tensors);
  }
  for (const std::size_t n : {1u, 5u}) {
    DeviceDecoder good = DeviceDecoder::load(dir.path()), bad = good.share_weights(),
                  reference = DeviceDecoder::load(dir.path());
    for (DeviceDecoder* model : {&good, &bad, &reference})
      model->attach_memory(small_config(), 120);
    for (int step = 0; step < 6; ++step) {
      Ids sound = random_ids(static_cast<std::int64_t>(n), 3 + static_cast<unsigned>(step));
      std::replace(sound.begin(), sound.end(), 60, 59);
      Ids spoiled = sound;
      if (step == 2) spoiled[0] = 60;
      const std::vector<DeviceDecoder::SequenceStep> batch{{&bad, spoiled}, {&good, sound}};
      DeviceDecoder::step_batch(batch);
      if (step == 2) {  // `logits` of the one says so at once
        const std::string message = refusal<FileError>([&] { static_cast<void>(bad.logits()); });
        REQUIRE(mentions(message, "row 60"));
      }
      reference.step(sound);
      const Seen a = seen_of(good, true), b = seen_of(reference, true);
      REQUIRE((a.events == b.events));
      if (kExact || n == 1) REQUIRE((a == b));
    }
    REQUIRE_THROWS_AS(bad.memory().check(), DataError);
    REQUIRE_NOTHROW(good.memory().check());
    const std::string message = refusal([&] { static_cast<void>(bad.logits()); });
    INFO(message);
    REQUIRE(mentions(message, "model.embed_tokens.weight"));
    REQUIRE(mentions(message, "row 60"));
  }
}

TEST_CASE("a batch that is no step of one model is refused whole") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(TensorType::f32), 7).write(dir.path());
  DeviceDecoder first = DeviceDecoder::load(dir.path()), second = first.share_weights(),
                stranger = DeviceDecoder::load(dir.path());
  const Ids ids = random_ids(3, 1), unknown{1, 61}, long_step = random_ids(11, 1);
  using Batch = std::vector<DeviceDecoder::SequenceStep>;
  first.attach_memory(small_config(), 20);
  const auto said = [&](const Batch& batch) {
    return refusal<DataError>([&] { DeviceDecoder::step_batch(batch); });
  };
  const auto refused = [&](const Batch& batch, const std::string& why) {
    REQUIRE(mentions(said(batch), why));
    REQUIRE(mentions(refusal<DataError>([&] { DeviceDecoder::try_step_batch(batch); }), why));
    REQUIRE(first.tokens() == 0);
    REQUIRE(second.tokens() == 0);
  };
  stranger.attend_fully(20, 10);
  refused({{&first, ids}, {&second, ids}, {&first, ids}}, "0 and 2");
  refused({{&first, ids}, {&stranger, ids}}, "sequence 1");
  DeviceDecoder::step_batch({});
  REQUIRE(DeviceDecoder::try_step_batch({}).empty());
  // What one sequence cannot do is said of it, when the other has made its step.
  std::int64_t made = 0;
  const auto fails = [&](const Batch& batch, const std::string& why, int place) {
    const std::string message = said(batch);
    INFO(message);
    REQUIRE(mentions(message, why));
    REQUIRE(mentions(message, "(sequence " + std::to_string(place) + " of the batch)"));
    REQUIRE(first.tokens() == (made += 3));
    REQUIRE(second.tokens() == 0);
  };
  fails({{&first, ids}, {&second, ids}}, "no memory yet", 1);
  second.attend_fully(20, 10);
  fails({{&first, ids}, {&second, unknown}}, "not in the vocabulary", 1);
  fails({{&second, long_step}, {&first, ids}}, "11 tokens, must be in [1, chunk = 10]", 0);
  fails({{&first, ids}, {&second, Ids{}}}, "0 tokens", 1);
  // Of both the first.
  const std::string message = said({{&second, unknown}, {&first, long_step}});
  REQUIRE(mentions(message, "not in the vocabulary"));
  REQUIRE(mentions(message, "(sequence 0 of the batch)"));
  const Batch batch{{&first, ids}, {&second, ids}};
  DeviceDecoder::step_batch(batch);
  REQUIRE(first.tokens() == made + 3);
  REQUIRE(second.tokens() == 3);
}

/// Why a sequence cannot make its step.
enum class Fault {
  unknown_id,
  too_long,
  no_tokens,
  no_attention,
  no_room,         // of its memory
  no_full_room,    // without a memory
  unreadable,      // its events, in files: known in the middle of a step
  cannot_be_kept,  // its events, in files: known at the step's end
  hook,            // of its keys: throws in the middle of a step
};

/// Settings whose events lie in files, the device holding a quarter of them.
MemoryConfig over_files(const TempDir& dir, const TempDir& files, std::int64_t max_tokens) {
  MemoryConfig config = small_config();
  DeviceDecoder model = DeviceDecoder::load(dir.path());
  const DeviceMemoryBytes all = model.attach_memory(config, max_tokens).bytes();
  config.device_bytes = all.total() - all.snapshots - all.events / 4;
  const MemoryShape shape = memory_shape(model.config());
  config.host_bytes =
      least_host_bytes({shape.n_layers, shape.n_kv_heads, shape.head_dim, DType::float32},
                       config.max_block, most_recalled_tokens(config));
  config.disk_dir = files.path().string();
  return config;
}

TEST_CASE(
    "a batch whose kernels a device does not launch leaves no step open, whichever they are") {
#if defined(EPISODIC_EMULATED_CUDA)
  const episodic_test::DefaultsBehind defaults;
  const TempDir dir, files;
  TinyLlama(shape_of(TensorType::f32), 7).write(dir.path());
  MemoryConfig retaining = small_config();
  retaining.retention.emplace();
  retaining.retention->memoria.initial_lifespan = 1;
  retaining.retention->memoria.alpha = 0.1;
  const struct {
    MemoryConfig config;
    std::int64_t tokens;  // room for them
  } settings[] = {{over_host(dir), 120}, {over_files(dir, files, 200), 200}, {retaining, 120}};
  for (std::size_t setting = 0; setting < std::size(settings); ++setting) {
    std::vector<DeviceDecoder> failing, apart;
    for (std::vector<DeviceDecoder>* const models : {&failing, &apart}) {
      models->push_back(DeviceDecoder::load(dir.path()));
      models->push_back((*models)[0].share_weights());
      (*models)[0].attach_memory(settings[setting].config, settings[setting].tokens);
      (*models)[1].attach_memory(small_config(), 120);
      for (unsigned step = 0; step < 6; ++step)
        for (DeviceDecoder& model : *models) model.step(random_ids(10, step));
    }
    const auto batch_of = [](std::vector<DeviceDecoder>& models, const Ids& ids) {
      return std::vector<DeviceDecoder::SequenceStep>{{&models[0], ids}, {&models[1], ids}};
    };
    for (const std::int64_t n : {9, 1, 1}) {
      const Ids ids = random_ids(n, 40 + static_cast<unsigned>(setting));
      const auto first = failing[0].snapshot(), second = failing[1].snapshot();
      bool whole = false;
      std::int64_t left = 0;
      for (; !whole; left += episodic_test::all_or(1, 4)) {
        INFO("settings " << setting << ", " << n << " tokens, " << left << " launches");
        emulator::set_launches_left(left);
        try {
          const auto failures = DeviceDecoder::try_step_batch(batch_of(failing, ids));
          whole = !failures[0] && !failures[1];
        } catch (const DeviceError&) {
        }
        emulator::set_launches_left(-1);
        for (DeviceDecoder& model : failing) REQUIRE(model.memory().open_tokens() == 0);
        if (whole) break;
        failing[0].restore(*first);
        failing[1].restore(*second);
      }
      REQUIRE(left > 10);
      DeviceDecoder::step_batch(batch_of(apart, ids));
      for (std::size_t i = 0; i < 2; ++i)
        REQUIRE((seen_of(failing[i], true) == seen_of(apart[i], true)));
    }
  }
#else
  EPISODIC_SKIP("a device that refuses launches is emulated");
#endif
}

/// Three sequences that make steps together, and the same ones alone. One of them has a fault.
class Faulty {
 public:
  static constexpr std::int64_t kTokens = 200;

  Faulty(const TempDir& dir, Fault fault, std::size_t bad, std::size_t n)
      : fault_(fault), bad_(bad), n_(n) {
    const bool in_files = fault == Fault::unreadable || fault == Fault::cannot_be_kept;
    const std::int64_t before = in_files ? 80 : 10;  // tokens
    for (std::vector<DeviceDecoder>* const models : {&together_, &alone_}) {
      models->push_back(DeviceDecoder::load(dir.path()));
      while (models->size() < 3) models->push_back((*models)[0].share_weights());
    }
    for (std::size_t i = 0; i < 3; ++i) {
      has_memory_[i] = i == bad ? fault != Fault::no_full_room : i != (bad + 1) % 3;
      const bool is_short = i == bad && (fault == Fault::no_room || fault == Fault::no_full_room);
      const std::int64_t room = is_short ? before + 3 * static_cast<std::int64_t>(n) : kTokens;
      attach(alone_[i], i, small_config(), room);
      if (i != bad || fault != Fault::no_attention)
        attach(together_[i], i,
               i == bad && in_files ? over_files(dir, files_, room) : small_config(), room);
    }
    // Alone, so that also cuBLAS adds in one order up to here.
    for (std::int64_t at = 0; at < before; at += 10)
      for (std::size_t i = 0; i < 3; ++i) {
        const Ids ids = random_ids(10, ++seed_);
        if (has_attention(i)) together_[i].step(ids);
        alone_[i].step(ids);
      }
    if (fault != Fault::no_attention)
      for (int round = 0; round < 3; ++round) REQUIRE(steps(sound()).empty());
  }

  /// A step with the fault. \return the message, empty if the step was made
  std::string faulty_step() {
    std::vector<Ids> ids = sound();
    Ids& of_bad = ids[bad_];
    if (fault_ == Fault::unknown_id) of_bad.back() = 61;
    if (fault_ == Fault::too_long) of_bad = random_ids(11, 5);
    if (fault_ == Fault::no_tokens) of_bad.clear();
    if (fault_ == Fault::hook)
      together_[bad_].set_keys_hook([](std::int64_t layer, std::span<const float>) {
        if (layer == 1) throw FileError("no room for these keys");
      });
    std::optional<FullFiles> full;
    if (fault_ == Fault::cannot_be_kept) full.emplace();
    if (fault_ == Fault::unreadable) damage(files_.path());
    const std::string message = steps(ids);
    if (fault_ == Fault::unreadable) damage(files_.path());  // whole again
    together_[bad_].set_keys_hook({});
    return message;
  }

  /// A step without it. \return as faulty_step
  std::string sound_step() { return steps(sound()); }

 private:
  void attach(DeviceDecoder& model, std::size_t i, const MemoryConfig& config,
              std::int64_t max_tokens) const {
    if (has_memory_[i])
      model.attach_memory(config, max_tokens);
    else
      model.attend_fully(max_tokens, 10);
  }
  bool has_attention(std::size_t i) const { return i != bad_ || fault_ != Fault::no_attention; }
  std::vector<Ids> sound() {
    std::vector<Ids> ids;
    for (std::size_t i = 0; i < 3; ++i)
      ids.push_back(random_ids(static_cast<std::int64_t>(n_), ++seed_));
    return ids;
  }
  void same(std::size_t i) {
    const Seen got = seen_of(together_[i], has_memory_[i]),
               expected = seen_of(alone_[i], has_memory_[i]);
    REQUIRE((got.events == expected.events));
    REQUIRE(got.recalled == expected.recalled);
    if (kExact || n_ == 1) REQUIRE((got == expected));
    for (std::size_t c = 0; c < got.logits.size(); ++c)
      REQUIRE(std::abs(got.logits[c] - expected.logits[c]) < 1e-4f);
  }
  std::string steps(const std::vector<Ids>& ids) {
    std::vector<DeviceDecoder::SequenceStep> batch;
    for (std::size_t i = 0; i < 3; ++i) batch.push_back({&together_[i], ids[i]});
    std::optional<Seen> before;
    if (has_attention(bad_)) before = seen_of(together_[bad_], has_memory_[bad_]);
    const std::int64_t tokens = together_[bad_].tokens();
    const std::vector<std::exception_ptr> failures = DeviceDecoder::try_step_batch(batch);
    REQUIRE(failures.size() == 3);
    std::string message;
    for (std::size_t i = 0; i < 3; ++i) {
      INFO("sequence " << i);
      if (failures[i]) {
        REQUIRE(i == bad_);
        message = refusal<Error>([&] { std::rethrow_exception(failures[i]); });
        REQUIRE(together_[i].tokens() == tokens);
        if (before) REQUIRE((seen_of(together_[i], has_memory_[i]) == *before));
        continue;
      }
      alone_[i].step(ids[i]);
      REQUIRE(together_[i].tokens() == alone_[i].tokens());
      same(i);
    }
    return message;
  }

  Fault fault_;
  std::size_t bad_, n_;
  unsigned seed_ = 100;
  TempDir files_;
  bool has_memory_[3] = {};
  std::vector<DeviceDecoder> together_, alone_;
};

TEST_CASE("a sequence of a batch that cannot make its step fails alone, whatever its place") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  TinyLlama(shape_of(TensorType::f32), 7).write(dir.path());
  const struct {
    Fault fault;
    const char* said;
  } faults[] = {{Fault::unknown_id, "= 61 is not in the vocabulary"},
                {Fault::too_long, "11 tokens, must be in [1, chunk = 10]"},
                {Fault::no_tokens, "0 tokens, must be in [1, chunk = 10]"},
                {Fault::no_attention, "no memory yet"},
                {Fault::no_room, "room for max_tokens"},
                {Fault::no_full_room, "room for max_tokens"},
                {Fault::unreadable, "holds no block"},
                {Fault::cannot_be_kept, ""},
                {Fault::hook, "no room for these keys"}};
  for (const auto& [fault, said] : faults)
    for (const std::size_t bad : episodic_test::in_turn(std::vector<std::size_t>{0, 1, 2},
                                                        static_cast<std::size_t>(fault))) {
      const std::size_t n = bad == 1 ? 9 : 1;
      INFO("fault " << static_cast<int>(fault) << ", " << n << " tokens, place " << bad);
      Faulty three(dir, fault, bad, n);
      // Files are not needed in every step.
      std::string message;
      for (int round = 0; round < 8 && message.empty(); ++round) message = three.faulty_step();
      INFO(message);
      REQUIRE(!message.empty());
      REQUIRE(mentions(message, said));
      const bool stays =
          fault == Fault::no_attention || fault == Fault::no_room || fault == Fault::no_full_room;
      REQUIRE(three.sound_step().empty() != stays);
    }
}

}  // namespace device_batch_test
