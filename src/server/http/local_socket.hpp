// SPDX-License-Identifier: Apache-2.0
#pragma once
// A socket at a path of the file system: for programs of its owner alone.

#include <sys/types.h>

#include <filesystem>

namespace episodic::server {

class LocalSocket {
 public:
  /// Listens there, with mode 0600. A socket that nobody listens at any more is removed first.
  /// \throws ConfigError where another program listens or something else lies there, and for a path
  ///         that is too long; FileError where none can be made
  explicit LocalSocket(std::filesystem::path path);
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;
  /// Removes it, unless another program has put one of its own there.
  ~LocalSocket();

  int fd() const { return fd_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace episodic::server
