// SPDX-License-Identifier: Apache-2.0
#include "tier_calls.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "episodic/base/error.hpp"
#include "memory_files.hpp"

namespace episodic::detail {
namespace {

/// Pieces of one read that are fetched beside those it asks for, where files are read through.
constexpr std::size_t kAhead = 15;

}  // namespace

void TierCalls::set(const std::string& name, std::vector<Piece> pieces) {
  const std::shared_ptr<TierFile> file = named(name);
  const std::unique_lock lock(file->mutex);
  file->pieces = std::move(pieces);
}

std::vector<Piece> TierCalls::pieces(const std::string& name) const {
  std::shared_ptr<TierFile> file;
  {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(name);
    if (at == files_.end()) return {};
    file = at->second;
  }
  const std::shared_lock lock(file->mutex);
  return file->pieces;
}

void TierCalls::forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  files_.erase(name);  // who has it open goes on
}

void TierCalls::empty_file(const std::string& name) noexcept {
#ifdef FALLOC_FL_PUNCH_HOLE
  const std::shared_ptr<TierFile> file = named(name);
  const int fd = ::open((folder_ / name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info {};
  // Not where a memory in a folder has the same file.
  if (::fstat(fd, &info) == 0 && info.st_nlink == 1) {
    const std::unique_lock lock(file->mutex);  // nobody reads the file itself
    if (file->bytes() > 0)
      ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, file->bytes());
  }
  ::close(fd);
#else
  static_cast<void>(name);
#endif
}

bool TierCalls::in_folder(int dir) const {
  struct stat here {
  }, there{};
  return ::fstat(dir, &there) == 0 && ::stat(folder_.c_str(), &here) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

std::shared_ptr<TierFile> TierCalls::named(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<TierFile>& file = files_[name];
  if (!file) file = std::make_shared<TierFile>();
  return file;
}

std::shared_ptr<TierFile> TierCalls::of(int fd) const {
  const std::lock_guard lock(mutex_);
  const auto at = open_.find(fd);
  return at == open_.end() ? nullptr : at->second;
}

int TierCalls::open(io::Kind kind, int dir, const char* path, int flags) {
  std::shared_ptr<TierFile> file;
  constexpr std::string_view kAgain = "/proc/self/fd/";
  if (std::string_view(path).starts_with(kAgain)) {
    file = of(std::atoi(path + kAgain.size()));
#ifdef O_DIRECT
    if (file && (flags & O_DIRECT) != 0) return -EINVAL;
#endif
  } else if (kind_of_file(path) && kind != io::Kind::manifest && in_folder(dir)) {
    file = named(path);
  }
  const int fd = below_.open(kind, dir, path, flags);
  if (fd >= 0 && file) {
    const std::lock_guard lock(mutex_);
    open_[fd] = std::move(file);
    failed_.erase(fd);
  }
  return fd;
}

void TierCalls::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
    failed_.erase(fd);
  }
  below_.close(fd);
}

std::int64_t TierCalls::read(io::Kind kind, int fd, void* to, std::int64_t bytes,
                             std::int64_t offset) {
  const std::shared_ptr<TierFile> file = of(fd);
  if (!file) return below_.read(kind, fd, to, bytes, offset);
  std::vector<PieceCache::Part> parts;
  std::int64_t got = 0;
  {
    const std::shared_lock lock(file->mutex);
    if (offset >= file->bytes()) return below_.read(kind, fd, to, bytes, offset);
    auto at = std::upper_bound(file->pieces.begin(), file->pieces.end(), offset,
                               [](std::int64_t o, const Piece& p) { return o < p.end(); });
    auto* const first = static_cast<std::byte*>(to);
    for (; at != file->pieces.end() && got < bytes; ++at) {
      const std::int64_t from = offset + got - at->offset;
      const std::int64_t n = std::min(at->bytes - from, bytes - got);
      parts.push_back({at->name, from, {first + got, static_cast<std::size_t>(n)}});
      got += n;
    }
    // Other files than segments are read from the beginning to the end when a memory is opened.
    if (kind != io::Kind::segment && cache_.keeps())
      for (std::size_t n = 0; at != file->pieces.end() && n < kAhead; ++at, ++n)
        parts.push_back({at->name, 0, {}});
  }
  try {
    cache_.read(std::move(parts));
    return got;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex_);
    failed_[fd] = e.what();
    return -EIO;
  }
}

std::int64_t TierCalls::write(io::Kind kind, int fd, const void* from, std::int64_t bytes,
                              std::int64_t offset) {
  if (const std::shared_ptr<TierFile> file = of(fd)) {
    const std::shared_lock lock(file->mutex);
    if (offset < file->bytes()) return -EROFS;  // what others read is never written again
  }
  return below_.write(kind, fd, from, bytes, offset);
}

int TierCalls::link(io::Kind kind, int from_dir, const char* from, int to_dir, const char* to) {
  if (!share_ && in_folder(from_dir) && !pieces(from).empty()) return -EXDEV;
  return below_.link(kind, from_dir, from, to_dir, to);
}

int TierCalls::submit(io::Kind) { return -ENOSYS; }

std::string TierCalls::why(io::Kind kind, int fd) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = failed_.find(fd); at != failed_.end()) return at->second;
  }
  return below_.why(kind, fd);
}

}  // namespace episodic::detail
