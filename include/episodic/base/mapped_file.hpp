// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `MappedFile`: a file's bytes, read only, mapped rather than read.

#include <cstddef>
#include <filesystem>
#include <span>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// A regular file mapped into memory for as long as the object lives. Pages are read when touched.
/// The file must not be shortened meanwhile: that is a bus error in any program that maps files.
class MappedFile {
 public:
  /// \throws FileError if the path is missing, unreadable or no regular file
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;  // null for an empty file, which cannot be mapped
  std::size_t size_ = 0;
};

}  // namespace EPISODIC_NAMESPACE
