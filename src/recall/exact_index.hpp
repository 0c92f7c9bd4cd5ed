// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The exact scan, as a class: the FAISS maker keeps its vectors in one and scans its tail with it.

#include "episodic/recall/index.hpp"
#include "quantised.hpp"
#include "vector_slabs.hpp"

namespace episodic::detail {

/// The order of a search result: best first; ties: the earlier event.
inline bool ranks_before(const ScoredEvent& a, const ScoredEvent& b) {
  return a.score > b.score || (a.score == b.score && a.event < b.event);
}

/// Cuts `list` to its k best, ranked.
void keep_best(std::vector<ScoredEvent>& list, std::int64_t k);

class ExactIndex final : public RepresentativeIndex {
 public:
  /// Bytes of vectors from which a search goes through the 8-bit shadow first. Vectors that the
  /// caches hold are read faster than they are bounded, but between two searches of a layer the
  /// other layers and the weights pass through the caches: only a few MiB are still there.
  static constexpr std::int64_t kShadowFrom = std::int64_t{2} << 20;

  explicit ExactIndex(const IndexShape& shape, std::int64_t shadow_from = kShadowFrom);

  void add(const float* mean, const float* each, std::int64_t count) override;
  void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) override;
  void truncate(std::int64_t n_events) override;
  const float* mean(EventId event) const override;
  std::int64_t size() const override { return means_.size(); }
  std::int64_t bytes() const override;

  /// Appends the scores of the events from `from` on.
  void scan(const float* query, std::int64_t from, std::vector<ScoredEvent>& out) const;

 private:
  /// The exact list by way of the 8-bit shadow; false where that cannot help.
  bool search_shadow(const float* query, std::int64_t k, std::vector<ScoredEvent>& out);

  float score(const float* query, std::int64_t event) const;

  IndexShape shape_;
  VectorSlabs means_;
  VectorSlabs each_;                 // score max: n_repr rows per event
  std::vector<std::int32_t> count_;  // score max: how many of them are set
  std::int64_t shadow_from_;
  QuantisedSlabs shadow_;
  int plain_searches_ = 0;                    // searches to come that leave the shadow alone
  std::vector<float> value_, error_, lower_;  // scratch of a search through the shadow
};

}  // namespace episodic::detail
