// SPDX-License-Identifier: Apache-2.0
// Memory mapped behind reserved addresses: pages of one file without a name, which fault until they
// are opened. What is mapped at two places is the same pages there.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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

/// The device's memory. It grows, and what is given back is a hole in it.
int memory_file() {
  static const int file = memfd_create("episodic_emulated_device", MFD_CLOEXEC);
  return file;
}

/// Gives memory back that nothing holds or maps.
void give_back_unused(CUmemGenericAllocationHandle memory) {
  const auto found = device.physical.find(memory);
  if (found == device.physical.end() || found->second.held > 0 || found->second.mapped > 0) return;
  device.used -= static_cast<std::int64_t>(found->second.size);
  static_cast<void>(fallocate(memory_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              found->second.offset, static_cast<off_t>(found->second.size)));
  device.physical.erase(found);
}

/// Addresses without memory.
void* without_memory(void* at, std::size_t size) {
  return mmap(at, size, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
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
      {"cuMemRetainAllocationHandle", address_of(cuMemRetainAllocationHandle)},
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
  void* const range = without_memory(nullptr, size);
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
  const auto offset = static_cast<off_t>(device.physical_end);
  if (ftruncate(memory_file(), offset + static_cast<off_t>(size)) != 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (device.creates_left > 0) --device.creates_left;
  device.used += bytes;
  device.peak = std::max(device.peak, device.used);
  device.physical_end += bytes;
  *memory = ++device.last_physical;
  device.physical[*memory] = {size, offset, 1, 0, false};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle memory) {
  const auto found = device.physical.find(memory);
  if (found == device.physical.end() || found->second.held == 0) return CUDA_ERROR_INVALID_VALUE;
  --found->second.held;
  give_back_unused(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* memory, void* at) {
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  auto next = device.mappings.upper_bound(reinterpret_cast<CUdeviceptr>(at));
  if (next == device.mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
  --next;
  if (reinterpret_cast<CUdeviceptr>(at) - next->first >= next->second.size)
    return CUDA_ERROR_INVALID_VALUE;
  *memory = next->second.memory;
  ++device.physical.at(*memory).held;
  return CUDA_SUCCESS;
}

/// As far as it is used: all of a memory, at any number of places.
CUresult cuMemMap(CUdeviceptr at, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle memory, unsigned long long flags) {
  const auto found = device.physical.find(memory);
  if (found == device.physical.end() || found->second.held == 0 || found->second.size != size ||
      offset != 0 || flags != 0 || at % device.granularity != 0 || !is_reserved(at, size) ||
      is_mapped(at, size))
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(pointer(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory_file(),
           found->second.offset) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  ++found->second.mapped;
  device.mappings[at] = {size, memory};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, std::size_t size) {
  const auto found = device.mappings.find(at);
  if (found == device.mappings.end() || found->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  ++device.calls.frees;
  // Nothing says that this waits: what still uses it faults.
  if (without_memory(pointer(at), size) == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUmemGenericAllocationHandle memory = found->second.memory;
  device.mappings.erase(found);
  --device.physical.at(memory).mapped;
  give_back_unused(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t size, const CUmemAccessDesc* access,
                        std::size_t count) {
  if (!access || count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE || size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const auto first = device.mappings.find(at);
  CUdeviceptr end = at;  // whole mappings side by side, as far as it is used
  for (auto next = first; next != device.mappings.end() && next->first == end && end < at + size;
       ++next)
    end += next->second.size;
  if (end != at + size) return CUDA_ERROR_INVALID_VALUE;
  if (mprotect(pointer(at), size, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  // Content is what it was, but for memory that nothing could have written yet.
  for (auto next = first; next != device.mappings.end() && next->first < end; ++next) {
    bool& opened = device.physical.at(next->second.memory).opened;
    if (!opened) emulator::make_unwritten(pointer(next->first), next->second.size);
    opened = true;
  }
  return CUDA_SUCCESS;
}

namespace emulator {
void set_mapping_granularity(std::int64_t bytes) {
  device.granularity = static_cast<std::size_t>(bytes);
}
void set_reserves_addresses(bool does) { device.reserves = does; }
void set_mappings_left(std::int64_t count) { device.creates_left = count; }
}  // namespace emulator
