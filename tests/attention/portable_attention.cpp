// SPDX-License-Identifier: Apache-2.0
// The attention room alone: compiled with the portable loops only, without OpenMP, and with nothing
// but the standard library (standard_only.hpp). What a program sees that takes the core as headers.
#include <cstdio>
#include <span>
#include <vector>

#include "attend_reference.hpp"
#include "episodic/attention/rotary.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "support/thread_pool.hpp"

namespace {

using namespace episodic;

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

void compare(const AttendShape& shape, const AttendInput& input, const char* what) {
  AttendWorkspace workspace;
  const auto got = testing::run_attend(shape, input, 0.25f, workspace);
  const auto want = testing::attend_reference(shape, input, 0.25);
  expect(testing::difference(got.out, want.out) < 2e-5, what);
  expect(testing::difference(got.lse, want.lse) < 4e-6, what);
  expect(testing::difference(got.segment_mass, want.segment_mass) < 2e-5, what);
  expect(testing::difference(got.column_sums[0], want.column_sums[0]) < 2e-5, what);
}

}  // namespace

int main() {
  expect(cpu::available_kernels(0) == &cpu::kernels(), "there is one table of loops");
  expect(cpu::available_kernels(1) == nullptr, "and no other");
  expect(max_threads() == 1, "without OpenMP and an executor there is one thread");
  testing::ThreadPool pool(2);
  for (std::int64_t n : {1, 3, 70}) {
    testing::Random random(5);
    testing::SegmentStore store;
    const std::int64_t heads = 4, kv_heads = 2, d = 20, first = 60, n_local = 24;
    const std::vector<KvSegment> list = {
        store.make(random, kv_heads, d, 30, 0, Position::fixed, DType::bfloat16, 3, 0.5f),
        store.make(random, kv_heads, d, first + n - 30, 30, Position::relative)};
    const std::span<const KvSegment> lists[] = {list};
    const RotaryTable table = plain_rotary(d, 10000.0);
    RotaryAngles position, fixed;
    position.compute(table, first, n);
    fixed.compute_fixed(table, n_local);
    const auto q = testing::normal(random, n * heads * d);
    std::vector<float> relative(q.size()), same(q.size()), mean(heads * d);
    AttendWorkspace workspace;
    rotate_queries(table, position.rows(), fixed.rows(), {q.data(), {n, heads, d}},
                   {relative.data(), same.data(), mean.data()}, workspace);
    AttendShape shape;
    shape.n_queries = n;
    shape.n_heads = heads;
    shape.n_kv_heads = kv_heads;
    shape.head_dim = d;
    shape.first_position = first;
    shape.n_local = n_local;
    const TensorSizes sizes = shape.of_queries();
    const AttendInput input{{relative.data(), sizes}, {same.data(), sizes}, lists};
    compare(shape, input, "attend alone");
    const ExecutorScope scope(pool);
    compare(shape, input, "attend on the caller's threads");
  }
  try {
    plain_rotary(3, 10000.0);
    expect(false, "an odd rotary_dim is refused");
  } catch (const DataError&) {
  }
  if (failures == 0) std::printf("the attention room works by itself\n");
  return failures == 0 ? 0 : 1;
}
