// SPDX-License-Identifier: Apache-2.0
// `episodic chat`: a conversation in the terminal, as long as one likes.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

#include "chat_session.hpp"
#include "commands.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/generation_defaults.hpp"
#include "episodic/model/open_model.hpp"
#include "kept.hpp"
#include "line_history.hpp"
#include "line_input.hpp"
#include "remote_chat.hpp"

namespace episodic::tools {
namespace {

/// The memory in --memory-dir, made there if there is none.
std::shared_ptr<EpisodicMemory> kept_memory(const ChatCommandFlags& flags,
                                            const ModelConfig& model) {
  if (holds_memory(flags.dir))
    return std::make_shared<EpisodicMemory>(open_kept(flags.model, flags.dir, OpenMode::write));
  return create_kept(flags.common, flags.model, model, flags.model.new_memory_config(),
                     {.dir = flags.dir}, flags.max_tokens);
}

/// What the user types: lines, of which one that ends with a backslash goes on with the next.
/// \return false at the end of the input
bool next_message(LineInput& input, std::string& message) {
  message.clear();
  std::string line;
  for (const char* prompt = "> ";; prompt = "  ") {
    if (!input.next(prompt, line)) return !message.empty();
    const bool more = line.ends_with('\\');
    if (more) line.back() = '\n';
    message += line;
    if (message.size() > kLongestMessage) throw_longer();
    if (!more) return true;
  }
}

/// A command of the conversation.
struct ChatCommand {
  const char* name;
  const char* takes;  ///< null: nothing
  const char* help;
  const char* missing;  ///< what to say where nothing is given; null: nothing need be
};

constexpr std::array kCommands{
    ChatCommand{"/help", nullptr, "lists the commands", nullptr},
    ChatCommand{"/read", "FILE", "puts a text of any length before your next message",
                "say which file: /read book.txt"},
    ChatCommand{"/recall", nullptr, "what was recalled for the last answer, and its weight",
                nullptr},
    ChatCommand{"/memory", nullptr, "what is in the memory, and where", nullptr},
    ChatCommand{"/memories", nullptr, "the memories beside this one", nullptr},
    ChatCommand{"/fork", "NAME", "keeps a second memory of what was said up to here",
                "say a name: /fork draft"},
    ChatCommand{"/forget", "TEXT", "never recalls the events with this text again, nor",
                "say what: a text, tokens as 200:450, or an event's number (/recall lists them)"},
    ChatCommand{"/save", nullptr, "makes the folder durable now", nullptr},
    ChatCommand{"/quit", nullptr, "ends, as /exit and the end of the input do", nullptr},
};

std::string help_text() {
  std::string text;
  const auto add = [&](const std::string& what, const char* help) {
    text += fmt::format("{:<13} {}\n", what, help);
  };
  for (const ChatCommand& c : kCommands) {
    add(c.takes ? fmt::format("{} {}", c.name, c.takes) : c.name, c.help);
    if (std::string_view(c.name) == "/forget")
      add("", "an event (its number), or those of tokens A:B");
  }
  add("//text", "a message that begins with a slash");
  return text +
         "A line that ends with a backslash goes on with the next. Ctrl-C stops an answer.\n";
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const ChatCommand& c : kCommands) names.emplace_back(c.name);
  return names;
}

/// \return false where the conversation ends \throws Error for what cannot be done
bool run_command(const std::string& line, const JsonFlag& out, ChatBackend& chat) {
  const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
  std::string name = line.substr(0, end);
  const std::size_t first = line.find_first_not_of(" \t", end);
  const std::size_t last = line.find_last_not_of(" \t\r");
  const std::string rest = first == std::string::npos ? "" : line.substr(first, last + 1 - first);
  const std::string said = name;
  if (name == "/exit") name = "/quit";
  if (name == "/events") name = "/recall";
  const auto command = std::find_if(kCommands.begin(), kCommands.end(),
                                    [&](const ChatCommand& c) { return name == c.name; });
  if (command == kCommands.end())
    throw ConfigError(
        fmt::format("there is no command {}; there are {}, and a message that begins "
                    "with a slash is written //text",
                    on_one_line(name), fmt::join(command_names(), ", ")));
  if (rest.empty() && command->missing)
    throw ConfigError(fmt::format("{}: {}", name, command->missing));
  if (!rest.empty() && !command->takes && name != "/help")
    throw ConfigError(fmt::format("{}: takes nothing; '{}' is too much", said, rest));
  if (name == "/quit") return false;
  if (name == "/read") {
    chat.note(chat.add_file(rest));
    return true;
  }
  out.say(name == "/help"       ? help_text()
          : name == "/recall"   ? chat.recalled_text()
          : name == "/memory"   ? chat.memory_text()
          : name == "/memories" ? chat.memories_text()
          : name == "/fork"     ? chat.fork(rest)
          : name == "/forget"   ? chat.forget(rest)
                                : chat.save());
  return true;
}

/// The conversation itself, whoever answers.
void converse(const ChatCommandFlags& flags, ChatBackend& chat) {
  LineInput input({.prompts = !flags.common.quiet,
                   .edits = !flags.json.on_stdout(),
                   .history = flags.no_history ? std::filesystem::path()
                                               : LineHistory::file_named("chat_history"),
                   .completions = command_names()});
  chat.note(chat.greeting() + ". /help lists commands");
  std::string message;
  while (next_message(input, message)) {
    if (const std::string trouble = input.trouble(); !trouble.empty())
      chat.note("no history is kept: " + trouble);
    if (message.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    try {
      if (message.starts_with("//")) {
        message.erase(0, 1);
      } else if (message.starts_with("/")) {
        if (!run_command(message, flags.json, chat)) break;
        continue;
      }
      chat.prepare(message);
    } catch (const Error& e) {  // a mistyped name ends no conversation; nothing was read yet
      chat.refuse(on_one_line(e));
      continue;
    }
    chat.answer();
  }
  flags.json.write(chat.json());
}

/// With a model in this process.
void run_local(const ChatCommandFlags& flags) {
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
  ChatSession chat(flags, *engine, options, of_model.source);
  converse(flags, chat);
}

void run(const ChatCommandFlags& flags) {
  if (!flags.server.empty()) {
    RemoteChat chat(flags);
    return converse(flags, chat);
  }
  if (flags.model.model.empty())
    throw UsageError("--model is required, or the address of a server with --server");
  run_local(flags);
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
      "each answer, and goes on there\nthe next time. In a terminal lines can be edited and called "
      "back, also those of earlier chats.\nWith --server a running `episodic serve` answers, and "
      "--memory-name keeps the conversation there.\n\n"
      "Examples:\n"
      "  episodic chat --model M --memory-dir talks.mem\n"
      "  episodic chat --server http://127.0.0.1:8080 --memory-name talks\n"
      "  printf '/read book.txt\\nWho wrote the letter?\\n' | episodic chat --model M --quiet");
  flags->model.add_to(sub, true, false);
  const Option server = sub.option("--server", flags->server,
                                   "Address of a running `episodic serve` that answers, instead "
                                   "of --model: http://HOST:PORT or unix:PATH");
  server.type_name("URL");
  sub.option("--memory-name", flags->memory_name,
             "With --server: name of the memory in which it keeps the conversation; made if there "
             "is none")
      .needs(server);
  sub.option("--api-key-file", flags->key_file,
             "With --server: file whose first line is the key (default: EPISODIC_API_KEY)")
      .needs(server);
  sub.option("--memory-dir", flags->dir, "Folder in which the conversation is kept");
  sub.option(
      "--memories", flags->memories,
      "Folder of memories for /memories and /fork (default: the one that --memory-dir is in)");
  add_count(sub, "--max-tokens", flags->max_tokens,
            "Tokens that may still come: a device takes its room for them at the start", 1);
  sub.option("--system", flags->chat.system, "The system's message");
  sub.option("--chat-variables", flags->chat.variables,
             "More variables of the template as JSON, such as {\"enable_thinking\": false}");
  const Option reread =
      sub.option("--reread", flags->reread,
                 "Passages of the memory that are found for a message and read again before it")
          .not_negative()
          .shows_default()
          .excludes(server);
  sub.option("--rerank", flags->rerank,
             "Candidates that the model reads, each with the message, to choose the passages")
      .not_negative()
      .shows_default()
      .needs(reread);
  flags->encoder.add_to(sub, "Passages are found").needs(reread);
  flags->generation.add_to(sub, GenerationFlags::Otherwise::model);
  flags->grammar.add_to(sub);
  sub.flag("--no-history", flags->no_history,
           "Keep none of the lines that are typed (else in $XDG_STATE_HOME/episodic/chat_history)");
  flags->json.add_to(sub, "All turns as JSON");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
