// SPDX-License-Identifier: Apache-2.0
// Layers that carry a state in place of attention (LFM2's short convolutions, the delta rule of
// Qwen3.5, Granite 4's Mamba2): the state in steps, batches, snapshots, forks, shares, kept
// memories and rewinds.

#include "episodic/model/recurrent_state.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/run.hpp"
#include "expected_logits.hpp"
#include "model/short_convolution.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace recurrent_state_test {

using Ids = std::vector<std::int64_t>;
using Numbers = std::vector<float>;

/// One family of each kind.
constexpr const char* kHybrids[] = {"lfm2", "qwen3_5", "granite4", "qwen3_5_moe"};

/// Beyond the memory's window, so that there are events.
Ids long_text() {
  const Ids some = ExpectedLogits(family_checkpoint("lfm2")).ids;
  Ids text;
  for (int i = 0; i < 5; ++i) text.insert(text.end(), some.begin(), some.end());
  return text;  // 200 tokens
}

MemoryConfig small_memory() {
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = 32;
  config.n_mem = 32;
  config.chunk = 16;
  config.min_block = 4;
  config.max_block = 16;
  return config;
}

Numbers copy_of(std::span<const float> numbers) { return {numbers.begin(), numbers.end()}; }

Numbers last_row(const LogitsView& logits) { return copy_of(logits.row(logits.rows - 1)); }

Ids greedy(Engine& engine, std::size_t n) {
  Ids ids;
  while (ids.size() < n) {
    const std::span<const float> row = engine.logits();
    ids.push_back(std::max_element(row.begin(), row.end()) - row.begin());
    engine.step({&ids.back(), 1}, StepKind::decode);
  }
  return ids;
}

Numbers read(Engine& engine, std::span<const std::int64_t> ids) {
  engine.read(ids);
  return copy_of(engine.logits());
}

/// Each of them with full attention, and with a memory.
std::vector<std::pair<const char*, bool>> kinds() {
  std::vector<std::pair<const char*, bool>> all;
  for (const char* name : kHybrids)
    for (const bool memory : {false, true}) all.emplace_back(name, memory);
  return all;
}

/// A slot that fails once.
class FailingSlot final : public AttentionSlot {
 public:
  explicit FailingSlot(std::shared_ptr<AttentionSlot> slot) : slot_(std::move(slot)) {}
  void forward(const TensorView& q, const TensorView& k, const TensorView& v,
               const MutableTensorView& out) override {
    if (fails) throw FileError("a file that cannot be read");
    slot_->forward(q, k, v, out);
  }
  bool fails = true;

 private:
  std::shared_ptr<AttentionSlot> slot_;
};

std::shared_ptr<FailingSlot> fail_in_layer(Decoder& model, std::int64_t layer) {
  auto slot = std::make_shared<FailingSlot>(model.attention(layer));
  model.attention(layer) = slot;
  return slot;
}

// -- the convolution ------------------------------------------------------------------------------

struct Convolution {
  std::int64_t width = 0, n = 0;
  ShortConvolution of;
  Numbers rows;  // [n, 3 * width]

  Convolution(std::int64_t width_, std::int64_t taps, bool bias, std::int64_t n_)
      : width(width_), n(n_) {
    std::mt19937 random(static_cast<unsigned>(width * 31 + taps));
    std::normal_distribution<float> normal;
    const auto draw = [&](std::int64_t count) {
      Numbers x(static_cast<std::size_t>(count));
      for (float& v : x) v = normal(random);
      return x;
    };
    of.in.out = 3 * width;
    of.taps = taps;
    of.tap = draw(taps * width);
    if (bias) of.bias = draw(width);
    rows = draw(n * 3 * width);
  }

  /// In steps of these many tokens.
  Numbers computed(std::int64_t piece) const {
    Numbers state(static_cast<std::size_t>((of.taps - 1) * width)), after = state;
    Numbers y(static_cast<std::size_t>(n * width));
    for (std::int64_t at = 0; at < n; at += piece) {
      const std::int64_t count = std::min(piece, n - at);
      Numbers part(rows.begin() + at * 3 * width, rows.begin() + (at + count) * 3 * width);
      short_convolution(of, count, part.data(), state, after, y.data() + at * width);
      state.swap(after);
    }
    return y;
  }
};

TEST_CASE("short convolution: what its formula says, to the bit in pieces of any size") {
  for (const std::int64_t taps : {1, 2, 3, 7})
    for (const std::int64_t width : {1, 24, 37}) {
      const Convolution c(width, taps, taps != 3, 41);
      INFO(taps << " taps, " << width << " wide");
      const Numbers whole = c.computed(c.n);
      for (std::int64_t t = 0; t < c.n; ++t)
        for (std::int64_t ch = 0; ch < width; ++ch) {
          double sum = c.of.bias.empty() ? 0.0 : c.of.bias[static_cast<std::size_t>(ch)];
          for (std::int64_t i = 0; i < taps; ++i) {
            const std::int64_t from = t - taps + 1 + i;
            if (from < 0) continue;
            const float* row = c.rows.data() + from * 3 * width;
            sum += static_cast<double>(c.of.tap[static_cast<std::size_t>(i * width + ch)]) *
                   row[ch] * row[2 * width + ch];
          }
          const double y = sum * c.rows[static_cast<std::size_t>((3 * t + 1) * width + ch)];
          const float got = whole[static_cast<std::size_t>(t * width + ch)];
          REQUIRE(std::abs(got - y) <= 1e-5 * (1 + std::abs(y)));
        }
      for (const std::int64_t piece : {1, 2, 3, 17}) REQUIRE(c.computed(piece) == whole);
    }
}

// -- the value ------------------------------------------------------------------------------------

TEST_CASE("recurrent state: what is saved comes back, and damage does not") {
  const ModelConfig config = load_model_config(family_checkpoint("lfm2"));
  RecurrentState state(config);
  REQUIRE(!state.empty());
  REQUIRE(state.bytes() == 2 * 2 * 24 * 4);  // two layers, two tokens of 24 channels
  for (const std::int64_t layer : {0, 2}) {
    const std::span<float> next = state.next(layer);
    for (std::size_t i = 0; i < next.size(); ++i)
      next[i] = static_cast<float>(layer) + static_cast<float>(i);
  }
  REQUIRE(state.now(2)[1] == 0.0f);  // the step does not count yet
  state.commit();
  REQUIRE(state.now(2)[1] == 3.0f);
  REQUIRE_THROWS_AS(state.now(1), DataError);

  ByteWriter writer;
  state.save(writer);
  const std::vector<std::byte> bytes = writer.take();
  const auto load = [](RecurrentState& to, std::span<const std::byte> from) {
    ByteReader reader(from, "beside the memory");
    to.load(reader);
    reader.finish();
  };
  RecurrentState other(config);
  load(other, bytes);
  REQUIRE(copy_of(other.now(0)) == copy_of(state.now(0)));
  REQUIRE(copy_of(other.now(2)) == copy_of(state.now(2)));

  RecurrentState untouched(config);
  for (std::size_t at = 0; at < bytes.size(); ++at) {  // any bit, and any end
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    REQUIRE_THROWS_AS(load(untouched, damaged), FileError);
    REQUIRE_THROWS_AS(load(untouched, std::span(bytes).first(at)), FileError);
  }
  for (const float x : untouched.now(2)) REQUIRE(x == 0.0f);
  RecurrentState of_another(load_model_config(family_checkpoint("lfm2_biases")));
  REQUIRE(mentions(refusal<FileError>([&] { load(of_another, bytes); }), "elements, expected"));
  std::vector<std::byte> later = bytes;
  later[0] = std::byte{2};
  REQUIRE(mentions(refusal<FileError>([&] { load(untouched, later); }), "version 2"));
}

// -- steps ----------------------------------------------------------------------------------------

TEST_CASE("recurrent state: a step that fails behind a convolution leaves no trace") {
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  for (const auto& [name, memory] : kinds()) {
    INFO(name << (memory ? " with a memory" : " with full attention"));
    const auto made = [&, family = name, with_memory = memory] {
      Decoder model = Decoder::load(family_checkpoint(family));
      if (with_memory) patch(model, small_memory());
      for (std::size_t at = 0; at < 64; at += 16) model.step(ids.subspan(at, 16));
      return model;
    };
    Decoder undisturbed = made();
    const Numbers wanted = last_row(undisturbed.forward(ids.subspan(64, 5), LogitRows::last));
    Decoder model = made();
    // behind layers that carry a state
    const auto slot = fail_in_layer(model, model.config().memory_layers().back());
    for (const std::size_t n : {1, 7}) {
      REQUIRE(mentions(refusal<FileError>([&] { model.step(ids.subspan(100, n)); }), "read"));
      REQUIRE(model.tokens() == 64);
    }
    slot->fails = false;
    REQUIRE(last_row(model.forward(ids.subspan(64, 5), LogitRows::last)) == wanted);
  }
}

TEST_CASE("recurrent state: sequences of a batch have their own, to the bit, whoever fails") {
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  const std::vector<std::size_t> lengths{1, 9, 3, 16};
  const auto start = [&](std::size_t i, const Decoder& of) {
    Decoder model = of.share_weights();
    if (i % 2 == 1) patch(model, small_memory());
    for (std::size_t at = 0; at < 48; at += 16) model.step(ids.subspan(10 * i + at, 16));
    return model;
  };
  for (const char* name : {"lfm2_biases", "qwen3_5_biases", "granite4"}) {
    INFO(name);
    const Decoder root = Decoder::load(family_checkpoint(name));
    std::vector<Numbers> alone;
    std::vector<Decoder> models;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      Decoder model = start(i, root);
      for (int round = 0; round < 3; ++round) model.step(ids.subspan(50 + 7 * i, lengths[i]));
      alone.push_back(copy_of(model.logits()));
      models.push_back(start(i, root));
    }
    const auto failing = fail_in_layer(models[2], 1);
    for (int round = 0; round < 3; ++round) {
      std::vector<Decoder::SequenceStep> batch;
      for (std::size_t i = 0; i < models.size(); ++i)
        batch.push_back({&models[i], ids.subspan(50 + 7 * i, lengths[i])});
      failing->fails = round == 1;
      const auto errors = Decoder::try_step_batch(batch);
      for (std::size_t i = 0; i < models.size(); ++i)
        REQUIRE((errors[i] != nullptr) == (round == 1 && i == 2));
    }
    failing->fails = false;
    models[2].step(ids.subspan(50 + 14, lengths[2]));  // the round that it missed
    for (std::size_t i = 0; i < models.size(); ++i) {
      INFO("sequence " << i);
      REQUIRE(copy_of(models[i].logits()) == alone[i]);
    }
  }
}

TEST_CASE("recurrent state: snapshots have it") {
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  for (const auto& [name, memory] : kinds()) {
    INFO(name);
    Decoder model = Decoder::load(family_checkpoint(name));
    if (memory) patch(model, small_memory());
    for (std::size_t at = 0; at < 64; at += 16) model.step(ids.subspan(at, 16));
    const auto snapshot = model.state()->snapshot();
    const Numbers wanted = last_row(model.forward(ids.subspan(64, 5), LogitRows::last));
    for (int round = 0; round < 2; ++round) {
      model.step(ids.subspan(130, 11));
      model.state()->restore(*snapshot);
      REQUIRE(last_row(model.forward(ids.subspan(64, 5), LogitRows::last)) == wanted);
    }
    model.reset();
    Decoder fresh = model.share_weights();
    if (memory) patch(fresh, small_memory());
    REQUIRE(last_row(model.forward(ids.first(9))) == last_row(fresh.forward(ids.first(9))));
  }
}

TEST_CASE("recurrent state: a question leaves nothing behind") {
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  const auto asked = load_engine(family_checkpoint("lfm2")),
             straight = load_engine(family_checkpoint("lfm2"));
  for (Engine* engine : {asked.get(), straight.get()}) {
    engine->attach(small_memory());
    read(*engine, ids.first(70));
  }
  GenerateOptions options;
  options.max_new = 6;
  const Ids answer = asked->ask(ids.subspan(120, 9), options).ids;
  REQUIRE(!answer.empty());
  REQUIRE(asked->ask(ids.subspan(120, 9), options).ids == answer);
  REQUIRE(copy_of(asked->logits()) == copy_of(straight->logits()));
  REQUIRE(read(*asked, ids.subspan(70, 21)) == read(*straight, ids.subspan(70, 21)));
}

TEST_CASE("recurrent state: forks go on from it, apart from each other") {
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  for (const auto& [name, memory] : kinds()) {
    INFO(name << (memory ? " with a memory" : " with full attention"));
    const auto model = load_model(family_checkpoint(name));
    const auto start = [&, with_memory = memory] {
      Sequence sequence(model);
      if (with_memory)
        sequence.attach(small_memory());
      else
        sequence.attach_full_attention();
      for (std::size_t at = 0; at < 96; at += 16)
        sequence.step(ids.subspan(at, 16), StepKind::prompt);
      return sequence;
    };
    const auto go_on = [&](Sequence& sequence, std::size_t from) {
      sequence.step(ids.subspan(from, 6), StepKind::prompt);
      return copy_of(sequence.logits());
    };
    Sequence a = start(), b = start();
    const Numbers wanted = go_on(a, 96), other = go_on(b, 120);
    REQUIRE(wanted != other);
    Sequence root = start();
    Sequence first = root.fork(), second = root.fork();
    REQUIRE(go_on(second, 120) == other);
    REQUIRE(go_on(first, 96) == wanted);
    REQUIRE(go_on(root, 96) == wanted);
    // of a fork that has gone on
    Sequence third = second.fork();
    REQUIRE(go_on(third, 10) == go_on(second, 10));
  }
}

TEST_CASE("recurrent state: a memory's own calls are followed, or refused") {
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  Decoder model = Decoder::load(family_checkpoint("lfm2"));
  const auto memory = patch(model, small_memory());
  model.step(ids.first(16));
  const Numbers wanted = last_row(model.forward(ids.subspan(16, 4), LogitRows::last));
  memory->reset();
  model.step(ids.first(16));
  REQUIRE(last_row(model.forward(ids.subspan(16, 4), LogitRows::last)) == wanted);
  const auto snapshot = memory->snapshot();
  model.step(ids.subspan(20, 4));
  memory->restore(*snapshot);
  REQUIRE(mentions(refusal<DataError>([&] { model.step(ids.subspan(20, 4)); }),
                   "snapshots of the model's state"));
  // another state of the caller's that keeps nothing for such layers
  struct Nothing final : SequenceState {
    void begin_step(std::span<const std::int64_t>, StepKind) override {}
    void end_step(std::span<const std::int64_t>, const LogitsView&) override {}
    bool wants_all_logits() const override { return false; }
    std::int64_t tokens() const override { return 0; }
    std::int64_t chunk() const override { return 16; }
    void reset() override {}
  };
  Decoder other = model.share_weights();
  REQUIRE(other.attention(0) == nullptr);
  REQUIRE(other.attention(1) != nullptr);
  other.state() = std::make_shared<Nothing>();
  REQUIRE(mentions(refusal<DataError>([&] { other.step(ids.first(2)); }), "without attention"));
}

TEST_CASE("recurrent state: numbers that are not finite are refused, and not kept") {
  Decoder model = Decoder::load(family_checkpoint("lfm2"));
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  model.step(ids.first(8));
  const auto snapshot = model.state()->snapshot();
  const Numbers wanted = last_row(model.forward(ids.subspan(8, 4), LogitRows::last));
  model.state()->restore(*snapshot);
  // of the first attention, behind which layer 2 convolves
  struct Broken final : AttentionSlot {
    void forward(const TensorView&, const TensorView&, const TensorView&,
                 const MutableTensorView& out) override {
      std::fill_n(static_cast<float*>(out.data), out.sizes.n * out.sizes.heads * out.sizes.dim,
                  std::nanf(""));
    }
  };
  const std::shared_ptr<AttentionSlot> slot = model.attention(1);
  model.attention(1) = std::make_shared<Broken>();
  REQUIRE(mentions(refusal<DataError>([&] { model.step(ids.subspan(8, 4)); }), "layer 2"));
  model.attention(1) = slot;
  REQUIRE(last_row(model.forward(ids.subspan(8, 4), LogitRows::last)) == wanted);
}

// -- kept memories --------------------------------------------------------------------------------

TEST_CASE("recurrent state: a kept memory has it, to the bit; rewinds start from kept states") {
  const std::filesystem::path dir = family_checkpoint(GENERATE("lfm2", "qwen3_5", "granite4"));
  const TempDir scratch;
  const Ids text = long_text();
  const std::span<const std::int64_t> ids(text);
  const std::size_t half = 112, third = 48;
  const auto whole = load_engine(dir);
  whole->attach(small_memory());
  read(*whole, ids.first(half));
  const Numbers wanted = read(*whole, ids.subspan(half));
  REQUIRE(whole->memory()->events().size() > 3);

  KeptFolder folder;
  folder.dir = scratch / "kept";
  {
    const auto engine = load_engine(dir);
    engine->attach(std::make_shared<EpisodicMemory>(create_memory(dir, folder, small_memory())));
    read(*engine, ids.first(third));
    engine->commit();
    read(*engine, ids.subspan(third, half - third));
    engine->commit();
    read(*engine, ids.subspan(half, 20));  // which nobody commits
  }
  const auto engine = load_engine(dir);
  SECTION("it goes on as if it had never been closed") {
    REQUIRE(engine->attach(folder)->tokens() == static_cast<std::int64_t>(half));
    REQUIRE(read(*engine, ids.subspan(half)) == wanted);
  }
  SECTION("rewinds go to any token, by the newest state before it") {
    engine->attach(folder);
    engine->rewind(static_cast<std::int64_t>(third));
    read(*engine, ids.subspan(third, half - third));
    REQUIRE(read(*engine, ids.subspan(half)) == wanted);
    // between two states: read again from the earlier one, in the steps that this one makes
    const auto straight = load_engine(dir);
    straight->attach(small_memory());
    for (const auto& [first, end] : {std::pair{std::size_t{0}, third}, {third, 61}, {61, half}})
      read(*straight, ids.subspan(first, end - first));
    const Numbers behind = read(*straight, ids.subspan(half));
    engine->rewind(61);
    read(*engine, ids.subspan(61, half - 61));
    REQUIRE(read(*engine, ids.subspan(half)) == behind);
  }
  SECTION("what is forgotten is recalled no more; the state stays") {
    const auto memory = engine->attach(folder);
    engine->forget(EventId{1});
    engine->commit();
    const Numbers without = read(*engine, ids.subspan(half));
    const auto again = load_engine(dir);
    KeptFolder reading = folder;
    reading.mode = OpenMode::read;
    again->attach(reading);
    REQUIRE(read(*again, ids.subspan(half)) == without);
  }
  SECTION("many go on from one base") {
    const std::shared_ptr<const MemoryBase> base = engine->attach(folder)->share();
    REQUIRE(read(*engine, ids.subspan(half)) == wanted);
    for (int i = 0; i < 2; ++i) {
      const auto other = load_engine(dir);
      other->attach(std::make_shared<EpisodicMemory>(base));
      REQUIRE(read(*other, ids.subspan(half)) == wanted);
    }
  }
  SECTION("a memory that was stepped without its model is not committed") {
    EpisodicMemory memory = open_memory(dir, folder);
    const Numbers zeros(static_cast<std::size_t>(memory.shape().n_heads * memory.shape().head_dim));
    Numbers out(zeros.size());
    memory.begin_step(1);
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)
      memory.attend(l, zeros.data(), zeros.data(), zeros.data(), out.data());
    const float surprise = 0.0f;
    memory.end_step(&surprise);
    REQUIRE(mentions(refusal<DataError>([&] { memory.commit(); }), "recurrent states"));
  }
  SECTION("another model is refused") {
    const auto other = load_engine(family_checkpoint("lfm2_biases"));
    REQUIRE_THROWS_AS(other->attach(folder), ConfigError);
  }
  SECTION("a damaged state file is refused") {
    std::filesystem::path state;
    for (const auto& entry : std::filesystem::directory_iterator(folder.dir))
      if (entry.path().filename().string().starts_with("state-") &&
          (state.empty() || entry.path() > state))
        state = entry.path();
    std::fstream file(state, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-40, std::ios::end);  // of the last convolution
    file.put('\x5a');
    file.close();
    REQUIRE_THROWS_AS(engine->attach(folder), FileError);
  }
}

// -- another process ------------------------------------------------------------------------------

constexpr const char* kOtherProcess = "a process that is killed while it writes";
constexpr std::size_t kRead = 100, kWritten = 12;

/// Reads, writes some tokens, commits, and is killed while it writes more.
TEST_CASE("a process that is killed while it writes", "[.]") {
  const char *dir = std::getenv("EPISODIC_RECURRENT_TEST_DIR"),
             *name = std::getenv("EPISODIC_RECURRENT_TEST_FAMILY");
  REQUIRE(dir != nullptr);
  REQUIRE(name != nullptr);
  KeptFolder folder;
  folder.dir = dir;
  const auto engine = load_engine(family_checkpoint(name));
  engine->attach(std::make_shared<EpisodicMemory>(
      create_memory(family_checkpoint(name), folder, small_memory())));
  const Ids text = long_text();
  read(*engine, std::span(text).first(kRead));
  greedy(*engine, kWritten);
  engine->commit();
  greedy(*engine, 5);
  ::kill(::getpid(), SIGKILL);
}

TEST_CASE("recurrent state: a conversation with a hybrid model survives a killed process",
          "[proof]") {
  const char* const family = GENERATE("lfm2", "qwen3_5", "granite4");
  INFO(family);
  const Ids text = long_text();
  const auto whole = load_engine(family_checkpoint(family));
  whole->attach(small_memory());
  read(*whole, std::span(text).first(kRead));
  const Ids before = greedy(*whole, kWritten), wanted = greedy(*whole, 40);

  const TempDir scratch;
  const std::string dir = (scratch / "talk").string();
  REQUIRE(::setenv("EPISODIC_RECURRENT_TEST_DIR", dir.c_str(), 1) == 0);
  REQUIRE(::setenv("EPISODIC_RECURRENT_TEST_FAMILY", family, 1) == 0);
  std::string program = "test_model", name = kOtherProcess;
  char* arguments[] = {program.data(), name.data(), nullptr};
  pid_t child = -1;
  const int spawned = ::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ);
  ::unsetenv("EPISODIC_RECURRENT_TEST_DIR");
  ::unsetenv("EPISODIC_RECURRENT_TEST_FAMILY");
  REQUIRE(spawned == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);

  KeptFolder folder;
  folder.dir = dir;
  const auto engine = load_engine(family_checkpoint(family));
  const auto memory = engine->attach(folder);
  REQUIRE(memory->tokens() == static_cast<std::int64_t>(kRead + kWritten));
  const Ids known = engine->known_ids();
  REQUIRE(Ids(known.end() - static_cast<std::ptrdiff_t>(kWritten), known.end()) == before);
  REQUIRE(greedy(*engine, 40) == wanted);
}

}  // namespace recurrent_state_test
