// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Nearest events by representative vector: one interface, two makers (exact scan, FAISS).

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

using EventId = std::int64_t;  ///< number of an event in order of time, from 0

struct ScoredEvent {
  EventId event = 0;
  float score = 0.0f;
};

/// Shape of what an index holds: per event the chosen keys of each query head (EM 3.4).
struct IndexShape {
  std::int64_t n_heads = 0;   ///< H, query heads
  std::int64_t head_dim = 0;  ///< d
  std::int64_t n_repr = 0;    ///< most representatives per event and head
  RepresentativeScore score = RepresentativeScore::mean;
  std::int64_t width() const { return n_heads * head_dim; }
};

class VectorTier;

/// Where an index may put vectors that do not fit into host memory.
struct VectorPlace {
  VectorTier* tier = nullptr;   ///< outlives the index; null: all in host memory
  std::int64_t layer = 0;       ///< the index's layer in the tier
  std::int64_t host_bytes = 0;  ///< most host memory of the index; 0: no bound
};

/// How much of the exact list an approximate index found, over the searches that were checked.
struct IndexQuality {
  std::int64_t checked = 0;  ///< searches that the exact scan repeated; 0 for an exact index
  double recall_sum = 0;     ///< sum of their recall_of
  double recall() const { return checked > 0 ? recall_sum / static_cast<double>(checked) : 1.0; }
};

/// One of many that read an index which nobody changes meanwhile, each on a thread of its own: what
/// a search works with, apart from what is searched. Refers to the index.
class IndexReader {
 public:
  virtual ~IndexReader() = default;
  /// The list that RepresentativeIndex::search gives.
  virtual void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) = 0;
  /// \see RepresentativeIndex::mean. Valid until the next call.
  virtual const float* mean(EventId event) = 0;
  virtual std::int64_t bytes() const = 0;  ///< of host memory, its own
};

/// Representative vectors of one layer's events, searched by dot product.
class RepresentativeIndex {
 public:
  virtual ~RepresentativeIndex() = default;

  /// Appends the next event. \param mean [H * d], the representative vector.
  /// \param each [count, H * d] the individual representatives; used only by `score: max`, where
  ///        score = sum over heads of the largest dot product; may be null otherwise.
  virtual void add(const float* mean, const float* each, std::int64_t count) = 0;

  /// The `k` best events for `query` [H * d], best first; ties: the earlier event. Fewer if there
  /// are fewer. `out` is overwritten. Exact makers return the exact list.
  virtual void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) = 0;

  /// The score of one event for `query`, the number that search ranks by. From several threads at
  /// once, like `forgotten` and `size`, while nobody changes the index.
  /// \throws DataError for an event that is not there or forgotten; FileError for a damaged one
  virtual float score(const float* query, EventId event) const = 0;

  /// Forgets the events from `n_events` on (rewind). Later ids are given anew. Fails for no reason
  /// but an `n_events` that is not in [0, size()]: what needs files or memory is left to
  /// `finish_truncate`.
  virtual void truncate(std::int64_t n_events) = 0;

  /// Does what truncate left to do. Any add, search or compact begins with it; before the tier's
  /// sync and `save` the caller does. \throws FileError: call again
  virtual void finish_truncate() {}

  /// Never lists this event again; its number stays taken, its vectors become zeros. Once more is
  /// nothing. \throws DataError for an event that is not there
  virtual void forget(EventId event) = 0;
  virtual bool forgotten(EventId event) const = 0;

  /// Everything a later `load` of an index of the same shape and making needs to answer every call
  /// to the bit as this one would, but for what a vector tier keeps.
  virtual void save(ByteWriter& to) const = 0;
  /// Into an empty index. \throws FileError for damaged or impossible content; the index is good
  /// for nothing but destruction then
  virtual void load(ByteReader& from) = 0;

  /// Representative vector [H * d] of an event; valid until the next call of any other kind than
  /// size and bytes. \throws DataError for an event that is not there or forgotten
  virtual const float* mean(EventId event) const = 0;

  /// With score == max the individual representatives [count, H * d] of an event, as they were
  /// added; else none. \throws DataError as `mean`
  virtual std::vector<float> each(EventId event) const = 0;

  /// Erases the forgotten events' vectors from the tier too: their slabs are written anew, and
  /// VectorTier::compact and committed then remove the old bytes. \throws as VectorTier::append
  virtual void compact() {}

  /// Gives up the rows of forgotten events, in host memory and in the tier, where they are half of
  /// all and fill a slab. \pre no commit may come back to a kept tier's rows
  /// \throws as VectorTier::append, FileError for damaged rows; no row has moved then
  virtual void shrink() {}

  virtual std::int64_t size() const = 0;
  virtual std::int64_t bytes() const = 0;  ///< of host memory

  /// Prepares the index for readers: behind it, and while nobody changes the index, any number of
  /// them may read at once. Changes no result. \throws ConfigError for an index that is changed by
  /// being searched; FileError
  virtual void freeze() = 0;
  /// \pre freeze() was called, and nothing that changes the index since
  virtual std::unique_ptr<IndexReader> reader() const = 0;

  /// An approximate index repeats one search in a few dozen exactly and keeps the count.
  virtual IndexQuality quality() const { return {}; }
};

/// The exact list, found by bounds where that is faster than a scan over all vectors. With a tier,
/// full slabs of vectors are written to it as they fill, and given up in host memory, the oldest
/// first, where host_bytes is not enough; score == max keeps all in host memory.
/// `add` \throws BudgetError naming repr_bytes where even what a search must have at hand does not
/// fit; nothing was added then.
std::unique_ptr<RepresentativeIndex> make_exact_index(const IndexShape& shape,
                                                      const VectorPlace& place = {});

/// FAISS (HNSW over inner product) once there are more than `exact_up_to` events, exact until then.
/// \throws ConfigError for score == max (no inner product computes it), NotBuiltError without
/// FAISS: in the header-only core, and where EPISODIC_FAISS is off.
std::unique_ptr<RepresentativeIndex> make_faiss_index(const IndexShape& shape,
                                                      std::int64_t exact_up_to);

/// The events of `base`, which is frozen and only read, and behind them those that are added, which
/// go to `added` (empty, of the same shape). Lists, scores and vectors are those of one index that
/// holds all. What would change the base is refused with a ConfigError, and so is saving.
/// \param base outlives the index
std::unique_ptr<RepresentativeIndex> make_index_over(const RepresentativeIndex& base,
                                                     std::unique_ptr<RepresentativeIndex> added);

/// By configuration. The FAISS maker keeps its vectors in host memory whatever the place.
std::unique_ptr<RepresentativeIndex> make_index(const MemoryConfig& config, std::int64_t n_heads,
                                                std::int64_t head_dim,
                                                const VectorPlace& place = {});

/// Bytes of one layer's index in host memory.
struct IndexBytes {
  std::int64_t vectors = 0;  ///< the representatives themselves, which a vector tier can hold
  std::int64_t codes = 0;    ///< what a search reads of all events, always in host memory
  std::int64_t total() const { return vectors + codes; }
};
/// Of `n_events` events, whole slabs. For planning; RepresentativeIndex::bytes counts.
IndexBytes index_bytes(const MemoryConfig& config, std::int64_t n_heads, std::int64_t head_dim,
                       std::int64_t n_events);

/// Share of `exact`'s events that `approximate` also lists, in [0, 1]; 1 if `exact` is empty.
double recall_of(std::span<const ScoredEvent> approximate, std::span<const ScoredEvent> exact);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/exact_index.hpp"
#include "episodic/recall/impl/exact_search.hpp"
#include "episodic/recall/impl/index_bytes.hpp"
#include "episodic/recall/impl/layered_index.hpp"
#include "episodic/recall/impl/no_faiss_index.hpp"
#endif
