// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/session.hpp"

namespace episodic::server {
namespace {

/// Whether a conversation is more than texts of a system, a user and an assistant.
bool has_calls(const Request& request) {
  return !request.tools.empty() ||
         std::any_of(request.messages.begin(), request.messages.end(), [](const ChatMessage& m) {
           return m.role == "tool" || m.role == "function" ||
                  m.fields.find("\"tool_calls\"") != std::string::npos;
         });
}

bool calls_tools(const Request& request) {
  return !request.tools.empty() && request.tool_choice.kind != ToolChoice::Kind::none;
}

/// What a request asks: the last message of a user, or the prompt; empty where there is no such
/// text.
std::string question_of(const Request& request) {
  if (request.kind == RequestKind::completion) return request.prompt;
  const ChatMessage& last = request.messages.back();
  return last.role == "user" ? last.content : std::string();
}

const char* prompt_field(const Request& request) {
  return request.kind == RequestKind::chat ? "messages" : "prompt";
}

}  // namespace

ToolCallParser ToolUse::parser() const {
  ToolCallOptions options;
  options.thinking = thinking;
  options.part_reasoning = part_reasoning;
  ToolCallParser parser(format, tools, options);
  parser.push(begin);  // tells of nothing yet
  return parser;
}

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

const ToolCallFormat& Service::tool_call_format() const {
  const ChatTemplate& chat = chat_template();
  std::call_once(tools_read_, [&] { tool_call_format_.emplace(chat); });
  return *tool_call_format_;
}

RenderedPrompt Service::render_calls(const Request& request, bool may_call) const {
  ChatOptions options;
  options.variables = request.variables;
  return tool_call_format().render(request.messages, options,
                                   may_call ? std::span(request.tools) : std::span<const Tool>());
}

/// Parts an answer, where it may have parts: thoughts, channels, calls. \param prompt as text
/// \return what the prompt is to end with: the beginning of a call that it must make, or of an
/// answer that is held to a form
std::string Service::part_answer(const Request& request, const std::string& prompt, Job& job) {
  const ToolCallFormat& format = tool_call_format();
  const bool may_call = calls_tools(request);
  if (!may_call && !format.parts_answers()) return {};
  auto use =
      std::make_shared<ToolUse>(ToolUse{.format = format,
                                        .tools = may_call ? request.tools : std::vector<Tool>(),
                                        .begin = "",
                                        .thinking = format.begins_thinking(prompt),
                                        .parallel = request.parallel_tool_calls,
                                        .part_reasoning = request.part_reasoning,
                                        .tokenizer = &model_->tokenizer()});
  job.work.options.shown_tokens = format.shown_tokens(model_->tokenizer());
  if (may_call && request.tool_choice.kind == ToolChoice::Kind::required) {
    if (request.format)
      throw RequestError("'tool_choice' and '" + request.format->field +
                             "' both say what the answer is; leave one of the two out",
                         "tool_choice");
    const ForcedCalls forced = format.forced_calls(request.tools, request.tool_choice);
    use->begin = (use->thinking ? format.held_opening(prompt) : "") + forced.begin;
    job.work.options.grammar = grammar_of_calls(forced, request.parallel_tool_calls);
  } else {
    if (request.format) use->begin = format.held_opening(prompt);
    if (may_call && !request.parallel_tool_calls)
      job.work.ends = [use] {
        const auto parser = std::make_shared<ToolCallParser>(use->parser());
        return [parser](std::string_view text) {
          parser->push(text);
          return parser->first_call_over();
        };
      };
  }
  job.tools = use;
  return use->begin;
}

/// What is read again stands before the question, in its message.
ChatPrompt Service::chat_prompt_of(const Request& request, bool goes_on, Job& job) {
  const ChatTemplate& chat = chat_template();
  const std::string question = question_of(request);
  Request with_passages;
  if (!job.work.passages.empty()) {
    with_passages = request;
    with_passages.messages.back().content = joined_text(job.work.passages) + "\n\n" + question;
  }
  const Request& asked = job.work.passages.empty() ? request : with_passages;
  RenderedPrompt rendered;
  if (has_calls(asked)) {
    rendered = render_calls(asked, calls_tools(asked));
  } else {
    ChatOptions options;
    options.variables = asked.variables;
    rendered = chat.render_prompt(asked.messages, options);
  }
  rendered.text += part_answer(asked, rendered.text, job);
  return rendered_prompt(model_->tokenizer(), std::move(rendered), question, goes_on);
}

/// \throws RequestError where nothing can be found, naming the reason
void Service::find_passages(const Request& request, Job& job,
                            const std::function<bool()>& wanted) const {
  const bool numbered = request.passage_use == PassageUse::behind_memory;
  if (!numbered && request.rerank > 0)
    throw RequestError(
        "'rerank' chooses a number of passages, and 'reread' is no number; leave out one of the "
        "two",
        "rerank");
  if (numbered && request.reread == 0) {
    if (request.rerank > 0)
      throw RequestError("'rerank' chooses the passages of 'reread', which is 0; give both",
                         "rerank");
    return;
  }
  if (request.store)
    throw RequestError(
        "'reread' and 'store' do not go together: the passages would be kept twice; leave one out",
        "reread");
  const std::string question = question_of(request);
  if (without_outer_spaces(question).empty()) return;  // what a tool put out, or tokens
  const auto begun = std::chrono::steady_clock::now();
  const std::chrono::milliseconds whole = scheduler_.options().in_flight.whole;
  const char* given_up = nullptr;
  const auto goes_on = [&] {
    if (scheduler_.stopped())
      given_up = "the server is going down";
    else if (wanted && !wanted())
      given_up = "the client has gone";
    else if (whole.count() > 0 && std::chrono::steady_clock::now() - begun > whole)
      given_up = "the passages were not found in time (the server's limit of time)";
    return given_up == nullptr;
  };
  try {
    FoundPassages found = job.work.start->passages(
        request.passage_use, question,
        numbered ? PassageOptions{.count = request.reread, .rerank = request.rerank}
                 : PassageOptions::finds(),
        vectors_, goes_on);
    job.work.passages = std::move(found.passages);
    job.work.passages_only = found.alone;
  } catch (const Error& e) {
    throw RequestError(e.what(), "reread");
  }
  if (given_up) throw RequestError(given_up, "", 503);
}

ChatPrompt Service::prompt_of(const Request& request, bool goes_on, Job& job) {
  const Tokenizer& tokenizer = model_->tokenizer();
  try {
    if (request.kind == RequestKind::chat) return chat_prompt_of(request, goes_on, job);
    if (request.ids) return {*request.ids, {}};
    if (!job.work.passages.empty()) {
      const std::string read = joined_text(job.work.passages) + "\n\n";
      return {goes_on ? encode_continuation(tokenizer, "\n\n" + read) : tokenizer.encode(read),
              encode_continuation(tokenizer, request.prompt)};
    }
    return {
        goes_on ? encode_continuation(tokenizer, request.prompt) : tokenizer.encode(request.prompt),
        {}};
  } catch (const Error& e) {
    throw RequestError(e.what(), prompt_field(request));
  }
}

ChatPrompt Service::prompt_of(const Request& request, bool goes_on) {
  Job unused;
  return prompt_of(request, goes_on, unused);
}

std::string Service::rendered(const Request& request) {
  try {
    if (has_calls(request)) return render_calls(request, calls_tools(request)).text;
    ChatOptions options;
    options.variables = request.variables;
    return chat_template().render(request.messages, options);
  } catch (const Error& e) {
    throw RequestError(e.what(), prompt_field(request));
  }
}

std::shared_ptr<const TokenGrammar> Service::grammar_of_calls(const ForcedCalls& forced,
                                                              bool several) {
  std::vector<JsonInText> calls;
  for (const ForcedCalls::Call& call : forced.calls)
    calls.push_back({call.prefix, call.schema, call.suffix});
  try {
    return std::make_shared<const TokenGrammar>(
        grammar_of_json_in_text(calls, forced.separator, forced.end,
                                several && !forced.separator.empty()),
        tokens());
  } catch (const Error& e) {
    throw RequestError(e.what(), "tools");
  }
}

/// What a request says of its answer.
Job Service::begun(const Request& request) {
  Job job;
  job.work.options = request.options;
  if (request.format) job.work.options.grammar = grammar(*request.format);
  job.work.streams = request.stream;
  job.work.recall = request.recall;
  return job;
}

Job Service::prepare(const Request& request, const std::function<bool()>& wanted) {
  if (request.store && request.memory.empty())
    throw RequestError("'store' keeps the turn in a memory; name it in 'memory'", "store");
  if (request.store && request.choices > 1)
    throw RequestError("'store' keeps one answer; ask for one choice", "n");
  Job job = begun(request);
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
  find_passages(request, job, wanted);
  if (job.work.passages_only) goes_on = false;
  job.work.prompt = prompt_of(request, goes_on, job);
  if (job.work.passages_only) {
    auto empty = std::make_shared<Sequence>(model_);
    std::int64_t most = job.work.most_tokens();
    if (const std::int64_t limit = scheduler_.options().max_tokens; limit > 0)
      most = std::min(most, limit);
    empty->attach_full_attention(most);
    job.work.start = std::make_shared<StartingPoint>(std::move(empty), most);
  }
  check(request, job, prompt_field(request));
  return job;
}

Job Service::prepare(const Request& request, Conversation& talk, const char* field) {
  Job job = begun(request);
  TurnCalls calls;
  if (calls_tools(request)) calls.tools = request.tools;
  calls.opening = [&](const std::string& prompt) { return part_answer(request, prompt, job); };
  try {
    job.work.prompt = talk.ask(request.messages, calls);
  } catch (const Error& e) {
    throw RequestError(e.what(), field);
  }
  check(request, job, field);
  return job;
}

/// \throws RequestError for a prompt, or options, that cannot be answered
void Service::check(const Request& request, const Job& job, const char* field) const {
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
