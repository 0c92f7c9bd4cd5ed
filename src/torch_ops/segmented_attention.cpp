// SPDX-License-Identifier: Apache-2.0
#include "segmented_attention.hpp"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "episodic/attention/attend.hpp"
#include "episodic/base/error.hpp"
#include "torch_slots/torch_tensor.hpp"

namespace episodic::torch_ops {
namespace {

using torch_tensor::described, torch_tensor::dtype_of;

[[noreturn]] void fail(const std::string& what) { throw DataError("segmented_attention: " + what); }

/// Rows of whole heads of `width` channels, of q's dtype and device, dense.
at::Tensor rows(const std::string& name, const at::Tensor& x, const at::Tensor& like,
                std::int64_t length, std::int64_t heads, std::int64_t width) {
  if (!x.defined() || x.dim() != 3 || (length >= 0 && x.size(0) != length) || x.size(1) != heads ||
      x.size(2) != width || x.scalar_type() != like.scalar_type() || x.device() != like.device())
    fail(fmt::format("{} is {}, expected [{}, {}, {}] of {} on {}", name, described(x),
                     length < 0 ? std::string("tokens") : std::to_string(length), heads, width,
                     at::toString(like.scalar_type()), like.device().str()));
  const at::Tensor dense = x.contiguous();
  // kernels read 16 bytes at a time
  const bool aligned = reinterpret_cast<std::uintptr_t>(dense.const_data_ptr()) % 16 == 0;
  return aligned ? dense : dense.clone();
}

TensorView rows_of(const at::Tensor& x, DType dtype) {
  return {x.const_data_ptr(), dtype, {x.size(0), x.size(1), x.size(2)}};
}
MutableTensorView rows_to(const at::Tensor& x, DType dtype) {
  return {x.data_ptr(), dtype, {x.size(0), x.size(1), x.size(2)}};
}

Result on_host(const Arguments& a) {
  const at::TensorOptions floats = a.q.options().dtype(at::kFloat);
  at::Tensor out = at::empty({a.n, a.heads, a.value_dim}, a.q.options());
  at::Tensor lse = at::empty({a.n, a.heads}, floats);
  // Queries are float32 once they are rotated, keys of the window are rounded to their dtype: as
  // the memory has them.
  at::Tensor relative = at::empty({a.n, a.heads, a.dim}, floats), fixed = at::empty_like(relative);
  at::Tensor local_key = at::empty_like(a.local_key);
  RotaryAngles angles;
  angles.compute(a.rotary, a.first_position, a.n);
  rotate(a.rotary, angles.rows(), rows_of(a.q, a.dtype), rows_to(relative, DType::float32));
  angles.compute_fixed(a.rotary, a.n_local);
  rotate(a.rotary, angles.rows(), rows_of(a.q, a.dtype), rows_to(fixed, DType::float32));
  angles.compute(a.rotary, a.first_local(), a.local_tokens);
  rotate(a.rotary, angles.rows(), rows_of(a.local_key, a.dtype), rows_to(local_key, a.dtype));

  std::vector<KvSegment> segments;
  const auto add = [&](const at::Tensor& key, const at::Tensor& value, std::int64_t first,
                       Position position, float weight) {
    KvSegment s;
    s.key = key.const_data_ptr(), s.value = value.const_data_ptr();
    s.length = key.size(0), s.first_token = first;
    s.head_stride = a.dim, s.row_stride = a.kv_heads * a.dim;
    s.value_head_stride = a.value_dim, s.value_row_stride = a.kv_heads * a.value_dim;
    s.dtype = a.dtype, s.position = position, s.value_weight = weight;
    segments.push_back(s);
  };
  for (const Arguments::Far& far : a.far)
    add(far.key, far.value, far.first_token, Position::fixed, far.weight);
  add(local_key, a.local_value, a.first_local(), Position::relative, 1.0f);

  AttendShape shape;
  shape.n_queries = a.n, shape.n_heads = a.heads, shape.n_kv_heads = a.kv_heads;
  shape.head_dim = a.dim, shape.value_dim = a.value_dim, shape.first_position = a.first_position,
  shape.n_local = a.n_local;
  shape.scale = a.scale, shape.softcap = a.soft_cap;
  const std::array<std::span<const KvSegment>, 1> lists{segments};
  thread_local AttendWorkspace workspace;
  AttendOutput output;
  output.out = rows_to(out, a.dtype);
  output.lse = lse.mutable_data_ptr<float>();
  attend(shape, {rows_of(relative, DType::float32), rows_of(fixed, DType::float32), lists}, output,
         workspace);
  return {out, lse};
}

/// Shapes alone, for tracing. It checks nothing: the call itself does.
Result on_meta(const at::Tensor& q, const at::Tensor&, const at::Tensor& local_value,
               at::TensorList, at::TensorList, at::IntArrayRef, at::ArrayRef<double>,
               const at::Tensor&, std::int64_t, std::int64_t, double, bool, double, double) {
  return {at::empty({q.size(0), q.size(1), local_value.size(2)}, q.options()),
          at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat))};
}

template <Result (*compute)(const Arguments&)>
Result call(const at::Tensor& q, const at::Tensor& local_key, const at::Tensor& local_value,
            at::TensorList far_keys, at::TensorList far_values, at::IntArrayRef far_tokens,
            at::ArrayRef<double> value_weights, const at::Tensor& inverse_frequency,
            std::int64_t first_position, std::int64_t n_local, double attention_factor,
            bool interleaved, double scale, double soft_cap) {
  return compute({q, local_key, local_value, far_keys, far_values, far_tokens, value_weights,
                  inverse_frequency, first_position, n_local, attention_factor, interleaved, scale,
                  soft_cap});
}

}  // namespace

Arguments::Arguments(const at::Tensor& queries, const at::Tensor& key, const at::Tensor& value,
                     at::TensorList far_keys, at::TensorList far_values, at::IntArrayRef far_tokens,
                     at::ArrayRef<double> value_weights, const at::Tensor& inverse_frequency,
                     std::int64_t position, std::int64_t window, double attention_factor,
                     bool interleaved, double score_scale, double cap)
    : first_position(position),
      n_local(window),
      scale(static_cast<float>(score_scale)),
      soft_cap(static_cast<float>(cap)) {
  const std::optional<DType> type =
      queries.defined() ? dtype_of(queries.scalar_type()) : std::nullopt;
  if (!type || queries.dim() != 3 || queries.numel() == 0)
    fail("q is " + described(queries) +
         ", expected [n, heads, d] of float32, float16 or bfloat16, none of them 0");
  dtype = *type;
  q = rows("q", queries, queries, -1, queries.size(1), queries.size(2));
  n = q.size(0), heads = q.size(1), dim = q.size(2);
  kv_heads = key.defined() && key.dim() == 3 ? key.size(1) : 0;
  if (kv_heads < 1 || heads % kv_heads != 0)
    fail(fmt::format("local_key is {}, expected [tokens, G, d] with G a divisor of q's {} heads",
                     described(key), heads));
  local_key = rows("local_key", key, q, -1, kv_heads, dim);
  local_tokens = local_key.size(0);
  value_dim = value.defined() && value.dim() == 3 && value.size(2) > 0 ? value.size(2) : dim;
  local_value = rows("local_value", value, q, local_tokens, kv_heads, value_dim);
  if (first_position < 0) fail(fmt::format("first_position = {}, must be >= 0", first_position));
  if (n_local < 1) fail(fmt::format("n_local = {}, must be at least 1", n_local));
  const std::int64_t needed = std::min(n_local - 1, first_position) + n;
  if (local_tokens < needed || local_tokens > first_position + n)
    fail(
        fmt::format("local_key has {} tokens, expected the last {} to {}, up to that of the last "
                    "query",
                    local_tokens, needed, first_position + n));
  if (far_keys.size() != far_values.size() || far_keys.size() != far_tokens.size() ||
      (!value_weights.empty() && value_weights.size() != far_keys.size()))
    fail(
        fmt::format("far_keys, far_values, far_tokens and value_weights have {}, {}, {} and {} "
                    "entries, expected as many each (value_weights may be empty)",
                    far_keys.size(), far_values.size(), far_tokens.size(), value_weights.size()));
  for (std::size_t i = 0; i < far_keys.size(); ++i) {
    Far one;
    one.key = rows(fmt::format("far_keys[{}]", i), far_keys[i], q, -1, kv_heads, dim);
    one.value = rows(fmt::format("far_values[{}]", i), far_values[i], q, one.key.size(0), kv_heads,
                     value_dim);
    one.first_token = far_tokens[i];
    if (one.first_token < 0)
      fail(fmt::format("far_tokens[{}] = {}, must be >= 0", i, one.first_token));
    if (!value_weights.empty()) one.weight = static_cast<float>(value_weights[i]);
    if (one.key.size(0) > 0) far.push_back(std::move(one));
  }
  if (!inverse_frequency.defined() || inverse_frequency.dim() != 1 ||
      inverse_frequency.scalar_type() != at::kDouble || !inverse_frequency.device().is_cpu() ||
      2 * inverse_frequency.size(0) > dim)
    fail(
        fmt::format("inverse_frequency is {}, expected [rotary_dim / 2] of Double on cpu, at most "
                    "{} of them",
                    described(inverse_frequency), dim / 2));
  const at::Tensor frequencies = inverse_frequency.contiguous();
  const auto* first = frequencies.const_data_ptr<double>();
  rotary.inverse_frequency.assign(first, first + frequencies.size(0));
  rotary.attention_factor = attention_factor;
  rotary.pairs = interleaved ? RotaryPairs::interleaved : RotaryPairs::halves;
}

// EPISODIC_TORCH_OPS_CUDA: with the kernels, or their emulation.
TORCH_LIBRARY(episodic, m) {
  m.def(
      "segmented_attention(Tensor q, Tensor local_key, Tensor local_value, Tensor[] far_keys, "
      "Tensor[] far_values, int[] far_tokens, float[] value_weights, Tensor inverse_frequency, int "
      "first_position, int n_local, *, float attention_factor=1.0, bool interleaved=False, float "
      "scale=0.0, float soft_cap=0.0) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(episodic, CPU, m) { m.impl("segmented_attention", &call<on_host>); }
TORCH_LIBRARY_IMPL(episodic, Meta, m) { m.impl("segmented_attention", &on_meta); }
#if defined(EPISODIC_TORCH_OPS_CUDA)
TORCH_LIBRARY_IMPL(episodic, CUDA, m) { m.impl("segmented_attention", &call<on_cuda>); }
#endif

}  // namespace episodic::torch_ops
