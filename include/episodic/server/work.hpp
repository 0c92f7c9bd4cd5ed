// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Work`: what a scheduler is to read and to write, and `Served`: what came of it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/server/starting_point.hpp"
#include "episodic/session/chat_prompt.hpp"
#include "episodic/session/generation.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/session/recall_notes.hpp"
#include "episodic/session/sampling.hpp"
#include "episodic/session/sequence.hpp"

namespace episodic::server {

/// One answer, or one text to be read, as tokens.
struct Work {
  /// What is read. Its question is read in steps of its own.
  ChatPrompt prompt;
  GenerateOptions options;  ///< of the answer
  /// Reads the prompt, and writes no answer.
  bool reads_only = false;
  /// Texts are handed over as they are written; else the whole answer at the end.
  bool streams = false;
  /// Notes the events that the question and its answer recall.
  bool recall = false;
  /// What the prompt reads again before its question, best first; may be empty.
  std::vector<Passage> passages;
  bool passages_only = false;  ///< it begins where nothing was read but those
  /// Makes GenerateOptions::ends of an answer, which remembers what it was asked: one for each.
  /// Null: nothing of the kind ends it.
  std::function<std::function<bool(std::string_view)>()> ends;
  /// Where it begins; null where `sequence` is given.
  std::shared_ptr<StartingPoint> start;
  /// A sequence that it continues, and that nobody else steps meanwhile: a memory's writer. What is
  /// read and written stays in it.
  std::shared_ptr<Sequence> sequence;

  /// Tokens that it comes to at most.
  std::int64_t most_tokens() const { return prompt_tokens() + (reads_only ? 0 : options.max_new); }
  /// Memory that it takes where the model computes, about.
  std::int64_t bytes() const {
    return start ? start->bytes_for(most_tokens()) : sequence->bytes_for(most_tokens());
  }
  std::int64_t prompt_tokens() const {
    return static_cast<std::int64_t>(prompt.text.size() + prompt.question.size());
  }
};

/// What came of it.
struct Served {
  GenerateResult result;
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;       ///< of the prompt: read for an earlier request
  std::vector<RecalledEvent> recalled;  ///< best first, where `Work::recall` asked for it
  /// Text of each of `recalled`; empty where its tokens are not known.
  std::vector<std::string> recalled_texts;
  std::vector<Passage> passages;  ///< as `Work::passages`
  bool passages_only = false;
};

/// A part of an answer, as it is written.
struct Part {
  std::string text;  ///< what became certain; may be empty
  std::optional<Logprobs> logprobs =
      {};  ///< of the token that it came with, where they are asked for
};

}  // namespace episodic::server
