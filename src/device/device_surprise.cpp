// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_surprise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cuda.hpp"
#include "episodic/base/error.hpp"
#include "kernels/surprise.hpp"
#include "transfers.hpp"

namespace episodic {

class DeviceSurprise::State {
 public:
  device::DeviceBuffer last;  // [vocab]
  std::int64_t behind = -1;   // as Impl
};

struct DeviceSurprise::Impl {
  std::int64_t vocab = 0, chunk = 0;
  std::int64_t behind = -1;  // tokens of the sequence that `last` follows; -1: none
  int device = 0;
  device::DeviceBuffer buffer;
  std::int64_t* ids = nullptr;  // [chunk]
  float* surprise = nullptr;    // [chunk]
  float* last = nullptr;        // [vocab]
  device::StagingRing staging;

  std::int64_t last_bytes() const { return vocab * static_cast<std::int64_t>(sizeof(float)); }
};

namespace {

const char* const kTakesLogits = "take a smaller vocabulary or a smaller chunk";

}  // namespace

DeviceSurprise::DeviceSurprise(std::int64_t vocab, std::int64_t chunk)
    : impl_(std::make_unique<Impl>()) {
  if (vocab < 1 || chunk < 1)
    throw DataError(
        fmt::format("surprise: vocab = {} and chunk = {}, must be at least 1", vocab, chunk));
  Impl& m = *impl_;
  m.vocab = vocab;
  m.chunk = chunk;
  device::check(cudaGetDevice(&m.device), "asking for the current device");
  const auto lay_out = [&](device::Layout layout) {
    m.ids = layout.take<std::int64_t>(chunk);
    m.surprise = layout.take<float>(chunk);
    m.last = layout.take<float>(vocab);
    return layout.bytes();
  };
  m.buffer = device::DeviceBuffer(lay_out(device::Layout()), "a step's surprise", kTakesLogits);
  lay_out(device::Layout(m.buffer.data()));
  m.staging = device::StagingRing(chunk * static_cast<std::int64_t>(sizeof(std::int64_t)));
}

DeviceSurprise::~DeviceSurprise() = default;
DeviceSurprise::DeviceSurprise(DeviceSurprise&&) noexcept = default;
DeviceSurprise& DeviceSurprise::operator=(DeviceSurprise&&) noexcept = default;

std::int64_t DeviceSurprise::vocab() const { return impl_->vocab; }

const float* DeviceSurprise::step(std::span<const std::int64_t> ids, const float* logits,
                                  std::int64_t row_stride, std::int64_t tokens,
                                  CUstream_st* stream) {
  Impl& m = *impl_;
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n < 1 || n > m.chunk)
    throw DataError(fmt::format("surprise: {} ids, must be 1 to chunk = {}", n, m.chunk));
  if (!logits) throw DataError("surprise: logits are null");
  if (row_stride < m.vocab)
    throw DataError(
        fmt::format("surprise: row_stride = {}, must be at least vocab = {}", row_stride, m.vocab));
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= m.vocab)
      throw DataError(fmt::format("surprise: ids[{}] = {} is not in the vocabulary of {} tokens", i,
                                  ids[i], m.vocab));
  if (tokens > 0 && m.behind != tokens)
    throw DataError(fmt::format(
        "surprise: the logits behind token {} are not known, for its step ended without them; end "
        "all steps of a sequence by logits, or this one by surprise",
        tokens - 1));
  const device::CurrentDevice current(m.device);
  m.staging.send(m.ids, n, stream,
                 [&](std::int64_t* to) { std::copy(ids.begin(), ids.end(), to); });
  kernels::SurpriseParams p;
  p.dtype = DType::float32;
  p.vocab = m.vocab;
  if (tokens == 0) {
    device::fill(m.surprise, 0, 1, stream);
  } else {
    p.n = 1;
    p.logits = m.last;
    p.row_stride = m.vocab;
    p.targets = m.ids;
    p.surprise = m.surprise;
    device::check(kernels::token_surprise(p, stream), "surprise");
  }
  p.n = n - 1;
  p.logits = logits;
  p.row_stride = row_stride;
  p.targets = m.ids + 1;
  p.surprise = m.surprise + 1;
  if (p.n > 0) device::check(kernels::token_surprise(p, stream), "surprise");
  device::move(m.last, logits + (n - 1) * row_stride, m.vocab, stream);
  m.behind = tokens + n;
  return m.surprise;
}

std::shared_ptr<const DeviceSurprise::State> DeviceSurprise::snapshot(CUstream_st* stream) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  auto state = std::make_shared<State>();
  state->behind = m.behind;
  if (m.behind < 0) return state;
  state->last = device::DeviceBuffer(m.last_bytes(), "the logits of a snapshot", kTakesLogits);
  device::move(reinterpret_cast<float*>(state->last.data()), m.last, m.vocab, stream);
  return state;
}

void DeviceSurprise::restore(const State& state, CUstream_st* stream) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.behind = state.behind;
  if (m.behind >= 0)
    device::move(m.last, reinterpret_cast<const float*>(state.last.data()), m.vocab, stream);
}

DeviceSurprise DeviceSurprise::fork(CUstream_st* stream) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  DeviceSurprise other(m.vocab, m.chunk);
  other.impl_->behind = m.behind;
  if (m.behind >= 0) device::move(other.impl_->last, m.last, m.vocab, stream);
  return other;
}

}  // namespace episodic
