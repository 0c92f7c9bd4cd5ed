// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/recall.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "device.cuh"
#include "elements.cuh"
#include "episodic/base/rules/recall.hpp"
#include "recall.hpp"
#include "rows.cuh"

namespace episodic::kernels {

using rules::event_rank;
using rules::FillStep;

inline constexpr int kScoreRows = 4;  // rows of a warp at a time: they share its loads of the query
inline constexpr int kSelectThreads = 1024;
inline constexpr int kBins = 2048;
/// Ranks that the selection lists, beside its other shared memory.
inline constexpr std::int64_t kMostRecallRoom = 9 << 10;
/// A block holds all the threads that a multiprocessor's registers allow: more blocks than there
/// are of those would wait.
inline constexpr std::int64_t kMostRecallBlocks = 132;

/// What a step may recall, from the counts on the device.
struct RecallNow {
  std::int64_t events, event_tokens;
  rules::RecallBudget budget;
  __device__ bool all_fit() const { return event_tokens <= budget.similarity; }
};

__device__ inline RecallNow recall_now(const RecallParams& p) {
  RecallNow now;
  now.events = *p.n_events;
  now.event_tokens = now.events > 0 ? p.events[now.events - 1].end - p.n_init : 0;
  const std::int64_t outside = rules::outside_events(*p.tokens + p.n - p.n_local, now.event_tokens);
  now.budget = rules::recall_budget(p.n_init + p.chunk + p.n_mem - outside, p.contiguity);
  return now;
}

/// scores[e] = query . representatives[e], by all blocks. Lanes add in the same order whatever the
/// row. \param query [width] in shared memory, written
template <class T>
__device__ inline void score_all(const RecallParams& p, const RecallNow& now, float* query,
                                 float* scores) {
  constexpr int kPack = kPackOf<T>;
  for (std::int64_t i = threadIdx.x; i < p.width; i += kSelectThreads) query[i] = p.query[i];
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t warp =
      (static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x) / kWarpSize;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarpSize);
  const std::int64_t packs = p.width / kPack;
  const auto* rows = static_cast<const Pack<T, kPack>*>(p.representatives);
  for (std::int64_t first = warp * kScoreRows; first < now.events; first += warps * kScoreRows) {
    float sum[kScoreRows] = {};
    // one round at a time: a thread of so large a block has 64 registers
    EPISODIC_UNROLL_BY(1)
    for (std::int64_t i = lane; i < packs; i += kWarpSize) {
      Pack<T, kPack> pack[kScoreRows];
      EPISODIC_UNROLL
      for (int r = 0; r < kScoreRows; ++r) {
        // beyond the last row: the last one once more, and not written
        const std::int64_t row = first + r < now.events ? first + r : now.events - 1;
        pack[r] = rows[row * packs + i];
      }
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) {
        const float q = query[i * kPack + j];
        EPISODIC_UNROLL
        for (int r = 0; r < kScoreRows; ++r) sum[r] += q * widen(pack[r].at[j]);
      }
    }
    EPISODIC_UNROLL
    for (int r = 0; r < kScoreRows; ++r) {
      const float score = warp_reduce(sum[r], Sum{});
      if (lane == 0 && first + r < now.events) scores[first + r] = score;
    }
  }
}

/// What follows the scores, by one block.
class Selection {
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
    unsigned listed;
    int crossing;  // place in a list of the event that reaches the capacity
    int crossing_kept;
    int narrower;  // whether another round must narrow the range
  };

  __device__ Selection(const RecallParams& params, const RecallNow& now, const float* scores,
                       std::int32_t* marks, DeviceEventId* old_queue, int room, Shared& shared,
                       std::uint64_t* list)
      : p_(params),
        now_(now),
        scores_(scores),
        marks_(marks),
        old_queue_(old_queue),
        room_(room),
        s_(shared),
        list_(list) {}

  __device__ void run() {
    const int queued = *p_.queue_size;
    for (int i = thread(); i < queued; i += kSelectThreads) old_queue_[i] = p_.queue[i];
    __syncthreads();
    int similar = 0;
    if (now_.budget.similarity > 0 && now_.events > 0) {
      if (now_.all_fit()) {
        similar = static_cast<int>(now_.events);
        for (int i = thread(); i < similar; i += kSelectThreads) p_.similarity[i] = i;
      } else {
        similar = fill_similarity(narrow_to_room());
      }
    }
    __syncthreads();
    const int near = now_.budget.contiguity > 0 ? fill_contiguity(similar, queued) : 0;
    __syncthreads();
    merge_by_time(similar, near);
    if (thread() == 0) {
      p_.sizes[0] = similar;
      p_.sizes[1] = near;
      p_.sizes[2] = similar + near;
    }
  }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ std::int64_t size_of_event(std::int64_t e) const {
    return p_.events[e].end - p_.events[e].start;
  }

  /// Lists in list_[0 .. result) at least the best events that reach the capacity, in any order;
  /// never more than the room.
  __device__ int narrow_to_room() {
    std::uint64_t low = ~std::uint64_t{0}, high = 0;
    for (std::int64_t e = thread(); e < now_.events; e += kSelectThreads) {
      const std::uint64_t rank = event_rank(scores_[e], static_cast<DeviceEventId>(e));
      low = rank < low ? rank : low;
      high = rank > high ? rank : high;
    }
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
      const int shift = rules::bin_shift(high - low, kBins);
      for (int b = thread(); b < kBins; b += kSelectThreads) s_.tokens[b] = s_.count[b] = 0;
      __syncthreads();
      for (std::int64_t e = thread(); e < now_.events; e += kSelectThreads) {
        const std::uint64_t rank = event_rank(scores_[e], static_cast<DeviceEventId>(e));
        if (rank < low || rank > high) continue;
        const auto bin = static_cast<int>((rank - low) >> shift);
        // sums of integers: the order of the additions does not show
        atomicAdd(&s_.tokens[bin], static_cast<std::uint32_t>(size_of_event(e)));
        atomicAdd(&s_.count[bin], 1u);
      }
      __syncthreads();
      find_bin();
      if (thread() == 0) {
        s_.low = low + (static_cast<std::uint64_t>(s_.bin) << shift);
        const std::uint64_t last = s_.low + ((std::uint64_t{1} << shift) - 1);
        s_.high = last < high ? last : high;
        s_.listed = 0;
        // Each round divides the range by up to 2048; a bin of one rank holds one event.
        s_.narrower = shift > 0 && s_.count_above + s_.count[s_.bin] > room_;
      }
      __syncthreads();
    } while (s_.narrower);
    low = s_.low;
    for (std::int64_t e = thread(); e < now_.events; e += kSelectThreads) {
      const std::uint64_t rank = event_rank(scores_[e], static_cast<DeviceEventId>(e));
      if (rank >= low) list_[atomicAdd(&s_.listed, 1u)] = rank;
    }
    __syncthreads();
    return static_cast<int>(s_.listed);
  }

  /// The bin in which the tokens of the best events reach the capacity; what lies above it is added
  /// to tokens_above and count_above.
  __device__ void find_bin() {
    constexpr int kEach = kBins / kSelectThreads;
    const int first = kBins - 1 - thread() * kEach;  // from the best bin down
    std::int64_t own = 0;
    for (int i = 0; i < kEach; ++i) own += s_.tokens[first - i];
    std::int64_t before, total;
    Scan(s_.temp.scan).ExclusiveSum(own, before, total);
    const std::int64_t wanted = now_.budget.similarity - s_.tokens_above;
    __syncthreads();  // all have read tokens_above
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
  }

  /// Ranks the list and keeps what fills the similarity buffer.
  __device__ int fill_similarity(int listed) {
    for (int i = thread(); i < listed; i += kSelectThreads) {
      const std::uint64_t own = list_[i];
      int better = 0;
      for (int j = 0; j < listed; ++j) better += list_[j] > own;
      p_.similarity[better] = rules::event_of(own);
    }
    __syncthreads();
    return fill(
        listed, now_.budget.similarity, [&](int i) { return p_.similarity[i]; }, nullptr);
  }

  /// Neighbours of what is similar, then the queue; each event at its first place, none twice.
  __device__ int fill_contiguity(int similar, int queued) {
    const int reach = static_cast<int>(rules::neighbour_reach(p_.neighbours, now_.events));
    const int fresh = similar * 2 * reach;
    const int candidates = fresh + queued;
    const auto candidate = [&](int c) -> DeviceEventId {
      if (c >= fresh) return old_queue_[c - fresh];
      const std::int64_t e = rules::neighbour(p_.similarity[c / (2 * reach)], c % (2 * reach));
      return e >= 0 && e < now_.events ? static_cast<DeviceEventId>(e) : -1;
    };
    // Each event's mark becomes the first place that names it; -1 if it is similar.
    for (int c = thread(); c < candidates; c += kSelectThreads)
      if (const DeviceEventId e = candidate(c); e >= 0) atomicExch(&marks_[e], INT32_MAX);
    __syncthreads();
    for (int i = thread(); i < similar; i += kSelectThreads)
      atomicExch(&marks_[p_.similarity[i]], -1);
    __syncthreads();
    for (int c = thread(); c < candidates; c += kSelectThreads)
      if (const DeviceEventId e = candidate(c); e >= 0) atomicMin(&marks_[e], c);
    __syncthreads();
    const auto listed = [&](int c) -> DeviceEventId {
      const DeviceEventId e = candidate(c);
      // through the second-level cache, where the atomics are
      return e >= 0 && atomicMin(&marks_[e], INT32_MAX) == c ? e : -1;
    };
    return fill(candidates, now_.budget.contiguity, listed, p_.contiguity_list);
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
      Scan(s_.temp.scan).ExclusiveSum(size * kOne + (e >= 0), before, total);
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
      return i < similar ? p_.similarity[i] : p_.contiguity_list[i - similar];
    };
    for (int i = thread(); i < all; i += kSelectThreads)
      list_[i] = static_cast<std::uint64_t>(event(i));
    __syncthreads();
    for (int i = thread(); i < all; i += kSelectThreads) {
      const std::uint64_t own = list_[i];
      int earlier = 0;
      for (int j = 0; j < all; ++j) earlier += list_[j] < own;
      p_.recalled[earlier] = static_cast<DeviceEventId>(own);
    }
  }

  struct Smaller {
    __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const {
      return b < a ? b : a;
    }
  };

  const RecallParams& p_;
  const RecallNow& now_;
  const float* scores_;
  std::int32_t* marks_;
  DeviceEventId* old_queue_;
  int room_;
  Shared& s_;
  std::uint64_t* list_;
};

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

struct RecallArgs {
  RecallParams p;
  bool with_rows = false;
  RowsParams rows;
  int row_element = 0;  ///< bytes
  float* scores = nullptr;
  std::int32_t* marks = nullptr;
  DeviceEventId* old_queue = nullptr;
  int room = 0;
};

/// All blocks score; the last of them to be done selects, and lists the rows of what it selected.
template <class T>
__global__ void __launch_bounds__(kSelectThreads) RecallKernel(const RecallArgs a) {
  EPISODIC_DYNAMIC_SHARED(bytes);
  EPISODIC_SHARED(is_last, int);
  const RecallNow now = recall_now(a.p);
  // otherwise no rank is asked for
  if (now.budget.similarity > 0 && !now.all_fit())
    score_all<T>(a.p, now, reinterpret_cast<float*>(bytes), a.scores);
  __threadfence();  // the scores, before the block is counted
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(a.p.arrived, 1u) + 1 == gridDim.x;
    __threadfence();  // what the other blocks had written is read behind this
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (threadIdx.x == 0) *a.p.arrived = 0;  // for the next launch
  Selection(a.p, now, a.scores, a.marks, a.old_queue, a.room,
            *reinterpret_cast<Selection::Shared*>(bytes),
            reinterpret_cast<std::uint64_t*>(bytes + kSelectionBytes))
      .run();
  if (!a.with_rows) return;
  __syncthreads();  // the lists are there, and the selection's shared memory is free
  write_rows(a.rows, a.row_element, *reinterpret_cast<RowsShared*>(bytes));
}

}  // namespace episodic::kernels
