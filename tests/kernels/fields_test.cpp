// SPDX-License-Identifier: Apache-2.0
// Which field a launcher refuses: for each one parameters that it takes, and one field after the
// other made wrong. What invalid_field says and what the launcher returns must agree.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/close_events.hpp"
#include "kernels/codes.hpp"
#include "kernels/copies.hpp"
#include "kernels/decoder.hpp"
#include "kernels/device.hpp"
#include "kernels/event_mass.hpp"
#include "kernels/forgetting.hpp"
#include "kernels/key_segmenter.hpp"
#include "kernels/mixture.hpp"
#include "kernels/place_events.hpp"
#include "kernels/product.hpp"
#include "kernels/recall.hpp"
#include "kernels/recall_counts.hpp"
#include "kernels/refine.hpp"
#include "kernels/relevance.hpp"
#include "kernels/residency.hpp"
#include "kernels/reweight.hpp"
#include "kernels/rows.hpp"
#include "kernels/state.hpp"
#include "kernels/surprise.hpp"
#include "kernels/threshold.hpp"
#include "kernels/turn_back.hpp"
#include "kernels/window.hpp"

namespace {

using episodic::DType;
using namespace episodic::kernels;

/// An address that nothing reads: parameters with one that is wrong launch nothing.
alignas(256) unsigned char memory[4096];
template <class T = void>
T* some() {
  return reinterpret_cast<T*>(memory);
}
/// The same, off by a byte.
template <class T = void>
T* odd() {
  return reinterpret_cast<T*>(memory + 1);
}

template <class Params>
struct Wrong {
  const char* field;
  void (*change)(Params&);
};

/// \param launcher of these parameters \param sound which it takes
template <class Params, class Launcher, class Field>
void each_is_named(const Params& sound, const std::vector<Wrong<Params>>& wrong,
                   Launcher&& launcher, Field&& field) {
  (void)cudaGetLastError();                          // takes away what another test left
  const cudaError_t none_left = cudaGetLastError();  // without a driver: that there is none
  REQUIRE(field(sound) == nullptr);
  for (const Wrong<Params>& w : wrong) {
    Params changed = sound;
    w.change(changed);
    CAPTURE(w.field);
    const char* const named = field(changed);
    REQUIRE(named != nullptr);
    REQUIRE(std::string(named) == w.field);
    const cudaError_t error = launcher(changed);
    REQUIRE((error == cudaErrorInvalidValue || error == cudaErrorMisalignedAddress));
  }
  REQUIRE(cudaGetLastError() == none_left);
}

template <class Params>
void each_is_named(const Params& sound, const std::vector<Wrong<Params>>& wrong,
                   cudaError_t (*launcher)(const Params&, cudaStream_t)) {
  each_is_named(
      sound, wrong, [&](const Params& p) { return launcher(p, nullptr); },
      [](const Params& p) { return invalid_field(p); });
}

#define WRONG(Params, field, value)                         \
  Wrong<Params> {                                           \
#field, [](Params & changed) { changed.field = value; } \
  }

RecallParams recall_params() {
  RecallParams p;
  p.n_events = some<std::int64_t>();
  p.events = some<EventRange>();
  p.max_events = 100;
  p.tokens = some<std::int64_t>();
  p.n = 1;
  p.representatives = some();
  p.width = 16;
  p.query = some<float>();
  p.codes_from = 5;
  p.codes = some<std::int8_t>();
  p.code_bounds = some<float>();
  p.n_local = p.n_mem = p.chunk = 8;
  p.queue = p.similarity = p.contiguity_list = p.recalled = some<DeviceEventId>();
  p.queue_size = p.sizes = some<std::int32_t>();
  p.arrived = some<std::uint32_t>();
  p.histogram = some<unsigned long long>();
  p.centre = some<episodic::rules::ScoreCentre>();
  p.workspace = some();
  p.workspace_bytes = recall_workspace_bytes(p);
  return p;
}

RowsParams rows_params() {
  RowsParams p;
  p.n_kv_heads = 2;
  p.head_dim = 8;
  p.tokens = some<std::int64_t>();
  p.n = 1;
  p.n_init = 4;
  p.n_local = 8;
  p.sink_key = p.sink_value = p.ring_key = p.ring_value = some();
  p.ring_capacity = 20;
  p.ring_head_stride = 160;
  p.n_events = some<std::int64_t>();
  p.events = some<EventRange>();
  p.event_block = some<const void*>();
  p.recalled = some<DeviceEventId>();
  p.n_recalled = some<std::int32_t>() + 2;
  p.maybe_event_scales = some<float>();
  p.row_scales = some<const float*>();
  p.rows = some<KvRow>();
  p.n_rows = p.overflow = some<std::int32_t>();
  p.max_rows = 30;
  return p;
}

ProductParams product_params() {
  ProductParams p;
  p.n = 2;
  p.in = 16;
  p.out = 32;
  p.weight = p.x = some();
  return p;
}

ResidencyMap map() {
  return {some<std::int32_t>(),
          some<std::int64_t>(),
          some<DeviceEventId>(),
          some<std::int64_t>(),
          10,
          4};
}

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("launchers name the field that they refuse: attention and its rows") {
  AttentionParams a;
  a.n_queries = 3;
  a.n_heads = 4;
  a.n_kv_heads = 2;
  a.head_dim = 16;
  a.n_local = 8;
  a.q = a.local_key = a.local_value = some();
  a.out = some();
  a.q_row_stride = 64;
  a.first_position = some<std::int64_t>();
  a.rotary_dim = 16;
  a.query_cos = a.query_sin = a.fixed_cos = a.fixed_sin = some<float>();
  a.rows = some<KvRow>();
  a.n_rows = some<std::int32_t>();
  a.max_rows = 5;
  a.max_code_rows = 2;
  a.row_scales = some<const float*>();
  a.ring_capacity = 10;
  a.ring_head_stride = 160;
  a.workspace = some();
  a.workspace_bytes = attention_workspace_bytes(a);
  using A = AttentionParams;
  each_is_named<A>(a,
                   {WRONG(A, dtype, DType::int8),
                    WRONG(A, n_queries, 0),
                    WRONG(A, n_heads, 3),
                    WRONG(A, n_kv_heads, 0),
                    WRONG(A, head_dim, 12),
                    WRONG(A, value_dim, 12),
                    WRONG(A, value_head_stride, 152),
                    WRONG(A, n_local, 0),
                    WRONG(A, n_local, kHuge),
                    WRONG(A, max_rows, -1),
                    WRONG(A, n_lists, 0),
                    WRONG(A, max_code_rows, 6),
                    WRONG(A, code_dtype, DType::bfloat16),
                    WRONG(A, row_scales, nullptr),
                    WRONG(A, row_scales, odd<const float*>()),
                    WRONG(A, rotary_dim, 8),
                    WRONG(A, scale, std::numeric_limits<float>::infinity()),
                    WRONG(A, soft_cap, -1.0f),
                    WRONG(A, q_row_stride, 63),
                    WRONG(A, ring_capacity, 9),
                    WRONG(A, ring_head_stride, 152),
                    WRONG(A, q, nullptr),
                    WRONG(A, q, odd()),
                    WRONG(A, first_position, nullptr),
                    WRONG(A, first_position, odd<std::int64_t>()),
                    WRONG(A, local_key, nullptr),
                    WRONG(A, local_value, odd()),
                    WRONG(A, out, nullptr),
                    WRONG(A, workspace, nullptr),
                    WRONG(A, workspace, odd()),
                    WRONG(A, workspace_bytes, 1),
                    WRONG(A, query_sin, nullptr),
                    WRONG(A, fixed_cos, odd<float>()),
                    WRONG(A, rows, nullptr),
                    WRONG(A, n_rows, nullptr),
                    WRONG(A, maybe_sink_logits, odd<const float>()),
                    WRONG(A, maybe_lse, odd<float>()),
                    WRONG(A, maybe_column_sums, odd<float>()),
                    WRONG(A, maybe_column_stats, some<ColumnStats>()),  // of three queries
                    WRONG(A, maybe_arrived, odd<std::uint32_t>())},
                   segmented_attention);
  EventMassParams m;
  m.attention = a;
  m.attention.maybe_lse = some<float>();
  m.events = some<EventRange>();
  m.recalled = some<DeviceEventId>();
  m.n_recalled = some<std::int32_t>();
  m.list_capacity = 5;
  m.mass = some<double>();
  m.workspace = some();
  m.workspace_bytes = event_mass_workspace_bytes(m);
  using M = EventMassParams;
  each_is_named<M>(m,
                   {{"head_dim", [](M& p) { p.attention.head_dim = 12; }},
                    {"rows", [](M& p) { p.attention.rows = nullptr; }},
                    {"maybe_lse", [](M& p) { p.attention.maybe_lse = nullptr; }},
                    WRONG(M, table_stride, -1),
                    WRONG(M, list_capacity, -1),
                    WRONG(M, list_capacity, kHuge),
                    WRONG(M, events, nullptr),
                    WRONG(M, recalled, nullptr),
                    WRONG(M, recalled, odd<DeviceEventId>()),
                    WRONG(M, n_recalled, nullptr),
                    WRONG(M, mass, nullptr),
                    WRONG(M, mass, odd<double>()),
                    WRONG(M, workspace, nullptr),
                    WRONG(M, workspace, odd()),
                    WRONG(M, workspace_bytes, 1)},
                   event_masses);
  using S = ReceiveParams;
  each_is_named<S>(
      S{some<LayerMasses>(), 2, 1, 5, some<double>()},
      {WRONG(S, n_layers, -1), WRONG(S, n_lists, 0), WRONG(S, list_capacity, -1),
       WRONG(S, layers, nullptr), WRONG(S, received, nullptr), WRONG(S, received, odd<double>())},
      receive_masses);
  using F = ForgetParams;
  each_is_named<F>(F{some<DeviceEventId>(), 3, some<std::uint8_t>(), some<LaneLists>(), 2},
                   {WRONG(F, n_events, -1), WRONG(F, n_lanes, kHuge), WRONG(F, events, nullptr),
                    WRONG(F, events, odd<DeviceEventId>()), WRONG(F, marks, nullptr),
                    WRONG(F, lanes, nullptr), WRONG(F, lanes, odd<LaneLists>())},
                   forget_events);
  using C = RecallCountsParams;
  each_is_named<C>(
      C{some<LaneLists>(), 2, some<std::int32_t>(), 10, some<std::uint32_t>(), some<RecallCount>(),
        some<unsigned long long>()},
      {WRONG(C, n_lanes, -1), WRONG(C, max_events, kHuge), WRONG(C, lanes, nullptr),
       WRONG(C, lanes, odd<LaneLists>()), WRONG(C, maybe_timeline, odd<std::int32_t>()),
       WRONG(C, steps, nullptr), WRONG(C, counts, nullptr), WRONG(C, total, nullptr),
       WRONG(C, total, odd<unsigned long long>()), WRONG(C, maybe_kept, odd<LaneLists>())},
      count_recalls);
  using G = MergeStatesParams;
  G merge;
  merge.n_rows = 5;
  merge.value_dim = 8;
  merge.out = merge.lse = merge.maybe_weighted_mass = some<float>();
  merge.part_out = merge.part_lse = merge.maybe_part_weighted_mass = some<float>();
  each_is_named<G>(
      merge,
      {WRONG(G, n_rows, -1), WRONG(G, value_dim, kHuge), WRONG(G, value_dim, -1),
       WRONG(G, out, nullptr), WRONG(G, out, odd<float>()), WRONG(G, lse, nullptr),
       WRONG(G, lse, odd<float>()), WRONG(G, maybe_weighted_mass, odd<float>()),
       WRONG(G, part_out, nullptr), WRONG(G, part_out, odd<float>()), WRONG(G, part_lse, nullptr),
       WRONG(G, part_lse, odd<float>()), WRONG(G, maybe_part_weighted_mass, nullptr),
       WRONG(G, maybe_part_weighted_mass, odd<float>())},
      merge_states);
  using T = TurnBackParams;
  each_is_named<T>(
      T{DType::bfloat16, 3, 2, 16, 8, false, some(), 32, some<float>(), some<float>(), 1.5, some()},
      {WRONG(T, dtype, DType::fp8),
       WRONG(T, n, -1),
       WRONG(T, n, kHuge),
       WRONG(T, n_heads, 0),
       WRONG(T, head_dim, 0),
       WRONG(T, head_dim, kHuge),
       WRONG(T, rotary_dim, 0),
       WRONG(T, rotary_dim, 7),
       WRONG(T, rotary_dim, 18),
       WRONG(T, row_stride, 31),
       WRONG(T, row_stride, kHuge),
       WRONG(T, attention_factor, 0.0),
       WRONG(T, attention_factor, std::numeric_limits<double>::infinity()),
       WRONG(T, x, nullptr),
       WRONG(T, x, odd()),
       WRONG(T, cos, nullptr),
       WRONG(T, cos, odd<float>()),
       WRONG(T, sin, nullptr),
       WRONG(T, sin, odd<float>()),
       WRONG(T, y, nullptr),
       WRONG(T, y, odd())},
      turn_back);
  using Z = RescaleSumsParams;
  each_is_named<Z>(Z{4, 3, 2, some<float>(), some<float>(), some<float>(), some<double>()},
                   {WRONG(Z, n_heads, -1), WRONG(Z, n_keys, kHuge), WRONG(Z, n_events, -1),
                    WRONG(Z, part_lse, nullptr), WRONG(Z, part_lse, odd<float>()),
                    WRONG(Z, whole_lse, nullptr), WRONG(Z, whole_lse, odd<float>()),
                    WRONG(Z, maybe_sums, nullptr), WRONG(Z, maybe_sums, odd<float>()),
                    WRONG(Z, maybe_masses, nullptr), WRONG(Z, maybe_masses, odd<double>())},
                   rescale_sums);
  using R = RowsParams;
  const std::vector<Wrong<R>> rows{WRONG(R, dtype, DType::int8),
                                   WRONG(R, n_kv_heads, 0),
                                   WRONG(R, head_dim, 0),
                                   WRONG(R, n_lanes, 0),
                                   WRONG(R, count_stride, -1),
                                   WRONG(R, table_stride, -1),
                                   WRONG(R, n, 0),
                                   WRONG(R, n_init, -1),
                                   WRONG(R, n_init, kHuge),
                                   WRONG(R, n_local, 0),
                                   WRONG(R, ring_capacity, 0),
                                   WRONG(R, ring_head_stride, 100),
                                   WRONG(R, value_dim, -1),
                                   WRONG(R, value_dim, kHuge),
                                   WRONG(R, value_head_stride, -8),
                                   WRONG(R, value_head_stride, 1 << 20),  // rows cannot say so
                                   WRONG(R, value_page_stride, 12),
                                   WRONG(R, max_rows, 0),
                                   WRONG(R, tokens, nullptr),
                                   WRONG(R, sink_value, nullptr),
                                   WRONG(R, ring_key, nullptr),
                                   WRONG(R, events, nullptr),
                                   WRONG(R, event_block, nullptr),
                                   WRONG(R, n_recalled, nullptr),
                                   WRONG(R, row_scales, nullptr),
                                   WRONG(R, row_scales, odd<const float*>()),
                                   WRONG(R, rows, odd<KvRow>()),
                                   WRONG(R, overflow, nullptr)};
  each_is_named<R>(rows_params(), rows, far_rows);
  const RecallParams recall = recall_params();
  std::vector<Wrong<R>> together = rows;
  together.push_back(WRONG(R, recalled, nullptr));
  together.push_back(WRONG(R, n_recalled, some<std::int32_t>()));
  each_is_named(
      rows_params(), together, [&](const R& p) { return recall_rows(recall, p, nullptr); },
      [&](const R& p) { return invalid_field(recall, p); });
  RecallParams wrong = recall;
  wrong.contiguity = 2.0;
  REQUIRE(std::string(invalid_field(wrong, rows_params())) == "contiguity");
}

TEST_CASE("launchers name the field that they refuse: recall, its codes and scores") {
  using P = RecallParams;
  each_is_named<P>(recall_params(),
                   {WRONG(P, max_events, 0),
                    WRONG(P, n_lanes, 0),
                    WRONG(P, count_stride, -1),
                    WRONG(P, table_stride, 1),
                    WRONG(P, n, 0),
                    WRONG(P, n_init, -1),
                    WRONG(P, n_local, 0),
                    WRONG(P, n_mem, -1),
                    WRONG(P, n_mem, 1 << 20),
                    WRONG(P, chunk, 0),
                    WRONG(P, min_block, 0),
                    WRONG(P, contiguity, -0.5),
                    WRONG(P, neighbours, -1),
                    WRONG(P, codes_from, -1),
                    WRONG(P, width, 12),
                    WRONG(P, n_events, nullptr),
                    WRONG(P, events, nullptr),
                    WRONG(P, tokens, nullptr),
                    WRONG(P, representatives, nullptr),
                    WRONG(P, representatives, odd()),
                    WRONG(P, query, nullptr),
                    WRONG(P, codes, nullptr),
                    WRONG(P, codes, odd<std::int8_t>()),
                    WRONG(P, code_bounds, nullptr),
                    WRONG(P, queue, nullptr),
                    WRONG(P, queue_size, nullptr),
                    WRONG(P, similarity, nullptr),
                    WRONG(P, contiguity_list, nullptr),
                    WRONG(P, recalled, nullptr),
                    WRONG(P, sizes, nullptr),
                    WRONG(P, arrived, nullptr),
                    WRONG(P, histogram, nullptr),
                    WRONG(P, histogram, odd<unsigned long long>()),
                    WRONG(P, centre, nullptr),
                    WRONG(P, workspace, nullptr),
                    WRONG(P, workspace_bytes, 8),
                    WRONG(P, dtype, DType::int8)},
                   recall_events);
  RecallParams each = recall_params();
  each.representatives = nullptr;
  each.codes_from = 0;
  each.maybe_each = some();
  each.n_repr = each.n_heads = 2;
  each_is_named<P>(each,
                   {WRONG(P, maybe_each, odd()), WRONG(P, codes_from, 1), WRONG(P, n_repr, 0),
                    WRONG(P, n_repr, kMostRepresentatives + 1), WRONG(P, n_heads, 0),
                    WRONG(P, n_heads, -2), WRONG(P, n_heads, 3), WRONG(P, n_heads, 4)},
                   recall_events);
  each.n_repr = kMostRepresentatives, each.n_heads = 1;
  REQUIRE(invalid_field(each) == nullptr);
  CodeParams c;
  c.events = {nullptr, nullptr, some<std::int32_t>(), some<std::int64_t>(), 4};
  c.width = 16;
  c.capacity = 100;
  c.layers = some<CodeLayer>();
  c.n_layers = 2;
  using C = CodeParams;
  each_is_named<C>(c,
                   {WRONG(C, dtype, DType::int8), WRONG(C, width, 4),
                    WRONG(C, events.max_count, -1), WRONG(C, capacity, -1), WRONG(C, n_layers, -1),
                    WRONG(C, events.count, nullptr), WRONG(C, events.first_id, nullptr),
                    WRONG(C, layers, nullptr), WRONG(C, layers, odd<CodeLayer>())},
                   encode_representatives);
  EventScoreParams s;
  s.query = s.score = some<float>();
  s.width = 8;
  s.representative = some();
  s.n_events = some<std::int64_t>();
  s.max_events = 10;
  s.maybe_listed = some<DeviceEventId>();
  s.n_listed = some<std::int32_t>();
  s.max_listed = 5;
  using S = EventScoreParams;
  each_is_named<S>(s,
                   {WRONG(S, dtype, DType::int8), WRONG(S, width, 0), WRONG(S, max_events, -1),
                    WRONG(S, n_lanes, 0), WRONG(S, count_stride, -1), WRONG(S, listed_stride, -1),
                    WRONG(S, max_listed, -1), WRONG(S, n_listed, nullptr), WRONG(S, query, nullptr),
                    WRONG(S, representative, nullptr), WRONG(S, n_events, nullptr),
                    WRONG(S, score, odd<float>())},
                   score_events);
  RecallTopParams t;
  t.top_k = 3;
  t.score = some<float>();
  t.n_events = some<std::int64_t>();
  t.max_events = 10;
  t.is_top = some<std::uint8_t>();
  t.similarity = t.contiguity_list = t.recalled = some<DeviceEventId>();
  t.list_capacity = 9;
  t.sizes = some<std::int32_t>();
  using T = RecallTopParams;
  each_is_named<T>(t,
                   {WRONG(T, top_k, 0), WRONG(T, n_lanes, 1 << 20), WRONG(T, count_stride, -1),
                    WRONG(T, mark_stride, -1), WRONG(T, max_events, -1), WRONG(T, list_capacity, 1),
                    WRONG(T, n_events, nullptr), WRONG(T, sizes, nullptr), WRONG(T, score, nullptr),
                    WRONG(T, is_top, nullptr), WRONG(T, similarity, nullptr),
                    WRONG(T, contiguity_list, nullptr), WRONG(T, recalled, odd<DeviceEventId>())},
                   recall_top);
}

TEST_CASE("launchers name the field that they refuse: surprise, thresholds, boundaries, events") {
  SurpriseParams s;
  s.logits = some();
  s.n = 2;
  s.vocab = s.row_stride = 10;
  s.targets = some<std::int64_t>();
  s.surprise = some<float>();
  using S = SurpriseParams;
  each_is_named<S>(
      s,
      {WRONG(S, n, -1), WRONG(S, vocab, 0), WRONG(S, row_stride, 9), WRONG(S, logits, nullptr),
       WRONG(S, targets, nullptr), WRONG(S, surprise, nullptr), WRONG(S, dtype, DType::int8),
       WRONG(S, maybe_arrived, some<std::uint32_t>())},
      token_surprise);
  SurprisePieceParams q;
  q.logits = q.surprise = q.last = some<float>();
  q.n = 2;
  q.cols = q.row_stride = 5;
  q.vocab = 10;
  q.targets = some<std::int64_t>();
  q.state = some<SurpriseState>();
  using Q = SurprisePieceParams;
  each_is_named<Q>(
      q,
      {WRONG(Q, n, -1), WRONG(Q, cols, 0), WRONG(Q, row_stride, 4), WRONG(Q, first, -1),
       WRONG(Q, vocab, 4), WRONG(Q, logits, nullptr), WRONG(Q, last, nullptr),
       WRONG(Q, targets, nullptr), WRONG(Q, state, nullptr), WRONG(Q, surprise, nullptr)},
      surprise_piece);
  ThresholdParams t;
  t.tau = 4;
  t.n = 2;
  t.state = some<TimelineState>();
  t.surprise = some<float>();
  t.recent = t.threshold = some<float>();
  t.recent_capacity = 6;
  t.raw = some<std::uint8_t>();
  using T = ThresholdParams;
  each_is_named<T>(
      t,
      {WRONG(T, n, -1), WRONG(T, tau, 0), WRONG(T, n_init, -1),
       WRONG(T, window, static_cast<ThresholdWindow>(9)), WRONG(T, recent_capacity, 5),
       WRONG(T, state, nullptr), WRONG(T, surprise, nullptr), WRONG(T, recent, nullptr),
       WRONG(T, threshold, nullptr), WRONG(T, raw, nullptr)},
      surprise_threshold);
  RefineParams r;
  r.objective = RefineObjective::modularity;
  r.n = 3;
  r.max_previous = 3;
  r.state = some<TimelineState>();
  r.raw = some<std::uint8_t>();
  r.flags = some<std::uint8_t>();
  r.flag_capacity = 10;
  r.dtype = DType::float16;
  r.n_layers = r.n_kv_heads = 2;
  r.head_dim = 16;
  r.keys = some<const void*>();
  r.key_capacity = 6;
  r.key_head_stride = 96;
  r.key_row_stride = 16;
  r.workspace = some();
  r.workspace_bytes = refine_workspace_bytes(r);
  using R = RefineParams;
  each_is_named<R>(r,
                   {WRONG(R, n, -1),
                    WRONG(R, n_init, -1),
                    WRONG(R, min_block, 0),
                    WRONG(R, n_timelines, 0),
                    WRONG(R, n_timelines, 2),
                    WRONG(R, state, nullptr),
                    WRONG(R, raw, nullptr),
                    WRONG(R, flags, nullptr),
                    WRONG(R, flag_capacity, 2),
                    WRONG(R, objective, static_cast<RefineObjective>(9)),
                    WRONG(R, max_previous, -1),
                    WRONG(R, dtype, DType::int8),
                    WRONG(R, n_layers, 0),
                    WRONG(R, n_kv_heads, 0),
                    WRONG(R, head_dim, 12),
                    WRONG(R, keys, nullptr),
                    WRONG(R, key_capacity, 5),
                    WRONG(R, key_row_stride, 15),
                    WRONG(R, key_row_stride, 17),
                    WRONG(R, key_head_stride, -8),
                    WRONG(R, key_head_stride, 97),
                    WRONG(R, workspace, nullptr),
                    WRONG(R, workspace, odd()),
                    WRONG(R, workspace_bytes, 8)},
                   refine_boundaries);
  KeySegmenterParams k;
  k.signal = KeySignal::gaussian;
  k.min_count = 1;
  k.var_floor = 0.1;
  k.n = 3;
  k.state = some<TimelineState>();
  k.segmenter = some<KeySegmenterState>();
  k.mean = k.variance = some<double>();
  k.n_layers = k.n_kv_heads = 2;
  k.head_dim = 8;
  k.keys = some<const void*>();
  k.key_capacity = 6;
  k.key_head_stride = 48;
  k.key_row_stride = 8;
  k.raw = some<std::uint8_t>();
  k.workspace = some();
  k.workspace_bytes = key_segmenter_workspace_bytes(k);
  using K = KeySegmenterParams;
  each_is_named<K>(
      k,
      {WRONG(K, signal, static_cast<KeySignal>(9)), WRONG(K, n, -1), WRONG(K, min_count, -1),
       WRONG(K, n_layers, 0), WRONG(K, n_kv_heads, 0), WRONG(K, head_dim, 0),
       WRONG(K, var_floor, 0.0), WRONG(K, dtype, DType::int8), WRONG(K, key_capacity, 2),
       WRONG(K, key_row_stride, 7), WRONG(K, key_head_stride, -1), WRONG(K, state, nullptr),
       WRONG(K, segmenter, nullptr), WRONG(K, mean, nullptr), WRONG(K, variance, nullptr),
       WRONG(K, keys, nullptr), WRONG(K, raw, nullptr), WRONG(K, workspace, nullptr),
       WRONG(K, workspace_bytes, 0)},
      segment_by_keys);
  CloseEventsParams c;
  c.n_local = 8;
  c.min_block = 2;
  c.max_block = 4;
  c.n = 3;
  c.state = some<TimelineState>();
  c.flags = some<std::uint8_t>();
  c.flag_capacity = 15;
  c.events = some<EventRange>();
  c.event_capacity = 5;
  using C = CloseEventsParams;
  each_is_named<C>(
      c,
      {WRONG(C, n, -1), WRONG(C, n_local, 0), WRONG(C, min_block, 0), WRONG(C, max_block, 1),
       WRONG(C, n_timelines, 0), WRONG(C, event_capacity, 0), WRONG(C, flag_capacity, 14),
       WRONG(C, state, nullptr), WRONG(C, flags, nullptr), WRONG(C, events, nullptr)},
      close_events);
  PlaceEventsParams p;
  p.state = some<TimelineState>();
  p.events = some<EventRange>();
  p.max_events = 10;
  p.home = some<unsigned char>();
  p.n_lanes = 1;
  p.token_bytes = 64;
  p.blocks = p.step_blocks = some<void*>();
  p.max_count = 4;
  p.start = p.end = p.first_id = some<std::int64_t>();
  p.count = some<std::int32_t>();
  using P = PlaceEventsParams;
  each_is_named<P>(
      p,
      {WRONG(P, max_events, 0), WRONG(P, n_init, -1), WRONG(P, n_lanes, 0),
       WRONG(P, lane_bytes, -1), WRONG(P, token_bytes, 0), WRONG(P, max_count, 0),
       WRONG(P, state, nullptr), WRONG(P, events, nullptr), WRONG(P, home, nullptr),
       WRONG(P, blocks, nullptr), WRONG(P, start, nullptr), WRONG(P, end, nullptr),
       WRONG(P, count, nullptr), WRONG(P, first_id, nullptr), WRONG(P, step_blocks, nullptr)},
      place_events);
}

TEST_CASE("launchers name the field that they refuse: windows, relevance, copies, slots") {
  AppendParams a;
  a.n = 2;
  a.n_kv_heads = 2;
  a.head_dim = 8;
  a.value_dim = 4;
  a.rotary_dim = 4;
  a.first_position = some<std::int64_t>();
  a.k = a.v = some();
  a.k_row_stride = a.v_row_stride = 16;
  a.cos = a.sin = some<float>();
  a.ring_key = a.ring_rotated_key = a.ring_value = a.sink_key = a.sink_value = some();
  a.ring_capacity = 4;
  a.ring_head_stride = 32;
  a.n_init = 2;
  using A = AppendParams;
  each_is_named<A>(a,
                   {WRONG(A, dtype, DType::int8),
                    WRONG(A, n, -1),
                    WRONG(A, n_kv_heads, 0),
                    WRONG(A, head_dim, 0),
                    WRONG(A, value_dim, -1),
                    WRONG(A, v_row_stride, 7),
                    WRONG(A, value_head_stride, 15),
                    WRONG(A, value_head_stride, -8),
                    WRONG(A, value_page_stride, 12),
                    WRONG(A, rotary_dim, 3),
                    WRONG(A, k_row_stride, 15),
                    WRONG(A, ring_capacity, 1),
                    WRONG(A, ring_head_stride, 31),
                    WRONG(A, n_init, -1),
                    WRONG(A, first_position, nullptr),
                    WRONG(A, k, nullptr),
                    WRONG(A, v, odd()),
                    WRONG(A, ring_rotated_key, nullptr),
                    WRONG(A, ring_value, nullptr),
                    WRONG(A, cos, nullptr),
                    WRONG(A, sin, odd<float>()),
                    WRONG(A, sink_key, nullptr),
                    WRONG(A, sink_value, nullptr)},
                   append_window);
  RotaryAnglesParams r;
  r.n = r.n_frequencies = 2;
  r.first_position = some<std::int64_t>();
  r.inverse_frequency = some<double>();
  r.cos = r.sin = some<float>();
  using R = RotaryAnglesParams;
  each_is_named<R>(
      r,
      {WRONG(R, n, -1), WRONG(R, n_frequencies, -1), WRONG(R, first_position, nullptr),
       WRONG(R, inverse_frequency, odd<double>()), WRONG(R, cos, nullptr), WRONG(R, sin, nullptr)},
      rotary_angles);
  MeanQueryParams m;
  m.n = 100;
  m.n_heads = 2;
  m.head_dim = 8;
  m.rotary_dim = 8;
  m.q = some();
  m.q_row_stride = 16;
  m.fixed_cos = m.fixed_sin = some<float>();
  m.mean = some<float>();
  m.workspace = some();
  m.workspace_bytes = mean_query_workspace_bytes(m);
  using M = MeanQueryParams;
  each_is_named<M>(m,
                   {WRONG(M, dtype, DType::int8), WRONG(M, n, 0), WRONG(M, n_heads, 0),
                    WRONG(M, head_dim, 0), WRONG(M, rotary_dim, 10), WRONG(M, q_row_stride, 15),
                    WRONG(M, q, nullptr), WRONG(M, mean, nullptr), WRONG(M, fixed_cos, nullptr),
                    WRONG(M, fixed_sin, odd<float>()), WRONG(M, workspace_bytes, 8),
                    WRONG(M, workspace, nullptr), WRONG(M, maybe_arrived, odd<std::uint32_t>())},
                   mean_fixed_query);
  RelevanceParams v;
  v.n = 2;
  v.n_heads = 2;
  v.n_local = 4;
  v.first_position = some<std::int64_t>();
  v.capacity = 5;
  v.layers = some<RelevanceLayer>();
  v.n_layers = 1;
  using V = RelevanceParams;
  each_is_named<V>(v,
                   {WRONG(V, n, -1), WRONG(V, n_heads, 0), WRONG(V, n_local, 0),
                    WRONG(V, capacity, 4), WRONG(V, n_layers, -1), WRONG(V, deferred, true),
                    WRONG(V, first_position, nullptr), WRONG(V, layers, odd<RelevanceLayer>())},
                   commit_relevance);
  const ClosedEvents events{some<std::int64_t>(), some<std::int64_t>(), some<std::int32_t>(),
                            some<std::int64_t>(), 3};
  RepresentativeParams e;
  e.events = events;
  e.n_heads = 4;
  e.n_kv_heads = 2;
  e.head_dim = 8;
  e.n_repr = 2;
  e.ring_capacity = 10;
  e.ring_head_stride = 80;
  e.capacity = 5;
  e.layers = some<RepresentativeLayer>();
  e.n_layers = 1;
  e.full = some<std::int32_t>();
  using E = RepresentativeParams;
  each_is_named<E>(e,
                   {WRONG(E, key_dtype, DType::int8), WRONG(E, repr_dtype, DType::int8),
                    WRONG(E, events.max_count, -1), WRONG(E, n_heads, 0), WRONG(E, n_kv_heads, 3),
                    WRONG(E, head_dim, 0), WRONG(E, n_repr, 0), WRONG(E, ring_capacity, 0),
                    WRONG(E, ring_head_stride, 79), WRONG(E, capacity, -1), WRONG(E, n_layers, -1),
                    WRONG(E, events.start, nullptr), WRONG(E, events.end, nullptr),
                    WRONG(E, events.count, nullptr), WRONG(E, events.first_id, nullptr),
                    WRONG(E, layers, nullptr), WRONG(E, full, odd<std::int32_t>())},
                   select_representatives);
  EventBlockParams b;
  b.events = events;
  b.n_kv_heads = 2;
  b.head_dim = 8;
  b.value_dim = 4;
  b.ring_capacity = 10;
  b.ring_head_stride = 80;
  b.layers = some<EventBlockLayer>();
  b.n_layers = 1;
  b.block = some<void*>();
  b.block_dtype = DType::fp8;
  b.not_finite = some<std::int32_t>();
  using B = EventBlockParams;
  each_is_named<B>(b,
                   {WRONG(B, dtype, DType::int8),
                    WRONG(B, block_dtype, DType::float32),
                    WRONG(B, events.first_id, nullptr),
                    WRONG(B, not_finite, nullptr),
                    WRONG(B, not_finite, odd<std::int32_t>()),
                    WRONG(B, events.max_count, -1),
                    WRONG(B, n_kv_heads, 0),
                    WRONG(B, head_dim, 0),
                    WRONG(B, value_dim, -1),
                    WRONG(B, value_dim, kHuge),
                    WRONG(B, value_head_stride, 39),
                    WRONG(B, value_head_stride, -8),
                    WRONG(B, value_page_stride, 12),
                    WRONG(B, ring_capacity, 0),
                    WRONG(B, ring_head_stride, 79),
                    WRONG(B, max_blocks, -1),
                    WRONG(B, n_layers, -1),
                    WRONG(B, events.start, nullptr),
                    WRONG(B, events.end, nullptr),
                    WRONG(B, events.count, nullptr),
                    WRONG(B, layers, nullptr),
                    WRONG(B, block, nullptr)},
                   event_to_block);
  CopyRunsParams c;
  c.runs = some<CopyRun>();
  c.count = some<std::int32_t>();
  c.max_runs = 3;
  using C = CopyRunsParams;
  each_is_named<C>(c,
                   {WRONG(C, max_runs, -1), WRONG(C, max_blocks, -1), WRONG(C, runs, nullptr),
                    WRONG(C, runs, odd<CopyRun>()), WRONG(C, count, nullptr)},
                   copy_runs);
  TouchParams t;
  t.map = map();
  t.step = some<std::int64_t>();
  t.events = some<DeviceEventId>();
  t.count = t.n_missing = some<std::int32_t>();
  t.max_count = 3;
  t.missing = some<DeviceEventId>();
  using T = TouchParams;
  each_is_named<T>(
      t,
      {WRONG(T, map.max_events, -1), WRONG(T, map.n_slots, -1), WRONG(T, map.n_lanes, 0),
       WRONG(T, map.slot_of_event, nullptr), WRONG(T, map.last_recalled, odd<std::int64_t>()),
       WRONG(T, map.newest, nullptr), WRONG(T, max_count, -1), WRONG(T, step, nullptr),
       WRONG(T, events, nullptr), WRONG(T, count, nullptr), WRONG(T, missing, nullptr),
       WRONG(T, n_missing, odd<std::int32_t>())},
      touch_events);
  VictimParams w;
  w.map = map();
  w.since = some<std::int64_t>();
  w.maybe_kept = some<DeviceEventId>();
  w.n_kept = w.n_needed = some<std::int32_t>();
  w.max_needed = 3;
  w.slots = w.n_given = w.n_victims = some<std::int32_t>();
  w.victims = some<DeviceEventId>();
  using W = VictimParams;
  each_is_named<W>(
      w,
      {WRONG(W, map.n_slots, 0), WRONG(W, map.event_of_slot, nullptr), WRONG(W, max_needed, -1),
       WRONG(W, since, nullptr), WRONG(W, n_kept, nullptr), WRONG(W, kept_capacity, -1),
       WRONG(W, pin_stride, -1), WRONG(W, n_needed, nullptr), WRONG(W, slots, nullptr),
       WRONG(W, n_given, nullptr), WRONG(W, victims, nullptr),
       WRONG(W, n_victims, odd<std::int32_t>())},
      choose_victims);
  OccupyParams o;
  o.map = map();
  o.missing = o.victims = some<DeviceEventId>();
  o.slots = o.n_given = o.n_victims = some<std::int32_t>();
  o.max_needed = 3;
  o.events = some<EventRange>();
  o.home = o.slot_memory = some<unsigned char>();
  o.token_bytes = o.slot_bytes = 64;
  o.blocks = some<void*>();
  o.runs = some<CopyRun>();
  using O = OccupyParams;
  each_is_named<O>(
      o,
      {WRONG(O, map.newest, odd<std::int64_t>()), WRONG(O, max_needed, -1), WRONG(O, n_init, -1),
       WRONG(O, table_stride, -1), WRONG(O, lane_bytes, -1), WRONG(O, token_bytes, 0),
       WRONG(O, slot_bytes, 63), WRONG(O, base_end, -1), WRONG(O, missing, nullptr),
       WRONG(O, slots, nullptr), WRONG(O, n_given, nullptr), WRONG(O, victims, nullptr),
       WRONG(O, n_victims, nullptr), WRONG(O, events, nullptr), WRONG(O, home, nullptr),
       WRONG(O, slot_memory, nullptr), WRONG(O, blocks, nullptr), WRONG(O, runs, nullptr)},
      occupy_slots);
}

TEST_CASE("fields: a mixture of experts") {
  ChooseExpertsParams c;
  c.n = c.hidden = c.experts = 4;
  c.chosen = 2;
  c.x = some();
  c.router = c.weight = some<float>();
  c.expert = some<std::int32_t>();
  using C = ChooseExpertsParams;
  each_is_named<C>(
      c,
      {WRONG(C, dtype, DType::int8), WRONG(C, n, -1), WRONG(C, hidden, 0), WRONG(C, experts, 0),
       WRONG(C, experts, kMostMixtureExperts + 1), WRONG(C, chosen, 0), WRONG(C, chosen, 5),
       WRONG(C, maybe_shared, some<float>()), WRONG(C, x, nullptr), WRONG(C, router, nullptr),
       WRONG(C, expert, nullptr), WRONG(C, weight, nullptr)},
      choose_experts);
  ExpertGateParams g;
  g.n = g.in = g.width = g.chosen = 2;
  g.x = g.gate_up = g.inner = some();
  g.expert = some<std::int32_t>();
  using G = ExpertGateParams;
  each_is_named<G>(g,
                   {WRONG(G, dtype, DType::int8),
                    WRONG(G, n, -1),
                    WRONG(G, chosen, 0),
                    WRONG(G, width, 0),
                    WRONG(G, in, 0),
                    WRONG(G, x, nullptr),
                    WRONG(G, gate_up, nullptr),
                    WRONG(G, expert, nullptr),
                    WRONG(G, inner, nullptr),
                    WRONG(G, slope, -1.0f),
                    {"limit", [](G& p) { p.slope = 1.0f; }}},
                   expert_gate);
  ExpertSumParams s;
  s.n = s.out = s.width = s.chosen = 2;
  s.inner = s.down = some();
  s.expert = some<std::int32_t>();
  s.weight = s.sum = some<float>();
  using S = ExpertSumParams;
  each_is_named<S>(s,
                   {WRONG(S, dtype, DType::int8), WRONG(S, n, -1), WRONG(S, chosen, 0),
                    WRONG(S, width, 0), WRONG(S, out, 0), WRONG(S, maybe_shared, some<float>()),
                    WRONG(S, inner, nullptr), WRONG(S, down, nullptr), WRONG(S, expert, nullptr),
                    WRONG(S, weight, nullptr), WRONG(S, sum, nullptr)},
                   expert_sum);
}

TEST_CASE("launchers name the field that they refuse: products and what stands between them") {
  EmbedParams e;
  e.table = some();
  e.vocab = e.width = e.n = 4;
  e.ids = some<std::int64_t>();
  e.hidden = some<float>();
  using E = EmbedParams;
  each_is_named<E>(
      e,
      {WRONG(E, n, -1), WRONG(E, width, 0), WRONG(E, vocab, 0), WRONG(E, table, nullptr),
       WRONG(E, ids, nullptr), WRONG(E, hidden, nullptr), WRONG(E, dtype, DType::int8)},
      embed_tokens);
  AddNormParams a;
  a.n = 2;
  a.width = 8;
  a.hidden = some<float>();
  a.y = some();
  using A = AddNormParams;
  each_is_named<A>(a,
                   {WRONG(A, n, -1), WRONG(A, width, 0), WRONG(A, eps, -1.0f),
                    WRONG(A, maybe_norm_of_added, some<float>()), WRONG(A, multiplier, 2.0f),
                    WRONG(A, maybe_norm_bias, some<float>()), WRONG(A, hidden, nullptr),
                    WRONG(A, y, nullptr), WRONG(A, dtype, DType::int8)},
                   add_norm);
  FinishQkvParams q;
  q.n = 2;
  q.n_heads = q.n_kv_heads = 2;
  q.head_dim = q.normed_channels = 8;
  q.qkv = some();
  q.maybe_bias = some<float>();
  using Q = FinishQkvParams;
  each_is_named<Q>(q,
                   {WRONG(Q, n, -1), WRONG(Q, n_heads, 0), WRONG(Q, n_kv_heads, 0),
                    WRONG(Q, head_dim, 0), WRONG(Q, normed_channels, 9), WRONG(Q, eps, -1.0f),
                    WRONG(Q, dtype, DType::int8), WRONG(Q, qkv, nullptr)},
                   finish_qkv);
  GateParams g;
  g.gate_up = g.y = some();
  g.n = g.width = 2;
  using G = GateParams;
  each_is_named<G>(g,
                   {WRONG(G, n, -1), WRONG(G, width, 0), WRONG(G, gate_up, nullptr),
                    WRONG(G, y, nullptr), WRONG(G, dtype, DType::int8)},
                   gate_times_up);
  each_is_named<G>(g, {WRONG(G, activation, GateActivation::xielu)}, gate_times_up);
  GateRowsParams rows_gated;
  rows_gated.gate = rows_gated.x = some();
  rows_gated.n = rows_gated.width = 2;
  using R = GateRowsParams;
  each_is_named<R>(rows_gated,
                   {WRONG(R, n, -1), WRONG(R, width, 0), WRONG(R, gate, nullptr),
                    WRONG(R, x, nullptr), WRONG(R, dtype, DType::int8)},
                   gate_rows);
  ScaleQueriesParams s;
  s.q = some();
  s.position = some<std::int64_t>();
  s.n = s.width = s.row_stride = 2;
  using S = ScaleQueriesParams;
  each_is_named<S>(
      s,
      {WRONG(S, n, -1), WRONG(S, width, 0), WRONG(S, row_stride, 1), WRONG(S, original, 0),
       WRONG(S, last_position, -1), WRONG(S, beta, -1.0f), WRONG(S, q, nullptr),
       WRONG(S, position, nullptr), WRONG(S, dtype, DType::int8)},
      scale_queries);

  using P = ProductParams;
  const std::vector<Wrong<P>> wrong{WRONG(P, dtype, DType::int8),
                                    WRONG(P, n, 0),
                                    WRONG(P, n, kMostProductRows + 1),
                                    WRONG(P, in, 4),
                                    WRONG(P, out, 0),
                                    WRONG(P, weight, nullptr),
                                    WRONG(P, weight, odd()),
                                    WRONG(P, x, nullptr),
                                    WRONG(P, x, odd()),
                                    WRONG(P, maybe_norm, some<float>()),
                                    WRONG(P, eps, -1.0f)};
  float* const to[kMostProductRows] = {some<float>(), some<float>()};
  float* const one_missing[kMostProductRows] = {some<float>()};
  each_is_named(
      product_params(), wrong, [&](const P& p) { return product(p, to, nullptr); },
      [&](const P& p) { return invalid_field(p, to); });
  REQUIRE(std::string(invalid_field(product_params(), one_missing)) == "to");
  REQUIRE(product(product_params(), one_missing, nullptr) == cudaErrorInvalidValue);
  each_is_named(
      product_params(), wrong, [&](const P& p) { return narrow_product(p, some(), nullptr); },
      [&](const P& p) { return invalid_field(p, some()); });
  each_is_named(
      product_params(), wrong,
      [&](const P& p) { return add_product(p, 1.0f, some<float>(), nullptr); },
      [&](const P& p) { return invalid_field(p, some()); });
  const void* const none = nullptr;
  REQUIRE(std::string(invalid_field(product_params(), none)) == "y");
  REQUIRE(add_product(product_params(), 1.0f, nullptr, nullptr) == cudaErrorInvalidValue);
  std::vector<Wrong<P>> gated = wrong;
  gated.push_back(WRONG(P, out, 31));
  const auto silu = GateActivation::silu;
  each_is_named(
      product_params(), gated, [&](const P& p) { return gated_product(p, silu, some(), nullptr); },
      [&](const P& p) { return invalid_field(p, silu, some()); });
  HeadsParams h;
  h.n_heads = 2;
  h.n_kv_heads = 1;
  h.head_dim = 8;
  h.rotary_dim = 4;
  h.q = some();
  h.q_row_stride = 16;
  for (int r = 0; r < 2; ++r) {
    HeadTarget& to_row = h.row[r];
    to_row.position = some<std::int64_t>();
    to_row.cos = to_row.sin = to_row.fixed_cos = to_row.fixed_sin = some<float>();
    to_row.ring_rotated_key = to_row.ring_value = to_row.sink_key = to_row.sink_value = some();
    to_row.ring_capacity = 4;
    to_row.ring_head_stride = 32;
    to_row.n_init = 1;
    to_row.maybe_mean = some<float>();
  }
  each_is_named(
      product_params(), wrong, [&](const P& p) { return heads_product(p, h, nullptr); },
      [&](const P& p) { return invalid_field(p, h); });
  using H = HeadsParams;
  const auto row = [](const char* field, void (*change)(H&)) { return Wrong<H>{field, change}; };
  each_is_named(
      h,
      {WRONG(H, n_heads, 0), WRONG(H, n_kv_heads, 0), WRONG(H, head_dim, 7), WRONG(H, value_dim, 7),
       WRONG(H, value_dim, -2), WRONG(H, rotary_dim, 3), WRONG(H, q, nullptr),
       WRONG(H, q_row_stride, 15), Wrong<H>{"out", [](H& x) { x.n_kv_heads = 2; }},
       Wrong<H>{"out", [](H& x) { x.value_dim = 6; }},
       row("position", [](H& x) { x.row[1].position = nullptr; }),
       row("ring_value", [](H& x) { x.row[1].ring_value = nullptr; }),
       row("ring_capacity", [](H& x) { x.row[1].ring_capacity = 0; }),
       row("ring_head_stride", [](H& x) { x.row[1].ring_head_stride = 31; }),
       row("value_head_stride", [](H& x) { x.row[1].value_head_stride = 31; }),
       row("value_page_stride", [](H& x) { x.row[1].value_page_stride = 4; }),
       row("sink_key", [](H& x) { x.row[1].sink_key = nullptr; }),
       row("cos", [](H& x) { x.row[1].cos = nullptr; }),
       row("fixed_sin", [](H& x) { x.row[1].fixed_sin = nullptr; })},
      [&](const H& x) { return heads_product(product_params(), x, nullptr); },
      [&](const H& x) { return invalid_field(product_params(), x); });
}
