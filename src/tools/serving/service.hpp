// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model that answers one request after another, whatever brings them.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "chat.hpp"
#include "episodic/session/engine.hpp"
#include "request.hpp"

namespace episodic::tools {

struct Served {
  GenerateResult result;
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;  ///< of the prompt: read for an earlier request
};

/// Answers requests with one engine, all of which begin where the engine stood: at the end of a
/// memory, or with nothing. A request whose prompt begins with what the one before read, or read
/// and answered, goes on from there, so that a conversation's earlier turns are not read again.
/// Safe to use from several threads: one request computes, the others wait.
class Service {
 public:
  /// \param engine must outlive it, and is nobody else's from now on
  /// \throws ConfigError if its memory has no snapshots
  explicit Service(Engine& engine);

  /// The tokens of a request's prompt, in two steps of which the second may be empty.
  /// \throws RequestError where the prompt is empty or holds tokens that are none, or the model has
  ///         no chat format, or refuses the messages
  ChatPrompt prepare(const ServedRequest& request) const;

  /// \param on_token hears of each token; false cancels
  /// \throws what the engine throws; the next request begins anew
  Served answer(const ServedRequest& request, const ChatPrompt& prompt,
                const TokenCallback& on_token = {});

  /// Ends the request that computes, and all that wait. For good.
  void stop() { stopped_ = true; }

  const Engine& engine() const { return engine_; }

 private:
  struct Point {
    std::vector<std::int64_t> ids;  ///< read behind the start
    std::shared_ptr<const Engine::Snapshot> state;
  };

  std::size_t go_back_for(std::span<const std::int64_t> prompt);
  void forget_requests();

  Engine& engine_;
  std::optional<ChatTemplate> template_;
  std::string no_template_;  // why there is none
  bool goes_on_;             // behind a memory
  std::mutex mutex_;
  std::atomic<bool> stopped_ = false;
  std::shared_ptr<const Engine::Snapshot> start_;
  Point prompt_;                    // behind the last request's prompt
  std::vector<std::int64_t> read_;  // all that was read behind the start
};

}  // namespace episodic::tools
