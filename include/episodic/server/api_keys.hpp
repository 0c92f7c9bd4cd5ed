// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// API keys from a file.
///
/// \code
/// server::ApiKeys keys = server::read_api_keys("keys.txt");
/// server::ServerOptions options{.access = {.api_keys = std::move(keys.keys)}};
/// \endcode

#include <filesystem>
#include <string>
#include <vector>

namespace episodic::server {

struct ApiKeys {
  std::vector<std::string> keys;  ///< at least one
  std::string warning;            ///< one line; empty: only its owner may read the file
};

/// A key a line, with spaces around it left out; empty lines and what begins with # say nothing.
/// \throws FileError for a file that cannot be read or holds no key, and for a line that can be no
///         key: with characters that a header cannot carry, or more than 1024 of them
ApiKeys read_api_keys(const std::filesystem::path& file);

}  // namespace episodic::server
