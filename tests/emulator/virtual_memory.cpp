// SPDX-License-Identifier: Apache-2.0
// Memory mapped behind reserved addresses: the host's own pages, which fault until they are opened.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "streams.hpp"
#include "unwritten.hpp"

using emulator::device;

namespace {

void* pointer(CUdeviceptr at) { return reinterpret_cast<void*>(at); }

/// The reservation that [at, at + size) lies in, or none.
bool is_reserved(CUdeviceptr at, std::size_t size) {
  auto next = device.reservations.upper_bound(pointer(at));
  if (next == device.reservations.begin()) return false;
  --next;
  const auto begin = reinterpret_cast<CUdeviceptr>(next->first);
  return at - begin + size <= next->second;
}

bool is_whole(std::size_t size) {
  return device.granularity > 0 && size > 0 && size % device.granularity == 0;
}

bool is_mapped(CUdeviceptr at, std::size_t size) {
  for (const auto& [begin, mapping] : device.mappings)
    if (begin < at + size && at < begin + mapping.size) return true;
  return false;
}

/// Gives memory back that nothing holds or maps.
void settle(CUmemGenericAllocationHandle memory) {
  const auto found = device.physical.find(memory);
  if (found == device.physical.end() || found->second.held || found->second.mapped) return;
  device.used -= static_cast<std::int64_t>(found->second.size);
  device.physical.erase(found);
}

template <class Call>
void* address_of(Call* call) {
  return reinterpret_cast<void*>(call);
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const std::pair<std::string_view, void*> all[] = {
      {"cuMemGetAllocationGranularity", address_of(cuMemGetAllocationGranularity)},
      {"cuMemAddressReserve", address_of(cuMemAddressReserve)},
      {"cuMemAddressFree", address_of(cuMemAddressFree)},
      {"cuMemCreate", address_of(cuMemCreate)},
      {"cuMemRelease", address_of(cuMemRelease)},
      {"cuMemMap", address_of(cuMemMap)},
      {"cuMemUnmap", address_of(cuMemUnmap)},
      {"cuMemSetAccess", address_of(cuMemSetAccess)}};
  *function = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  for (const auto& [name, call] : all)
    if (name == symbol) {
      *result = cudaDriverEntryPointVersionNotSufficent;
      if (device.driver < static_cast<int>(version)) break;
      *result = cudaDriverEntryPointSuccess;
      *function = call;
    }
  return cudaSuccess;
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* of,
                                       CUmemAllocationGranularity_flags) {
  if (!granularity || !of || of->location.id >= device.count) return CUDA_ERROR_INVALID_VALUE;
  if (device.granularity == 0) return CUDA_ERROR_NOT_SUPPORTED;
  *granularity = device.granularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* at, std::size_t size, std::size_t, CUdeviceptr,
                             unsigned long long flags) {
  if (!at || !is_whole(size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!device.reserves) return CUDA_ERROR_NOT_SUPPORTED;
  void* const range =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  device.reservations[range] = size;
  *at = reinterpret_cast<CUdeviceptr>(range);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, std::size_t size) {
  const auto found = device.reservations.find(pointer(at));
  if (found == device.reservations.end() || found->second != size || is_mapped(at, size))
    return CUDA_ERROR_INVALID_VALUE;
  device.reservations.erase(found);
  munmap(pointer(at), size);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* memory, std::size_t size,
                     const CUmemAllocationProp* of, unsigned long long flags) {
  if (!memory || !of || of->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_whole(size) || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  ++device.calls.allocations;
  const auto bytes = static_cast<std::int64_t>(size);
  if (device.creates_left == 0 || device.used + bytes > device.capacity)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (device.creates_left > 0) --device.creates_left;
  device.used += bytes;
  device.peak = std::max(device.peak, device.used);
  *memory = ++device.last_physical;
  device.physical[*memory] = {size, true, false};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle memory) {
  const auto found = device.physical.find(memory);
  if (found == device.physical.end() || !found->second.held) return CUDA_ERROR_INVALID_VALUE;
  found->second.held = false;
  settle(memory);
  return CUDA_SUCCESS;
}

/// As far as it is used: all of a memory, at one place.
CUresult cuMemMap(CUdeviceptr at, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle memory, unsigned long long flags) {
  const auto found = device.physical.find(memory);
  if (found == device.physical.end() || !found->second.held || found->second.mapped ||
      found->second.size != size || offset != 0 || flags != 0 || at % device.granularity != 0 ||
      !is_reserved(at, size) || is_mapped(at, size))
    return CUDA_ERROR_INVALID_VALUE;
  found->second.mapped = true;
  device.mappings[at] = {size, memory};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, std::size_t size) {
  const auto found = device.mappings.find(at);
  if (found == device.mappings.end() || found->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  ++device.calls.frees;
  // Nothing says that this waits: what still uses it faults.
  mprotect(pointer(at), size, PROT_NONE);
  madvise(pointer(at), size, MADV_DONTNEED);
  const CUmemGenericAllocationHandle memory = found->second.memory;
  device.mappings.erase(found);
  device.physical.at(memory).mapped = false;
  settle(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t size, const CUmemAccessDesc* access,
                        std::size_t count) {
  const auto found = device.mappings.find(at);
  if (found == device.mappings.end() || found->second.size != size || !access || count != 1 ||
      access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return CUDA_ERROR_INVALID_VALUE;
  if (mprotect(pointer(at), size, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  emulator::make_unwritten(pointer(at), size);
  return CUDA_SUCCESS;
}

namespace emulator {
void set_mapping_granularity(std::int64_t bytes) {
  device.granularity = static_cast<std::size_t>(bytes);
}
void set_reserves_addresses(bool does) { device.reserves = does; }
void set_mappings_left(std::int64_t count) { device.creates_left = count; }
}  // namespace emulator
