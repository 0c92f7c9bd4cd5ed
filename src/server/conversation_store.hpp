// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where conversations are kept: in folders of this machine, or on a tier that several servers
// share.

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/io.hpp"
#include "episodic/store/block_tier.hpp"

namespace episodic::server {

/// Whether a name is an id that Conversations::new_id gives. \param kind "resp", "conv", "memory"
bool is_id(std::string_view id, std::string_view kind);

/// The right to write to an id.
struct HeldConversation {
  virtual ~HeldConversation() = default;
};

/// For each id, of a response ("resp_...") or a conversation ("conv_..."), a text and memories with
/// names of their own. What has no text counts as not there, whatever memories it has. Safe to use
/// from several threads.
class ConversationStore {
 public:
  /// Held until the last copy is gone.
  using Claim = std::shared_ptr<HeldConversation>;
  /// Says from an id's text which of its memories counts; empty: none does.
  using MemoryOf = std::function<std::string(const std::string& text, const std::string& where)>;

  virtual ~ConversationStore() = default;

  /// For messages: where an id's text lies.
  virtual std::string where(const std::string& id) const = 0;
  /// Whether it has a text, be it damaged. \throws FileError
  virtual bool has(const std::string& id) const = 0;
  /// Nothing where it is not there. \throws FileError
  virtual std::optional<std::string> text(const std::string& id) const = 0;
  /// Durable when it returns; others see the text before, or this one. Where it throws, either may
  /// stand there. \param claim of the id \throws FileError; LockedError where the claim was lost
  virtual void put_text(const std::string& id, const std::string& text, const Claim& claim) = 0;

  /// Room for a new id, which its text makes count. What fails before is to be given back by
  /// `abandon`. \return a claim; as long as it is held, nobody takes the id for what a kill left
  virtual Claim begin(const std::string& id) = 0;
  /// Null if another one of any process has it. \throws FileError
  virtual Claim lock(const std::string& id) = 0;

  /// Where a memory of an id is, or is to be made.
  virtual std::filesystem::path memory(const std::string& id, const std::string& name) const = 0;
  virtual void remove_memory(const std::string& id, const std::string& name) noexcept = 0;
  /// The text at once, then its memory. \param name of the memory that counts; may be empty
  /// \throws FileError
  virtual void remove(const std::string& id, const std::string& name) = 0;
  /// What was made of an id that is not to count.
  virtual void abandon(const std::string& id, const std::string& name) noexcept = 0;

  /// Ids of responses whose text is older than this.
  virtual std::vector<std::string> older_than(std::chrono::seconds age) const = 0;
  /// Removes what killed processes left. \param at_start false: others are at work meanwhile, each
  /// hour
  virtual void remove_unfinished(const MemoryOf& memory_of, bool at_start) = 0;
};

/// \throws FileError
std::unique_ptr<ConversationStore> make_conversation_folders(const std::filesystem::path& dir,
                                                             io::Syscalls& calls);
std::unique_ptr<ConversationStore> make_conversation_tier(const TierPlace& tier,
                                                          io::Syscalls& calls);

}  // namespace episodic::server
