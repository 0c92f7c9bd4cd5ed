// SPDX-License-Identifier: Apache-2.0
// Training whose frozen products are a device's, against the same on the host.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/device/device_products.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/weight_plan.hpp"
#include "episodic/training/trainable_decoder.hpp"
#include "kernels/device.hpp"
#include "model/expected_logits.hpp"
#include "model/tiny_llama.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

namespace device_training_test {

using namespace episodic;

OpenModel write_tiny(const TempDir& dir, bool biased, TensorType type) {
  TinyShape
      shape;  // heads of 12 channels: a DeviceDecoder pads them, products have them as they are
  shape.tied = !biased;
  shape.attention_bias = shape.mlp_bias = biased;
  shape.type = type;
  TinyLlama(shape, 5).write(dir.path());
  return open_model(dir.path());
}

TEST_CASE("training: a mixture of experts is refused by name, on host and device") {
  const OpenModel model = open_model(family_checkpoint("qwen3_moe"));
  CHECK(mentions(refusal<ConfigError>([&] { TrainableDecoder(model, MemoryConfig(), {}); }),
                 "mixture of experts, which cannot be trained"));
  EPISODIC_NEEDS_DEVICE();
  CHECK(mentions(refusal<ConfigError>([&] { load_device_products(model, 0); }),
                 "mixture of experts, which cannot be trained"));
}

/// Hands on, and counts.
class Counted final : public FrozenProducts {
 public:
  explicit Counted(std::unique_ptr<FrozenProducts> of) : of_(std::move(of)) {}
  void multiply(WeightRole role, std::int64_t layer, std::int64_t n, const float* x,
                float* y) override {
    ++forward;
    of_->multiply(role, layer, n, x, y);
  }
  void multiply_back(WeightRole role, std::int64_t layer, std::int64_t n, const float* dy,
                     float* dx) override {
    ++back;
    of_->multiply_back(role, layer, n, dy, dx);
  }
  int forward = 0, back = 0;

 private:
  std::unique_ptr<FrozenProducts> of_;
};

TEST_CASE("products on the device are those of the weights, and their way back") {
  EPISODIC_NEEDS_DEVICE();
  const TempDir dir;
  const OpenModel model = write_tiny(dir, false, TensorType::bf16);
  const std::unique_ptr<FrozenProducts> products = load_device_products(model);
  const PlannedWeights planned(model.config, model.tensors);
  std::mt19937 random(3);
  for (const auto& [role, layer] : {std::pair<WeightRole, std::int64_t>{WeightRole::q, 0},
                                    {WeightRole::v, 1},
                                    {WeightRole::gate, 1},
                                    {WeightRole::down, 0},
                                    {WeightRole::head, -1}}) {
    const WeightView view = planned.at(role, layer);
    const std::int64_t out = view.rows, in = view.columns;
    const auto weight = [&](std::int64_t r, std::int64_t c) {
      std::uint16_t bits;
      std::memcpy(&bits, view.data + 2 * (r * in + c), 2);
      return static_cast<double>(from_bfloat16(bits));
    };
    for (const std::int64_t n : {1, 7, 3}) {
      const std::vector<float> x =
          episodic_test::normal_floats(static_cast<std::size_t>(n * in), random);
      const std::vector<float> dy =
          episodic_test::normal_floats(static_cast<std::size_t>(n * out), random);
      std::vector<float> y(dy.size()), dx(x.size());
      products->multiply(role, layer, n, x.data(), y.data());
      products->multiply_back(role, layer, n, dy.data(), dx.data());
      double worst = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t r = 0; r < out; ++r) {
          double sum = 0;
          for (std::int64_t c = 0; c < in; ++c)
            sum += weight(r, c) * static_cast<double>(x[static_cast<std::size_t>(i * in + c)]);
          worst = worse_of(
              worst, std::abs(sum - static_cast<double>(y[static_cast<std::size_t>(i * out + r)])));
        }
        for (std::int64_t c = 0; c < in; ++c) {
          double sum = 0;
          for (std::int64_t r = 0; r < out; ++r)
            sum += weight(r, c) * static_cast<double>(dy[static_cast<std::size_t>(i * out + r)]);
          worst = worse_of(
              worst, std::abs(sum - static_cast<double>(dx[static_cast<std::size_t>(i * in + c)])));
        }
      }
      INFO(name_of(role) << " of " << n << " rows: " << worst);
      REQUIRE(worst < 1e-4);
    }
  }
}

TEST_CASE("a step trained with the device's products has the host's loss and gradients") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool biased : {false, true}) {
    const TempDir dir;
    const OpenModel model = write_tiny(dir, biased, TensorType::f32);
    const MemoryConfig memory = parse_memory_config(
        R"({"n_init": 3, "n_local": 12, "n_mem": 16, "chunk": 9, "n_repr": 2, "min_block": 2,
            "max_block": 6, "tau": 8, "gamma": 0.5})");
    LoraSettings lora;
    lora.rank = 2;
    lora.targets = {WeightRole::q, WeightRole::k, WeightRole::v, WeightRole::o, WeightRole::down};
    const std::vector<std::int64_t> ids = random_ids(50, 61, 4);
    std::vector<at::Tensor> gradients[2];
    double losses[2] = {};
    for (const int on_device : {0, 1}) {
      const auto products =
          on_device ? std::make_shared<Counted>(load_device_products(model)) : nullptr;
      TrainableDecoder decoder(model, memory, lora, products);
      {
        const at::NoGradGuard no_grad;
        std::mt19937 random(2);
        std::normal_distribution<float> normal(0, 0.05f);
        for (at::Tensor& p : decoder.parameters())  // B away from zero, where A has no gradient
          for (std::int64_t i = 0; i < p.numel(); ++i)
            p.mutable_data_ptr<float>()[i] += normal(random);
      }
      decoder.begin();
      at::Tensor logits;
      for (std::size_t at = 0; at < ids.size(); at += 5)
        logits = decoder.step(std::span(ids).subspan(at, 5), StepKind::decode, 1);
      REQUIRE(decoder.memory().events().size() > 3);
      const at::Tensor loss = logits.select(0, 0).logsumexp(-1) - logits.select(0, 0)[7];
      loss.backward();
      losses[on_device] = loss.item<double>();
      if (products) {  // seven in each of two layers, ten steps, and the head
        REQUIRE(products->forward >= 10 * 2 * 7 + 10);
        REQUIRE(products->back >= 2 * 7 + 1);
      }
      for (const at::Tensor& p : decoder.parameters()) gradients[on_device].push_back(p.grad());
    }
    REQUIRE(std::abs(losses[0] - losses[1]) < 1e-4);
    REQUIRE(gradients[0].size() == 2 * 5 * 2);
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      const double size = gradients[0][i].abs().max().item<double>();
      REQUIRE(size > 0);
      REQUIRE((gradients[0][i] - gradients[1][i]).abs().max().item<double>() < 1e-3 * size);
    }
  }
}

}  // namespace device_training_test
