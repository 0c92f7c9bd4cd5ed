// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "episodic/base/error.hpp"
#include "store_harness.hpp"
#include "support/refusal.hpp"

using namespace store_test;

namespace disk_store_test {

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
    if (seed % 5 == 1)
      options.host_bytes += 4 << 20;  // more blocks are asked for than read at once
    options.read_depth = 1 + seed % 7;
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
        const std::int64_t layer = static_cast<std::int64_t>(rng()) % shape.n_lanes;
        const auto ids = account.some(rng, 4, lease_tokens);
        if (rng() % 2) store->prefetch(layer, ids);
        if (rng() % 4 == 0) store->prefetch((layer + 1) % shape.n_lanes, ids);
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

TEST_CASE("what a disk store hands out is what the host store does") {
  std::mt19937 rng(71);
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const StoreShape shape{2, 3, 16, dtype};
    const TempDir dir;
    Account account(shape, 33);
    const auto disk =
        make_disk_store(shape, options_for(shape, dir.path(), false, 33, 99, kWays[0]));
    const auto host = make_host_store(shape, 0, 33);
    account.append(*disk, rng, 60);
    for (std::size_t i = 0; i < account.events.size(); ++i) {
      host->append(std::span(&account.events[i].range, 1));
      account.write(*host, static_cast<EventId>(i));
    }
    std::vector<KvSegment> a, b;
    for (int i = 0; i < 200; ++i) {
      const auto ids = account.some(rng, 3, 99);
      disk->acquire(i % 2, ids, a);
      host->acquire(i % 2, ids, b);
      REQUIRE(a.size() == b.size());
      for (std::size_t e = 0; e < a.size(); ++e) {
        REQUIRE(a[e].length == b[e].length);
        REQUIRE(std::memcmp(a[e].key, b[e].key,
                            static_cast<std::size_t>(block_bytes(shape, a[e].length))) == 0);
      }
      disk->release(i % 2);
      host->release(i % 2);
    }
    REQUIRE(disk->counters().read_bytes > 0);
  }
}

TEST_CASE("the block longest unused leaves host memory first, pinned ones last") {
  const StoreShape shape{1, 1, 32, DType::float32};
  const TempDir dir;
  std::mt19937 rng(72);
  Account account(shape, 8);
  auto options = options_for(shape, dir.path(), false, 8, 8, kWays[0]);
  options.host_bytes += 40 << 10;
  const auto store = make_disk_store(shape, options);
  std::vector<TokenRange> ranges;
  for (std::int64_t i = 0; i < 200; ++i) ranges.push_back({8 * i, 8 * i + 8});
  for (const TokenRange& range : ranges) {
    store->append(std::span(&range, 1));
    account.events.push_back({range, 1, -1, 0, false, false});
    account.write(*store, static_cast<EventId>(account.events.size()) - 1);
    store->sync();
  }
  const auto room = store->counters().host_blocks;
  REQUIRE(room > 10);
  REQUIRE(room < 100);
  const auto hit = [&](EventId id) {
    const auto hits = store->counters().hits;
    account.acquire(*store, 0, {id}, 0);
    store->release(0);
    return store->counters().hits > hits;
  };
  // The last `room` events are there; those used again outlive the others.
  for (const EventId id : {200 - room, 200 - room + 2}) REQUIRE(hit(id));
  REQUIRE_FALSE(hit(0));
  REQUIRE_FALSE(hit(1));  // these two took the place of the two longest unused
  REQUIRE(hit(200 - room));
  REQUIRE(hit(200 - room + 2));
  REQUIRE_FALSE(hit(200 - room + 1));
  REQUIRE_FALSE(hit(200 - room + 3));
  store->pin(0, true);
  for (EventId id = 20; id < 20 + 3 * room; ++id) hit(id);
  REQUIRE(hit(0));
  store->pin(0, false);
  for (EventId id = 20; id < 20 + 3 * room; ++id) hit(id);
  REQUIRE_FALSE(hit(0));
  // More pinned than there is room for: the budget comes first, the oldest of them goes.
  for (EventId id = 0; id < 2 * room; ++id) {
    store->pin(id, true);
    hit(id);
  }
  REQUIRE(hit(2 * room - 1));
  REQUIRE(store->counters().host_blocks <= room);
}

TEST_CASE("every change of a byte and every truncation of a small store is found") {
  const StoreShape shape{2, 1, 3, DType::bfloat16};
  const TempDir dir;
  std::mt19937 rng(73);
  Account account(shape, 5);
  const auto options = options_for(shape, dir.path(), true, 5, 5, kWays[0]);
  StoreImage image;
  {
    const auto store = make_disk_store(shape, options);
    account.append(*store, rng, 4);
    store->committed(store->sync());
    store->forget(1);  // its bytes stay in the file, and are looked at as well
    store->forget(3);
    account.append(*store, rng, 3);
    store->forget(5);  // this one's never were committed
    image = store->sync();
    store->committed(image);
  }
  REQUIRE(image.segments.size() == 1);
  REQUIRE(damages(shape, dir.path(), image).empty());
  const auto path = dir.path() / segment_name(image.segments[0].id);
  const std::int64_t size = image.segments[0].bytes;
  REQUIRE(static_cast<std::int64_t>(std::filesystem::file_size(path)) == size);
  const io::Directory folder(io::system_calls(), dir.path());
  const std::string name = path.filename().string();
  std::vector<std::byte> content = folder.read(io::Kind::segment, name);
  io::File file = folder.open(io::Kind::segment, name, O_RDWR);
  for (std::int64_t i = 0; i < size; ++i) {
    std::byte& b = content[static_cast<std::size_t>(i)];
    const std::byte changed = b ^ std::byte(1u << (rng() % 8));
    file.write({&changed, 1}, i);
    if (damages(shape, dir.path(), image).empty()) FAIL("byte " << i);
    file.write({&b, 1}, i);
  }
  REQUIRE(damages(shape, dir.path(), image).empty());
  for (std::int64_t length = size - 1; length >= 0; length -= 61) {
    file.truncate(length);
    REQUIRE(mentions(damages(shape, dir.path(), image).at(0), "truncated"));
    REQUIRE_THROWS_AS(open_disk_store(shape, options, image), FileError);
  }
  file.write(content, 0);
  REQUIRE(damages(shape, dir.path(), image).empty());
  StoreShape other = shape;
  other.head_dim = 4;
  REQUIRE(mentions(refusal<FileError>([&] { open_disk_store(other, options, image); }),
                   "another shape"));
  std::filesystem::remove(path);
  REQUIRE(damages(shape, dir.path(), image).size() == 1);
  REQUIRE(
      mentions(refusal<FileError>([&] { open_disk_store(shape, options, image); }), path.string()));
}

TEST_CASE("forks share files by hard links, and neither changes what the other has committed") {
  const StoreShape shape{2, 2, 8, DType::float32};
  std::mt19937 rng(74);
  for (const bool compacts : {false, true}) {
    const TempDir dirs[2];
    Account accounts[2] = {{shape, 20}, {shape, 20}};
    StoreImage images[2];
    const auto options_of = [&](int i) {
      return options_for(shape, dirs[i].path(), true, 20, 40, kWays[i]);
    };
    std::unique_ptr<DiskStore> stores[2] = {make_disk_store(shape, options_of(0)), nullptr};
    accounts[0].append(*stores[0], rng, 30);
    images[0] = stores[0]->sync();
    stores[0]->committed(images[0]);
    images[1] = images[0];
    for (const SegmentRef& ref : images[0].segments)
      std::filesystem::create_hard_link(dirs[0].path() / segment_name(ref.id),
                                        dirs[1].path() / segment_name(ref.id));
    accounts[1].events = accounts[0].events;
    const StoreImage at_fork = images[0];
    const auto first = dirs[1].path() / segment_name(at_fork.segments[0].id);
    const auto committed_bytes = [&] {
      auto bytes = io::Directory(io::system_calls(), dirs[1].path())
                       .read(io::Kind::segment, first.filename().string());
      bytes.resize(static_cast<std::size_t>(at_fork.segments[0].bytes));
      return bytes;
    };
    const auto before = committed_bytes();
    stores[1] = open_disk_store(shape, options_of(1), images[1]);
    for (int round = 0; round < 6; ++round)
      for (int i : {0, 1}) {
        accounts[i].append(*stores[i], rng, 4);
        for (int k = 0; k < 3; ++k) {
          const auto id = static_cast<EventId>(rng() % accounts[i].events.size());
          stores[i]->forget(id);
          accounts[i].events[static_cast<std::size_t>(id)].forgotten = true;
        }
        if (compacts && i == 0) stores[i]->compact(0.05);
        images[i] = stores[i]->sync();
        stores[i]->committed(images[i]);
        REQUIRE(damages(shape, dirs[0].path(), images[0]).empty());
        REQUIRE(damages(shape, dirs[1].path(), images[1]).empty());
        REQUIRE(damages(shape, dirs[1].path(), at_fork).empty());
        REQUIRE(committed_bytes() == before);
      }
    const auto taken = [&](int i) {
      std::int64_t files = 0;
      for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(dirs[i].path()))
        ++files;
      return files;
    };
    for (int i : {0, 1}) {
      accounts[i].check_all(*stores[i], 9);
      stores[i].reset();
      REQUIRE(taken(i) == static_cast<std::int64_t>(images[i].segments.size()));
    }
    if (compacts) REQUIRE_FALSE(std::filesystem::exists(dirs[0].path() / first.filename()));
  }
}

TEST_CASE("the tail that a crash leaves is cut, unless another memory shares the file") {
  const StoreShape shape{1, 1, 8, DType::float32};
  std::mt19937 rng(75);
  for (const bool shared : {false, true}) {
    const TempDir dir;
    const auto options = options_for(shape, dir.path(), true, 9, 9, kWays[0]);
    Account account(shape, 9);
    auto store = make_disk_store(shape, options);
    account.append(*store, rng, 5);
    const StoreImage image = store->sync();
    store->committed(image);
    store.reset();
    const auto path = dir.path() / segment_name(image.segments[0].id);
    std::vector<std::byte> junk(10000, std::byte{0x5a});
    io::Directory(io::system_calls(), dir.path())
        .open(io::Kind::segment, path.filename().string(), O_WRONLY)
        .write(junk, image.segments[0].bytes);
    const auto orphan = dir.path() / segment_name(7);
    std::filesystem::copy_file(path, orphan);
    if (shared) std::filesystem::create_hard_link(path, dir.path() / "other");
    store = open_disk_store(shape, options, image);
    REQUIRE(static_cast<std::int64_t>(std::filesystem::file_size(path)) ==
            image.segments[0].bytes + (shared ? 10000 : 0));
    account.append(*store, rng, 5);
    account.check_all(*store, 1);
    store->committed(store->sync());
    REQUIRE_FALSE(std::filesystem::exists(orphan));
  }
}

TEST_CASE("layers are written by several threads at once, through a cache of a few blocks") {
  const StoreShape shape{8, 1, 16, DType::float32};
  const TempDir dir;
  std::mt19937 rng(76);
  Account account(shape, 30);
  const auto store =
      make_disk_store(shape, options_for(shape, dir.path(), false, 30, 60, kWays[2]));
  for (int round = 0; round < 20; ++round) {
    const auto ranges = account.next(rng, 3);
    const auto first = static_cast<EventId>(account.events.size());
    store->append(ranges);
    for (const TokenRange& range : ranges)
      account.events.push_back({range, static_cast<std::uint32_t>(rng()), -1, 0, false, false});
    std::vector<std::thread> threads;
    for (std::int64_t l = 0; l < shape.n_lanes; ++l)
      threads.emplace_back([&, l] {
        Source source(shape, 30);
        for (std::size_t i = 0; i < ranges.size(); ++i) {
          const EventId id = first + static_cast<EventId>(i);
          store->write(
              id, l, source.view(l, ranges[i], account.events[static_cast<std::size_t>(id)].salt));
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  account.check_all(*store, 1);
}

TEST_CASE("the disk's budget bounds what is taken, and its refusal names enough") {
  const StoreShape shape{2, 1, 16, DType::float32};
  std::mt19937 rng(77);
  const TempDir dir;
  Account account(shape, 64);
  auto options = options_for(shape, dir.path(), true, 64, 64, kWays[0]);
  options.disk_bytes = 3 << 20;
  std::string message;
  std::vector<TokenRange> more;
  {
    const auto store = make_disk_store(shape, options);
    while (message.empty()) {
      more = account.next(rng, 3);
      const StoreCounters before = store->counters();
      try {
        store->append(more);
      } catch (const BudgetError& e) {
        message = e.what();
        REQUIRE(store->counters().events == before.events);
        REQUIRE(store->counters().disk_bytes <= options.disk_bytes);
        break;
      }
      for (const TokenRange& range : more) {
        account.events.push_back({range, 3, -1, 0, false, false});
        account.write(*store, static_cast<EventId>(account.events.size()) - 1);
      }
      if (rng() % 8 == 0) store->committed(store->sync());
      REQUIRE(store->counters().disk_bytes <= options.disk_bytes);
      REQUIRE(blocks_of(dir.path()) <= options.disk_bytes);
    }
    // Nearly all of it was used.
    REQUIRE(store->counters().bytes_used > options.disk_bytes * 7 / 10);
    account.check_all(*store, 1);
    // Room that is given back is used again.
    for (EventId id = 0; id < 20; ++id) {
      store->forget(id);
      account.events[static_cast<std::size_t>(id)].forgotten = true;
    }
    account.check_all(*store, 2);
  }
  REQUIRE(mentions(message, "disk_bytes = 3145728"));
  const std::string mark = "set disk_bytes to at least ";
  REQUIRE(mentions(message, mark));
  const TempDir again;
  options.dir = again.path();
  options.disk_bytes = std::stoll(message.substr(message.find(mark) + mark.size()));
  const auto store = make_disk_store(shape, options);
  std::vector<TokenRange> all;
  for (const Expected& e : account.events) all.push_back(e.range);
  all.insert(all.end(), more.begin(), more.end());
  store->append(all);
  std::int64_t tokens = 0;
  for (const TokenRange& range : all) tokens += range.size();
  options.dir = dir.path();
  options.disk_bytes = 0;
  REQUIRE(disk_bytes_needed(shape, static_cast<std::int64_t>(all.size()), tokens) <=
          store->counters().disk_bytes + 8192 * 4 +
              128 * 2 * static_cast<std::int64_t>(all.size()));
  options.host_bytes = least_host_bytes(shape, 64, 64) - 1;
  REQUIRE(mentions(refusal<BudgetError>([&] { make_disk_store(shape, options); }),
                   std::to_string(options.host_bytes + 1)));
  options.host_bytes += 1;
  for (const std::int64_t depth : {0, 1025}) {
    options.read_depth = depth;
    REQUIRE(mentions(refusal<ConfigError>([&] { make_disk_store(shape, options); }), "read_depth"));
  }
  options.read_depth = 1;
  options.disk_bytes = 4096;
  REQUIRE(mentions(refusal<BudgetError>([&] { make_disk_store(shape, options); }), "disk_bytes"));
}

TEST_CASE("leases, bad arguments and incomplete events of a disk store") {
  const StoreShape shape{2, 1, 4, DType::float32};
  const TempDir dir;
  std::mt19937 rng(78);
  Account account(shape, 8);
  const auto store = make_disk_store(shape, options_for(shape, dir.path(), false, 8, 16, kWays[0]));
  account.append(*store, rng, 3);
  std::vector<KvSegment> out;
  const std::vector<EventId> two{1, 0}, none, bad{0, 3};
  store->begin_step(4);
  store->acquire(0, two, out);
  REQUIRE_THROWS_AS(store->acquire(0, two, out), Error);
  REQUIRE_THROWS_AS(store->truncate(1), Error);
  REQUIRE_THROWS_AS(store->forget(2), Error);
  store->acquire(1, none, out);
  REQUIRE(out.empty());
  store->release(1);
  store->release(0);
  REQUIRE_THROWS_AS(store->release(0), Error);
  REQUIRE_THROWS_AS(store->acquire(2, two, out), DataError);
  REQUIRE_THROWS_AS(store->acquire(0, bad, out), DataError);
  REQUIRE_THROWS_AS(store->acquire(0, std::vector<EventId>(40, 0), out), BudgetError);
  REQUIRE_THROWS_AS(store->truncate(4), DataError);
  REQUIRE_THROWS_AS(store->compact(0), ConfigError);
  const TokenRange large[] = {{100, 109}};
  REQUIRE_THROWS_AS(store->append(large), DataError);
  const auto next = account.next(rng, 1);
  store->append(next);
  REQUIRE(mentions(refusal([&] { store->acquire(0, std::vector<EventId>{3}, out); }),
                   "lane 0 of event 3 was never written"));
  REQUIRE(mentions(refusal([&] { store->sync(); }), "lane 0 of event 3 was never written"));
  account.events.push_back({next[0], 1, -1, 0, false, false});
  account.write(*store, 3);
  account.events.back().salt = 2;  // written anew before anything was made of it
  account.write(*store, 3);
  account.acquire(*store, 0, {3}, 4);
  REQUIRE_THROWS_AS(account.write(*store, 3), Error);
  store->release(0);
  const std::uint64_t digest = store->digest(3);
  store->sync();
  REQUIRE(store->digest(3) == digest);
  REQUIRE(store->digest(2) != digest);
}

}  // namespace disk_store_test
