// SPDX-License-Identifier: Apache-2.0
// torch.ops.episodic.segmented_attention against one softmax in float64.
#include "support/test.hpp"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "episodic/base/error.hpp"
#if defined(EPISODIC_EMULATED_CUDA)
#include "device_torch/fake_cuda.hpp"
#endif

namespace {

using Result = std::tuple<at::Tensor, at::Tensor>;
using Operator = Result(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::TensorList,
                        at::TensorList, at::IntArrayRef, at::ArrayRef<double>, const at::Tensor&,
                        std::int64_t, std::int64_t, double, bool, double, double);

/// What `torch.ops.load_library` does: the library registers its operators as it is loaded.
c10::TypedOperatorHandle<Operator> loaded() {
#if defined(EPISODIC_TORCH_OPS)
  static void* const library = dlopen(EPISODIC_TORCH_OPS, RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
#endif
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("episodic::segmented_attention", "")
      .typed<Operator>();
}

struct Case {
  std::int64_t n = 1, heads = 1, kv_heads = 1, dim = 8, value_dim = 8, rotary = 8, first = 0,
               n_local = 4, more_local = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> far;  // tokens [first, second)
  bool weighted = false, interleaved = false;
  double factor = 1, scale = 0, soft_cap = 0;
  at::ScalarType type = at::kFloat;
};

struct Inputs {
  at::Tensor q, k, v;  // [tokens from 0 on, ...]
  at::Tensor local_key, local_value;
  std::vector<at::Tensor> far_keys, far_values;
  std::vector<std::int64_t> far_tokens;
  std::vector<double> weights;
  at::Tensor frequency;
};

Inputs draw(const Case& c, std::uint64_t seed) {
  at::manual_seed(seed);
  Inputs in;
  const std::int64_t total = c.first + c.n;
  in.q = at::randn({c.n, c.heads, c.dim}).to(c.type);
  in.k = at::randn({total, c.kv_heads, c.dim}).to(c.type);
  in.v = at::randn({total, c.kv_heads, c.value_dim}).to(c.type);
  const std::int64_t needed = std::min(c.n_local - 1, c.first) + c.n,
                     t = std::min(total, needed + c.more_local);
  in.local_key = in.k.narrow(0, total - t, t);
  in.local_value = in.v.narrow(0, total - t, t);
  for (const auto& [begin, end] : c.far) {
    in.far_keys.push_back(in.k.narrow(0, begin, end - begin));
    in.far_values.push_back(in.v.narrow(0, begin, end - begin));
    in.far_tokens.push_back(begin);
    if (c.weighted) in.weights.push_back(0.25 * static_cast<double>(1 + in.weights.size()));
  }
  in.frequency = at::empty({c.rotary / 2}, at::kDouble);
  for (std::int64_t i = 0; i < c.rotary / 2; ++i)
    in.frequency.mutable_data_ptr<double>()[i] =
        std::pow(100.0, -static_cast<double>(2 * i) / static_cast<double>(c.rotary));
  return in;
}

Result call(const Case& c, const Inputs& in, c10::Device device = at::kCPU) {
  const auto there = [&](const at::Tensor& x) { return x.contiguous().to(device); };
  std::vector<at::Tensor> keys, values;
  for (const at::Tensor& x : in.far_keys) keys.push_back(there(x));
  for (const at::Tensor& x : in.far_values) values.push_back(there(x));
  const auto [out, lse] = loaded().call(
      there(in.q), there(in.local_key), there(in.local_value), keys, values, in.far_tokens,
      in.weights, in.frequency, c.first, c.n_local, c.factor, c.interleaved, c.scale, c.soft_cap);
  return {out.to(at::kCPU), lse.to(at::kCPU)};
}

/// Channel `ch` of x rotated by an angle index, in float64.
double rotated(const Case& c, const double* x, std::int64_t ch, double position, double factor) {
  if (ch >= c.rotary) return x[ch];
  const std::int64_t half = c.rotary / 2, pair = c.interleaved ? ch / 2 : ch % half;
  const bool second = c.interleaved ? ch % 2 == 1 : ch >= half;
  const std::int64_t other =
      c.interleaved ? (second ? ch - 1 : ch + 1) : (second ? ch - half : ch + half);
  const double angle =
      position * std::pow(100.0, -static_cast<double>(2 * pair) / static_cast<double>(c.rotary));
  return factor * (x[ch] * std::cos(angle) + (second ? x[other] : -x[other]) * std::sin(angle));
}

/// out and lse by the definition: one softmax over what each query sees.
Result reference(const Case& c, const Inputs& in) {
  const at::Tensor q = in.q.to(at::kDouble).contiguous(), k = in.k.to(at::kDouble).contiguous(),
                   v = in.v.to(at::kDouble).contiguous();
  at::Tensor out = at::zeros({c.n, c.heads, c.value_dim}, at::kDouble),
             lse = at::empty({c.n, c.heads}, at::kDouble);
  const double scale = c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.dim));
  for (std::int64_t i = 0; i < c.n; ++i)
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const double* x = q.const_data_ptr<double>() + (i * c.heads + h) * c.dim;
      const std::int64_t p = c.first + i, g = h / (c.heads / c.kv_heads);
      struct Seen {
        double score, weight;
        std::int64_t token;
      };
      std::vector<Seen> seen;
      const auto see = [&](std::int64_t token, bool local, double weight) {
        const double* y = k.const_data_ptr<double>() + (token * c.kv_heads + g) * c.dim;
        double dot = 0;
        for (std::int64_t ch = 0; ch < c.dim; ++ch)
          dot += local
                     ? rotated(c, x, ch, static_cast<double>(p), c.factor) *
                           rotated(c, y, ch, static_cast<double>(token), c.factor)
                     : rotated(c, x, ch, static_cast<double>(c.n_local - 1), c.factor * c.factor) *
                           y[ch];
        double score = scale * dot;
        if (c.soft_cap > 0) score = c.soft_cap * std::tanh(score / c.soft_cap);
        seen.push_back({score, weight, token});
      };
      for (std::int64_t token = std::max<std::int64_t>(0, p - c.n_local + 1); token <= p; ++token)
        see(token, true, 1);
      for (std::size_t f = 0; f < c.far.size(); ++f)
        for (std::int64_t token = c.far[f].first; token < c.far[f].second; ++token)
          if (p - token >= c.n_local) see(token, false, c.weighted ? in.weights[f] : 1);
      double sum = 0, largest = -1e300;
      for (const Seen& s : seen) largest = std::max(largest, s.score);
      for (const Seen& s : seen) sum += std::exp(s.score - largest);
      lse.mutable_data_ptr<double>()[i * c.heads + h] = largest + std::log(sum);
      for (const Seen& s : seen)
        for (std::int64_t ch = 0; ch < c.value_dim; ++ch)
          out.mutable_data_ptr<double>()[(i * c.heads + h) * c.value_dim + ch] +=
              std::exp(s.score - largest) / sum * s.weight *
              v.const_data_ptr<double>()[(s.token * c.kv_heads + g) * c.value_dim + ch];
    }
  return {out, lse};
}

void check(const Case& c, std::uint64_t seed, c10::Device device = at::kCPU) {
  const Inputs in = draw(c, seed);
  const auto [out, lse] = call(c, in, device);
  const auto [expected, expected_lse] = reference(c, in);
  REQUIRE(out.scalar_type() == c.type);
  REQUIRE(lse.scalar_type() == at::kFloat);
  const double unit = c.type == at::kFloat ? 1e-5 : c.type == at::kHalf ? 6e-3 : 4e-2;
  const double worst = (out.to(at::kDouble) - expected).abs().max().item<double>(),
               worst_lse = (lse.to(at::kDouble) - expected_lse).abs().max().item<double>();
  INFO("seed " << seed << ", " << out.toString() << ": " << worst << ", " << worst_lse);
  REQUIRE(worst <= unit * (1 + expected.abs().max().item<double>()));
  REQUIRE(worst_lse <= unit * (1 + expected_lse.abs().max().item<double>()));
}

/// Sizes at random; on a device those that its kernels take.
Case some(std::mt19937& random, bool device) {
  const auto upto = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  Case c;
  c.kv_heads = 1 + upto(3);
  c.heads = c.kv_heads * (1 + upto(4));
  c.dim = device ? 8 * (2 + upto(7)) : 2 + upto(40);
  c.value_dim = upto(2) == 0 ? c.dim : device ? 8 * (1 + upto(9)) : 1 + upto(50);
  c.rotary = device ? 16 * upto(c.dim / 16 + 1) : 2 * upto(c.dim / 2 + 1);
  c.n = 1 + upto(20);
  c.first = upto(3) == 0 ? 0 : upto(90);
  c.n_local = upto(4) == 0 ? 100000 : 1 + upto(30);
  c.more_local = upto(2) * upto(10);
  c.weighted = upto(2) == 0, c.interleaved = upto(2) == 0;
  c.factor = upto(3) == 0 ? 1.3 : 1;
  c.scale = upto(3) == 0 ? 0.2 : 0;
  c.soft_cap = upto(3) == 0 ? 3 : 0;
  for (std::int64_t at = 0; at < c.first && upto(5) != 0;) {
    const std::int64_t end = std::min(c.first, at + 1 + upto(12));
    c.far.push_back({at, end});
    at = end + upto(6);
  }
  const at::ScalarType types[] = {at::kFloat, at::kHalf, at::kBFloat16};
  c.type = types[upto(3)];
  return c;
}

std::string refusal(const Case& c, const Inputs& in) {
  try {
    call(c, in);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("segmented_attention of torch.ops is one softmax over all that a query sees") {
  std::mt19937 random(5);
  for (std::uint64_t run = 0; run < 150; ++run) check(some(random, false), run);
}

TEST_CASE("segmented_attention takes rows that are not dense and says what does not fit") {
  Case c;
  c.heads = 4, c.kv_heads = 2, c.dim = 16, c.value_dim = 24, c.rotary = 16, c.n = 3, c.first = 40,
  c.n_local = 8;
  c.far = {{0, 5}, {9, 20}};
  const Inputs in = draw(c, 3);
  const auto [out, lse] = call(c, in);

  // heads before tokens, as many models have them
  const auto by_heads = [](const at::Tensor& x) {
    return x.transpose(0, 1).contiguous().transpose(0, 1);
  };
  const auto [same, same_lse] = loaded().call(
      by_heads(in.q), by_heads(in.local_key), by_heads(in.local_value), in.far_keys, in.far_values,
      in.far_tokens, {}, in.frequency, c.first, c.n_local, 1, false, 0, 0);
  REQUIRE(same.equal(out));
  REQUIRE(same_lse.equal(lse));

  const auto mentions = [](const std::string& text, const char* what) {
    INFO(text);
    return text.find(what) != std::string::npos;
  };
  const auto with = [&](auto change) {
    Inputs other = in;
    change(other);
    return refusal(c, other);
  };
  REQUIRE(mentions(with([](Inputs& x) { x.q = x.q.to(at::kDouble); }), "q is"));
  REQUIRE(mentions(with([](Inputs& x) { x.q = x.q.select(0, 0); }), "q is"));
  REQUIRE(mentions(with([](Inputs& x) { x.local_key = x.local_key.to(at::kHalf); }), "local_key"));
  REQUIRE(mentions(with([](Inputs& x) { x.local_value = x.local_value.narrow(0, 0, 2); }),
                   "local_value"));
  REQUIRE(mentions(with([](Inputs& x) {
                     x.local_key = x.local_key.narrow(0, 1, x.local_key.size(0) - 1);
                     x.local_value = x.local_value.narrow(0, 1, x.local_value.size(0) - 1);
                   }),
                   "local_key has 9 tokens"));
  REQUIRE(mentions(with([](Inputs& x) { x.far_values.pop_back(); }), "far_values"));
  REQUIRE(mentions(with([](Inputs& x) { x.far_keys[1] = x.far_keys[1].narrow(2, 0, 8); }),
                   "far_keys[1]"));
  REQUIRE(mentions(with([](Inputs& x) { x.far_values[1] = x.far_values[1].narrow(2, 0, 16); }),
                   "far_values[1]"));
  REQUIRE(mentions(with([](Inputs& x) { x.local_value = x.local_value.narrow(2, 0, 0); }),
                   "local_value"));
  REQUIRE(mentions(with([](Inputs& x) { x.far_tokens[0] = -1; }), "far_tokens[0]"));
  REQUIRE(mentions(with([](Inputs& x) { x.weights = {1.0}; }), "value_weights"));
  REQUIRE(mentions(with([](Inputs& x) { x.frequency = x.frequency.to(at::kFloat); }),
                   "inverse_frequency"));
  Case wrong = c;
  wrong.n_local = 0;
  REQUIRE(mentions(refusal(wrong, in), "n_local"));
  wrong = c, wrong.first = -1;
  REQUIRE(mentions(refusal(wrong, in), "first_position"));
}

TEST_CASE("segmented_attention has shapes without numbers, for tracing") {
  const at::TensorOptions meta = at::TensorOptions().device(at::kMeta).dtype(at::kHalf);
  const auto [out, lse] = loaded().call(at::empty({3, 4, 16}, meta), at::empty({9, 2, 16}, meta),
                                        at::empty({9, 2, 24}, meta), {}, {}, {}, {},
                                        at::empty({8}, at::kDouble), 6, 20, 1, false, 0, 0);
  REQUIRE(out.sizes() == at::IntArrayRef{3, 4, 24});
  REQUIRE(out.scalar_type() == at::kHalf);
  REQUIRE(lse.sizes() == at::IntArrayRef{3, 4});
}

#if defined(EPISODIC_EMULATED_CUDA)
TEST_CASE("segmented_attention on CUDA tensors runs the kernels") {
  fake_cuda::install();
  const c10::Device device(c10::DeviceType::CUDA, 0);
  std::mt19937 random(9);
  for (std::uint64_t run = 0; run < 40; ++run) check(some(random, true), run, device);

  Case c;
  c.heads = c.kv_heads = 1, c.dim = 12, c.rotary = 4;  // neither is a multiple of what it must be
  std::string said;
  try {
    call(c, draw(c, 1), device);
  } catch (const episodic::DeviceError& e) {
    said = e.what();
  }
  INFO(said);
  REQUIRE(said.find("multiples of 8") != std::string::npos);
}
#endif
