// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every tier of blocks does, whatever it is made of.
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "episodic/store/block_tier.hpp"

namespace tier_contract {

using episodic::BlockHash;
using episodic::BlockTier;
using Bytes = BlockTier::Bytes;

/// A tier that is empty at first.
struct Setting {
  /// As another machine has it.
  std::function<std::shared_ptr<BlockTier>()> connect;
  std::function<void(const BlockHash&)> damage;  ///< flips a bit of a block
  std::function<void()> lose, find;              ///< the server goes, and comes back
};

inline Bytes bytes_of(std::size_t n, unsigned seed) {
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>((seed = seed * 1664525 + 1013904223) >> 24);
  return bytes;
}

inline Bytes bytes_of(const std::string& text) {
  Bytes bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

inline void check_blocks(const Setting& setting) {
  const auto here = setting.connect(), there = setting.connect();
  std::vector<Bytes> values;
  std::vector<BlockHash> names;
  std::vector<BlockTier::Block> blocks;
  for (const std::size_t n : {0, 1, 63, 4096, 262144, 1 << 20})
    values.push_back(bytes_of(n, static_cast<unsigned>(n)));
  for (const Bytes& value : values) {
    names.push_back(BlockHash::of(value));
    blocks.push_back({names.back(), value});
  }
  CHECK(here->get({}).empty());
  here->put({});
  CHECK(here->has(names) == std::vector<bool>(names.size(), false));
  CHECK(there->get(names) == std::vector<std::optional<Bytes>>(names.size()));
  CHECK(mentions(refusal([&] { get_blocks(*here, names); }),
                 here->where() + ": block " + names[0].text() + " is missing"));
  here->put(std::span(blocks).subspan(1));
  std::vector<bool> expected(names.size(), true);
  expected[0] = false;
  CHECK(there->has(names) == expected);
  there->put(blocks);  // most are there already
  CHECK((get_blocks(*here, names) == values));
  // What was not put or asked for lately.
  CHECK(here->unused(3600).empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(2200));
  here->has(std::span(names).first(2));
  std::vector<BlockHash> old = there->unused(2), expected_old(names.begin() + 2, names.end());
  std::sort(old.begin(), old.end());
  std::sort(expected_old.begin(), expected_old.end());
  CHECK((old == expected_old));
  setting.damage(names[3]);
  CHECK(mentions(refusal([&] { get_blocks(*here, names); }),
                 "block " + names[3].text() + " is damaged"));
  here->drop(std::span(names).subspan(3, 1));
  here->drop(std::span(names).subspan(3, 1));
  CHECK(!there->get(names)[3]);
  there->put(std::span(blocks).subspan(3, 1));
  CHECK((get_blocks(*here, names) == values));
}

inline void check_heads(const Setting& setting) {
  const auto here = setting.connect(), there = setting.connect();
  CHECK(here->head("a").version == 0);
  CHECK_FALSE(here->exchange("a", 3, bytes_of("x")));
  CHECK(here->exchange("a", 0, bytes_of("one")));
  CHECK_FALSE(there->exchange("a", 0, bytes_of("other")));
  CHECK(there->head("a").version == 1);
  CHECK(there->head("a").bytes == bytes_of("one"));
  CHECK(there->exchange("a", 1, bytes_of("two")));
  CHECK_FALSE(here->exchange("a", 1, bytes_of("late")));
  CHECK(here->head("a").bytes == bytes_of("two"));
  CHECK(here->head("b").version == 0);
  CHECK(here->exchange("b", 0, bytes_of("b")));
  CHECK(here->exchange("ended", 0, bytes_of("x")));
  std::vector<std::string> names = here->names();
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"a", "b", "ended"});
  // Where nothing stands any more, who read the last head is late, and a new one may begin.
  CHECK(there->exchange("ended", 1, {}));
  CHECK(here->head("ended").bytes.empty());
  CHECK(here->head("ended").version == 2);
  names = here->names();
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(here->exchange("ended", 1, bytes_of("late")));
  CHECK_FALSE(here->exchange("ended", 0, bytes_of("late")));
  here->unused(3600);  // not forgotten yet
  CHECK(there->head("ended").version == 2);
  CHECK(there->exchange("ended", 2, bytes_of("anew")));
  CHECK(here->head("ended").bytes == bytes_of("anew"));
  CHECK(here->head("ended").version == 3);
  // Of many who count at once, none counts over another.
  std::vector<std::thread> threads;
  constexpr int kThreads = 4, kTimes = 10;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      const auto mine = setting.connect();
      for (int done = 0; done < kTimes;) {
        const BlockTier::Head head = mine->head("count");
        const std::size_t n = head.bytes.size();
        if (mine->exchange("count", head.version, Bytes(n + 1))) ++done;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(here->head("count").bytes.size() == kThreads * kTimes);
  CHECK(here->head("count").version == kThreads * kTimes);
}

inline void check_leases(const Setting& setting) {
  const auto here = setting.connect(), there = setting.connect();
  const BlockTier::Lease a{"aa", "process 1 on one", 0.4}, b{"bb", "process 2 on two", 30};
  CHECK_FALSE(here->take_lease("m", a));
  CHECK_FALSE(here->take_lease("other", a));
  const auto holder = there->take_lease("m", b);
  REQUIRE(holder);
  CHECK(holder->holder == a.holder);
  CHECK(holder->token == a.token);
  for (int i = 0; i < 4; ++i) {  // renewed, it lasts longer than its time
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    CHECK_FALSE(here->take_lease("m", a));
  }
  CHECK(there->take_lease("m", b));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK_FALSE(there->take_lease("m", b));
  const auto taken = here->take_lease("m", a);
  REQUIRE(taken);
  CHECK(taken->holder == b.holder);
  here->end_lease("m", a.token);  // not its own any more
  CHECK(here->take_lease("m", a));
  there->end_lease("m", b.token);
  CHECK_FALSE(here->take_lease("m", a));
  here->end_lease("m", a.token);
  // Of many who want one, one has it.
  std::atomic<int> have = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const auto mine = setting.connect();
      have += !mine->take_lease("wanted", {std::to_string(t), "somebody", 30});
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(have == 1);
}

inline void check_loss(const Setting& setting) {
  const auto tier = setting.connect();
  const Bytes value = bytes_of(1000, 7);
  const BlockHash name = BlockHash::of(value);
  const BlockTier::Block block{name, value};
  tier->put({&block, 1});
  REQUIRE(tier->exchange("m", 0, value));
  setting.lose();
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& call : std::vector<std::function<void()>>{[&] {
                                                               tier->get({&name, 1});
                                                             },
                                                             [&] {
                                                               tier->has({&name, 1});
                                                             },
                                                             [&] {
                                                               tier->put({&block, 1});
                                                             },
                                                             [&] {
                                                               tier->drop({&name, 1});
                                                             },
                                                             [&] { tier->head("m"); },
                                                             [&] { tier->exchange("m", 1, value); },
                                                             [&] {
                                                               tier->take_lease("m", {"t", "h", 1});
                                                             }})
    CHECK(refusal<episodic::FileError>(call) != "no error");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  setting.find();
  CHECK((get_blocks(*tier, {&name, 1}).front() == value));
  CHECK((tier->head("m").bytes == value));
  CHECK(tier->exchange("m", 1, bytes_of("next")));
}

}  // namespace tier_contract
