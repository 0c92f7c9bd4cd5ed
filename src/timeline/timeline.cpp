// SPDX-License-Identifier: Apache-2.0
#include "episodic/timeline/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

// Bytes travel as numbers: std::byte is none.
struct PutField {
  ByteWriter& to;
  void operator()(std::int64_t value) const { to.put(value); }
  void operator()(const std::vector<std::byte>& bytes) const {
    to.put_span(std::span<const char>(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
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
  template <class T>
  void operator()(std::vector<T>& values) const {
    values = from.get_vector<T>();
  }
};

}  // namespace

void Timeline::State::save(ByteWriter& to) const { fields(*this, PutField{to}); }
void Timeline::State::load(ByteReader& from) { fields(*this, GetField{from}); }

Timeline::Timeline(const MemoryConfig& config, std::int64_t n_kv_heads, std::int64_t head_dim,
                   std::int64_t capacity, std::vector<std::int64_t> given)
    : Timeline(config, n_kv_heads, head_dim, capacity, make_segmenter(config, std::move(given))) {}

Timeline::Timeline(const MemoryConfig& config, std::int64_t n_kv_heads, std::int64_t head_dim,
                   std::int64_t capacity, std::unique_ptr<Segmenter> segmenter)
    : n_local_(config.n_local),
      n_kv_heads_(n_kv_heads),
      head_dim_(head_dim),
      recall_every_(config.recall_every),
      refines_(config.refine != Refinement::none),
      segmenter_(std::move(segmenter)),
      refiner_(config.refine, config.n_init, config.min_block, n_kv_heads, head_dim),
      events_(config.n_init, config.min_block, config.max_block) {
  now_.final_flags.assign(static_cast<std::size_t>(capacity), 0);
}

bool Timeline::begin(std::int64_t n, StepKind kind) noexcept {
  n_ = n;
  const RecallTurn turn = recall_turn(n, kind, now_.steps_since_recall, recall_every_);
  next_steps_since_recall_ = turn.since;
  return turn.recalls;
}

void Timeline::check_ids(const std::int64_t* ids, std::int64_t vocab) const {
  for (std::int64_t i = 0; i < n_; ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw DataError(fmt::format("token {} of the step has id {}, outside the vocabulary of {}", i,
                                  ids[i], vocab));
}

void Timeline::read_first(const std::int64_t* ids, std::int64_t vocab) {
  if (now_.tokens == 0 || now_.last_logits.empty()) return;
  if (static_cast<std::int64_t>(now_.last_logits.size()) != vocab)
    throw DataError(fmt::format("end_step: vocab = {}, but earlier steps had {}", vocab,
                                now_.last_logits.size()));
  token_surprise(now_.last_logits.data(), 1, vocab, vocab, ids, next_record_.surprise.data());
}

void Timeline::read(const std::int64_t* ids, const float* logits, std::int64_t vocab,
                    std::int64_t row_stride) {
  check_ids(ids, vocab);
  std::vector<float>& surprise = next_record_.surprise;
  surprise.assign(static_cast<std::size_t>(n_) + 1, 0.0f);
  // Row i tells of token i + 1. The last row has no successor yet: its value is dropped, but its
  // logits are checked now, while the step does not count yet.
  targets_.assign(ids + 1, ids + n_);
  targets_.push_back(0);
  token_surprise(logits, n_, vocab, row_stride, targets_.data(), surprise.data() + 1);
  read_first(ids, vocab);
  surprise.pop_back();
  const float* last = logits + (n_ - 1) * row_stride;
  next_logits_.assign(last, last + vocab);
}

void Timeline::read(const std::int64_t* ids, const StepSurprise& step) {
  const auto vocab = static_cast<std::int64_t>(step.last_logits.size());
  if (static_cast<std::int64_t>(step.following.size()) != n_ - 1 || vocab == 0)
    throw DataError(
        fmt::format("end_step: {} surprises and {} last logits for a step of {} tokens; expected "
                    "one for each token but the first, and a row of the vocabulary",
                    step.following.size(), vocab, n_));
  check_ids(ids, vocab);
  std::vector<float>& surprise = next_record_.surprise;
  surprise.assign(static_cast<std::size_t>(n_), 0.0f);
  for (std::size_t i = 0; i < step.following.size(); ++i) {
    if (std::isnan(step.following[i]))
      throw DataError(fmt::format("end_step: surprise of token {} of the step is NaN", i + 1));
    surprise[i + 1] = step.following[i];
  }
  read_first(ids, vocab);
  // The last row has no successor yet: its logits are checked now, while the step does not count.
  const std::int64_t any = 0;
  float dropped = 0;
  token_surprise(step.last_logits.data(), 1, vocab, vocab, &any, &dropped);
  next_logits_.assign(step.last_logits.begin(), step.last_logits.end());
}

void Timeline::read(const float* surprise) {
  for (std::int64_t i = 0; i < n_; ++i)
    if (!std::isfinite(surprise[i]))
      throw DataError(fmt::format("end_step: surprise of token {} of the step is not finite", i));
  next_record_.surprise.assign(surprise, surprise + n_);
  if (now_.tokens == 0) next_record_.surprise[0] = 0.0f;
  next_logits_.clear();
}

const std::vector<TokenRange>& Timeline::decide(std::span<const KeyRing> keys) {
  const std::int64_t first = now_.tokens;
  StepRecord& r = next_record_;
  r.first = first;
  r.n = n_;
  r.events_before = events_.size();
  r.threshold.resize(r.surprise.size());
  r.raw_boundaries.resize(r.surprise.size());
  r.final_boundaries.resize(r.surprise.size());
  segmenter_->prepare({first, r.surprise, keys, n_kv_heads_, head_dim_}, r.threshold,
                      r.raw_boundaries);
  if (refines_) {
    refiner_.resume(now_.last_boundary, now_.last_in_previous);
    refiner_.step(keys, first, r.raw_boundaries, r.final_boundaries);
    next_boundary_ = refiner_.last_boundary();
    next_in_previous_ = refiner_.last_in_previous();
  } else {
    r.final_boundaries = r.raw_boundaries;
  }
  events_.find_closed(
      first + n_ - n_local_,
      [&](std::int64_t token) {
        return (token < first ? now_.final_flags[slot(token)]
                              : r.final_boundaries[static_cast<std::size_t>(token - first)]) != 0;
      },
      closed_);
  events_.reserve(static_cast<std::int64_t>(closed_.size()));
  return closed_;
}

void Timeline::commit() noexcept {
  // Flags of tokens that wait for an event stay: they are within the ring's reach.
  for (std::int64_t i = 0; i < n_; ++i)
    now_.final_flags[slot(now_.tokens + i)] =
        next_record_.final_boundaries[static_cast<std::size_t>(i)];
  segmenter_->commit();
  events_.extend(closed_);
  if (refines_) {
    now_.last_boundary = next_boundary_;
    now_.last_in_previous = next_in_previous_;
  }
  now_.steps_since_recall = next_steps_since_recall_;
  now_.tokens += n_;
  std::swap(now_.last_logits, next_logits_);
  std::swap(record_, next_record_);
}

Timeline::State Timeline::state() const {
  State s = now_;
  s.recent_surprise = segmenter_->recent_surprise();
  ByteWriter bytes;
  segmenter_->save(bytes);
  s.segmenter = bytes.take();
  return s;
}

Timeline::Ready Timeline::prepare(State s) const {
  if (s.tokens < 0 || s.final_flags.size() != now_.final_flags.size())
    throw DataError(fmt::format(
        "timeline: a state of {} tokens with {} boundary flags; this memory keeps {} flags",
        s.tokens, s.final_flags.size(), now_.final_flags.size()));
  std::unique_ptr<Segmenter> segmenter = segmenter_->clone();
  segmenter->resume(s.tokens, s.recent_surprise);
  ByteReader bytes(s.segmenter, "the segmenter's state");
  segmenter->load(bytes);
  bytes.finish();
  s.recent_surprise.clear();
  s.segmenter.clear();
  return {std::move(s), std::move(segmenter)};
}

void Timeline::resume(Ready ready) noexcept {
  segmenter_ = std::move(ready.segmenter);
  now_ = std::move(ready.state);
  record_ = {};
}

void Timeline::truncate(std::int64_t n_events) noexcept {
  if (n_events < events_.size()) events_.truncate(n_events);
}

}  // namespace episodic
