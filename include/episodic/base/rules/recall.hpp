// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The rules of recall (EM 3.4): budgets, the order of events, bins of their scores, the filling of
/// a buffer, the neighbours of an event.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::rules {

/// Token budgets of the two buffers; may be <= 0.
struct RecallBudget {
  std::int64_t similarity = 0;
  std::int64_t contiguity = 0;  ///< 0 when contiguity is off
};

/// Tokens outside the last query's window that are in no event (sinks and pending).
/// \param left_window tokens so far and of this step less n_local; may be negative
/// \param in_events tokens of the closed events
EPISODIC_HOST_DEVICE inline std::int64_t outside_events(std::int64_t left_window,
                                                        std::int64_t in_events) {
  return larger(larger(left_window, 0) - in_events, 0);
}

/// \param total tokens that may be recalled: n_init + C + n_mem less those outside events
/// \param share k_r, 0 to 1; 0 turns contiguity off
EPISODIC_HOST_DEVICE inline RecallBudget recall_budget(std::int64_t total, double share) {
  if (share == 0.0) return {total, 0};
  const auto contiguity =
      static_cast<std::int64_t>(::floor(add(multiply(share, static_cast<double>(total)), 1.0)));
  return {total - contiguity, contiguity};
}

EPISODIC_HOST_DEVICE inline std::uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
#endif
}

/// A number that is larger for the event that comes first: by score, then the earlier event. NaN
/// counts as -inf; 0 and -0 are equal.
EPISODIC_HOST_DEVICE inline std::uint64_t event_rank(float score, std::int32_t event) {
  std::uint32_t bits = float_bits(score + 0.0f);
  constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
  if ((bits & ~kSign) > kInfinity) bits = kSign | kInfinity;
  const std::uint32_t key = (bits & kSign) ? ~bits : bits | kSign;
  return static_cast<std::uint64_t>(key) << 32 | ~static_cast<std::uint32_t>(event);
}
EPISODIC_HOST_DEVICE inline std::int32_t event_of(std::uint64_t rank) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(rank));
}

/// Smallest shift that cuts numbers 0 .. range into at most `bins` bins, a power of two.
EPISODIC_HOST_DEVICE inline int bin_shift(std::uint64_t range, int bins) {
  int shift = 0;
  while ((range >> shift) >= static_cast<std::uint64_t>(bins)) ++shift;
  return shift;
}

/// Where a search's scores were decided: its bins are narrow there. It changes the time of the next
/// search, and no result.
struct ScoreCentre {
  float at = 0;     ///< score of the last event that the search took; finite
  float scale = 0;  ///< the largest size of a score that it took; finite, 0: not known yet
};

/// Bins of scores, in their order: kScoreBins / 2 on either side of a centre. 64 bins divide each
/// doubling of the distance to it, from scale / 4096 to 16 scale. What is nearer or farther is in
/// the innermost or outermost bin.
inline constexpr int kScoreBins = 2048;
struct ScoreBins {
  float at;
  std::uint32_t least;  ///< bits of the distance at which the innermost bin ends
};
EPISODIC_HOST_DEVICE inline ScoreBins score_bins(const ScoreCentre& centre) {
  const float scale = centre.scale > 0.0f ? centre.scale : 256.0f;
  return {centre.at, float_bits(scale * 0x1p-12f)};
}

/// The bin of a score. A score that is not smaller than another has no lower bin: float32's
/// subtraction keeps the order, and so do the bits of a float's size. NaN counts as -inf.
EPISODIC_HOST_DEVICE inline int score_bin(float score, const ScoreBins& bins) {
  constexpr int kHalf = kScoreBins / 2;
  constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
#if defined(__CUDA_ARCH__)
  const float distance = __fsub_rn(score, bins.at);  // never fused with what made the score
#else
  const float distance = score - bins.at;
#endif
  std::uint32_t size = float_bits(distance) & ~kSign;
  if (size > kInfinity) size = kInfinity;
  const std::uint32_t steps = size > bins.least ? (size - bins.least) >> 17 : 0;
  const int step = steps < kHalf ? static_cast<int>(steps) : kHalf - 1;
  return distance >= 0.0f ? kHalf + step : kHalf - 1 - step;
}

/// What happens to an event on its way into a buffer. `skip`: the buffer was full before it.
enum class FillStep { skip, take, take_last, leave_last };

/// What happens to an event of `size` tokens when those before it come to `before`: at the first
/// one that reaches or passes the capacity filling stops, and keeps it only if the total with it is
/// strictly nearer to the capacity.
EPISODIC_HOST_DEVICE inline FillStep fill_step(std::int64_t before, std::int64_t size,
                                               std::int64_t capacity) {
  if (before >= capacity) return FillStep::skip;
  const std::int64_t with = before + size;
  if (with < capacity) return FillStep::take;
  return with - capacity < capacity - before ? FillStep::take_last : FillStep::leave_last;
}

/// How far neighbours reach in a sequence of n_events.
EPISODIC_HOST_DEVICE inline std::int64_t neighbour_reach(std::int64_t neighbours,
                                                         std::int64_t n_events) {
  return larger(smaller(neighbours, n_events - 1), 0);
}

/// The i-th neighbour of an event, 0 <= i < 2 reach: its successor, its predecessor (asymmetry),
/// then those two away, and so on. May lie outside [0, n_events).
EPISODIC_HOST_DEVICE inline std::int64_t neighbour(std::int64_t event, std::int64_t i) {
  const std::int64_t distance = i / 2 + 1;
  return i % 2 == 0 ? event + distance : event - distance;
}

}  // namespace episodic::rules
