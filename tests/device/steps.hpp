// SPDX-License-Identifier: Apache-2.0
#pragma once
// Drives a DeviceMemory with the random tokens of memory/driver.hpp.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "episodic/device/device_memory.hpp"
#include "episodic/memory/sizes.hpp"
#include "kernels/device.hpp"
#include "memory/driver.hpp"

namespace device_steps {

using namespace episodic;
using driver::Token;
using episodic_test::DeviceArray;

inline MemoryShape shape_of(std::int64_t layers = 2, std::int64_t heads = 4, std::int64_t kv = 2) {
  return driver::small_shape(layers, heads, kv, 16);
}

/// The tokens as they are stored in `dtype`.
inline void round_to(std::vector<Token>& tokens, DType dtype) {
  for (Token& t : tokens)
    for (auto* rows : {&t.q, &t.k, &t.v})
      for (std::vector<float>& row : *rows) episodic_test::stored(row, dtype);
}

inline std::vector<float> rows_of(const std::vector<Token>& tokens,
                                  std::vector<std::vector<float>> Token::*member,
                                  std::int64_t layer, std::int64_t first, std::int64_t n) {
  std::vector<float> rows;
  for (std::int64_t i = first; i < first + n; ++i) {
    const std::vector<float>& row =
        (tokens[static_cast<std::size_t>(i)].*member)[static_cast<std::size_t>(layer)];
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

/// A layer's part of a step of n tokens, whose arrays are packed and on the device.
inline DeviceMemory::LayerStep layer_step(const MemoryShape& s, DType dtype, std::int64_t n,
                                          const void* q, const void* k, const void* v, void* out) {
  const TensorSizes wide{n, s.n_heads, s.head_dim}, narrow{n, s.n_kv_heads, s.head_dim};
  return {{q, dtype, wide, MemoryKind::cuda},
          {k, dtype, narrow, MemoryKind::cuda},
          {v, dtype, narrow, MemoryKind::cuda},
          {out, dtype, wide, MemoryKind::cuda}};
}

/// The same of the step that is open.
inline DeviceMemory::LayerStep layer_step(const DeviceMemory& memory, const void* q, const void* k,
                                          const void* v, void* out) {
  return layer_step(memory.shape(), memory.options().dtype, memory.open_tokens(), q, k, v, out);
}

/// One step on the device. \return outputs per layer
inline std::vector<std::vector<float>> step(DeviceMemory& memory, const std::vector<Token>& tokens,
                                            std::int64_t first, std::int64_t n,
                                            const driver::Sinks& sinks = {}) {
  const MemoryShape& s = memory.shape();
  const DType dtype = memory.options().dtype;
  std::vector<std::vector<float>> out;
  memory.begin_step(n);
  for (std::int64_t l = 0; l < s.n_layers; ++l) {
    std::vector<float> q = rows_of(tokens, &Token::q, l, first, n);
    std::vector<float> k = rows_of(tokens, &Token::k, l, first, n);
    std::vector<float> v = rows_of(tokens, &Token::v, l, first, n);
    const DeviceArray<unsigned char> dq(episodic_test::stored(q, dtype)),
        dk(episodic_test::stored(k, dtype)), dv(episodic_test::stored(v, dtype)), dout(dq.size());
    const DeviceArray<float> dsinks(sinks.empty() ? std::vector<float>()
                                                  : sinks[static_cast<std::size_t>(l)]);
    auto of = layer_step(memory, dq.data(), dk.data(), dv.data(), dout.data());
    if (!sinks.empty()) of.sink_logits = dsinks.data();
    memory.attend(l, of);
    out.push_back(episodic_test::floats(dout.host(), dtype));
  }
  std::vector<float> surprise;
  for (std::int64_t i = first; i < first + n; ++i)
    surprise.push_back(tokens[static_cast<std::size_t>(i)].surprise);
  const DeviceArray<float> d_surprise(surprise);
  memory.end_step(d_surprise.data());
  memory.check();
  return out;
}

/// The same settings with events at home in device memory, in host memory, in files.
inline std::vector<MemoryConfig> tiers(const MemoryConfig& config, const MemoryShape& shape,
                                       const DeviceMemoryOptions& options,
                                       const std::filesystem::path& dir) {
  const DeviceMemoryBytes bytes = DeviceMemory::bytes_needed(config, shape, options);
  std::vector<MemoryConfig> all(3, config);
  all[1].device_bytes = all[2].device_bytes = bytes.total() - bytes.snapshots - bytes.events / 3;
  all[2].device_bytes += 1024;  // over files a step's end keeps what was before it
  all[2].disk_dir = dir.string();
  MemoryConfig kept = config;  // as a device keeps events
  if (!is_code(kept.kv_dtype)) kept.kv_dtype = options.dtype;
  all[2].host_bytes =
      least_host_bytes(store_shape(kept, shape), config.max_block, most_recalled_tokens(config));
  return all;
}

inline double tolerance(DType dtype) {
  return dtype == DType::float32 ? 2e-5 : dtype == DType::float16 ? 4e-3 : 3e-2;
}

}  // namespace device_steps
