// SPDX-License-Identifier: Apache-2.0
// How a DeviceDecoder is made and given its attention, and what it tells.
#include "episodic/device/device_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "decoder_impl.hpp"
#include "device_weights.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic {

using device::Activations;
using device::CausalLayers;
using device::DecoderSequence;
using device::DecoderSteps;
using device::DeviceBuffer;
using device::DeviceWeights;
using device::Layout;
using device::PinnedBuffer;
using device::StagingRing;

namespace {

/// The dtype asked for, else that of the embedding; quantised weights are widened to bfloat16.
DType dtype_of(const DeviceDecoder::Options& options, const PlannedWeights& planned) {
  const TensorType stored = planned.at(WeightRole::embedding).type;
  const DType dtype = options.dtype.value_or(stored == TensorType::f32   ? DType::float32
                                             : stored == TensorType::f16 ? DType::float16
                                                                         : DType::bfloat16);
  if (is_code(dtype))
    throw ConfigError(fmt::format("DeviceDecoder: dtype = {}, must be float32, float16 or bfloat16",
                                  name_of(dtype)));
  return dtype;
}

/// Steps of up to `chunk` tokens of one sequence, and what it keeps of them.
void lay_out_room(Layout& c, const ModelConfig& config, std::int64_t head_dim, DType dtype,
                  std::int64_t chunk, Activations& activations, DecoderSequence& sequence) {
  activations.lay_out(c, config, head_dim, dtype, chunk, 1);
  sequence.last_logits = c.take<float>(config.vocab_size);
  sequence.surprise = c.take<float>(chunk);
  sequence.parts = c.take<kernels::OnlineSoftmax>(kernels::kSurpriseParts);
  sequence.parts_arrived = c.take<std::uint32_t>(1);
}

std::int64_t activation_bytes(const ModelConfig& config, const DeviceWeights& weights, DType dtype,
                              std::int64_t chunk) {
  Layout counter;
  Activations activations;
  DecoderSequence sequence;
  lay_out_room(counter, config, weights.heads().head_dim(), dtype, chunk, activations, sequence);
  return counter.bytes();
}

}  // namespace

std::vector<std::int64_t> unserved_layers(const ModelConfig& config) {
  const std::vector<std::int64_t> served = config.memory_layers();
  std::vector<std::int64_t> rest;
  for (std::int64_t l = 0; l < config.n_layers; ++l)
    if (!std::binary_search(served.begin(), served.end(), l)) rest.push_back(l);
  return rest;
}

DeviceDecoder::DeviceDecoder() = default;
DeviceDecoder::DeviceDecoder(DeviceDecoder&&) noexcept = default;
DeviceDecoder& DeviceDecoder::operator=(DeviceDecoder&&) noexcept = default;

DeviceDecoder::~DeviceDecoder() = default;

DeviceDecoder DeviceDecoder::load(const OpenModel& opened, const Options& options) {
  require_device(options.device);
  // Adapters beside the weights are added to them: the device has one matrix for each product.
  OpenModel merged;
  const OpenModel* from = &opened;
  if (!opened.adapters.empty() && !opened.merged) {
    merged = opened;
    merge_lora(merged, merged.adapters);
    from = &merged;
  }
  const PlannedWeights planned(from->config, from->tensors);
  const device::CurrentDevice current(options.device);
  DeviceDecoder model;
  model.impl_ = std::make_unique<Impl>(std::make_shared<DecoderSteps>(
      from->config, dtype_of(options, planned), options.device, planned,
      device::WeightChanges{options.fp8_weights, false, std::nullopt}));
  model.impl_->steps->path = opened.path;
  model.impl_->use_graphs = options.graphs;
  model.impl_->steps->early_launches = options.early_launches;
  model.impl_->memory_options.event_tokens = options.event_tokens;
  model.impl_->memory_options.representatives = options.representatives;
  model.impl_->memory_options.codes_from = options.codes_from;
  DecoderSteps& steps = *model.impl_->steps;
  steps.weights.load(steps.config, planned, steps.stream.get());
  return model;
}

DeviceDecoder DeviceDecoder::load(const std::filesystem::path& path, const Options& options) {
  require_device(options.device);
  return load(open_model(path), options);
}

DeviceDecoder DeviceDecoder::share_weights() const {
  DeviceDecoder other;
  other.impl_ = std::make_unique<Impl>(impl_->steps);
  other.impl_->use_graphs = impl_->use_graphs;
  other.impl_->memory_options = impl_->memory_options;
  return other;
}

DeviceDecoder DeviceDecoder::load(const std::filesystem::path& path) {
  return load(path, Options{});
}

DeviceModelBytes DeviceDecoder::bytes_needed(const std::filesystem::path& path,
                                             const Options& options, std::int64_t chunk) {
  return bytes_needed(path, options, chunk, ModelOptions());
}

DeviceModelBytes DeviceDecoder::bytes_needed(const std::filesystem::path& path,
                                             const Options& options, std::int64_t chunk,
                                             const ModelOptions& changes) {
  const OpenModel opened = open_model(path);
  const ModelConfig& c = opened.config;
  const PlannedWeights planned(c, opened.tensors);
  const DType dtype = dtype_of(options, planned);
  // Adapters leave the matrices that they are merged into plain; which they are is in their files.
  const bool plain = !changes.lora.empty() && !changes.quantize;
  const DeviceWeights weights(c, dtype, planned, {options.fp8_weights, plain, changes.quantize});
  // Beside a memory the layers all slide, and their windows bound them.
  constexpr std::int64_t kAnyLength = std::int64_t{1} << 29;
  const CausalLayers causal(c, weights.heads(), unserved_layers(c), dtype, chunk, kAnyLength);
  return {dtype, weights.bytes() + device::Cublas::kWorkspaceBytes,
          activation_bytes(c, weights, dtype, chunk), causal.bytes()};
}

/// Waits for what reads it. If something is refused from here on, nothing is used that was made for
/// another chunk: without attention no step can be made.
void DeviceDecoder::Impl::forget_attention() {
  device::check(cudaStreamSynchronize(stream()), "the model's steps");
  graphs.clear();
  steps->batch_graphs.forget(*this);
  memory.reset();  // its bytes may be needed
  before_step = DeviceBuffer();
  causal = {};
  memory_layer.assign(static_cast<std::size_t>(config().n_layers), -1);
  chunk = max_tokens = tokens = last_n = generation = 0;
  stepped = keeps_ids = false;
  windows.reset();
  ids_since.clear();
}

/// Of steps of up to so many tokens.
void DeviceDecoder::Impl::take_room(std::int64_t new_chunk) {
  const std::int64_t needed = activation_bytes(config(), steps->weights, steps->dtype, new_chunk);
  if (buffer.bytes() < needed) {
    buffer = DeviceBuffer();  // its bytes may be needed too
    buffer = DeviceBuffer(needed, "a step's activations", "lower chunk");
  }
  Layout layout(buffer.data());
  lay_out_room(layout, config(), steps->weights.heads().head_dim(), steps->dtype, new_chunk,
               activations, *this);
  device::check(cudaMemsetAsync(parts_arrived, 0, sizeof(*parts_arrived), stream()), "clearing");
  staging = StagingRing((1 + new_chunk) * static_cast<std::int64_t>(sizeof(std::int64_t)));
  host_logits = PinnedBuffer(config().vocab_size * static_cast<std::int64_t>(sizeof(float)),
                             "a row of logits", "raise the limit of locked memory");
}

DeviceMemory& DeviceDecoder::attach_memory(const MemoryConfig& config, std::int64_t max_tokens,
                                           std::vector<std::int64_t> given) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.steps->device);
  m.forget_attention();
  const ModelConfig& c = m.config();
  const std::vector<std::int64_t> served = c.memory_layers();
  for (const std::int64_t l : served)
    if (const std::int64_t window = c.layers[static_cast<std::size_t>(l)].window;
        window > 0 && config.n_local > window)
      throw ConfigError(fmt::format(
          "DeviceDecoder::attach_memory: n_local = {} exceeds the sliding window of {} tokens that "
          "layer {} has; set n_local to at most that",
          config.n_local, window, l));
  DeviceMemoryOptions options = m.memory_options;
  options.dtype = m.steps->dtype;
  options.max_tokens = max_tokens;
  DeviceMemory memory(config, m.steps->weights.heads().shape(memory_shape(c, config.n_local)),
                      options, m.stream(), std::move(given));
  m.attend_with(std::move(memory));
  return *m.memory;
}

/// From here on, after forget_attention.
void DeviceDecoder::Impl::attend_with(DeviceMemory given) {
  const ModelConfig& c = config();
  const std::int64_t of_memory = given.config().chunk;
  CausalLayers beside(c, steps->weights.heads(), unserved_layers(c), steps->dtype, of_memory,
                      given.options().max_tokens);
  beside.allocate(stream());
  take_room(of_memory);
  const std::vector<std::int64_t> served = c.memory_layers();
  for (std::size_t i = 0; i < served.size(); ++i)
    memory_layer[static_cast<std::size_t>(served[i])] = static_cast<std::int64_t>(i);
  causal = std::move(beside);
  if (given.over_files())
    before_step =
        DeviceBuffer((c.vocab_size + of_memory) * static_cast<std::int64_t>(sizeof(float)),
                     "a step's logits and surprise", "lower device_bytes");
  memory.emplace(std::move(given));
  chunk = of_memory;
  generation = memory->generation();
}

void DeviceDecoder::attend_fully(std::int64_t max_tokens, std::int64_t chunk) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.steps->device);
  m.forget_attention();
  if (max_tokens < 1 || chunk < 1)
    throw ConfigError(
        fmt::format("DeviceDecoder::attend_fully: max_tokens = {}, chunk = {}, both must be >= 1",
                    max_tokens, chunk));
  chunk = std::min(chunk, max_tokens);
  std::vector<std::int64_t> all(static_cast<std::size_t>(m.config().n_layers));
  std::iota(all.begin(), all.end(), 0);
  CausalLayers causal(m.config(), m.steps->weights.heads(), std::move(all), m.steps->dtype, chunk,
                      max_tokens);
  causal.allocate(m.stream());
  m.take_room(chunk);
  m.causal = std::move(causal);
  m.chunk = chunk;
  m.max_tokens = max_tokens;
}

void DeviceDecoder::Impl::require_attention() const {
  if (chunk == 0)
    throw DataError(
        "DeviceDecoder: it has no memory yet; call attach_memory, or attend_fully, before a step");
}

DeviceMemory& DeviceDecoder::memory() {
  if (!impl_->memory)
    throw DataError("DeviceDecoder: it has no memory yet; call attach_memory first");
  return *impl_->memory;
}

const ModelConfig& DeviceDecoder::config() const { return impl_->config(); }

std::int64_t DeviceDecoder::chunk() const {
  impl_->require_attention();
  return impl_->chunk;
}

std::int64_t DeviceDecoder::tokens() const { return impl_->tokens_now(); }

void DeviceDecoder::Impl::check_device() const {
  if (!memory) {
    device::check(cudaStreamSynchronize(stream()), "the model's kernels");
    return;
  }
  try {
    memory->check();
  } catch (const DataError&) {
    require_finite_weights();
    throw;
  }
}

/// Of the files, which are opened again: the device holds them in other types and layouts.
void DeviceDecoder::Impl::require_finite_weights() const {
  OpenModel opened;
  try {
    opened = open_model(steps->path);
  } catch (const Error&) {
    return;  // they are gone, and cannot tell
  }
  PlannedWeights(opened.config, opened.tensors).require_finite();
}

void DeviceDecoder::explain_not_finite() const { impl_->require_finite_weights(); }

std::vector<float> DeviceDecoder::surprise() {
  Impl& m = *impl_;
  if (!m.stepped) throw DataError("DeviceDecoder::surprise: no step was made yet; call step first");
  const device::CurrentDevice current(m.steps->device);
  std::vector<float> values(static_cast<std::size_t>(m.last_n));
  device::check(cudaMemcpyAsync(values.data(), m.surprise, values.size() * sizeof(float),
                                cudaMemcpyDeviceToHost, m.stream()),
                "copying surprise");
  m.check_device();
  if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); })) {
    m.require_finite_weights();
    throw DataError("DeviceDecoder::surprise: it is NaN: the logits before a token make no sense");
  }
  return values;
}

std::span<const float> DeviceDecoder::logits() {
  Impl& m = *impl_;
  if (!m.stepped) throw DataError("DeviceDecoder::logits: no step was made yet; call step first");
  const device::CurrentDevice current(m.steps->device);
  const auto vocab = static_cast<std::size_t>(m.config().vocab_size);
  device::check(cudaMemcpyAsync(m.host_logits.as<float>(), m.last_logits, vocab * sizeof(float),
                                cudaMemcpyDeviceToHost, m.stream()),
                "copying logits");
  m.check_device();
  const std::span<const float> row(m.host_logits.as<float>(), vocab);
  bool any = false;  // of all, without a branch for each
  for (const float x : row) any |= std::isnan(x);
  if (any) {
    m.require_finite_weights();
    throw DataError(
        "DeviceDecoder::logits: they are NaN, though the weights are not: float32 may have the "
        "range that the dtype lacks; reset or restore the sequence");
  }
  return row;
}

void DeviceDecoder::set_keys_hook(KeysHook hook) { impl_->keys_hook = std::move(hook); }

DType DeviceDecoder::dtype() const { return impl_->steps->dtype; }
bool DeviceDecoder::graphs() const { return impl_->use_graphs; }
DeviceModelBytes DeviceDecoder::bytes() const {
  return {impl_->steps->dtype, impl_->steps->weights.bytes() + device::Cublas::kWorkspaceBytes,
          impl_->buffer.bytes() + impl_->steps->batch_bytes(), impl_->causal.bytes()};
}

}  // namespace episodic
