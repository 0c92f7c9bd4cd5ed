// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/io.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace episodic::io {
namespace {

/// Repeats a call that a signal interrupted; -errno for a failure.
template <class Call>
auto retried(Call&& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result < 0 ? static_cast<decltype(result)>(-errno) : result;
}

std::string names(const std::filesystem::path& path) {
  return path.empty() ? "an unnamed file" : path.string();
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::segment:
      return "segment";
    case Kind::vectors:
      return "vectors";
    case Kind::tokens:
      return "tokens";
    case Kind::state:
      return "state";
    case Kind::manifest:
      return "manifest";
    case Kind::lock:
      return "lock";
    case Kind::directory:
      return "directory";
  }
  return "?";
}

const char* name_of(Op op) {
  switch (op) {
    case Op::open:
      return "open";
    case Op::create:
      return "create";
    case Op::read:
      return "read";
    case Op::write:
      return "write";
    case Op::sync:
      return "sync";
    case Op::allocate:
      return "allocate";
    case Op::truncate:
      return "truncate";
    case Op::rename:
      return "rename";
    case Op::link:
      return "link";
    case Op::unlink:
      return "unlink";
    case Op::lock:
      return "lock";
  }
  return "?";
}

int Syscalls::open(Kind, const char* path, int flags) {
  return retried([&] { return ::open(path, flags | O_CLOEXEC, 0666); });
}

void Syscalls::close(int fd) { ::close(fd); }

std::int64_t Syscalls::read(Kind, int fd, void* to, std::int64_t bytes, std::int64_t offset) {
  return retried([&] {
    return static_cast<std::int64_t>(::pread(fd, to, static_cast<std::size_t>(bytes), offset));
  });
}

std::int64_t Syscalls::write(Kind, int fd, const void* from, std::int64_t bytes,
                             std::int64_t offset) {
  return retried([&] {
    return static_cast<std::int64_t>(::pwrite(fd, from, static_cast<std::size_t>(bytes), offset));
  });
}

int Syscalls::sync(Kind kind, int fd) {
  // A file's length counts as data for fdatasync; a directory's names are its data.
  return retried([&] { return kind == Kind::directory ? ::fsync(fd) : ::fdatasync(fd); });
}

int Syscalls::allocate(Kind, int fd, std::int64_t offset, std::int64_t bytes) {
  const int result = retried([&] { return ::fallocate(fd, 0, offset, bytes); });
  if (result != -EOPNOTSUPP && result != -ENOSYS) return result;
  struct stat info {};
  if (::fstat(fd, &info) != 0) return -errno;
  if (info.st_size >= offset + bytes) return 0;
  return retried([&] { return ::ftruncate(fd, offset + bytes); });
}

int Syscalls::truncate(Kind, int fd, std::int64_t bytes) {
  return retried([&] { return ::ftruncate(fd, bytes); });
}

int Syscalls::rename(Kind, const char* from, const char* to) {
  return retried([&] { return std::rename(from, to); });
}

int Syscalls::link(Kind, const char* from, const char* to) {
  return retried([&] { return ::link(from, to); });
}

int Syscalls::unlink(Kind, const char* path) {
  return retried([&] { return ::unlink(path); });
}

int Syscalls::make_directory(const char* path) {
  return retried([&] { return ::mkdir(path, 0777); });
}

int Syscalls::lock(int fd, bool exclusive) {
  return retried([&] { return ::flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB); });
}

std::int64_t Syscalls::completed_read(Kind, int, void*, std::int64_t, std::int64_t,
                                      std::int64_t result) {
  return result;
}

Syscalls& system_calls() {
  static Syscalls calls;
  return calls;
}

void fail(int errno_value, const std::filesystem::path& path, const std::string& what,
          const std::string& remedy) {
  const std::string text =
      fmt::format("{}: could not {}: {}{}{}", names(path), what,
                  std::generic_category().message(errno_value), remedy.empty() ? "" : "; ", remedy);
  if (errno_value == ENOSPC || errno_value == EDQUOT) throw DiskFullError(text);
  throw FileError(text);
}

File::File(Syscalls& calls, Kind kind, std::filesystem::path path, int flags)
    : calls_(&calls), kind_(kind), path_(std::move(path)) {
  const int fd = calls.open(kind, path_.c_str(), flags);
  if (fd < 0) fail(-fd, path_, (flags & O_CREAT) != 0 ? "create it" : "open it");
  fd_ = fd;
}

File File::adopt(Syscalls& calls, Kind kind, std::filesystem::path path, int fd) {
  File file;
  file.calls_ = &calls;
  file.kind_ = kind;
  file.path_ = std::move(path);
  file.fd_ = fd;
  return file;
}

File::~File() { close(); }

File::File(File&& other) noexcept
    : calls_(other.calls_),
      kind_(other.kind_),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  close();
  calls_ = other.calls_;
  kind_ = other.kind_;
  path_ = std::move(other.path_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void File::close() {
  if (fd_ >= 0) calls_->close(std::exchange(fd_, -1));
}

void File::read(std::span<std::byte> to, std::int64_t offset) const {
  while (!to.empty()) {
    const std::int64_t got =
        calls_->read(kind_, fd_, to.data(), static_cast<std::int64_t>(to.size()), offset);
    if (got < 0)
      fail(static_cast<int>(-got), path_, fmt::format("read {} bytes at {}", to.size(), offset));
    if (got == 0)
      throw FileError(fmt::format(
          "{}: ends at byte {}, {} more were expected; it is truncated: take it from a copy",
          names(path_), offset, to.size()));
    to = to.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void File::write(std::span<const std::byte> from, std::int64_t offset) {
  const std::size_t all = from.size();
  while (!from.empty()) {
    const std::int64_t put =
        calls_->write(kind_, fd_, from.data(), static_cast<std::int64_t>(from.size()), offset);
    if (put <= 0)
      fail(put < 0 ? static_cast<int>(-put) : EIO, path_, fmt::format("write {} bytes", all),
           put == -ENOSPC ? fmt::format("free at least {} bytes on its file system", from.size())
                          : "");
    from = from.subspan(static_cast<std::size_t>(put));
    offset += put;
  }
}

void File::sync() {
  if (const int r = calls_->sync(kind_, fd_); r < 0) fail(-r, path_, "make it durable (fsync)");
}

void File::allocate(std::int64_t offset, std::int64_t bytes) {
  if (const int r = calls_->allocate(kind_, fd_, offset, bytes); r < 0)
    fail(-r, path_, fmt::format("reserve {} bytes", bytes),
         r == -ENOSPC ? fmt::format("free at least {} bytes on its file system", bytes) : "");
}

void File::truncate(std::int64_t bytes) {
  if (const int r = calls_->truncate(kind_, fd_, bytes); r < 0)
    fail(-r, path_, fmt::format("cut it to {} bytes", bytes));
}

std::int64_t File::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail(errno, path_, "learn its size");
  return info.st_size;
}

void sync_directory(Syscalls& calls, const std::filesystem::path& dir) {
  File handle(calls, Kind::directory, dir, O_RDONLY | O_DIRECTORY);
  handle.sync();
}

void replace_file(Syscalls& calls, Kind kind, const std::filesystem::path& path,
                  std::span<const std::byte> content) {
  std::filesystem::path temporary = path;
  temporary += ".new";
  try {
    File file(calls, kind, temporary, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(content, 0);
    file.sync();
    file.close();
    if (const int r = calls.rename(kind, temporary.c_str(), path.c_str()); r < 0)
      fail(-r, path, "put the new file in its place");
  } catch (...) {
    calls.unlink(kind, temporary.c_str());
    throw;
  }
  sync_directory(calls, path.parent_path().empty() ? "." : path.parent_path());
}

std::vector<std::byte> read_file(Syscalls& calls, Kind kind, const std::filesystem::path& path,
                                 std::int64_t most) {
  const File file(calls, kind, path, O_RDONLY);
  const std::int64_t size = file.size();
  if (size > most)
    throw FileError(
        fmt::format("{}: {} bytes long, at most {} were expected", path.string(), size, most));
  std::vector<std::byte> content(static_cast<std::size_t>(size));
  file.read(content, 0);
  return content;
}

}  // namespace episodic::io
