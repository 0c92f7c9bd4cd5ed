// SPDX-License-Identifier: Apache-2.0
#include "episodic/memory/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/recall/detail/vector_slabs.hpp"
#include "episodic/retention/memoria.hpp"
#include "episodic/timeline/event_table.hpp"
#include "impl.hpp"

namespace episodic {
namespace {

/// Tables of events, flags of boundaries, and what segmenters and refinement keep from token to
/// token.
std::int64_t timeline_bytes(const MemoryConfig& c, const MemoryShape& shape,
                            std::int64_t n_events) {
  const std::int64_t heads = shape.n_layers * shape.n_kv_heads;
  const std::int64_t scopes = c.scope == EventScope::head ? heads : 1;
  std::int64_t bytes =
      scopes * (n_events * static_cast<std::int64_t>(sizeof(TokenRange)) + ring_capacity(c));
  constexpr std::int64_t kNumber = sizeof(double);
  if (c.segmenter == SegmenterKind::surprise)
    bytes += scopes * (c.tau > 0 ? c.tau : c.n_local) * static_cast<std::int64_t>(sizeof(float));
  if (c.segmenter == SegmenterKind::k_similarity)  // the event's mean key
    bytes += heads * shape.head_dim * kNumber;
  if (c.segmenter == SegmenterKind::gaussian)  // and its variance
    bytes += 2 * heads * shape.head_dim * kNumber;
  if (c.refine != Refinement::none) {  // three sums a candidate, two of keys
    const std::int64_t units =
        scopes > 1 ? heads : (shape.n_layers - c.refine_layers) * shape.n_kv_heads;
    bytes += units * (3 * c.chunk + 2 * shape.head_dim) * kNumber;
  }
  return bytes;
}

/// What a state holds of a layer's window (LayerState::save): keys and values as far as it is
/// filled. Rotated keys are made anew from them, and scratch is left out.
std::int64_t saved_window_bytes(const MemoryConfig& c, const MemoryShape& shape,
                                std::int64_t n_tokens) {
  const std::int64_t reached = std::min(n_tokens, ring_capacity(c));
  const std::int64_t rows = 2 * (reached + std::min(n_tokens, c.n_init));
  return size_of(detail::window_dtype(c.kv_dtype)) * shape.n_kv_heads * shape.head_dim * rows +
         size_of(DType::float32) * shape.n_heads * reached;
}

/// Whether full slabs of representatives go into files. FAISS and the best of several read all
/// vectors in every search, and keep them in host memory.
bool vectors_in_files(const MemoryConfig& c) {
  return c.index == IndexKind::exact && c.score == RepresentativeScore::mean;
}

/// What a state holds of a lane's representatives: those that no file has.
std::int64_t saved_index_bytes(const MemoryConfig& c, const LaneShape& of, const MemoryShape& shape,
                               std::int64_t rows, const IndexBytes& all) {
  const std::int64_t width = of.width(shape.head_dim);
  const std::int64_t slab = detail::VectorSlabs(width).rows_per_slab();
  const std::int64_t row = size_of(DType::float32) * width;
  if (vectors_in_files(c)) return row * std::min(rows, slab);  // of a slab that is not full
  if (c.score == RepresentativeScore::max) return row * rows * (1 + c.n_repr);
  return row * rows + all.codes;  // the graph
}

/// Representatives of a lane, in its index or in files: those of forgotten events go once they are
/// as many as the others, and a slab of them.
std::int64_t rows_of(const MemoryConfig& c, const LaneShape& of, const MemoryShape& shape,
                     std::int64_t held, std::int64_t n_events) {
  if (!c.retention || c.index == IndexKind::faiss) return n_events;
  const std::int64_t slab = detail::VectorSlabs(of.width(shape.head_dim)).rows_per_slab();
  return std::min(n_events, held + std::max(held, slab));
}

/// Refuses more than 64 bits count the bytes of.
void require_lengths(const MemoryConfig& c, const MemoryShape& shape, std::int64_t n_tokens,
                     std::int64_t n_events) {
  const double layers = static_cast<double>(shape.n_layers),
               kv_heads = static_cast<double>(shape.n_kv_heads),
               width = static_cast<double>(shape.n_heads * shape.head_dim);
  const double vectors =
      c.score == RepresentativeScore::max ? 1.0 + static_cast<double>(c.n_repr) : 1.0;
  const double of_token = layers * kv_heads * static_cast<double>(shape.head_dim) * 8;
  const double of_event = layers * (2 * width * 8 * vectors + kv_heads * 1024);
  constexpr double kMost = 1152921504606846976.0;  // 2^60
  if (2 * (static_cast<double>(n_tokens) * of_token + static_cast<double>(n_events) * of_event) >
      kMost)
    throw ConfigError(fmt::format(
        "plan: {} tokens in {} events of this model's {} layers are more bytes than can "
        "be counted; ask for less",
        n_tokens, n_events, shape.n_layers));
}

/// What of the text is kept, and by what graph.
struct Held {
  std::int64_t tokens = 0, events = 0;
  std::int64_t graph = 0;  // bytes
};

Held held_of(const MemoryConfig& c, const MemoryShape& shape, std::int64_t n_tokens,
             std::int64_t n_events) {
  if (!c.retention || n_tokens < 1) return {n_tokens, n_events, 0};
  const MemoriaConfig& memoria = c.retention->memoria;
  const double steps = std::max(1.0, static_cast<double>(n_tokens) / static_cast<double>(c.chunk));
  const double fresh = static_cast<double>(n_events) / steps;
  const double most = std::min(
      static_cast<double>(n_events),
      std::ceil(fresh +  // of the chunk that has not ended yet
                Memoria::most_held(memoria, static_cast<double>(memoria.n_short + memoria.n_long),
                                   fresh)));
  const double share = n_events > 0 ? most / static_cast<double>(n_events) : 1.0;
  const double graph = Memoria::bytes_needed(memoria, shape.n_heads * shape.head_dim, fresh, steps);
  return {static_cast<std::int64_t>(std::ceil(share * static_cast<double>(n_tokens))),
          static_cast<std::int64_t>(most), static_cast<std::int64_t>(graph)};
}

}  // namespace

std::int64_t least_host_bytes(const MemoryConfig& config, const MemoryShape& shape) {
  const StoreShape store = store_shape(config, shape);
  if (store.n_lanes == 0) return 0;  // no layer recalls, there is no store
  return least_host_bytes(store, config.max_block, most_leased_tokens(config, shape));
}

MemoryPlan plan_memory(const MemoryConfig& config, const MemoryShape& shape, std::int64_t n_tokens,
                       std::int64_t n_events, bool kept, int checkpoints) {
  config.validate();
  check_shape(config, shape);
  if (n_tokens < 0 || n_events < 0)
    throw ConfigError(
        fmt::format("plan: {} tokens in {} events; both must be >= 0", n_tokens, n_events));
  require_lengths(config, shape, n_tokens, n_events);
  MemoryPlan plan;
  plan.tokens = n_tokens;
  plan.events = n_events;
  const LaneShape of = lane_shape(config, shape);
  const std::int64_t lanes = of.n_lanes;
  const std::int64_t ring = detail::LayerState::bytes_needed(config, shape, ring_capacity(config));
  plan.host.windows = shape.n_layers * ring;
  const StoreShape store = store_shape(config, shape);
  const Held held = held_of(config, shape, n_tokens, n_events);
  const std::int64_t rows = rows_of(config, of, shape, held.events, n_events);
  IndexBytes index = index_bytes(config, of.n_heads, shape.head_dim, rows);
  if (rows < n_events) index.codes += n_events + 2 * 8 * rows;  // flags, and whose the rows are
  plan.host.timeline = timeline_bytes(config, shape, n_events);
  plan.host.graph = held.graph;
  const bool disk = kept || !config.disk_dir.empty();
  plan.host.representatives = lanes * index.codes;
  if (config.repr_bytes == 0 || !disk) {
    plan.host.representatives += lanes * index.vectors;
  } else {
    plan.host.representatives =
        std::min(config.repr_bytes, plan.host.representatives + lanes * index.vectors);
  }
  if (config.repr_bytes > 0 && lanes * index.codes > config.repr_bytes)
    throw BudgetError(fmt::format(
        "repr_bytes = {}: {} events need {} bytes in host memory to be searched; set repr_bytes to "
        "at least that (0: no bound)",
        config.repr_bytes, rows, lanes * index.codes));
  if (lanes > 0) {
    const std::int64_t mean = n_events > 0 ? (n_tokens + n_events - 1) / n_events : 0;
    const std::int64_t all =
        lanes * held.events * block_bytes({1, store.n_kv_heads, store.head_dim, store.dtype}, mean);
    if (!disk) {
      plan.host.event_store = all;
      if (config.host_bytes > 0 && all > config.host_bytes)
        throw BudgetError(
            fmt::format("host_bytes = {}: {} tokens take {} bytes; set host_bytes to at least "
                        "that, set disk_dir, "
                        "or kv_dtype to \"bfloat16\", \"int8\" or \"fp8\"",
                        config.host_bytes, held.tokens, all));
    } else {
      const std::int64_t least = least_host_bytes(config, shape);
      plan.host.event_store =
          config.host_bytes > 0
              ? config.host_bytes
              : default_host_bytes(store, config.max_block, most_leased_tokens(config, shape));
      if (config.host_bytes > 0 && config.host_bytes < least)
        throw BudgetError(fmt::format(
            "host_bytes = {}: the disk tier works with at least {} bytes of host memory; set "
            "host_bytes to that (0: a default)",
            config.host_bytes, least));
      plan.disk.segments = disk_bytes_needed(
          store, std::min(n_events, config.retention ? 2 * held.events : n_events),
          std::min(n_tokens, config.retention ? 2 * held.tokens : n_tokens));
      if (vectors_in_files(config))
        plan.disk.vectors = lanes * (config.retention ? 2 : 1) * index.total();
      const DiskShares shares = disk_shares(config, shape);
      if (config.disk_bytes > 0 &&
          (plan.disk.segments > shares.segments || plan.disk.vectors > shares.vectors)) {
        const auto scaled = [&](std::int64_t bytes, std::int64_t share) {
          return static_cast<double>(bytes) * static_cast<double>(config.disk_bytes) /
                 static_cast<double>(std::max<std::int64_t>(1, share));
        };
        const auto needed =
            static_cast<std::int64_t>(std::max(scaled(plan.disk.segments, shares.segments),
                                               scaled(plan.disk.vectors, shares.vectors))) +
            1;
        throw BudgetError(
            fmt::format("disk_bytes = {}: {} tokens take {} bytes of segments, of which it allows "
                        "{}, and {} of "
                        "vectors, of which it allows {}; set disk_bytes to at least {} (0: no "
                        "bound), or kv_dtype "
                        "to \"bfloat16\", \"int8\" or \"fp8\"",
                        config.disk_bytes, n_tokens, plan.disk.segments, shares.segments,
                        plan.disk.vectors, shares.vectors, needed));
      }
    }
  }
  if (kept) {
    plan.disk.tokens = 4 * n_tokens;
    constexpr std::int64_t kTableBytes = 64;  // of an event, in all tables
    const std::int64_t windows = shape.n_layers * saved_window_bytes(config, shape, n_tokens);
    const std::int64_t scopes =
        config.scope == EventScope::head ? shape.n_layers * shape.n_kv_heads : 1;
    // A memory that forgets keeps no earlier states.
    plan.disk.states = (1 + (config.retention ? 0 : std::max(0, checkpoints))) *
                       (windows + scopes * kTableBytes * n_events + plan.host.graph +
                        lanes * saved_index_bytes(config, of, shape, rows, index));
  }
  return plan;
}

}  // namespace episodic
