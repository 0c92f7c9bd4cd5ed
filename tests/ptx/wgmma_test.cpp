// SPDX-License-Identifier: Apache-2.0
// mbarriers, barriers of a part of a block, and products of a warpgroup against float64.
#include <cmath>
#include <random>

#include "device.hpp"
#include "operations.hpp"
#include "support/compare.hpp"
#include "support/test.hpp"

namespace wgmma_test {

using ptx::Fault;

class Words {
 public:
  explicit Words(const std::vector<std::uint32_t>& values)
      : a_(ptx::Memory::instance().allocate(4 * values.size(), false)) {
    std::memcpy(a_->data, values.data(), a_->size);
    std::memset(a_->set.get(), 1, a_->size);
  }
  ~Words() { ptx::Memory::instance().release(a_->data); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(a_->data); }
  template <class T = std::uint32_t>
  T at(std::size_t i) const {
    T value;
    std::memcpy(&value, a_->data + 4 * i, 4);
    return value;
  }

 private:
  ptx::Allocation* a_;
};

/// A kernel with pointers in %a0 .. %a4, the thread in %i, its warp in %w, %o: %a0 at word %i, %c:
/// dynamic shared memory from a multiple of 1024 bytes on.
std::string kernel(const std::string& body) {
  std::string text =
      ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 128 .b8 cells[];\n"
      ".visible .entry k(";
  for (int p = 0; p < 5; ++p) text += (p > 0 ? ", " : "") + (".param .u64 p" + std::to_string(p));
  text +=
      ") {\n.reg .pred %p<8>; .reg .b32 %r<64>; .reg .b64 %d<64>; .reg .f32 %s<130>; .reg .b32 %i, "
      "%w, %c; .reg .b64 %o, %a<5>;\n";
  for (int p = 0; p < 5; ++p)
    text += "ld.param.u64 %a" + std::to_string(p) + ", [p" + std::to_string(p) + "];\n";
  return text +
         "mov.u32 %i, %tid.x; shr.u32 %w, %i, 5; mul.wide.u32 %o, %i, 4; add.s64 %o, %o, %a0;\n"
         "mov.u32 %c, cells; add.s32 %c, %c, 1023; and.b32 %c, %c, -1024;\n" +
         body + "\nret;\n}\n";
}
void run(const std::string& body, std::uint32_t threads, const std::vector<std::uint64_t>& pointers,
         std::uint32_t shared = 4096) {
  std::vector<unsigned char> params(40);
  std::memcpy(params.data(), pointers.data(), 8 * pointers.size());
  ptx::LoadedModule(kernel(body)).launch("k", {}, {threads}, params, shared);
}
/// "sound", or the kind of fault.
std::string kind(const std::string& body, std::uint32_t threads) {
  const Words out(std::vector<std::uint32_t>(1024));
  std::string first;
  for (const auto order : {ptx::Order::forward, ptx::Order::backward}) {
    ptx::set_order(order);
    std::string said = "sound";
    try {
      run(body, threads, {out.address(), out.address()}, 32768);
    } catch (const Fault& fault) {
      said = ptx::name_of(fault.kind);
      INFO(fault.what());
      CHECK(std::string(fault.what()).size() > 20);
    }
    if (first.empty() || first == said)
      first = said;
    else
      first += ", " + said;
  }
  ptx::set_order(ptx::Order::alternating);
  return first;
}

/// One matrix of 16-bit elements, `rows` x `depth`, as products of a warpgroup find it with
/// swizzling by 128 bytes: drawn from the PTX ISA's figures in units of 16 bytes, 8 x 8 of which
/// make a pattern in which unit u of line r lies in place u xor r. Lines are the matrix' rows
/// (K-major), or, if `transposed`, its depth (MN-major).
struct Image {
  std::vector<std::uint16_t> halves;
  std::uint32_t leading = 16, stride = 1024;  // bytes
  void put(std::size_t byte, std::uint16_t x) {
    if (halves.size() <= byte / 2) halves.resize(byte / 2 + 1);
    halves[byte / 2] = x;
  }
};
Image image_of(const std::vector<std::vector<std::uint16_t>>& rows, bool transposed,
               std::uint32_t stride, std::uint32_t leading) {
  Image image;
  image.stride = stride;
  image.leading = leading;
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t k = 0; k < rows[r].size(); ++k) {
      const std::size_t line = transposed ? k : r, across = transposed ? r : k;
      const std::size_t unit = across % 64 / 8 ^ line % 8;
      image.put(
          line / 8 * stride + across / 64 * leading + (line % 8 * 8 + unit) * 16 + across % 8 * 2,
          rows[r][k]);
    }
  image.halves.resize((image.halves.size() + 511) / 512 * 512);  // the next begins at a pattern
  return image;
}

TEST_CASE("PTX: products of a warpgroup against float64, in every layout") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const bool bfloat : {false, true})
    for (const std::size_t n : {8, 64, 96, 256})
      for (const int how :
           {0, 1, 2, 3, 4, 5}) {  // A: rows, transposed, fragment; B: rows, transposed
        const bool fragment = how / 2 == 2, a_transposed = how / 2 == 1,
                   b_transposed = how % 2 == 1;
        // 16 of the depth of 64 that lie there
        const std::size_t step = random() % 4;
        const bool adds = random() % 2 == 0;
        INFO("n " << n << " how " << how << " step " << step << " adds " << adds);
        const auto narrow = [&](float x) { return bfloat ? ptx::to_bfloat(x) : ptx::to_half(x); };
        const auto widen = [&](std::uint16_t x) {
          return static_cast<double>(bfloat ? ptx::from_bfloat(x) : ptx::from_half(x));
        };
        const auto draw = [&](std::size_t rows) {
          std::vector<std::vector<std::uint16_t>> m(rows, std::vector<std::uint16_t>(64));
          for (auto& row : m)
            for (auto& x : row) x = narrow(normal(random));
          return m;
        };
        const auto a = draw(64), b = draw(n);
        // patterns of a matrix lie apart by more than they are long
        const auto image = [&](const auto& m, bool transposed) {
          return transposed ? image_of(m, true, 1024, 8 * 1024 + 2048)
                            : image_of(m, false, 2048, 16);
        };
        const Image of_a = image(a, a_transposed), of_b = image(b, b_transposed);
        std::vector<std::uint16_t> both = of_a.halves;
        both.insert(both.end(), of_b.halves.begin(), of_b.halves.end());
        std::vector<std::uint32_t> words(both.size() / 2), fragments(512), sums(128 * n / 2);
        std::memcpy(words.data(), both.data(), 4 * words.size());
        for (std::size_t t = 0; t < 128; ++t)
          for (std::size_t f = 0; f < 4; ++f) {
            const std::size_t row = t / 32 * 16 + t % 32 / 4 + f % 2 * 8;
            const std::size_t k = 16 * step + t % 4 * 2 + f / 2 * 8;
            fragments[4 * t + f] = static_cast<std::uint32_t>(a[row][k + 1]) << 16 | a[row][k];
          }
        std::vector<float> before(sums.size());
        for (float& x : before) x = normal(random);
        std::memcpy(sums.data(), before.data(), 4 * sums.size());
        const Words memory(words), left(fragments), of_sums(sums), out(sums);

        const auto descriptor = [&](const std::string& to, const Image& m, std::size_t byte,
                                    bool transposed) {
          const std::size_t start = byte + (transposed ? step * 2 * m.stride : step * 32);
          const std::uint64_t rest = std::uint64_t{1} << 62 | std::uint64_t{m.stride / 16} << 32 |
                                     std::uint64_t{m.leading / 16} << 16;
          return "add.s32 %r9, %c, " + std::to_string(start) +
                 "; shr.u32 %r9, %r9, 4; cvt.u64.u32 " + to + ", %r9; add.s64 " + to + ", " + to +
                 ", " + std::to_string(rest) + ";\n";
        };
        std::string list, loads, stores;
        for (std::size_t k = 0; k < n / 2; ++k) {
          const std::string s = "%s" + std::to_string(k), at = std::to_string(4 * k);
          list += (k > 0 ? ", " : "") + s;
          loads += "ld.global.f32 " + s + ", [%d2+" + at + "];\n";
          stores += "st.global.f32 [%d3+" + at + "], " + s + ";\n";
        }
        const std::string type = bfloat ? "bf16" : "f16";
        run("mov.u32 %r1, %i;\n"
            "LOOP: setp.ge.u32 %p0, %r1, " +
                std::to_string(words.size()) +
                "; @%p0 bra DONE; mul.wide.u32 %d0, %r1, 4; add.s64 %d1, %a1, %d0; ld.global.u32 "
                "%r2, "
                "[%d1];\n"
                "shl.b32 %r3, %r1, 2; add.s32 %r3, %r3, %c; st.shared.u32 [%r3], %r2; add.s32 %r1, "
                "%r1, 128; bra LOOP;\n"
                "DONE: fence.proxy.async.shared::cta; bar.sync 0;\n"
                "mul.wide.u32 %d0, %i, 16; add.s64 %d1, %a2, %d0; ld.global.v4.u32 {%r4, %r5, %r6, "
                "%r7}, [%d1];\n"
                "mul.wide.u32 %d0, %i, " +
                std::to_string(2 * n) + "; add.s64 %d2, %a3, %d0; add.s64 %d3, %a0, %d0;\n" +
                loads + descriptor("%d4", of_a, 0, a_transposed) +
                descriptor("%d5", of_b, 2 * of_a.halves.size(), b_transposed) +
                "setp.ne.b32 %p1, " + (adds ? "1" : "0") +
                ", 0; wgmma.fence.sync.aligned;\n"
                "wgmma.mma_async.sync.aligned.m64n" +
                std::to_string(n) + "k16.f32." + type + "." + type + " {" + list + "}, " +
                (fragment ? "{%r4, %r5, %r6, %r7}" : "%d4") + ", %d5, %p1, 1, 1, " +
                (fragment       ? ""
                 : a_transposed ? "1, "
                                : "0, ") +
                (b_transposed ? "1" : "0") +
                ";\nwgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n" + stores,
            128, {out.address(), memory.address(), left.address(), of_sums.address()},
            static_cast<std::uint32_t>(2 * both.size() + 1024));
        double worst = 0.0;
        for (std::size_t row = 0; row < 64; ++row)
          for (std::size_t column = 0; column < n; ++column) {
            const std::size_t thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            const std::size_t at =
                thread * (n / 2) + column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
            double want = adds ? static_cast<double>(before[at]) : 0.0;
            for (std::size_t k = 16 * step; k < 16 * step + 16; ++k)
              want += widen(a[row][k]) * widen(b[column][k]);
            worst = worse_of(worst, std::fabs(want - static_cast<double>(out.at<float>(at))));
          }
        REQUIRE(worst < 1e-5);
      }
}

/// Sixteen rows' worth of zeros as a matrix, its descriptor in %d0.
const std::string kMatrix =
    "shl.b32 %r0, %i, 4; add.s32 %r0, %r0, %c; mov.u32 %r1, 0; st.shared.v4.u32 [%r0], {%r1, %r1, "
    "%r1, %r1};\n"
    "shr.u32 %r2, %c, 4; cvt.u64.u32 %d0, %r2; add.s64 %d0, %d0, 4611686293305294848;\n"  // stride
                                                                                          // 1024
    "mov.f32 %s0, 0f00000000; mov.f32 %s1, %s0; mov.f32 %s2, %s0; mov.f32 %s3, %s0; setp.eq.u32 "
    "%p1, "
    "%r1, 0;\n";
const std::string kFence = "fence.proxy.async.shared::cta; bar.sync 0;\n";
std::string product(const std::string& left, const std::string& rest = "1, 1, 0") {
  return "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%s0, %s1, %s2, %s3}, " + left +
         ", %d0, %p1, " + rest + ";\n";
}
const std::string kOpen = "wgmma.fence.sync.aligned;\n",
                  kClose = "wgmma.commit_group.sync.aligned;\n",
                  kWait = "wgmma.wait_group.sync.aligned 0;\n", kFragment = "{%r4, %r5, %r6, %r7}",
                  kSetFragment =
                      "mov.u32 %r4, %i; mov.u32 %r5, %i; mov.u32 %r6, %i; mov.u32 %r7, %i;\n",
                  kStore = "st.global.f32 [%o], %s0;\n";

TEST_CASE(
    "PTX: what a product still uses may not be touched, and what it reads must be published") {
  const std::string begin = kMatrix + kSetFragment + kFence;
  const std::string sound = begin + kOpen + product(kFragment) + kClose + kWait + kStore;
  REQUIRE(kind(sound, 128) == "sound");
  // accumulators
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + kStore + kWait, 128) ==
          "asynchronous copy");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose +
                   "mov.f32 %s9, %s0; add.f32 %s8, %s9, %s9;" + kWait,
               128) == "asynchronous copy");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + "mov.f32 %s9, %s0;" + kWait +
                   "add.f32 %s8, %s9, %s9;",
               128) == "sound");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + "mov.f32 %s0, 0f00000000;" + kWait,
               128) == "asynchronous copy");
  REQUIRE(kind(begin + kOpen + product(kFragment) + product(kFragment) + kClose + kWait + kStore,
               128) == "sound");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + product(kFragment) + kClose +
                   "wgmma.wait_group.sync.aligned 1;\n" + kStore + kWait,
               128) == "asynchronous copy");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose, 128) == "asynchronous copy");
  // fragments
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + "mov.u32 %r4, 0;" + kWait, 128) ==
          "asynchronous copy");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + "add.s32 %r8, %r4, 1;" + kWait, 128) ==
          "sound");
  // without wgmma.fence since registers were written
  REQUIRE(kind(begin + product(kFragment) + kClose + kWait, 128) == "asynchronous copy");
  REQUIRE(kind(begin + kOpen + "add.f32 %s1, %s2, %s3;" + product(kFragment) + kClose + kWait,
               128) == "asynchronous copy");
  // matrices in shared memory
  REQUIRE(kind(kMatrix + kSetFragment + "bar.sync 0;" + kOpen + product(kFragment) + kClose + kWait,
               128) == "proxy");
  REQUIRE(kind(kMatrix + kSetFragment + "bar.sync 0; fence.proxy.async;" + kOpen +
                   product(kFragment) + kClose + kWait,
               128) == "sound");
  REQUIRE(kind(kMatrix + kSetFragment + "fence.proxy.async;" + kOpen + product(kFragment) + kClose +
                   kWait,
               128) == "race, uninitialised");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + "st.shared.u32 [%r0], %r1;" + kWait,
               128) == "asynchronous copy");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + kWait + "st.shared.u32 [%r0+4], %i;",
               128) == "race");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + kWait +
                   "bar.sync 0; st.shared.u32 [%r0+4], %i;",
               128) == "sound");
  // warps
  REQUIRE(kind(begin + kOpen + "setp.ne.u32 %p2, %w, 3; @%p2 bra L; bra E; L:" +
                   product(kFragment) + kClose + kWait + "E:",
               128) == "warp");
  REQUIRE(kind(begin + kOpen + product(kFragment) + kClose + kWait, 96) == "warp");
}

TEST_CASE("PTX: mbarriers hand on what was done before the arrivals, and no more") {
  const std::string begin =
      "shl.b32 %r0, %i, 2; add.s32 %r0, %r0, %c; add.s32 %r1, %c, 2048; setp.eq.u32 %p0, %i, 0; "
      "@%p0 "
      "mbarrier.init.shared::cta.b64 [%r1], 32; bar.sync 0; setp.ne.u32 %p1, %w, 0; @%p1 bra "
      "SECOND;\n";
  const std::string arrive = "mbarrier.arrive.shared::cta.b64 _, [%r1];\n";
  const std::string write = "st.shared.u32 [%r0], %i;\n";
  const auto wait = [](const std::string& name, const std::string& parity) {
    return name + ": mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], " + parity +
           "; @!%p2 bra " + name + ";\n";
  };
  const auto both = [&](const std::string& first, const std::string& second) {
    return kind(begin + first + "bra END;\nSECOND: sub.s32 %r0, %r0, 128;\n" + second + "END:", 64);
  };
  const std::string load = "ld.shared.u32 %r2, [%r0];\n", store = "st.shared.u32 [%r0], %i;\n";
  REQUIRE(both(write + arrive, wait("A", "0") + load) == "sound");
  REQUIRE(both(write + arrive, load + wait("A", "0")) == "race, uninitialised");
  REQUIRE(both(arrive + write, wait("A", "0") + load) == "race");
  REQUIRE(both(write + arrive + arrive, wait("A", "0")) ==
          "barrier");  // two phases on, it waits anew
  REQUIRE(both(write + arrive, wait("A", "0") + wait("B", "1")) == "barrier");  // never comes
  // the other parity: of the phase before, for which nobody waits, or of the one that never comes
  REQUIRE(both(write + arrive, wait("A", "1") + store) == "barrier, race");
  REQUIRE(both("setp.ne.u32 %p3, %i, 5; @%p3 " + arrive, wait("A", "0")) == "barrier");
  // where none is
  REQUIRE(both("mbarrier.arrive.shared::cta.b64 _, [%r1+8];", "") == "uninitialised");
  REQUIRE(both("mbarrier.arrive.shared::cta.b64 _, [%r1+4];", "") == "misaligned");

  // copies arrive when they are done, and their destination is nobody's until then
  const std::string copy =
      "shl.b32 %r5, %i, 4; add.s32 %r5, %r5, %c; mul.wide.u32 %d1, %i, 16; add.s64 %d1, %d1, %a1; "
      "cp.async.cg.shared.global [%r5], [%d1], 16;\n";
  const std::string copied = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];\n";
  const std::string use = "shl.b32 %r6, %i, 3; add.s32 %r6, %r6, %c; ld.shared.u32 %r7, [%r6];\n";
  REQUIRE(both(copy + copied, wait("A", "0") + use) == "sound");
  REQUIRE(both(copy + copied + use, wait("A", "0")) == "asynchronous copy");
  REQUIRE(both(copy + copied + wait("C", "0") + use, wait("A", "0")) == "sound");
  REQUIRE(both(copy + copied, "") == "asynchronous copy");              // nobody waits
  REQUIRE(both(copy + arrive, wait("A", "0")) == "asynchronous copy");  // nor do the threads
  // such an arrival hands on the copies alone
  REQUIRE(both("st.shared.u32 [%r0+1024], %i;" + copy + copied,
               wait("A", "0") + "ld.shared.u32 %r2, [%r0+1024];") == "race");
}

TEST_CASE("PTX: barriers of a part of the block") {
  const std::string begin = "shl.b32 %r0, %i, 2; add.s32 %r0, %r0, %c; st.shared.u32 [%r0], %i;\n";
  const auto warps = [&](const std::string& zero, const std::string& one, const std::string& two) {
    return kind(
        begin + "setp.eq.u32 %p1, %w, 1; @%p1 bra ONE; setp.eq.u32 %p1, %w, 2; @%p1 bra TWO;\n" +
            zero + "bra END; ONE:" + one + "bra END; TWO:" + two + "END:",
        96);
  };
  const std::string meet = "bar.sync 1, 64;", from_zero = "ld.shared.u32 %r2, [%r0+-128];",
                    from_one = "ld.shared.u32 %r2, [%r0+-128];";
  REQUIRE(warps(meet, meet + from_zero, "") == "sound");
  REQUIRE(warps(meet, from_zero + meet, "") == "race, uninitialised");
  REQUIRE(warps("", meet, meet + from_one) == "sound");
  REQUIRE(warps(meet, meet, from_one) == "race, uninitialised");
  REQUIRE(warps(meet, "", "") == "barrier");
  REQUIRE(warps(meet, "bar.sync 1, 96;", "") == "barrier");
  REQUIRE(warps(meet, meet, meet) == "barrier");
  REQUIRE(warps("mov.u32 %r9, 1; bar.sync %r9, 64;", "bar.sync 1, 64;" + from_zero, "") == "sound");
  REQUIRE(warps("mov.u32 %r9, 16; bar.sync %r9, 64;", "", "") == "barrier");
}

TEST_CASE("PTX: registers of warpgroups") {
  const auto both = [](const std::string& first, const std::string& second) {
    return kind(
        "setp.lt.u32 %p0, %w, 4; @%p0 bra FIRST;\n" + second + "bra END; FIRST:" + first + "END:",
        256);
  };
  const std::string few = "setmaxnreg.dec.sync.aligned.u32 40;",
                    many = "setmaxnreg.inc.sync.aligned.u32 ";
  REQUIRE(both(few, many + "240;") == "sound");
  REQUIRE(both(many + "240;", many + "240;") == "sound");
  REQUIRE(both("", many + "256;") == "sound");
  REQUIRE(kind(many + "136;", 512) == "launch");
  REQUIRE(kind("setp.lt.u32 %p0, %w, 2; @%p0 bra E; " + few + "E:", 128) == "warp");
}

}  // namespace wgmma_test
