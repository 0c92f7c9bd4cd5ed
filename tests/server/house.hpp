// SPDX-License-Identifier: Apache-2.0
#pragma once
// A server that keeps conversations, and what the same conversations answer without one.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "episodic/model/memory_settings.hpp"
#include "episodic/server/conversations.hpp"
#include "episodic/session/conversation.hpp"
#include "serving.hpp"

namespace serving {

/// A server with memories in a folder or on a tier, which may be stopped and started again.
class House {
 public:
  explicit House(const fs::path& model_dir, fs::path memories, ConversationsOptions options = {},
                 SchedulerOptions limits = {})
      : model_dir_(model_dir),
        memories_dir_(std::move(memories)),
        options_(std::move(options)),
        limits_(limits) {
    start();
  }

  void start() {
    auto model = load_model(model_dir_);
    auto empty = std::make_shared<Sequence>(model);
    empty->attach();
    parts_.emplace(model, memories_dir_, memory_config_of(model_dir_), std::move(empty), limits_,
                   options_);
  }
  void stop() { parts_.reset(); }
  void restart() {
    stop();
    start();
  }

  Service& service() { return parts_->service; }
  Memories& memories() { return parts_->memories; }
  const Running& running() const { return parts_->running; }
  fs::path responses() const { return memories_dir_ / ".responses"; }

  std::pair<int, json> ask(const std::string& method, const std::string& path,
                           const json& body = nullptr) const {
    httplib::Client client = running().client();
    const std::string text = body.is_null() ? "" : body.dump();
    const auto response = method == "POST"     ? client.Post(path, text, "application/json")
                          : method == "DELETE" ? client.Delete(path)
                                               : client.Get(path);
    if (!response) return {0, nullptr};
    return {response->status, json::parse(response->body)};
  }
  json get(const std::string& path) const { return taken(ask("GET", path)); }
  json post(const std::string& path, const json& body) const {
    return taken(ask("POST", path, body));
  }
  json respond(json body) const {
    body.emplace("max_output_tokens", 6);
    return post("/v1/responses", body);
  }

 private:
  static json taken(const std::pair<int, json>& answer) {
    INFO(answer.second.dump());
    REQUIRE((answer.first == 200 || answer.first == 201));
    return answer.second;
  }
  struct Parts {
    Memories memories;
    Service service;
    Running running;
    static ServerOptions options_of(const ConversationsOptions& conversations) {
      ServerOptions options;
      options.conversations = conversations;
      return options;
    }
    Parts(const std::shared_ptr<const Model>& model, const fs::path& dir,
          const MemoryConfig& settings, std::shared_ptr<Sequence> empty,
          const SchedulerOptions& limits, const ConversationsOptions& conversations)
        : memories(model, dir, settings),
          service(model, std::make_shared<StartingPoint>(std::move(empty)), &memories, limits),
          running(service, options_of(conversations)) {}
  };

  fs::path model_dir_, memories_dir_;
  ConversationsOptions options_;
  SchedulerOptions limits_;
  std::optional<Parts> parts_;
};

inline std::string text_of_response(const json& response) {
  return response["output"][0]["content"][0]["text"];
}

inline json after(const json& response, const std::string& said) {
  return {{"previous_response_id", response["id"]}, {"input", said}};
}

/// A turn of a conversation that streams until its client leaves.
inline json endless_turn(const std::string& conversation) {
  return {{"conversation", conversation},
          {"input", "The"},
          {"max_output_tokens", 2'000'000'000},
          {"ignore_eos", true},
          {"stream", true}};
}

/// What a conversation that is never closed answers: one sequence from its first turn on.
class NeverClosed {
 public:
  NeverClosed(House& house, std::int64_t most = 6)
      : house_(house),
        model_(house.service().shared_model()),
        sequence_(std::make_shared<Sequence>(model_)),
        talk_(model_->chat_template(), model_->tokenizer()),
        most_(most) {
    sequence_->attach(memory_config_of(model_->dir()));
  }
  std::string say(const std::string& text) {
    Work work;
    work.prompt = talk_.ask({{"user", text}});
    work.options = few_tokens(most_);
    work.sequence = sequence_;
    const Served served = house_.service().scheduler().answer(std::move(work));
    talk_.answered(served.result.text);
    return served.result.text;
  }

 private:
  House& house_;
  std::shared_ptr<const Model> model_;
  std::shared_ptr<Sequence> sequence_;
  Conversation talk_;
  std::int64_t most_;
};

}  // namespace serving
