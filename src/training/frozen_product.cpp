// SPDX-License-Identifier: Apache-2.0
#include "training/frozen_product.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace episodic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Autograd keeps this between forward and backward.
struct KeptProduct : torch::CustomClassHolder {
  std::shared_ptr<FrozenProducts> products;
  WeightRole role = WeightRole::q;
  std::int64_t layer = 0, in = 0, out = 0;
};

struct FrozenProductFunction : torch::autograd::Function<FrozenProductFunction> {
  static at::Tensor forward(AutogradContext* kept, const at::Tensor& x,
                            const c10::intrusive_ptr<KeptProduct>& product) {
    const at::Tensor rows = x.contiguous();
    at::Tensor y = at::empty({rows.size(0), product->out}, rows.options());
    product->products->multiply(product->role, product->layer, rows.size(0),
                                rows.const_data_ptr<float>(), y.mutable_data_ptr<float>());
    kept->saved_data["product"] = c10::IValue::make_capsule(product);
    return y;
  }

  static variable_list backward(AutogradContext* kept, const variable_list& grads) {
    const auto product =
        c10::static_intrusive_pointer_cast<KeptProduct>(kept->saved_data["product"].toCapsule());
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx = at::empty({dy.size(0), product->in}, dy.options());
    product->products->multiply_back(product->role, product->layer, dy.size(0),
                                     dy.const_data_ptr<float>(), dx.mutable_data_ptr<float>());
    return {dx, at::Tensor()};
  }
};

}  // namespace

at::Tensor frozen_product(const std::shared_ptr<FrozenProducts>& products, WeightRole role,
                          std::int64_t layer, std::int64_t out, const at::Tensor& x) {
  auto product = c10::make_intrusive<KeptProduct>();
  product->products = products;
  product->role = role;
  product->layer = layer;
  product->in = x.size(1);
  product->out = out;
  return FrozenProductFunction::apply(x, std::move(product));
}

}  // namespace episodic
