// SPDX-License-Identifier: Apache-2.0
#include "memory_sizes.hpp"

#include <fmt/format.h>

#include <limits>

#include "episodic/base/error.hpp"
#include "kernels/recall.hpp"
#include "kernels/relevance.hpp"
#include "layout.hpp"

namespace episodic::device {
namespace {

/// Of what a launch counts in 32 bits; rows of its grid; tokens, whose bytes are counted in 64.
constexpr std::int64_t kMostCounted = std::int64_t{1} << 30, kMostRows = 65'535,
                       kMostTokens = std::int64_t{1} << 40,
                       kMostNumbered = std::numeric_limits<std::int32_t>::max() - 1024;

}  // namespace

void MemorySizes::check_settings() const {
  config.validate();
  const auto refuse = [](const std::string& what) { throw ConfigError("CUDA memory: " + what); };
  if (is_code(options.dtype))
    refuse(
        fmt::format("dtype = {}; a step's rows are float32, float16 or bfloat16, and kv_dtype "
                    "is what events are kept as",
                    name_of(options.dtype)));
  if (config.kv_dtype != DType::float32 && !is_code(config.kv_dtype) &&
      config.kv_dtype != options.dtype)
    refuse(
        fmt::format("kv_dtype = {}; a device keeps events in the model's dtype, {}, or as int8 "
                    "or fp8",
                    name_of(config.kv_dtype), name_of(options.dtype)));
  if (is_code(options.representatives))
    refuse(fmt::format("representatives = {}, must be float32, float16 or bfloat16",
                       name_of(options.representatives)));
  if (options.codes_from < DeviceMemoryOptions::kCodesWherePaid)
    refuse(fmt::format("codes_from = {}, must be >= 0, or -1 for where codes pay; 0 keeps no codes",
                       options.codes_from));
  // Tokens of a step, a window and an event are counted in 32 bits on a device, and sums of a few.
  const auto at_most = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value > most)
      refuse(fmt::format("{} = {}, must be at most {} on a device", name, value, most));
  };
  at_most("n_init", config.n_init, kMostCounted);
  at_most("n_local", config.n_local, kMostCounted);
  at_most("n_mem", config.n_mem, kMostCounted);
  at_most("tau", config.tau, kMostCounted);
  at_most("max_block", config.max_block, kMostCounted);
  if (reads_keys(config.segmenter)) at_most("min_count", config.min_count, kMostCounted);
  at_most("n_repr", std::min(config.n_repr, config.max_block), kernels::kMostRepresentatives);
  if (options.max_tokens < 1 || options.max_tokens > kMostTokens)
    refuse(fmt::format("max_tokens = {}, must be >= 1 and <= {}", options.max_tokens, kMostTokens));
  at_most("n_local + max_block + 2 chunk", ring_capacity(config), kMostCounted);
  at_most("n_layers of the model", shape.n_layers, kMostRows);
  at_most("n_heads of the model", shape.n_heads, kMostRows);
  if (options.event_tokens != 0 &&
      (options.event_tokens < config.min_block || options.event_tokens > config.max_block))
    refuse(fmt::format("event_tokens = {}, must be 0 or from min_block = {} to max_block = {}",
                       options.event_tokens, config.min_block, config.max_block));
  if (config.index != IndexKind::exact)
    refuse("index = faiss; a device searches exactly, use exact");
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256)
    refuse(fmt::format("head_dim = {}, must be a multiple of 8 up to 256", shape.head_dim));
  const LaneShape of_lane = lane_shape(config, shape);
  at_most("the number of lanes", of_lane.n_lanes, kMostRows);
  if (by_head())
    at_most("key/value heads of all layers", shape.n_layers * shape.n_kv_heads, kMostRows);
  if (of_lane.width(shape.head_dim) > kernels::kMostRecallWidth)
    refuse(fmt::format("{} heads of {}, together at most {}", of_lane.n_heads, shape.head_dim,
                       kernels::kMostRecallWidth));
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    if (const std::int64_t dim = shape.layer(l).rotary.rotary_dim(); dim % 16 != 0)
      refuse(fmt::format("rotary_dim = {} of layer {}, must be a multiple of 16", dim, l));
}

void MemorySizes::set_spare(std::int64_t rows) {
  spare = rows;
  capacity = window_tokens + spare;
  head_stride = capacity * shape.head_dim;
}

void MemorySizes::count(bool with_spare) {
  lanes = lane_shape(config, shape);
  scopes = by_head() ? shape.n_layers * shape.n_kv_heads : 1;
  element = size_of(options.dtype);
  window_tokens = ring_capacity(config);
  const bool has_spare =
      options.room_for_snapshots && with_spare && window_tokens + config.chunk <= kMostCounted;
  set_spare(has_spare ? config.chunk : 0);
  recalling = recalling_layers(config, shape);
  const std::int64_t closable = std::max<std::int64_t>(0, options.max_tokens - config.n_init);
  max_events = closable / config.min_block + 1;
  if (max_events > kMostNumbered)
    throw ConfigError(
        fmt::format("CUDA memory: max_tokens = {} may be {} events of min_block = {} tokens, a "
                    "device numbers {}; raise min_block or lower max_tokens",
                    options.max_tokens, max_events, config.min_block, kMostNumbered));
  max_closed = (config.chunk + config.max_block) / config.min_block + 1;
  // What left the window, and whole events up to both capacities.
  const std::int64_t recalled = most_recalled_tokens(config);
  max_event_rows = takes_top() ? std::min(recalled, closable) : recalled;
  max_rows = config.n_init + window_tokens + max_event_rows;
  token_bytes = 2 * lanes.n_kv_heads * shape.head_dim * size_of(event_dtype());
  lane_bytes = size_product(closable, token_bytes);
  const std::int64_t of_step =
      size_product(lanes.n_lanes, size_product(max_event_rows + most_closed_tokens(), token_bytes));
  if (max_rows > kMostCounted || of_step >= kMostSize / 16)
    throw ConfigError(fmt::format(
        "CUDA memory: a query would attend {} tokens beside its window, a device {} at most; lower "
        "n_init, n_local, n_mem, reweight_top or max_block",
        max_rows, kMostCounted));
}

}  // namespace episodic::device
