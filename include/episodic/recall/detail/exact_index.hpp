// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The exact scan, as a class: the FAISS maker keeps its vectors in one and scans its tail with it.

#include <algorithm>

#include "episodic/base/inline.hpp"
#include "episodic/recall/detail/projection.hpp"
#include "episodic/recall/detail/quantised.hpp"
#include "episodic/recall/detail/vector_slabs.hpp"
#include "episodic/recall/index.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// The order of a search result: best first; ties: the earlier event.
inline bool ranks_before(const ScoredEvent& a, const ScoredEvent& b) {
  return a.score > b.score || (a.score == b.score && a.event < b.event);
}

/// Cuts `list` to its k best, ranked.
void keep_best(std::vector<ScoredEvent>& list, std::int64_t k);

/// What changes how fast an exact index is, and nothing else.
struct ExactTuning {
  /// Bytes of vectors from which a search bounds them before it reads them. What the caches hold is
  /// read faster than it is bounded, but between two searches of a layer the other layers and the
  /// weights pass through the caches: only a few MiB are still there.
  std::int64_t bound_from = std::int64_t{2} << 20;
  /// Queries that the projection learns from.
  std::int64_t sample = 128;
  /// Whether there is a projection: without, to measure what it saves.
  bool projection = true;
  /// Events for each of the list below which a search scans what host memory holds: with fewer, the
  /// first look alone (exact_index_detail::kFirstLook groups of rows for each) takes in all of
  /// them.
  std::int64_t events_per_listed = 64;
  /// Whether the rows of forgotten events are given up. A graph over the rows needs them in place.
  bool shrinks = true;
};

class ExactIndex;

/// Searches through an exact index, one after the other, with all that a search works with. One
/// belongs to the index itself; others, on other threads, read an index that nobody changes.
class ExactSearch {
 public:
  /// \param learner the index, if it may learn from the queries that come; null: it stays as it is
  explicit ExactSearch(const ExactIndex& index, ExactIndex* learner = nullptr);

  void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out);
  std::int64_t bytes() const;
  /// Rows have moved: the last list names others.
  void forget_last() noexcept { last_.clear(); }

 private:
  struct Candidate {
    std::int64_t event = 0;
    float value = 0.0f, error = 0.0f;  // its score is within error of value
  };

  /// The exact list by way of projection and quantised copy; false where they cannot help.
  bool search_bounded(const float* query, std::int64_t k, std::vector<ScoredEvent>& out);
  /// A score that k events reach for certain: by those with the largest bounds, and by the last
  /// list. \param tail events that the quantised copy does not know, with their scores
  float least_to_reach(const float* query, float norm, std::int64_t k,
                       const std::vector<ScoredEvent>& tail);
  /// Upper bounds of all full slabs and of their groups of rows, by the projection's first halves.
  void bound_slabs(const float* query, float norm);
  /// The rows with the largest upper bounds in the groups with the largest: `rows_`, about
  /// kFirstLook * k of them.
  void first_rows(std::int64_t k);
  /// The rows that by the projection may score at least `least`: `rows_`.
  void rows_above(float least);
  /// Bounds `rows_`, those not forgotten, by the quantised copy: `candidates_`.
  void bound_rows(const float* query, float norm);
  /// The k best of the candidates and of `out`, by exact scores as far as they decide.
  void rank_candidates(const float* query, std::int64_t k, std::vector<ScoredEvent>& out);
  /// The k-th largest of the candidates' lower bounds and the exact scores in `tail`; -inf if there
  /// are fewer.
  float least_of(std::int64_t k, const std::vector<ScoredEvent>& tail);

  const ExactIndex& index_;
  ExactIndex* learner_;
  const VectorSlabs& means_;
  const QuantisedSlabs& quantised_;
  const Projection& projection_;
  int plain_searches_ = 0;  // searches to come that leave the quantised copy alone

  /// Rows of the last search's list: where the next may find its own.
  std::vector<ScoredEvent> last_;

  // Scratch of a search through the quantised copy.
  Projection::Opened opened_;
  std::vector<float> offset_, slab_upper_;  // per slab
  std::vector<float> upper_;                // per group of rows
  std::vector<float> ranked_;
  std::vector<Projection::Row> groups_;                  // number and bound
  std::vector<Projection::Row> rows_;                    // that may reach the list
  std::vector<std::vector<Projection::Row>> task_rows_;  // the same, by the task that found them
  std::vector<Candidate> candidates_;
  std::vector<float> exact_;  // scores of the first of them
};

class ExactIndex final : public RepresentativeIndex {
 public:
  explicit ExactIndex(const IndexShape& shape, const ExactTuning& tuning = {},
                      const VectorPlace& place = {});

  // Marked here too: a virtual function that is not inline makes every unit carry the class.
  EPISODIC_INLINE void add(const float* mean, const float* each, std::int64_t count) override;
  EPISODIC_INLINE void search(const float* query, std::int64_t k,
                              std::vector<ScoredEvent>& out) override;
  EPISODIC_INLINE float score(const float* query, EventId event) const override;
  EPISODIC_INLINE void truncate(std::int64_t n_events) override;
  EPISODIC_INLINE void finish_truncate() override;
  EPISODIC_INLINE void forget(EventId event) override;
  bool forgotten(EventId event) const override {
    return forgotten_[static_cast<std::size_t>(event)] != 0;
  }
  EPISODIC_INLINE void save(ByteWriter& to) const override;
  EPISODIC_INLINE void load(ByteReader& from) override;
  EPISODIC_INLINE const float* mean(EventId event) const override;
  EPISODIC_INLINE std::vector<float> each(EventId event) const override;
  std::int64_t size() const override { return n_events_; }
  EPISODIC_INLINE std::int64_t bytes() const override;
  EPISODIC_INLINE void compact() override;
  EPISODIC_INLINE void shrink() override;
  EPISODIC_INLINE void freeze() override;
  EPISODIC_INLINE std::unique_ptr<IndexReader> reader() const override;

  /// Representative vector of an event, zeros of a forgotten one; of an index without a tier that
  /// does not shrink.
  const float* row(EventId event) const { return means_.row(event); }

  /// Appends the scores of the rows from `from` on whose events are not forgotten, under their
  /// numbers as rows: the events' own where the index does not shrink.
  void scan(const float* query, std::int64_t from, std::vector<ScoredEvent>& out) const;

  /// The vector of an event that is there and not forgotten, wherever it lies; in `buffer` if that
  /// is a file.
  const float* mean(EventId event, std::vector<float>& buffer) const;

 private:
  friend class ExactSearch;

  // Vectors lie in rows, in order of their events: row r is that of event r until rows of forgotten
  // events are given up. Searches work with rows; what they list are events.
  EventId event_of(std::int64_t row) const {
    return events_.empty() ? row : events_[static_cast<std::size_t>(row)];
  }
  /// Of an event that has one, else the next: how many rows are of events before it.
  std::int64_t row_of(EventId event) const {
    if (n_events_ == means_.size()) return event;
    return std::lower_bound(events_.begin(), events_.end(), event) - events_.begin();
  }
  /// Whether the row's event was forgotten.
  bool dead(std::int64_t row) const { return forgotten(event_of(row)); }
  /// Gives up the rows of forgotten events, from the first slab on that has such.
  void drop_dead_rows();

  /// Whether there are so many vectors that they are bounded.
  bool large() const;
  /// Whether a search for k events bounds the vectors first, rather than scan them.
  bool bounds_for(std::int64_t k) const;
  /// The quantised copy gets the slabs that have become full.
  void quantise_full_slabs();
  /// Takes a query that is searched for into what the projection learns from.
  void learn(const float* query);

  /// Host memory with n full slabs, all of them only in the tier.
  std::int64_t least_bytes(std::int64_t n_slabs) const;
  /// Writes the slab that has just become full to the tier.
  void write_slab();
  /// Gives up full slabs that the tier holds, the oldest first, until `more` bytes fit host_bytes.
  void release_slabs(std::int64_t more);
  /// A whole slab of vectors [rows_per_slab, width], forgotten ones as zeros.
  std::vector<float> slab_from_tier(std::int64_t slab) const;
  /// A row wherever it lies; in `buffer` if that is a file.
  const float* vector(std::int64_t row, std::vector<float>& buffer) const;

  void count_dead();
  float score_of(const float* query, std::int64_t row) const;
  void check(EventId event) const;
  void check_kept(EventId event) const;

  IndexShape shape_;
  VectorSlabs means_;
  VectorSlabs each_;                 // score max: n_repr rows for each row
  std::vector<std::int32_t> count_;  // score max: how many of them are set
  std::int64_t n_events_ = 0;
  std::vector<EventId> events_;          // of the rows; empty while each event has one
  std::vector<std::uint8_t> forgotten_;  // per event
  std::int64_t n_dead_ = 0;  // rows of forgotten events; no flag is fetched without such
  ExactTuning tuning_;
  VectorPlace place_;
  std::vector<std::int64_t> unerased_;  // slabs whose copy in the tier shows forgotten events
  mutable std::vector<float> fetched_;  // the last vector that `mean` read from the tier
  QuantisedSlabs quantised_;
  Projection projection_;
  ExactSearch search_{*this, this};
};

}  // namespace EPISODIC_NAMESPACE::detail
