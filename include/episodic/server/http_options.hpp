// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What an HTTP server bounds, and whom it answers.

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace episodic::server {

struct HeadLimits {
  std::size_t bytes = 64 << 10;  ///< of the whole head
  std::size_t lines = 100;
  std::size_t first_line = 8 << 10;  ///< bytes
};

struct ConnectionLimits {
  HeadLimits head;
  std::size_t connections = 256;   ///< at a time
  std::size_t reserve = 8;         ///< further ones, which may ask for /health and /metrics alone
  std::size_t body = 256 << 20;    ///< bytes
  std::size_t bodies = 512 << 20;  ///< of all connections together
  std::size_t rate = 64 << 10;     ///< bytes a second that a body must come with
  std::chrono::milliseconds head_time{15'000};
  std::chrono::milliseconds idle_time{60'000};   ///< between two requests
  std::chrono::milliseconds body_time{20'000};   ///< beside what `rate` gives
  std::chrono::milliseconds stall_time{20'000};  ///< in which a reader takes nothing
  std::chrono::milliseconds drain_time{60'000};  ///< for what is left once the answer is complete
  std::chrono::milliseconds stop_time{3'000};    ///< for the last answers when the server stops
  std::chrono::milliseconds finish_time{2'000};  ///< for what comes in behind the last answer
};

struct AccessOptions {
  /// What "Authorization: Bearer" or "x-api-key" must say; empty: no key.
  std::string api_key;
  std::string host = "127.0.0.1";          ///< listened at
  std::vector<std::string> origins;        ///< of web pages that may ask; "*": all, only with a key
  std::vector<std::string> api_keys = {};  ///< further ones: each opens the server
};

}  // namespace episodic::server
