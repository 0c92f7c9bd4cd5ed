// SPDX-License-Identifier: Apache-2.0
// A base that many read, each with a tail of its own. The oracle is one memory that read both, and
// shares nothing. Races: scripts/sanitize thread memory_share
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/detail/thread_guard.hpp"
#include "episodic/memory/sizes.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using driver::random_tokens;
using driver::small_config;
using driver::small_shape;
using driver::Token;

namespace {

constexpr std::int64_t kRead = 231;  // tokens of the base: the last step is not a full one
constexpr std::int64_t kThreads = 4;

/// Events that a memory over a base recalled.
struct Recalls {
  std::int64_t of_base = 0, own = 0;
};

/// Everything that a memory says while it reads tokens [from, to), in steps of many lengths.
std::vector<float> feed(EpisodicMemory& memory, const std::vector<Token>& tokens, std::int64_t from,
                        std::int64_t to, Recalls* recalls = nullptr) {
  std::vector<float> said;
  const auto say = [&](std::int64_t x) { said.push_back(static_cast<float>(x)); };
  const std::int64_t chunk = memory.config().chunk;
  for (std::int64_t at = from, i = 0; at < to; ++i) {
    const std::int64_t n = std::min(i % 4 == 3 ? 1 : chunk - i % 3, to - at);
    for (const auto& layer : driver::step(memory, tokens, at, n))
      said.insert(said.end(), layer.begin(), layer.end());
    for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
      for (const EventId e : memory.recalled(lane).similarity()) say(e);
      for (const EventId e : memory.recalled(lane).contiguity()) say(e);
      const std::int64_t scope = memory.scopes() > 1 ? lane : 0;
      for (const EventId e : memory.recalled(lane).recalled())
        if (recalls) ++(e < memory.base()->events(scope).size() ? recalls->of_base : recalls->own);
    }
    at += n;
  }
  for (std::int64_t scope = 0; scope < memory.scopes(); ++scope)
    for (const TokenRange& e : memory.events(scope).all()) say(e.end);
  for (std::int64_t layer = 0; layer < memory.shape().n_layers; ++layer)
    for (std::int64_t t = to - 20; t < to; ++t)
      said.insert(said.end(), memory.relevance(layer, t),
                  memory.relevance(layer, t) + memory.shape().n_heads);
  return said;
}

/// The base's tokens and behind them others, of reader i.
std::vector<Token> tokens_of(const MemoryShape& shape, std::int64_t i, std::int64_t n) {
  std::vector<Token> tokens = random_tokens(shape, kRead, 100);
  for (Token& t : random_tokens(shape, n, 200 + static_cast<std::uint32_t>(i)))
    tokens.push_back(std::move(t));
  return tokens;
}

/// What one memory of both says behind the base's tokens.
std::vector<float> alone(const MemoryConfig& config, const MemoryShape& shape, std::int64_t i,
                         std::int64_t n) {
  MemoryConfig in_host_memory = config;
  in_host_memory.host_bytes = in_host_memory.repr_bytes = 0;
  in_host_memory.disk_dir.clear();
  EpisodicMemory memory(in_host_memory, shape);
  const auto tokens = tokens_of(shape, i, n);
  feed(memory, tokens, 0, kRead);
  return feed(memory, tokens, kRead, kRead + n);
}

/// On threads of their own at the same time; what one throws is thrown here.
void at_once(const std::vector<std::function<void()>>& all) {
  std::vector<std::exception_ptr> errors(all.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        all[i]();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
}

/// Many read the base at once, the memory that it was made of among them.
void check_readers(EpisodicMemory& memory, const MemoryConfig& config, std::int64_t n) {
  const MemoryShape shape = memory.shape();
  const std::shared_ptr<const MemoryBase> base = memory.share();
  CHECK(base->tokens() == kRead);
  CHECK(base->events().all() == memory.events().all());
  std::vector<std::vector<float>> found(kThreads);
  std::vector<Recalls> recalls(kThreads);
  std::vector<std::function<void()>> readers;
  std::vector<std::vector<Token>> tokens;
  for (std::int64_t i = 0; i < kThreads; ++i) tokens.push_back(tokens_of(shape, i, n));
  for (std::int64_t i = 0; i < kThreads; ++i)
    readers.push_back([&, i] {
      const auto at = static_cast<std::size_t>(i);
      std::optional<EpisodicMemory> own;
      EpisodicMemory& mine = i == 0 ? memory : own.emplace(base);
      found[at] = feed(mine, tokens[at], kRead, kRead + n, &recalls[at]);
    });
  at_once(readers);
  for (std::int64_t i = 0; i < kThreads; ++i) {
    INFO("reader " << i);
    const auto at = static_cast<std::size_t>(i);
    CHECK((found[at] == alone(config, shape, i, n)));  // to the bit
    CHECK((recalls[at].of_base > 10) == config.recall);
    CHECK((recalls[at].own > 0) == config.recall);
  }
  CHECK(base->events().pending_start() < kRead);
  CHECK(memory.events().size() > base->events().size() + 3);
}

struct Case {
  const char* name;
  MemoryConfig config;
  MemoryShape shape;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  MemoryConfig plain = small_config();
  all.push_back({"similarity alone", plain, small_shape(2, 4, 2, 10)});
  MemoryConfig c = small_config();
  c.contiguity = 0.3;
  c.refine = Refinement::modularity;
  all.push_back({"contiguity, refined, one key/value head", c, small_shape(3, 4, 1, 6)});
  c.scope = EventScope::head;
  c.segmenter = SegmenterKind::k_similarity;
  c.gamma = 0.5;
  all.push_back({"each head's own events", c, small_shape(2, 6, 3, 10)});
  c = small_config();
  c.contiguity = 0.2;
  c.recall_groups = 2;
  c.recall_every = 2;
  all.push_back({"groups of heads", c, small_shape(2, 8, 4, 6)});
  c = small_config();
  c.reweight = Reweighting::broad;
  c.reweight_top = 3;
  c.recall_layers = {{1}};
  all.push_back({"reweighted, one layer recalls", c, small_shape(2, 4, 2, 10)});
  c = small_config();
  c.score = RepresentativeScore::max;
  c.kv_dtype = DType::bfloat16;
  all.push_back({"best of the representatives, bfloat16", c, small_shape(2, 4, 2, 10)});
  c = small_config();
  c.scope = EventScope::head;
  c.segmenter = SegmenterKind::gaussian;
  c.gamma = 0.5;
  c.kv_dtype = DType::float16;
  all.push_back({"each head's own events, float16", c, small_shape(2, 6, 3, 7 + 1)});
  c = small_config();
  c.recall = false;
  all.push_back({"no recall", c, small_shape(1, 2, 1, 4)});
  return all;
}

}  // namespace

TEST_CASE("many over one base give what each gives alone: host memory", "[memory][share]") {
  for (const Case& c : cases()) {
    INFO(c.name);
    EpisodicMemory memory(c.config, c.shape);
    feed(memory, random_tokens(c.shape, kRead, 100), 0, kRead);
    check_readers(memory, c.config, 120);
  }
}

TEST_CASE("many over one base give what each gives alone: little host memory over files",
          "[memory][share]") {
  for (Case& c : cases()) {
    if (!c.config.recall) continue;
    INFO(c.name);
    const TempDir temp;
    c.config.host_bytes = least_host_bytes(c.config, c.shape);  // blocks are read back all the time
    const MemoryConfig kept = c.config;
    c.config.disk_dir = temp.path().string();
    {
      EpisodicMemory memory(c.config, c.shape);
      feed(memory, random_tokens(c.shape, kRead, 100), 0, kRead);
      check_readers(memory, c.config, 90);
    }
    // Kept in a folder, which then is opened to be read.
    const KeepOptions keep{temp / "kept"};
    std::uint64_t digest = 0;
    {
      EpisodicMemory memory = EpisodicMemory::create(keep, kept, c.shape);
      feed(memory, random_tokens(c.shape, kRead, 100), 0, kRead);
      memory.commit();
      digest = memory.digest();
    }
    {
      EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::read, &c.shape);
      check_readers(memory, c.config, 90);
    }
    EpisodicMemory again = EpisodicMemory::open(keep, OpenMode::read, &c.shape);
    CHECK(again.digest() == digest);
    CHECK(verify_memory(temp / "kept").damages.empty());
  }
}

TEST_CASE("the folder of a kept memory goes with its base", "[memory][share][kept]") {
  const TempDir temp;
  const MemoryShape shape = small_shape();
  const KeepOptions keep{temp / "kept"};
  const auto tokens = tokens_of(shape, 0, 60);
  std::optional<EpisodicMemory> memory = EpisodicMemory::create(keep, small_config(), shape);
  feed(*memory, tokens, 0, kRead);
  memory->commit();
  const std::uint64_t digest = memory->digest();
  std::shared_ptr<const MemoryBase> base = memory->share();
  CHECK_FALSE(memory->kept());
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { memory->commit(); }, [&] { memory->compact(); },
                                          [&] { static_cast<void>(memory->token_ids(0, 1)); },
                                          [&] { static_cast<void>(memory->manifest()); }})
    CHECK(mentions(refusal<ConfigError>(call), "base of 231 tokens"));
  feed(*memory, tokens, kRead, kRead + 60);
  // Whoever would write to it would write under the base.
  CHECK_THROWS_AS(EpisodicMemory::open(keep, OpenMode::write), Error);
  memory.reset();
  CHECK_THROWS_AS(EpisodicMemory::open(keep, OpenMode::write), Error);
  base = nullptr;
  CHECK(EpisodicMemory::open(keep, OpenMode::write).digest() == digest);
  CHECK(verify_memory(temp / "kept").damages.empty());
}

TEST_CASE("a tail can be gone back in, edited, left, and become a base", "[memory][share]") {
  for (const EventScope scope : {EventScope::sequence, EventScope::head}) {
    MemoryConfig config = small_config();
    config.contiguity = 0.3;
    config.scope = scope;
    if (scope == EventScope::head)
      config.segmenter = SegmenterKind::k_similarity, config.gamma = 0.5;
    const MemoryShape shape = small_shape();
    const auto tokens = tokens_of(shape, 0, 240);
    EpisodicMemory whole(config, shape), first(config, shape);
    for (EpisodicMemory* m : {&whole, &first}) {
      feed(*m, tokens, 0, 120);
      m->forget(EventId{2});  // a base's forgotten events stay so
      feed(*m, tokens, 120, kRead);
    }
    EpisodicMemory tail(first.share());
    CHECK(tail.forgotten() == whole.forgotten());
    const auto here = tail.snapshot(), there = whole.snapshot();
    CHECK((feed(tail, tokens, kRead, kRead + 90) == feed(whole, tokens, kRead, kRead + 90)));
    tail.restore(*here);
    whole.restore(*there);
    CHECK((feed(tail, tokens, kRead, kRead + 90) == feed(whole, tokens, kRead, kRead + 90)));
    const EventId last = tail.events().size() - 1;
    REQUIRE(last > tail.base()->events().size());
    for (EpisodicMemory* m : {&tail, &whole}) m->forget(last);
    CHECK((feed(tail, tokens, kRead + 90, kRead + 150) ==
           feed(whole, tokens, kRead + 90, kRead + 150)));
    CHECK(tail.digest() == whole.digest());
    CHECK(tail.representative(1, last - 1) == whole.representative(1, last - 1));

    // On from the tail: what is under it, it keeps.
    EpisodicMemory upper(tail.share()), beside(upper.share());
    const auto expected = feed(whole, tokens, kRead + 150, kRead + 240);
    for (EpisodicMemory* m : {&upper, &beside, &tail})
      CHECK((feed(*m, tokens, kRead + 150, kRead + 240) == expected));

    // Left, it is an empty sequence as any other.
    upper.reset();
    EpisodicMemory fresh(config, shape);
    CHECK(upper.base() == nullptr);
    CHECK((feed(upper, tokens, 0, kRead) == feed(fresh, tokens, 0, kRead)));
  }
}

TEST_CASE("hooks see a base's events as those of one memory", "[memory][share]") {
  MemoryConfig config = small_config();
  config.contiguity = 0.3;
  const MemoryShape shape = small_shape();
  const auto tokens = tokens_of(shape, 0, 120);
  EpisodicMemory whole(config, shape), first(config, shape);
  feed(whole, tokens, 0, kRead);
  feed(first, tokens, 0, kRead);
  EpisodicMemory tail(first.share());
  std::vector<double> seen[2];
  for (int i = 0; i < 2; ++i) {
    EpisodicMemory& memory = i == 0 ? whole : tail;
    std::vector<double>& saw = seen[i];
    memory.set_recall_hook([&saw](const RecalledEvents& r) {
      for (std::size_t e = 0; e < r.events.size(); ++e) {
        saw.push_back(static_cast<double>(r.events[e]));
        saw.push_back(r.scores[e]);
        r.weights[e] = r.events[e] % 3 == 0 ? 0.5f : 1.0f;
      }
    });
    memory.set_attention_hook(
        [&saw](const AttendedEvents& r) { saw.insert(saw.end(), r.mass.begin(), r.mass.end()); });
  }
  CHECK((feed(tail, tokens, kRead, kRead + 120) == feed(whole, tokens, kRead, kRead + 120)));
  CHECK((seen[0] == seen[1]));
  CHECK(seen[0].size() > 100);
}

TEST_CASE("what would change a base is refused by name, and nothing has changed",
          "[memory][share][errors]") {
  const MemoryShape shape = small_shape();
  const auto tokens = tokens_of(shape, 0, 60);
  EpisodicMemory memory(small_config(), shape);
  feed(memory, tokens, 0, 120);
  const auto early = memory.snapshot();
  feed(memory, tokens, 120, kRead);
  memory.begin_step(1);
  CHECK(mentions(refusal<DataError>([&] { static_cast<void>(memory.share()); }), "a step is open"));
  driver::step(memory, tokens, kRead, 1);
  const auto late = memory.snapshot();
  const std::shared_ptr<const MemoryBase> base = memory.share();
  CHECK(memory.base() == base);
  const EventId of_base = base->events().size() - 1;
  EpisodicMemory other(base);
  for (EpisodicMemory* m : {&memory, &other}) {
    feed(*m, tokens, kRead + 1, kRead + 60);
    CHECK(mentions(refusal<ConfigError>([&] { m->forget(of_base); }), "base"));
    CHECK(mentions(refusal<ConfigError>([&] { m->pin(of_base); }), "base"));
    CHECK(mentions(
        refusal<ConfigError>([&] {
          m->forget(TokenRange{base->events()[of_base].end - 1, base->events()[of_base].end + 1});
        }),
        "base"));
    CHECK(mentions(refusal<ConfigError>([&] { m->commit(); }), "base"));
    MemoryAdvance behind;
    behind.state = m->state();
    behind.shared_events = {0};
    behind.events.resize(1);
    CHECK(mentions(refusal<ConfigError>([&] { m->advance(behind); }), "base"));
    CHECK(m->forgotten().empty());
  }
  CHECK(mentions(refusal<ConfigError>([&] { memory.restore(*early); }), "base of 232 tokens"));
  CHECK(mentions(refusal<ConfigError>([&] { other.restore(*late); }), "another memory"));
  memory.restore(*late);  // the base's own end
  CHECK(memory.tokens() == kRead + 1);
  feed(memory, tokens, kRead + 1, kRead + 60);
  CHECK(memory.digest() == other.digest());

  CHECK_THROWS_AS(EpisodicMemory(std::shared_ptr<const MemoryBase>()), ConfigError);
  MemoryConfig changed = small_config();
  changed.n_mem += 1;
  CHECK(mentions(refusal<ConfigError>([&] { EpisodicMemory(base, &changed); }), "host_bytes"));
  CHECK_THROWS_AS(base->events(1), DataError);
  MemoryConfig c = small_config();
  c.index = IndexKind::faiss;
  EpisodicMemory approximate(c, shape);
  CHECK(mentions(refusal<ConfigError>([&] { static_cast<void>(approximate.share()); }), "faiss"));
  c = small_config();
  c.retention = RetentionConfig{};
  EpisodicMemory forgetful(c, shape);
  CHECK(mentions(refusal<ConfigError>([&] { static_cast<void>(forgetful.share()); }), "retention"));
}

TEST_CASE("what a memory adds to a base has budgets and files of its own", "[memory][share]") {
  const MemoryShape shape = small_shape();
  const auto tokens = tokens_of(shape, 0, 240);
  EpisodicMemory memory(small_config(), shape);
  feed(memory, tokens, 0, kRead);
  const auto base = memory.share();
  const std::vector<float> expected = feed(memory, tokens, kRead, kRead + 240);
  const StoreShape store = store_shape(small_config(), shape);

  MemoryConfig budgets = small_config();
  budgets.host_bytes = 3 * store.n_lanes * block_bytes(store, budgets.max_block);
  EpisodicMemory small(base, &budgets);
  CHECK(mentions(refusal<BudgetError>([&] { feed(small, tokens, kRead, kRead + 240); }),
                 "host_bytes"));
  // The step was refused whole; the base is as it was.
  CHECK(small.events().size() > base->events().size());
  CHECK(small.counters().store.bytes_reserved <= budgets.host_bytes);

  const TempDir temp;
  budgets.host_bytes = least_host_bytes(budgets, shape);
  budgets.disk_dir = temp.path().string();
  EpisodicMemory filed(base, &budgets);
  CHECK((feed(filed, tokens, kRead, kRead + 240) == expected));
  CHECK(filed.counters().store.disk_bytes > 0);
  CHECK(filed.disk_store() == nullptr);  // nothing of it can be pinned
}

TEST_CASE("the guard against two threads lets one in at a time, however they meet",
          "[memory][share][threads]") {
  detail::ThreadGuard guard;
  std::atomic<int> inside{0}, ready{0};
  std::atomic<std::int64_t> met{0}, entered{0}, refused{0};
  std::int64_t unguarded = 0;  // what the thread sanitizer watches
  constexpr int kThreads = 4, kTimes = 400000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      for (int i = 0; i < kTimes; ++i) try {
          const detail::ThreadGuard::Inside in(guard);
          if (inside.fetch_add(1) != 0) ++met;
          ++unguarded;
          {
            const detail::ThreadGuard::Inside again(guard);  // as from a callback
            guard.check();
          }
          inside.fetch_sub(1);
          ++entered;
        } catch (const Error&) {
          ++refused;
        }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(met == 0);
  CHECK(unguarded == entered);
  CHECK(entered + refused == kThreads * kTimes);
  CHECK(entered > 0);
  const detail::ThreadGuard::Inside free(guard);  // it was left by all
}
