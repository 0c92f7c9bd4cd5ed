// SPDX-License-Identifier: Apache-2.0
#include "segment_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/store/disk_store.hpp"

namespace episodic {
namespace segment_file {
namespace {

constexpr std::uint32_t kBlockMagic = 0x424b5645;  // "EVKB"
constexpr std::uint16_t kBlockVersion = 1;
constexpr char kFileMagic[8] = {'E', 'P', 'S', 'D', 'K', 'V', 'S', 'G'};
constexpr std::uint32_t kFileVersion = 1;
constexpr std::uint32_t kByteOrder = 0x01020304;

struct BlockHeader {
  std::uint32_t magic = kBlockMagic;
  std::uint16_t version = kBlockVersion;
  std::uint16_t dtype = 0;
  std::int64_t event = 0;
  std::int32_t lane = 0;
  std::int32_t n_tokens = 0;
  std::int64_t first_token = 0;
  std::uint64_t segment = 0;
  std::int64_t payload_bytes = 0;
  std::uint64_t reserved = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(BlockHeader) == kLine);

struct FileHeader {
  char magic[8];
  std::uint32_t version = kFileVersion;
  std::uint32_t byte_order = kByteOrder;
  std::uint64_t segment = 0;
  std::int64_t n_lanes = 0, n_kv_heads = 0, head_dim = 0;
  std::uint32_t dtype = 0;
  std::byte rest[kPage - 64];
  std::uint64_t checksum = 0;  ///< of all that stands before it
};
static_assert(sizeof(FileHeader) == kPage);

std::span<const std::byte> before_checksum(const std::byte* of, std::int64_t bytes) {
  return {of, static_cast<std::size_t>(bytes) - sizeof(std::uint64_t)};
}

// The header seeds the payload's checksum: neither can be exchanged without the other.
std::uint64_t block_checksum(const std::byte* block, std::int64_t stride) {
  return checksum({block + kLine, static_cast<std::size_t>(stride - kLine)},
                  checksum(before_checksum(block, kLine)));
}

BlockHeader header_of(const StoreShape& shape, const BlockName& name) {
  BlockHeader h;
  h.dtype = static_cast<std::uint16_t>(shape.dtype);
  h.event = name.event;
  h.lane = static_cast<std::int32_t>(name.lane);
  h.n_tokens = static_cast<std::int32_t>(name.range.size());
  h.first_token = name.range.start;
  h.segment = name.segment;
  h.payload_bytes = block_bytes(shape, name.range.size());
  return h;
}

}  // namespace

std::int64_t block_stride(const StoreShape& shape, std::int64_t n) {
  return kLine + round_up(block_bytes(shape, n), kLine);
}

void seal_block(const StoreShape& shape, const BlockName& name, std::byte* block) {
  BlockHeader h = header_of(shape, name);
  const std::int64_t stride = block_stride(shape, name.range.size());
  std::byte* const padding = block + kLine + h.payload_bytes;
  std::fill(padding, block + stride, std::byte{0});
  std::memcpy(block, &h, sizeof h);
  h.checksum = block_checksum(block, stride);
  std::memcpy(block, &h, sizeof h);
}

std::string block_fault(const StoreShape& shape, const BlockName& name, const std::byte* block) {
  BlockHeader found, expected = header_of(shape, name);
  std::memcpy(&found, block, sizeof found);
  expected.checksum = found.checksum;
  if (std::memcmp(&found, &expected, sizeof found) != 0)
    return found.magic == kBlockMagic
               ? fmt::format(
                     "holds another block (event {}, lane {}, {} tokens from {}, segment {:016x})",
                     found.event, found.lane, found.n_tokens, found.first_token, found.segment)
               : "holds no block";
  if (found.checksum != block_checksum(block, block_stride(shape, name.range.size())))
    return "has a wrong checksum";
  return {};
}

namespace {

std::vector<std::byte> file_header(const StoreShape& shape, std::uint64_t segment) {
  std::vector<std::byte> page(static_cast<std::size_t>(kPage));
  FileHeader h{};
  std::copy(std::begin(kFileMagic), std::end(kFileMagic), h.magic);
  h.segment = segment;
  h.n_lanes = shape.n_lanes;
  h.n_kv_heads = shape.n_kv_heads;
  h.head_dim = shape.head_dim;
  h.dtype = static_cast<std::uint32_t>(shape.dtype);
  std::memcpy(page.data(), &h, sizeof h);
  h.checksum = checksum(before_checksum(page.data(), kPage));
  std::memcpy(page.data(), &h, sizeof h);
  return page;
}

/// What is wrong with a file header; empty if nothing is.
std::string header_fault(const StoreShape& shape, std::uint64_t segment, const std::byte* page) {
  FileHeader h;
  std::memcpy(&h, page, sizeof h);
  if (!std::equal(std::begin(kFileMagic), std::end(kFileMagic), h.magic))
    return "is no segment file, or its header is damaged";
  if (h.version != kFileVersion)
    return fmt::format("has format version {}, this program reads {}", h.version, kFileVersion);
  if (h.byte_order != kByteOrder) return "was written with another byte order";
  if (h.checksum != checksum(before_checksum(page, kPage)))
    return "has a wrong checksum in its header";
  if (h.segment != segment) return fmt::format("is segment {:016x} under a wrong name", h.segment);
  if (h.n_lanes != shape.n_lanes || h.n_kv_heads != shape.n_kv_heads ||
      h.head_dim != shape.head_dim || h.dtype != static_cast<std::uint32_t>(shape.dtype))
    return fmt::format(
        "is of another shape: {} lanes, {} key/value heads, {} channels, dtype {}; expected {}, "
        "{}, {}, {}",
        h.n_lanes, h.n_kv_heads, h.head_dim, h.dtype, shape.n_lanes, shape.n_kv_heads,
        shape.head_dim, static_cast<int>(shape.dtype));
  return {};
}

// One file against an image.
class Verifier {
 public:
  using Report = std::function<void(const std::filesystem::path&, const std::string&)>;

  Verifier(const StoreShape& shape, const std::filesystem::path& path, const SegmentRef& ref,
           const io::Directory& folder, const Report& report)
      : shape_(shape), path_(path), ref_(ref), folder_(folder), report_(report) {}

  /// \param events numbers of the events that lie in the file, by offset
  std::int64_t run(const StoreImage& image, const std::vector<EventId>& events) {
    try {
      file_ = io::open_file(folder_, format_of(shape_), ref_);
      check(image, events);
    } catch (const Error& e) {
      damage(e.what());
    }
    return damages_;
  }

 private:
  void damage(const std::string& what) {
    ++damages_;
    report_(path_, what);
  }

  void check(const StoreImage& image, const std::vector<EventId>& events) {
    std::int64_t at = kPage;
    for (const EventId id : events) {
      const StoreImage::Event& event = image.events[static_cast<std::size_t>(id)];
      // Nothing is multiplied by a length that was not compared with the file's.
      const std::int64_t token = 2 * shape_.n_kv_heads * shape_.head_dim * size_of(shape_.dtype);
      const bool fits = event.lanes.first >= 0 && event.lanes.count >= 1 &&
                        event.lanes.first <= shape_.n_lanes - event.lanes.count &&
                        event.offset >= at && event.offset <= ref_.bytes &&
                        event.range.size() <= ref_.bytes / token;
      const std::int64_t stride = fits ? block_stride(shape_, event.range.size()) : 0;
      if (!fits || stride > (ref_.bytes - event.offset) / event.lanes.count) {
        damage(fmt::format("event {} does not lie where the image says", id));
        continue;
      }
      check_dead(at, event.offset);
      at = event.offset;
      for (std::int64_t lane = event.lanes.first; event.lanes.holds(lane); ++lane, at += stride) {
        const std::string fault =
            block_fault(shape_, {ref_.id, id, lane, event.range}, load(at, stride));
        if (!fault.empty())
          damage(fmt::format("event {}, lane {}, at byte {} {}", id, lane, at, fault));
      }
    }
    check_dead(at, ref_.bytes);
  }

  // Between records of live events: whole blocks of forgotten ones, and lines of zeros.
  void check_dead(std::int64_t from, std::int64_t to) {
    while (from < to) {
      const std::int64_t line = std::min(kLine, to - from);
      const std::byte* bytes = load(from, line);
      if (std::all_of(bytes, bytes + line, [](std::byte b) { return b == std::byte{0}; })) {
        from += line;
        continue;
      }
      BlockHeader h;
      std::int64_t length = 0;
      if (line == kLine) {
        std::memcpy(&h, bytes, sizeof h);
        if (h.magic == kBlockMagic && h.payload_bytes >= 0 &&
            h.payload_bytes <= to - from - kLine) {
          length = kLine + round_up(h.payload_bytes, kLine);
          if (length > to - from || h.segment != ref_.id ||
              h.checksum != block_checksum(load(from, length), length))
            length = 0;
        }
      }
      if (length == 0)
        return damage(fmt::format(
            "bytes {} to {}, which no event uses, are neither zero nor a forgotten event's", from,
            to));
      from += length;
    }
  }

  const std::byte* load(std::int64_t at, std::int64_t bytes) {
    if (static_cast<std::int64_t>(buffer_.size()) < bytes)
      buffer_.resize(static_cast<std::size_t>(bytes));
    file_.read({buffer_.data(), static_cast<std::size_t>(bytes)}, at);
    return buffer_.data();
  }

  const StoreShape& shape_;
  const std::filesystem::path& path_;
  const SegmentRef& ref_;
  const io::Directory& folder_;
  const Report& report_;
  io::File file_;
  std::vector<std::byte> buffer_;
  std::int64_t damages_ = 0;
};

}  // namespace

io::FileFormat format_of(const StoreShape& shape) {
  const auto header = [shape](std::uint64_t id) { return file_header(shape, id); };
  const auto fault = [shape](std::uint64_t id, std::span<const std::byte> page) {
    return header_fault(shape, id, page.data());
  };
  return {io::Kind::segment, "kv", "seg", kPage, header, fault};
}

}  // namespace segment_file

std::string segment_name(std::uint64_t id) { return segment_file::format_of({}).name(id); }

void StoreImage::save(ByteWriter& to) const {
  io::save_files(to, segments);
  to.put(static_cast<std::uint64_t>(events.size()));
  for (const Event& e : events) {
    to.put(e.range.start);
    to.put(e.range.end);
    to.put(static_cast<std::int32_t>(e.lanes.first));
    to.put(static_cast<std::int32_t>(e.lanes.count));
    to.put(e.segment);
    to.put(e.offset);
    to.put(e.last_recall);
    to.put(e.recalls);
    to.put(static_cast<std::uint8_t>(e.pinned));
  }
}

StoreImage StoreImage::load(ByteReader& from) {
  StoreImage image;
  image.segments = io::load_files(from);
  const auto n = from.get<std::uint64_t>();
  // What one event takes bounds the count before anything is reserved for it.
  if (n > from.left() / 53)
    throw FileError(from.where() + ": ends before what it should hold; it is truncated or damaged");
  image.events.resize(static_cast<std::size_t>(n));
  for (Event& e : image.events) {
    e.range.start = from.get<std::int64_t>();
    e.range.end = from.get<std::int64_t>();
    e.lanes.first = from.get<std::int32_t>();
    e.lanes.count = from.get<std::int32_t>();
    e.segment = from.get<std::int32_t>();
    e.offset = from.get<std::int64_t>();
    e.last_recall = from.get<std::int64_t>();
    e.recalls = from.get<std::int64_t>();
    e.pinned = from.get<std::uint8_t>() != 0;
    constexpr std::int64_t kMost = std::int64_t{1} << 62;
    if (e.range.start < 0 || e.range.end < e.range.start || e.range.end > kMost)
      throw FileError(fmt::format("{}: a stored event is tokens {} to {}; the file is damaged",
                                  from.where(), e.range.start, e.range.end));
  }
  return image;
}

std::int64_t verify_segments(
    const StoreShape& shape, const std::filesystem::path& dir, const StoreImage& image,
    io::Syscalls& calls,
    const std::function<void(const std::filesystem::path&, const std::string&)>& report) {
  std::vector<std::vector<EventId>> in_file(image.segments.size());
  std::int64_t damages = 0;
  for (std::size_t i = 0; i < image.events.size(); ++i) {
    const StoreImage::Event& e = image.events[i];
    if (e.segment < 0) continue;
    if (static_cast<std::size_t>(e.segment) >= in_file.size() || e.range.size() < 1) {
      ++damages;
      report(dir, fmt::format("event {} lies in no segment of the image", i));
      continue;
    }
    in_file[static_cast<std::size_t>(e.segment)].push_back(static_cast<EventId>(i));
  }
  const io::Directory folder(calls, dir);
  for (std::size_t s = 0; s < in_file.size(); ++s) {
    std::sort(in_file[s].begin(), in_file[s].end(), [&](EventId a, EventId b) {
      return image.events[static_cast<std::size_t>(a)].offset <
             image.events[static_cast<std::size_t>(b)].offset;
    });
    const std::filesystem::path path = dir / segment_name(image.segments[s].id);
    damages += segment_file::Verifier(shape, path, image.segments[s], folder, report)
                   .run(image, in_file[s]);
  }
  return damages;
}

}  // namespace episodic
