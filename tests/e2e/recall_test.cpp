// SPDX-License-Identifier: Apache-2.0
// The shipped model through the whole library: what is hidden far behind the window is answered
// with the memory, and is not without it.

#include "support/model.hpp"
#include "support/test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/session.hpp"

#include <fstream>
#include <iterator>

using namespace episodic;

namespace {

struct Fact {
  std::string sentence, question, value;
};

/// Sentences of no consequence, the same for the same seed.
class Chatter {
 public:
  explicit Chatter(std::uint32_t seed) : generator_(seed) {}
  std::string sentence() {
    static const char* who[] = {"The old man", "My sister",  "A soldier",  "The doctor",
                                "His friend",  "The farmer", "Her mother", "The captain",
                                "A child",     "The judge"};
    static const char* did[] = {"walked slowly to", "looked at",   "spoke of", "remembered", "left",
                                "returned to",      "asked about", "wrote of", "dreamed of", "saw"};
    static const char* what[] = {"the river",      "the church", "a small house", "the garden",
                                 "the long road",  "the market", "the sea",       "the war",
                                 "the old bridge", "the forest"};
    static const char* when[] = {
        "in the evening", "before the rain", "that day",  "without a word",
        "after dinner",   "with great joy",  "once more", "as if nothing had happened"};
    return fmt::format("{} {} {} {}. ", who[pick(10)], did[pick(10)], what[pick(10)],
                       when[pick(8)]);
  }
  std::size_t pick(std::size_t n) { return generator_() % n; }

 private:
  std::mt19937 generator_;
};

std::vector<Fact> named_keys(Chatter& chatter) {
  std::vector<Fact> facts;
  for (const char* name :
       {"Alice", "Boris", "Carol", "Henry", "Natasha", "Oscar", "Rosa", "Walter"}) {
    const std::string key = fmt::format("{}", 10000 + chatter.pick(90000));
    facts.push_back(
        {fmt::format("The pass key of {} is {}. Remember it. {} is the pass key of {}.\n", name,
                     key, key, name),
         fmt::format("\n\nWhat is the pass key of {}?\n\nThe pass key of {} is", name, name), key});
  }
  return facts;
}

/// About n tokens with the facts spread over all depths.
std::vector<std::int64_t> context(const Tokenizer& tokenizer, const std::vector<Fact>& facts,
                                  std::int64_t n, Chatter& chatter) {
  std::vector<std::int64_t> ids{tokenizer.bos()};
  const auto add = [&](const std::string& text) {
    const auto more = tokenizer.encode(text, false);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (std::size_t f = 0; f < facts.size(); ++f) {
    const auto until =
        static_cast<std::int64_t>((static_cast<double>(f) + 0.5) * static_cast<double>(n) /
                                  static_cast<double>(facts.size()));
    while (static_cast<std::int64_t>(ids.size()) < until) add(chatter.sentence());
    add("\n" + facts[f].sentence);
  }
  while (static_cast<std::int64_t>(ids.size()) < n) add(chatter.sentence());
  return ids;
}

MemoryConfig model_memory() {
  std::ifstream in(shipped_model_dir() / "memory.json");
  return parse_memory_config(std::string(std::istreambuf_iterator<char>(in), {}));
}

struct Run {
  int right = 0;
  std::vector<std::int64_t> ids;  // all generated tokens
  std::vector<float> surprise;    // of the questions' last steps
  std::int64_t events = 0;
};

Run ask_all(const MemoryConfig& config, std::int64_t n_tokens, std::uint32_t seed) {
  Decoder model = Decoder::load(shipped_model_dir());
  const auto tokenizer = load_tokenizer(shipped_model_dir());
  const auto memory = patch(model, config);
  Chatter chatter(seed);
  const std::vector<Fact> facts = named_keys(chatter);
  const auto ids = context(*tokenizer, facts, n_tokens, chatter);
  Session session(model, tokenizer.get());
  session.prefill(ids);
  const auto read = memory->snapshot();
  Run run;
  run.events = memory->events().size();
  for (const Fact& fact : facts) {
    memory->restore(*read);
    GenerateOptions options;
    options.max_new = 10;
    const GenerateResult answer =
        session.generate(tokenizer->encode(fact.question, false), options);
    const std::size_t digit = answer.text.find_first_of("0123456789");
    run.right += digit != std::string::npos &&
                 answer.text.compare(digit, fact.value.size(), fact.value) == 0;
    run.ids.insert(run.ids.end(), answer.ids.begin(), answer.ids.end());
    const auto& s = memory->last_step().surprise;
    run.surprise.insert(run.surprise.end(), s.begin(), s.end());
  }
  return run;
}

}  // namespace

TEST_CASE("facts far behind the window are answered with the memory and not without", "[e2e]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  MemoryConfig config = model_memory();
  const Run with = ask_all(config, 8000, 1);
  CHECK(with.events > 200);
  CHECK(with.right == 8);
  config.recall = false;
  // The last of the eight facts lies 500 tokens from the end: outside the window too.
  CHECK(ask_all(config, 8000, 1).right == 0);
}

TEST_CASE("variants of the memory answer as well", "[e2e]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  MemoryConfig config = model_memory();
  SECTION("modularity and neighbours in bfloat16") {
    config.refine = Refinement::modularity;
    config.contiguity = 0.3;
    config.kv_dtype = DType::bfloat16;
    CHECK(ask_all(config, 6000, 2).right >= 7);
  }
  SECTION("conductance, chunked window") {
    config.refine = Refinement::conductance;
    config.window = ThresholdWindow::chunked;
    CHECK(ask_all(config, 6000, 3).right >= 6);
  }
  SECTION("approximate index") {
    config.index = IndexKind::faiss;
    config.exact_up_to = 64;
    CHECK(ask_all(config, 6000, 4).right >= 6);
  }
}

TEST_CASE("the model with its memory does not depend on threads, and repeats itself to the bit",
          "[e2e][threads]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  MemoryConfig config = model_memory();
  config.refine = Refinement::modularity;
  const int threads = max_threads();
  set_max_threads(1);
  const Run one = ask_all(config, 3000, 5);
  set_max_threads(2);
  const Run two = ask_all(config, 3000, 5);
  const Run again = ask_all(config, 3000, 5);
  set_max_threads(threads);
  CHECK(one.ids == two.ids);
  CHECK(one.surprise == two.surprise);
  CHECK(one.events == two.events);
  CHECK(two.surprise == again.surprise);
}

TEST_CASE("unpatch gives back the attention that was there, with its state", "[e2e]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  Decoder model = Decoder::load(shipped_model_dir());
  const std::vector<std::int64_t> first{1, 50, 60, 70}, second{80, 90};
  model.forward(first);
  Decoder plain = model.share_weights();
  plain.forward(first);
  const auto memory = patch(model, model_memory());
  CHECK(memory_of(model) == memory);
  model.forward(second);
  CHECK(memory->tokens() == 2);
  CHECK(unpatch(model));
  CHECK_FALSE(unpatch(model));
  CHECK(memory_of(model) == nullptr);
  CHECK(model.state()->tokens() == 4);
  const auto values = [&](Decoder& of) {
    const LogitsView logits = of.forward(second);
    return std::vector<float>(logits.floats().begin(), logits.floats().end());
  };
  CHECK(values(model) == values(plain));
}

TEST_CASE("inside the window patching changes nothing but rounding", "[e2e][oracle]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  Decoder plain = Decoder::load(shipped_model_dir());
  Decoder patched = plain.share_weights();
  patch(patched, model_memory());
  std::vector<std::int64_t> ids{1};
  for (std::int64_t i = 1; i < 200; ++i) ids.push_back(3 + i * 37 % 1000);
  const LogitsView expected = plain.forward(ids);
  const LogitsView got = patched.forward(ids);
  float most = 0, difference = 0;
  for (std::size_t i = 0; i < expected.floats().size(); ++i) {
    most = std::max(most, std::abs(expected.floats()[i]));
    difference = std::max(difference, std::abs(expected.floats()[i] - got.floats()[i]));
  }
  CHECK(most > 0);
  CHECK(difference < 2e-4f * most);
}
