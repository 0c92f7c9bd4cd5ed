// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `SequenceMemory`: what the memory of a sequence offers wherever it lies. `HostMemory` and
/// `EpisodicMemory` (host), `DeviceMemory` (CUDA) and `TorchDeviceMemory` (CUDA tensors of torch)
/// are its kinds.

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_view.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/step_kind.hpp"
#include "episodic/timeline/timeline.hpp"

namespace EPISODIC_NAMESPACE {

/// What not every memory can do.
enum class Capability : std::uint8_t {
  inspect,   ///< events, last_step, recall_lists, representative, relevance
  snapshot,  ///< snapshot, restore
  rewind,    ///< its folder has earlier states (EpisodicMemory::open, Engine::rewind)
  forget,    ///< forget
  pin,       ///< pin
  commit,    ///< commit
};

inline const char* name_of(Capability capability) {
  constexpr const char* names[] = {"inspect", "snapshot", "rewind", "forget", "pin", "commit"};
  const auto i = static_cast<std::size_t>(capability);
  return i < std::size(names) ? names[i] : "?";
}

/// The recall lists of a lane in one step, best first (with reweight `narrow` and `broad` by time);
/// empty where it recalled nothing.
struct LaneRecall {
  std::vector<EventId> similarity, contiguity;
};

/// The state of a sequence's memory, to come back to. Only the memory that made it takes it.
class MemorySnapshot {
 public:
  virtual ~MemorySnapshot() = default;
  /// Of the sequence then.
  virtual std::int64_t tokens() const = 0;
};

/// One sequence's memory. Drive it step by step:
///
/// \code
/// memory.begin_step(n);
/// for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)  // in order, each layer once
///   memory.attend(l, q, k, v, out);                           // views of memory.memory_kind()
/// memory.end_step({surprise, n, memory.memory_kind()});
/// \endcode
///
/// All kinds do the same, or `refusal` says why not; each has shorter calls of its own beside
/// these. One thread at a time. Of a memory on a device, what is inspected waits for the device; so
/// do states.
class SequenceMemory {
 public:
  virtual ~SequenceMemory() = default;

  virtual const MemoryConfig& config() const = 0;
  virtual const MemoryShape& shape() const = 0;
  /// Tokens of the finished steps.
  virtual std::int64_t tokens() const = 0;
  /// Tokens of the step that is open, 0 if none is.
  virtual std::int64_t open_tokens() const = 0;

  /// Where the views of attend and end_step must lie: the host's memory, or that of the device that
  /// the memory is on.
  virtual MemoryKind memory_kind() const = 0;

  /// Opens a step of n tokens, 1 <= n <= chunk; a step that was open is begun anew.
  virtual void begin_step(std::int64_t n, StepKind kind = StepKind::decode) = 0;
  /// One layer of the step, in order, each layer once. A token's position is its index in the
  /// sequence: queries and keys that come after rotary embedding (Rotary::after) were rotated by
  /// it, with the layer's own table, and are turned back by the same.
  /// \param q [n, H, d], k, v [n, G, d] \param out [n, H, d], written; overlaps none of the others
  /// \throws DataError naming the parameter, before anything changes, for a view that is null, of
  ///         other sizes or a dtype that is not taken, in the wrong memory, with strides that are
  ///         negative or that no memory has, for rows of `out` that overlap, and for queries or
  ///         keys after rotary embedding in a layer without a rotary table. What else each kind
  ///         throws is said there
  virtual void attend(std::int64_t layer, const TensorView& q, const TensorView& k,
                      const TensorView& v, const MutableTensorView& out) = 0;
  /// Ends the step: boundaries, refinement, closing of events.
  /// \param surprise of the step's tokens; that of the sequence's first token is ignored
  /// \throws DataError if it is null, in the wrong memory or of another number of tokens
  virtual void end_step(const SurpriseView& surprise) = 0;
  /// Gives up the step that is open, if one is: nothing of it counts. For whoever drives the memory
  /// and cannot bring a step to its end; until then edits are refused, since a step is open.
  virtual void abandon_step() = 0;
  /// Back to the empty sequence.
  virtual void reset() = 0;

  bool can(Capability capability) const { return refusal(capability).empty(); }
  /// Why it cannot, and what to do instead, as one line that begins with the capability's name;
  /// empty if it can. The calls below throw it as ConfigError.
  virtual std::string refusal(Capability capability) const = 0;

  // -- inspect ------------------------------------------------------------------------------------

  /// Closed events of a scope; 0 is the sequence's, or the first of them (EpisodicMemory::scopes).
  /// Valid until the memory is next called. \throws DataError for a scope that it does not have
  virtual const EventTable& events(std::int64_t scope = 0) const = 0;
  virtual const StepRecord& last_step(std::int64_t scope = 0) const = 0;
  /// Of one lane (EpisodicMemory::lanes) in the last step.
  virtual LaneRecall recall_lists(std::int64_t lane) const = 0;
  /// Representative vector [H / P * d] of an event in a lane. \throws DataError if there is none
  virtual std::vector<float> representative(std::int64_t lane, EventId event) const = 0;
  /// r(i) of tokens [first, first + n) in a layer: [n, H]. \throws DataError for tokens that left
  /// the window before the last step
  virtual std::vector<float> relevance(std::int64_t layer, std::int64_t first,
                                       std::int64_t n) const = 0;

  // -- states -------------------------------------------------------------------------------------

  /// The state of now, to come back to; closed events are not copied.
  virtual std::shared_ptr<const MemorySnapshot> snapshot() const = 0;
  /// Back to a snapshot of this memory. Going back gives up what came later for good, snapshots of
  /// it included. \throws ConfigError for any other snapshot: all is then as before
  virtual void restore(const MemorySnapshot& snapshot) = 0;

  // -- edits --------------------------------------------------------------------------------------

  /// Never recalls this event again. \throws DataError if there is no such event, it is pinned, or
  /// a step is open
  virtual void forget(EventId /*event*/, std::int64_t /*scope*/ = 0) { refuse(Capability::forget); }
  /// Forgotten events of a scope in order of time. Valid until the memory is next called.
  /// \throws DataError for a scope that it does not have
  virtual const std::vector<EventId>& forgotten(std::int64_t scope = 0) const = 0;
  /// All events, of every scope, that share a token with the range. \return those of scope 0
  virtual std::vector<EventId> forget(TokenRange /*tokens*/) { refuse(Capability::forget); }
  /// A pinned event is the last to leave its tier, and cannot be forgotten.
  virtual void pin(EventId /*event*/, bool /*pinned*/ = true, std::int64_t /*scope*/ = 0) {
    refuse(Capability::pin);
  }
  /// Makes all finished steps durable.
  virtual void commit() { refuse(Capability::commit); }

 protected:
  SequenceMemory() = default;
  SequenceMemory(const SequenceMemory&) = default;
  SequenceMemory(SequenceMemory&&) = default;
  SequenceMemory& operator=(const SequenceMemory&) = default;
  SequenceMemory& operator=(SequenceMemory&&) = default;

  void require(Capability capability) const {
    if (const std::string why = refusal(capability); !why.empty()) throw ConfigError(why);
  }

 private:
  [[noreturn]] void refuse(Capability capability) const {
    require(capability);
    throw ConfigError(std::string(name_of(capability)) + ": this kind of memory does not do it");
  }
};

}  // namespace EPISODIC_NAMESPACE
