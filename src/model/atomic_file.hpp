// SPDX-License-Identifier: Apache-2.0
#pragma once
// A large file that appears whole or not at all.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "episodic/base/error.hpp"

namespace episodic {

/// What bytes are handed to and not kept in: a terminal, a pipe, /dev/null, and whatever a name in
/// /dev or /proc leads to. A file that is given such a name takes its place: as root the device is
/// gone.
inline bool is_stream(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_directory(status))
    return true;
  const std::string place = std::filesystem::absolute(path, error).lexically_normal().string();
  return place.starts_with("/dev/") || place.starts_with("/proc/");
}

/// A file under a temporary name; gone unless commit was reached.
class AtomicFile {
 public:
  /// \throws FileError also where `path` is a stream
  explicit AtomicFile(const std::filesystem::path& path) : path_(path), temporary_(path) {
    if (is_stream(path))
      throw FileError(
          fmt::format("{}: is a device or a pipe; name a file, which is made whole or not at all",
                      path.string()));
    static std::atomic<unsigned> serial{0};
    temporary_ += fmt::format(".{}.{}.part", ::getpid(), serial++);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) fail();
  }

  ~AtomicFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!committed_) ::unlink(temporary_.c_str());
  }

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t n) {
    const char* p = static_cast<const char*>(data);
    while (n > 0) {
      const ssize_t written = ::write(fd_, p, std::min<std::size_t>(n, std::size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      p += written;
      n -= static_cast<std::size_t>(written);
    }
  }

  /// Where it lies until commit.
  const std::filesystem::path& temporary() const { return temporary_; }

  /// Ends the writing: from here on `temporary` can be read whole.
  void finish() {
    if (fd_ < 0) return;
    if (::fsync(fd_) != 0) fail();
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) fail();
  }

  /// Gives the file its name, in place of what had it.
  void commit() {
    finish();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    committed_ = true;
  }

 private:
  [[noreturn]] void fail() {
    const int code = errno;
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    ::unlink(temporary_.c_str());  // a constructor that throws runs no destructor
    throw FileError(
        fmt::format("{}: cannot be written ({}); check the directory and the space left",
                    path_.string(), std::strerror(code)));
  }

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace episodic
