// SPDX-License-Identifier: Apache-2.0
// Arithmetic, logic, comparisons, conversions and moves.
#include "operations.hpp"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

namespace ptx {
namespace {

/// Lanes in which all operands are set.
std::uint32_t known(Warp& w, const Instruction& i, std::uint32_t lanes) {
  for (int s = 0; s < i.n_src; ++s) lanes &= w.set(i.src[s]);
  return lanes;
}

template <class T>
T canonical(T x) {
  // what the device makes of every float32 that is no number
  if constexpr (std::is_same_v<T, float>)
    if (x != x) return std::bit_cast<float>(0x7fffffffu);
  return x;
}

template <class T, class F>
void unary(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t* const a = w.row(i.src[0]);
  each_lane(lanes, [&](int l) { d[l] = put(F{}(get<T>(a[l]))); });
  w.write_set(i.dst[0], lanes, known(w, i, lanes));
}
template <class T, class F, class B = T>
void binary(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t *const a = w.row(i.src[0]), *const b = w.row(i.src[1]);
  each_lane(lanes, [&](int l) { d[l] = put(F{}(get<T>(a[l]), get<B>(b[l]))); });
  w.write_set(i.dst[0], lanes, known(w, i, lanes));
}
template <class T, class F, class C = T>
void ternary(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t *const a = w.row(i.src[0]), *const b = w.row(i.src[1]),
                             *const c = w.row(i.src[2]);
  each_lane(lanes, [&](int l) { d[l] = put(F{}(get<T>(a[l]), get<T>(b[l]), get<C>(c[l]))); });
  w.write_set(i.dst[0], lanes, known(w, i, lanes));
}

template <class T>
using Unsigned = std::conditional_t<
    sizeof(T) == 1, std::uint8_t,
    std::conditional_t<sizeof(T) == 2, std::uint16_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;
/// For products: 16 bits must not become int.
template <class T>
std::uint64_t wide(T x) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
}

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return canonical<T>(a + b);
    else
      return static_cast<T>(wide(a) + wide(b));
  }
};
struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return canonical<T>(a - b);
    else
      return static_cast<T>(wide(a) - wide(b));
  }
};
struct Mul {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return canonical<T>(a * b);
    else
      return static_cast<T>(wide(a) * wide(b));
  }
};
struct MulWide {
  template <class T>
  auto operator()(T a, T b) const {
    using W =
        std::conditional_t<sizeof(T) == 2,
                           std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
                           std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
    return static_cast<W>(static_cast<W>(a) * static_cast<W>(b));
  }
};
struct MulHi {
  template <class T>
  T operator()(T a, T b) const {
    __extension__ using S = __int128;
    __extension__ using U = unsigned __int128;
    using W = std::conditional_t<std::is_signed_v<T>, S, U>;
    return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> (8 * sizeof(T)));
  }
};
struct MadLo {
  template <class T>
  T operator()(T a, T b, T c) const {
    return static_cast<T>(wide(a) * wide(b) + wide(c));
  }
};
/// c + the products of four signed bytes.
struct DotOfBytes {
  std::int32_t operator()(std::int32_t a, std::int32_t b, std::int32_t c) const {
    for (int i = 0; i < 4; ++i)
      c += static_cast<std::int8_t>(a >> (8 * i) & 255) *
           static_cast<std::int8_t>(b >> (8 * i) & 255);
    return c;
  }
};
struct MadWide {
  template <class T, class C>
  C operator()(T a, T b, C c) const {
    return static_cast<C>(static_cast<std::uint64_t>(MulWide{}(a, b)) +
                          static_cast<std::uint64_t>(c));
  }
};
struct Fma {
  template <class T>
  T operator()(T a, T b, T c) const {
    return canonical<T>(std::fma(a, b, c));
  }
};
template <int kMode>
struct FmaRounded {
  float operator()(float a, float b, float c) const {
    const int before = std::fegetround();
    std::fesetround(kMode);
    const volatile float x = a, y = b, z = c;  // not moved out of the mode
    const volatile float r = std::fma(x, y, z);
    std::fesetround(before);
    return canonical<float>(r);
  }
};
struct DivFloat {
  template <class T>
  T operator()(T a, T b) const {
    return canonical<T>(a / b);
  }
};
struct Reciprocal {
  template <class T>
  T operator()(T a) const {
    return canonical<T>(T{1} / a);
  }
};
/// 1 / x; of float64 its upper half, the rest zeros. Subnormal arguments and results become zeros.
struct ReciprocalApprox {
  float operator()(float a) const {
    if (std::fpclassify(a) == FP_SUBNORMAL) a = std::copysign(0.0f, a);
    const float r = 1.0f / a;
    return std::fpclassify(r) == FP_SUBNORMAL ? std::copysign(0.0f, r) : r;
  }
  double operator()(double a) const {
    if (std::fpclassify(a) == FP_SUBNORMAL) a = std::copysign(0.0, a);
    double r = 1.0 / a;
    if (std::fpclassify(r) == FP_SUBNORMAL) r = std::copysign(0.0, r);
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(r) & 0xffffffff00000000u);
  }
};
/// a / b to 2 ulp, as a times the reciprocal; 0 by finite divisors beyond 2^126.
struct DivApprox {
  float operator()(float a, float b) const {
    const float size = std::fabs(b);
    if (size > 0x1p126f && !std::isinf(b)) return canonical<float>(a * std::copysign(0.0f, b));
    return canonical<float>(a / b);
  }
};
struct Root {
  template <class T>
  T operator()(T a) const {
    return canonical<T>(std::sqrt(a));
  }
};
template <bool kFlush>
struct Exp2 {
  float operator()(float a) const {
    if (kFlush && std::fpclassify(a) == FP_SUBNORMAL) a = std::copysign(0.0f, a);
    float r = std::exp2(a);
    if (kFlush && std::fpclassify(r) == FP_SUBNORMAL) r = 0.0f;
    return canonical(r);
  }
};
struct Neg {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) {
      using U = Unsigned<T>;
      return std::bit_cast<T>(std::bit_cast<U>(a) ^ (U{1} << (8 * sizeof(T) - 1)));
    } else {
      return static_cast<T>(0 - wide(a));
    }
  }
};
struct Abs {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) {
      using U = Unsigned<T>;
      return std::bit_cast<T>(std::bit_cast<U>(a) & ~(U{1} << (8 * sizeof(T) - 1)));
    } else {
      return a < 0 ? static_cast<T>(0 - wide(a)) : a;
    }
  }
};
/// The sign of the first, the size of the second.
struct CopySign {
  template <class T>
  T operator()(T sign, T size) const {
    using U = Unsigned<T>;
    constexpr U kSign = U{1} << (8 * sizeof(T) - 1);
    return std::bit_cast<T>((std::bit_cast<U>(sign) & kSign) | (std::bit_cast<U>(size) & ~kSign));
  }
};
/// Of a number and what is none, the number; -0 is less than +0.
template <bool kLess>
struct Extreme {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return canonical(b);
      if (b != b) return a;
      if (a == b) return std::signbit(a) == kLess ? a : b;
    }
    return (kLess ? a < b : b < a) ? a : b;
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct ShiftLeft {
  template <class T>
  T operator()(T a, std::uint32_t n) const {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<std::uint64_t>(a) << n);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, std::uint32_t n) const {
    constexpr std::uint32_t kBits = 8 * sizeof(T);
    if (n >= kBits) return a < 0 ? static_cast<T>(-1) : T{0};
    return static_cast<T>(a >> n);
  }
};
/// Each byte of the result is the one of (a, b), a first, that 3 bits of a nibble of c number; with
/// the fourth bit its sign, eight times.
struct Permute {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t c) const {
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    std::uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t which = c >> (4 * i) & 15;
      std::uint32_t byte = static_cast<std::uint32_t>(both >> (8 * (which & 7))) & 255;
      if ((which & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};
struct Popc {
  template <class T>
  std::uint32_t operator()(T a) const {
    return static_cast<std::uint32_t>(std::popcount(a));
  }
};
struct Clz {
  template <class T>
  std::uint32_t operator()(T a) const {
    return static_cast<std::uint32_t>(std::countl_zero(a));
  }
};
struct Reverse {
  template <class T>
  T operator()(T a) const {
    T r = 0;
    for (std::size_t b = 0; b < 8 * sizeof(T); ++b)
      if ((a >> b & 1) != 0) r |= T{1} << (8 * sizeof(T) - 1 - b);
    return r;
  }
};
/// How far the highest set bit is from the top; all ones without one.
struct FindShift {
  std::uint32_t operator()(std::uint32_t a) const {
    return a == 0 ? ~0u : static_cast<std::uint32_t>(std::countl_zero(a));
  }
};
template <class T>
void insert_bits(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t *const a = w.row(i.src[0]), *const b = w.row(i.src[1]),
                             *const c = w.row(i.src[2]), *const e = w.row(i.src[3]);
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  each_lane(lanes, [&](int l) {
    const std::uint32_t at = get<std::uint32_t>(c[l]) & 0xff, n = get<std::uint32_t>(e[l]) & 0xff;
    const T ones = n >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << n) - 1);
    const T mask = at >= kBits ? T{0} : static_cast<T>(ones << at);
    const T bits = at >= kBits ? T{0} : static_cast<T>(get<T>(a[l]) << at);
    d[l] = put(static_cast<T>((get<T>(b[l]) & ~mask) | (bits & mask)));
  });
  w.write_set(i.dst[0], lanes, known(w, i, lanes));
}

/// Division of integers; by zero, the result is as good as never set.
template <class T, bool kRemainder>
void divide(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t *const a = w.row(i.src[0]), *const b = w.row(i.src[1]);
  std::uint32_t good = known(w, i, lanes);
  each_lane(lanes, [&](int l) {
    const T x = get<T>(a[l]), y = get<T>(b[l]);
    if (y == 0) {
      d[l] = put(static_cast<T>(~T{0}));
      good &= ~(1u << l);
    } else if (std::is_signed_v<T> && y == static_cast<T>(-1)) {
      d[l] = put(kRemainder ? T{0} : static_cast<T>(0 - wide(x)));
    } else {
      d[l] = put(static_cast<T>(kRemainder ? x % y : x / y));
    }
  });
  w.write_set(i.dst[0], lanes, good);
}

// ---- with carry ----

enum Carry { kIn = 1, kOut = 2 };
/// kWhat: 0 a + b, 1 a - b, 2 low of a b + c, 3 high of a b + c; of 32 bits
template <int kWhat, int kCarry>
void with_carry(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t *const a = w.row(i.src[0]), *const b = w.row(i.src[1]);
  const std::uint64_t* const c = kWhat >= 2 ? w.row(i.src[2]) : nullptr;
  std::uint32_t good = known(w, i, lanes), out = 0;
  const std::uint32_t in = w.predicate(i.cc);
  if (kCarry & kIn) good &= w.set(i.cc);
  each_lane(lanes, [&](int l) {
    const std::uint64_t x = get<std::uint32_t>(a[l]), y = get<std::uint32_t>(b[l]);
    const std::uint64_t carry = (kCarry & kIn) != 0 ? in >> l & 1 : 0;
    std::uint64_t r;
    if constexpr (kWhat == 0)
      r = x + y + carry;
    else if constexpr (kWhat == 1)
      r = x - y - carry;
    else
      r = (kWhat == 2 ? x * y & 0xffffffffu : x * y >> 32) + get<std::uint32_t>(c[l]) + carry;
    if ((r >> 32) != 0) out |= 1u << l;
    d[l] = r & 0xffffffffu;
  });
  w.write_set(i.dst[0], lanes, good);
  if (kCarry & kOut) {
    w.write_predicate(i.cc, lanes, out);
    w.write_set(i.cc, lanes, good);
  }
}

// ---- predicates: a bit a lane ----

template <class F>
void logic(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::uint32_t a = w.predicate(i.src[0]), b = w.predicate(i.src[1]);
  const std::uint32_t set_a = w.set(i.src[0]), set_b = w.set(i.src[1]);
  std::uint32_t set = set_a & set_b;
  // one operand can be enough
  if (std::is_same_v<F, And>) set |= (set_a & ~a) | (set_b & ~b);
  if (std::is_same_v<F, Or>) set |= (set_a & a) | (set_b & b);
  w.write_predicate(i.dst[0], lanes, F{}(a, b));
  w.write_set(i.dst[0], lanes, set);
}
void logic_not(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::uint32_t a = w.predicate(i.src[0]);
  w.write_set(i.dst[0], lanes, w.set(i.src[0]));
  w.write_predicate(i.dst[0], lanes, ~a);
}
void move_predicate(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::uint32_t a = w.predicate(i.src[0]);
  w.write_set(i.dst[0], lanes, w.set(i.src[0]));
  w.write_predicate(i.dst[0], lanes, a);
}

template <class T, class F>
void compare(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::uint64_t *const a = w.row(i.src[0]), *const b = w.row(i.src[1]);
  std::uint32_t holds = 0;
  each_lane(lanes, [&](int l) {
    if (F{}(get<T>(a[l]), get<T>(b[l]))) holds |= 1u << l;
  });
  const std::uint32_t good = known(w, i, lanes);
  if (i.dst[0] >= 0) {
    w.write_predicate(i.dst[0], lanes, holds);
    w.write_set(i.dst[0], lanes, good);
  }
  if (i.dst[1] >= 0) {
    w.write_predicate(i.dst[1], lanes, ~holds);
    w.write_set(i.dst[1], lanes, good);
  }
}
template <class F, bool kOrNeither>
struct OrUnordered {
  template <class T>
  bool operator()(T a, T b) const {
    if (kOrNeither && (a != a || b != b)) return true;
    return F{}(a, b);
  }
};
struct NotEqualOrdered {
  template <class T>
  bool operator()(T a, T b) const {
    return a == a && b == b && a != b;
  }
};
struct AreNumbers {
  template <class T>
  bool operator()(T a, T b) const {
    return a == a && b == b;
  }
};
struct AreNotNumbers {
  template <class T>
  bool operator()(T a, T b) const {
    return a != a || b != b;
  }
};

template <class T>
Execute compare_integers(std::string_view what) {
  if (what == "eq") return compare<T, std::equal_to<>>;
  if (what == "ne") return compare<T, std::not_equal_to<>>;
  if (what == "lt") return compare<T, std::less<>>;
  if (what == "le") return compare<T, std::less_equal<>>;
  if (what == "gt") return compare<T, std::greater<>>;
  if (what == "ge") return compare<T, std::greater_equal<>>;
  return nullptr;
}
template <class T>
Execute compare_floats(std::string_view what) {
  if (what == "eq") return compare<T, std::equal_to<>>;
  if (what == "ne") return compare<T, NotEqualOrdered>;
  if (what == "lt") return compare<T, std::less<>>;
  if (what == "le") return compare<T, std::less_equal<>>;
  if (what == "gt") return compare<T, std::greater<>>;
  if (what == "ge") return compare<T, std::greater_equal<>>;
  if (what == "equ") return compare<T, OrUnordered<std::equal_to<>, true>>;
  if (what == "neu") return compare<T, OrUnordered<std::not_equal_to<>, true>>;
  if (what == "ltu") return compare<T, OrUnordered<std::less<>, true>>;
  if (what == "leu") return compare<T, OrUnordered<std::less_equal<>, true>>;
  if (what == "gtu") return compare<T, OrUnordered<std::greater<>, true>>;
  if (what == "geu") return compare<T, OrUnordered<std::greater_equal<>, true>>;
  if (what == "num") return compare<T, AreNumbers>;
  if (what == "nan") return compare<T, AreNotNumbers>;
  return nullptr;
}

// ---- conversions ----

template <class To>
struct Cast {
  template <class From>
  To operator()(From x) const {
    return canonical(static_cast<To>(x));
  }
};
enum class Rounding { nearest, zero, down, up };
template <Rounding kRounding, class T>
T rounded(T x) {
  if (kRounding == Rounding::nearest) return std::nearbyint(x);
  if (kRounding == Rounding::zero) return std::trunc(x);
  return kRounding == Rounding::down ? std::floor(x) : std::ceil(x);
}
template <Rounding kRounding>
struct RoundFloat {
  template <class T>
  T operator()(T x) const {
    return canonical(rounded<kRounding>(x));
  }
};
/// To the integers that there are: what is beyond becomes the last, what is no number 0.
template <class To, Rounding kRounding>
struct ToInteger {
  template <class From>
  To operator()(From x) const {
    if (x != x) return 0;
    const From r = rounded<kRounding>(x);
    const From past = std::ldexp(From{1}, std::numeric_limits<To>::digits);  // the last, plus 1
    if (r >= past) return std::numeric_limits<To>::max();
    if (r < (std::is_signed_v<To> ? -past : From{0})) return std::numeric_limits<To>::min();
    return static_cast<To>(r);
  }
};
struct Saturate {
  template <class T>
  T operator()(T x) const {
    return x > T{0} ? std::min(x, T{1}) : T{0};
  }
};
struct ToHalf {
  std::uint16_t operator()(float x) const { return to_half(x); }
};
struct ToBfloat {
  std::uint16_t operator()(float x) const { return to_bfloat(x); }
};
struct FromHalf {
  float operator()(std::uint16_t x) const { return canonical(from_half(x)); }
};
struct FromBfloat {
  float operator()(std::uint16_t x) const { return canonical(from_bfloat(x)); }
};
template <class Narrow>
struct ToPair {
  std::uint32_t operator()(float high, float low) const {
    return static_cast<std::uint32_t>(Narrow{}(high)) << 16 | Narrow{}(low);
  }
};

using Table = std::unordered_map<std::string, Operation>;

template <class T>
void integers(Table& t, const std::string& type) {
  t["add." + type] = {binary<T, Add>, 2};
  t["sub." + type] = {binary<T, Sub>, 2};
  t["mul.lo." + type] = {binary<T, Mul>, 2};
  t["mad.lo." + type] = {ternary<T, MadLo>, 3};
  t["min." + type] = {binary<T, Extreme<true>>, 2};
  t["max." + type] = {binary<T, Extreme<false>>, 2};
  t["div." + type] = {divide<T, false>, 2};
  t["rem." + type] = {divide<T, true>, 2};
  t["shr." + type] = {binary<T, ShiftRight, std::uint32_t>, 2};
  if constexpr (sizeof(T) <= 4) t["mul.wide." + type] = {binary<T, MulWide>, 2};
  if constexpr (sizeof(T) >= 4) t["mul.hi." + type] = {binary<T, MulHi>, 2};
  if constexpr (std::is_signed_v<T>) {
    t["neg." + type] = {unary<T, Neg>, 1};
    t["abs." + type] = {unary<T, Abs>, 1};
  }
}
template <class T>
void bits(Table& t, const std::string& type) {
  t["and." + type] = {binary<T, And>, 2};
  t["or." + type] = {binary<T, Or>, 2};
  t["xor." + type] = {binary<T, Xor>, 2};
  t["not." + type] = {unary<T, Not>, 1};
  t["shl." + type] = {binary<T, ShiftLeft, std::uint32_t>, 2};
  t["shr." + type] = {binary<T, ShiftRight, std::uint32_t>, 2};
  if constexpr (sizeof(T) >= 4) {
    t["popc." + type] = {unary<T, Popc>, 1};
    t["clz." + type] = {unary<T, Clz>, 1};
    t["brev." + type] = {unary<T, Reverse>, 1};
    t["bfi." + type] = {insert_bits<T>, 4};
  }
}
template <class T>
void floats(Table& t, const std::string& type) {
  for (const std::string rn : {"", "rn."}) {
    t["add." + rn + type] = {binary<T, Add>, 2};
    t["sub." + rn + type] = {binary<T, Sub>, 2};
    t["mul." + rn + type] = {binary<T, Mul>, 2};
  }
  t["fma.rn." + type] = {ternary<T, Fma>, 3};
  t["div.rn." + type] = {binary<T, DivFloat>, 2};
  t["rcp.rn." + type] = {unary<T, Reciprocal>, 1};
  t["sqrt.rn." + type] = {unary<T, Root>, 1};
  t["neg." + type] = {unary<T, Neg>, 1};
  t["abs." + type] = {unary<T, Abs>, 1};
  t["copysign." + type] = {binary<T, CopySign>, 2};
  t["min." + type] = {binary<T, Extreme<true>>, 2};
  t["max." + type] = {binary<T, Extreme<false>>, 2};
  t["cvt.rni." + type + "." + type] = {unary<T, RoundFloat<Rounding::nearest>>, 1};
  t["cvt.rzi." + type + "." + type] = {unary<T, RoundFloat<Rounding::zero>>, 1};
  t["cvt.rmi." + type + "." + type] = {unary<T, RoundFloat<Rounding::down>>, 1};
  t["cvt.rpi." + type + "." + type] = {unary<T, RoundFloat<Rounding::up>>, 1};
  t["cvt.sat." + type + "." + type] = {unary<T, Saturate>, 1};
}
template <class To, class From>
void casts_between(Table& t, const std::string& to, const std::string& from) {
  if (to != from) t["cvt." + to + "." + from] = {unary<From, Cast<To>>, 1};
}
template <class To>
void casts(Table& t, const std::string& to) {
  casts_between<To, std::uint8_t>(t, to, "u8");
  casts_between<To, std::int8_t>(t, to, "s8");
  casts_between<To, std::uint16_t>(t, to, "u16");
  casts_between<To, std::int16_t>(t, to, "s16");
  casts_between<To, std::uint32_t>(t, to, "u32");
  casts_between<To, std::int32_t>(t, to, "s32");
  casts_between<To, std::uint64_t>(t, to, "u64");
  casts_between<To, std::int64_t>(t, to, "s64");
}
template <class T>
void integers_and_floats(Table& t, const std::string& type) {
  t["cvt.rn.f32." + type] = {unary<T, Cast<float>>, 1};
  t["cvt.rn.f64." + type] = {unary<T, Cast<double>>, 1};
  const auto from = [&]<Rounding kRounding>(const std::string& how) {
    t["cvt." + how + "." + type + ".f32"] = {unary<float, ToInteger<T, kRounding>>, 1};
    t["cvt." + how + "." + type + ".f64"] = {unary<double, ToInteger<T, kRounding>>, 1};
  };
  from.template operator()<Rounding::nearest>("rni");
  from.template operator()<Rounding::zero>("rzi");
  from.template operator()<Rounding::down>("rmi");
  from.template operator()<Rounding::up>("rpi");
}

Table make_table() {
  Table t;
  integers<std::int16_t>(t, "s16");
  integers<std::uint16_t>(t, "u16");
  integers<std::int32_t>(t, "s32");
  integers<std::uint32_t>(t, "u32");
  integers<std::int64_t>(t, "s64");
  integers<std::uint64_t>(t, "u64");
  t["mad.wide.s32"] = {ternary<std::int32_t, MadWide, std::int64_t>, 3};
  t["mad.wide.u32"] = {ternary<std::uint32_t, MadWide, std::uint64_t>, 3};
  bits<std::uint16_t>(t, "b16");
  bits<std::uint32_t>(t, "b32");
  bits<std::uint64_t>(t, "b64");
  t["prmt.b32"] = {ternary<std::uint32_t, Permute>, 3};
  t["dp4a.s32.s32"] = {ternary<std::int32_t, DotOfBytes>, 3};
  t["bfind.shiftamt.u32"] = {unary<std::uint32_t, FindShift>, 1};
  t["add.cc.u32"] = {with_carry<0, kOut>, 2};
  t["addc.u32"] = {with_carry<0, kIn>, 2};
  t["addc.cc.u32"] = {with_carry<0, kIn | kOut>, 2};
  t["sub.cc.u32"] = {with_carry<1, kOut>, 2};
  t["subc.u32"] = {with_carry<1, kIn>, 2};
  t["subc.cc.u32"] = {with_carry<1, kIn | kOut>, 2};
  t["mad.lo.cc.u32"] = {with_carry<2, kOut>, 3};
  t["madc.lo.u32"] = {with_carry<2, kIn>, 3};
  t["madc.lo.cc.u32"] = {with_carry<2, kIn | kOut>, 3};
  t["mad.hi.cc.u32"] = {with_carry<3, kOut>, 3};
  t["madc.hi.u32"] = {with_carry<3, kIn>, 3};
  t["madc.hi.cc.u32"] = {with_carry<3, kIn | kOut>, 3};

  floats<float>(t, "f32");
  floats<double>(t, "f64");
  t["fma.rm.f32"] = {ternary<float, FmaRounded<FE_DOWNWARD>>, 3};
  t["fma.rp.f32"] = {ternary<float, FmaRounded<FE_UPWARD>>, 3};
  t["fma.rz.f32"] = {ternary<float, FmaRounded<FE_TOWARDZERO>>, 3};
  t["div.approx.f32"] = {binary<float, DivApprox>, 2};
  t["rcp.approx.ftz.f32"] = {unary<float, ReciprocalApprox>, 1};
  t["rcp.approx.ftz.f64"] = {unary<double, ReciprocalApprox>, 1};
  t["ex2.approx.f32"] = {unary<float, Exp2<false>>, 1};
  t["ex2.approx.ftz.f32"] = {unary<float, Exp2<true>>, 1};

  t["and.pred"] = {logic<And>, 2, true};
  t["or.pred"] = {logic<Or>, 2, true};
  t["xor.pred"] = {logic<Xor>, 2, true};
  t["not.pred"] = {logic_not, 1, true};
  t["mov.pred"] = {move_predicate, 1, true};

  casts<std::uint16_t>(t, "u16");
  casts<std::int16_t>(t, "s16");
  casts<std::uint32_t>(t, "u32");
  casts<std::int32_t>(t, "s32");
  casts<std::uint64_t>(t, "u64");
  casts<std::int64_t>(t, "s64");
  integers_and_floats<std::int16_t>(t, "s16");
  integers_and_floats<std::uint16_t>(t, "u16");
  integers_and_floats<std::int32_t>(t, "s32");
  integers_and_floats<std::uint32_t>(t, "u32");
  integers_and_floats<std::int64_t>(t, "s64");
  integers_and_floats<std::uint64_t>(t, "u64");
  t["cvt.f64.f32"] = {unary<float, Cast<double>>, 1};
  t["cvt.rn.f32.f64"] = {unary<double, Cast<float>>, 1};
  t["cvt.f32.f16"] = {unary<std::uint16_t, FromHalf>, 1};
  t["cvt.f32.bf16"] = {unary<std::uint16_t, FromBfloat>, 1};
  t["cvt.rn.f16.f32"] = {unary<float, ToHalf>, 1};
  t["cvt.rn.bf16.f32"] = {unary<float, ToBfloat>, 1};
  t["cvt.rn.f16x2.f32"] = {binary<float, ToPair<ToHalf>>, 2};
  t["cvt.rn.bf16x2.f32"] = {binary<float, ToPair<ToBfloat>>, 2};
  return t;
}

const Table& table() {
  static const Table t = make_table();
  return t;
}

}  // namespace

Operation find_operation(const std::string& opcode) {
  const auto found = table().find(opcode);
  return found == table().end() ? Operation{} : found->second;
}

std::vector<std::string> all_operations() {
  std::vector<std::string> names;
  for (const auto& [name, operation] : table()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Execute comparison(std::string_view what, std::string_view type) {
  if (type == "s16") return compare_integers<std::int16_t>(what);
  if (type == "u16" || type == "b16") return compare_integers<std::uint16_t>(what);
  if (type == "s32") return compare_integers<std::int32_t>(what);
  if (type == "u32" || type == "b32") return compare_integers<std::uint32_t>(what);
  if (type == "s64") return compare_integers<std::int64_t>(what);
  if (type == "u64" || type == "b64") return compare_integers<std::uint64_t>(what);
  if (type == "f32") return compare_floats<float>(what);
  if (type == "f64") return compare_floats<double>(what);
  return nullptr;
}

void move(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t* const a = w.row(i.src[0]);
  each_lane(lanes, [&](int l) { d[l] = a[l]; });
  w.write_set(i.dst[0], lanes, w.set(i.src[0]));
}

void pack(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const int width = 8 * i.element;
  const std::uint64_t ones = (std::uint64_t{1} << width) - 1;
  const std::uint32_t good = known(w, i, lanes);
  each_lane(lanes, [&](int l) {
    std::uint64_t bits = 0;
    for (int e = 0; e < i.n_src; ++e) bits |= (w.row(i.src[e])[l] & ones) << (e * width);
    d[l] = bits;
  });
  w.write_set(i.dst[0], lanes, good);
}

void unpack(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const int width = 8 * i.element;
  const std::uint64_t ones = (std::uint64_t{1} << width) - 1;
  std::uint64_t bits[kLanes];
  const std::uint64_t* const a = w.row(i.src[0]);
  each_lane(lanes, [&](int l) { bits[l] = a[l]; });
  const std::uint32_t good = w.set(i.src[0]);
  for (int e = 0; e < i.n_dst; ++e) {
    if (i.dst[e] < 0) continue;
    std::uint64_t* const d = w.row(i.dst[e]);
    each_lane(lanes, [&](int l) { d[l] = bits[l] >> (e * width) & ones; });
    w.write_set(i.dst[e], lanes, good);
  }
}

void select(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t* const d = w.row(i.dst[0]);
  const std::uint64_t *const a = w.row(i.src[0]), *const b = w.row(i.src[1]);
  const std::uint32_t first = w.predicate(i.src[2]);
  const std::uint32_t good =
      w.set(i.src[2]) & ((first & w.set(i.src[0])) | (~first & w.set(i.src[1])));
  each_lane(lanes, [&](int l) { d[l] = (first >> l & 1) != 0 ? a[l] : b[l]; });
  w.write_set(i.dst[0], lanes, good);
}

float from_half(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  float x;
  if (exponent == 0x1f)
    x = fraction != 0 ? NAN : INFINITY;
  else if (exponent == 0)
    x = std::ldexp(static_cast<float>(fraction), -24);
  else
    x = std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | sign);
}

float from_bfloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_half(float x) {
  if (x != x) return 0x7fff;
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) >> 16 & 0x8000;
  const float a = std::fabs(x);
  if (a >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  int exponent = 0;
  std::frexp(a, &exponent);            // a = f 2^exponent, f in [0.5, 1)
  exponent = std::max(exponent, -13);  // below, halves are as coarse as there
  // in units of the last place: at most 2048, of which the lowest overflows into the next exponent
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(a, 11 - exponent)));
  if (units < 1024) return static_cast<std::uint16_t>(sign | units);
  return static_cast<std::uint16_t>(sign + (static_cast<std::uint32_t>(exponent + 13) << 10) +
                                    units);
}

std::uint16_t to_bfloat(float x) {
  if (x != x) return 0x7fff;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace ptx
