// SPDX-License-Identifier: Apache-2.0
#include "recall.hpp"

#include <cstdint>
#include <limits>

#include "fields.hpp"
#include "limits.hpp"
#include "recall.cuh"
#include "relevance.hpp"

namespace episodic::kernels {
namespace {

std::int64_t room_of(const RecallParams& p) {
  // Less than capacity + 1 tokens are taken before the last event of either buffer.
  return (p.n_init + p.chunk + p.n_mem) / p.min_block + 3;
}

FieldError check_sizes(const RecallParams& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  EPISODIC_FIELD(p, max_events, p.max_events >= 1 && p.max_events <= kMost);
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 1 && p.n_lanes <= kMostGridRows);
  EPISODIC_FIELD(p, count_stride, p.count_stride >= 0);
  EPISODIC_FIELD(p, table_stride, p.table_stride == 0 || p.table_stride >= p.max_events);
  EPISODIC_FIELD(p, n, p.n >= 1);
  EPISODIC_FIELD(p, n_init, p.n_init >= 0);
  EPISODIC_FIELD(p, n_local, p.n_local >= 1);
  EPISODIC_FIELD(p, n_mem, p.n_mem >= 0);
  EPISODIC_FIELD(p, chunk, p.chunk >= 1);
  EPISODIC_FIELD(p, min_block, p.min_block >= 1);
  EPISODIC_FIELD(p, contiguity, p.contiguity >= 0 && p.contiguity <= 1);
  EPISODIC_FIELD(p, neighbours, p.neighbours >= 0);
  EPISODIC_FIELD(p, codes_from, p.codes_from >= 0);
  // What is recalled must fit a block; places of neighbours are counted in 32 bits.
  EPISODIC_FIELD(p, n_mem, room_of(p) <= kMostRecallRoom);
  const std::int64_t reach = p.neighbours < p.max_events ? p.neighbours : p.max_events;
  EPISODIC_FIELD(p, neighbours, room_of(p) * 2 * reach + room_of(p) < kMost);
  return {};
}

std::int64_t round_up(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

/// Where the parts of the workspace lie, in bytes; each is aligned to 16.
struct RecallWorkspace {
  std::int64_t marks, queue, candidates, n_candidates, bytes;
};
RecallWorkspace workspace_of(const RecallParams& p, std::int64_t room) {
  RecallWorkspace w;
  const std::int64_t of_events = round_up(4 * p.max_events);
  w.marks = of_events;
  w.queue = w.marks + of_events;
  w.candidates = w.queue + round_up(4 * room);
  w.n_candidates = w.candidates + (p.codes_from > 0 ? round_up(8 * p.max_events) : 0);
  w.bytes = w.n_candidates + (p.codes_from > 0 ? 16 : 0);
  return w;
}

}  // namespace

std::int64_t recall_room(const RecallParams& p) { return check_sizes(p) ? 0 : room_of(p); }

std::size_t recall_workspace_bytes(const RecallParams& p) {
  const std::int64_t room = recall_room(p);
  if (room == 0) return 0;
  return static_cast<std::size_t>(p.n_lanes * workspace_of(p, room).bytes);
}

namespace {

FieldError check(const RecallParams& p) {
  if (const FieldError wrong = check_sizes(p)) return wrong;
  EPISODIC_FIELD(p, width, p.width >= 8 && p.width % 8 == 0 && p.width <= kMostRecallWidth);
  EPISODIC_FIELD_GIVEN(p, n_events);
  EPISODIC_FIELD_GIVEN(p, events);
  EPISODIC_FIELD_GIVEN(p, tokens);
  EPISODIC_FIELD(p, representatives, p.representatives || p.maybe_each);
  EPISODIC_FIELD_GIVEN(p, query);
  EPISODIC_FIELD(p, codes_from, p.codes_from == 0 || !p.maybe_each);
  EPISODIC_FIELD(
      p, n_repr,
      !p.maybe_each || (p.n_repr >= 1 && p.n_repr <= kMostRepresentatives &&
                        product_within(kMaxElements, p.n_lanes, p.max_events, p.n_repr, p.width)));
  EPISODIC_FIELD(p, n_heads, !p.maybe_each || (p.n_heads >= 1 && p.width % (8 * p.n_heads) == 0));
  EPISODIC_FIELD(p, codes, p.codes_from == 0 || p.codes);
  EPISODIC_FIELD(p, code_bounds, p.codes_from == 0 || p.code_bounds);
  EPISODIC_FIELD_GIVEN(p, queue);
  EPISODIC_FIELD_GIVEN(p, queue_size);
  EPISODIC_FIELD_GIVEN(p, similarity);
  EPISODIC_FIELD_GIVEN(p, contiguity_list);
  EPISODIC_FIELD_GIVEN(p, recalled);
  EPISODIC_FIELD_GIVEN(p, sizes);
  EPISODIC_FIELD_GIVEN(p, arrived);
  EPISODIC_FIELD_GIVEN(p, histogram);
  EPISODIC_FIELD_GIVEN(p, centre);
  EPISODIC_FIELD_GIVEN(p, workspace);
  EPISODIC_FIELD(p, workspace_bytes, p.workspace_bytes >= recall_workspace_bytes(p));
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD_ALIGNED(p, representatives, 16);
  EPISODIC_FIELD_ALIGNED(p, maybe_each, 16);
  EPISODIC_FIELD_ALIGNED(p, workspace, 16);
  EPISODIC_FIELD_ALIGNED(p, codes, 16);
  EPISODIC_FIELD_ALIGNED(p, code_bounds, 4);
  EPISODIC_FIELD_ALIGNED(p, histogram, 8);
  EPISODIC_FIELD_ALIGNED(p, centre, 4);
  return {};
}

FieldError check(const RecallParams& p, const RowsParams& rows) {
  if (const FieldError wrong = check(p)) return wrong;
  if (const FieldError wrong = check_rows(rows)) return wrong;
  EPISODIC_FIELD(rows, n_lanes, rows.n_lanes == p.n_lanes);
  EPISODIC_FIELD(rows, list_capacity, p.n_lanes == 1 || rows.list_capacity == room_of(p));
  EPISODIC_FIELD(rows, recalled, rows.recalled == p.recalled);
  EPISODIC_FIELD(rows, n_recalled, rows.n_recalled == p.sizes + 2);
  return {};
}

FieldError check_alike(const RecallParams& p, const RecallParams& first) {
  EPISODIC_FIELD_SHARED(p, first, dtype);
  EPISODIC_FIELD_SHARED(p, first, width);
  EPISODIC_FIELD_SHARED(p, first, n_lanes);
  EPISODIC_FIELD(p, maybe_each, (p.maybe_each == nullptr) == (first.maybe_each == nullptr));
  EPISODIC_FIELD_SHARED(p, first, n_repr);
  EPISODIC_FIELD_SHARED(p, first, n_heads);
  return {};
}

FieldError check(const RecallParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const RecallParams& p) { return check(p); }, check_alike);
}

FieldError check(const RecallParams* params, const RowsParams* rows, std::int64_t n_sequences) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong;
  if (n_sequences > 0 && !rows) return {"rows", cudaErrorInvalidValue};
  for (std::int64_t i = 0; i < n_sequences; ++i) {
    if (const FieldError wrong = check(params[i], rows[i])) return wrong;
    if (const FieldError wrong = check_rows_alike(rows[i], rows[0])) return wrong;
  }
  return {};
}

RecallArgs args_of(const RecallParams& p, const RowsParams* maybe_rows) {
  RecallArgs a;
  a.p = p;
  if (maybe_rows) {
    a.with_rows = true;
    a.rows = with_value_width(*maybe_rows);
    a.row_element = static_cast<int>(size_of(maybe_rows->dtype));
  }
  const std::int64_t room = recall_room(p);
  const RecallWorkspace w = workspace_of(p, room);
  a.marks = w.marks;
  a.old_queue = w.queue;
  a.candidates = w.candidates;
  a.n_candidates = w.n_candidates;
  a.workspace_stride = w.bytes;
  a.representative_stride =
      p.max_events * (p.maybe_each ? p.n_repr : 1) * p.width * size_of(p.dtype);
  a.room = static_cast<int>(room);
  return a;
}

template <std::int64_t kMost>
cudaError_t launch_recall(const Batch<RecallArgs, kMost>& batch, cudaStream_t stream) {
  const RecallParams& first = batch.of[0].p;
  const std::int64_t lanes = batch.n * first.n_lanes;
  const std::int64_t wanted = largest(batch, [&](const RecallArgs& a) {
    return (a.p.max_events + kEventsOfBlock - 1) / kEventsOfBlock;
  });
  // A block holds all the threads that a multiprocessor's registers allow: more blocks than there
  // are of those would wait.
  int multiprocessors = 0;
  if (const cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess)
    return error;
  const std::int64_t share = lanes < multiprocessors ? multiprocessors / lanes : 1;
  const dim3 blocks(static_cast<unsigned>(wanted < share ? wanted : share),
                    static_cast<unsigned>(first.n_lanes), static_cast<unsigned>(batch.n));
  if (any_of(batch, [](const RecallArgs& a) { return a.p.codes_from > 0; })) {
    const cudaError_t error =
        launch_early(BoundEventsKernel<kRoomOf<decltype(batch)>>, blocks, kSelectThreads,
                     coded_query_bytes(first.width), stream, batch);
    if (error != cudaSuccess) return error;
  }
  const std::int64_t room = largest(batch, [](const RecallArgs& a) { return a.room; });
  return for_element(first.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    return launch_early(
        first.maybe_each ? RecallKernel<Element, true, kMost> : RecallKernel<Element, false, kMost>,
        blocks, kSelectThreads, recall_shared_bytes(first.width, room), stream, batch);
  });
}

/// Of calls that were checked. \param maybe_rows to write behind each selection
cudaError_t launch_recalls(const RecallParams* params, const RowsParams* maybe_rows,
                           std::int64_t n_sequences, cudaStream_t stream) {
  return launch_in_batches<RecallArgs, kMostRecallsInLaunch>(
      n_sequences,
      [&](std::int64_t i, RecallArgs& args) {
        args = args_of(params[i], maybe_rows ? maybe_rows + i : nullptr);
        return true;
      },
      [&](const auto& batch) { return launch_recall(batch, stream); });
}

}  // namespace

const char* invalid_field(const RecallParams& params) { return check(params).field; }
const char* invalid_field(const RecallParams& recall, const RowsParams& rows) {
  return check(recall, rows).field;
}
const char* invalid_field(const RecallParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const RecallParams* recall, const RowsParams* rows,
                          std::int64_t n_sequences) {
  return check(recall, rows, n_sequences).field;
}

cudaError_t recall_events_batch(const RecallParams* params, std::int64_t n_sequences,
                                cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_recalls(params, nullptr, n_sequences, stream);
}

cudaError_t recall_rows_batch(const RecallParams* recall, const RowsParams* rows,
                              std::int64_t n_sequences, cudaStream_t stream) {
  if (const FieldError wrong = check(recall, rows, n_sequences)) return wrong.error;
  return launch_recalls(recall, rows, n_sequences, stream);
}

cudaError_t recall_events(const RecallParams& p, cudaStream_t stream) {
  return recall_events_batch(&p, 1, stream);
}

cudaError_t recall_rows(const RecallParams& p, const RowsParams& rows, cudaStream_t stream) {
  return recall_rows_batch(&p, &rows, 1, stream);
}

}  // namespace episodic::kernels
