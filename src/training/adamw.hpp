// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <utility>
#include <vector>

namespace episodic {

/// AdamW (Loshchilov and Hutter 2019) over a list of leaves.
class AdamW {
 public:
  AdamW(std::vector<at::Tensor> parameters, double decay)
      : parameters_(std::move(parameters)), decay_(decay) {
    for (const at::Tensor& p : parameters_) {
      mean_.push_back(at::zeros_like(p));
      square_.push_back(at::zeros_like(p));
    }
  }

  void zero_grad() {
    for (at::Tensor& p : parameters_) p.mutable_grad() = at::Tensor();
  }

  /// Scales the gradient to a norm of at most `most`. \return its norm before that
  double clip(double most) {
    double square = 0;
    for (const at::Tensor& p : parameters_)
      if (p.grad().defined()) square += p.grad().square().sum().item<double>();
    const double norm = std::sqrt(square);
    if (norm > most)
      for (const at::Tensor& p : parameters_)
        if (p.grad().defined()) p.grad().mul_(most / norm);
    return norm;
  }

  void step(double rate) {
    const at::NoGradGuard no_grad;
    ++step_;
    const double left1 = 1 - std::pow(kBeta1, step_), left2 = 1 - std::pow(kBeta2, step_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& p = parameters_[i];
      const at::Tensor& g = p.grad();
      if (!g.defined()) continue;
      mean_[i].mul_(kBeta1).add_(g, 1 - kBeta1);
      square_[i].mul_(kBeta2).addcmul_(g, g, 1 - kBeta2);
      p.mul_(1 - rate * decay_);
      p.addcdiv_(mean_[i], (square_[i] / left2).sqrt_().add_(kEps), -rate / left1);
    }
  }

 private:
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8;
  std::vector<at::Tensor> parameters_, mean_, square_;
  double decay_;
  int step_ = 0;
};

}  // namespace episodic
