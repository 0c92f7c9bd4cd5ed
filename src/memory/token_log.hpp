// SPDX-License-Identifier: Apache-2.0
#pragma once
// The token ids of a kept memory, in append-only files: to rewind, to resume and to show the text
// of an event.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/append_files.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/io.hpp"

namespace episodic::detail {

class TokenLog {
 public:
  /// Written where the caller gave no id (surprise from outside), or where the token was forgotten.
  static constexpr std::uint32_t kUnknown = 0xffffffffu;

  /// A file and the tokens of it that count, which are its first ones.
  struct Part {
    std::uint64_t id = 0;
    std::int64_t bytes = 0;
    std::int64_t first = 0, tokens = 0;
  };

  TokenLog() = default;
  /// \param writes ids may go to files before the next sync, when they are many
  TokenLog(const std::filesystem::path& dir, io::Syscalls& calls, bool writes = false);

  /// Room for n more tokens, so that pushing them cannot fail. \throws FileError, DiskFullError for
  /// ids that could not be written behind: none are lost
  void reserve(std::int64_t n);
  /// \param ids null: unknown \pre reserve(n)
  void push(const std::int64_t* ids, std::int64_t n) noexcept;
  /// Forgets tokens from `n_tokens` on.
  void truncate(std::int64_t n_tokens) noexcept;
  std::int64_t tokens() const;

  /// Ids of tokens [first, first + n), kUnknown among them. \throws FileError, DataError
  std::vector<std::uint32_t> read(std::int64_t first, std::int64_t n) const;

  /// Makes everything durable. Nothing is written if nothing came.
  void sync();
  /// Writes all anew into one file, with kUnknown for the tokens that `forgotten` names.
  void rewrite(const std::function<bool(std::int64_t)>& forgotten);

  /// Where there would be more than `most` files at the next sync, the ids of the smaller ones wait
  /// to be written into one. \return whether there were; not where they cannot be read
  bool merge_files(std::size_t most);

  const std::vector<Part>& parts() const { return parts_; }
  void save(ByteWriter& to) const;
  void load(ByteReader& from);

  static std::string file_name(std::uint64_t id);
  /// Reads every byte of a part. \throws FileError
  static void verify(const std::filesystem::path& dir, const Part& part, io::Syscalls& calls);

 private:
  void write_pending();
  std::optional<std::size_t> own_file(std::uint64_t id) const;

  io::Directory folder_;
  bool writes_ = false;
  std::vector<Part> parts_;
  std::vector<std::uint32_t> pending_;      // in no file yet
  std::unique_ptr<io::AppendFiles> files_;  // of this run, once there is one
};

}  // namespace episodic::detail
