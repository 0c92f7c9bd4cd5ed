// SPDX-License-Identifier: Apache-2.0
// Looks for damage in a memory's folder.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <system_error>

#include "episodic/base/error.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "impl.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;
using detail::TierImages;
using detail::TokenLog;

/// What the tables of the last state name.
void verify_contents(const fs::path& dir, const MemoryManifest& manifest, ByteReader& state,
                     io::Syscalls& calls,
                     const std::function<void(const fs::path&, const std::string&)>& damage) {
  const MemoryShape shape = MemoryShape::load(state);
  check_shape(manifest.config, shape);
  const TierImages images = TierImages::load(state);
  TokenLog ids(dir, calls);
  ids.load(state);
  if (const StoreShape store = store_shape(manifest.config, shape); store.n_lanes > 0) {
    verify_segments(store, dir, images.store, calls, damage);
    verify_vectors(lane_shape(manifest.config, shape).width(shape.head_dim), dir, images.vectors,
                   calls, damage);
  }
  for (const TokenLog::Part& part : ids.parts()) {
    try {
      TokenLog::verify(dir, part, calls);
    } catch (const Error& e) {
      damage(dir / TokenLog::file_name(part.id), e.what());
    }
  }
}

/// The file of the folder that is at fault: the one that a message begins with, if it does.
/// \param looked_at where it was found
VerifyReport::Damage damage_of(const fs::path& dir, const fs::path& looked_at,
                               const std::string& message) {
  const std::size_t end = message.find(": ");
  const fs::path named = message.substr(0, end);
  if (end == std::string::npos || (named != dir && named.parent_path() != dir))
    return {looked_at, message};
  return {named == dir ? looked_at : named, message.substr(end + 2)};
}

/// \param generation gets that of the manifest that was verified, 0 if there is none
VerifyReport verify_once(const fs::path& dir, io::Syscalls& calls, std::int64_t& generation) {
  VerifyReport report;
  generation = 0;
  const auto damage = [&](const fs::path& file, const std::string& what) {
    VerifyReport::Damage found = damage_of(dir, file, what);
    for (const VerifyReport::Damage& known : report.damages)
      if (known.file == found.file && known.what == found.what) return;
    report.damages.push_back(std::move(found));
  };
  MemoryManifest manifest;
  try {
    manifest = MemoryManifest::read(dir, calls);
  } catch (const Error& e) {
    damage(dir / "manifest.json", e.what());
    return report;
  }
  generation = manifest.generation;
  std::vector<std::string> named{"manifest.json", "lock"};
  std::error_code error;
  report.files = 1;
  report.bytes = static_cast<std::int64_t>(fs::file_size(dir / "manifest.json", error));
  for (const MemoryManifest::FileEntry& f : manifest.files) {
    named.push_back(f.name);
    ++report.files;
    report.bytes += f.bytes;
    const auto size = fs::file_size(dir / f.name, error);
    if (error)
      damage(dir / f.name, fmt::format("is missing ({})", error.message()));
    else if (static_cast<std::int64_t>(size) < f.bytes)
      damage(dir / f.name, fmt::format("{} bytes long instead of {}", size, f.bytes));
  }
  std::vector<MemoryManifest::State> states = manifest.checkpoints;
  states.push_back(manifest.state);
  for (const MemoryManifest::State& s : states) {
    named.push_back(s.file);
    ++report.files;
    report.bytes += s.bytes;
    try {
      const detail::StateFile file = detail::read_state(dir, s, manifest.config, calls);
      if (s.file == manifest.state.file) {
        // The tables of the last state say where everything lies.
        ByteReader from(file.bytes, (dir / s.file).string(), file.version);
        verify_contents(dir, manifest, from, calls, damage);
      }
      // Whatever an opening would refuse.
      KeepOptions keep;
      keep.dir = dir;
      keep.calls = &calls;
      EpisodicMemory::open(keep, OpenMode::read, nullptr, nullptr, s.tokens);
    } catch (const Error& e) {
      damage(dir / s.file, e.what());
    }
  }
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (std::find(named.begin(), named.end(), name) == named.end() && !is_cache_file(name))
      report.unnamed.push_back(name);
  }
  std::sort(report.unnamed.begin(), report.unnamed.end());
  return report;
}

/// Of a memory on a tier, past what this machine has read before. Files are named as of the place.
VerifyReport verify_on_tier(const TierPlace& place, io::Syscalls& calls) {
  VerifyReport report;
  try {
    const std::shared_ptr<detail::TieredFolder> folder =
        detail::TieredFolder::open_apart(place, calls);
    report = verify_memory(folder->dir(), folder->calls());
    for (VerifyReport::Damage& damage : report.damages)
      damage.file = fs::path(place.text()) / damage.file.filename();
  } catch (const Error& e) {
    report.damages.push_back({place.text(), e.what()});
  }
  return report;
}

}  // namespace

VerifyReport verify_memory(const fs::path& dir, io::Syscalls& calls) {
  if (const std::optional<TierPlace> place = TierPlace::parse(dir))
    return verify_on_tier(*place, calls);
  static_cast<void>(detail::scratch_folder());  // an opening needs one: its lack is no damage
  // A writer removes states that it has replaced; then they are missed here.
  constexpr int kAttempts = 5;
  for (int attempt = 1;; ++attempt) {
    std::int64_t generation = 0;
    VerifyReport report = verify_once(dir, calls, generation);
    if (report.damages.empty() || attempt == kAttempts) return report;
    try {
      if (MemoryManifest::read(dir, calls).generation == generation) return report;
    } catch (const Error&) {
      return report;
    }
  }
}

}  // namespace episodic
