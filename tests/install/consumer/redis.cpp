// SPDX-License-Identifier: Apache-2.0
// A tier on a server that is not there: an error that names it.
#include <cstdio>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/redis/redis_tier.hpp"

int main() {
  try {
    episodic::make_redis_tier({.host = "127.0.0.1", .port = 1})->head("book");
  } catch (const episodic::FileError& e) {
    std::puts(e.what());
    return std::string(e.what()).find("redis://127.0.0.1:1") == std::string::npos;
  }
  return 1;
}
