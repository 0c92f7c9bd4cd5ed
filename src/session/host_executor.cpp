// SPDX-License-Identifier: Apache-2.0
// The executor of the host: decoders that share their weights, memories in host memory and files.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/model.hpp"
#include "episodic/session/model_executor.hpp"
#include "episodic/timeline/surprise.hpp"

namespace episodic {
namespace {

/// Shows the keys that a layer is given, and attends as the slot that it stands in for.
class ShowingSlot final : public AttentionSlot {
 public:
  ShowingSlot(std::shared_ptr<AttentionSlot> slot, std::int64_t layer,
              std::shared_ptr<const KeysHook> hook)
      : slot_(std::move(slot)), layer_(layer), hook_(std::move(hook)) {}

  void forward(const TensorView& q, const TensorView& k, const TensorView& v,
               const MutableTensorView& out) override {
    if (*hook_)
      (*hook_)(layer_, {static_cast<const float*>(k.data),
                        static_cast<std::size_t>(k.sizes.n * k.sizes.heads * k.sizes.dim)});
    slot_->forward(q, k, v, out);
  }

 private:
  std::shared_ptr<AttentionSlot> slot_;
  std::int64_t layer_;
  std::shared_ptr<const KeysHook> hook_;
};

/// Calls f. Where there is no memory left the error says what takes it.
template <class F>
decltype(auto) translated(F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    throw BudgetError(
        "the machine has no memory left for this step; lower chunk, n_local, n_mem or host_bytes, "
        "or read less text");
  }
}

class HostSequence final : public SequenceExecution {
 public:
  explicit HostSequence(Decoder decoder) : decoder_(std::move(decoder)) {}

  Decoder& decoder() { return decoder_; }
  /// A step of it was made.
  void stepped() { logits_.clear(); }

  std::int64_t chunk() const override { return decoder_.chunk(); }
  std::int64_t tokens() const override { return decoder_.state()->tokens(); }

  // -- attention

  void attach(const MemoryConfig& config, std::int64_t /*max_tokens*/,
              std::vector<std::int64_t> given) override {
    attach_full();  // what was there goes first: its room may be needed
    MemoryShape shape = memory_shape(decoder_.config(), config.n_local);
    require_host_room(share_of(config, shape), shape);
    memory_ = patch(decoder_, config, std::move(given));
    show_keys();
  }
  void attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t /*max_tokens*/) override {
    patch(decoder_, memory);
    memory_ = std::move(memory);
    show_keys();
  }
  void attach_full_attention(std::int64_t /*max_tokens*/) override { attach_full(); }

  SequenceMemory* memory() override { return memory_.get(); }
  MemoryUsage usage(const EpisodicMemory* /*kept*/) const override {
    const MemoryCounters c = memory_->counters();
    MemoryUsage u;
    u.tokens = memory_->tokens();
    u.events = c.events;
    u.kv_dtype = memory_->config().kv_dtype;
    u.recalled_events = c.recalled_events;
    u.store_bytes = c.store.bytes_used;
    u.host_bytes = c.store.bytes_reserved;
    u.disk_bytes = c.store.disk_bytes;
    u.index_bytes = c.index_bytes;
    u.window_bytes = c.window_bytes;
    if (c.index_quality.checked > 0) u.index_recall = c.index_quality.recall();
    return u;
  }
  std::vector<float> representative(std::int64_t lane, EventId event) const override {
    return memory_->representative(lane, event);
  }
  void set_keys_hook(KeysHook hook) override {
    *keys_hook_ = std::move(hook);
    show_keys();
  }

  // -- steps

  void step(std::span<const std::int64_t> ids, StepKind kind) override {
    translated([&] { decoder_.step(ids, kind); });
    stepped();
  }
  void step_all(std::span<const std::int64_t> ids, std::span<float> logits) override {
    const LogitsView rows = translated([&] { return decoder_.forward(ids); });
    std::copy_n(rows.row(0).data(), logits.size(), logits.begin());
    stepped();
  }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    const LogitsView last = translated([&] {
      return decoder_.forward_surprise(ids.subspan(first, n), nll.subspan(first + 1, n - 1));
    });
    stepped();
    const std::int64_t vocab = decoder_.config().vocab_size;
    if (first == 0) nll[0] = 0;  // nothing comes before it
    if (first + n < ids.size())
      token_surprise(last.row(0).data(), 1, vocab, vocab, ids.data() + first + n,
                     nll.data() + first + n);
  }
  std::span<const float> logits() override {
    if (!logits_.empty()) return logits_;
    if (!memory_) return decoder_.logits();
    // The memory keeps them with its state, so they are right after a restore too.
    const std::vector<float>& last = memory_->last_logits();
    if (last.empty()) throw DataError("logits: no step was made yet; call step first");
    return last;
  }
  void explain_not_finite() const override { decoder_.explain_not_finite(); }

  // -- states

  struct HostState final : State {
    std::shared_ptr<const SequenceSnapshot> state;  // the memory, and layers beside it
  };
  std::shared_ptr<const State> snapshot() override {
    auto s = std::make_shared<HostState>();
    s->state = decoder_.state()->snapshot();  // has the logits with the rest
    return s;
  }
  void restore(const State& s) override {
    decoder_.state()->restore(*static_cast<const HostState&>(s).state);
  }
  void save(EpisodicMemory& /*kept*/) override {}  // it is the attached memory that computes

  std::unique_ptr<SequenceExecution> fork() override {
    auto other = std::make_unique<HostSequence>(decoder_.share_weights());
    if (memory_) {
      const auto& below = memory_->base();
      const bool at_base = below && below->tokens() == memory_->tokens();
      MemoryConfig budgets = memory_->config();
      budgets.disk_dir.clear();  // which is one memory's
      budgets.disk_bytes = 0;
      other->attach(std::make_shared<EpisodicMemory>(at_base ? below : memory_->share(), &budgets),
                    0);
    } else if (tokens() > 0) {
      other->decoder_.state()->restore(*decoder_.state()->snapshot());
      const std::span<const float> last = logits();
      other->logits_.assign(last.begin(), last.end());
    }
    return other;
  }

  std::int64_t bytes_for(std::int64_t tokens) const override {
    if (!memory_) {
      const ModelConfig& model = decoder_.config();
      const auto attending =
          std::count_if(model.layers.begin(), model.layers.end(),
                        [](const LayerSpec& layer) { return layer.mixer == Mixer::attention; });
      return tokens * attending * 2 * model.n_kv_heads * model.head_dim *
             static_cast<std::int64_t>(sizeof(float));
    }
    MemoryConfig config = memory_->config();
    config.host_bytes = config.repr_bytes = config.disk_bytes = 0;  // of a tail, without a folder
    config.disk_dir.clear();
    return plan_memory(config, memory_->shape(), tokens,
                       tokens / std::max<std::int64_t>(1, config.min_block), false)
        .host.total();
  }

 private:
  void attach_full() {
    unpatch(decoder_);
    decoder_.reset();
    memory_ = nullptr;
    logits_.clear();
    show_keys();
  }
  /// Slots that are new since the hook came get it too.
  void show_keys() {
    if (!*keys_hook_) return;
    for (std::int64_t l = 0; l < decoder_.config().n_layers; ++l)
      if (std::shared_ptr<AttentionSlot>& slot = decoder_.attention(l);
          slot && !dynamic_cast<const ShowingSlot*>(slot.get()))
        slot = std::make_shared<ShowingSlot>(slot, l, keys_hook_);
  }

  std::shared_ptr<KeysHook> keys_hook_ = std::make_shared<KeysHook>();
  Decoder decoder_;
  std::shared_ptr<EpisodicMemory> memory_;
  std::vector<float> logits_;  // of the sequence that this one was forked from, until a step
};

class HostExecutor final : public ModelExecutor {
 public:
  explicit HostExecutor(Decoder decoder) : decoder_(std::move(decoder)) {}

  const char* device() const override { return "cpu"; }
  const ModelConfig& config() const override { return decoder_.config(); }
  std::unique_ptr<SequenceExecution> new_sequence() const override {
    return std::make_unique<HostSequence>(decoder_.share_weights());
  }
  std::vector<std::exception_ptr> run(std::span<const ExecutionStep> steps) const override {
    std::vector<Decoder::SequenceStep> batch;
    batch.reserve(steps.size());
    for (const ExecutionStep& s : steps)
      batch.push_back({&static_cast<HostSequence*>(s.sequence)->decoder(), s.ids, s.kind});
    std::vector<std::exception_ptr> errors = Decoder::try_step_batch(batch);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (errors[i])
        errors[i] = of_library(errors[i]);
      else
        static_cast<HostSequence*>(steps[i].sequence)->stepped();
    }
    return errors;
  }

 private:
  static std::exception_ptr of_library(const std::exception_ptr& error) {
    try {
      translated([&] { std::rethrow_exception(error); });
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  const Decoder decoder_;  // whose weights all sequences share
};

}  // namespace

std::shared_ptr<const Model> load_model(const std::filesystem::path& dir,
                                        const ModelOptions& options) {
  require_model_dir(dir);
  if (options.fp8)
    throw ConfigError(
        "fp8 weights are a device's; load the model on one, or round to q8_0 on the host");
  return std::make_shared<const Model>(dir, options,
                                       std::make_unique<const HostExecutor>(translated([&] {
                                         return Decoder::load(open_model(dir, options));
                                       })));
}

std::unique_ptr<Engine> load_engine(const std::filesystem::path& model_dir,
                                    const ModelOptions& options) {
  return std::make_unique<Engine>(load_model(model_dir, options));
}

}  // namespace episodic
