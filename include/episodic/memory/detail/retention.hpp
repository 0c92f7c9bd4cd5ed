// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memoria (section 3) as the policy of what a memory keeps: an engram is an event, numbered alike.
// Its step is a chunk of the text, `chunk` tokens from a multiple of it to the next, so that what
// is forgotten does not depend on how a caller cuts the text into steps. A chunk's working engrams
// are the events that left the window in it. The step is taken at the end of the caller's step that
// reaches the chunk's end; attention counts from one to the next. A chunk without events is part of
// the next one, for without a working engram nothing is recalled.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/retention/memoria.hpp"

namespace EPISODIC_NAMESPACE::detail {

class Retention {
 public:
  using Received = std::vector<std::pair<EventId, double>>;  ///< by event

  /// \param width of a representative vector
  Retention(const RetentionConfig& config, std::int64_t width)
      : graph_(config.memoria, width),
        recall_(config.recall),
        width_(static_cast<std::size_t>(width)) {}

  /// Whether tokens [before, after) reach the end of a chunk.
  static bool reaches(std::int64_t before, std::int64_t after, std::int64_t chunk) {
    return after / chunk > before / chunk;
  }
  /// Up to here events belong to the chunks that `tokens` tokens have completed: where the window
  /// began at the end of the last one. An event that ends there or later may still be open then,
  /// where the steps are others.
  static std::int64_t limit(std::int64_t tokens, std::int64_t chunk, std::int64_t n_local) {
    return tokens / chunk * chunk - n_local;
  }

  /// A step begins; what a step that failed was given is forgotten.
  void begin_step() {
    next_received_ = received_;
    is_step_ = false;
  }
  /// Attention that an event received in the open step.
  void receive(EventId event, double mass);

  /// Takes a chunk's events. Until `commit` nothing of it counts. Without a call of this, the open
  /// step adds what events received, and no more.
  /// \param events those that are not forgotten, ascending, from `graph().total()` on; not empty
  /// \param total behind the last event of the chunk \param vectors their representatives, one
  /// after the other; scaled to unit length here
  void prepare(std::span<const EventId> events, EventId total, std::vector<float> vectors);
  /// The step has come. Nothing in it can fail.
  void commit() noexcept;

  /// Events that are to be forgotten, the oldest first; they stay listed until `forgotten`.
  const std::vector<EventId>& due() const { return due_; }
  /// An event was forgotten, by this policy or by someone else.
  void forgotten(EventId event) noexcept;

  /// The events from number n on were taken back.
  void truncate(std::int64_t n) noexcept;

  const Memoria& graph() const { return graph_; }

  /// What events received since the last chunk's end, for a memory elsewhere that counts
  /// it by itself; none is left here.
  Received take_received() { return std::exchange(received_, {}); }
  /// The reverse: in place of what is here.
  void set_received(Received received) { received_ = std::move(received); }

  void save(ByteWriter& to) const;
  /// \throws FileError
  void load(ByteReader& from, std::int64_t n_events);

 private:
  /// Of the held events, those that received something, most first.
  std::vector<EventId> attended() const;

  Memoria graph_;
  EngramRecall recall_;
  std::size_t width_;
  Received received_;  // since the last chunk's end
  std::vector<EventId> due_;

  // The open step.
  Received next_received_;
  bool is_step_ = false;  // of Memoria
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/retention.hpp"
#endif
