// SPDX-License-Identifier: Apache-2.0
// Loads, stores, atomics, fences and asynchronous copies.
#include <algorithm>

#include "operations.hpp"

namespace ptx {
namespace {

bool is_shared(const Instruction& i, std::uint64_t address) {
  return i.space == Space::shared ||
         (i.space == Space::generic && address >> 56 == kSharedWindow >> 56);
}

/// Tells the banks what a warp asked of them at once.
void count_banks(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint32_t addresses[kLanes] = {};
  std::uint32_t of_shared = 0;
  each_lane(lanes, [&](int l) {
    const std::uint64_t address = w.address(i, l);
    if (!is_shared(i, address)) return;
    addresses[l] = static_cast<std::uint32_t>(address);
    of_shared |= 1u << l;
  });
  if (of_shared != 0) w.count_banks(addresses, of_shared, i.element * i.vector);
}

std::uint64_t address_of(Warp& w, const Instruction& i, int lane) {
  const std::uint64_t address = w.address(i, lane);
  return i.space == Space::shared ? address & 0xffffffffu : address;
}

void need_address(Warp& w, const Instruction& i, std::uint32_t lanes) {
  if (i.address >= 0) w.need_set(i, i.address, lanes, "an address that was never set");
}

/// Elements from memory to the rows of the result; an element with an unset byte is unset.
void deliver(Warp& w, const Instruction& i, int lane, const unsigned char* data,
             const unsigned char* set) {
  for (int e = 0; e < i.vector; ++e) {
    const int row = i.dst[e];
    const int first = e * i.element;
    bool known = true;
    if (set)
      known = std::all_of(set + first, set + first + i.element, [](auto s) { return s != 0; });
    if (row < 0) continue;
    std::uint64_t bits = 0;
    std::memcpy(&bits, data + first, static_cast<std::size_t>(i.element));
    if (i.is_signed && i.element < 8) {
      const int shift = 64 - 8 * i.element;
      bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << shift) >> shift);
    }
    w.row(row)[lane] = bits;
    w.write_set(row, 1u << lane, known ? kAll : 0);
  }
}

}  // namespace

void to_generic(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t* const a = w.row(i.src[0]);
  const std::uint64_t window = i.space == Space::shared  ? kSharedWindow
                               : i.space == Space::local ? kLocalWindow
                                                         : 0;
  each_lane(lanes, [&](int l) { d[l] = a[l] + window; });
  w.write_set(i.dst[0], lanes, w.set(i.src[0]));
}

void from_generic(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t* const a = w.row(i.src[0]);
  const std::uint64_t window = i.space == Space::shared  ? kSharedWindow
                               : i.space == Space::local ? kLocalWindow
                                                         : 0;
  each_lane(lanes, [&](int l) { d[l] = a[l] - window; });
  w.write_set(i.dst[0], lanes, w.set(i.src[0]));
}

void load(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  const int bytes = i.element * i.vector;
  if (i.space == Space::shared || i.space == Space::generic) count_banks(w, i, lanes);
  // the address may be in the row that is written
  std::uint64_t addresses[kLanes];
  each_lane(lanes, [&](int l) { addresses[l] = address_of(w, i, l); });
  each_lane(lanes, [&](int l) {
    const Warp::Place p = w.place(i, l, i.space, addresses[l], bytes, Warp::kRead);
    if (p.set) {
      for (int b = 0; b < bytes; ++b)
        if (p.set[b] == 0 && (b >= 32 || (i.used >> b & 1) != 0))
          w.fault(FaultKind::uninitialised, i, l,
                  "a load of memory that nothing wrote, byte " + std::to_string(b) + " of " +
                      std::to_string(bytes));
    }
    deliver(w, i, l, p.data, p.set);
  });
}

void load_param(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  const auto bytes = static_cast<std::uint64_t>(i.element * i.vector);
  std::uint64_t addresses[kLanes];
  each_lane(lanes, [&](int l) { addresses[l] = w.address(i, l); });
  each_lane(lanes, [&](int l) {
    if (addresses[l] % bytes != 0) w.fault(FaultKind::misaligned, i, l, "a parameter");
    if (addresses[l] + bytes > w.params().size())
      w.fault(FaultKind::out_of_bounds, i, l,
              "beyond the kernel's parameters, at " + std::to_string(addresses[l]));
    deliver(w, i, l, w.params().data() + addresses[l], nullptr);
  });
}

void store(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  for (int e = 0; e < i.vector; ++e)
    w.need_set(i, i.src[e], lanes, "a value that was never set is stored");
  const int bytes = i.element * i.vector;
  if (i.space == Space::shared || i.space == Space::generic) count_banks(w, i, lanes);
  each_lane(lanes, [&](int l) {
    unsigned char value[32];
    for (int e = 0; e < i.vector; ++e)
      std::memcpy(value + e * i.element, w.row(i.src[e]) + l, static_cast<std::size_t>(i.element));
    const Warp::Place p = w.place(i, l, i.space, address_of(w, i, l), bytes, Warp::kWrite, value);
    std::memcpy(p.data, value, static_cast<std::size_t>(bytes));
    if (p.set) std::memset(p.set, 1, static_cast<std::size_t>(bytes));
  });
}

namespace {

template <class T>
T combined(int what, T old, T x, T y) {
  switch (what) {
    case kAdd:
      return static_cast<T>(old + x);
    case kMin:
      return x < old ? x : old;
    case kMax:
      return old < x ? x : old;
    case kExch:
      return x;
    case kAnd:
      return static_cast<T>(old & x);
    case kOr:
      return static_cast<T>(old | x);
    case kXor:
      return static_cast<T>(old ^ x);
    case kCas:
      return old == x ? y : old;
    case kInc:
      return old >= x ? T{0} : static_cast<T>(old + 1);
    default:
      return old;
  }
}
template <class T>
std::uint64_t combined_bits(int what, std::uint64_t old, std::uint64_t x, std::uint64_t y) {
  return put(combined(what, get<T>(old), get<T>(x), get<T>(y)));
}

}  // namespace

void atomic(Warp& w, const Instruction& i, std::uint32_t lanes) {
  need_address(w, i, lanes);
  for (int s = 0; s < i.n_src; ++s)
    w.need_set(i, i.src[s], lanes, "a value that was never set goes into an atomic");
  each_lane(lanes, [&](int l) {
    const std::uint64_t address = address_of(w, i, l);
    const Warp::Place p =
        w.place(i, l, i.space, address, i.element, Warp::kRead | Warp::kWrite | Warp::kAtomic);
    const auto size = static_cast<std::size_t>(i.element);
    const bool known = !p.set || std::all_of(p.set, p.set + size, [](auto s) { return s != 0; });
    if (!known && i.variant != kExch)  // which needs no value to be there
      w.fault(FaultKind::uninitialised, i, l, "an atomic on memory that nothing wrote");
    std::uint64_t old = 0;
    std::memcpy(&old, p.data, size);
    const std::uint64_t x = w.row(i.src[0])[l], y = i.n_src > 1 ? w.row(i.src[1])[l] : 0;
    std::uint64_t value;
    if (i.variant == kAddFloat)
      value =
          size == 4 ? put(get<float>(old) + get<float>(x)) : put(get<double>(old) + get<double>(x));
    else if (size == 4)
      value = i.is_signed ? combined_bits<std::int32_t>(i.variant, old, x, y)
                          : combined_bits<std::uint32_t>(i.variant, old, x, y);
    else
      value = i.is_signed ? combined_bits<std::int64_t>(i.variant, old, x, y)
                          : combined_bits<std::uint64_t>(i.variant, old, x, y);
    std::memcpy(p.data, &value, size);
    if (p.set) std::memset(p.set, 1, size);
    if (!is_shared(i, address)) w.observe(i, l, address);
    if (i.dst[0] >= 0) {
      w.row(i.dst[0])[l] = old;
      w.write_set(i.dst[0], 1u << l, known ? kAll : 0);
    }
  });
}

void fence(Warp& w, const Instruction&, std::uint32_t lanes) { w.fence(lanes); }
void wait_for_launches(Warp& w, const Instruction&, std::uint32_t lanes) {
  w.wait_for_launches(lanes);
}

void copy_async(Warp& w, const Instruction& i, std::uint32_t lanes) {
  // [to], [from], bytes, how many of them are read
  w.need_set(i, i.address, lanes, "the destination of a copy was never set");
  w.need_set(i, i.src[1], lanes, "how much to copy was never set");
  std::uint32_t addresses[kLanes] = {};
  each_lane(lanes, [&](int l) { addresses[l] = static_cast<std::uint32_t>(w.address(i, l)); });
  w.count_banks(addresses, lanes, i.element);
  each_lane(lanes, [&](int l) {
    const auto read = static_cast<int>(get<std::uint32_t>(w.row(i.src[1])[l]));
    if (read > 0) w.need_set(i, i.src[0], 1u << l, "the source of a copy was never set");
    if (read > i.element)
      w.fault(FaultKind::out_of_bounds, i, l, "an asynchronous copy reads more than it writes");
    const std::uint64_t from = w.row(i.src[0])[l] + static_cast<std::uint64_t>(i.variant);
    w.begin_copy(i, l, addresses[l], from, i.element, read);
  });
}

void copy_async_commit(Warp& w, const Instruction&, std::uint32_t lanes) { w.commit_copies(lanes); }

void copy_async_wait(Warp& w, const Instruction& i, std::uint32_t lanes) {
  w.wait_copies(i, lanes, static_cast<std::size_t>(i.variant));
}

void load_matrices(Warp& w, const Instruction& i, std::uint32_t lanes) {
  if (lanes != kAll) w.fault(FaultKind::warp, i, -1, "ldmatrix without the whole warp");
  need_address(w, i, lanes);
  // Row r of matrix m is where lane 8 m + r says.
  std::uint64_t addresses[kLanes];
  const int rows = 8 * i.vector;
  each_lane(lanes, [&](int l) { addresses[l] = address_of(w, i, l); });
  std::uint16_t matrix[4][8][8];
  std::uint32_t banks[kLanes] = {};
  for (int l = 0; l < rows; ++l) {
    const Warp::Place p = w.place(i, l, Space::shared, addresses[l], 16, Warp::kRead);
    if (!std::all_of(p.set, p.set + 16, [](auto s) { return s != 0; }))
      w.fault(FaultKind::uninitialised, i, l, "ldmatrix of shared memory that nothing wrote");
    std::memcpy(matrix[l / 8][l % 8], p.data, 16);
    banks[l] = static_cast<std::uint32_t>(addresses[l]);
  }
  w.count_banks(banks, rows == kLanes ? kAll : (1u << rows) - 1, 16);
  for (int m = 0; m < i.vector; ++m) {
    each_lane(lanes, [&](int l) {
      const int row = l / 4, column = 2 * (l % 4);
      const std::uint32_t low = i.variant != 0 ? matrix[m][column][row] : matrix[m][row][column];
      const std::uint32_t high =
          i.variant != 0 ? matrix[m][column + 1][row] : matrix[m][row][column + 1];
      w.row(i.dst[m])[l] = high << 16 | low;
    });
    w.write_set(i.dst[m], lanes, kAll);
  }
}

}  // namespace ptx
