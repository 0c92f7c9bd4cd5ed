// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The seam between the library and the file system. Everything a memory writes or reads back goes
/// through `io::Syscalls`, so that a test can make any call at any place fail, fall short, be late
/// or return flipped bits. The functions below it turn what the calls return into all or one clear
/// exception.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"

namespace episodic::io {

/// What kind of file a call is about.
enum class Kind : std::uint8_t { segment, vectors, tokens, state, manifest, lock, directory };
/// What a call does to it.
enum class Op : std::uint8_t {
  open,    ///< an existing file
  create,  ///< a new file (or directory)
  read,
  write,
  sync,      ///< its data (and, for a directory, its names) to the medium
  allocate,  ///< room for later writes
  truncate,
  rename,
  link,
  unlink,
  lock,
};

/// A call site, as faults and errors name it.
struct Site {
  Kind kind;
  Op op;
  bool operator==(const Site&) const = default;
};

const char* name_of(Kind kind);
const char* name_of(Op op);

/// The system calls, with their conventions: a result >= 0, or -errno. Calls may come from several
/// threads at once. The base class makes the real calls (retrying EINTR); tests derive from it.
class Syscalls {
 public:
  virtual ~Syscalls() = default;

  /// \param flags of open(2); O_CLOEXEC is added. The mode of a new file is 0666 less the umask.
  virtual int open(Kind kind, const char* path, int flags);
  virtual void close(int fd);
  virtual std::int64_t read(Kind kind, int fd, void* to, std::int64_t bytes, std::int64_t offset);
  virtual std::int64_t write(Kind kind, int fd, const void* from, std::int64_t bytes,
                             std::int64_t offset);
  virtual int sync(Kind kind, int fd);
  /// Reserves [offset, offset + bytes) on the medium and makes the file at least that long. Where
  /// the file system cannot reserve, the file is only made longer.
  virtual int allocate(Kind kind, int fd, std::int64_t offset, std::int64_t bytes);
  virtual int truncate(Kind kind, int fd, std::int64_t bytes);
  virtual int rename(Kind kind, const char* from, const char* to);
  virtual int link(Kind kind, const char* from, const char* to);
  virtual int unlink(Kind kind, const char* path);
  virtual int make_directory(const char* path);
  /// Takes (without waiting) the advisory lock of an open file; it falls with the file's closing.
  virtual int lock(int fd, bool exclusive);

  /// What a read that was done by other means (io_uring) is made to return: a hook for faults.
  virtual std::int64_t completed_read(Kind kind, int fd, void* to, std::int64_t bytes,
                                      std::int64_t offset, std::int64_t result);
};

/// The real calls, shared.
Syscalls& system_calls();

/// The medium has no room left. `FileError` for all else that the file system refuses.
class DiskFullError : public FileError {
 public:
  using FileError::FileError;
};

/// "PATH: could not WHAT: strerror; REMEDY". ENOSPC and EDQUOT are thrown as DiskFullError.
[[noreturn]] void fail(int errno_value, const std::filesystem::path& path, const std::string& what,
                       const std::string& remedy = {});

/// An open file. Closed by the destructor. Movable.
class File {
 public:
  File() = default;
  /// \param flags of open(2). \throws FileError naming the path
  File(Syscalls& calls, Kind kind, std::filesystem::path path, int flags);
  /// Takes over a descriptor. \param path what errors name
  static File adopt(Syscalls& calls, Kind kind, std::filesystem::path path, int fd);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  Kind kind() const { return kind_; }

  /// All of `to` from `offset` on. \throws FileError if the file ends before it or cannot be read
  void read(std::span<std::byte> to, std::int64_t offset) const;
  /// All of `from` at `offset`, whatever the single calls take. \throws FileError, DiskFullError
  void write(std::span<const std::byte> from, std::int64_t offset);
  void sync();
  void allocate(std::int64_t offset, std::int64_t bytes);
  void truncate(std::int64_t bytes);
  /// Length now. \throws FileError
  std::int64_t size() const;
  /// Closes now; for a file that was written, call sync first.
  void close();

 private:
  Syscalls* calls_ = nullptr;
  Kind kind_ = Kind::segment;
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Makes the names in a directory durable. \throws FileError
void sync_directory(Syscalls& calls, const std::filesystem::path& dir);

/// Writes a whole file so that after a crash there is the old one or the new one: temporary file
/// beside it, sync, rename, sync of the directory. On failure the temporary file is removed and the
/// old one stands. \throws FileError, DiskFullError
void replace_file(Syscalls& calls, Kind kind, const std::filesystem::path& path,
                  std::span<const std::byte> content);

/// A whole file. \param most refuses longer ones \throws FileError
std::vector<std::byte> read_file(Syscalls& calls, Kind kind, const std::filesystem::path& path,
                                 std::int64_t most = std::int64_t{1} << 40);

}  // namespace episodic::io
