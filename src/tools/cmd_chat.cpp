// SPDX-License-Identifier: Apache-2.0
// `episodic chat`: a conversation in the terminal, as long as one likes.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <random>
#include <utility>

#include "chat.hpp"
#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/model/generation_defaults.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/timeline/event_table.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct ChatCommandFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir;
  std::int64_t max_tokens = 100'000;
  ChatFlags chat;
  GenerationFlags generation;
  GrammarFlags grammar;
  JsonFlag json;
};

/// The memory in --memory-dir, made there if there is none.
std::shared_ptr<EpisodicMemory> kept_memory(const ChatCommandFlags& flags,
                                            const ModelConfig& model) {
  if (holds_memory(flags.dir))
    return std::make_shared<EpisodicMemory>(open_kept(flags.model, flags.dir, OpenMode::write));
  return create_kept(flags.common, flags.model, model, flags.model.new_memory_config(),
                     {.dir = flags.dir}, flags.max_tokens);
}

/// What the user types: lines, of which one that ends with a backslash goes on with the next.
class Input {
 public:
  explicit Input(bool quiet) : prompts_(!quiet && isatty(0) != 0 && isatty(2) != 0) {}

  bool prompts() const { return prompts_; }
  /// \return false at the end of the input
  bool next(std::string& message) const {
    message.clear();
    for (const char* prompt = "> "; say(prompt); prompt = "  ") {
      std::string line;
      if (!std::getline(std::cin, line)) return !message.empty();
      const bool more = line.ends_with('\\');
      if (more) line.back() = '\n';
      message += line;
      if (!more) break;
    }
    return true;
  }

 private:
  bool say(const char* prompt) const {
    if (prompts_) std::fputs(prompt, stderr);
    return true;
  }

  bool prompts_;
};

/// While it lives, Ctrl-C is a request to stop, and the second one ends the program as ever.
class StopRequest {
 public:
  StopRequest() {
    requested_ = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { requested_ = 1; };
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    ::sigaction(SIGINT, &action, &before_);
  }
  ~StopRequest() { ::sigaction(SIGINT, &before_, nullptr); }
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool made() const { return requested_ != 0; }

 private:
  static inline volatile std::sig_atomic_t requested_ = 0;
  struct sigaction before_ {};
};

/// An event that was recalled for an answer: by how many layers, and its best rank among theirs.
struct RecalledFor {
  EventId event = 0;
  TokenRange tokens;
  std::int64_t layers = 0, rank = 0;
};

/// What the last step recalled, what most layers recalled first; empty without a memory of events
/// that all layers share.
std::vector<RecalledFor> recalled_now(const Engine& engine) {
  const SequenceMemory* memory = engine.memory();
  if (!memory || !memory->can(Capability::inspect) || memory->config().scope == EventScope::head)
    return {};
  const EventTable events = engine.events();
  const auto lanes = static_cast<std::int64_t>(engine.config().memory_layers().size()) *
                     memory->config().recall_groups;
  std::map<EventId, RecalledFor> found;
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const LaneRecall lists = engine.recalled(lane);
    std::int64_t rank = 0;
    for (const std::vector<EventId>* list : {&lists.similarity, &lists.contiguity})
      for (const EventId event : *list) {
        RecalledFor& r = found.try_emplace(event, RecalledFor{event, events[event]}).first->second;
        ++rank;
        ++r.layers;
        r.rank = r.rank == 0 ? rank : std::min(r.rank, rank);
      }
  }
  std::vector<RecalledFor> all;
  for (const auto& [event, r] : found) all.push_back(r);
  std::stable_sort(all.begin(), all.end(), [](const RecalledFor& a, const RecalledFor& b) {
    return a.layers != b.layers ? a.layers > b.layers : a.rank < b.rank;
  });
  return all;
}

class Chat {
 public:
  Chat(const ChatCommandFlags& flags, Engine& engine, const GenerateOptions& options)
      : flags_(flags),
        engine_(engine),
        options_(options),
        conversation_(flags.chat, flags.model.model, engine.tokenizer(), engine.tokens() > 0),
        start_(engine.tokens()) {}

  /// Puts a text before the next message. \return what was read, for people
  std::string add_file(const std::filesystem::path& path) {
    if (path == "-") throw ConfigError("/read: stdin is the conversation itself; name a file");
    std::string text = read_document(path, "utf-8");
    text_ += text;
    if (!text_.ends_with('\n')) text_ += '\n';
    text_ += '\n';
    return fmt::format("{}: {} before your next message", path.string(),
                       bytes_text(static_cast<std::int64_t>(text.size())));
  }

  /// A message, and the text before it, in the model's chat format. \throws DataError for what
  /// cannot be said in it
  ChatPrompt prepare(const std::string& message) { return conversation_.ask(text_, message); }

  /// Reads the message, answers on stdout, and makes both durable in a kept memory. Ctrl-C takes
  /// back what is being read, and ends an answer where it is.
  void answer(const std::string& message, const ChatPrompt& prompt) {
    const StopRequest stop;
    const std::span<const std::int64_t> all(prompt.text);
    // without a question of its own, the last token is the step that the answer starts from
    const std::size_t body = all.size() - (prompt.question.empty() ? 1 : 0);
    if (!read(all.first(body), stop)) return;
    GenerateOptions options = options_;
    options.sampling.seed += turns_.size();  // the same message again is another draw
    options.feed_last = true;                // the next turn goes on behind the whole answer
    bool first = true;
    options.on_token = [&](std::int64_t, std::string_view text) {
      if (std::exchange(first, false)) recalled_ = recalled_now(engine_);
      flags_.json.say(std::string(text));
      return !stop.made();
    };
    recalled_.clear();
    const GenerateResult result = engine_.generate(
        prompt.question.empty() ? all.subspan(body) : std::span(prompt.question), options);
    flags_.json.say("\n");
    if (result.finish == FinishReason::length)
      note(fmt::format("cut at {} tokens; --max-new allows more", result.ids.size()));
    if (result.finish == FinishReason::cancelled) note("stopped");
    if (engine_.kept()) engine_.commit();
    for (const auto* ids : {&prompt.text, &prompt.question, &result.ids})
      ids_.insert(ids_.end(), ids->begin(), ids->end());
    turns_.push_back({{"message", message},
                      {"prompt_tokens", prompt.text.size() + prompt.question.size()},
                      {"ids", result.ids},
                      {"text", result.text},
                      {"finish", name_of(result.finish)}});
    conversation_.answered(result.text);
    text_.clear();
  }

  // -- what the commands say, for people --

  std::string memory_text() const {
    if (!engine_.has_memory())
      return fmt::format("full attention over {} tokens; there is no memory\n",
                         count_text(engine_.tokens()));
    const MemoryUsage u = engine_.usage();
    std::string text =
        fmt::format("{} tokens in {} events; {} of keys and values", count_text(engine_.tokens()),
                    count_text(u.events), bytes_text(u.store_bytes));
    if (engine_.kept())
      text += fmt::format("; kept in {} ({} on disk)", flags_.dir.string(),
                          bytes_text(std::max<std::int64_t>(0, u.disk_bytes)));
    else
      text += "; not kept: --memory-dir keeps a conversation in a folder";
    if (!text_.empty())
      text += fmt::format("\n{} of text wait for your next message",
                          bytes_text(static_cast<std::int64_t>(text_.size())));
    return text + "\n";
  }

  /// What was recalled for the last answer.
  std::string recalled_text() const {
    constexpr std::size_t kListed = 8;
    if (recalled_.empty()) return "nothing was recalled for the last answer\n";
    std::string text = fmt::format("{} events were recalled for the last answer\n",
                                   count_text(static_cast<std::int64_t>(recalled_.size())));
    for (std::size_t i = 0; i < std::min(kListed, recalled_.size()); ++i) {
      const RecalledFor& r = recalled_[i];
      text += fmt::format("  event {}, tokens {}:{}, in {} layers, at best {}.: {}\n", r.event,
                          r.tokens.start, r.tokens.end, r.layers, r.rank,
                          on_one_line(engine_.tokenizer().decode(ids_of(r.tokens))));
    }
    return text;
  }

  /// \param what "A:B", a range of tokens
  std::string forget(const std::string& what) {
    const std::vector<EventId> gone = engine_.forget(parse_range(what, "/forget"));
    if (engine_.kept()) engine_.commit();
    return fmt::format("{} events forgotten\n", count_text(static_cast<std::int64_t>(gone.size())));
  }

  std::string save() {
    if (!engine_.kept())
      throw ConfigError("/save: there is no folder; begin the chat with --memory-dir DIR");
    engine_.commit();
    return fmt::format("{} tokens are in {}, as after every answer\n", count_text(engine_.tokens()),
                       flags_.dir.string());
  }

  /// A line on stderr, unless --quiet.
  void note(const std::string& line) const {
    if (!flags_.common.quiet) fmt::print(stderr, "episodic: {}\n", line);
  }

  /// A line on stderr about what could not be done; the conversation goes on.
  void refuse(const std::string& line) {
    fmt::print(stderr, "episodic: {}\n", line);
    refused_.push_back(line);
  }

  Json json() const {
    Json json{{"turns", turns_}, {"memory", memory_json(engine_)}};
    if (!refused_.empty()) json["refused"] = refused_;
    if (options_.sampling.temperature > 0) json["seed"] = options_.sampling.seed;
    return json;
  }

 private:
  /// \return false where Ctrl-C came: nothing was read then
  bool read(std::span<const std::int64_t> ids, const StopRequest& stop) {
    ProgressBar bar("reading", flags_.common.quiet);
    // One step cannot be stopped, and where there is no state to go back to, reading is not: the
    // answer is then, at its first token.
    if (static_cast<std::int64_t>(ids.size()) <= engine_.chunk() ||
        !engine_.can(Capability::snapshot)) {
      engine_.read(ids, bar.callback());
      return true;
    }
    const std::shared_ptr<const Engine::Snapshot> before = engine_.snapshot();
    const ProgressCallback draw = bar.callback();
    engine_.read(ids, [&](std::int64_t done, std::int64_t total) {
      return draw(done, total) && !stop.made();
    });
    if (!stop.made()) return true;
    engine_.restore(*before);
    note("stopped; the message was not read");
    return false;
  }

  std::vector<std::int64_t> ids_of(TokenRange range) const {
    std::vector<std::int64_t> ids;
    if (range.start < start_ && engine_.kept())
      ids = engine_.kept()->token_ids(range.start, std::min(range.end, start_) - range.start);
    for (std::int64_t t = std::max(range.start, start_); t < range.end; ++t)
      if (t - start_ < static_cast<std::int64_t>(ids_.size()))
        ids.push_back(ids_[static_cast<std::size_t>(t - start_)]);
    return ids;
  }

  const ChatCommandFlags& flags_;
  Engine& engine_;
  const GenerateOptions options_;
  Conversation conversation_;
  std::int64_t start_;                 // tokens that were there before
  std::vector<std::int64_t> ids_;      // read and answered since
  std::vector<RecalledFor> recalled_;  // for the last answer
  std::string text_;                   // to be read with the next message
  Json turns_ = Json::array(), refused_ = Json::array();
};

constexpr const char* kHelp =
    "/read FILE    puts a text of any length before your next message\n"
    "/recall       what was recalled for the last answer\n"
    "/memory       what is in the memory, and where\n"
    "/forget A:B   never recalls the events with tokens A to B again\n"
    "/save         makes the folder durable now\n"
    "/quit         ends, as /exit and the end of the input do\n"
    "//text        a message that begins with a slash\n"
    "A line that ends with a backslash goes on with the next. Ctrl-C stops an answer.\n";
constexpr const char* kCommands = "/help, /read, /recall, /memory, /forget, /save, /quit";

/// \return false where the conversation ends \throws Error for what cannot be done
bool run_command(const std::string& line, const JsonFlag& out, Chat& chat) {
  const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
  const std::string name = line.substr(0, end);
  const std::size_t first = line.find_first_not_of(" \t", end);
  const std::size_t last = line.find_last_not_of(" \t\r");
  const std::string rest = first == std::string::npos ? "" : line.substr(first, last + 1 - first);
  const auto require = [&](bool there, const char* what) {
    if (there == rest.empty())
      throw ConfigError(there ? fmt::format("{}: say {}", name, what)
                              : fmt::format("{}: takes nothing; '{}' is too much", name, rest));
  };
  if (name == "/read") {
    require(true, "which file: /read book.txt");
    chat.note(chat.add_file(rest));
  } else if (name == "/forget") {
    require(true, "which tokens: /forget 200:450 (/recall lists events with theirs)");
    out.say(chat.forget(rest));
  } else if (name == "/exit" || name == "/quit") {
    require(false, "");
    return false;
  } else if (name == "/help") {
    out.say(kHelp);
  } else if (name == "/memory") {
    require(false, "");
    out.say(chat.memory_text());
  } else if (name == "/recall" || name == "/events") {
    require(false, "");
    out.say(chat.recalled_text());
  } else if (name == "/save") {
    require(false, "");
    out.say(chat.save());
  } else {
    throw ConfigError(
        fmt::format("there is no command {}; there are {}, and a message that begins "
                    "with a slash is written //text",
                    on_one_line(name), kCommands));
  }
  return true;
}

void run(const ChatCommandFlags& flags) {
  flags.common.apply();
  const GenerationDefaults of_model = generation_defaults(flags.model.model);
  GenerateOptions options = flags.generation.options(of_model);
  const std::optional<Grammar> grammar = flags.grammar.read();
  if (!flags.generation.seed && options.sampling.temperature > 0)
    options.sampling.seed = std::random_device()();
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
  constrain(options, grammar, engine->tokenizer());
  // what has no chat format is refused before a folder is made
  load_model_chat_template(flags.model.model, engine->tokenizer());
  if (flags.dir.empty()) {
    attach(*engine, flags.common, flags.model, flags.model.new_memory_config(), flags.max_tokens);
  } else {
    if (flags.model.full_attention)
      throw ConfigError("--memory-dir: full attention keeps no memory; leave one of the two out");
    const auto memory = kept_memory(flags, engine->config());
    engine->attach(memory, memory->tokens() + flags.max_tokens);
  }
  Chat chat(flags, *engine, options);
  const Input input(flags.common.quiet);
  chat.note(fmt::format("{}{}; an answer ends with its turn, or at {} tokens. /help lists commands",
                        sampling_text(options.sampling),
                        of_model.source.empty() ? "" : " (" + of_model.source + ")",
                        options.max_new));
  std::string message;
  while (input.next(message)) {
    if (message.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    ChatPrompt prompt;
    try {
      if (message.starts_with("//")) {
        message.erase(0, 1);
      } else if (message.starts_with("/")) {
        if (!run_command(message, flags.json, chat)) break;
        continue;
      }
      prompt = chat.prepare(message);
    } catch (const Error& e) {  // a mistyped name ends no conversation; nothing was read yet
      chat.refuse(on_one_line(e));
      continue;
    }
    chat.answer(message, prompt);
  }
  flags.json.write(chat.json());
}

}  // namespace

void add_chat(Command& app) {
  auto flags = std::make_shared<ChatCommandFlags>();
  Command sub = app.subcommand("chat", "A conversation of any length in the terminal");
  sub.footer(
      "Reads a message from each line of stdin (a line that ends with a backslash goes on with the "
      "next)\nand answers on stdout, in the model's own chat format. A line that begins with a "
      "slash "
      "is a command:\n/help lists them, '/read FILE' puts a text before the next message, '/quit' "
      "ends. Ctrl-C stops an\nanswer. With --memory-dir the conversation is kept in a folder after "
      "each answer, and goes on there\nthe next time.\n\n"
      "Examples:\n"
      "  episodic chat --model M --memory-dir talks.mem\n"
      "  printf '/read book.txt\\nWho wrote the letter?\\n' | episodic chat --model M --quiet");
  flags->model.add_to(sub);
  sub.option("--memory-dir", flags->dir, "Folder in which the conversation is kept");
  add_count(sub, "--max-tokens", flags->max_tokens,
            "Tokens that may still come: a device takes its room for them at the start", 1);
  sub.option("--system", flags->chat.system, "The system's message");
  sub.option("--chat-variables", flags->chat.variables,
             "More variables of the template as JSON, such as {\"enable_thinking\": false}");
  flags->generation.add_to(sub, GenerationFlags::Otherwise::model);
  flags->grammar.add_to(sub);
  flags->json.add_to(sub, "All turns as JSON");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
