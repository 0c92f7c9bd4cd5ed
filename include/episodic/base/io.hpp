// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The seam between the library and the file system. Everything a memory writes or reads back goes
/// through `io::Syscalls`, so that a test can make any call at any place fail, fall short, be late
/// or return flipped bits. `File` and `Directory` turn what the calls return into all or one clear
/// exception.
///
/// Files are reached by plain names beneath an open `Directory` only, never through links, and only
/// regular ones: a folder that came from someone else cannot make a program touch anything outside
/// of it, nor wait for ever at a named pipe (docs/security.md).

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::io {

/// What kind of file a call is about.
enum class Kind : std::uint8_t {
  segment,
  vectors,
  tokens,
  state,
  manifest,
  lock,
  directory,
  cache,
  block,  ///< these and what follows: of a shared folder (store/block_tier.hpp)
  head,
  lease
};
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
  submit,  ///< reads to be done behind the caller's back (io_uring)
};

/// A file of a memory, and how much of it counts.
struct FileRef {
  std::uint64_t id = 0;    ///< names the file, and stands in it
  std::int64_t bytes = 0;  ///< committed length
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

  /// \param dir descriptor of the folder where `path` begins, or AT_FDCWD
  /// \param flags of openat(2); O_CLOEXEC is added. The mode of a new file is 0666 less the umask.
  virtual int open(Kind kind, int dir, const char* path, int flags);
  virtual void close(int fd);
  virtual std::int64_t read(Kind kind, int fd, void* to, std::int64_t bytes, std::int64_t offset);
  virtual std::int64_t write(Kind kind, int fd, const void* from, std::int64_t bytes,
                             std::int64_t offset);
  virtual int sync(Kind kind, int fd);
  /// Reserves [offset, offset + bytes) on the medium and makes the file at least that long. Where
  /// the file system cannot reserve, the file is only made longer.
  virtual int allocate(Kind kind, int fd, std::int64_t offset, std::int64_t bytes);
  virtual int truncate(Kind kind, int fd, std::int64_t bytes);
  /// Both names in one folder.
  virtual int rename(Kind kind, int dir, const char* from, const char* to);
  /// A link as `from` is itself linked, never followed.
  virtual int link(Kind kind, int from_dir, const char* from, int to_dir, const char* to);
  virtual int unlink(Kind kind, int dir, const char* name);
  virtual int make_directory(const char* path);
  /// Takes (without waiting) the advisory lock of an open file or folder; it falls with its
  /// closing.
  virtual int lock(Kind kind, int fd, bool exclusive);

  /// What a read that was done by other means (io_uring) is made to return: a hook for faults.
  virtual std::int64_t completed_read(Kind kind, int fd, void* to, std::int64_t bytes,
                                      std::int64_t offset, std::int64_t result);
  /// Asked before reads are handed to io_uring: 0, or -errno as if it had refused them. A hook for
  /// faults.
  virtual int submit(Kind kind);

  /// Why a call about this file failed, where its errno says too little; else empty.
  virtual std::string why(Kind kind, int fd);
};

/// The real calls, shared.
Syscalls& system_calls();

/// The medium has no room left. `FileError` for all else that the file system refuses.
class DiskFullError : public FileError {
 public:
  explicit DiskFullError(const std::string& what) : FileError(ErrorCode::disk_full, what) {}
};

/// "PATH: could not WHAT: strerror; REMEDY". ENOSPC and EDQUOT are thrown as DiskFullError.
[[noreturn]] void fail(int errno_value, const std::filesystem::path& path, const std::string& what,
                       const std::string& remedy = {});

/// What stands under a name, or is open.
struct Entry {
  bool regular = false;  ///< a regular file
  std::int64_t bytes = 0;
  std::uint64_t device = 0, inode = 0;
  /// Whether both are one file, under whatever names.
  bool same_file(const Entry& other) const {
    return device == other.device && inode == other.inode;
  }
};

/// An open file. Closed by the destructor. Movable. `Directory` makes them.
class File {
 public:
  File() = default;
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
  /// What it is now, whatever its name has come to stand for. \throws FileError
  Entry look() const;
  /// Names that the file has. \throws FileError
  std::int64_t links() const;
  /// The same file opened once more, with other flags; it need have no name.
  /// \return a descriptor for `adopt`, or -errno
  int open_again(int flags) const;
  /// Closes now; for a file that was written, call sync first.
  void close();

 private:
  Syscalls* calls_ = nullptr;
  Kind kind_ = Kind::segment;
  std::filesystem::path path_;
  int fd_ = -1;
};

/// An open folder, and the files right in it. Copies share the handle. Names must be plain: not
/// empty, at most 255 bytes, without '/' or NUL, neither "." nor ".."; other names are refused with
/// a FileError by everything here. No link is followed, only regular files are opened.
class Directory {
 public:
  using Entry = io::Entry;

  Directory() = default;
  /// The path is the caller's: links on the way to the folder are followed. \throws FileError
  Directory(Syscalls& calls, const std::filesystem::path& path);

  explicit operator bool() const { return handle_ != nullptr; }
  const std::filesystem::path& path() const;
  Syscalls& calls() const { return *calls_; }

  /// A regular file that is there. \param flags of openat(2), for instance O_RDWR \throws FileError
  File open(Kind kind, std::string_view name, int flags = O_RDONLY) const;
  /// A new file, to read and write. \throws FileError if the name is taken, DiskFullError
  File create(Kind kind, std::string_view name) const;
  /// A new file that vanishes when it is closed. \param name where the file system has no files
  /// without one: it is taken away at once \throws FileError, DiskFullError
  File create_unnamed(Kind kind, std::string_view name) const;

  /// A whole file. \param most refuses longer ones \throws FileError
  std::vector<std::byte> read(Kind kind, std::string_view name,
                              std::int64_t most = std::int64_t{1} << 40) const;
  /// Writes a whole file so that after a crash there is the old one or the new one: a new file
  /// "NAME.new" (one that lies there is removed), sync, rename, sync of the folder. On failure the
  /// old one stands. \throws FileError, DiskFullError
  void replace(Kind kind, std::string_view name, std::span<const std::byte> content) const;
  /// Removes a name; a link goes itself, not what it points to. \return 0 or -errno
  int remove(Kind kind, std::string_view name) const;
  /// Makes the names durable. \throws FileError
  void sync() const;

  /// What stands under a name; nullopt if nothing does. \throws FileError
  std::optional<Entry> look(std::string_view name) const;
  /// Whether the path still leads to this folder, which may have been moved, removed or replaced.
  /// \throws FileError if that cannot be learnt
  bool at_its_path() const;
  /// All names, sorted; of `wanted` only those that it says true to. \throws FileError
  std::vector<std::string> names(bool (*wanted)(std::string_view name) = nullptr) const;
  /// The descriptor.
  int fd() const;

 private:
  Syscalls* calls_ = nullptr;
  std::shared_ptr<File> handle_;
  std::filesystem::path absolute_;  // of the folder, when it was opened
};

}  // namespace EPISODIC_NAMESPACE::io
