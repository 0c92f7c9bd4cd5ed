// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/io.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

Entry entry_of(const struct stat& info) {
  return {S_ISREG(info.st_mode), info.st_size, static_cast<std::uint64_t>(info.st_dev),
          static_cast<std::uint64_t>(info.st_ino)};
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
    case Kind::cache:
      return "cache";
    case Kind::block:
      return "block";
    case Kind::head:
      return "head";
    case Kind::lease:
      return "lease";
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
    case Op::submit:
      return "submit";
  }
  return "?";
}

int Syscalls::open(Kind, int dir, const char* path, int flags) {
  return retried([&] { return ::openat(dir, path, flags | O_CLOEXEC, 0666); });
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

int Syscalls::rename(Kind, int dir, const char* from, const char* to) {
  return retried([&] { return ::renameat(dir, from, dir, to); });
}

int Syscalls::link(Kind, int from_dir, const char* from, int to_dir, const char* to) {
  return retried([&] { return ::linkat(from_dir, from, to_dir, to, 0); });
}

int Syscalls::unlink(Kind, int dir, const char* name) {
  return retried([&] { return ::unlinkat(dir, name, 0); });
}

int Syscalls::make_directory(const char* path) {
  return retried([&] { return ::mkdir(path, 0777); });
}

int Syscalls::lock(Kind, int fd, bool exclusive) {
  return retried([&] { return ::flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB); });
}

std::int64_t Syscalls::completed_read(Kind, int, void*, std::int64_t, std::int64_t,
                                      std::int64_t result) {
  return result;
}

int Syscalls::submit(Kind) { return 0; }

std::string Syscalls::why(Kind, int) { return {}; }

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
    if (got < 0) {
      const std::string why = calls_->why(kind_, fd_);
      if (!why.empty())
        throw FileError(fmt::format("{}: could not read {} bytes at {}: {}", names(path_),
                                    to.size(), offset, why));
      fail(static_cast<int>(-got), path_, fmt::format("read {} bytes at {}", to.size(), offset));
    }
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
           put == -ENOSPC  ? fmt::format("free at least {} bytes on its file system", from.size())
           : put == -EFBIG ? "raise the limit of a file's size (ulimit -f)"
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

Entry File::look() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail(errno, path_, "learn what it is");
  return entry_of(info);
}

std::int64_t File::links() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail(errno, path_, "learn how many names it has");
  return static_cast<std::int64_t>(info.st_nlink);
}

int File::open_again(int flags) const {
  return calls_->open(kind_, AT_FDCWD, fmt::format("/proc/self/fd/{}", fd_).c_str(), flags);
}

namespace {

/// \throws FileError unless a name stays in its folder
std::string plain(const std::filesystem::path& dir, std::string_view name) {
  constexpr std::size_t kLongest = 255;
  if (name.empty() || name.size() > kLongest || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\0", 2)) != std::string_view::npos)
    throw FileError(
        fmt::format("{}: asked for a file whose name ({} bytes long) is no plain file name",
                    dir.string(), name.size()));
  return std::string(name);
}

[[noreturn]] void refuse_kind(const std::filesystem::path& path, const char* what) {
  throw FileError(
      fmt::format("{}: is {}, where only a regular file may lie; remove it, or take the folder "
                  "from a copy",
                  path.string(), what));
}

/// Opens what is a regular file, or throws. Pipes and devices are never waited for.
File open_regular(Syscalls& calls, Kind kind, int dir, const std::filesystem::path& path,
                  const std::string& name, int flags) {
  const int fd = calls.open(kind, dir, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK);
  if (fd == -ELOOP) refuse_kind(path, "a symbolic link");
  if (fd == -ENXIO || fd == -EISDIR) refuse_kind(path, "a pipe, a device or a folder");
  if (fd < 0) fail(-fd, path, (flags & O_CREAT) != 0 ? "create it" : "open it");
  File file = File::adopt(calls, kind, path, fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail(errno, path, "learn what it is");
  if (!S_ISREG(info.st_mode)) refuse_kind(path, "a pipe, a device or a folder");
  // Only opening must not wait; io_uring would give up reads of a file that is not to block.
  if (const int now = ::fcntl(fd, F_GETFL); now >= 0) ::fcntl(fd, F_SETFL, now & ~O_NONBLOCK);
  return file;
}

}  // namespace

Directory::Directory(Syscalls& calls, const std::filesystem::path& path) : calls_(&calls) {
  const std::filesystem::path given = path.empty() ? std::filesystem::path(".") : path;
  const int fd = calls.open(Kind::directory, AT_FDCWD, given.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) fail(-fd, given, "open the folder");
  handle_ = std::make_shared<File>(File::adopt(calls, Kind::directory, given, fd));
  std::error_code error;  // without a working directory the path as it is
  absolute_ = std::filesystem::absolute(given, error);
  if (error) absolute_ = given;
}

const std::filesystem::path& Directory::path() const {
  static const std::filesystem::path kNone;
  return handle_ ? handle_->path() : kNone;
}

int Directory::fd() const { return handle_ ? handle_->fd() : -1; }

File Directory::open(Kind kind, std::string_view name, int flags) const {
  const std::string file = plain(path(), name);
  return open_regular(*calls_, kind, fd(), path() / file, file, flags);
}

File Directory::create(Kind kind, std::string_view name) const {
  return open(kind, name, O_RDWR | O_CREAT | O_EXCL);
}

File Directory::create_unnamed(Kind kind, std::string_view name) const {
#ifdef O_TMPFILE
  const int fd = calls_->open(kind, this->fd(), ".", O_RDWR | O_TMPFILE);
  if (fd >= 0) return File::adopt(*calls_, kind, path(), fd);
  // what file systems answer that have no files without names
  if (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -ENOENT && fd != -EINVAL)
    fail(-fd, path(), fmt::format("create a file of {} in it", name_of(kind)));
#endif
  File file = create(kind, name);
  if (const int r = remove(kind, name); r < 0) fail(-r, path() / name, "take its name away");
  return file;
}

std::vector<std::byte> Directory::read(Kind kind, std::string_view name, std::int64_t most) const {
  const File file = open(kind, name);
  const std::int64_t size = file.size();
  if (size > most)
    throw FileError(fmt::format("{}: {} bytes long, at most {} were expected", file.path().string(),
                                size, most));
  std::vector<std::byte> content(static_cast<std::size_t>(size));
  file.read(content, 0);
  return content;
}

void Directory::replace(Kind kind, std::string_view name,
                        std::span<const std::byte> content) const {
  const std::string to = plain(path(), name), temporary = to + ".new";
  // What an earlier run left goes; a link goes itself. Then the new file is surely ours.
  if (look(temporary))
    if (const int r = remove(kind, temporary); r < 0)
      fail(-r, path() / temporary, "remove it", "remove it by hand");
  try {
    File file = create(kind, temporary);
    file.write(content, 0);
    file.sync();
    file.close();
    if (const int r = calls_->rename(kind, fd(), temporary.c_str(), to.c_str()); r < 0)
      fail(-r, path() / to, "put the new file in its place");
  } catch (...) {
    remove(kind, temporary);
    throw;
  }
  sync();
}

int Directory::remove(Kind kind, std::string_view name) const {
  return calls_->unlink(kind, fd(), plain(path(), name).c_str());
}

void Directory::sync() const { handle_->sync(); }

std::optional<Directory::Entry> Directory::look(std::string_view name) const {
  const std::string file = plain(path(), name);
  struct stat info {};
  if (::fstatat(fd(), file.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return entry_of(info);
  if (errno != ENOENT) fail(errno, path() / file, "look at it");
  return std::nullopt;
}

bool Directory::at_its_path() const {
  struct stat info {};
  if (::stat(absolute_.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return false;
    fail(errno, path(), "look at it");
  }
  return entry_of(info).same_file(handle_->look());
}

std::vector<std::string> Directory::names(bool (*wanted)(std::string_view name)) const {
  // A descriptor of its own, for where it stands in the list belongs to a descriptor.
  const int copy = calls_->open(Kind::directory, fd(), ".", O_RDONLY | O_DIRECTORY);
  if (copy < 0) fail(-copy, path(), "list it");
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::fdopendir(copy), &::closedir);
  if (!list) {
    const int error = errno;
    calls_->close(copy);
    fail(error, path(), "list it");
  }
  std::vector<std::string> names;
  for (errno = 0; const dirent* entry = ::readdir(list.get()); errno = 0)
    if (const std::string_view name = entry->d_name; name != "." && name != "..")
      if (!wanted || wanted(name)) names.emplace_back(name);
  if (errno != 0) fail(errno, path(), "list it");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace episodic::io
