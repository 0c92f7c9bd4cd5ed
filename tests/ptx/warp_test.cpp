// SPDX-License-Identifier: Apache-2.0
// What lanes do together: divergence, shuffles, votes, barriers, matrices, memory of every space.
#include <cmath>
#include <random>

#include "device.hpp"
#include "operations.hpp"
#include "support/test.hpp"

namespace warp_test {

using ptx::Fault;
using ptx::FaultKind;

class Words {
 public:
  explicit Words(std::size_t n) : n_(n), a_(ptx::Memory::instance().allocate(4 * n, false)) {}
  explicit Words(const std::vector<std::uint32_t>& values) : Words(values.size()) {
    std::memcpy(a_->data, values.data(), 4 * n_);
    std::memset(a_->set.get(), 1, 4 * n_);
  }
  ~Words() { ptx::Memory::instance().release(a_->data); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(a_->data); }
  std::uint32_t operator[](std::size_t i) const {
    std::uint32_t value;
    std::memcpy(&value, a_->data + 4 * i, 4);
    return value;
  }

 private:
  std::size_t n_;
  ptx::Allocation* a_;
};

/// A kernel with pointers p0 .. p4 in %a0 .. %a4, the thread in %i, and %o: %a0 at word %i.
std::string kernel(const std::string& body, const std::string& before = {}) {
  std::string text =
      ".version 8.0\n.target sm_80\n.address_size 64\n" + before + ".visible .entry k(";
  for (int p = 0; p < 5; ++p) text += (p > 0 ? ", " : "") + (".param .u64 p" + std::to_string(p));
  text +=
      ") {\n.reg .pred %p<16>; .reg .b32 %r<64>; .reg .b64 %d<64>; .reg .f32 %f<64>; .reg .b32 %i;"
      " .reg .b64 %o, %a<5>;\n";
  for (int p = 0; p < 5; ++p)
    text += "ld.param.u64 %a" + std::to_string(p) + ", [p" + std::to_string(p) + "];\n";
  return text + "mov.u32 %i, %tid.x; mul.wide.u32 %o, %i, 4; add.s64 %o, %o, %a0;\n" + body +
         "\nret;\n}\n";
}
void run(const std::string& body, ptx::Dim grid, ptx::Dim block,
         const std::vector<std::uint64_t>& pointers, const std::string& before = {}) {
  std::vector<unsigned char> params(40);
  std::memcpy(params.data(), pointers.data(), 8 * pointers.size());
  ptx::LoadedModule(kernel(body, before)).launch("k", grid, block, params);
}

TEST_CASE("PTX: lanes that go different ways meet again") {
  // Steps of the Collatz sequence, and then a sum over the warp that needs all lanes.
  const Words out(64);
  run("add.s32 %r0, %i, 1; mov.u32 %r1, 0;\n"
      "LOOP: setp.eq.u32 %p0, %r0, 1; @%p0 bra DONE;\n"
      "and.b32 %r2, %r0, 1; setp.eq.s32 %p1, %r2, 0; @%p1 bra EVEN;\n"
      "mad.lo.s32 %r0, %r0, 3, 1; bra NEXT;\n"
      "EVEN: shr.u32 %r0, %r0, 1;\n"
      "NEXT: add.s32 %r1, %r1, 1; bra LOOP;\n"
      "DONE: shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; add.s32 %r1, %r1, %r3; st.global.u32 [%o], "
      "%r1;",
      {}, {64}, {out.address()});
  const auto steps = [](std::uint32_t n) {
    std::uint32_t count = 0;
    for (; n != 1; ++count) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    return count;
  };
  for (std::uint32_t i = 0; i < 64; ++i) REQUIRE(out[i] == steps(i + 1) + steps((i ^ 1) + 1));
}

TEST_CASE("PTX: shuffles of every kind and width") {
  for (const std::uint32_t width : {32u, 16u, 8u, 1u})
    for (const char* const kind : {"up", "down", "bfly", "idx"})
      for (const std::uint32_t b : {0u, 1u, 5u, 31u}) {
        INFO(kind << ", width " << width << ", " << b);
        const Words value(32), inside(32);
        const std::uint32_t c = (32 - width) << 8 | (kind == std::string("up") ? 0 : 31);
        run("add.s32 %r0, %i, 100; shfl.sync." + std::string(kind) + ".b32 %r1|%p0, %r0, " +
                std::to_string(b) + ", " + std::to_string(c) +
                ", -1; st.global.u32 [%o], %r1; selp.u32 %r2, 1, 0, %p0;"
                "mul.wide.u32 %d0, %i, 4; add.s64 %d0, %d0, %a1; st.global.u32 [%d0], %r2;",
            {}, {32}, {value.address(), inside.address()});
        for (int l = 0; l < 32; ++l) {
          // CUDA's words: a lane of the same segment of `width`, or else one's own value
          const int first = l / static_cast<int>(width) * static_cast<int>(width),
                    n = static_cast<int>(b);
          const int last = first + static_cast<int>(width);
          const int from = kind == std::string("up")     ? l - n
                           : kind == std::string("down") ? l + n
                           : kind == std::string("bfly") ? (l ^ n)
                                                         : first + n % static_cast<int>(width);
          // a butterfly may read a lower segment, never a higher one
          const bool in = from < last && (kind == std::string("bfly") || from >= first);
          REQUIRE(value[static_cast<std::size_t>(l)] ==
                  static_cast<std::uint32_t>(100 + (in ? from : l)));
          REQUIRE(inside[static_cast<std::size_t>(l)] == (in ? 1 : 0));
        }
      }
}

TEST_CASE("PTX: votes, of all lanes and of masks that divide them") {
  const Words out(96);
  run("and.b32 %r0, %i, 3; setp.eq.s32 %p0, %r0, 1; vote.sync.ballot.b32 %r1, %p0, -1;\n"
      "st.global.u32 [%o], %r1;\n"
      "setp.lt.u32 %p1, %i, 8; selp.b32 %r2, 0xff, 0xffffff00, %p1;\n"
      "setp.gt.u32 %p2, %i, 9; vote.sync.any.pred %p3, %p2, %r2; vote.sync.all.pred %p4, %p2, "
      "%r2;\n"
      "vote.sync.uni.pred %p5, %p2, %r2;\n"
      "selp.u32 %r3, 1, 0, %p3; selp.u32 %r4, 2, 0, %p4; selp.u32 %r5, 4, 0, %p5; or.b32 %r3, %r3, "
      "%r4; or.b32 %r3, %r3, %r5;\n"
      "st.global.u32 [%o+128], %r3;",
      {}, {32}, {out.address()});
  for (std::size_t i = 0; i < 32; ++i) {
    REQUIRE(out[i] == 0x22222222);
    REQUIRE(out[32 + i] == (i < 8 ? 4u : 1u));
  }
}

TEST_CASE("PTX: barriers order shared memory, and reduce") {
  const Words out(256);
  run("mov.u32 %r0, cells; mad.lo.s32 %r1, %i, 4, %r0; mul.lo.s32 %r2, %i, 3; st.shared.u32 [%r1], "
      "%r2; bar.sync 0;\n"
      "sub.s32 %r3, 127, %i; mad.lo.s32 %r1, %r3, 4, %r0; ld.shared.u32 %r4, [%r1];\n"
      "setp.eq.s32 %p0, %i, 77; bar.red.or.pred %p1, 0, %p0; selp.u32 %r5, 1000, 0, %p1; add.s32 "
      "%r4, %r4, %r5;\n"
      "setp.eq.s32 %p0, %i, 177; bar.red.or.pred %p1, 0, %p0; selp.u32 %r5, 5000, 0, %p1; add.s32 "
      "%r4, %r4, %r5;\n"
      "st.global.u32 [%o], %r4;",
      {}, {128}, {out.address()}, ".shared .align 4 .b8 cells[512];\n");
  for (std::uint32_t i = 0; i < 128; ++i) REQUIRE(out[i] == 3 * (127 - i) + 1000);
}

TEST_CASE("PTX: special registers in three dimensions") {
  const Words out(2 * 3 * 2 * 24);
  run("mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; "
      "mov.u32 %r4, %ntid.y; mov.u32 %r5, %ntid.z;\n"
      "mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %ctaid.z; mov.u32 %r9, "
      "%nctaid.x; mov.u32 %r10, %nctaid.y;\n"
      "mad.lo.s32 %r11, %r2, %r4, %r1; mad.lo.s32 %r11, %r11, %r3, %r0;\n"   // thread of its block
      "mad.lo.s32 %r12, %r8, %r10, %r7; mad.lo.s32 %r12, %r12, %r9, %r6;\n"  // block of the grid
      "mul.lo.s32 %r13, %r3, %r4; mul.lo.s32 %r13, %r13, %r5; mad.lo.s32 %r13, %r12, %r13, %r11;\n"
      "mul.wide.u32 %d0, %r13, 4; add.s64 %d0, %d0, %a0; mov.u32 %r14, %laneid; mad.lo.s32 %r13, "
      "%r13, 100, %r14; st.global.u32 [%d0], %r13;",
      {2, 3, 2}, {4, 3, 2}, {out.address()});
  for (std::uint32_t i = 0; i < 2 * 3 * 2 * 24; ++i) REQUIRE(out[i] == 100 * i + i % 24);
}

TEST_CASE(
    "PTX: loads and stores of vectors, of bytes with sign, of generic addresses, of parameters by "
    "index") {
  std::vector<std::uint32_t> in(32);
  for (std::uint32_t i = 0; i < 32; ++i) in[i] = 0x01020380u + i * 0x1010101u;
  const Words a(in), out(160);
  run(".local .align 8 .b8 depot[16]; setp.gt.u32 %p0, %i, 7; @%p0 ret;\n"
      "mul.wide.u32 %d0, %i, 16; add.s64 %d1, %d0, %a1; ld.global.v4.u32 {%r0, %r1, %r2, %r3}, "
      "[%d1];\n"
      "mov.u32 %r20, cells; cvt.u64.u32 %d2, %r20; cvta.shared.u64 %d3, %d2; add.s64 %d3, %d3, "
      "%d0;\n"
      "st.v4.u32 [%d3], {%r3, %r2, %r1, %r0}; ld.v2.u64 {%d4, %d5}, [%d3]; mov.b64 {%r4, %r5}, "
      "%d4;\n"
      "ld.s8 %r6, [%d3+12]; ld.u8 %r7, [%d3+12]; ld.s16 %r8, [%d3+12];\n"
      "add.s64 %d6, %d0, %a0; st.global.v4.u32 [%d6], {%r4, %r5, %r6, %r7}; st.global.u32 "
      "[%o+512], %r8;\n"
      "and.b32 %r9, %i, 1; mul.wide.u32 %d7, %r9, 8; mov.u64 %d8, p0; add.s64 %d8, %d8, %d7; "
      "ld.param.u64 %d9, [%d8]; st.local.u64 [depot+8], %d9; ld.local.u32 %r10, [depot+8];\n"
      "st.global.u32 [%o+544], %r10;",
      {}, {32}, {out.address(), a.address()}, ".shared .align 16 .b8 cells[128];\n");
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint32_t first = in[4 * i];
    REQUIRE(out[4 * i] == in[4 * i + 3]);
    REQUIRE(out[4 * i + 1] == in[4 * i + 2]);
    REQUIRE(out[4 * i + 2] == static_cast<std::uint32_t>(static_cast<std::int8_t>(first)));
    REQUIRE(out[4 * i + 3] == (first & 0xff));
    REQUIRE(out[128 + i] == static_cast<std::uint32_t>(static_cast<std::int16_t>(first)));
    REQUIRE(out[136 + i] == static_cast<std::uint32_t>(i % 2 == 0 ? out.address() : a.address()));
  }
}

TEST_CASE("PTX: mma and ldmatrix against float64") {
  // The layouts of the PTX ISA are written here once more, element by element.
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const bool bfloat : {false, true})
    for (const bool transposed : {false, true}) {
      const auto narrow = [&](float x) { return bfloat ? ptx::to_bfloat(x) : ptx::to_half(x); };
      const auto widen = [&](std::uint16_t x) {
        return static_cast<double>(bfloat ? ptx::from_bfloat(x) : ptx::from_half(x));
      };
      std::vector<std::vector<std::uint16_t>> a(16, std::vector<std::uint16_t>(16)),
          b(16, std::vector<std::uint16_t>(8));
      std::vector<std::vector<float>> c(16, std::vector<float>(8));
      for (auto& row : a)
        for (auto& x : row) x = narrow(normal(random));
      for (auto& row : b)
        for (auto& x : row) x = narrow(normal(random));
      for (auto& row : c)
        for (auto& x : row) x = normal(random);
      // a in memory by quarters of 8 x 8 (left above, left below, right above, right below), each
      // by rows, or by columns where it is read transposed
      std::vector<std::uint32_t> quarters(128), fragments(32 * 2), sums(32 * 4);
      for (std::size_t m = 0; m < 4; ++m)
        for (std::size_t r = 0; r < 8; ++r)
          for (std::size_t k = 0; k < 8; ++k) {
            const std::size_t at = m * 64 + (transposed ? k * 8 + r : r * 8 + k);
            quarters[at / 2] |= static_cast<std::uint32_t>(a[r + m % 2 * 8][k + m / 2 * 8])
                                << (at % 2 * 16);
          }
      for (std::size_t l = 0; l < 32; ++l) {
        const std::size_t g = l / 4, t = l % 4;
        for (std::size_t f = 0; f < 2; ++f)
          fragments[2 * l + f] =
              static_cast<std::uint32_t>(b[2 * t + 8 * f + 1][g]) << 16 | b[2 * t + 8 * f][g];
        for (std::size_t f = 0; f < 4; ++f) {
          const float x = c[g + f / 2 * 8][2 * t + f % 2];
          std::memcpy(&sums[4 * l + f], &x, 4);
        }
      }
      const Words qa(quarters), fb(fragments), fc(sums), out(128);
      const std::string type = bfloat ? "bf16" : "f16";
      run("mul.wide.u32 %d0, %i, 16; add.s64 %d1, %a1, %d0; mov.u32 %r0, cells; mad.lo.s32 %r1, "
          "%i, 16, %r0;\n"
          "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d1]; st.shared.v4.u32 [%r1], {%r2, %r3, %r4, "
          "%r5}; bar.warp.sync -1;\n"
          "ldmatrix.sync.aligned.m8n8.x4." +
              std::string(transposed ? "trans." : "") +
              "shared.b16 {%r6, %r7, %r8, %r9}, [%r1];\n"
              "mul.wide.u32 %d2, %i, 8; add.s64 %d3, %a2, %d2; ld.global.v2.u32 {%r10, %r11}, "
              "[%d3];\n"
              "add.s64 %d4, %a3, %d0; ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d4];\n"
              "mma.sync.aligned.m16n8k16.row.col.f32." +
              type + "." + type +
              ".f32 {%f0, %f1, %f2, %f3}, {%r6, %r7, %r8, %r9}, {%r10, %r11}, {%f0, %f1, %f2, "
              "%f3};\n"
              "add.s64 %d5, %a0, %d0; st.global.v4.f32 [%d5], {%f0, %f1, %f2, %f3};",
          {}, {32}, {out.address(), qa.address(), fb.address(), fc.address()},
          ".shared .align 16 .b8 cells[512];\n");
      for (std::size_t l = 0; l < 32; ++l)
        for (std::size_t f = 0; f < 4; ++f) {
          const std::size_t row = l / 4 + f / 2 * 8, column = 2 * (l % 4) + f % 2;
          double want = c[row][column];
          for (std::size_t k = 0; k < 16; ++k) want += widen(a[row][k]) * widen(b[k][column]);
          const std::uint32_t bits = out[4 * l + f];
          float got;
          std::memcpy(&got, &bits, 4);
          REQUIRE(std::fabs(static_cast<double>(got) - want) < 1e-5);
        }
    }
}

TEST_CASE("PTX: asynchronous copies arrive in their groups, and are zeros beyond what is read") {
  std::vector<std::uint32_t> in(256);
  for (std::uint32_t i = 0; i < 256; ++i) in[i] = i + 1;
  const Words a(in), out(256);
  run("mul.wide.u32 %d0, %i, 16; add.s64 %d1, %a1, %d0; mov.u32 %r0, cells; mad.lo.s32 %r1, %i, "
      "16, %r0;\n"
      "cp.async.cg.shared.global [%r1], [%d1], 16; cp.async.commit_group;\n"
      "setp.lt.u32 %p0, %i, 8; selp.b32 %r2, 8, 0, %p0; cp.async.cg.shared.global [%r1+512], "
      "[%d1+512], 16, %r2; cp.async.commit_group;\n"
      "cp.async.wait_group 1; ld.shared.u32 %r3, [%r1+4]; st.global.u32 [%o], %r3;\n"
      "cp.async.wait_group 0; ld.shared.u32 %r4, [%r1+516]; st.global.u32 [%o+128], %r4; "
      "ld.shared.u32 %r5, [%r1+524]; st.global.u32 [%o+256], %r5;\n"
      // and 8 bytes behind the first 8 of the same 16
      "cp.async.ca.shared.global [%r1+8], [%d1+256], 8; cp.async.commit_group; "
      "cp.async.wait_group 0;\n"
      "ld.shared.u32 %r6, [%r1+4]; ld.shared.u32 %r7, [%r1+12]; add.u32 %r6, %r6, %r7; "
      "st.global.u32 [%o+384], %r6;",
      {}, {32}, {out.address(), a.address()}, ".shared .align 16 .b8 cells[1024];\n");
  for (std::uint32_t i = 0; i < 32; ++i) {
    REQUIRE(out[i] == 4 * i + 2);
    REQUIRE(out[32 + i] == (i < 8 ? 128 + 4 * i + 2 : 0));
    REQUIRE(out[64 + i] == 0);
    REQUIRE(out[96 + i] == 4 * i + 2 + 64 + 4 * i + 2);
  }
}

TEST_CASE("PTX: atomics of shared and global memory") {
  const Words sum(std::vector<std::uint32_t>{5, 1000, 0, 0xf0, 7, 0x3f800000});
  const Words out(std::vector<std::uint32_t>(256, 1));
  run("atom.global.add.u32 %r0, [%a1], 2; atom.global.min.s32 %r1, [%a1+4], %i; "
      "atom.global.max.u32 %r2, [%a1+8], %i;\n"
      "shl.b32 %r3, 1, %i; atom.global.or.b32 %r4, [%a1+12], %r3; setp.eq.u32 %p0, %i, 9; @%p0 "
      "atom.global.cas.b32 %r5, [%a1+16], 7, 70;\n"
      "red.global.add.f32 [%a1+20], 0f3F800000;\n"
      "mov.u32 %r6, cells; @%p0 st.shared.u32 [%r6], 3; bar.sync 0; atom.shared.add.u32 %r7, "
      "[%r6], 1; bar.sync 0; ld.shared.u32 %r8, [%r6];\n"
      "atom.global.exch.b32 %r9, [%o+512], %i; st.global.u32 [%o], %r8;",
      {}, {64}, {out.address(), sum.address()}, ".shared .align 4 .b8 cells[4];\n");
  REQUIRE(sum[0] == 5 + 128);
  REQUIRE(static_cast<std::int32_t>(sum[1]) == 0);
  REQUIRE(sum[2] == 63);
  REQUIRE(sum[3] == 0xffffffff);
  REQUIRE(sum[4] == 70);
  REQUIRE(sum[5] == 0x42820000);  // 65 in float32
  for (std::size_t i = 0; i < 64; ++i) {
    REQUIRE(out[i] == 67);
    REQUIRE(out[128 + i] == i);
  }
}

TEST_CASE("PTX: a function that is called, with memory of its own") {
  const Words out(32);
  run("{ .reg .b32 %r0; .param .b32 in; add.s32 %r0, %i, 2; st.param.b32 [in+0], %r0; .param .b32 "
      "res;\n"
      "call.uni (res), twice, (in); ld.param.b32 %r0, [res+0]; st.global.u32 [%o], %r0; }\n",
      {}, {32}, {out.address()},
      ".func (.param .b32 r) twice(.param .b32 x);\n"
      ".func (.param .b32 r) twice(.param .b32 x) { .local .align 4 .b8 depot[8]; .reg .b32 %r<4>; "
      ".reg .b64 %SP; .reg .pred %p;\n"
      "mov.u64 %SP, depot; ld.param.u32 %r1, [x]; setp.gt.s32 %p, %r1, 10; @%p bra BIG;\n"
      "st.local.u32 [%SP+4], %r1; ld.local.u32 %r2, [%SP+4]; add.s32 %r2, %r2, %r1; st.param.b32 "
      "[r+0], %r2; ret;\n"
      "BIG: mov.u32 %r2, 1000; st.param.b32 [r], %r2; ret; }\n");
  for (std::uint32_t i = 0; i < 32; ++i) REQUIRE(out[i] == (i + 2 > 10 ? 1000 : 2 * (i + 2)));
}

TEST_CASE("PTX: bank conflicts are counted") {
  const auto passes = [](std::uint32_t stride, const std::string& load) {
    ptx::LoadedModule module(
        kernel("mov.u32 %r0, cells; mad.lo.s32 %r1, %i, " + std::to_string(stride) +
                   ", %r0; mov.u32 %r9, 0;\n" +
                   std::string(load.find("v4") != std::string::npos
                                   ? "st.shared.v4.u32 [%r1], {%r9, %r9, %r9, %r9};"
                                   : "st.shared.u32 [%r1], %r9;"),
               ".shared .align 16 .b8 cells[8192];\n"));
    module.launch("k", {}, {32}, std::vector<unsigned char>(40));
    return std::pair(module.banks().least, module.banks().passes);
  };
  REQUIRE(passes(4, "") == std::pair<std::uint64_t, std::uint64_t>(1, 1));
  REQUIRE(passes(8, "") == std::pair<std::uint64_t, std::uint64_t>(1, 2));
  REQUIRE(passes(128, "") == std::pair<std::uint64_t, std::uint64_t>(1, 32));
  REQUIRE(passes(132, "") == std::pair<std::uint64_t, std::uint64_t>(1, 1));
  REQUIRE(passes(16, "v4") == std::pair<std::uint64_t, std::uint64_t>(4, 4));
  REQUIRE(passes(128, "v4") == std::pair<std::uint64_t, std::uint64_t>(4, 32));
}

}  // namespace warp_test
