// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "base/rethrow.hpp"
#include "causal_layers.hpp"
#include "cuda.hpp"
#include "decoder_step.hpp"
#include "device_weights.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/open_model.hpp"
#include "sliding_windows.hpp"

namespace episodic {
namespace {

using device::Activations;
using device::Carver;
using device::CausalLayers;
using device::DecoderPart;
using device::DecoderSequence;
using device::DecoderSteps;
using device::DeviceBuffer;
using device::DeviceWeights;
using device::PinnedBuffer;
using device::StagingRing;

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

/// Layers that a memory leaves to the model: sliding ones beside full ones, and those without
/// attention.
std::vector<std::int64_t> unserved_layers(const ModelConfig& config) {
  const std::vector<std::int64_t> served = config.memory_layers();
  std::vector<std::int64_t> rest;
  for (std::int64_t l = 0; l < config.n_layers; ++l)
    if (!std::binary_search(served.begin(), served.end(), l)) rest.push_back(l);
  return rest;
}

/// Steps of up to `chunk` tokens of one sequence, and what it keeps of them.
void carve_room(Carver& c, const ModelConfig& config, std::int64_t head_dim, DType dtype,
                std::int64_t chunk, Activations& activations, DecoderSequence& sequence) {
  activations.carve(c, config, head_dim, dtype, chunk, 1);
  sequence.last_logits = c.take<float>(config.vocab_size);
  sequence.surprise = c.take<float>(chunk);
  sequence.parts = c.take<kernels::OnlineSoftmax>(kernels::kSurpriseParts);
  sequence.parts_arrived = c.take<std::uint32_t>(1);
}

std::int64_t activation_bytes(const ModelConfig& config, const DeviceWeights& weights, DType dtype,
                              std::int64_t chunk) {
  Carver counter;
  Activations activations;
  DecoderSequence sequence;
  carve_room(counter, config, weights.heads().head_dim(), dtype, chunk, activations, sequence);
  return counter.used();
}

}  // namespace

struct DeviceDecoder::Impl : DecoderSequence {
  explicit Impl(std::shared_ptr<DecoderSteps> of) { steps = std::move(of); }
  // What is enqueued still reads what is given back here.
  ~Impl() {
    static_cast<void>(cudaStreamSynchronize(stream()));
    steps->batch_graphs.forget(*this);
  }

  const ModelConfig& config() const { return steps->config; }
  cudaStream_t stream() const { return steps->stream.get(); }

  Activations activations;      // of steps of this sequence alone
  DeviceBuffer buffer;          // those, and what DecoderSequence points to
  std::int64_t chunk = 0;       // 0: there is no attention yet
  std::int64_t max_tokens = 0;  // without a memory
  std::int64_t tokens = 0;      // of the finished steps, as the causal layers saw them
  std::int64_t last_n = 0;      // of the last step
  std::int64_t generation = 0;  // of the memory that those tokens belong to
  StagingRing staging;
  PinnedBuffer host_logits;
  // Of the tokens since the host's memory that this one came from; only then.
  bool keeps_ids = false;
  // And the windows of the model's sliding layers, which that memory keeps beside it; if any.
  std::shared_ptr<device::SlidingWindows> windows;
  std::vector<std::int64_t> ids_since;

  bool use_graphs = true;
  DeviceMemoryOptions memory_options;  // of memories that it is given
  /// Over files, which may refuse a step at its end: the logits and the surprise before the open
  /// step, [vocab + chunk].
  DeviceBuffer before_step;
  device::StepGraphs graphs;  // of steps of one token; they hold the pointers of all the above

  void forget_attention();
  void take_room(std::int64_t new_chunk);
  void require_attention() const;
  std::int64_t tokens_now() const { return memory ? memory->tokens() : tokens; }

  void enqueue(std::int64_t n, float* maybe_logits);
  void copy_outputs(bool back);
  void follow_memory();
  void check_step(std::span<const std::int64_t> ids) const;
  void begin_step(std::int64_t n, StepKind kind);
  /// Closes a step that does not come to its end: the memory can be edited and kept as it was.
  void abandon_step() noexcept {
    if (memory) memory->abandon_step();
  }
  void finish_step(std::span<const std::int64_t> ids);
  std::optional<std::uint32_t> graph_kind() const;
  void step(std::span<const std::int64_t> tokens, StepKind kind, float* maybe_logits);
  bool launch_step(StepKind kind);
  static void check_batch(std::span<const SequenceStep> batch);
  template <class Enqueue>
  static bool launch_batch(std::span<const SequenceStep> batch, const Enqueue& enqueue);
  static std::vector<DeviceMemory::EndOfStep> ends_of(std::span<const SequenceStep> batch);
  static DecoderSteps::BatchRoom& batch_room(std::span<const SequenceStep> batch);
  static void forget_due(std::span<const SequenceStep> batch);
  static bool enqueue_batch(std::span<const SequenceStep> batch);
  static std::vector<std::exception_ptr> end_batch(std::span<const SequenceStep> batch,
                                                   bool launched);
  /// Waits, and throws what the memory found wrong on the device.
  void check_device() const;
  void require_finite_weights() const;
  /// [vocab], or empty if none follow the last token
  std::vector<float> read_last_logits();
  void write_last_logits(const std::vector<float>& row);
};

/// The open step, from its ids in device memory to its tokens' surprise.
void DeviceDecoder::Impl::enqueue(std::int64_t n, float* maybe_logits) {
  const DecoderPart all{this, 0, n, activations.positions};
  steps->enqueue({&all, 1}, activations, maybe_logits);
}

/// Keeps the logits and the surprise that the open step begins with, or, where its end was refused,
/// puts them back.
void DeviceDecoder::Impl::copy_outputs(bool back) {
  if (!before_step.data() || !stepped) return;
  auto* const kept = reinterpret_cast<float*>(before_step.data());
  const auto copy = [&](float* now, float* before, std::int64_t n) {
    device::check(cudaMemcpyAsync(back ? now : before, back ? before : now,
                                  static_cast<std::size_t>(n) * sizeof(float),
                                  cudaMemcpyDeviceToDevice, stream()),
                  "keeping logits and surprise");
  };
  copy(last_logits, kept, config().vocab_size);
  copy(surprise, kept + config().vocab_size, last_n);
}

/// What depends on the sequence in a step of one token, but for what is read on the device. Absent
/// where that can be no graph.
std::optional<std::uint32_t> DeviceDecoder::Impl::graph_kind() const {
  // The first token's surprise is no kernel's; such a step comes once in a sequence. A hook is the
  // host's.
  if (!use_graphs || !stepped || keys_hook) return std::nullopt;
  return memory ? memory->step_kind() : 0;
}

/// Launches the graph of an open step of one token. \return false: nothing is enqueued, the step is
/// as it was begun
bool DeviceDecoder::Impl::launch_step(StepKind kind) {
  const std::optional<std::uint32_t> shape = graph_kind();
  if (!shape) return false;
  try {
    return graphs.launch(device::StepGraphs::Key{{this, *shape}}, stream(), [&] {
      enqueue(1, nullptr);
      if (memory) memory->enqueue_end(surprise);
    });
  } catch (const DeviceError&) {
    // What is wrong with the step itself is found again without a graph.
    use_graphs = false;
    if (memory) memory->begin_step(1, kind);
    return false;
  }
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
  Carver carver(buffer.data());
  carve_room(carver, config(), steps->weights.heads().head_dim(), steps->dtype, new_chunk,
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
  CausalLayers causal(c, m.steps->weights.heads(), unserved_layers(c), m.steps->dtype, config.chunk,
                      max_tokens);
  causal.allocate(m.stream());
  m.take_room(config.chunk);
  for (std::size_t i = 0; i < served.size(); ++i)
    m.memory_layer[static_cast<std::size_t>(served[i])] = static_cast<std::int64_t>(i);
  m.causal = std::move(causal);
  if (memory.over_files())
    m.before_step =
        DeviceBuffer((c.vocab_size + config.chunk) * static_cast<std::int64_t>(sizeof(float)),
                     "a step's logits and surprise", "lower device_bytes");
  m.memory.emplace(std::move(memory));
  m.chunk = config.chunk;
  m.generation = m.memory->generation();
  return *m.memory;
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

/// The memory may have been reset, restored or loaded by its own calls.
void DeviceDecoder::Impl::follow_memory() {
  if (!memory) return;
  if (memory->tokens() == 0) {
    if (tokens > 0) causal.kept_rows().forget_marks();
    tokens = 0;
    stepped = false;
    ids_since.clear();
  } else if (!causal.empty() && memory->generation() != generation) {
    throw DataError(fmt::format(
        "DeviceDecoder: the memory stands at token {} by a call of its own, but the model's "
        "sliding layers and recurrent states have seen {} tokens; go back by the snapshots of the "
        "model",
        memory->tokens(), tokens));
  }
  generation = memory->generation();
}

/// Of a step that passed check_step.
void DeviceDecoder::Impl::begin_step(std::int64_t n, StepKind kind) {
  follow_memory();
  if (memory) {
    causal.kept_rows().before_step(tokens_now(), n, stream());
    return memory->begin_step(n, kind);
  }
  if (tokens + n > max_tokens)
    throw BudgetError(
        fmt::format("DeviceDecoder::step: there is room for max_tokens = {}, {} are there and {} "
                    "more come; attend with more",
                    max_tokens, tokens, n));
}

/// What can be said of a step before anything is done.
void DeviceDecoder::Impl::check_step(std::span<const std::int64_t> ids) const {
  require_attention();
  if (ids.empty() || static_cast<std::int64_t>(ids.size()) > chunk)
    throw DataError(fmt::format(
        "DeviceDecoder::step: {} tokens, must be in [1, chunk = {}]; feed longer texts in several "
        "steps",
        ids.size(), chunk));
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= config().vocab_size)
      throw DataError(fmt::format(
          "DeviceDecoder::step: ids[{}] = {} is not in the vocabulary of {} tokens; use the "
          "tokenizer of this model",
          i, ids[i], config().vocab_size));
}

/// The host's side of a step that is enqueued, and whose memory's step is ended.
void DeviceDecoder::Impl::finish_step(std::span<const std::int64_t> ids) {
  const auto n = static_cast<std::int64_t>(ids.size());
  tokens = memory ? memory->tokens() : tokens + n;
  last_n = n;
  stepped = true;
  if (keeps_ids) ids_since.insert(ids_since.end(), ids.begin(), ids.end());
}

void DeviceDecoder::Impl::step(std::span<const std::int64_t> ids, StepKind kind,
                               float* maybe_logits) {
  check_step(ids);
  const auto n = static_cast<std::int64_t>(ids.size());
  const device::CurrentDevice current(steps->device);
  begin_step(n, kind);
  try {
    staging.send(activations.positions, 1 + n, stream(), [&](std::int64_t* host) {
      *host = tokens_now();
      std::copy(ids.begin(), ids.end(), host + 1);
    });
    if (n == 1 && !maybe_logits && launch_step(kind)) {
      if (memory) memory->end_launched_step();
    } else {
      copy_outputs(false);
      enqueue(n, maybe_logits);
      try {
        if (memory) memory->end_step(surprise);
      } catch (...) {
        copy_outputs(true);
        throw;
      }
    }
  } catch (...) {
    abandon_step();
    throw;
  }
  finish_step(ids);
}

/// Of those that have a memory, in order.
std::vector<DeviceMemory::EndOfStep> DeviceDecoder::Impl::ends_of(
    std::span<const SequenceStep> batch) {
  std::vector<DeviceMemory::EndOfStep> ends;
  for (const SequenceStep& s : batch)
    if (Impl& m = *s.sequence->impl_; m.memory) ends.push_back({&*m.memory, m.surprise});
  return ends;
}

/// Activations of one step of them all.
DecoderSteps::BatchRoom& DeviceDecoder::Impl::batch_room(std::span<const SequenceStep> batch) {
  std::int64_t rows = 0;
  for (const SequenceStep& s : batch) rows += static_cast<std::int64_t>(s.ids.size());
  return batch[0].sequence->impl_->steps->batch_room(rows, static_cast<std::int64_t>(batch.size()));
}

/// What retention gives up before a step, of all in one launch.
void DeviceDecoder::Impl::forget_due(std::span<const SequenceStep> batch) {
  std::vector<DeviceMemory*> memories;
  for (const SequenceStep& s : batch)
    if (Impl& m = *s.sequence->impl_; m.memory) memories.push_back(&*m.memory);
  try {
    DeviceMemory::forget_due(memories);
  } catch (...) {
    // The begin_step of the one that failed does it again, and says so.
  }
}

/// As launch_step, of open steps of several sequences.
template <class Enqueue>
bool DeviceDecoder::Impl::launch_batch(std::span<const SequenceStep> batch,
                                       const Enqueue& enqueue) {
  device::StepGraphs::Key key;
  for (const SequenceStep& s : batch) {
    const Impl& m = *s.sequence->impl_;
    const std::optional<std::uint32_t> shape = m.graph_kind();
    if (!shape || s.ids.size() != 1) return false;
    key.emplace_back(&m, *shape);
  }
  DecoderSteps& steps = *batch[0].sequence->impl_->steps;
  try {
    return steps.batch_graphs.launch(key, steps.stream.get(), enqueue);
  } catch (const DeviceError&) {
    for (const SequenceStep& s : batch) {
      s.sequence->impl_->use_graphs = false;
      s.sequence->impl_->begin_step(1, s.kind);
    }
    return false;
  }
}

/// \throws DataError for a batch that is no step of one model, whatever its sequences are like
void DeviceDecoder::Impl::check_batch(std::span<const SequenceStep> batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Impl& m = *batch[i].sequence->impl_;
    if (m.steps != batch[0].sequence->impl_->steps)
      throw DataError(fmt::format(
          "DeviceDecoder::step_batch: sequence {} of the batch has weights of its own; make it by "
          "share_weights of the first one",
          i));
    for (std::size_t j = 0; j < i; ++j)
      if (batch[j].sequence->impl_.get() == &m)
        throw DataError(fmt::format(
            "DeviceDecoder::step_batch: sequences {} and {} of the batch are the same", j, i));
  }
}

/// Open steps, up to their memories' ends or, as a graph, with them. \return whether as a graph
bool DeviceDecoder::Impl::enqueue_batch(std::span<const SequenceStep> batch) {
  DecoderSteps& steps = *batch[0].sequence->impl_->steps;
  DecoderSteps::BatchRoom& room = batch_room(batch);
  const auto sequences = static_cast<std::int64_t>(batch.size());
  std::vector<DecoderPart> parts;
  std::int64_t rows = 0;
  for (const SequenceStep& s : batch) {
    const auto n = static_cast<std::int64_t>(s.ids.size());
    parts.push_back({s.sequence->impl_.get(), rows, n, room.of.positions + parts.size()});
    rows += n;
  }
  // The ids lie right behind the positions of these sequences, to be one copy.
  Activations activations = room.of;
  activations.ids = activations.positions + sequences;
  room.staging.send(activations.positions, sequences + rows, steps.stream.get(),
                    [&](std::int64_t* host) {
                      std::int64_t* id = host + sequences;
                      for (const SequenceStep& s : batch) {
                        *host++ = s.sequence->impl_->tokens_now();
                        id = std::copy(s.ids.begin(), s.ids.end(), id);
                      }
                    });
  const auto enqueue = [&] { steps.enqueue(parts, activations, nullptr); };
  if (launch_batch(batch, [&] {
        enqueue();
        DeviceMemory::enqueue_end_batch(ends_of(batch));
      }))
    return true;
  for (const SequenceStep& s : batch) s.sequence->impl_->copy_outputs(false);
  enqueue();
  return false;
}

/// Ends them. \return of each why its memory could not keep its events (files), which does not
/// undo the others' steps; null: it has made its step
std::vector<std::exception_ptr> DeviceDecoder::Impl::end_batch(std::span<const SequenceStep> batch,
                                                               bool launched) {
  const std::vector<DeviceMemory::EndOfStep> ends = ends_of(batch);
  std::vector<std::exception_ptr> of_memories(ends.size());
  if (launched)
    for (const DeviceMemory::EndOfStep& end : ends) end.memory->end_launched_step();
  else
    of_memories = DeviceMemory::end_step_batch(ends);
  std::vector<std::exception_ptr> failures;
  auto of_memory = of_memories.begin();
  for (const SequenceStep& s : batch) {
    Impl& m = *s.sequence->impl_;
    failures.push_back(m.memory ? *of_memory++ : nullptr);
    if (failures.back()) {
      m.abandon_step();
      m.copy_outputs(true);
    } else {
      m.finish_step(s.ids);
    }
  }
  return failures;
}

std::vector<std::exception_ptr> DeviceDecoder::try_step_batch(std::span<const SequenceStep> batch) {
  Impl::check_batch(batch);
  std::vector<std::exception_ptr> failures(batch.size());
  if (batch.empty()) return failures;
  const device::CurrentDevice current(batch[0].sequence->impl_->steps->device);
  std::vector<std::size_t> left(batch.size());  // who is in the step
  std::iota(left.begin(), left.end(), std::size_t{0});
  const auto steps_left = [&] {
    std::vector<SequenceStep> steps;
    for (const std::size_t i : left) steps.push_back(batch[i]);
    return steps;
  };
  // Calls f(step) of each. Who throws leaves the step.
  const auto each = [&](const auto& f) {
    std::erase_if(left, [&](std::size_t i) {
      try {
        f(batch[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
      return failures[i] != nullptr;
    });
  };
  const auto each_alone = [&] {
    each([](const SequenceStep& s) { s.sequence->step(s.ids, s.kind); });
    return failures;
  };
  const auto abandon_steps = [&] {
    for (const std::size_t i : left) batch[i].sequence->impl_->abandon_step();
  };

  each([](const SequenceStep& s) { s.sequence->impl_->check_step(s.ids); });
  if (left.size() > 1) {
    const std::vector<SequenceStep> steps = steps_left();
    Impl::batch_room(steps);
    Impl::forget_due(steps);
    each([](const SequenceStep& s) {
      s.sequence->impl_->begin_step(static_cast<std::int64_t>(s.ids.size()), s.kind);
    });
  }
  if (left.size() < 2) return each_alone();
  const std::vector<SequenceStep> steps = steps_left();
  bool launched = false;
  try {
    launched = Impl::enqueue_batch(steps);
  } catch (...) {
    // A file that cannot be read, a hook that throws: nobody has made the step, and each may begin
    // it anew. Alone, each says whether it was the one.
    abandon_steps();
    return each_alone();
  }
  std::vector<std::exception_ptr> ended;
  try {
    ended = Impl::end_batch(steps, launched);
  } catch (...) {  // the device fails, and no memory is at fault
    abandon_steps();
    throw;
  }
  for (std::size_t i = 0; i < left.size(); ++i) failures[left[i]] = ended[i];
  return failures;
}

void DeviceDecoder::step_batch(std::span<const SequenceStep> batch) {
  if (batch.size() == 1) return batch[0].sequence->step(batch[0].ids, batch[0].kind);
  rethrow_first_of_batch(try_step_batch(batch));
}

void DeviceDecoder::step(std::span<const std::int64_t> ids, StepKind kind) {
  impl_->step(ids, kind, nullptr);
}

void DeviceDecoder::step(std::span<const std::int64_t> ids, std::span<float> logits) {
  const std::size_t wanted = ids.size() * static_cast<std::size_t>(impl_->config().vocab_size);
  if (logits.size() != wanted)
    throw DataError(fmt::format("DeviceDecoder::step: room for {} logits, {} tokens have {}",
                                logits.size(), ids.size(), wanted));
  impl_->step(ids, StepKind::decode, logits.data());
  impl_->check_device();
}

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

std::vector<float> DeviceDecoder::Impl::read_last_logits() {
  std::vector<float> row;
  if (!stepped) return row;
  row.resize(static_cast<std::size_t>(config().vocab_size));
  device::check(cudaMemcpyAsync(row.data(), last_logits, row.size() * sizeof(float),
                                cudaMemcpyDeviceToHost, stream()),
                "copying logits");
  check_device();
  return row;
}

void DeviceDecoder::Impl::write_last_logits(const std::vector<float>& row) {
  stepped = !row.empty();
  if (row.empty()) return;
  device::check(cudaMemcpyAsync(last_logits, row.data(), row.size() * sizeof(float),
                                cudaMemcpyHostToDevice, stream()),
                "copying logits");
  device::check(cudaStreamSynchronize(stream()), "copying logits");
}

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

DeviceMemory& DeviceDecoder::attach_memory(EpisodicMemory& from, std::int64_t max_tokens) {
  Impl& m = *impl_;
  MemoryConfig config = from.config();
  // What neither tier above holds lies in the memory's own folder, in files without names.
  if (config.disk_dir.empty() && config.host_bytes > 0) config.disk_dir = from.folder().string();
  const std::vector<float>& last = from.last_logits();
  if (!last.empty() && static_cast<std::int64_t>(last.size()) != m.config().vocab_size)
    throw ConfigError(
        fmt::format("DeviceDecoder::attach_memory: the memory's last logits are {}, but the "
                    "model's vocabulary is "
                    "{}",
                    last.size(), m.config().vocab_size));
  if (m.steps->weights.heads().padded())
    throw ConfigError(fmt::format(
        "DeviceDecoder::attach_memory: heads of {} channels are padded to {} on the device, and no "
        "memory of the host is; run this {} model on the CPU, or with a memory of the device's own",
        m.config().head_dim, m.steps->weights.heads().head_dim(), m.config().model_type));
  const std::vector<std::int64_t> sliding = unserved_layers(m.config());
  for (const std::int64_t l : sliding)
    if (const int rope = m.config().layers[static_cast<std::size_t>(l)].rope;
        rope >= 0 && m.config().ropes[static_cast<std::size_t>(rope)].depends_on_length())
      throw ConfigError(fmt::format(
          "DeviceDecoder::attach_memory: the rotary table of this {} model's sliding layers "
          "follows the length of the context, which a device's does not; run it on the "
          "CPU",
          m.config().model_type));
  const device::CurrentDevice current(m.steps->device);
  DeviceMemory& memory = attach_memory(config, max_tokens, from.given_boundaries());
  try {
    if (!sliding.empty()) {
      auto windows = std::make_shared<device::SlidingWindows>(m.config(), sliding);
      from.keep_beside(windows);  // which takes over what was kept of them
      if (from.tokens() > 0) m.causal.write_windows(*windows, m.stream());
      m.windows = std::move(windows);
    }
    memory.load(from);
    m.write_last_logits(last);
  } catch (...) {
    m.forget_attention();  // half of it is of no use
    throw;
  }
  m.tokens = memory.tokens();
  m.generation = memory.generation();
  m.keeps_ids = true;
  return memory;
}

void DeviceDecoder::save(EpisodicMemory& to) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.steps->device);
  std::vector<device::SlidingWindows::Layer> windows;
  RecurrentState recurrent;
  if (m.windows) {
    windows = m.causal.read_windows(m.windows->layers(), m.tokens_now(), m.stream());
    recurrent = m.causal.read_recurrent(m.config(), m.tokens_now(), m.stream());
  }
  memory().save(to, m.ids_since, m.read_last_logits());
  if (m.windows) m.windows->set(m.tokens_now(), std::move(windows), std::move(recurrent));
  m.ids_since.clear();
}

class DeviceDecoder::Snapshot {
 public:
  std::shared_ptr<const MemorySnapshot> memory;  // null without one
  std::shared_ptr<device::KeptRows::Mark> rows;  // of the layers beside it
  std::vector<std::byte> caches;                 // without a memory
  std::vector<float> matrices;                   // of recurrent heads, beside a memory
  std::int64_t tokens = 0, chunk = 0, max_tokens = 0;
  std::vector<float> last_logits;
};

std::shared_ptr<const DeviceDecoder::Snapshot> DeviceDecoder::snapshot() {
  Impl& m = *impl_;
  m.require_attention();
  const device::CurrentDevice current(m.steps->device);
  m.follow_memory();
  auto s = std::make_shared<Snapshot>();
  if (m.memory) {
    s->memory = m.memory->snapshot();
    s->rows = m.causal.kept_rows().mark(m.tokens_now());
    s->matrices = m.causal.recurrences().copy_matrices(m.tokens_now(), m.stream());
  } else {
    s->caches = m.causal.read(m.stream());
  }
  s->tokens = m.tokens_now();
  s->chunk = m.chunk;
  s->max_tokens = m.max_tokens;
  s->last_logits = m.read_last_logits();
  return s;
}

void DeviceDecoder::restore(const Snapshot& s) {
  Impl& m = *impl_;
  m.require_attention();
  const device::CurrentDevice current(m.steps->device);
  if (!s.memory != !m.memory || s.chunk != m.chunk || s.max_tokens != m.max_tokens)
    throw ConfigError("DeviceDecoder::restore: the snapshot was taken of another attention");
  const std::int64_t back = m.tokens_now() - s.tokens;
  if (m.memory) {
    m.memory->restore(*s.memory);  // which refuses a snapshot of later tokens
    m.causal.kept_rows().restore(*s.rows, m.stream());
    m.causal.recurrences().put_matrices(s.matrices, s.tokens, m.stream());
  } else {
    m.causal.write(s.caches, m.stream());
  }
  m.tokens = s.tokens;
  if (m.memory) m.generation = m.memory->generation();
  m.write_last_logits(s.last_logits);
  // Left are those between the host's memory and the snapshot; none, if that came before.
  const auto known = static_cast<std::int64_t>(m.ids_since.size());
  m.ids_since.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, known - back)));
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
