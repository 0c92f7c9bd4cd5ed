// SPDX-License-Identifier: Apache-2.0
#include "growing_buffer.hpp"

#include <cuda.h>

#include <algorithm>

namespace episodic::device {

/// The driver's calls, which the runtime finds: nothing is linked with the driver.
struct GrowingBuffer::Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemRetainAllocationHandle) retain = nullptr;  // or null: nothing is shared

  /// \return nothing where one of them is missing
  static std::optional<Driver> find() {
    Driver d;
    const bool all = get("cuMemGetAllocationGranularity", d.granularity) &&
                     get("cuMemAddressReserve", d.reserve) && get("cuMemAddressFree", d.free) &&
                     get("cuMemCreate", d.create) && get("cuMemRelease", d.release) &&
                     get("cuMemMap", d.map) && get("cuMemUnmap", d.unmap) &&
                     get("cuMemSetAccess", d.set_access);
    if (!get("cuMemRetainAllocationHandle", d.retain, 11000)) d.retain = nullptr;
    return all ? std::optional(d) : std::nullopt;
  }

  static CUmemAllocationProp memory_of(int device) {
    CUmemAllocationProp of{};
    of.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    of.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    of.location.id = device;
    return of;
  }

 private:
  /// \param since the version of CUDA that brought it
  template <class Call>
  static bool get(const char* name, Call& call, [[maybe_unused]] unsigned since = 10020) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    call = reinterpret_cast<Call>(found);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess && found;
  }
};

namespace {

void require(CUresult result, const char* what, std::size_t size) {
  if (result != CUDA_SUCCESS)
    throw DeviceError(fmt::format("CUDA: {} of {} bytes of device memory: the driver's error {}",
                                  what, size, static_cast<int>(result)));
}

}  // namespace

std::int64_t GrowingBuffer::granule_of(int device) {
  const std::optional<Driver> driver = Driver::find();
  if (!driver) return 0;
  const CUmemAllocationProp of = Driver::memory_of(device);
  std::size_t granule = 0;
  const CUresult result = driver->granularity(&granule, &of, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return result == CUDA_SUCCESS ? static_cast<std::int64_t>(granule) : 0;
}

std::optional<GrowingBuffer> GrowingBuffer::reserve(std::int64_t bytes, int device,
                                                    std::int64_t granule) {
  const std::optional<Driver> driver = Driver::find();
  if (!driver || granule <= 0) return std::nullopt;
  const std::int64_t granules = (bytes + granule - 1) / granule;
  CUdeviceptr base = 0;
  if (driver->reserve(&base, static_cast<std::size_t>(granules * granule), 0, 0, 0) != CUDA_SUCCESS)
    return std::nullopt;
  GrowingBuffer buffer;
  buffer.base_ = reinterpret_cast<std::byte*>(base);
  buffer.bytes_ = granules * granule;
  buffer.device_ = device;
  buffer.pieces_ = Pieces(granules * granule, granule);
  return buffer;
}

GrowingBuffer::~GrowingBuffer() {
  if (!base_) return;
  const std::optional<Driver> driver = Driver::find();
  if (!driver) return;  // it was there before
  const auto at = reinterpret_cast<CUdeviceptr>(base_);
  for (const auto& [begin, end] : mapped_)
    static_cast<void>(
        driver->unmap(at + static_cast<CUdeviceptr>(begin), static_cast<std::size_t>(end - begin)));
  static_cast<void>(driver->free(at, static_cast<std::size_t>(bytes_)));
}

GrowingBuffer& GrowingBuffer::operator=(GrowingBuffer&& other) noexcept {
  std::swap(whole_, other.whole_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(pieces_, other.pieces_);
  std::swap(mapped_, other.mapped_);
  std::swap(shared_, other.shared_);
  std::swap(borrowed_, other.borrowed_);
  return *this;
}

bool GrowingBuffer::hold(std::span<const Part> parts, std::int64_t most) {
  if (!grows()) return true;
  const std::vector<Part> missing = pieces_.missing(parts);
  if (missing.empty()) return true;
  std::int64_t more = 0;
  for (const Part& run : missing) more += run.end - run.begin;
  if (most > 0 && held() + more > most) return false;
  const std::optional<Driver> driver = Driver::find();
  if (!driver) fail(cudaErrorNotSupported, "mapping device memory", nullptr);
  const std::int64_t at_once = kMostAtOnce * granule();
  for (const Part& run : missing) {
    Part there{run.begin, run.begin};
    while (there.end < run.end) {
      const Part piece{there.end, std::min(run.end, there.end + at_once)};
      if (!take(*driver, piece)) break;
      there.end = piece.end;
    }
    if (!open(*driver, there) || there.end < run.end) return false;
  }
  return true;
}

/// \return false where the device has no memory left
bool GrowingBuffer::take(const Driver& driver, const Part& piece) {
  const auto size = static_cast<std::size_t>(piece.end - piece.begin);
  const CUmemAllocationProp of = Driver::memory_of(device_);
  CUmemGenericAllocationHandle memory = 0;
  const CUresult result = driver.create(&memory, size, &of, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
  require(result, "taking", size);
  return map(driver, memory, piece);
}

/// Puts memory behind a piece, which keeps it from here on: the handle is given back. To be opened.
/// \return false where the device has no memory left for that
bool GrowingBuffer::map(const Driver& driver, unsigned long long memory, const Part& piece) {
  const auto size = static_cast<std::size_t>(piece.end - piece.begin);
  const auto noted = mapped_.emplace(piece.begin, piece.end).first;
  const CUresult result =
      driver.map(reinterpret_cast<CUdeviceptr>(base_ + piece.begin), size, 0, memory, 0);
  static_cast<void>(driver.release(memory));
  if (result != CUDA_SUCCESS) mapped_.erase(noted);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
  require(result, "mapping", size);
  return true;
}

/// Lets the device read and write a run of pieces that were mapped, in one call: of all calls it
/// takes longest. Where that fails nothing of the run is mapped any more.
/// \return false where the device has no memory left for that
bool GrowingBuffer::open(const Driver& driver, const Part& run) {
  if (run.begin == run.end) return true;
  const auto size = static_cast<std::size_t>(run.end - run.begin);
  CUmemAccessDesc access{};
  access.location = Driver::memory_of(device_).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult result =
      driver.set_access(reinterpret_cast<CUdeviceptr>(base_ + run.begin), size, &access, 1);
  if (result == CUDA_SUCCESS) {
    pieces_.add(run);
    return true;
  }
  for (auto at = mapped_.find(run.begin); at != mapped_.end() && at->first < run.end;) {
    static_cast<void>(driver.unmap(reinterpret_cast<CUdeviceptr>(base_ + at->first),
                                   static_cast<std::size_t>(at->second - at->first)));
    at = mapped_.erase(at);
  }
  if (result != CUDA_ERROR_OUT_OF_MEMORY) require(result, "opening", size);
  return false;
}

std::vector<GrowingBuffer::Part> GrowingBuffer::share(GrowingBuffer& other,
                                                      std::vector<Part> parts) {
  const std::optional<Driver> driver = Driver::find();
  if (!driver || !driver->retain || !grows() || bytes_ != other.bytes_ ||
      granule() != other.granule())
    return {};
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  std::vector<Part> runs;  // of neighbours, each opened once
  auto part = parts.begin();
  for (const auto& [begin, end] : other.mapped_) {
    while (part != parts.end() && part->end < end) ++part;
    if (part == parts.end()) break;
    if (begin < part->begin) continue;
    other.shared_.insert(begin);  // first: it may not write there if this throws half way
    CUmemGenericAllocationHandle memory = 0;
    require(driver->retain(&memory, other.base_ + begin), "sharing",
            static_cast<std::size_t>(end - begin));
    if (!map(*driver, memory, {begin, end})) break;  // what is left may be taken and copied
    if (!runs.empty() && runs.back().end == begin)
      runs.back().end = end;
    else
      runs.push_back({begin, end});
  }
  std::vector<Part> shared;
  for (const Part& run : runs) {
    if (!open(*driver, run)) continue;
    shared.push_back(run);
    borrowed_ += run.end - run.begin;
    for (auto at = mapped_.find(run.begin); at != mapped_.end() && at->first < run.end; ++at)
      shared_.insert(at->first);
  }
  return shared;
}

void GrowingBuffer::drop_shared() {
  if (shared_.empty()) return;
  const std::optional<Driver> driver = Driver::find();
  if (!driver) return;  // it was there before
  for (const std::int64_t begin : shared_) {
    const auto run = mapped_.find(begin);
    const auto size = static_cast<std::size_t>(run->second - begin);
    require(driver->unmap(reinterpret_cast<CUdeviceptr>(base_ + begin), size), "giving back", size);
    pieces_.remove({begin, run->second});
    mapped_.erase(run);
  }
  shared_.clear();
  borrowed_ = 0;
}

}  // namespace episodic::device
