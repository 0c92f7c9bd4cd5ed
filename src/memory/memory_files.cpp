// SPDX-License-Identifier: Apache-2.0
#include "memory_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

/// Whether a name is the prefix, 16 hexadecimal digits and the suffix.
bool is_numbered(std::string_view name, std::string_view prefix, std::string_view suffix) {
  return name.size() == prefix.size() + 16 + suffix.size() && name.starts_with(prefix) &&
         name.ends_with(suffix) &&
         name.substr(prefix.size(), 16).find_first_not_of("0123456789abcdef") ==
             std::string_view::npos;
}

/// A cache that was being written: the name that it would have had, and a number of its own.
bool is_unfinished_cache(std::string_view name) {
  constexpr std::size_t kBehind = 1 + 16 + 4;  // ".<16 hexadecimal digits>.new"
  return name.size() > kBehind && is_cache_file(name.substr(0, name.size() - kBehind)) &&
         is_numbered(name.substr(name.size() - kBehind), ".", ".new");
}

}  // namespace

bool is_cache_file(std::string_view name) { return is_numbered(name, "encoded-", ".win"); }

namespace detail {

std::optional<io::Kind> kind_of_file(std::string_view name) {
  const auto is = [&](std::string_view prefix, std::string_view suffix) {
    return is_numbered(name, prefix, suffix);
  };
  if (is("state-", ".bin")) return io::Kind::state;
  if (is("kv-", ".seg")) return io::Kind::segment;
  if (is("vectors-", ".vec")) return io::Kind::vectors;
  if (is("tokens-", ".ids")) return io::Kind::tokens;
  if (name == std::string(kManifestFile) + ".new") return io::Kind::manifest;
  if (is_unfinished_cache(name)) return io::Kind::cache;
  return std::nullopt;
}

void share_file(const io::Directory& from, const io::Directory& to, const std::string& name) {
  const io::Kind kind = kind_of_file(name).value_or(io::Kind::cache);
  const io::File source = from.open(kind, name);  // refuses what is no regular file
  const int r = from.calls().link(kind, from.fd(), name.c_str(), to.fd(), name.c_str());
  if (r >= 0) return;
  if (r != -EXDEV && r != -EPERM && r != -EMLINK && r != -EOPNOTSUPP)
    io::fail(-r, source.path(), fmt::format("share it with {}", to.path().string()));
  io::File copy = to.create(kind, name);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  const std::int64_t size = source.size();
  for (std::int64_t at = 0; at < size;) {
    const auto n = std::min<std::int64_t>(size - at, static_cast<std::int64_t>(buffer.size()));
    const std::span part(buffer.data(), static_cast<std::size_t>(n));
    source.read(part, at);
    copy.write(part, at);
    at += n;
  }
  copy.sync();
}

void share_caches(const io::Directory& from, const io::Directory& to,
                  std::vector<std::string>& made) {
  try {
    for (const std::string& name : from.names(is_cache_file)) {
      made.push_back(name);
      try {
        share_file(from, to, name);
      } catch (const FileError&) {  // removed meanwhile, no regular file, no room for a copy
        to.remove(io::Kind::cache, name);
      }
    }
  } catch (const FileError&) {  // the folder cannot be listed
  }
}

}  // namespace detail
}  // namespace episodic
