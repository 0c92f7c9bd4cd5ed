// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_products.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "decoder_step.hpp"
#include "episodic/base/error.hpp"
#include "episodic/device/device_decoder.hpp"
#include "episodic/model/open_model.hpp"
#include "model/elementwise.hpp"
#include "model/mixture_plan.hpp"

namespace episodic {
namespace {

using device::check;
using device::Cublas;
using device::CurrentDevice;
using device::DeviceBuffer;
using device::DeviceLinear;
using device::Layout;

constexpr const char* kTakeLess = "take a smaller model, or the host's products";

std::size_t float_bytes(std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(float); }

class DeviceProducts final : public FrozenProducts {
 public:
  DeviceProducts(const OpenModel& model, int device) : device_(device) {
    const PlannedWeights planned(model.config, model.tensors);
    Layout counter;
    lay_out(model.config, planned, counter);
    weights_ = DeviceBuffer(counter.bytes(), "the model's weights in float32", kTakeLess);
    Layout layout(weights_.data());
    lay_out(model.config, planned, layout);
    for (const auto& [place, linear] : linears_)
      load(planned.at(place.first, place.second), linear);
  }

  void multiply(WeightRole role, std::int64_t layer, std::int64_t n, const float* x,
                float* y) override {
    const DeviceLinear& w = linears_.at({role, layer});
    run(n * w.in, x, n * w.out, y, [&](const float* from, float* to) {
      cublas_.multiply(w, DType::float32, from, n, DType::float32, to, false);
    });
  }

  void multiply_back(WeightRole role, std::int64_t layer, std::int64_t n, const float* dy,
                     float* dx) override {
    const DeviceLinear& w = linears_.at({role, layer});
    run(n * w.out, dy, n * w.in, dx, [&](const float* from, float* to) {
      cublas_.multiply_back(w, DType::float32, from, n, to);
    });
  }

 private:
  void lay_out(const ModelConfig& config, const PlannedWeights& planned, Layout& layout) {
    const auto take = [&](WeightRole role, std::int64_t layer) {
      const WeightView& view = planned.at(role, layer);
      linears_[{role, layer}] = {
          reinterpret_cast<std::byte*>(layout.take<float>(view.rows * view.columns)),
          nullptr,
          view.rows,
          view.columns,
          {},
          0};
    };
    for (std::int64_t l = 0; l < config.n_layers; ++l)
      for (const WeightRole role : kLayerProducts) take(role, l);
    take(WeightRole::head, -1);
  }

  /// Some rows at a time, widened on the host.
  void load(const WeightView& view, const DeviceLinear& to) {
    constexpr std::int64_t kElements = 4 << 20;
    const std::int64_t at_once =
        std::clamp<std::int64_t>(kElements / view.columns, 1, std::max<std::int64_t>(1, view.rows));
    std::vector<float> wide(static_cast<std::size_t>(at_once * view.columns));
    for (std::int64_t first = 0; first < view.rows; first += at_once) {
      const std::int64_t rows = std::min(at_once, view.rows - first);
      for (std::int64_t r = 0; r < rows; ++r)
        if (!widen(view.type, view.data + (first + r) * view.row_bytes(), view.columns,
                   wide.data() + r * view.columns))
          throw FileError(
              fmt::format("training: weights stored as {} cannot be read; store them as "
                          "F32, F16 or BF16",
                          name_of(view.type)));
      if (view.offset != 0)
        for (float& x : wide) x += static_cast<float>(view.offset);
      check(cudaMemcpyAsync(to.weight + first * view.columns * std::int64_t{sizeof(float)},
                            wide.data(), float_bytes(rows * view.columns), cudaMemcpyHostToDevice,
                            stream_.get()),
            "copying weights");
      check(cudaStreamSynchronize(stream_.get()), "copying weights");
    }
  }

  /// \param enqueue (const float* from, float* to) in device memory
  template <class Enqueue>
  void run(std::int64_t n_from, const float* from, std::int64_t n_to, float* to,
           const Enqueue& enqueue) {
    const CurrentDevice current(device_);  // autograd may come from a thread of its own
    Layout counter;
    const auto lay_out_rows = [&](Layout& layout) {
      float* const in = layout.take<float>(n_from);
      return std::pair(in, layout.take<float>(n_to));
    };
    lay_out_rows(counter);
    if (rows_.bytes() < counter.bytes()) {
      rows_ = DeviceBuffer();  // its bytes may be needed; nothing reads it: each call waits
      rows_ = DeviceBuffer(counter.bytes(), "the rows of a product", "lower chunk");
    }
    Layout layout(rows_.data());
    const auto [in, out] = lay_out_rows(layout);
    check(cudaMemcpyAsync(in, from, float_bytes(n_from), cudaMemcpyHostToDevice, stream_.get()),
          "copying rows");
    enqueue(in, out);
    check(cudaMemcpyAsync(to, out, float_bytes(n_to), cudaMemcpyDeviceToHost, stream_.get()),
          "copying rows");
    check(cudaStreamSynchronize(stream_.get()), "a product");
  }

  int device_;
  device::Stream stream_;
  Cublas cublas_{stream_.get()};
  std::map<std::pair<WeightRole, std::int64_t>, DeviceLinear> linears_;  // role, layer
  DeviceBuffer weights_, rows_;
};

}  // namespace

std::unique_ptr<FrozenProducts> load_device_products(const OpenModel& model, int device) {
  require_device(device);
  require_dense(model.config, "training");
  const CurrentDevice current(device);
  return std::make_unique<DeviceProducts>(model, device);
}

}  // namespace episodic
