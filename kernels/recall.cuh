// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/recall.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "batch.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "episodic/base/rules/recall.hpp"
#include "last_arrival.cuh"
#include "launch_early.cuh"
#include "recall.hpp"
#include "rows.cuh"

namespace episodic::kernels {

using rules::event_rank;
using rules::FillStep;

inline constexpr int kSelectThreads = 1024;
/// Loads of a thread that are on their way together: as many as the registers of so large a block
/// have room for.
inline constexpr int kScoreAhead = 4;
/// Events of a block of the scan, a warp each: where there are not many, many multiprocessors read.
inline constexpr std::int64_t kEventsOfBlock = kSelectThreads / kWarpSize;
/// Individual representatives of a head: four would spill.
inline constexpr int kEachRows = 2;
inline constexpr int kBins = 2048;
/// Ranks that the selection lists, beside its other shared memory.
inline constexpr std::int64_t kMostRecallRoom = 9 << 10;

/// A lane's own arrays. In shared memory, which nothing initialises: of its 64 registers a thread
/// has none to spare for them.
struct RecallLane {
  std::int64_t n_events;
  const EventRange* events;
  const void* representatives;  // or the individual ones, which are then scored
  const float* query;
  const std::int8_t* codes;
  const float* code_bounds;
  const std::uint8_t* maybe_forgotten;
  const DeviceEventId* queue;
  const std::int32_t* queue_size;
  DeviceEventId *similarity, *contiguity_list, *recalled;
  std::int32_t* sizes;
  std::uint32_t* arrived;
  unsigned long long* histogram;
  rules::ScoreCentre* centre;
  float* scores;  // through codes: what they are at most
  std::int32_t* marks;
  DeviceEventId* old_queue;
  std::uint64_t* candidates;  // with codes: [max_events] ranks
  std::uint32_t* n_candidates;
};

/// What a step may recall, from the counts on the device.
struct RecallNow {
  std::int64_t events, event_tokens;
  rules::RecallBudget budget;
  __device__ bool all_fit() const { return event_tokens <= budget.similarity; }
};

__device__ inline RecallNow recall_now(const RecallParams& p, const RecallLane& lane) {
  RecallNow now;
  now.events = lane.n_events;
  now.event_tokens = now.events > 0 ? lane.events[now.events - 1].end - p.n_init : 0;
  const std::int64_t outside = rules::outside_events(*p.tokens + p.n - p.n_local, now.event_tokens);
  now.budget = rules::recall_budget(p.n_init + p.chunk + p.n_mem - outside, p.contiguity);
  return now;
}

__device__ inline bool is_forgotten(const std::uint8_t* maybe_forgotten, std::int64_t event) {
  return maybe_forgotten && maybe_forgotten[event] != 0;
}

/// Whether the events that are recalled follow from their scores. The same on all blocks.
__device__ inline bool needs_scores(const RecallNow& now) {
  return now.budget.similarity > 0 && !now.all_fit();
}
/// Whether codes are searched first. The same on all blocks and in both launches.
__device__ inline bool searches_codes(const RecallParams& p, const RecallNow& now) {
  return p.codes_from > 0 && now.events >= p.codes_from && needs_scores(now);
}

__device__ inline std::uint32_t tokens_of(const EventRange* events, std::int64_t e) {
  return static_cast<std::uint32_t>(events[e].end - events[e].start);
}

/// Tokens of a lane's events by the bins of their scores, summed over all blocks while they score.
/// Sums of integers: the order of the additions does not show.
class TokenBins {
 public:
  __device__ explicit TokenBins(const RecallLane& lane)
      : histogram_(lane.histogram), bins_(rules::score_bins(*lane.centre)) {}
  __device__ int bin(float score) const { return rules::score_bin(score, bins_); }
  __device__ void add(float score, std::uint32_t tokens) const {
    atomicAdd(&histogram_[bin(score)], static_cast<unsigned long long>(tokens));
  }

 private:
  unsigned long long* histogram_;
  rules::ScoreBins bins_;
};

/// \param query [width] in shared memory, written by all threads of the block
__device__ inline void load_query(const RecallParams& p, const RecallLane& own, float* query) {
  for (std::int64_t i = threadIdx.x; i < p.width; i += kSelectThreads) query[i] = own.query[i];
  __syncthreads();
}

/// Warps of all blocks of a lane take rows in turn, block after block: few rows are read by all
/// multiprocessors. Counted in 32 bits, for the registers' sake: there are less than 2^31 events.
__device__ inline unsigned scan_warp() { return threadIdx.x / kWarpSize * gridDim.x + blockIdx.x; }
__device__ inline unsigned scan_warps() { return gridDim.x * (kSelectThreads / kWarpSize); }

/// query . row, by a warp, whose threads add in the same order whatever the row; the same in each
/// of them. \param query [width] in shared memory
template <class T>
__device__ inline float row_score(const Pack<T, kPackOf<T>>* row, int packs, const float* query) {
  constexpr int kPack = kPackOf<T>;
  float sum = 0.0f;
  const auto add = [&](const Pack<T, kPack>& pack, int i) {
    EPISODIC_UNROLL
    for (int j = 0; j < kPack; ++j) sum += query[i * kPack + j] * widen(pack.at[j]);
  };
  int i = static_cast<int>(threadIdx.x) % kWarpSize;
  EPISODIC_UNROLL_BY(1)
  for (; i + (kScoreAhead - 1) * kWarpSize < packs; i += kScoreAhead * kWarpSize) {
    Pack<T, kPack> pack[kScoreAhead];
    EPISODIC_UNROLL
    for (int a = 0; a < kScoreAhead; ++a) pack[a] = row[i + a * kWarpSize];
    EPISODIC_UNROLL
    for (int a = 0; a < kScoreAhead; ++a) add(pack[a], i + a * kWarpSize);
  }
  EPISODIC_UNROLL_BY(1)
  for (; i < packs; i += kWarpSize) {
    const Pack<T, kPack> pack = row[i];
    add(pack, i);
  }
  return warp_reduce(sum, Sum{});
}

/// scores[e] = query . representatives[e] of all events, and their tokens by bins, by all blocks of
/// the lane, a warp a row.
/// \param query [width] in shared memory, written
template <class T>
__device__ inline void score_all(const RecallParams& p, const RecallLane& own, float* query) {
  constexpr int kPack = kPackOf<T>;
  const auto count = static_cast<unsigned>(own.n_events);
  if (blockIdx.x >= count) return;  // none of its warps has a row
  const TokenBins bins(own);
  load_query(p, own, query);
  const int packs = static_cast<int>(p.width) / kPack;
  const auto* const rows = static_cast<const Pack<T, kPack>*>(own.representatives);
  for (unsigned e = scan_warp(); e < count; e += scan_warps()) {
    const std::uint32_t tokens = tokens_of(own.events, e);  // on its way beside the row
    const float score = row_score<T>(rows + std::int64_t{e} * packs, packs, query);
    if (threadIdx.x % kWarpSize != 0) continue;
    own.scores[e] = score;
    if (!is_forgotten(own.maybe_forgotten, e)) bins.add(score, tokens);
  }
}

/// scores[e] = sum over heads of the largest product of the query's head and one of the event's
/// representatives, of all events, and their tokens by bins, by all blocks of the lane. A warp
/// takes an event, as many heads side by side as its threads hold packs of, and of each two
/// representatives at a time. The order of all additions follows from the sizes of heads alone.
/// \param query [width] in shared memory, written
template <class T>
__device__ inline void score_each(const RecallParams& p, const RecallLane& own, float* query) {
  constexpr int kPack = kPackOf<T>;
  const auto count = static_cast<unsigned>(own.n_events);
  if (blockIdx.x >= count) return;  // as above
  const TokenBins bins(own);
  load_query(p, own, query);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto n_heads = static_cast<int>(p.n_heads);
  const int packs = static_cast<int>(p.width) / kPack, packs_of_head = packs / n_heads;
  int threads_of_head = 1;
  while (threads_of_head < packs_of_head && threads_of_head < kWarpSize) threads_of_head *= 2;
  for (unsigned e = scan_warp(); e < count; e += scan_warps()) {
    const std::int64_t tokens = own.events[e].end - own.events[e].start;
    const auto n = static_cast<int>(tokens < p.n_repr ? tokens : p.n_repr);
    const auto* const rows =
        static_cast<const Pack<T, kPack>*>(own.representatives) + e * p.n_repr * packs;
    float score = 0.0f;
    for (int first = 0; first < n_heads; first += kWarpSize / threads_of_head) {
      const int head = first + lane / threads_of_head;
      // of a thread without a head none: it takes part in the sums alone
      const int end = head < n_heads ? (head + 1) * packs_of_head : 0;
      float best = -INFINITY;
      for (int j = 0; j < n; j += kEachRows) {
        float sum[kEachRows] = {};
        EPISODIC_UNROLL_BY(1)
        for (int i = head * packs_of_head + lane % threads_of_head; i < end; i += threads_of_head) {
          Pack<T, kPack> pack[kEachRows];
          EPISODIC_UNROLL
          for (int r = 0; r < kEachRows; ++r)  // beyond the last: the last one once more
            pack[r] = rows[(j + r < n ? j + r : n - 1) * packs + i];
          EPISODIC_UNROLL
          for (int k = 0; k < kPack; ++k) {
            const float q = query[i * kPack + k];
            EPISODIC_UNROLL
            for (int r = 0; r < kEachRows; ++r) sum[r] += q * widen(pack[r].at[k]);
          }
        }
        for (int lanes = threads_of_head / 2; lanes > 0; lanes /= 2) {
          EPISODIC_UNROLL
          for (int r = 0; r < kEachRows; ++r) sum[r] += __shfl_xor_sync(kFullMask, sum[r], lanes);
        }
        EPISODIC_UNROLL
        for (int r = 0; r < kEachRows; ++r)
          if (best < sum[r]) best = sum[r];  // never NaN
      }
      if (head < n_heads) score += best;
    }
    for (int lanes = threads_of_head; lanes < kWarpSize; lanes *= 2)
      score += __shfl_xor_sync(kFullMask, score, lanes);
    if (lane != 0) continue;
    own.scores[e] = score;
    if (!is_forgotten(own.maybe_forgotten, e)) bins.add(score, static_cast<std::uint32_t>(tokens));
  }
}

// Warp by warp: in the default's one warp a thread would hold 32 sums, more than its registers.
using SelectScan = cub::BlockScan<std::int64_t, kSelectThreads, cub::BLOCK_SCAN_WARP_SCANS>;

/// The bin at which the tokens of the events in it and in those above reach the capacity; 0 if all
/// together do not. By all threads of a block, which all get it.
/// \param tokens [kScoreBins] \param clears whether it leaves zeros there
__device__ inline int reached_bin(unsigned long long* tokens, std::int64_t capacity, bool clears,
                                  typename SelectScan::TempStorage& scan) {
  constexpr int kEach = rules::kScoreBins / kSelectThreads;
  EPISODIC_SHARED(reached, int);
  const int first = rules::kScoreBins - 1 - static_cast<int>(threadIdx.x) * kEach;
  std::int64_t own[kEach], sum = 0;
  EPISODIC_UNROLL
  for (int i = 0; i < kEach; ++i) {
    own[i] = static_cast<std::int64_t>(tokens[first - i]);
    sum += own[i];
  }
  if (threadIdx.x == 0) reached = 0;
  std::int64_t before, total;
  SelectScan(scan).ExclusiveSum(sum, before, total);
  __syncthreads();
  EPISODIC_UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (before < capacity && before + own[i] >= capacity) reached = first - i;
    before += own[i];
    if (clears) tokens[first - i] = 0;
  }
  __syncthreads();
  return reached;
}

/// Finds, among ranked events, the best that reach a capacity in tokens, by one block.
class Narrowing {
 public:
  using Scan = SelectScan;
  using ReduceRank = cub::BlockReduce<std::uint64_t, kSelectThreads>;
  struct Shared {
    union Temp {
      typename Scan::TempStorage scan;
      typename ReduceRank::TempStorage reduce;
    } temp;
    std::uint32_t tokens[kBins], count[kBins];
    std::uint64_t low, high;  // range of ranks that is being narrowed
    std::int64_t tokens_above, count_above;
    int bin;
    int narrower;  // whether another round must narrow the range
  };
  static constexpr std::uint64_t kLeftOut = 0;  ///< below the rank of every event

  __device__ Narrowing(const EventRange* events, Shared& shared) : events_(events), s_(shared) {}

  /// A rank such that the events that have it, or a higher one, reach the capacity; kLeftOut if all
  /// ranked ones together do not. Narrows until at most `room` events have it.
  /// \param places whose ranks they are: load(i) of place i < n, and of its result
  /// rank(loaded, i), event_rank's or kLeftOut
  template <class Places>
  __device__ std::uint64_t run(std::int64_t n, std::int64_t capacity, std::int64_t room,
                               const Places& places) {
    std::uint64_t low = ~std::uint64_t{0}, high = 0;
    for_ranked(n, places, [&](const std::uint64_t(&ranks)[kAtOnce]) {
      EPISODIC_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        if (ranks[k] != kLeftOut && ranks[k] < low) low = ranks[k];
        if (ranks[k] > high) high = ranks[k];
      }
    });
    low = ReduceRank(s_.temp.reduce).Reduce(low, Smaller{});
    __syncthreads();
    high = ReduceRank(s_.temp.reduce).Reduce(high, Largest{});
    if (thread() == 0) {
      s_.low = low;
      s_.high = high;
      s_.tokens_above = s_.count_above = 0;
    }
    __syncthreads();
    do {
      low = s_.low;
      high = s_.high;
      if (high < low) return kLeftOut;  // nothing is ranked
      const int shift = rules::bin_shift(high - low, kBins);
      for (int b = thread(); b < kBins; b += kSelectThreads) s_.tokens[b] = s_.count[b] = 0;
      __syncthreads();
      for_ranked(n, places, [&](const std::uint64_t(&ranks)[kAtOnce]) {
        std::uint32_t size[kAtOnce] = {};
        EPISODIC_UNROLL
        for (int k = 0; k < kAtOnce; ++k)
          if (ranks[k] >= low && ranks[k] <= high)
            size[k] = tokens_of(events_, rules::event_of(ranks[k]));
        EPISODIC_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          if (size[k] == 0) continue;  // no event is empty
          const auto bin = static_cast<int>((ranks[k] - low) >> shift);
          // sums of integers: the order of the additions does not show
          atomicAdd(&s_.tokens[bin], size[k]);
          atomicAdd(&s_.count[bin], 1u);
        }
      });
      __syncthreads();
      if (!find_bin(capacity)) return kLeftOut;
      if (thread() == 0) {
        s_.low = low + (static_cast<std::uint64_t>(s_.bin) << shift);
        const std::uint64_t last = s_.low + ((std::uint64_t{1} << shift) - 1);
        s_.high = last < high ? last : high;
        // Each round divides the range by up to 2048; a bin of one rank holds one event.
        s_.narrower = shift > 0 && s_.count_above + s_.count[s_.bin] > room;
      }
      __syncthreads();
    } while (s_.narrower);
    return s_.low;
  }

  /// f(rank) for the ranks of places i < n that are not below `least`, by all threads, in any
  /// order.
  template <class Places, class F>
  static __device__ void for_best(std::int64_t n, std::uint64_t least, const Places& places,
                                  const F& f) {
    for_ranked(n, places, [&](const std::uint64_t(&ranks)[kAtOnce]) {
      EPISODIC_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        if (ranks[k] != kLeftOut && ranks[k] >= least) f(ranks[k]);
    });
  }

 private:
  /// Loads of a thread that are on their way together.
  static constexpr int kAtOnce = 8;
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }

  template <class Places, class F>
  static __device__ void for_ranked(std::int64_t n, const Places& places, const F& f) {
    for (std::int64_t first = thread(); first < n; first += kAtOnce * kSelectThreads) {
      decltype(places.load(first)) loaded[kAtOnce] = {};
      EPISODIC_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        if (first + k * kSelectThreads < n) loaded[k] = places.load(first + k * kSelectThreads);
      std::uint64_t ranks[kAtOnce];
      EPISODIC_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        ranks[k] = first + k * kSelectThreads < n
                       ? places.rank(loaded[k], first + k * kSelectThreads)
                       : kLeftOut;
      f(ranks);
    }
  }

  /// The bin in which the tokens of the best events reach the capacity; what lies above it is added
  /// to tokens_above and count_above. \return false if there is none
  __device__ bool find_bin(std::int64_t capacity) {
    constexpr int kEach = kBins / kSelectThreads;
    const int first = kBins - 1 - thread() * kEach;  // from the best bin down
    std::int64_t own = 0;
    for (int i = 0; i < kEach; ++i) own += s_.tokens[first - i];
    std::int64_t before, total;
    Scan(s_.temp.scan).ExclusiveSum(own, before, total);
    const std::int64_t wanted = capacity - s_.tokens_above;
    __syncthreads();  // all have read tokens_above
    if (total < wanted) return false;
    if (before < wanted && before + own >= wanted) {
      int bin = first;
      while (before + s_.tokens[bin] < wanted) before += s_.tokens[bin--];
      s_.bin = bin;
      s_.tokens_above += before;
    }
    __syncthreads();
    std::int64_t above = 0;
    for (int b = s_.bin + 1 + thread(); b < kBins; b += kSelectThreads) above += s_.count[b];
    std::int64_t unused;
    Scan(s_.temp.scan).ExclusiveSum(above, unused, total);
    if (thread() == 0) s_.count_above += total;
    __syncthreads();
    return true;
  }

  struct Smaller {
    __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const {
      return b < a ? b : a;
    }
  };

  const EventRange* events_;
  Shared& s_;
};

/// Ids of a list that the selection keeps in shared memory; longer lists are in the lane's own
/// arrays. And neighbours with queued events that it compares with each other there.
inline constexpr int kSharedRoom = 1024;
inline constexpr int kComparedPlaces = 2048;

/// What follows the scores, by one block.
class Selection {
 public:
  using Scan = SelectScan;
  struct Shared {
    union {
      Narrowing::Shared narrowing;
      struct {
        typename Scan::TempStorage scan;
        DeviceEventId similarity[kSharedRoom], contiguity[kSharedRoom], places[kComparedPlaces];
      } lists;
    };
    unsigned listed;
    int crossing;  // place in a list of the event that reaches the capacity
    int crossing_kept;
  };

  __device__ Selection(const RecallParams& params, const RecallLane& lane, const RecallNow& now,
                       int room, Shared& shared, std::uint64_t* list)
      : p_(params), lane_(lane), now_(now), room_(room), s_(shared), list_(list) {}

  __device__ void run() {
    const int queued = *lane_.queue_size;
    int similar = 0;
    if (now_.budget.similarity > 0 && now_.events > 0) {
      if (now_.all_fit() && lane_.maybe_forgotten) {
        similar = fill(
            static_cast<int>(now_.events), now_.budget.similarity,
            [&](int i) { return is_gone(i) ? -1 : i; }, similarity());
      } else if (now_.all_fit()) {
        similar = static_cast<int>(now_.events);
        for (int i = thread(); i < similar; i += kSelectThreads) similarity()[i] = i;
      } else {
        similar = fill_similarity(list_best());
      }
    }
    __syncthreads();
    const int near = now_.budget.contiguity > 0 ? fill_contiguity(similar, queued) : 0;
    __syncthreads();
    merge_by_time(similar, near);
    if (is_shared()) {
      for (int i = thread(); i < similar; i += kSelectThreads)
        lane_.similarity[i] = similarity()[i];
      for (int i = thread(); i < near; i += kSelectThreads)
        lane_.contiguity_list[i] = contiguity()[i];
    }
    if (thread() == 0) {
      lane_.sizes[0] = similar;
      lane_.sizes[1] = near;
      lane_.sizes[2] = similar + near;
      if (needs_scores(now_) && similar > 0) keep_centre(similar);
    }
  }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ bool is_shared() const { return room_ <= kSharedRoom; }
  __device__ DeviceEventId* similarity() const {
    return is_shared() ? s_.lists.similarity : lane_.similarity;
  }
  __device__ DeviceEventId* contiguity() const {
    return is_shared() ? s_.lists.contiguity : lane_.contiguity_list;
  }
  __device__ std::int64_t size_of_event(std::int64_t e) const {
    return lane_.events[e].end - lane_.events[e].start;
  }

  __device__ bool is_gone(std::int64_t e) const { return is_forgotten(lane_.maybe_forgotten, e); }

  /// The next search's bins are narrow where this one was decided.
  __device__ void keep_centre(int similar) const {
    const float last = lane_.scores[similarity()[similar - 1]];
    const float best = lane_.scores[similarity()[0]];
    const float of_last = fabsf(last), of_best = fabsf(best);
    if (of_last < INFINITY && of_best < INFINITY)  // false for NaN
      *lane_.centre = {last, of_last > of_best ? of_last : of_best};
  }

  /// Lists in list_[0 .. result) at least the best events that reach the capacity, in any order;
  /// never more than the room.
  __device__ int list_best() {
    if (searches_codes(p_, now_)) {
      // the search itself has seen which bin is reached
      for (int b = thread(); b < rules::kScoreBins; b += kSelectThreads) lane_.histogram[b] = 0;
      return list_ranked(static_cast<std::int64_t>(*lane_.n_candidates), Ranked{lane_.candidates});
    }
    const int reached = reached_bin(lane_.histogram, now_.budget.similarity, true, s_.lists.scan);
    return list_ranked(now_.events,
                       Scored{lane_.scores, lane_.maybe_forgotten, TokenBins(lane_), reached});
  }
  /// Places for Narrowing: ranks, or the events whose scores are in the reached bin or above.
  struct Ranked {
    const std::uint64_t* ranks;
    __device__ std::uint64_t load(std::int64_t i) const { return ranks[i]; }
    __device__ std::uint64_t rank(std::uint64_t loaded, std::int64_t) const { return loaded; }
  };
  struct Scored {
    const float* scores;
    const std::uint8_t* maybe_forgotten;
    TokenBins bins;
    int reached;
    __device__ float load(std::int64_t e) const { return scores[e]; }
    __device__ std::uint64_t rank(float score, std::int64_t e) const {
      return bins.bin(score) < reached || is_forgotten(maybe_forgotten, e)
                 ? Narrowing::kLeftOut
                 : event_rank(score, static_cast<DeviceEventId>(e));
    }
  };

  /// The same of places i < n, of which those that are ranked reach the capacity. Few are, unless
  /// the bins tell little: then they are narrowed.
  template <class Places>
  __device__ int list_ranked(std::int64_t n, const Places& places) {
    list_from(n, Narrowing::kLeftOut, places);
    if (s_.listed > static_cast<unsigned>(room_)) {
      const std::uint64_t low =
          Narrowing(lane_.events, s_.narrowing).run(n, now_.budget.similarity, room_, places);
      list_from(n, low, places);
    }
    return static_cast<int>(s_.listed);
  }
  template <class Places>
  __device__ void list_from(std::int64_t n, std::uint64_t least, const Places& places) {
    __syncthreads();  // all have read what was listed before
    if (thread() == 0) s_.listed = 0;
    __syncthreads();
    Narrowing::for_best(n, least, places, [&](std::uint64_t best) {
      const unsigned at = atomicAdd(&s_.listed, 1u);
      if (at < static_cast<unsigned>(room_)) list_[at] = best;
    });
    __syncthreads();
  }

  /// Ranks the list and keeps what fills the similarity buffer.
  __device__ int fill_similarity(int listed) {
    DeviceEventId* const to = similarity();
    for_places(
        listed, [](std::uint64_t other, std::uint64_t own) { return other > own; },
        [&](std::uint64_t own, int place) { to[place] = rules::event_of(own); });
    __syncthreads();
    return fill(
        listed, now_.budget.similarity, [&](int i) { return to[i]; }, nullptr);
  }

  /// Neighbours of what is similar, then the queue; each event at its first place, none twice.
  __device__ int fill_contiguity(int similar, int queued) {
    const int reach = static_cast<int>(rules::neighbour_reach(p_.neighbours, now_.events));
    const int fresh = similar * 2 * reach;
    const int places = fresh + queued;
    const auto named = [&](int c, const DeviceEventId* queue) -> DeviceEventId {
      const std::int64_t e = c >= fresh
                                 ? queue[c - fresh]
                                 : rules::neighbour(similarity()[c / (2 * reach)], c % (2 * reach));
      return e >= 0 && e < now_.events && !is_gone(e) ? static_cast<DeviceEventId>(e) : -1;
    };
    if (is_shared() && places <= kComparedPlaces) {
      // also the queue, which may be what is written
      for (int c = thread(); c < places; c += kSelectThreads)
        s_.lists.places[c] = named(c, lane_.queue);
      __syncthreads();
      leave_first(similar, places);
      return fill(
          places, now_.budget.contiguity, [&](int c) { return s_.lists.places[c]; }, contiguity());
    }
    for (int i = thread(); i < queued; i += kSelectThreads) lane_.old_queue[i] = lane_.queue[i];
    __syncthreads();
    const auto candidate = [&](int c) { return named(c, lane_.old_queue); };
    // Each event's mark becomes the first place that names it; -1 if it is similar.
    for (int c = thread(); c < places; c += kSelectThreads)
      if (const DeviceEventId e = candidate(c); e >= 0) atomicExch(&lane_.marks[e], INT32_MAX);
    __syncthreads();
    for (int i = thread(); i < similar; i += kSelectThreads)
      atomicExch(&lane_.marks[similarity()[i]], -1);
    __syncthreads();
    for (int c = thread(); c < places; c += kSelectThreads)
      if (const DeviceEventId e = candidate(c); e >= 0) atomicMin(&lane_.marks[e], c);
    __syncthreads();
    const auto listed = [&](int c) -> DeviceEventId {
      const DeviceEventId e = candidate(c);
      // through the second-level cache, where the atomics are
      return e >= 0 && atomicMin(&lane_.marks[e], INT32_MAX) == c ? e : -1;
    };
    return fill(places, now_.budget.contiguity, listed, contiguity());
  }

  /// Empties the places whose event is similar, or named by a place before.
  __device__ void leave_first(int similar, int places) {
    DeviceEventId* const ids = s_.lists.places;
    const int each = threads_each(places);
    for (int first = 0; first < places; first += kSelectThreads / each) {
      const int i = first + thread() / each;
      const DeviceEventId own = i < places ? ids[i] : -1;
      int found = 0;
      for (int j = thread() % each; own >= 0 && j < similar + i; j += each)
        found |= (j < similar ? similarity()[j] : ids[j - similar]) == own;
      for (int lanes = each / 2; lanes > 0; lanes /= 2)
        found |= __shfl_xor_sync(kFullMask, found, lanes);
      __syncthreads();  // all have compared
      // The first place that names an event stays, so that later ones still find it.
      if (found && thread() % each == 0) ids[i] = -1;
      __syncthreads();
    }
  }

  /// Takes the events event(0), event(1), ... (negative: none at this place) until they reach the
  /// capacity, and writes them to `out` unless that is null. \return how many were taken
  template <class Event>
  __device__ int fill(int places, std::int64_t capacity, const Event& event, DeviceEventId* out) {
    std::int64_t tokens = 0;
    int taken = 0;
    if (thread() == 0) s_.crossing = INT32_MAX;
    for (int first = 0; first < places; first += kSelectThreads) {
      const int place = first + thread();
      const DeviceEventId e = place < places ? event(place) : -1;
      const std::int64_t size = e >= 0 ? size_of_event(e) : 0;
      // events of fewer than 2^40 tokens, and their number, in one sum
      constexpr std::int64_t kOne = std::int64_t{1} << 12;
      static_assert(kSelectThreads < kOne);
      std::int64_t before, total;
      __syncthreads();
      Scan(s_.lists.scan).ExclusiveSum(size * kOne + (e >= 0), before, total);
      const std::int64_t tokens_before = tokens + before / kOne;
      const int at = taken + static_cast<int>(before % kOne);
      const FillStep step =
          e >= 0 ? rules::fill_step(tokens_before, size, capacity) : FillStep::skip;
      if (out && (step == FillStep::take || step == FillStep::take_last)) out[at] = e;
      if (step == FillStep::take_last || step == FillStep::leave_last) {
        s_.crossing = at;
        s_.crossing_kept = step == FillStep::take_last;
      }
      __syncthreads();
      if (s_.crossing != INT32_MAX) return s_.crossing + s_.crossing_kept;
      tokens += total / kOne;
      taken += static_cast<int>(total % kOne);
    }
    return taken;
  }

  __device__ void merge_by_time(int similar, int near) {
    const int all = similar + near;
    const auto event = [&](int i) {
      return i < similar ? similarity()[i] : contiguity()[i - similar];
    };
    for (int i = thread(); i < all; i += kSelectThreads)
      list_[i] = static_cast<std::uint64_t>(event(i));
    __syncthreads();
    for_places(
        all, [](std::uint64_t other, std::uint64_t own) { return other < own; },
        [&](std::uint64_t own, int place) {
          lane_.recalled[place] = static_cast<DeviceEventId>(own);
        });
  }

  /// For each of n entries: as many threads of one warp as there are.
  static __device__ int threads_each(int n) {
    int each = 1;
    while (each < kWarpSize && 2 * each * n <= kSelectThreads) each *= 2;
    return each;
  }

  /// f(entry, its place) for the first n entries of the list, each before which so many others
  /// stand; as many threads for an entry as there are.
  template <class Before, class F>
  __device__ void for_places(int n, const Before& before, const F& f) {
    const int each = threads_each(n);
    for (int first = 0; first < n; first += kSelectThreads / each) {
      const int i = first + thread() / each;
      const std::uint64_t own = i < n ? list_[i] : 0;
      int place = 0;
      for (int j = thread() % each; i < n && j < n; j += each) place += before(list_[j], own);
      for (int lanes = each / 2; lanes > 0; lanes /= 2)
        place += __shfl_xor_sync(kFullMask, place, lanes);
      if (i < n && thread() % each == 0) f(own, place);
    }
  }

  const RecallParams& p_;
  const RecallLane& lane_;
  const RecallNow& now_;
  int room_;
  Shared& s_;
  std::uint64_t* list_;
};

/// The query as bound_all has it in shared memory: two planes of code_stride(width) codes, and a
/// scale for each kCodeBlock channels.
inline std::size_t coded_query_bytes(std::int64_t width) {
  return static_cast<std::size_t>(2 * code_stride(width) + 4 * code_blocks(width));
}

/// Shared memory of what runs one after the other: the query, or the selection with its list behind
/// it, or the search for rows. Before the query, the bin that codes reach.
inline constexpr std::size_t kSelectionBytes = (sizeof(Selection::Shared) + 15) / 16 * 16;
inline std::size_t recall_shared_bytes(std::int64_t width, std::int64_t room) {
  const std::size_t scan = static_cast<std::size_t>(width) * sizeof(float);
  const std::size_t selection =
      kSelectionBytes + static_cast<std::size_t>(room) * sizeof(std::uint64_t);
  const std::size_t larger = scan > selection ? scan : selection;
  return larger > sizeof(RowsShared) ? larger : sizeof(RowsShared);
}
struct RecallArgs {
  RecallParams p;
  bool with_rows = false;
  RowsParams rows;
  int row_element = 0;  ///< bytes
  int room = 0;
  // Bytes from a lane's part of the workspace, and between two of them.
  std::int64_t marks = 0, old_queue = 0, candidates = 0, n_candidates = 0, workspace_stride = 0;
  std::int64_t representative_stride = 0;  ///< bytes between lanes
};

/// The z of a grid is sequences.
using RecallBatch = Batch<RecallArgs, kMostRecallsInLaunch>;

/// Of the lane that a block is of, by all its threads.
__device__ inline void find_lane(const RecallArgs& a, RecallLane& own) {
  if (threadIdx.x == 0) {
    const RecallParams& p = a.p;
    const auto lane = static_cast<std::int64_t>(blockIdx.y);
    own.n_events = p.n_events[lane * p.count_stride];
    own.events = p.events + lane * p.table_stride;
    own.representatives =
        static_cast<const unsigned char*>(p.maybe_each ? p.maybe_each : p.representatives) +
        lane * a.representative_stride;
    own.query = p.query + lane * p.width;
    if (p.codes_from > 0) {
      own.codes = p.codes + lane * p.max_events * code_stride(p.width);
      own.code_bounds = p.code_bounds + lane * p.max_events * code_floats(p.width);
    }
    own.maybe_forgotten = p.maybe_forgotten ? p.maybe_forgotten + lane * p.table_stride : nullptr;
    const std::int64_t list = lane * a.room;
    own.queue = p.queue + list;
    own.queue_size = p.queue_size + 3 * lane;
    own.similarity = p.similarity + list;
    own.contiguity_list = p.contiguity_list + list;
    own.recalled = p.recalled + list;
    own.sizes = p.sizes + 3 * lane;
    own.arrived = p.arrived + lane;
    own.histogram = p.histogram + lane * rules::kScoreBins;
    own.centre = p.centre + lane;
    auto* const at = static_cast<unsigned char*>(p.workspace) + lane * a.workspace_stride;
    own.scores = reinterpret_cast<float*>(at);
    own.marks = reinterpret_cast<std::int32_t*>(at + a.marks);
    own.old_queue = reinterpret_cast<DeviceEventId*>(at + a.old_queue);
    own.candidates = reinterpret_cast<std::uint64_t*>(at + a.candidates);
    own.n_candidates = reinterpret_cast<std::uint32_t*>(at + a.n_candidates);
  }
  __syncthreads();
}

/// The query's codes, by all threads of a block. \return at least its norm; infinity where it has
/// no codes \param planes [2, code_stride(width)] \param scales [code_blocks(width)]
__device__ inline float code_query(const RecallParams& p, const float* query, std::int8_t* planes,
                                   float* scales) {
  constexpr int kEach = static_cast<int>(kCodeBlock) / kWarpSize;
  EPISODIC_SHARED(squares, double[kSelectThreads / kWarpSize]);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t stride = code_stride(p.width);
  double square = 0.0;
  for (std::int64_t b = warp; b < code_blocks(p.width); b += kSelectThreads / kWarpSize) {
    const std::int64_t channel = b * kCodeBlock + lane * kEach;
    float q[kEach], largest = 0.0f;
    EPISODIC_UNROLL
    for (int j = 0; j < kEach; ++j) {
      q[j] = channel < p.width ? query[channel + j] : 0.0f;  // all of them, or none
      square += static_cast<double>(q[j]) * static_cast<double>(q[j]);
      const float size = fabsf(q[j]);
      if (!(size < kMostCodedNorm)) q[j] = 0.0f;  // the norm tells
      if (size > largest) largest = size;
    }
    largest = warp_reduce(largest, Largest{});
    if (!rules::query_block_is_coded(largest)) square = INFINITY;
    const float inverse = rules::inverse_query_scale(largest);
    Pack<std::int8_t, kEach> high, low;
    EPISODIC_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const rules::QueryCode code = rules::query_code(q[j], inverse);
      high.at[j] = code.high;
      low.at[j] = code.low;
    }
    if (channel < stride) {
      store_pack(planes + channel, high);
      store_pack(planes + stride + channel, low);
    }
    if (lane == 0) scales[b] = rules::query_scale(largest);
  }
  square = warp_reduce(square, Sum{});
  if (lane == 0) squares[warp] = square;
  __syncthreads();
  square = 0.0;
  for (const double of_warp : squares) square += of_warp;
  return static_cast<float>(sqrt(square) * (1.0 + 1e-6));
}

/// scores[e] is at least (score of e) - c, with one c for all events: infinity where nothing is
/// known. Tokens of the events of which something is known by the bins of what their scores are at
/// least. By all blocks of the lane. \param bytes coded_query_bytes(width) of shared memory,
/// written
__device__ inline void bound_all(const RecallParams& p, const RecallLane& own, const RecallNow& now,
                                 unsigned char* bytes) {
  constexpr int kPack = 4;  // numbers of four codes
  using Codes = Pack<std::int32_t, kPack>;
  constexpr int kCodes = 4 * kPack, kPacksOfBlock = static_cast<int>(kCodeBlock) / kCodes;
  if (blockIdx.x >= now.events) return;  // as above
  auto* const planes = reinterpret_cast<std::int8_t*>(bytes);
  const std::int64_t stride = code_stride(p.width);
  auto* const scales = reinterpret_cast<float*>(bytes + 2 * stride);
  const TokenBins bins(own);
  const float norm = code_query(p, own.query, planes, scales);
  const std::int64_t coded = norm < kMostCodedNorm ? coded_rows(now.events) : 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int packs = static_cast<int>(stride) / kCodes;
  const auto in_bounds = static_cast<int>(code_floats(p.width));
  const auto* const codes = reinterpret_cast<const Codes*>(own.codes);
  const auto* const high = reinterpret_cast<const Codes*>(planes);
  const auto* const low = high + packs;
  for (std::int64_t e = scan_warp(); e < coded; e += scan_warps()) {
    const std::uint32_t tokens = tokens_of(own.events, e);
    const Codes* const row = codes + e * packs;
    const float* const bounds = own.code_bounds + e * in_bounds;
    float sum = 0.0f;
    const auto add = [&](const Codes& pack, float scale, int i) {
      const Codes of_high = high[i], of_low = low[i];
      int total = 0;
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) total = __dp4a(pack.at[j], of_high.at[j], total);
      total *= 256;  // 16 * 127 * 127 * 256 at most: exact
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) total = __dp4a(pack.at[j], of_low.at[j], total);
      // the query's scale first: that product is no denormal
      sum += scale * (scales[i / kPacksOfBlock] * static_cast<float>(total));
    };
    int i = lane;
    EPISODIC_UNROLL_BY(1)
    for (; i + (kScoreAhead - 1) * kWarpSize < packs; i += kScoreAhead * kWarpSize) {
      Codes pack[kScoreAhead];
      float scale[kScoreAhead];
      EPISODIC_UNROLL
      for (int a = 0; a < kScoreAhead; ++a) {
        pack[a] = row[i + a * kWarpSize];
        scale[a] = bounds[(i + a * kWarpSize) / kPacksOfBlock];
      }
      EPISODIC_UNROLL
      for (int a = 0; a < kScoreAhead; ++a) add(pack[a], scale[a], i + a * kWarpSize);
    }
    EPISODIC_UNROLL_BY(1)
    for (; i < packs; i += kWarpSize) {
      const Codes pack = row[i];
      add(pack, bounds[i / kPacksOfBlock], i);
    }
    const float value = warp_reduce(sum, Sum{});
    if (lane != 0) continue;
    const float error = norm * bounds[in_bounds - 1] + kCodeFloor;
    const float least = value - error, most = value + error;
    const bool known = least > -INFINITY && most < INFINITY;
    own.scores[e] = known ? most : INFINITY;
    if (known && !is_forgotten(own.maybe_forgotten, e)) bins.add(least, tokens);
  }
  for (std::int64_t e =
           coded + static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x;
       e < now.events; e += static_cast<std::int64_t>(gridDim.x) * kSelectThreads)
    own.scores[e] = INFINITY;
}

/// Rows of the grid are lanes. All blocks bound the scores by codes.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kSelectThreads)
    BoundEventsKernel(KernelArgument<Batch<RecallArgs, kMost>> batch) {
  await_launch_before();
  const RecallArgs& a = batch.of[blockIdx.z];
  EPISODIC_DYNAMIC_SHARED(bytes);
  EPISODIC_SHARED(lane, RecallLane);
  find_lane(a, lane);
  const RecallNow now = recall_now(a.p, lane);
  if (!searches_codes(a.p, now)) return;  // all blocks of the lane do
  if (blockIdx.x == 0 && threadIdx.x == 0) *lane.n_candidates = 0;
  bound_all(a.p, lane, now, bytes);
}

/// What the codes cannot rule out, scored by the vectors and ranked, by all blocks of the lane. The
/// events whose scores are surely in the reached bin or above have tokens enough to reach the
/// capacity. An event whose score is at most in a bin below it comes after all of these, so that it
/// is none of those that fill the capacity.
/// \param bytes recall_shared_bytes of shared memory, written
template <class T>
__device__ inline void score_candidates(const RecallParams& p, const RecallLane& own,
                                        const RecallNow& now, unsigned char* bytes) {
  constexpr int kPack = kPackOf<T>;
  EPISODIC_SHARED(found, std::uint16_t[kSelectThreads]);  // threads whose event is a candidate
  EPISODIC_SHARED(n_found, unsigned);
  EPISODIC_SHARED(first_place, unsigned);
  const TokenBins bins(own);
  const int reached = reached_bin(own.histogram, now.budget.similarity, false,
                                  *reinterpret_cast<SelectScan::TempStorage*>(bytes));
  auto* const query = reinterpret_cast<float*>(bytes);
  load_query(p, own, query);
  const int packs = static_cast<int>(p.width) / kPack;
  const auto* const rows = static_cast<const Pack<T, kPack>*>(own.representatives);
  // A warp's 32 events lie side by side, a block's warps do not: near events are often alike.
  const auto event_of_thread = [](std::int64_t round, unsigned thread) {
    return ((round * (kSelectThreads / kWarpSize) + thread / kWarpSize) * gridDim.x + blockIdx.x) *
               kWarpSize +
           thread % kWarpSize;
  };
  for (std::int64_t round = 0; event_of_thread(round, 0) < now.events; ++round) {
    const std::int64_t own_event = event_of_thread(round, threadIdx.x);
    if (threadIdx.x == 0) n_found = 0;
    __syncthreads();
    if (own_event < now.events && bins.bin(own.scores[own_event]) >= reached &&
        !is_forgotten(own.maybe_forgotten, own_event))
      found[atomicAdd(&n_found, 1u)] = static_cast<std::uint16_t>(threadIdx.x);
    __syncthreads();
    const unsigned count = n_found;
    if (threadIdx.x == 0 && count > 0) first_place = atomicAdd(own.n_candidates, count);
    __syncthreads();
    for (unsigned c = threadIdx.x / kWarpSize; c < count; c += kSelectThreads / kWarpSize) {
      const std::int64_t e = event_of_thread(round, found[c]);
      const float score = row_score<T>(rows + e * packs, packs, query);
      if (threadIdx.x % kWarpSize == 0)
        own.candidates[first_place + c] = event_rank(score, static_cast<DeviceEventId>(e));
    }
    __syncthreads();  // what was found is read
  }
}

/// Rows of the grid are lanes. All blocks score; the last of them to be done selects, and lists the
/// rows of what it selected. \tparam kEach by the individual representatives
template <class T, bool kEach, std::int64_t kMost>
__global__ void __launch_bounds__(kSelectThreads)
    RecallKernel(KernelArgument<Batch<RecallArgs, kMost>> batch) {
  await_launch_before();
  const RecallArgs& a = batch.of[blockIdx.z];
  EPISODIC_DYNAMIC_SHARED(bytes);
  EPISODIC_SHARED(lane, RecallLane);
  find_lane(a, lane);
  {
    const RecallNow now = recall_now(a.p, lane);
    if (needs_scores(now)) {  // otherwise no rank is asked for
      auto* const query = reinterpret_cast<float*>(bytes);
      if constexpr (kEach)
        score_each<T>(a.p, lane, query);
      else if (searches_codes(a.p, now))
        score_candidates<T>(a.p, lane, now, bytes);
      else
        score_all<T>(a.p, lane, query);
    }
  }
  if (!is_last_arrival(lane.arrived, gridDim.x)) return;
  // Once more, by the block that selects: the scan has no registers to keep it in.
  const RecallNow now = recall_now(a.p, lane);
  Selection(a.p, lane, now, a.room, *reinterpret_cast<Selection::Shared*>(bytes),
            reinterpret_cast<std::uint64_t*>(bytes + kSelectionBytes))
      .run();
  if (!a.with_rows) return;
  __syncthreads();  // the lists are there, and the selection's shared memory is
                    // free
  write_rows(a.rows, blockIdx.y, a.row_element, *reinterpret_cast<RowsShared*>(bytes));
}

}  // namespace episodic::kernels
