// SPDX-License-Identifier: Apache-2.0
// Every fault that was put in on purpose is caught, and nothing is said of its sound twin.
#include "faults.hpp"

#include <cmath>
#include <map>
#include <random>

#include "device.hpp"
#include "episodic/base/dtype.hpp"
#include "support/compare.hpp"
#include "support/test.hpp"

namespace faults_test {

using ptx::FaultKind;
using ptx_faults::Plant;

/// What a planted fault must be caught as; `launch` stands for: by its wrong results. Two where it
/// depends on which warp runs first.
struct Kinds {
  FaultKind first, second;
  Kinds(FaultKind one) : first(one), second(one) {}
  Kinds(FaultKind one, FaultKind other) : first(one), second(other) {}
};
const std::map<Plant, Kinds> kCaught = {
    {Plant::missing_barrier, FaultKind::race},
    {Plant::missing_second_barrier, FaultKind::race},
    {Plant::missing_syncwarp, FaultKind::race},
    {Plant::barrier_in_a_branch, FaultKind::barrier},
    {Plant::shuffle_in_a_branch, FaultKind::warp},
    {Plant::read_past_the_end, FaultKind::out_of_bounds},
    {Plant::write_past_the_end, FaultKind::out_of_bounds},
    {Plant::past_a_shared_array, FaultKind::out_of_bounds},
    {Plant::past_dynamic_memory, FaultKind::out_of_bounds},
    {Plant::unset_shared_word, FaultKind::uninitialised},
    {Plant::unset_global_word, FaultKind::uninitialised},
    {Plant::unaligned_vector, FaultKind::misaligned},
    {Plant::unaligned_absent_copy, FaultKind::misaligned},
    {Plant::copy_not_waited_for, FaultKind::asynchronous},
    {Plant::copy_without_barrier, FaultKind::race},
    {Plant::copy_left_open, FaultKind::asynchronous},
    {Plant::blocks_write_one_word, FaultKind::race},
    {Plant::handover_without_fence, FaultKind::race},
    {Plant::plain_beside_atomic, FaultKind::race},
    {Plant::missing_wait, FaultKind::race},
    {Plant::wait_too_late, FaultKind::race},
    {Plant::write_too_early, FaultKind::race},
    {Plant::nobody_waits, FaultKind::race},
    {Plant::wrong_fragment, FaultKind::launch},
    {Plant::wrong_matrix_rows, FaultKind::launch},
    {Plant::product_not_waited_for, FaultKind::asynchronous},
    {Plant::product_without_fence, FaultKind::asynchronous},
    {Plant::tile_not_published, FaultKind::proxy},
    {Plant::tile_not_waited_for, {FaultKind::asynchronous, FaultKind::proxy}},
    {Plant::tile_released_too_early, {FaultKind::asynchronous, FaultKind::race}},
    {Plant::tile_overwritten, {FaultKind::asynchronous, FaultKind::race}},
    {Plant::barrier_of_too_many, FaultKind::barrier},
    {Plant::wrong_parity, {FaultKind::asynchronous, FaultKind::proxy}},
    {Plant::warp_without_product, FaultKind::warp},
    {Plant::too_few_meet, {FaultKind::barrier, FaultKind::race}},
    {Plant::wrong_matrix_stride, FaultKind::launch},
    {Plant::wrong_swizzle, FaultKind::launch},
    {Plant::marks_not_handed_over, FaultKind::race},
    {Plant::marks_released_too_early, FaultKind::race},
    {Plant::younger_group_not_waited_for, FaultKind::asynchronous},
    {Plant::tile_released_with_older_group, {FaultKind::asynchronous, FaultKind::race}},
};

struct Run {
  cudaError_t error;
  std::vector<ptx::Fault> faults;
  std::vector<float> in, out;
};

Run run(Plant plant, bool with_fault) {
  Run r;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  r.in.resize(256);
  for (float& x : r.in) x = normal(random);
  float *in = nullptr, *out = nullptr;
  std::uint32_t* scratch = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&in), 1024) == cudaSuccess);
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&out), 1024) == cudaSuccess);
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&scratch), 1024) == cudaSuccess);
  // all but the last word of what is read, where that is the fault
  const std::size_t set = plant == Plant::unset_global_word && with_fault ? 63 : 256;
  REQUIRE(cudaMemcpy(in, r.in.data(), 4 * set, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemset(scratch, 0, 1024) == cudaSuccess);
  ptx::set_loud(false);
  r.error = ptx_faults::run(plant, with_fault, in, out, scratch);
  ptx::set_loud(true);
  r.faults = ptx::take_faults();
  static_cast<void>(cudaGetLastError());
  r.out.resize(256);
  REQUIRE(cudaMemcpy(r.out.data(), out, 1024, cudaMemcpyDeviceToHost) == cudaSuccess);
  for (void* const p :
       {static_cast<void*>(in), static_cast<void*>(out), static_cast<void*>(scratch)})
    REQUIRE(cudaFree(p) == cudaSuccess);
  return r;
}

/// Largest difference of a product from float64's; NaN if one is.
double product_error(Plant plant, const Run& r) {
  if (plant >= Plant::product_not_waited_for) {
    std::vector<float> want(256);
    ptx_faults::expect_ring(r.in.data(), want.data());
    double error = 0.0;
    for (std::size_t i = 0; i < 256; ++i)
      error = worse_of(error, static_cast<double>(std::fabs(want[i] - r.out[i])));
    return error;
  }
  const auto half = [](float x) {
    return static_cast<double>(episodic::from_float16(episodic::to_float16(x)));
  };
  double worst = 0.0;
  for (std::size_t row = 0; row < 16; ++row)
    for (std::size_t column = 0; column < 8; ++column) {
      double sum = 0.0;
      for (std::size_t k = 0; k < 16; ++k)
        sum += half(r.in[16 * row + k]) * half(r.in[16 * k + column] - 1.0f);
      worst = worse_of(worst, std::fabs(sum - static_cast<double>(r.out[8 * row + column])));
    }
  return worst;
}

TEST_CASE("PTX: every planted fault is caught, and its sound twin is not") {
  REQUIRE(kCaught.size() == static_cast<std::size_t>(Plant::count));
  for (const auto order : {ptx::Order::forward, ptx::Order::backward}) {
    ptx::set_order(order);
    for (const auto& [plant, kinds] : kCaught) {
      INFO(ptx_faults::name_of(plant));
      const bool by_result = kinds.first == FaultKind::launch;
      const Run sound = run(plant, false);
      if (!sound.faults.empty()) FAIL(sound.faults[0].what());
      REQUIRE(sound.error == cudaSuccess);
      if (by_result || plant >= Plant::product_not_waited_for)
        REQUIRE(product_error(plant, sound) < 1e-4);
      const Run faulty = run(plant, true);
      if (by_result) {
        REQUIRE(product_error(plant, faulty) > 0.1);
        continue;
      }
      REQUIRE(faulty.error != cudaSuccess);
      REQUIRE(faulty.faults.size() == 1);
      INFO(faulty.faults[0].what());
      REQUIRE((faulty.faults[0].kind == kinds.first || faulty.faults[0].kind == kinds.second));
    }
  }
  ptx::set_order(ptx::Order::alternating);
}

TEST_CASE("PTX: launches are held to what an architecture has") {
  float* out = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&out), 4096) == cudaSuccess);
  const ptx::Architecture before = ptx::current_architecture();
  ptx::set_loud(false);
  const auto says = [&](unsigned threads, std::size_t dynamic) {
    const cudaError_t error = ptx_faults::launch_sizes(threads, dynamic, out);
    static_cast<void>(cudaGetLastError());
    static_cast<void>(ptx::take_faults());
    return error;
  };
  REQUIRE(says(128, 1024) == cudaSuccess);
  REQUIRE(says(129, 1024) == cudaErrorInvalidConfiguration);  // more than its launch bounds
  REQUIRE(says(0, 1024) == cudaErrorInvalidConfiguration);
  REQUIRE(says(64, static_cast<std::size_t>(before.shared_of_block - 8192)) == cudaSuccess);
  REQUIRE(says(64, static_cast<std::size_t>(before.shared_of_block - 8192 + 1)) ==
          cudaErrorInvalidValue);
  ptx::set_loud(true);
  REQUIRE(cudaFree(out) == cudaSuccess);
}

TEST_CASE("PTX: a register that was never set decides nothing, goes nowhere, and is no address") {
  const auto kind = [](const std::string& body) {
    ptx::LoadedModule module(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) {\n"
        ".reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %d<4>; ld.param.u64 %d0, [p]; mov.u32 %r0, "
        "%tid.x;\n" +
        body + " ret; }\n");
    ptx::Allocation* const a = ptx::Memory::instance().allocate(4096, false);
    std::vector<unsigned char> params(8);
    std::memcpy(params.data(), &a->data, 8);
    std::string said = "sound";
    try {
      module.launch("k", {}, {32}, params);
    } catch (const ptx::Fault& fault) {
      said = ptx::name_of(fault.kind);
    }
    ptx::Memory::instance().release(a->data);
    return said;
  };
  const std::string odd = "and.b32 %r2, %r0, 1; setp.eq.s32 %p0, %r2, 1; @%p0 mov.u32 %r1, 3;\n";
  REQUIRE(kind(odd + "@%p0 st.global.u32 [%d0], %r1;") == "sound");
  REQUIRE(kind(odd + "st.global.u32 [%d0], %r1;") == "uninitialised");
  REQUIRE(kind(odd + "add.s32 %r3, %r1, %r0; setp.gt.s32 %p1, %r3, 4; @%p1 bra L; L:") ==
          "uninitialised");
  REQUIRE(
      kind(odd + "cvt.u64.u32 %d1, %r1; add.s64 %d1, %d0, %d1; @!%p0 st.global.u32 [%d1], 0;") ==
      "uninitialised");
  REQUIRE(kind(odd + "selp.b32 %r4, %r1, %r0, %p0; mul.wide.u32 %d1, %r0, 4; add.s64 %d1, %d1, "
                     "%d0; st.global.u32 [%d1], %r4;") == "sound");
  REQUIRE(kind(odd + "shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1; @%p0 st.global.u32 [%d0], %r4;") ==
          "uninitialised");
  REQUIRE(kind("ld.global.u32 %r1, [%d0+4092]; ") == "uninitialised");
  REQUIRE(kind("ld.global.u32 %r1, [%d0+4096]; ") == "out of bounds");
  ptx::set_limit(1 << 20);
  REQUIRE(kind("L: bra L; ") == "endless");
  ptx::set_limit(ptx::LaunchOptions{}.instructions);
}

}  // namespace faults_test
