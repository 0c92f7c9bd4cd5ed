// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/api_keys.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "episodic/base/error.hpp"

namespace episodic::server {

ApiKeys read_api_keys(const std::filesystem::path& file) {
  constexpr std::size_t kLongest = 1024;
  std::ifstream in(file);
  struct stat status {};
  if (!in || stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    throw FileError(
        fmt::format("{}: cannot be read; name a file with an API key a line", file.string()));
  ApiKeys read;
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    constexpr const char* kSpaces = " \t\r";
    const std::size_t first = line.find_first_not_of(kSpaces);
    if (first == std::string::npos || line[first] == '#') continue;
    std::string key = line.substr(first, line.find_last_not_of(kSpaces) + 1 - first);
    const auto plain = [](char c) { return c > ' ' && c <= '~'; };
    if (key.size() > kLongest || !std::all_of(key.begin(), key.end(), plain))
      throw FileError(
          fmt::format("{}: line {} is no API key: up to {} letters, digits and signs "
                      "of ASCII, without spaces between",
                      file.string(), number, kLongest));
    read.keys.push_back(std::move(key));
  }
  if (in.bad()) throw FileError(fmt::format("{}: cannot be read to its end", file.string()));
  if (read.keys.empty())
    throw FileError(fmt::format("{}: has no API key; write one a line", file.string()));
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    read.warning = fmt::format(
        "{}: others than its owner may read or change the keys; chmod 600 it", file.string());
  return read;
}

}  // namespace episodic::server
