// SPDX-License-Identifier: Apache-2.0
#pragma once
// `infinitebench make`: rows of the generated tasks.

#include <CLI/CLI.hpp>

namespace episodic::suites {

void add_make(CLI::App& app);

}  // namespace episodic::suites
