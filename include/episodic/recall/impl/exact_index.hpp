// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/index.hpp; how they become functions: base/inline.hpp.
#include "episodic/recall/detail/exact_index.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/text.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/recall/detail/exact_rows.hpp"
#include "episodic/recall/vector_tier.hpp"

namespace EPISODIC_NAMESPACE {
namespace detail {
namespace exact_index_detail {

inline constexpr std::int64_t kProjectedPerSearch =
    8;  // slabs: new ones, and old ones in a new subspace
/// Version of a state from which on it says which events its rows are of.
inline constexpr std::uint32_t kEventsOfRows = 5;

/// Vectors in slabs, so that they need not lie in one piece.
inline void save_rows(const VectorSlabs& rows, std::int64_t first, std::int64_t n, ByteWriter& to) {
  for (std::int64_t i = first; i < n; i += rows.rows_per_slab())
    to.put_span(std::span<const float>(
        rows.row(i),
        static_cast<std::size_t>(std::min(rows.rows_per_slab(), n - i) * rows.width())));
}

inline void load_rows(VectorSlabs& rows, std::int64_t first, std::int64_t n, ByteReader& from) {
  for (std::int64_t i = first; i < n; i += rows.rows_per_slab()) {
    const std::int64_t count = std::min(rows.rows_per_slab(), n - i);
    const std::vector<float> slab = from.get_vector<float>(
        static_cast<std::size_t>(count * rows.width()), "a slab of representative vectors");
    for (std::int64_t r = 0; r < count; ++r)
      std::copy_n(slab.data() + r * rows.width(), rows.width(), rows.append());
  }
}

}  // namespace exact_index_detail

EPISODIC_INLINE ExactIndex::ExactIndex(const IndexShape& shape, const ExactTuning& tuning,
                                       const VectorPlace& place)
    : shape_(shape),
      means_(shape.width()),
      each_(shape.width()),
      tuning_(tuning),
      place_(place),
      quantised_(shape.width(), means_.rows_per_slab()),
      projection_(shape.width(), means_.rows_per_slab(), tuning.sample) {
  if (shape.n_heads < 1 || shape.head_dim < 1 || shape.n_repr < 1)
    throw ConfigError(concat("representative index: ", shape.n_heads, " heads of ", shape.head_dim,
                             " channels with ", shape.n_repr,
                             " representatives; each must be at least 1"));
  // The best of several vectors has no bound in the quantised copy, so all of them must be at hand.
  if (shape.score == RepresentativeScore::max) place_.tier = nullptr;
  if (place_.tier && place_.tier->width() != shape.width())
    throw ConfigError(concat("representative index: vectors of ", shape.width(),
                             " channels, a tier for ", place_.tier->width()));
}

EPISODIC_INLINE void ExactIndex::add(const float* mean, const float* each, std::int64_t count) {
  finish_truncate();
  const std::int64_t rows = means_.rows_per_slab();
  if (place_.host_bytes > 0 && means_.size() % rows == 0) {
    const std::int64_t each_slab =
        shape_.score == RepresentativeScore::max ? shape_.n_repr * 4 * rows * shape_.width() : 0;
    const std::int64_t slabs = means_.size() / rows;
    const std::int64_t least = least_bytes(slabs + 1) + (slabs + 1) * each_slab +
                               (place_.tier ? 0 : slabs * 4 * rows * shape_.width());
    if (least > place_.host_bytes)
      throw BudgetError(concat("repr_bytes: a layer's representative index needs ", least,
                               " bytes of host memory for ", means_.size() + rows,
                               " events, its share is ", place_.host_bytes,
                               "; raise repr_bytes so that each layer has at least that"));
    // Room for the slab that begins, and for its codes when it is full, before it is taken.
    release_slabs(4 * rows * shape_.width() + least_bytes(slabs + 1) - least_bytes(slabs));
  }
  if (shape_.score == RepresentativeScore::max) {
    if (!each || count < 1 || count > shape_.n_repr)
      throw DataError(concat("representative index: score \"max\" needs 1 to ", shape_.n_repr,
                             " representatives of an event, ", each ? count : 0, " were given"));
    for (std::int64_t j = 0; j < shape_.n_repr; ++j) {
      float* row = each_.append();
      if (j < count)
        std::copy_n(each + j * shape_.width(), shape_.width(), row);
      else
        std::fill_n(row, shape_.width(), 0.0f);  // what is saved must not hold stray memory
    }
    count_.push_back(static_cast<std::int32_t>(count));
  }
  forgotten_.push_back(0);
  if (n_events_ != means_.size()) events_.push_back(n_events_);
  std::copy_n(mean, shape_.width(), means_.append());
  ++n_events_;
  if (place_.tier && means_.size() % rows == 0) write_slab();
}

EPISODIC_INLINE void ExactIndex::write_slab() {
  const std::int64_t rows = means_.rows_per_slab(), slab = means_.size() / rows - 1;
  try {
    quantised_.add(means_.row(slab * rows));
    for (std::int64_t r = 0; r < rows; ++r)
      if (dead(slab * rows + r)) quantised_.erase(slab, r);
    ByteWriter codes;
    quantised_.save(slab, codes);
    place_.tier->append(place_.layer, rows, means_.row(slab * rows), codes.bytes());
  } catch (...) {
    quantised_.truncate(slab);
    means_.truncate(means_.size() - 1);
    if (!events_.empty()) events_.pop_back();
    forgotten_.pop_back();
    --n_events_;
    throw;
  }
}

EPISODIC_INLINE void ExactIndex::release_slabs(std::int64_t more) {
  if (!place_.tier) return;
  for (std::int64_t slab = 0; slab < quantised_.slabs() && bytes() + more > place_.host_bytes;
       ++slab)
    if (means_.held(slab)) means_.release(slab);
}

EPISODIC_INLINE std::int64_t ExactIndex::least_bytes(std::int64_t n_slabs) const {
  const std::int64_t rows = means_.rows_per_slab();
  const std::int64_t per_slab = quantised_.slab_bytes() + projection_.slab_bytes() +
                                4 * projection_.groups_per_slab() + 2 * rows + 1024;
  return n_slabs * per_slab + 4 * rows * shape_.width() + projection_.fixed_bytes() +
         static_cast<std::int64_t>(events_.capacity() * sizeof(EventId) + forgotten_.capacity());
}

EPISODIC_INLINE std::vector<float> ExactIndex::slab_from_tier(std::int64_t slab) const {
  const std::int64_t rows = means_.rows_per_slab();
  std::vector<float> out(static_cast<std::size_t>(rows * shape_.width()));
  place_.tier->read(place_.layer, slab, 0, rows, out.data());
  for (std::int64_t r = 0; r < std::min(rows, means_.size() - slab * rows); ++r)
    if (dead(slab * rows + r)) std::fill_n(out.begin() + r * shape_.width(), shape_.width(), 0.0f);
  return out;
}

EPISODIC_INLINE const float* ExactIndex::vector(std::int64_t row,
                                                std::vector<float>& buffer) const {
  const std::int64_t rows = means_.rows_per_slab();
  if (means_.held(row / rows)) return means_.row(row);
  buffer.resize(static_cast<std::size_t>(shape_.width()));
  place_.tier->read(place_.layer, row / rows, row % rows, 1, buffer.data());
  return buffer.data();
}

EPISODIC_INLINE void ExactIndex::shrink() {
  finish_truncate();
  if (tuning_.shrinks && n_dead_ >= means_.rows_per_slab() && 2 * n_dead_ >= means_.size())
    drop_dead_rows();
}

/// All that may fail is done before the first of the members changes. Until then the rows that stay
/// are held twice, which are no more than those that go.
EPISODIC_INLINE void ExactIndex::drop_dead_rows() {
  const std::int64_t rows = means_.rows_per_slab(), width = shape_.width();
  std::int64_t first_slab = 0;
  std::vector<std::int64_t> stays;  // rows
  std::vector<EventId> events;      // of them
  for (std::int64_t row = 0; row < means_.size(); ++row) {
    if (dead(row)) continue;
    events.push_back(event_of(row));
    stays.push_back(row);
  }
  const auto n = static_cast<std::int64_t>(events.size()), full = n / rows;
  while (first_slab < full && stays[static_cast<std::size_t>((first_slab + 1) * rows - 1)] ==
                                  (first_slab + 1) * rows - 1)
    ++first_slab;

  // Row by row, for those of forgotten events may be damaged.
  std::vector<float> read;
  const auto copy_row = [&](std::int64_t to, float* out) {
    std::copy_n(vector(stays[static_cast<std::size_t>(to)], read), width, out);
  };
  // A bound on host memory leaves full slabs to the tier.
  const bool holds = !place_.tier || place_.host_bytes == 0;
  VectorSlabs means(width);
  means.skip_slabs(first_slab);
  for (std::int64_t slab = first_slab; slab < full; ++slab)
    if (holds)
      for (std::int64_t r = 0; r < rows; ++r) copy_row(slab * rows + r, means.append());
    else
      means.skip_slabs(1);
  for (std::int64_t row = full * rows; row < n; ++row) copy_row(row, means.append());
  QuantisedSlabs quantised(width, rows);
  if (place_.tier)
    place_.tier->rewrite(place_.layer, first_slab, full - first_slab, rows,
                         [&](std::int64_t slab, float* out, std::vector<std::byte>& codes) {
                           for (std::int64_t r = 0; r < rows; ++r)
                             copy_row(slab * rows + r, out + r * width);
                           quantised.add(out);
                           ByteWriter to;
                           quantised.save(slab - first_slab, to);
                           codes = to.take();
                         });

  if (place_.tier)
    quantised_.replace(first_slab, quantised);
  else
    quantised_.truncate(first_slab);
  projection_.truncate(first_slab);
  for (std::int64_t slab = 0; slab < first_slab; ++slab) means.take(slab, means_);
  means_ = std::move(means);
  if (shape_.score == RepresentativeScore::max) {
    for (std::int64_t row = 0; row < n; ++row) {
      const std::int64_t from = stays[static_cast<std::size_t>(row)];
      count_[static_cast<std::size_t>(row)] = count_[static_cast<std::size_t>(from)];
      for (std::int64_t j = 0; from != row && j < shape_.n_repr; ++j)
        std::copy_n(each_.row(from * shape_.n_repr + j), width, each_.row(row * shape_.n_repr + j));
    }
    each_.truncate(n * shape_.n_repr);
    count_.resize(static_cast<std::size_t>(n));
  }
  events_ = std::move(events);
  n_dead_ = 0;
  unerased_.clear();  // all of them changed
  search_.forget_last();
}

EPISODIC_INLINE void ExactIndex::compact() {
  shrink();
  while (!unerased_.empty()) {
    const std::int64_t slab = unerased_.back();
    const std::vector<float> rows = slab_from_tier(slab);
    ByteWriter codes;
    quantised_.save(slab, codes);
    place_.tier->replace(place_.layer, slab, means_.rows_per_slab(), rows.data(), codes.bytes());
    unerased_.pop_back();
  }
}

EPISODIC_INLINE float ExactIndex::score(const float* query, EventId event) const {
  check_kept(event);
  return score_of(query, row_of(event));
}

EPISODIC_INLINE float ExactIndex::score_of(const float* query, std::int64_t row) const {
  float total = 0.0f;
  if (shape_.score == RepresentativeScore::mean) {
    std::vector<float> buffer;  // readers may ask at once
    total = dot(query, vector(row, buffer), shape_.width());
  } else {
    for (std::int64_t h = 0; h < shape_.n_heads; ++h) {
      const std::int64_t at = h * shape_.head_dim;
      float best = -std::numeric_limits<float>::infinity();
      for (std::int64_t j = 0; j < count_[static_cast<std::size_t>(row)]; ++j)
        best = std::max(best,
                        dot(query + at, each_.row(row * shape_.n_repr + j) + at, shape_.head_dim));
      total += best;
    }
  }
  return exact_index_detail::rankable(total);
}

EPISODIC_INLINE void ExactIndex::scan(const float* query, std::int64_t from,
                                      std::vector<ScoredEvent>& out) const {
  const std::int64_t n_rows = means_.size();
  if (from >= n_rows) return;
  const std::size_t old = out.size();
  // Doubling by hand: a cleared vector grows to the exact size, with every event that closes.
  const std::size_t needed = old + static_cast<std::size_t>(n_rows - from);
  if (needed > out.capacity()) out.reserve(std::max(needed, 2 * out.capacity()));
  out.resize(needed);
  if (shape_.score == RepresentativeScore::max) {
    exact_index_detail::parallel_blocks(n_rows - from, [&](std::int64_t i) {
      out[old + static_cast<std::size_t>(i)] = {from + i, score_of(query, from + i)};
    });
  } else {
    const std::int64_t rows = means_.rows_per_slab(), first = from / rows;
    parallel_for((n_rows - 1) / rows - first + 1, [&](std::int64_t i) {
      std::array<float, VectorSlabs::kMostRows> scores;
      const std::int64_t begin = std::max(from, (first + i) * rows);
      const std::int64_t end = std::min(n_rows, (first + i + 1) * rows);
      std::vector<float> read;
      const float* vectors = nullptr;
      if (means_.held(begin / rows)) {
        vectors = means_.row(begin);
      } else {
        read = slab_from_tier(begin / rows);
        vectors = read.data() + begin % rows * shape_.width();
      }
      cpu::kernels().dots(query, vectors, end - begin, shape_.width(), shape_.width(),
                          scores.data());
      for (std::int64_t r = begin; r < end; ++r)
        out[old + static_cast<std::size_t>(r - from)] = {
            r, exact_index_detail::rankable(scores[static_cast<std::size_t>(r - begin)])};
    });
  }
  if (n_dead_ == 0) return;
  out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(old), out.end(),
                           [&](const ScoredEvent& e) { return dead(e.event); }),
            out.end());
}

EPISODIC_INLINE void ExactIndex::search(const float* query, std::int64_t k,
                                        std::vector<ScoredEvent>& out) {
  if (k > 0) finish_truncate();
  search_.search(query, k, out);
}

EPISODIC_INLINE bool ExactIndex::large() const {
  return means_.size() * shape_.width() * static_cast<std::int64_t>(sizeof(float)) >=
         tuning_.bound_from;
}

EPISODIC_INLINE bool ExactIndex::bounds_for(std::int64_t k) const {
  if (!large() || 4 * k > means_.size()) return false;
  // vectors in files are read one at a time: what need not be read is worth more
  return k <= means_.size() / tuning_.events_per_listed || !means_.held(0);
}

EPISODIC_INLINE void ExactIndex::quantise_full_slabs() {
  const std::int64_t rows = means_.rows_per_slab();
  while ((quantised_.slabs() + 1) * rows <= means_.size())
    quantised_.add(means_.row(quantised_.slabs() * rows));
}

EPISODIC_INLINE void ExactIndex::learn(const float* query) {
  if (!tuning_.projection) return;
  projection_.sample(query);
  projection_.project(quantised_, exact_index_detail::kProjectedPerSearch);
}

EPISODIC_INLINE void ExactIndex::freeze() {
  finish_truncate();
  if (shape_.score != RepresentativeScore::mean || !large()) return;
  quantise_full_slabs();
  projection_.project(quantised_, quantised_.slabs());
}

/// What one of many needs to read an exact index.
class ExactReader final : public IndexReader {
 public:
  explicit ExactReader(const ExactIndex& index) : index_(index), search_(index) {}
  void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) override {
    search_.search(query, k, out);
  }
  const float* mean(EventId event) override { return index_.mean(event, fetched_); }
  std::int64_t bytes() const override {
    return search_.bytes() + static_cast<std::int64_t>(fetched_.capacity() * sizeof(float));
  }

 private:
  const ExactIndex& index_;
  ExactSearch search_;
  std::vector<float> fetched_;
};

EPISODIC_INLINE std::unique_ptr<IndexReader> ExactIndex::reader() const {
  return std::make_unique<ExactReader>(*this);
}

EPISODIC_INLINE void ExactIndex::truncate(std::int64_t n_events) {
  if (n_events < 0 || n_events > size())
    throw DataError(
        concat("representative index: cannot truncate ", size(), " events to ", n_events));
  const std::int64_t n_rows = row_of(n_events);
  const std::int64_t rows = means_.rows_per_slab(), full = n_rows / rows;
  // What becomes the slab that is not full may lie in the tier only, which keeps it until
  // finish_truncate.
  const bool fetch = n_rows % rows != 0 && !means_.held(full);
  if (place_.tier) place_.tier->truncate(place_.layer, full + fetch);
  std::erase_if(unerased_, [full](std::int64_t slab) { return slab >= full; });
  means_.truncate(n_rows);
  quantised_.truncate(full);
  projection_.truncate(full);
  if (shape_.score == RepresentativeScore::max) {
    each_.truncate(n_rows * shape_.n_repr);
    count_.resize(static_cast<std::size_t>(n_rows));
  }
  n_events_ = n_events;
  events_.resize(n_events == n_rows ? 0 : static_cast<std::size_t>(n_rows));
  forgotten_.resize(static_cast<std::size_t>(n_events));
  count_dead();
}

EPISODIC_INLINE void ExactIndex::finish_truncate() {
  const std::int64_t rows = means_.rows_per_slab(), full = means_.size() / rows;
  if (means_.size() % rows == 0 || means_.held(full)) return;
  release_slabs(4 * rows * shape_.width());
  means_.hold(full, slab_from_tier(full).data());
  place_.tier->truncate(place_.layer, full);
  std::erase_if(unerased_, [full](std::int64_t slab) { return slab >= full; });
}

EPISODIC_INLINE void ExactIndex::count_dead() {
  const auto n = std::count(forgotten_.begin(), forgotten_.end(), std::uint8_t{1});
  n_dead_ = n - (n_events_ - means_.size());
}

EPISODIC_INLINE void ExactIndex::check(EventId event) const {
  if (event < 0 || event >= size())
    throw DataError(concat("representative index: no event ", event, " among ", size()));
}

EPISODIC_INLINE void ExactIndex::check_kept(EventId event) const {
  check(event);
  if (forgotten(event))
    throw DataError(
        concat("representative index: event ", event, " was forgotten, its vector is erased"));
}

EPISODIC_INLINE void ExactIndex::forget(EventId event) {
  check(event);
  if (forgotten(event)) return;
  unerased_.reserve(unerased_.size() + 1);
  const std::int64_t row = row_of(event);
  const std::int64_t rows = means_.rows_per_slab(), slab = row / rows;
  forgotten_[static_cast<std::size_t>(event)] = 1;
  ++n_dead_;
  if (means_.held(slab)) std::fill_n(means_.row(row), shape_.width(), 0.0f);
  std::fill(fetched_.begin(), fetched_.end(), 0.0f);
  if (place_.tier && slab < place_.tier->slabs(place_.layer) &&
      std::find(unerased_.begin(), unerased_.end(), slab) == unerased_.end())
    unerased_.push_back(slab);
  if (shape_.score == RepresentativeScore::max)
    for (std::int64_t j = 0; j < shape_.n_repr; ++j)  // which may lie in two slabs
      std::fill_n(each_.row(row * shape_.n_repr + j), shape_.width(), 0.0f);
  if (slab < quantised_.slabs()) {
    quantised_.erase(slab, row % rows);
    projection_.erase(slab, row % rows);
  }
}

EPISODIC_INLINE const float* ExactIndex::mean(EventId event) const { return mean(event, fetched_); }

EPISODIC_INLINE const float* ExactIndex::mean(EventId event, std::vector<float>& buffer) const {
  check_kept(event);
  return vector(row_of(event), buffer);
}

EPISODIC_INLINE std::vector<float> ExactIndex::each(EventId event) const {
  check_kept(event);
  std::vector<float> rows;
  if (shape_.score != RepresentativeScore::max) return rows;
  const std::int64_t of = row_of(event);
  for (std::int64_t j = 0; j < count_[static_cast<std::size_t>(of)]; ++j) {
    const float* const row = each_.row(of * shape_.n_repr + j);
    rows.insert(rows.end(), row, row + shape_.width());
  }
  return rows;
}

EPISODIC_INLINE void ExactIndex::save(ByteWriter& to) const {
  to.put(shape_.n_heads);
  to.put(shape_.head_dim);
  to.put(shape_.n_repr);
  to.put(shape_.score);
  to.put(n_events_);
  to.put(means_.size());
  to.put_vector(events_);
  const std::int64_t in_tier = place_.tier ? place_.tier->slabs(place_.layer) : 0;
  to.put(in_tier);
  to.put_vector(unerased_);
  exact_index_detail::save_rows(means_, in_tier * means_.rows_per_slab(), means_.size(), to);
  if (shape_.score == RepresentativeScore::max) {
    to.put_vector(count_);
    exact_index_detail::save_rows(each_, 0, each_.size(), to);
  }
  to.put_vector(forgotten_);
  projection_.save(to);
}

EPISODIC_INLINE void ExactIndex::load(ByteReader& from) {
  if (size() != 0)
    throw DataError(concat("representative index: load into an index of ", size(),
                           " events; load into an empty one"));
  IndexShape shape;
  shape.n_heads = from.get<std::int64_t>();
  shape.head_dim = from.get<std::int64_t>();
  shape.n_repr = from.get<std::int64_t>();
  shape.score = from.get<RepresentativeScore>();
  if (shape.n_heads != shape_.n_heads || shape.head_dim != shape_.head_dim ||
      shape.n_repr != shape_.n_repr || shape.score != shape_.score)
    throw FileError(concat(
        from.where(), ": a representative index of ", shape.n_heads, " heads of ", shape.head_dim,
        " channels with ", shape.n_repr, " representatives, score ", static_cast<int>(shape.score),
        "; this memory has ", shape_.n_heads, ", ", shape_.head_dim, ", ", shape_.n_repr, " and ",
        static_cast<int>(shape_.score), ": open it with the model and settings that made it"));
  const auto damaged = [&from](const auto&... what) {
    throw FileError(concat(from.where(), ": ", what..., "; the file is damaged"));
  };
  const auto n_events = from.get<std::int64_t>();
  std::int64_t n = n_events;  // rows
  std::vector<EventId> events;
  if (from.version() >= exact_index_detail::kEventsOfRows) {
    n = from.get<std::int64_t>();
    events = from.get_vector<EventId>();
    bool ascend = true;
    EventId before = -1;
    for (const EventId e : events) {
      ascend = ascend && e > before && e < n_events;
      before = e;
    }
    if (n < 0 || n > n_events || !ascend || (!tuning_.shrinks && n != n_events) ||
        static_cast<std::int64_t>(events.size()) != (n == n_events ? 0 : n))
      damaged("the ", n, " representatives of ", n_events, " events are said to be of ",
              events.size());
  }
  const auto in_tier = from.get<std::int64_t>();
  const std::int64_t rows = means_.rows_per_slab();
  if (in_tier != (place_.tier ? n / rows : 0) ||
      (place_.tier && place_.tier->slabs(place_.layer) != in_tier))
    throw FileError(concat(from.where(), ": an index of ", in_tier, " slabs of vectors in a tier, ",
                           place_.tier ? place_.tier->slabs(place_.layer) : 0,
                           " are there; open both of one commit"));
  unerased_ = from.get_vector<std::int64_t>();
  for (const std::int64_t slab : unerased_)
    if (slab < 0 || slab >= in_tier) damaged("forgotten events in slab ", slab, " of ", in_tier);
  if (n_events < 0 || n_events > static_cast<std::int64_t>(from.left()))
    damaged(n_events, " events of a representative index in ", from.left(), " bytes");
  means_.skip_slabs(in_tier);
  exact_index_detail::load_rows(means_, in_tier * rows, n, from);
  if (shape_.score == RepresentativeScore::max) {
    count_ =
        from.get_vector<std::int32_t>(static_cast<std::size_t>(n), "the representatives' count");
    for (const std::int32_t count : count_)
      if (count < 1 || count > shape_.n_repr)
        damaged("an event with ", count, " of ", shape_.n_repr, " representatives");
    exact_index_detail::load_rows(each_, 0, n * shape_.n_repr, from);
  }
  n_events_ = n_events;
  events_ = std::move(events);
  forgotten_ =
      from.get_vector<std::uint8_t>(static_cast<std::size_t>(n_events), "the forgotten events");
  for (const std::uint8_t flag : forgotten_)
    if (flag > 1) damaged("the flag of a forgotten event is ", static_cast<int>(flag));
  std::int64_t row = 0;
  for (EventId e = 0; e < n_events; ++e)
    if (row < n && event_of(row) == e)
      ++row;
    else if (!forgotten(e))
      damaged("event ", e, ", which was not forgotten, has no representatives");
  count_dead();
  projection_.load(from);
  for (std::int64_t slab = 0; slab < in_tier; ++slab) {
    const std::vector<std::byte> codes = place_.tier->codes(place_.layer, slab);
    ByteReader reader(codes, place_.tier->where(place_.layer, slab));
    if (place_.tier->rows(place_.layer, slab) != rows)
      throw FileError(concat(reader.where(), ": ", place_.tier->rows(place_.layer, slab),
                             " rows, expected ", rows, "; open it with the settings that made it"));
    quantised_.load(reader);
    reader.finish();
    for (std::int64_t r = 0; r < rows; ++r)
      if (dead(slab * rows + r)) quantised_.erase(slab, r);
  }
}

EPISODIC_INLINE std::int64_t ExactIndex::bytes() const {
  return means_.bytes() + each_.bytes() + quantised_.bytes() + projection_.bytes() +
         search_.bytes() +
         static_cast<std::int64_t>(count_.capacity() * sizeof(std::int32_t) +
                                   events_.capacity() * sizeof(EventId) + forgotten_.capacity());
}

}  // namespace detail

EPISODIC_INLINE std::unique_ptr<RepresentativeIndex> make_exact_index(const IndexShape& shape,
                                                                      const VectorPlace& place) {
  return std::make_unique<detail::ExactIndex>(shape, detail::ExactTuning{}, place);
}

EPISODIC_INLINE std::unique_ptr<RepresentativeIndex> make_index(const MemoryConfig& config,
                                                                std::int64_t n_heads,
                                                                std::int64_t head_dim,
                                                                const VectorPlace& place) {
  const IndexShape shape{n_heads, head_dim, config.n_repr, config.score};
  if (config.index == IndexKind::faiss) return make_faiss_index(shape, config.exact_up_to);
  return make_exact_index(shape, place);
}

EPISODIC_INLINE double recall_of(std::span<const ScoredEvent> approximate,
                                 std::span<const ScoredEvent> exact) {
  if (exact.empty()) return 1.0;
  std::vector<EventId> found;
  found.reserve(approximate.size());
  for (const ScoredEvent& e : approximate) found.push_back(e.event);
  std::sort(found.begin(), found.end());
  const auto hits = std::count_if(exact.begin(), exact.end(), [&](const ScoredEvent& e) {
    return std::binary_search(found.begin(), found.end(), e.event);
  });
  return static_cast<double>(hits) / static_cast<double>(exact.size());
}

}  // namespace EPISODIC_NAMESPACE
