// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Memories`: kept memories of one model in a folder or on a tier, by name. Torch-free, knows
/// nothing of HTTP.
///
/// \code
/// server::Memories memories(model, "memories", MemoryConfig{});
/// memories.create("book");
/// auto writer = memories.write("book");
/// Session(writer->sequence(), &model->tokenizer()).prefill(model->tokenizer().encode(text));
/// writer->commit();
/// auto start = memories.start("book");  // answers begin here, many at once
/// \endcode

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/server/request_error.hpp"
#include "episodic/server/starting_point.hpp"
#include "episodic/session/model.hpp"
#include "episodic/session/sequence.hpp"
#include "episodic/store/block_tier.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic::server {

/// What can be said of a memory without opening it.
struct MemoryInfo {
  std::string name;
  std::int64_t tokens = 0, events = 0;
  std::int64_t bytes = 0;       ///< of its files that count; forks share many of them
  std::int64_t generation = 0;  ///< commits so far
  bool written = false;         ///< a writer of this process has it
};

/// An event of a memory, with its text.
struct EventInfo {
  EventId event = 0;
  TokenRange tokens;
  bool forgotten = false, pinned = false;
  std::int64_t recalls = 0;
  std::string text;  ///< empty where its tokens are not known
};

class Memories;

/// The one writer of a memory, until it is destroyed. What was not committed is lost then. Nobody
/// may be in a step of its sequence at that moment; whoever still holds the sequence has none of
/// the memory afterwards.
class MemoryWriter {
 public:
  ~MemoryWriter();
  MemoryWriter(const MemoryWriter&) = delete;
  MemoryWriter& operator=(const MemoryWriter&) = delete;

  const std::string& name() const { return name_; }
  /// Stands at the memory's last commit; its steps are the memory's.
  Sequence& sequence() { return *sequence_; }
  /// The same, for `Work::sequence`.
  std::shared_ptr<Sequence> shared_sequence() const { return sequence_; }
  /// After this returns, no crash loses what was read. \throws as Sequence::commit
  void commit();

 private:
  friend class Memories;
  MemoryWriter(Memories& memories, std::string name)
      : memories_(memories), name_(std::move(name)) {}

  Memories& memories_;
  std::string name_;
  std::shared_ptr<Sequence> sequence_;
};

/// Safe to use from several threads. Names are letters, digits, `.`, `_` and `-`, up to 64 of them,
/// and begin with none of `.` and `-`. Every call that names a memory that is not there throws a
/// RequestError 404; one that needs to write a memory that has a writer throws a RequestError 409.
class Memories {
 public:
  /// \param dir a folder, made if it is not there; or a tier ("shared:DIR"), which other servers
  /// may have too: a memory that one of them writes to is locked for all
  ///
  /// \param settings of memories that `create` makes \param max_tokens that are read or written
  /// behind a memory at most: a device makes room for them; 0: no limit
  ///
  /// \throws ConfigError for a null model, FileError
  Memories(std::shared_ptr<const Model> model, std::filesystem::path dir, MemoryConfig settings,
           std::int64_t max_tokens = 0);

  const std::filesystem::path& dir() const { return dir_; }
  /// Null where they lie in a folder.
  const TierPlace* tier() const { return place_ ? &*place_ : nullptr; }
  /// Of memories that `create` makes.
  const MemoryConfig& settings() const { return settings_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  /// Where a memory is, or would be. \throws RequestError 400 for what is no name
  std::filesystem::path folder(std::string_view name) const;

  /// All of them by name. One that is damaged is left out; `verify` says what it has.
  std::vector<MemoryInfo> list() const;
  MemoryInfo info(const std::string& name) const;

  /// An empty one. \param changes of the settings, as JSON (change_memory_config); may be empty
  /// \throws RequestError 409 if the name is taken, 400 for settings that are none; FileError
  MemoryInfo create(const std::string& name, std::string_view changes = "");
  /// Another one with the same content; shares files with it. \throws RequestError as `create`
  MemoryInfo fork(const std::string& name, const std::string& to);
  /// Deletes its files. Answers that are on their way behind it end as they would have.
  void remove(const std::string& name);

  /// Where answers behind it begin, at its last commit; opened at the first call and after commits.
  /// Of many that are open, those that were asked for longest ago are closed.
  /// \throws FileError, ConfigError for one that was made with another model
  std::shared_ptr<StartingPoint> start(const std::string& name);
  /// Of memories that are open now.
  std::vector<std::shared_ptr<StartingPoint>> open() const;
  /// Starts of memories that were replaced or removed since the last call: nothing begins there any
  /// more (Scheduler::release).
  std::vector<std::shared_ptr<StartingPoint>> take_stale();

  /// \throws as `start`
  std::shared_ptr<MemoryWriter> write(const std::string& name);

  // Edits, each committed when it returns.

  /// \return the events that will never be recalled again \throws DataError
  std::vector<EventId> forget(const std::string& name, TokenRange tokens);
  void forget(const std::string& name, EventId event);
  void pin(const std::string& name, EventId event, bool pinned);
  /// Back to the state after so many tokens, some of which are read again.
  void rewind(const std::string& name, std::int64_t tokens);

  /// Reads all of it and checks every checksum.
  VerifyReport verify(const std::string& name) const;
  /// Events [first, first + most) of the sequence, in order of time.
  std::vector<EventInfo> events(const std::string& name, std::int64_t first, std::int64_t most);

 private:
  friend class MemoryWriter;

  struct Opened {
    std::uint64_t id = 0;
    std::int64_t generation = -1;
    std::shared_ptr<StartingPoint> start;
    std::uint64_t used = 0;  ///< by the count of `uses_`
  };
  /// A writer's place, taken as long as it lives. \throws RequestError 404, 409
  std::shared_ptr<MemoryWriter> claim(const std::string& name);
  MemoryManifest manifest(const std::string& name) const;
  std::shared_ptr<EpisodicMemory> open_to_edit(const std::string& name) const;
  std::vector<std::string> names() const;
  void put_in_place(const std::string& name,
                    const std::function<void(const std::filesystem::path&)>& make);
  void written(const std::string& name);

  const std::shared_ptr<const Model> model_;
  const std::filesystem::path dir_;
  const std::optional<TierPlace> place_;
  const std::shared_ptr<BlockTier> tier_;
  const MemoryConfig settings_;
  const std::int64_t max_tokens_;
  mutable std::mutex mutex_;
  void close_idle();
  std::map<std::string, Opened> opened_;
  std::uint64_t uses_ = 0;
  std::vector<std::string> writers_;
  std::vector<std::shared_ptr<StartingPoint>> stale_;
};

}  // namespace episodic::server
