// SPDX-License-Identifier: Apache-2.0
// Many readers of one store, and a store over another.
#include <exception>
#include <thread>

#include "episodic/base/error.hpp"
#include "store_harness.hpp"
#include "support/refusal.hpp"

using namespace store_test;

namespace reader_test {

constexpr std::int64_t kMaxBlock = 9, kLease = 3 * kMaxBlock;

std::unique_ptr<EventStore> make(const StoreShape& shape, const TempDir& dir, bool on_disk,
                                 ReadEngine engine = ReadEngine::automatic) {
  if (!on_disk) return make_host_store(shape, 0, kMaxBlock);
  DiskStoreOptions o;
  o.dir = dir.path();
  o.max_block = kMaxBlock;
  o.lease_tokens = kLease;
  o.host_bytes = least_host_bytes(shape, kMaxBlock, kLease);  // nearly all is read back
  o.engine = engine;
  return make_disk_store(shape, o);
}

TEST_CASE("many readers of one store at once get its blocks, each with leases of its own",
          "[store][readers]") {
  for (const bool on_disk : {false, true})
    for (const ReadEngine engine : {ReadEngine::automatic, ReadEngine::threads}) {
      const StoreShape shape{2, 2, 24, DType::bfloat16};
      const TempDir dir;
      const auto store = make(shape, dir, on_disk, engine);
      Account account(shape, kMaxBlock);
      std::mt19937 draw(3);
      for (int i = 0; i < 20; ++i) account.append(*store, draw, 4);
      store->forget(11);
      account.events[11].forgotten = true;
      const StoreCounters before = store->counters();
      constexpr int kReaders = 4;
      std::vector<std::string> wrong(kReaders);
      std::vector<StoreCounters> counters(kReaders);
      std::vector<std::thread> threads;
      for (int r = 0; r < kReaders; ++r)
        threads.emplace_back([&, r] {
          try {
            std::mt19937 rng(static_cast<unsigned>(r));
            Account mine = account;  // its source has scratch
            const auto reader = store->reader();
            std::vector<KvSegment> out;
            for (int i = 0; i < 150; ++i) {
              const std::int64_t lane = i % 2;
              const std::vector<EventId> ids = mine.some(rng, 4, kLease);
              reader->prefetch(lane, ids);
              reader->acquire(lane, ids, out);
              for (std::size_t e = 0; e < ids.size(); ++e)
                if (!mine.right(out[e], ids[e], lane))
                  wrong[static_cast<std::size_t>(r)] = "a block";
              if (refusal<Error>([&] { reader->acquire(lane, ids, out); }) == "no error")
                wrong[static_cast<std::size_t>(r)] = "two leases of a lane";
              reader->release(lane);
            }
            counters[static_cast<std::size_t>(r)] = reader->counters();
          } catch (const std::exception& e) {
            wrong[static_cast<std::size_t>(r)] = e.what();
          }
        });
      for (std::thread& t : threads) t.join();
      for (const std::string& what : wrong) CHECK(what.empty());
      for (const StoreCounters& c : counters) {
        CHECK(c.acquires > 150);
        CHECK((c.bytes_reserved > 0) == on_disk);
      }
      // The store has counted nothing of it, and nothing is leased.
      CHECK(store->counters().acquires == before.acquires);
      CHECK(store->last_recall(3) == -1);
      store->truncate(40);
      CHECK(store->size() == 40);
    }
}

TEST_CASE("a store over another numbers its events first, and changes none of them",
          "[store][readers]") {
  for (const bool on_disk : {false, true}) {
    const StoreShape shape{3, 1, 10, DType::float32};
    const TempDir dir, other;
    const auto base = make(shape, dir, on_disk);
    Account account(shape, kMaxBlock);
    std::mt19937 rng(5);
    account.append(*base, rng, 30);
    const auto store = make_store_over(*base, make(shape, other, !on_disk));
    account.append(*store, rng, 20);
    CHECK(store->size() == 50);
    CHECK(base->size() == 30);
    CHECK(store->counters().events == 20);
    std::vector<KvSegment> out;
    const auto check_lists = [&](auto& reader) {
      // In any order, of either or both.
      for (const std::vector<EventId>& ids :
           std::vector<std::vector<EventId>>{{3, 31}, {45, 2, 33}, {0, 29}, {49}, {}}) {
        reader.prefetch(1, ids);
        reader.acquire(1, ids, out);
        REQUIRE(out.size() == ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i) CHECK(account.right(out[i], ids[i], 1));
        CHECK_THROWS_AS(reader.acquire(1, ids, out), Error);
        reader.release(1);
        CHECK_THROWS_AS(reader.release(1), Error);
      }
    };
    check_lists(*store);
    for (const EventId e : {0, 29, 30, 49}) {
      const Expected& expected = account.events[static_cast<std::size_t>(e)];
      const std::vector<std::byte> block = account.source.block(2, expected.range, expected.salt);
      std::vector<std::byte> found(block.size());
      store->read(e, 2, found.data());
      CHECK(found == block);
    }
    CHECK(mentions(refusal<ConfigError>([&] { store->forget(29); }), "base"));
    CHECK(mentions(refusal<ConfigError>([&] { store->pin(29, true); }), "base"));
    CHECK_THROWS_AS(store->truncate(29), DataError);
    CHECK_THROWS_AS(store->acquire(3, std::vector<EventId>{1}, out), DataError);
    CHECK_THROWS_AS(store->acquire(0, std::vector<EventId>{1, 50}, out), DataError);
    store->acquire(0, std::vector<EventId>{1}, out);  // what failed holds nothing
    store->release(0);
    // One over both, and readers of it.
    const auto upper = make_store_over(*store, make(shape, dir, false));
    check_lists(*upper);
    check_lists(*store->reader());
    store->forget(35);
    CHECK_THROWS_AS(store->acquire(0, std::vector<EventId>{1, 35}, out), DataError);
    store->truncate(30);
    CHECK(store->size() == 30);
    CHECK(base->counters().events == 30);
  }
}

}  // namespace reader_test
