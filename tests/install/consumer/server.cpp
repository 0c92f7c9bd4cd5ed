// SPDX-License-Identifier: Apache-2.0
// Links the server's room, and meets its refusals.
#include <memory>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/server/memories.hpp"
#include "episodic/server/scheduler.hpp"

int main() {
  try {
    const episodic::server::Scheduler scheduler(nullptr);
    return 1;
  } catch (const episodic::ConfigError&) {
  }
  try {
    const episodic::server::Memories memories(nullptr, "no_such_folder", episodic::MemoryConfig{});
    return 1;
  } catch (const episodic::ConfigError& error) {
    if (std::string(error.what()).find("null") == std::string::npos) return 1;
  }
  const episodic::server::RequestError full("all places are taken", "", 429);
  return full.status() == 429 ? 0 : 1;
}
