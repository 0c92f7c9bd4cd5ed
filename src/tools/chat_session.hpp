// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation in the terminal: its turns, and what its commands do.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "chat.hpp"
#include "common.hpp"
#include "engines.hpp"
#include "episodic/session/engine.hpp"
#include "recalled.hpp"

namespace episodic::tools {

/// The flags of `episodic chat`.
struct ChatCommandFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir, memories;
  std::int64_t max_tokens = 100'000;
  ChatFlags chat;
  GenerationFlags generation;
  GrammarFlags grammar;
  JsonFlag json;
  bool no_history = false;
};

/// One conversation over an engine with what it attends to.
class ChatSession {
 public:
  /// \param flags, engine must outlive it
  ChatSession(const ChatCommandFlags& flags, Engine& engine, const GenerateOptions& options);

  /// Puts a text before the next message. \return what was read, for people
  std::string add_file(const std::filesystem::path& path);
  /// A message, and the text before it, in the model's chat format. \throws DataError for what
  /// cannot be said in it
  ChatPrompt prepare(const std::string& message);
  /// Reads the message, answers on stdout, and makes both durable in a kept memory. Ctrl-C takes
  /// back what is being read, and ends an answer where it is.
  void answer(const std::string& message, const ChatPrompt& prompt);

  // -- what the commands do. \return what they say, for people \throws Error
  // -----------------------

  std::string memory_text() const;
  /// The memories beside this one.
  std::string memories_text() const;
  /// What was recalled for the last answer.
  std::string recalled_text() const;
  /// Makes a second memory beside this one that shares what is common.
  std::string fork(const std::string& name) const;
  /// \param what "A:B", a range of tokens; "N", an event; else a text, in quotes if it looks like
  ///        one of these
  std::string forget(const std::string& what);
  std::string save();

  /// A line on stderr, unless --quiet.
  void note(const std::string& line) const;
  /// A line on stderr about what could not be done; the conversation goes on.
  void refuse(const std::string& line);

  Json json() const;

 private:
  class StopRequest;

  /// \return false where Ctrl-C came: nothing was read then
  bool read(std::span<const std::int64_t> ids, const StopRequest& stop);
  /// Ids of tokens that were read, here or before; negative where they are not known.
  std::vector<std::int64_t> ids_of(TokenRange range) const;
  std::string text_of_event(TokenRange event) const;
  /// The memory that this process computes with; null on a device and with full attention.
  std::shared_ptr<EpisodicMemory> host_memory() const;
  /// Closed events end here, in all scopes.
  std::int64_t closed_end() const;
  std::filesystem::path memories_folder() const;
  /// Forgets them, one range after the other. \param left what to say of what stays
  std::string forget(const std::vector<TokenRange>& ranges, const std::string& left);

  const ChatCommandFlags& flags_;
  Engine& engine_;
  const GenerateOptions options_;
  Conversation conversation_;
  std::int64_t start_;                   // tokens that were there before
  std::vector<std::int64_t> ids_;        // read and answered since
  std::vector<RecalledEvent> recalled_;  // for the last answer
  std::set<EventId> forgotten_;          // of scope 0
  std::string text_;                     // to be read with the next message
  Json turns_ = Json::array(), refused_ = Json::array();
};

}  // namespace episodic::tools
