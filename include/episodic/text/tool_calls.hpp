// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Tools that a chat model may call: the client's list of them, how a model's chat template writes
/// tools and calls, and the parts of an answer as it is being written: what the model thinks, what
/// it says, what it calls.
///
/// \code
/// const ToolCallFormat format(chat);                       // once for a model
/// const std::vector<Tool> tools = read_tools(json_of_the_client);
/// const RenderedPrompt prompt = format.render(messages, options, tools);
/// ToolCallParser parser(format, tools);
/// for (piece of the answer's text)
///   for (const ToolCallEvent& event : parser.push(piece)) ...
/// for (const ToolCallEvent& event : parser.finish()) ...
/// \endcode
///
/// The answer's text must have the special tokens that `ToolCallFormat::shown_tokens` names
/// (GenerateOptions::shown_tokens, StreamDecoder): decoders leave special tokens out.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/text/chat_template.hpp"

namespace episodic {

/// A function that the model may call.
struct Tool {
  std::string name;         ///< 1 to 64 of a-z, A-Z, 0-9, _ and -
  std::string description;  ///< may be empty
  std::string parameters;   ///< JSON schema of the arguments' object
  bool strict = false;      ///< the client wants arguments that obey the schema
  /// {"name", "description", "parameters", ...} as the client wrote it, without null members and
  /// `strict`: what a template writes.
  std::string definition;
};

/// How a protocol writes a function in a list of tools, and in a choice of one.
enum class ToolForm : std::uint8_t {
  chat,       ///< {"type": "function", "function": {"name", "description", "parameters"}}
  responses,  ///< {"type": "function", "name", "description", "parameters"}
  messages,   ///< Anthropic's: {"name", "description", "input_schema"}; "type" may be "custom"
};

/// `tools` of a request: a JSON list of functions, at most 128.
/// \param label stands before a path in messages: "tools[2].function.name"
/// \throws ConfigError naming the path of what is wrong
std::vector<Tool> read_tools(std::string_view json, std::string_view label = "tools",
                             ToolForm form = ToolForm::chat);

/// Whether the model may call tools, or must.
struct ToolChoice {
  enum class Kind : std::uint8_t { none, automatic, required };
  Kind kind = Kind::automatic;
  std::string name;  ///< with `required`: the one tool to call; empty: any
};

/// `tool_choice` of a request: "none", "auto", "required", or {"type": "function", "function":
/// {"name": N}}, which `responses` writes as {"type": "function", "name": N}; as JSON. Empty text
/// or null: automatic where there are tools, else none.
/// \param form not `messages`, whose choices are objects of their own
/// \throws ConfigError for another value, a name that is not among the tools, and "required"
///         without tools
ToolChoice read_tool_choice(std::string_view json, std::span<const Tool> tools,
                            std::string_view label = "tool_choice", ToolForm form = ToolForm::chat);

/// The literal texts around forced calls. An answer that is `begin`, then one or more calls with
/// `separator` between them, then `end`, is read by the parser as these calls. A call is the
/// `prefix` of one of `calls`, then JSON that obeys its `schema`, then its `suffix`.
struct ForcedCalls {
  struct Call {
    std::string name, prefix, schema, suffix;
  };
  /// It may be a special token, which no constraint on text can force. So append it to the prompt's
  /// text before encode_prompt (and push it to the parser), and constrain what follows.
  std::string begin;
  std::vector<Call> calls;  ///< one for each tool that may be called
  std::string separator, end;
};

/// How a model's chat template writes tools, calls and their results. Found once, by the markers in
/// the template's text and by rendering small conversations. Immutable; copies share it.
///
/// What the template does not write itself is written here: the list of tools into the system
/// message (or the first user message), calls into the assistant's text, results into a user
/// message.
class ToolCallFormat {
 public:
  explicit ToolCallFormat(const ChatTemplate& chat);

  /// A name of docs/tool-calls.md; "general": the template has no form, and Hermes' is described to
  /// the model.
  std::string_view name() const;
  /// The template writes the list of tools itself.
  bool native() const;
  /// Why `render` refuses tools; empty where it does not.
  const std::string& refusal() const;

  /// A conversation as the model reads it. Messages may be as a client sent them
  /// (`ChatMessage::fields`): `tool_calls` with arguments as a text or an object, `content` null or
  /// a list of texts, ids of any form. Without tools, calls and results of earlier turns are
  /// written all the same.
  /// \param options `tools` must be empty
  /// \throws ConfigError naming the message's field that is wrong; DataError where the template
  ///         refuses the conversation, and for tools where `refusal` is not empty
  RenderedPrompt render(std::span<const ChatMessage> messages, const ChatOptions& options,
                        std::span<const Tool> tools) const;

  /// The template shows marks that part what a model thinks, or channels, from its answer. Answers
  /// without tools are then for the parser too.
  bool parts_answers() const;
  /// Whether the answer to this prompt begins within what the model thinks
  /// (ToolCallOptions::thinking).
  bool begins_thinking(std::string_view prompt) const;
  /// What to append to a prompt whose answer is held to a form of its own (JSON, say), so that the
  /// whole of it is content: the end of a thought, or the header of a channel. May be empty. Give
  /// it to the parser too.
  std::string held_opening(std::string_view prompt) const;

  /// Special tokens that mark calls and thoughts: a decoder must not leave them out of the answer's
  /// text.
  std::vector<std::int64_t> shown_tokens(const Tokenizer& tokenizer) const;

  /// What to hold an answer to for a choice of kind `required`.
  /// \throws ConfigError where there is no such tool, or none; DataError as `render`
  ForcedCalls forced_calls(std::span<const Tool> tools, const ToolChoice& choice) const;

  struct Impl;

 private:
  friend class ToolCallParser;
  std::shared_ptr<const Impl> impl_;
};

/// Something that became certain of an answer.
struct ToolCallEvent {
  enum class Kind : std::uint8_t {
    content,    ///< `text` is no call
    reasoning,  ///< `text` is what the model thinks, without the marks around it
    begun,      ///< the call `index`, with `id` and `name`
    arguments,  ///< `text` continues the arguments of the call `index`
    ended,      ///< the arguments of the call `index` are one JSON object
    broken,     ///< with `early_arguments` alone: the call `index` is none; its text comes next
  };
  Kind kind = Kind::content;
  std::size_t index = 0;  ///< 0, 1, ... in the order of the answer
  std::string text, id, name;
  friend bool operator==(const ToolCallEvent&, const ToolCallEvent&) = default;
};

/// What is said and what is thought, of the events of an answer.
struct AnswerTexts {
  std::string content, reasoning;
  void add(std::span<const ToolCallEvent> events);
};

struct ToolCallOptions {
  /// False: a call is reported once it is whole, so that a broken one can be content. True: from
  /// its name on; where it then breaks off, `broken` is reported.
  bool early_arguments = false;
  /// The answer begins within what the model thinks, because the prompt ends with <think>, or
  /// another model's mark for it (ToolCallFormat::begins_thinking).
  bool thinking = false;
  /// False: what the model thinks is content, with the marks around it. (Channels have none.)
  bool part_reasoning = true;
  /// Bytes of one call; a longer one is content. Bounds what the parser keeps.
  std::size_t longest_call = std::size_t{1} << 20;
  /// Ids depend on it alone; absent: on the system's entropy.
  std::optional<std::uint64_t> id_seed;
};

/// Finds calls in an answer. What looks like a call, but is not one JSON object with the name of a
/// tool, is content, as it was written. White space beside a call belongs to it.
///
/// What a model thinks stands at the answer's beginning, between the marks that its template has,
/// or <think> and </think>; white space beside these belongs to them. No call is found in it. In a
/// form with channels these part the answer, and what is no call after all is reasoning.
///
/// The events do not depend on how the answer is cut into pieces, except that content and arguments
/// come in other pieces.
class ToolCallParser {
 public:
  ToolCallParser(const ToolCallFormat& format, std::span<const Tool> tools,
                 const ToolCallOptions& options = {});
  ToolCallParser(ToolCallParser&&) noexcept;
  ToolCallParser& operator=(ToolCallParser&&) noexcept;
  ~ToolCallParser();

  /// What became certain with more of the answer's text.
  std::vector<ToolCallEvent> push(std::string_view piece);
  /// The answer has ended: what was held back. Afterwards the parser is as new, except that it
  /// continues to count calls.
  std::vector<ToolCallEvent> finish();

  /// Calls that ended so far.
  std::size_t calls() const;
  /// A call ended, and so did what its form writes behind it; or something else came instead. An
  /// answer that may have one call only ends here.
  bool first_call_over() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
