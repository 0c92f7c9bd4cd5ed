// SPDX-License-Identifier: Apache-2.0
// Names of blocks, and places on tiers.
#include "episodic/store/block_tier.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;

struct Schemes {
  std::mutex mutex;
  std::map<std::string, TierOpener, std::less<>> openers{
      {"shared", [](const TierPlace& place,
                    io::Syscalls& calls) { return make_shared_folder(place.at, calls); }},
      {"redis", nullptr},  // its name is known, so that its absence can be told
  };
};

Schemes& schemes() {
  static Schemes all;
  return all;
}

bool is_memory_name(std::string_view name) {
  constexpr std::size_t kLongest = 128;
  const auto ok = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kLongest && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), ok);
}

fs::path default_cache() {
  const auto under = [](const char* variable, const char* below) -> fs::path {
    const char* const value = std::getenv(variable);
    return value && *value == '/' ? fs::path(value) / below : fs::path();
  };
  if (fs::path dir = under("XDG_CACHE_HOME", "episodic"); !dir.empty()) return dir;
  if (fs::path dir = under("HOME", ".cache/episodic"); !dir.empty()) return dir;
  std::error_code error;
  return fs::temp_directory_path(error) / fmt::format("episodic-{}", ::getuid());
}

double seconds_of(const std::string& key, const std::string& text, const std::string& where) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  constexpr double kMost = 86400;
  if (text.empty() || *end != '\0' || !(seconds > 0 && seconds <= kMost))
    throw ConfigError(
        fmt::format("{}: {}={}: a number above 0, up to {}", where, key, text, kMost));
  return seconds;
}

}  // namespace

std::string BlockHash::text() const { return fmt::format("{:016x}{:016x}", high, low); }

BlockHash BlockHash::of(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.high64, h.low64};
}

std::optional<BlockHash> BlockHash::parse(std::string_view text) {
  constexpr std::size_t kDigits = 16;
  if (text.size() != 2 * kDigits ||
      text.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return std::nullopt;
  BlockHash name;
  std::from_chars(text.data(), text.data() + kDigits, name.high, 16);
  std::from_chars(text.data() + kDigits, text.data() + text.size(), name.low, 16);
  return name;
}

std::vector<BlockTier::Bytes> get_blocks(BlockTier& tier, std::span<const BlockHash> names) {
  std::vector<std::optional<BlockTier::Bytes>> found = tier.get(names);
  std::vector<BlockTier::Bytes> blocks;
  blocks.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto refuse = [&](const char* what) {
      throw FileError(
          fmt::format("{}: block {} {}; run episodic verify, take the tier from a copy, or fork an "
                      "earlier memory",
                      tier.where(), names[i].text(), what));
    };
    if (!found[i]) refuse("is missing");
    if (BlockHash::of(*found[i]) != names[i]) refuse("is damaged: its bytes are not those named");
    blocks.push_back(std::move(*found[i]));
  }
  return blocks;
}

std::string TierPlace::text() const {
  return fmt::format("{}:{}{}{}", scheme, at, name.empty() || at.ends_with('/') ? "" : "/", name);
}

fs::path TierPlace::path() const { return options.empty() ? text() : text() + "?" + options; }

TierPlace TierPlace::with_name(const std::string& other) const {
  TierPlace place = *this;
  place.name = other;
  return place;
}

namespace {

/// \param named whether the path ends with a memory's name
std::optional<TierPlace> parse_place(const fs::path& path, bool named) {
  const std::string all = path.string();
  const std::size_t colon = all.find(':');
  if (colon == std::string::npos) return std::nullopt;
  TierPlace place;
  place.scheme = all.substr(0, colon);
  {
    const std::lock_guard lock(schemes().mutex);
    if (!schemes().openers.contains(place.scheme)) return std::nullopt;
  }
  const std::size_t options = all.rfind('?');
  std::string rest =
      all.substr(colon + 1, options == std::string::npos ? options : options - colon - 1);
  if (named) {
    const std::size_t slash = rest.rfind('/');
    place.name = slash == std::string::npos ? "" : rest.substr(slash + 1);
    rest.resize(slash == std::string::npos ? 0 : std::max<std::size_t>(slash, 1));
    if (rest.empty() || !is_memory_name(place.name))
      throw ConfigError(fmt::format(
          "{}: expected {}:DIR/NAME, where NAME is the memory's: letters, digits, and . _ - behind "
          "the first",
          printable(all), place.scheme));
  } else if (rest.empty()) {
    throw ConfigError(fmt::format("{}: expected {}:DIR", printable(all), place.scheme));
  }
  place.at = std::move(rest);
  if (options != std::string::npos) place.options = all.substr(options + 1);
  place.cache = default_cache();
  for (std::size_t at = options; at != std::string::npos && at + 1 < all.size();) {
    const std::size_t end = all.find(',', at + 1);
    const std::string item =
        all.substr(at + 1, end == std::string::npos ? std::string::npos : end - at - 1);
    at = end;
    const std::size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (key == "cache" && !value.empty())
      place.cache = value;
    else if (key == "cache_bytes")
      place.cache_bytes = parse_bytes(value, place.text() + ": cache_bytes");
    else if (key == "lease_seconds")
      place.lease_seconds = seconds_of(key, value, place.text());
    else if (key == "timeout_seconds")
      place.timeout_seconds = seconds_of(key, value, place.text());
    else
      throw ConfigError(
          fmt::format("{}: '{}' is no option of a place; there are cache=DIR, cache_bytes=SIZE, "
                      "lease_seconds=NUMBER and timeout_seconds=NUMBER, with commas between them",
                      place.text(), printable(item)));
  }
  return place;
}

}  // namespace

std::optional<TierPlace> TierPlace::parse(const fs::path& path) { return parse_place(path, true); }

std::optional<TierPlace> TierPlace::parse_tier(const fs::path& path) {
  return parse_place(path, false);
}

void add_tier_scheme(const std::string& scheme, TierOpener open) {
  const std::lock_guard lock(schemes().mutex);
  schemes().openers[scheme] = std::move(open);
}

std::shared_ptr<BlockTier> open_tier(const TierPlace& place, io::Syscalls& calls) {
  TierOpener open;
  {
    const std::lock_guard lock(schemes().mutex);
    open = schemes().openers[place.scheme];
  }
  if (!open)
    throw NotBuiltError(
        fmt::format("{}: this build has no tiers of '{}'; name a shared folder (shared:DIR/NAME), "
                    "or build with it (docs/network.md)",
                    place.text(), place.scheme));
  return open(place, calls);
}

}  // namespace episodic
