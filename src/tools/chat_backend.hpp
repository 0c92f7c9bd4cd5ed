// SPDX-License-Identifier: Apache-2.0
#pragma once
// What answers a conversation in the terminal: an engine of this process, or a server.

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>

#include "chat.hpp"
#include "common.hpp"
#include "engines.hpp"
#include "reader_flags.hpp"

namespace episodic::tools {

/// The flags of `episodic chat`.
struct ChatCommandFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir, memories;
  std::int64_t max_tokens = 100'000;
  std::string server, memory_name;  // of a conversation with a server
  std::filesystem::path key_file;
  ChatFlags chat;
  GenerationFlags generation;
  GrammarFlags grammar;
  JsonFlag json;
  bool no_history = false;
  std::int64_t reread = 0;  ///< passages that are read again before a message
  std::int64_t rerank = 0;  ///< candidates that the model reads to choose them
  EncoderFlags encoder;     ///< which finds them too
};

/// One conversation. `ChatSession` computes its answers, `RemoteChat` asks a server for them.
class ChatBackend {
 public:
  virtual ~ChatBackend() = default;
  ChatBackend(const ChatBackend&) = delete;
  ChatBackend& operator=(const ChatBackend&) = delete;

  /// What there is and how it answers, for people.
  virtual std::string greeting() const = 0;
  /// Puts a text before the next message. \return what was read, for people
  std::string add_file(const std::filesystem::path& path);
  /// Takes the next message, with the text before it. \throws Error for what cannot be said; the
  /// conversation is then as it was
  virtual void prepare(const std::string& message) = 0;
  /// Answers it on stdout. Ctrl-C ends the answer and nothing else.
  virtual void answer() = 0;

  // -- what the commands do. \return what they say, for people \throws Error

  virtual std::string memory_text() const = 0;
  virtual std::string memories_text() const = 0;
  /// What was recalled for the last answer.
  virtual std::string recalled_text() const = 0;
  /// Keeps a second memory of what was said up to here.
  virtual std::string fork(const std::string& name) = 0;
  /// \param what "A:B", a range of tokens; "N", an event; else a text, in quotes if it looks like
  ///        one of these
  virtual std::string forget(const std::string& what) = 0;
  virtual std::string save() = 0;

  /// A line on stderr, unless --quiet.
  void note(const std::string& line) const;
  /// A line on stderr about what could not be done; the conversation goes on.
  void refuse(const std::string& line);

  /// All turns.
  virtual Json json() const = 0;

 protected:
  /// While it lives, Ctrl-C is a request to stop, and the second one ends the program as ever.
  class StopRequest {
   public:
    StopRequest();
    ~StopRequest();
    StopRequest(const StopRequest&) = delete;
    StopRequest& operator=(const StopRequest&) = delete;

    bool made() const;

   private:
    struct sigaction before_ {};
  };

  /// What /forget names.
  struct Forgotten {
    enum class Kind : std::uint8_t { tokens, event, text } kind = Kind::text;
    TokenRange tokens;  ///< of `tokens`
    std::string text;   ///< as it is written; of `event` its number
  };
  /// \throws ConfigError for what names nothing
  static Forgotten parse_forgotten(const std::string& what);

  /// \param flags must outlive it
  explicit ChatBackend(const ChatCommandFlags& flags) : flags_(flags) {}

  /// Of what waits for the next message; empty where nothing does.
  std::string waiting_text() const;

  const ChatCommandFlags& flags_;
  std::string text_;  // to be read with the next message
  Json turns_ = Json::array(), refused_ = Json::array();
};

}  // namespace episodic::tools
