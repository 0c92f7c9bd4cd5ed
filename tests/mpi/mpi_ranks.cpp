// SPDX-License-Identifier: Apache-2.0
// One rank of a group of processes: `mpi_ranks sums | fails | ends SECONDS | speed BYTES`. Writes
// what it finds on one line; mpi_test.py starts it.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/mpi/mpi_group.hpp"

namespace {

using namespace episodic;
using Clock = std::chrono::steady_clock;

void require(bool holds, const char* what) {
  if (!holds) throw Error(what);
}

std::vector<float> numbers_of(int rank, std::size_t n) {
  std::mt19937 rng(static_cast<unsigned>(3 + rank));
  std::vector<float> x(n);
  for (float& value : x) value = std::normal_distribution<float>()(rng);
  return x;
}

void sums(Group& group) {
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

void fails(Group& group) {
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
void ends(Group& group) {
  std::vector<float> x(300000, 1.0f);
  for (int step = 0;; ++step) {
    if (step == 20 && group.rank() == group.size() - 1) std::raise(SIGKILL);
    as_one(&group, [&] { group.sum(std::span<float>(x)); });
  }
}

void speed(Group& group, std::size_t bytes) {
  std::vector<float> x(bytes / 4, 1.0f);
  constexpr int kTimes = 200;
  group.barrier();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kTimes; ++i) group.sum(std::span<float>(x));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / kTimes;
  if (group.rank() == 0) std::printf("a sum of %zu bytes: %.1f us\n", bytes, seconds * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  std::shared_ptr<Group> group;
  try {
    GroupOptions options;
    if (mode == "ends") options.timeout = std::chrono::milliseconds(1000 * std::atoi(argv[2]));
    group = make_mpi_group(options);
    if (mode == "sums")
      sums(*group);
    else if (mode == "fails")
      fails(*group);
    else if (mode == "ends")
      ends(*group);
    else if (mode == "speed")
      speed(*group, static_cast<std::size_t>(std::atoll(argv[2])));
    else
      throw Error("mpi_ranks sums | fails | ends SECONDS | speed BYTES");
    std::printf("rank %d is done\n", group->rank());
  } catch (const std::exception& e) {
    std::printf("rank %d says %s\n", group ? group->rank() : -1, e.what());
    std::fflush(stdout);
    if (group) group->leave(e.what());
    return 1;
  }
  return 0;
}
