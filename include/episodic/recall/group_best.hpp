// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The best events of all ranks of a group.

#include <cstdint>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/group/group.hpp"
#include "episodic/recall/index.hpp"

namespace EPISODIC_NAMESPACE {

/// Merges what the ranks list, where each of them scores events of its own: the k best of all, best
/// first; ties: the earlier event. Equal on all ranks.
/// \param list of this rank, ranked; overwritten. Event numbers are those of the whole sequence
void merge_best(Group& group, std::int64_t k, std::vector<ScoredEvent>& list);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/group_best.hpp"
#endif
