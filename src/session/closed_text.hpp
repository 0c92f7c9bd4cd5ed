// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The text of a sequence's closed events, as those who find places in it read it.

#include <cstdint>
#include <span>
#include <vector>

#include "episodic/memory/sequence_memory.hpp"

namespace episodic {

/// Tokens up to the end of the last closed event; 0 where there is none.
/// \throws ConfigError for scope `head`: its events have no text in common
std::int64_t closed_end(const SequenceMemory& memory);

/// Appends ids of further tokens to `known`, -1 for what is unknown or forgotten: who fed the
/// sequence may still know the tokens of what the memory forgot.
/// \param ids of tokens from known.size() on
void add_closed_ids(const SequenceMemory& memory, std::span<const std::int64_t> ids,
                    std::vector<std::int32_t>& known);

/// Whether `known` is what `add_closed_ids` would make of the same number of tokens.
/// \param ids of the sequence's tokens from its first on \pre known.size() <= ids.size()
bool are_closed_ids(const SequenceMemory& memory, std::span<const std::int64_t> ids,
                    std::span<const std::int32_t> known);

}  // namespace episodic
