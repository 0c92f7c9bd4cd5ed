// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `MemoryBase`: a memory that is only read, by any number of memories that go on from it.

#include <cstdint>
#include <memory>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/memory/counters.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/timeline/event_table.hpp"

namespace EPISODIC_NAMESPACE {

/// What `EpisodicMemory::share` made of a memory: its events with their representatives, its
/// windows and its timeline's state, for good. Made once, it does not change, whoever reads it; all
/// calls are const and may come from several threads at once.
///
///     auto base = memory.share();         // a long text, read once
///     // on each thread:
///     EpisodicMemory mine(base);          // copies no event
///     mine.begin_step(n); ...             // asks, and closes events of its own
///
/// It lives as long as a memory over it does, or someone who holds it.
class MemoryBase {
 public:
  ~MemoryBase();
  MemoryBase(const MemoryBase&) = delete;
  MemoryBase& operator=(const MemoryBase&) = delete;

  const MemoryConfig& config() const;
  const MemoryShape& shape() const;
  std::int64_t tokens() const;
  /// \see EpisodicMemory::scopes
  std::int64_t scopes() const;
  /// \throws DataError for a scope that is not there
  const EventTable& events(std::int64_t scope = 0) const;
  /// Of the memory that was shared, and the bytes that the base takes. Where the base is itself
  /// over another one, that one's bytes are not among them.
  MemoryCounters counters() const;

 private:
  friend class EpisodicMemory;
  struct Parts;
  explicit MemoryBase(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace EPISODIC_NAMESPACE
