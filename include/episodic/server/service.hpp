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
#include "episodic/session/engine.hpp"
#include "episodic/text/chat_template.hpp"

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

/// What a client asks for.
struct Request {
  RequestKind kind = RequestKind::completion;
  std::string prompt;                            ///< of a completion: a text,
  std::optional<std::vector<std::int64_t>> ids;  ///< or tokens
  std::vector<ChatMessage> messages;             ///< of a chat
  std::string variables;                         ///< of a chat's template, as JSON; may be empty
  GenerateOptions options;
  std::optional<AnswerFormat> format;  ///< nothing: any text
  std::size_t choices = 1;             ///< answers to the same prompt, each with a seed of its own
  bool stream = false;
  bool stream_usage = false;  ///< ends the stream with the counts of tokens
  bool progress = false;      ///< of a stream: tells how much of a long prompt is read
  std::string memory;         ///< name of the memory that the answer begins behind; empty: none
  bool store = false;         ///< keeps prompt and answer in that memory
  bool recall = false;        ///< tells which events were recalled
};

/// A request as tokens, with what it holds until it has ended.
struct Job {
  Work work;
  /// Of a request that keeps its turn: committed once it is answered whole.
  std::shared_ptr<MemoryWriter> writer;
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

  /// The tokens of a request, and where it begins.
  /// \throws RequestError where the prompt is empty, too long or holds tokens that are none, the
  ///         model has no chat format or refuses the messages, or the memory is not there or
  ///         written
  Job prepare(const Request& request);
  /// The same for a prompt that is tokens already. \param field of the request, for messages
  Job prepare(const Request& request, ChatPrompt prompt, const char* field);
  /// Takes a place, and waits for the answer; commits it where it is to be stored.
  Served answer(const Request& request);

  /// Where a request begins that names this memory; empty: none.
  std::shared_ptr<StartingPoint> start(const std::string& memory);
  /// The tokens of answers in a form; kept for the next request that asks for it.
  /// \throws RequestError for a grammar or a schema that is none
  std::shared_ptr<const TokenGrammar> grammar(const AnswerFormat& format);
  /// Bytes of the model's tokens. \throws FileError where it has no tokenizer
  std::shared_ptr<const TokenTrie> tokens();
  /// The model's chat format. \throws RequestError where there is none
  const ChatTemplate& chat_template() const;

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  Memories* memories() { return memories_; }
  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }

 private:
  ChatPrompt prompt_of(const Request& request, bool goes_on) const;

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<StartingPoint> start_;
  Memories* const memories_;
  std::mutex grammar_mutex_;
  std::shared_ptr<const TokenTrie> tokens_;
  /// The last ones asked for, newest first.
  std::list<std::pair<AnswerFormat, std::shared_ptr<const TokenGrammar>>> grammars_;
  Scheduler scheduler_;
};

}  // namespace episodic::server
