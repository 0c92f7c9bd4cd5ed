// SPDX-License-Identifier: Apache-2.0
#pragma once
// A conversation whose answers a server gives.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chat_backend.hpp"
#include "recalled.hpp"
#include "server_client.hpp"

namespace episodic::tools {

/// A conversation with `episodic serve`. With a memory's name each turn is kept in that memory of
/// the server, and a message goes over alone; without one all messages do each time, and the server
/// keeps nothing. What the server refuses, or that it is away, ends no conversation.
class RemoteChat final : public ChatBackend {
 public:
  /// Waits while the server loads its model. Makes the memory if there is none of that name.
  /// \param flags must outlive it
  /// \throws ConfigError for flags that say nothing to a server, or for its address; ServerError
  /// where it does not answer, or refuses the key or the memory
  explicit RemoteChat(const ChatCommandFlags& flags);

  std::string greeting() const override;
  void prepare(const std::string& message) override;
  /// Ctrl-C ends the answer where it is. With a memory nothing of the turn is kept then.
  void answer() override;
  std::string memory_text() const override;
  /// Those of the server.
  std::string memories_text() const override;
  std::string recalled_text() const override;
  std::string fork(const std::string& name) override;
  std::string forget(const std::string& what) override;
  std::string save() override;
  Json json() const override;

 private:
  struct Answer;

  void wait_until_loaded() const;
  bool kept() const { return !flags_.memory_name.empty(); }
  /// Where the memory is. \throws ConfigError for a conversation that is not kept
  std::string memory_path(const char* command) const;
  Json request() const;
  void take(const Json& part, Answer& answer, const ProgressCallback& read) const;
  void add_turn(const Answer& answer);
  std::vector<TokenRange> ranges_of(const Forgotten& named) const;

  const ServerClient server_;
  std::string model_;
  Json asks_ = Json::object();  // what each request says beside the messages
  Json messages_ = Json::array();
  std::string message_;  // to be answered next
  std::vector<RecalledLine> recalled_;
};

}  // namespace episodic::tools
