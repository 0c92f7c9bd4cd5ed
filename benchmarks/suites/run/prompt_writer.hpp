// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// From an example to the tokens that a model reads: the task's template, LongBench's truncation,
/// the model's chat format, in this order.

#include <cstdint>
#include <string>
#include <vector>

#include "data/prompts.hpp"
#include "data/suite.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic::suites {

/// A prompt's tokens, and where its question begins: at the latest with the last token.
struct PromptIds {
  std::vector<std::int64_t> ids;
  std::size_t question = 0;
};

struct PromptFormat {
  Suite suite = Suite::infinitebench;
  std::string task;
  /// The question is all that follows the context; else the prompt's last token. A truncated prompt
  /// has the latter.
  bool question_step = true;
  /// Method truncate: longer prompts keep the first and last halves of so many tokens, as text that
  /// is read again; 0: all.
  std::int64_t keep_tokens = 0;
  /// The prompt is a user's one message in it; null: the prompt is read as it is.
  const ChatTemplate* chat = nullptr;
};

class PromptWriter {
 public:
  /// Keeps references. \throws DataError for a chat format with a tokenizer that reads no special
  ///   tokens out of a text
  PromptWriter(const Template& prompt, const Tokenizer& tokenizer, PromptFormat format);

  /// \throws ConfigError, DataError as Template::fill and ChatTemplate::render
  PromptIds write(const Example& example) const;

  /// What the example asks of its context: its input, or where there is none (summaries, code) what
  /// the template says after the context.
  std::string query(const Example& example) const;

 private:
  Prompt fill(const Example& example) const;
  std::string truncated(const std::string& text) const;

  const Template& template_;
  const Tokenizer& tokenizer_;
  PromptFormat format_;
};

}  // namespace episodic::suites
