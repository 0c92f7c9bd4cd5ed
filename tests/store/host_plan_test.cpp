// SPDX-License-Identifier: Apache-2.0
// How a disk store divides its host_bytes: from the least that it says on, any number of bytes
// works and holds what was promised.
#include <cstdint>
#include <set>
#include <vector>

#include "episodic/base/error.hpp"
#include "store_harness.hpp"
#include "support/refusal.hpp"

using namespace store_test;

namespace host_plan_test {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Case {
  StoreShape shape;
  std::int64_t max_block, lease_tokens;
};

/// Fills, evicts and leases as much as was asked for at once.
void use(const Case& c, std::int64_t host_bytes, std::int64_t read_depth) {
  const TempDir dir;
  DiskStoreOptions o;
  o.dir = dir.path();
  o.max_block = c.max_block;
  o.lease_tokens = c.lease_tokens;
  o.host_bytes = host_bytes;
  o.read_depth = read_depth;
  o.direct = DirectIo::off;
  const auto store = make_disk_store(c.shape, o);
  std::mt19937 rng(3);
  Account account(c.shape, c.max_block);
  account.append(*store, rng, 6);
  store->sync();
  std::vector<EventId> ids;
  std::int64_t tokens = 0;
  for (EventId e = 0; e < 6; ++e) {
    tokens += account.events[static_cast<std::size_t>(e)].range.size();
    if (tokens <= std::max(c.lease_tokens, c.max_block)) ids.push_back(e);
  }
  for (std::int64_t lane = 0; lane < c.shape.n_lanes; ++lane) {
    if (is_code(c.shape.dtype)) {  // whose bytes other tests compare
      store->acquire(lane, ids, account.segments);
      REQUIRE(account.segments.size() == ids.size());
    } else {
      account.acquire(*store, lane, ids, 0);
    }
    store->release(lane);
  }
  if (host_bytes > 0) REQUIRE(store->counters().bytes_reserved == host_bytes);
  const auto reader = static_cast<const DiskStore&>(*store).reader();
  REQUIRE(reader->counters().bytes_reserved > 0);
}

void use_at_edges(const Case& c) {
  const std::int64_t least = least_host_bytes(c.shape, c.max_block, c.lease_tokens);
  INFO(c.shape.n_lanes << " lanes, " << c.shape.n_kv_heads << " heads of " << c.shape.head_dim
                       << ", dtype " << static_cast<int>(c.shape.dtype) << ", max_block "
                       << c.max_block << ", lease of " << c.lease_tokens << ", least " << least);
  std::set<std::int64_t> all{0, least + 64, least + 4096, least + 3 * kMiB};
  for (const std::int64_t edge : {least, least + kMiB, 32 * kMiB, 33 * kMiB, 64 * kMiB})
    for (const std::int64_t by : {-1, 0, 1})
      if (edge + by >= least) all.insert(edge + by);
  for (const std::int64_t host_bytes : all)
    for (const std::int64_t depth : {1, 16, 1024}) {
      INFO("host_bytes " << host_bytes << ", read_depth " << depth);
      use(c, host_bytes, depth);
    }
  REQUIRE(mentions(refusal<BudgetError>([&] { use(c, least - 1, 16); }), std::to_string(least)));
}

TEST_CASE("from the least host_bytes on, any number works, on both sides of every threshold") {
  std::vector<Case> cases;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8})
    for (const std::int64_t max_block : {1, 40})
      cases.push_back({{2, 1, 8, dtype}, max_block, 3 * max_block});
  cases.push_back({{3, 2, 64, DType::float32}, 128, 1000});
  cases.push_back({{1, 1, 1, DType::fp8}, 1, 1});
  for (const Case& c : cases) use_at_edges(c);
}

TEST_CASE("leases around the size from which on writes are gathered leave room for all") {
  // Least sizes from below 32 MiB to above 34, in small steps.
  const StoreShape shape{1, 8, 32, DType::float32};
  int within = 0;
  for (std::int64_t lease = 12000; lease < 18000; lease += 150) {
    const Case c{shape, 16, lease};
    const std::int64_t least = least_host_bytes(shape, c.max_block, lease);
    within += least > 31 * kMiB && least < 34 * kMiB;
    INFO("lease of " << lease << ", least " << least);
    for (const std::int64_t host_bytes :
         {least, least + 1, least + kMiB - 4096, least + kMiB, least + kMiB + 7})
      use(c, host_bytes, 16);
  }
  REQUIRE(within > 5);
}

TEST_CASE(
    "more host_bytes than the cache can count are taken, and what no system gives is refused") {
  const Case c{{2, 1, 8, DType::float32}, 40, 120};
  constexpr std::int64_t kCounted = std::int64_t{1} << 38;  // 2^32 lines of 64 bytes
  for (const std::int64_t by : {-65, -64, 0, 64, 4096}) try {
      use(c, kCounted + by, 16);
    } catch (const BudgetError& e) {  // a system that promises no more than it has
      REQUIRE(mentions(e.what(), "the system refused host_bytes"));
    }
  for (const std::int64_t bytes : {std::int64_t{1} << 50, std::int64_t{1} << 60, INT64_MAX - kMiB})
    REQUIRE(mentions(refusal<BudgetError>([&] { use(c, bytes, 16); }), "host_bytes"));
}

TEST_CASE("lengths whose products no number holds are refused before room is made") {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const StoreShape& shape :
       {StoreShape{1, 1, 8, DType::float32}, StoreShape{kMost, 1, 8, DType::int8},
        StoreShape{1, kMost, kMost, DType::float32}, StoreShape{64, 8, 128, DType::bfloat16}})
    for (const std::int64_t max_block : {std::int64_t{1}, std::int64_t{1} << 31, kMost, INT64_MAX})
      for (const std::int64_t lease : {std::int64_t{1}, std::int64_t{1} << 31, kMost, INT64_MAX}) {
        std::int64_t least = 1;
        const std::string said =
            refusal<ConfigError>([&] { least = least_host_bytes(shape, max_block, lease); });
        INFO(said << " " << least);
        REQUIRE(least > 0);
        if (said != "no error") REQUIRE(mentions(said, "max_block"));
        REQUIRE(
            (said != "no error" || least / 8 >= std::max(max_block, lease) * shape.head_dim / 8));
      }
}

}  // namespace host_plan_test
