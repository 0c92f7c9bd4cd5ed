// SPDX-License-Identifier: Apache-2.0
// torch's own attention over as many keys as bench_kernels' "attention, N queries" has, without
// column sums, windows or segments: the yardstick of issue 5. On a GPU machine both are run in turn
// by scripts/gpu_check. It compiles against any libtorch; for --device cuda, torch's CUDA must be
// loaded into the program (LD_PRELOAD=libtorch_cuda.so).
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <chrono>

#include "episodic/base/error.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

struct Flags {
  std::string device = "cuda";
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128, queries = 512, keys = 6272;
  std::int64_t runs = 50, batch = 20;
  std::filesystem::path kernels, json;
};

/// Median seconds of the figure in a result of bench_kernels.
double own_seconds(const Flags& flags) {
  const std::string name = fmt::format("attention, {} queries, column sums", flags.queries);
  const Json document = tools::read_json(flags.kernels);
  for (const Json& figure : document.value("results", Json::array()))
    if (figure.value("name", "") == name) return figure.at("seconds").at("median").get<double>();
  throw FileError(fmt::format("{}: has no figure \"{}\"; run bench_kernels --json with --chunk {}",
                              flags.kernels.string(), name, flags.queries));
}

void run(const Flags& flags) {
  const c10::Device device(flags.device);
  const bool cuda = device.is_cuda();
  if (cuda && !c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA))
    throw NotBuiltError(
        "--device cuda: this program's libtorch has no CUDA; load it with "
        "LD_PRELOAD=libtorch_cuda.so, or use --device cpu");
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (cuda && guard.deviceCount() == 0) throw DeviceError("--device cuda: there is no CUDA device");
  const auto options = at::TensorOptions().device(device).dtype(cuda ? at::kBFloat16 : at::kFloat);
  const auto rows = [&](std::int64_t heads, std::int64_t n) {
    return at::randn({1, heads, n, flags.head_dim}, options);
  };
  const at::Tensor q = rows(flags.heads, flags.queries), k = rows(flags.kv_heads, flags.keys),
                   v = rows(flags.kv_heads, flags.keys);
  if (cuda) {  // the fused kernel, or an error that says why not
    at::globalContext().setSDPUseMath(false);
    at::globalContext().setSDPUseMemEfficient(false);
    at::globalContext().setSDPUseCuDNN(false);
  }
  const at::NoGradGuard no_grad;
  std::vector<double> seconds;
  for (std::int64_t r = -2; r < flags.runs; ++r) {  // two to warm up
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < flags.batch; ++i)
      at::scaled_dot_product_attention(q, k, v, {}, 0.0, false, std::nullopt, true);
    if (cuda) guard.synchronizeStream(guard.getStream(device));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (r >= 0) seconds.push_back(taken.count() / static_cast<double>(flags.batch));
  }
  Json result{{"program", "bench_torch_attention"},
              {"environment", environment()},
              {"device", flags.device},
              {"queries", flags.queries},
              {"keys", flags.keys},
              {"heads", flags.heads},
              {"kv_heads", flags.kv_heads},
              {"head_dim", flags.head_dim},
              {"seconds", summary(seconds)}};
  std::string line = fmt::format("torch's attention, {} queries over {} keys: {:.1f} us",
                                 flags.queries, flags.keys, 1e6 * median(seconds));
  if (!flags.kernels.empty()) {
    constexpr double kMostRatio = 1.5;
    const double own = own_seconds(flags), ratio = own / median(seconds);
    result["own_seconds"] = own;
    result["ratio"] = ratio;
    result["most_ratio"] = kMostRatio;
    line += fmt::format("; ours with column sums: {:.1f} us, {:.2f} times it (aim: at most {})",
                        1e6 * own, ratio, kMostRatio);
  }
  fmt::print("{}\n", line);
  if (!flags.json.empty()) tools::write_json(flags.json, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic::bench;
  episodic::tools::CommandLine app{
      "torch's attention over as many keys as bench_kernels attends to", "bench_torch_attention"};
  app.footer(
      "Example:\n  LD_PRELOAD=libtorch_cuda.so bench_torch_attention --kernels bench_kernels.json");
  Flags flags;
  app.option("--device", flags.device, "cuda (bfloat16) or cpu (float32)")
      .one_of({"cuda", "cpu"})
      .shows_default();
  const auto add = [&](const char* name, std::int64_t& value, const char* text) {
    app.option(name, value, text).positive().shows_default();
  };
  add("--heads", flags.heads, "Query heads H");
  add("--kv-heads", flags.kv_heads, "Key and value heads G, a divisor of H");
  add("--head-dim", flags.head_dim, "d");
  add("--queries", flags.queries, "Queries n");
  add("--keys", flags.keys, "Keys that each sees: n_init + n_local + n_mem");
  add("--runs", flags.runs, "Timed runs");
  add("--batch", flags.batch, "Calls of a run");
  app.option("--kernels", flags.kernels, "Result of bench_kernels to compare with");
  app.option("--json", flags.json, "Result file");
  return run_program(app, argc, argv, [&] { run(flags); });
}
