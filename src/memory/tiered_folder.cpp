// SPDX-License-Identifier: Apache-2.0
#include "tiered_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <set>
#include <system_error>
#include <utility>

#include "base/unique_id.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/store/tier_record.hpp"
#include "memory_files.hpp"

namespace episodic {
namespace detail {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kHeadMagic = 0x48544945;    // "EITH"
constexpr std::uint32_t kPiecesMagic = 0x50544945;  // "EITP"
constexpr std::uint32_t kTierVersion = 1;
constexpr std::int64_t kPieceBytes = std::int64_t{256} << 10;
constexpr std::int64_t kPutBytes = std::int64_t{16} << 20;  // that are put at once

std::vector<std::byte> list_of(const std::vector<Piece>& pieces) {
  ByteWriter to;
  to.put(kPiecesMagic);
  to.put(kTierVersion);
  to.put(static_cast<std::uint64_t>(pieces.size()));
  for (const Piece& piece : pieces) {
    to.put(piece.bytes);
    to.put(piece.name.high);
    to.put(piece.name.low);
  }
  return to.take();
}

std::vector<Piece> pieces_of(std::span<const std::byte> list, const std::string& where) {
  ByteReader from(list, where);
  if (from.get<std::uint32_t>() != kPiecesMagic || from.get<std::uint32_t>() != kTierVersion)
    throw FileError(where + ": is no list of pieces of this version");
  const auto n = from.get<std::uint64_t>();
  if (n > from.left() / 24) throw FileError(where + ": ends before what it should hold");
  std::vector<Piece> pieces;
  std::int64_t at = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    Piece piece;
    piece.offset = at;
    piece.bytes = from.get<std::int64_t>();
    piece.name.high = from.get<std::uint64_t>();
    piece.name.low = from.get<std::uint64_t>();
    if (piece.bytes < 1 || piece.bytes > kPieceBytes)
      throw FileError(fmt::format("{}: names a piece of {} bytes", where, piece.bytes));
    at += piece.bytes;
    pieces.push_back(piece);
  }
  from.finish();
  return pieces;
}

FileError no_memory(const TierPlace& place) {
  return FileError(
      fmt::format("{}: holds no memory; make one with EpisodicMemory::create or `episodic ingest`",
                  place.text()));
}

LockedError is_written(const TierPlace& place, const BlockTier::Lease& other) {
  return LockedError(fmt::format(
      "{}: {} is writing to this memory; wait until it ends (or, if it has crashed, for the {} "
      "seconds of its lease), or fork the memory and write to the fork",
      place.text(), other.holder, other.seconds));
}

}  // namespace

std::vector<std::byte> TierHead::bytes() const {
  ByteWriter to;
  to.put_string(manifest);
  to.put(static_cast<std::uint64_t>(files.size()));
  for (const File& file : files) {
    to.put_string(file.name);
    to.put(file.bytes);
    to.put(file.list.high);
    to.put(file.list.low);
  }
  const std::vector<std::byte> body = to.take();
  ByteWriter all;
  all.put(kHeadMagic);
  all.put(kTierVersion);
  all.put(checksum(body));
  std::vector<std::byte> out = all.take();
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

TierHead TierHead::parse(std::span<const std::byte> bytes, const std::string& where) {
  const auto refuse = [&](const char* what) {
    throw FileError(
        fmt::format("{}: its head {}; take the tier from a copy, or a fork of it", where, what));
  };
  ByteReader from(bytes, where + ": its head");
  if (from.get<std::uint32_t>() != kHeadMagic) refuse("is none");
  if (from.get<std::uint32_t>() != kTierVersion)
    refuse("was written by another version of episodic");
  const auto sum = from.get<std::uint64_t>();
  if (checksum(bytes.last(from.left())) != sum) refuse("is damaged: its checksum is wrong");
  TierHead head;
  head.manifest = from.get_string();
  const auto n = from.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < n; ++i) {
    File file;
    file.name = from.get_string();
    file.bytes = from.get<std::int64_t>();
    file.list.high = from.get<std::uint64_t>();
    file.list.low = from.get<std::uint64_t>();
    const auto kind = kind_of_file(file.name);
    if (!kind || *kind == io::Kind::manifest || *kind == io::Kind::cache || file.bytes < 0)
      refuse("names a file that no memory has");
    head.files.push_back(std::move(file));
  }
  from.finish();
  return head;
}

std::optional<std::string> manifest_on_tier(const TierPlace& place, io::Syscalls& calls) {
  const BlockTier::Head head = open_tier(place, calls)->head(place.name);
  if (head.bytes.empty()) return std::nullopt;
  return TierHead::parse(head.bytes, place.text()).manifest;
}

WorkFolder::WorkFolder(const fs::path& in) {
  std::error_code error;
  fs::create_directories(in, error);
  if (error) io::fail(error.value(), in, "make the folder", "name another one: ?cache=DIR");
  const auto lock_of = [](const fs::path& folder) {
    const int fd = ::open((folder / "owner").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) ::close(fd);
    return -1;
  };
  for (fs::directory_iterator at(in, error), end; !error && at != end; at.increment(error)) {
    constexpr std::chrono::minutes kYoung{1};  // one that was made just now may not be locked yet
    std::error_code gone;
    const auto made = fs::last_write_time(at->path(), gone);
    if (gone || fs::file_time_type::clock::now() - made < kYoung) continue;
    if (const int fd = lock_of(at->path()); fd >= 0) {
      fs::remove_all(at->path(), gone);
      ::close(fd);
    }
  }
  path_ = in / fmt::format("{:016x}", unique_id());
  if (!fs::create_directory(path_, error))
    io::fail(error ? error.value() : EEXIST, path_, "make the folder");
  owner_ = lock_of(path_);
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (owner_ >= 0) ::close(owner_);
}

TieredFolder::TieredFolder(const TierPlace& place, io::Syscalls& calls, bool apart)
    : place_(place),
      tier_(open_tier(place, calls)),
      work_(place.cache / "work"),
      cache_(tier_, (apart ? work_.path() : place.cache) / "blocks", place.cache_bytes, calls),
      dir_(work_.path() / place.name),
      calls_(calls, cache_, dir_) {}

void TieredFolder::take_lease() {
  BlockTier::Lease other;
  lease_ = TierLease::take(tier_, place_.name, place_.lease_seconds, &other);
  if (!lease_) throw is_written(place_, other);
}

std::shared_ptr<TieredFolder> TieredFolder::open(const fs::path& path, OpenMode mode,
                                                 io::Syscalls& calls) {
  const std::optional<TierPlace> place = TierPlace::parse(path);
  if (!place) return nullptr;
  const std::shared_ptr<TieredFolder> folder(new TieredFolder(*place, calls));
  folder->begin(mode);
  return folder;
}

std::shared_ptr<TieredFolder> TieredFolder::open_apart(const TierPlace& place,
                                                       io::Syscalls& calls) {
  const std::shared_ptr<TieredFolder> folder(new TieredFolder(place, calls, true));
  folder->begin(OpenMode::read);
  return folder;
}

void TieredFolder::begin(OpenMode mode) {
  BlockTier::Head head = tier_->head(place_.name);
  if (head.bytes.empty()) throw no_memory(place_);
  if (mode == OpenMode::write) {
    take_lease();
    head = tier_->head(place_.name);  // of who had the lease before
    if (head.bytes.empty()) throw no_memory(place_);
  }
  version_ = head.version;
  fill(TierHead::parse(head.bytes, place_.text()));
}

std::shared_ptr<TieredFolder> TieredFolder::create(const fs::path& path, io::Syscalls& calls) {
  const std::optional<TierPlace> place = TierPlace::parse(path);
  if (!place) return nullptr;
  const std::shared_ptr<TieredFolder> folder(new TieredFolder(*place, calls));
  folder->take_lease();
  const BlockTier::Head head = folder->tier_->head(place->name);
  folder->version_ = head.version;
  if (!head.bytes.empty())
    throw FileError(
        fmt::format("{}: holds a memory already; open it to go on with it, or give another name",
                    place->text()));
  return folder;
}

void TieredFolder::fill(const TierHead& head) {
  std::error_code error;
  if (!fs::create_directory(dir_, error)) io::fail(error.value(), dir_, "make the folder");
  std::vector<BlockHash> lists;
  for (const TierHead::File& file : head.files) lists.push_back(file.list);
  const std::vector<BlockTier::Bytes> blocks = get_blocks(*tier_, lists);
  const io::Directory folder(calls_, dir_);
  for (std::size_t i = 0; i < head.files.size(); ++i) {
    const TierHead::File& file = head.files[i];
    std::vector<Piece> pieces =
        pieces_of(blocks[i], fmt::format("{}: the pieces of {}", place_.text(), file.name));
    if ((pieces.empty() ? 0 : pieces.back().end()) != file.bytes)
      throw FileError(
          fmt::format("{}: {} has {} bytes, and its pieces have others; take the tier "
                      "from a copy, or a fork of it",
                      place_.text(), file.name, file.bytes));
    io::File made = folder.create(*kind_of_file(file.name), file.name);
    made.truncate(file.bytes);
    calls_.set(file.name, std::move(pieces));
    on_tier_[file.name] = file.bytes;
  }
  io::File manifest = folder.create(io::Kind::manifest, kManifestFile);
  manifest.write(std::as_bytes(std::span(head.manifest)), 0);
  manifest.close();
  tokens_ = MemoryManifest::read(dir_, calls_).state.tokens;
}

void TieredFolder::take_pieces(const TieredFolder& from) {
  for (const auto& [name, bytes] : from.on_tier_) {
    calls_.set(name, from.calls_.pieces(name));
    on_tier_[name] = bytes;
  }
}

bool TieredFolder::stands() const { return tier_->head(place_.name).version == version_; }

void TieredFolder::require_pieces() const {
  for (const auto& [name, bytes] : on_tier_) {
    std::vector<BlockHash> names;
    for (const Piece& piece : calls_.pieces(name)) names.push_back(piece.name);
    const std::vector<bool> there = tier_->has(names);
    if (std::find(there.begin(), there.end(), false) != there.end())
      throw FileError(fmt::format(
          "{}: the memory that it was forked from has changed meanwhile, and what it gave up was "
          "swept; fork it again, under another name",
          place_.text()));
  }
}

void TieredFolder::check_writer() {
  if (const auto other = lease_->renew())
    throw FileError(fmt::format(
        "{}: the lease of this writer ran out, and {} is writing to the memory now; nothing was "
        "committed: open the memory anew and go on from its last commit",
        place_.text(), other->holder));
}

/// Puts what of a file's first bytes is not on the tier yet. \return all their pieces
std::vector<Piece> TieredFolder::put_pieces(const std::string& name, std::int64_t bytes) {
  std::vector<Piece> pieces = calls_.pieces(name);
  while (!pieces.empty() && pieces.back().end() > bytes) pieces.pop_back();
  std::int64_t at = pieces.empty() ? 0 : pieces.back().end();
  if (at == bytes) return pieces;
  const io::File file = io::Directory(calls_, dir_).open(*kind_of_file(name), name);
  std::vector<std::byte> buffer;
  while (at < bytes) {
    buffer.resize(static_cast<std::size_t>(std::min(kPutBytes, bytes - at)));
    file.read(buffer, at);
    std::vector<BlockHash> names;
    std::vector<BlockTier::Block> blocks;
    for (std::size_t first = 0; first < buffer.size();) {
      const auto n = std::min(buffer.size() - first, static_cast<std::size_t>(kPieceBytes));
      const std::span<const std::byte> part = std::span(buffer).subspan(first, n);
      const BlockHash hash = BlockHash::of(part);
      pieces.push_back({hash, at + static_cast<std::int64_t>(first), static_cast<std::int64_t>(n)});
      names.push_back(hash);
      blocks.push_back({hash, part});
      first += n;
    }
    const std::vector<bool> there = tier_->has(names);
    std::vector<BlockTier::Block> missing;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (!there[i]) missing.push_back(blocks[i]);
    if (!missing.empty()) tier_->put(missing);
    for (const BlockTier::Block& block : blocks) cache_.insert(block.name, block.bytes);
    at += static_cast<std::int64_t>(buffer.size());
  }
  return pieces;
}

/// The version that this process has read or written last, if it stands.
std::int64_t TieredFolder::version_on_tier() {
  if (doubtful_.empty()) return version_;
  const BlockTier::Head now = tier_->head(place_.name);
  const auto ours = std::find(doubtful_.begin(), doubtful_.end(), BlockHash::of(now.bytes));
  if (now.version != 0 && ours != doubtful_.end()) version_ = now.version;
  doubtful_.clear();
  return version_;
}

void TieredFolder::publish(const MemoryManifest& manifest) {
  check_writer();
  std::map<std::string, std::int64_t> files;
  for (const MemoryManifest::FileEntry& f : manifest.files) files[f.name] = f.bytes;
  for (const MemoryManifest::State& s : manifest.checkpoints) files[s.file] = s.bytes;
  files[manifest.state.file] = manifest.state.bytes;

  TierHead head;
  const std::vector<std::byte> text =
      io::Directory(calls_, dir_).read(io::Kind::manifest, kManifestFile);
  head.manifest.assign(reinterpret_cast<const char*>(text.data()), text.size());
  std::map<std::string, std::vector<Piece>> pieces;
  std::vector<std::vector<std::byte>> lists;
  for (const auto& [name, bytes] : files) {
    std::vector<Piece>& of_file = pieces[name] = put_pieces(name, bytes);
    lists.push_back(list_of(of_file));
    head.files.push_back({name, bytes, BlockHash::of(lists.back())});
  }
  std::vector<BlockTier::Block> missing;
  std::vector<BlockHash> names;
  for (const TierHead::File& file : head.files) names.push_back(file.list);
  const std::vector<bool> there = tier_->has(names);
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!there[i]) missing.push_back({names[i], lists[i]});
  if (!missing.empty()) tier_->put(missing);

  const std::vector<std::byte> next = head.bytes();
  const std::int64_t version = version_on_tier();
  doubtful_.push_back(BlockHash::of(next));
  if (!tier_->exchange(place_.name, version, next)) {
    doubtful_.clear();
    throw FileError(fmt::format(
        "{}: another program has committed to this memory since it was opened here; nothing was "
        "committed: open the memory anew and go on from its last commit",
        place_.text()));
  }
  // Nothing can fail from here on.
  doubtful_.clear();
  version_ = version + 1;
  tokens_ = manifest.state.tokens;
  for (const auto& [name, bytes] : on_tier_)
    if (!files.contains(name)) calls_.forget(name);
  on_tier_ = std::move(files);
  for (auto& [name, of_file] : pieces) {
    const bool grew = of_file.size() != calls_.pieces(name).size();
    calls_.set(name, std::move(of_file));
    if (grew) calls_.empty_file(name);
  }
}

void fork_over_tier(const fs::path& from, const fs::path& to, io::Syscalls& calls) {
  const std::shared_ptr<TieredFolder> source = TieredFolder::open(from, OpenMode::read, calls);
  const fs::path source_dir = source ? source->dir() : from;
  io::Syscalls& source_calls = source ? source->calls() : calls;
  const std::shared_ptr<TieredFolder> fork = TieredFolder::create(to, calls);
  if (!fork) return fork_memory(source_dir, to, source_calls);
  const bool same = source && source->place().same_tier(fork->place());
  if (same) source->tier_calls().share_empty_files(true);
  fork_memory(source_dir, fork->dir(), source_calls);
  if (same) fork->take_pieces(*source);
  fork->publish(MemoryManifest::read(fork->dir(), fork->calls()));
  if (same && !source->stands()) fork->require_pieces();
}

}  // namespace detail

bool remove_from_tier(const std::filesystem::path& path, io::Syscalls& calls) {
  const std::optional<TierPlace> place = TierPlace::parse(path);
  if (!place) throw ConfigError(path.string() + ": is the path of a folder; remove the folder");
  const std::shared_ptr<BlockTier> tier = open_tier(*place, calls);
  BlockTier::Lease other;
  const auto lease = TierLease::take(tier, place->name, place->lease_seconds, &other);
  if (!lease) throw detail::is_written(*place, other);
  return end_tier_name(*tier, place->name);
}

SweepReport sweep_tier(const std::filesystem::path& path, double seconds, io::Syscalls& calls) {
  const std::optional<TierPlace> place = TierPlace::parse(path);
  if (!place)
    throw ConfigError(path.string() +
                      ": is the path of a folder, in which nothing is left to be swept; name a "
                      "place on a tier (shared:DIR/NAME)");
  const std::shared_ptr<BlockTier> tier = open_tier(*place, calls);
  // First what may go: whatever is named from now on was put or asked for meanwhile.
  const std::vector<BlockHash> old = tier->unused(seconds);
  SweepReport report;
  std::set<BlockHash> named;
  for (const std::string& name : tier->names()) {
    const BlockTier::Head head = tier->head(name);
    if (head.bytes.empty() || is_tier_record(head.bytes)) continue;
    ++report.memories;
    std::vector<BlockHash> lists;
    for (const detail::TierHead::File& file : detail::TierHead::parse(head.bytes, name).files)
      lists.push_back(file.list);
    named.insert(lists.begin(), lists.end());
    for (const BlockTier::Bytes& list : get_blocks(*tier, lists))
      for (const detail::Piece& piece : detail::pieces_of(list, name + ": a list of pieces"))
        named.insert(piece.name);
  }
  std::vector<BlockHash> gone;
  for (const BlockHash& block : old)
    if (!named.contains(block)) gone.push_back(block);
  tier->drop(gone);
  report.removed = static_cast<std::int64_t>(gone.size());
  return report;
}

}  // namespace episodic
