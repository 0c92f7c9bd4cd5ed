// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The commit that a figure names. commit.cpp is written by commit.cmake with each build, so that a
/// build folder that outlives a commit does not name it.

#include <string>

namespace episodic::bench {

/// EPISODIC_COMMIT of the environment, else the sources' commit when the program was built, with
/// "-dirty" where they differed from it, or "unknown" without git.
std::string commit_name();

}  // namespace episodic::bench
