// SPDX-License-Identifier: Apache-2.0
// .responses/resp_ID/       memory, response.json
// .conversations/conv_ID/   memory_N, conversation.json, lock
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "conversation_store.hpp"
#include "episodic/base/error.hpp"

namespace episodic::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "lock";
constexpr std::string_view kRemovedTurn = ".removed-";

/// A folder below one that is there; it is there already: fine.
void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("{}: cannot be made ({}); it must lie in a folder that can be "
                    "written",
                    folder.string(), error.message()));
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) all.push_back(entry.path());
  return all;
}

std::span<const std::byte> text_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class ConversationFolders final : public ConversationStore {
 public:
  ConversationFolders(const fs::path& dir, io::Syscalls& calls)
      : calls_(calls), responses_(dir / ".responses"), conversations_(dir / ".conversations") {
    make_folder(responses_);
    make_folder(conversations_);
    const io::Directory folder(calls_, responses_);
    owner_ = folder.look(kLock) ? folder.open(io::Kind::lock, kLock, O_RDWR)
                                : folder.create(io::Kind::lock, kLock);
  }

  std::string where(const std::string& id) const override { return file_of(id).string(); }

  bool has(const std::string& id) const override {
    std::error_code error;
    return fs::exists(file_of(id), error);
  }

  std::optional<std::string> text(const std::string& id) const override {
    if (!has(id)) return std::nullopt;
    const fs::path file = file_of(id);
    const std::vector<std::byte> bytes = io::Directory(calls_, file.parent_path())
                                             .read(io::Kind::manifest, file.filename().string());
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void put_text(const std::string& id, const std::string& text, const Claim&) override {
    const fs::path file = file_of(id);
    const bool is_new = !has(id);
    io::Directory(calls_, file.parent_path())
        .replace(io::Kind::manifest, file.filename().string(), text_bytes(text));
    if (is_new) io::Directory(calls_, file.parent_path().parent_path()).sync();
  }

  Claim begin(const std::string& id) override {
    make_folder(folder_of(id));
    if (is_conversation(id)) io::Directory(calls_, folder_of(id)).create(io::Kind::lock, kLock);
    return std::make_shared<HeldConversation>();  // owner_ keeps others out
  }

  Claim lock(const std::string& id) override {
    const io::Directory folder(calls_, folder_of(id));
    auto held = std::make_shared<HeldFile>();
    held->file = folder.open(io::Kind::lock, kLock, O_RDWR);
    const int result = calls_.lock(io::Kind::lock, held->file.fd(), true);
    if (result == -EWOULDBLOCK) return nullptr;
    if (result < 0) io::fail(-result, held->file.path(), "lock it");
    return held;
  }

  fs::path memory(const std::string& id, const std::string& name) const override {
    return folder_of(id) / name;
  }

  void remove_memory(const std::string& id, const std::string& name) noexcept override {
    std::error_code ignored;
    fs::remove_all(memory(id, name), ignored);
  }

  /// At once, so that nothing half deleted ever counts.
  void remove(const std::string& id, const std::string&) override {
    const fs::path folder = folder_of(id);
    const fs::path gone = folder.parent_path() / (std::string(kRemovedTurn) + id);
    std::error_code error, ignored;
    fs::remove_all(gone, ignored);
    fs::rename(folder, gone, error);
    if (error)
      throw FileError(fmt::format("{}: cannot be removed ({})", folder.string(), error.message()));
    fs::remove_all(gone, ignored);
  }

  void abandon(const std::string& id, const std::string&) noexcept override {
    std::error_code ignored;
    fs::remove_all(folder_of(id), ignored);
  }

  std::vector<std::string> older_than(std::chrono::seconds age) const override {
    const auto before = fs::file_time_type::clock::now() - age;
    std::vector<std::string> old;
    for (const fs::path& entry : entries_of(responses_)) {
      const std::string id = entry.filename().string();
      if (!is_id(id, "resp")) continue;
      std::error_code error;
      const auto written = fs::last_write_time(file_of(id), error);
      if (!error && written < before) old.push_back(id);
    }
    return old;
  }

  void remove_unfinished(const MemoryOf& memory_of, bool at_start) override {
    if (!at_start) return;
    // what another process is making looks as what a kill left does
    const bool alone = calls_.lock(io::Kind::lock, owner_.fd(), true) == 0;
    if (alone) {
      sweep(responses_, "resp");
      sweep(conversations_, "conv");
      for (const fs::path& entry : entries_of(conversations_))
        if (is_id(entry.filename().string(), "conv")) remove_others(entry, memory_of);
    }
    calls_.lock(io::Kind::lock, owner_.fd(), false);  // shared, as long as this lives
  }

 private:
  struct HeldFile : HeldConversation {
    io::File file;
  };

  static bool is_conversation(const std::string& id) { return id.starts_with("conv"); }
  fs::path folder_of(const std::string& id) const {
    return (is_conversation(id) ? conversations_ : responses_) / id;
  }
  fs::path file_of(const std::string& id) const {
    return folder_of(id) / (is_conversation(id) ? "conversation.json" : "response.json");
  }

  void sweep(const fs::path& in, const char* kind) const {
    std::error_code ignored;
    for (const fs::path& entry : entries_of(in)) {
      const std::string name = entry.filename().string();
      const bool unfinished = is_id(name, kind) && !has(name);
      if (unfinished || name.starts_with(kRemovedTurn)) fs::remove_all(entry, ignored);
    }
  }

  void remove_others(const fs::path& folder, const MemoryOf& memory_of) {
    const std::string id = folder.filename().string();
    try {
      const std::string counts = memory_of(text(id).value_or(""), where(id));
      for (const fs::path& memory : entries_of(folder)) {
        const std::string name = memory.filename().string();
        if (name.starts_with("memory") && name != counts) remove_memory(id, name);
      }
    } catch (const std::exception&) {  // says so when it is asked for
    }
  }

  io::Syscalls& calls_;
  fs::path responses_, conversations_;
  io::File owner_;  // shared lock as long as it lives
};

}  // namespace

std::unique_ptr<ConversationStore> make_conversation_folders(const fs::path& dir,
                                                             io::Syscalls& calls) {
  return std::make_unique<ConversationFolders>(dir, calls);
}

}  // namespace episodic::server
