// SPDX-License-Identifier: Apache-2.0
#pragma once
// The flags of bench_layer and bench_decode: one shape, one variant, its options, one context.

#include "common.hpp"
#include "episodic/memory/episodic_memory.hpp"

namespace episodic::bench {

/// Defaults are the large shape of benchmarks/README.md.
struct LayerFlags {
  tools::CommonFlags common;
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128;
  std::int64_t n_init = 128, n_local = 4096, n_mem = 2048, chunk = 512, n_repr = 4;
  std::int64_t max_block = 128, min_block = 8;
  std::int64_t context = 8192, chunks = 5, layers = 1;
  std::string variant = "S", dtype = "float32";
  std::string segmenter = "surprise", scope = "sequence", reweight = "none", retention = "none";
  double contiguity = 0, gamma = 1;
  std::int64_t boundary_every = 30;
  std::uint64_t seed = 0;
  bool quick = false;
  std::filesystem::path json;

  /// \param chunks_help what --chunks counts in this program
  void add_to(tools::Command& app, const char* chunks_help);
  /// Lowers what takes long if --quick was given, and sets the threads.
  void apply();
  MemoryConfig config() const;
  MemoryShape shape() const;
  tools::Json to_json() const;
};

}  // namespace episodic::bench
