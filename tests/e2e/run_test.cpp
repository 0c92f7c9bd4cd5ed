// SPDX-License-Identifier: Apache-2.0
// Many sequences of one model in one step: each is what it is alone, whatever the others do.
#include "small_memory.hpp"
#include "support/model.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/run.hpp"

using namespace episodic;

namespace run_test {

using Ids = std::vector<std::int64_t>;

Ids some_ids(const Model& model, std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Ids ids(n);
  for (std::int64_t& id : ids)
    id = static_cast<std::int64_t>(random() % static_cast<unsigned>(model.config().vocab_size));
  return ids;
}

/// A generation of the test, and all logits that it met.
struct Talk {
  Sequence sequence;
  Generation answer;
  std::vector<float> logits;
  std::string error;
  int steps = 0;
};

/// What the i-th is like: prompts of different lengths, with a memory or full attention, greedy or
/// drawn.
Talk make_talk(const std::shared_ptr<const Model>& model, int i) {
  GenerateOptions options;
  options.max_new = 4 + i % 9;
  options.ignore_eos = true;
  if (i % 3 == 0) options.sampling.temperature = 0.8;
  if (i % 5 == 0) options.sampling.repetition_penalty = 1.2;
  options.sampling.seed = static_cast<std::uint64_t>(i);
  const auto length = static_cast<std::size_t>(i % 7 == 0 ? 1 + i % 3 : 20 + 37 * i % 171);
  Talk talk{Sequence(model),
            model->generation(some_ids(*model, length, static_cast<unsigned>(i)), options),
            {},
            {}};
  if (i % 4 == 3)
    talk.sequence.attach_full_attention();
  else
    talk.sequence.attach(small_memory());
  return talk;
}

constexpr int kTalks = 64, kCancelled = 12, kFailing = 21;

/// Cancelled in its second step, while it reads; failing in its third.
void prepare(Talk& talk, int i) {
  if (i == kFailing)
    talk.sequence.set_keys_hook([&talk](std::int64_t layer, std::span<const float>) {
      if (talk.steps == 2 && layer == 1) throw FileError("planted: a file that cannot be read");
    });
}

void take(Talk& talk, const Generation::Input& input, int i, std::span<const float> logits) {
  if (input.wants_logits) talk.logits.insert(talk.logits.end(), logits.begin(), logits.end());
  talk.answer.accept(logits);
  if (++talk.steps == 2 && i == kCancelled) talk.answer.cancel();
}

void run_alone(Talk& talk, int i) {
  prepare(talk, i);
  while (!talk.answer.done()) {
    const Generation::Input input = talk.answer.next_input(talk.sequence.chunk());
    try {
      talk.sequence.step(input.ids, input.kind);
    } catch (const Error& e) {
      talk.error = e.what();
      return;
    }
    take(talk, input, i, input.wants_logits ? talk.sequence.logits() : std::span<const float>());
  }
}

/// Those that are not done make steps together.
void run_together(const Model& model, std::vector<std::unique_ptr<Talk>>& talks) {
  for (int i = 0; i < static_cast<int>(talks.size()); ++i)
    prepare(*talks[static_cast<std::size_t>(i)], i);
  for (;;) {
    std::vector<SequenceInput> inputs;
    std::vector<int> open;
    std::vector<Generation::Input> read;
    for (int i = 0; i < static_cast<int>(talks.size()); ++i) {
      Talk& talk = *talks[static_cast<std::size_t>(i)];
      if (talk.answer.done() || !talk.error.empty()) continue;
      read.push_back(talk.answer.next_input(talk.sequence.chunk()));
      inputs.emplace_back(&talk.sequence, read.back());
      open.push_back(i);
    }
    if (inputs.empty()) return;
    const std::vector<StepResult> results = run(model, inputs);
    if (results.size() != inputs.size()) throw Error("run: a result for each input");
    for (std::size_t s = 0; s < open.size(); ++s) {
      Talk& talk = *talks[static_cast<std::size_t>(open[s])];
      talk.error = results[s].message();
      if (results[s]) take(talk, read[s], open[s], results[s].logits);
    }
  }
}

TEST_CASE(
    "run: 64 generations, one cancelled while reading, one failing, give the bits of each alone",
    "[e2e][run]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto model = load_model(shipped_model_dir());
  std::vector<std::unique_ptr<Talk>> together;
  for (int i = 0; i < kTalks; ++i) together.push_back(std::make_unique<Talk>(make_talk(model, i)));
  run_together(*model, together);
  for (int i = 0; i < kTalks; ++i) {
    INFO("generation " << i);
    Talk alone = make_talk(model, i);
    run_alone(alone, i);
    const Talk& talk = *together[static_cast<std::size_t>(i)];
    CHECK(talk.error == alone.error);
    CHECK((talk.error.empty() == (i != kFailing)));
    CHECK(talk.answer.result().ids == alone.answer.result().ids);
    CHECK((talk.answer.result().finish == alone.answer.result().finish));
    CHECK(talk.sequence.tokens() == alone.sequence.tokens());
    CHECK(talk.logits.size() == alone.logits.size());
    CHECK((talk.logits == alone.logits));
    if (talk.sequence.has_memory())
      CHECK((talk.sequence.events().all() == alone.sequence.events().all()));
    if (i == kCancelled) {
      CHECK((talk.answer.result().finish == FinishReason::cancelled));
      CHECK(talk.answer.prompt_read() < talk.answer.prompt_tokens());
    } else if (i != kFailing) {
      CHECK(talk.answer.done());
      CHECK(talk.answer.result().ids.size() == static_cast<std::size_t>(4 + i % 9));
    }
  }
}

TEST_CASE("run: what is wrong with one input leaves the others alone", "[e2e][run]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto model = load_model(shipped_model_dir()), other = load_model(shipped_model_dir());
  const Ids good = some_ids(*model, 20, 1), wrong = {3, model->config().vocab_size}, none;
  const Ids long_ids = some_ids(*model, 33, 2);
  const auto fresh = [&](const std::shared_ptr<const Model>& of) {
    Sequence s(of);
    s.attach(small_memory());
    return s;
  };
  Sequence a = fresh(model), b = fresh(model), stranger = fresh(other), c = fresh(model),
           d = fresh(model), e = fresh(model), last = fresh(model);
  const std::vector<SequenceInput> inputs{
      {&a, good, StepKind::prompt},        {nullptr, good, StepKind::prompt},
      {&b, wrong, StepKind::prompt},       {&a, good, StepKind::prompt},
      {&stranger, good, StepKind::prompt}, {&c, none, StepKind::prompt},
      {&d, long_ids, StepKind::prompt},    {&e, good, StepKind::prompt, false},
      {&last, good, StepKind::prompt}};
  const std::vector<StepResult> results = run(*model, inputs);
  REQUIRE(results.size() == inputs.size());
  Sequence alone = fresh(model);
  alone.step(good, StepKind::prompt);
  const std::vector<float> expected(alone.logits().begin(), alone.logits().end());
  for (const std::size_t i : {std::size_t{0}, std::size_t{8}}) {
    INFO("input " << i << ": " << results[i].message());
    REQUIRE(results[i]);
    CHECK(std::equal(expected.begin(), expected.end(), results[i].logits.begin(),
                     results[i].logits.end()));
  }
  CHECK(results[7]);
  CHECK(results[7].logits.empty());
  CHECK(e.tokens() == 20);
  const char* says[] = {"",
                        "names no sequence",
                        "is not in the vocabulary",
                        "input 0 names the same sequence",
                        "of another model",
                        "no tokens",
                        "chunk"};
  for (std::size_t i = 1; i < 7; ++i) {
    INFO("input " << i << ": " << results[i].message());
    CHECK(!results[i]);
    CHECK(results[i].logits.empty());
    CHECK(results[i].message().find(says[i]) != std::string::npos);
    CHECK_THROWS_AS(results[i].require(), DataError);
  }
  CHECK(a.tokens() == 20);
  for (const Sequence* s : {&b, &stranger, &c, &d}) CHECK(s->tokens() == 0);
  // whoever failed goes on
  b.step(good, StepKind::prompt);
  CHECK(std::equal(expected.begin(), expected.end(), b.logits().begin(), b.logits().end()));
  CHECK(run(*model, {}).empty());
}

TEST_CASE("run: a sequence whose step failed is not left within it", "[e2e][run]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto model = load_model(shipped_model_dir());
  const Ids ids = some_ids(*model, 192, 1);
  const auto chunk = [&](std::size_t at) { return std::span(ids).subspan(at, 32); };
  Sequence failing(model), good(model), apart(model);
  for (Sequence* s : {&failing, &good, &apart}) {
    s->attach(small_memory());
    for (std::size_t at = 0; at < 128; at += 32) s->step(chunk(at), StepKind::prompt);
    REQUIRE(s->n_events() > 1);
  }
  failing.set_keys_hook([](std::int64_t layer, std::span<const float>) {
    if (layer == 1) throw DataError("the hook said no");
  });
  const std::vector<SequenceInput> inputs{{&failing, chunk(128), StepKind::prompt},
                                          {&good, chunk(128), StepKind::prompt}};
  const std::vector<StepResult> results = run(*model, inputs);
  CHECK(results[0].message().find("the hook said no") != std::string::npos);
  CHECK(results[1]);
  CHECK(failing.memory()->open_tokens() == 0);
  for (Sequence* s : {&failing, &apart}) s->forget(EventId{0});
  failing.set_keys_hook({});
  for (Sequence* s : {&failing, &apart})
    for (std::size_t at = 128; at < 192; at += 32) s->step(chunk(at), StepKind::prompt);
  CHECK(std::equal(apart.logits().begin(), apart.logits().end(), failing.logits().begin(),
                   failing.logits().end()));
}

TEST_CASE("run: threads that share a model, each with sequences of its own", "[e2e][run]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto model = load_model(shipped_model_dir());
  constexpr int kThreads = 4, kEach = 3;
  std::vector<std::vector<std::unique_ptr<Talk>>> talks(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    for (int i = 0; i < kEach; ++i)  // made here, used there
      talks[static_cast<std::size_t>(t)].push_back(
          std::make_unique<Talk>(make_talk(model, kEach * t + i)));
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] { run_together(*model, talks[static_cast<std::size_t>(t)]); });
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t)
    for (int i = 0; i < kEach; ++i) {
      Talk alone = make_talk(model, kEach * t + i);
      run_alone(alone, i);  // places in the batch, as run_together counts them
      CHECK(talks[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)]->answer.result().ids ==
            alone.answer.result().ids);
    }
}

TEST_CASE("sequence: a fork goes on apart from what it was forked from", "[e2e][run]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto model = load_model(shipped_model_dir());
  const Ids text = some_ids(*model, 300, 5);
  const auto read = [](Sequence& s, std::span<const std::int64_t> ids) {
    for (std::size_t at = 0; at < ids.size(); at += 32)
      s.step(ids.subspan(at, std::min<std::size_t>(32, ids.size() - at)), StepKind::prompt);
  };
  const auto logits = [](Sequence& s) {
    return std::vector<float>(s.logits().begin(), s.logits().end());
  };
  for (const bool full : {false, true}) {
    INFO("full attention: " << full);
    const auto fresh = [&] {
      Sequence s(model);
      full ? s.attach_full_attention() : s.attach(small_memory());
      return s;
    };
    Sequence first = fresh();
    read(first, text);
    Sequence second = first.fork();
    CHECK(second.tokens() == 300);
    CHECK(logits(second) == logits(first));
    Sequence third = second.fork(), fourth = first.fork();  // of a fork, and of the same once more
    const Ids tails[] = {some_ids(*model, 70, 6), some_ids(*model, 41, 7), some_ids(*model, 90, 8),
                         some_ids(*model, 5, 9)};
    Sequence* of[] = {&first, &second, &third, &fourth};
    for (int i = 0; i < 4; ++i) read(*of[i], tails[i]);
    for (int i = 0; i < 4; ++i) {
      INFO("fork " << i);
      Sequence whole = fresh();
      read(whole, text);
      read(whole, tails[i]);
      CHECK(of[i]->tokens() == whole.tokens());
      CHECK(logits(*of[i]) == logits(whole));
      CHECK(of[i]->known_ids() == whole.known_ids());
      if (!full) CHECK((of[i]->events().all() == whole.events().all()));
    }
    Sequence moved = std::move(third);
    std::vector<float> there;
    std::thread([&, s = std::move(moved)]() mutable {
      s.step(std::span(text).first(10), StepKind::prompt);
      there = logits(s);
    }).join();
    read(fourth, std::span(text).first(3));
    Sequence whole = fresh();
    read(whole, text);
    read(whole, tails[2]);
    whole.step(std::span(text).first(10), StepKind::prompt);
    CHECK(there == logits(whole));
  }
}

TEST_CASE("sequence: a memory that one folder keeps is not forked in memory", "[e2e][run]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto model = load_model(shipped_model_dir());
  CHECK_THROWS_AS(Sequence(nullptr), ConfigError);
  MemoryConfig retaining = small_memory();
  retaining.retention.emplace();
  Sequence s(model);
  s.attach(retaining);
  s.step(some_ids(*model, 20, 3), StepKind::prompt);
  CHECK_THROWS_AS(s.fork(), ConfigError);
  s.step(some_ids(*model, 20, 4), StepKind::prompt);  // all as before
  CHECK(s.tokens() == 40);
}

}  // namespace run_test
