// SPDX-License-Identifier: Apache-2.0
// What compute capability 9.0 has beside: mbarriers, the asynchronous proxy, products of a
// warpgroup.
#include <vector>

#include "operations.hpp"

namespace ptx {
namespace {

std::uint32_t shared_address(Warp& w, const Instruction& i, int lane) {
  return static_cast<std::uint32_t>(w.address(i, lane));
}

void need_address(Warp& w, const Instruction& i, std::uint32_t lanes) {
  if (i.address >= 0) w.need_set(i, i.address, lanes, "an address that was never set");
}

/// A matrix in shared memory, as its descriptor says: where it begins; by how much the repeating
/// patterns of 8 rows of 128 bytes lie apart, along the leading dimension and along the other.
class Matrix {
 public:
  Matrix(Warp& w, const Instruction& i, int row) : w_(w), i_(i) {
    w.need_set(i, row, kAll, "a descriptor that was never set");
    const std::uint64_t bits = w.row(row)[0];
    for (int l = 1; l < kLanes; ++l)
      if (w.row(row)[l] != bits)
        w.fault(FaultKind::warp, i, l, "a descriptor that differs by lane");
    const auto field = [&](int at) { return static_cast<std::uint32_t>(bits >> at & 0x3fff) << 4; };
    start_ = field(0);
    leading_ = field(16);
    stride_ = field(32);
    if (bits >> 62 != 1) w.fault(FaultKind::unknown, i, -1, "a matrix not swizzled by 128 bytes");
    if ((bits >> 49 & 7) != 0) w.fault(FaultKind::unknown, i, -1, "a matrix with a base offset");
  }
  /// Eight neighbouring elements along the depth, of row (or column) `r`.
  const std::uint16_t* along_depth(int r, int eight) {
    const auto row = static_cast<std::uint32_t>(r);
    return at(start_ + row / 8 * stride_ + row % 8 * 128 + static_cast<std::uint32_t>(eight) * 16);
  }
  /// Eight neighbouring rows (or columns) of depth `k`.
  const std::uint16_t* across(int eight, int k) {
    const auto unit = static_cast<std::uint32_t>(eight), depth = static_cast<std::uint32_t>(k);
    return at(start_ + unit / 8 * leading_ + unit % 8 * 16 + depth / 8 * stride_ + depth % 8 * 128);
  }

 private:
  const std::uint16_t* at(std::uint32_t address) {
    address ^= (address >> 7 & 7) << 4;
    lane_ = (lane_ + 1) % kLanes;  // any lane must know of the writes
    return reinterpret_cast<const std::uint16_t*>(w_.read_matrix(i_, lane_, address));
  }
  Warp& w_;
  const Instruction& i_;
  std::uint32_t start_ = 0, leading_ = 0, stride_ = 0;
  int lane_ = 0;
};

constexpr int kDepth = 16;

}  // namespace

void mbarrier_init(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  w.need_set(i, i.src[0], lanes, "the count of an mbarrier was never set");
  each_lane(lanes, [&](int l) {
    w.init_mbarrier(i, l, shared_address(w, i, l), get<std::uint32_t>(w.row(i.src[0])[l]));
  });
}

void mbarrier_arrive(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  each_lane(lanes, [&](int l) { w.arrive(i, l, shared_address(w, i, l)); });
  w.next_clock();
}

void mbarrier_try_wait(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  w.need_set(i, i.src[0], lanes, "the parity of a phase was never set");
  std::uint32_t done = 0;
  each_lane(lanes, [&](int l) {
    if (w.phase_is_done(i, l, shared_address(w, i, l), get<std::uint32_t>(w.row(i.src[0])[l])))
      done |= 1u << l;
  });
  w.write_predicate(i.dst[0], lanes, done);
  w.write_set(i.dst[0], lanes, kAll);
  if (done != lanes) w.yield();
}

void copy_async_arrive(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  each_lane(lanes, [&](int l) { w.arrive_after_copies(i, l, shared_address(w, i, l)); });
}

void fence_proxy(Warp& w, const Instruction&, std::uint32_t lanes) { w.fence_proxy(lanes); }

void set_max_registers(Warp& w, const Instruction& i, std::uint32_t) {
  w.set_registers(i, i.variant);
}

void wgmma_fence(Warp& w, const Instruction&, std::uint32_t) { w.fence_wgmma(); }
void wgmma_commit(Warp& w, const Instruction&, std::uint32_t) { w.commit_wgmma(); }
void wgmma_wait(Warp& w, const Instruction& i, std::uint32_t) {
  w.wait_wgmma(i, static_cast<std::size_t>(i.variant));
}

void wgmma(Warp& w, const Instruction& i, std::uint32_t lanes) {
  if (lanes != kAll) w.fault(FaultKind::warp, i, -1, "wgmma without the whole warp");
  const bool fragment = (i.variant & kFragment) != 0;
  const int first = fragment ? 4 : 1, n = i.vector;
  const std::vector<int>& accumulators = w.list(i);
  const int adds_row = i.src[first + 1];
  w.need_set(i, adds_row, kAll, "whether a wgmma adds was never set");
  const std::uint32_t adds = w.predicate(adds_row);
  if (adds != 0 && adds != kAll)
    w.fault(FaultKind::warp, i, -1, "a predicate that differs by lane");
  for (int f = 0; fragment && f < 4; ++f)
    w.need_set(i, i.src[f], kAll, "a fragment of a wgmma was never set");
  if (adds != 0)
    for (const int r : accumulators) w.need_set(i, r, kAll, "an accumulator was never set");
  w.begin_wgmma(i, fragment ? 0 : w.row(i.src[0])[0], w.row(i.src[first])[0]);
  const auto widen = [&](std::uint16_t bits) {
    return static_cast<double>((i.variant & kBfloat) != 0 ? from_bfloat(bits) : from_half(bits));
  };

  // A warp makes 16 rows of the 64.
  const int first_row = w.index() % 4 * 16;
  double a[16][kDepth];
  if (fragment) {
    for (int l = 0; l < kLanes; ++l)
      for (int f = 0; f < 4; ++f) {
        const auto bits = get<std::uint32_t>(w.row(i.src[f])[l]);
        const int row = l / 4 + f % 2 * 8, column = 2 * (l % 4) + f / 2 * 8;
        a[row][column] = widen(static_cast<std::uint16_t>(bits));
        a[row][column + 1] = widen(static_cast<std::uint16_t>(bits >> 16));
      }
  } else {
    Matrix of(w, i, i.src[0]);
    if ((i.variant & kTransposedA) != 0) {
      for (int eight = 0; eight < 2; ++eight)
        for (int k = 0; k < kDepth; ++k) {
          const std::uint16_t* const unit = of.across(first_row / 8 + eight, k);
          for (int e = 0; e < 8; ++e) a[8 * eight + e][k] = widen(unit[e]);
        }
    } else {
      for (int r = 0; r < 16; ++r)
        for (int eight = 0; eight < kDepth / 8; ++eight) {
          const std::uint16_t* const unit = of.along_depth(first_row + r, eight);
          for (int e = 0; e < 8; ++e) a[r][8 * eight + e] = widen(unit[e]);
        }
    }
  }
  std::vector<double> b(static_cast<std::size_t>(kDepth * n));
  const auto b_at = [&](int k, int c) -> double& { return b[static_cast<std::size_t>(k * n + c)]; };
  Matrix of(w, i, i.src[first]);
  if ((i.variant & kTransposedB) != 0) {
    for (int eight = 0; eight < n / 8; ++eight)
      for (int k = 0; k < kDepth; ++k) {
        const std::uint16_t* const unit = of.across(eight, k);
        for (int e = 0; e < 8; ++e) b_at(k, 8 * eight + e) = widen(unit[e]);
      }
  } else {
    for (int c = 0; c < n; ++c)
      for (int eight = 0; eight < kDepth / 8; ++eight) {
        const std::uint16_t* const unit = of.along_depth(c, eight);
        for (int e = 0; e < 8; ++e) b_at(8 * eight + e, c) = widen(unit[e]);
      }
  }
  // The device leaves the order of the sums open: here each is exact but for one rounding.
  std::vector<double> d(static_cast<std::size_t>(16 * n));
  for (int r = 0; r < 16; ++r) {
    double* const to = d.data() + r * n;
    for (int k = 0; k < kDepth; ++k) {
      const double x = a[r][k];
      const double* const y = b.data() + k * n;
      for (int c = 0; c < n; ++c) to[c] += x * y[c];
    }
  }
  for (int j = 0; j < n / 8; ++j)
    for (int f = 0; f < 4; ++f) {
      const int row = accumulators[static_cast<std::size_t>(4 * j + f)];
      std::uint64_t* const values = w.row(row);
      for (int l = 0; l < kLanes; ++l) {
        double sum =
            d[static_cast<std::size_t>((l / 4 + f / 2 * 8) * n + 8 * j + 2 * (l % 4) + f % 2)];
        if (adds != 0) sum += static_cast<double>(get<float>(values[l]));
        values[l] = put(static_cast<float>(sum));
      }
      w.write_set(row, kAll, kAll);
    }
  w.hold_registers(i, accumulators, i.src, fragment ? 4 : 0);
}

}  // namespace ptx
