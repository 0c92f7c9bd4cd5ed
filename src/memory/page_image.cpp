// SPDX-License-Identifier: Apache-2.0
#include "page_image.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace episodic::detail {
namespace {

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

bool write_all(int file, std::span<const std::byte> bytes, std::size_t offset) {
  const std::byte* from = bytes.data();
  for (std::size_t left = bytes.size(); left > 0;) {
    const ssize_t n = ::pwrite(file, from, left, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n;
    offset += static_cast<std::size_t>(n);
    left -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

PageImage::PageImage(std::span<const std::span<const std::byte>> arrays) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> array : arrays) {
    places_.push_back({bytes, array.size()});
    bytes += whole_pages(array.size());
  }
  if (bytes == 0 || write(arrays, bytes)) return;
  for (const std::span<const std::byte> array : arrays)
    std::copy(array.begin(), array.end(), copies_.emplace_back(array.size()).data());
}

bool PageImage::write(std::span<const std::span<const std::byte>> arrays, std::size_t bytes) {
  file_ = ::memfd_create("episodic-window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file_ < 0) return false;
  bool whole = ::ftruncate(file_, static_cast<off_t>(bytes)) == 0;
  for (std::size_t i = 0; whole && i < arrays.size(); ++i)
    whole = write_all(file_, arrays[i], places_[i].offset);
  // Nobody can change or cut what others have mapped.
  if (whole) ::fcntl(file_, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (!whole) ::close(std::exchange(file_, -1));
  return whole;
}

PageImage::~PageImage() {
  if (file_ >= 0) ::close(file_);
}

Pages PageImage::array(std::size_t i) const {
  const Place& place = places_[i];
  if (file_ < 0 || place.bytes == 0) {
    Pages copy(place.bytes);
    if (place.bytes > 0) std::copy_n(copies_[i].data(), place.bytes, copy.data());
    return copy;
  }
  // No room is set aside for pages that may never be written to.
  void* const at = ::mmap(nullptr, place.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                          file_, static_cast<off_t>(place.offset));
  if (at == MAP_FAILED) throw std::bad_alloc();
  Pages mapped;
  mapped.data_ = static_cast<std::byte*>(at);
  mapped.size_ = place.bytes;
  return mapped;
}

}  // namespace episodic::detail
