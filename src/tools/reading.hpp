// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading a text while writing down what the memory made of each token, and text of token ranges.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/session/session.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic::tools {

/// What the memory made of the tokens read: one row a token.
struct Reading {
  std::vector<float> surprise;           ///< nats; 0 for token 0
  std::vector<std::uint8_t> boundaries;  ///< final flags
  double seconds = 0;

  /// Mean surprise of a token range in nats, 0 for an empty one.
  double mean_surprise(TokenRange range) const;
};

/// Prefills the ids and records every step.
/// \param last_step of the memory behind the session's model
Reading read_recording(Session& session, const std::function<StepRecord()>& last_step,
                       std::span<const std::int64_t> ids, const ProgressCallback& progress);

/// Text of tokens [range.start, range.end), spaces at its start kept: decoders of some kinds drop
/// them, so the token before is decoded along.
std::string text_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                    TokenRange range);

/// The same, one string a token; a character made of several tokens comes with its last one.
std::vector<std::string> texts_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                  TokenRange range);

}  // namespace episodic::tools
