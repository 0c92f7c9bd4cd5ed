// SPDX-License-Identifier: Apache-2.0
#pragma once
// `infinitebench make`: rows of the generated tasks.

namespace CLI {
class App;
}  // namespace CLI

namespace episodic::suites {

void add_make(CLI::App& app);

}  // namespace episodic::suites
