// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program that is one of several processes, the ranks of a group: only the first of them speaks.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "episodic/group/group.hpp"

namespace episodic::tools {

/// Silences a process that a launcher (MPI, PMI, SLURM, torchrun) counts as another than the first,
/// where its command line asks for ranks.
void silence_other_ranks(int argc, char** argv);

/// The group of this process until its end. \param group null: none
void keep_ranks(std::shared_ptr<Group> group);

/// The command has failed: the other ranks learn why. Where the first rank is lost, the next one
/// may speak again: call it before anything is said of the failure.
void ranks_failed(const std::string& why);

/// The process ends: waits for the other ranks, unless the group was given up.
void ranks_ended();

/// Whether this is the only or the first rank. \param group may be null
inline bool is_first(const Group* group) { return !group || group->rank() == 0; }

/// What `make` gives on the first rank, on all of them.
template <class F>
std::vector<std::int64_t> from_first(Group* group, F&& make) {
  std::vector<std::int64_t> ids;
  if (is_first(group)) ids = make();
  return group ? group->of_first(std::move(ids)) : ids;
}

/// \throws ConfigError on all ranks where one says otherwise than the others \param what, for the
/// message
bool same_on_ranks(Group* group, bool mine, const std::string& what);
/// The same of a text.
void require_same_on_ranks(Group* group, const std::string& mine, const std::string& what);

}  // namespace episodic::tools
