// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A group whose ranks are the processes that mpirun started (episodic::mpi).

#include <memory>

#include "episodic/group/group.hpp"

namespace episodic {

/// This process's end of the group of all processes of MPI. Starts MPI where nobody has, and ends
/// it behind its last group, unless that was given up: MPI does not end while a process is missing.
/// MPI's own errors are Errors here. From one thread.
/// \throws ConfigError for a time-out that is none; Error where MPI cannot start, or has ended
std::shared_ptr<Group> make_mpi_group(const GroupOptions& options = {});

}  // namespace episodic
