// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention_plan.hpp"
#include "kernels/attention_problem.hpp"
#include "kernels/batches.hpp"
#include "kernels/relevance.hpp"
#include "support/same_bits.hpp"

namespace attention_test {

using episodic::kernels::AttentionPlan;
using episodic::kernels::plan_attention;

using episodic_test::same_bits;

/// Probabilities meet values as `dtype`, sums are float32.
double tolerance(DType dtype) {
  return dtype == DType::float32 ? 5e-6 : dtype == DType::float16 ? 1.5e-3 : 1.2e-2;
}

void require_near(const Result& got, const Result& expected, DType dtype) {
  REQUIRE(difference(got.out, expected.out) < tolerance(dtype));
  REQUIRE(difference(got.lse, expected.lse) < 2e-5);
  REQUIRE(difference(got.column_sums, expected.column_sums) < 2e-5);
}

void check(const Case& c, DType dtype) {
  const Problem problem(c, dtype, 5);
  const Result got = problem.run();
  INFO("n " << c.n << " group " << c.group << " d " << c.d << " n_local " << c.n_local << " first "
            << c.first_position << " far " << c.far << " dtype " << static_cast<int>(dtype));
  require_near(got, problem.reference(), dtype);
}

/// What rows of codes take more of the workspace.
std::size_t bytes_of_codes(AttentionParams p, std::int64_t max_code_rows) {
  p.max_code_rows = 0;
  const std::size_t without = attention_workspace_bytes(p);
  p.max_code_rows = max_code_rows;
  return attention_workspace_bytes(p) - without;
}

TEST_CASE("attention kernels agree with float64 for every number of queries and group") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 3, 16, 17, 65})
      for (const std::int64_t group : {1, 3, 4}) {
        Case c = of(n, group, 64, 130);
        c.kv_heads = n < 16 ? 2 : 1;
        check(c, dtype);
      }
}

TEST_CASE("attention kernels merge few and many splits of every head size") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t d : {64, 136, 256})
      for (const std::int64_t n : {1, 9}) {
        Case c = of(n, 2, d, 40);
        c.kv_heads = 1;
        c.max_rows = 1200;  // splits are made for as many
        const Problem problem(c, dtype, 9);
        AttentionPlan plan;
        const Result got =
            problem.run([&](const AttentionParams& p) { plan_attention(p, false, plan); });
        REQUIRE(plan.splits > (dtype != DType::float32 && n > 8 && d < 256 ? 4 : 8));
        require_near(got, problem.reference(), dtype);
      }
}

TEST_CASE("attention kernels: the last blocks of few rows merge what a launch of its own merges") {
  EPISODIC_NEEDS_DEVICE();
  struct Shape {
    std::int64_t n, group, kv_heads, d, max_rows, splits, merge_group;
  };
  for (const DType dtype : {DType::float16, DType::bfloat16})
    for (const Shape& s :
         {Shape{1, 2, 1, 64, 700, 12, 12},       // in one level
          Shape{3, 5, 1, 72, 3000, 48, 7},       // in two
          Shape{1, 1, 12, 128, 2750, 22, 5},     // the last group of two
          Shape{1, 16, 1, 256, 1400, 46, 7}}) {  // more than there is room for at once
      Case c = of(s.n, s.group, s.d, 90);
      c.kv_heads = s.kv_heads;
      c.max_rows = s.max_rows;
      c.weights = true;
      const Problem problem(c, dtype, 21);
      AttentionPlan plan;
      std::vector<Result> here;
      episodic_test::in_every_order([&] {
        here.push_back(
            problem.run([&](const AttentionParams& p) { plan_attention(p, false, plan); }));
      });
      INFO("splits " << plan.splits << " group " << plan.merge_group);
      REQUIRE(plan.splits == s.splits);
      REQUIRE(plan.merge_group == s.merge_group);
      const Result apart = problem.run([](AttentionParams& p) { p.maybe_arrived = nullptr; });
      for (const Result& r : here) {
        REQUIRE(same_bits(r.out, here[0].out));
        REQUIRE(same_bits(r.lse, here[0].lse));
        REQUIRE(same_bits(r.column_sums, here[0].column_sums));
        // the same sums in another order, then rounded
        REQUIRE(difference(r.out, apart.out) < tolerance(dtype) / 2);
        REQUIRE(difference(r.lse, apart.lse) < 1e-6);
        REQUIRE(difference(r.column_sums, apart.column_sums) < 1e-6);
      }
      require_near(here[0], problem.reference(), dtype);
    }
}

TEST_CASE("attention kernels: column sums that are deferred become the same bits of relevance") {
  EPISODIC_NEEDS_DEVICE();
  using namespace episodic::kernels;
  for (const DType dtype : kDTypes)
    for (const std::int64_t group : {1, 4, 16})
      for (const std::int64_t first : {3, 100})
        for (const std::int64_t max_rows : {40, 900}) {
          Case c = of(1, group, 64, 40);
          c.max_rows = max_rows;
          c.first_position = first;
          c.far_unseen = first == 3;
          c.soft_cap = group == 4 ? 20.0f : 0.0f;
          const Problem problem(c, dtype, 17);
          const std::int64_t heads = problem.heads(), capacity = c.n_local + 3;
          const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{first});
          std::vector<std::vector<float>> relevance;
          bool defers = false;
          for (const bool deferred : {false, true}) {
            const DeviceArray<ColumnStats> stats(static_cast<std::size_t>(heads));
            const Result r = problem.run([&](AttentionParams& p) {
              defers = defers_column_sums(p);
              if (deferred && defers) p.maybe_column_stats = stats.data();
            });
            const DeviceArray<float> sums(r.column_sums),
                ring(std::vector<float>(static_cast<std::size_t>(capacity * heads), 0.5f));
            const DeviceArray<RelevanceLayer> layers(
                std::vector<RelevanceLayer>{{sums.data(), ring.data(), stats.data()}});
            RelevanceParams p;
            p.n = 1;
            p.n_heads = heads;
            p.n_local = c.n_local;
            p.first_position = position.data();
            p.capacity = capacity;
            p.layers = layers.data();
            p.n_layers = 1;
            p.deferred = deferred && defers;
            REQUIRE(commit_relevance(p, nullptr) == cudaSuccess);
            REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
            relevance.push_back(ring.host());
          }
          REQUIRE(defers == (dtype != DType::float32));
          REQUIRE(same_bits(relevance[0], relevance[1]));
          double total = 0.0;
          for (std::size_t i = 0; i < relevance[0].size(); ++i)
            total += static_cast<double>(relevance[0][i]);
          REQUIRE(total > 0.5 * static_cast<double>((problem.window() - 1) * heads));
        }
}

TEST_CASE("attention's keys are split by the tiles of the kernel that reads them") {
  using namespace episodic::kernels;
  AttentionParams p;
  for (const std::int64_t head_dim : {64, 96, 128, 256})
    for (const std::int64_t kv_heads : {1, 8})
      for (const std::int64_t n : {1, 20, 64, 200})
        for (const std::int64_t max_rows : {0, 700, 6400, 20'000}) {
          p.n_heads = p.n_kv_heads = kv_heads;
          p.head_dim = head_dim;
          p.n_queries = n;
          p.n_local = 4096;
          p.max_rows = max_rows;
          std::size_t bytes[2];
          for (const bool wgmma : {false, true}) {
            AttentionPlan plan;
            REQUIRE(plan_attention(p, wgmma, plan));
            const int dim = plan.dim;
            const std::int64_t keys = plan.few_rows ? mma_tile(dim, true).keys
                                      : wgmma       ? wgmma_tile(dim).keys
                                                    : mma_tile(dim, false).keys;
            const std::int64_t tiles =
                (max_rows + keys - 1) / keys + (plan.window + keys - 1) / keys;
            const std::int64_t each = (tiles + plan.splits - 1) / plan.splits;
            INFO("d " << head_dim << " n " << n << " wgmma " << wgmma << " splits " << plan.splits
                      << " of " << tiles << " tiles");
            REQUIRE((plan.splits == 1 || each >= (plan.few_rows ? 1 : 4)));
            REQUIRE((plan.splits - 1) * each < tiles);  // no split is without
            bytes[wgmma] = plan.bytes;
          }
          REQUIRE(bytes[0] == bytes[1]);
          REQUIRE(bytes[0] == attention_workspace_bytes(p));
        }
}

TEST_CASE("attention of many rows on 9.0 is split where that saves a part of a wave") {
  using namespace episodic::kernels;
  constexpr std::int64_t kAtOnce = 132;
  AttentionParams p;
  p.head_dim = 128;
  p.n_local = 4096;
  p.max_rows = 2176;
  const auto splits = [&](std::int64_t n, std::int64_t heads, std::int64_t kv_heads) {
    p.n_queries = n;
    p.n_heads = heads;
    p.n_kv_heads = kv_heads;
    AttentionPlan plan;
    REQUIRE(plan_attention(p, true, plan));
    const std::int64_t blocks = plan.row_tiles * kv_heads;
    // blocks of one wave are never divided into more than they fill
    if (plan.splits > 1 && blocks * 2 <= kAtOnce) REQUIRE(blocks * plan.splits <= 2 * kAtOnce);
    return plan.splits;
  };
  // 128 blocks of a chunk of LLaMA-3.1-8B: one wave as they are, whose halves would be two
  REQUIRE(splits(512, 32, 8) == 1);
  REQUIRE(splits(528, 32, 8) == 1);  // 136: two waves, and two splits would be three
  REQUIRE(splits(256, 32, 8) == 2);  // 64 blocks
  REQUIRE(splits(268, 32, 8) == 3);  // 72: three splits are two waves of a third
  REQUIRE(splits(128, 32, 8) == 4);  // 32
  REQUIRE(splits(1024, 32, 8) == 1);
}

TEST_CASE("attention kernels: blocks that read many tiles by themselves") {
  EPISODIC_NEEDS_DEVICE();
  // So many kv heads that keys are not split: a block goes several times around its buffers.
  struct Shape {
    std::int64_t d, n_local, far;
    DType dtype;
  };
  for (const Shape& shape :
       {Shape{64, 400, 300, DType::float16}, Shape{256, 150, 70, DType::bfloat16}}) {
    Case c = of(17, 1, shape.d, shape.far);
    c.kv_heads = 133;
    c.n_local = shape.n_local;
    c.first_position = 2000;
    const Problem problem(c, shape.dtype, 12);
    AttentionPlan plan;
    const Result got =
        problem.run([&](const AttentionParams& p) { plan_attention(p, false, plan); });
    REQUIRE(plan.splits == 1);
    require_near(got, problem.reference(), shape.dtype);
  }
}

TEST_CASE("attention kernels: steps of several tiles of queries, in windows longer and shorter") {
  EPISODIC_NEEDS_DEVICE();
  for (const std::int64_t n_local : {400, 70}) {
    Case c = of(420, 1, 64, 20);
    c.kv_heads = 1;
    c.n_local = n_local;
    check(c, DType::float16);
    c = of(210, 1, 256, 20);
    c.kv_heads = 1;
    c.n_local = n_local / 2;
    check(c, DType::bfloat16);
  }
}

TEST_CASE("attention kernels agree with float64 for every head size") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t d : {8, 64, 72, 96, 128, 136, 256})
      for (const std::int64_t n : {2, 20}) {
        Case c = of(n, 2, d, 37);
        c.kv_heads = 1;
        check(c, dtype);
      }
}

TEST_CASE("attention kernels: positions, windows, rings and lists at their edges") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 21}) {
      Case c = of(n, 2, 64, 0);
      c.first_position = 0;
      check(c, dtype);  // no far keys, the sequence's start: plain causal attention
      c.first_position = c.n_local - 3;
      check(c, dtype);  // the window fills during the step
      c = of(n, 2, 64, 50);
      c.first_position = 10'000'000;
      c.spare = 5;
      check(c, dtype);  // far beyond what float32 counts; the ring has room to spare and wraps
      c.n_local = 1;
      check(c, dtype);  // a query sees its own token alone, the step is longer than the window
      c.n_local = 7;
      check(c, dtype);
      c = of(n, 2, 64, 90);
      c.n_local = 130;
      c.first_position = 300;
      c.max_rows = 300;
      c.rotary_dim = 32;
      c.scale = 0.3f;
      check(c, dtype);  // fewer rows than room, a part of the channels rotated
      c.lists = 2;
      c.rotary_dim = 0;
      c.scale = -0.2f;
      check(c, dtype);  // a list for each kv head
      c.kv_heads = 4;
      check(c, dtype);  // and for each pair of them
      c.kv_heads = 2;
      c.max_rows = 300;
      c.far = 0;
      check(c, dtype);  // room for rows and none there
    }
}

TEST_CASE("attention kernels give the same bits in every order, and for every pointer left out") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 40}) {
      Case c = of(n, 3, 64, 130);
      c.kv_heads = n > 1 ? 1 : 2;
      const Problem problem(c, dtype, 8);
      std::vector<Result> results;
      episodic_test::in_every_order([&] { results.push_back(problem.run()); });
      for (const Result& r : results) {
        REQUIRE(same_bits(r.out, results[0].out));
        REQUIRE(same_bits(r.lse, results[0].lse));
        REQUIRE(same_bits(r.column_sums, results[0].column_sums));
      }
      const Result bare = problem.run([](AttentionParams& p) {
        p.maybe_lse = nullptr;
        p.maybe_column_sums = nullptr;
      });
      REQUIRE(same_bits(bare.out, results[0].out));
      const Result columns = problem.run([](AttentionParams& p) { p.maybe_lse = nullptr; });
      REQUIRE(same_bits(columns.column_sums, results[0].column_sums));
    }
}

TEST_CASE("attention kernels read far rows of codes as float64 does, and as if they were wide") {
  EPISODIC_NEEDS_DEVICE();
  std::size_t number = 0;
  for (const DType dtype : kDTypes) {
    const auto check_code = [&](Case c, DType code) {
      c.code = code;
      INFO("n " << c.n << " group " << c.group << " d " << c.d << " far " << c.far << " codes "
                << c.codes << " dtype " << static_cast<int>(dtype) << " code " << name_of(code));
      Problem problem(c, dtype, 21);
      const Result got = problem.run();
      require_near(got, problem.reference(), dtype);
      problem.widen_codes();
      const Result wide = problem.run();
      REQUIRE(same_bits(got.out, wide.out));
      REQUIRE(same_bits(got.lse, wide.lse));
      REQUIRE(same_bits(got.column_sums, wide.column_sums));
    };
    const auto check_codes = [&](const Case& c) {
      for (const DType code :
           episodic_test::in_turn(std::vector{DType::int8, DType::fp8}, number++))
        check_code(c, code);
    };
    for (const std::int64_t n : {1, 3, 21, 70})
      for (const std::int64_t d : {8, 64, 72, 128, 256}) {
        if (n == 70 && d != 64) continue;
        Case c = of(n, n == 70 ? 1 : 2, d, 75);
        c.kv_heads = n == 70 || d == 256 ? 1 : 2;
        c.codes = 50;  // behind rows of dtype, a tile of both among them
        check_codes(c);
        if (d != 72) continue;
        c.codes = 75;
        check_codes(c);
        c.codes = 1;
        check_codes(c);
        c.far = c.codes = 1;
        check_codes(c);
        c.far = 37;
        c.codes = 20;
        c.kv_heads = 4;
        c.lists = 2;  // of two heads each, and of other lengths
        c.max_rows = 300;
        check_codes(c);
        c.kv_heads = 2;
        c.soft_cap = 3.0f;
        check_codes(c);
      }
    // Keys that are split among blocks, some of which have rows of codes alone.
    Case c = of(1, 4, 64, 300);
    c.codes = 260;
    check_codes(c);
    c.n = 40;
    c.kv_heads = 1;
    check_codes(c);
    // What fp8 rounds beyond the largest float16 is that.
    for (const std::int64_t n : {1, 40}) {
      c = of(n, 1, 16, 20);
      c.codes = 12;
      c.large_codes = true;
      check_code(c, DType::fp8);
    }
  }
}

TEST_CASE(
    "attention kernels give the same bits of codes in every order, and widen many rows alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 40}) {
      Case c = of(n, 3, 64, 130);
      c.kv_heads = n > 1 ? 1 : 2;
      c.codes = 90;
      c.code = n > 1 ? DType::fp8 : DType::int8;
      const Problem problem(c, dtype, 8);
      std::vector<Result> results;
      episodic_test::in_every_order([&] { results.push_back(problem.run()); });
      for (const Result& r : results) REQUIRE(same_bits(r.out, results[0].out));
      AttentionParams sizes;
      static_cast<void>(problem.run([&](const AttentionParams& p) { sizes = p; }));
      const bool widens = dtype != DType::float32 && n > 1;
      // rows of all heads, and the list that tells where they are
      const std::int64_t rows = 93 * 2 * c.kv_heads * c.d * 2 + 130 * 32;
      const auto more = static_cast<std::int64_t>(bytes_of_codes(sizes, 93));
      REQUIRE((widens ? more >= rows && more < rows + 512 : more == 0));
    }
}

TEST_CASE("attention kernels take values of another width than keys") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes) {
    const auto check_widths = [&](Case c, std::int64_t value_d) {
      c.value_d = value_d;
      check(c, dtype);
    };
    for (const std::int64_t n : {1, 3, 21})
      for (const auto& [d, e] : {std::pair{64, 8}, std::pair{8, 64}, std::pair{72, 128},
                                 std::pair{192, 128}, std::pair{24, 256}, std::pair{256, 136}}) {
        Case c = of(n, 2, d, 45);
        c.kv_heads = e > 128 || n > 3 ? 1 : 2;
        c.rotary_dim = d >= 64 ? 32 : 0;
        check_widths(c, e);
      }
    Case c = of(70, 1, 40, 60);  // many rows, column sums over tiles
    c.kv_heads = 1;
    c.weights = true;
    check_widths(c, 16);
    check_widths(c, 96);
    c = of(2, 2, 48, 37);
    c.kv_heads = 4;
    c.lists = 2;
    c.spare = 3;
    c.soft_cap = 3.0f;
    check_widths(c, 80);
    check_widths(c, 48);  // said, and equal
    // Many splits, merged by the last blocks and in a launch of their own.
    c = of(1, 4, 32, 300);
    check_widths(c, 56);
    c.value_d = 56;
    const Problem problem(c, dtype, 5);
    const Result merged = problem.run([](AttentionParams& p) { p.maybe_arrived = nullptr; });
    require_near(merged, problem.reference(), dtype);
    // Rows of codes: the same as if they were wide.
    for (const std::int64_t rows : {1, 40})
      for (const std::int64_t e : {16, 72}) {
        c = of(rows, 2, 40, 50);
        c.kv_heads = 2;
        c.codes = 30;
        c.value_d = e;
        c.code = rows == 1 ? DType::int8 : DType::fp8;
        Problem codes(c, dtype, 6);
        const Result got = codes.run();
        require_near(got, codes.reference(), dtype);
        codes.widen_codes();
        REQUIRE(same_bits(got.out, codes.run().out));
      }
  }
}

TEST_CASE("attention kernels: soft caps, and pairs of channels side by side") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 3, 21}) {
      Case c = of(n, 2, 64, 50);
      c.sigma = 4.0f;  // scores that the cap bends
      c.soft_cap = 3.0f;
      check(c, dtype);
      c.scale = -0.3f;
      c.soft_cap = 50.0f;
      check(c, dtype);
      c = of(n, 2, 72, 50);
      c.rotary_dim = 48;
      c.interleaved = true;
      check(c, dtype);
    }
}

TEST_CASE("attention kernels: sinks take their share wherever rows come to their end") {
  EPISODIC_NEEDS_DEVICE();
  int with_one_split = 0, merged = 0;
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 9, 65})  // few rows and many
      for (const std::int64_t max_rows : {8, 1200}) {
        Case c = of(n, 4, 64, 8);
        c.n_local = 20;
        c.max_rows = max_rows;
        c.kv_heads = 2;
        c.sinks = true;
        c.weights = n == 9;
        c.soft_cap = n == 65 ? 20.0f : 0.0f;
        const Problem problem(c, dtype, 41);
        AttentionPlan plan;
        const auto planned = [&](const AttentionParams& p) { plan_attention(p, false, plan); };
        const Result got = problem.run(planned);
        INFO("n " << n << " splits " << plan.splits << " dtype " << static_cast<int>(dtype));
        ++(plan.splits > 1 ? merged : with_one_split);
        const Result expected = problem.reference();
        require_near(got, expected, dtype);
        // what merges splits in a launch of its own meets them too
        const Result apart = problem.run([](AttentionParams& p) { p.maybe_arrived = nullptr; });
        require_near(apart, expected, dtype);
        // a sink of -inf for every head leaves every bit
        Result none[2];
        const DeviceArray<float> nothing(std::vector<float>(
            static_cast<std::size_t>(problem.heads()), -std::numeric_limits<float>::infinity()));
        for (const int i : {0, 1})
          none[i] = problem.run(
              [&](AttentionParams& p) { p.maybe_sink_logits = i == 0 ? nullptr : nothing.data(); });
        REQUIRE(same_bits(none[0].out, none[1].out));
        REQUIRE(same_bits(none[0].lse, none[1].lse));
        REQUIRE(same_bits(none[0].column_sums, none[1].column_sums));
        REQUIRE(difference(none[0].out, expected.out) > 0.1);  // they did something
      }
  REQUIRE(with_one_split >= 3);
  REQUIRE(merged >= 3);
}

TEST_CASE("attention kernels: sinks of the sequences of a batch are their own") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes) {
    Case c = of(1, 4, 64, 40);
    c.max_rows = 900;
    const Problem without(c, dtype, 43);
    c.sinks = true;
    const Problem with(c, dtype, 43);
    const Result alone = without.run(), sunk = with.run();
    Result beside;
    const Result together =
        with.run([](AttentionParams&) {},
                 [&](const AttentionParams& first) {
                   beside = without.run(
                       [](AttentionParams&) {},
                       [&](const AttentionParams& second) {
                         const AttentionParams both[] = {first, second};
                         REQUIRE(segmented_attention_batch(both, 2, nullptr) == cudaSuccess);
                       });
                 });
    REQUIRE(same_bits(together.out, sunk.out));
    REQUIRE(same_bits(together.column_sums, sunk.column_sums));
    REQUIRE(same_bits(beside.out, alone.out));
  }
}

TEST_CASE("attention kernels: probabilities of all keys of all queries sum to one each") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {2, 33}) {
      Case c = of(n, 3, 64, 60);
      c.sigma = 3.0f;
      const Problem problem(c, dtype, 4);
      static_cast<void>(problem.reference());
      const Result got = problem.run();
      for (std::int64_t h = 0; h < problem.heads(); ++h) {
        double total = 0.0;
        for (std::int64_t t = 0; t < problem.window(); ++t)
          total += static_cast<double>(
              got.column_sums[static_cast<std::size_t>(t * problem.heads() + h)]);
        for (std::int64_t i = 0; i < n; ++i)
          total += problem.far_mass[static_cast<std::size_t>(i * problem.heads() + h)];
        REQUIRE(std::abs(total - static_cast<double>(n)) < 2e-5 * static_cast<double>(n));
      }
    }
}

TEST_CASE("attention kernels: NaN or infinite logits stay with their query") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {4, 40})
      for (const float x :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const Case c = of(n, 2, 64, 40);
        Problem problem(c, dtype, 6);
        const Result before = problem.run();
        problem.set_query(2, 1, x);
        const Result after = problem.run();
        for (std::int64_t row = 0; row < n * problem.heads(); ++row) {
          const bool bad = row == 2 * problem.heads() + 1;
          REQUIRE(std::isfinite(after.lse[static_cast<std::size_t>(row)]) == !bad);
          for (std::int64_t e = 0; e < c.d; ++e) {
            const auto at = static_cast<std::size_t>(row * c.d + e);
            REQUIRE((bad ? std::isnan(after.out[at]) : after.out[at] == before.out[at]));
          }
        }
        for (std::int64_t t = 0; t < problem.window(); ++t)
          for (std::int64_t h = 0; h < problem.heads(); ++h) {
            const std::int64_t distance = c.first_position + 2 - problem.first_local() - t;
            const auto at = static_cast<std::size_t>(t * problem.heads() + h);
            if (h == 1 && distance >= 0 && distance < c.n_local)
              REQUIRE(std::isnan(after.column_sums[at]));
            else
              REQUIRE(after.column_sums[at] == before.column_sums[at]);
          }
      }
}

TEST_CASE("attention kernels: far keys that nobody sees") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {3, 70}) {
      Case c = of(n, 1, 64, 80);
      c.far_unseen = true;
      const Problem problem(c, dtype, 2);
      require_near(problem.run(), problem.reference(), dtype);
    }
}

TEST_CASE("attention is planned within the limits of every device, without a device") {
  using namespace episodic::kernels;
  for (const int dim : {64, 96, 128, 256}) {
    for (const bool few : {false, true}) {
      const MmaTile tile = mma_tile(dim, few);
      REQUIRE(mma_shared_bytes(dim, tile) <= kSharedOfEveryDevice);
      // two blocks of the large kernel share a multiprocessor of an H100 (228 KiB, 1 for each)
      REQUIRE(2 * (mma_shared_bytes(dim, tile) + 1024) <= (228 << 10));
      REQUIRE(tile.keys % 16 == 0);
    }
    REQUIRE(column_shared_bytes(dim, column_tile(dim)) <= kSharedOfEveryDevice);
    REQUIRE(float_shared_bytes(dim) <= kSharedOfEveryDevice);
    REQUIRE(float_column_shared_bytes(dim) <= kSharedOfEveryDevice);
  }
  AttentionParams p;
  p.n_heads = 32;
  p.n_kv_heads = 8;
  p.head_dim = 128;
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 4, 5, 64, 512, 4096, 100'000})
      for (const std::int64_t n_local : {1, 4096, 1 << 20})
        for (const std::int64_t max_rows : {0, 2176, 10'000'000}) {
          p.dtype = dtype;
          p.n_queries = n;
          p.n_local = n_local;
          p.max_rows = max_rows;
          AttentionPlan plan;
          REQUIRE(plan_attention(p, false, plan));
          REQUIRE(plan.row_tiles * plan.rows_per_block >= plan.rows);
          REQUIRE((plan.row_tiles - 1) * plan.rows_per_block < plan.rows);
          REQUIRE(plan.splits >= 1);
          REQUIRE(plan.splits <= 65535);
          REQUIRE(plan.few_rows == (dtype != DType::float32 && n <= 4));
          // what is split over blocks is bounded, whatever the sizes
          REQUIRE((plan.splits == 1 || plan.splits * plan.row_tiles * 8 <= 640));
          REQUIRE(plan.bytes == attention_workspace_bytes(p));
          for (const std::size_t at :
               {plan.stats, plan.queries, plan.scores, plan.partial_stats, plan.partial_out})
            REQUIRE((at % 256 == 0 && at < plan.bytes));
        }
}

/// Real models, as far as attention sees them.
struct ModelShape {
  const char* name;
  std::int64_t heads, kv_heads, head_dim;
};
constexpr ModelShape kModels[] = {
    {"Qwen2.5-0.5B", 14, 2, 64},  {"Qwen2.5-1.5B", 12, 2, 128},  {"Qwen2.5-7B", 28, 4, 128},
    {"Llama-3.2-1B", 32, 8, 64},  {"Llama-3.2-3B", 24, 8, 128},  {"Llama-3.1-8B", 32, 8, 128},
    {"Llama-2-13B", 40, 40, 128}, {"Llama-3.1-70B", 64, 8, 128}, {"Mistral-7B", 32, 8, 128},
    {"Phi-3.5-mini", 32, 32, 96}, {"Gemma-2-2B", 8, 4, 256},     {"Gemma-7B", 16, 16, 256}};

TEST_CASE("attention's largest workspace serves every step of real models, and no less would") {
  const episodic_test::DefaultsBehind defaults;
  using namespace episodic::kernels;
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_device_count(0);  // what passes all checks ends at the launch
#endif
  for (const ModelShape& model : kModels)
    for (const std::int64_t chunk : {1, 128, 384, 512, 1024})
      for (const DType dtype : kDTypes) {
        INFO(model.name << ", chunk " << chunk << ", dtype " << static_cast<int>(dtype));
        AttentionParams p;
        p.dtype = dtype;
        p.n_heads = model.heads;
        p.n_kv_heads = model.kv_heads;
        p.head_dim = model.head_dim;
        p.n_local = 4096;
        p.q_row_stride = model.heads * model.head_dim;
        p.ring_capacity = p.n_local + 2 * chunk + 128;
        p.ring_head_stride = p.ring_capacity * model.head_dim;
        const std::int64_t far = 128 + p.ring_capacity + 2048 + chunk + 2 * 128;
        p.max_rows = far;
        const std::int64_t codes = dtype == DType::float16 ? 2048 + chunk + 2 * 128 : 0;
        p.max_code_rows = codes;
        p.n_queries = chunk;
        // never read: the launch comes before
        alignas(256) static unsigned char memory[256];
        p.q = p.local_key = p.local_value = p.out = p.workspace = memory;
        p.first_position = reinterpret_cast<const std::int64_t*>(memory);
        p.rows = reinterpret_cast<const KvRow*>(memory);
        p.n_rows = reinterpret_cast<const std::int32_t*>(memory);
        p.row_scales = reinterpret_cast<const float* const*>(memory);
        const std::size_t largest = largest_attention_workspace_bytes(p);
        p.workspace_bytes = largest;
        std::size_t most = 0;
        std::int64_t refused = 0;
        for (std::int64_t n = 1; n <= chunk; ++n)
          for (const std::int64_t max_rows : {far, std::int64_t{0}}) {
            p.n_queries = n;
            p.max_rows = max_rows;
            p.max_code_rows = std::min(codes, max_rows);
            most = std::max(most, attention_workspace_bytes(p));
#if defined(EPISODIC_EMULATED_CUDA)
            refused += segmented_attention(p, nullptr) != cudaErrorNoDevice;
#endif
          }
        REQUIRE(refused == 0);
        REQUIRE(most == largest);
      }
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_device_count(1);
  static_cast<void>(cudaGetLastError());
#endif
  REQUIRE(largest_attention_workspace_bytes({}) == 0);
}

TEST_CASE("attention kernels: heads of 256 fit into devices with little shared memory") {
  EPISODIC_NEEDS_DEVICE();
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_compute_capability(8, 6);
#endif
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 21}) {
      const Problem problem(of(n, 2, 256, 40), dtype, 3);
      require_near(problem.run(), problem.reference(), dtype);
    }
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_compute_capability(9, 0);
#endif
}

TEST_CASE("attention kernels refuse parameters that make no sense, without a device") {
  alignas(256) static unsigned char memory[1 << 16];
  const auto fresh = [&] {
    AttentionParams p;
    p.n_queries = 2;
    p.n_heads = 4;
    p.n_kv_heads = 2;
    p.head_dim = 64;
    p.n_local = 8;
    p.q_row_stride = 256;
    p.rotary_dim = 32;
    p.ring_capacity = 9;
    p.ring_head_stride = 9 * 64;
    p.q = p.local_key = p.local_value = p.out = memory;
    p.first_position = reinterpret_cast<const std::int64_t*>(memory);
    p.query_cos = p.query_sin = p.fixed_cos = p.fixed_sin = reinterpret_cast<float*>(memory);
    p.rows = reinterpret_cast<const KvRow*>(memory);
    p.n_rows = reinterpret_cast<const std::int32_t*>(memory);
    p.max_rows = 4;
    p.workspace = memory;
    p.workspace_bytes = attention_workspace_bytes(p);
    return p;
  };
  struct Bad {
    const char* what;
    void (*change)(AttentionParams&);
    bool sizes = false;  ///< also attention_workspace_bytes says so
  };
  const Bad bad[] = {
      {"no queries", [](AttentionParams& p) { p.n_queries = 0; }, true},
      {"queries beyond 32 bits", [](AttentionParams& p) { p.n_queries = 1ll << 31; }, true},
      {"rows beyond 32 bits", [](AttentionParams& p) { p.n_queries = 1ll << 29, p.n_heads = 64; },
       true},
      {"no heads", [](AttentionParams& p) { p.n_heads = 0; }, true},
      {"heads of no group", [](AttentionParams& p) { p.n_heads = 5; }, true},
      {"no kv heads", [](AttentionParams& p) { p.n_kv_heads = 0; }, true},
      {"more heads than a grid", [](AttentionParams& p) { p.n_heads = 65536; }, true},
      {"head size 0", [](AttentionParams& p) { p.head_dim = 0; }, true},
      {"head size 20", [](AttentionParams& p) { p.head_dim = 20; }, true},
      {"head size 264", [](AttentionParams& p) { p.head_dim = 264; }, true},
      {"value size 20", [](AttentionParams& p) { p.value_dim = 20; }, true},
      {"value size 264", [](AttentionParams& p) { p.value_dim = 264; }, true},
      {"negative value size", [](AttentionParams& p) { p.value_dim = -8; }, true},
      {"heads of values that overlap", [](AttentionParams& p) { p.value_dim = 72; }},
      {"a stride of values by 4", [](AttentionParams& p) { p.value_head_stride = 9 * 64 + 4; }},
      {"no window", [](AttentionParams& p) { p.n_local = 0; }, true},
      {"a window beyond 32 bits", [](AttentionParams& p) { p.n_local = 1ll << 30; }, true},
      {"negative rows", [](AttentionParams& p) { p.max_rows = -1; }, true},
      {"more rows of codes than rows", [](AttentionParams& p) { p.max_code_rows = 5; }, true},
      {"negative rows of codes", [](AttentionParams& p) { p.max_code_rows = -1; }, true},
      {"no scales", [](AttentionParams& p) { p.max_code_rows = 1; }},
      {"codes of 16 bits", [](AttentionParams& p) { p.code_dtype = DType::float16; }, true},
      {"rows beyond 32 bits", [](AttentionParams& p) { p.max_rows = 1ll << 31; }, true},
      {"int8", [](AttentionParams& p) { p.dtype = DType::int8; }, true},
      {"NaN scale", [](AttentionParams& p) { p.scale = NAN; }},
      {"rotary 8", [](AttentionParams& p) { p.rotary_dim = 8; }},
      {"rotary beyond the head", [](AttentionParams& p) { p.rotary_dim = 80; }},
      {"rotary negative", [](AttentionParams& p) { p.rotary_dim = -16; }},
      {"query stride below a row", [](AttentionParams& p) { p.q_row_stride = 248; }},
      {"query stride 257", [](AttentionParams& p) { p.q_row_stride = 257; }},
      {"a ring too small", [](AttentionParams& p) { p.ring_capacity = 8; }},
      {"ring heads overlap", [](AttentionParams& p) { p.ring_head_stride = 8 * 64; }},
      {"ring stride 577", [](AttentionParams& p) { p.ring_head_stride = 9 * 64 + 1; }},
      {"no q", [](AttentionParams& p) { p.q = nullptr; }},
      {"no position", [](AttentionParams& p) { p.first_position = nullptr; }},
      {"no keys", [](AttentionParams& p) { p.local_key = nullptr; }},
      {"no values", [](AttentionParams& p) { p.local_value = nullptr; }},
      {"no out", [](AttentionParams& p) { p.out = nullptr; }},
      {"no rows", [](AttentionParams& p) { p.rows = nullptr; }},
      {"no count", [](AttentionParams& p) { p.n_rows = nullptr; }},
      {"no query_cos", [](AttentionParams& p) { p.query_cos = nullptr; }},
      {"no query_sin", [](AttentionParams& p) { p.query_sin = nullptr; }},
      {"no fixed_cos", [](AttentionParams& p) { p.fixed_cos = nullptr; }},
      {"no fixed_sin", [](AttentionParams& p) { p.fixed_sin = nullptr; }},
      {"no workspace", [](AttentionParams& p) { p.workspace = nullptr; }},
      {"a small workspace", [](AttentionParams& p) { p.workspace_bytes -= 1; }},
  };
  const cudaError_t found = cudaPeekAtLastError();  // without a driver, that it is missing
  for (const Bad& b : bad) {
    INFO(b.what);
    AttentionParams p = fresh();
    b.change(p);
    REQUIRE(segmented_attention(p, nullptr) == cudaErrorInvalidValue);
    REQUIRE((attention_workspace_bytes(p) == 0) == b.sizes);
    REQUIRE(cudaPeekAtLastError() == found);
  }
  const Bad misaligned[] = {
      {"q", [](AttentionParams& p) { p.q = memory + 8; }},
      {"keys", [](AttentionParams& p) { p.local_key = memory + 8; }},
      {"values", [](AttentionParams& p) { p.local_value = memory + 2; }},
      {"out", [](AttentionParams& p) { p.out = memory + 4; }},
      {"rows", [](AttentionParams& p) { p.rows = reinterpret_cast<KvRow*>(memory + 8); }},
      {"cos", [](AttentionParams& p) { p.query_cos = reinterpret_cast<float*>(memory + 4); }},
      {"workspace", [](AttentionParams& p) { p.workspace = memory + 128; }},
  };
  for (const Bad& b : misaligned) {
    INFO(b.what);
    AttentionParams p = fresh();
    b.change(p);
    REQUIRE(segmented_attention(p, nullptr) == cudaErrorMisalignedAddress);
  }
}

/// What is asked of a call of a batch beyond its case.
enum class Wants { all, out_alone, deferred_sums, merge_apart };

/// The results of all calls in one batch. \param params so far
std::vector<Result> in_batch(const std::vector<Problem>& problems, const std::vector<Wants>& wants,
                             std::vector<AttentionParams>& params, std::int64_t& launches) {
  std::vector<Result> results;
  const std::size_t i = params.size();
  if (i == problems.size()) {
    launches = episodic_test::count_launches([&] {
      REQUIRE(segmented_attention_batch(params.data(), static_cast<std::int64_t>(i), nullptr) ==
              cudaSuccess);
    });
    return results;
  }
  const DeviceArray<episodic::kernels::ColumnStats> stats(
      static_cast<std::size_t>(problems[i].heads()));
  Result own = problems[i].run(
      [&](AttentionParams& p) {
        if (wants[i] == Wants::out_alone) p.maybe_lse = p.maybe_column_sums = nullptr;
        if (wants[i] == Wants::deferred_sums) p.maybe_column_stats = stats.data();
        if (wants[i] == Wants::merge_apart) p.maybe_arrived = nullptr;
      },
      [&](const AttentionParams& p) {
        // What the call alone has written, the batch must write again.
        const std::int64_t outputs = p.n_queries * p.n_heads * p.head_dim;
        REQUIRE(cudaMemset(p.out, 0xff,
                           static_cast<std::size_t>(outputs * episodic::size_of(p.dtype))) ==
                cudaSuccess);
        if (p.maybe_lse)
          REQUIRE(cudaMemset(p.maybe_lse, 0xff,
                             static_cast<std::size_t>(p.n_queries * p.n_heads) * sizeof(float)) ==
                  cudaSuccess);
        if (p.maybe_column_sums)
          REQUIRE(cudaMemset(p.maybe_column_sums, 0xff,
                             static_cast<std::size_t>(problems[i].window() * p.n_heads) *
                                 sizeof(float)) == cudaSuccess);
        params.push_back(p);
        results = in_batch(problems, wants, params, launches);
      });
  if (wants[i] == Wants::out_alone) own.lse = own.column_sums = {};
  if (wants[i] == Wants::deferred_sums)
    for (const episodic::kernels::ColumnStats& s : stats.host())
      own.lse.insert(own.lse.end(), {s.scale, s.max, s.inverse});
  results.insert(results.begin(), own);
  return results;
}

/// Holds a batch to its calls alone. \return its launches
std::int64_t check_batch(const std::vector<Problem>& problems, const std::vector<Wants>& wants) {
  std::vector<AttentionParams> params;
  std::int64_t launches = 0;
  const std::vector<Result> got = in_batch(problems, wants, params, launches);
  REQUIRE(got.size() == problems.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    params.clear();
    std::int64_t unused = 0;
    const Result expected = in_batch({problems[i]}, {wants[i]}, params, unused)[0];
    REQUIRE(same_bits(got[i].out, expected.out));
    REQUIRE(same_bits(got[i].lse, expected.lse));
    REQUIRE(same_bits(got[i].column_sums, expected.column_sums));
  }
  return launches;
}

TEST_CASE("a decoded batch of attention is one launch, with the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  using episodic_test::launches_of;
  for (const DType dtype : kDTypes)
    for (const std::int64_t d : {64, 72, 256})
      for (const std::int64_t n : episodic_test::batch_sizes(episodic::kernels::kMostInLaunch)) {
        if (d != 64 && n > 3) continue;
        // By default batches of many are of one type each, in turn.
        const auto turn = static_cast<std::size_t>(n) % std::size(kDTypes);
        if (!episodic_test::all_cases() && n > 3 && dtype != kDTypes[turn]) continue;
        std::vector<Problem> problems;
        for (std::int64_t i = 0; i < n; ++i) {
          Case c = of(1, 3, d, i % 4 == 1 ? 0 : 9 + 20 * i);  // one remembers nothing
          c.max_rows = i % 4 == 1 ? 5 : c.far + 3;
          c.n_local = 20 + 7 * i;
          c.first_position = i % 3 == 2 ? 4 : 100 + i;
          c.far_unseen = i % 3 == 2;
          c.spare = i % 2;
          c.rotary_dim = i % 2 == 0 ? d / 16 * 16 : 0;
          c.interleaved = i % 3 == 0;
          c.soft_cap = i % 5 == 3 ? 10.0f : 0.0f;
          problems.emplace_back(c, dtype, static_cast<unsigned>(i));
        }
        const bool wide = dtype == DType::float32;
        const auto size = static_cast<std::size_t>(n);
        const std::int64_t launches = check_batch(
            problems, std::vector<Wants>(size, wide ? Wants::out_alone : Wants::deferred_sums));
        INFO("n " << n << " d " << d << " dtype " << static_cast<int>(dtype));
        if (launches >= 0 && !wide)
          REQUIRE(launches == launches_of(n, episodic::kernels::kMostInLaunch));
        check_batch(problems, std::vector<Wants>(size, Wants::all));
      }
}

TEST_CASE("a batch of attention takes calls of every kind together") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : kDTypes) {
    std::vector<Problem> problems;
    std::vector<Wants> wants;
    const auto add = [&](std::int64_t n, std::int64_t far, std::int64_t max_rows,
                         Wants of = Wants::all) {
      Case c = Case();
      c.n = n;
      c.group = 2;
      c.rotary_dim = 64;
      c.far = far;
      c.max_rows = max_rows;
      c.weights = true;
      c.codes = far / 3;
      problems.emplace_back(c, dtype, static_cast<unsigned>(problems.size()));
      wants.push_back(of);
    };
    add(1, 50, 60);
    add(3, 20, 900);  // more splits than a warp merges
    add(40, 30, 30);  // many rows
    add(1, 0, 0);     // no memory
    add(1, 50, 1500, Wants::merge_apart);
    add(2, 90, 100, Wants::merge_apart);
    add(7, 10, 10, Wants::out_alone);
    add(1, 70, 100, dtype == DType::float32 ? Wants::all : Wants::deferred_sums);
    add(19, 40, 40);
    add(1, 33, 900, Wants::merge_apart);
    check_batch(problems, wants);
  }
}

TEST_CASE("a batch of attention names the field that its sequences do not share") {
  const auto refused = [](const char* field, void (*change)(AttentionParams&)) {
    alignas(256) static unsigned char memory[1 << 20];
    AttentionParams p;
    p.dtype = DType::float32;
    p.n_queries = p.n_local = 1;
    p.n_heads = 4;
    p.n_kv_heads = 2;
    p.head_dim = 64;
    p.q = p.local_key = p.local_value = memory;
    p.out = p.workspace = memory;
    p.q_row_stride = 512;
    p.first_position = reinterpret_cast<const std::int64_t*>(memory);
    p.ring_capacity = 4;
    p.ring_head_stride = 1024;
    p.workspace_bytes = sizeof(memory);
    std::vector<AttentionParams> params(3, p);
    const auto named = [&](std::int64_t n) {
      return episodic::kernels::invalid_field(params.data(), n);
    };
    REQUIRE(named(3) == nullptr);
    change(params[2]);
    REQUIRE(named(2) == nullptr);
    REQUIRE(named(3) != nullptr);
    REQUIRE(std::string(named(3)) == field);
    REQUIRE(segmented_attention_batch(params.data(), 3, nullptr) == cudaErrorInvalidValue);
    REQUIRE(std::string(named(-1)) == "n_sequences");
    REQUIRE(segmented_attention_batch(nullptr, 2, nullptr) == cudaErrorInvalidValue);
    REQUIRE(segmented_attention_batch(nullptr, 0, nullptr) == cudaSuccess);
  };
  refused("dtype", [](AttentionParams& p) { p.dtype = DType::bfloat16; });
  refused("n_heads", [](AttentionParams& p) { p.n_heads = 2; });
  refused("value_dim", [](AttentionParams& p) { p.value_dim = 32; });
  refused("n_kv_heads", [](AttentionParams& p) { p.n_kv_heads = 4; });
  refused("head_dim", [](AttentionParams& p) { p.head_dim = 32; });
  refused("out", [](AttentionParams& p) { p.out = nullptr; });
}

}  // namespace attention_test
