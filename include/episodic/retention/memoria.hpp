// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Memoria`: association and forgetting over a caller's vectors (spec 9; Memoria 3, ICML 2024).
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
#include "episodic/base/memoria_config.hpp"

namespace episodic {

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
    if (n < 0 || static_cast<std::int64_t>(engrams.size()) != n * width_)
      throw DataError("memoria: " + std::to_string(engrams.size()) + " numbers for " +
                      std::to_string(n) + " engrams of width " + std::to_string(width_));
    for (const float x : engrams)
      if (!std::isfinite(x)) throw DataError("memoria: an engram holds NaN or infinity");
    Recall next;
    std::vector<float> vectors(engrams.begin(), engrams.end());
    next.working.resize(static_cast<std::size_t>(n));
    std::iota(next.working.begin(), next.working.end(), next_id_);
    next.short_term = best(short_term_, vectors, config_.n_short);
    search(next);
    next.long_term = best(next.found, vectors, config_.n_long);
    recall_ = std::move(next);
    working_ = std::move(vectors);
    open_ = true;
    return recall_;
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
    fresh_.clear();
    for (std::size_t i = 0; i < recall_.working.size(); ++i) {
      Engram& e = fresh_[recall_.working[i]];
      const float* vector = working_.data() + i * static_cast<std::size_t>(width_);
      e.vector.assign(vector, vector + width_);
      e.counts.make_room(firing_);
    }
    for (const auto* list : {&recall_.short_term, &recall_.long_term})
      for (const std::int64_t id : *list) engrams_.at(id).counts.make_room(firing_);
    const std::size_t most = engrams_.size() + fresh_.size();
    engrams_.reserve(most);
    lives_.reserve(most);
    short_term_.reserve(short_term_.size() + fresh_.size());
    gone_.clear();
    gone_.reserve(most);
    prepared_ = true;
  }

  /// The rest of `commit`, which cannot fail. \pre prepare
  std::vector<std::int64_t> publish() noexcept {
    engrams_.merge(fresh_);
    for (const std::int64_t id : recall_.working) start_life(id, config_.initial_lifespan);
    next_id_ += static_cast<std::int64_t>(recall_.working.size());
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
    ++steps_;
    if (config_.reset_period > 0 && steps_ % config_.reset_period == 0) {
      for (const auto& [id, e] : engrams_) gone_.push_back(id);
      std::sort(gone_.begin(), gone_.end());
      engrams_.clear();
      lives_.clear();
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
    return it == engrams_.end() ? 0.0 : lives_[it->second.life].left;
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

  /// Forgets everything; numbers go on. \return what was held, sorted
  std::vector<std::int64_t> clear() {
    std::vector<std::int64_t> all;
    all.reserve(engrams_.size());
    for (const auto& [id, e] : engrams_) all.push_back(id);
    std::sort(all.begin(), all.end());
    engrams_.clear();
    lives_.clear();
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
        to.put(lives_[e.life].left);
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
        next.start_life(id, lifespan);
        e.vector = from.get_vector<float>(static_cast<std::size_t>(width_), "an engram's vector");
        const auto ids = from.get_vector<std::int64_t>();
        const auto counts = from.get_vector<std::int64_t>(ids.size(), "an engram's counts");
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (i > 0 && ids[i] <= ids[i - 1]) refuse("counts out of order");
          e.counts.all.push_back({ids[i], counts[i]});
        }
      }
    for (const auto& [id, e] : next.engrams_)
      for (const auto& [other, n] : e.counts.all)  // a pair is kept with both
        if (n < 1 || next.count(other, id) != n) refuse("counts that are not symmetric");
    *this = std::move(next);
  }

 private:
  static constexpr std::int64_t kBytesOfACount = 16, kBytesOfAnEngram = 128;

  /// Count_ij of one engram, itself included, by the other's number: in one piece, for an engram
  /// that is recalled again and again has counts with nearly all that came.
  struct Counts {
    struct Count {
      std::int64_t other = 0, n = 0;
    };
    std::vector<Count> all;  // sorted
    std::size_t dead = 0;    // of engrams that are gone; their n is 0

    /// A count of zero says what none would: those of a step that is given up may stay.
    std::vector<Count>::iterator place_of(std::int64_t other) {
      return std::lower_bound(all.begin(), all.end(), other,
                              [](const Count& c, std::int64_t id) { return c.other < id; });
    }
    Count* find(std::int64_t other) {
      const auto at = place_of(other);
      return at != all.end() && at->other == other ? &*at : nullptr;
    }
    std::int64_t of(std::int64_t other) const {
      const Count* found = const_cast<Counts*>(this)->find(other);
      return found ? found->n : 0;
    }
    /// Zeros for those that it has no counts of yet. \param others sorted
    void make_room(const std::vector<std::int64_t>& others) {
      const std::size_t before = all.size(), most = before + others.size();
      // Nothing fails once the order is disturbed.
      if (most > all.capacity()) all.reserve(std::max(most, 2 * all.capacity()));
      for (const std::int64_t other : others) {
        const auto end = all.begin() + static_cast<std::ptrdiff_t>(before);
        const auto at = std::lower_bound(
            all.begin(), end, other, [](const Count& c, std::int64_t id) { return c.other < id; });
        if (at == end || at->other != other) all.push_back({other, 0});
      }
      if (before == all.size()) return;
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(before);
      const auto less = [](const Count& a, const Count& b) { return a.other < b.other; };
      std::inplace_merge(std::lower_bound(all.begin(), middle, *middle, less), middle, all.end(),
                         less);
    }
    /// Of an engram that is gone. Takes out such counts once they are the half.
    void drop(std::int64_t other) noexcept {
      Count* const found = find(other);
      if (!found || found->n == 0) return;
      found->n = 0;
      if (++dead * 2 <= all.size()) return;
      all.erase(std::remove_if(all.begin(), all.end(), [](const Count& c) { return c.n == 0; }),
                all.end());
      dead = 0;
    }
  };

  struct Engram {
    std::vector<float> vector;
    std::size_t life = 0;    // of lives_
    bool long_term = false;  // else in the queue, or of the step that is open
    Counts counts;
  };
  /// Steps that an engram has left: all of them in one piece, for each step shortens all.
  struct Life {
    std::int64_t engram = 0;
    double left = 0;
  };

  /// log mean_j exp(-||e - w_j||^2) over the working engrams w: the same order as the mean of
  /// c(e, w_j), where float32 would underflow to equal zeros.
  double log_correlation(const std::vector<float>& e, std::span<const float> working) const {
    const std::size_t width = static_cast<std::size_t>(width_);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t at = 0; at < working.size(); at += width) {
      // Partial sums, so that no addition waits for the one before it.
      constexpr std::size_t kParts = 8;
      double parts[kParts] = {};
      std::size_t c = 0;
      for (; c + kParts <= width; c += kParts)
        for (std::size_t i = 0; i < kParts; ++i) {
          const double d = static_cast<double>(e[c + i]) - working[at + c + i];
          parts[i] += d * d;
        }
      for (; c < width; ++c) {
        const double d = static_cast<double>(e[c]) - working[at + c];
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
  std::vector<std::int64_t> best(std::vector<std::int64_t> ids, std::span<const float> working,
                                 std::int64_t n) const {
    if (working.empty()) return {};
    std::vector<std::pair<double, std::int64_t>> ranked;
    ranked.reserve(ids.size());
    for (const std::int64_t id : ids)
      ranked.emplace_back(-log_correlation(engrams_.at(id).vector, working), id);
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
    std::int64_t found = -1, most = 0;
    for (const auto& [other, n] : engrams_.at(id).counts.all) {  // the older ones first
      if (n <= most) continue;
      if (other == id || std::binary_search(excluded.begin(), excluded.end(), other)) continue;
      if (!engrams_.at(other).long_term) continue;
      found = other;
      most = n;
    }
    return found;
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
    for (const std::int64_t a : firing_) {
      Counts& counts = engrams_.find(a)->second.counts;
      for (const std::int64_t b : firing_) ++counts.find(b)->n;
    }
  }

  void extend() noexcept {
    const double sum = std::accumulate(attention_.begin(), attention_.end(), 0.0);
    if (!(sum > 0)) return;
    const double given_out = static_cast<double>(recall_.size()) * config_.alpha;
    std::size_t i = 0;
    for (const auto* list : {&recall_.short_term, &recall_.long_term})
      for (const std::int64_t id : *list)
        lives_[engrams_.find(id)->second.life].left += attention_[i++] / sum * given_out;
  }

  /// All engrams lose a step of life, working ones too. Those that had none left go to gone_,
  /// sorted.
  void shorten() noexcept {
    for (Life& life : lives_)
      if ((life.left -= 1) <= 0) gone_.push_back(life.engram);
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
    // The last one takes the place of its life.
    const std::size_t place = gone->second.life;
    engrams_.erase(gone);
    if (place + 1 < lives_.size()) {
      lives_[place] = lives_.back();
      engrams_.find(lives_[place].engram)->second.life = place;
    }
    lives_.pop_back();
  }

  /// Of an engram that has just come. \pre room in lives_
  void start_life(std::int64_t id, double left) {
    engrams_.find(id)->second.life = lives_.size();
    lives_.push_back({id, left});
  }

  MemoriaConfig config_;
  std::int64_t width_ = 0, next_id_ = 0, steps_ = 0;
  std::unordered_map<std::int64_t, Engram> engrams_;
  std::vector<Life> lives_;               // of the engrams that are held, in no order
  std::vector<std::int64_t> short_term_;  // oldest first
  Recall recall_;                         // of the step that is open
  std::vector<float> working_;            // its engrams' vectors
  bool open_ = false;
  // What prepare makes ready.
  bool prepared_ = false;
  std::vector<std::int64_t> firing_, gone_;
  std::vector<double> attention_;
  std::unordered_map<std::int64_t, Engram> fresh_;
};

}  // namespace episodic
