// SPDX-License-Identifier: Apache-2.0
#pragma once
// What each rank of a group does in the tests whose ranks are processes.
#include <chrono>
#include <csignal>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/group/group.hpp"

namespace rank_checks {

using namespace episodic;

inline void require(bool holds, const char* what) {
  if (!holds) throw Error(what);
}

inline std::vector<float> numbers_of(int rank, std::size_t n) {
  std::mt19937 rng(static_cast<unsigned>(3 + rank));
  std::vector<float> x(n);
  for (float& value : x) value = std::normal_distribution<float>()(rng);
  return x;
}

inline void sums(Group& group) {
  for (const std::size_t n : {0ul, 1ul, 1000ul, 300001ul}) {  // the last one is not sent eagerly
    std::vector<float> expected = numbers_of(0, n), x = numbers_of(group.rank(), n);
    for (int r = 1; r < group.size(); ++r) {
      const std::vector<float> more = numbers_of(r, n);
      for (std::size_t i = 0; i < n; ++i) expected[i] += more[i];
    }
    const std::int64_t before = group.counters().bytes;
    group.sum(std::span<float>(x));
    require(x == expected, "another sum");
    require(group.counters().bytes - before ==
                Group::sum_bytes(static_cast<std::int64_t>(n), 4, group.size(), group.rank()),
            "other bytes");
  }
  require(group.of_first(group.rank() == 0 ? std::string("a text") : std::string()) == "a text",
          "another text");
  group.barrier();
}

inline void fails(Group& group) {
  std::vector<float> x(300000, 1.0f);
  std::string said;
  try {
    as_one(&group, [&] {
      group.sum(std::span<float>(x));
      if (group.rank() == 1) throw DataError("rank one has no more room");
      group.sum(std::span<float>(x));
    });
  } catch (const Error& e) {
    said = e.what();
  }
  require(said.find("rank one has no more room") != std::string::npos, said.c_str());
  x.assign(300000, 1.0f);
  as_one(&group, [&] { group.sum(std::span<float>(x)); });  // and all go on
  require(x[7] == static_cast<float>(group.size()), "another sum behind it");
}

/// Sums until the last rank kills itself.
inline void ends(Group& group) {
  std::vector<float> x(300000, 1.0f);
  for (int step = 0;; ++step) {
    if (step == 20 && group.rank() == group.size() - 1) std::raise(SIGKILL);
    as_one(&group, [&] { group.sum(std::span<float>(x)); });
  }
}

}  // namespace rank_checks
