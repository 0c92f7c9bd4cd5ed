// SPDX-License-Identifier: Apache-2.0
// The kernels without the library: device buffers of your own, your stream, PODs of parameters.
// A step of three tokens attends to four sinks, two recalled events and the local window in one
// softmax, each key where it lies. Links episodic::kernels and the CUDA runtime only.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <episodic_kernels/attention.hpp>
#include <episodic_kernels/window.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace k = episodic::kernels;

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 64, kHalf = kDim / 2;
constexpr std::int64_t kInit = 4, kLocal = 16, kStep = 3, kTokens = 64;
constexpr std::int64_t kFirst = kTokens - kStep;            // position of the step's first token
constexpr std::int64_t kWindow = kFirst + 1 - kLocal;       // the earliest token in the window
constexpr std::int64_t kEvents[][2] = {{4, 16}, {28, 40}};  // recalled; [16, 28) is not

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

template <class T>
struct Device {  // an array in device memory
  T* data = nullptr;
  std::size_t size;
  explicit Device(std::size_t n) : size(n) {
    check(cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(T)), "cudaMalloc");
  }
  Device(const std::vector<T>& host) : Device(host.size()) {
    check(cudaMemcpy(data, host.data(), size * sizeof(T), cudaMemcpyHostToDevice), "to the device");
    // From pageable memory that returns before the bytes are there, and a stream of one's own
    // does not wait for them.
    check(cudaStreamSynchronize(nullptr), "to the device");
  }
  ~Device() { cudaFree(data); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  std::vector<T> host() const {
    std::vector<T> out(size);
    check(cudaMemcpy(out.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost), "to the host");
    return out;
  }
};

bool recalled(std::int64_t token) {
  return token < kInit || std::any_of(std::begin(kEvents), std::end(kEvents),
                                      [&](const auto& e) { return e[0] <= token && token < e[1]; });
}

// Channel c of x rotated by the angles of `position` (rotate-half), in float64.
double rotated(const float* x, std::int64_t c, double position) {
  const double angle = position * std::pow(10000.0, -static_cast<double>(c % kHalf) / kHalf);
  const double other = c < kHalf ? -x[c + kHalf] : x[c - kHalf];
  return x[c] * std::cos(angle) + other * std::sin(angle);
}

// The output of one query and head [d], by the definition: far keys at one distance, local ones at
// their own.
std::vector<double> reference(const float* q, const std::vector<float>& key,
                              const std::vector<float>& value, std::int64_t position,
                              std::int64_t kv_head) {
  std::vector<double> out(kDim);
  double sum = 0;
  for (std::int64_t t = 0; t <= position; ++t) {
    const bool local = position - t < kLocal;
    if (!local && !recalled(t)) continue;
    const std::int64_t at = (t * kKvHeads + kv_head) * kDim;
    double dot = 0;
    for (std::int64_t c = 0; c < kDim; ++c)
      dot += rotated(q, c, local ? static_cast<double>(position) : kLocal - 1) *
             rotated(key.data() + at, c, local ? static_cast<double>(t) : 0);
    const double weight = std::exp(dot / std::sqrt(static_cast<double>(kDim)));
    sum += weight;
    for (std::int64_t c = 0; c < kDim; ++c) out[c] += weight * value[at + c];
  }
  for (double& x : out) x /= sum;
  return out;
}

int run() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& f : x) f = normal(random);
    return x;
  };
  const std::vector<float> q = draw(kStep * kHeads * kDim);
  const std::vector<float> key = draw(kTokens * kKvHeads * kDim),
                           value = draw(kTokens * kKvHeads * kDim);
  const Device<float> d_q(q), d_key(key), d_value(value);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");

  // Angles. Positions are read on the device: of the window before the step, of the step, and the
  // far keys' one.
  const Device<std::int64_t> positions(std::vector<std::int64_t>{kWindow, kFirst, kLocal - 1});
  std::vector<double> inverse(kHalf);
  for (std::int64_t c = 0; c < kHalf; ++c)
    inverse[c] = std::pow(10000.0, -static_cast<double>(c) / kHalf);
  const Device<double> inverse_frequency(inverse);
  const Device<float> cos(kLocal * kHalf), sin(kLocal * kHalf), fixed_cos(kHalf), fixed_sin(kHalf);
  const auto angles = [&](std::int64_t n, const std::int64_t* first, float* c, float* s) {
    k::RotaryAnglesParams p;
    p.n = n, p.n_frequencies = kHalf, p.first_position = first;
    p.inverse_frequency = inverse_frequency.data, p.cos = c, p.sin = s;
    check(k::rotary_angles(p, stream), "rotary_angles");
  };

  // The local window: rings that hold what the step's queries see. First the tokens before it, then
  // its own.
  const std::int64_t capacity = kLocal + kStep - 1;
  const Device<float> ring_key(kKvHeads * capacity * kDim), ring_rotated(ring_key.size),
      ring_value(ring_key.size);
  const auto append = [&](std::int64_t first, std::int64_t n, const std::int64_t* position) {
    angles(n, position, cos.data, sin.data);
    k::AppendParams p;
    p.dtype = episodic::DType::float32;
    p.n = n, p.n_kv_heads = kKvHeads, p.head_dim = p.rotary_dim = kDim, p.first_position = position;
    p.k = d_key.data + first * kKvHeads * kDim, p.v = d_value.data + first * kKvHeads * kDim;
    p.k_row_stride = p.v_row_stride = kKvHeads * kDim;
    p.cos = cos.data, p.sin = sin.data;
    p.ring_key = ring_key.data, p.ring_rotated_key = ring_rotated.data,
    p.ring_value = ring_value.data;
    p.ring_capacity = capacity, p.ring_head_stride = capacity * kDim;
    check(k::append_window(p, stream), "append_window");
  };
  append(kWindow, kFirst - kWindow, positions.data);
  append(kFirst, kStep, positions.data + 1);
  angles(1, positions.data + 2, fixed_cos.data, fixed_sin.data);

  // Far keys are rows that point at them: nothing is gathered.
  std::vector<k::KvRow> rows;
  for (std::int64_t t = 0; t < kWindow; ++t)
    if (recalled(t))
      rows.push_back(
          {d_key.data + t * kKvHeads * kDim, d_value.data + t * kKvHeads * kDim, t, kDim, 1.0f});
  const Device<k::KvRow> d_rows(rows);
  const Device<std::int32_t> n_rows(
      std::vector<std::int32_t>{static_cast<std::int32_t>(rows.size())});

  k::AttentionParams p;
  p.dtype = episodic::DType::float32;
  p.n_queries = kStep, p.n_heads = kHeads, p.n_kv_heads = kKvHeads,
  p.head_dim = p.rotary_dim = kDim;
  p.n_local = kLocal, p.q = d_q.data, p.q_row_stride = kHeads * kDim,
  p.first_position = positions.data + 1;
  p.query_cos = cos.data, p.query_sin = sin.data, p.fixed_cos = fixed_cos.data,
  p.fixed_sin = fixed_sin.data;
  p.rows = d_rows.data, p.n_rows = n_rows.data, p.max_rows = static_cast<std::int64_t>(rows.size());
  p.local_key = ring_rotated.data, p.local_value = ring_value.data;
  p.ring_capacity = capacity, p.ring_head_stride = capacity * kDim;
  const Device<float> out(q.size()), lse(kStep * kHeads);
  p.out = out.data, p.maybe_lse = lse.data;
  const Device<unsigned char> workspace(k::attention_workspace_bytes(p));
  p.workspace = workspace.data, p.workspace_bytes = workspace.size;
  check(k::segmented_attention(p, stream), "segmented_attention");
  check(cudaStreamSynchronize(stream), "the stream");
  check(cudaStreamDestroy(stream), "the stream");

  const std::vector<float> got = out.host(), got_lse = lse.host();
  double worst = 0;
  bool right = true;
  for (std::int64_t i = 0; i < kStep * kHeads; ++i) {
    const std::int64_t kv_head = i % kHeads / (kHeads / kKvHeads), position = kFirst + i / kHeads;
    const auto expected = reference(q.data() + i * kDim, key, value, position, kv_head);
    for (std::int64_t c = 0; c < kDim; ++c) {
      const double error = std::fabs(got[i * kDim + c] - expected[c]);
      right = right && error <= 1e-5;  // which a NaN is not
      worst = std::max(worst, error);
    }
    std::printf("position %d head %d: % .4f % .4f % .4f ...  log-sum-exp %.4f\n",
                static_cast<int>(position), static_cast<int>(i % kHeads), got[i * kDim],
                got[i * kDim + 1], got[i * kDim + 2], got_lse[i]);
  }
  std::printf("%d sinks, %d tokens of 2 events, window of %d: largest error %.1e\n",
              static_cast<int>(kInit), static_cast<int>(rows.size() - kInit),
              static_cast<int>(kLocal), worst);
  return right ? 0 : 1;
}

int main() try {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices);
      error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "segmented_attention: no CUDA device: %s\n", cudaGetErrorString(error));
    return 1;
  }
  return run();
} catch (const std::exception& e) {
  std::fprintf(stderr, "segmented_attention: %s\n", e.what());
  return 1;
}
