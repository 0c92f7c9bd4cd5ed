// SPDX-License-Identifier: Apache-2.0
// Sums, gathers, broadcasts and outcomes of ranks that are threads, against plain loops.
#include "episodic/group/group.hpp"

#include <algorithm>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/recall/group_best.hpp"
#include "support/ranks.hpp"
#include "support/test.hpp"

using namespace episodic;
using episodic_test::message_of;
using episodic_test::run_ranks;
using episodic_test::try_ranks;

namespace {

using namespace std::chrono_literals;

template <class T>
std::vector<T> numbers_of(int rank, std::int64_t n) {
  std::mt19937 rng(static_cast<unsigned>(7 + rank));
  std::normal_distribution<T> normal;
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& value : x) value = normal(rng);
  return x;
}

template <class T>
void check_sums(int size, std::int64_t n) {
  std::vector<T> expected = numbers_of<T>(0, n);
  for (int r = 1; r < size; ++r) {
    const std::vector<T> more = numbers_of<T>(r, n);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += more[i];
  }
  run_ranks(size, [&](const std::shared_ptr<Group>& group) {
    std::vector<T> x = numbers_of<T>(group->rank(), n);
    group->sum(std::span<T>(x));
    // in the order of ranks, to the bit
    if (x != expected) throw Error("another sum");
    const std::int64_t bytes = Group::sum_bytes(n, sizeof(T), size, group->rank());
    if (group->counters().bytes != bytes) throw Error("other bytes");
  });
}

}  // namespace

TEST_CASE("group: sums are those of a loop over ranks, and their bytes those of the formula") {
  const int size = GENERATE(1, 2, 3, 4);
  const std::int64_t n = GENERATE(0, 1, 3, 1000, 1025, 20011);
  check_sums<float>(size, n);
  check_sums<double>(size, n);
}

TEST_CASE("group: the bytes of a sum, by hand") {
  CHECK(Group::sum_bytes(1000, 4, 1, 0) == 0);
  CHECK(Group::sum_bytes(1 << 20, 4, 2, 1) == 4 << 20);
  CHECK(Group::sum_bytes(1 << 20, 4, 4, 2) == 6 << 20);  // 2 (n - 1) / n of the array
  CHECK(Group::sum_bytes(1024, 4, 4, 0) == 3 * 4096);    // few bytes go at once
}

TEST_CASE("group: gather and broadcast give every rank what each and what one of them has") {
  const int size = GENERATE(1, 2, 4);
  run_ranks(size, [&](const std::shared_ptr<Group>& group) {
    const std::int32_t mine[2] = {group->rank(), 10 * group->rank()};
    std::vector<std::int32_t> all(static_cast<std::size_t>(2 * size), -1);
    group->gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < size; ++r)
      if (all[static_cast<std::size_t>(2 * r)] != r ||
          all[static_cast<std::size_t>(2 * r + 1)] != 10 * r)
        throw Error("another gather");
    double x = group->rank() + 0.5;
    group->broadcast(std::as_writable_bytes(std::span(&x, 1)), size - 1);
    if (x != size - 0.5) throw Error("another broadcast");
    group->barrier();
    const bool first = group->rank() == 0;
    if (group->of_first(first ? std::string("text of the first") : std::string()) !=
        "text of the first")
      throw Error("another text");
    if (group->of_first(std::vector<std::int64_t>(first ? 3 : 1, 7)) !=
        std::vector<std::int64_t>{7, 7, 7})
      throw Error("other numbers");
  });
}

TEST_CASE("group: the best of all ranks are those of one list") {
  const int size = GENERATE(1, 2, 3);
  const std::int64_t k = GENERATE(0, 1, 5, 100);
  std::mt19937 rng(3);
  std::vector<ScoredEvent> all;
  for (EventId e = 0; e < 40; ++e)
    all.push_back({e, static_cast<float>(rng() % 7)});  // many that tie
  const auto before = [](const ScoredEvent& a, const ScoredEvent& b) {
    return a.score != b.score ? a.score > b.score : a.event < b.event;
  };
  std::vector<ScoredEvent> expected = all;
  std::sort(expected.begin(), expected.end(), before);
  expected.resize(std::min(expected.size(), static_cast<std::size_t>(k)));
  run_ranks(size, [&](const std::shared_ptr<Group>& group) {
    std::vector<ScoredEvent> list;
    for (const ScoredEvent& e : all)
      if (e.event % size == group->rank()) list.push_back(e);
    std::sort(list.begin(), list.end(), before);
    list.resize(std::min(list.size(), static_cast<std::size_t>(k)));
    merge_best(*group, k, list);
    const bool same = std::equal(list.begin(), list.end(), expected.begin(), expected.end(),
                                 [](const ScoredEvent& a, const ScoredEvent& b) {
                                   return a.event == b.event && a.score == b.score;
                                 });
    if (!same) throw Error("another list");
  });
}

TEST_CASE("group: a rank that fails within an act takes the others out of it, and all go on") {
  const int size = GENERATE(2, 3, 4);
  const auto errors = try_ranks(size, [&](const std::shared_ptr<Group>& group) {
    std::vector<float> x(5000, 1.0f);
    std::string said;
    try {
      as_one(group.get(), [&] {
        group->sum(std::span<float>(x));
        if (group->rank() == 1) throw DataError("rank one has no more room");
        group->sum(std::span<float>(x));
        group->sum(std::span<float>(x));
      });
      said = "nothing";
    } catch (const Error& e) {
      said = e.what();
    }
    const std::string expected =
        group->rank() == 1 ? "rank one has no more room"
                           : "rank 1 of " + std::to_string(size) + ": rank one has no more room";
    if (said != expected) throw Error("it said: " + said);
    // the next act finds no left-overs
    std::fill(x.begin(), x.end(), 1.0f);
    as_one(group.get(), [&] { group->sum(std::span<float>(x)); });
    if (x[17] != static_cast<float>(size)) throw Error("another sum behind it");
  });
  for (const auto& error : errors) CHECK(message_of(error).empty());
}

TEST_CASE("group: an act that all ranks refuse alike gives each its own error") {
  const auto errors = try_ranks(2, [&](const std::shared_ptr<Group>& group) {
    as_one(group.get(), [] { throw ConfigError("nobody wants it"); });
  });
  for (const auto& error : errors) CHECK(message_of(error) == "nobody wants it");
}

TEST_CASE("group: an act that ends by itself is not ended again") {
  run_ranks(2, [](const std::shared_ptr<Group>& group) {
    const int x = as_one(group.get(), [&] {
      group->agree();
      return 3;
    });
    if (x != 3 || group->agreed() != 1) throw Error("agreed otherwise");
    if (as_one(nullptr, [] { return 4; }) != 4) throw Error("one process");
  });
}

TEST_CASE("group: a rank that has ended gives every other one error within the time-out") {
  const int size = GENERATE(2, 3);
  const auto start = std::chrono::steady_clock::now();
  const auto errors = try_ranks(
      size,
      [&](const std::shared_ptr<Group>& group) {
        if (group->rank() == size - 1) return;
        std::vector<double> x(10);
        try {
          as_one(group.get(), [&] { group->sum(std::span<double>(x)); });
        } catch (const Error& e) {
          const auto again = std::chrono::steady_clock::now();
          try {
            group->barrier();  // at once the same
          } catch (const Error& second) {
            if (std::string(second.what()) != e.what()) throw Error("two errors");
            if (std::chrono::steady_clock::now() - again > 1000ms) throw Error("it waited again");
            throw;
          }
        }
      },
      1500ms);
  CHECK(std::chrono::steady_clock::now() - start < 60s);
  for (int r = 0; r + 1 < size; ++r)
    CHECK_THAT(message_of(errors[static_cast<std::size_t>(r)]),
               Catch::Matchers::Contains("rank " + std::to_string(size - 1) + " of " +
                                         std::to_string(size) + " has sent nothing for 1.5 s"));
}

TEST_CASE("group: a rank that leaves says why, and waits for nobody") {
  const auto errors = try_ranks(
      3,
      [](const std::shared_ptr<Group>& group) {
        if (group->rank() == 1) {
          group->leave("the text is not there");
          if (!group->given_up()) throw Error("it is still in use");
          return;
        }
        std::vector<float> x(10);
        as_one(group.get(), [&] { group->sum(std::span<float>(x)); });
      },
      10'000ms);
  CHECK_THAT(message_of(errors[0]),
             Catch::Matchers::Contains("rank 1 of 3: the text is not there"));
  CHECK_THAT(message_of(errors[2]),
             Catch::Matchers::Contains("rank 1 of 3: the text is not there"));
  CHECK(message_of(errors[1]).empty());
}

TEST_CASE("group: ranks that are not in the same call are told so") {
  const auto errors = try_ranks(
      2,
      [](const std::shared_ptr<Group>& group) {
        std::vector<float> x(group->rank() == 0 ? 10 : 11);
        group->sum(std::span<float>(x));
      },
      10'000ms);
  for (const auto& error : errors)
    CHECK_THAT(message_of(error), Catch::Matchers::Contains("out of step"));
}

TEST_CASE("group: what no group is, is refused") {
  CHECK_THROWS_AS(make_thread_group(0), ConfigError);
  CHECK_THROWS_AS(make_thread_group(2, {0ms}), ConfigError);
  const auto alone = make_thread_group(1);
  std::vector<std::byte> three(3), two(2);
  CHECK_THROWS_AS(alone[0]->gather(three, two), DataError);
  CHECK_THROWS_AS(alone[0]->broadcast(three, 1), DataError);
}
