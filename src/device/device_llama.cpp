// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_llama.hpp"

#include <cublas_v2.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/model/weight_plan.hpp"
#include "kernels/decoder.hpp"
#include "kernels/surprise.hpp"
#include "model/elementwise.hpp"
#include "model/model_tensors.hpp"

namespace episodic {
namespace {

using device::Carver;
using device::DeviceBuffer;
using device::PinnedBuffer;
using device::StagingRing;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(fmt::format("cuBLAS: {}: {}", what, cublasGetStatusString(status)));
}

cudaDataType_t cublas_type(DType dtype) {
  return dtype == DType::float32 ? CUDA_R_32F : dtype == DType::float16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// y = x W^T + bias, W [out, in] as Hugging Face stores it.
struct Linear {
  std::byte* weight = nullptr;
  float* bias = nullptr;  // or null
  std::int64_t out = 0, in = 0;
};

struct LayerWeights {
  float *input_norm = nullptr, *post_norm = nullptr;
  Linear qkv;  // rows of q, of k, of v
  Linear o;
  Linear gate_up;  // rows of gate, of up
  Linear down;
};

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

  /// y [n, out] of `to` = x [n, in] of `from` times W^T, or added to what y holds.
  void multiply(const Linear& w, DType from, const void* x, std::int64_t n, DType to, void* y,
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

/// Rows of logits that are held at once: float32, of which a whole chunk would take more than all
/// the rest of a step.
constexpr std::int64_t kLogitRows = 64;

/// Everything of a decoder that lies in device memory.
struct Arrays {
  ModelConfig config;
  DType dtype = DType::bfloat16;

  // weights
  std::byte* embedding = nullptr;
  std::vector<LayerWeights> layers;
  float* final_norm = nullptr;
  Linear head;

  // one step
  std::int64_t* ids = nullptr;
  float *hidden = nullptr, *logit_rows = nullptr, *last_logits = nullptr, *surprise = nullptr;
  std::byte *normed = nullptr, *qkv = nullptr, *attended = nullptr, *gate_up = nullptr,
            *inner = nullptr;

  std::int64_t q_width() const { return config.n_heads * config.head_dim; }
  std::int64_t kv_width() const { return config.n_kv_heads * config.head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }

  void carve_weights(Carver& carver);
  void carve_activations(Carver& carver, std::int64_t chunk);
};

/// The dtype asked for, else that of the embedding's file.
DType dtype_of(const DeviceLlama::Options& options, const TensorView& embedding) {
  const DType stored = embedding.type == TensorType::f32   ? DType::float32
                       : embedding.type == TensorType::f16 ? DType::float16
                                                           : DType::bfloat16;
  const DType dtype = options.dtype.value_or(stored);
  if (dtype == DType::int8)
    throw ConfigError("DeviceLlama: dtype = int8, must be float32, float16 or bfloat16");
  return dtype;
}

Arrays arrays_of(const std::filesystem::path& dir, const DeviceLlama::Options& options) {
  Arrays arrays;
  arrays.config = load_model_config(dir);
  if (const std::string beyond = beyond_plain_llama(arrays.config); !beyond.empty())
    throw ConfigError(
        fmt::format("DeviceLlama: {}: this {} model has {}, which the device does not compute yet; "
                    "run it on the CPU",
                    dir.string(), arrays.config.model_type, beyond));
  // every tensor has its place: weights of another family are refused, not half used
  PlannedWeights(arrays.config, std::make_shared<const Weights>(dir));
  arrays.dtype = dtype_of(
      options, ModelTensors(dir).at("model.embed_tokens.weight",
                                    {arrays.config.vocab_size, arrays.config.hidden_size}));
  return arrays;
}

void Arrays::carve_weights(Carver& c) {
  const std::int64_t element = size_of(dtype), width = config.hidden_size;
  const auto linear = [&](std::int64_t out, std::int64_t in, bool bias) {
    return Linear{c.take(out * in * element), bias ? c.take<float>(out) : nullptr, out, in};
  };
  embedding = c.take(config.vocab_size * width * element);
  layers.resize(static_cast<std::size_t>(config.n_layers));
  for (LayerWeights& w : layers) {
    w.input_norm = c.take<float>(width);
    w.post_norm = c.take<float>(width);
    w.qkv = linear(qkv_width(), width, config.layers[0].qkv_bias);
    w.o = linear(width, q_width(), config.layers[0].qkv_bias);
    w.gate_up = linear(2 * config.intermediate_size, width, config.layers[0].mlp_bias);
    w.down = linear(width, config.intermediate_size, config.layers[0].mlp_bias);
  }
  final_norm = c.take<float>(width);
  head = config.tie_word_embeddings ? Linear{embedding, nullptr, config.vocab_size, width}
                                    : linear(config.vocab_size, width, false);
}

void Arrays::carve_activations(Carver& c, std::int64_t chunk) {
  const std::int64_t element = size_of(dtype);
  ids = c.take<std::int64_t>(chunk);
  hidden = c.take<float>(chunk * config.hidden_size);
  normed = c.take(chunk * config.hidden_size * element);
  qkv = c.take(chunk * qkv_width() * element);
  attended = c.take(chunk * q_width() * element);
  gate_up = c.take(chunk * 2 * config.intermediate_size * element);
  inner = c.take(chunk * config.intermediate_size * element);
  logit_rows = c.take<float>(std::min(chunk, kLogitRows) * config.vocab_size);
  last_logits = c.take<float>(config.vocab_size);
  surprise = c.take<float>(chunk);
}

/// Kinds of steps that graphs are made of; there are fewer (DeviceMemory::step_kind).
constexpr std::size_t kMaxGraphs = 16;

/// Of one kind of step.
struct StepGraph {
  std::uint32_t kind;
  std::optional<device::Graph> graph;  // absent after the first such step
};

}  // namespace

struct DeviceLlama::Impl : Arrays {
  explicit Impl(Arrays arrays) : Arrays(std::move(arrays)) {}
  // What is enqueued still reads what is given back here.
  ~Impl() { static_cast<void>(cudaStreamSynchronize(stream.get())); }

  int device = 0;
  Stream stream;
  Cublas cublas{stream.get()};
  DeviceBuffer weights;
  std::optional<DeviceMemory> memory;
  DeviceBuffer activations;
  StagingRing staging;
  PinnedBuffer host_logits;
  bool stepped = false;  // last_logits follow the memory's last token
  // Of the tokens since the host's memory that this one came from; only then.
  bool keeps_ids = false;
  std::vector<std::int64_t> ids_since;

  bool use_graphs = true;
  std::vector<StepGraph> graphs;  // of the memory's steps of one token; they hold its pointers

  void load_weights(const std::filesystem::path& dir);

  void norm(const float* weight, const float* x, std::int64_t n) {
    device::check(kernels::rms_norm({dtype, x, weight, n, config.hidden_size,
                                     static_cast<float>(config.rms_norm_eps), normed},
                                    stream.get()),
                  "RMS norm");
  }
  void multiply(const Linear& w, const void* x, std::int64_t n, DType to, void* y,
                bool add = false) {
    cublas.multiply(w, dtype, x, n, to, y, add);
    if (w.bias) device::check(kernels::add_bias({to, w.bias, n, w.out, y}, stream.get()), "a bias");
  }
  void token_surprise(const float* logits, const std::int64_t* targets, std::int64_t n, float* to) {
    kernels::SurpriseParams p;
    p.logits = logits;
    p.dtype = DType::float32;
    p.n = n;
    p.vocab = p.row_stride = config.vocab_size;
    p.targets = targets;
    p.surprise = to;
    device::check(kernels::token_surprise(p, stream.get()), "surprise");
  }
  void run_layer(std::int64_t l, std::int64_t n);
  /// \param maybe_logits [n, vocab] in host memory, written; null: not wanted
  void run_head(std::int64_t n, float* maybe_logits);
  void run_step(std::int64_t n, float* maybe_logits = nullptr);
  void step(std::span<const std::int64_t> ids, StepKind kind, float* maybe_logits);
  /// [vocab], or empty if none follow the last token
  std::vector<float> read_last_logits();
  void write_last_logits(const std::vector<float>& row);
  bool launch_step(StepKind kind);
};

void DeviceLlama::Impl::load_weights(const std::filesystem::path& dir) {
  const ModelTensors tensors(dir);
  Carver counter;
  carve_weights(counter);
  weights =
      DeviceBuffer(counter.used(), "the model's weights", "take a smaller model or a 16-bit dtype");
  Carver carver(weights.data());
  carve_weights(carver);

  std::vector<float> wide;
  std::vector<std::uint16_t> half;
  const auto send = [&](void* to, const void* from, std::int64_t bytes) {
    // pageable memory: returns once the source may be used again
    device::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice,
                                  stream.get()),
                  "copying weights");
    device::check(cudaStreamSynchronize(stream.get()), "copying weights");
  };
  /// \return bytes written
  const auto put = [&](void* to, DType as, const std::string& name,
                       const std::vector<std::int64_t>& shape) {
    const TensorView& view = tensors.at(name, shape);
    const std::int64_t count = view.elements(), bytes = count * size_of(as);
    const bool same = (view.type == TensorType::f32 && as == DType::float32) ||
                      (view.type == TensorType::f16 && as == DType::float16) ||
                      (view.type == TensorType::bf16 && as == DType::bfloat16);
    if (same) {
      send(to, view.data, bytes);
      return bytes;
    }
    wide.resize(static_cast<std::size_t>(count));
    widen(view.type, view.data, count, wide.data());
    if (as == DType::float32) {
      send(to, wide.data(), bytes);
      return bytes;
    }
    half.resize(wide.size());
    std::transform(wide.begin(), wide.end(), half.begin(),
                   as == DType::float16 ? to_float16 : to_bfloat16);
    send(to, half.data(), bytes);
    return bytes;
  };
  /// Several tensors, one behind the other.
  const auto linear = [&](const Linear& w,
                          const std::vector<std::pair<std::string, std::int64_t>>& parts) {
    std::byte* weight = w.weight;
    float* bias = w.bias;
    for (const auto& [name, out] : parts) {
      weight += put(weight, dtype, name + ".weight", {out, w.in});
      if (bias) {
        put(bias, DType::float32, name + ".bias", {out});
        bias += out;
      }
    }
  };

  const std::int64_t hidden_size = config.hidden_size, inner_size = config.intermediate_size;
  put(embedding, dtype, "model.embed_tokens.weight", {config.vocab_size, hidden_size});
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    const LayerWeights& w = layers[i];
    put(w.input_norm, DType::float32, at + "input_layernorm.weight", {hidden_size});
    put(w.post_norm, DType::float32, at + "post_attention_layernorm.weight", {hidden_size});
    linear(w.qkv, {{at + "self_attn.q_proj", q_width()},
                   {at + "self_attn.k_proj", kv_width()},
                   {at + "self_attn.v_proj", kv_width()}});
    linear(w.o, {{at + "self_attn.o_proj", hidden_size}});
    linear(w.gate_up, {{at + "mlp.gate_proj", inner_size}, {at + "mlp.up_proj", inner_size}});
    linear(w.down, {{at + "mlp.down_proj", hidden_size}});
  }
  put(final_norm, DType::float32, "model.norm.weight", {hidden_size});
  if (!config.tie_word_embeddings) linear(head, {{"lm_head", config.vocab_size}});
}

void DeviceLlama::Impl::run_layer(std::int64_t l, std::int64_t n) {
  const LayerWeights& w = layers[static_cast<std::size_t>(l)];
  const std::int64_t element = size_of(dtype), row = qkv_width();
  norm(w.input_norm, hidden, n);
  multiply(w.qkv, normed, n, dtype, qkv);
  memory->attend(l, {qkv, qkv + q_width() * element, qkv + (q_width() + kv_width()) * element, row,
                     row, row, attended});
  multiply(w.o, attended, n, DType::float32, hidden, true);
  norm(w.post_norm, hidden, n);
  multiply(w.gate_up, normed, n, dtype, gate_up);
  device::check(
      kernels::silu_times({dtype, gate_up, n, config.intermediate_size, inner}, stream.get()),
      "SiLU");
  multiply(w.down, inner, n, DType::float32, hidden, true);
}

/// Logits of all rows, a block at a time, and what they say of the tokens behind them: row i of
/// token i + 1, the row of the step before of token 0.
void DeviceLlama::Impl::run_head(std::int64_t n, float* maybe_logits) {
  if (stepped)
    token_surprise(last_logits, ids, 1, surprise);
  else
    device::check(cudaMemsetAsync(surprise, 0, sizeof(float), stream.get()), "surprise");
  for (std::int64_t first = 0; first < n; first += kLogitRows) {
    const std::int64_t rows = std::min(kLogitRows, n - first);
    norm(final_norm, hidden + first * config.hidden_size, rows);
    multiply(head, normed, rows, DType::float32, logit_rows);
    if (maybe_logits)
      device::check(
          cudaMemcpyAsync(maybe_logits + first * config.vocab_size, logit_rows,
                          static_cast<std::size_t>(rows * config.vocab_size) * sizeof(float),
                          cudaMemcpyDeviceToHost, stream.get()),
          "copying logits");
    const std::int64_t followed = std::min(rows, n - 1 - first);
    token_surprise(logit_rows, ids + first + 1, followed, surprise + first + 1);
    if (first + rows == n)
      device::check(cudaMemcpyAsync(last_logits, logit_rows + (rows - 1) * config.vocab_size,
                                    static_cast<std::size_t>(config.vocab_size) * sizeof(float),
                                    cudaMemcpyDeviceToDevice, stream.get()),
                    "keeping logits");
  }
}

/// The open step, from its ids in device memory to its tokens' surprise.
void DeviceLlama::Impl::run_step(std::int64_t n, float* maybe_logits) {
  device::check(
      kernels::embed_tokens(
          {dtype, embedding, config.vocab_size, config.hidden_size, ids, n, hidden}, stream.get()),
      "embedding");
  for (std::int64_t l = 0; l < config.n_layers; ++l) run_layer(l, n);
  run_head(n, maybe_logits);
}

/// Launches the graph of an open step of one token, made here at the second step of its kind: at
/// the first its kernels are loaded and cuBLAS sets itself up, which a capture need not permit.
/// \return false: nothing is enqueued, the step is as it was begun
bool DeviceLlama::Impl::launch_step(StepKind kind) {
  const std::optional<std::uint32_t> shape = memory->step_kind();
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
        memory->enqueue_end(surprise);
      });
    at->graph->launch(stream.get());
    return true;
  } catch (const DeviceError&) {
    // What is wrong with the step itself is found again without a graph.
    use_graphs = false;
    memory->begin_step(1, kind);
    return false;
  }
}

DeviceLlama::DeviceLlama() = default;
DeviceLlama::DeviceLlama(DeviceLlama&&) noexcept = default;
DeviceLlama& DeviceLlama::operator=(DeviceLlama&&) noexcept = default;

DeviceLlama::~DeviceLlama() = default;

DeviceLlama DeviceLlama::load(const std::filesystem::path& dir, const Options& options) {
  require_device(options.device);
  const device::CurrentDevice current(options.device);
  DeviceLlama model;
  model.impl_ = std::make_unique<Impl>(arrays_of(dir, options));
  model.impl_->device = options.device;
  model.impl_->use_graphs = options.graphs;
  model.impl_->load_weights(dir);
  return model;
}

DeviceLlama DeviceLlama::load(const std::filesystem::path& dir) { return load(dir, Options{}); }

DeviceModelBytes DeviceLlama::bytes_needed(const std::filesystem::path& dir, const Options& options,
                                           std::int64_t chunk) {
  Arrays arrays = arrays_of(dir, options);
  Carver weights, activations;
  arrays.carve_weights(weights);
  arrays.carve_activations(activations, chunk);
  return {arrays.dtype, weights.used() + Cublas::kWorkspaceBytes, activations.used()};
}

DeviceMemory& DeviceLlama::remember(const MemoryConfig& config, std::int64_t max_tokens,
                                    std::vector<std::int64_t> given) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  device::check(cudaStreamSynchronize(m.stream.get()), "the model's steps");
  m.graphs.clear();
  m.memory.reset();  // its bytes may be needed
  m.stepped = m.keeps_ids = false;
  m.ids_since.clear();
  const ModelConfig& c = m.config;
  // Without a memory no step can be made: if something is refused here, nothing is used that was
  // made for another chunk.
  DeviceMemory memory(config, memory_shape(c, config.n_local), {m.dtype, max_tokens},
                      m.stream.get(), std::move(given));
  Carver counter;
  m.carve_activations(counter, config.chunk);
  if (m.activations.bytes() < counter.used()) {
    m.activations = DeviceBuffer();  // its bytes may be needed too
    m.activations = DeviceBuffer(counter.used(), "a step's activations", "lower chunk");
  }
  Carver carver(m.activations.data());
  m.carve_activations(carver, config.chunk);
  m.staging = StagingRing(config.chunk * static_cast<std::int64_t>(sizeof(std::int64_t)));
  m.host_logits = PinnedBuffer(c.vocab_size * static_cast<std::int64_t>(sizeof(float)),
                               "a row of logits", "raise the limit of locked memory");
  m.memory.emplace(std::move(memory));
  return *m.memory;
}

DeviceMemory& DeviceLlama::memory() {
  if (!impl_->memory) throw DataError("DeviceLlama: it has no memory yet; call remember first");
  return *impl_->memory;
}

const ModelConfig& DeviceLlama::config() const { return impl_->config; }

std::int64_t DeviceLlama::chunk() const {
  if (!impl_->memory) throw DataError("DeviceLlama: it has no memory yet; call remember first");
  return impl_->memory->config().chunk;
}

std::int64_t DeviceLlama::tokens() const { return impl_->memory ? impl_->memory->tokens() : 0; }

void DeviceLlama::Impl::step(std::span<const std::int64_t> tokens, StepKind kind,
                             float* maybe_logits) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size)
      throw DataError(fmt::format(
          "DeviceLlama::step: ids[{}] = {} is not in the vocabulary of {} tokens; use the "
          "tokenizer of this model",
          i, tokens[i], config.vocab_size));
  const device::CurrentDevice current(device);
  if (memory->tokens() == 0) {  // it may have been reset
    stepped = false;
    ids_since.clear();
  }
  memory->begin_step(n, kind);
  staging.send(ids, n, stream.get(),
               [&](std::int64_t* host) { std::copy(tokens.begin(), tokens.end(), host); });
  if (n == 1 && !maybe_logits && launch_step(kind)) {
    memory->end_launched_step();
  } else {
    run_step(n, maybe_logits);
    memory->end_step(surprise);
  }
  stepped = true;
  if (keeps_ids) ids_since.insert(ids_since.end(), tokens.begin(), tokens.end());
}

void DeviceLlama::step(std::span<const std::int64_t> ids, StepKind kind) {
  static_cast<void>(memory());
  impl_->step(ids, kind, nullptr);
}

void DeviceLlama::step(std::span<const std::int64_t> ids, std::span<float> logits) {
  const std::size_t wanted = ids.size() * static_cast<std::size_t>(impl_->config.vocab_size);
  if (logits.size() != wanted)
    throw DataError(fmt::format("DeviceLlama::step: room for {} logits, {} tokens have {}",
                                logits.size(), ids.size(), wanted));
  memory();
  impl_->step(ids, StepKind::decode, logits.data());
  impl_->memory->check();  // waits
}

std::vector<float> DeviceLlama::Impl::read_last_logits() {
  std::vector<float> row;
  if (!stepped) return row;
  row.resize(static_cast<std::size_t>(config.vocab_size));
  device::check(cudaMemcpyAsync(row.data(), last_logits, row.size() * sizeof(float),
                                cudaMemcpyDeviceToHost, stream.get()),
                "copying logits");
  memory->check();  // waits
  return row;
}

void DeviceLlama::Impl::write_last_logits(const std::vector<float>& row) {
  stepped = !row.empty();
  if (row.empty()) return;
  device::check(cudaMemcpyAsync(last_logits, row.data(), row.size() * sizeof(float),
                                cudaMemcpyHostToDevice, stream.get()),
                "copying logits");
  device::check(cudaStreamSynchronize(stream.get()), "copying logits");
}

DeviceMemory& DeviceLlama::remember(const EpisodicMemory& from, std::int64_t max_tokens) {
  Impl& m = *impl_;
  MemoryConfig config = from.config();
  // What neither tier above holds lies in the memory's own folder, in files without names.
  if (config.disk_dir.empty() && config.host_bytes > 0) config.disk_dir = from.folder().string();
  const std::vector<float>& last = from.last_logits();
  if (!last.empty() && static_cast<std::int64_t>(last.size()) != m.config.vocab_size)
    throw ConfigError(fmt::format(
        "DeviceLlama::remember: the memory's last logits are {}, but the model's vocabulary is {}",
        last.size(), m.config.vocab_size));
  const device::CurrentDevice current(m.device);
  DeviceMemory& memory = remember(config, max_tokens, from.given_boundaries());
  try {
    memory.load(from);
    m.write_last_logits(last);
  } catch (...) {
    m.memory.reset();  // half of it is of no use
    m.stepped = false;
    throw;
  }
  m.keeps_ids = true;
  return memory;
}

void DeviceLlama::save(EpisodicMemory& to) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  memory().save(to, m.ids_since, m.read_last_logits());
  m.ids_since.clear();
}

class DeviceLlama::Snapshot {
 public:
  std::shared_ptr<const DeviceMemory::Snapshot> memory;
  std::int64_t tokens = 0;
  std::vector<float> last_logits;
};

std::shared_ptr<const DeviceLlama::Snapshot> DeviceLlama::snapshot() {
  auto s = std::make_shared<Snapshot>();
  const device::CurrentDevice current(impl_->device);
  s->memory = memory().snapshot();
  s->tokens = memory().tokens();
  s->last_logits = impl_->read_last_logits();
  return s;
}

void DeviceLlama::restore(const Snapshot& s) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const std::int64_t back = memory().tokens() - s.tokens;
  memory().restore(*s.memory);  // which refuses a snapshot of later tokens
  m.write_last_logits(s.last_logits);
  // Left are those between the host's memory and the snapshot; none, if that came before.
  const auto known = static_cast<std::int64_t>(m.ids_since.size());
  m.ids_since.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, known - back)));
}

std::span<const float> DeviceLlama::logits() {
  Impl& m = *impl_;
  if (!m.stepped) throw DataError("DeviceLlama::logits: no step was made yet; call step first");
  const device::CurrentDevice current(m.device);
  const auto vocab = static_cast<std::size_t>(m.config.vocab_size);
  device::check(cudaMemcpyAsync(m.host_logits.as<float>(), m.last_logits, vocab * sizeof(float),
                                cudaMemcpyDeviceToHost, m.stream.get()),
                "copying logits");
  m.memory->check();  // waits
  return {m.host_logits.as<float>(), vocab};
}

DType DeviceLlama::dtype() const { return impl_->dtype; }
bool DeviceLlama::graphs() const { return impl_->use_graphs; }
DeviceModelBytes DeviceLlama::bytes() const {
  return {impl_->dtype, impl_->weights.bytes() + Cublas::kWorkspaceBytes,
          impl_->activations.bytes()};
}

}  // namespace episodic
