// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A tier of blocks on a server of Redis or Valkey, over hiredis (episodic::redis).

#include <memory>
#include <string>

#include "episodic/store/block_tier.hpp"

namespace episodic {

struct RedisOptions {
  std::string host;
  int port = 6379;
  double timeout_seconds = 10;  ///< to connect, and for each answer
  std::string password;         ///< empty: none
};

/// Connects at the first call, and anew after each failure. Calls of several threads follow each
/// other. What a call put is as durable as the server makes it (`appendonly yes`).
std::shared_ptr<BlockTier> make_redis_tier(const RedisOptions& options);

/// Gives the scheme `redis` to places: "redis://HOST:PORT/NAME". The password is that of the
/// environment variable REDISCLI_AUTH, as for redis-cli.
void add_redis_scheme();

}  // namespace episodic
