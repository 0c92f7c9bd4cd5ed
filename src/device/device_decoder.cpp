// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_decoder.hpp"

#include <cublas_v2.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "causal_layers.hpp"
#include "cuda.hpp"
#include "device_weights.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/open_model.hpp"
#include "kernels/decoder.hpp"
#include "kernels/surprise.hpp"

namespace episodic {
namespace {

using device::Carver;
using device::CausalLayers;
using device::DeviceBuffer;
using device::DeviceLayerWeights;
using device::DeviceLinear;
using device::DeviceWeights;
using device::PinnedBuffer;
using device::StagingRing;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(fmt::format("cuBLAS: {}: {}", what, cublasGetStatusString(status)));
}

cudaDataType_t cublas_type(DType dtype) {
  return dtype == DType::float32 ? CUDA_R_32F : dtype == DType::float16 ? CUDA_R_16F : CUDA_R_16BF;
}

class Stream {
 public:
  Stream() {
    device::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  ~Stream() {
    if (stream_) static_cast<void>(cudaStreamDestroy(stream_));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Cublas {
 public:
  explicit Cublas(cudaStream_t stream) {
    check(cublasCreate(&handle_), "starting it");
    check(cublasSetStream(handle_, stream), "setting its stream");
    // Its own workspace would be allocated in the first products, and may not be in a capture.
    workspace_ = DeviceBuffer(kWorkspaceBytes, "the products' workspace", "free some");
    check(cublasSetWorkspace(handle_, workspace_.data(), kWorkspaceBytes), "its workspace");
  }
  ~Cublas() {
    if (handle_) static_cast<void>(cublasDestroy(handle_));
  }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  /// y [n, out] of `to` = x [n, in] of `from` times W^T, or added to what y holds. No bias.
  void multiply(const DeviceLinear& w, DType from, const void* x, std::int64_t n, DType to, void* y,
                bool add) const {
    const float one = 1.0f, beta = add ? 1.0f : 0.0f;
    check(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(w.out),
                       static_cast<int>(n), static_cast<int>(w.in), &one, w.weight,
                       cublas_type(from), static_cast<int>(w.in), x, cublas_type(from),
                       static_cast<int>(w.in), &beta, y, cublas_type(to), static_cast<int>(w.out),
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "a product");
  }

  static constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // what it recommends for sm_90

 private:
  cublasHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
};

/// Logits of a step that are held at once: 8 MiB, which stay in the cache between the product that
/// makes them and the kernel that reads them.
constexpr std::int64_t kTileLogits = 2 << 20;
/// Of each row at least so many, so that a product has work for the whole device.
constexpr std::int64_t kLeastPiece = 1024;

/// Logits of each of n rows in a piece of the vocabulary.
std::int64_t piece_width(std::int64_t n, std::int64_t vocab) {
  const std::int64_t width = kTileLogits / n / kLeastPiece * kLeastPiece;
  return std::min(vocab, std::max(kLeastPiece, width));
}

/// What a step leaves in device memory between its launches.
struct Activations {
  std::int64_t* position = nullptr;           // of the step's first token, and behind it:
  std::int64_t* ids = nullptr;                // [chunk]
  float *hidden = nullptr, *added = nullptr;  // [chunk, hidden]
  std::byte *normed = nullptr, *qkv = nullptr, *attended = nullptr, *gate_up = nullptr,
            *inner = nullptr;
  float *tile = nullptr, *last_logits = nullptr, *surprise = nullptr;
  kernels::SurpriseState* surprise_state = nullptr;

  void carve(Carver& c, const ModelConfig& config, std::int64_t head_dim, DType dtype,
             std::int64_t chunk) {
    const std::int64_t element = size_of(dtype);
    std::int64_t heads = 0, queries = 0, inner_size = 0;
    for (const LayerSpec& s : config.layers) {
      heads = std::max(heads, s.n_heads + 2 * s.n_kv_heads);
      queries = std::max(queries, s.n_heads);
      inner_size = std::max(inner_size, s.intermediate_size);
    }
    position = c.take<std::int64_t>(1 + chunk);
    ids = position ? position + 1 : nullptr;
    hidden = c.take<float>(chunk * config.hidden_size);
    added = c.take<float>(chunk * config.hidden_size);
    normed = c.take(chunk * config.hidden_size * element);
    qkv = c.take(chunk * heads * head_dim * element);
    attended = c.take(chunk * queries * head_dim * element);
    gate_up = c.take(chunk * 2 * inner_size * element);
    inner = c.take(chunk * inner_size * element);
    tile = c.take<float>(
        std::min(chunk * config.vocab_size, std::max(kTileLogits, chunk * kLeastPiece)));
    last_logits = c.take<float>(config.vocab_size);
    surprise = c.take<float>(chunk);
    surprise_state = c.take<kernels::SurpriseState>(chunk);
  }

  static std::int64_t bytes(const ModelConfig& config, std::int64_t head_dim, DType dtype,
                            std::int64_t chunk) {
    Carver counter;
    Activations().carve(counter, config, head_dim, dtype, chunk);
    return counter.used();
  }
};

/// The dtype asked for, else that of the embedding; quantised weights are widened to bfloat16.
DType dtype_of(const DeviceDecoder::Options& options, const PlannedWeights& planned) {
  const TensorType stored = planned.at(WeightRole::embedding).type;
  const DType dtype = options.dtype.value_or(stored == TensorType::f32   ? DType::float32
                                             : stored == TensorType::f16 ? DType::float16
                                                                         : DType::bfloat16);
  if (dtype == DType::int8)
    throw ConfigError("DeviceDecoder: dtype = int8, must be float32, float16 or bfloat16");
  return dtype;
}

/// Layers that a memory leaves to the model: sliding ones beside full ones.
std::vector<std::int64_t> unserved_layers(const ModelConfig& config) {
  const std::vector<std::int64_t> served = config.memory_layers();
  std::vector<std::int64_t> rest;
  for (std::int64_t l = 0; l < config.n_layers; ++l)
    if (!std::binary_search(served.begin(), served.end(), l)) rest.push_back(l);
  return rest;
}

/// Kinds of steps that graphs are made of; there are fewer (DeviceMemory::step_kind).
constexpr std::size_t kMaxGraphs = 16;

/// Of one kind of step.
struct StepGraph {
  std::uint32_t kind;
  std::optional<device::Graph> graph;  // absent after the first such step
};

}  // namespace

struct DeviceDecoder::Impl : Activations {
  Impl(ModelConfig c, DType d) : config(std::move(c)), dtype(d), weights(config, dtype) {}
  // What is enqueued still reads what is given back here.
  ~Impl() { static_cast<void>(cudaStreamSynchronize(stream.get())); }

  ModelConfig config;
  DType dtype;
  DeviceWeights weights;
  int device = 0;
  Stream stream;
  Cublas cublas{stream.get()};

  // what attention reads: a memory and the layers that it leaves, or those alone
  std::optional<DeviceMemory> memory;
  CausalLayers causal;
  std::int64_t chunk = 0;                  // 0: there is no attention yet
  std::int64_t max_tokens = 0;             // without a memory
  std::int64_t tokens = 0;                 // of the finished steps, as the causal layers saw them
  std::int64_t last_n = 0;                 // of the last step
  std::int64_t generation = 0;             // of the memory that those tokens belong to
  std::vector<std::int64_t> memory_layer;  // its number in the memory, -1: a causal layer
  DeviceBuffer activations;
  StagingRing staging;
  PinnedBuffer host_logits;
  bool stepped = false;  // last_logits follow the sequence's last token
  // Of the tokens since the host's memory that this one came from; only then.
  bool keeps_ids = false;
  std::vector<std::int64_t> ids_since;

  bool use_graphs = true;
  std::vector<StepGraph> graphs;  // of steps of one token; they hold the pointers of all the above

  void forget_attention();
  void take_room(std::int64_t new_chunk);
  void require_attention() const;
  std::int64_t tokens_now() const { return memory ? memory->tokens() : tokens; }

  // -- a step's parts, enqueued
  void multiply(const DeviceLinear& w, const void* x, std::int64_t n, DType to, void* y,
                bool add = false) {
    cublas.multiply(w, dtype, x, n, to, y, add);
  }
  void add_norm(kernels::AddNormParams p, std::int64_t n, const float* maybe_norm) {
    p.dtype = dtype;
    p.n = n;
    p.width = config.hidden_size;
    p.eps = static_cast<float>(config.rms_norm_eps);
    p.hidden = hidden;
    p.maybe_norm = maybe_norm;
    p.y = normed;
    device::check(kernels::add_norm(p, stream.get()), "the residual stream");
  }
  void finish_block(const DeviceLinear& w, const std::byte* x, std::int64_t n,
                    const float* maybe_norm_of_added, const float* maybe_next_norm);
  void attend(std::int64_t l);
  void run_layer(std::int64_t l, std::int64_t n);
  /// \param maybe_logits [n, vocab] in host memory, written; null: not wanted
  void run_head(std::int64_t n, float* maybe_logits);
  void first_surprise();
  void run_step(std::int64_t n, float* maybe_logits = nullptr);
  void end_of_step();

  void follow_memory();
  void begin_step(std::int64_t n, StepKind kind);
  std::optional<std::uint32_t> step_kind() const;
  void step(std::span<const std::int64_t> tokens, StepKind kind, float* maybe_logits);
  bool launch_step(StepKind kind);
  /// Waits, and throws what the memory found wrong on the device.
  void check_device() const;
  /// [vocab], or empty if none follow the last token
  std::vector<float> read_last_logits();
  void write_last_logits(const std::vector<float>& row);
};

/// Adds a block's last product to the residual stream, and makes the next block's input of that.
void DeviceDecoder::Impl::finish_block(const DeviceLinear& w, const std::byte* x, std::int64_t n,
                                       const float* maybe_norm_of_added,
                                       const float* maybe_next_norm) {
  kernels::AddNormParams p;
  p.maybe_bias = w.maybe_bias;
  p.maybe_norm_of_added = maybe_norm_of_added;
  p.multiplier = static_cast<float>(config.residual_multiplier);
  const bool directly = !maybe_norm_of_added && p.multiplier == 1.0f;
  if (!directly) p.maybe_added = added;
  multiply(w, x, n, DType::float32, directly ? hidden : added, directly);
  add_norm(p, n, maybe_next_norm);
}

void DeviceDecoder::Impl::attend(std::int64_t l) {
  const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
  const std::int64_t row = weights.layers[static_cast<std::size_t>(l)].qkv.out;
  const std::int64_t head = weights.heads().head_dim() * size_of(dtype);
  DeviceMemory::LayerStep step;
  step.q = qkv;
  step.k = qkv + spec.n_heads * head;
  step.v = qkv + (spec.n_heads + spec.n_kv_heads) * head;
  step.q_row_stride = step.k_row_stride = step.v_row_stride = row;
  step.out = attended;
  step.scale = static_cast<float>(spec.scale);
  const std::int64_t served = memory_layer[static_cast<std::size_t>(l)];
  if (served >= 0)
    memory->attend(served, step);
  else
    causal.attend(l, step, stream.get());
}

void DeviceDecoder::Impl::run_layer(std::int64_t l, std::int64_t n) {
  const LayerSpec& spec = config.layers[static_cast<std::size_t>(l)];
  const DeviceLayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
  multiply(w.qkv, normed, n, dtype, qkv);
  kernels::FinishQkvParams heads;
  heads.dtype = dtype;
  heads.n = n;
  heads.n_heads = spec.n_heads;
  heads.n_kv_heads = spec.n_kv_heads;
  heads.head_dim = weights.heads().head_dim();
  heads.qkv = qkv;
  heads.maybe_bias = w.qkv.maybe_bias;
  heads.maybe_q_norm = w.q_norm;
  heads.maybe_k_norm = w.k_norm;
  heads.whole_rows = spec.qk_norm == QkNorm::row;
  heads.normed_channels = config.head_dim;
  heads.eps = static_cast<float>(config.rms_norm_eps);
  device::check(kernels::finish_qkv(heads, stream.get()), "biases and norms of q, k and v");
  attend(l);
  finish_block(w.o, attended, n, w.attended_norm, w.feed_norm);
  multiply(w.gate_up, normed, n, dtype, gate_up);
  device::check(kernels::gate_times_up(
                    {dtype,
                     spec.activation == Activation::silu ? kernels::GateActivation::silu
                                                         : kernels::GateActivation::gelu_tanh,
                     gate_up, w.gate_up.maybe_bias, n, spec.intermediate_size, inner},
                    stream.get()),
                "the gate");
  const bool last = l + 1 == config.n_layers;
  finish_block(
      w.down, inner, n, w.fed_norm,
      last ? weights.final_norm : weights.layers[static_cast<std::size_t>(l) + 1].input_norm);
}

/// Of the step's first token, by the logits behind the step before.
void DeviceDecoder::Impl::first_surprise() {
  if (!stepped)
    return device::check(cudaMemsetAsync(surprise, 0, sizeof(float), stream.get()), "surprise");
  kernels::SurpriseParams p;
  p.logits = last_logits;
  p.dtype = DType::float32;
  p.n = 1;
  p.vocab = p.row_stride = config.vocab_size;
  p.targets = ids;
  p.surprise = surprise;
  device::check(kernels::token_surprise(p, stream.get()), "surprise");
}

/// Logits of all rows, a piece of the vocabulary at a time, and what they say of the tokens behind
/// them: row i of token i + 1. The last row's stay.
void DeviceDecoder::Impl::run_head(std::int64_t n, float* maybe_logits) {
  first_surprise();
  kernels::SurprisePieceParams p;
  p.n = n;
  p.vocab = config.vocab_size;
  p.multiplier = static_cast<float>(config.logit_multiplier);
  p.soft_cap = static_cast<float>(config.logit_soft_cap);
  p.targets = ids + 1;
  p.state = surprise_state;
  p.surprise = surprise + 1;
  p.last = last_logits;
  p.write_back = maybe_logits != nullptr;
  const std::int64_t row = weights.head.in * size_of(dtype);
  // One row's products are its logits, where nothing is left to be done to them.
  const bool in_place = n == 1;
  const bool are_logits = in_place && p.multiplier == 1.0f && p.soft_cap == 0.0f;
  const std::int64_t width = in_place ? p.vocab : piece_width(n, p.vocab);
  for (p.first = 0; p.first < p.vocab; p.first += p.cols) {
    p.cols = p.row_stride = std::min(width, p.vocab - p.first);
    p.logits = in_place ? last_logits : tile;
    const DeviceLinear piece{weights.head.weight + p.first * row, nullptr, p.cols, weights.head.in};
    multiply(piece, normed, n, DType::float32, p.logits);
    if (!are_logits) device::check(kernels::surprise_piece(p, stream.get()), "surprise");
    if (maybe_logits)
      device::check(cudaMemcpy2DAsync(
                        maybe_logits + p.first, static_cast<std::size_t>(p.vocab) * sizeof(float),
                        p.logits, static_cast<std::size_t>(p.cols) * sizeof(float),
                        static_cast<std::size_t>(p.cols) * sizeof(float),
                        static_cast<std::size_t>(n), cudaMemcpyDeviceToHost, stream.get()),
                    "copying logits");
  }
}

/// The open step, from its ids in device memory to its tokens' surprise.
void DeviceDecoder::Impl::run_step(std::int64_t n, float* maybe_logits) {
  kernels::EmbedParams embed;
  embed.dtype = dtype;
  embed.table = weights.embedding;
  embed.vocab = config.vocab_size;
  embed.width = config.hidden_size;
  embed.ids = ids;
  embed.n = n;
  embed.hidden = hidden;
  embed.multiplier = static_cast<float>(config.embedding_multiplier);
  device::check(kernels::embed_tokens(embed, stream.get()), "embedding");
  add_norm({}, n, weights.layers.front().input_norm);
  causal.begin_step(n, position, stream.get());
  for (std::int64_t l = 0; l < config.n_layers; ++l) run_layer(l, n);
  run_head(n, maybe_logits);
}

void DeviceDecoder::Impl::end_of_step() {
  if (memory) memory->enqueue_end(surprise);
}

/// What depends on the sequence in a step of one token, but for what is read on the device.
std::optional<std::uint32_t> DeviceDecoder::Impl::step_kind() const {
  return memory ? memory->step_kind() : 0;
}

/// Launches the graph of an open step of one token, made here at the second step of its kind: at
/// the first its kernels are loaded and cuBLAS sets itself up, which a capture need not permit.
/// \return false: nothing is enqueued, the step is as it was begun
bool DeviceDecoder::Impl::launch_step(StepKind kind) {
  const std::optional<std::uint32_t> shape = step_kind();
  // The first token's surprise is no kernel's; such a step comes once in a sequence.
  if (!use_graphs || !shape || !stepped) return false;
  auto at = std::find_if(graphs.begin(), graphs.end(),
                         [&](const StepGraph& g) { return g.kind == *shape; });
  if (at == graphs.end()) {
    if (graphs.size() < kMaxGraphs) graphs.push_back({*shape, std::nullopt});
    return false;
  }
  try {
    if (!at->graph)
      at->graph = device::Graph::capture(stream.get(), [&] {
        run_step(1);
        end_of_step();
      });
    at->graph->launch(stream.get());
    return true;
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

DeviceDecoder DeviceDecoder::load(const std::filesystem::path& path, const Options& options) {
  require_device(options.device);
  const OpenModel opened = open_model(path);
  const PlannedWeights planned(opened.config, opened.tensors);
  const device::CurrentDevice current(options.device);
  DeviceDecoder model;
  model.impl_ = std::make_unique<Impl>(opened.config, dtype_of(options, planned));
  model.impl_->device = options.device;
  model.impl_->use_graphs = options.graphs;
  model.impl_->weights.load(opened.config, planned, model.impl_->stream.get());
  return model;
}

DeviceDecoder DeviceDecoder::load(const std::filesystem::path& path) {
  return load(path, Options{});
}

DeviceModelBytes DeviceDecoder::bytes_needed(const std::filesystem::path& path,
                                             const Options& options, std::int64_t chunk) {
  const OpenModel opened = open_model(path);
  const ModelConfig& c = opened.config;
  const DType dtype = dtype_of(options, PlannedWeights(c, opened.tensors));
  const DeviceWeights weights(c, dtype);
  // Beside a memory the layers all slide, and their windows bound them.
  constexpr std::int64_t kAnyLength = std::int64_t{1} << 29;
  const CausalLayers causal(c, weights.heads(), unserved_layers(c), dtype, chunk, kAnyLength);
  return {dtype, weights.bytes() + Cublas::kWorkspaceBytes,
          Activations::bytes(c, weights.heads().head_dim(), dtype, chunk), causal.bytes()};
}

/// Waits for what reads it. If something is refused from here on, nothing is used that was made for
/// another chunk: without attention no step can be made.
void DeviceDecoder::Impl::forget_attention() {
  device::check(cudaStreamSynchronize(stream.get()), "the model's steps");
  graphs.clear();
  memory.reset();  // its bytes may be needed
  causal = {};
  memory_layer.assign(static_cast<std::size_t>(config.n_layers), -1);
  chunk = max_tokens = tokens = last_n = generation = 0;
  stepped = keeps_ids = false;
  ids_since.clear();
}

/// Of steps of up to so many tokens.
void DeviceDecoder::Impl::take_room(std::int64_t new_chunk) {
  const std::int64_t head_dim = weights.heads().head_dim();
  const std::int64_t needed = bytes(config, head_dim, dtype, new_chunk);
  if (activations.bytes() < needed) {
    activations = DeviceBuffer();  // its bytes may be needed too
    activations = DeviceBuffer(needed, "a step's activations", "lower chunk");
  }
  Carver carver(activations.data());
  carve(carver, config, head_dim, dtype, new_chunk);
  staging = StagingRing((1 + new_chunk) * static_cast<std::int64_t>(sizeof(std::int64_t)));
  host_logits = PinnedBuffer(config.vocab_size * static_cast<std::int64_t>(sizeof(float)),
                             "a row of logits", "raise the limit of locked memory");
}

DeviceMemory& DeviceDecoder::remember(const MemoryConfig& config, std::int64_t max_tokens,
                                      std::vector<std::int64_t> given) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.forget_attention();
  const ModelConfig& c = m.config;
  const std::vector<std::int64_t> served = c.memory_layers();
  for (const std::int64_t l : served)
    if (const std::int64_t window = c.layers[static_cast<std::size_t>(l)].window;
        window > 0 && config.n_local > window)
      throw ConfigError(fmt::format(
          "DeviceDecoder::remember: n_local = {} exceeds the sliding window of {} tokens that "
          "layer {} has; set n_local to at most that",
          config.n_local, window, l));
  DeviceMemory memory(config, m.weights.heads().shape(memory_shape(c, config.n_local)),
                      {m.dtype, max_tokens}, m.stream.get(), std::move(given));
  CausalLayers causal(c, m.weights.heads(), unserved_layers(c), m.dtype, config.chunk, max_tokens);
  causal.allocate(m.stream.get());
  m.take_room(config.chunk);
  for (std::size_t i = 0; i < served.size(); ++i)
    m.memory_layer[static_cast<std::size_t>(served[i])] = static_cast<std::int64_t>(i);
  m.causal = std::move(causal);
  m.memory.emplace(std::move(memory));
  m.chunk = config.chunk;
  m.generation = m.memory->generation();
  return *m.memory;
}

void DeviceDecoder::attend_fully(std::int64_t max_tokens, std::int64_t chunk) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.forget_attention();
  if (max_tokens < 1 || chunk < 1)
    throw ConfigError(
        fmt::format("DeviceDecoder::attend_fully: max_tokens = {}, chunk = {}, both must be >= 1",
                    max_tokens, chunk));
  chunk = std::min(chunk, max_tokens);
  std::vector<std::int64_t> all(static_cast<std::size_t>(m.config.n_layers));
  std::iota(all.begin(), all.end(), 0);
  CausalLayers causal(m.config, m.weights.heads(), std::move(all), m.dtype, chunk, max_tokens);
  causal.allocate(m.stream.get());
  m.take_room(chunk);
  m.causal = std::move(causal);
  m.chunk = chunk;
  m.max_tokens = max_tokens;
}

void DeviceDecoder::Impl::require_attention() const {
  if (chunk == 0)
    throw DataError(
        "DeviceDecoder: it has no memory yet; call remember, or attend_fully, before a step");
}

DeviceMemory& DeviceDecoder::memory() {
  if (!impl_->memory) throw DataError("DeviceDecoder: it has no memory yet; call remember first");
  return *impl_->memory;
}

const ModelConfig& DeviceDecoder::config() const { return impl_->config; }

std::int64_t DeviceDecoder::chunk() const {
  impl_->require_attention();
  return impl_->chunk;
}

std::int64_t DeviceDecoder::tokens() const { return impl_->tokens_now(); }

/// The memory may have been reset, restored or loaded by its own calls.
void DeviceDecoder::Impl::follow_memory() {
  if (!memory) return;
  if (memory->tokens() == 0) {
    tokens = 0;
    stepped = false;
    ids_since.clear();
  } else if (!causal.empty() && memory->generation() != generation) {
    throw DataError(fmt::format(
        "DeviceDecoder: the memory stands at token {} by a call of its own, but the model's "
        "sliding layers have seen {} tokens; go back by the snapshots of the model",
        memory->tokens(), tokens));
  }
  generation = memory->generation();
}

void DeviceDecoder::Impl::begin_step(std::int64_t n, StepKind kind) {
  follow_memory();
  if (memory) return memory->begin_step(n, kind);
  if (n < 1 || n > chunk)
    throw DataError(fmt::format(
        "DeviceDecoder::step: {} tokens, must be in [1, chunk = {}]; feed longer texts in several "
        "steps",
        n, chunk));
  if (tokens + n > max_tokens)
    throw BudgetError(
        fmt::format("DeviceDecoder::step: there is room for max_tokens = {}, {} are there and {} "
                    "more come; attend with more",
                    max_tokens, tokens, n));
}

void DeviceDecoder::Impl::step(std::span<const std::int64_t> given, StepKind kind,
                               float* maybe_logits) {
  require_attention();
  const auto n = static_cast<std::int64_t>(given.size());
  for (std::size_t i = 0; i < given.size(); ++i)
    if (given[i] < 0 || given[i] >= config.vocab_size)
      throw DataError(fmt::format(
          "DeviceDecoder::step: ids[{}] = {} is not in the vocabulary of {} tokens; use the "
          "tokenizer of this model",
          i, given[i], config.vocab_size));
  const device::CurrentDevice current(device);
  begin_step(n, kind);
  staging.send(position, 1 + n, stream.get(), [&](std::int64_t* host) {
    *host = tokens_now();
    std::copy(given.begin(), given.end(), host + 1);
  });
  if (n == 1 && !maybe_logits && launch_step(kind)) {
    if (memory) memory->end_launched_step();
  } else {
    run_step(n, maybe_logits);
    if (memory) memory->end_step(surprise);
  }
  tokens = memory ? memory->tokens() : tokens + n;
  last_n = n;
  stepped = true;
  if (keeps_ids) ids_since.insert(ids_since.end(), given.begin(), given.end());
}

void DeviceDecoder::step(std::span<const std::int64_t> ids, StepKind kind) {
  impl_->step(ids, kind, nullptr);
}

void DeviceDecoder::step(std::span<const std::int64_t> ids, std::span<float> logits) {
  const std::size_t wanted = ids.size() * static_cast<std::size_t>(impl_->config.vocab_size);
  if (logits.size() != wanted)
    throw DataError(fmt::format("DeviceDecoder::step: room for {} logits, {} tokens have {}",
                                logits.size(), ids.size(), wanted));
  impl_->step(ids, StepKind::decode, logits.data());
  impl_->check_device();
}

void DeviceDecoder::Impl::check_device() const {
  if (memory)
    memory->check();
  else
    device::check(cudaStreamSynchronize(stream.get()), "the model's kernels");
}

std::vector<float> DeviceDecoder::Impl::read_last_logits() {
  std::vector<float> row;
  if (!stepped) return row;
  row.resize(static_cast<std::size_t>(config.vocab_size));
  device::check(cudaMemcpyAsync(row.data(), last_logits, row.size() * sizeof(float),
                                cudaMemcpyDeviceToHost, stream.get()),
                "copying logits");
  check_device();
  return row;
}

void DeviceDecoder::Impl::write_last_logits(const std::vector<float>& row) {
  stepped = !row.empty();
  if (row.empty()) return;
  device::check(cudaMemcpyAsync(last_logits, row.data(), row.size() * sizeof(float),
                                cudaMemcpyHostToDevice, stream.get()),
                "copying logits");
  device::check(cudaStreamSynchronize(stream.get()), "copying logits");
}

std::vector<float> DeviceDecoder::surprise() {
  Impl& m = *impl_;
  if (!m.stepped) throw DataError("DeviceDecoder::surprise: no step was made yet; call step first");
  const device::CurrentDevice current(m.device);
  std::vector<float> values(static_cast<std::size_t>(m.last_n));
  device::check(cudaMemcpyAsync(values.data(), m.surprise, values.size() * sizeof(float),
                                cudaMemcpyDeviceToHost, m.stream.get()),
                "copying surprise");
  m.check_device();
  if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); }))
    throw DataError(
        "DeviceDecoder::surprise: it is NaN: the logits before a token make no sense; look at the "
        "model's weights");
  return values;
}

DeviceMemory& DeviceDecoder::remember(const EpisodicMemory& from, std::int64_t max_tokens) {
  Impl& m = *impl_;
  MemoryConfig config = from.config();
  // What neither tier above holds lies in the memory's own folder, in files without names.
  if (config.disk_dir.empty() && config.host_bytes > 0) config.disk_dir = from.folder().string();
  const std::vector<float>& last = from.last_logits();
  if (!last.empty() && static_cast<std::int64_t>(last.size()) != m.config.vocab_size)
    throw ConfigError(fmt::format(
        "DeviceDecoder::remember: the memory's last logits are {}, but the model's vocabulary is "
        "{}",
        last.size(), m.config.vocab_size));
  if (m.weights.heads().padded())
    throw ConfigError(fmt::format(
        "DeviceDecoder::remember: heads of {} channels are padded to {} on the device, and no "
        "memory of the host is; run this {} model on the CPU, or with a memory of the device's own",
        m.config.head_dim, m.weights.heads().head_dim(), m.config.model_type));
  if (!unserved_layers(m.config).empty() && (from.tokens() > 0 || from.kept()))
    throw ConfigError(fmt::format(
        "DeviceDecoder::remember: this {} model has sliding layers, whose windows a device does "
        "not "
        "keep with a memory yet; run it on the CPU, or start with an empty memory that is not kept",
        m.config.model_type));
  const device::CurrentDevice current(m.device);
  DeviceMemory& memory = remember(config, max_tokens, from.given_boundaries());
  try {
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
  const device::CurrentDevice current(m.device);
  memory().save(to, m.ids_since, m.read_last_logits());
  m.ids_since.clear();
}

class DeviceDecoder::Snapshot {
 public:
  std::shared_ptr<const MemorySnapshot> memory;  // null without one
  std::vector<std::byte> caches;
  std::int64_t tokens = 0, chunk = 0, max_tokens = 0;
  std::vector<float> last_logits;
};

std::shared_ptr<const DeviceDecoder::Snapshot> DeviceDecoder::snapshot() {
  Impl& m = *impl_;
  m.require_attention();
  const device::CurrentDevice current(m.device);
  m.follow_memory();
  auto s = std::make_shared<Snapshot>();
  if (m.memory) s->memory = m.memory->snapshot();
  s->caches = m.causal.read(m.stream.get());
  s->tokens = m.tokens_now();
  s->chunk = m.chunk;
  s->max_tokens = m.max_tokens;
  s->last_logits = m.read_last_logits();
  return s;
}

void DeviceDecoder::restore(const Snapshot& s) {
  Impl& m = *impl_;
  m.require_attention();
  const device::CurrentDevice current(m.device);
  if (!s.memory != !m.memory || s.chunk != m.chunk || s.max_tokens != m.max_tokens)
    throw ConfigError("DeviceDecoder::restore: the snapshot was taken of another attention");
  const std::int64_t back = m.tokens_now() - s.tokens;
  if (m.memory) m.memory->restore(*s.memory);  // which refuses a snapshot of later tokens
  m.causal.write(s.caches, m.stream.get());
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
  const device::CurrentDevice current(m.device);
  const auto vocab = static_cast<std::size_t>(m.config.vocab_size);
  device::check(cudaMemcpyAsync(m.host_logits.as<float>(), m.last_logits, vocab * sizeof(float),
                                cudaMemcpyDeviceToHost, m.stream.get()),
                "copying logits");
  m.check_device();
  return {m.host_logits.as<float>(), vocab};
}

DType DeviceDecoder::dtype() const { return impl_->dtype; }
bool DeviceDecoder::graphs() const { return impl_->use_graphs; }
DeviceModelBytes DeviceDecoder::bytes() const {
  return {impl_->dtype, impl_->weights.bytes() + Cublas::kWorkspaceBytes,
          impl_->activations.bytes(), impl_->causal.bytes()};
}

}  // namespace episodic
