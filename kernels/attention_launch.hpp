// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The launches behind kernels/attention.hpp, one source for each dtype.

#include "attention_plan.hpp"
#include "batch.hpp"
#include "value_width.cuh"

namespace episodic::kernels {

struct AttentionArgs;

/// Launches all passes that the calls ask for: one call, or several of one launch (share_launch).
/// \param most the most that any of their plans has
/// \return what the first failed launch said
cudaError_t launch_float_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                                   cudaStream_t stream);
cudaError_t launch_half_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                                  cudaStream_t stream);
cudaError_t launch_bfloat16_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                                      cudaStream_t stream);

#if defined(EPISODIC_WGMMA)
/// Whether the current device runs the wgmma kernel: compute capability 9.0 and no other, as its
/// code is for sm_90a.
bool device_has_wgmma();
/// The first pass of 16-bit elements and many rows, in the place of MmaAttentionKernel; and their
/// column sums, in the place of MmaColumnSumsKernel.
cudaError_t launch_wgmma_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                   cudaStream_t stream);
cudaError_t launch_wgmma_column_sums(const AttentionPlan& plan, const AttentionArgs& args,
                                     cudaStream_t stream);
#else  // a build for other devices, and the emulation
inline bool device_has_wgmma() { return false; }
inline cudaError_t launch_wgmma_attention(const AttentionPlan&, const AttentionArgs&,
                                          cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
inline cudaError_t launch_wgmma_column_sums(const AttentionPlan&, const AttentionArgs&,
                                            cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;
}
#endif

/// Whether the wgmma kernel is for such a call: its values are as wide as its keys, and lie alike.
inline bool runs_on_wgmma(const AttentionParams& p) {
  const bool alike = p.value_page_stride == 0 || p.value_page_stride == p.ring_pages.page_stride;
  return device_has_wgmma() && value_dim(p) == p.head_dim && alike;
}

}  // namespace episodic::kernels
