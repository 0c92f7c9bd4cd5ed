// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A group whose ranks are threads of one process.

#include <memory>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/group/group.hpp"

namespace EPISODIC_NAMESPACE {

/// The ends of a group of `size` ranks, one for each thread. Messages are copied through queues in
/// memory. An end may be destroyed while others are still in use: for them it is a rank that has
/// ended. \throws ConfigError for a size below 1
std::vector<std::shared_ptr<Group>> make_thread_group(int size, const GroupOptions& options = {});

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/group/impl/thread_group.hpp"
#endif
