// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Small texts under names of a tier, beside its memories: what a server keeps of a conversation,
/// say. Each is replaced whole or not at all.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "episodic/base/inline.hpp"
#include "episodic/store/block_tier.hpp"

namespace EPISODIC_NAMESPACE {

struct TierRecord {
  std::string text;
  std::int64_t written = 0;  ///< seconds since 1970, by the clock of who wrote it
  std::int64_t version = 0;  ///< to exchange it by
};

/// Nothing if nothing stands there. \throws FileError if it is damaged or no record
std::optional<TierRecord> read_tier_record(BlockTier& tier, const std::string& name);

/// Puts a text in place of the one of this version (BlockTier::exchange). \return false if another
/// one stands there \throws FileError, io::DiskFullError; DataError for a text of 64 MiB or more
bool exchange_tier_record(BlockTier& tier, const std::string& name, std::int64_t version,
                          std::string_view text);

/// Ends a name, whatever stands there: a record or a memory. \return false if nothing did
bool end_tier_name(BlockTier& tier, const std::string& name);

/// Whether a head is a record, not a memory's.
bool is_tier_record(std::span<const std::byte> head);

}  // namespace EPISODIC_NAMESPACE
