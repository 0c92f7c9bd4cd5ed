// SPDX-License-Identifier: Apache-2.0
// Each family of opcodes against plain C++ that shares nothing with the interpreter.
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "device.hpp"
#include "episodic/base/dtype.hpp"
#include "operations.hpp"
#include "support/test.hpp"

namespace operations_test {

using ptx::Fault;
using ptx::FaultKind;
__extension__ using Wide = __int128;
__extension__ using UnsignedWide = unsigned __int128;
__extension__ using Quad = __float128;

template <class T>
T from(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

/// An array in device memory.
class Array {
 public:
  explicit Array(const std::vector<std::uint64_t>& values, int element = 8)
      : a_(ptx::Memory::instance().allocate(values.size() * 8, false)), element_(element) {
    for (std::size_t i = 0; i < values.size(); ++i)
      std::memcpy(a_->data + i * static_cast<std::size_t>(element), &values[i],
                  static_cast<std::size_t>(element));
    std::memset(a_->set.get(), 1, a_->size);
  }
  ~Array() { ptx::Memory::instance().release(a_->data); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(a_->data); }
  std::uint64_t operator[](std::size_t i) const {
    std::uint64_t value = 0;
    std::memcpy(&value, a_->data + i * static_cast<std::size_t>(element_),
                static_cast<std::size_t>(element_));
    return value;
  }

 private:
  ptx::Allocation* a_;
  int element_;
};

const std::string kHead = ".version 8.0\n.target sm_80\n.address_size 64\n";
/// A kernel of `body` with parameters p0 .. p(n-1), pointers all; %i: the thread, %i8 its 8 bytes.
std::string kernel(const std::string& body, int params, const std::string& before = {}) {
  std::string text = kHead + before + ".visible .entry k(";
  for (int p = 0; p < params; ++p)
    text += (p > 0 ? ", " : "") + (".param .u64 p" + std::to_string(p));
  text +=
      ") {\n.reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %d<64>; .reg .f32 "
      "%f<32>;"
      "\n.reg .b32 %i, %cta, %ntid; .reg .b64 %i8, %a<8>;\nmov.u32 %i, %tid.x; mov.u32 %cta, "
      "%ctaid.x;"
      " mov.u32 %ntid, %ntid.x; mad.lo.s32 %i, %cta, %ntid, %i;\nmul.wide.u32 %i8, %i, 8;\n";
  for (int p = 0; p < params; ++p) {
    const std::string a = "%a" + std::to_string(p);
    text += "ld.param.u64 " + a + ", [p" + std::to_string(p) + "]; add.s64 " + a + ", " + a +
            ", %i8;\n";
  }
  return text + body + "\nret;\n}\n";
}
std::vector<unsigned char> params(const std::vector<std::uint64_t>& values) {
  std::vector<unsigned char> out(values.size() * 8);
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

/// `opcode` on each set of operands. `types`: of the result and the operands; "pred" for predicates
std::vector<std::uint64_t> results(const std::string& opcode, const std::vector<std::string>& types,
                                   const std::vector<std::vector<std::uint64_t>>& operands) {
  const std::size_t n = operands[0].size();
  std::string body;
  const auto bits = [](const std::string& type) {
    return std::to_string(8 * ptx::size_of_type(type));
  };
  std::vector<std::uint64_t> arguments;
  std::vector<std::unique_ptr<Array>> arrays;
  std::string list = types[0] == "pred" ? "%p15" : "%x";
  if (types[0] != "pred") body += ".reg .b" + bits(types[0]) + " %x;\n";
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const std::string y = "%y" + std::to_string(k), a = "%a" + std::to_string(k);
    arrays.push_back(std::make_unique<Array>(operands[k]));
    arguments.push_back(arrays.back()->address());
    if (types[k + 1] == "pred") {
      body += "ld.global.u32 %r0, [" + a + "]; setp.ne.u32 %p" + std::to_string(k) + ", %r0, 0;\n";
      list += ", %p" + std::to_string(k);
    } else {
      body += ".reg .b" + bits(types[k + 1]) + " " + y + "; ld.global.b" + bits(types[k + 1]) +
              " " + y + ", [" + a + "];\n";
      list += ", " + y;
    }
  }
  body += opcode + " " + list + ";\n";
  const std::string out = "%a" + std::to_string(operands.size());
  if (types[0] == "pred")
    body += "selp.u64 %d0, 1, 0, %p15; st.global.u64 [" + out + "], %d0;";
  else
    body += "st.global.b" + bits(types[0]) + " [" + out + "], %x;";
  const Array result(std::vector<std::uint64_t>(n, 0));
  arguments.push_back(result.address());
  ptx::LoadedModule module(kernel(body, static_cast<int>(operands.size()) + 1));
  // blocks of odd sizes have warps that are not full
  constexpr std::uint32_t kThreads = 77;
  std::size_t done = 0;
  REQUIRE(n % kThreads == 0);
  module.launch("k", {static_cast<std::uint32_t>(n / kThreads)}, {kThreads}, params(arguments));
  std::vector<std::uint64_t> values;
  for (; done < n; ++done) values.push_back(result[done]);
  return values;
}

/// Values at the edges of a type and at random, as many as fill blocks.
template <class T>
std::vector<std::uint64_t> samples(unsigned seed, std::size_t n = 77 * 12) {
  std::mt19937_64 random(seed);
  std::vector<T> edges;
  if constexpr (std::is_floating_point_v<T>) {
    using L = std::numeric_limits<T>;
    edges = {T{0},           -T{0},    T{1},        T{-1},         T(0.5),
             T(-1.5),        T(2.5),   T(3.5),      L::infinity(), -L::infinity(),
             L::quiet_NaN(), L::max(), L::lowest(), L::min(),      L::denorm_min(),
             T(1e9),         T(-3e9),  T(1e19)};
  } else {
    using L = std::numeric_limits<T>;
    edges = {
        T{0},  T{1}, T{2}, static_cast<T>(-1), L::min(), L::max(), static_cast<T>(L::max() - 1),
        T{31}, T{33}};
  }
  std::vector<std::uint64_t> out(n);
  for (std::uint64_t& x : out) {
    if (random() % 3 == 0)
      x = bits_of(edges[random() % edges.size()]);
    else if constexpr (std::is_floating_point_v<T>)
      x = bits_of(static_cast<T>(std::ldexp(static_cast<double>(random() >> 11) - 0x1p52,
                                            -50 + static_cast<int>(random() % 12))));
    else
      x = bits_of(static_cast<T>(random() >> random() % 64));
  }
  return out;
}

bool same(std::uint64_t got, std::uint64_t want, const std::string& type) {
  if (type == "f32" && std::isnan(from<float>(want))) return std::isnan(from<float>(got));
  if (type == "f64" && std::isnan(from<double>(want))) return std::isnan(from<double>(got));
  return got == want;
}

template <class A, class R, class F>
void check_unary(const std::string& opcode, const std::string& to, const std::string& of, F f) {
  INFO(opcode);
  const auto a = samples<A>(1);
  const auto got = results(opcode, {to, of}, {a});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::uint64_t want = bits_of(static_cast<R>(f(from<A>(a[i]))));
    INFO("of " << a[i] << ": " << got[i] << ", not " << want);
    if (!same(got[i], want, to)) FAIL();
  }
}
template <class A, class B, class R, class F>
void check_binary(const std::string& opcode, const std::string& to, const std::string& of,
                  const std::string& second, F f) {
  INFO(opcode);
  const auto a = samples<A>(1), b = samples<B>(2);
  const auto got = results(opcode, {to, of, second}, {a, b});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::uint64_t want = bits_of(static_cast<R>(f(from<A>(a[i]), from<B>(b[i]))));
    INFO("of " << a[i] << " and " << b[i] << ": " << got[i] << ", not " << want);
    if (!same(got[i], want, to)) FAIL();
  }
}

template <class T>
void check_integers(const std::string& type) {
  using U = std::make_unsigned_t<T>;
  const auto binary = [&](const std::string& name, auto f) {
    check_binary<T, T, T>(name + "." + type, type, type, type, f);
  };
  const auto wide = [](T x) { return static_cast<Wide>(x); };
  binary("add", [&](T a, T b) { return static_cast<U>(wide(a) + wide(b)); });
  binary("sub", [&](T a, T b) { return static_cast<U>(wide(a) - wide(b)); });
  binary("mul.lo", [&](T a, T b) {
    return static_cast<U>(static_cast<UnsignedWide>(wide(a)) * static_cast<UnsignedWide>(wide(b)));
  });
  binary("min", [](T a, T b) { return a < b ? a : b; });
  binary("max", [](T a, T b) { return a < b ? b : a; });
  if constexpr (sizeof(T) >= 4)
    binary("mul.hi", [&](T a, T b) {
      // by halves, as on paper
      constexpr int kHalf = 4 * sizeof(T);
      const Wide low = wide(static_cast<T>(static_cast<U>(b) & ((U{1} << kHalf) - 1)));
      const Wide high = wide(static_cast<T>(b >> kHalf));
      return static_cast<T>((wide(a) * high + ((wide(a) * low) >> kHalf)) >> kHalf);
    });
  check_binary<T, std::uint32_t, T>("shr." + type, type, type, "u32", [&](T a, std::uint32_t n) {
    for (std::uint32_t i = 0; i < std::min(n, 70u); ++i)
      a = static_cast<T>((wide(a) - (wide(a) & 1)) / 2);
    return a;
  });
  if constexpr (std::is_signed_v<T>) {
    check_unary<T, T>("neg." + type, type, type, [&](T a) { return static_cast<U>(-wide(a)); });
    check_unary<T, T>("abs." + type, type, type,
                      [&](T a) { return static_cast<U>(wide(a) < 0 ? -wide(a) : wide(a)); });
  }
  const auto compare = [&](const std::string& name, auto f) {
    check_binary<T, T, std::uint64_t>("setp." + name + "." + type, "pred", type, type, f);
  };
  compare("eq", [](T a, T b) { return !(a < b) && !(b < a); });
  compare("ne", [](T a, T b) { return a < b || b < a; });
  compare("lt", [](T a, T b) { return b > a; });
  compare("le", [](T a, T b) { return !(b < a); });
  compare("gt", [](T a, T b) { return b < a; });
  compare("ge", [](T a, T b) { return !(a < b); });
}

template <class T>
void check_bits(const std::string& type) {
  const auto binary = [&](const std::string& name, auto f) {
    check_binary<T, T, T>(name + "." + type, type, type, type, f);
  };
  // (bit by bit, from the truth tables)
  const auto table = [](int truth) {
    return [truth](T a, T b) {
      T out = 0;
      for (std::size_t i = 0; i < 8 * sizeof(T); ++i)
        if ((truth >> (2 * (a >> i & 1) + (b >> i & 1)) & 1) != 0)
          out = static_cast<T>(out | T{1} << i);
      return out;
    };
  };
  binary("and", table(0b1000));
  binary("or", table(0b1110));
  binary("xor", table(0b0110));
  check_unary<T, T>("not." + type, type, type,
                    [](T a) { return static_cast<T>(std::numeric_limits<T>::max() - a); });
  check_binary<T, std::uint32_t, T>("shl." + type, type, type, "u32", [](T a, std::uint32_t n) {
    for (std::uint32_t i = 0; i < std::min(n, 70u); ++i) a = static_cast<T>(a + a);
    return a;
  });
  if constexpr (sizeof(T) >= 4) {
    const auto bit = [](T a, std::size_t i) { return static_cast<unsigned>(a >> i & 1); };
    constexpr std::size_t kBits = 8 * sizeof(T);
    check_unary<T, std::uint32_t>("popc." + type, "u32", type, [&](T a) {
      unsigned n = 0;
      for (std::size_t i = 0; i < kBits; ++i) n += bit(a, i);
      return n;
    });
    check_unary<T, std::uint32_t>("clz." + type, "u32", type, [&](T a) {
      std::size_t n = 0;
      while (n < kBits && bit(a, kBits - 1 - n) == 0) ++n;
      return n;
    });
    check_unary<T, T>("brev." + type, type, type, [&](T a) {
      T out = 0;
      for (std::size_t i = 0; i < kBits; ++i) out = static_cast<T>(2 * out + bit(a, i));
      return out;
    });
    INFO("bfi." << type);
    auto a = samples<T>(1), b = samples<T>(2), c = samples<std::uint32_t>(3),
         n = samples<std::uint32_t>(4);
    const auto got = results("bfi." + type, {type, type, type, "u32", "u32"}, {a, b, c, n});
    for (std::size_t i = 0; i < a.size(); ++i) {
      T want = from<T>(b[i]);
      const std::size_t at = c[i] & 0xff, count = n[i] & 0xff;
      for (std::size_t k = 0; k < count && at + k < kBits; ++k) {
        const T mask = static_cast<T>(T{1} << (at + k));
        const bool one = k < kBits && (from<T>(a[i]) >> k & 1) != 0;
        want = static_cast<T>(one ? want | mask : want & ~mask);
      }
      if (got[i] != want) FAIL("bfi of " << a[i] << ", " << b[i] << ", " << at << ", " << count);
    }
  }
}

/// Exact, then rounded once, toward -infinity.
float rounded_down(Quad x) {
  float f = static_cast<float>(x);
  if (static_cast<Quad>(f) > x) f = std::nextafter(f, -INFINITY);
  return f;
}

template <class T>
void check_floats(const std::string& type) {
  const auto binary = [&](const std::string& name, auto f) {
    check_binary<T, T, T>(name + "." + type, type, type, type, f);
  };
  for (const std::string rn : {"", ".rn"}) {
    binary("add" + rn,
           [](T a, T b) { return static_cast<T>(static_cast<Quad>(a) + static_cast<Quad>(b)); });
    binary("sub" + rn,
           [](T a, T b) { return static_cast<T>(static_cast<Quad>(a) - static_cast<Quad>(b)); });
    binary("mul" + rn,
           [](T a, T b) { return static_cast<T>(static_cast<Quad>(a) * static_cast<Quad>(b)); });
  }
  binary("div.rn", [](T a, T b) { return static_cast<T>(a / b); });
  const auto less = [](T a, T b) {
    return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b;
  };
  binary("copysign", [](T a, T b) { return std::copysign(b, a); });
  binary("min", less);
  binary("max", [&](T a, T b) { return -less(-a, -b); });
  const auto unary = [&](const std::string& name, auto f) {
    check_unary<T, T>(name + "." + type, type, type, f);
  };
  unary("neg", [](T a) { return -a; });
  unary("abs", [](T a) { return std::fabs(a); });
  unary("sqrt.rn", [](T a) { return std::sqrt(a); });
  unary("rcp.rn", [](T a) { return T{1} / a; });
  unary("cvt.rni." + type, [](T a) {
    const T low = std::floor(a), rest = a - low;  // halves to even
    const T r =
        rest < T(0.5) || (rest == T(0.5) && std::fmod(low, T{2}) == T{0}) ? low : low + T{1};
    return std::isinf(a) ? a : std::copysign(r, a);
  });
  unary("cvt.rmi." + type, [](T a) { return std::floor(a); });
  unary("cvt.rpi." + type, [](T a) { return std::ceil(a); });
  unary("cvt.rzi." + type, [](T a) { return std::trunc(a); });
  unary("cvt.sat." + type, [](T a) {
    return std::isnan(a) || a <= T{0} ? T{0} : a > T{1} ? T{1} : a;
  });
  const auto compare = [&](const std::string& name, bool unordered, auto f) {
    check_binary<T, T, std::uint64_t>(
        "setp." + name + "." + type, "pred", type, type,
        [&](T a, T b) { return std::isunordered(a, b) ? unordered : f(a, b); });
  };
  for (const std::string u : {"", "u"}) {
    const bool un = u == "u";
    compare("eq" + u, un, [](T a, T b) { return a == b; });
    compare("ne" + u, un, [](T a, T b) { return a < b || b < a; });
    compare("lt" + u, un, [](T a, T b) { return a < b; });
    compare("le" + u, un, [](T a, T b) { return a <= b; });
    compare("gt" + u, un, [](T a, T b) { return a > b; });
    compare("ge" + u, un, [](T a, T b) { return a >= b; });
  }
  compare("num", false, [](T, T) { return true; });
  compare("nan", true, [](T, T) { return false; });
  // What is beyond an integer becomes the last one, what is no number 0.
  const auto to_integer = [&]<class I>(I, const std::string& name) {
    const auto all = [&](const std::string& how, auto round) {
      check_unary<T, I>("cvt." + how + "." + name + "." + type, name, type, [&](T a) {
        using L = std::numeric_limits<I>;
        const auto r = static_cast<Quad>(round(a));
        return std::isnan(a)                      ? I{0}
               : r >= static_cast<Quad>(L::max()) ? L::max()
               : r <= static_cast<Quad>(L::min()) ? L::min()
                                                  : static_cast<I>(r);
      });
    };
    all("rzi", [](T a) { return std::trunc(a); });
    all("rmi", [](T a) { return std::floor(a); });
    all("rpi", [](T a) { return std::ceil(a); });
    all("rni", [](T a) { return std::nearbyint(a); });
    check_unary<I, T>("cvt.rn." + type + "." + name, type, name,
                      [](I a) { return static_cast<T>(static_cast<Quad>(a)); });
  };
  to_integer(std::int32_t{}, "s32");
  to_integer(std::uint32_t{}, "u32");
  to_integer(std::int64_t{}, "s64");
  to_integer(std::uint64_t{}, "u64");
}

/// Products and sums that are exact in 113 bits.
template <class T>
void check_fma(const std::string& opcode, const std::string& type,
               const std::function<T(Quad)>& round) {
  std::mt19937_64 random(5);
  std::vector<std::uint64_t> a, b, c;
  for (int i = 0; i < 77 * 12; ++i) {
    const auto draw = [&](int bits) {
      return std::ldexp(static_cast<T>(static_cast<std::int64_t>(random()) >> (63 - bits)), -bits);
    };
    constexpr int kBits = std::numeric_limits<T>::digits;
    const T x = draw(kBits), y = draw(kBits);
    a.push_back(bits_of(x));
    b.push_back(bits_of(y));
    c.push_back(bits_of(i % 3 == 0 ? static_cast<T>(-x * y) : draw(kBits)));
  }
  const auto got = results(opcode, {type, type, type, type}, {a, b, c});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Quad exact = static_cast<Quad>(from<T>(a[i])) * static_cast<Quad>(from<T>(b[i])) +
                       static_cast<Quad>(from<T>(c[i]));
    if (from<T>(got[i]) != round(exact)) FAIL(opcode << " of sample " << i);
  }
}

TEST_CASE("PTX: arithmetic of integers") {
  check_integers<std::int16_t>("s16");
  check_integers<std::uint16_t>("u16");
  check_integers<std::int32_t>("s32");
  check_integers<std::uint32_t>("u32");
  check_integers<std::int64_t>("s64");
  check_integers<std::uint64_t>("u64");
  check_binary<std::int32_t, std::int32_t, std::int64_t>(
      "mul.wide.s32", "s64", "s32", "s32", [](std::int64_t a, std::int64_t b) { return a * b; });
  check_binary<std::uint32_t, std::uint32_t, std::uint64_t>(
      "mul.wide.u32", "u64", "u32", "u32", [](std::uint64_t a, std::uint64_t b) { return a * b; });
  check_binary<std::int16_t, std::int16_t, std::int32_t>("mul.wide.s16", "s32", "s16", "s16",
                                                         [](int a, int b) { return a * b; });
  check_binary<std::uint16_t, std::uint16_t, std::uint32_t>(
      "mul.wide.u16", "u32", "u16", "u16", [](std::uint32_t a, std::uint32_t b) { return a * b; });
}

TEST_CASE("PTX: quotients of integers, and a quotient by zero is nothing to use") {
  const auto check = [](auto type, const std::string& name) {
    using T = decltype(type);
    auto a = samples<T>(1), b = samples<T>(2);
    for (std::uint64_t& y : b)
      if (from<T>(y) == 0) y = 7;
    const auto q = results("div." + name, {name, name, name}, {a, b});
    const auto r = results("rem." + name, {name, name, name}, {a, b});
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Wide x = from<T>(a[i]), y = from<T>(b[i]);
      if (from<T>(q[i]) != static_cast<T>(x / y) || from<T>(r[i]) != static_cast<T>(x % y))
        FAIL(name << " " << a[i] << " by " << b[i]);
    }
    b[3] = 0;
    REQUIRE_THROWS_AS(results("div." + name, {name, name, name}, {a, b}), Fault);
  };
  check(std::int32_t{}, "s32");
  check(std::uint32_t{}, "u32");
  check(std::int64_t{}, "s64");
  check(std::uint64_t{}, "u64");
}

TEST_CASE("PTX: bits") {
  check_bits<std::uint16_t>("b16");
  check_bits<std::uint32_t>("b32");
  check_bits<std::uint64_t>("b64");
  check_unary<std::uint32_t, std::uint32_t>("bfind.shiftamt.u32", "u32", "u32",
                                            [](std::uint32_t a) {
                                              std::uint32_t n = 0;
                                              if (a == 0) return ~0u;
                                              for (; (a >> 31) == 0; a *= 2) ++n;
                                              return n;
                                            });
}

TEST_CASE("PTX: bytes in another order") {
  const auto a = samples<std::uint32_t>(1), b = samples<std::uint32_t>(2),
             c = samples<std::uint32_t>(3);
  const auto got = results("prmt.b32", {"b32", "b32", "b32", "b32"}, {a, b, c});
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t which = c[i] >> (4 * k) & 15;
      const std::uint64_t from = which % 8 < 4 ? a[i] : b[i];
      const auto byte = static_cast<std::uint8_t>(from >> (8 * (which % 4)));
      const int want = which < 8 ? byte : (byte >= 128 ? 255 : 0);
      if (static_cast<int>(got[i] >> (8 * k) & 255) != want)
        FAIL("prmt of " << a[i] << ", " << b[i] << ", " << c[i]);
    }
}

TEST_CASE("PTX: dot products of bytes") {
  const auto a = samples<std::uint32_t>(4), b = samples<std::uint32_t>(5);
  auto c = samples<std::uint32_t>(6);
  for (auto& x : c) x &= 0xffffff;  // the sum must not overflow
  const auto got = results("dp4a.s32.s32", {"b32", "b32", "b32", "b32"}, {a, b, c});
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto want = static_cast<std::int64_t>(c[i]);
    for (int k = 0; k < 4; ++k) {
      const auto byte = [&](std::uint64_t x) {
        const auto of = static_cast<std::int64_t>(x >> (8 * k) & 255);
        return of < 128 ? of : of - 256;
      };
      want += byte(a[i]) * byte(b[i]);
    }
    if (static_cast<std::int32_t>(got[i]) != want) FAIL("dp4a of " << a[i] << " and " << b[i]);
  }
}

TEST_CASE("PTX: sums and products over several words, by the carry") {
  const auto a = samples<std::uint64_t>(1), b = samples<std::uint64_t>(2),
             c = samples<std::uint64_t>(3);
  const auto run = [&](const std::string& code) {
    const Array x(a), y(b), z(c), low(std::vector<std::uint64_t>(a.size())),
        high(std::vector<std::uint64_t>(a.size()));
    ptx::LoadedModule module(
        kernel("ld.global.v2.u32 {%r0, %r1}, [%a0]; ld.global.v2.u32 {%r2, %r3}, [%a1];\n"
               "ld.global.v2.u32 {%r4, %r5}, [%a2];\n" +
                   code +
                   "mov.b64 %d0, {%r10, %r11}; mov.b64 %d1, {%r12, %r13};\n"
                   "st.global.u64 [%a3], %d0; st.global.u64 [%a4], %d1;",
               5));
    module.launch("k", {static_cast<std::uint32_t>(a.size() / 77)}, {77},
                  params({x.address(), y.address(), z.address(), low.address(), high.address()}));
    std::vector<UnsignedWide> out;
    for (std::size_t i = 0; i < a.size(); ++i)
      out.push_back(static_cast<UnsignedWide>(high[i]) << 64 | low[i]);
    return out;
  };
  const auto sum =
      run("add.cc.u32 %r10, %r0, %r2; addc.cc.u32 %r11, %r1, %r3; addc.cc.u32 %r12, 0, 0; mov.u32 "
          "%r13, 0;\n");
  const auto difference =
      run("sub.cc.u32 %r10, %r0, %r2; subc.cc.u32 %r11, %r1, %r3; subc.cc.u32 %r12, 0, 0; subc.u32 "
          "%r13, 0, 0;\n");
  const auto product =
      run("mad.lo.cc.u32 %r10, %r0, %r2, %r4; madc.hi.cc.u32 %r11, %r0, %r2, %r5; madc.hi.u32 "
          "%r12, %r0, %r3, 0;\n"
          "mad.lo.cc.u32 %r11, %r0, %r3, %r11; madc.hi.cc.u32 %r12, %r1, %r2, %r12; madc.hi.u32 "
          "%r13, %r1, %r3, 0;\n"
          "mad.lo.cc.u32 %r11, %r1, %r2, %r11; madc.lo.cc.u32 %r12, %r1, %r3, %r12; addc.u32 %r13, "
          "%r13, 0;\n");
  for (std::size_t i = 0; i < a.size(); ++i) {
    const UnsignedWide x = a[i], y = b[i];
    if (sum[i] != x + y || difference[i] != x - y || product[i] != x * y + c[i])
      FAIL("sample " << i);
  }
}

TEST_CASE("PTX: arithmetic of floats") {
  check_floats<float>("f32");
  check_floats<double>("f64");
  check_fma<float>("fma.rn.f32", "f32", [](Quad x) { return static_cast<float>(x); });
  check_fma<float>("fma.rm.f32", "f32", rounded_down);
  check_fma<float>("fma.rp.f32", "f32", [](Quad x) { return -rounded_down(-x); });
  check_fma<float>("fma.rz.f32", "f32",
                   [](Quad x) { return x < 0 ? -rounded_down(-x) : rounded_down(x); });
  check_fma<double>("fma.rn.f64", "f64", [](Quad x) { return static_cast<double>(x); });
  check_unary<float, double>("cvt.f64.f32", "f64", "f32", [](float a) { return a; });
  check_unary<double, float>("cvt.rn.f32.f64", "f32", "f64",
                             [](double a) { return static_cast<float>(a); });
  check_unary<std::int16_t, float>("cvt.rn.f32.s16", "f32", "s16",
                                   [](std::int16_t a) { return static_cast<float>(a); });
  // approximations within what PTX grants
  const auto a = samples<float>(6);
  for (const std::string ftz : {"", ".ftz"}) {
    const auto got = results("ex2.approx" + ftz + ".f32", {"f32", "f32"}, {a});
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double want = std::exp2(static_cast<double>(from<float>(a[i])));
      const double x = static_cast<double>(from<float>(got[i]));
      if (std::isnan(want) ? !std::isnan(x)
          : std::isinf(x)  ? want < 3.4e38
                           : std::fabs(x - want) > want * 0x1p-22 + 0x1p-126)
        FAIL("2^" << from<float>(a[i]) << " = " << x);
    }
  }
  const auto f = samples<float>(7);
  const auto of_floats = results("rcp.approx.ftz.f32", {"f32", "f32"}, {f});
  for (std::size_t i = 0; i < f.size(); ++i) {
    const float x = from<float>(f[i]), got = from<float>(of_floats[i]);
    if (!std::isnormal(x) || std::fabs(x) > 1e37f) continue;
    if (std::fabs(got * x - 1.0f) > 0x1p-22f) FAIL("1 / " << x << " = " << got);
  }
  const auto of_quotients = results("div.approx.f32", {"f32", "f32", "f32"}, {a, f});
  for (std::size_t i = 0; i < f.size(); ++i) {
    const float x = from<float>(a[i]), by = from<float>(f[i]), got = from<float>(of_quotients[i]);
    if (std::isfinite(x) && std::fabs(by) > 0x1p126f && got != 0.0f)
      FAIL(x << " / " << by << " = " << got);
    const double want = static_cast<double>(x) / static_cast<double>(by);
    if (!std::isnormal(by) || std::fabs(by) > 0x1p126f || !(std::fabs(want) < 3.4e38)) continue;
    if (std::fabs(static_cast<double>(got) - want) > std::fabs(want) * 0x1p-22 + 0x1p-126)
      FAIL(x << " / " << by << " = " << got);
  }
  const auto d = samples<double>(7);
  const auto r = results("rcp.approx.ftz.f64", {"f64", "f64"}, {d});
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double x = from<double>(d[i]), got = from<double>(r[i]);
    if (!std::isnormal(x) || std::fabs(x) > 1e300) continue;
    if (std::fabs(got * x - 1.0) > 0x1p-20 || (r[i] & 0xffffffffu) != 0)
      FAIL("1 / " << x << " = " << got);
  }
}

TEST_CASE("PTX: conversions between integers, and of half precision") {
  check_unary<std::int32_t, std::int64_t>("cvt.s64.s32", "s64", "s32",
                                          [](std::int32_t a) { return a; });
  check_unary<std::uint32_t, std::uint64_t>("cvt.u64.u32", "u64", "u32",
                                            [](std::uint32_t a) { return a; });
  check_unary<std::uint64_t, std::uint32_t>(
      "cvt.u32.u64", "u32", "u64", [](std::uint64_t a) { return static_cast<std::uint32_t>(a); });
  check_unary<std::uint16_t, std::uint32_t>("cvt.u32.u16", "u32", "u16",
                                            [](std::uint16_t a) { return a; });
  check_unary<std::uint32_t, std::uint16_t>(
      "cvt.u16.u32", "u16", "u32", [](std::uint32_t a) { return static_cast<std::uint16_t>(a); });
  check_unary<std::int16_t, std::int32_t>("cvt.s32.s16", "s32", "s16",
                                          [](std::int16_t a) { return a; });
  // against the library's own conversions: every half, and floats of every size
  for (std::uint32_t h = 0; h < 1 << 16; ++h) {
    const auto bits = static_cast<std::uint16_t>(h);
    const float a = ptx::from_half(bits), b = ptx::from_bfloat(bits);
    const float x = episodic::from_float16(bits), y = episodic::from_bfloat16(bits);
    if ((std::isnan(x) ? !std::isnan(a) : bits_of(a) != bits_of(x)) ||
        (std::isnan(y) ? !std::isnan(b) : bits_of(b) != bits_of(y)))
      FAIL("half " << h);
  }
  std::mt19937 random(3);
  for (int i = 0; i < 300000; ++i) {
    float x = from<float>(random());
    if (i % 2 == 0)
      x = episodic::from_float16(static_cast<std::uint16_t>(random())) *
          (1.0f + (i % 3 == 0 ? 0x1p-11f : 0x1.002p-11f));
    if (std::isnan(x)) continue;
    if (ptx::to_half(x) != episodic::to_float16(x) || ptx::to_bfloat(x) != episodic::to_bfloat16(x))
      FAIL("float " << x);
  }
  REQUIRE(ptx::to_half(NAN) == 0x7fff);
  const auto a = samples<float>(8), b = samples<float>(9);
  for (const std::string type : {"f16", "bf16"}) {
    const auto one = [&](std::uint64_t x) {
      return type == "f16" ? ptx::to_half(from<float>(x)) : ptx::to_bfloat(from<float>(x));
    };
    const auto single = results("cvt.rn." + type + ".f32", {"b16", "f32"}, {a});
    const auto pair = results("cvt.rn." + type + "x2.f32", {"b32", "f32", "f32"}, {a, b});
    for (std::size_t i = 0; i < a.size(); ++i) {
      REQUIRE(single[i] == one(a[i]));
      REQUIRE(pair[i] == (static_cast<std::uint32_t>(one(a[i])) << 16 | one(b[i])));
    }
    const auto back = results("cvt.f32." + type, {"f32", "b16"}, {single});
    for (std::size_t i = 0; i < a.size(); ++i)
      REQUIRE(same(back[i],
                   bits_of(type == "f16" ? ptx::from_half(static_cast<std::uint16_t>(single[i]))
                                         : ptx::from_bfloat(static_cast<std::uint16_t>(single[i]))),
                   "f32"));
  }
}

TEST_CASE("PTX: predicates, selections, moves") {
  const auto a = samples<std::uint32_t>(1), b = samples<std::uint32_t>(2);
  std::vector<std::uint64_t> p(a.size()), q(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    p[i] = a[i] >> 1 & 1;
    q[i] = b[i] >> 2 & 1;
  }
  const auto both = results("and.pred", {"pred", "pred", "pred"}, {p, q});
  const auto either = results("or.pred", {"pred", "pred", "pred"}, {p, q});
  const auto one = results("xor.pred", {"pred", "pred", "pred"}, {p, q});
  const auto none = results("not.pred", {"pred", "pred"}, {p});
  const auto chosen = results("selp.b32", {"b32", "b32", "b32", "pred"}, {a, b, q});
  const auto unpacked = results("mov.b64 {%r1, %r2}, %y0; mov.b64 %d9, {%r2, %r1}; mov.b64",
                                {"b64", "b64"}, {samples<std::uint64_t>(4)});
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(both[i] == (p[i] + q[i] == 2));
    REQUIRE(either[i] == (p[i] + q[i] > 0));
    REQUIRE(one[i] == (p[i] + q[i] == 1));
    REQUIRE(none[i] == 1 - p[i]);
    REQUIRE(chosen[i] == (q[i] == 1 ? a[i] : b[i]));
  }
  REQUIRE(unpacked == samples<std::uint64_t>(4));
}

TEST_CASE("PTX: an opcode, a form or a pragma that is not known is an error by name") {
  const auto error = [](const std::string& body) {
    try {
      ptx::LoadedModule(kernel(body, 1)).program("k");
    } catch (const Fault& fault) {
      REQUIRE(fault.kind == FaultKind::unknown);
      return std::string(fault.what());
    } catch (const ptx::TextError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  REQUIRE(error("add.s32 %r0, %r1, %r2;") == "none");
  REQUIRE(error("frob.s32 %r0, %r1;").find("'frob.s32'") != std::string::npos);
  for (const char* const body :
       {"add.sat.s32 %r0, %r1, %r2;", "add.s32 %r0, %r1;", "ld.global.b128 %r0, [%a0];",
        "bar.sync 0, 48;", "bar.arrive 0, 64;", "ld.acquire.gpu.global.u32 %r0, [%a0];",
        "shfl.up.b32 %r0, %r1, 1, 0;", "st.param.u32 [p0], %r0;",
        "cp.async.ca.shared.global [%r0], [%a0], 4;", "cp.async.cg.shared.global [%r0], [%a0], 8;",
        "setp.lt.and.s32 %p0, %r0, %r1, %p1;", "mov.u32 %r0, %clock;",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, "
        "{%r4,%r5}, {%f0,%f1,%f2,%f3};",
        "selp.b32 %r0, %r1, %r2, !%p0;", "bra nowhere;", "call.uni (p0), f, (p0);", "@%p99 ret;",
        ".pragma \"other\";"}) {
    INFO(body);
    REQUIRE(error(body) != "none");
  }
}

}  // namespace operations_test
