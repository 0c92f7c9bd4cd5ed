// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The disk tier of representative vectors: full slabs of them in append-only files, so that host
/// memory need hold only what a search looks at first. One for all layers of a memory.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/io.hpp"

namespace EPISODIC_NAMESPACE {

struct VectorTierOptions {
  /// Folder of the files; it must exist.
  std::filesystem::path dir;
  /// Files with names, that the next run can open; otherwise they vanish with the tier.
  bool keep = false;
  std::int64_t disk_bytes = 0;    ///< of all files; 0: no bound
  io::Syscalls* calls = nullptr;  ///< null: the real ones
  /// Lengths that other states of the folder count, by file name; never cut shorter.
  std::map<std::string, std::int64_t> counted = {};
};

/// What a kept tier is made of, beside the files themselves.
struct VectorImage {
  using File = io::FileRef;  ///< its name: vector_file_name(id)
  struct Slab {
    std::int64_t layer = 0;
    std::int64_t slab = 0;    ///< of the layer, from 0, without gaps
    std::int32_t file = 0;    ///< number in `files`
    std::int64_t offset = 0;  ///< of the slab's block in the file
  };
  std::vector<File> files;
  std::vector<Slab> slabs;  ///< by layer, then slab

  void save(ByteWriter& to) const;
  /// \throws FileError for content that no image has
  static VectorImage load(ByteReader& from);
};

/// "vectors-0123456789abcdef.vec"
std::string vector_file_name(std::uint64_t id);

/// Slabs of float rows with what a search needs to know without them ("codes", bytes that the tier
/// does not look into). Each row has a checksum that is verified whenever it is read. Calls may
/// come from several threads at once, those that change a layer alone among the calls about it.
/// Slabs are written behind: `append` takes room on the disk, a thread writes; up to 16 MiB and a
/// slab per calling thread wait for it in host memory, and are read there meanwhile.
class VectorTier {
 public:
  virtual ~VectorTier() = default;

  virtual std::int64_t width() const = 0;  ///< floats of a row
  /// Whether its files have names: a commit may come back to what they held then, so that rows move
  /// in them only where earlier states are given up.
  virtual bool keep() const = 0;

  /// Writes the next slab of a layer: its number is slabs(layer). \param rows [n_rows, width]
  /// \throws BudgetError naming disk_bytes, FileError, io::DiskFullError, also for an earlier slab
  /// that could not be written; the tier is unchanged then, and no slab is lost
  virtual void append(std::int64_t layer, std::int64_t n_rows, const float* rows,
                      std::span<const std::byte> codes) = 0;

  /// Writes a slab anew, as after a row of it was forgotten. The bytes it had are given back by the
  /// next compact and committed. \throws as append
  virtual void replace(std::int64_t layer, std::int64_t slab, std::int64_t n_rows,
                       const float* rows, std::span<const std::byte> codes) = 0;

  /// Rows and codes of a slab, to be filled. \param rows [n_rows, width]
  using Fill = std::function<void(std::int64_t slab, float* rows, std::vector<std::byte>& codes)>;
  /// Writes n_slabs slabs of n_rows anew in place of all that a layer has from `first` on. The old
  /// ones can be read until it returns, and stay if it fails.
  /// \throws as append, and what `fill` does
  virtual void rewrite(std::int64_t layer, std::int64_t first, std::int64_t n_slabs,
                       std::int64_t n_rows, const Fill& fill) = 0;

  /// Rows [first, first + n) of a slab into `out` [n, width].
  /// \throws FileError naming the file for a damaged row, DataError for rows that are not there
  virtual void read(std::int64_t layer, std::int64_t slab, std::int64_t first, std::int64_t n,
                    float* out) const = 0;
  /// \throws FileError for damaged ones
  virtual std::vector<std::byte> codes(std::int64_t layer, std::int64_t slab) const = 0;
  /// "FILE, slab S of layer L": for the errors of those who read codes.
  virtual std::string where(std::int64_t layer, std::int64_t slab) const = 0;

  virtual std::int64_t slabs(std::int64_t layer) const = 0;
  virtual std::int64_t rows(std::int64_t layer, std::int64_t slab) const = 0;
  /// Gives up the slabs of a layer from `n_slabs` on. Cannot fail.
  virtual void truncate(std::int64_t layer, std::int64_t n_slabs) = 0;

  /// Makes all slabs durable and tells what a later open needs. \throws FileError,
  /// io::DiskFullError: nothing is lost, call again
  virtual VectorImage sync() = 0;
  /// Tells the tier that an image is now the one that a crash would come back to: bytes it names
  /// are never written again, files that neither it nor a slab of now names are removed.
  /// \throws FileError if one cannot be removed: the commit stands, the next call tries again
  virtual void committed(const VectorImage& image) = 0;
  /// Rewrites, into a new file, the slabs of files with a slab that was replaced, or in which at
  /// least `dead_share` of the bytes belong to no slab. \throws as append
  virtual void compact(double dead_share) = 0;

  virtual std::int64_t disk_bytes() const = 0;   ///< of its files, with what is reserved ahead
  virtual std::int64_t read_errors() const = 0;  ///< rows and codes refused for what they hold
};

/// A new, empty tier. \param width floats of a row \throws FileError
std::unique_ptr<VectorTier> make_vector_tier(std::int64_t width, const VectorTierOptions& options);

/// A tier over the files of an image. They are not written to: what comes goes into a new file.
/// With keep == false the image's files stay as they are, and the new one is unnamed, in
/// `scratch_dir` (empty: `options.dir`).
/// \throws FileError naming a file that is missing, too short or not of this image
std::unique_ptr<VectorTier> open_vector_tier(std::int64_t width, const VectorTierOptions& options,
                                             const VectorImage& image,
                                             const std::filesystem::path& scratch_dir = {});

/// Reads every byte of an image's files up to their committed lengths. \param report called with
/// (file, what is wrong) for each damage found \return number of damages
std::int64_t verify_vectors(
    std::int64_t width, const std::filesystem::path& dir, const VectorImage& image,
    io::Syscalls& calls,
    const std::function<void(const std::filesystem::path&, const std::string&)>& report);

/// Bytes in a tier of one slab of n rows with codes of so many bytes.
std::int64_t vector_block_bytes(std::int64_t n_rows, std::int64_t width, std::int64_t codes);

}  // namespace EPISODIC_NAMESPACE
