// SPDX-License-Identifier: Apache-2.0
// `episodic chat`: a conversation in the terminal, as long as one likes.

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "chat.hpp"
#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct ChatCommandFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir;
  std::int64_t max_tokens = 100'000;
  ChatFlags chat;
  GenerateOptions options;
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

class Chat {
 public:
  Chat(const ChatCommandFlags& flags, Engine& engine)
      : flags_(flags),
        engine_(engine),
        conversation_(flags.chat, flags.model.model, engine.tokenizer(), engine.tokens() > 0) {}

  /// Puts a text before the next message.
  void add_file(const std::filesystem::path& path) {
    text_ += read_document(path, "utf-8");
    if (!text_.ends_with('\n')) text_ += '\n';
    text_ += '\n';
  }

  /// A message, and the text before it, in the model's chat format. \throws DataError for what
  /// cannot be said in it
  ChatPrompt prepare(const std::string& message) { return conversation_.ask(text_, message); }

  /// Reads the message, answers on stdout, and makes both durable in a kept memory.
  void answer(const std::string& message, const ChatPrompt& prompt) {
    const std::span<const std::int64_t> all(prompt.text);
    // without a question of its own, the last token is the step that the answer starts from
    const std::size_t body = all.size() - (prompt.question.empty() ? 1 : 0);
    {
      ProgressBar bar("reading", flags_.common.quiet);
      engine_.read(all.first(body), bar.callback());
    }
    GenerateOptions options = flags_.options;
    options.feed_last = true;  // the next turn goes on behind the whole answer
    options.on_token = [&](std::int64_t, std::string_view text) {
      flags_.json.say(std::string(text));
      return true;
    };
    const GenerateResult result = engine_.generate(
        prompt.question.empty() ? all.subspan(body) : std::span(prompt.question), options);
    flags_.json.say("\n");
    if (engine_.kept()) engine_.commit();
    turns_.push_back({{"message", message},
                      {"prompt_tokens", prompt.text.size() + prompt.question.size()},
                      {"ids", result.ids},
                      {"text", result.text},
                      {"finish", name_of(result.finish)}});
    conversation_.answered(result.text);
    text_.clear();
  }

  Json json() const { return {{"turns", turns_}, {"memory", memory_json(engine_)}}; }

 private:
  const ChatCommandFlags& flags_;
  Engine& engine_;
  Conversation conversation_;
  std::string text_;  // to be read with the next message
  Json turns_ = Json::array();
};

constexpr std::string_view kRead = "/read ";

void run(const ChatCommandFlags& flags) {
  flags.common.apply();
  const std::unique_ptr<Engine> engine = load_engine(flags.common, flags.model);
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
  Chat chat(flags, *engine);
  const Input input(flags.common.quiet);
  if (input.prompts())
    std::fputs("/read FILE puts a text before the next message, /exit or Ctrl-D ends\n", stderr);
  std::string message;
  while (input.next(message)) {
    if (message.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    if (message == "/exit") break;
    ChatPrompt prompt;
    try {
      if (message.starts_with(kRead)) {
        chat.add_file(message.substr(kRead.size()));
        continue;
      }
      prompt = chat.prepare(message);
    } catch (const Error& e) {  // a mistyped name ends no conversation; nothing was read yet
      if (!input.prompts()) throw;
      std::fprintf(stderr, "episodic: %s\n", e.what());
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
      "next)\nand answers on stdout, in the model's own chat format. '/read FILE' puts a text "
      "before the next\nmessage, '/exit' ends. With --memory-dir the conversation is kept in a "
      "folder after each answer,\nand goes on there the next time.\n\n"
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
  add_generation(sub, flags->options);
  flags->json.add_to(sub, "All turns as JSON");
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
