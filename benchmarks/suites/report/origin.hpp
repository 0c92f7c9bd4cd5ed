// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The sections of a report that say how its scores came about, so that a reader sees what may be
/// compared.

#include <string>
#include <vector>

#include "report/result.hpp"

namespace episodic::suites {

/// Markdown: how each task was asked and scored, how each method was set, what is not counted, and
/// with which commits and machines all of it was made.
std::string origin_sections(const std::vector<Result>& results);

}  // namespace episodic::suites
