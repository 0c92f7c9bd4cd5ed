// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "support/test.hpp"

/// Changes all bytes of the files of a store in `dir`, which are open here; once more, and they
/// are as before.
inline void damage(const std::filesystem::path& dir) {
  int files = 0;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string at = std::filesystem::read_symlink(fd.path(), none).string();
    if (at.rfind(dir.string() + "/", 0) != 0) continue;
    std::fstream file(fd.path(), std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    for (char& byte : bytes) byte = static_cast<char>(~byte);
    file.clear();
    file.seekp(0);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.flush();
    REQUIRE(file);
    ++files;
  }
  REQUIRE(files > 0);
}

/// While it lives, no file of this process takes another byte.
class FullFiles {
 public:
  FullFiles() {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);  // the calls fail then
    const rlimit none{1, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~FullFiles() {
    static_cast<void>(setrlimit(RLIMIT_FSIZE, &before_));
    static_cast<void>(std::signal(SIGXFSZ, handler_));
  }
  FullFiles(const FullFiles&) = delete;
  FullFiles& operator=(const FullFiles&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};
