// SPDX-License-Identifier: Apache-2.0
// One rank of a group of processes: `mpi_ranks sums | fails | ends SECONDS | speed BYTES`. Writes
// what it finds on one line; mpi_test.py starts it.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "episodic/mpi/mpi_group.hpp"
#include "support/rank_checks.hpp"

namespace {

using namespace episodic;
using Clock = std::chrono::steady_clock;

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
      rank_checks::sums(*group);
    else if (mode == "fails")
      rank_checks::fails(*group);
    else if (mode == "ends")
      rank_checks::ends(*group);
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
