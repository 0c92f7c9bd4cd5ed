// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/shared_list.hpp"

#include <cstdint>
#include <random>
#include <vector>

#include "support/test.hpp"

using namespace episodic;

TEST_CASE("shared list: what a vector is, however often it is shared, cut and copied", "[base]") {
  std::mt19937 random(7);
  struct Pair {
    SharedList<std::int64_t> list;
    std::vector<std::int64_t> twin;
  };
  std::vector<Pair> all(1);
  std::int64_t next = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::size_t at = random() % all.size();
    Pair& p = all[at];
    switch (random() % 6) {
      case 0:
      case 1: {
        const std::vector<std::int64_t> more{next, next + 1, next + 2};
        p.list.reserve(more.size());
        p.list.append(more.begin(), more.end());
        p.twin.insert(p.twin.end(), more.begin(), more.end());
        next += 3;
        break;
      }
      case 2:
        p.list.push_back(next);
        p.twin.push_back(next++);
        break;
      case 3: {
        const std::size_t n = random() % (p.twin.size() + 3);
        p.list.truncate(n);
        if (n < p.twin.size()) p.twin.resize(n);
        break;
      }
      case 4:
        p.list.share();
        break;
      case 5: {
        const Pair copy = p;
        if (all.size() < 8)
          all.push_back(copy);
        else
          all[random() % all.size()] = copy;
        break;
      }
    }
    // No copy sees what another one does.
    for (const Pair& q : all) {
      REQUIRE(q.list.size() == q.twin.size());
      REQUIRE(q.list.empty() == q.twin.empty());
      REQUIRE(q.list.all() == q.twin);
      for (std::size_t e = 0; e < q.twin.size(); ++e) REQUIRE(q.list[e] == q.twin[e]);
      if (!q.twin.empty()) REQUIRE(q.list.back() == q.twin.back());
    }
  }
  all[0].list.clear();
  REQUIRE(all[0].list.empty());
}

TEST_CASE("shared list: a copy of shared elements reads the same ones", "[base]") {
  SharedList<std::int64_t> list;
  for (std::int64_t i = 0; i < 100; ++i) list.push_back(i);
  const SharedList<std::int64_t> before = list;
  CHECK(&before[0] != &list[0]);
  list.share();
  SharedList<std::int64_t> copy = list;
  CHECK(&copy[99] == &list[99]);
  copy.push_back(100);
  CHECK(copy.size() == 101);
  CHECK(list.size() == 100);
  const SharedList<std::int64_t> again = list;
  list.share();  // nothing to do
  CHECK(&again[0] == &list[0]);
}
