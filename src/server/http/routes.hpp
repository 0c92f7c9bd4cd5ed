// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all routes stand on, and the groups of routes.

#include <atomic>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <string>

#include "episodic/server/conversations.hpp"
#include "http/answering.hpp"
#include "http/router.hpp"

namespace episodic::server {

struct RouteContext {
  Service& service;
  const ServerOptions& options;
  Answering answering;
  std::optional<Conversations> conversations;  ///< where the service has memories by name
  std::int64_t started = static_cast<std::int64_t>(std::time(nullptr));
  std::atomic<std::uint64_t> requests = 0;
  std::mutex encoding;  ///< texts are encoded one request after another

  RouteContext(Service& s, const ServerOptions& o) : service(s), options(o), answering(s, o) {
    if (s.memories()) conversations.emplace(s, o.conversations);
  }
  /// An id that no other answer of this server has. \param kind what it is of, "chatcmpl"
  std::string new_id(const char* kind);
};

/// /health, /metrics, /models. \param context must outlive the router
void add_server_routes(Router& router, RouteContext& context);
/// /completions, /chat/completions.
void add_openai_routes(Router& router, RouteContext& context);
/// /responses, /conversations and what is below.
void add_responses_routes(Router& router, RouteContext& context);
/// /memories and what is below. Nothing where the service has none.
void add_memory_routes(Router& router, RouteContext& context);

/// /messages and what is below: Anthropic's.
void add_messages_routes(Router& router, RouteContext& context);
/// /tokenize, /detokenize, /apply-template.
void add_token_routes(Router& router, RouteContext& context);
/// /embeddings.
void add_embedding_routes(Router& router, RouteContext& context);

/// The memory that X-Episodic-Memory names, where the request's body names none. Clients of OpenAI
/// send `store` as well where it means another thing; without a memory it means nothing here.
void take_memory_header(const Exchange& exchange, Request& request);
void answer_json(httplib::Response& response, const Json& json, int status = 200);

}  // namespace episodic::server
