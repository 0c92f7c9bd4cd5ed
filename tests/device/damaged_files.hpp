// SPDX-License-Identifier: Apache-2.0
#pragma once
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
