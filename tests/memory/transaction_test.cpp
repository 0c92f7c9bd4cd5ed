// SPDX-License-Identifier: Apache-2.0
// Every operation of a memory with each of its allocations made to fail in turn, and each of its
// calls to the file system: what failed is done again, and the memory then gives the bits of one
// that never failed, and what it commits can be opened.
#include "support/faulty_calls.hpp"
#include "support/nothrow_new.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include <cerrno>
#include <cstdlib>
#include <new>
#include <optional>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/memory/sizes.hpp"

namespace {

/// Allocations of this thread until one fails; negative: none does. Threads in the background go
/// on.
thread_local std::int64_t t_left = -1;
thread_local bool t_failed = false;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (t_left >= 0 && t_left-- == 0) {
    t_failed = true;
    throw std::bad_alloc();
  }
  void* p = alignment == 0
                ? std::malloc(bytes ? bytes : 1)
                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace

// GCC looks through `new` to the malloc of it and then misses the `delete` that goes with that.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif
void* operator new(std::size_t bytes) { return allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

using namespace episodic;
namespace fs = std::filesystem;

namespace {

/// What is made to fail. `attempt` runs f with the i-th of it failing. \return whether f failed
class Faults {
 public:
  /// \param calls null: allocations \param stride 1: every one of them
  explicit Faults(FaultyCalls* calls, std::int64_t stride = 1) : calls_(calls), stride_(stride) {}
  std::int64_t stride() const { return stride_; }

  template <class F>
  bool attempt(std::int64_t i, F&& f) {
    bool failed = false;
    arm(i);
    try {
      f();
    } catch (const std::bad_alloc&) {
      failed = true;
    } catch (const Error&) {
      failed = true;
    }
    struck_ = disarm();
    failures_ += failed;
    return failed;
  }
  /// Whether something failed in the last attempt, noticed by f or not.
  bool struck() const { return struck_; }
  std::int64_t failures() const { return failures_; }

 private:
  void arm(std::int64_t i) {
    if (calls_) {
      FaultyCalls::Script script;
      script.any = true;
      script.error = EIO;
      script.at = i;
      calls_->play(script);
    } else {
      t_failed = false;
      t_left = i;
    }
  }
  bool disarm() {
    if (calls_) {
      const bool struck = calls_->faults() > 0;
      calls_->heal();
      return struck;
    }
    t_left = -1;
    return t_failed;
  }

  FaultyCalls* calls_;
  std::int64_t stride_;
  bool struck_ = false;
  std::int64_t failures_ = 0;
};

/// A memory that is disturbed, and one that is not, through the same operations.
class Pair {
 public:
  /// \param faults null: nothing fails
  Pair(EpisodicMemory& memory, Faults* faults, const std::vector<driver::Token>& tokens)
      : memory_(memory), faults_(faults), tokens_(tokens) {}

  /// Does f until it goes through; `as_before` is asked after each failure.
  template <class F, class Check>
  void repeat(const char* what, F&& f, Check&& as_before) {
    if (!faults_) return f();
    // A fault that f did not mind ends the attempts; the next operation goes on behind it.
    std::int64_t& first = next_of(what);
    for (std::int64_t i = first;; i += faults_->stride()) {
      INFO(what << ", failure at " << i);
      REQUIRE(i < 100000);
      if (faults_->attempt(i, f)) {
        as_before();
        continue;
      }
      first = faults_->struck() ? i + 1 : 0;
      return;
    }
  }

  /// One step; its outputs and decisions to `answers`.
  void step(std::int64_t n) {
    const std::int64_t at = memory_.tokens(), events = memory_.events().size();
    std::vector<std::vector<float>> out;
    repeat(
        "step", [&] { out = driver::step(memory_, tokens_, at, n); },
        [&] {
          CHECK(memory_.tokens() == at);
          CHECK(memory_.events().size() == events);
        });
    for (const auto& layer : out) answers.insert(answers.end(), layer.begin(), layer.end());
    for (std::int64_t l = 0; l < memory_.shape().n_layers; ++l)
      for (const EventId e : memory_.recalled(l).recalled())
        answers.push_back(static_cast<float>(e));
    answers.push_back(static_cast<float>(memory_.events().pending_start()));
    for (const float surprise : memory_.last_step().surprise) answers.push_back(surprise);
  }
  void feed(std::int64_t end, std::int64_t n) {
    while (memory_.tokens() < end) step(std::min(n, end - memory_.tokens()));
  }

  std::vector<float> answers;

 private:
  std::int64_t& next_of(const char* what) {
    for (auto& [name, next] : next_)
      if (name == what) return next;
    return next_.emplace_back(what, 0).second;
  }

  EpisodicMemory& memory_;
  Faults* faults_;
  const std::vector<driver::Token>& tokens_;
  std::vector<std::pair<std::string, std::int64_t>> next_;
};

MemoryConfig settings() {
  MemoryConfig c = driver::small_config();
  c.contiguity = 0.3;
  c.refine = Refinement::modularity;
  return c;
}

/// A life without a folder. \return all answers
std::vector<float> unkept_life(const MemoryConfig& config, const MemoryShape& shape,
                               const std::vector<driver::Token>& tokens, Faults* faults) {
  EpisodicMemory memory(config, shape);
  Pair pair(memory, faults, tokens);
  const auto nothing = [] {};
  pair.feed(96, 12);
  std::shared_ptr<const MemorySnapshot> snapshot;
  pair.repeat(
      "snapshot", [&] { snapshot = memory.snapshot(); }, nothing);
  pair.feed(140, 11);
  pair.feed(144, 1);
  pair.repeat(
      "restore", [&] { memory.restore(*snapshot); }, [&] { CHECK(memory.tokens() == 144); });
  pair.feed(120, 12);
  pair.repeat(
      "forget", [&] { memory.forget(EventId{1}); }, nothing);
  pair.feed(160, 12);
  for (std::int64_t t = 150; t < 160; ++t)
    pair.answers.insert(pair.answers.end(), memory.relevance(1, t),
                        memory.relevance(1, t) + shape.n_heads);
  for (EventId e = 2; e < memory.events().size(); ++e) {
    const std::vector<float> mean = memory.representative(0, e);
    pair.answers.insert(pair.answers.end(), mean.begin(), mean.end());
  }
  pair.repeat(
      "reset", [&] { memory.reset(); }, [&] { CHECK(memory.tokens() == 160); });
  pair.feed(60, 12);
  return pair.answers;
}

/// A life over a base that was made beforehand and is made of it in turn. \return all answers
std::vector<float> life_over_base(const MemoryConfig& config, const MemoryShape& shape,
                                  const std::vector<driver::Token>& tokens, Faults* faults) {
  EpisodicMemory first(config, shape);
  std::vector<float> answers;
  const auto nothing = [] {};
  const auto go = [&](EpisodicMemory& memory, auto&& f) {
    Pair pair(memory, faults, tokens);
    f(pair);
    answers.insert(answers.end(), pair.answers.begin(), pair.answers.end());
  };
  std::shared_ptr<const MemoryBase> base;
  go(first, [&](Pair& pair) {
    pair.feed(60, 12);
    pair.repeat(
        "share", [&] { base = first.share(); },
        [&] {
          CHECK(first.base() == nullptr);
          CHECK(first.tokens() == 60);
        });
    pair.feed(84, 12);
    // On from its own tail: if that fails, the memory is still over the first base.
    pair.repeat(
        "share the tail", [&] { base = first.share(); },
        [&] { CHECK(first.base()->tokens() == 60); });
  });
  std::optional<EpisodicMemory> tail;
  for (std::int64_t i = 0; !tail; ++i) {
    REQUIRE(i < 100000);
    const auto open = [&] { tail.emplace(base); };
    if (faults)
      faults->attempt(i, open);
    else
      open();
  }
  go(*tail, [&](Pair& pair) {
    pair.feed(108, 12);
    std::shared_ptr<const MemorySnapshot> snapshot;
    pair.repeat(
        "snapshot", [&] { snapshot = tail->snapshot(); }, nothing);
    pair.feed(150, 11);
    pair.repeat(
        "restore", [&] { tail->restore(*snapshot); }, [&] { CHECK(tail->tokens() == 150); });
    pair.feed(132, 12);
    const EventId own = base->events().size();
    pair.repeat(
        "forget", [&] { tail->forget(own); }, nothing);
    pair.feed(180, 12);
    for (EventId e = 0; e < own; ++e) {
      const std::vector<float> mean = tail->representative(1, e);
      pair.answers.insert(pair.answers.end(), mean.begin(), mean.end());
    }
    pair.repeat(
        "reset", [&] { tail->reset(); }, [&] { CHECK(tail->base() == base); });
    pair.feed(48, 12);
  });
  // What failed over it left no trace in the base.
  EpisodicMemory last(base);
  go(last, [&](Pair& pair) { pair.feed(150, 12); });
  return answers;
}

struct Kept {
  std::vector<float> answers;
  std::uint64_t digest = 0;
};

/// A life in a folder, with everything that can be done to it.
Kept kept_life(const MemoryConfig& config, const MemoryShape& shape,
               const std::vector<driver::Token>& tokens, Faults* faults, FaultyCalls& calls,
               const fs::path& dir, bool edits) {
  KeepOptions keep;
  keep.dir = dir;
  keep.calls = &calls;
  keep.checkpoints = 1;
  KeepOptions other = keep;  // as another process has it
  other.calls = nullptr;
  std::optional<EpisodicMemory> memory = EpisodicMemory::create(keep, config, shape);
  Kept life;
  const auto nothing = [] {};
  const auto go = [&](auto&& f) {
    Pair pair(*memory, faults, tokens);
    f(pair);
    life.answers.insert(life.answers.end(), pair.answers.begin(), pair.answers.end());
  };
  std::int64_t failed_commits = 0;
  const auto can_be_opened = [&] {
    // Each would take long.
    if (failed_commits++ % 8 != 0) return;
    const EpisodicMemory reader = EpisodicMemory::open(other, OpenMode::read);
    // The manifest of a commit that failed late may be the one that is found.
    const bool one_of_both =
        reader.tokens() == memory->committed_tokens() || reader.tokens() == memory->tokens();
    CHECK(one_of_both);
  };
  const auto commit = [&](Pair& pair) {
    pair.repeat(
        "commit", [&] { memory->commit(); }, can_be_opened);
    CHECK(memory->committed_tokens() == memory->tokens());
    if (faults) CHECK(EpisodicMemory::open(other, OpenMode::read).digest() == memory->digest());
  };
  go([&](Pair& pair) {
    pair.feed(108, 12);
    commit(pair);
    std::shared_ptr<const MemorySnapshot> snapshot;
    pair.repeat(
        "snapshot", [&] { snapshot = memory->snapshot(); }, nothing);
    pair.feed(132, 12);
    pair.repeat(
        "restore", [&] { memory->restore(*snapshot); }, [&] { CHECK(memory->tokens() == 132); });
    pair.feed(144, 12);
    commit(pair);
  });
  memory.reset();
  // Opening has no memory yet that could change: again until it goes through.
  std::int64_t opening_failures = 0;
  for (std::int64_t i = 0; !memory; i += faults ? faults->stride() : 1) {
    const auto open = [&] { memory = EpisodicMemory::open(keep, OpenMode::write); };
    if (faults)
      opening_failures += faults->attempt(i, open);
    else
      open();
    REQUIRE(i < 100000);
  }
  if (faults) CHECK(opening_failures >= 5);  // each call, and each allocation
  CHECK(memory->tokens() == 144);
  go([&](Pair& pair) {
    pair.feed(168, 12);
    if (edits) {
      pair.repeat(
          "forget", [&] { memory->forget(EventId{2}); }, nothing);
      pair.repeat(
          "pin", [&] { memory->pin(4); }, nothing);
      pair.repeat(
          "compact", [&] { memory->compact(); }, can_be_opened);
    }
    pair.feed(180, 12);
    pair.feed(183, 1);
    commit(pair);
  });
  life.digest = memory->digest();
  go([&](Pair& pair) {
    pair.repeat(
        "reset", [&] { memory->reset(); }, [&] { CHECK(memory->tokens() == 183); });
    pair.feed(60, 12);
    commit(pair);
  });
  CHECK(verify_memory(dir).damages.empty());
  return life;
}

/// One thread computes: which allocation is the i-th would depend on their timing.
class OneThread {
 public:
  OneThread() : before_(max_threads()) { set_max_threads(1); }
  ~OneThread() { set_max_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace

TEST_CASE("an allocation that fails, wherever it is, loses nothing: in host memory",
          "[memory][faults][allocation]") {
  const OneThread one;
  MemoryConfig c = settings();
  c.score = GENERATE(RepresentativeScore::mean, RepresentativeScore::max);
  if (c.score == RepresentativeScore::mean)
    c.scope = GENERATE(EventScope::sequence, EventScope::head);
  if (c.scope == EventScope::head) c.segmenter = SegmenterKind::k_similarity, c.gamma = 0.5;
  const MemoryShape shape = driver::small_shape();
  const auto tokens = driver::random_tokens(shape, 200, 51);
  const std::vector<float> expected = unkept_life(c, shape, tokens, nullptr);
  Faults faults(nullptr);
  CHECK((unkept_life(c, shape, tokens, &faults) == expected));
  CHECK(faults.failures() > 300);
}

TEST_CASE("an allocation that fails, wherever it is, loses nothing: over a base",
          "[memory][faults][allocation][share]") {
  const OneThread one;
  MemoryConfig c = settings();
  c.scope = GENERATE(EventScope::sequence, EventScope::head);
  if (c.scope == EventScope::head) c.segmenter = SegmenterKind::k_similarity, c.gamma = 0.5;
  const bool on_disk = GENERATE(false, true);
  const TempDir temp;
  const MemoryShape shape = driver::small_shape();
  if (on_disk) {  // the base's events are read back
    c.disk_dir = temp.path().string();
    c.host_bytes = least_host_bytes(c, shape);
  }
  const auto tokens = driver::random_tokens(shape, 200, 55);
  const std::vector<float> expected = life_over_base(c, shape, tokens, nullptr);
  Faults faults(nullptr);
  CHECK((life_over_base(c, shape, tokens, &faults) == expected));
  CHECK(faults.failures() > 300);
}

TEST_CASE("an allocation that fails, wherever it is, loses nothing: in a folder",
          "[memory][kept][faults][allocation]") {
  const OneThread one;
  MemoryConfig c = settings();
  c.scope = GENERATE(EventScope::sequence, EventScope::head);
  if (c.scope == EventScope::head)
    c.segmenter = SegmenterKind::k_similarity, c.gamma = 0.5;
  else
    c.retention.emplace().memoria.initial_lifespan = 3;
  const MemoryShape shape = driver::small_shape();
  const auto tokens = driver::random_tokens(shape, 200, 52);
  const TempDir temp;
  FaultyCalls calls;
  const Kept expected = kept_life(c, shape, tokens, nullptr, calls, temp / "undisturbed", true);
  Faults faults(nullptr);
  const Kept found = kept_life(c, shape, tokens, &faults, calls, temp / "disturbed", true);
  CHECK((found.answers == expected.answers));
  CHECK(found.digest == expected.digest);
  CHECK(faults.failures() > 1000);
}

TEST_CASE("an allocation that fails as slabs of representatives fill loses nothing",
          "[memory][kept][faults][allocation]") {
  const OneThread one;
  MemoryConfig c = settings();
  c.refine = Refinement::none;
  c.min_block = c.max_block = 3;  // events enough to fill slabs of 16, and to give them up
  c.repr_bytes = 1;
  const MemoryShape shape = driver::small_shape(1, 64, 1, 256);
  for (std::int64_t bytes = 14 << 20;; bytes += 1 << 18) {  // about the least that is enough
    c.repr_bytes = bytes;
    try {
      const TempDir temp;
      FaultyCalls calls;
      const auto tokens = driver::random_tokens(shape, 200, 53);
      const Kept expected =
          kept_life(c, shape, tokens, nullptr, calls, temp / "undisturbed", false);
      Faults faults(nullptr, 5);  // what the other cases do not have is in many places
      const Kept found = kept_life(c, shape, tokens, &faults, calls, temp / "disturbed", false);
      CHECK((found.answers == expected.answers));
      CHECK(found.digest == expected.digest);
      CHECK(faults.failures() > 100);
      break;
    } catch (const BudgetError&) {
      REQUIRE(bytes < (64 << 20));
    }
  }
}

TEST_CASE("each call to the file system that fails, one after the other, loses nothing",
          "[memory][kept][faults]") {
  const OneThread one;
  MemoryConfig c = settings();
  const MemoryShape shape = driver::small_shape();
  const StoreShape store{shape.n_layers, shape.n_kv_heads, shape.head_dim, DType::float32};
  c.host_bytes = least_host_bytes(store, c.max_block, 1000);  // events are read back
  const auto tokens = driver::random_tokens(shape, 200, 54);
  const TempDir temp;
  FaultyCalls calls;
  const Kept expected = kept_life(c, shape, tokens, nullptr, calls, temp / "undisturbed", true);
  Faults faults(&calls);
  const Kept found = kept_life(c, shape, tokens, &faults, calls, temp / "disturbed", true);
  CHECK((found.answers == expected.answers));
  CHECK(found.digest == expected.digest);
  CHECK(faults.failures() > 25);
}
