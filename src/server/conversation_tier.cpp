// SPDX-License-Identifier: Apache-2.0
// An id is a record of the tier, and its memories lie beside it: resp_ID.memory, conv_ID.memory_N.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "conversation_store.hpp"
#include "episodic/base/error.hpp"
#include "episodic/store/tier_lease.hpp"
#include "episodic/store/tier_record.hpp"

namespace episodic::server {
namespace {

namespace fs = std::filesystem;

class ConversationTier final : public ConversationStore {
 public:
  ConversationTier(const TierPlace& place, io::Syscalls& calls)
      : place_(place), tier_(open_tier(place, calls)) {}

  std::string where(const std::string& id) const override { return place_.with_name(id).text(); }

  bool has(const std::string& id) const override { return !tier_->head(id).bytes.empty(); }

  std::optional<std::string> text(const std::string& id) const override {
    std::optional<TierRecord> record = read_tier_record(*tier_, id);
    return record ? std::optional(std::move(record->text)) : std::nullopt;
  }

  void put_text(const std::string& id, const std::string& text, const Claim& claim) override {
    auto& held = dynamic_cast<HeldLease&>(*claim);
    if (!exchange_tier_record(*tier_, id, held.version, text))
      throw LockedError(fmt::format(
          "{}: this server slept through its lease, and another one went on; nothing was kept: ask "
          "again",
          where(id)));
    ++held.version;
  }

  Claim begin(const std::string& id) override {
    Claim claim = lock(id);
    if (!claim) throw LockedError(where(id) + ": another server is making it; ask again");
    return claim;
  }

  Claim lock(const std::string& id) override {
    auto held = std::make_shared<HeldLease>();
    held->lease = TierLease::take(tier_, id, place_.lease_seconds);
    if (!held->lease) return nullptr;
    held->version = tier_->head(id).version;
    return held;
  }

  fs::path memory(const std::string& id, const std::string& name) const override {
    return place_.with_name(name_of(id, name)).path();
  }

  void remove_memory(const std::string& id, const std::string& name) noexcept override {
    try {
      end_tier_name(*tier_, name_of(id, name));
    } catch (const std::exception&) {  // remove_unfinished finds it
    }
  }

  void remove(const std::string& id, const std::string& name) override {
    end_tier_name(*tier_, id);
    if (!name.empty()) remove_memory(id, name);
  }

  void abandon(const std::string& id, const std::string& name) noexcept override {
    try {
      remove(id, name);  // its text may be there: the answer to a write may have been lost
    } catch (const std::exception&) {  // a response that nobody was told of, whole or found later
    }
  }

  std::vector<std::string> older_than(std::chrono::seconds age) const override {
    const std::int64_t before = std::chrono::duration_cast<std::chrono::seconds>(
                                    std::chrono::system_clock::now().time_since_epoch() - age)
                                    .count();
    std::vector<std::string> old;
    for (const std::string& name : tier_->names()) {
      if (!is_id(name, "resp")) continue;
      try {
        const std::optional<TierRecord> record = read_tier_record(*tier_, name);
        if (record && record->written < before) old.push_back(name);
      } catch (const FileError&) {  // a damaged one says so when it is asked for
      }
    }
    return old;
  }

  void remove_unfinished(const MemoryOf& memory_of, bool) override {
    std::set<std::string> texts;
    std::map<std::string, std::vector<std::string>> memories;  // of each id
    for (const std::string& name : tier_->names()) {
      const std::size_t dot = name.find('.');
      const std::string id = name.substr(0, dot);
      if (!is_id(id, "resp") && !is_id(id, "conv")) continue;
      if (dot == std::string::npos)
        texts.insert(id);
      else
        memories[id].push_back(name.substr(dot + 1));
    }
    for (const auto& [id, names] : memories)
      if (names.size() > 1 || !texts.contains(id)) remove_others(id, names, memory_of);
  }

 private:
  struct HeldLease : HeldConversation {
    std::unique_ptr<TierLease> lease;
    std::int64_t version = 0;  // of the record that stands
  };

  static std::string name_of(const std::string& id, const std::string& memory) {
    return id + "." + memory;
  }

  void remove_others(const std::string& id, const std::vector<std::string>& names,
                     const MemoryOf& memory_of) {
    try {
      const Claim claim = lock(id);
      if (!claim) return;  // somebody is at work there
      const std::optional<std::string> now = text(id);
      const std::string counts = now ? memory_of(*now, where(id)) : "";
      for (const std::string& name : names)
        if (name != counts) remove_memory(id, name);
    } catch (const std::exception&) {  // says so when it is asked for
    }
  }

  TierPlace place_;
  std::shared_ptr<BlockTier> tier_;
};

}  // namespace

std::unique_ptr<ConversationStore> make_conversation_tier(const TierPlace& tier,
                                                          io::Syscalls& calls) {
  return std::make_unique<ConversationTier>(tier, calls);
}

}  // namespace episodic::server
