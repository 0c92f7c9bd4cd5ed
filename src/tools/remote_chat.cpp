// SPDX-License-Identifier: Apache-2.0
#include "remote_chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/server/api_keys.hpp"
#include "find_text.hpp"

namespace episodic::tools {
namespace {

/// Flags about a model that this process would compute with.
void refuse_local_flags(const ChatCommandFlags& flags) {
  const ModelFlags& model = flags.model;
  const std::pair<const char*, bool> given[] = {
      {"--model", !model.model.empty()},
      {"--memory", !model.memory.empty()},
      {"--lora", !model.lora.empty()},
      {"--quantize", !model.quantize.empty()},
      {"--full-attention", model.full_attention},
      {"--memory-dir", !flags.dir.empty()},
      {"--memories", !flags.memories.empty()},
      {"--max-tokens", flags.max_tokens != ChatCommandFlags().max_tokens},
      {"--threads", flags.common.threads != 0},
      {"--event-tokens", flags.common.event_tokens != 0},
      {"--device", flags.common.device != CommonFlags().device},
      {"--activations", !flags.common.activations.empty()}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      throw ConfigError(fmt::format(
          "{}: says nothing with --server, which has a model of its own; leave it out", name));
}

std::string key_of(const ChatCommandFlags& flags) {
  if (flags.key_file.empty()) {
    const char* key = std::getenv("EPISODIC_API_KEY");
    return key ? key : "";
  }
  server::ApiKeys read = server::read_api_keys(flags.key_file);
  if (!read.warning.empty() && !flags.common.quiet)
    fmt::print(stderr, "episodic: warning: {}\n", read.warning);
  return read.keys.front();
}

/// What the flags ask for; what they leave open is the server's to say.
Json asked_by(const ChatCommandFlags& flags) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const GenerationFlags& g = flags.generation;
  g.options(true);  // refuses what is out of its range
  Json body = Json::object();
  const auto add = [&](const char* name, const auto& value) {
    if (value) body[name] = *value;
  };
  add("max_tokens", g.max_new);
  add("temperature", g.temperature);
  add("top_p", g.top_p);
  add("top_k", g.top_k);
  add("min_p", g.min_p);
  add("repetition_penalty", g.repetition_penalty);
  add("presence_penalty", g.presence_penalty);
  add("frequency_penalty", g.frequency_penalty);
  if (!g.stop.empty()) body["stop"] = g.stop;
  if (g.ignore_eos) body["ignore_eos"] = true;
  if (!flags.grammar.grammar.empty()) body["grammar"] = read_text(flags.grammar.grammar, kMost);
  JsonLimits limits;
  limits.depth = 64;
  limits.remedy = "correct it";
  if (!flags.grammar.json_schema.empty()) {
    const std::string label = flags.grammar.json_schema.string();
    body["response_format"] = {
        {"type", "json_schema"},
        {"json_schema",
         {{"name", "answer"},
          {"schema", parse_ordered(read_text(flags.grammar.json_schema, kMost), label, limits)}}}};
  }
  if (!flags.chat.variables.empty())
    body["chat_template_kwargs"] = parse_ordered(flags.chat.variables, "--chat-variables", limits);
  return body;
}

std::int64_t whole_in(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number_integer() ? at->get<std::int64_t>() : 0;
}

std::string text_in(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

std::string counts_text(const Json& memory) {
  return fmt::format("{} tokens in {} events", count_text(whole_in(memory, "tokens")),
                     count_text(whole_in(memory, "events")));
}

RecalledLine line_of(const Json& event) {
  RecalledLine line;
  line.event = whole_in(event, "event");
  line.rank = whole_in(event, "rank");
  line.tokens = {whole_in(event, "start"), whole_in(event, "end")};
  line.text = text_in(event, "text");
  if (const auto share = event.find("attention"); share != event.end() && share->is_number())
    line.attention = share->get<double>();
  std::vector<std::int64_t> layers;
  if (const auto all = event.find("layers"); all != event.end() && all->is_array())
    for (const Json& layer : *all)
      if (layer.is_number_integer()) layers.push_back(layer.get<std::int64_t>());
  line.layers = layers_text(layers, 0);
  return line;
}

/// What is not of the form that it should have is another program's.
template <class F>
auto of_server(const std::string& address, F&& f) {
  try {
    return f();
  } catch (const Json::exception&) {
    throw ServerError(
        fmt::format("{}: the answer is not of the form that `episodic serve` gives", address), 0);
  }
}

}  // namespace

/// An answer on its way.
struct RemoteChat::Answer {
  ThoughtLine thoughts;
  std::string text = {}, reasoning = {}, finish = {};
  std::int64_t prompt_tokens = 0, tokens = 0;
  Json recalled = {};
};

RemoteChat::RemoteChat(const ChatCommandFlags& flags)
    : ChatBackend(flags), server_((refuse_local_flags(flags), flags.server), key_of(flags)) {
  asks_ = asked_by(flags);
  wait_until_loaded();
  of_server(server_.address(),
            [&] { model_ = server_.get("/models").at("data").at(0).at("id").get<std::string>(); });
  if (kept()) {
    try {
      server_.get(memory_path(""));
    } catch (const ServerError& e) {
      if (e.status() != 404) throw;
      server_.post("/memories", {{"name", flags_.memory_name}});
      note(fmt::format("{} is a new memory of the server", on_one_line(flags_.memory_name)));
    }
  }
  if (!flags_.chat.system.empty())
    messages_.push_back({{"role", "system"}, {"content", flags_.chat.system}});
}

void RemoteChat::wait_until_loaded() const {
  for (bool told = false;; told = true) {
    try {
      server_.get("/models");
      return;
    } catch (const ServerError& e) {
      if (e.status() != 503) throw;
    }
    if (!told) note(fmt::format("{} loads its model; waiting", server_.address()));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

std::string RemoteChat::greeting() const {
  return fmt::format("{} at {}, {}", on_one_line(model_), server_.address(),
                     kept() ? "in its memory " + on_one_line(flags_.memory_name)
                            : std::string("which keeps nothing of this conversation"));
}

std::string RemoteChat::memory_path(const char* command) const {
  if (!kept())
    throw ConfigError(fmt::format(
        "{}: this conversation is not kept; begin it with --memory-name NAME", command));
  return "/memories/" + path_part(flags_.memory_name);
}

void RemoteChat::prepare(const std::string& message) { message_ = message; }

// -- a turn ---------------------------------------------------------------------------------------

Json RemoteChat::request() const {
  Json body = asks_;
  body["model"] = model_;
  body["messages"] = messages_;
  body["messages"].push_back({{"role", "user"}, {"content", text_ + message_}});
  if (kept()) {
    body["memory"] = flags_.memory_name;
    body["store"] = true;
  }
  if (flags_.generation.seed)  // the same message again is another draw
    body["seed"] = *flags_.generation.seed + turns_.size();
  body["include"] = Json::array({"recall"});
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["return_progress"] = true;
  return body;
}

void RemoteChat::take(const Json& part, Answer& answer, const ProgressCallback& read) const {
  if (const auto error = part.find("error"); error != part.end())
    throw ServerError(fmt::format("{}: {}", server_.address(), text_in(*error, "message")), 0);
  if (const auto progress = part.find("prompt_progress"); progress != part.end())
    read(whole_in(*progress, "processed"), whole_in(*progress, "total"));
  if (const auto usage = part.find("usage"); usage != part.end() && usage->is_object()) {
    answer.prompt_tokens = whole_in(*usage, "prompt_tokens");
    answer.tokens = whole_in(*usage, "completion_tokens");
  }
  for (const Json& choice : part.at("choices")) {
    const std::string text = text_in(choice.at("delta"), "content");
    const std::string thought = text_in(choice.at("delta"), "reasoning_content");
    answer.thoughts.show({text, thought});
    if (!text.empty()) flags_.json.say(text);
    answer.text += text;
    answer.reasoning += thought;
    if (const std::string finish = text_in(choice, "finish_reason"); !finish.empty())
      answer.finish = finish;
    if (const auto recalled = choice.find("recalled"); recalled != choice.end())
      answer.recalled = *recalled;
  }
}

void RemoteChat::answer() {
  const StopRequest stop;
  Answer answer{.thoughts = ThoughtLine(flags_.common.quiet)};
  try {
    ProgressBar bar("reading", flags_.common.quiet);
    const ProgressCallback read = bar.callback();
    JsonLimits limits;
    limits.depth = 64;
    limits.remedy = "look whether `episodic serve` answers there";
    const bool whole = of_server(server_.address(), [&] {
      return server_.stream(
          "/chat/completions", request(),
          [&](const std::string& event) {
            take(parse_ordered(event, server_.address(), limits), answer, read);
            return true;
          },
          [&] { return stop.made(); });
    });
    if (!whole) answer.finish = "cancelled";
  } catch (const Error& e) {
    if (!answer.text.empty()) flags_.json.say("\n");
    refuse(on_one_line(e));
    if (kept() && !answer.text.empty()) note("/memory tells whether the turn was kept");
    return;
  }
  add_turn(answer);
}

void RemoteChat::add_turn(const Answer& answer) {
  flags_.json.say("\n");
  const bool cancelled = answer.finish == "cancelled";
  if (answer.finish == "length")
    note(fmt::format("cut at {} tokens; --max-new allows more", answer.tokens));
  if (cancelled) note(kept() ? "stopped; the memory has nothing of this turn" : "stopped");
  Json turn{{"message", message_}};
  if (!cancelled) turn["prompt_tokens"] = answer.prompt_tokens;
  turn["text"] = answer.text;
  turn["finish"] = answer.finish;
  if (!answer.reasoning.empty()) turn["reasoning"] = answer.reasoning;
  recalled_.clear();
  if (answer.recalled.is_array()) {
    for (const Json& event : answer.recalled) recalled_.push_back(line_of(event));
    turn["recalled"] = answer.recalled;
  }
  turns_.push_back(std::move(turn));
  if (kept()) {
    if (cancelled) return;  // the text and the system's message are still to be read
    messages_.clear();
  } else {
    messages_.push_back({{"role", "user"}, {"content", text_ + message_}});
    messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
  }
  text_.clear();
}

// -- commands -------------------------------------------------------------------------------------

std::string RemoteChat::memory_text() const {
  if (!kept())
    return fmt::format(
        "{} messages, which go over with each new one; nothing is kept: --memory-name keeps a "
        "conversation in a memory of the server{}\n",
        messages_.size(), waiting_text());
  const Json memory = server_.get(memory_path("/memory"));
  return fmt::format("{}; kept in {} of {} ({} on disk){}\n", counts_text(memory),
                     on_one_line(flags_.memory_name), server_.address(),
                     bytes_text(whole_in(memory, "bytes")), waiting_text());
}

std::string RemoteChat::memories_text() const {
  const Json all = server_.get("/memories");
  return of_server(server_.address(), [&] {
    const Json& list = all.at("data");
    if (list.empty()) return fmt::format("{}: there are no memories\n", server_.address());
    std::size_t widest = 0;
    for (const Json& m : list) widest = std::max(widest, on_one_line(text_in(m, "name")).size());
    std::string text = fmt::format("memories of {}\n", server_.address());
    for (const Json& m : list)
      text +=
          fmt::format("  {:<{}}  {:>11} tokens  {:>9} events  {:>9}{}\n",
                      on_one_line(text_in(m, "name")), widest, count_text(whole_in(m, "tokens")),
                      count_text(whole_in(m, "events")), bytes_text(whole_in(m, "bytes")),
                      text_in(m, "name") == flags_.memory_name ? "  this conversation"
                      : m.value("written", false)              ? "  being written"
                                                               : "");
    return text;
  });
}

std::string RemoteChat::recalled_text() const {
  if (recalled_.empty()) return "nothing was recalled for the last answer\n";
  return fmt::format("{} {} recalled for the last answer\n",
                     count_text(static_cast<std::int64_t>(recalled_.size())),
                     recalled_.size() == 1 ? "event was" : "events were") +
         recalled_table(recalled_);
}

std::string RemoteChat::fork(const std::string& name) {
  server_.post(memory_path("/fork") + "/fork", {{"name", name}});
  return fmt::format(
      "{} has this conversation up to here; this one goes on in {}. --memory-name {} goes on "
      "there\n",
      on_one_line(name), on_one_line(flags_.memory_name), on_one_line(name));
}

/// Tokens of the events that a text stands in.
std::vector<TokenRange> RemoteChat::ranges_of(const Forgotten& named) const {
  constexpr std::int64_t kPage = 1000;
  if (named.kind == Forgotten::Kind::tokens) return {named.tokens};
  std::vector<PlacedText> events;
  for (std::int64_t first = 0;; first += kPage) {
    const Json page = server_.get(
        fmt::format("{}/events?first={}&limit={}", memory_path("/forget"), first, kPage));
    const Json& list = page.at("data");
    for (const Json& event : list)
      if (!event.at("forgotten").get<bool>())
        events.push_back(
            {event.at("text").get<std::string>(),
             {event.at("start").get<std::int64_t>(), event.at("end").get<std::int64_t>()}});
    if (static_cast<std::int64_t>(list.size()) < kPage) break;
  }
  std::vector<TokenRange> ranges = places_of(events, named.text);
  if (ranges.empty())
    throw DataError(
        fmt::format("/forget: '{}' is in no event of the memory, or is forgotten; letters' case "
                    "counts, white space does not. What was said last is no event yet, and cannot "
                    "be forgotten now",
                    on_one_line(named.text)));
  return ranges;
}

std::string RemoteChat::forget(const std::string& what) {
  const std::string path = memory_path("/forget") + "/forget";
  const Forgotten named = parse_forgotten(what);
  return of_server(server_.address(), [&] {
    std::vector<std::int64_t> gone;
    const auto take = [&](const Json& body) {
      const Json forgotten = server_.post(path, body).at("forgotten");
      for (const Json& event : forgotten) gone.push_back(event.get<std::int64_t>());
    };
    if (named.kind == Forgotten::Kind::event) {
      if (what.size() > 18) throw DataError("/forget " + what + ": there is no such event");
      take({{"event", std::stoll(what)}});
    } else {
      for (const TokenRange& range : ranges_of(named))
        take({{"tokens", Json::array({range.start, range.end})}});
    }
    std::sort(gone.begin(), gone.end());
    gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
    std::string text = gone.size() == 1 ? std::string("1 event forgotten")
                                        : fmt::format("{} events forgotten", gone.size());
    constexpr std::size_t kListed = 20;
    for (std::size_t i = 0; i < std::min(kListed, gone.size()); ++i)
      text += fmt::format("{}{}", i == 0 ? ": " : ", ", gone[i]);
    return text + (gone.size() > kListed ? ", ...\n" : "\n");
  });
}

std::string RemoteChat::save() {
  const Json memory = server_.get(memory_path("/save"));
  return fmt::format("{} tokens are in {}, as after every answer\n",
                     count_text(whole_in(memory, "tokens")), on_one_line(flags_.memory_name));
}

Json RemoteChat::json() const {
  Json json{{"turns", turns_}, {"server", server_.address()}, {"model", model_}};
  if (kept()) json["memory"] = flags_.memory_name;
  if (!refused_.empty()) json["refused"] = refused_;
  if (flags_.generation.seed) json["seed"] = *flags_.generation.seed;
  return json;
}

}  // namespace episodic::tools
