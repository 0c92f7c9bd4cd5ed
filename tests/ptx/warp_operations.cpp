// SPDX-License-Identifier: Apache-2.0
// What the lanes of a warp, and the warps of a block, do together.
#include "operations.hpp"

namespace ptx {

void shuffle(Warp& w, const Instruction& i, std::uint32_t lanes) {
  // src: the value, the lane or distance, and a packed word: clamp in bits 0 to 4, the mask of the
  // segments in bits 8 to 12
  for (int s = 1; s < 3; ++s) w.need_set(i, i.src[s], lanes, "where a shuffle reads was never set");
  std::uint64_t values[kLanes];
  for (int l = 0; l < kLanes; ++l) values[l] = w.row(i.src[0])[l];
  const std::uint32_t set = w.set(i.src[0]);
  std::uint64_t result[kLanes] = {};
  std::uint32_t inside = 0, good = 0;
  each_lane(lanes, [&](int l) {
    const std::uint32_t lane = static_cast<std::uint32_t>(l);
    const std::uint32_t b = get<std::uint32_t>(w.row(i.src[1])[l]) & 31;
    const std::uint32_t c = get<std::uint32_t>(w.row(i.src[2])[l]);
    const std::uint32_t clamp = c & 31, segment = c >> 8 & 31;
    const std::uint32_t last = (lane & segment) | (clamp & ~segment);
    const std::uint32_t first = lane & segment;
    // compared as signed: the lane above the first may be -1
    std::int32_t from;
    bool in;
    switch (i.variant) {
      case kUp:
        from = static_cast<std::int32_t>(lane) - static_cast<std::int32_t>(b);
        in = from >= static_cast<std::int32_t>(last);
        break;
      case kDown:
        from = static_cast<std::int32_t>(lane + b);
        in = from <= static_cast<std::int32_t>(last);
        break;
      case kButterfly:
        from = static_cast<std::int32_t>(lane ^ b);
        in = from <= static_cast<std::int32_t>(last);
        break;
      default:
        from = static_cast<std::int32_t>(first | (b & ~segment));
        in = from <= static_cast<std::int32_t>(last);
    }
    if (!in)
      from = l;
    else
      inside |= 1u << l;
    result[l] = values[from] & 0xffffffffu;
    // of a lane that does not take part anything may come
    if ((lanes >> from & 1) != 0 && (set >> from & 1) != 0) good |= 1u << l;
  });
  if (i.dst[0] >= 0) {
    std::uint64_t* const d = w.row(i.dst[0]);
    each_lane(lanes, [&](int l) { d[l] = result[l]; });
    w.write_set(i.dst[0], lanes, good);
  }
  if (i.dst[1] >= 0) {
    w.write_predicate(i.dst[1], lanes, inside);
    w.write_set(i.dst[1], lanes, kAll);
  }
}

void vote(Warp& w, const Instruction& i, std::uint32_t lanes) {
  w.need_set(i, i.src[0], lanes, "a vote with a predicate that was never set");
  const std::uint32_t yes = w.predicate(i.src[0]) & lanes;
  if (i.variant == kBallot) {
    std::uint64_t* const d = w.row(i.dst[0]);
    each_lane(lanes, [&](int l) { d[l] = yes; });
  } else {
    const bool holds = i.variant == kAnyOf   ? yes != 0
                       : i.variant == kAllOf ? yes == lanes
                                             : yes == 0 || yes == lanes;
    w.write_predicate(i.dst[0], lanes, holds ? kAll : 0);
  }
  w.write_set(i.dst[0], lanes, kAll);
}

void sync_warp(Warp& w, const Instruction&, std::uint32_t lanes) { w.synchronise(lanes); }

void sync_block(Warp& w, const Instruction& i, std::uint32_t lanes) {
  w.need_set(i, i.src[0], lanes, "the number of a barrier was never set");
  const std::uint64_t id = w.row(i.src[0])[std::countr_zero(lanes)];
  if (id > 15) w.fault(FaultKind::barrier, i, -1, "a barrier beyond number 15");
  w.set_barrier(static_cast<int>(id), i.variant, false, 0, -1);
}

void sync_block_or(Warp& w, const Instruction& i, std::uint32_t lanes) {
  w.need_set(i, i.src[1], lanes, "a barrier's predicate was never set");
  w.set_barrier(static_cast<int>(w.row(i.src[0])[0]), 0, true, w.predicate(i.src[1]) & lanes,
                i.dst[0]);
}

void matrix_product(Warp& w, const Instruction& i, std::uint32_t lanes) {
  if (lanes != kAll) w.fault(FaultKind::warp, i, -1, "mma without the whole warp");
  for (int s = 0; s < i.n_src; ++s)
    w.need_set(i, i.src[s], lanes, "a fragment of an mma was never set");
  // m16n8k16: rows g = lane / 4, columns by t = lane % 4
  const auto widen = [&](std::uint32_t bits) {
    return i.variant != 0 ? from_bfloat(static_cast<std::uint16_t>(bits))
                          : from_half(static_cast<std::uint16_t>(bits));
  };
  float a[16][16], b[16][8];
  for (int l = 0; l < kLanes; ++l) {
    const int g = l / 4, t = l % 4;
    for (int f = 0; f < 4; ++f) {
      const auto bits = get<std::uint32_t>(w.row(i.src[f])[l]);
      const int row = g + f % 2 * 8, column = 2 * t + f / 2 * 8;
      a[row][column] = widen(bits & 0xffff);
      a[row][column + 1] = widen(bits >> 16);
    }
    for (int f = 0; f < 2; ++f) {
      const auto bits = get<std::uint32_t>(w.row(i.src[4 + f])[l]);
      b[2 * t + 8 * f][g] = widen(bits & 0xffff);
      b[2 * t + 8 * f + 1][g] = widen(bits >> 16);
    }
  }
  // The device leaves the order of the sums open: here each is exact but for one rounding.
  float d[kLanes][4];
  for (int l = 0; l < kLanes; ++l) {
    for (int f = 0; f < 4; ++f) {
      const int row = l / 4 + f / 2 * 8, column = 2 * (l % 4) + f % 2;
      double sum = 0.0;
      for (int k = 0; k < 16; ++k)
        sum += static_cast<double>(a[row][k]) * static_cast<double>(b[k][column]);
      sum += static_cast<double>(get<float>(w.row(i.src[6 + f])[l]));
      d[l][f] = static_cast<float>(sum);
    }
  }
  for (int f = 0; f < 4; ++f) {
    for (int l = 0; l < kLanes; ++l) w.row(i.dst[f])[l] = put(d[l][f]);
    w.write_set(i.dst[f], kAll, kAll);
  }
}

}  // namespace ptx
