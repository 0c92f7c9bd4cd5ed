// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Service`: requests in words, answered by a model behind its memories. Torch-free, knows nothing
/// of HTTP.
///
/// \code
/// server::Service service(model, start);
/// server::Request request;
/// request.prompt = "The pass key is";
/// std::puts(service.answer(request).result.text.c_str());
/// \endcode

#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "episodic/grammar/token_grammar.hpp"
#include "episodic/server/memories.hpp"
#include "episodic/server/scheduler.hpp"
#include "episodic/session/conversation.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tool_calls.hpp"

namespace episodic::server {

enum class RequestKind : std::uint8_t { completion, chat };

/// The texts that an answer may be.
struct AnswerFormat {
  enum class Kind : std::uint8_t { gbnf, json_schema, json_object };
  Kind kind = Kind::json_object;
  std::string text;                       ///< the grammar, or the schema as JSON
  std::string field = "response_format";  ///< of the request, for messages
  auto operator<=>(const AnswerFormat&) const = default;
};

/// How an answer's text is parted: what the model thinks, what it says, what it calls.
struct ToolUse {
  ToolCallFormat format;
  std::vector<Tool> tools;  ///< that it may call; may be none
  /// Of a forced call, or of an answer that is held to a form: stands at the end of the prompt.
  std::string begin = {};
  bool thinking = false;                 ///< the answer begins within what the model thinks
  bool parallel = true;                  ///< more than one call
  bool part_reasoning = true;            ///< false: what the model thinks is content
  const Tokenizer* tokenizer = nullptr;  ///< to count tokens of the parts; null: they are not

  /// Of an answer; it has read `begin`.
  ToolCallParser parser() const;
};

/// More are no help: a model reads a few passages better than many.
inline constexpr std::int64_t kMostPassages = 16;
/// Most candidates that a request may have the model read to choose them.
inline constexpr std::int64_t kMostCandidates = 64;

/// What a client asks for.
struct Request {
  RequestKind kind = RequestKind::completion;
  std::string prompt;                            ///< of a completion: a text,
  std::optional<std::vector<std::int64_t>> ids;  ///< or tokens
  std::vector<ChatMessage> messages;             ///< of a chat
  std::string variables;                         ///< of a chat's template, as JSON; may be empty
  std::vector<Tool> tools;                       ///< of a chat
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  bool part_reasoning = true;  ///< what the model thinks is told apart from its answer
  GenerateOptions options;
  std::optional<AnswerFormat> format;  ///< nothing: any text
  std::size_t choices = 1;             ///< answers to the same prompt, each with a seed of its own
  bool stream = false;
  bool stream_usage = false;  ///< ends the stream with the counts of tokens
  bool progress = false;      ///< of a stream: tells how much of a long prompt is read
  std::string memory;         ///< name of the memory that the answer begins behind; empty: none
  bool store = false;         ///< keeps prompt and answer in that memory
  bool recall = false;        ///< tells which events were recalled
  /// Passages of what was read before that are found for the last question and read again before
  /// it, at most kMostPassages.
  std::int64_t reread = 0;
  /// `alone` and `where_sure` find `PassageOptions::finds`, whatever `reread` says.
  PassageUse passage_use = PassageUse::behind_memory;
  /// Candidates that the model reads to choose them, at most kMostCandidates. 0: none
  std::int64_t rerank = 0;
};

/// A request as tokens, with what it holds until it has ended.
struct Job {
  Work work;
  /// Of a request that keeps its turn: committed once it is answered whole.
  std::shared_ptr<MemoryWriter> writer;
  std::shared_ptr<const ToolUse> tools;  ///< null: the answer is content alone
};

/// Makes work of requests, and has it done. Safe to use from several threads.
class Service {
 public:
  /// \param start where a request begins that names no memory
  /// \param memories null: there are none by name. Must outlive it
  /// \throws ConfigError for a null start, and for `parallel` above 1 where one sequence at a time
  ///         can begin there
  Service(std::shared_ptr<const Model> model, std::shared_ptr<StartingPoint> start,
          Memories* memories = nullptr, const SchedulerOptions& options = {});
  /// Requests begin where the engine stands. \param engine must outlive it, and is nobody else's
  /// from now on
  explicit Service(Engine& engine, const SchedulerOptions& options = {});

  /// From now on `reread` finds passages with an encoder too. Before requests come.
  void set_vectors(std::shared_ptr<WindowVectors> vectors) { vectors_ = std::move(vectors); }
  /// Null: there are none.
  const std::shared_ptr<WindowVectors>& vectors() const { return vectors_; }

  /// The tokens of a request, and where it begins. Takes its time where an encoder reads the text
  /// of a memory for the first time.
  /// \param wanted asked now and then meanwhile whether its client is still there; may be empty
  /// \throws RequestError where the prompt is empty, too long or holds tokens that are none, the
  ///         model has no chat format or refuses the messages, the memory is not there or written,
  ///         or nobody wants it any more (503)
  Job prepare(const Request& request, const std::function<bool()>& wanted = {});
  /// The same for the next turn of a conversation that is read turn by turn: `Request::messages` is
  /// that turn, and the caller says where the work begins. Tools that the conversation knows need
  /// not be read again. \param field of the request that has the turn, for messages
  Job prepare(const Request& request, Conversation& talk, const char* field);
  /// The tokens of a request's prompt alone. \param goes_on behind what a memory holds: without the
  /// token that begins a sequence \throws RequestError where the model has no chat format or
  /// refuses the messages
  ChatPrompt prompt_of(const Request& request, bool goes_on);
  /// A chat as the model reads it, as text. \throws RequestError as prompt_of
  std::string rendered(const Request& request);
  /// Takes a place, and waits for the answer; commits it where it is to be stored.
  Served answer(const Request& request);

  /// Where a request begins that names this memory; empty: none.
  std::shared_ptr<StartingPoint> start(const std::string& memory);
  /// The tokens of answers in a form; kept for the next request that asks for it.
  /// \throws RequestError for a grammar or a schema that is none
  std::shared_ptr<const TokenGrammar> grammar(const AnswerFormat& format);
  /// Bytes of the model's tokens. \throws FileError where it has no tokenizer
  std::shared_ptr<const TokenTrie> tokens();
  /// How the model's chat format writes tools. \throws RequestError where there is none
  const ToolCallFormat& tool_call_format() const;
  /// The model's chat format. \throws RequestError where there is none
  const ChatTemplate& chat_template() const;

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  Memories* memories() { return memories_; }
  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }

 private:
  Job begun(const Request& request);
  void check(const Request& request, const Job& job, const char* field) const;
  ChatPrompt prompt_of(const Request& request, bool goes_on, Job& job);
  std::shared_ptr<const TokenGrammar> grammar_of_calls(const ForcedCalls& forced, bool several);
  ChatPrompt chat_prompt_of(const Request& request, bool goes_on, Job& job);
  void find_passages(const Request& request, Job& job, const std::function<bool()>& wanted) const;
  std::string part_answer(const Request& request, const std::string& prompt, Job& job);
  RenderedPrompt render_calls(const Request& request, bool may_call) const;

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<StartingPoint> start_;
  Memories* const memories_;
  std::shared_ptr<WindowVectors> vectors_;
  mutable std::once_flag tools_read_;
  mutable std::optional<ToolCallFormat> tool_call_format_;
  std::mutex grammar_mutex_;
  std::shared_ptr<const TokenTrie> tokens_;
  /// The last ones asked for, newest first.
  std::list<std::pair<AnswerFormat, std::shared_ptr<const TokenGrammar>>> grammars_;
  Scheduler scheduler_;
};

}  // namespace episodic::server
