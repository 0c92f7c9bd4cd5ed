// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The rules of recall that host and device share (spec 5): budgets, the order of events, the
/// filling of a buffer. C++17-clean.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "online_softmax.hpp"

namespace episodic::kernels {

/// Token budgets of the two buffers.
struct RecallBudget {
  std::int64_t similarity = 0;
  std::int64_t contiguity = 0;  ///< 0 when contiguity is off
};

/// \param capacity n_init + C + n_mem
/// \param left_window tokens so far and of this step less n_local; may be negative
/// \param in_events tokens of the closed events
EPISODIC_HOST_DEVICE inline RecallBudget recall_budget(std::int64_t capacity, double share,
                                                       std::int64_t left_window,
                                                       std::int64_t in_events) {
  const std::int64_t outside = left_window > 0 ? left_window : 0;
  const std::int64_t total = capacity - (outside > in_events ? outside - in_events : 0);
  if (share == 0.0) return {total, 0};
  const auto contiguity =
      static_cast<std::int64_t>(::floor(share * static_cast<double>(total) + 1.0));
  return {total - contiguity, contiguity};
}

/// A number that is larger for the event that comes first: by score, then the earlier event. NaN
/// comes last, 0 and -0 are equal.
EPISODIC_HOST_DEVICE inline std::uint64_t event_rank(float score, std::int32_t event) {
  const float positive_zero = score + 0.0f;
  std::uint32_t bits;
#if defined(__CUDA_ARCH__)
  bits = __float_as_uint(positive_zero);
#else
  std::memcpy(&bits, &positive_zero, 4);
#endif
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t key = nan ? 0u : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
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

enum class FillStep { skip, take, take_last, leave_last };

/// What happens to an event of `size` tokens when those before it come to `before`: at the first
/// one that reaches or passes the capacity filling stops, and keeps it only if the total with it is
/// strictly nearer to the capacity. `skip` after that.
EPISODIC_HOST_DEVICE inline FillStep fill_step(std::int64_t before, std::int64_t size,
                                               std::int64_t capacity) {
  if (before >= capacity) return FillStep::skip;
  const std::int64_t with = before + size;
  if (with < capacity) return FillStep::take;
  return with - capacity < capacity - before ? FillStep::take_last : FillStep::leave_last;
}

}  // namespace episodic::kernels
