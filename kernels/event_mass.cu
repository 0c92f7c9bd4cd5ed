// SPDX-License-Identifier: Apache-2.0
#include "event_mass.hpp"

#include "attention_args.cuh"
#include "elements.cuh"
#include "event_mass.cuh"
#include "fields.hpp"

namespace episodic::kernels {
namespace {

bool has_work(const EventMassParams& p) { return p.attention.max_rows > 0 && p.list_capacity > 0; }

EventMassArgs event_mass_args(const EventMassParams& p) {
  return {attention_args(p.attention),
          p.events,
          p.table_stride,
          p.recalled,
          p.n_recalled,
          p.list_capacity,
          p.mass,
          static_cast<float*>(p.workspace)};
}

/// Tiles of so many rows.
std::int64_t row_tiles(const EventMassArgs& args, std::int64_t rows) {
  return (args.a.p.max_rows + rows - 1) / rows;
}

template <class T, int kDim>
cudaError_t launch_row_masses(const EventMassParams* params, std::int64_t n_sequences,
                              cudaStream_t stream) {
  const std::int64_t heads = params->attention.n_kv_heads;
  // On the tensor cores, where few rows leave most of a tile empty, and many fill the device.
  const auto has_many_rows = [](const EventMassArgs& args) {
    return sizeof(T) == 2 && args.a.rows > mma_tile(kDim, true).rows();
  };
  if constexpr (sizeof(T) == 2)
    for (std::int64_t i = 0; i < n_sequences; ++i) {
      constexpr ColumnTile kTile = column_tile(kDim);
      const EventMassArgs args = event_mass_args(params[i]);
      if (!has_work(params[i]) || !has_many_rows(args)) continue;
      const dim3 grid(static_cast<unsigned>(row_tiles(args, kTile.keys())),
                      static_cast<unsigned>(heads));
      if (const cudaError_t error = launch(MmaRowMassKernel<T, kDim>, grid, kWarpSize * kTile.warps,
                                           mma_row_mass_shared_bytes(kDim), stream, args))
        return error;
    }
  return launch_in_batches<EventMassArgs, kMostMassesInLaunch>(
      n_sequences,
      [&](std::int64_t i, EventMassArgs& args) {
        args = event_mass_args(params[i]);
        return has_work(params[i]) && !has_many_rows(args);
      },
      [&](const auto& batch) {
        const std::int64_t tiles =
            largest(batch, [](const EventMassArgs& args) { return row_tiles(args, kFloatRows); });
        const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(heads),
                        static_cast<unsigned>(batch.n));
        return launch(RowMassKernel<T, kDim, kRoomOf<decltype(batch)>>, grid, kFloatThreads,
                      row_mass_shared_bytes(kDim), stream, batch);
      });
}

template <class T>
cudaError_t launch_row_masses(const EventMassParams* params, std::int64_t n_sequences,
                              cudaStream_t stream) {
  const std::int64_t d = params->attention.head_dim;
  return d <= 64    ? launch_row_masses<T, 64>(params, n_sequences, stream)
         : d <= 128 ? launch_row_masses<T, 128>(params, n_sequences, stream)
                    : launch_row_masses<T, 256>(params, n_sequences, stream);
}

FieldError check(const EventMassParams& p) {
  if (const FieldError wrong = check_attention(p.attention)) return wrong;
  EPISODIC_FIELD_GIVEN(p.attention, maybe_lse);
  EPISODIC_FIELD(p, table_stride, p.table_stride >= 0);
  EPISODIC_FIELD(p, list_capacity,
                 product_within(kMaxElements, p.list_capacity, p.attention.n_lists));
  EPISODIC_FIELD(p, list_capacity, p.list_capacity <= INT32_MAX - kEventMassThreads);
  if (!has_work(p)) return {};
  EPISODIC_FIELD_GIVEN(p, events);
  EPISODIC_FIELD_GIVEN(p, recalled);
  EPISODIC_FIELD_GIVEN(p, n_recalled);
  EPISODIC_FIELD_GIVEN(p, mass);
  EPISODIC_FIELD_GIVEN(p, workspace);
  EPISODIC_FIELD(p, workspace_bytes, p.workspace_bytes >= event_mass_workspace_bytes(p));
  EPISODIC_FIELD_ALIGNED(p, events, 8);
  EPISODIC_FIELD_ALIGNED(p, recalled, sizeof(DeviceEventId));
  EPISODIC_FIELD_ALIGNED(p, n_recalled, 4);
  EPISODIC_FIELD_ALIGNED(p, mass, 8);
  EPISODIC_FIELD_ALIGNED(p, workspace, kWorkspaceAlignment);
  return {};
}

FieldError check(const ReceiveParams& p) {
  EPISODIC_FIELD(p, n_layers, p.n_layers >= 0);
  EPISODIC_FIELD(p, n_lists, p.n_lists >= 1);
  EPISODIC_FIELD(p, list_capacity, product_within(kMaxElements, p.list_capacity, p.n_lists));
  if (p.n_layers == 0 || p.list_capacity == 0) return {};
  EPISODIC_FIELD_GIVEN(p, layers);
  EPISODIC_FIELD_GIVEN(p, received);
  EPISODIC_FIELD_ALIGNED(p, layers, 8);
  EPISODIC_FIELD_ALIGNED(p, received, 8);
  return {};
}

FieldError check(const EventMassParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const EventMassParams& p) { return check(p); },
      [](const EventMassParams& p, const EventMassParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p.attention, first.attention, dtype);
        EPISODIC_FIELD_SHARED(p.attention, first.attention, n_kv_heads);
        EPISODIC_FIELD_SHARED(p.attention, first.attention, head_dim);
        EPISODIC_FIELD_SHARED(p.attention, first.attention, n_lists);
        return {};
      });
}

FieldError check(const ReceiveParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const ReceiveParams& p) { return check(p); });
}

}  // namespace

std::size_t event_mass_workspace_bytes(const EventMassParams& params) {
  AttentionPlan plan;
  if (!plan_attention(params.attention, false, plan)) return 0;
  const std::int64_t rows = params.attention.n_kv_heads * params.attention.max_rows;
  return static_cast<std::size_t>(rows > 0 ? rows : 1) * sizeof(float);
}

const char* invalid_field(const EventMassParams& params) { return check(params).field; }
const char* invalid_field(const ReceiveParams& params) { return check(params).field; }

const char* invalid_field(const EventMassParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const ReceiveParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t event_masses_batch(const EventMassParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  const cudaError_t error = for_element(params->attention.dtype, [&](auto element) {
    return launch_row_masses<typename decltype(element)::type>(params, n_sequences, stream);
  });
  if (error != cudaSuccess) return error;
  return launch_in_batches<EventMassArgs, kMostMassesInLaunch>(
      n_sequences,
      [&](std::int64_t i, EventMassArgs& args) {
        args = event_mass_args(params[i]);
        return has_work(params[i]);
      },
      [&](const auto& batch) {
        const dim3 grid(static_cast<unsigned>(params->attention.n_lists),
                        static_cast<unsigned>(batch.n));
        return launch(EventMassKernel<kRoomOf<decltype(batch)>>, grid, kEventMassThreads, 0, stream,
                      batch);
      });
}

cudaError_t event_masses(const EventMassParams& p, cudaStream_t stream) {
  return event_masses_batch(&p, 1, stream);
}

cudaError_t receive_masses_batch(const ReceiveParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<ReceiveParams>(
      n_sequences,
      [&](std::int64_t i, ReceiveParams& args) {
        args = params[i];
        return args.n_layers > 0 && args.list_capacity > 0;
      },
      [&](const auto& batch) {
        return launch(ReceiveMassesKernel<kRoomOf<decltype(batch)>>, static_cast<unsigned>(batch.n),
                      kReceiveThreads, 0, stream, batch);
      });
}

cudaError_t receive_masses(const ReceiveParams& p, cudaStream_t stream) {
  return receive_masses_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
