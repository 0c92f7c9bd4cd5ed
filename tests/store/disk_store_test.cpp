// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "episodic/base/error.hpp"
#include "store_harness.hpp"
#include "support/refusal.hpp"

using namespace store_test;

namespace {

struct Way {
  ReadEngine engine;
  DirectIo direct;
};
constexpr Way kWays[] = {{ReadEngine::threads, DirectIo::off},
                         {ReadEngine::threads, DirectIo::on},
                         {ReadEngine::automatic, DirectIo::off},
                         {ReadEngine::automatic, DirectIo::on}};

DiskStoreOptions options_for(const StoreShape& shape, const std::filesystem::path& dir, bool keep,
                             std::int64_t max_block, std::int64_t lease_tokens, Way way) {
  DiskStoreOptions o;
  o.dir = dir;
  o.keep = keep;
  o.max_block = max_block;
  o.lease_tokens = lease_tokens;
  o.host_bytes = least_host_bytes(shape, max_block, lease_tokens);
  o.engine = way.engine;
  o.direct = way.direct;
  return o;
}

}  // namespace

TEST_CASE("a random life of a disk store agrees with a plain account") {
  std::int64_t evictions = 0;
  for (unsigned seed = 0; seed < 24; ++seed) {
    std::mt19937 rng(seed);
    const StoreShape shape{1 + seed % 3, 1 + (seed / 2) % 3, 3 + 5 * (seed % 7),
                           seed % 2 ? DType::bfloat16 : DType::float32};
    const std::int64_t max_block = 1 + 7 * (seed % 5), lease_tokens = 3 * max_block;
    const bool keep = seed % 3 != 0;
    const TempDir dir;
    auto options = options_for(shape, dir.path(), keep, max_block, lease_tokens, kWays[seed % 4]);
    if (seed % 3 == 1) options.host_bytes += 1 << 15;
    options.disk_bytes = 6 << 20;
    auto store = make_disk_store(shape, options);
    Account account(shape, max_block);
    StoreImage image;
    std::vector<Expected> at_sync;
    bool synced = false;
    std::int64_t step = 0;
    for (int op = 0; op < 400; ++op) {
      CAPTURE(seed, op);
      store->begin_step(++step);
      const auto dice = rng() % 100;
      const auto n = static_cast<std::int64_t>(account.events.size());
      const auto any = [&] { return static_cast<EventId>(rng() % account.events.size()); };
      if (dice < 35) {
        account.append(*store, rng, 1 + static_cast<std::int64_t>(rng() % 4));
      } else if (dice < 75) {
        const std::int64_t layer = static_cast<std::int64_t>(rng()) % shape.n_layers;
        const auto ids = account.some(rng, 4, lease_tokens);
        if (rng() % 2) store->prefetch(layer, ids);
        if (rng() % 4 == 0) store->prefetch((layer + 1) % shape.n_layers, ids);
        account.acquire(*store, layer, ids, step);
        store->release(layer);
      } else if (dice < 80 && n > 0) {
        const std::int64_t left = n - static_cast<std::int64_t>(rng() % 6);
        store->truncate(std::max<std::int64_t>(left, 0));
        account.events.resize(static_cast<std::size_t>(std::max<std::int64_t>(left, 0)));
      } else if (dice < 85 && n > 0) {
        const EventId id = any();
        store->forget(id);
        account.events[static_cast<std::size_t>(id)].forgotten = true;
      } else if (dice < 89 && n > 0) {
        const EventId id = any();
        const bool pinned = rng() % 2;
        store->pin(id, pinned);
        account.events[static_cast<std::size_t>(id)].pinned = pinned;
      } else if (dice < 93) {
        image = store->sync();
        if (keep) REQUIRE(damages(shape, dir.path(), image).empty());
        if (rng() % 2) {
          store->committed(image);
          at_sync = account.events;
          synced = true;
        }
      } else if (dice < 95) {
        store->compact(0.3);
      } else if (keep && synced && dice < 98) {
        image = store->sync();
        store->committed(image);
        ByteWriter bytes;
        image.save(bytes);
        store.reset();
        ByteReader reader(bytes.bytes(), "image");
        store = open_disk_store(shape, options, StoreImage::load(reader));
        reader.finish();
      }
      const StoreCounters c = store->counters();
      REQUIRE(c.bytes_reserved <= options.host_bytes);
      REQUIRE(c.disk_bytes <= options.disk_bytes);
      if (keep) REQUIRE(blocks_of(dir.path()) <= options.disk_bytes);
    }
    account.check_all(*store, ++step);
    evictions += store->counters().evictions;
    REQUIRE(store->counters().read_errors == 0);
    if (!keep) REQUIRE(std::filesystem::is_empty(dir.path()));
  }
  REQUIRE(evictions > 1000);
}
