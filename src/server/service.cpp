// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/session.hpp"

namespace episodic::server {
namespace {

/// Whether the model's template shows what a tool said.
bool shows(const ChatTemplate& chat_template, std::vector<ChatMessage> messages, std::size_t i,
           const std::string& variables) {
  ChatOptions options;
  options.variables = variables;
  const std::string before = chat_template.render(messages, options);
  messages[i].content += "x";
  return chat_template.render(messages, options) != before;
}

const char* prompt_field(const Request& request) {
  return request.kind == RequestKind::chat ? "messages" : "prompt";
}

}  // namespace

RequestError::RequestError(const std::string& message, const std::string& parameter, int status,
                           std::string code)
    : std::runtime_error(message),
      parameter_(printable(parameter)),
      code_(std::move(code)),
      status_(status) {}

Service::Service(std::shared_ptr<const Model> model, std::shared_ptr<StartingPoint> start,
                 Memories* memories, const SchedulerOptions& options)
    : model_(std::move(model)),
      start_(std::move(start)),
      memories_(memories),
      scheduler_(model_, options) {
  if (!start_) throw ConfigError("Service: the starting point is null");
  if (options.parallel > 1 && start_->single())
    throw ConfigError(fmt::format("parallel: one request at a time can be answered here: {}",
                                  start_->why_single()));
}

Service::Service(Engine& engine, const SchedulerOptions& options)
    : Service(engine.shared_model(),
              std::make_shared<StartingPoint>(
                  std::shared_ptr<Sequence>(std::shared_ptr<void>(), &engine), options.max_tokens),
              nullptr, options) {}

std::shared_ptr<StartingPoint> Service::start(const std::string& memory) {
  if (memory.empty()) return start_;
  if (!memories_)
    throw RequestError(
        "this server has no memories by name; it was started without a folder for them", "memory",
        404, "memory_not_found");
  std::shared_ptr<StartingPoint> start = memories_->start(memory);
  for (const auto& stale : memories_->take_stale()) scheduler_.release(stale);
  return start;
}

const ChatTemplate& Service::chat_template() const {
  try {
    return model_->chat_template();
  } catch (const FileError& e) {  // completions need none
    throw RequestError(e.what(), "messages");
  }
}

std::shared_ptr<const TokenTrie> Service::tokens() {
  const std::lock_guard lock(grammar_mutex_);
  if (!tokens_) tokens_ = std::make_shared<const TokenTrie>(model_->tokenizer());
  return tokens_;
}

std::shared_ptr<const TokenGrammar> Service::grammar(const AnswerFormat& format) {
  constexpr std::size_t kKept = 16, kCacheBytes = std::size_t{16} << 20;
  const std::shared_ptr<const TokenTrie> trie = tokens();
  const auto kept = [&] {
    const auto at = std::find_if(grammars_.begin(), grammars_.end(),
                                 [&](const auto& one) { return one.first == format; });
    if (at != grammars_.end()) grammars_.splice(grammars_.begin(), grammars_, at);
    return at != grammars_.end();
  };
  {
    const std::lock_guard lock(grammar_mutex_);
    if (kept()) return grammars_.front().second;
  }
  std::shared_ptr<const TokenGrammar> made;  // which takes its time: others need not wait for it
  try {
    made = std::make_shared<const TokenGrammar>(
        format.kind == AnswerFormat::Kind::gbnf          ? grammar_of_gbnf(format.text)
        : format.kind == AnswerFormat::Kind::json_schema ? grammar_of_json_schema(format.text)
                                                         : grammar_of_json_object(),
        trie, kCacheBytes);
  } catch (const Error& e) {
    throw RequestError(e.what(), format.field);
  }
  const std::lock_guard lock(grammar_mutex_);
  if (!kept()) grammars_.emplace_front(format, std::move(made));
  if (grammars_.size() > kKept) grammars_.pop_back();
  return grammars_.front().second;
}

ChatPrompt Service::prompt_of(const Request& request, bool goes_on) const {
  const Tokenizer& tokenizer = model_->tokenizer();
  try {
    if (request.kind == RequestKind::chat) {
      const ChatTemplate& chat = chat_template();
      for (std::size_t i = 0; i < request.messages.size(); ++i) {
        const std::string& role = request.messages[i].role;
        if (role != "tool" && role != "function") continue;
        if (!shows(chat, request.messages, i, request.variables))
          throw RequestError(fmt::format("the model's chat format shows nothing of messages whose "
                                         "role is {}; put what the tool said into a user's",
                                         role),
                             fmt::format("messages[{}].role", i));
        break;  // all of them or none: one is enough to see
      }
      return conversation_prompt(chat, tokenizer, request.messages, request.variables, goes_on);
    }
    if (request.ids) return {*request.ids, {}};
    return {
        goes_on ? encode_continuation(tokenizer, request.prompt) : tokenizer.encode(request.prompt),
        {}};
  } catch (const Error& e) {
    throw RequestError(e.what(), prompt_field(request));
  }
}

Job Service::prepare(const Request& request) {
  if (request.store && request.memory.empty())
    throw RequestError("'store' keeps the turn in a memory; name it in 'memory'", "store");
  if (request.store && request.choices > 1)
    throw RequestError("'store' keeps one answer; ask for one choice", "n");
  Job job;
  bool goes_on = false;
  if (request.store) {
    start(request.memory);  // says what is wrong with the name
    job.writer = memories_->write(request.memory);
    goes_on = job.writer->sequence().tokens() > 0;
    job.work.sequence = job.writer->shared_sequence();
  } else {
    job.work.start = start(request.memory);
    goes_on = job.work.start->tokens() > 0;
  }
  Job whole = prepare(request, prompt_of(request, goes_on), prompt_field(request));
  whole.work.start = std::move(job.work.start);
  whole.work.sequence = std::move(job.work.sequence);
  whole.writer = std::move(job.writer);
  return whole;
}

Job Service::prepare(const Request& request, ChatPrompt prompt, const char* field) {
  Job job;
  job.work.prompt = std::move(prompt);
  job.work.options = request.options;
  if (request.format) job.work.options.grammar = grammar(*request.format);
  job.work.streams = request.stream;
  job.work.recall = request.recall;
  const std::int64_t tokens = job.work.prompt_tokens();
  if (tokens == 0) throw RequestError("the prompt is empty", field);
  const std::int64_t most = scheduler_.options().max_tokens;
  if (most > 0 && tokens + (request.options.max_new > 0 ? 1 : 0) > most)
    throw RequestError(
        fmt::format("the prompt has {} tokens; a request may come to {}, its answer included "
                    "(max_tokens of the server)",
                    tokens, most),
        field, 400, "context_length_exceeded");
  const std::int64_t vocabulary = model_->config().vocab_size;
  for (const auto& [id, bias] : request.options.sampling.logit_bias)
    if (id < 0 || id >= vocabulary)
      throw RequestError(
          fmt::format("'logit_bias' has the token {}; the vocabulary has {}", id, vocabulary),
          "logit_bias");
  for (const std::int64_t id : job.work.prompt.text)
    if (id < 0 || id >= vocabulary)
      throw RequestError(
          fmt::format("'{}' has the token {}; the vocabulary has {}", field, id, vocabulary),
          field);
  return job;
}

Served Service::answer(const Request& request) {
  Job job = prepare(request);
  const std::shared_ptr<InFlight> in_flight =
      scheduler_.submit(scheduler_.take_place(), std::move(job.work));
  while (!in_flight->wait(std::chrono::seconds(10)).ended) {
  }
  const Served& served = in_flight->served();
  if (job.writer && in_flight->given_up() == GivenUp::no) job.writer->commit();
  return served;
}

}  // namespace episodic::server
