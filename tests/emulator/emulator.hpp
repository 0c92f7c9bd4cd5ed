// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernels on the host, for tests: the sources of kernels/ compiled by the host compiler, each
// CUDA thread a fiber, each collective a rendezvous.
//
// Shows: the results of every index, mask, tile, merge and fill in them, out-of-bounds access of
// device memory (under the address sanitizer), a collective that not all threads reach, a missing
// barrier (results differ between orders), a missing wait for an asynchronous copy, unset shared
// memory, static or dynamic (each block's starts as NaNs), more shared memory than the device has,
// illegal launch parameters, access that is not aligned to its type (and copies that are not
// aligned to their size, also those that read nothing), a launch on the stream of a device that is
// not the current one, work on a stream that does not wait for a copy or a fill of the default one.
// A capture records what is enqueued on its stream and on those that fork off it, and spoils where
// the runtime's would. Streams that overlap show a missing wait between them (Overlap). Cannot
// show: speed, races inside a warp, the memory model, the rounding of the device's own functions
// (exp, tensor cores), anything of the driver.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda_runtime_api.h"

namespace emulator {

/// Order in which the threads of a block, and the blocks of a grid, get their turns.
enum class Order { forward, backward, shuffled };
void set_order(Order order, std::uint64_t seed = 1);

/// When the work of streams is done.
///   none      as it is enqueued: everything in the order of the calls, but for what the default
///             stream copies and fills in device memory. The runtime's calls for these return
///             before it is done (a copy from pageable memory waits in a staging buffer), so it is
///             done when the host, or a stream that waits for the default one, needs it.
///   late      when the host waits for it, or a stream that is to wait for it has done all the
///   rest:
///             one that does not wait reads what is not there yet, or writes what is still needed.
///   early     also when the host waits, but what a stream is to wait for comes before the rest of
///             its own: the other stream shows that it does not wait.
///   shuffled  also when the host waits, in an order drawn from all that the waits allow.
/// Each is what a device might do. cudaFree and cudaFreeHost wait for everything.
enum class Overlap { none, late, early, shuffled };
/// Waits for everything first.
void set_overlap(Overlap overlap, std::uint64_t seed = 1);

/// What memory of the device, of its blocks and page-locked memory hold before they are written:
/// NaNs in every float type (the default), zeros, or ones in every byte. No result may depend on
/// it.
enum class Unwritten { not_a_number, zeros, ones };
void set_unwritten(Unwritten what);

/// Calls of the runtime since the last reset, and blocks that ran. A library's product is one
/// launch. What a capture records counts as nothing, what a graph does as one launch of it; streams
/// and events that are made count as allocations.
struct Calls {
  std::int64_t allocations = 0, frees = 0, synchronisations = 0, launches = 0, copies = 0,
               captures = 0, graph_launches = 0, host_functions = 0, blocks = 0;
  std::int64_t link_bytes = 0;  ///< of copies between host and device memory, either way
};
Calls calls();
/// Launches on each stream since the last reset: the legacy stream, then those that live, in the
/// order they were made.
std::vector<std::int64_t> launches_of_streams();
void reset_calls();

/// Device memory in use, in bytes, and the most there ever was since reset_calls.
std::int64_t device_bytes();
std::int64_t peak_device_bytes();
/// cudaMalloc and cuMemCreate fail beyond this; what cudaMemGetInfo calls the total.
void set_device_capacity(std::int64_t bytes);
/// Memory is mapped behind reserved addresses by so many bytes, a multiple of the host's page; 0:
/// the device cannot. 2 MiB by default.
void set_mapping_granularity(std::int64_t bytes);
/// Whether addresses can be reserved: yes by default.
void set_reserves_addresses(bool does);
/// So many more pieces of memory for mapping are there; -1: no bound but the capacity.
void set_mappings_left(std::int64_t count);
/// What cudaGetDeviceCount finds: 1 by default. Devices differ in nothing but their streams and
/// events.
void set_device_count(int devices);
/// What the device says of itself: 9.0 by default.
void set_compute_capability(int major, int minor);
/// 4 by default.
void set_multiprocessors(int count);
/// cudaHostAlloc and cudaHostRegister fail beyond this: no bound by default.
void set_pinned_capacity(std::int64_t bytes);
std::int64_t pinned_bytes();
/// Whether the device reads registered memory at the host's addresses: by default it does.
void set_same_addresses(bool value);
/// So many more kernels can be launched, recorded ones included, then none, as after a fault in
/// one; -1: no bound.
void set_launches_left(std::int64_t count);
/// So many more copies between host and device memory work, then none; -1: no bound.
void set_link_copies_left(std::int64_t count);
/// Whether the library holds code for the device: yes by default.
void set_kernel_image(bool is_there);
/// From here on every call that waits says `error`, as after a fault in a kernel; cudaSuccess: the
/// device is sound again.
void set_context_lost(cudaError_t error);
/// Shared memory of a block, static and dynamic, that the current device allows.
std::size_t shared_limit();
/// What cudaDriverGetVersion says: 13000 by default.
void set_driver_version(int version);
/// All that the calls above set, as it is by default; waits for everything first.
void restore_defaults();
/// Leaves the emulated device as it is by default, however the scope ends: a case that fails must
/// not change those behind it.
struct DefaultsBehind {
  DefaultsBehind() = default;
  ~DefaultsBehind();
  DefaultsBehind(const DefaultsBehind&) = delete;
  DefaultsBehind& operator=(const DefaultsBehind&) = delete;
};
/// Whether cuBLAS works in a capture: yes by default. Otherwise it spoils the capture, as where it
/// has to allocate.
void set_cublas_captures(bool captures);

/// Does `work` now, or records it where `stream` captures. \param counted what it counts as if done
/// now, or null. Errors as those of an asynchronous call of the runtime.
/// \param late where streams do not overlap: not before something waits for it
cudaError_t enqueue(cudaStream_t stream, std::int64_t Calls::*counted, std::function<void()> work,
                    bool late = false);
/// Whether cuBLAS may enqueue on `stream`. \return cudaErrorStreamCaptureUnsupported if not
cudaError_t may_multiply(cudaStream_t stream);

}  // namespace emulator
