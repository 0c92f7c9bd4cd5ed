// SPDX-License-Identifier: Apache-2.0
#include "http/local_socket.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic::server {
namespace {

constexpr int kWaiting = 512;  // clients, until they are let in

int new_socket() {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw FileError(fmt::format("socket: none can be made ({})", std::strerror(errno)));
  return fd;
}

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& name = path.native();
  if (name.empty() || name.size() >= sizeof address.sun_path ||
      name.find('\0') != std::string::npos)
    throw ConfigError(
        fmt::format("socket: the path '{}' must have 1 to {} bytes; name a shorter one", name,
                    sizeof address.sun_path - 1));
  std::memcpy(address.sun_path, name.data(), name.size());
  return address;
}

const sockaddr* as_sockaddr(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

/// Makes room for a socket of our own: of a server that was killed its socket is left.
void remove_stale(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode))
    throw ConfigError(fmt::format("socket: {} is there and is no socket; name another path", path));
  const int probe = new_socket();
  const int connected = connect(probe, as_sockaddr(address), sizeof address);
  const int why = errno;
  close(probe);
  if (connected == 0 || why == EAGAIN)  // EAGAIN: many wait there
    throw ConfigError(
        fmt::format("socket: another program listens at {}; end it, or name another path", path));
  if (why != ECONNREFUSED)
    throw ConfigError(
        fmt::format("socket: {} is there, and whether somebody listens cannot be "
                    "found out ({}); remove it, or name another path",
                    path, std::strerror(why)));
  unlink(path.c_str());
}

}  // namespace

LocalSocket::LocalSocket(std::filesystem::path path) : path_(std::move(path)) {
  const sockaddr_un address = address_of(path_);
  remove_stale(path_.string(), address);
  fd_ = new_socket();
  // Before `bind`, which makes the file with these bits: nobody gets in between. (umask would do it
  // too, for all threads.)
  fchmod(fd_, S_IRUSR | S_IWUSR);
  struct stat status {};
  const bool listens = ::bind(fd_, as_sockaddr(address), sizeof address) == 0 &&
                       chmod(path_.c_str(), S_IRUSR | S_IWUSR) == 0 &&
                       ::listen(fd_, kWaiting) == 0 && lstat(path_.c_str(), &status) == 0;
  if (!listens) {
    const int why = errno;
    close(fd_);
    throw FileError(
        fmt::format("socket: {} cannot be listened at ({}); name a path in a folder "
                    "that can be written",
                    path_.string(), std::strerror(why)));
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

LocalSocket::~LocalSocket() {
  struct stat status {};
  if (lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_)
    unlink(path_.c_str());
  close(fd_);
}

}  // namespace episodic::server
