// SPDX-License-Identifier: Apache-2.0
// A file: a header, then blocks without gaps. A block: header, codes, rows; each row is followed by
// its checksum, so that one read serves and proves one row. Headers and checksums name the file,
// the layer and the slab: a block in another's place is no more believed than a damaged one.
#include "episodic/recall/vector_tier.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

constexpr std::uint64_t kFileMagic = 0x3145434556534945;   // "EISVECE1" in the file's order
constexpr std::uint64_t kBlockMagic = 0x3142414C53434556;  // "VECSLAB1"
constexpr std::uint64_t kVersion = 1;
constexpr std::int64_t kMostRows = std::int64_t{1} << 24, kMostLayers = std::int64_t{1} << 20;
constexpr std::int64_t kMostCodes = std::int64_t{1} << 40, kMostSlabs = std::int64_t{1} << 40;
constexpr std::int64_t kCheck = sizeof(std::uint64_t);

struct FileHeader {
  std::uint64_t magic = kFileMagic, version = kVersion, id = 0, width = 0;
  std::uint64_t check = 0;  // of what stands before it
};

struct BlockHeader {
  std::uint64_t magic = kBlockMagic, file = 0;
  std::int64_t layer = 0, slab = 0, rows = 0, width = 0, codes = 0;
  std::uint64_t codes_check = 0;
  std::uint64_t check = 0;  // of what stands before it
};
static_assert(sizeof(FileHeader) == 5 * 8 && sizeof(BlockHeader) == 9 * 8, "no padding");

constexpr std::int64_t kFileHeader = sizeof(FileHeader), kBlockHeader = sizeof(BlockHeader);

template <class Header>
std::uint64_t check_of(const Header& h) {
  return checksum(std::as_bytes(std::span(&h, 1)).first(sizeof h - kCheck));
}

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

/// Seed of what belongs to a block, so that the same bytes elsewhere have other checksums.
std::uint64_t seed_of(std::uint64_t file, std::int64_t layer, std::int64_t slab) {
  const std::int64_t place[] = {layer, slab};
  return checksum_of(std::span<const std::int64_t>(place), file);
}

std::int64_t row_bytes(std::int64_t width) {
  return width * static_cast<std::int64_t>(sizeof(float)) + kCheck;
}

std::int64_t block_bytes(const BlockHeader& h) {
  return vector_block_bytes(h.rows, h.width, h.codes);
}

/// What is wrong with a block's header, or nothing.
std::string fault_of(const BlockHeader& h, std::uint64_t file, std::int64_t width) {
  if (h.check != check_of(h) || h.magic != kBlockMagic) return "the header of a slab is damaged";
  if (h.file != file) return "a slab of another file lies in it";
  if (h.width != width)
    return fmt::format("a slab of vectors of {} channels, expected {}", h.width, width);
  if (h.layer < 0 || h.layer >= kMostLayers || h.slab < 0 || h.slab >= kMostSlabs || h.rows < 1 ||
      h.rows > kMostRows || h.codes < 0 || h.codes > kMostCodes)
    return "the header of a slab is impossible";
  return {};
}

std::string fault_of(const FileHeader& h, std::uint64_t id, std::int64_t width) {
  if (h.magic != kFileMagic) return "it is no file of representative vectors";
  if (h.check != check_of(h)) return "its header is damaged";
  if (h.version != kVersion)
    return fmt::format("format version {}, this program reads version {}; use a newer program",
                       h.version, kVersion);
  if (h.id != id) return "it is another file of vectors that was given this name";
  if (h.width != static_cast<std::uint64_t>(width))
    return fmt::format("vectors of {} channels, expected {}", h.width, width);
  return {};
}

/// A row into `out` (null: only looked at); `good` becomes false unless it is what was written.
void take_row(const std::byte* from, std::int64_t width, std::uint64_t seed, std::int64_t row,
              bool& good, float* out) {
  const std::size_t n = static_cast<std::size_t>(row_bytes(width) - kCheck);
  std::uint64_t check;
  std::memcpy(&check, from + n, sizeof check);
  good = good && check == checksum({from, n}, seed + static_cast<std::uint64_t>(row));
  if (out) std::memcpy(out, from, n);
}

class Tier final : public VectorTier {
 public:
  Tier(std::int64_t width, const VectorTierOptions& options, const std::filesystem::path& new_dir)
      : width_(width),
        options_(options),
        calls_(options.calls ? *options.calls : io::system_calls()) {
    if (width < 1)
      throw ConfigError(fmt::format("vector tier: width = {}, must be at least 1", width));
    folder_ = io::Directory(calls_, new_dir);
  }

  ~Tier() override {
    if (!options_.keep) return;
    // What no commit ever named is of no use to anyone.
    for (const auto& f : files_)
      if (f->ours && !f->committed) remove(*f);
  }

  void open(const VectorImage& image) {
    const io::Directory folder = options_.keep ? folder_ : io::Directory(calls_, options_.dir);
    for (const VectorImage::File& from : image.files) {
      auto file = std::make_shared<File>();
      file->id = from.id;
      file->file = folder.open(io::Kind::vectors, vector_file_name(from.id));
      const std::int64_t length = file->file.size();
      if (from.bytes < kFileHeader || length < from.bytes)
        refuse(file->file.path(), fmt::format("{} bytes long, {} were committed; it is truncated",
                                              length, from.bytes));
      FileHeader header;
      file->file.read(bytes_of(header), 0);
      if (const std::string fault = fault_of(header, from.id, width_); !fault.empty())
        refuse(file->file.path(), fault);
      file->end = from.bytes;
      file->reserved = length;
      file->committed = true;
      files_.push_back(std::move(file));
    }
    for (const VectorImage::Slab& from : image.slabs) {
      const auto& file = files_.at(static_cast<std::size_t>(from.file));
      auto& places = layer_of(from.layer);
      BlockHeader header;
      if (from.offset < kFileHeader || from.offset > file->end - kBlockHeader)
        refuse(file->file.path(), "a slab lies outside of what was committed");
      file->file.read(bytes_of(header), from.offset);
      std::string fault = fault_of(header, file->id, width_);
      if (fault.empty() && (header.layer != from.layer || header.slab != from.slab ||
                            from.slab != static_cast<std::int64_t>(places.size())))
        fault = "a slab lies in the place of another";
      if (fault.empty() && block_bytes(header) > file->end - from.offset)
        fault = "a slab ends outside of what was committed";
      if (!fault.empty()) refuse(file->file.path(), fault);
      places.push_back({file, from.offset, header.rows, header.codes, header.codes_check});
      file->live += block_bytes(header);
    }
  }

  std::int64_t width() const override { return width_; }

  void append(std::int64_t layer, std::int64_t n_rows, const float* rows,
              std::span<const std::byte> codes) override {
    const std::lock_guard lock(mutex_);
    auto& places = layer_of(layer);
    places.reserve(places.size() + 1);
    places.push_back(put(layer, static_cast<std::int64_t>(places.size()), n_rows, rows, codes));
  }

  void replace(std::int64_t layer, std::int64_t slab, std::int64_t n_rows, const float* rows,
               std::span<const std::byte> codes) override {
    const std::lock_guard lock(mutex_);
    Place& place = place_of(layer, slab);
    // Not behind the old one: its file must go.
    if (place.file == current_) current_.reset();
    Place fresh = put(layer, slab, n_rows, rows, codes);
    drop(place);
    place.file->tainted = true;
    place = std::move(fresh);
  }

  void read(std::int64_t layer, std::int64_t slab, std::int64_t first, std::int64_t n,
            float* out) const override {
    const Place place = copy_of(layer, slab);
    if (first < 0 || n < 0 || first > place.rows - n)
      throw DataError(
          fmt::format("vector tier: rows {} to {} of a slab of {}", first, first + n, place.rows));
    const std::int64_t stride = row_bytes(width_);
    std::vector<std::byte> raw(static_cast<std::size_t>(n * stride));
    place.file->file.read(raw, place.offset + kBlockHeader + place.codes + first * stride);
    const std::uint64_t seed = seed_of(place.file->id, layer, slab);
    bool good = true;
    for (std::int64_t i = 0; i < n; ++i)
      take_row(raw.data() + i * stride, width_, seed, first + i, good, out + i * width_);
    if (!good) damaged(place, layer, slab, "representative vectors");
  }

  std::vector<std::byte> codes(std::int64_t layer, std::int64_t slab) const override {
    const Place place = copy_of(layer, slab);
    std::vector<std::byte> out(static_cast<std::size_t>(place.codes));
    place.file->file.read(out, place.offset + kBlockHeader);
    if (checksum(out, seed_of(place.file->id, layer, slab)) != place.codes_check)
      damaged(place, layer, slab, "the codes");
    return out;
  }

  std::string where(std::int64_t layer, std::int64_t slab) const override {
    return fmt::format("{}, slab {} of layer {}", copy_of(layer, slab).file->file.path().string(),
                       slab, layer);
  }

  std::int64_t slabs(std::int64_t layer) const override {
    const std::lock_guard lock(mutex_);
    const auto at = layers_.find(layer);
    return at == layers_.end() ? 0 : static_cast<std::int64_t>(at->second.size());
  }

  std::int64_t rows(std::int64_t layer, std::int64_t slab) const override {
    return copy_of(layer, slab).rows;
  }

  void truncate(std::int64_t layer, std::int64_t n_slabs) override {
    const std::lock_guard lock(mutex_);
    const auto at = layers_.find(layer);
    if (at == layers_.end()) return;
    std::vector<Place>& places = at->second;
    while (static_cast<std::int64_t>(places.size()) > std::max<std::int64_t>(0, n_slabs)) {
      drop(places.back());
      places.pop_back();
    }
  }

  VectorImage sync() override {
    const std::lock_guard lock(mutex_);
    bool named = false;
    for (const auto& f : files_) {
      if (!f->dirty) continue;
      f->file.sync();
      f->dirty = false;
      named = named || (f->ours && !f->linked);
    }
    if (named && options_.keep) folder_.sync();
    VectorImage image;
    std::map<const File*, std::int32_t> number;
    for (const auto& f : files_) {
      if (f->live == 0) continue;
      f->linked = true;
      number[f.get()] = static_cast<std::int32_t>(image.files.size());
      image.files.push_back({f->id, f->end});
    }
    for (const auto& [layer, places] : layers_)
      for (std::size_t i = 0; i < places.size(); ++i)
        image.slabs.push_back({layer, static_cast<std::int64_t>(i), number.at(places[i].file.get()),
                               places[i].offset});
    return image;
  }

  void committed(const VectorImage& image) override {
    const std::lock_guard lock(mutex_);
    std::set<std::uint64_t> named;
    for (const VectorImage::File& f : image.files) named.insert(f.id);
    std::erase_if(files_, [&](const std::shared_ptr<File>& f) {
      f->committed = named.contains(f->id);
      if (f->committed || f->live > 0 || f == current_) return false;
      // Without `keep` the files of the image that was opened are not ours to remove.
      if (options_.keep) remove(*f);
      return true;
    });
  }

  void compact(double dead_share) override {
    const std::lock_guard lock(mutex_);
    std::set<const File*> old;
    for (const auto& f : files_) {
      const std::int64_t all = f->end - kFileHeader;
      const bool wasteful = f->live < all && static_cast<double>(all - f->live) >=
                                                 dead_share * static_cast<double>(all);
      if ((f->tainted || wasteful) && f->live > 0) old.insert(f.get());
    }
    if (current_ && (old.contains(current_.get()) || current_->tainted)) current_.reset();
    for (auto& [layer, places] : layers_)
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (!old.contains(places[i].file.get())) continue;
        const auto slab = static_cast<std::int64_t>(i);
        const Place place = places[i];
        // A row that cannot be proved is not carried on under a new checksum.
        std::vector<float> rows(static_cast<std::size_t>(place.rows * width_));
        std::vector<std::byte> raw(static_cast<std::size_t>(place.rows * row_bytes(width_)));
        place.file->file.read(raw, place.offset + kBlockHeader + place.codes);
        std::vector<std::byte> codes(static_cast<std::size_t>(place.codes));
        place.file->file.read(codes, place.offset + kBlockHeader);
        const std::uint64_t seed = seed_of(place.file->id, layer, slab);
        bool good = checksum(codes, seed) == place.codes_check;
        for (std::int64_t r = 0; r < place.rows; ++r)
          take_row(raw.data() + r * row_bytes(width_), width_, seed, r, good,
                   rows.data() + r * width_);
        if (!good) damaged(place, layer, slab, "a slab");
        Place fresh = put(layer, slab, place.rows, rows.data(), codes);
        drop(places[i]);
        places[i] = std::move(fresh);
      }
  }

  std::int64_t disk_bytes() const override {
    const std::lock_guard lock(mutex_);
    return total();
  }
  std::int64_t read_errors() const override { return read_errors_; }

 private:
  struct File {
    std::uint64_t id = 0;
    io::File file;
    std::int64_t end = 0;       // of the last block that counts
    std::int64_t reserved = 0;  // length the file may have
    std::int64_t live = 0;      // bytes of slabs
    bool ours = false;          // made by this tier
    bool committed = false;     // named by the last image
    bool linked = false;        // its name is durable
    bool dirty = false;
    bool tainted = false;  // holds what was to be erased
  };
  struct Place {
    std::shared_ptr<File> file;
    std::int64_t offset = 0, rows = 0, codes = 0;
    std::uint64_t codes_check = 0;
  };

  [[noreturn]] static void refuse(const std::filesystem::path& path, const std::string& fault) {
    throw FileError(fmt::format("{}: {}; take it from a copy", path.string(), fault));
  }

  [[noreturn]] void damaged(const Place& place, std::int64_t layer, std::int64_t slab,
                            const char* what) const {
    ++read_errors_;
    throw FileError(fmt::format(
        "{}: {} in slab {} of layer {} are damaged: wrong checksum; take the file from a copy",
        place.file->file.path().empty() ? "an unnamed file of vectors"
                                        : place.file->file.path().string(),
        what, slab, layer));
  }

  std::vector<Place>& layer_of(std::int64_t layer) {
    if (layer < 0 || layer >= kMostLayers)
      throw DataError(fmt::format("vector tier: there is no layer {}", layer));
    return layers_[layer];
  }

  Place& place_of(std::int64_t layer, std::int64_t slab) {
    auto& places = layer_of(layer);
    if (slab < 0 || slab >= static_cast<std::int64_t>(places.size()))
      throw DataError(fmt::format("vector tier: no slab {} of layer {}; it has {}", slab, layer,
                                  places.size()));
    return places[static_cast<std::size_t>(slab)];
  }

  /// A copy, so that reads need no lock: files close only with their last place.
  Place copy_of(std::int64_t layer, std::int64_t slab) const {
    const std::lock_guard lock(mutex_);
    return const_cast<Tier*>(this)->place_of(layer, slab);
  }

  void drop(const Place& place) {
    place.file->live -= vector_block_bytes(place.rows, width_, place.codes);
  }

  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& f : files_) sum += std::max(f->reserved, f->end);
    return sum;
  }

  Place put(std::int64_t layer, std::int64_t slab, std::int64_t n_rows, const float* rows,
            std::span<const std::byte> codes) {
    if (n_rows < 1 || n_rows > kMostRows)
      throw DataError(fmt::format("vector tier: a slab of {} rows", n_rows));
    const auto n_codes = static_cast<std::int64_t>(codes.size());
    const std::int64_t size = vector_block_bytes(n_rows, width_, n_codes);
    const std::int64_t needed = total() + size + (current_ ? 0 : kFileHeader) -
                                (current_ ? current_->reserved - current_->end : 0);
    if (options_.disk_bytes > 0 && needed > options_.disk_bytes)
      throw BudgetError(fmt::format(
          "disk_bytes: representative vectors need {} bytes on disk, their share is {}; raise it "
          "to at least that",
          needed, options_.disk_bytes));
    if (!current_) begin_file();
    File& file = *current_;
    BlockHeader header;
    header.file = file.id;
    header.layer = layer;
    header.slab = slab;
    header.rows = n_rows;
    header.width = width_;
    header.codes = n_codes;
    const std::uint64_t seed = seed_of(file.id, layer, slab);
    header.codes_check = checksum(codes, seed);
    header.check = check_of(header);
    std::vector<std::byte> block(static_cast<std::size_t>(size));
    std::byte* to = block.data();
    const auto push = [&to](const void* from, std::size_t n) {
      if (n > 0) std::memcpy(to, from, n);
      to += n;
    };
    push(&header, sizeof header);
    push(codes.data(), codes.size());
    const auto row = static_cast<std::size_t>(row_bytes(width_) - kCheck);
    for (std::int64_t r = 0; r < n_rows; ++r) {
      const float* from = rows + r * width_;
      push(from, row);
      const std::uint64_t check = checksum(std::as_bytes(std::span(from, row / sizeof(float))),
                                           seed + static_cast<std::uint64_t>(r));
      push(&check, sizeof check);
    }
    file.reserved = std::max(file.reserved, file.end + size);
    file.dirty = true;
    file.file.write(block, file.end);  // on failure the next block is written over it
    Place place{current_, file.end, n_rows, n_codes, header.codes_check};
    file.end += size;
    file.live += size;
    return place;
  }

  void begin_file() {
    auto file = std::make_shared<File>();
    std::random_device random;
    file->id = (std::uint64_t{random()} << 32) ^ random();
    file->ours = true;
    const std::string name = vector_file_name(file->id);
    file->file = options_.keep ? folder_.create(io::Kind::vectors, name)
                               : folder_.create_unnamed(io::Kind::vectors, name);
    try {
      FileHeader header;
      header.id = file->id;
      header.width = static_cast<std::uint64_t>(width_);
      header.check = check_of(header);
      file->file.write(bytes_of(header), 0);
      file->end = file->reserved = kFileHeader;
      files_.push_back(file);
    } catch (...) {
      if (options_.keep) remove(*file);
      throw;
    }
    current_ = std::move(file);
  }

  void remove(const File& file) {
    folder_.remove(io::Kind::vectors, vector_file_name(file.id));  // else by the next writer
  }

  std::int64_t width_;
  VectorTierOptions options_;
  io::Syscalls& calls_;
  io::Directory folder_;  // of new files
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<File>> files_;
  std::shared_ptr<File> current_;  // takes what comes
  std::map<std::int64_t, std::vector<Place>> layers_;
  mutable std::atomic<std::int64_t> read_errors_{0};
};

/// Checks one file of an image block by block; the slabs that its places promise are struck off.
std::string verify_file(const io::Directory& folder, std::int64_t width,
                        const VectorImage::File& from,
                        std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>>& promised) {
  const io::File file = folder.open(io::Kind::vectors, vector_file_name(from.id));
  const std::int64_t length = file.size();
  if (from.bytes < kFileHeader || length < from.bytes)
    return fmt::format("{} bytes long, {} were committed; it is truncated", length, from.bytes);
  FileHeader head;
  file.read(bytes_of(head), 0);
  if (std::string fault = fault_of(head, from.id, width); !fault.empty()) return fault;
  std::int64_t offset = kFileHeader;
  while (offset < from.bytes) {
    BlockHeader h;
    if (from.bytes - offset < kBlockHeader) return "its last slab is cut off";
    file.read(bytes_of(h), offset);
    if (std::string fault = fault_of(h, from.id, width); !fault.empty())
      return fmt::format("at byte {}: {}", offset, fault);
    if (block_bytes(h) > from.bytes - offset)
      return fmt::format("at byte {}: a slab ends outside of what was committed", offset);
    if (const auto at = promised.find(offset); at != promised.end()) {
      if (at->second != std::pair(h.layer, h.slab))
        return fmt::format("at byte {}: a slab lies in the place of another", offset);
      promised.erase(at);
    }
    const std::uint64_t seed = seed_of(from.id, h.layer, h.slab);
    std::vector<std::byte> raw(static_cast<std::size_t>(h.codes));
    file.read(raw, offset + kBlockHeader);
    bool good = checksum(raw, seed) == h.codes_check;
    raw.resize(static_cast<std::size_t>(row_bytes(width)));
    for (std::int64_t r = 0; r < h.rows && good; ++r) {
      file.read(raw, offset + kBlockHeader + h.codes + r * row_bytes(width));
      take_row(raw.data(), width, seed, r, good, nullptr);
    }
    if (!good)
      return fmt::format("slab {} of layer {} at byte {}: wrong checksum", h.slab, h.layer, offset);
    offset += block_bytes(h);
  }
  return promised.empty() ? std::string() : "a slab is not where it should lie";
}

}  // namespace

std::string vector_file_name(std::uint64_t id) { return fmt::format("vectors-{:016x}.vec", id); }

std::int64_t vector_block_bytes(std::int64_t n_rows, std::int64_t width, std::int64_t codes) {
  return kBlockHeader + codes + n_rows * row_bytes(width);
}

void VectorImage::save(ByteWriter& to) const {
  to.put(static_cast<std::int64_t>(files.size()));
  for (const File& f : files) to.put(f.id), to.put(f.bytes);
  to.put(static_cast<std::int64_t>(slabs.size()));
  for (const Slab& s : slabs) to.put(s.layer), to.put(s.slab), to.put(s.file), to.put(s.offset);
}

VectorImage VectorImage::load(ByteReader& from) {
  const auto damaged = [&from](const char* what) {
    throw FileError(
        fmt::format("{}: impossible {} in the list of representative vectors; the file "
                    "is damaged",
                    from.where(), what));
  };
  const auto count = [&](std::size_t size, const char* what) {
    const auto n = from.get<std::int64_t>();
    if (n < 0 || static_cast<std::uint64_t>(n) > from.left() / size) damaged(what);
    return n;
  };
  VectorImage image;
  std::set<std::uint64_t> ids;
  for (std::int64_t n = count(16, "number of files"); n > 0; --n) {
    File f;
    f.id = from.get<std::uint64_t>();
    f.bytes = from.get<std::int64_t>();
    if (f.bytes < kFileHeader || !ids.insert(f.id).second) damaged("file");
    image.files.push_back(f);
  }
  std::map<std::int64_t, std::int64_t> next;
  for (std::int64_t n = count(28, "number of slabs"); n > 0; --n) {
    Slab s;
    s.layer = from.get<std::int64_t>();
    s.slab = from.get<std::int64_t>();
    s.file = from.get<std::int32_t>();
    s.offset = from.get<std::int64_t>();
    if (s.layer < 0 || s.layer >= kMostLayers || s.slab != next[s.layer]++ || s.file < 0 ||
        s.file >= static_cast<std::int64_t>(image.files.size()) || s.offset < kFileHeader ||
        s.offset >= image.files[static_cast<std::size_t>(s.file)].bytes)
      damaged("slab");
    image.slabs.push_back(s);
  }
  return image;
}

std::unique_ptr<VectorTier> make_vector_tier(std::int64_t width, const VectorTierOptions& options) {
  return std::make_unique<Tier>(width, options, options.dir);
}

std::unique_ptr<VectorTier> open_vector_tier(std::int64_t width, const VectorTierOptions& options,
                                             const VectorImage& image,
                                             const std::filesystem::path& scratch_dir) {
  auto tier = std::make_unique<Tier>(
      width, options, options.keep || scratch_dir.empty() ? options.dir : scratch_dir);
  tier->open(image);
  return tier;
}

std::int64_t verify_vectors(
    std::int64_t width, const std::filesystem::path& dir, const VectorImage& image,
    io::Syscalls& calls,
    const std::function<void(const std::filesystem::path&, const std::string&)>& report) {
  const io::Directory folder(calls, dir);
  std::int64_t damages = 0;
  for (std::size_t i = 0; i < image.files.size(); ++i) {
    const std::filesystem::path path = dir / vector_file_name(image.files[i].id);
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> promised;
    for (const VectorImage::Slab& s : image.slabs)
      if (static_cast<std::size_t>(s.file) == i) promised[s.offset] = {s.layer, s.slab};
    std::string fault;
    try {
      fault = verify_file(folder, width, image.files[i], promised);
    } catch (const FileError& e) {
      fault = e.what();
    }
    if (fault.empty()) continue;
    report(path, fault);
    ++damages;
  }
  return damages;
}

}  // namespace episodic
