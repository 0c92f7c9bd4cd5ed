// SPDX-License-Identifier: Apache-2.0
// A group of MPI: alone, as without mpirun, or one rank of several.
#include "episodic/mpi/mpi_group.hpp"

int main() {
  const std::shared_ptr<episodic::Group> group = episodic::make_mpi_group();
  std::vector<float> ones(3, 1.0F);
  group->sum(ones);
  for (const float one : ones)
    if (one != static_cast<float>(group->size())) return 1;
  return group->rank() < group->size() ? 0 : 1;
}
