// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which steps recall anew where `recall_every` is above 1. One rule, for host and device.

#include <cstdint>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Which part of a sequence a step of one token belongs to. Longer steps are always read text.
enum class StepKind : std::uint8_t {
  decode,  ///< a generated token: recalls every `recall_every` steps
  prompt,  ///< a token of the prompt, its last one above all: always recalls (EM 3.4)
};

/// What a step does about recall, and what it leaves for the next.
struct RecallTurn {
  bool recalls = true;     ///< false: it goes on with the last recall
  std::int64_t since = 0;  ///< steps of one token since the recall that they count from
};

/// Text that is read recalls whenever it comes; the token after it does too, and counts from there.
/// \param since as the step before left it
inline RecallTurn recall_turn(std::int64_t n, StepKind kind, std::int64_t since,
                              std::int64_t recall_every) {
  if (n > 1) return {true, 0};
  const std::int64_t counted = kind == StepKind::prompt ? 0 : since;
  return {counted % recall_every == 0, counted + 1};
}

}  // namespace EPISODIC_NAMESPACE
