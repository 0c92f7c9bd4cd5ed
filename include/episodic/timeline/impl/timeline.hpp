// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of timeline/timeline.hpp; how they become functions: base/inline.hpp.
#include "episodic/timeline/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace timeline_detail {

// Bytes travel as numbers: std::byte is none.
struct PutField {
  ByteWriter& to;
  void operator()(std::int64_t value) const { to.put(value); }
  void operator()(const std::vector<std::byte>& bytes) const {
    to.put_span(std::span<const char>(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void operator()(const std::vector<Timeline::State::Scope>& scopes) const {
    to.put(static_cast<std::uint64_t>(scopes.size()));
    for (const auto& scope : scopes) Timeline::State::Scope::fields(scope, *this);
  }
  template <class T>
  void operator()(const std::vector<T>& values) const {
    to.put_vector(values);
  }
};

struct GetField {
  ByteReader& from;
  void operator()(std::int64_t& value) const { value = from.get<std::int64_t>(); }
  void operator()(std::vector<std::byte>& bytes) const {
    const std::vector<char> chars = from.get_vector<char>();
    const auto* begin = reinterpret_cast<const std::byte*>(chars.data());
    bytes.assign(begin, begin + chars.size());
  }
  void operator()(std::vector<Timeline::State::Scope>& scopes) const {
    const auto n = from.get<std::uint64_t>();
    constexpr std::uint64_t kLeast = 24;  // bytes of one, which bound the number
    if (n > from.left() / kLeast)
      throw FileError(from.where() +
                      ": ends before what it should hold; it is truncated or damaged");
    scopes.resize(static_cast<std::size_t>(n));
    for (auto& scope : scopes) Timeline::State::Scope::fields(scope, *this);
  }
  template <class T>
  void operator()(std::vector<T>& values) const {
    values = from.get_vector<T>();
  }
};

}  // namespace timeline_detail

EPISODIC_INLINE void Timeline::State::save(ByteWriter& to) const {
  fields(*this, timeline_detail::PutField{to});
}
EPISODIC_INLINE void Timeline::State::load(ByteReader& from) {
  fields(*this, timeline_detail::GetField{from});
}

EPISODIC_INLINE Timeline::Timeline(const MemoryConfig& config, const KeyShape& keys,
                                   std::int64_t capacity, std::vector<std::int64_t> given)
    : Timeline(config, keys, capacity, nullptr) {
  if (by_head_ && reads_keys(config.segmenter)) {
    for (std::int64_t s = 0; s < scopes(); ++s)
      segmenters_.push_back(make_segmenter(config, given, {1, 1, keys.head_dim}));
  } else {
    segmenters_.push_back(make_segmenter(config, std::move(given), keys));
  }
}

EPISODIC_INLINE Timeline::Timeline(const MemoryConfig& config, const KeyShape& keys,
                                   std::int64_t capacity, std::unique_ptr<Segmenter> segmenter)
    : keys_(keys),
      n_local_(config.n_local),
      recall_every_(config.recall_every),
      refine_layers_(config.refine_layers),
      refines_(config.refine != Refinement::none),
      by_head_(config.scope == EventScope::head) {
  if (segmenter) segmenters_.push_back(std::move(segmenter));
  make_scopes(config, capacity);
}

EPISODIC_INLINE void Timeline::make_scopes(const MemoryConfig& config, std::int64_t capacity) {
  scopes_.clear();
  const std::int64_t n = by_head_ ? keys_.n_layers * keys_.n_kv_heads : 1;
  scopes_.reserve(static_cast<std::size_t>(n));
  for (std::int64_t s = 0; s < n; ++s) {
    Scope& scope = scopes_.emplace_back();
    scope.refiner = BoundaryRefiner(config.refine, config.n_init, config.min_block,
                                    by_head_ ? 1 : keys_.n_kv_heads, keys_.head_dim);
    scope.now.final_flags.assign(static_cast<std::size_t>(capacity), 0);
    scope.events = EventTable(config.n_init, config.min_block, config.max_block);
  }
}

EPISODIC_INLINE bool Timeline::begin(std::int64_t n, StepKind kind) noexcept {
  n_ = n;
  const RecallTurn turn = recall_turn(n, kind, steps_since_recall_, recall_every_);
  next_steps_since_recall_ = turn.since;
  return turn.recalls;
}

EPISODIC_INLINE void Timeline::check_ids(const std::int64_t* ids, std::int64_t vocab) const {
  for (std::int64_t i = 0; i < n_; ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw DataError(concat("token ", i, " of the step has id ", ids[i],
                             ", outside the vocabulary of ", vocab));
}

EPISODIC_INLINE void Timeline::read_first(const std::int64_t* ids, std::int64_t vocab) {
  if (tokens_ == 0 || last_logits_.empty()) return;
  if (static_cast<std::int64_t>(last_logits_.size()) != vocab)
    throw DataError(
        concat("end_step: vocab = ", vocab, ", but earlier steps had ", last_logits_.size()));
  token_surprise(last_logits_.data(), 1, vocab, vocab, ids, next_surprise_.data());
}

EPISODIC_INLINE void Timeline::read(const std::int64_t* ids, const float* logits,
                                    std::int64_t vocab, std::int64_t row_stride) {
  check_ids(ids, vocab);
  next_surprise_.assign(static_cast<std::size_t>(n_) + 1, 0.0f);
  // Row i tells of token i + 1. The last row has no successor yet: its value is dropped, but its
  // logits are checked now, while the step does not count yet.
  targets_.assign(ids + 1, ids + n_);
  targets_.push_back(0);
  token_surprise(logits, n_, vocab, row_stride, targets_.data(), next_surprise_.data() + 1);
  read_first(ids, vocab);
  next_surprise_.pop_back();
  const float* last = logits + (n_ - 1) * row_stride;
  next_logits_.assign(last, last + vocab);
}

EPISODIC_INLINE void Timeline::read(const std::int64_t* ids, const StepSurprise& step) {
  const auto vocab = static_cast<std::int64_t>(step.last_logits.size());
  if (static_cast<std::int64_t>(step.following.size()) != n_ - 1 || vocab == 0)
    throw DataError(
        concat("end_step: ", step.following.size(), " surprises and ", vocab,
               " last logits for a step of ", n_,
               " tokens; expected one for each token but the first, and a row of the vocabulary"));
  check_ids(ids, vocab);
  next_surprise_.assign(static_cast<std::size_t>(n_), 0.0f);
  for (std::size_t i = 0; i < step.following.size(); ++i) {
    if (std::isnan(step.following[i]))
      throw DataError(concat("end_step: surprise of token ", i + 1, " of the step is NaN"));
    next_surprise_[i + 1] = step.following[i];
  }
  read_first(ids, vocab);
  // The last row has no successor yet: its logits are checked now, while the step does not count.
  const std::int64_t any = 0;
  float dropped = 0;
  token_surprise(step.last_logits.data(), 1, vocab, vocab, &any, &dropped);
  next_logits_.assign(step.last_logits.begin(), step.last_logits.end());
}

EPISODIC_INLINE void Timeline::read(const float* surprise) {
  for (std::int64_t i = 0; i < n_; ++i)
    if (!std::isfinite(surprise[i]))
      throw DataError(concat("end_step: surprise of token ", i, " of the step is not finite"));
  next_surprise_.assign(surprise, surprise + n_);
  if (tokens_ == 0) next_surprise_[0] = 0.0f;
  next_logits_.clear();
}

EPISODIC_INLINE void Timeline::decide(std::span<const KeyRing> keys, Group* group) {
  for (Scope& scope : scopes_) {
    StepRecord& r = scope.next_record;
    r.first = tokens_;
    r.n = n_;
    r.events_before = scope.events.size();
    r.surprise = next_surprise_;
    r.threshold.resize(r.surprise.size());
    r.raw_boundaries.resize(r.surprise.size());
    r.final_boundaries.resize(r.surprise.size());
  }
  if (segmenters_.size() == 1) {
    StepRecord& r = scopes_.front().next_record;
    segmenters_.front()->prepare({tokens_, r.surprise, keys, keys_.n_kv_heads, keys_.head_dim},
                                 r.threshold, r.raw_boundaries);
    for (std::size_t s = 1; s < scopes_.size(); ++s) {
      scopes_[s].next_record.threshold = r.threshold;
      scopes_[s].next_record.raw_boundaries = r.raw_boundaries;
    }
  }
  if (!by_head_) {
    // A memory without refinement may be of fewer layers than it would begin at.
    const auto from = refines_ ? static_cast<std::size_t>(refine_layers_) : std::size_t{0};
    decide(0, keys.subspan(std::min(from, keys.size())), group);
    return;
  }
  parallel_for(scopes(), [&](std::int64_t s) {
    const KeyRing ring =
        keys[static_cast<std::size_t>(s / keys_.n_kv_heads)].head(s % keys_.n_kv_heads);
    decide(static_cast<std::size_t>(s), std::span(&ring, 1), nullptr);  // a head is on one rank
  });
}

/// \param keys of the scope, for refinement and segmenters of its own
EPISODIC_INLINE void Timeline::decide(std::size_t s, std::span<const KeyRing> keys, Group* group) {
  Scope& scope = scopes_[s];
  StepRecord& r = scope.next_record;
  if (segmenters_.size() > 1)
    segmenters_[s]->prepare({tokens_, r.surprise, keys, 1, keys_.head_dim}, r.threshold,
                            r.raw_boundaries);
  if (refines_) {
    scope.refiner.resume(scope.now.last_boundary, scope.now.last_in_previous);
    scope.refiner.step(keys, tokens_, r.raw_boundaries, r.final_boundaries, group);
    scope.next_boundary = scope.refiner.last_boundary();
    scope.next_in_previous = scope.refiner.last_in_previous();
  } else {
    r.final_boundaries = r.raw_boundaries;
  }
  scope.events.find_closed(
      tokens_ + n_ - n_local_,
      [&](std::int64_t token) {
        return (token < tokens_
                    ? scope.now.final_flags[slot(scope.now, token)]
                    : r.final_boundaries[static_cast<std::size_t>(token - tokens_)]) != 0;
      },
      scope.closed);
  scope.events.reserve(static_cast<std::int64_t>(scope.closed.size()));
}

EPISODIC_INLINE void Timeline::commit() noexcept {
  for (const auto& segmenter : segmenters_) segmenter->commit();
  for (Scope& scope : scopes_) {
    // Flags of tokens that wait for an event stay: they are within the ring's reach.
    for (std::int64_t i = 0; i < n_; ++i)
      scope.now.final_flags[slot(scope.now, tokens_ + i)] =
          scope.next_record.final_boundaries[static_cast<std::size_t>(i)];
    scope.events.extend(scope.closed);
    if (refines_) {
      scope.now.last_boundary = scope.next_boundary;
      scope.now.last_in_previous = scope.next_in_previous;
    }
    std::swap(scope.record, scope.next_record);
  }
  steps_since_recall_ = next_steps_since_recall_;
  tokens_ += n_;
  std::swap(last_logits_, next_logits_);
}

EPISODIC_INLINE Timeline::State Timeline::state() const {
  State s;
  s.tokens = tokens_;
  s.steps_since_recall = steps_since_recall_;
  s.recent_surprise = segmenters_.front()->recent_surprise();
  ByteWriter bytes;
  for (const auto& segmenter : segmenters_) segmenter->save(bytes);
  s.segmenter = bytes.take();
  s.scopes.clear();
  for (const Scope& scope : scopes_) s.scopes.push_back(scope.now);
  s.last_logits = last_logits_;
  return s;
}

EPISODIC_INLINE Timeline::Ready Timeline::prepare(State s) const {
  if (s.tokens < 0 || s.scopes.size() != scopes_.size())
    throw DataError(concat("timeline: a state of ", s.tokens, " tokens in ", s.scopes.size(),
                           " scopes; this memory has ", scopes_.size()));
  for (std::size_t i = 0; i < scopes_.size(); ++i)
    if (s.scopes[i].final_flags.size() != scopes_[i].now.final_flags.size())
      throw DataError(concat("timeline: a state of ", s.tokens, " tokens with ",
                             s.scopes[i].final_flags.size(), " boundary flags; this memory keeps ",
                             scopes_[i].now.final_flags.size(), " flags"));
  Ready ready;
  ByteReader bytes(s.segmenter, "the segmenter's state");
  for (const auto& segmenter : segmenters_) {
    ready.segmenters.push_back(segmenter->clone());
    ready.segmenters.back()->resume(s.tokens, s.recent_surprise);
    ready.segmenters.back()->load(bytes);
  }
  bytes.finish();
  ready.state = std::move(s);
  return ready;
}

EPISODIC_INLINE void Timeline::resume(Ready ready) noexcept {
  segmenters_ = std::move(ready.segmenters);
  tokens_ = ready.state.tokens;
  steps_since_recall_ = ready.state.steps_since_recall;
  last_logits_ = std::move(ready.state.last_logits);
  for (std::size_t s = 0; s < scopes_.size(); ++s) {
    scopes_[s].now = std::move(ready.state.scopes[s]);
    scopes_[s].record = {};
  }
}

EPISODIC_INLINE void Timeline::truncate(std::int64_t scope, std::int64_t n_events) noexcept {
  EventTable& events = scopes_[static_cast<std::size_t>(scope)].events;
  if (n_events < events.size()) events.truncate(n_events);
}

EPISODIC_INLINE void Timeline::save_events(ByteWriter& to) const {
  for (const Scope& scope : scopes_) scope.events.save(to);
}

EPISODIC_INLINE void Timeline::load_events(ByteReader& from) {
  for (Scope& scope : scopes_) scope.events.load(from);
}

}  // namespace EPISODIC_NAMESPACE
