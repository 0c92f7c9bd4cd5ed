// SPDX-License-Identifier: Apache-2.0
// What engines promise, asked of the host's and of a device's alike.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "episodic/device/device_engine.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/run.hpp"
#include "episodic/timeline/surprise.hpp"
#include "kernels/device.hpp"
#include "model/tiny_llama.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

namespace device_engine_test {

using namespace episodic;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kVocab = 61;

void write_model(const TempDir& dir) {
  TinyShape shape;
  shape.dim = 16;
  shape.hidden = 40;
  shape.inner = 48;
  shape.type = TensorType::f32;
  TinyLlama(shape, 7).write(dir.path());
}

std::unique_ptr<Engine> load(const TempDir& dir, bool on_device) {
  return on_device ? load_device_engine(dir.path()) : load_engine(dir.path());
}

void attach(Engine& engine, bool memory) {
  if (!memory) return engine.attach_full_attention(100);
  engine.attach(
      parse_memory_config(
          R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2, "max_block": 6,
              "n_repr": 2})"),
      100);
}

Ids random_ids(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Ids ids(n);
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % unsigned{kVocab});
  return ids;
}

/// f(engine) of both kinds, with a memory and with full attention.
template <class F>
void of_all_engines(const F& f) {
  const TempDir dir;
  write_model(dir);
  for (const bool on_device : {false, true})
    for (const bool memory : {true, false}) {
      INFO((on_device ? "device" : "host") << (memory ? ", memory" : ", full attention"));
      const std::unique_ptr<Engine> engine = load(dir, on_device);
      attach(*engine, memory);
      f(*engine);
    }
}

TEST_CASE("engines: lengths that do not fit are refused before a step counts") {
  EPISODIC_NEEDS_DEVICE();
  of_all_engines([](Engine& engine) {
    const Ids ids{5, 6, 7, 8, 9, 10};
    const auto all = std::span(ids);
    const auto vocab = static_cast<std::size_t>(kVocab);
    for (const std::size_t n : {std::size_t{0}, vocab, 3 * vocab - 1, 3 * vocab + 1}) {
      std::vector<float> logits(n);
      CHECK(mentions(refusal<DataError>([&] { engine.step(all.first(3), logits); }),
                     "room for " + std::to_string(n) + " logits"));
    }
    const std::vector<float> untouched(ids.size(), -1.0f);
    std::vector<float> nll = untouched;
    const auto scored = [&](std::size_t first, std::size_t n, std::span<float> into) {
      return refusal<DataError>([&] { engine.score(all, first, n, into); });
    };
    CHECK(mentions(scored(0, 0, nll), "0 tokens from 0 on"));
    CHECK(mentions(scored(6, 0, nll), "0 tokens from 6 on"));
    CHECK(mentions(scored(6, 1, nll), "1 tokens from 6 on"));
    CHECK(mentions(scored(7, 1, nll), "1 tokens from 7 on"));
    CHECK(mentions(scored(2, 5, nll), "5 tokens from 2 on"));
    CHECK(mentions(scored(1, SIZE_MAX, nll), "none beyond"));
    CHECK(mentions(scored(SIZE_MAX, 2, nll), "none beyond"));
    CHECK(mentions(scored(0, 3, std::span(nll).first(4)), "room for 4"));
    CHECK(mentions(scored(0, 3, std::span(nll).first(0)), "room for 0"));
    for (const std::int64_t unknown : {std::int64_t{-1}, kVocab, INT64_MAX}) {
      // Read, or behind what is read: both are scored.
      const Ids wrong{5, 6, 7, unknown, 9, 10};
      for (const std::size_t n : {3u, 4u}) {
        const std::string said = refusal<DataError>([&] { engine.score(wrong, 0, n, nll); });
        CHECK(mentions(said, "ids[3] = " + std::to_string(unknown)));
        CHECK(mentions(said, "not in the vocabulary"));
      }
    }
    CHECK(engine.tokens() == 0);
    CHECK(nll == untouched);
    CHECK(scored(0, 4, nll) == "no error");
    CHECK(scored(4, 2, nll) == "no error");
    CHECK(engine.tokens() == 6);
    CHECK(nll[0] == 0.0f);
    for (std::size_t t = 1; t < nll.size(); ++t) CHECK(nll[t] >= 0.0f);
  });
}

TEST_CASE("engines: a score is of the tokens behind the step's first, the next one's too") {
  EPISODIC_NEEDS_DEVICE();
  of_all_engines([](Engine& engine) {
    // Windows that close events, so that a memory recalls.
    const Ids ids = random_ids(60, 3);
    std::vector<float> expected(ids.size(), 0.0f), logits(10 * std::size_t{kVocab});
    for (std::size_t at = 0; at < ids.size(); at += 10) {
      engine.step(std::span(ids).subspan(at, 10), logits);
      const std::size_t known = std::min<std::size_t>(10, ids.size() - at - 1);
      token_surprise(logits.data(), static_cast<std::int64_t>(known), kVocab, kVocab,
                     ids.data() + at + 1, expected.data() + at + 1);
    }
    const auto close = [&](const std::vector<float>& nll, std::size_t first, std::size_t end) {
      for (std::size_t t = first; t < end; ++t) {
        INFO("token " << t);
        REQUIRE(std::abs(nll[t] - expected[t]) < 1e-4f);
      }
    };
    const bool memory = engine.has_memory();
    attach(engine, memory);
    std::vector<float> nll(ids.size(), -1.0f);
    for (std::size_t at = 0; at < ids.size(); at += 10) {
      engine.score(ids, at, 10, nll);
      const std::size_t known = std::min(at + 11, ids.size());
      close(nll, 0, known);
      for (std::size_t t = known; t < ids.size(); ++t) REQUIRE(nll[t] == -1.0f);
    }
    // What the call does not know stays: the step's first token, unless it is that of ids, which
    // is 0 whatever was read before.
    attach(engine, memory);
    engine.step(std::span(ids).first(10));
    nll.assign(ids.size(), -1.0f);
    engine.score(ids, 10, 10, nll);
    for (std::size_t t = 0; t < ids.size(); ++t)
      if (t <= 10 || t > 20) REQUIRE(nll[t] == -1.0f);
    close(nll, 11, 21);
    nll.assign(ids.size(), -1.0f);
    engine.score(ids, 0, 1, nll);
    REQUIRE(nll[0] == 0.0f);
    REQUIRE(nll[1] >= 0.0f);
    REQUIRE(nll[2] == -1.0f);
  });
}

TEST_CASE("engines: forks go on as sequences that read all of it, also in one step") {
  EPISODIC_NEEDS_DEVICE();
  of_all_engines([](Engine& engine) {
    const bool memory = engine.has_memory();
    const Ids text = random_ids(60, 5), one = random_ids(20, 6), other = random_ids(20, 7);
    const auto read = [](Sequence& of, const Ids& ids) {
      for (std::size_t at = 0; at < ids.size(); at += 10)
        of.step(std::span(ids).subspan(at, 10), StepKind::prompt);
      return std::vector<float>(of.logits().begin(), of.logits().end());
    };
    std::vector<std::vector<float>> expected;
    for (const Ids* const behind : {&one, &other}) {
      attach(engine, memory);
      read(engine, text);
      expected.push_back(read(engine, *behind));
    }
    attach(engine, memory);
    read(engine, text);
    const std::shared_ptr<const Sequence::Snapshot> before =
        memory ? engine.snapshot() : nullptr;  // full attention has none
    Sequence fork = engine.fork();
    REQUIRE(fork.tokens() == 60);
    REQUIRE(read(fork, other) == expected[1]);
    REQUIRE(read(engine, one) == expected[0]);
    if (memory) REQUIRE_THROWS_AS(engine.restore(*before), ConfigError);

    attach(engine, memory);
    read(engine, text);
    Sequence first = engine.fork(), second = first.fork();
    for (std::size_t at = 0; at < 20; at += 10) {
      const SequenceInput inputs[] = {
          {&first, std::span(one).subspan(at, 10), StepKind::prompt},
          {&second, std::span(other).subspan(at, 10), StepKind::prompt}};
      for (const StepResult& result : run(engine.model(), inputs)) result.require();
    }
    Sequence* const together[] = {&first, &second};
    for (std::size_t i = 0; i < 2; ++i) {
      const std::span<const float> got = together[i]->logits();
      for (std::size_t v = 0; v < got.size(); ++v)
        REQUIRE(std::abs(got[v] - expected[i][v]) < 1e-4f);
    }
  });
}

TEST_CASE("engines: a step that failed leaves none open, so that edits and states go on") {
  EPISODIC_NEEDS_DEVICE();
  const Ids ids = random_ids(120, 5);
  const auto part = [&](std::size_t at, std::size_t n) { return std::span(ids).subspan(at, n); };
  const TempDir dir;
  write_model(dir);
  for (const bool on_device : {false, true}) {
    INFO((on_device ? "device" : "host"));
    const std::unique_ptr<Engine> failing = load(dir, on_device), apart = load(dir, on_device);
    for (Engine* engine : {failing.get(), apart.get()}) {
      attach(*engine, true);
      for (std::size_t at = 0; at < 60; at += 10) engine->step(part(at, 10));
      REQUIRE(engine->n_events() > 2);
    }
    std::size_t at = 60;
    for (const std::size_t n : {std::size_t{10}, std::size_t{1}}) {
      INFO(n << " tokens");
      failing->set_keys_hook([](std::int64_t layer, std::span<const float>) {
        if (layer == 1) throw DataError("the hook said no");
      });
      CHECK(refusal<DataError>([&] { failing->step(part(at, n)); }) == "the hook said no");
      std::vector<float> logits(n * std::size_t{kVocab});
      CHECK(refusal<DataError>([&] { failing->step(part(at, n), logits); }) == "the hook said no");
      CHECK(failing->memory()->open_tokens() == 0);
      CHECK(failing->tokens() == static_cast<std::int64_t>(at));
      const EventId event = n == 1 ? 1 : 0;
      for (Engine* engine : {failing.get(), apart.get()}) {
        CHECK(refusal([&] { engine->forget(event); }) == "no error");
        CHECK(refusal([&] { engine->snapshot(); }) == "no error");
      }
      failing->set_keys_hook({});
      for (Engine* engine : {failing.get(), apart.get()}) engine->step(part(at, n));
      at += n;
      CHECK(std::equal(apart->logits().begin(), apart->logits().end(), failing->logits().begin(),
                       failing->logits().end()));
    }
  }
}

#if defined(EPISODIC_EMULATED_CUDA)

TEST_CASE("engines: an ask on a device leaves the window where it is") {
  const TempDir dir;
  write_model(dir);
  const auto read = [&](Engine& engine) {
    engine.attach(
        parse_memory_config(
            R"({"n_init": 3, "n_local": 400, "tau": 32, "n_mem": 16, "chunk": 40, "min_block": 4,
                "max_block": 12, "n_repr": 2})"),
        800);
    engine.read(random_ids(560, 3));
  };
  const std::unique_ptr<Engine> engine = load(dir, true), other = load(dir, true);
  read(*engine);
  read(*other);
  GenerateOptions options;
  options.max_new = 8;
  const Ids question = random_ids(12, 4);
  const std::int64_t before = emulator::calls().link_bytes;
  const GenerateResult answer = engine->ask(question, options);
  REQUIRE(10 * (emulator::calls().link_bytes - before) < engine->usage().window_bytes);
  REQUIRE(engine->tokens() == 560);
  REQUIRE(answer.ids == other->generate(question, options).ids);
  // Asked again, the same, and longer than there is room for behind a snapshot.
  REQUIRE(engine->ask(question, options).ids == answer.ids);
  engine->ask(random_ids(150, 5), options);
  REQUIRE(engine->ask(question, options).ids == answer.ids);
}

#endif

}  // namespace device_engine_test
