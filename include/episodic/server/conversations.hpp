// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Conversations`: conversations that outlive the process, as branches or as one that grows.
/// Torch-free, knows nothing of HTTP.
///
/// \code
/// server::Conversations kept(service);
/// auto turn = kept.begin({.memory = "book"});
/// // ... turn->sequence() reads what turn->history() leaves to be read, and writes the answer ...
/// turn->finish(std::move(history), R"({"text": "..."})");
/// auto next = kept.begin({.previous = turn->id()});  // a branch: others may begin there too
/// \endcode

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "episodic/base/io.hpp"
#include "episodic/server/in_flight.hpp"
#include "episodic/server/service.hpp"
#include "episodic/text/chat_template.hpp"

namespace episodic::server {

struct ConversationsOptions {
  /// Folder of the memory that conversations begin behind which name none; empty: an empty memory.
  std::filesystem::path base = {};
  std::chrono::seconds keep = std::chrono::hours(24 * 30);  ///< of a response; 0: for ever
  io::Syscalls* calls = nullptr;                            ///< null: the real ones
};

/// Where a turn begins. At most one of `previous` and `conversation` is given.
struct TurnStart {
  std::string previous = {};      ///< id of a response
  std::string conversation = {};  ///< id of a conversation, which the turn is added to
  /// Name of a memory that the first turn begins behind. Later ones have it already, and naming
  /// another one is refused.
  std::string memory = {};
  /// The same for a turn that names none; a later turn passes over it.
  std::string default_memory = {};
  bool store = true;  ///< whether the response can be begun from, and looked at, later
};

class Conversations;
class ConversationStore;
struct HeldConversation;

/// A turn on its way. Destroyed before `finish` has returned, it leaves no trace; the next one of
/// the same conversation may then come.
class Turn {
 public:
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Of the response that it becomes.
  const std::string& id() const { return id_; }
  /// What has been read: nothing, or messages of which the last is an answer.
  const std::vector<ChatMessage>& history() const { return history_; }
  /// Name of the memory that the conversation began behind; may be empty.
  const std::string& memory() const { return memory_; }
  /// What the conversation's last turn left beside it; empty without one.
  const std::string& conversation_record() const { return conversation_record_; }
  /// What the response that it begins behind left; empty without one.
  const std::string& previous_record() const { return previous_record_; }

  /// Of a turn that is kept: a sequence of its own. Null where `start` is given.
  const std::shared_ptr<Sequence>& sequence() const { return sequence_; }
  /// Of a turn that is not.
  const std::shared_ptr<StartingPoint>& start() const { return start_; }
  /// Tokens that stand before it.
  std::int64_t tokens() const { return sequence_ ? sequence_->tokens() : start_->tokens(); }

  /// Its end waits for the end of this, which steps the sequence.
  void watch(std::shared_ptr<InFlight> in_flight) { in_flight_ = std::move(in_flight); }
  /// Makes all of it durable where it is kept: the response whole, then the conversation.
  /// \param history all that has now been read \param record what the caller keeps of the response,
  /// a JSON object \param conversation_record and of the conversation, where it is in one
  /// \throws FileError; nothing of the turn is left then once it is destroyed
  void finish(std::vector<ChatMessage> history, const std::string& record,
              const std::string& conversation_record = {});

 private:
  friend class Conversations;
  explicit Turn(Conversations& all) : all_(all) {}
  void detach();
  void give_up();

  Conversations& all_;
  std::string id_, conversation_, memory_, previous_, conversation_record_, previous_record_;
  std::string head_;  // of the conversation: name of its memory; empty: it has read nothing
  std::string new_head_;
  std::vector<ChatMessage> history_;
  bool store_ = false, finished_ = false;
  bool tried_ = false;  // to let the conversation name the new memory
  std::shared_ptr<HeldConversation> lock_, response_;  // of the conversation, of the response
  std::shared_ptr<Sequence> sequence_;
  std::shared_ptr<StartingPoint> start_;
  std::shared_ptr<InFlight> in_flight_;
};

/// Beside the memories by name (Memories), in folders of their own:
///
///     .responses/resp_ID/       memory, response.json
///     .conversations/conv_ID/   memory_N, conversation.json, lock
///
/// or under names of their own on a tier, where any of several servers goes on with what another
/// one has kept (docs/network.md).
///
/// A response's memory is a fork of the one before it, so any number of turns begin behind one
/// response. A conversation's is a fork too: the next turn is made beside the last one, and its
/// JSON then says which counts. What has no JSON is what a kill left, and is removed when nobody
/// is at work on it. Idle ones hold no memory of the process. Safe to use from several threads.
class Conversations {
 public:
  /// \param service with memories by name; must outlive it
  /// \throws ConfigError without them; FileError
  explicit Conversations(Service& service, ConversationsOptions options = {});
  ~Conversations();
  Conversations(const Conversations&) = delete;
  Conversations& operator=(const Conversations&) = delete;

  /// \throws RequestError 404 for what is not there, 409 for a conversation with a turn on its way,
  ///         400 for another model's; FileError
  std::shared_ptr<Turn> begin(const TurnStart& start);

  /// What `Turn::finish` was given. \throws RequestError 404
  std::string response(const std::string& id) const;
  /// \throws RequestError 404
  void remove_response(const std::string& id);
  /// Removes responses that are older than `keep`; done at the start and once an hour. One that a
  /// turn begins behind stays. \return how many
  std::int64_t expire();

  /// A new one. \param record of the caller's, for its id \return the id
  std::string create_conversation(const std::string& memory,
                                  const std::function<std::string(const std::string& id)>& record);
  /// \throws RequestError 404
  std::string conversation(const std::string& id) const;
  /// Replaces its record. \throws RequestError 404, 409
  void change_conversation(const std::string& id,
                           const std::function<std::string(const std::string& record)>& change);
  /// Its responses stay. \throws RequestError 404, 409
  void remove_conversation(const std::string& id);

  /// An id that nothing has. \param kind "resp", "conv", "msg"
  static std::string new_id(const char* kind);

 private:
  friend class Turn;
  struct Kept;  // what a JSON file holds

  std::optional<Kept> find(const std::string& id) const;
  Kept response_kept(const std::string& id) const;
  Kept conversation_kept(const std::string& id) const;
  std::shared_ptr<HeldConversation> lock(const std::string& conversation) const;
  std::filesystem::path begun_at(Turn& turn, const TurnStart& start);
  void open_to_write(Turn& turn, const std::filesystem::path& from);
  std::shared_ptr<StartingPoint> open_to_read(const std::string& response);
  void remove_unfinished(bool at_start) const;

  Service& service_;
  const ConversationsOptions options_;
  io::Syscalls& calls_;
  std::unique_ptr<ConversationStore> store_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  std::multiset<std::string> in_use_;  // responses that turns begin behind
  std::map<std::string, std::weak_ptr<StartingPoint>> opened_;
  bool stopped_ = false;
  std::thread hourly_;
};

}  // namespace episodic::server
