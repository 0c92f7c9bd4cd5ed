// SPDX-License-Identifier: Apache-2.0
#include "episodic/timeline/event_table.hpp"

#include <random>

#include "support/test.hpp"

using namespace episodic;

namespace {

// The closing rule (docs/papers.md), restated: boundaries in a list, pieces taken in turn.
void close_reference(std::int64_t& start, std::int64_t limit, std::int64_t min_block,
                     std::int64_t max_block, const std::vector<std::int64_t>& boundaries,
                     std::vector<TokenRange>& events) {
  for (const std::int64_t b : boundaries) {
    if (b <= start || b >= limit) continue;
    for (; b - start >= max_block; start += max_block) events.push_back({start, start + max_block});
    if (b - start < min_block) continue;
    events.push_back({start, b});
    start = b;
  }
  for (; start + max_block <= limit; start += max_block)
    events.push_back({start, start + max_block});
}

}  // namespace

TEST_CASE("events tile the past, keep their sizes in bounds, and follow the rule") {
  std::mt19937 rng(21);
  for (int seed = 0; seed < 200; ++seed) {
    const std::int64_t n = 1 + static_cast<std::int64_t>(rng() % 300);
    const std::int64_t n_init = static_cast<std::int64_t>(rng() % 10);
    const std::int64_t min_block = 1 + static_cast<std::int64_t>(rng() % 8);
    const std::int64_t max_block =
        min_block + (seed % 3 ? static_cast<std::int64_t>(rng() % 20) : 0);
    const std::int64_t n_local = 1 + static_cast<std::int64_t>(rng() % 40);
    std::vector<std::uint8_t> flag(static_cast<std::size_t>(n));
    std::vector<std::int64_t> boundaries;
    for (std::int64_t t = 0; t < n; ++t)
      if ((flag[static_cast<std::size_t>(t)] = rng() % 7 == 0)) boundaries.push_back(t);

    EventTable table(n_init, min_block, max_block);
    std::vector<TokenRange> expected;
    std::int64_t start = n_init;
    for (std::int64_t so_far = 0; so_far < n;) {
      so_far = std::min(n, so_far + 1 + static_cast<std::int64_t>(rng() % 30));
      const std::int64_t before = table.size();
      const std::int64_t limit = so_far - n_local;
      const std::int64_t closed = table.close_up_to(limit, [&](std::int64_t t) {
        REQUIRE(t > start);  // asked for pending tokens only
        REQUIRE(t < limit);
        return flag[static_cast<std::size_t>(t)] != 0;
      });
      close_reference(start, limit, min_block, max_block, boundaries, expected);
      REQUIRE(table.all() == expected);
      REQUIRE(table.size() == before + closed);
      REQUIRE(table.pending_start() == start);
      std::int64_t at = n_init;
      for (const TokenRange& e : table.all()) {
        REQUIRE(e.start == at);
        REQUIRE(e.size() >= min_block);
        REQUIRE(e.size() <= max_block);
        at = e.end;
      }
      REQUIRE(at == table.pending_start());
      REQUIRE(table.tokens() == at - n_init);
      REQUIRE(limit - at < max_block);
    }
    const std::int64_t half = table.size() / 2;
    EventTable cut = table;
    cut.truncate(half);
    REQUIRE(cut.size() == half);
    REQUIRE(cut.pending_start() == (half ? table[half - 1].end : n_init));
    cut.close_up_to(n - n_local,
                    [&](std::int64_t t) { return flag[static_cast<std::size_t>(t)] != 0; });
    REQUIRE(cut.tokens() >= 0);
  }
}

TEST_CASE("a table's copies share its events and add their own") {
  EventTable table(2, 1, 4);
  std::vector<TokenRange> expected;
  for (std::int64_t start = 2, i = 0; i < 50; start = expected.back().end, ++i) {
    expected.push_back({start, start + 1 + i % 4});
    table.append(expected.back());
  }
  table.share();
  EventTable copy = table;
  CHECK(&copy[49] == &table[49]);
  copy.append({copy.pending_start(), copy.pending_start() + 3});
  CHECK(copy.size() == 51);
  CHECK(table.size() == 50);
  CHECK(table.all() == expected);
  // What holds a token, in what is shared and behind it.
  for (const EventTable* t : {&table, &copy})
    for (std::int64_t token = 0; token < t->pending_start() + 2; ++token) {
      std::int64_t first = 0;
      while (first < t->size() && (*t)[first].end <= token) ++first;
      REQUIRE(t->first_behind(token) == first);
    }
  // Cut behind, at and before the end of what is shared.
  for (const std::int64_t n : {51, 50, 20, 0}) {
    copy.truncate(n);
    CHECK(copy.size() == n);
    CHECK(copy.pending_start() == (n == 51  ? expected.back().end + 3
                                   : n == 0 ? 2
                                            : expected[static_cast<std::size_t>(n) - 1].end));
  }
  CHECK(table.all() == expected);
}

TEST_CASE("a table's line stays while events are added, and for no longer") {
  EventTable table(2, 1, 8);
  const std::uint64_t line = table.line();
  CHECK(line != 0);
  for (int i = 0; i < 20; ++i) table.append({table.pending_start(), table.pending_start() + 2});
  table.share();
  table.truncate(20);  // takes nothing away
  table.close_up_to(table.pending_start() + 9, [](std::int64_t) { return false; });
  CHECK(table.line() == line);
  // tables that may go on otherwise
  EventTable copy = table, assigned;
  assigned = table;
  CHECK(copy.line() != line);
  CHECK(assigned.line() != line);
  CHECK(assigned.line() != copy.line());
  CHECK(EventTable(2, 1, 8).line() != line);
  // back, and to as many events again
  const std::int64_t events = table.size();
  table.truncate(events - 1);
  const std::uint64_t then = table.line();
  CHECK(then != line);
  table.append({table.pending_start(), table.pending_start() + 8});
  CHECK(table.size() == events);
  CHECK(table.line() == then);
  ByteWriter bytes;
  table.save(bytes);
  ByteReader from(bytes.bytes(), "a test");
  table.load(from);
  CHECK(table.line() != then);
}
