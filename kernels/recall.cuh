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
  float* scores;
  std::int32_t* marks;
  DeviceEventId* old_queue;
  std::int32_t *candidates, *n_candidates;  // with codes: [max_events], [1]
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

/// Events that stand for all: those that codes could not rule out.
struct Candidates {
  const std::int32_t* maybe_events = nullptr;  ///< null: all events, in order of time
  std::int64_t count = 0;
  __device__ std::int64_t operator[](std::int64_t i) const {
    return maybe_events ? maybe_events[i] : i;
  }
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

/// scores[i] = query . representatives[candidates[i]], by all blocks of the lane, a warp a row. The
/// threads of a warp add in the same order whatever the row.
/// \param query [width] in shared memory, written
template <class T>
__device__ inline void score_all(const RecallParams& p, const RecallLane& own,
                                 const Candidates& candidates, float* query) {
  constexpr int kPack = kPackOf<T>;
  const auto count = static_cast<unsigned>(candidates.count);
  if (blockIdx.x >= count) return;  // none of its warps has a row
  load_query(p, own, query);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int packs = static_cast<int>(p.width) / kPack;
  const auto* const rows = static_cast<const Pack<T, kPack>*>(own.representatives);
  for (unsigned e = scan_warp(); e < count; e += scan_warps()) {
    const Pack<T, kPack>* const row = rows + candidates[e] * packs;
    float sum = 0.0f;
    const auto add = [&](const Pack<T, kPack>& pack, int i) {
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) sum += query[i * kPack + j] * widen(pack.at[j]);
    };
    int i = lane;
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
    const float score = warp_reduce(sum, Sum{});
    if (lane == 0) own.scores[e] = score;
  }
}

/// scores[e] = sum over heads of the largest product of the query's head and one of the event's
/// representatives, of all events, by all blocks of the lane. A warp takes an event, as many heads
/// side by side as its threads hold packs of, and of each two representatives at a time. The order
/// of all additions follows from the sizes of heads alone.
/// \param query [width] in shared memory, written
template <class T>
__device__ inline void score_each(const RecallParams& p, const RecallLane& own, float* query) {
  constexpr int kPack = kPackOf<T>;
  const auto count = static_cast<unsigned>(own.n_events);
  if (blockIdx.x >= count) return;  // as above
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
    if (lane == 0) own.scores[e] = score;
  }
}

/// Finds, among ranked events, the best that reach a capacity in tokens, by one block.
class Narrowing {
 public:
  // Warp by warp: in the default's one warp a thread would hold 32 sums, more than its registers.
  using Scan = cub::BlockScan<std::int64_t, kSelectThreads, cub::BLOCK_SCAN_WARP_SCANS>;
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
  /// ranked ones together do not. Narrows until at most `room` events have it, of which at most
  /// `in_bin` might not be needed. \param rank of place i < n: event_rank's, or kLeftOut
  template <class Rank>
  __device__ std::uint64_t run(std::int64_t n, std::int64_t capacity, std::int64_t room,
                               std::uint32_t in_bin, const Rank& rank) {
    std::uint64_t low = ~std::uint64_t{0}, high = 0;
    for_ranked(n, rank, [&](const std::uint64_t(&ranks)[kAtOnce], std::int64_t) {
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
      for_ranked(n, rank, [&](const std::uint64_t(&ranks)[kAtOnce], std::int64_t) {
        std::uint32_t size[kAtOnce] = {};
        EPISODIC_UNROLL
        for (int k = 0; k < kAtOnce; ++k)
          if (ranks[k] >= low && ranks[k] <= high) size[k] = tokens_of(rules::event_of(ranks[k]));
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
        s_.narrower =
            shift > 0 && (s_.count_above + s_.count[s_.bin] > room || s_.count[s_.bin] > in_bin);
      }
      __syncthreads();
    } while (s_.narrower);
    return s_.low;
  }

  /// f(rank, i) for the ranks of places i < n that are not below `least`, by all threads, in any
  /// order.
  template <class Rank, class F>
  static __device__ void for_best(std::int64_t n, std::uint64_t least, const Rank& rank,
                                  const F& f) {
    for_ranked(n, rank, [&](const std::uint64_t(&ranks)[kAtOnce], std::int64_t first) {
      EPISODIC_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        if (ranks[k] != kLeftOut && ranks[k] >= least) f(ranks[k], first + k * kSelectThreads);
    });
  }

 private:
  /// Loads of a thread that are on their way together.
  static constexpr int kAtOnce = 4;
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ std::uint32_t tokens_of(std::int64_t e) const {
    return static_cast<std::uint32_t>(events_[e].end - events_[e].start);
  }

  template <class Rank, class F>
  static __device__ void for_ranked(std::int64_t n, const Rank& rank, const F& f) {
    for (std::int64_t first = thread(); first < n; first += kAtOnce * kSelectThreads) {
      std::uint64_t ranks[kAtOnce];
      EPISODIC_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        ranks[k] = first + k * kSelectThreads < n ? rank(first + k * kSelectThreads) : kLeftOut;
      f(ranks, first);
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

/// What follows the scores, by one block.
class Selection {
 public:
  using Scan = Narrowing::Scan;
  struct Shared {
    union {
      Narrowing::Shared narrowing;
      typename Scan::TempStorage scan;
    };
    unsigned listed;
    int crossing;  // place in a list of the event that reaches the capacity
    int crossing_kept;
  };

  __device__ Selection(const RecallParams& params, const RecallLane& lane, const RecallNow& now,
                       const Candidates& candidates, int room, Shared& shared, std::uint64_t* list)
      : p_(params),
        lane_(lane),
        now_(now),
        candidates_(candidates),
        room_(room),
        s_(shared),
        list_(list) {}

  __device__ void run() {
    const int queued = *lane_.queue_size;
    for (int i = thread(); i < queued; i += kSelectThreads) lane_.old_queue[i] = lane_.queue[i];
    __syncthreads();
    int similar = 0;
    if (now_.budget.similarity > 0 && now_.events > 0) {
      if (now_.all_fit() && lane_.maybe_forgotten) {
        similar = fill(
            static_cast<int>(now_.events), now_.budget.similarity,
            [&](int i) { return is_gone(i) ? -1 : i; }, lane_.similarity);
      } else if (now_.all_fit()) {
        similar = static_cast<int>(now_.events);
        for (int i = thread(); i < similar; i += kSelectThreads) lane_.similarity[i] = i;
      } else {
        similar = fill_similarity(narrow_to_room());
      }
    }
    __syncthreads();
    const int near = now_.budget.contiguity > 0 ? fill_contiguity(similar, queued) : 0;
    __syncthreads();
    merge_by_time(similar, near);
    if (thread() == 0) {
      lane_.sizes[0] = similar;
      lane_.sizes[1] = near;
      lane_.sizes[2] = similar + near;
    }
  }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ std::int64_t size_of_event(std::int64_t e) const {
    return lane_.events[e].end - lane_.events[e].start;
  }

  __device__ bool is_gone(std::int64_t e) const { return is_forgotten(lane_.maybe_forgotten, e); }

  /// Lists in list_[0 .. result) at least the best events that reach the capacity, in any order;
  /// never more than the room.
  __device__ int narrow_to_room() {
    const auto rank = [&](std::int64_t i) {
      const std::int64_t e = candidates_[i];
      return is_gone(e) ? Narrowing::kLeftOut
                        : event_rank(lane_.scores[i], static_cast<DeviceEventId>(e));
    };
    const std::uint64_t low =
        Narrowing(lane_.events, s_.narrowing)
            .run(candidates_.count, now_.budget.similarity, room_, UINT32_MAX, rank);
    if (thread() == 0) s_.listed = 0;
    __syncthreads();
    Narrowing::for_best(candidates_.count, low, rank, [&](std::uint64_t best, std::int64_t) {
      list_[atomicAdd(&s_.listed, 1u)] = best;
    });
    __syncthreads();
    return static_cast<int>(s_.listed);
  }

  /// Ranks the list and keeps what fills the similarity buffer.
  __device__ int fill_similarity(int listed) {
    for_places(
        listed, [](std::uint64_t other, std::uint64_t own) { return other > own; },
        [&](std::uint64_t own, int place) { lane_.similarity[place] = rules::event_of(own); });
    __syncthreads();
    return fill(
        listed, now_.budget.similarity, [&](int i) { return lane_.similarity[i]; }, nullptr);
  }

  /// Neighbours of what is similar, then the queue; each event at its first place, none twice.
  __device__ int fill_contiguity(int similar, int queued) {
    const int reach = static_cast<int>(rules::neighbour_reach(p_.neighbours, now_.events));
    const int fresh = similar * 2 * reach;
    const int candidates = fresh + queued;
    const auto candidate = [&](int c) -> DeviceEventId {
      const std::int64_t e =
          c >= fresh ? lane_.old_queue[c - fresh]
                     : rules::neighbour(lane_.similarity[c / (2 * reach)], c % (2 * reach));
      return e >= 0 && e < now_.events && !is_gone(e) ? static_cast<DeviceEventId>(e) : -1;
    };
    // Each event's mark becomes the first place that names it; -1 if it is similar.
    for (int c = thread(); c < candidates; c += kSelectThreads)
      if (const DeviceEventId e = candidate(c); e >= 0) atomicExch(&lane_.marks[e], INT32_MAX);
    __syncthreads();
    for (int i = thread(); i < similar; i += kSelectThreads)
      atomicExch(&lane_.marks[lane_.similarity[i]], -1);
    __syncthreads();
    for (int c = thread(); c < candidates; c += kSelectThreads)
      if (const DeviceEventId e = candidate(c); e >= 0) atomicMin(&lane_.marks[e], c);
    __syncthreads();
    const auto listed = [&](int c) -> DeviceEventId {
      const DeviceEventId e = candidate(c);
      // through the second-level cache, where the atomics are
      return e >= 0 && atomicMin(&lane_.marks[e], INT32_MAX) == c ? e : -1;
    };
    return fill(candidates, now_.budget.contiguity, listed, lane_.contiguity_list);
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
      Scan(s_.scan).ExclusiveSum(size * kOne + (e >= 0), before, total);
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
      return i < similar ? lane_.similarity[i] : lane_.contiguity_list[i - similar];
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

  /// f(entry, its place) for the first n entries of the list, each before which so many others
  /// stand; as many threads for an entry as there are.
  template <class Before, class F>
  __device__ void for_places(int n, const Before& before, const F& f) {
    int each = 1;
    while (each < kWarpSize && 2 * each * n <= kSelectThreads) each *= 2;
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
  const Candidates& candidates_;
  int room_;
  Shared& s_;
  std::uint64_t* list_;
};

/// Floats of the query as bound_all has it in shared memory.
EPISODIC_HOST_DEVICE constexpr std::int64_t code_query_floats(std::int64_t width) {
  constexpr std::int64_t kRound = std::int64_t{kWarpSize} * 16;
  return (width + kRound - 1) / kRound * kRound;
}
static_assert(code_query_floats(kMostRecallWidth) == kMostRecallWidth);

/// Shared memory of what runs one after the other: the query, or the selection with its list behind
/// it, or the search for rows.
inline constexpr std::size_t kSelectionBytes = (sizeof(Selection::Shared) + 15) / 16 * 16;
inline std::size_t recall_shared_bytes(std::int64_t width, std::int64_t room) {
  const std::size_t scan = static_cast<std::size_t>(width) * sizeof(float);
  const std::size_t selection =
      kSelectionBytes + static_cast<std::size_t>(room) * sizeof(std::uint64_t);
  const std::size_t larger = scan > selection ? scan : selection;
  return larger > sizeof(RowsShared) ? larger : sizeof(RowsShared);
}
/// The same of BoundEventsKernel.
inline std::size_t bound_shared_bytes(std::int64_t width) {
  const std::size_t scan = static_cast<std::size_t>(code_query_floats(width)) * sizeof(float);
  return scan > sizeof(Narrowing::Shared) ? scan : sizeof(Narrowing::Shared);
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
    auto* const at = static_cast<unsigned char*>(p.workspace) + lane * a.workspace_stride;
    own.scores = reinterpret_cast<float*>(at);
    own.marks = reinterpret_cast<std::int32_t*>(at + a.marks);
    own.old_queue = reinterpret_cast<DeviceEventId*>(at + a.old_queue);
    own.candidates = reinterpret_cast<std::int32_t*>(at + a.candidates);
    own.n_candidates = reinterpret_cast<std::int32_t*>(at + a.n_candidates);
  }
  __syncthreads();
}

/// The same on all blocks and in both launches.
__device__ inline bool searches_codes(const RecallParams& p, const RecallNow& now) {
  return p.codes_from > 0 && now.events >= p.codes_from && now.budget.similarity > 0 &&
         !now.all_fit();
}

/// lower[e] <= (score of e) - c <= upper[e], by all blocks of the lane, with one c for all events;
/// infinite where nothing is known. \param query [code_query_floats(width)] in shared memory,
/// written: lane after lane, so that its reads meet no bank twice
__device__ inline void bound_all(const RecallParams& p, const RecallLane& of_lane,
                                 const RecallNow& now, float* query, float* lower, float* upper) {
  constexpr int kPack = 16;
  if (blockIdx.x >= now.events) return;  // as above
  EPISODIC_SHARED(squares, double[kSelectThreads / kWarpSize]);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t floats = code_query_floats(p.width);
  double own = 0.0;
  for (std::int64_t i = threadIdx.x; i < floats; i += kSelectThreads) {
    const float q = i < p.width ? of_lane.query[i] : 0.0f;
    const std::int64_t pack = i / kPack;
    query[(pack / kWarpSize * kPack + i % kPack) * kWarpSize + pack % kWarpSize] = q;
    own += static_cast<double>(q) * static_cast<double>(q);
  }
  own = warp_reduce(own, Sum{});
  if (lane == 0) squares[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  double square = 0.0;
  for (const double of_warp : squares) square += of_warp;
  const auto norm = static_cast<float>(sqrt(square) * (1.0 + 1e-6));
  const std::int64_t coded = norm < kMostCodedNorm ? coded_rows(now.events) : 0;
  const int packs = static_cast<int>(code_stride(p.width)) / kPack;
  const auto in_bounds = static_cast<int>(code_floats(p.width));
  const auto* const codes = reinterpret_cast<const Pack<std::int8_t, kPack>*>(of_lane.codes);
  for (std::int64_t e = scan_warp(); e < coded; e += scan_warps()) {
    const Pack<std::int8_t, kPack>* const row = codes + e * packs;
    const float* const bounds = of_lane.code_bounds + e * in_bounds;
    float sum = 0.0f;
    const auto add = [&](const Pack<std::int8_t, kPack>& pack, float scale, int i) {
      const float* const q = query + i / kWarpSize * kPack * kWarpSize + lane;
      float part = 0.0f;
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) part += q[j * kWarpSize] * static_cast<float>(pack.at[j]);
      sum += scale * part;
    };
    int i = lane;
    EPISODIC_UNROLL_BY(1)
    for (; i + (kScoreAhead - 1) * kWarpSize < packs; i += kScoreAhead * kWarpSize) {
      Pack<std::int8_t, kPack> pack[kScoreAhead];
      float scale[kScoreAhead];
      EPISODIC_UNROLL
      for (int a = 0; a < kScoreAhead; ++a) {
        pack[a] = row[i + a * kWarpSize];
        scale[a] = bounds[(i + a * kWarpSize) * kPack / kCodeBlock];
      }
      EPISODIC_UNROLL
      for (int a = 0; a < kScoreAhead; ++a) add(pack[a], scale[a], i + a * kWarpSize);
    }
    EPISODIC_UNROLL_BY(1)
    for (; i < packs; i += kWarpSize) {
      const Pack<std::int8_t, kPack> pack = row[i];
      add(pack, bounds[i * kPack / kCodeBlock], i);
    }
    const float value = warp_reduce(sum, Sum{});
    if (lane != 0) continue;
    const float error = norm * bounds[in_bounds - 1] + kCodeFloor;
    const float least = value - error, most = value + error;
    const bool known = least > -INFINITY && most < INFINITY;
    lower[e] = known ? least : -INFINITY;
    upper[e] = known ? most : INFINITY;
  }
  for (std::int64_t e =
           coded + static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x;
       e < now.events; e += static_cast<std::int64_t>(gridDim.x) * kSelectThreads) {
    lower[e] = -INFINITY;
    upper[e] = INFINITY;
  }
}

/// Rows of the grid are lanes. All blocks bound the scores by codes; the last of them to be done
/// lists the candidates: a score
/// that is the lower bound of events with tokens enough to reach the capacity is below none of the
/// events that fill it, so that no event whose upper bound lies below that can be one of them.
__global__ void __launch_bounds__(kSelectThreads) BoundEventsKernel(const RecallBatch batch) {
  await_launch_before();
  const RecallArgs& a = batch.of[blockIdx.z];
  EPISODIC_DYNAMIC_SHARED(bytes);
  EPISODIC_SHARED(listed, int);
  EPISODIC_SHARED(lane, RecallLane);
  find_lane(a, lane);
  const RecallNow now = recall_now(a.p, lane);
  if (!searches_codes(a.p, now)) return;  // all blocks of the lane do
  float* const upper = lane.scores;
  auto* const lower = reinterpret_cast<float*>(lane.marks);
  bound_all(a.p, lane, now, reinterpret_cast<float*>(bytes), lower, upper);
  if (!is_last_arrival(lane.arrived, gridDim.x)) return;
  if (threadIdx.x == 0) listed = 0;
  // Any rank in the threshold's bin is as good a threshold: few events lie in it.
  constexpr std::uint32_t kInBin = 8;
  const std::uint64_t low =
      Narrowing(lane.events, *reinterpret_cast<Narrowing::Shared*>(bytes))
          .run(now.events, now.budget.similarity, INT64_MAX, kInBin, [&](std::int64_t e) {
            return lower[e] > -INFINITY && !is_forgotten(lane.maybe_forgotten, e)
                       ? event_rank(lower[e], static_cast<DeviceEventId>(e))
                       : Narrowing::kLeftOut;
          });
  __syncthreads();
  // Of equal scores the earlier event comes first: here only the scores count.
  const std::uint64_t least = low >> 32 << 32;
  Narrowing::for_best(
      now.events, least,
      [&](std::int64_t e) {
        return is_forgotten(lane.maybe_forgotten, e)
                   ? Narrowing::kLeftOut
                   : event_rank(upper[e], static_cast<DeviceEventId>(e));
      },
      [&](std::uint64_t, std::int64_t e) {
        lane.candidates[atomicAdd(&listed, 1)] = static_cast<std::int32_t>(e);
      });
  __syncthreads();
  if (threadIdx.x == 0) *lane.n_candidates = listed;
}

/// Rows of the grid are lanes. All blocks score; the last of them to be done selects, and lists the
/// rows of what it selected. \tparam kEach by the individual representatives
template <class T, bool kEach>
__global__ void __launch_bounds__(kSelectThreads) RecallKernel(const RecallBatch batch) {
  await_launch_before();
  const RecallArgs& a = batch.of[blockIdx.z];
  EPISODIC_DYNAMIC_SHARED(bytes);
  EPISODIC_SHARED(lane, RecallLane);
  find_lane(a, lane);
  const auto candidates_of = [&](const RecallNow& now) {
    return searches_codes(a.p, now) ? Candidates{lane.candidates, *lane.n_candidates}
                                    : Candidates{nullptr, now.events};
  };
  {
    const RecallNow now = recall_now(a.p, lane);
    // otherwise no rank is asked for
    if (now.budget.similarity > 0 && !now.all_fit()) {
      auto* const query = reinterpret_cast<float*>(bytes);
      if constexpr (kEach)
        score_each<T>(a.p, lane, query);
      else
        score_all<T>(a.p, lane, candidates_of(now), query);
    }
  }
  if (!is_last_arrival(lane.arrived, gridDim.x)) return;
  // Once more, by the block that selects: the scan has no registers to keep it in.
  const RecallNow now = recall_now(a.p, lane);
  const Candidates candidates = candidates_of(now);
  Selection(a.p, lane, now, candidates, a.room, *reinterpret_cast<Selection::Shared*>(bytes),
            reinterpret_cast<std::uint64_t*>(bytes + kSelectionBytes))
      .run();
  if (!a.with_rows) return;
  __syncthreads();  // the lists are there, and the selection's shared memory is
                    // free
  write_rows(a.rows, blockIdx.y, a.row_element, *reinterpret_cast<RowsShared*>(bytes));
}

}  // namespace episodic::kernels
