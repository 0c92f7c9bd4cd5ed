// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memoria (section 3) as the policy of what a memory keeps: an engram is an event, numbered alike.
// Its step is a step of the memory that closes events; attention counts from one such step to the
// next.

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
  Retention(const MemoriaConfig& config, std::int64_t width)
      : graph_(config, width), width_(static_cast<std::size_t>(width)) {}

  /// A step begins; what a step that failed was given is forgotten.
  void begin_step() { next_received_ = received_; }
  /// Attention that an event received in the open step.
  void receive(EventId event, double mass);

  /// Takes the open step's closed events. Until `commit` nothing of it counts.
  /// \param vectors their representatives, one after the other; scaled to unit length here
  void prepare(std::int64_t n_events, std::vector<float> vectors);
  /// The step has come. Nothing in it can fail.
  void commit() noexcept;

  /// Events that are to be forgotten, the oldest first; they stay listed until `forgotten`.
  const std::vector<EventId>& due() const { return due_; }
  /// An event was forgotten, by this policy or by someone else.
  void forgotten(EventId event) noexcept;

  /// The events from number n on were taken back.
  void truncate(std::int64_t n) noexcept;

  const Memoria& graph() const { return graph_; }

  /// What events received since the last step that closed some, for a memory elsewhere that counts
  /// it by itself; none is left here.
  Received take_received() { return std::exchange(received_, {}); }
  /// The reverse: in place of what is here.
  void set_received(Received received) { received_ = std::move(received); }

  void save(ByteWriter& to) const;
  /// \throws FileError
  void load(ByteReader& from, std::int64_t n_events);

 private:
  Memoria graph_;
  std::size_t width_;
  Received received_;  // since the last step that closed events
  std::vector<EventId> due_;

  // The open step.
  Received next_received_;
  bool closes_ = false;
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/retention.hpp"
#endif
