// SPDX-License-Identifier: Apache-2.0
// Readers over the events of a memory that is fed random projections of a text's tokens.
#include "episodic/session/event_reader.hpp"

#include "support/test.hpp"

#include <filesystem>
#include <memory>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/recall/reweight.hpp"
#include "memory/driver.hpp"
#include "support/refusal.hpp"

using namespace episodic;
using namespace driver;
namespace fs = std::filesystem;

namespace event_reader_test {

const SentenceEncoder& encoder() {
  static const auto e =
      SentenceEncoder::open(fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder/tiny");
  return e;
}

const Tokenizer& tokenizer() {
  static const auto t = load_tokenizer(fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6");
  return *t;
}

/// Tokens of a text that goes on and on.
std::vector<std::int64_t> some_ids(std::size_t n, const std::string& name) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += name + " went in to his father, and pass key " + std::to_string(i) + " is green. ";
  std::vector<std::int64_t> ids = tokenizer().encode(text);
  REQUIRE(ids.size() > n);
  ids.resize(n);
  return ids;
}

constexpr const char* kQuestion = "Who went in to his father?";

/// What the reader should say of an event.
float expected(const std::vector<std::int64_t>& ids, const TokenRange& event) {
  const std::string text = tokenizer().decode({ids.begin() + event.start, ids.begin() + event.end});
  return relevance_score(encoder().encode(kQuestion), encoder().encode(text));
}

/// Recalled events that no memory recalled.
struct Recalled {
  std::vector<EventId> events;
  std::vector<float> scores, query, weights;
  RecalledEvents view() { return {0, 0, events, scores, query, weights}; }
};

TEST_CASE("an encoder's reader weights events by their text") {
  const auto tokens = random_tokens(small_shape(), 160, 5);
  const std::vector<std::int64_t> ids = some_ids(160, "Andrew");
  EpisodicMemory memory(small_config(), small_shape());
  const auto reader = std::make_shared<EncoderReader>(encoder(), tokenizer());
  reader->read(kQuestion);
  std::int64_t seen = 0;
  const RecallHook hook = weighting(reader);
  memory.set_recall_hook([&](const RecalledEvents& r) {
    hook(r);
    for (std::size_t i = 0; i < r.events.size(); ++i, ++seen)
      REQUIRE(r.weights[i] == Approx(expected(ids, memory.events()[r.events[i]])).margin(1e-5));
  });
  for (std::int64_t at = 0; at < 160; at += 10) {
    step(memory, tokens, at, 10);
    reader->write(memory.events(), std::span(ids).first(static_cast<std::size_t>(at) + 10));
    CHECK(reader->size() == memory.events().size());
  }
  CHECK(seen > 20);
}

TEST_CASE("a reader's weights are the factors of the values") {
  const auto tokens = random_tokens(small_shape(), 120, 6);
  const std::vector<std::int64_t> ids = some_ids(120, "Andrew");
  EpisodicMemory read(small_config(), small_shape()), by_hand(small_config(), small_shape());
  const auto reader = std::make_shared<EncoderReader>(encoder(), tokenizer());
  reader->read(kQuestion);
  read.set_recall_hook(weighting(reader));
  by_hand.set_recall_hook([&](const RecalledEvents& r) {
    for (std::size_t i = 0; i < r.events.size(); ++i) r.weights[i] = reader->score(r.events[i]);
  });
  for (std::int64_t at = 0; at < 120; at += 12) {
    CHECK(step(read, tokens, at, 12) == step(by_hand, tokens, at, 12));
    reader->write(read.events(), ids);
  }
  CHECK(reader->score(0) < 1.0f);
}

TEST_CASE("in key space a reader takes the cosine of query and representative") {
  const auto tokens = random_tokens(small_shape(), 120, 7);
  MemoryConfig config = small_config();
  config.recall_groups = 2;  // two lanes a layer
  EpisodicMemory memory(config, small_shape());
  const RecallHook hook = weighting(std::make_shared<KeyReader>(memory));
  std::int64_t below_one = 0;
  memory.set_recall_hook([&](const RecalledEvents& r) {
    hook(r);
    for (std::size_t i = 0; i < r.events.size(); ++i) {
      const auto vector = memory.representative(2 * r.layer + r.group, r.events[i]);
      REQUIRE(r.weights[i] == relevance_score(r.query, vector));
      below_one += r.weights[i] < 1.0f;
    }
  });
  for (std::int64_t at = 0; at < 120; at += 10) step(memory, tokens, at, 10);
  CHECK(below_one > 20);
}

TEST_CASE("a memory recalls what a reader finds in the events' text") {
  const auto tokens = random_tokens(small_shape(), 240, 9);
  const std::vector<std::int64_t> ids = some_ids(240, "Andrew");
  MemoryConfig config = small_config();
  config.reweight = Reweighting::narrow;
  config.reweight_top = 3;
  EpisodicMemory memory(config, small_shape()), plain(config, small_shape());
  const auto reader = std::make_shared<EncoderReader>(encoder(), tokenizer());
  memory.set_rank_hook(ranking(reader));
  const auto both = [&](std::int64_t at) {
    return step(memory, tokens, at, 10) == step(plain, tokens, at, 10);
  };
  for (std::int64_t at = 0; at < 200; at += 10) {
    REQUIRE(both(at));  // nothing is asked yet
    reader->write(memory.events(), ids);
  }
  memory.forget(2);
  const EventTable events = memory.events();
  for (const char* question : {kQuestion, "What is the pass key?"}) {
    reader->read(question);
    const std::int64_t at = memory.tokens();
    step(memory, tokens, at, 10);  // closes events that the reader does not know
    std::vector<std::pair<float, EventId>> best;
    for (EventId e = 0; e < events.size(); ++e)
      if (e != 2) {
        const auto text =
            tokenizer().decode({ids.begin() + events[e].start, ids.begin() + events[e].end});
        best.emplace_back(-relevance_score(encoder().encode(question), encoder().encode(text)), e);
      }
    std::sort(best.begin(), best.end());
    std::vector<EventId> expected;
    for (std::size_t i = 0; i < 3; ++i) expected.push_back(best[i].second);
    std::sort(expected.begin(), expected.end());
    for (std::int64_t l = 0; l < 2; ++l) REQUIRE(memory.recalled(l).recalled() == expected);
  }
  reader->read("");  // nothing is asked any more
  REQUIRE(reader->ready() == 0);
  REQUIRE(mentions(refusal<ConfigError>([] { ranking(nullptr); }), "reader is null"));
}

TEST_CASE("a reader forgets what a memory that went back forgot") {
  const auto tokens = random_tokens(small_shape(), 160, 8);
  const std::vector<std::int64_t> ids = some_ids(160, "Andrew");
  std::vector<std::int64_t> other = some_ids(160, "Natasha");
  std::copy_n(ids.begin(), 80, other.begin());
  EpisodicMemory memory(small_config(), small_shape());
  EncoderReader reader(encoder(), tokenizer());
  reader.read(kQuestion);
  for (std::int64_t at = 0; at < 80; at += 10) step(memory, tokens, at, 10);
  const auto snapshot = memory.snapshot();
  for (std::int64_t at = 80; at < 160; at += 10) step(memory, tokens, at, 10);
  reader.write(memory.events(), ids);
  // the same tokens' projections, other ids: the same ranges with other texts
  reader.write(memory.events(), other);
  for (EventId e = 0; e < memory.events().size(); ++e)
    CHECK(reader.score(e) == Approx(expected(other, memory.events()[e])).margin(1e-5));
  memory.restore(*snapshot);
  reader.write(memory.events(), ids);
  CHECK(reader.size() == memory.events().size());
}

TEST_CASE("a reader that was not told is refused, or weights nothing") {
  CHECK(mentions(refusal<ConfigError>([] { weighting(nullptr); }), "reader is null"));
  EncoderReader reader(encoder(), tokenizer());
  Recalled r{{0, 1}, {0, 0}, {1}, {1, 1}};
  std::vector<float> scores(2);
  CHECK(mentions(refusal<DataError>([&] { reader.score(r.view(), scores); }), "was not written"));
  EventTable events(4, 3, 9);
  events.append({4, 10});
  events.append({10, 14});
  const std::vector<std::int64_t> ids = some_ids(14, "Andrew");
  CHECK(mentions(refusal<DataError>([&] { reader.write(events, std::span(ids).first(13)); }),
                 "13 token ids"));
  CHECK(reader.size() == 0);
  reader.write(events, ids);
  reader.score(r.view(), scores);
  CHECK(scores == std::vector<float>{1, 1});  // nothing was asked yet
  reader.read(kQuestion);
  reader.score(r.view(), scores);
  CHECK(scores[0] == Approx(expected(ids, {4, 10})).margin(1e-5));
  CHECK_THROWS_AS(reader.score(2), DataError);
  CHECK_THROWS_AS(reader.score(-1), DataError);
}

}  // namespace event_reader_test
