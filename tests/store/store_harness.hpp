// SPDX-License-Identifier: Apache-2.0
#pragma once
// A disk store beside a plain account of what it must hold.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "episodic/store/disk_store.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

namespace store_test {

using namespace episodic;

/// Blocks that the file system has given to the files of a folder, in bytes.
inline std::int64_t blocks_of(const std::filesystem::path& dir) {
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0) bytes += info.st_blocks * 512;
  }
  return bytes;
}

/// Keys and values that depend on everything: an event stored anew has others.
class Source {
 public:
  Source(const StoreShape& shape, std::int64_t max_block)
      : shape_(shape), capacity_(max_block + 3) {}

  RingView view(std::int64_t layer, const TokenRange& range, std::uint32_t salt) {
    const std::int64_t row = shape_.head_dim + 1, head = capacity_ * row + 3;
    for (auto* side : {&key_, &value_}) {
      side->assign(static_cast<std::size_t>(shape_.n_kv_heads * head), -1.0f);
      std::uint32_t x = static_cast<std::uint32_t>(layer * 977 + range.start * 31) + salt * 7919u +
                        (side == &value_ ? 1u : 0u);
      for (std::int64_t g = 0; g < shape_.n_kv_heads; ++g)
        for (std::int64_t t = range.start; t < range.end; ++t)
          for (std::int64_t c = 0; c < shape_.head_dim; ++c) {
            x = x * 1664525u + 1013904223u;
            (*side)[static_cast<std::size_t>(g * head + t % capacity_ * row + c)] =
                static_cast<float>(static_cast<std::int32_t>(x)) * 1e-9f;
          }
    }
    return {key_.data(), value_.data(), capacity_, head, row};
  }

  std::vector<std::byte> block(std::int64_t layer, const TokenRange& range, std::uint32_t salt) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(block_bytes(shape_, range.size())));
    encode_block(shape_, range, view(layer, range, salt), bytes.data());
    return bytes;
  }

 private:
  StoreShape shape_;
  std::int64_t capacity_;
  std::vector<float> key_, value_;
};

struct Expected {
  TokenRange range;
  std::uint32_t salt = 0;
  std::int64_t last_recall = -1, recalls = 0;
  bool pinned = false, forgotten = false;
};

/// The account, and a store that is driven along with it.
class Account {
 public:
  Account(const StoreShape& of, std::int64_t longest)
      : shape(of), max_block(longest), source(of, longest) {}

  std::vector<TokenRange> next(std::mt19937& rng, std::int64_t n) const {
    std::vector<TokenRange> out;
    std::int64_t at = events.empty() ? 5 : events.back().range.end;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto size =
          1 + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(max_block));
      out.push_back({at, at + size});
      at += size;
    }
    return out;
  }

  void write(EventStore& store, EventId event) {
    const Expected& e = events[static_cast<std::size_t>(event)];
    for (std::int64_t l = 0; l < shape.n_lanes; ++l)
      store.write(event, l, source.view(l, e.range, e.salt));
  }

  void append(EventStore& store, std::mt19937& rng, std::int64_t n) {
    const auto ranges = next(rng, n);
    store.append(ranges);
    for (const TokenRange& range : ranges) {
      events.push_back({range, static_cast<std::uint32_t>(rng()), -1, 0, false, false});
      write(store, static_cast<EventId>(events.size()) - 1);
    }
  }

  /// Whether a segment is that layer of that event, bit by bit.
  bool right(const KvSegment& s, EventId event, std::int64_t layer) {
    const Expected& e = events[static_cast<std::size_t>(event)];
    const std::vector<std::byte> bytes = source.block(layer, e.range, e.salt);
    const KvSegment expected = segment_of(shape, e.range, bytes.data());
    return s.length == expected.length && s.first_token == expected.first_token &&
           s.head_stride == expected.head_stride && s.row_stride == expected.row_stride &&
           s.dtype == expected.dtype && s.position == expected.position &&
           static_cast<const std::byte*>(s.value) - static_cast<const std::byte*>(s.key) ==
               static_cast<const std::byte*>(expected.value) - bytes.data() &&
           std::memcmp(s.key, bytes.data(), bytes.size()) == 0;
  }

  /// Acquires, compares, counts; the lease is left to the caller.
  void acquire(EventStore& store, std::int64_t layer, const std::vector<EventId>& ids,
               std::int64_t step) {
    store.acquire(layer, ids, segments);
    REQUIRE(segments.size() == ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!right(segments[i], ids[i], layer))
        FAIL("event " << ids[i] << ", layer " << layer << " came back with other bytes");
      Expected& e = events[static_cast<std::size_t>(ids[i])];
      e.last_recall = step;
      ++e.recalls;
    }
  }

  /// Up to `most` events that are there, `max_block` tokens each at most in `tokens` together.
  std::vector<EventId> some(std::mt19937& rng, std::size_t most, std::int64_t tokens) const {
    std::vector<EventId> out;
    for (std::size_t tries = 0; tries < 2 * most && !events.empty() && out.size() < most; ++tries) {
      const auto id = static_cast<EventId>(rng() % events.size());
      const Expected& e = events[static_cast<std::size_t>(id)];
      if (e.forgotten || e.range.size() > tokens) continue;
      tokens -= e.range.size();
      out.push_back(id);
    }
    return out;
  }

  void check_all(DiskStore& store, std::int64_t step) {
    store.begin_step(step);
    std::int64_t live = 0, bytes = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const auto id = static_cast<EventId>(i);
      REQUIRE(store.last_recall(id) == events[i].last_recall);
      REQUIRE(store.recalls(id) == events[i].recalls);
      REQUIRE(store.pinned(id) == events[i].pinned);
      if (events[i].forgotten) {
        REQUIRE_THROWS_AS(store.acquire(0, std::vector<EventId>{id}, segments), DataError);
        continue;
      }
      ++live;
      bytes += shape.n_lanes * block_bytes(shape, events[i].range.size());
      for (std::int64_t l = 0; l < shape.n_lanes; ++l) {
        acquire(store, l, {id}, step);
        store.release(l);
      }
    }
    REQUIRE(store.counters().events == live);
    REQUIRE(store.counters().bytes_used == bytes);
  }

  StoreShape shape;
  std::int64_t max_block;
  Source source;
  std::vector<Expected> events;
  std::vector<KvSegment> segments;
};

inline std::vector<std::string> damages(const StoreShape& shape, const std::filesystem::path& dir,
                                        const StoreImage& image) {
  std::vector<std::string> out;
  const std::int64_t n =
      verify_segments(shape, dir, image, io::system_calls(),
                      [&](const std::filesystem::path& path, const std::string& what) {
                        out.push_back(path.string() + ": " + what);
                      });
  REQUIRE(n == static_cast<std::int64_t>(out.size()));
  return out;
}

}  // namespace store_test
