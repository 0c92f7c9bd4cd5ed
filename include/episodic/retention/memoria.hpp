// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Memoria`: association and forgetting over a caller's vectors (Memoria 3, ICML 2024).
/// Header-only, needs nothing but the base headers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/memoria_config.hpp"
#include "episodic/retention/detail/engram_counts.hpp"
#include "episodic/retention/detail/random_wires.hpp"

namespace EPISODIC_NAMESPACE {

/// Engrams that fire together are linked, those that are not attended are forgotten.
///
///     Memoria memoria({}, width);
///     const Memoria::Recall& r = memoria.recall(vectors, n);     // a step's n new engrams
///     ... attend with r.short_term and r.long_term ...
///     std::vector<std::int64_t> gone = memoria.commit(attention);
///
/// Engrams are numbered 0, 1, 2 .. in the order in which they came. A value: a copy is a snapshot.
class Memoria {
 public:
  /// What a step recalled. Numbers of engrams.
  struct Recall {
    std::vector<std::int64_t> working;     ///< the step's own
    std::vector<std::int64_t> short_term;  ///< by rank
    std::vector<std::int64_t> initial;     ///< where the search of long-term memory began, sorted
    std::vector<std::int64_t> found;       ///< all that it found, sorted, `initial` included
    std::vector<std::int64_t> long_term;   ///< by rank

    std::int64_t size() const {
      return static_cast<std::int64_t>(short_term.size() + long_term.size());
    }
  };

  /// \param width of the engrams' vectors, >= 1 \throws ConfigError
  Memoria(const MemoriaConfig& config, std::int64_t width) : config_(config), width_(width) {
    config_.validate();
    if (width < 1) throw ConfigError("memoria: width must be >= 1");
  }

  /// Takes a step's new engrams and recalls by them. A call before `commit` replaces the step that
  /// is open.
  /// \param engrams [n, width]; the paper's are of unit length, which is not asked for
  /// \throws DataError for numbers that are not finite or a span of another size; nothing changed
  const Recall& recall(std::span<const float> engrams, std::int64_t n) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)));
    std::iota(ids.begin(), ids.end(), next_id_);
    return recall(engrams, ids, next_id_ + n);
  }
  /// The same for engrams whose numbers have gaps, those of engrams that their owner gave up before
  /// this step. \param ids ascending, from `total()` on \param total what `total()` is after it
  const Recall& recall(std::span<const float> engrams, std::span<const std::int64_t> ids,
                       std::int64_t total) {
    check(engrams, ids, total);
    Recall next;
    const std::vector<double> wide(engrams.begin(), engrams.end());
    next.short_term = best(short_term_, wide, config_.n_short);
    if (config_.search == LongTermSearch::full)
      next.found = long_term();
    else
      search(next);
    next.long_term = best(next.found, wide, config_.n_long);
    return open(std::move(next), engrams, ids, total);
  }
  /// A step that recalls what its owner says in place of what the graph would: the first N_stm of
  /// `chosen` that are in the short-term memory, and the first N_ltm that are in the long-term one.
  /// \param chosen engrams that are held, best first
  const Recall& recall(std::span<const float> engrams, std::span<const std::int64_t> ids,
                       std::int64_t total, std::span<const std::int64_t> chosen) {
    check(engrams, ids, total);
    Recall next;
    for (const std::int64_t id : chosen) {
      const auto it = engrams_.find(id);
      if (it == engrams_.end())
        throw DataError("memoria: engram " + std::to_string(id) + " is not held");
      const bool old = it->second.long_term;
      std::vector<std::int64_t>& list = old ? next.long_term : next.short_term;
      if (std::ssize(list) < (old ? config_.n_long : config_.n_short)) list.push_back(id);
    }
    return open(std::move(next), engrams, ids, total);
  }

  /// Ends the step: fires, extends and shortens lives, forgets, moves engrams on (in that order).
  /// \param attention [recall.size()] >= 0: what each recalled engram received over all heads,
  ///        layers and queries of the step, short-term ones first, in the order of `Recall`
  /// \return the engrams that were forgotten, sorted
  /// \throws DataError if no step is open, or attention is of another size, negative or not finite
  std::vector<std::int64_t> commit(std::span<const double> attention) {
    prepare(attention);
    return publish();
  }

  /// The part of `commit` that can fail. Nothing of the step counts before `publish`; a call of
  /// `recall` gives it up. \throws as commit, std::bad_alloc
  void prepare(std::span<const double> attention) {
    if (!open_) throw DataError("memoria: commit without recall");
    if (static_cast<std::int64_t>(attention.size()) != recall_.size())
      throw DataError("memoria: " + std::to_string(attention.size()) + " weights for " +
                      std::to_string(recall_.size()) + " recalled engrams");
    for (const double w : attention)
      if (!(w >= 0) || !std::isfinite(w))
        throw DataError("memoria: an attention weight is negative or not finite");
    attention_.assign(attention.begin(), attention.end());
    firing_ = recall_.working;
    firing_.insert(firing_.end(), recall_.short_term.begin(), recall_.short_term.end());
    firing_.insert(firing_.end(), recall_.long_term.begin(), recall_.long_term.end());
    std::sort(firing_.begin(), firing_.end());
    wires_.clear();
    if (config_.wiring == Wiring::random)
      wires_ = detail::random_wires(firing_, long_term(), steps_);
    fresh_.clear();
    for (std::size_t i = 0; i < recall_.working.size(); ++i) {
      Engram& e = fresh_[recall_.working[i]];
      const float* vector = working_.data() + i * static_cast<std::size_t>(width_);
      e.vector.assign(vector, vector + width_);
      if (wires_.empty()) e.counts.make_room(firing_);
    }
    if (wires_.empty())
      for (const auto* list : {&recall_.short_term, &recall_.long_term})
        for (const std::int64_t id : *list) engrams_.at(id).counts.make_room(firing_);
    for (const auto& [id, others] : wires_) {
      const auto fresh = fresh_.find(id);
      (fresh == fresh_.end() ? engrams_.at(id) : fresh->second).counts.make_room(others);
    }
    // Room grows by doubling: to ask for just enough would move everything in every step.
    const std::size_t most = engrams_.size() + fresh_.size();
    if (static_cast<double>(most) >
        static_cast<double>(engrams_.bucket_count()) * engrams_.max_load_factor())
      engrams_.reserve(2 * most);
    detail::make_room(endings_, fresh_.size());
    detail::make_room(short_term_, fresh_.size());
    gone_.clear();
    gone_.reserve(resets_next() ? most : due(0, steps_ + 1) + fresh_.size());
    prepared_ = true;
  }

  /// The rest of `commit`, which cannot fail. \pre prepare
  std::vector<std::int64_t> publish() noexcept {
    engrams_.merge(fresh_);
    for (const std::int64_t id : recall_.working)
      start_life(engrams_.find(id)->second, id, config_.initial_lifespan);
    next_id_ = next_total_;
    fire();
    extend();
    shorten();
    for (const std::int64_t id : recall_.working)
      if (holds(id)) short_term_.push_back(id);
    const auto capacity = static_cast<std::ptrdiff_t>(config_.short_term_capacity);
    if (const auto beyond = std::ssize(short_term_) - capacity; beyond > 0) {
      for (std::ptrdiff_t i = 0; i < beyond; ++i)
        engrams_.find(short_term_[static_cast<std::size_t>(i)])->second.long_term = true;
      short_term_.erase(short_term_.begin(), short_term_.begin() + beyond);
    }
    open_ = prepared_ = false;
    const bool resets = resets_next();
    ++steps_;
    if (resets) {
      for (const auto& [id, e] : engrams_) gone_.push_back(id);
      std::sort(gone_.begin(), gone_.end());
      engrams_.clear();
      endings_.clear();
      short_term_.clear();
    }
    return std::move(gone_);
  }

  /// Gives up a step that is open.
  void abandon() noexcept { open_ = prepared_ = false; }

  /// Forgets an engram that its owner gave up; nothing if it is not held. A step that is open is
  /// given up.
  void forget(std::int64_t engram) noexcept {
    abandon();
    erase(engram);
    short_term_.erase(std::remove(short_term_.begin(), short_term_.end(), engram),
                      short_term_.end());
  }

  /// Takes back the engrams from number `total` on: the next one has that number again. Lives and
  /// counts of those before stay what the steps since made of them. A step that is open is given
  /// up.
  void truncate(std::int64_t total) noexcept {
    abandon();
    recall_ = {};
    for (std::int64_t engram = total; engram < next_id_; ++engram) forget(engram);
    next_id_ = std::min(next_id_, total);
  }

  const MemoriaConfig& config() const { return config_; }
  std::int64_t width() const { return width_; }
  std::int64_t steps() const { return steps_; }
  /// Engrams that came so far, forgotten ones included.
  std::int64_t total() const { return next_id_; }
  /// Engrams that are held now.
  std::int64_t size() const { return static_cast<std::int64_t>(engrams_.size()); }
  bool holds(std::int64_t engram) const { return engrams_.count(engram) > 0; }
  /// Oldest first.
  const std::vector<std::int64_t>& short_term() const { return short_term_; }
  /// What the last step recalled; nothing before the first.
  const Recall& last_recall() const { return recall_; }
  /// Sorted.
  std::vector<std::int64_t> long_term() const {
    std::vector<std::int64_t> all;
    for (const auto& [id, e] : engrams_)
      if (e.long_term) all.push_back(id);
    std::sort(all.begin(), all.end());
    return all;
  }
  /// Steps left; 0 for an engram that is not held.
  double lifespan(std::int64_t engram) const {
    const auto it = engrams_.find(engram);
    return it == engrams_.end() ? 0.0 : it->second.left_after(steps_);
  }
  /// How often two engrams fired together (an engram with itself: how often it fired); 0 if one of
  /// them is not held.
  std::int64_t count(std::int64_t a, std::int64_t b) const {
    const auto it = engrams_.find(a);
    return it == engrams_.end() ? 0 : it->second.counts.of(b);
  }
  /// E_{a->b} = Count_ab / Count_aa; 0 where there is no edge.
  double edge(std::int64_t a, std::int64_t b) const {
    const std::int64_t own = count(a, a);
    return own == 0 ? 0.0 : static_cast<double>(count(a, b)) / static_cast<double>(own);
  }
  /// Bytes of vectors and counts, about.
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [id, e] : engrams_)
      sum += static_cast<std::int64_t>(e.vector.size() * sizeof(float)) +
             static_cast<std::int64_t>(e.counts.all.size()) * kBytesOfACount + kBytesOfAnEngram;
    return sum;
  }

  /// The most engrams held in the long run (Memoria, appendix E.1): each step gives out alpha *
  /// recalled steps of life and each new engram brings its own, every one that is held loses one,
  /// and one that is forgotten has lost less than one too many.
  /// \param recalled, fresh engrams of a step, on average
  static double most_held(const MemoriaConfig& config, double recalled, double fresh) {
    return config.alpha * recalled + (config.initial_lifespan + 1) * fresh;
  }
  /// The most that `bytes` will be, about, once `steps` steps have brought `fresh` engrams each.
  /// All that are held may be linked with all, and as many counts be of engrams that are gone; but
  /// a step links no more than those that fire in it.
  static double bytes_needed(const MemoriaConfig& config, std::int64_t width, double fresh,
                             double steps) {
    const auto recalled = static_cast<double>(config.n_short + config.n_long);
    const double held = std::min(most_held(config, recalled, fresh), fresh * steps);
    const double firing = fresh + recalled;
    const double counts = std::min(2 * held * held, steps * firing * firing);
    return held * (static_cast<double>(width) * sizeof(float) + kBytesOfAnEngram) +
           counts * kBytesOfACount;
  }

  /// Forgets everything; numbers go on. \return what was held, sorted
  std::vector<std::int64_t> clear() {
    std::vector<std::int64_t> all;
    all.reserve(engrams_.size());
    for (const auto& [id, e] : engrams_) all.push_back(id);
    std::sort(all.begin(), all.end());
    engrams_.clear();
    endings_.clear();
    short_term_.clear();
    open_ = false;
    return all;
  }

  /// The state between two steps to bytes, and back into a Memoria of the same settings.
  /// \throws DataError if a step is open
  void save(ByteWriter& to) const {
    if (open_) throw DataError("memoria: a step is open; commit it before saving");
    to.put(width_);
    to.put(next_id_);
    to.put(steps_);
    const std::vector<std::int64_t> queue = short_term(), rest = long_term();
    to.put_vector(queue);
    to.put_vector(rest);
    for (const auto& list : {queue, rest})
      for (const std::int64_t id : list) {
        const Engram& e = engrams_.at(id);
        to.put(e.left_after(steps_));
        to.put_vector(e.vector);
        std::vector<std::int64_t> ids, counts;  // sorted, so that equal states give equal bytes
        for (const auto& [other, n] : e.counts.all)
          if (n > 0) {
            ids.push_back(other);
            counts.push_back(n);
          }
        to.put_vector(ids);
        to.put_vector(counts);
      }
  }
  /// \throws FileError for content that cannot be; this memory is then unchanged
  void load(ByteReader& from) {
    const auto refuse = [&](const char* what) {
      throw FileError(from.where() + ": " + what + "; the file is damaged");
    };
    Memoria next(config_, width_);
    if (from.get<std::int64_t>() != width_) refuse("engrams of another width");
    next.next_id_ = from.get<std::int64_t>();
    next.steps_ = from.get<std::int64_t>();
    if (next.next_id_ < 0 || next.steps_ < 0) refuse("a negative number of engrams or steps");
    const auto queue = from.get_vector<std::int64_t>();
    const auto rest = from.get_vector<std::int64_t>();
    if (static_cast<std::int64_t>(queue.size()) > config_.short_term_capacity)
      refuse("more engrams than the short-term memory has room for");
    next.short_term_ = queue;
    for (const auto* list : {&queue, &rest})
      for (const std::int64_t id : *list) {
        if (id < 0 || id >= next.next_id_ || next.holds(id)) refuse("an impossible engram");
        Engram& e = next.engrams_[id];
        e.long_term = list == &rest;
        const double lifespan = from.get<double>();
        if (!(lifespan > 0) || !std::isfinite(lifespan)) refuse("an impossible lifespan");
        detail::make_room(next.endings_, 1);
        next.start_life(e, id, lifespan);
        e.vector = from.get_vector<float>(static_cast<std::size_t>(width_), "an engram's vector");
        const auto ids = from.get_vector<std::int64_t>();
        const auto counts = from.get_vector<std::int64_t>(ids.size(), "an engram's counts");
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (i > 0 && ids[i] <= ids[i - 1]) refuse("counts out of order");
          e.counts.all.push_back({ids[i], counts[i]});
        }
        e.counts.find_largest(0);
      }
    for (const auto& [id, e] : next.engrams_)
      for (const auto& [other, n] : e.counts.all)  // a pair is kept with both
        if (n < 1 || next.count(other, id) != n) refuse("counts that are not symmetric");
    *this = std::move(next);
  }

 private:
  void check(std::span<const float> engrams, std::span<const std::int64_t> ids,
             std::int64_t total) const {
    const auto n = static_cast<std::int64_t>(ids.size());
    if (total < next_id_ || static_cast<std::int64_t>(engrams.size()) != n * width_)
      throw DataError("memoria: " + std::to_string(engrams.size()) + " numbers for " +
                      std::to_string(total < next_id_ ? total - next_id_ : n) +
                      " engrams of width " + std::to_string(width_));
    std::int64_t least = next_id_;
    for (const std::int64_t id : ids) {
      if (id < least || id >= total)
        throw DataError("memoria: engram " + std::to_string(id) +
                        " is out of order; new ones are numbered " + std::to_string(next_id_) +
                        " to " + std::to_string(total - 1) + ", ascending");
      least = id + 1;
    }
    for (const float x : engrams)
      if (!std::isfinite(x)) throw DataError("memoria: an engram holds NaN or infinity");
  }
  const Recall& open(Recall next, std::span<const float> engrams, std::span<const std::int64_t> ids,
                     std::int64_t total) {
    std::vector<float> vectors(engrams.begin(), engrams.end());
    next.working.assign(ids.begin(), ids.end());
    recall_ = std::move(next);
    working_ = std::move(vectors);
    next_total_ = total;
    open_ = true;
    return recall_;
  }

  static constexpr std::int64_t kBytesOfACount = 16, kBytesOfAnEngram = 128;
  using Counts = detail::EngramCounts;

  struct Engram {
    std::vector<float> vector;
    double left = 0;         // steps of life that it had when `since` steps were done
    std::int64_t since = 0;  // so that a step that does not extend it need not touch it
    bool long_term = false;  // else in the queue, or of the step that is open
    Counts counts;

    /// What one step after the other would leave, to the bit: to take whole steps off a positive
    /// number does not round.
    double left_after(std::int64_t steps) const {
      return left - static_cast<double>(steps - since);
    }
  };
  /// The step by whose end an engram may be gone; it is not before.
  struct Ending {
    std::int64_t step = 0, engram = 0;
  };
  static bool later(const Ending& a, const Ending& b) { return a.step > b.step; }

  /// log mean_j exp(-||e - w_j||^2) over the working engrams w: the same order as the mean of
  /// c(e, w_j), where float32 would underflow to equal zeros.
  double log_correlation(std::span<const double> e, std::span<const double> working) const {
    const std::size_t width = static_cast<std::size_t>(width_);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t at = 0; at < working.size(); at += width) {
      const double* const w = working.data() + at;
      // Partial sums, so that no addition waits for the one before it.
      constexpr std::size_t kParts = 8;
      double parts[kParts] = {};
      std::size_t c = 0;
      for (; c + kParts <= width; c += kParts)
        for (std::size_t i = 0; i < kParts; ++i) {
          const double d = e[c + i] - w[c + i];
          parts[i] += d * d;
        }
      for (; c < width; ++c) {
        const double d = e[c] - w[c];
        parts[0] += d * d;
      }
      const double distance = std::accumulate(parts, parts + kParts, 0.0);
      if (-distance > largest) {
        sum = sum * std::exp(largest + distance) + 1;
        largest = -distance;
      } else {
        sum += std::exp(-distance - largest);
      }
    }
    return largest + std::log(sum) - std::log(static_cast<double>(working.size() / width));
  }

  /// The n of `ids` most correlated with the working engrams, best first; ties: the older.
  std::vector<std::int64_t> best(std::vector<std::int64_t> ids, std::span<const double> working,
                                 std::int64_t n) const {
    if (working.empty()) return {};
    std::vector<std::pair<double, std::int64_t>> ranked;
    ranked.reserve(ids.size());
    // Engrams lie anywhere in memory: the processor looks for several at once, and fetches the next
    // while one is compared.
    std::vector<const float*> vectors;
    vectors.reserve(ids.size());
    for (const std::int64_t id : ids) vectors.push_back(engrams_.at(id).vector.data());
    // Converted once for all of working.
    std::vector<double> wide(static_cast<std::size_t>(width_));
    constexpr std::int64_t kLine = 16;  // floats of a cache line
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + 1 < ids.size())
        for (std::int64_t c = 0; c < width_; c += kLine) __builtin_prefetch(vectors[i + 1] + c);
      std::copy_n(vectors[i], width_, wide.begin());
      ranked.emplace_back(-log_correlation(wide, working), ids[i]);
    }
    const auto take = std::min(ranked.size(), static_cast<std::size_t>(n));
    std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(take),
                      ranked.end());
    ids.clear();
    for (std::size_t i = 0; i < take; ++i) ids.push_back(ranked[i].second);
    return ids;
  }

  /// The long-term neighbour of largest Count (so of largest edge), not among `excluded` (sorted);
  /// ties: the older; -1 if there is none.
  std::int64_t strongest_neighbour(std::int64_t id,
                                   const std::vector<std::int64_t>& excluded) const {
    return engrams_.at(id).counts.strongest([&](std::int64_t other) {
      return other != id && !std::binary_search(excluded.begin(), excluded.end(), other) &&
             engrams_.at(other).long_term;
    });
  }

  /// Memoria 3.2: from each recalled short-term engram along the strongest edges, level by level.
  void search(Recall& r) const {
    const auto unique = [](std::vector<std::int64_t>& ids) {
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    };
    const auto step = [&](const std::vector<std::int64_t>& from) {
      std::vector<std::int64_t> next;
      for (const std::int64_t id : from)
        if (const std::int64_t to = strongest_neighbour(id, r.found); to >= 0) next.push_back(to);
      unique(next);
      return next;
    };
    std::vector<std::int64_t> level = step(r.short_term);
    r.initial = level;
    r.found = level;
    for (std::int64_t d = 0; d < config_.depth && !level.empty(); ++d) {
      level = step(level);
      r.found.insert(r.found.end(), level.begin(), level.end());
      unique(r.found);
    }
  }

  void fire() noexcept {
    for (const auto& [id, others] : wires_) engrams_.find(id)->second.counts.raise(others);
    if (!wires_.empty()) return;
    for (const std::int64_t id : firing_) engrams_.find(id)->second.counts.raise(firing_);
  }

  void extend() noexcept {
    const double sum = std::accumulate(attention_.begin(), attention_.end(), 0.0);
    if (!(sum > 0)) return;
    const double given_out = static_cast<double>(recall_.size()) * config_.alpha;
    std::size_t i = 0;
    for (const auto* list : {&recall_.short_term, &recall_.long_term})
      for (const std::int64_t id : *list) {
        Engram& e = engrams_.find(id)->second;
        e.left = e.left_after(steps_) + attention_[i++] / sum * given_out;
        e.since = steps_;
      }
  }

  /// All engrams lose a step of life, working ones too. Those that have none left go to gone_,
  /// sorted. Only those whose end was to come are looked at: the others end later.
  void shorten() noexcept {
    const std::int64_t done = steps_ + 1;
    while (!endings_.empty() && endings_.front().step <= done) {
      std::pop_heap(endings_.begin(), endings_.end(), later);
      Ending& ending = endings_.back();
      const auto it = engrams_.find(ending.engram);
      if (it != engrams_.end() && it->second.left_after(done) > 0) {  // its life was extended
        ending.step = end_of(it->second);
        std::push_heap(endings_.begin(), endings_.end(), later);
        continue;
      }
      if (it != engrams_.end()) gone_.push_back(ending.engram);
      endings_.pop_back();
    }
    std::sort(gone_.begin(), gone_.end());
    for (const std::int64_t id : gone_) erase(id);
    const auto is_gone = [&](std::int64_t id) {
      return std::binary_search(gone_.begin(), gone_.end(), id);
    };
    if (!gone_.empty())
      short_term_.erase(std::remove_if(short_term_.begin(), short_term_.end(), is_gone),
                        short_term_.end());
  }

  /// Takes an engram out of the graph, with the counts that others have of it.
  void erase(std::int64_t id) noexcept {
    const auto gone = engrams_.find(id);
    if (gone == engrams_.end()) return;
    for (const auto& [other, n] : gone->second.counts.all)
      if (other != id && n > 0)
        if (const auto it = engrams_.find(other); it != engrams_.end()) it->second.counts.drop(id);
    engrams_.erase(gone);  // its ending is passed over when it comes up
  }

  /// The step by whose end an engram has no life left.
  static std::int64_t end_of(const Engram& e) {
    constexpr double kMost = 9007199254740992.0;  // 2^53: that far an end is looked up again
    return e.since + static_cast<std::int64_t>(std::ceil(std::min(e.left, kMost)));
  }

  /// Of an engram that has just come. \pre room in endings_
  void start_life(Engram& e, std::int64_t id, double left) noexcept {
    e.left = left;
    e.since = steps_;
    endings_.push_back({end_of(e), id});
    std::push_heap(endings_.begin(), endings_.end(), later);
  }

  /// Endings that come up by a step, in the heap below entry i.
  std::size_t due(std::size_t i, std::int64_t step) const {
    if (i >= endings_.size() || endings_[i].step > step) return 0;
    return 1 + due(2 * i + 1, step) + due(2 * i + 2, step);
  }

  /// Whether all is forgotten at the end of the step that is open.
  bool resets_next() const {
    return config_.reset_period > 0 && (steps_ + 1) % config_.reset_period == 0;
  }

  MemoriaConfig config_;
  std::int64_t width_ = 0, next_id_ = 0, steps_ = 0;
  std::int64_t next_total_ = 0;  // total() behind the step that is open
  std::unordered_map<std::int64_t, Engram> engrams_;
  std::vector<Ending>
      endings_;  // a heap, the next one first; one of each held, and of some forgotten
  std::vector<std::int64_t> short_term_;  // oldest first
  Recall recall_;                         // of the step that is open
  std::vector<float> working_;            // its engrams' vectors
  bool open_ = false;
  // What prepare makes ready.
  bool prepared_ = false;
  std::vector<std::int64_t> firing_, gone_;
  detail::Wires wires_;  // with random wiring
  std::vector<double> attention_;
  std::unordered_map<std::int64_t, Engram> fresh_;
};

}  // namespace EPISODIC_NAMESPACE
