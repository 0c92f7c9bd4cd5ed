// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A group over a process group of torch that the caller brings, such as torchrun's processes have
/// (episodic::torch). Includes torch.

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "episodic/group/group.hpp"

namespace c10d {
class ProcessGroup;
}

namespace episodic {

/// This process's end of a group of all ranks of `processes`. Messages are sends and receives of
/// tensors on the CPU, so that the process group needs a backend for those (Gloo, MPI). Give it one
/// of its own (`torch.distributed.new_group`): a message that somebody else sends through it would
/// be taken for the group's. torch's own errors are Errors here. From one thread.
///
/// A group that was given up leaves the process group as Gloo leaves it behind a time-out: not to
/// be used any more.
/// \throws ConfigError for null, or a time-out that is none
std::shared_ptr<Group> make_c10d_group(c10::intrusive_ptr<c10d::ProcessGroup> processes,
                                       const GroupOptions& options = {});

}  // namespace episodic
