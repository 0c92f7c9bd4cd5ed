// SPDX-License-Identifier: Apache-2.0
// How fast a store takes events and hands them back, beside what its medium does by itself with
// pieces of the same size, at the same depth, in turn with it in the same run.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/store/disk_store.hpp"
#include "read_queue.hpp"
#include "segment_file.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

constexpr std::int64_t kPage = segment_file::kPage;

struct StoreFlags {
  tools::CommonFlags common;
  std::int64_t bytes = std::int64_t{1} << 30, block = std::int64_t{256} << 10, depth = 16;
  std::int64_t rounds = 4;
  std::string tier = "disk", engine = "automatic", direct = "automatic";
  bool page_cache = false;
  std::filesystem::path dir = ".", json;
};

double seconds_of(const std::function<void()>& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A folder for one run, removed with what is in it.
class Scratch {
 public:
  explicit Scratch(const std::filesystem::path& in) {
    std::string name = (in / "bench-store-XXXXXX").string();
    if (!::mkdtemp(name.data())) io::fail(errno, in, "create a folder in it");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Drops a folder's files from the page cache.
void make_cold(const std::filesystem::path& dir) {
  const io::Directory folder(io::system_calls(), dir);
  for (const std::string& name : folder.names()) {
    const io::File file = folder.open(io::Kind::segment, name);
    ::fdatasync(file.fd());
    ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

io::File fresh_file(const io::Directory& folder) {
  folder.remove(io::Kind::segment, "raw");  // of the measurement before
  return folder.create(io::Kind::segment, "raw");
}

/// The medium by itself: one file of pieces.
class Raw {
 public:
  Raw(const std::filesystem::path& dir, std::int64_t piece, std::int64_t depth, ReadEngine engine,
      bool direct)
      : piece_(segment_file::round_up(piece, kPage)),
        depth_(depth),
        path_(dir / "raw"),
        file_(fresh_file(io::Directory(io::system_calls(), dir))),
        queue_(make_read_queue(engine, io::system_calls(), depth)),
        reads_(static_cast<std::size_t>(depth)) {
    // In large pages, as the store's: otherwise the rate depends on how small ones happen to lie.
    constexpr std::int64_t kLargePage = std::int64_t{2} << 20;
    const auto bytes = static_cast<std::size_t>(segment_file::round_up(piece_ * depth, kLargePage));
    buffers_.reset(static_cast<std::byte*>(std::aligned_alloc(kLargePage, bytes)));
    if (!buffers_) throw BudgetError("bench_store: no memory for the buffers; lower --depth");
    ::madvise(buffers_.get(), bytes, MADV_HUGEPAGE);
    std::memset(buffers_.get(), 0x2a, bytes);
    reader_ = io::Directory(io::system_calls(), dir)
                  .open(io::Kind::segment, "raw", O_RDONLY | (direct ? O_DIRECT : 0));
  }

  /// Room is taken round by round, as the store takes it: a region of a disk image that was never
  /// written may be slower than others.
  void write(std::int64_t first, std::int64_t n) {
    file_.allocate(first * piece_, n * piece_);
    for (std::int64_t i = first; i < first + n; ++i)
      file_.write({buffers_.get(), static_cast<std::size_t>(piece_)}, i * piece_);
    file_.sync();
  }

  void read(std::span<const std::int64_t> pieces) {
    const auto depth = static_cast<std::size_t>(depth_);
    for (std::size_t i = 0; i < pieces.size() + depth; ++i) {
      PendingRead& read = reads_[i % depth];
      if (i >= depth) {
        queue_->wait(read);
        if (read.result != piece_) io::fail(EIO, path_, "read it");
      }
      if (i >= pieces.size()) continue;
      read.fd = reader_.fd();
      read.to = buffers_.get() + static_cast<std::int64_t>(i % depth) * piece_;
      read.bytes = piece_;
      read.grain = kPage;
      read.offset = pieces[i] * piece_;
      queue_->submit(read);
      queue_->start();
    }
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::int64_t piece_, depth_;
  std::filesystem::path path_;
  io::File file_, reader_;
  std::unique_ptr<std::byte, Free> buffers_;
  std::unique_ptr<ReadQueue> queue_;
  std::vector<PendingRead> reads_;
};

/// The segment files of an image, mapped: what recall would be without reading.
class MappedBlocks {
 public:
  MappedBlocks(const StoreShape& shape, const std::filesystem::path& dir, const StoreImage& image)
      : shape_(shape), image_(image) {
    for (const SegmentRef& ref : image.segments) files_.emplace_back(dir / segment_name(ref.id));
  }

  /// Calls use(payload) with a block where it lies, verified there. \param lock keeps its pages in
  /// memory meanwhile: what was verified is what is used, and a medium that fails is an error here
  /// instead of a SIGBUS there
  template <class Use>
  void with_block(EventId event, std::int64_t layer, bool lock, Use&& use) const {
    const StoreImage::Event& e = image_.events[static_cast<std::size_t>(event)];
    const std::int64_t stride = segment_file::block_stride(shape_, e.range.size());
    const auto file = static_cast<std::size_t>(e.segment);
    const std::byte* const at = files_[file].bytes().data() + e.offset + layer * stride;
    const auto bytes = static_cast<std::size_t>(stride);
    if (lock && ::mlock(at, bytes) != 0)
      io::fail(errno, files_[file].path(), "lock a block of it in memory", "see ulimit -l");
    const std::string fault =
        segment_file::block_fault(shape_, {image_.segments[file].id, event, layer, e.range}, at);
    if (!fault.empty()) throw FileError(files_[file].path().string() + ": " + fault);
    use(std::span(at, bytes).subspan(segment_file::kLine));
    if (lock) ::munlock(at, bytes);
  }

 private:
  StoreShape shape_;
  const StoreImage& image_;
  std::vector<MappedFile> files_;
};

struct Rates {
  std::vector<double> store, raw;  ///< bytes per second, a round each
  Json json() const {
    return {{"store_bytes_per_second", summary(store)},
            {"raw_bytes_per_second", summary(raw)},
            {"ratio", median(store) / median(raw)}};
  }
};

void run(StoreFlags& flags) {
  flags.common.apply_on_host();
  const StoreShape shape{4, 2, 64, DType::float32};
  const std::int64_t token = block_bytes(shape, 1);
  const std::int64_t n_tokens = std::max<std::int64_t>(flags.block / token, 1);
  const std::int64_t block = block_bytes(shape, n_tokens);
  const std::int64_t per_round =
      std::max<std::int64_t>(flags.bytes / flags.rounds / (block * shape.n_lanes), flags.depth);
  const std::int64_t n_events = per_round * flags.rounds;
  const bool disk = flags.tier == "disk";
  const Scratch scratch(flags.dir);
  std::filesystem::create_directory(scratch.path() / "store");
  std::filesystem::create_directory(scratch.path() / "raw");

  DiskStoreOptions options;
  options.dir = scratch.path() / "store";
  options.keep = true;
  options.max_block = n_tokens;
  options.lease_tokens = flags.depth * n_tokens;
  options.read_depth = flags.depth;
  options.engine = flags.engine == "io_uring"  ? ReadEngine::io_uring
                   : flags.engine == "threads" ? ReadEngine::threads
                                               : ReadEngine::automatic;
  // Said outright, so that the store and the medium are read in the same way.
  const bool direct = disk && !flags.page_cache &&
                      (flags.direct == "on" || (flags.direct == "automatic" && block >= 64 << 10));
  options.direct = direct ? DirectIo::on : DirectIo::off;
  // Room to write behind and to read ahead, and little to find again.
  options.host_bytes = least_host_bytes(shape, n_tokens, options.lease_tokens) +
                       std::max<std::int64_t>(32 << 20, 20 * flags.depth * block);
  std::unique_ptr<DiskStore> disk_store;
  std::unique_ptr<EventStore> host_store;
  if (disk)
    disk_store = make_disk_store(shape, options);
  else
    host_store = make_host_store(shape, 0, n_tokens);
  EventStore& store = disk ? *disk_store : *host_store;

  const std::vector<float> ring(static_cast<std::size_t>(n_tokens * shape.n_kv_heads * 64), 0.5f);
  const RingView source{ring.data(), ring.data(), n_tokens, n_tokens * 64, 64};
  std::optional<Raw> raw;
  std::vector<std::byte> memory;
  if (disk)
    raw.emplace(scratch.path() / "raw", block, flags.depth, options.engine, direct);
  else
    memory.resize(static_cast<std::size_t>(n_events * shape.n_lanes * block));
  const double round_bytes = static_cast<double>(per_round * shape.n_lanes * block);

  Rates out, back;
  StoreImage image;
  for (std::int64_t r = 0; r < flags.rounds; ++r) {
    const std::int64_t first = r * per_round;
    const auto raw_out = [&] {
      if (raw) return raw->write(first * shape.n_lanes, per_round * shape.n_lanes);
      for (std::int64_t i = first * shape.n_lanes; i < (first + per_round) * shape.n_lanes; ++i) {
        std::byte* const to = memory.data() + i * block;
        std::memcpy(to, ring.data(), static_cast<std::size_t>(block / 2));
        std::memcpy(to + block / 2, ring.data(), static_cast<std::size_t>(block / 2));
      }
    };
    const auto store_out = [&] {
      for (std::int64_t e = first; e < first + per_round; ++e) {
        const TokenRange range{e * n_tokens, (e + 1) * n_tokens};
        store.append(std::span(&range, 1));
        for (std::int64_t l = 0; l < shape.n_lanes; ++l) store.write(e, l, source);
      }
      if (!disk) return;
      image = disk_store->sync();
      disk_store->committed(image);
    };
    // In turn, so that neither always goes first.
    double raw_seconds = 0, store_seconds = 0;
    if (r % 2 == 0) raw_seconds = seconds_of(raw_out);
    store_seconds = seconds_of(store_out);
    if (r % 2 == 1) raw_seconds = seconds_of(raw_out);
    out.raw.push_back(round_bytes / raw_seconds);
    out.store.push_back(round_bytes / store_seconds);
  }

  Json page_cache;
  if (disk) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n_events));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    std::vector<KvSegment> segments;
    std::map<std::string, std::vector<double>> cached;  // bytes per second, a round each
    // Attention reads every byte once; so does this.
    std::uint64_t used = 0;
    const auto use = [&](std::span<const std::byte> bytes) { used = checksum(bytes, used); };
    if (flags.page_cache)  // all of it is there before the first round
      for (const SegmentRef& ref : image.segments)
        use(MappedFile(options.dir / segment_name(ref.id)).bytes());
    // A quarter of the depth is taken at a time. Asked for is twice the depth, so that the medium
    // has the whole of it to do at any time, as it has when it is read by itself.
    const auto quarter = static_cast<std::size_t>(std::max<std::int64_t>(flags.depth / 4, 1));
    const std::size_t ahead = 2 * static_cast<std::size_t>(flags.depth) / quarter - 1;
    for (std::int64_t r = 0; r < flags.rounds; ++r) {
      // One layer a round: every block is read once, cold.
      const std::int64_t layer = r % shape.n_lanes;
      const auto raw_back = [&] {
        std::vector<std::int64_t> pieces;
        for (const std::int64_t e : order) pieces.push_back(e * shape.n_lanes + layer);
        raw->read(pieces);
      };
      const auto store_back = [&] {
        const std::span<const std::int64_t> events(order);
        const auto part = [&](std::size_t i) {
          return i < events.size() ? events.subspan(i, std::min(quarter, events.size() - i))
                                   : std::span<const std::int64_t>();
        };
        for (std::size_t i = 0; i < ahead; ++i) store.prefetch(layer, part(i * quarter));
        for (std::size_t i = 0; i < events.size(); i += quarter) {
          store.prefetch(layer, part(i + ahead * quarter));
          store.acquire(layer, part(i), segments);
          if (flags.page_cache)
            for (const KvSegment& s : segments)
              use({static_cast<const std::byte*>(s.key), static_cast<std::size_t>(block)});
          store.release(layer);
        }
      };
      if (flags.page_cache) {
        const auto rate = [&](const char* way, const std::function<void()>& what) {
          cached[way].push_back(static_cast<double>(n_events * block) / seconds_of(what));
        };
        const MappedBlocks blocks(shape, options.dir, image);
        const auto from_map = [&](bool lock) {
          for (const EventId e : order) blocks.with_block(e, layer, lock, use);
        };
        rate("recalled", store_back);
        rate("mapped_first", [&] { from_map(false); });
        rate("mapped_again", [&] { from_map(false); });
        rate("mapped_locked", [&] { from_map(true); });
        continue;
      }
      make_cold(scratch.path() / "store");
      make_cold(scratch.path() / "raw");
      double raw_seconds = 0, store_seconds = 0;
      if (r % 2 == 0) raw_seconds = seconds_of(raw_back);
      store_seconds = seconds_of(store_back);
      if (r % 2 == 1) raw_seconds = seconds_of(raw_back);
      const double bytes = static_cast<double>(n_events * block);
      back.raw.push_back(bytes / raw_seconds);
      back.store.push_back(bytes / store_seconds);
    }
    for (const auto& [way, rates] : cached) {
      page_cache[way + "_bytes_per_second"] = summary(rates);
      fmt::print(stderr, "{}, blocks of {} bytes in the page cache: {} {:.0f} MB/s\n", flags.tier,
                 block, way, 1e-6 * median(rates));
    }
  }

  const StoreCounters c = store.counters();
  Json result{{"program", "bench_store"}, {"environment", environment()},
              {"tier", flags.tier},       {"bytes", n_events * shape.n_lanes * block},
              {"block_bytes", block},     {"depth", flags.depth},
              {"engine", flags.engine},   {"direct", direct},
              {"write", out.json()}};
  if (disk) {
    if (flags.page_cache)
      result["page_cache"] = page_cache;
    else
      result["read"] = back.json();
    result["hits"] = c.hits;
    result["prefetched"] = c.prefetched;
    result["disk_bytes"] = c.disk_bytes;
    result["host_bytes"] = c.bytes_reserved;
  }
  fmt::print(stderr, "{}, blocks of {} bytes: write {:.0f} MB/s, {:.2f} of the medium's rate\n",
             flags.tier, block, 1e-6 * median(out.store), median(out.store) / median(out.raw));
  if (disk && !flags.page_cache)
    fmt::print(stderr, "  read {:.0f} MB/s, {:.2f} of the medium's rate\n",
               1e-6 * median(back.store), median(back.store) / median(back.raw));
  tools::write_json(flags.json, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic;
  tools::CommandLine app{"How fast a store takes events and hands them back, beside its medium",
                         "bench_store"};
  app.footer(
      "Each round writes a share of the bytes and makes them durable, then every layer is read\n"
      "back in random order with a cold page cache; the medium does the same in turn.\n\n"
      "Example:\n  bench_store --bytes 2000000000 --block 262144 --dir /var/tmp --json out.json");
  bench::StoreFlags flags;
  app.option("--bytes", flags.bytes, "Keys and values in all").positive();
  app.option("--block", flags.block, "Bytes of one layer of an event").positive();
  app.option("--depth", flags.depth, "Blocks under way at once").between(2, 32);
  app.option("--rounds", flags.rounds, "Rounds to take the median of").between(1, 64);
  app.option("--tier", flags.tier).one_of({"host", "disk"});
  app.option("--dir", flags.dir, "Folder on the medium").existing_folder();
  app.option("--engine", flags.engine).one_of({"automatic", "io_uring", "threads"});
  app.option("--direct", flags.direct).one_of({"automatic", "on", "off"});
  app.flag("--page-cache", flags.page_cache,
           "Read back what lies in the page cache instead, recalled and mapped, and use it");
  app.option("--json", flags.json, "Result file (default: stdout)");
  flags.common.add_to(app);
  return bench::run_program(app, argc, argv, [&] { bench::run(flags); });
}
