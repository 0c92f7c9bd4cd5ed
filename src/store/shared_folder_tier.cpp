// SPDX-License-Identifier: Apache-2.0
// A tier in a folder that several machines see. What must not be lost lies under names that are
// given once and never again: a block under its hash, a head and a lease under a number that is one
// more than the last. link(2) gives a name to one of those who want it, on network file systems
// too, so it takes the place of locks.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <compare>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/strict_json.hpp"
#include "base/unique_id.hpp"
#include "episodic/base/error.hpp"
#include "episodic/store/block_tier.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHeadPrefix = "head-", kLeasePrefix = "lease-";
constexpr int kAttempts = 50;
// A head stays so long after the next one took its place: whoever read it and then slept for less
// finds that the name behind it is taken.
constexpr double kHeadSeconds = 3600;
constexpr double kSleptSeconds = kHeadSeconds / 2;

struct Written {
  std::int64_t seconds = 0, nanoseconds = 0;
  auto operator<=>(const Written&) const = default;
  double since(const Written& earlier) const {
    return static_cast<double>(seconds - earlier.seconds) +
           1e-9 * static_cast<double>(nanoseconds - earlier.nanoseconds);
  }
};

struct stat look_at(const io::File& file) {
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) io::fail(errno, file.path(), "learn when it was written");
  return info;
}

/// When a file was last written, by the clock of its file system.
Written written(const io::File& file) {
  const struct stat info = look_at(file);
  return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

/// When its names were last changed.
Written named(const io::File& file) {
  const struct stat info = look_at(file);
  return {info.st_ctim.tv_sec, info.st_ctim.tv_nsec};
}

/// The newest of a sequence of files; number 0: there is none.
struct Newest {
  std::int64_t number = 0;
  std::vector<std::byte> bytes;
  Written when;
};

std::string name_of(std::string_view prefix, std::int64_t number) {
  return fmt::format("{}{:016x}", prefix, number);
}

/// 0: no name of the sequence.
std::int64_t number_of(std::string_view prefix, std::string_view name) {
  constexpr std::size_t kDigits = 16;
  if (!name.starts_with(prefix) || name.size() != prefix.size() + kDigits) return 0;
  std::int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + prefix.size(), end, number, 16);
  return error == std::errc() && at == end && number > 0 ? number : 0;
}

/// A file under a name of its own, which goes with this unless it was given another one.
class Temporary {
 public:
  Temporary(const io::Directory& folder, io::Kind kind, std::span<const std::byte> bytes)
      : folder_(folder), kind_(kind), name_(fmt::format(".{:016x}.new", detail::unique_id())) {
    file_ = folder.create(kind, name_);
    try {
      file_.write(bytes, 0);
      file_.sync();
    } catch (...) {
      folder_.remove(kind_, name_);
      throw;
    }
  }
  ~Temporary() {
    if (!name_.empty()) folder_.remove(kind_, name_);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  const io::File& file() const { return file_; }
  /// Replaces what has the name.
  void rename_to(const std::string& to) {
    if (const int r = folder_.calls().rename(kind_, folder_.fd(), name_.c_str(), to.c_str()); r < 0)
      io::fail(-r, folder_.path() / to, "put the new file in its place");
    name_.clear();
  }
  /// \return false if something has the name
  bool link_to(const std::string& to) {
    const int r =
        folder_.calls().link(kind_, folder_.fd(), name_.c_str(), folder_.fd(), to.c_str());
    if (r >= 0) return true;
    // A network file system that asked twice is told that it exists, by its own first call.
    if (r == -EEXIST) return file_.links() == 2;
    io::fail(-r, folder_.path() / to, "give a file this name",
             "the file system of a shared folder must have hard links");
  }

 private:
  const io::Directory& folder_;
  io::Kind kind_;
  std::string name_;
  io::File file_;
};

class SharedFolderTier final : public BlockTier {
 public:
  SharedFolderTier(fs::path root, io::Syscalls& calls) : root_(std::move(root)), calls_(calls) {
    require_root();
  }

  std::string where() const override { return "shared:" + root_.string(); }

  std::vector<std::optional<Bytes>> get(std::span<const BlockHash> names) override {
    std::vector<std::optional<Bytes>> blocks;
    blocks.reserve(names.size());
    for (const BlockHash& name : names) {
      const io::File file = open_if_there(io::Kind::block, path_of(name));
      blocks.push_back(file ? std::optional(read_all(file)) : std::nullopt);
    }
    return blocks;
  }

  std::vector<bool> has(std::span<const BlockHash> names) override {
    std::vector<bool> there;
    for (const BlockHash& name : names) {
      const io::File file = open_if_there(io::Kind::block, path_of(name));
      // One that cannot be marked as used is put anew, and is then.
      there.push_back(file && ::futimens(file.fd(), nullptr) == 0);
    }
    return there;
  }

  void put(std::span<const Block> blocks) override {
    std::set<fs::path> touched;
    for (const Block& block : blocks) {
      const fs::path path = path_of(block.name);
      const io::Directory folder = made(path.parent_path());
      Temporary file(folder, io::Kind::block, block.bytes);
      file.rename_to(path.filename().string());
      touched.insert(path.parent_path());
    }
    for (const fs::path& folder : touched) io::Directory(calls_, folder).sync();
  }

  void drop(std::span<const BlockHash> names) override {
    for (const BlockHash& name : names) {
      const fs::path path = path_of(name);
      const int r = calls_.unlink(io::Kind::block, AT_FDCWD, path.c_str());
      if (r < 0 && r != -ENOENT) io::fail(-r, path, "remove it");
    }
    require_root();
  }

  std::vector<BlockHash> unused(double seconds) override {
    const io::Directory all = made(root_ / "blocks");
    const Written now = written(Temporary(all, io::Kind::block, {}).file());
    std::vector<BlockHash> old;
    for (const std::string& part : all.names()) {
      const io::Entry entry = all.look(part).value_or(io::Entry{});
      if (entry.regular || part.size() != 2) continue;
      const io::Directory folder(calls_, all.path() / part);
      for (const std::string& name : folder.names()) {
        const std::optional<BlockHash> block = BlockHash::parse(name);
        const io::File file = open_if_there(io::Kind::block, folder.path() / name);
        if (!file || now.since(written(file)) < seconds) continue;
        if (block)
          old.push_back(*block);
        else if (name.ends_with(".new"))
          folder.remove(io::Kind::block, name);  // left by a crash
      }
    }
    forget_ended(now);
    return old;
  }

  std::vector<std::string> names() override {
    std::vector<std::string> found;
    const io::Directory all = made(root_ / "memories");
    for (std::string& name : all.names())
      if (const Found head = newest_file(all.path() / name, io::Kind::head, kHeadPrefix);
          head.file && head.file.look().bytes > 0)
        found.push_back(std::move(name));
    return found;
  }

  Head head(const std::string& name) override {
    Newest newest = newest_in(folder_of(name), io::Kind::head, kHeadPrefix);
    return {std::move(newest.bytes), newest.number};
  }

  bool exchange(const std::string& name, std::int64_t version,
                std::span<const std::byte> next) override {
    const io::Directory folder = made(folder_of(name));
    Temporary file(folder, io::Kind::head, next);
    if (last_number(folder.path(), kHeadPrefix) != version) return false;
    const std::string own = name_of(kHeadPrefix, version + 1);
    if (!file.link_to(own)) return false;
    // Who slept long between the look and the link may have been overtaken by several, of whom the
    // first has gone already.
    const Written now = named(file.file());
    if (now.since(written(file.file())) > kSleptSeconds &&
        last_number(folder.path(), kHeadPrefix) != version + 1) {
      folder.remove(io::Kind::head, own);
      return false;
    }
    folder.sync();
    for (const std::string& earlier : folder.names()) {
      const std::int64_t number = number_of(kHeadPrefix, earlier);
      if (number == 0 || number > version) continue;
      const io::File old = open_if_there(io::Kind::head, folder.path() / earlier);
      if (old && now.since(written(old)) > kHeadSeconds) folder.remove(io::Kind::head, earlier);
    }
    return true;
  }

  std::optional<Lease> take_lease(const std::string& name, const Lease& mine) override {
    const io::Directory folder = made(folder_of(name));
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const Newest newest = newest_in(folder.path(), io::Kind::lease, kLeasePrefix);
      const Lease last = lease_of(newest.bytes);
      Temporary file(folder, io::Kind::lease, bytes_of(mine));
      const bool free = last.token.empty() || last.token == mine.token ||
                        written(file.file()).since(newest.when) >= last.seconds;
      if (!free) return last;
      if (follow_lease(folder, newest.number, file)) return std::nullopt;
    }
    throw FileError(
        fmt::format("{}: other programs take its lease again and again; try again later",
                    folder.path().string()));
  }

  void end_lease(const std::string& name, const std::string& token) override {
    const io::Directory folder = made(folder_of(name));
    const Newest newest = newest_in(folder.path(), io::Kind::lease, kLeasePrefix);
    if (newest.number == 0 || lease_of(newest.bytes).token != token) return;
    // Not by taking the name away: a number must not come back.
    Temporary file(folder, io::Kind::lease, {});
    follow_lease(folder, newest.number, file);
  }

 private:
  /// Names under which nothing has stood for so long that nobody can take the next head for the one
  /// behind what he read.
  void forget_ended(const Written& now) {
    const io::Directory all = made(root_ / "memories");
    for (const std::string& name : all.names()) {
      const fs::path path = all.path() / name;
      const io::Directory folder(calls_, path);
      // Listed first: what comes meanwhile stays.
      const std::vector<std::string> files = folder.names();
      const Newest head = newest_in(path, io::Kind::head, kHeadPrefix);
      const Newest lease = newest_in(path, io::Kind::lease, kLeasePrefix);
      if (!head.bytes.empty() || now.since(std::max(head.when, lease.when)) < kHeadSeconds)
        continue;
      for (const std::string& file : files)
        folder.remove(number_of(kHeadPrefix, file) > 0 ? io::Kind::head : io::Kind::lease, file);
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  }

  void require_root() const {
    struct stat info {};
    if (::stat(root_.c_str(), &info) != 0)
      io::fail(errno, root_, "find the shared folder", "mount it, or make it if it is to be new");
    if (!S_ISDIR(info.st_mode))
      throw FileError(root_.string() + ": is no folder; name the shared folder");
  }

  fs::path path_of(const BlockHash& name) const {
    const std::string text = name.text();
    return root_ / "blocks" / text.substr(0, 2) / text;
  }
  fs::path folder_of(const std::string& name) const { return root_ / "memories" / name; }

  /// A folder below the root, made with those above it if it is not there.
  io::Directory made(const fs::path& folder) const {
    for (int attempt = 0;; ++attempt) {
      const int fd =
          calls_.open(io::Kind::directory, AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY);
      if (fd >= 0) {
        calls_.close(fd);
        return {calls_, folder};
      }
      if (fd != -ENOENT || attempt > 0) io::fail(-fd, folder, "open the folder");
      require_root();
      for (const fs::path& level : {folder.parent_path(), folder}) {
        const int r = calls_.make_directory(level.c_str());
        if (r < 0 && r != -EEXIST) io::fail(-r, level, "make the folder");
        if (r >= 0) io::Directory(calls_, level.parent_path()).sync();
      }
    }
  }

  /// Empty if it is not there, though its tier is.
  io::File open_if_there(io::Kind kind, const fs::path& path) const {
    const int fd = calls_.open(kind, AT_FDCWD, path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0) return io::File::adopt(calls_, kind, path, fd);
    if (fd != -ENOENT) io::fail(-fd, path, "open it");
    require_root();
    return {};
  }

  static std::vector<std::byte> read_all(const io::File& file) {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    const io::Entry entry = file.look();
    if (!entry.regular || entry.bytes > kMost)
      throw FileError(file.path().string() + ": is no block of a tier; remove it");
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes));
    file.read(bytes, 0);
    return bytes;
  }

  Newest newest_in(const fs::path& folder, io::Kind kind, std::string_view prefix) const {
    const Found found = newest_file(folder, kind, prefix);
    if (!found.file) return {};
    return {found.number, read_all(found.file), written(found.file)};
  }

  struct Found {
    std::int64_t number = 0;
    io::File file;
  };
  Found newest_file(const fs::path& folder, io::Kind kind, std::string_view prefix) const {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::int64_t number = last_number(folder, prefix);
      if (number == 0) return {};
      io::File file = open_if_there(kind, folder / name_of(prefix, number));
      if (file) return {number, std::move(file)};
      // else the next one took its place meanwhile
    }
    throw FileError(fmt::format("{}: {} files go as soon as they are listed; try again later",
                                folder.string(), prefix));
  }

  std::int64_t last_number(const fs::path& folder, std::string_view prefix) const {
    const int fd =
        calls_.open(io::Kind::directory, AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (fd == -ENOENT) {
      require_root();
      return 0;
    }
    if (fd >= 0) calls_.close(fd);
    std::int64_t last = 0;
    for (const std::string& name : io::Directory(calls_, folder).names())
      last = std::max(last, number_of(prefix, name));
    return last;
  }

  /// Makes a file the lease behind `number`. \return false if another one is there, or a later one:
  /// then it is to be read again
  bool follow_lease(const io::Directory& folder, std::int64_t number, Temporary& file) const {
    const std::string own = name_of(kLeasePrefix, number + 1);
    if (!file.link_to(own)) return false;
    if (last_number(folder.path(), kLeasePrefix) != number + 1) {
      folder.remove(io::Kind::lease, own);
      return false;
    }
    folder.sync();
    for (const std::string& old : folder.names())
      if (const std::int64_t n = number_of(kLeasePrefix, old); n > 0 && n <= number)
        folder.remove(io::Kind::lease, old);
    return true;
  }

  static std::vector<std::byte> bytes_of(const Lease& lease) {
    const std::string text = fmt::format("{}\n{}\n{}\n", lease.token, lease.seconds, lease.holder);
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }

  /// Without a token where there is none.
  static Lease lease_of(const std::vector<std::byte>& bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t first = text.find('\n');
    const std::size_t second = first == text.npos ? first : text.find('\n', first + 1);
    if (second == text.npos) return {};
    Lease lease{std::string(text.substr(0, first)), {}, 0};
    const std::string_view seconds = text.substr(first + 1, second - first - 1);
    std::from_chars(seconds.data(), seconds.data() + seconds.size(), lease.seconds);
    const std::string_view holder = text.substr(second + 1);
    lease.holder = printable(std::string(holder.substr(0, holder.find('\n'))));
    return lease;
  }

  fs::path root_;
  io::Syscalls& calls_;
};

}  // namespace

std::shared_ptr<BlockTier> make_shared_folder(const fs::path& root, io::Syscalls& calls) {
  return std::make_shared<SharedFolderTier>(root, calls);
}

}  // namespace episodic
