// SPDX-License-Identifier: Apache-2.0
#include "episodic/training/memory_attention.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "episodic/attention/attend.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kBlock = 512;  // keys whose probabilities the backward pass holds at once

/// Autograd keeps this between forward and backward.
struct KeptPlan : torch::CustomClassHolder {
  explicit KeptPlan(MemoryAttention plan) : how(std::move(plan)) {}
  MemoryAttention how;
};

/// Angles of positions, of a rotation or of its transpose.
RotaryAngles angles_of(const RotaryTable& table, std::int64_t first, std::int64_t n,
                       bool transposed) {
  RotaryAngles angles;
  angles.compute(table, first, n);
  if (transposed)
    for (float& s : angles.sin) s = -s;
  return angles;
}

RotaryAngles fixed_angles(const MemoryAttention& how, bool transposed) {
  RotaryAngles angles;
  angles.compute_fixed(how.rotary, how.n_local);
  if (transposed)
    for (float& s : angles.sin) s = -s;
  return angles;
}

/// x [n, heads, d] turned; x itself where there is nothing to turn.
at::Tensor turned(const RotaryTable& table, const RotaryAngles& angles, const at::Tensor& x) {
  if (table.rotary_dim() == 0 || x.size(0) == 0) return x;
  const at::Tensor from = x.contiguous();
  at::Tensor to = at::empty_like(from);
  const TensorSizes sizes{x.size(0), x.size(1), x.size(2)};
  rotate(table, angles.rows(), {from.const_data_ptr<float>(), sizes},
         {to.mutable_data_ptr<float>(), sizes});
  return to;
}

/// The tokens [first, end) of all runs at relative positions; an empty range if there are none.
std::pair<std::int64_t, std::int64_t> relative_tokens(const MemoryAttention& how) {
  std::int64_t first = 0, end = 0;
  for (const AttendedRun& r : how.runs) {
    if (r.position != Position::relative || r.length == 0) continue;
    first = end == 0 ? r.first : std::min(first, r.first);
    end = std::max(end, r.first + r.length);
  }
  return {first, end};
}

bool has_fixed(const MemoryAttention& how) {
  return std::any_of(how.runs.begin(), how.runs.end(), [](const AttendedRun& r) {
    return r.position == Position::fixed && r.length > 0;
  });
}

/// Queries and keys as attention compares them.
struct Turned {
  at::Tensor q_relative, q_fixed;  ///< [n, H, d]; undefined if no run needs them
  at::Tensor k_relative;           ///< [tokens of relative runs, G, d]
  std::int64_t first_relative = 0;
};

Turned turn(const MemoryAttention& how, const at::Tensor& q, const at::Tensor& k) {
  Turned t;
  const auto [first, end] = relative_tokens(how);
  t.first_relative = first;
  if (end > first) {
    t.q_relative =
        turned(how.rotary, angles_of(how.rotary, how.first_position, q.size(0), false), q);
    t.k_relative = turned(how.rotary, angles_of(how.rotary, first, end - first, false),
                          k.narrow(0, first, end - first));
  }
  if (has_fixed(how)) t.q_fixed = turned(how.rotary, fixed_angles(how, false), q);
  return t;
}

/// [n, H, c] to [G, H / G * n, c]: the rows that read one key/value head, together.
at::Tensor by_kv_head(const at::Tensor& x, std::int64_t groups) {
  return x.reshape({x.size(0), groups, -1, x.size(2)})
      .permute({1, 2, 0, 3})
      .reshape({groups, -1, x.size(2)});
}

/// The way back.
at::Tensor by_query(const at::Tensor& x, std::int64_t n) {
  const std::int64_t groups = x.size(0), d = x.size(2);
  return x.reshape({groups, -1, n, d}).permute({2, 0, 1, 3}).reshape({n, -1, d});
}

/// [n, length], true where a query does not see a key; undefined if every query sees every key.
at::Tensor hidden(const MemoryAttention& how, Position position, std::int64_t n,
                  std::int64_t first_key, std::int64_t length) {
  const auto seen = [&](std::int64_t distance) {
    return position == Position::fixed ? distance >= how.n_local
                                       : distance >= 0 && distance < how.n_local;
  };
  const std::int64_t nearest = how.first_position - (first_key + length - 1);
  const std::int64_t farthest = how.first_position + n - 1 - first_key;
  if (seen(nearest) && seen(farthest)) return {};
  at::Tensor mask = at::empty({n, length}, at::kBool);
  bool* m = mask.mutable_data_ptr<bool>();
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < length; ++j)
      *m++ = !seen(how.first_position + i - (first_key + j));
  return mask;
}

/// The gradients of one call of the attention, run by run.
class Backward {
 public:
  Backward(const MemoryAttention& how, const at::Tensor& q, const at::Tensor& k,
           const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
           const at::Tensor& grad)
      : how_(how),
        n_(q.size(0)),
        groups_(k.size(1)),
        scale_(1 / std::sqrt(static_cast<double>(q.size(2)))),
        turned_(turn(how, q, k)),
        k_(k),
        v_(v),
        grad_(by_kv_head(grad.reshape_as(q), groups_)),
        lse_(by_kv_head(lse.unsqueeze(2), groups_)),
        // sum_j p_j dp_j of each row: what softmax's derivative takes off each
        mean_((grad.reshape_as(q) * out.reshape_as(q)).sum(2, true)) {
    mean_ = by_kv_head(mean_, groups_);
    if (turned_.q_relative.defined()) {
      q_relative_ = by_kv_head(turned_.q_relative, groups_);
      dq_relative_ = at::zeros_like(q_relative_);
      dk_relative_ = at::zeros_like(turned_.k_relative);
    }
    if (turned_.q_fixed.defined()) {
      q_fixed_ = by_kv_head(turned_.q_fixed, groups_);
      dq_fixed_ = at::zeros_like(q_fixed_);
    }
    dk = at::zeros_like(k);
    dv = at::zeros_like(v);
    dq = at::zeros_like(q);
    dweights = at::zeros({static_cast<std::int64_t>(how.runs.size())}, q.options());
  }

  void run(std::span<const float> weights) {
    for (std::size_t r = 0; r < how_.runs.size(); ++r) {
      const AttendedRun& one = how_.runs[r];
      for (std::int64_t at = 0; at < one.length; at += kBlock)
        block(one.position, one.first + at, std::min(kBlock, one.length - at), weights[r],
              dweights[static_cast<std::int64_t>(r)]);
    }
    finish();
  }

  at::Tensor dq, dk, dv, dweights;

 private:
  void block(Position position, std::int64_t first, std::int64_t length, float weight,
             at::Tensor dweight) {
    const bool relative = position == Position::relative;
    const at::Tensor& q = relative ? q_relative_ : q_fixed_;
    const std::int64_t row = relative ? first - turned_.first_relative : first;
    const at::Tensor k = (relative ? turned_.k_relative : k_)
                             .narrow(0, row, length)
                             .transpose(0, 1);  // [G, length, d]
    const at::Tensor v = v_.narrow(0, first, length).transpose(0, 1);
    at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(scale_), slope;
    if (how_.softcap > 0) {
      const at::Tensor t = scores.div(how_.softcap).tanh_();
      slope = 1 - t * t;
      scores = t * how_.softcap;
    }
    at::Tensor p = scores.sub_(lse_).exp_();  // [G, H / G * n, length]
    if (const at::Tensor mask = hidden(how_, position, n_, first, length); mask.defined())
      p.view({groups_, -1, n_, length}).masked_fill_(mask, 0.0);
    const at::Tensor along_v = at::bmm(grad_, v.transpose(1, 2));
    dweight.add_((p * along_v).sum());
    dv.narrow(0, first, length)
        .add_(at::bmm(p.transpose(1, 2), grad_).transpose(0, 1), static_cast<double>(weight));
    at::Tensor ds = p.mul_(along_v * static_cast<double>(weight) - mean_).mul_(scale_);
    if (slope.defined()) ds.mul_(slope);
    (relative ? dq_relative_ : dq_fixed_).add_(at::bmm(ds, k));
    (relative ? dk_relative_ : dk)
        .narrow(0, row, length)
        .add_(at::bmm(ds.transpose(1, 2), q).transpose(0, 1));
  }

  /// Back through the rotary embedding, whose transpose turns the other way.
  void finish() {
    if (dq_relative_.defined()) {
      dq.add_(turned(how_.rotary, angles_of(how_.rotary, how_.first_position, n_, true),
                     by_query(dq_relative_, n_)));
      const std::int64_t first = turned_.first_relative, n = dk_relative_.size(0);
      dk.narrow(0, first, n)
          .add_(turned(how_.rotary, angles_of(how_.rotary, first, n, true), dk_relative_));
    }
    if (dq_fixed_.defined())
      dq.add_(turned(how_.rotary, fixed_angles(how_, true), by_query(dq_fixed_, n_)));
  }

  const MemoryAttention& how_;
  std::int64_t n_, groups_;
  double scale_;
  Turned turned_;
  at::Tensor k_, v_, grad_, lse_, mean_;
  at::Tensor q_relative_, q_fixed_, dq_relative_, dq_fixed_, dk_relative_;
};

struct MemoryAttentionFunction : torch::autograd::Function<MemoryAttentionFunction> {
  static at::Tensor forward(AutogradContext* kept, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& weights,
                            const c10::intrusive_ptr<KeptPlan>& plan) {
    const MemoryAttention& how = plan->how;
    const Turned t = turn(how, q, k);
    const std::int64_t n = q.size(0), groups = k.size(1), d = k.size(2);
    at::Tensor out = at::empty({n, q.size(1) * d}, q.options());
    at::Tensor lse = at::empty({n, q.size(1)}, q.options());
    std::vector<KvSegment> segments;
    for (std::size_t r = 0; r < how.runs.size(); ++r) {
      const AttendedRun& run = how.runs[r];
      const bool relative = run.position == Position::relative;
      const std::int64_t row = relative ? run.first - t.first_relative : run.first;
      KvSegment s;
      if (run.length > 0) {
        s.key = (relative ? t.k_relative : k).const_data_ptr<float>() + row * groups * d;
        s.value = v.const_data_ptr<float>() + run.first * groups * d;
      }
      s.length = run.length;
      s.first_token = run.first;
      s.head_stride = d;
      s.row_stride = groups * d;
      s.position = run.position;
      s.value_weight = weights.const_data_ptr<float>()[r];
      segments.push_back(s);
    }
    AttendShape shape;
    shape.n_queries = n;
    shape.n_heads = q.size(1);
    shape.n_kv_heads = groups;
    shape.head_dim = d;
    shape.first_position = how.first_position;
    shape.n_local = how.n_local;
    shape.softcap = how.softcap;
    AttendInput input;
    const TensorSizes sizes{n, q.size(1), d};
    if (t.q_relative.defined()) input.q_relative = {t.q_relative.const_data_ptr<float>(), sizes};
    if (t.q_fixed.defined()) input.q_fixed = {t.q_fixed.const_data_ptr<float>(), sizes};
    const std::span<const KvSegment> list(segments);
    input.segments = std::span(&list, 1);
    AttendOutput output;
    output.out = {out.mutable_data_ptr<float>(), sizes};
    output.lse = lse.mutable_data_ptr<float>();
    AttendWorkspace workspace;
    attend(shape, input, output, workspace);
    kept->save_for_backward({q, k, v, weights, out, lse});
    kept->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return out;
  }

  static variable_list backward(AutogradContext* kept, const variable_list& grads) {
    const variable_list saved = kept->get_saved_variables();
    const auto plan =
        c10::static_intrusive_pointer_cast<KeptPlan>(kept->saved_data["plan"].toCapsule());
    Backward back(plan->how, saved[0], saved[1], saved[2], saved[4], saved[5],
                  grads[0].contiguous());
    const at::Tensor& weights = saved[3];
    back.run({weights.const_data_ptr<float>(), static_cast<std::size_t>(weights.numel())});
    return {back.dq, back.dk, back.dv, back.dweights, at::Tensor()};
  }
};

void require(bool right, const std::string& what) {
  if (!right) throw DataError("memory_attention: " + what);
}

bool is_taken(const at::Tensor& x, std::int64_t dims) {
  return x.defined() && x.dim() == dims && x.scalar_type() == at::kFloat && x.device().is_cpu();
}

}  // namespace

at::Tensor memory_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& weights, MemoryAttention how) {
  require(is_taken(q, 3) && is_taken(k, 3) && is_taken(v, 3) && is_taken(weights, 1),
          "q, k, v must be [tokens, heads, d] and weights [runs], float32 on the CPU");
  const std::int64_t tokens = k.size(0), groups = k.size(1);
  require(q.size(0) > 0 && groups > 0 && q.size(1) % groups == 0 && q.size(1) > 0 &&
              k.size(2) == q.size(2) && v.sizes() == k.sizes(),
          fmt::format("q has {} heads of {}, k {} of {}; q's must be a multiple of k's, of one "
                      "size, and v shaped as k",
                      q.size(1), q.size(2), groups, k.size(2)));
  require(weights.size(0) == static_cast<std::int64_t>(how.runs.size()),
          fmt::format("{} weights for {} runs", weights.size(0), how.runs.size()));
  for (const AttendedRun& r : how.runs)
    require(
        r.first >= 0 && r.length >= 0 && r.first + r.length <= tokens,
        fmt::format("a run of {} tokens from {} on, but there are {}", r.length, r.first, tokens));
  return MemoryAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(),
                                        weights.contiguous(),
                                        c10::make_intrusive<KeptPlan>(std::move(how)));
}

}  // namespace episodic
