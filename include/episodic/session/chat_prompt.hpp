// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A conversation in the model's chat format, as token ids in two steps. Torch-free.
///
/// \code
/// const std::vector<ChatMessage> messages{{"user", "Who closed the door?"}};
/// ChatPrompt prompt =
///     conversation_prompt(model->chat_template(), model->tokenizer(), messages, "", false);
/// \endcode

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// A conversation up to where the model answers, in two steps: what the query that recalls is made
/// of is `question` alone, never a chunk of mixed text.
struct ChatPrompt {
  std::vector<std::int64_t> text, question;
};

/// A whole conversation, up to where the model answers. Where its last message is a user's, that
/// message is `question`.
/// \param variables more variables of the template, as JSON; may be empty
/// \param goes_on behind what a memory holds: without the token that begins a sequence
/// \throws FileError if the tokenizer cannot follow a chat template; DataError if the template
///         refuses the messages
ChatPrompt conversation_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages, const std::string& variables,
                               bool goes_on);

/// The same for a conversation that is rendered already (ToolCallFormat::render). \param question
/// the last message's text, if it is a user's; else empty
ChatPrompt rendered_prompt(const Tokenizer& tokenizer, RenderedPrompt rendered,
                           const std::string& question, bool goes_on);

/// A rendered conversation's tokens, those of its question apart. They are the tokens of the whole:
/// where a token reaches over both, it is the question's. \param opens whether it opens a sequence
ChatPrompt in_two_steps(const Tokenizer& tokenizer, const RenderedPrompt& rendered,
                        const std::string& question, bool opens);

/// \throws DataError for a tokenizer that reads no special tokens out of a text
void require_special_tokens(const Tokenizer& tokenizer);

/// Where a rendered conversation begins that goes on: behind the token that begins a sequence.
std::size_t behind_bos(const Tokenizer& tokenizer, const std::string& rendered);

/// Without the spaces around it, as many templates give what they are given.
std::string without_outer_spaces(const std::string& text);

}  // namespace episodic
