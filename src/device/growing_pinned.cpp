// SPDX-License-Identifier: Apache-2.0
#include "growing_pinned.hpp"

#include <sys/mman.h>

#include <chrono>
#include <system_error>
#include <utility>

namespace episodic::device {

std::optional<GrowingPinned> GrowingPinned::reserve(std::int64_t bytes, int device,
                                                    std::int64_t piece) {
  int same_addresses = 0;
  const cudaError_t error =
      cudaDeviceGetAttribute(&same_addresses, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess || same_addresses == 0 || piece <= 0) return std::nullopt;
  const std::int64_t whole = (bytes + piece - 1) / piece * piece;
  void* const base = mmap(nullptr, static_cast<std::size_t>(whole), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return std::nullopt;
  GrowingPinned buffer;
  buffer.base_ = static_cast<std::byte*>(base);
  buffer.bytes_ = whole;
  buffer.device_ = device;
  buffer.pieces_ = Pieces(whole, piece);
  return buffer;
}

GrowingPinned::~GrowingPinned() {
  if (!base_) return;
  take_over();
  for (const Part& run : locked_) static_cast<void>(cudaHostUnregister(base_ + run.begin));
  munmap(base_, static_cast<std::size_t>(bytes_));
}

GrowingPinned& GrowingPinned::operator=(GrowingPinned&& other) noexcept {
  std::swap(whole_, other.whole_);
  std::swap(whole_bytes_, other.whole_bytes_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(pieces_, other.pieces_);
  std::swap(locked_, other.locked_);
  std::swap(working_, other.working_);
  return *this;
}

/// By any thread. \return false where there is no more to be locked: the run is then as it was
bool GrowingPinned::lock(std::byte* base, int device, const Part& run) {
  std::byte* const at = base + run.begin;
  const auto size = static_cast<std::size_t>(run.end - run.begin);
  if (mprotect(at, size, PROT_READ | PROT_WRITE) != 0) return false;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess)
    error = cudaHostRegister(at, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  static_cast<void>(madvise(at, size, MADV_DONTNEED));
  static_cast<void>(mprotect(at, size, PROT_NONE));
  return false;
}

/// What the thread has locked; waits for it.
void GrowingPinned::take_over() {
  if (!working_.valid()) return;
  for (const Part& run : working_.get()) {
    pieces_.add(run);
    locked_.push_back(run);
  }
}

bool GrowingPinned::hold(std::span<const Part> parts) {
  if (!grows() || holds(parts)) return true;
  take_over();
  for (const Part& run : pieces_.missing(parts)) {
    locked_.reserve(locked_.size() + 1);
    if (!lock(base_, device_, run)) return false;
    pieces_.add(run);
    locked_.push_back(run);
  }
  return true;
}

void GrowingPinned::hold_ahead(std::span<const Part> parts) {
  if (!grows()) return;
  if (working_.valid()) {
    if (working_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    take_over();
  }
  std::vector<Part> runs = pieces_.missing(parts);
  if (runs.empty()) return;
  try {
    working_ = std::async(std::launch::async,
                          [base = base_, device = device_, runs = std::move(runs)]() mutable {
                            std::size_t done = 0;
                            while (done < runs.size() && lock(base, device, runs[done])) ++done;
                            runs.resize(done);
                            return std::move(runs);
                          });
  } catch (const std::system_error&) {
    // no thread is to be had: it is locked when it is needed
  }
}

}  // namespace episodic::device
