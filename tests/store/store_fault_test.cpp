// SPDX-License-Identifier: Apache-2.0
// Every place where the disk store calls the system, and everything that can go wrong there.
#include <cerrno>
#include <cstring>
#include <functional>

#include "episodic/base/error.hpp"
#include "store_harness.hpp"
#include "support/faulty_calls.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"

using namespace store_test;
using io::Kind;
using io::Op;

namespace store_fault_test {

struct Way {
  ReadEngine engine;
  DirectIo direct;
};

const StoreShape kShape{2, 1, 8, DType::float32};
constexpr std::int64_t kMaxBlock = 40;

DiskStoreOptions options_for(const std::filesystem::path& dir, Way way, io::Syscalls& calls) {
  DiskStoreOptions o;
  o.dir = dir;
  o.keep = true;
  o.max_block = kMaxBlock;
  o.lease_tokens = 2 * kMaxBlock;
  o.host_bytes = least_host_bytes(kShape, o.max_block, o.lease_tokens);
  o.disk_bytes = 8 << 20;
  o.engine = way.engine;
  o.direct = way.direct;
  o.calls = &calls;
  return o;
}

/// Makes it happen: if it throws one of the library's errors, once more when the fault is gone.
class Attempts {
 public:
  explicit Attempts(FaultyCalls& calls) : calls_(calls) {}
  template <class F>
  void operator()(F&& f) {
    try {
      f();
    } catch (const Error&) {
      ++failed;
      calls_.heal();
      f();
    }
  }
  int failed = 0;

 private:
  FaultyCalls& calls_;
};

/// Everything a kept store does, with a fault somewhere; all must be right at the end of it.
/// \return how often an operation was refused
int life(const TempDir& dir, Way way, FaultyCalls& calls) {
  std::mt19937 rng(5);
  Account account(kShape, kMaxBlock);
  Attempts attempt(calls);
  const auto options = options_for(dir.path(), way, calls);
  std::unique_ptr<DiskStore> store;
  StoreImage image;
  const auto append = [&](std::int64_t n) {
    const auto ranges = account.next(rng, n);
    attempt([&] { store->append(ranges); });
    for (const TokenRange& range : ranges) {
      account.events.push_back({range, static_cast<std::uint32_t>(rng()), -1, 0, false, false});
      attempt([&] { account.write(*store, static_cast<EventId>(account.events.size()) - 1); });
    }
  };
  const auto read = [&](EventId id, std::int64_t layer) {
    store->prefetch(layer, std::vector<EventId>{id + 1});
    attempt([&] { store->acquire(layer, std::vector<EventId>{id, id + 1}, account.segments); });
    for (std::size_t i = 0; i < 2; ++i)
      REQUIRE(account.right(account.segments[i], id + static_cast<EventId>(i), layer));
    store->release(layer);
  };
  const auto commit = [&] {
    attempt([&] { image = store->sync(); });
    attempt([&] { store->committed(image); });
  };
  attempt([&] { store = make_disk_store(kShape, options); });
  append(6);
  commit();
  append(5);
  for (const EventId id : {0, 9, 3, 6, 0}) read(id, id % 2);
  store->truncate(10);
  account.events.resize(10);
  append(2);
  commit();
  for (const EventId id : {1, 2, 4, 5, 7}) {
    store->forget(id);
    account.events[static_cast<std::size_t>(id)].forgotten = true;
  }
  attempt([&] { store->compact(0.2); });
  append(1);
  commit();
  store.reset();
  attempt([&] { store = open_disk_store(kShape, options, image); });
  append(3);
  for (const EventId id : {8, 9, 11}) read(id, 1);
  commit();
  store.reset();
  calls.heal();
  REQUIRE(damages(kShape, dir.path(), image).empty());
  store = open_disk_store(kShape, options, image);
  for (std::size_t i = 0; i < account.events.size(); ++i) {
    if (account.events[i].forgotten) continue;
    for (std::int64_t l = 0; l < kShape.n_lanes; ++l) {
      account.acquire(*store, l, {static_cast<EventId>(i)}, 1);
      store->release(l);
    }
  }
  return attempt.failed;
}

const char* const kSites[] = {
    "segment open",     "segment create",   "segment read",   "segment write",  "segment sync",
    "segment allocate", "segment truncate", "segment unlink", "directory open", "directory sync",
};

TEST_CASE("a fault at any call of the disk store gives the same answer or one clean error") {
  using Fault = FaultyCalls::Fault;
  for (const Way way :
       {Way{ReadEngine::threads, DirectIo::off}, Way{ReadEngine::automatic, DirectIo::on}}) {
    FaultyCalls healthy;
    {
      const TempDir dir;
      REQUIRE(life(dir, way, healthy) == 0);
    }
    std::vector<std::string> seen = healthy.seen();
    if (way.engine == ReadEngine::automatic) std::erase(seen, "segment submit");  // of io_uring
    REQUIRE(seen == std::vector<std::string>(std::begin(kSites), std::end(kSites)));
    std::int64_t struck = 0, refused = 0;
    std::size_t number = 0;  // by default of each fault half of the lives, in turn
    for (const io::Site site : healthy.sites()) {
      std::vector<FaultyCalls::Script> faults;
      for (const int e : {ENOSPC, EIO, EINTR, EDQUOT}) faults.push_back({site, Fault::error, e});
      faults.push_back({site, Fault::late, 0});
      if (site.op == Op::read || site.op == Op::write) faults.push_back({site, Fault::half, 0});
      if (site.op == Op::read) faults.push_back({site, Fault::flip, 0});
      const std::int64_t n = healthy.calls(site);
      for (FaultyCalls::Script script : faults)
        for (const std::int64_t at : {std::int64_t{0}, n / 3, n / 2, n - 1})
          for (const bool for_ever : {false, true}) {
            if (++number % 2 == 0 && !episodic_test::all_cases()) continue;
            CAPTURE(name_of(site.kind), name_of(site.op), static_cast<int>(script.fault),
                    script.error, at, for_ever);
            script.at = at;
            script.for_ever = for_ever && script.fault != Fault::late;
            FaultyCalls calls;
            calls.play(script);
            const TempDir dir;
            refused += life(dir, way, calls);
            struck += calls.faults();
          }
    }
    REQUIRE(struck > episodic_test::all_or(300, 150));
    REQUIRE(refused > episodic_test::all_or(100, 50));
  }
}

TEST_CASE("a full disk refuses the event before anything changes and keeps what was committed") {
  FaultyCalls calls;
  const TempDir dir;
  std::mt19937 rng(6);
  Account account(kShape, kMaxBlock);
  auto options = options_for(dir.path(), {ReadEngine::threads, DirectIo::off}, calls);
  const auto store = make_disk_store(kShape, options);
  account.append(*store, rng, 4);
  const StoreImage image = store->sync();
  store->committed(image);
  const StoreCounters before = store->counters();
  calls.play({{Kind::segment, Op::allocate}, FaultyCalls::Fault::error, ENOSPC, 0, true});
  std::vector<TokenRange> many;
  for (std::int64_t at = account.events.back().range.end; many.size() < 60; at += kMaxBlock)
    many.push_back({at, at + kMaxBlock});
  const std::string message = refusal<io::DiskFullError>([&] { store->append(many); });
  REQUIRE(mentions(message, "free at least"));
  REQUIRE(mentions(message, "60 events"));
  REQUIRE(store->counters().events == before.events);
  REQUIRE(store->counters().disk_bytes <= before.disk_bytes);
  REQUIRE(damages(kShape, dir.path(), image).empty());
  calls.heal();
  account.append(*store, rng, 30);
  account.check_all(*store, 1);
}

TEST_CASE("events are written behind, served meanwhile, and kept when that fails") {
  FaultyCalls calls;
  const TempDir dir;
  std::mt19937 rng(7);
  Account account(kShape, kMaxBlock);
  auto options = options_for(dir.path(), {ReadEngine::threads, DirectIo::off}, calls);
  options.host_bytes += 1 << 20;
  const auto store = make_disk_store(kShape, options);
  account.append(*store, rng, 1);
  store->sync();
  // One write that takes a second holds up all that follow it.
  FaultyCalls::Script late{{Kind::segment, Op::write}, FaultyCalls::Fault::late, 0, 0, false};
  late.delay = std::chrono::seconds(1);
  calls.play(late);
  account.append(*store, rng, 5);
  REQUIRE(store->tier(0) == std::string("disk"));
  REQUIRE(store->tier(5) == std::string("host"));
  account.acquire(*store, 1, {5, 2}, 0);
  store->release(1);
  REQUIRE(store->tier(5) == std::string("host"));
  store->sync();
  REQUIRE(store->tier(5) == std::string("disk"));

  calls.play({{Kind::segment, Op::write}, FaultyCalls::Fault::error, EIO, 0, true});
  account.append(*store, rng, 3);
  REQUIRE(mentions(refusal<FileError>([&] { store->sync(); }), "kv-"));
  const auto more = account.next(rng, 1);
  REQUIRE_THROWS_AS(store->append(more), FileError);
  REQUIRE(store->counters().events == 9);
  account.acquire(*store, 0, {8, 6}, 0);
  store->release(0);
  REQUIRE(store->tier(8) == std::string("host"));
  calls.heal();
  const StoreImage image = store->sync();
  REQUIRE(damages(kShape, dir.path(), image).empty());
  account.check_all(*store, 1);
}

TEST_CASE("a wrong byte is read once more, then refused with its file, event and remedy") {
  for (const ReadEngine engine : {ReadEngine::threads, ReadEngine::automatic}) {
    FaultyCalls calls;
    const TempDir dir;
    std::mt19937 rng(8);
    Account account(kShape, kMaxBlock);
    const auto store =
        make_disk_store(kShape, options_for(dir.path(), {engine, DirectIo::off}, calls));
    account.append(*store, rng, 30);
    store->sync();
    calls.play({{Kind::segment, Op::read}, FaultyCalls::Fault::flip, 0, 0, false});
    account.acquire(*store, 1, {0}, 0);
    store->release(1);
    REQUIRE(store->counters().read_errors == 1);
    calls.play({{Kind::segment, Op::read}, FaultyCalls::Fault::flip, 0, 0, true});
    const std::vector<EventId> ids{29, 1};
    const std::string message =
        refusal<FileError>([&] { store->acquire(0, ids, account.segments); });
    REQUIRE(mentions(message, ".seg: event 1, lane 0"));
    REQUIRE(mentions(message, "run episodic verify; restore from a copy"));
    REQUIRE(store->counters().read_errors == 3);
    REQUIRE_THROWS_AS(store->release(0), Error);  // no lease was left
    store->prefetch(0, ids);                      // nor does a failed prefetch say anything
    calls.heal();
    account.acquire(*store, 0, ids, 0);
    store->release(0);
  }
}

TEST_CASE("what io_uring refuses to read, once or for ever, is read all the same") {
  std::size_t number = 0;
  for (const int error : {EINTR, EAGAIN, EBUSY, EIO, ENOMEM, EINVAL, EBADF})
    for (const bool for_ever : {false, true})
      for (const std::int64_t at :
           episodic_test::in_turn(std::vector<std::int64_t>{0, 1, 4, 9}, number++)) {
        CAPTURE(error, at, for_ever);
        FaultyCalls calls;
        const TempDir dir;
        std::mt19937 rng(9);
        Account account(kShape, kMaxBlock);
        auto options = options_for(dir.path(), {ReadEngine::automatic, DirectIo::off}, calls);
        options.lease_tokens = 8 * kMaxBlock;
        options.host_bytes = least_host_bytes(kShape, options.max_block, options.lease_tokens);
        options.read_depth = 3;  // some wait for others
        const auto store = make_disk_store(kShape, options);
        account.append(*store, rng, 60);
        store->sync();
        calls.play({{Kind::segment, Op::submit}, FaultyCalls::Fault::error, error, at, for_ever});
        for (EventId first = 0; first + 16 <= 60; first += 4) {
          store->prefetch(1, std::vector<EventId>{first + 9, first + 10, first + 11});
          std::vector<EventId> ids;
          for (EventId id = first; id < first + 8; ++id) ids.push_back(id);
          account.acquire(*store, 0, ids, 0);
          store->release(0);
          account.acquire(*store, 1, {first + 10, first + 9}, 0);
          store->release(1);
        }
        REQUIRE(store->counters().read_errors == 0);
        // Where there is io_uring, it was asked, and refused.
        if (calls.calls({Kind::segment, Op::submit}) > at) REQUIRE(calls.faults() > 0);
      }
}

TEST_CASE("recalls that fail keep no room: the same one goes as soon as its file is well again") {
  for (const ReadEngine engine : {ReadEngine::threads, ReadEngine::automatic}) {
    FaultyCalls calls;
    const TempDir dir;
    DiskStoreOptions options = options_for(dir.path(), {engine, DirectIo::off}, calls);
    options.lease_tokens = 4 * kMaxBlock;  // as many as are cached
    options.host_bytes = least_host_bytes(kShape, options.max_block, options.lease_tokens);
    const auto store = make_disk_store(kShape, options);
    std::vector<TokenRange> ranges;
    for (EventId e = 0; e < 12; ++e) ranges.push_back({e * kMaxBlock, (e + 1) * kMaxBlock});
    store->append(ranges);
    std::vector<float> rows(static_cast<std::size_t>(2 * kMaxBlock * kShape.head_dim));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) * 0.25f;
    const float* const values = rows.data() + rows.size() / 2;
    for (EventId e = 0; e < 12; ++e)
      for (std::int64_t l = 0; l < kShape.n_lanes; ++l)
        store->write(
            e, l,
            RingView{rows.data(), values, kMaxBlock, kMaxBlock * kShape.head_dim, kShape.head_dim});
    store->sync();
    std::vector<KvSegment> held, segments;
    store->acquire(0, std::vector<EventId>{0, 1, 2, 3}, held);  // the whole cache
    const std::vector<EventId> wanted{6, 7, 8, 9};
    for (int attempt = 0; attempt < 12; ++attempt) {
      // one of the four reads fails, and its second try
      calls.play({{Kind::segment, Op::read}, FaultyCalls::Fault::error, EIO, 3, true});
      REQUIRE_THROWS_AS(store->acquire(1, wanted, segments), FileError);
      calls.heal();
    }
    store->acquire(1, wanted, segments);
    REQUIRE(segments.size() == 4);
    for (const KvSegment& s : segments)
      REQUIRE(std::memcmp(s.key, rows.data(), rows.size() / 2 * sizeof(float)) == 0);
    store->release(1);
    store->release(0);
  }
}

}  // namespace store_fault_test
