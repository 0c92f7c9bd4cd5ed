// SPDX-License-Identifier: Apache-2.0
#pragma once
// Faults put in on purpose: small kernels, each sound or with the one fault that its name says.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace ptx_faults {

enum class Plant {
  missing_barrier,         // shared memory read before all have written it
  missing_second_barrier,  // written again before all have read it
  missing_syncwarp,        // the same among the lanes of a warp
  barrier_in_a_branch,     // that half of a warp takes, the other half waits elsewhere
  shuffle_in_a_branch,     // of the full mask
  read_past_the_end,       // of global memory, by one
  write_past_the_end,
  past_a_shared_array,  // into the array behind it
  past_dynamic_memory,
  unset_shared_word,
  unset_global_word,
  unaligned_vector,
  unaligned_absent_copy,  // of no bytes
  copy_not_waited_for,    // one group too few
  copy_without_barrier,   // waited for, but read by another thread
  copy_left_open,         // a thread ends with it
  blocks_write_one_word,
  handover_without_fence,  // the last block reads what the others wrote
  plain_beside_atomic,
  missing_wait,       // for the launch before, whose numbers are read
  wait_too_late,      // they are read before it
  write_too_early,    // over what the launch before reads
  nobody_waits,       // for the launch before, of which nothing is needed: the next one needs it
  wrong_fragment,     // two of the fragments of a product exchanged
  wrong_matrix_rows,  // ldmatrix where the transposed one is meant
  // a ring of tiles between warpgroups that copy and multiply (faults_wgmma.cu)
  product_not_waited_for,
  product_without_fence,    // of its registers
  tile_not_published,       // to the asynchronous proxy
  tile_not_waited_for,      // multiplied before it is full
  tile_released_too_early,  // before the product that reads it has ended
  tile_overwritten,         // not waited for until it is empty
  barrier_of_too_many,      // counts an arrival that never comes
  wrong_parity,
  warp_without_product,  // three warps of four multiply
  too_few_meet,          // at a barrier of a part of the block
  wrong_matrix_stride,
  wrong_swizzle,
  marks_not_handed_over,     // one lane arrives for its warp, without a __syncwarp before it
  marks_released_too_early,  // the same where they were read
  // two groups of products on their way, of which the older one is waited for first
  younger_group_not_waited_for,    // its sums are changed once the older one has ended
  tile_released_with_older_group,  // while the younger one still reads it
  count,
};
const char* name_of(Plant plant);

/// Runs it with or without its fault. `in`: 256 floats, `out`: 256 floats, `scratch`: 256 words of
/// zeros. \return what the launch said
cudaError_t run(Plant plant, bool with_fault, const float* in, float* out, std::uint32_t* scratch);

/// The part of run that is for sm_90a.
void run_ring(Plant plant, bool with_fault, const float* in, float* out, std::uint32_t* scratch);
/// Of `in`, what a sound ring writes to `out`: 256 of its sums.
void expect_ring(const float* in, float* out);

/// A block of `threads` with `dynamic_bytes`, of a kernel for at most 128 threads with 8 KB static.
cudaError_t launch_sizes(unsigned threads, std::size_t dynamic_bytes, float* out);

}  // namespace ptx_faults
