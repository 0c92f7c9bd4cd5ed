// SPDX-License-Identifier: Apache-2.0
#pragma once
// System calls of a memory's folder whose files lie on a tier: what is read of them comes from
// there.

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "piece_cache.hpp"

namespace episodic::detail {

/// A run of a file's bytes that is a block of the tier.
struct Piece {
  BlockHash name;
  std::int64_t offset = 0, bytes = 0;
  std::int64_t end() const { return offset + bytes; }
};

/// What of a file lies on the tier: its first bytes, in pieces without gaps. The file in the folder
/// is as long, but empty there.
struct TierFile {
  std::vector<Piece> pieces;
  std::int64_t bytes() const { return pieces.empty() ? 0 : pieces.back().end(); }

  mutable std::shared_mutex mutex;  ///< of `pieces`, and of reads from the file itself
};

class TierCalls final : public io::Syscalls {
 public:
  TierCalls(io::Syscalls& below, PieceCache& cache, std::filesystem::path folder)
      : below_(below), cache_(cache), folder_(std::move(folder)) {}

  /// What of a file of the folder lies on the tier, from now on.
  void set(const std::string& name, std::vector<Piece> pieces);
  /// Empty for a file of which nothing does.
  std::vector<Piece> pieces(const std::string& name) const;
  void forget(const std::string& name);
  /// Gives the room of what lies on the tier back to the file system.
  void empty_file(const std::string& name) noexcept;
  /// Whether a fork shares the empty files, because its pieces are the same; else it copies.
  void share_empty_files(bool share) { share_ = share; }

  int open(io::Kind kind, int dir, const char* path, int flags) override;
  void close(int fd) override;
  std::int64_t read(io::Kind kind, int fd, void* to, std::int64_t bytes,
                    std::int64_t offset) override;
  std::int64_t write(io::Kind kind, int fd, const void* from, std::int64_t bytes,
                     std::int64_t offset) override;
  int sync(io::Kind kind, int fd) override { return below_.sync(kind, fd); }
  int allocate(io::Kind kind, int fd, std::int64_t offset, std::int64_t bytes) override {
    return below_.allocate(kind, fd, offset, bytes);
  }
  int truncate(io::Kind kind, int fd, std::int64_t bytes) override {
    return below_.truncate(kind, fd, bytes);
  }
  int rename(io::Kind kind, int dir, const char* from, const char* to) override {
    return below_.rename(kind, dir, from, to);
  }
  int link(io::Kind kind, int from_dir, const char* from, int to_dir, const char* to) override;
  int unlink(io::Kind kind, int dir, const char* name) override {
    return below_.unlink(kind, dir, name);
  }
  int make_directory(const char* path) override { return below_.make_directory(path); }
  int lock(io::Kind kind, int fd, bool exclusive) override {
    return below_.lock(kind, fd, exclusive);
  }
  std::int64_t completed_read(io::Kind kind, int fd, void* to, std::int64_t bytes,
                              std::int64_t offset, std::int64_t result) override {
    return below_.completed_read(kind, fd, to, bytes, offset, result);
  }
  /// The kernel knows nothing of the tier.
  int submit(io::Kind) override;
  std::string why(io::Kind kind, int fd) override;

 private:
  bool in_folder(int dir) const;
  std::shared_ptr<TierFile> of(int fd) const;
  std::shared_ptr<TierFile> named(const std::string& name);

  io::Syscalls& below_;
  PieceCache& cache_;
  std::filesystem::path folder_;
  bool share_ = false;
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, std::shared_ptr<TierFile>> files_;
  std::map<int, std::shared_ptr<TierFile>> open_;
  std::map<int, std::string> failed_;  // why, by descriptor
};

}  // namespace episodic::detail
