// SPDX-License-Identifier: Apache-2.0
#include "line_history.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

/// The file, open and locked against other programs of this kind.
class OpenHistory {
 public:
  /// \param make with its folders, if it is not there; else `there` says whether it is
  OpenHistory(const std::filesystem::path& path, bool make) : path_(path) {
    if (make) make_folders(path.parent_path());
    // Not blocking: what has the name may be a pipe.
    const int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK | (make ? O_CREAT : 0);
    fd_ = ::open(path.c_str(), flags, S_IRUSR | S_IWUSR);
    if (fd_ < 0 && errno == ENOENT && !make) return;
    if (fd_ < 0) fail("opened");
    struct stat info {};
    if (::fstat(fd_, &info) != 0) fail("read");
    if (!S_ISREG(info.st_mode)) {
      errno = EINVAL;
      fail("used: it is no file");
    }
    if ((info.st_mode & 077) != 0 && ::fchmod(fd_, S_IRUSR | S_IWUSR) != 0) fail("made private");
    while (::flock(fd_, LOCK_EX) != 0)
      if (errno != EINTR) fail("locked");
  }
  ~OpenHistory() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenHistory(const OpenHistory&) = delete;
  OpenHistory& operator=(const OpenHistory&) = delete;

  bool there() const { return fd_ >= 0; }

  std::string read(std::size_t most) {
    std::string text;
    char piece[65536];
    while (true) {
      const ssize_t n = ::read(fd_, piece, sizeof piece);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("read");
      if (n == 0) return text;
      text.append(piece, static_cast<std::size_t>(n));
      if (text.size() > most) {
        errno = EFBIG;
        fail("read: remove it");
      }
    }
  }
  void append(const std::string& text) {
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
      if (n < 0 && errno != EINTR) fail("written");
      if (n > 0) done += static_cast<std::size_t>(n);
    }
  }
  void clear() {
    if (::ftruncate(fd_, 0) != 0) fail("written");
  }

 private:
  static void make_folders(const std::filesystem::path& folder) {
    if (folder.empty() || std::filesystem::is_directory(folder)) return;
    make_folders(folder.parent_path());
    // What goes wrong is said when the file cannot be opened. Folders of state are private (XDG).
    ::mkdir(folder.c_str(), S_IRWXU);
  }
  [[noreturn]] void fail(const char* what) {
    const int error = errno;
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    throw FileError(
        fmt::format("{}: cannot be {} ({})", path_.string(), what, std::strerror(error)));
  }

  const std::filesystem::path& path_;
  int fd_ = -1;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at && end - at <= LineHistory::kLongest) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

std::filesystem::path LineHistory::file_named(const std::string& name) {
  const auto of = [](const char* variable) {
    const char* value = std::getenv(variable);
    const std::filesystem::path path = value ? value : "";
    return path.is_absolute() ? path : std::filesystem::path();  // others do not count (XDG)
  };
  if (const std::filesystem::path state = of("XDG_STATE_HOME"); !state.empty())
    return state / "episodic" / name;
  if (const std::filesystem::path home = of("HOME"); !home.empty())
    return home / ".local" / "state" / "episodic" / name;
  return {};
}

std::vector<std::string> LineHistory::load() const {
  constexpr std::size_t kMost = 4 * kLines * kLongest;
  OpenHistory file(file_, false);
  if (!file.there()) return {};
  std::vector<std::string> lines = lines_of(file.read(kMost));
  const bool cut = lines.size() > 2 * kLines;
  if (lines.size() > kLines) lines.erase(lines.begin(), lines.end() - kLines);
  if (cut) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    file.clear();
    file.append(text);
  }
  return lines;
}

void LineHistory::add(const std::string& line) const {
  if (line.empty() || line.front() == ' ' || line.size() > kLongest ||
      line.find('\n') != std::string::npos)
    return;
  OpenHistory(file_, true).append(line + "\n");
}

}  // namespace episodic::tools
