// SPDX-License-Identifier: Apache-2.0
#include "event_mass.hpp"

#include "attention_args.cuh"
#include "elements.cuh"
#include "event_mass.cuh"
#include "fields.hpp"

namespace episodic::kernels {
namespace {

template <class T, int kDim>
cudaError_t launch_row_mass(const EventMassArgs& args, cudaStream_t stream) {
  const AttentionParams& p = args.a.p;
  const auto grid = [&](int rows) {
    return dim3(static_cast<unsigned>((p.max_rows + rows - 1) / rows),
                static_cast<unsigned>(p.n_kv_heads));
  };
  if constexpr (sizeof(T) == 2) {
    // Few rows leave most of a tensor core's tile empty.
    constexpr ColumnTile kTile = column_tile(kDim);
    if (args.a.rows > mma_tile(kDim, true).rows())
      return launch(MmaRowMassKernel<T, kDim>, grid(kTile.keys()), kWarpSize * kTile.warps,
                    mma_row_mass_shared_bytes(kDim), stream, args);
  }
  return launch(RowMassKernel<T, kDim>, grid(kFloatRows), kFloatThreads,
                row_mass_shared_bytes(kDim), stream, args);
}

template <class T>
cudaError_t launch_row_mass(const EventMassArgs& args, cudaStream_t stream) {
  const std::int64_t d = args.a.p.head_dim;
  return d <= 64    ? launch_row_mass<T, 64>(args, stream)
         : d <= 128 ? launch_row_mass<T, 128>(args, stream)
                    : launch_row_mass<T, 256>(args, stream);
}

FieldError check(const EventMassParams& p) {
  if (const FieldError wrong = check_attention(p.attention)) return wrong;
  EPISODIC_FIELD_GIVEN(p.attention, maybe_lse);
  EPISODIC_FIELD(p, table_stride, p.table_stride >= 0);
  EPISODIC_FIELD(p, list_capacity,
                 product_within(kMaxElements, p.list_capacity, p.attention.n_lists));
  EPISODIC_FIELD(p, list_capacity, p.list_capacity <= INT32_MAX - kEventMassThreads);
  if (p.attention.max_rows == 0 || p.list_capacity == 0) return {};
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

}  // namespace

std::size_t event_mass_workspace_bytes(const EventMassParams& params) {
  AttentionPlan plan;
  if (!plan_attention(params.attention, false, plan)) return 0;
  const std::int64_t rows = params.attention.n_kv_heads * params.attention.max_rows;
  return static_cast<std::size_t>(rows > 0 ? rows : 1) * sizeof(float);
}

const char* invalid_field(const EventMassParams& params) { return check(params).field; }
const char* invalid_field(const ReceiveParams& params) { return check(params).field; }

cudaError_t event_masses(const EventMassParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.attention.max_rows == 0 || p.list_capacity == 0) return cudaSuccess;
  EventMassArgs args{attention_args(p.attention), p, static_cast<float*>(p.workspace)};
  const cudaError_t error = for_element(p.attention.dtype, [&](auto element) {
    return launch_row_mass<typename decltype(element)::type>(args, stream);
  });
  if (error != cudaSuccess) return error;
  return launch(EventMassKernel, static_cast<unsigned>(p.attention.n_lists), kEventMassThreads, 0,
                stream, args);
}

cudaError_t receive_masses(const ReceiveParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n_layers == 0 || p.list_capacity == 0) return cudaSuccess;
  return launch(ReceiveMassesKernel, 1, kReceiveThreads, 0, stream, p);
}

}  // namespace episodic::kernels
