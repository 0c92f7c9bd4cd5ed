// SPDX-License-Identifier: Apache-2.0
#include "piece_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/unique_id.hpp"
#include "episodic/base/error.hpp"

namespace episodic::detail {
namespace {

namespace fs = std::filesystem;

/// The account of a cache's bytes, which one process at a time has.
class CacheAccount {
 public:
  explicit CacheAccount(const fs::path& dir)
      : fd_(::open((dir / "account").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_ < 0) io::fail(errno, dir / "account", "open it");
    while (::flock(fd_, LOCK_EX) != 0)
      if (errno != EINTR) {
        const int error = errno;
        ::close(fd_);
        io::fail(error, dir / "account", "lock it");
      }
  }
  ~CacheAccount() { ::close(fd_); }
  CacheAccount(const CacheAccount&) = delete;
  CacheAccount& operator=(const CacheAccount&) = delete;

  /// -1: it is not known
  std::int64_t read() const {
    std::int64_t bytes = -1;
    return ::pread(fd_, &bytes, sizeof bytes, 0) == sizeof bytes ? bytes : -1;
  }
  bool write(std::int64_t bytes) const {
    return ::pwrite(fd_, &bytes, sizeof bytes, 0) == sizeof bytes;
  }

 private:
  int fd_;
};

}  // namespace

PieceCache::PieceCache(std::shared_ptr<BlockTier> tier, fs::path dir, std::int64_t most_bytes,
                       io::Syscalls& calls)
    : tier_(std::move(tier)), dir_(std::move(dir)), most_(most_bytes), calls_(calls) {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) io::fail(error.value(), dir_, "make the folder", "name another one: ?cache=DIR");
}

fs::path PieceCache::path_of(const BlockHash& name) const {
  const std::string text = name.text();
  return dir_ / text.substr(0, 2) / text;
}

bool PieceCache::read_here(const Part& part) {
  if (most_ == 0) return false;
  const fs::path path = path_of(part.name);
  const int fd = calls_.open(io::Kind::cache, AT_FDCWD, path.c_str(), O_RDONLY | O_NOFOLLOW);
  if (fd < 0) return false;
  const io::File file = io::File::adopt(calls_, io::Kind::cache, path, fd);
  try {
    bool checked = false;
    {
      const std::lock_guard lock(mutex_);
      checked = checked_.contains(part.name);
    }
    if (checked) {
      file.read(part.to, part.from);
    } else {
      std::vector<std::byte> all(static_cast<std::size_t>(file.size()));
      file.read(all, 0);
      if (BlockHash::of(all) != part.name || part.from + static_cast<std::int64_t>(part.to.size()) >
                                                 static_cast<std::int64_t>(all.size())) {
        calls_.unlink(io::Kind::cache, AT_FDCWD, path.c_str());
        return false;
      }
      if (!part.to.empty()) std::memcpy(part.to.data(), all.data() + part.from, part.to.size());
      const std::lock_guard lock(mutex_);
      checked_.insert(part.name);
    }
    ::futimens(file.fd(), nullptr);  // it was used now
    return true;
  } catch (const FileError&) {
    return false;
  }
}

void PieceCache::read(std::vector<Part> parts) {
  while (true) {
    std::erase_if(parts, [&](const Part& part) { return read_here(part); });
    if (parts.empty()) return;
    std::vector<Part> mine, others;
    {
      std::unique_lock lock(mutex_);
      for (const Part& part : parts)
        (under_way_.insert(part.name).second ? mine : others).push_back(part);
      if (mine.empty())
        arrived_.wait(lock, [&] {
          return std::none_of(others.begin(), others.end(),
                              [&](const Part& p) { return under_way_.contains(p.name); });
        });
    }
    const auto arrived = [&] {
      {
        const std::lock_guard lock(mutex_);
        for (const Part& part : mine) under_way_.erase(part.name);
      }
      arrived_.notify_all();
    };
    try {
      fetch(mine);
    } catch (...) {
      arrived();
      throw;
    }
    arrived();
    if (others.empty()) return;
    parts = std::move(others);
  }
}

void PieceCache::fetch(std::span<const Part> parts) {
  constexpr std::size_t kAtOnce = 64;
  for (std::size_t first = 0; first < parts.size(); first += kAtOnce) {
    const auto some = parts.subspan(first, std::min(kAtOnce, parts.size() - first));
    std::vector<BlockHash> names;
    for (const Part& part : some) names.push_back(part.name);
    const std::vector<BlockTier::Bytes> blocks = get_blocks(*tier_, names);
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Part& part = some[i];
      if (part.from + static_cast<std::int64_t>(part.to.size()) >
          static_cast<std::int64_t>(blocks[i].size()))
        throw FileError(
            fmt::format("{}: block {} is {} bytes long, more were expected; run "
                        "episodic verify, or take the tier from a copy",
                        tier_->where(), part.name.text(), blocks[i].size()));
      if (!part.to.empty())
        std::memcpy(part.to.data(), blocks[i].data() + part.from, part.to.size());
      insert(part.name, blocks[i]);
    }
  }
}

void PieceCache::insert(const BlockHash& name, std::span<const std::byte> bytes) noexcept {
  if (static_cast<std::int64_t>(bytes.size()) > most_) return;
  try {
    put_here(name, bytes);
  } catch (const std::exception&) {  // it stays on the tier
  }
}

void PieceCache::put_here(const BlockHash& name, std::span<const std::byte> bytes) {
  const fs::path path = path_of(name), folder = path.parent_path();
  const CacheAccount account(dir_);
  std::error_code error;
  if (fs::exists(path, error)) return;
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::int64_t taken = account.read();
  if (taken < 0 || taken + size > most_) {
    // Some more than is needed, so that not every block looks through the folder.
    constexpr std::int64_t kShare = 8;
    const std::int64_t most =
        std::max(most_ - size - (taken < 0 ? 0 : most_ / kShare), std::int64_t{0});
    taken = make_room(most);
    if (taken + size > most_) return;
  }
  // Before the block is there: what ends in between leaves the account too high, never too low.
  if (!account.write(taken + size)) return;
  if (const int r = calls_.make_directory(folder.c_str()); r < 0 && r != -EEXIST)
    io::fail(-r, folder, "make the folder");
  const io::Directory to(calls_, folder);
  const std::string temporary = fmt::format(".{:016x}.new", unique_id());
  try {
    io::File file = to.create(io::Kind::cache, temporary);
    file.write(bytes, 0);
    file.close();
    const std::string own = path.filename().string();
    if (const int r = calls_.rename(io::Kind::cache, to.fd(), temporary.c_str(), own.c_str());
        r < 0)
      io::fail(-r, path, "put the new file in its place");
  } catch (...) {
    to.remove(io::Kind::cache, temporary);
    account.write(taken);
    throw;
  }
}

/// Removes what was not used for longest, down to so many bytes. \return what is left
std::int64_t PieceCache::make_room(std::int64_t most) const {
  struct Found {
    timespec used{};
    std::int64_t bytes = 0;
    fs::path path;
  };
  std::vector<Found> files;
  std::int64_t total = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(dir_, error), end; !error && at != end;
       at.increment(error)) {
    struct stat info {};
    if (::lstat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (at->path().filename() == "account") continue;
    files.push_back({info.st_mtim, info.st_size, at->path()});
    total += info.st_size;
  }
  std::sort(files.begin(), files.end(), [](const Found& a, const Found& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Found& file : files) {
    if (total <= most) break;
    if (calls_.unlink(io::Kind::cache, AT_FDCWD, file.path.c_str()) >= 0) total -= file.bytes;
  }
  return total;
}

}  // namespace episodic::detail
