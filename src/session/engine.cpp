// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;

std::vector<std::int64_t> ids_of(const Tokenizer& tokenizer, std::string_view text, bool opens) {
  return opens ? tokenizer.encode(text) : encode_continuation(tokenizer, text);
}

}  // namespace

std::string model_dir_problem(const fs::path& dir) {
  std::error_code error;
  const std::string name = dir.string();
  if (name.empty()) return "no model is named; name a model directory in Hugging Face layout";
  if (fs::exists(dir / "config.json", error)) return {};
  if (is_model_file(dir))
    return dir.extension() == ".gguf"
               ? std::string()
               : fmt::format(
                     "{}: is a file; name the directory that holds config.json, or a .gguf "
                     "file",
                     name);
  if (!fs::exists(dir, error)) {
    const bool like_hub = std::count(name.begin(), name.end(), '/') == 1 && name.front() != '/' &&
                          name.front() != '.' && name.back() != '/';
    return like_hub ? fmt::format(
                          "{0}: there is no such directory. If it is the name of a model on the "
                          "Hugging Face hub, download it first: hf download {0} --local-dir {1}",
                          name, dir.filename().string())
                    : fmt::format("{}: there is no such directory; check the path", name);
  }
  return fmt::format(
      "{}: holds no config.json; name a model directory in Hugging Face layout (config.json, "
      "*.safetensors, tokenizer.json)",
      name);
}

void require_model_dir(const fs::path& dir) {
  if (const std::string problem = model_dir_problem(dir); !problem.empty())
    throw FileError(problem);
}

EpisodicMemory open_memory(const fs::path& model_dir, const KeptFolder& folder,
                           const ModelOptions& options) {
  KeepOptions keep;
  keep.dir = folder.dir;
  keep.identity = identity_of(model_dir, options);
  keep.checkpoints = folder.checkpoints;
  EpisodicMemory memory = EpisodicMemory::open(
      keep, folder.mode, nullptr, folder.budgets ? &*folder.budgets : nullptr, folder.at_token);
  // a rotary table may depend on the memory's n_local, which only the folder knows
  const MemoryShape now = memory_shape(load_model_config(model_dir), memory.config().n_local);
  if (const std::string what = difference(memory.shape(), now); !what.empty())
    throw ConfigError(
        fmt::format("{}: the memory was made for another model: {}; open it with the "
                    "model it was made with",
                    folder.dir.string(), what));
  return memory;
}

EpisodicMemory create_memory(const fs::path& model_dir, const KeptFolder& folder,
                             const MemoryConfig& config, const ModelOptions& options,
                             std::vector<std::int64_t> given) {
  KeepOptions keep;
  keep.dir = folder.dir;
  keep.identity = identity_of(model_dir, options);
  keep.checkpoints = folder.checkpoints;
  const MemoryShape shape = memory_shape(load_model_config(model_dir), config.n_local);
  require_host_room(config, shape);
  return EpisodicMemory::create(keep, config, shape, std::move(given));
}

Engine::Engine(const fs::path& model_dir, const ModelOptions& options)
    : dir_(model_dir), options_(options) {
  require_model_dir(dir_);
  std::error_code error;
  if (is_model_file(dir_) || fs::exists(dir_ / "tokenizer.json", error) ||
      fs::exists(dir_ / "tokenizer.model", error)) {
    try {
      tokenizer_ = load_model_tokenizer(dir_);
    } catch (const Error& e) {  // whoever has token ids needs none
      tokenizer_problem_ = e.what();
    }
  } else {
    tokenizer_problem_ = fmt::format(
        "{}/tokenizer.json: is not there; copy the model's tokenizer beside its weights, or hand "
        "over token ids",
        dir_.string());
  }
  session_ = std::make_unique<Session>(*this, tokenizer_.get());
}

Engine::~Engine() = default;

const Tokenizer& Engine::tokenizer() const {
  if (!tokenizer_) throw FileError(tokenizer_problem_);
  return *tokenizer_;
}

// -- what attention reads -------------------------------------------------------------------------

/// Between two attachments there is nothing to ask: a failure leaves the engine without a memory.
struct Engine::Attaching {
  explicit Attaching(Engine& engine) : engine_(engine) {
    engine_.has_memory_ = false;
    engine_.kept_ = nullptr;
    engine_.folder_ = {};
    ++engine_.attachment_;
  }
  Engine& engine_;
};

void Engine::attach(std::int64_t max_tokens) { attach(memory_config_of(dir_), max_tokens); }

void Engine::attach(const MemoryConfig& config, std::int64_t max_tokens,
                    std::vector<std::int64_t> given) {
  const Attaching attaching(*this);
  do_attach(config, max_tokens, std::move(given));
  max_tokens_ = max_tokens;
  has_memory_ = true;
}

void Engine::attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens) {
  if (!memory) throw ConfigError("Engine::attach: the memory is null");
  const Attaching attaching(*this);
  do_attach(memory, max_tokens);
  if (memory->kept()) {
    folder_.dir = memory->folder();
    folder_.mode = memory->writable() ? OpenMode::write : OpenMode::read;
    folder_.budgets = memory->config();
  }
  kept_ = std::move(memory);
  max_tokens_ = max_tokens;
  has_memory_ = true;
}

std::shared_ptr<EpisodicMemory> Engine::attach(const KeptFolder& folder, std::int64_t max_tokens) {
  auto memory = std::make_shared<EpisodicMemory>(
      holds_memory(folder.dir) ? open_memory(dir_, folder, options_)
                               : create_memory(dir_, folder, memory_config_of(dir_), options_));
  attach(memory, max_tokens);
  folder_.checkpoints = folder.checkpoints;
  return memory;
}

void Engine::attach_full_attention(std::int64_t max_tokens) {
  const Attaching attaching(*this);
  do_attach_full_attention(max_tokens);
  max_tokens_ = max_tokens;
}

// -- what it can do -------------------------------------------------------------------------------

std::string Engine::refusal(Capability capability) const {
  if (!has_memory_)
    return fmt::format("{}: there is no memory, attention reads everything; attach one",
                       name_of(capability));
  // files are the kept memory's, which a device computes a copy of
  const bool of_files = capability == Capability::rewind || capability == Capability::commit;
  return of_files && kept_ ? kept_->refusal(capability) : memory()->refusal(capability);
}

const SequenceMemory& Engine::inspected() const {
  require(Capability::inspect);
  return *memory();
}

void Engine::require(Capability capability) const {
  if (const std::string why = refusal(capability); !why.empty()) throw ConfigError(why);
}

// -- reading and answering ------------------------------------------------------------------------

std::int64_t Engine::read(std::string_view text, const ProgressCallback& progress) {
  const std::vector<std::int64_t> ids = ids_of(tokenizer(), text, tokens() == 0);
  return session_->prefill(ids, progress);
}

std::int64_t Engine::read(std::span<const std::int64_t> ids, const ProgressCallback& progress) {
  return session_->prefill(ids, progress);
}

GenerateResult Engine::generate(std::string_view prompt, const GenerateOptions& options) {
  const std::vector<std::int64_t> ids = ids_of(tokenizer(), prompt, tokens() == 0);
  return generate(ids, options);
}

GenerateResult Engine::generate(std::span<const std::int64_t> prompt,
                                const GenerateOptions& options) {
  // What earlier processes read is part of the context that the penalty covers.
  if (options.sampling.repetition_penalty != 1 && session_->history_start() > 0 && kept_ &&
      kept_->kept()) {
    const std::int64_t known = std::min(tokens(), kept_->tokens());
    session_->set_earlier_history(kept_->token_ids(0, std::min(known, session_->history_start())));
  }
  return session_->generate(prompt, options);
}

GenerateResult Engine::ask(std::string_view question, const GenerateOptions& options) {
  const std::vector<std::int64_t> ids = ids_of(tokenizer(), question, tokens() == 0);
  return ask(ids, options);
}

GenerateResult Engine::ask(std::span<const std::int64_t> question, const GenerateOptions& options) {
  const std::shared_ptr<const Snapshot> before = snapshot();
  GenerateResult result;
  try {
    result = generate(question, options);
  } catch (...) {
    restore(*before);
    throw;
  }
  restore(*before);
  return result;
}

// -- states ---------------------------------------------------------------------------------------

std::shared_ptr<const Engine::Snapshot> Engine::snapshot() {
  require(Capability::snapshot);
  std::shared_ptr<Snapshot> s = do_snapshot();
  s->tokens = tokens();
  s->attachment = attachment_;
  return s;
}

void Engine::restore(const Snapshot& s) {
  require(Capability::snapshot);
  if (s.attachment != attachment_)
    throw ConfigError(
        "Engine::restore: the snapshot is of a memory that is no longer attached; take one of this "
        "memory");
  do_restore(s);
}

void Engine::save() {
  if (kept_) do_save();
}

void Engine::commit() {
  require(Capability::commit);
  save();
  kept_->commit();
}

void Engine::rewind(std::int64_t to, const ProgressCallback& progress) {
  require(Capability::rewind);
  if (to < 0 || to > tokens())
    throw ConfigError(
        fmt::format("rewind: token {} is not within the {} tokens of the sequence", to, tokens()));
  if (to == tokens()) return;
  save();
  const std::vector<std::int64_t> ids = kept_->token_ids(0, to);
  std::int64_t from = kept_->committed_tokens() <= to ? kept_->committed_tokens() : -1;
  for (const auto& state : kept_->manifest().checkpoints)
    if (state.tokens <= to) from = std::max(from, state.tokens);
  const bool from_start = from < 0;
  from = std::max<std::int64_t>(0, from);
  const auto again = std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(from));
  if (const auto unknown = std::find_if(again.begin(), again.end(), [](auto id) { return id < 0; });
      unknown != again.end())
    throw DataError(fmt::format(
        "rewind to {}: the newest state before it is at token {}, and token {} between them was "
        "forgotten and cannot be read again; rewind to a token before that one",
        to, from, from + (unknown - again.begin())));

  // The folder has one writer: this memory goes before the earlier state is opened in its place.
  const std::shared_ptr<EpisodicMemory> memory = kept_;
  KeptFolder folder = folder_;
  const std::int64_t max_tokens = max_tokens_;
  {
    const Attaching attaching(*this);
    const EpisodicMemory gone = std::move(*memory);
  }
  folder.at_token = from_start ? -1 : to;
  *memory = open_memory(dir_, folder, options_);
  if (from_start) memory->reset();
  attach(memory, max_tokens);
  folder_.checkpoints = folder.checkpoints;
  session_->prefill(
      std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(memory->tokens())),
      progress);
}

void Engine::forget(EventId event, std::int64_t scope) {
  require(Capability::forget);
  memory()->forget(event, scope);
}

std::vector<EventId> Engine::forget(TokenRange tokens) {
  require(Capability::forget);
  return memory()->forget(tokens);
}

void Engine::pin(EventId event, bool pinned, std::int64_t scope) {
  require(Capability::pin);
  memory()->pin(event, pinned, scope);
}

std::int64_t Engine::n_events() const { return has_memory_ ? usage().events : 0; }

}  // namespace episodic
