// SPDX-License-Identifier: Apache-2.0
// The C API's models and sequences.
#include <algorithm>
#include <map>

#include "calls.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/kept_folder.hpp"
#include "episodic/session/run.hpp"
#include "episodic/session/session.hpp"
#include "objects.hpp"

namespace episodic::c {
namespace {

// Of version 1, for ever: these stay when a struct grows (tests/c/abi_v1.txt).
constexpr std::size_t kModelInfoLeast = 64, kSequenceInfoLeast = 72, kStepLeast = 312,
                      kLoadOptionsLeast = 24;

MemoryConfig settings_for(const Model& model, const char* changes) {
  return c::settings_for(model.dir(), model.options(), changes);
}

std::int64_t read(Sequence& sequence, std::span<const std::int64_t> ids, episodic_progress progress,
                  void* user) {
  return Session(sequence).prefill(ids, progress_of(progress, user));
}

}  // namespace

std::vector<std::int64_t> ids_behind(const Sequence& sequence, std::string_view text) {
  const Tokenizer& tokenizer = sequence.model().tokenizer();
  return sequence.tokens() == 0 ? tokenizer.encode(text) : encode_continuation(tokenizer, text);
}

}  // namespace episodic::c

using namespace episodic;
using namespace episodic::c;

extern "C" {

// -- models ---------------------------------------------------------------------------------------

int32_t episodic_load_options_init(episodic_load_options* options) {
  return call([&] { *require(options, "options") = {sizeof(episodic_load_options), nullptr, 0}; });
}

int32_t episodic_model_load(const char* path, const episodic_load_options* options,
                            episodic_model* model) {
  return call([&] {
    require(model, "model");
    require(path, "path");
    episodic_load_options o{};
    if (options) o = known_fields(options, "options", o, kLoadOptionsLeast);
    const std::string_view device = o.device ? o.device : "cpu";
    if (device != "cpu" && device != "cuda")
      throw ConfigError("options: device = " + std::string(device.substr(0, 100)) +
                        ", must be cpu or cuda");
    *model = Handles::all().add<episodic_model>(std::make_shared<ModelObject>(
        device == "cuda" ? load_on_device(path, o.device_number) : load_model(path)));
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
    copy_items(found, logits, capacity, n);
  });
}

int32_t episodic_run(episodic_model model, episodic_step* steps, size_t n) {
  return call([&] {
    const std::shared_ptr<const Model> m = model_of(model);
    // Held by their objects, each once: a sequence that is named twice is the second one's error.
    std::map<const void*, std::unique_ptr<Held<SequenceObject>>> held;
    std::vector<SequenceInput> inputs;
    std::vector<episodic_step*> asked;
    for (episodic_step* step : elements_of(steps, n, "steps", kStepLeast)) {
      std::string message;
      try {
        auto& of = held[step->sequence];
        if (!of) of = std::make_unique<Held<SequenceObject>>(step->sequence);
        inputs.emplace_back(&(*of)->sequence, array_of(step->ids, step->n, "ids"),
                            step->decodes ? StepKind::decode : StepKind::prompt,
                            step->logits != nullptr);
        asked.push_back(step);
      } catch (...) {
        // one that an earlier step holds stays held
        if (const auto at = held.find(step->sequence); at != held.end() && !at->second)
          held.erase(at);
        const std::int32_t code = code_of_current(message);
        tell(*step, code, message);
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
      tell(*asked[i], code, message);
    }
  });
}

}  // extern "C"
