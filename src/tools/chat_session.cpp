// SPDX-License-Identifier: Apache-2.0
#include "chat_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "find_text.hpp"
#include "kept.hpp"
#include "memories.hpp"

namespace episodic::tools {
namespace {

std::string counted(std::int64_t n, const char* one, const char* many) {
  return n == 1 ? fmt::format("1 {}", one) : fmt::format("{} {}", count_text(n), many);
}

}  // namespace

ChatSession::ChatSession(const ChatCommandFlags& flags, Engine& engine,
                         const GenerateOptions& options, std::string source)
    : ChatBackend(flags),
      engine_(engine),
      options_(options),
      source_(std::move(source)),
      conversation_(flags.chat, flags.model.model, engine.tokenizer(), engine.tokens() > 0),
      start_(engine.tokens()),
      format_(chat_format(flags.model.model, engine.tokenizer())),
      reply_(format_, options.grammar != nullptr) {
  if (engine.kept())
    forgotten_.insert(engine.kept()->forgotten().begin(), engine.kept()->forgotten().end());
}

std::string ChatSession::greeting() const {
  return fmt::format("{}{}; an answer ends with its turn, or at {} tokens",
                     sampling_text(options_.sampling), source_.empty() ? "" : " (" + source_ + ")",
                     options_.max_new);
}

void ChatSession::prepare(const std::string& message) {
  prompt_ = conversation_.ask(text_, message, reply_.turn());
  message_ = message;
}

std::vector<Passage> ChatSession::find_passages() {
  if (flags_.reread == 0 || engine_.n_events() == 0) return {};
  if (!finder_) {
    finder_.emplace(engine_.shared_model());
    finder_->set_vectors(flags_.encoder.vectors());
  }
  if (engine_.kept()) finder_->keep_vectors(VectorFolder::of(*engine_.kept()));
  ProgressBar bar("encoding the text", flags_.common.quiet || flags_.encoder.dir.empty());
  finder_->follow(*engine_.memory(), [this](TokenRange range) { return ids_of(range); });
  finder_->encode(bar.callback());
  ProgressBar choosing("choosing passages", flags_.common.quiet || flags_.rerank == 0);
  return finder_->find(message_, {.count = flags_.reread, .rerank = flags_.rerank},
                       choosing.callback());
}

/// What is read again is for this answer alone: behind it the conversation goes on as if message
/// and answer had been all.
void ChatSession::answer() {
  const ChatPrompt prompt = std::move(prompt_);
  const StopRequest stop;
  const std::vector<Passage> passages = find_passages();
  std::shared_ptr<const Engine::Snapshot> before;
  ChatPrompt with_passages;
  if (!passages.empty()) {
    before = engine_.snapshot();
    with_passages =
        conversation_.ask(joined_text(passages) + "\n\n" + text_, message_, reply_.turn());
    conversation_.ask(text_, message_, reply_.turn());  // which is what was said
  }
  const ChatPrompt& asked = before ? with_passages : prompt;
  const std::span<const std::int64_t> all(asked.text);
  // without a question of its own, the last token is the step that the answer starts from
  const std::size_t body = all.size() - (asked.question.empty() ? 1 : 0);
  if (!read(all.first(body), stop)) return;
  GenerateOptions options = options_;
  options.sampling.seed += turns_.size();  // the same message again is another draw
  options.feed_last = true;                // the next turn goes on behind the whole answer
  std::optional<RecallNotes> notes;
  const std::shared_ptr<EpisodicMemory> host = host_memory();
  if (engine_.has_memory() && engine_.can(Capability::inspect)) notes.emplace(engine_, host.get());
  bool noted = false;
  const auto note_recall = [&] {  // of the last step; a device would have to be waited for
    if (notes && (host || !noted)) notes->note();
    noted = true;
  };
  ThoughtLine thoughts(flags_.common.quiet);
  const auto show = [&](const AnswerTexts& texts) {
    thoughts.show(texts);
    flags_.json.say(texts.content);
  };
  options.shown_tokens = format_.shown_tokens(engine_.tokenizer());
  options.on_token = [&](std::int64_t, std::string_view text) {
    note_recall();
    show(reply_.push(text));
    return !stop.made();
  };
  recalled_.clear();
  const GenerateResult result = engine_.generate(
      asked.question.empty() ? all.subspan(body) : std::span(asked.question), options);
  show(reply_.finish());
  if (!noted) note_recall();
  if (notes) recalled_ = notes->ranked();
  if (before) {
    engine_.restore(*before);
    for (const auto* ids : {&prompt.text, &prompt.question, &result.ids}) engine_.read(*ids);
  }
  flags_.json.say("\n");
  if (result.finish == FinishReason::length)
    note(fmt::format("cut at {} tokens; --max-new allows more", result.ids.size()));
  if (result.finish == FinishReason::cancelled) note("stopped");
  if (engine_.kept()) engine_.commit();
  for (const auto* ids : {&prompt.text, &prompt.question, &result.ids})
    ids_.insert(ids_.end(), ids->begin(), ids->end());
  Json turn{{"message", message_},
            {"prompt_tokens", prompt.text.size() + prompt.question.size()},
            {"ids", result.ids},
            {"text", reply_.texts().content},
            {"finish", name_of(result.finish)}};
  if (!reply_.texts().reasoning.empty()) turn["reasoning"] = reply_.texts().reasoning;
  if (!passages.empty()) turn["passages"] = passages_json(passages);
  if (notes && flags_.json.wanted())
    turn["recalled"] = recalled_json(recalled_, *engine_.memory(),
                                     [this](TokenRange event) { return text_of_event(event); });
  turns_.push_back(std::move(turn));
  conversation_.answered(reply_.texts().content);
  text_.clear();
}

bool ChatSession::read(std::span<const std::int64_t> ids, const StopRequest& stop) {
  ProgressBar bar("reading", flags_.common.quiet);
  // One step cannot be stopped, and where there is no state to go back to, reading is not: the
  // answer is then, at its first token.
  if (static_cast<std::int64_t>(ids.size()) <= engine_.chunk() ||
      !engine_.can(Capability::snapshot)) {
    engine_.read(ids, bar.callback());
    return true;
  }
  const std::shared_ptr<const Engine::Snapshot> before = engine_.snapshot();
  const ProgressCallback draw = bar.callback();
  engine_.read(ids, [&](std::int64_t done, std::int64_t total) {
    return draw(done, total) && !stop.made();
  });
  if (!stop.made()) return true;
  engine_.restore(*before);
  note("stopped; the message was not read");
  return false;
}

std::vector<std::int64_t> ChatSession::ids_of(TokenRange range) const {
  std::vector<std::int64_t> ids;
  if (range.start < start_ && engine_.kept())
    ids = engine_.kept()->token_ids(range.start, std::min(range.end, start_) - range.start);
  for (std::int64_t t = std::max(range.start, start_); t < range.end; ++t)
    ids.push_back(t - start_ < static_cast<std::int64_t>(ids_.size())
                      ? ids_[static_cast<std::size_t>(t - start_)]
                      : -1);
  return ids;
}

std::string ChatSession::text_of_event(TokenRange event) const {
  return event_text([this](TokenRange range) { return ids_of(range); }, engine_.tokenizer(), event);
}

std::shared_ptr<EpisodicMemory> ChatSession::host_memory() const {
  SequenceMemory* memory = engine_.memory();
  if (engine_.kept()) return memory == engine_.kept().get() ? engine_.kept() : nullptr;
  // the engine's own, which it outlives
  return {std::shared_ptr<void>(), dynamic_cast<EpisodicMemory*>(memory)};
}

std::int64_t ChatSession::closed_end() const {
  const SequenceMemory& memory = *engine_.memory();
  const bool heads = memory.config().scope == EventScope::head;
  const std::int64_t scopes =
      heads ? memory.shape().n_layers * memory.config().lanes_per_layer(memory.shape().n_kv_heads)
            : 1;
  std::int64_t end = memory.tokens();
  for (std::int64_t s = 0; s < scopes; ++s) end = std::min(end, memory.events(s).pending_start());
  return end;
}

std::filesystem::path ChatSession::memories_folder() const {
  if (!flags_.memories.empty()) return flags_.memories;
  std::filesystem::path dir = std::filesystem::absolute(flags_.dir).lexically_normal();
  if (!dir.has_filename()) dir = dir.parent_path();  // of "talks.mem/"
  return dir.parent_path();
}

std::string ChatSession::memory_text() const {
  if (!engine_.has_memory())
    return fmt::format("full attention over {} tokens; there is no memory\n",
                       count_text(engine_.tokens()));
  const MemoryUsage u = engine_.usage();
  std::string text =
      fmt::format("{} tokens in {} events; {} of keys and values", count_text(engine_.tokens()),
                  count_text(u.events), bytes_text(u.store_bytes));
  if (engine_.kept())
    text += fmt::format("; kept in {} ({} on disk)", flags_.dir.string(),
                        bytes_text(std::max<std::int64_t>(0, u.disk_bytes)));
  else
    text += "; not kept: --memory-dir keeps a conversation in a folder";
  return text + waiting_text() + "\n";
}

std::string ChatSession::memories_text() const {
  if (flags_.dir.empty() && flags_.memories.empty())
    throw ConfigError(
        "/memories: this conversation is not kept; begin it with --memory-dir DIR, or name a "
        "folder of memories with --memories DIR");
  const std::filesystem::path folder = memories_folder();
  const std::vector<NamedMemory> all = memories_in(folder);
  if (all.empty()) return fmt::format("{}: there are no memories\n", folder.string());
  std::size_t widest = 0;
  for (const NamedMemory& m : all) widest = std::max(widest, on_one_line(m.name).size());
  std::string text = fmt::format("memories in {}\n", folder.string());
  for (const NamedMemory& m : all) {
    text += fmt::format("  {:<{}}  ", on_one_line(m.name), widest);
    if (!m.damage.empty()) {
      text += fmt::format("cannot be read: {}\n", on_one_line(m.damage));
      continue;
    }
    text += fmt::format("{:>11} tokens  {:>9} events  {:>9}", count_text(m.tokens),
                        count_text(m.events), bytes_text(m.bytes));
    std::error_code error;
    if (!flags_.dir.empty() && std::filesystem::equivalent(folder / m.name, flags_.dir, error))
      text += "  this conversation";
    else if (m.being_written)
      text += "  being written";
    text += "\n";
  }
  return text;
}

std::string ChatSession::recalled_text() const {
  if (recalled_.empty()) return "nothing was recalled for the last answer\n";
  return fmt::format(
             "{} recalled for the last answer\n",
             counted(static_cast<std::int64_t>(recalled_.size()), "event was", "events were")) +
         recalled_table(recalled_, *engine_.memory(),
                        [this](TokenRange event) { return text_of_event(event); });
}

std::string ChatSession::fork(const std::string& name) {
  if (!engine_.kept())
    throw ConfigError("/fork: there is no folder; begin the chat with --memory-dir DIR");
  const std::filesystem::path to = named_memory(memories_folder(), name);
  if (std::filesystem::exists(to))
    throw FileError(fmt::format("{}: is there already; choose another name", to.string()));
  engine_.commit();
  fork_memory(flags_.dir, to);
  return fmt::format(
      "{} has this conversation up to here; this one goes on in {}. --memory-dir {} goes on "
      "there\n",
      on_one_line(name), flags_.dir.string(), to.string());
}

std::string ChatSession::forget(const std::string& what) {
  if (const std::string no = engine_.refusal(Capability::forget); !no.empty())
    throw ConfigError(no);
  const Forgotten named = parse_forgotten(what);
  if (named.kind == Forgotten::Kind::tokens) return forget({named.tokens}, "");
  if (named.kind == Forgotten::Kind::event) {
    if (engine_.memory()->config().scope == EventScope::head)
      throw ConfigError("/forget: each head has events of its own; name tokens (A:B) or a text");
    const EventTable events = engine_.events();
    std::int64_t event = events.size();
    if (what.size() < 19) event = std::min<std::int64_t>(event, std::stoll(what));
    if (event == events.size())
      throw DataError(fmt::format(
          "/forget {}: there is no such event, there are {}; a number as a text is \"{}\"", what,
          count_text(events.size()), what));
    return forget({events[event]}, "");
  }
  const std::string& text = named.text;
  std::vector<std::int64_t> ids = ids_of({0, engine_.tokens()});
  if (engine_.memory()->config().scope == EventScope::sequence) {
    const EventTable events = engine_.events();
    for (const EventId event : forgotten_)
      std::fill(ids.begin() + events[event].start, ids.begin() + events[event].end, -1);
  }
  const std::vector<TokenRange> places = places_of(engine_.tokenizer(), ids, text);
  const std::int64_t sinks = engine_.memory()->config().n_init, closed = closed_end();
  std::vector<TokenRange> ranges;
  for (const TokenRange& place : places)
    if (place.start >= sinks && place.end <= closed) ranges.push_back(place);
  const auto stay = static_cast<std::int64_t>(places.size() - ranges.size());
  std::string left;
  if (stay > 0)
    left = fmt::format("{} in the window, or the first tokens, and cannot be forgotten now\n",
                       counted(stay, "place is", "places are"));
  if (places.empty())
    throw DataError(
        fmt::format("/forget: '{}' is nowhere in what was read, or is forgotten; letters' case "
                    "counts, white space does not",
                    on_one_line(text)));
  return forget(ranges, left);
}

std::string ChatSession::forget(const std::vector<TokenRange>& ranges, const std::string& left) {
  constexpr std::size_t kListed = 8;
  const EventTable events = engine_.events();  // before: some are about to go
  std::vector<EventId> gone;
  std::string failed;
  for (const TokenRange& range : ranges) {
    try {
      for (const EventId event : engine_.forget(range))
        if (forgotten_.insert(event).second) gone.push_back(event);
    } catch (const Error& e) {
      failed = e.what();
      break;
    }
  }
  if (engine_.kept() && !gone.empty()) engine_.commit();
  std::string text =
      counted(static_cast<std::int64_t>(gone.size()), "event", "events") + " forgotten\n";
  if (!failed.empty()) throw DataError(gone.empty() ? failed : failed + "; before that, " + text);
  for (std::size_t i = 0; i < std::min(kListed, gone.size()); ++i)
    text += fmt::format("  event {}, tokens {}:{}: {}\n", gone[i], events[gone[i]].start,
                        events[gone[i]].end, excerpt_of(text_of_event(events[gone[i]]), 80));
  if (gone.size() > kListed) text += fmt::format("  and {} more\n", gone.size() - kListed);
  return text + left;
}

std::string ChatSession::save() {
  if (!engine_.kept())
    throw ConfigError("/save: there is no folder; begin the chat with --memory-dir DIR");
  engine_.commit();
  return fmt::format("{} tokens are in {}, as after every answer\n", count_text(engine_.tokens()),
                     flags_.dir.string());
}

Json ChatSession::json() const {
  Json json{{"turns", turns_}, {"memory", memory_json(engine_)}};
  if (!refused_.empty()) json["refused"] = refused_;
  if (options_.sampling.temperature > 0) json["seed"] = options_.sampling.seed;
  return json;
}

}  // namespace episodic::tools
