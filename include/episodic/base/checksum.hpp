// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The one checksum of everything that is kept: XXH3, 64 bits (libxxhash).

#include <cstddef>
#include <cstdint>
#include <span>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// XXH3_64bits of the bytes, with a seed so that the same bytes in another place differ.
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed = 0);

template <class T>
std::uint64_t checksum_of(std::span<const T> values, std::uint64_t seed = 0) {
  return checksum(std::as_bytes(values), seed);
}

}  // namespace EPISODIC_NAMESPACE
