// SPDX-License-Identifier: Apache-2.0
// A file: a header, then blocks without gaps. A block: header, codes, rows; each row is followed by
// its checksum, so that one read serves and proves one row. Headers and checksums name the file,
// the layer and the slab: a block in another's place is no more believed than a damaged one.
#include "episodic/recall/vector_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/append_files.hpp"
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

std::string fault_of(std::span<const std::byte> header, std::uint64_t id, std::int64_t width) {
  FileHeader h;
  std::memcpy(&h, header.data(), sizeof h);
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

io::FileFormat format_of(std::int64_t width) {
  const auto header = [width](std::uint64_t id) {
    FileHeader h;
    h.id = id;
    h.width = static_cast<std::uint64_t>(width);
    h.check = check_of(h);
    const auto bytes = bytes_of(h);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto fault = [width](std::uint64_t id, std::span<const std::byte> found) {
    return fault_of(found, id, width);
  };
  return {io::Kind::vectors, "vectors", "vec", kFileHeader, header, fault};
}

io::AppendFiles::Options options_of(const VectorTierOptions& options) {
  io::AppendFiles::Options out;
  out.keep = options.keep;
  out.counted = options.counted;
  out.most_bytes = options.disk_bytes;
  out.unit = "slabs of representative vectors";
  return out;
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

class Tier final : public VectorTier, public io::MergesFiles {
 public:
  Tier(std::int64_t width, const VectorTierOptions& options, const std::filesystem::path& new_dir)
      : width_(width < 1 ? throw ConfigError(
                               fmt::format("vector tier: width = {}, must be at least 1", width))
                         : width),
        keep_(options.keep),
        files_(format_of(width), options_of(options), folder_of(options, new_dir)) {}

  void open(const VectorImage& image, const io::Directory& folder) {
    files_.open(image.files, folder);
    for (const VectorImage::Slab& from : image.slabs) {
      const auto file = static_cast<std::size_t>(from.file);
      if (file >= files_.size())
        throw FileError(fmt::format("{}: a slab lies in file {} of {}; take the folder from a copy",
                                    folder.path().string(), from.file, files_.size()));
      auto& places = layer_of(from.layer);
      const auto refuse = [&](const std::string& fault) {
        throw FileError(
            fmt::format("{}: {}; take it from a copy", files_.path(file).string(), fault));
      };
      BlockHeader header;
      const std::int64_t end = files_.file(file).end;
      if (from.offset < kFileHeader || from.offset > end - kBlockHeader)
        refuse("a slab lies outside of what was committed");
      files_.read({file, from.offset}, bytes_of(header));
      std::string fault = fault_of(header, files_.file(file).id, width_);
      if (fault.empty() && (header.layer != from.layer || header.slab != from.slab ||
                            from.slab != static_cast<std::int64_t>(places.size())))
        fault = "a slab lies in the place of another";
      if (fault.empty() && block_bytes(header) > end - from.offset)
        fault = "a slab ends outside of what was committed";
      if (!fault.empty()) refuse(fault);
      places.push_back(
          {file, header.file, from.offset, header.rows, header.codes, header.codes_check});
      files_.count(file, block_bytes(header));
    }
  }

  std::int64_t width() const override { return width_; }
  bool keep() const override { return keep_; }

  void append(std::int64_t layer, std::int64_t n_rows, const float* rows,
              std::span<const std::byte> codes) override {
    std::vector<Place>* places = nullptr;
    {
      const std::lock_guard lock(mutex_);
      places = &layer_of(layer);
      places->reserve(places->size() + 1);
    }
    const Place place = put(layer, static_cast<std::int64_t>(places->size()), n_rows, rows, codes);
    const std::lock_guard lock(mutex_);
    places->push_back(place);
  }

  void replace(std::int64_t layer, std::int64_t slab, std::int64_t n_rows, const float* rows,
               std::span<const std::byte> codes) override {
    const Place old = place_at(layer, slab);
    {
      const std::lock_guard lock(mutex_);
      tainted_.insert(old.file);
      // Not behind the old one: its file must go.
      if (old.file == files_.current()) files_.close_current();
    }
    const Place fresh = put(layer, slab, n_rows, rows, codes);
    const std::lock_guard lock(mutex_);
    drop(old);
    place_of(layer, slab) = fresh;
  }

  void rewrite(std::int64_t layer, std::int64_t first, std::int64_t n_slabs, std::int64_t n_rows,
               const Fill& fill) override {
    std::vector<Place>* places = nullptr;
    std::vector<Place> fresh;
    fresh.reserve(static_cast<std::size_t>(n_slabs));
    {
      const std::lock_guard lock(mutex_);
      places = &layer_of(layer);
      places->reserve(static_cast<std::size_t>(first + n_slabs));
      // Not behind the old ones: when all of a file's are gone, it goes.
      for (auto s = static_cast<std::size_t>(first); s < places->size(); ++s)
        if ((*places)[s].file == files_.current()) files_.close_current();
    }
    try {
      std::vector<float> rows(static_cast<std::size_t>(n_rows * width_));
      std::vector<std::byte> codes;
      for (std::int64_t slab = first; slab < first + n_slabs; ++slab) {
        codes.clear();
        fill(slab, rows.data(), codes);
        fresh.push_back(put(layer, slab, n_rows, rows.data(), codes));
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      for (; !fresh.empty(); fresh.pop_back()) drop(fresh.back());  // each lies at the end then
      throw;
    }
    const std::lock_guard lock(mutex_);
    for (; static_cast<std::int64_t>(places->size()) > first; places->pop_back()) {
      const std::size_t file = places->back().file;
      drop(places->back());
      files_.trim(file);
    }
    places->insert(places->end(), fresh.begin(), fresh.end());
    release_empty();
  }

  void read(std::int64_t layer, std::int64_t slab, std::int64_t first, std::int64_t n,
            float* out) const override {
    const Place place = place_at(layer, slab);
    if (first < 0 || n < 0 || first > place.rows - n)
      throw DataError(
          fmt::format("vector tier: rows {} to {} of a slab of {}", first, first + n, place.rows));
    const std::int64_t stride = row_bytes(width_);
    std::vector<std::byte> raw(static_cast<std::size_t>(n * stride));
    files_.read({place.file, place.offset + kBlockHeader + place.codes + first * stride}, raw);
    const std::uint64_t seed = seed_of(place.id, layer, slab);
    bool good = true;
    for (std::int64_t i = 0; i < n; ++i)
      take_row(raw.data() + i * stride, width_, seed, first + i, good, out + i * width_);
    if (!good) damaged(place, layer, slab, "representative vectors");
  }

  std::vector<std::byte> codes(std::int64_t layer, std::int64_t slab) const override {
    const Place place = place_at(layer, slab);
    std::vector<std::byte> out(static_cast<std::size_t>(place.codes));
    files_.read({place.file, place.offset + kBlockHeader}, out);
    if (checksum(out, seed_of(place.id, layer, slab)) != place.codes_check)
      damaged(place, layer, slab, "the codes");
    return out;
  }

  std::string where(std::int64_t layer, std::int64_t slab) const override {
    const Place place = place_at(layer, slab);
    const std::lock_guard lock(mutex_);
    return fmt::format("{}, slab {} of layer {}", files_.path(place.file).string(), slab, layer);
  }

  std::int64_t slabs(std::int64_t layer) const override {
    const std::lock_guard lock(mutex_);
    const auto at = layers_.find(layer);
    return at == layers_.end() ? 0 : static_cast<std::int64_t>(at->second.size());
  }

  std::int64_t rows(std::int64_t layer, std::int64_t slab) const override {
    return place_at(layer, slab).rows;
  }

  void truncate(std::int64_t layer, std::int64_t n_slabs) override {
    const std::lock_guard lock(mutex_);
    const auto at = layers_.find(layer);
    if (at == layers_.end()) return;
    std::vector<Place>& places = at->second;
    for (; static_cast<std::int64_t>(places.size()) > std::max<std::int64_t>(0, n_slabs);
         places.pop_back())
      drop(places.back());
  }

  VectorImage sync() override {
    const std::lock_guard lock(mutex_);
    files_.sync();
    VectorImage image;
    std::vector<std::int32_t> number;
    image.files = files_.refs(number);
    for (const auto& [layer, places] : layers_)
      for (std::size_t i = 0; i < places.size(); ++i)
        image.slabs.push_back(
            {layer, static_cast<std::int64_t>(i), number[places[i].file], places[i].offset});
    return image;
  }

  void committed(const VectorImage& image) override {
    const std::lock_guard lock(mutex_);
    files_.committed(image.files);
  }

  void compact(double dead_share) override {
    std::vector<bool> old(files_.size());
    for (std::size_t f = 0; f < old.size(); ++f)
      if (files_.has(f)) {
        const double dead = files_.dead_share(f);
        old[f] = tainted_.contains(f) || (dead > 0.0 && dead >= dead_share);
        if (old[f] && f == files_.current()) files_.close_current();
      }
    bool moved = false;
    move_out(old, moved);
    const std::lock_guard lock(mutex_);
    release_empty();
  }

  bool merge_files(std::size_t most) override {
    std::vector<bool> old(files_.size());
    for (const std::size_t f : files_.to_merge(most)) old[f] = true;
    if (std::find(old.begin(), old.end(), true) == old.end()) return false;
    files_.close_current();  // into one that is none of them
    bool moved = false;
    try {
      move_out(old, moved);
    } catch (const Error&) {  // a damaged row, no room: a commit needs neither
    }
    const std::lock_guard lock(mutex_);
    release_empty();
    return moved;
  }

  std::int64_t disk_bytes() const override {
    const std::lock_guard lock(mutex_);
    return files_.taken();
  }
  std::int64_t read_errors() const override { return read_errors_; }

 private:
  struct Place {
    std::size_t file = 0;
    std::uint64_t id = 0;  // of the file
    std::int64_t offset = 0, rows = 0, codes = 0;
    std::uint64_t codes_check = 0;
  };

  static io::Directory folder_of(const VectorTierOptions& options,
                                 const std::filesystem::path& dir) {
    return io::Directory(options.calls ? *options.calls : io::system_calls(), dir);
  }

  [[noreturn]] void damaged(const Place& place, std::int64_t layer, std::int64_t slab,
                            const char* what) const {
    ++read_errors_;
    const std::lock_guard lock(mutex_);
    throw FileError(fmt::format(
        "{}: {} in slab {} of layer {} are damaged: wrong checksum; take the file from a copy",
        files_.path(place.file).string(), what, slab, layer));
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

  /// A copy, so that reads need no lock.
  Place place_at(std::int64_t layer, std::int64_t slab) const {
    const std::lock_guard lock(mutex_);
    return const_cast<Tier*>(this)->place_of(layer, slab);
  }

  /// Without names files go at once; with them a commit says which.
  void release_empty() {
    if (keep_) return;
    auto queue = files_.lock();
    files_.release_empty(queue);
  }

  void drop(const Place& place) {
    auto lock = files_.lock();
    files_.give_back(lock, {place.file, place.offset},
                     vector_block_bytes(place.rows, width_, place.codes));
  }

  /// Copies the slabs of files to where new ones go. \param moved is set with the first of them
  void move_out(const std::vector<bool>& files, bool& moved) {
    for (auto& [layer, places] : layers_)
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (places[i].file >= files.size() || !files[places[i].file]) continue;
        const auto slab = static_cast<std::int64_t>(i);
        // A row that cannot be proved is not carried on under a new checksum.
        std::vector<float> rows(static_cast<std::size_t>(places[i].rows * width_));
        read(layer, slab, 0, places[i].rows, rows.data());
        const Place fresh = put(layer, slab, places[i].rows, rows.data(), codes(layer, slab));
        const std::lock_guard lock(mutex_);
        drop(places[i]);
        places[i] = fresh;
        moved = true;
      }
  }

  /// Queues a slab to be written. The mutex is held only while room is taken for it.
  Place put(std::int64_t layer, std::int64_t slab, std::int64_t n_rows, const float* rows,
            std::span<const std::byte> codes) {
    if (n_rows < 1 || n_rows > kMostRows)
      throw DataError(fmt::format("vector tier: a slab of {} rows", n_rows));
    const auto n_codes = static_cast<std::int64_t>(codes.size());
    const std::int64_t size = vector_block_bytes(n_rows, width_, n_codes);
    io::WriteQueue::Ready block = io::AppendFiles::make(size);
    files_.admit(size);
    io::AppendFiles::Place at;
    BlockHeader header;
    {
      const std::lock_guard lock(mutex_);
      at = files_.place(size, {size, 1});
      header.file = files_.file(at.file).id;
    }
    // Nothing fails from here on.
    header.layer = layer;
    header.slab = slab;
    header.rows = n_rows;
    header.width = width_;
    header.codes = n_codes;
    const std::uint64_t seed = seed_of(header.file, layer, slab);
    header.codes_check = checksum(codes, seed);
    header.check = check_of(header);
    std::byte* to = block.front().own.data();
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
    files_.write(at, std::move(block));
    return {at.file, header.file, at.offset, n_rows, n_codes, header.codes_check};
  }

  std::int64_t width_;
  bool keep_;
  mutable std::mutex mutex_;  ///< of what is below, but for what `files_` guards itself
  io::AppendFiles files_;
  std::map<std::int64_t, std::vector<Place>> layers_;
  std::set<std::size_t> tainted_;  ///< files that hold what was to be erased
  mutable std::atomic<std::int64_t> read_errors_{0};
};

/// Checks one file of an image block by block; the slabs that its places promise are struck off.
std::string verify_file(const io::Directory& folder, std::int64_t width,
                        const VectorImage::File& from,
                        std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>>& promised) {
  const io::File file = io::open_file(folder, format_of(width), from);
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

std::string vector_file_name(std::uint64_t id) { return format_of(1).name(id); }

std::int64_t vector_block_bytes(std::int64_t n_rows, std::int64_t width, std::int64_t codes) {
  return kBlockHeader + codes + n_rows * row_bytes(width);
}

void VectorImage::save(ByteWriter& to) const {
  io::save_files(to, files);
  to.put(static_cast<std::int64_t>(slabs.size()));
  for (const Slab& s : slabs) to.put(s.layer), to.put(s.slab), to.put(s.file), to.put(s.offset);
}

VectorImage VectorImage::load(ByteReader& from) {
  const auto check = [&from](bool right) {
    if (!right)
      throw FileError(from.where() +
                      ": impossible slab in the list of representative vectors; the file is "
                      "damaged");
  };
  VectorImage image;
  image.files = io::load_files(from);
  std::map<std::int64_t, std::int64_t> next;
  const auto n = from.get<std::uint64_t>();
  check(n <= from.left() / 28);
  for (std::uint64_t i = 0; i < n; ++i) {
    Slab s;
    s.layer = from.get<std::int64_t>();
    s.slab = from.get<std::int64_t>();
    s.file = from.get<std::int32_t>();
    s.offset = from.get<std::int64_t>();
    check(s.layer >= 0 && s.layer < kMostLayers && s.slab == next[s.layer]++ && s.file >= 0 &&
          s.file < static_cast<std::int64_t>(image.files.size()) && s.offset >= kFileHeader &&
          s.offset < image.files[static_cast<std::size_t>(s.file)].bytes);
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
  tier->open(image,
             io::Directory(options.calls ? *options.calls : io::system_calls(), options.dir));
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
