// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Append-only files: the one way in which keys and values, representatives and token ids lie on
/// disk (docs/format.md). Each set has names and a header of its own; what stands between is its
/// user's.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/write_queue.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/io.hpp"

namespace episodic::io {

/// What the files of a kind have in common: name and first bytes.
struct FileFormat {
  Kind kind;
  const char *prefix, *suffix;  ///< PREFIX-0123456789abcdef.SUFFIX
  std::int64_t header_bytes;
  std::function<std::vector<std::byte>(std::uint64_t id)> header;
  /// What is wrong with a header; empty if nothing is.
  std::function<std::string(std::uint64_t id, std::span<const std::byte>)> fault;

  std::string name(std::uint64_t id) const;
};

/// Opens a file that counts, to read it. \throws FileError if it is not there, shorter than what
/// counts of it, or has another header
File open_file(const Directory& folder, const FileFormat& format, const FileRef& ref);

/// Of more than `most` files of so many bytes, in the order of their making: the first of those
/// that are to become one. Each of those before it is more than twice as long as all behind it, so
/// few stay, and a byte is copied as often as its file grows by half. \return bytes.size(): none
std::size_t first_to_merge(std::span<const std::int64_t> bytes, std::size_t most);

/// Files of each kind that a kept memory has: a commit that would leave more puts the smaller ones
/// together first.
inline constexpr std::size_t kMostFiles = 32;

/// What lies in files that may become one.
class MergesFiles {
 public:
  virtual ~MergesFiles() = default;
  /// Where there are more than `most`, copies what is in use of the smaller ones into a new one;
  /// the old ones go with the next commit. What cannot be read or finds no room stays where it is.
  /// \return whether anything was moved
  virtual bool merge_files(std::size_t most) = 0;

 protected:
  MergesFiles() = default;
  MergesFiles(const MergesFiles&) = default;
  MergesFiles& operator=(const MergesFiles&) = default;
};

void save_files(ByteWriter& to, std::span<const FileRef> files);
/// \throws FileError for a list that no image has
std::vector<FileRef> load_files(ByteReader& from);

/// A set of append-only files in a folder: those of an image, which are only read, and new ones.
/// Bytes are appended in two steps: `place` takes room at the end, so that a full disk is told
/// before anything else has changed, `write` queues what belongs there. Bytes that a commit counts
/// are never written again.
///
/// One thread at a time may call what changes the set, or looks at it; `admit`, `write`, `read` and
/// `give_back` may be called by others meanwhile.
class AppendFiles {
 public:
  struct File {
    std::uint64_t id = 0;
    io::File file;    ///< of its own: to write and read; else to read
    io::File direct;  ///< its user's, to read with O_DIRECT, in multiples of `grain`
    std::int64_t grain = 1;
    bool own = false;            ///< made by this set
    bool closed = false;         ///< nothing more is appended
    std::int64_t end = 0;        ///< of what counts
    std::int64_t frozen = 0;     ///< what a crash may come back to: never written again
    std::int64_t allocated = 0;  ///< taken from the file system
    std::int64_t overhead = 0;   ///< what the file system may take beside for its own account of it
    std::int64_t live = 0;       ///< bytes that are in use
  };

  struct Options {
    /// Files with names, that the next run can open; otherwise they vanish with the set.
    bool keep = false;
    /// Lengths that other states of the folder count, by file name: what an earlier state is opened
    /// with may be cut no shorter, for nothing of the last one is given up before the next commit.
    std::map<std::string, std::int64_t> counted;
    std::int64_t page = 1;        ///< lengths that count are multiples of it, filled up with zeros
    std::int64_t most_bytes = 0;  ///< disk_bytes: of all files together; 0: no bound
    std::int64_t roll_bytes = kRollBytes;  ///< a new file is begun before one grows longer
    std::int64_t overhead = 0;             ///< that a file is reckoned to take beside its bytes
    bool reserve = true;         ///< room is taken from the file system by `place`, and ahead of it
    bool zero_holes = false;     ///< bytes given up amid others are zeros once they are committed
    const char* unit = "bytes";  ///< what is appended, for messages
    std::int64_t queue_bytes = kQueueBytes;  ///< most that wait to be written; 0: no bound here
    std::span<std::byte> gather;             ///< of WriteQueue
    std::function<void(const WriteQueue::Write&)> written;  ///< of WriteQueue
    /// Called with each file before it is used.
    std::function<void(File&)> opened;
  };

  static constexpr std::int64_t kRollBytes = std::int64_t{1} << 30;
  static constexpr std::int64_t kExtentBytes = std::int64_t{64} << 20;  ///< reserved ahead at most
  static constexpr std::int64_t kQueueBytes = std::int64_t{16} << 20;
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct Place {
    std::size_t file = kNone;
    std::int64_t offset = 0;
  };
  /// All that is about to be placed, for a refusal that says how much room would be enough.
  struct Need {
    std::int64_t bytes = 0, parts = 1;
  };
  /// Where the set stands, to come back to.
  struct Mark {
    std::size_t files = 0, current = kNone;
    bool closed = false;
    std::int64_t allocated = 0;
  };

  /// \param folder of new files
  AppendFiles(FileFormat format, Options options, Directory folder);
  /// New files that no commit counts are removed.
  ~AppendFiles();

  /// Takes up the files of an image, which lie in `folder`. With `keep`, what a crash left behind
  /// their ends is cut off, unless the file has another name too, and files of the format that the
  /// image does not name go at the next commit. \throws FileError
  void open(std::span<const FileRef> files, const Directory& folder);

  WriteQueue::Lock lock() const { return queue_.lock(); }
  WriteQueue& queue() { return queue_; }

  /// Waits until so many bytes may be queued. \throws what an earlier write failed with, if it does
  /// so once more
  void admit(std::int64_t bytes);
  /// Room at the end of the current file, or of a new one. \throws BudgetError naming disk_bytes,
  /// FileError, DiskFullError: nothing has changed then
  Place place(std::int64_t bytes, Need need);
  /// Bytes in use of a file that was opened.
  void count(std::size_t file, std::int64_t bytes) { files_[file]->live += bytes; }
  /// Room to put together what goes to a place: `one.front().own`.
  static WriteQueue::Ready make(std::int64_t bytes);
  void write(const Place& place, WriteQueue::Ready one) noexcept;
  void write(const WriteQueue::Lock& lock, const Place& place, WriteQueue::Ready one) noexcept;
  /// Not behind, but at once. \throws FileError, DiskFullError
  void write_now(const Place& place, std::span<const std::byte> bytes);
  /// Takes writes to a place back, waiting for one under way.
  void withdraw(WriteQueue::Lock& lock, const Place& place, std::int64_t bytes) noexcept {
    queue_.withdraw(lock, files_[place.file]->file, place.offset, bytes);
  }
  /// Bytes that were written, or are about to be. \throws FileError
  void read(const Place& place, std::span<std::byte> to) const;
  /// Bytes are not in use any more. At the end of what no commit counts, they are used again.
  /// With zero_holes: \pre reserve_holes
  void give_back(WriteQueue::Lock& lock, const Place& place, std::int64_t bytes) noexcept;
  /// Room for n more calls of give_back, so that they cannot fail.
  void reserve_holes(const WriteQueue::Lock& lock, std::size_t n);
  /// What comes goes to a new file.
  void close_current() noexcept;
  /// Cuts a file to which nothing more comes behind what was given back at its end.
  void trim(std::size_t file) noexcept;

  Mark mark() const;
  /// Back to where the set stood. \pre everything placed since then was given back
  void cut(WriteQueue::Lock& lock, const Mark& mark) noexcept;
  /// Own files without anything in use that no image names go. One that cannot be removed stays,
  /// and is tried again.
  void release_empty(WriteQueue::Lock& lock) noexcept;

  /// Makes everything durable. \throws FileError, DiskFullError: nothing is lost, call again.
  /// FileError also if a file in use was removed, cut or replaced behind our back: what is open
  /// would still take what is written, but nobody would find it
  void sync();
  /// The files in use. \param number gets the place in the list of each file of the set, or -1
  std::vector<FileRef> refs(std::vector<std::int32_t>& number) const;
  /// An image is now the one that a crash would come back to: files that neither it names nor
  /// anything is in use of are removed. \throws FileError if one cannot be: call again
  void committed(std::span<const FileRef> named);
  /// The files that are to become one where there are more than `most`, by first_to_merge: at least
  /// two, or none. Long ones are not counted: as many as there are, each is worth its place.
  std::vector<std::size_t> to_merge(std::size_t most) const;
  /// Share of a file's bytes that is not in use.
  double dead_share(std::size_t file) const;

  std::size_t size() const { return files_.size(); }
  bool has(std::size_t file) const { return files_[file] != nullptr; }
  const File& file(std::size_t file) const { return *files_[file]; }
  void close(std::size_t file) { files_[file]->closed = true; }
  std::size_t current() const { return current_; }
  const FileFormat& format() const { return format_; }
  const Directory& folder() const { return folder_; }
  /// What errors name.
  std::filesystem::path path(std::size_t file) const;
  std::int64_t taken() const { return taken_; }  ///< bytes taken from the file system

 private:
  struct Hole {
    std::size_t file = 0;
    std::int64_t offset = 0, bytes = 0;
  };

  void begin_file(std::int64_t bytes, const Need& need);
  void reserve(File& f, std::int64_t end, const Need& need);
  [[noreturn]] void refuse(const Need& need) const;
  void shrink(File& f, std::int64_t bytes) noexcept;
  /// Whether it has no name any more.
  bool remove_name(const File& f) noexcept;
  void forget_file(WriteQueue::Lock& lock, std::size_t file) noexcept;
  void freeze(std::size_t file);
  /// \throws FileError, as sync
  void check_names() const;
  void find_orphans();
  std::int64_t round_up(std::int64_t n) const {
    return (n + options_.page - 1) / options_.page * options_.page;
  }

  FileFormat format_;
  Options options_;
  Directory folder_;
  std::vector<std::unique_ptr<File>> files_;                   ///< null: removed
  std::size_t current_ = kNone;                                ///< takes what comes
  std::vector<Hole> holes_;                                    ///< zeroed before they are committed
  std::vector<std::pair<std::string, std::int64_t>> orphans_;  ///< and their bytes
  std::int64_t taken_ = 0;
  mutable WriteQueue queue_;  ///< last, so that it ends before the files do
};

}  // namespace episodic::io
