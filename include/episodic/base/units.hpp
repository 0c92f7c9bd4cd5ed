// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Sizes as people write them: "100K" tokens, "1.5GB", "2GiB".

#include <cstdint>
#include <string>
#include <string_view>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// A count: digits, with a decimal point only before a suffix. K, M, G, T are powers of 1000; Ki,
/// Mi, Gi, Ti of 1024. Small letters count as capitals, and a space may stand before the suffix.
/// \param what it is a number of, for the message: "--tokens"
/// \throws ConfigError for anything else, a fraction, or more than 2^62
std::int64_t parse_count(std::string_view text, std::string_view what);

/// The same with B after the suffix, or without: "1.5GB", "2GiB", "512 MB", "1048576", "100K".
/// \throws ConfigError
std::int64_t parse_bytes(std::string_view text, std::string_view what);

/// "1.50 GB", "3.2 MB", "4.0 kB", "17 bytes": powers of 1000.
std::string bytes_text(std::int64_t bytes);

/// "10,000,000"
std::string count_text(std::int64_t count);

}  // namespace EPISODIC_NAMESPACE
