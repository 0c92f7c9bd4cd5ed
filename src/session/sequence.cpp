// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/sequence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"

namespace episodic {
namespace {

const Model& required(const std::shared_ptr<const Model>& model) {
  if (!model) throw ConfigError("Sequence: the model is null");
  return *model;
}

/// The arguments of `score`, before anything is read. \param vocab of the model
/// \throws DataError where [first, first + n) is empty or not within ids, nll is not as long as
///         ids, or the token behind the step's last, which the step scores too, is no token
void require_scorable(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
                      std::span<const float> nll, std::int64_t vocab) {
  if (n < 1 || first > ids.size() || n > ids.size() - first)
    throw DataError(
        fmt::format("score: {} tokens from {} on, of {}; at least one must "
                    "be read, and none beyond the last",
                    n, first, ids.size()));
  if (nll.size() != ids.size())
    throw DataError(
        fmt::format("score: room for {} numbers, {} tokens have as many", nll.size(), ids.size()));
  const std::size_t behind = first + n;
  if (behind < ids.size() && (ids[behind] < 0 || ids[behind] >= vocab))
    throw DataError(
        fmt::format("score: ids[{}] = {} is not in the vocabulary of {} tokens; use the "
                    "tokenizer of this model",
                    behind, ids[behind], vocab));
}

}  // namespace

Sequence::Sequence(std::shared_ptr<const Model> model)
    : model_(std::move(model)), execution_(required(model_).executor().new_sequence()) {}

Sequence::Sequence(std::shared_ptr<const Model> model, std::unique_ptr<SequenceExecution> execution)
    : model_(std::move(model)), execution_(std::move(execution)) {}

Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

// -- what attention reads -------------------------------------------------------------------------

/// Between two attachments there is nothing to ask: a failure leaves the sequence without one.
struct Sequence::Attaching {
  explicit Attaching(Sequence& sequence) {
    sequence.has_memory_ = false;
    sequence.kept_ = nullptr;
    sequence.folder_ = {};
    sequence.history_ = {};
    ++sequence.attachment_;
  }
};

void Sequence::attach(std::int64_t max_tokens) {
  const MemoryConfig config = memory_config_of(model_->dir());
  naming_origin(settings_origin(model_->dir()), [&] { attach(config, max_tokens); });
}

void Sequence::attach(const MemoryConfig& config, std::int64_t max_tokens,
                      std::vector<std::int64_t> given) {
  const Attaching attaching(*this);
  execution_->attach(config, max_tokens, std::move(given));
  max_tokens_ = max_tokens;
  has_memory_ = true;
}

void Sequence::attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens) {
  if (!memory) throw ConfigError("Sequence::attach: the memory is null");
  const Attaching attaching(*this);
  execution_->attach(memory, max_tokens);
  if (memory->kept()) {
    folder_.dir = memory->folder();
    folder_.mode = memory->writable() ? OpenMode::write : OpenMode::read;
    folder_.budgets = memory->config();
  }
  kept_ = std::move(memory);
  max_tokens_ = max_tokens;
  has_memory_ = true;
}

std::shared_ptr<EpisodicMemory> Sequence::attach(const KeptFolder& folder,
                                                 std::int64_t max_tokens) {
  const auto created = [&] {
    const MemoryConfig config = memory_config_of(model_->dir());
    return naming_origin(settings_origin(model_->dir()),
                         [&] { return create_memory(*model_, folder, config); });
  };
  auto memory = std::make_shared<EpisodicMemory>(
      holds_memory(folder.dir) ? open_memory(*model_, folder) : created());
  attach(memory, max_tokens);
  folder_.checkpoints = folder.checkpoints;
  return memory;
}

void Sequence::attach_full_attention(std::int64_t max_tokens) {
  const Attaching attaching(*this);
  execution_->attach_full_attention(max_tokens);
  max_tokens_ = max_tokens;
}

SequenceMemory* Sequence::memory() { return has_memory_ ? execution_->memory() : nullptr; }

// -- what it can do -------------------------------------------------------------------------------

std::string Sequence::refusal(Capability capability) const {
  if (!has_memory_)
    return fmt::format("{}: there is no memory, attention reads everything; attach one",
                       name_of(capability));
  // files are the kept memory's, which a device computes a copy of
  const bool of_files = capability == Capability::rewind || capability == Capability::commit;
  return of_files && kept_ ? kept_->refusal(capability) : memory()->refusal(capability);
}

const SequenceMemory& Sequence::inspected() const {
  require(Capability::inspect);
  return *memory();
}

void Sequence::require(Capability capability) const {
  if (const std::string why = refusal(capability); !why.empty()) throw ConfigError(why);
}

// -- steps ----------------------------------------------------------------------------------------

std::int64_t Sequence::chunk() const { return execution_->chunk(); }
std::int64_t Sequence::tokens() const { return execution_->tokens(); }
std::span<const float> Sequence::logits() { return execution_->logits(); }
void Sequence::explain_not_finite() const { execution_->explain_not_finite(); }

void Sequence::stepped(std::span<const std::int64_t> ids) {
  history_.follow(tokens() - static_cast<std::int64_t>(ids.size()));
  history_.add(ids);
}

void Sequence::step(std::span<const std::int64_t> ids, StepKind kind) {
  execution_->step(ids, kind);
  stepped(ids);
}

void Sequence::step(std::span<const std::int64_t> ids, std::span<float> logits) {
  const std::size_t wanted = ids.size() * static_cast<std::size_t>(config().vocab_size);
  if (logits.size() != wanted)
    throw DataError(fmt::format("step: room for {} logits, {} tokens have {}", logits.size(),
                                ids.size(), wanted));
  execution_->step_all(ids, logits);
  stepped(ids);
}

void Sequence::score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
                     std::span<float> nll) {
  require_scorable(ids, first, n, nll, config().vocab_size);
  execution_->score(ids, first, n, nll);
  stepped(ids.subspan(first, n));
}

std::vector<std::int64_t> Sequence::known_ids() {
  history_.follow(tokens());
  const std::span<const std::int32_t> own = history_.ids();
  std::vector<std::int64_t> ids;
  // What earlier processes read is in the files of a kept memory.
  if (history_.start() > 0 && kept_ && kept_->kept())
    ids = kept_->token_ids(0, std::min(history_.start(), kept_->tokens()));
  ids.resize(static_cast<std::size_t>(history_.start()), -1);
  ids.insert(ids.end(), own.begin(), own.end());
  return ids;
}

// -- states ---------------------------------------------------------------------------------------

std::shared_ptr<const Sequence::Snapshot> Sequence::snapshot() {
  require(Capability::snapshot);
  return std::make_shared<Snapshot>(Snapshot{tokens(), attachment_, execution_->snapshot()});
}

void Sequence::restore(const Snapshot& s) {
  require(Capability::snapshot);
  if (s.attachment != attachment_)
    throw ConfigError(
        "restore: the snapshot is of a memory that is no longer attached; take one of this memory");
  execution_->restore(*s.state);
}

Sequence Sequence::fork() {
  if (kept_ && kept_->kept() && kept_->writable())
    throw ConfigError(fmt::format(
        "fork: the memory in {} has one writer; commit, fork the folder (fork_memory) and attach "
        "the new one, or open it to be read",
        kept_->folder().string()));
  Sequence other(model_, execution_->fork());
  other.history_ = history_;
  other.max_tokens_ = max_tokens_;
  other.has_memory_ = has_memory_;
  ++attachment_;  // earlier snapshots are of what is the base's now
  return other;
}

std::int64_t Sequence::bytes_for(std::int64_t tokens) const {
  return execution_->bytes_for(tokens);
}

void Sequence::save() {
  if (kept_) execution_->save(*kept_);
}

void Sequence::commit() {
  require(Capability::commit);
  save();
  kept_->commit();
}

void Sequence::rewind(std::int64_t to, const ProgressCallback& progress) {
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
  *memory = open_memory(*model_, folder);
  if (from_start) memory->reset();
  attach(memory, max_tokens);
  folder_.checkpoints = folder.checkpoints;
  const auto rest =
      std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(memory->tokens()));
  for (std::size_t done = 0; done < rest.size();) {
    const std::size_t n = std::min(static_cast<std::size_t>(chunk()), rest.size() - done);
    step(rest.subspan(done, n), StepKind::prompt);
    done += n;
    if (progress &&
        !progress(static_cast<std::int64_t>(done), static_cast<std::int64_t>(rest.size())))
      break;
  }
}

void Sequence::forget(EventId event, std::int64_t scope) {
  require(Capability::forget);
  memory()->forget(event, scope);
}

std::vector<EventId> Sequence::forget(TokenRange tokens) {
  require(Capability::forget);
  return memory()->forget(tokens);
}

void Sequence::pin(EventId event, bool pinned, std::int64_t scope) {
  require(Capability::pin);
  memory()->pin(event, pinned, scope);
}

std::int64_t Sequence::n_events() const { return has_memory_ ? usage().events : 0; }

std::vector<float> Sequence::representative(std::int64_t lane, EventId event) const {
  require(Capability::inspect);
  return execution_->representative(lane, event);
}

MemoryUsage Sequence::usage() const {
  require(Capability::inspect);
  return execution_->usage(kept_.get());
}

void Sequence::set_keys_hook(KeysHook hook) { execution_->set_keys_hook(std::move(hook)); }

}  // namespace episodic
