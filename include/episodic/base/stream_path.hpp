// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which paths are no files.

#include <filesystem>
#include <string>
#include <system_error>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// What bytes are handed to and not kept in: a terminal, a pipe, /dev/null, and whatever a name in
/// /dev or /proc leads to. A file that is given such a name takes its place: as root the device is
/// gone.
inline bool is_stream(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_directory(status))
    return true;
  const std::string place = std::filesystem::absolute(path, error).lexically_normal().string();
  return place.starts_with("/proc/") ||
         (place.starts_with("/dev/") && !place.starts_with("/dev/shm/"));  // where files are kept
}

}  // namespace EPISODIC_NAMESPACE
