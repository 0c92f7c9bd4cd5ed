// SPDX-License-Identifier: Apache-2.0
// The C API's models and sequences.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "calls.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/conversation.hpp"
#include "episodic/session/kept_folder.hpp"
#include "episodic/session/run.hpp"
#include "episodic/session/session.hpp"
#include "objects.hpp"

namespace episodic::c {
namespace {

// Of version 1, for ever: these stay when a struct grows (tests/c/abi_v1.txt).
constexpr std::size_t kModelInfoLeast = 64, kSequenceInfoLeast = 72, kOptionsLeast = 104,
                      kStepLeast = 312;

std::shared_ptr<const Model> model_of(episodic_model handle) {
  return Handles::all().find<ModelObject>(handle)->model;
}

MemoryConfig settings_for(const Model& model, const char* changes) {
  return c::settings_for(model.dir(), model.options(), changes);
}

std::vector<std::int64_t> ids_behind(const Sequence& sequence, std::string_view text) {
  const Tokenizer& tokenizer = sequence.model().tokenizer();
  return sequence.tokens() == 0 ? tokenizer.encode(text) : encode_continuation(tokenizer, text);
}

std::int64_t read(Sequence& sequence, std::span<const std::int64_t> ids, episodic_progress progress,
                  void* user) {
  return Session(sequence).prefill(ids, progress_of(progress, user));
}

/// A prompt in two steps, as `Conversation` and `encode_continuation` give it.
/// \param passages that it reads again
ChatPrompt prompt_of(SequenceObject& object, std::string_view text,
                     const episodic_generate_options& o, std::vector<Passage>& passages) {
  Sequence& sequence = object.sequence;
  const Model& model = sequence.model();
  std::string before;
  if (o.reread > 0 && sequence.has_memory()) {
    if (!object.finder) object.finder = std::make_unique<PassageFinder>(sequence.shared_model());
    object.finder->read(*sequence.memory(), sequence.known_ids());
    passages = object.finder->find(text, {.count = o.reread});
    before = joined_text(passages);
    if (!before.empty()) before += "\n\n";
  }
  if (o.chat)
    return Conversation(model.chat_template(), model.tokenizer(),
                        {.goes_on = sequence.tokens() > 0})
        .ask(before, std::string(text));
  ChatPrompt prompt;
  if (!before.empty()) prompt.text = ids_behind(sequence, "\n\n" + before);
  prompt.question =
      before.empty() ? ids_behind(sequence, text) : encode_continuation(model.tokenizer(), text);
  return prompt;
}

episodic_generate_options defaults() {
  episodic_generate_options o{};
  o.struct_size = sizeof o;
  o.max_new = 128;
  o.top_p = 1;
  o.repetition_penalty = 1;
  return o;
}

episodic_generate_options options_of(const episodic_generate_options* given) {
  return given ? known_fields(given, "options", defaults(), kOptionsLeast) : defaults();
}

GenerateOptions generation_of(const episodic_generate_options& o, episodic_on_token on_token,
                              void* user) {
  GenerateOptions options;
  options.max_new = o.max_new;
  options.sampling.temperature = o.temperature;
  options.sampling.top_p = o.top_p;
  options.sampling.top_k = o.top_k;
  options.sampling.min_p = o.min_p;
  options.sampling.repetition_penalty = o.repetition_penalty;
  options.sampling.seed = o.seed;
  options.ignore_eos = o.ignore_eos != 0;
  options.feed_last = true;  // the sequence then holds the whole answer
  for (const char* stop : array_of(o.stop, o.n_stop, "options: stop"))
    options.stop.emplace_back(require(stop, "options: stop"));
  if (on_token)
    options.on_token = [on_token, user](std::int64_t id, std::string_view text) {
      return on_token(id, text.data(), text.size(), user) == 0;
    };
  return options;
}

void generate(Sequence& sequence, const ChatPrompt& prompt, GenerateOptions options, bool recall,
              AnswerObject& answer) {
  const Model& model = sequence.model();
  Session session(sequence, model.has_tokenizer() ? &model.tokenizer() : nullptr);
  std::span<const std::int64_t> asked = prompt.question;
  if (asked.empty())
    asked = prompt.text;
  else
    session.prefill(prompt.text);
  std::optional<RecallNotes> notes;
  if (recall && sequence.has_memory() && !asked.empty()) {
    notes.emplace(sequence, dynamic_cast<EpisodicMemory*>(sequence.memory()));
    // all but the last token, which the answer starts from in a step of its own
    session.prefill(asked.first(asked.size() - 1), [&](std::int64_t, std::int64_t) {
      notes->note();
      return true;
    });
    asked = asked.last(1);
    options.on_token = [&notes, on_token = std::move(options.on_token)](std::int64_t id,
                                                                        std::string_view text) {
      notes->note();
      return !on_token || on_token(id, text);
    };
  }
  answer.result = session.generate(asked, options);
  if (notes) answer.recalled = notes->ranked();
}

void refuse_for_ids(const episodic_generate_options& o) {
  if (o.chat || o.reread > 0)
    throw ConfigError("options: chat and reread are for prompts that are texts");
}

}  // namespace
}  // namespace episodic::c

using namespace episodic;
using namespace episodic::c;

extern "C" {

// -- models ---------------------------------------------------------------------------------------

int32_t episodic_model_load(const char* path, const void* reserved, episodic_model* model) {
  return call([&] {
    require(model, "model");
    if (reserved) throw ConfigError("model_load: reserved must be NULL");
    *model = Handles::all().add<episodic_model>(
        std::make_shared<ModelObject>(load_model(require(path, "path"))));
  });
}

int32_t episodic_model_free(episodic_model model) {
  return call([&] { Handles::all().remove<ModelObject>(model); });
}

int32_t episodic_model_get_info(episodic_model model, episodic_model_info* info) {
  return call([&] {
    const std::shared_ptr<const Model> m = model_of(model);
    const ModelConfig& config = m->config();
    episodic_model_info found{};
    found.vocab_size = config.vocab_size;
    found.n_layers = std::ssize(config.layers);
    found.n_heads = config.n_heads;
    found.n_kv_heads = config.n_kv_heads;
    found.head_dim = config.head_dim;
    found.max_positions = config.max_positions;
    found.has_tokenizer = m->has_tokenizer();
    try {
      if (m->has_tokenizer()) (void)m->chat_template(), found.has_chat_format = 1;
    } catch (const Error&) {  // none, or one that cannot be used
    }
    write_known(info, found, "info", kModelInfoLeast);
  });
}

int32_t episodic_model_encode(episodic_model model, const char* text, size_t length,
                              int32_t special, int64_t* ids, size_t capacity, size_t* n) {
  return call([&] {
    copy_items<int64_t>(
        model_of(model)->tokenizer().encode(text_of(text, length, "text"), special != 0), ids,
        capacity, n);
  });
}

int32_t episodic_model_decode(episodic_model model, const int64_t* ids, size_t n, char* text,
                              size_t capacity, size_t* length) {
  return call([&] {
    const std::span<const int64_t> all = array_of(ids, n, "ids");
    copy_text(model_of(model)->tokenizer().decode({all.begin(), all.end()}), text, capacity,
              length);
  });
}

// -- sequences ------------------------------------------------------------------------------------

int32_t episodic_sequence_new(episodic_model model, episodic_sequence* sequence) {
  return call([&] {
    require(sequence, "sequence");
    *sequence = Handles::all().add<episodic_sequence>(
        std::make_shared<SequenceObject>(Sequence(model_of(model))));
  });
}

int32_t episodic_sequence_free(episodic_sequence sequence) {
  return call([&] { Handles::all().remove<SequenceObject>(sequence); });
}

int32_t episodic_sequence_attach(episodic_sequence sequence, const char* settings,
                                 int64_t max_tokens) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    held->sequence.attach(settings_for(held->sequence.model(), settings), max_tokens);
  });
}

int32_t episodic_sequence_attach_full_attention(episodic_sequence sequence, int64_t max_tokens) {
  return call([&] { Held<SequenceObject>(sequence)->sequence.attach_full_attention(max_tokens); });
}

int32_t episodic_sequence_open(episodic_sequence sequence, const char* folder, int32_t writes,
                               const char* settings, int64_t max_tokens) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    const Model& model = held->sequence.model();
    KeptFolder at;
    at.dir = require(folder, "folder");
    at.mode = writes ? OpenMode::write : OpenMode::read;
    const bool makes = writes && !holds_memory(at.dir);
    if (!makes && settings)
      throw ConfigError("settings: the memory is there, with those it was made with; give NULL");
    auto memory = std::make_shared<EpisodicMemory>(
        makes ? create_memory(model, at, settings_for(model, settings)) : open_memory(model, at));
    held->sequence.attach(std::move(memory), max_tokens);
  });
}

int32_t episodic_sequence_get_info(episodic_sequence sequence, episodic_sequence_info* info) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    const Sequence& s = held->sequence;
    episodic_sequence_info found{};
    found.tokens = s.tokens();
    found.events = s.n_events();
    found.chunk = s.chunk();
    found.has_memory = s.has_memory();
    found.kept = s.kept() && s.kept()->kept();
    if (s.has_memory()) {
      const MemoryUsage usage = s.usage();
      found.host_bytes = usage.host_bytes;
      found.disk_bytes = usage.disk_bytes;
      found.index_bytes = usage.index_bytes;
      found.window_bytes = usage.window_bytes;
    }
    write_known(info, found, "info", kSequenceInfoLeast);
  });
}

int32_t episodic_sequence_read(episodic_sequence sequence, const char* text, size_t length,
                               episodic_progress progress, void* user, int64_t* done) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    const int64_t n = read(
        held->sequence, ids_behind(held->sequence, text_of(text, length, "text")), progress, user);
    if (done) *done = n;
  });
}

int32_t episodic_sequence_read_ids(episodic_sequence sequence, const int64_t* ids, size_t n,
                                   episodic_progress progress, void* user, int64_t* done) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    const int64_t tokens = read(held->sequence, array_of(ids, n, "ids"), progress, user);
    if (done) *done = tokens;
  });
}

int32_t episodic_generate_options_init(episodic_generate_options* options) {
  return call([&] { *require(options, "options") = defaults(); });
}

int32_t episodic_sequence_generate(episodic_sequence sequence, const char* prompt, size_t length,
                                   const episodic_generate_options* options,
                                   episodic_on_token on_token, void* user,
                                   episodic_answer* answer) {
  return call([&] {
    require(answer, "answer");
    const Held<SequenceObject> held(sequence);
    const episodic_generate_options o = options_of(options);
    auto made = std::make_shared<AnswerObject>();
    const ChatPrompt asked = prompt_of(*held, text_of(prompt, length, "prompt"), o, made->passages);
    generate(held->sequence, asked, generation_of(o, on_token, user), o.recall != 0, *made);
    *answer = Handles::all().add<episodic_answer>(std::move(made));
  });
}

int32_t episodic_sequence_generate_ids(episodic_sequence sequence, const int64_t* ids, size_t n,
                                       const episodic_generate_options* options,
                                       episodic_on_token on_token, void* user,
                                       episodic_answer* answer) {
  return call([&] {
    require(answer, "answer");
    const Held<SequenceObject> held(sequence);
    const episodic_generate_options o = options_of(options);
    refuse_for_ids(o);
    const std::span<const int64_t> all = array_of(ids, n, "ids");
    auto made = std::make_shared<AnswerObject>();
    generate(held->sequence, {{}, {all.begin(), all.end()}}, generation_of(o, on_token, user),
             o.recall != 0, *made);
    *answer = Handles::all().add<episodic_answer>(std::move(made));
  });
}

int32_t episodic_sequence_ask(episodic_sequence sequence, const char* question, size_t length,
                              const episodic_generate_options* options, episodic_on_token on_token,
                              void* user, episodic_answer* answer) {
  return call([&] {
    require(answer, "answer");
    const Held<SequenceObject> held(sequence);
    const episodic_generate_options o = options_of(options);
    GenerateOptions generation = generation_of(o, on_token, user);
    generation.feed_last = false;  // nothing of it stays
    auto made = std::make_shared<AnswerObject>();
    const ChatPrompt asked =
        prompt_of(*held, text_of(question, length, "question"), o, made->passages);
    const auto before = held->sequence.snapshot();
    try {
      generate(held->sequence, asked, std::move(generation), o.recall != 0, *made);
    } catch (...) {
      held->sequence.restore(*before);
      throw;
    }
    held->sequence.restore(*before);
    *answer = Handles::all().add<episodic_answer>(std::move(made));
  });
}

int32_t episodic_answer_text(episodic_answer answer, char* text, size_t capacity, size_t* length) {
  return call([&] { copy_text(Held<AnswerObject>(answer)->result.text, text, capacity, length); });
}

int32_t episodic_answer_ids(episodic_answer answer, int64_t* ids, size_t capacity, size_t* n) {
  return call(
      [&] { copy_items<int64_t>(Held<AnswerObject>(answer)->result.ids, ids, capacity, n); });
}

int32_t episodic_answer_finish(episodic_answer answer, int32_t* finish) {
  return call([&] {
    *require(finish, "finish") = static_cast<int32_t>(Held<AnswerObject>(answer)->result.finish);
  });
}

int32_t episodic_answer_recalled(episodic_answer answer, episodic_recalled* events, size_t capacity,
                                 size_t* n) {
  return call([&] {
    const Held<AnswerObject> held(answer);
    double total = 0;
    for (const RecalledEvent& e : held->recalled) total += e.attention;
    std::vector<episodic_recalled> all;
    for (const RecalledEvent& e : held->recalled)
      all.push_back(
          {e.event, e.tokens.start, e.tokens.end, e.rank, total > 0 ? e.attention / total : 0.0});
    copy_items<episodic_recalled>(all, events, capacity, n);
  });
}

int32_t episodic_answer_passages(episodic_answer answer, episodic_passage* passages,
                                 size_t capacity, size_t* n) {
  return call([&] {
    const Held<AnswerObject> held(answer);
    std::vector<episodic_passage> all;
    for (const Passage& p : held->passages) all.push_back({p.tokens.start, p.tokens.end, p.score});
    copy_items<episodic_passage>(all, passages, capacity, n);
  });
}

int32_t episodic_answer_free(episodic_answer answer) {
  return call([&] { Handles::all().remove<AnswerObject>(answer); });
}

int32_t episodic_sequence_fork(episodic_sequence sequence, episodic_sequence* other) {
  return call([&] {
    require(other, "other");
    *other = Handles::all().add<episodic_sequence>(
        std::make_shared<SequenceObject>(Held<SequenceObject>(sequence)->sequence.fork()));
  });
}

int32_t episodic_sequence_snapshot(episodic_sequence sequence, episodic_snapshot* snapshot) {
  return call([&] {
    require(snapshot, "snapshot");
    auto object = std::make_shared<SnapshotObject>();
    object->of_sequence = Held<SequenceObject>(sequence)->sequence.snapshot();
    *snapshot = Handles::all().add<episodic_snapshot>(std::move(object));
  });
}

int32_t episodic_sequence_restore(episodic_sequence sequence, episodic_snapshot snapshot) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    const Held<SnapshotObject> of(snapshot);
    if (!of->of_sequence)
      throw ConfigError("restore: the snapshot is of a memory, not of a sequence");
    held->sequence.restore(*of->of_sequence);
  });
}

int32_t episodic_snapshot_free(episodic_snapshot snapshot) {
  return call([&] { Handles::all().remove<SnapshotObject>(snapshot); });
}

int32_t episodic_sequence_commit(episodic_sequence sequence) {
  return call([&] { Held<SequenceObject>(sequence)->sequence.commit(); });
}

int32_t episodic_sequence_rewind(episodic_sequence sequence, int64_t tokens) {
  return call([&] { Held<SequenceObject>(sequence)->sequence.rewind(tokens); });
}

int32_t episodic_sequence_forget(episodic_sequence sequence, episodic_range tokens,
                                 size_t* forgotten) {
  return call([&] {
    const auto gone =
        Held<SequenceObject>(sequence)->sequence.forget(TokenRange{tokens.start, tokens.end});
    if (forgotten) *forgotten = gone.size();
  });
}

int32_t episodic_sequence_pin(episodic_sequence sequence, int64_t event, int32_t pinned) {
  return call([&] { Held<SequenceObject>(sequence)->sequence.pin(event, pinned != 0); });
}

int32_t episodic_sequence_events(episodic_sequence sequence, int64_t first, episodic_range* events,
                                 size_t capacity, size_t* n) {
  return call([&] {
    copy_events(Held<SequenceObject>(sequence)->sequence.events(), first, events, capacity, n);
  });
}

int32_t episodic_sequence_text(episodic_sequence sequence, episodic_range tokens, char* text,
                               size_t capacity, size_t* length) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    if (tokens.start < 0 || tokens.end < tokens.start || tokens.end > held->sequence.tokens())
      throw DataError("tokens " + std::to_string(tokens.start) + " to " +
                      std::to_string(tokens.end) + " are not within the sequence");
    copy_text(event_text(held->sequence.model().tokenizer(), held->sequence.known_ids(), 0,
                         {tokens.start, tokens.end}),
              text, capacity, length);
  });
}

int32_t episodic_sequence_logits(episodic_sequence sequence, float* logits, size_t capacity,
                                 size_t* n) {
  return call([&] {
    const Held<SequenceObject> held(sequence);
    const std::span<const float> found = held->sequence.logits();
    if (n) *n = found.size();
    if (!logits) return;
    if (capacity < found.size())
      throw ApiError{EPISODIC_TOO_SMALL, "the buffer has room for " + std::to_string(capacity) +
                                             " logits; there are " + std::to_string(found.size())};
    std::copy(found.begin(), found.end(), logits);
  });
}

int32_t episodic_run(episodic_model model, episodic_step* steps, size_t n) {
  return call([&] {
    const std::shared_ptr<const Model> m = model_of(model);
    array_of(steps, n, "steps");
    // a caller of another version has elements of another size
    const size_t stride = n > 0 ? steps->struct_size : 0;
    if (n > 0 && stride < kStepLeast)
      throw ApiError{EPISODIC_CONFIG, "steps: struct_size = " + std::to_string(stride) +
                                          ", must be sizeof the struct"};
    // Held by their objects, each once: a sequence that is named twice is the second one's error.
    std::map<const void*, std::unique_ptr<Held<SequenceObject>>> held;
    std::vector<SequenceInput> inputs;
    std::vector<episodic_step*> asked;
    const auto told = [](episodic_step& step, std::int32_t code, const std::string& message) {
      step.code = code;
      std::snprintf(step.message, sizeof step.message, "%s", message.c_str());
    };
    for (size_t i = 0; i < n; ++i) {
      auto& step = *reinterpret_cast<episodic_step*>(reinterpret_cast<char*>(steps) + i * stride);
      if (step.struct_size != stride)
        throw ApiError{EPISODIC_CONFIG, "steps: struct_size = " + std::to_string(step.struct_size) +
                                            " beside " + std::to_string(stride) +
                                            "; all must be sizeof the struct"};
      std::string message;
      try {
        auto& of = held[step.sequence];
        if (!of) of = std::make_unique<Held<SequenceObject>>(step.sequence);
        inputs.emplace_back(&(*of)->sequence, array_of(step.ids, step.n, "ids"),
                            step.decodes ? StepKind::decode : StepKind::prompt,
                            step.logits != nullptr);
        asked.push_back(&step);
      } catch (...) {
        // one that an earlier step holds stays held
        if (const auto at = held.find(step.sequence); at != held.end() && !at->second)
          held.erase(at);
        const std::int32_t code = code_of_current(message);
        told(step, code, message);
      }
    }
    const std::vector<StepResult> results = run(*m, inputs);
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::string message;
      std::int32_t code = EPISODIC_OK;
      try {
        results[i].require();
        if (asked[i]->logits)
          std::copy(results[i].logits.begin(), results[i].logits.end(), asked[i]->logits);
      } catch (...) {
        code = code_of_current(message);
      }
      told(*asked[i], code, message);
    }
  });
}

}  // extern "C"
