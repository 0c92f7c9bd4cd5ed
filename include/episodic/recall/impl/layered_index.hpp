// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/index.hpp; how they become functions: base/inline.hpp.
//
// An index whose first events are another one's, which many share and none changes.
#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"
#include "episodic/recall/detail/exact_index.hpp"

namespace EPISODIC_NAMESPACE {
namespace layered_index_detail {

/// Puts the lists of the first `n_base` events and of those behind them together.
/// \param out the base's list \param added numbered from 0
inline void merge_lists(std::vector<ScoredEvent>& out, const std::vector<ScoredEvent>& added,
                        std::int64_t n_base, std::int64_t k) {
  for (const ScoredEvent& e : added) out.push_back({e.event + n_base, e.score});
  detail::keep_best(out, k);
}

/// Reads both parts of a layered index that is frozen itself.
class LayeredReader final : public IndexReader {
 public:
  LayeredReader(std::unique_ptr<IndexReader> base, std::int64_t n_base,
                std::unique_ptr<IndexReader> added)
      : base_(std::move(base)), n_base_(n_base), added_(std::move(added)) {}

  void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) override {
    base_->search(query, k, out);
    added_->search(query, k, of_added_);
    merge_lists(out, of_added_, n_base_, k);
  }
  const float* mean(EventId event) override {
    return event < n_base_ ? base_->mean(event) : added_->mean(event - n_base_);
  }
  std::int64_t bytes() const override { return base_->bytes() + added_->bytes(); }

 private:
  std::unique_ptr<IndexReader> base_;
  std::int64_t n_base_;
  std::unique_ptr<IndexReader> added_;
  std::vector<ScoredEvent> of_added_;
};

class LayeredIndex final : public RepresentativeIndex {
 public:
  LayeredIndex(const RepresentativeIndex& base, std::unique_ptr<RepresentativeIndex> added)
      : base_(base), n_base_(base.size()), reader_(base.reader()), added_(std::move(added)) {}

  void add(const float* mean, const float* each, std::int64_t count) override {
    added_->add(mean, each, count);
  }

  void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) override {
    reader_->search(query, k, out);
    if (added_->size() == 0) return;
    added_->search(query, k, of_added_);
    merge_lists(out, of_added_, n_base_, k);
  }

  float score(const float* query, EventId event) const override {
    return event < n_base_ ? base_.score(query, event) : added_->score(query, event - n_base_);
  }

  void truncate(std::int64_t n_events) override {
    if (n_events < n_base_)
      throw DataError(concat("representative index: cannot truncate to ", n_events,
                             " events, the first ", n_base_, " are the base's"));
    added_->truncate(n_events - n_base_);
  }
  void finish_truncate() override { added_->finish_truncate(); }

  void forget(EventId event) override {
    if (event < n_base_) refuse("forget an event");
    added_->forget(event - n_base_);
  }
  bool forgotten(EventId event) const override {
    return event < n_base_ ? base_.forgotten(event) : added_->forgotten(event - n_base_);
  }

  void save(ByteWriter&) const override { refuse("save"); }
  void load(ByteReader&) override { refuse("load"); }

  const float* mean(EventId event) const override {
    return event < n_base_ ? reader_->mean(event) : added_->mean(event - n_base_);
  }
  std::vector<float> each(EventId event) const override {
    return event < n_base_ ? base_.each(event) : added_->each(event - n_base_);
  }
  void compact() override { added_->compact(); }
  void shrink() override { added_->shrink(); }
  void freeze() override { added_->freeze(); }
  std::unique_ptr<IndexReader> reader() const override {
    return std::make_unique<LayeredReader>(base_.reader(), n_base_, added_->reader());
  }

  std::int64_t size() const override { return n_base_ + added_->size(); }
  std::int64_t bytes() const override { return reader_->bytes() + added_->bytes(); }

 private:
  [[noreturn]] static void refuse(const char* what) {
    throw ConfigError(concat("representative index: cannot ", what, " of a base that others read"));
  }

  const RepresentativeIndex& base_;
  const std::int64_t n_base_;
  std::unique_ptr<IndexReader> reader_;  // this index's own, of the base
  std::unique_ptr<RepresentativeIndex> added_;
  std::vector<ScoredEvent> of_added_;
};

}  // namespace layered_index_detail

EPISODIC_INLINE std::unique_ptr<RepresentativeIndex> make_index_over(
    const RepresentativeIndex& base, std::unique_ptr<RepresentativeIndex> added) {
  return std::make_unique<layered_index_detail::LayeredIndex>(base, std::move(added));
}

}  // namespace EPISODIC_NAMESPACE
