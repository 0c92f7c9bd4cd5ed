// SPDX-License-Identifier: Apache-2.0
#include "episodic/device_torch/device_attention.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "device/cuda.hpp"
#include "episodic/base/error.hpp"
#include "episodic/device/device_decoder.hpp"
#include "kernels/surprise.hpp"
#include "native_stream.hpp"
#include "torch_slots/torch_tensor.hpp"

namespace episodic {
namespace {

using torch_tensor::described, torch_tensor::dtype_of, torch_tensor::torch_type;

/// A device with its index, once it is known that torch and CUDA have it.
c10::Device checked(c10::Device device) {
  if (device.type() != c10::DeviceType::CUDA)
    throw ConfigError(
        fmt::format("TorchDeviceMemory: device is {}, expected a CUDA device such as cuda:0; an "
                    "EpisodicMemory serves the CPU",
                    device.str()));
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA))
    throw NotBuiltError(
        fmt::format("TorchDeviceMemory: device is {}, but no CUDA of libtorch is in this program; "
                    "link episodic_torch::cuda, which the package has where its libtorch is a CUDA "
                    "build, or load torch_cuda otherwise",
                    device.str()));
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
  require_device(device.index());
  return device;
}

/// Rows of whole heads as the kernels read them, in place where they lie so.
struct Rows {
  Rows(const at::Tensor& x, DType dtype) : kept(x) {
    const std::int64_t heads = x.size(1), dim = x.size(2), width = heads * dim;
    // A dimension of one element may have any stride.
    const bool packed = (dim == 1 || x.stride(2) == 1) && (heads == 1 || x.stride(1) == dim) &&
                        (x.size(0) == 1 || (x.stride(0) >= width && x.stride(0) % 8 == 0)) &&
                        reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
    if (!packed) kept = x.clone(at::MemoryFormat::Contiguous);
    view = {kept.const_data_ptr(),
            dtype,
            {x.size(0), heads, dim},
            {packed && x.size(0) > 1 ? x.stride(0) : width, dim},
            MemoryKind::cuda};
  }
  at::Tensor kept;
  TensorView view;
};

}  // namespace

struct TorchDeviceMemory::Impl {
  // All under a guard of `device`.
  Impl(const MemoryConfig& config, const MemoryShape& shape, const DeviceMemoryOptions& options,
       c10::Device on, std::vector<std::int64_t> given, NativeStream native)
      : device(on),
        native_stream(std::move(native)),
        stream(current_stream()),
        memory(config, shape, options, stream, std::move(given)),
        staging(config.chunk * static_cast<std::int64_t>(sizeof(std::int64_t))) {
    device::Layout counter;
    lay_out(counter);
    step_arrays = device::DeviceBuffer(counter.bytes(), "a step's ids and surprise", "lower chunk");
    device::Layout layout(step_arrays.data());
    lay_out(layout);
  }

  CUstream_st* current_stream() const {
    const c10::Stream current =
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device);
    return native_stream ? native_stream(current) : device_torch::native_stream(current);
  }
  void lay_out(device::Layout& layout) {
    const std::int64_t chunk = memory.config().chunk;
    ids = layout.take<std::int64_t>(chunk);
    surprise = layout.take<float>(chunk);
  }
  void require(const char* name, const at::Tensor& x, std::int64_t heads) const;
  void require_logits(const at::Tensor& logits) const;
  void end_step(const std::int64_t* device_ids, const at::Tensor& logits);
  void take_rows_like(const at::Tensor& logits);
  void take_rows(std::int64_t width, DType dtype);
  void token_surprise(const void* logits, std::int64_t row_stride, const std::int64_t* targets,
                      std::int64_t n, float* to) const;

  c10::Device device;
  NativeStream native_stream;
  CUstream_st* stream;  // which the memory is on
  DeviceMemory memory;
  device::StagingRing staging;
  device::DeviceBuffer step_arrays;
  std::int64_t* ids = nullptr;  // [chunk]
  float* surprise = nullptr;    // [chunk]
  // The last row of logits: it says how surprising the next step's first token is.
  device::DeviceBuffer last_logits;
  std::int64_t last_at = 0;           // tokens that it follows; 0: there is none
  std::int64_t last_generation = -1;  // of the sequence that it is of
  std::int64_t vocab = 0;
  DType logits_dtype = DType::float32;
};

void TorchDeviceMemory::Impl::require(const char* name, const at::Tensor& x,
                                      std::int64_t heads) const {
  const std::int64_t n = memory.open_tokens(), dim = memory.shape().head_dim;
  const DType dtype = memory.options().dtype;
  if (x.defined() && x.dim() == 3 && x.size(0) == n && x.size(1) == heads && x.size(2) == dim &&
      x.scalar_type() == torch_type(dtype) && x.device() == device)
    return;
  throw DataError(fmt::format("DeviceAttention: {} is {}, expected [{}, {}, {}] of {} on {}", name,
                              described(x), n, heads, dim, name_of(dtype), device.str()));
}

void TorchDeviceMemory::Impl::require_logits(const at::Tensor& logits) const {
  const std::int64_t n = memory.open_tokens();
  if (!logits.defined() || logits.dim() != 2 || logits.size(0) != n || logits.size(1) < 1 ||
      !dtype_of(logits.scalar_type()) || logits.device() != device ||
      (logits.size(1) > 1 && logits.stride(1) != 1) || (n > 1 && logits.stride(0) < logits.size(1)))
    throw DataError(
        fmt::format("end_step: logits is {}, expected [{}, vocab] of float32, float16 or bfloat16 "
                    "on {} with dense rows",
                    described(logits), n, device.str()));
  if (memory.tokens() == 0) return;
  if (last_at != memory.tokens() || last_generation != memory.generation())
    throw DataError(fmt::format(
        "end_step: of the {} tokens before this step the last came without logits; end every step "
        "of a sequence by this call, or none, and after a restore or load call set_last_logits",
        memory.tokens()));
  if (logits.size(1) != vocab || dtype_of(logits.scalar_type()) != logits_dtype)
    throw DataError(fmt::format("end_step: logits is {}, those before were [n, {}] of {}",
                                described(logits), vocab, name_of(logits_dtype)));
}

void TorchDeviceMemory::Impl::token_surprise(const void* logits, std::int64_t row_stride,
                                             const std::int64_t* targets, std::int64_t n,
                                             float* to) const {
  kernels::SurpriseParams p;
  p.logits = logits;
  p.dtype = logits_dtype;
  p.n = n;
  p.vocab = vocab;
  p.row_stride = row_stride;
  p.targets = targets;
  p.surprise = to;
  device::check(kernels::token_surprise(p, stream), "surprise", p);
}

void TorchDeviceMemory::Impl::end_step(const std::int64_t* device_ids, const at::Tensor& logits) {
  const std::int64_t n = memory.open_tokens();
  const bool first = memory.tokens() == 0;
  if (first) {
    take_rows_like(logits);
    device::check(cudaMemsetAsync(surprise, 0, sizeof(float), stream), "surprise");
  } else {
    token_surprise(last_logits.data(), vocab, device_ids, 1, surprise);
  }
  const auto* rows = static_cast<const std::byte*>(logits.const_data_ptr());
  const std::int64_t row_stride = n > 1 ? logits.stride(0) : vocab;
  token_surprise(rows, row_stride, device_ids + 1, n - 1, surprise + 1);
  memory.end_step(surprise);
  // Not before: a step that is refused may be begun anew.
  const std::int64_t element = size_of(logits_dtype);
  device::check(
      cudaMemcpyAsync(last_logits.data(), rows + (n - 1) * row_stride * element,
                      static_cast<std::size_t>(vocab * element), cudaMemcpyDeviceToDevice, stream),
      "keeping logits");
  last_at = memory.tokens();
  last_generation = memory.generation();
}

/// The dtype of all rows to come, and room for one.
void TorchDeviceMemory::Impl::take_rows_like(const at::Tensor& logits) {
  take_rows(logits.size(-1), *dtype_of(logits.scalar_type()));
}

void TorchDeviceMemory::Impl::take_rows(std::int64_t width, DType dtype) {
  vocab = width;
  logits_dtype = dtype;
  const std::int64_t bytes = vocab * size_of(logits_dtype);
  if (last_logits.bytes() < bytes)
    last_logits = device::DeviceBuffer(bytes, "a row of logits", "free some");
}

TorchDeviceMemory::TorchDeviceMemory(const MemoryConfig& config, const MemoryShape& shape,
                                     const DeviceMemoryOptions& options, c10::Device device,
                                     std::vector<std::int64_t> given, NativeStream native_stream) {
  device = checked(device);
  const c10::DeviceGuard guard(device);
  impl_ = std::make_unique<Impl>(config, shape, options, device, std::move(given),
                                 std::move(native_stream));
}

TorchDeviceMemory::~TorchDeviceMemory() = default;

DeviceMemory& TorchDeviceMemory::on_current_stream() const {
  Impl& m = *impl_;
  CUstream_st* const current = m.current_stream();
  m.memory.use_stream(current);
  m.stream = current;
  return m.memory;
}

void TorchDeviceMemory::begin_step(std::int64_t n, StepKind kind) {
  run([&](DeviceMemory& memory) { memory.begin_step(n, kind); });
}

void TorchDeviceMemory::abandon_step() noexcept { impl_->memory.abandon_step(); }

at::Tensor TorchDeviceMemory::attend(std::int64_t layer, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v) {
  const Impl& m = *impl_;
  const MemoryShape& s = shape();
  if (m.memory.open_tokens() == 0)
    throw DataError("DeviceAttention: no step is open; call begin_step first");
  m.require("q", q, s.n_heads);
  m.require("k", k, s.n_kv_heads);
  m.require("v", v, s.n_kv_heads);
  return run([&](DeviceMemory& memory) {
    const DType dtype = memory.options().dtype;
    const Rows queries(q, dtype), keys(k, dtype), values(v, dtype);
    at::Tensor out = at::empty({q.size(0), s.n_heads * s.head_dim}, q.options());
    memory.attend(
        layer, queries.view, keys.view, values.view,
        {out.mutable_data_ptr(), dtype, {q.size(0), s.n_heads, s.head_dim}, MemoryKind::cuda});
    return out;
  });
}

void TorchDeviceMemory::attend(std::int64_t layer, const TensorView& q, const TensorView& k,
                               const TensorView& v, const MutableTensorView& out) {
  run([&](DeviceMemory& memory) { memory.attend(layer, q, k, v, out); });
}

void TorchDeviceMemory::end_step(const SurpriseView& surprise) {
  run([&](DeviceMemory& memory) { memory.end_step(surprise); });
}

void TorchDeviceMemory::end_step(std::span<const std::int64_t> ids, const at::Tensor& logits) {
  Impl& m = *impl_;
  const std::int64_t n = m.memory.open_tokens();
  if (n == 0 || static_cast<std::int64_t>(ids.size()) != n)
    throw DataError(
        fmt::format("end_step: ids has {} tokens, but the step was begun with {}", ids.size(), n));
  m.require_logits(logits);
  run([&](DeviceMemory&) {
    m.staging.send(m.ids, n, m.stream,
                   [&](std::int64_t* host) { std::copy(ids.begin(), ids.end(), host); });
    m.end_step(m.ids, logits);
  });
}

void TorchDeviceMemory::end_step(const at::Tensor& ids, const at::Tensor& logits) {
  Impl& m = *impl_;
  const std::int64_t n = m.memory.open_tokens();
  if (n == 0 || !ids.defined() || ids.dim() != 1 || ids.size(0) != n ||
      ids.scalar_type() != at::kLong || !ids.is_contiguous() || ids.device() != m.device)
    throw DataError(fmt::format(
        "end_step: ids is {}, expected a contiguous [{}] of Long on {}; the step was begun with {} "
        "tokens",
        described(ids), n, m.device.str(), n));
  m.require_logits(logits);
  run([&](DeviceMemory&) { m.end_step(ids.const_data_ptr<std::int64_t>(), logits); });
}

void TorchDeviceMemory::set_last_logits(const at::Tensor& row) {
  Impl& m = *impl_;
  if (!row.defined() || row.dim() != 1 || row.size(0) < 1 || !dtype_of(row.scalar_type()) ||
      !row.is_contiguous() || row.device() != m.device)
    throw DataError(
        fmt::format("set_last_logits: row is {}, expected a contiguous [vocab] of float32, float16 "
                    "or bfloat16 on {}",
                    described(row), m.device.str()));
  run([&](DeviceMemory& memory) {
    m.take_rows_like(row);
    device::check(cudaMemcpyAsync(m.last_logits.data(), row.const_data_ptr(),
                                  static_cast<std::size_t>(m.vocab * size_of(m.logits_dtype)),
                                  cudaMemcpyDeviceToDevice, m.stream),
                  "keeping logits");
    m.last_at = memory.tokens();
    m.last_generation = memory.generation();
  });
}

void TorchDeviceMemory::reset() {
  run([](DeviceMemory& memory) { memory.reset(); });
  impl_->last_at = 0;
}

const EventTable& TorchDeviceMemory::events(std::int64_t scope) const {
  return look([&](DeviceMemory& m) -> const EventTable& { return m.events(scope); });
}
const StepRecord& TorchDeviceMemory::last_step(std::int64_t scope) const {
  return look([&](DeviceMemory& m) -> const StepRecord& { return m.last_step(scope); });
}
LaneRecall TorchDeviceMemory::recall_lists(std::int64_t lane) const {
  return look([&](DeviceMemory& m) { return m.recall_lists(lane); });
}
std::vector<float> TorchDeviceMemory::representative(std::int64_t lane, EventId event) const {
  return look([&](DeviceMemory& m) { return m.representative(lane, event); });
}
std::vector<float> TorchDeviceMemory::relevance(std::int64_t layer, std::int64_t first,
                                                std::int64_t n) const {
  return look([&](DeviceMemory& m) { return m.relevance(layer, first, n); });
}
void TorchDeviceMemory::forget(EventId event, std::int64_t scope) {
  look([&](DeviceMemory& m) { m.forget(event, scope); });
}
std::vector<EventId> TorchDeviceMemory::forget(TokenRange tokens) {
  return look([&](DeviceMemory& m) { return m.forget(tokens); });
}
const std::vector<EventId>& TorchDeviceMemory::forgotten(std::int64_t scope) const {
  return look([&](DeviceMemory& m) -> const std::vector<EventId>& { return m.forgotten(scope); });
}
void TorchDeviceMemory::pin(EventId event, bool pinned, std::int64_t scope) {
  look([&](DeviceMemory& m) { m.pin(event, pinned, scope); });
}
std::string TorchDeviceMemory::refusal(Capability capability) const {
  return impl_->memory.refusal(capability);
}

class TorchDeviceMemory::Snapshot final : public MemorySnapshot {
 public:
  std::int64_t tokens() const override { return memory->tokens(); }

  std::shared_ptr<const MemorySnapshot> memory;
  std::vector<std::byte> last_logits;  // empty: none were known
  std::int64_t vocab = 0;
  DType dtype = DType::float32;
};

std::shared_ptr<const MemorySnapshot> TorchDeviceMemory::snapshot() const {
  const Impl& m = *impl_;
  return look([&](DeviceMemory& memory) {
    auto s = std::make_shared<Snapshot>();
    s->memory = memory.snapshot();
    if (m.last_at == memory.tokens() && m.last_generation == memory.generation() && m.last_at > 0) {
      s->vocab = m.vocab;
      s->dtype = m.logits_dtype;
      s->last_logits.resize(static_cast<std::size_t>(m.vocab * size_of(m.logits_dtype)));
      device::check(cudaMemcpyAsync(s->last_logits.data(), m.last_logits.data(),
                                    s->last_logits.size(), cudaMemcpyDeviceToHost, m.stream),
                    "reading logits");
      device::check(cudaStreamSynchronize(m.stream), "reading logits");
    }
    return s;
  });
}

void TorchDeviceMemory::restore(const MemorySnapshot& snapshot) {
  const auto* const own = dynamic_cast<const Snapshot*>(&snapshot);
  if (!own) throw ConfigError("restore: the snapshot was taken of another memory");
  Impl& m = *impl_;
  run([&](DeviceMemory& memory) {
    memory.restore(*own->memory);
    m.last_at = 0;
    if (own->last_logits.empty()) return;
    m.take_rows(own->vocab, own->dtype);
    device::check(cudaMemcpyAsync(m.last_logits.data(), own->last_logits.data(),
                                  own->last_logits.size(), cudaMemcpyHostToDevice, m.stream),
                  "keeping logits");
    device::check(cudaStreamSynchronize(m.stream), "keeping logits");  // the copy reads host memory
    m.last_at = memory.tokens();
    m.last_generation = memory.generation();
  });
}

c10::Device TorchDeviceMemory::device() const { return impl_->device; }
const MemoryConfig& TorchDeviceMemory::config() const { return impl_->memory.config(); }
const MemoryShape& TorchDeviceMemory::shape() const { return impl_->memory.shape(); }
const DeviceMemoryOptions& TorchDeviceMemory::options() const { return impl_->memory.options(); }
std::int64_t TorchDeviceMemory::tokens() const { return impl_->memory.tokens(); }
std::int64_t TorchDeviceMemory::open_tokens() const { return impl_->memory.open_tokens(); }

namespace {

struct StateSnapshot final : SequenceSnapshot {
  std::shared_ptr<const MemorySnapshot> memory;
};

}  // namespace

std::shared_ptr<const SequenceSnapshot> DeviceState::snapshot() const {
  auto copy = std::make_shared<StateSnapshot>();
  copy->memory = memory_->snapshot();
  return copy;
}

void DeviceState::restore(const SequenceSnapshot& snapshot) {
  const auto* copy = dynamic_cast<const StateSnapshot*>(&snapshot);
  if (!copy) return SequenceState::restore(snapshot);
  memory_->restore(*copy->memory);
}

DeviceAttention::DeviceAttention(std::shared_ptr<TorchDeviceMemory> memory, std::int64_t layer)
    : memory_(std::move(memory)), layer_(layer) {
  if (layer_ < 0 || layer_ >= memory_->shape().n_layers)
    throw ConfigError(fmt::format("DeviceAttention: layer {}, but the memory has layers 0 to {}",
                                  layer_, memory_->shape().n_layers - 1));
}

}  // namespace episodic
