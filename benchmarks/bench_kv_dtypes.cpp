// SPDX-License-Identifier: Apache-2.0
// What the dtype of events costs in exactness: random keys and values of three kinds are kept in
// each dtype and attended, beside the same in float32.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "episodic/attention/attend.hpp"
#include "episodic/store/codec.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kDim = 128, kEvents = 32, kTokens = 64;

/// How large the elements of a head are beside each other.
enum class Kind { normal, channels, tokens };
constexpr std::pair<Kind, const char*> kKinds[] = {
    {Kind::normal, "normal"},
    {Kind::channels, "4 channels of 128 are 20 times as large"},
    {Kind::tokens, "1 token of 64 is 20 times as large"}};

std::vector<float> rows(Kind kind, std::mt19937_64& random) {
  std::normal_distribution<float> draw;
  std::vector<float> x(static_cast<std::size_t>(kKvHeads * kTokens * kDim));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.size()); ++i) {
    const bool large = kind == Kind::channels ? i % kDim % 32 == 5
                                              : kind == Kind::tokens && i / kDim % kTokens == 9;
    x[static_cast<std::size_t>(i)] = draw(random) * (large ? 20.0f : 1.0f);
  }
  return x;
}

/// sqrt(sum (x - y)^2 / sum y^2)
double relative(std::span<const float> x, std::span<const float> y) {
  double error = 0.0, size = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    size += std::pow(static_cast<double>(y[i]), 2);
  }
  return std::sqrt(error / size);
}

/// Events of random keys and values, kept in one dtype.
class Kept {
 public:
  Kept(Kind kind, DType dtype) : shape_{1, kKvHeads, kDim, dtype} {
    std::mt19937_64 random(7);
    for (std::int64_t e = 0; e < kEvents; ++e) {
      const std::vector<float> key = rows(kind, random), value = rows(kind, random);
      const TokenRange event{e * kTokens, (e + 1) * kTokens};
      const RingView ring{key.data(), value.data(), kTokens, kTokens * kDim, kDim};
      // as aligned as a store's
      blocks_.emplace_back(static_cast<std::size_t>(block_bytes(shape_, kTokens)) / 64 + 1);
      auto* const block = reinterpret_cast<std::byte*>(blocks_.back().data());
      encode_block(shape_, event, ring, block);
      segments_.push_back(segment_of(shape_, event, block));
    }
  }

  struct Result {
    std::vector<float> out, lse;
  };
  /// Of queries that are so many times as sharp as normal ones.
  Result attend(float sharpness) const {
    constexpr std::int64_t kQueries = 16;
    std::mt19937_64 random(8);
    std::normal_distribution<float> draw(0.0f, sharpness);
    std::vector<float> q(static_cast<std::size_t>(kQueries * kHeads * kDim));
    for (float& x : q) x = draw(random);
    AttendShape shape{.n_queries = kQueries,
                      .n_heads = kHeads,
                      .n_kv_heads = kKvHeads,
                      .head_dim = kDim,
                      .first_position = kEvents * kTokens,
                      .n_local = 1};
    Result result{std::vector<float>(q.size()), std::vector<float>(kQueries * kHeads)};
    const std::span<const KvSegment> lists[] = {segments_};
    AttendOutput output;
    output.out = {result.out.data(), shape.of_outputs()};
    output.lse = result.lse.data();
    AttendWorkspace workspace;
    episodic::attend(shape, {{}, {q.data(), shape.of_queries()}, lists}, output, workspace);
    return result;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  StoreShape shape_;
  std::vector<std::vector<Line>> blocks_;
  std::vector<KvSegment> segments_;
};

void run(const tools::JsonFlag& json) {
  Json result{{"program", "bench_kv_dtypes"}, {"environment", environment()}};
  result["shape"] = {{"heads", kHeads},   {"kv_heads", kKvHeads}, {"head_dim", kDim},
                     {"events", kEvents}, {"tokens", kTokens},    {"queries", 16}};
  for (const auto& [kind, name] : kKinds) {
    const Kept exact(kind, DType::float32);
    for (const float sharpness : {1.0f, 4.0f}) {
      const Kept::Result want = exact.attend(sharpness);
      for (const DType dtype : {DType::bfloat16, DType::float16, DType::int8, DType::fp8}) {
        const Kept::Result got = Kept(kind, dtype).attend(sharpness);
        double lse = 0.0;
        for (std::size_t i = 0; i < want.lse.size(); ++i)
          lse = std::max(lse, std::abs(static_cast<double>(got.lse[i] - want.lse[i])));
        const double out = relative(got.out, want.out);
        result["errors"].push_back({{"keys_and_values", name},
                                    {"sharpness", sharpness},
                                    {"kv_dtype", name_of(dtype)},
                                    {"out_relative", out},
                                    {"lse_largest", lse}});
        fmt::print(stderr, "{:<42} sharpness {} {:<9} out {:.2e}  lse {:.2e}\n", name, sharpness,
                   name_of(dtype), out, lse);
      }
    }
  }
  json.write(result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::CommandLine app{
      "Outputs of attention over events of each kv_dtype beside those of float32, on random data",
      "bench_kv_dtypes"};
  app.footer(
      "out_relative is |out - out32| / |out32| over all outputs, lse_largest the largest "
      "difference "
      "of a log-sum-exp.\n\n"
      "Examples:\n"
      "  bench_kv_dtypes --json out.json");
  episodic::tools::JsonFlag json;
  json.add_to(app);
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(json); });
}
