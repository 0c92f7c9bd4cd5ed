// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of the files in a memory's folder, and how another folder comes to have the same files.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/memory/kept_memory.hpp"

namespace episodic::detail {

inline constexpr const char* kManifestFile = "manifest.json";

/// Kind of the file that a memory gives a name to; nullopt for names that it gives to nothing, and
/// for caches.
std::optional<io::Kind> kind_of_file(std::string_view name);

/// Shares a file with another folder, or copies it where it cannot be shared.
void share_file(const io::Directory& from, const io::Directory& to, const std::string& name);

/// The caches that can be shared; the others are computed anew. \param made gets their names
void share_caches(const io::Directory& from, const io::Directory& to,
                  std::vector<std::string>& made);

}  // namespace episodic::detail
