// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation in the terminal: its turns, and what its commands do.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "chat_backend.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/passages.hpp"
#include "recalled.hpp"

namespace episodic::tools {

/// One conversation over an engine with what it attends to.
class ChatSession final : public ChatBackend {
 public:
  /// \param engine must outlive it, as flags must \param source of the options, for people
  ChatSession(const ChatCommandFlags& flags, Engine& engine, const GenerateOptions& options,
              std::string source);

  std::string greeting() const override;
  /// In the model's chat format.
  void prepare(const std::string& message) override;
  /// Reads the message, answers, and makes both durable in a kept memory. Ctrl-C takes back what is
  /// being read, and ends an answer where it is.
  void answer() override;
  std::string memory_text() const override;
  /// The memories beside this one.
  std::string memories_text() const override;
  std::string recalled_text() const override;
  /// The second memory lies beside this one, and shares what is common.
  std::string fork(const std::string& name) override;
  std::string forget(const std::string& what) override;
  std::string save() override;
  Json json() const override;

 private:
  /// The passages that the message asks for; none without --reread.
  std::vector<Passage> find_passages();
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

  Engine& engine_;
  const GenerateOptions options_;
  const std::string source_;
  Conversation conversation_;
  std::int64_t start_;                   // tokens that were there before
  std::vector<std::int64_t> ids_;        // read and answered since
  std::vector<RecalledEvent> recalled_;  // for the last answer
  std::set<EventId> forgotten_;          // of scope 0
  std::string message_;                  // to be answered next
  ChatPrompt prompt_;
  std::optional<PassageFinder> finder_;
  const ToolCallFormat format_;
  ChatAnswer reply_;  // to the message
};

}  // namespace episodic::tools
