// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attend_stream.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "support/same_bits.hpp"
#include "support/test.hpp"
#include "support/thread_pool.hpp"

namespace episodic {
namespace attend_test {

using testing::Attended;
using testing::for_each_table;
using testing::Random;
using testing::SegmentStore;
using testing::Stream;

void require_close(const Attended& got, const Attended& want) {
  REQUIRE(testing::difference(got.out, want.out) < 2e-5);
  REQUIRE(testing::difference(got.lse, want.lse) < 4e-6);
  REQUIRE(got.column_sums.size() == want.column_sums.size());
  for (std::size_t i = 0; i < got.column_sums.size(); ++i) {
    REQUIRE(testing::difference(got.column_sums[i], want.column_sums[i]) < 2e-5);
  }
  REQUIRE(testing::difference(got.segment_mass, want.segment_mass) < 2e-5);
  REQUIRE(testing::difference(got.weighted_mass, want.weighted_mass) < 4e-6);
}

using episodic_test::same_bits;

bool same_bits(const Attended& a, const Attended& b) {
  if (!same_bits(a.out, b.out) || !same_bits(a.lse, b.lse)) return false;
  if (!same_bits(a.segment_mass, b.segment_mass)) return false;
  if (!same_bits(a.weighted_mass, b.weighted_mass)) return false;
  for (std::size_t i = 0; i < a.column_sums.size(); ++i) {
    if (!same_bits(a.column_sums[i], b.column_sums[i])) return false;
  }
  return a.column_sums.size() == b.column_sums.size();
}

TEST_CASE("attend equals the definition in float64 on random streams") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(7);
    const std::int64_t dims[] = {12, 8, 64, 128, 3, 80, 1, 33};
    const std::int64_t heads[][2] = {{4, 2}, {3, 1}, {2, 2}, {8, 2}, {1, 1}};
    const std::int64_t counts[] = {1, 2, 3, 7, 16, 17, 33, 70, 150};
    for (int i = 0; i < 90; ++i) {
      const std::int64_t n = counts[i % 9], d = dims[i % 8];
      const auto& h = heads[i % 5];
      const std::int64_t n_local = testing::uniform(random, 1, 120);  // often less than n
      const std::int64_t first = i % 6 == 0 ? 0 : testing::uniform(random, 0, 400);
      Stream s(random, n, h[0], h[1], d, first, n_local, i % 4 == 1 ? h[1] : 1, DType::float32,
               i % 7 == 0 ? 4.0f : 1.0f);
      if (i % 10 == 3) s.shape.scale = 0.7f;
      if (i % 5 == 2) s.shape.softcap = i % 2 == 0 ? 50.0f : 1.5f;
      INFO("n " << n << " d " << d << " heads " << h[0] << '/' << h[1] << " n_local " << n_local
                << " first " << first);
      require_close(testing::run_attend(s.shape, s.input, 0.25f, workspace),
                    testing::attend_reference(s.shape, s.input, 0.25));
    }
  });
}

TEST_CASE("a list for each group of kv heads, with column sums of one window or of one each") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(31);
    const std::int64_t heads[][3] = {{8, 4, 2}, {6, 6, 3}, {12, 6, 2}, {4, 4, 4}};  // H, G, lists
    int i = 0;
    for (std::int64_t n : {1, 3, 20, 75}) {
      for (const auto& h : heads) {
        for (DType dtype : {DType::float32, DType::int8, DType::fp8}) {
          INFO("n " << n << " heads " << h[0] << '/' << h[1] << " lists " << h[2]);
          Stream s(random, n, h[0], h[1], i % 2 == 0 ? 24 : 7, 150, 40, h[2], dtype);
          using Sets = testing::ColumnSets;
          for (Sets sets : {Sets::none, Sets::shared, Sets::each_list}) {
            require_close(testing::run_attend(s.shape, s.input, 0.25f, workspace, sets),
                          testing::attend_reference(s.shape, s.input, 0.25, sets));
          }
          // windows that differ: only the sums of each list fit
          s.lists[1].push_back(s.lists[1][s.lists[1].size() - 2]);
          s.lists[1].back().length /= 2;
          s.lists[1].erase(s.lists[1].end() - 3);  // the window's newest keys
          s.spans.assign(s.lists.begin(), s.lists.end());
          s.input.segments = s.spans;
          require_close(testing::run_attend(s.shape, s.input, 0.25f, workspace, Sets::each_list),
                        testing::attend_reference(s.shape, s.input, 0.25, Sets::each_list));
          REQUIRE_THROWS_AS(testing::run_attend(s.shape, s.input, 0.25f, workspace, Sets::shared),
                            DataError);
          ++i;
        }
      }
    }
  });
}

TEST_CASE("segment masses add up to one for each query and head") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(32);
    for (std::int64_t n : {1, 4, 90}) {
      Stream s(random, n, 4, 2, 16, 300, 64);
      const Attended got = testing::run_attend(s.shape, s.input, 0.0f, workspace);
      for (std::int64_t h = 0; h < 4; ++h) {
        double sum = 0.0;
        for (std::size_t i = 0; i < s.lists[0].size(); ++i) sum += got.segment_mass[4 * i + h];
        REQUIRE(testing::near(sum, static_cast<double>(n), 1e-6));
      }
      for (KvSegment& x : s.lists[0]) x.value_weight = 0.5f;
      for (float x : testing::run_attend(s.shape, s.input, 0.0f, workspace).weighted_mass) {
        REQUIRE(testing::near(x, 0.5, 1e-6));
      }
    }
  });
}

TEST_CASE("attend reads segments of every stored dtype, alone and beside float32") {
  AttendWorkspace workspace;
  const std::int64_t heads[][2] = {{4, 2}, {1, 1}, {8, 1}, {3, 3}};
  for (const DType dtype : {DType::bfloat16, DType::float16, DType::int8, DType::fp8}) {
    for_each_table([&] {
      Random random(8);
      int i = 0;
      for (std::int64_t n : {1, 3, 17, 40}) {
        for (std::int64_t d : {1, 3, 12, 33, 64, 80, 128}) {
          const auto& h = heads[i % 4];
          const DType local = i % 3 == 0 ? DType::float32 : dtype;
          Stream s(random, n, h[0], h[1], d, 200, 60, i % 5 == 1 ? h[1] : 1, dtype, 1.0f, local);
          INFO(name_of(dtype) << " beside " << name_of(local) << " n " << n << " d " << d
                              << " heads " << h[0] << '/' << h[1]);
          if (i % 4 == 2) s.shape.softcap = 2.0f;
          require_close(testing::run_attend(s.shape, s.input, 0.25f, workspace),
                        testing::attend_reference(s.shape, s.input, 0.25));
          ++i;
        }
      }
    });
  }
}

TEST_CASE("attend takes queries out of a fused projection and writes outputs of any dtype") {
  AttendWorkspace workspace;
  const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16};
  const std::int64_t heads[][2] = {{4, 2}, {1, 1}, {6, 3}};
  for_each_table([&] {
    Random random(41);
    int i = 0;
    for (std::int64_t n : {1, 3, 45}) {
      for (DType q_dtype : dtypes) {
        for (DType out_dtype : dtypes) {
          const std::int64_t H = heads[i % 3][0], G = heads[i % 3][1], d = i % 2 == 0 ? 16 : 5;
          Stream s(random, n, H, G, d, 200, 60);
          INFO(name_of(q_dtype) << " to " << name_of(out_dtype) << " n " << n << " d " << d);
          testing::RowStore fused, by_head, outputs;
          s.input.q_relative = fused.random(random, n, H, d, q_dtype, (H + 2 * G) * d + 3, d);
          s.input.q_fixed = by_head.random(random, n, H, d, q_dtype, d + 1, n * (d + 1));
          Attended want = testing::attend_reference(s.shape, s.input, 0.0);
          const std::int64_t row = i % 4 == 0 ? d : H * d + 2, head = i % 4 == 0 ? n * d + 1 : d;
          const std::int64_t size = (n - 1) * row + (H - 1) * head + d;
          AttendOutput output;
          output.out = {outputs.make(size, out_dtype, 7.0f), out_dtype, {n, H, d}, {row, head}};
          attend(s.shape, s.input, output, workspace);
          std::int64_t untouched = size;
          for (std::int64_t t = 0; t < n; ++t) {
            for (std::int64_t h = 0; h < H; ++h) {
              for (std::int64_t c = 0; c < d; ++c, --untouched) {
                const double got = testing::element(output.out, t, h, c);
                const double is = want.out[(t * H + h) * d + c];
                REQUIRE(std::abs(got - is) <
                        2e-5 * (1 + std::abs(is)) + testing::rounding_of(out_dtype) * std::abs(is));
              }
            }
          }
          std::int64_t sevens = 0;
          for (std::int64_t at = 0; at < size; ++at) {
            const TensorView all(output.out.data, out_dtype, {size, 1, 1});
            sevens += testing::element(all, at, 0, 0) == 7.0;
          }
          REQUIRE(sevens == untouched);
          ++i;
        }
      }
    }
  });
}

// A model's own sliding window, over rings that hold NaN wherever no query may look.
TEST_CASE("without a memory attend is causal attention over a sliding window, or over everything") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(42);
    for (std::int64_t n : {1, 5, 64}) {
      for (std::int64_t window : {std::int64_t{1}, std::int64_t{12}, std::int64_t{90},
                                  std::numeric_limits<std::int64_t>::max()}) {
        const std::int64_t H = 4, G = 2, d = 8, first = 137, end = first + n;
        const bool full = window > end;
        const std::int64_t capacity = full ? end + 9 : window + n + 3;
        const auto slot = [&](std::int64_t t) { return t % capacity; };
        std::vector<float> keys(static_cast<std::size_t>(G * capacity * d), kNan), values = keys;
        const std::int64_t oldest = full ? 0 : std::max<std::int64_t>(0, first - window + 1);
        for (std::int64_t g = 0; g < G; ++g) {
          for (std::int64_t t = oldest; t < end; ++t) {
            for (std::vector<float>* x : {&keys, &values}) {
              const auto row = testing::normal(random, d);
              std::copy(row.begin(), row.end(), x->begin() + (g * capacity + slot(t)) * d);
            }
          }
        }
        // all the ring's tokens, two segments where it wraps; those before `oldest` hold NaN
        std::vector<KvSegment> ring;
        for (std::int64_t t = full ? 0 : std::max<std::int64_t>(0, end - capacity); t < end;) {
          KvSegment s;
          s.key = keys.data() + slot(t) * d;
          s.value = values.data() + slot(t) * d;
          s.length = std::min(end - t, capacity - slot(t));
          s.first_token = t;
          s.head_stride = capacity * d;
          s.row_stride = d;
          s.position = Position::relative;
          ring.push_back(s);
          t += s.length;
        }
        const auto q = testing::normal(random, n * H * d);
        const AttendShape shape{.n_queries = n,
                                .n_heads = H,
                                .n_kv_heads = G,
                                .head_dim = d,
                                .first_position = first,
                                .n_local = window};
        const std::span<const KvSegment> lists[] = {ring};
        std::vector<float> out(q.size(), kNan);
        AttendOutput output;
        output.out = {out.data(), shape.of_outputs()};
        attend(shape, {{q.data(), shape.of_queries()}, {}, lists}, output, workspace);
        INFO("n " << n << " window " << window);
        for (std::int64_t i = 0; i < n; ++i) {
          for (std::int64_t h = 0; h < H; ++h) {
            const std::int64_t p = first + i, g = h / 2;
            const std::int64_t begin = full ? 0 : std::max<std::int64_t>(0, p - window + 1);
            double sum = 0.0;
            std::vector<double> want(d);
            for (std::int64_t t = begin; t <= p; ++t) {
              const auto at = static_cast<std::size_t>((g * capacity + slot(t)) * d);
              double dot = 0.0;
              for (std::int64_t c = 0; c < d; ++c) {
                dot += static_cast<double>(q[(i * H + h) * d + c]) * keys[at + c];
              }
              const double e = std::exp(dot / std::sqrt(8.0));
              sum += e;
              for (std::int64_t c = 0; c < d; ++c) want[c] += e * values[at + c];
            }
            for (std::int64_t c = 0; c < d; ++c) {
              const double is = want[c] / sum;
              REQUIRE(std::abs(out[(i * H + h) * d + c] - is) < 1e-5 * (1 + std::abs(is)));
            }
          }
        }
      }
    }
  });
}

TEST_CASE("attend gives the same bits on any executor") {
  testing::ThreadPool pool(3);
  testing::BackwardExecutor backward(4);
  Random random(43);
  Stream many(random, 200, 8, 4, 64, 700, 512, 2);
  Stream few(random, 1, 8, 4, 64, 3000, 2000, 2);
  for (const Stream* s : {&many, &few}) {
    AttendWorkspace workspace;
    const Attended want = testing::run_attend(s->shape, s->input, 0.5f, workspace);
    for (Executor* executor : {static_cast<Executor*>(&pool), static_cast<Executor*>(&backward)}) {
      const ExecutorScope scope(*executor);
      REQUIRE(same_bits(want, testing::run_attend(s->shape, s->input, 0.5f, workspace)));
    }
  }
  REQUIRE(pool.loops() > 2);
  REQUIRE(backward.tasks() > 2);
}

TEST_CASE("attend takes values of another width than keys") {
  AttendWorkspace workspace;
  constexpr std::int64_t kWidths[][2] = {{16, 8},    {8, 16}, {128, 64}, {64, 256},
                                         {192, 128}, {7, 33}, {33, 1},   {80, 96}};
  const std::int64_t heads[][3] = {{4, 2, 1}, {1, 1, 1}, {8, 2, 2}, {3, 3, 1}};
  const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::int8, DType::fp8};
  for_each_table([&] {
    Random random(17);
    int i = 0;
    for (std::int64_t n : {1, 3, 17, 70}) {
      for (const auto& width : kWidths) {
        const auto& h = heads[i % 4];
        const DType dtype = dtypes[i % 5];
        Stream s(random, n, h[0], h[1], width[0], 200, 60, h[2], dtype, 1.0f, DType::float32,
                 width[1]);
        INFO(name_of(dtype) << " n " << n << " keys of " << width[0] << ", values of " << width[1]);
        if (i % 4 == 2) s.shape.softcap = 2.0f;
        require_close(testing::run_attend(s.shape, s.input, 0.25f, workspace),
                      testing::attend_reference(s.shape, s.input, 0.25));
        // outputs of 16 bits, which are made elsewhere first
        std::vector<std::uint16_t> out(static_cast<std::size_t>(n * h[0] * width[1]) + 1, 7);
        AttendOutput output;
        output.out = {out.data(), DType::bfloat16, s.shape.of_outputs()};
        attend(s.shape, s.input, output, workspace);
        const Attended want = testing::attend_reference(s.shape, s.input, 0.0);
        for (std::size_t at = 0; at + 1 < out.size(); ++at) {
          const float got = from_bfloat16(out[at]);
          if (!(std::abs(got - want.out[at]) <= 0.004 * std::abs(want.out[at]) + 1e-5)) FAIL(at);
        }
        REQUIRE(out.back() == 7);
        ++i;
      }
    }
  });
}

TEST_CASE("a head of codes of scale 0 stands for zeros") {
  AttendWorkspace workspace;
  const DType dtype = GENERATE(DType::int8, DType::fp8);
  for_each_table([&] {
    Random random(16);
    for (std::int64_t n : {1, 40}) {
      Stream s(random, n, 2, 2, 16, 90, 8, 1, dtype);
      const float zeros[2] = {0.0f, 0.0f};
      for (KvSegment& x : s.lists[0]) {
        if (x.dtype == dtype) x.key_scale = x.value_scale = zeros;
      }
      const Attended got = testing::run_attend(s.shape, s.input, 0.0f, workspace);
      require_close(got, testing::attend_reference(s.shape, s.input, 0.0));
      REQUIRE(testing::difference(got.out, std::vector<float>(got.out.size())) > 0.0);
    }
  });
}

TEST_CASE("attend over several tiles and blocks of keys") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(9);
    Stream s(random, 300, 4, 2, 16, 500, 256);
    require_close(testing::run_attend(s.shape, s.input, 1.0f, workspace),
                  testing::attend_reference(s.shape, s.input, 1.0));
    Stream few(random, 2, 4, 2, 16, 1500, 900);
    require_close(testing::run_attend(few.shape, few.input, 1.0f, workspace),
                  testing::attend_reference(few.shape, few.input, 1.0));
  });
}

TEST_CASE("a token that crosses the window's edge is seen once by each query") {
  // all scores are 0 and all values 1, so lse is log(number of keys seen)
  AttendWorkspace workspace;
  const std::int64_t n = 40, n_local = 24, d = 8, total = 100, first = 60;
  const std::vector<float> ones(total * d, 1.0f), zeros(n * d, 0.0f);
  for_each_table([&] {
    for (std::int64_t rows : {n, std::int64_t{5}}) {
      const AttendShape shape{.n_queries = rows,
                              .n_heads = 1,
                              .n_kv_heads = 1,
                              .head_dim = d,
                              .first_position = first,
                              .n_local = n_local};
      KvSegment all{ones.data(), ones.data(), total, 0, 0, d};
      KvSegment local = all;
      local.position = Position::relative;
      const std::vector<KvSegment> list = {all, local};
      const std::span<const KvSegment> spans[] = {list};
      const TensorView queries(zeros.data(), shape.of_queries());
      const Attended got = testing::run_attend(shape, {queries, queries, spans}, 0.0f, workspace);
      double received = 0.0;
      for (float x : got.column_sums[0]) received += x;
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto seen = static_cast<double>(first + i + 1);
        REQUIRE(testing::near(got.lse[i], std::log(seen), 1e-6));
        REQUIRE(testing::near(got.out[i * d], 1.0, 1e-6));
        received -= n_local / seen;
      }
      REQUIRE(std::abs(received) < 1e-5);
    }
  });
}

TEST_CASE("a query that sees no key gives zeros and minus infinity") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(10);
    for (std::int64_t n : {1, 2, 50}) {
      SegmentStore store;
      const AttendShape shape{.n_queries = n,
                              .n_heads = 2,
                              .n_kv_heads = 2,
                              .head_dim = 8,
                              .first_position = 100,
                              .n_local = 10};
      const auto q = testing::normal(random, n * 2 * 8);
      // only the last query sees the one fixed token; then nothing at all
      std::vector<KvSegment> list = {
          store.make(random, 2, 8, 1, 100 + n - 1 - 10, Position::fixed)};
      const std::span<const KvSegment> one[] = {list};
      const AttendInput input{{q.data(), shape.of_queries()}, {q.data(), shape.of_queries()}, one};
      const Attended got = testing::run_attend(shape, input, 0.0f, workspace);
      require_close(got, testing::attend_reference(shape, input, 0.0));
      if (n > 1) {
        REQUIRE(got.out[0] == 0.0f);
        REQUIRE(got.lse[0] == -std::numeric_limits<float>::infinity());
      }
      for (bool zero_length : {false, true}) {
        list.clear();
        if (zero_length) list.resize(2);
        const std::span<const KvSegment> none[] = {list};
        const Attended empty = testing::run_attend(shape, {{}, {}, none}, 0.0f, workspace);
        for (float x : empty.out) REQUIRE(x == 0.0f);
        for (float x : empty.lse) REQUIRE(x == -std::numeric_limits<float>::infinity());
      }
    }
  });
}

TEST_CASE("attend gives the same bits for any number of threads and from run to run") {
  const int threads = max_threads();
  for_each_table([&] {
    Random random(11);
    Stream many(random, 200, 8, 4, 64, 700, 512);
    Stream few(random, 1, 8, 4, 64, 3000, 2000);
    for (const Stream* s : {&many, &few}) {
      AttendWorkspace workspace, other;
      set_max_threads(1);
      const Attended one = testing::run_attend(s->shape, s->input, 0.5f, workspace);
      for (int n : {1, 2, 3}) {
        set_max_threads(n);
        REQUIRE(same_bits(one, testing::run_attend(s->shape, s->input, 0.5f, workspace)));
        REQUIRE(same_bits(one, testing::run_attend(s->shape, s->input, 0.5f, other)));
      }
    }
  });
  set_max_threads(threads);
}

TEST_CASE("attend without column sums, masses or lse gives the same output") {
  Random random(12);
  AttendWorkspace workspace;
  for (std::int64_t n : {1, 60}) {
    Stream s(random, n, 4, 2, 32, 150, 64);
    const Attended all = testing::run_attend(s.shape, s.input, 0.0f, workspace);
    const Attended bare =
        testing::run_attend(s.shape, s.input, 0.0f, workspace, testing::ColumnSets::none, false);
    REQUIRE(same_bits(all.out, bare.out));
    std::vector<float> out(all.out.size());
    AttendOutput only_out;
    only_out.out = {out.data(), s.shape.of_outputs()};
    attend(s.shape, s.input, only_out, workspace);
    REQUIRE(same_bits(all.out, out));
  }
}

TEST_CASE("attend does not allocate once it has grown") {
  Random random(13);
  AttendWorkspace workspace;
  Stream s(random, 60, 4, 2, 32, 150, 64);
  testing::run_attend(s.shape, s.input, 0.0f, workspace);
  const std::int64_t bytes = workspace.bytes();
  const float* data = workspace.floats(1);
  REQUIRE(reinterpret_cast<std::uintptr_t>(data) % 64 == 0);
  testing::run_attend(s.shape, s.input, 0.0f, workspace);
  REQUIRE(workspace.bytes() == bytes);
  REQUIRE(workspace.floats(1) == data);
  AttendWorkspace moved = std::move(workspace);
  REQUIRE(moved.floats(1) == data);
}

TEST_CASE("NaN in a key reaches the output") {
  Random random(14);
  AttendWorkspace workspace;
  for_each_table([&] {
    for (std::int64_t n : {1, 40}) {
      Stream s(random, n, 2, 1, 16, 0, 64);
      s.store.floats[4]->at(0) = std::numeric_limits<float>::quiet_NaN();  // key of token 0
      const Attended got = testing::run_attend(s.shape, s.input, 0.0f, workspace);
      REQUIRE(std::isnan(got.out[0]));
    }
  });
}

TEST_CASE("attend refuses wrong shapes by name") {
  Random random(15);
  AttendWorkspace workspace;
  const auto fails = [&](const std::string& word, const auto& change) {
    INFO(word);
    Stream s(random, 3, 4, 2, 8, 40, 16);
    std::vector<float> out(3 * 4 * 8), column(60 * 4);
    std::vector<float*> columns;
    AttendOutput output;
    output.out = {out.data(), s.shape.of_outputs()};
    change(s, output, columns);
    output.column_sums = columns;
    std::string message;
    try {
      attend(s.shape, s.input, output, workspace);
    } catch (const DataError& e) {
      message = e.what();
    }
    REQUIRE(message.find(word) != std::string::npos);
  };
  using Columns = std::vector<float*>;
  fails("n_queries", [](Stream& s, AttendOutput&, Columns&) { s.shape.n_queries = 0; });
  fails("n_heads", [](Stream& s, AttendOutput&, Columns&) { s.shape.n_heads = 3; });
  fails("n_kv_heads", [](Stream& s, AttendOutput&, Columns&) { s.shape.n_kv_heads = 0; });
  fails("head_dim", [](Stream& s, AttendOutput&, Columns&) { s.shape.head_dim = -8; });
  fails("n_local", [](Stream& s, AttendOutput&, Columns&) { s.shape.n_local = 0; });
  fails("first_position", [](Stream& s, AttendOutput&, Columns&) { s.shape.first_position = -1; });
  fails("scale", [](Stream& s, AttendOutput&, Columns&) { s.shape.scale = NAN; });
  fails("softcap", [](Stream& s, AttendOutput&, Columns&) { s.shape.softcap = -1.0f; });
  fails("softcap", [](Stream& s, AttendOutput&, Columns&) { s.shape.softcap = NAN; });
  fails("out is null", [](Stream&, AttendOutput& o, Columns&) { o.out.data = nullptr; });
  fails("out is int8", [](Stream&, AttendOutput& o, Columns&) { o.out.dtype = DType::int8; });
  fails("overlap", [](Stream&, AttendOutput& o, Columns&) { o.out.strides = {31, 8}; });
  fails("q_relative is int8",
        [](Stream& s, AttendOutput&, Columns&) { s.input.q_relative.dtype = DType::int8; });
  fails("q_fixed is fp8",
        [](Stream& s, AttendOutput&, Columns&) { s.input.q_fixed.dtype = DType::fp8; });
  fails("q_fixed has row stride -8",
        [](Stream& s, AttendOutput&, Columns&) { s.input.q_fixed.strides.row = -8; });
  fails("q_fixed has row stride 32 and head stride -1",
        [](Stream& s, AttendOutput&, Columns&) { s.input.q_fixed.strides.head = -1; });
  fails("beyond all memory", [](Stream& s, AttendOutput&, Columns&) {
    s.input.q_fixed.strides.row = std::int64_t{1} << 62;
  });
  fails("beyond all memory",
        [](Stream&, AttendOutput& o, Columns&) { o.out.strides.head = std::int64_t{1} << 60; });
  fails("q_relative is [2, 4, 8], must be [3, 4, 8]",
        [](Stream& s, AttendOutput&, Columns&) { s.input.q_relative.sizes.n = 2; });
  fails("q_fixed is [3, 2, 8], must be [3, 4, 8]",
        [](Stream& s, AttendOutput&, Columns&) { s.input.q_fixed.sizes.heads = 2; });
  fails("out is [3, 4, 9], must be [3, 4, 8]",
        [](Stream&, AttendOutput& o, Columns&) { o.out.sizes.dim = 9; });
  fails("q_relative lies in CUDA memory",
        [](Stream& s, AttendOutput&, Columns&) { s.input.q_relative.memory = MemoryKind::cuda; });
  fails("out lies in CUDA memory",
        [](Stream&, AttendOutput& o, Columns&) { o.out.memory = MemoryKind::cuda; });
  fails("q_fixed", [](Stream& s, AttendOutput&, Columns&) { s.input.q_fixed = {}; });
  fails("q_relative", [](Stream& s, AttendOutput&, Columns&) { s.input.q_relative = {}; });
  fails("segment lists", [](Stream& s, AttendOutput&, Columns&) { s.input.segments = {}; });
  static float scale[2];
  fails("value_scale", [](Stream& s, AttendOutput&, Columns&) {
    s.lists[0][0].dtype = DType::int8;
    s.lists[0][0].key_scale = scale;
  });
  fails("key_scale", [](Stream& s, AttendOutput&, Columns&) {
    s.lists[0][0].dtype = DType::int8;
    s.lists[0][0].value_scale = scale;
  });
  fails("is fp8, but key_scale", [](Stream& s, AttendOutput&, Columns&) {
    s.lists[0][0].dtype = DType::fp8;
    s.lists[0][0].value_scale = scale;
  });
  fails("row_stride", [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].row_stride = 7; });
  fails("value_dim is -1", [](Stream& s, AttendOutput&, Columns&) { s.shape.value_dim = -1; });
  fails("value_row_stride", [](Stream& s, AttendOutput& o, Columns&) {
    s.shape.value_dim = o.out.sizes.dim = 4;
    s.lists[0][0].value_row_stride = 3;
  });
  fails("value_row_stride",
        [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].value_row_stride = -8; });
  fails("value_head_stride",
        [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].value_head_stride = -8; });
  // wider than the keys, whose strides are those of the values too
  fails("less than value_dim 16", [](Stream& s, AttendOutput& o, Columns&) {
    static float wide[3 * 4 * 16];
    s.shape.value_dim = 16;
    o.out = {wide, s.shape.of_outputs()};
    for (KvSegment& x : s.lists[0]) x.row_stride = 8;
  });
  fails("first_head", [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].first_head = 1; });
  fails("first_head", [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].first_head = -1; });
  fails("head_stride", [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].head_stride = -1; });
  fails("length", [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].length = -1; });
  fails("null", [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].value = nullptr; });
  fails("value_weight",
        [](Stream& s, AttendOutput&, Columns&) { s.lists[0][0].value_weight = INFINITY; });
  static float column[64 * 4];
  fails("column_sums", [](Stream&, AttendOutput&, Columns& c) { c = {column}; });
  fails("column_sums", [](Stream&, AttendOutput&, Columns& c) { c = {nullptr, column, column}; });
}

}  // namespace attend_test
}  // namespace episodic
