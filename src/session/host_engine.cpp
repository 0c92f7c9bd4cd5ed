// SPDX-License-Identifier: Apache-2.0
// The engine of the host: a decoder, its memory in host memory and files.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/engine.hpp"
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

class HostEngine final : public Engine {
 public:
  HostEngine(const std::filesystem::path& dir, const ModelOptions& options)
      : Engine(dir, options),
        model_(translated([&] { return Decoder::load(open_model(dir, options)); })) {}

  const char* device() const override { return "cpu"; }

  const ModelConfig& config() const override { return model_.config(); }
  std::int64_t chunk() const override { return model_.chunk(); }
  std::int64_t tokens() const override { return model_.state()->tokens(); }
  void step(std::span<const std::int64_t> ids, StepKind kind) override {
    translated([&] { model_.step(ids, kind); });
  }
  std::span<const float> logits() override {
    if (!memory_) return model_.logits();
    // The memory keeps them with its state, so they are right after a restore too.
    const std::vector<float>& last = memory_->last_logits();
    if (last.empty()) throw DataError("Engine::logits: no step was made yet; call step first");
    return last;
  }

  SequenceMemory* memory() override { return memory_.get(); }
  MemoryUsage usage() const override {
    require(Capability::inspect);
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

  void set_keys_hook(KeysHook hook) override {
    *keys_hook_ = std::move(hook);
    show_keys();
  }

  void step(std::span<const std::int64_t> ids, std::span<float> logits) override {
    const std::size_t wanted = ids.size() * static_cast<std::size_t>(config().vocab_size);
    if (logits.size() != wanted)
      throw DataError(fmt::format("Engine::step: room for {} logits, {} tokens have {}",
                                  logits.size(), ids.size(), wanted));
    const LogitsView rows = translated([&] { return model_.forward(ids); });
    std::copy_n(rows.row(0).data(), wanted, logits.begin());
  }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    if (n < 1 || first > ids.size() || n > ids.size() - first)
      throw DataError(
          fmt::format("Engine::score: {} tokens from {} on, of {}; at least one must "
                      "be read, and none beyond the last",
                      n, first, ids.size()));
    if (nll.size() != ids.size())
      throw DataError(fmt::format("Engine::score: room for {} numbers, {} tokens have as many",
                                  nll.size(), ids.size()));
    const LogitsView last = translated([&] {
      return model_.forward_surprise(ids.subspan(first, n), nll.subspan(first + 1, n - 1));
    });
    if (first == 0) nll[0] = 0;  // nothing comes before it
    if (first + n < ids.size())
      token_surprise(last.row(0).data(), 1, model_.config().vocab_size, model_.config().vocab_size,
                     ids.data() + first + n, nll.data() + first + n);
  }

 protected:
  void do_attach(const MemoryConfig& config, std::int64_t /*max_tokens*/,
                 std::vector<std::int64_t> given) override {
    attach_full();  // what was there goes first: its room may be needed
    require_host_room(config, memory_shape(model_.config(), config.n_local));
    memory_ = patch(model_, config, std::move(given));
    show_keys();
  }
  void do_attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t /*max_tokens*/) override {
    patch(model_, memory);
    memory_ = std::move(memory);
    show_keys();
  }
  void do_attach_full_attention(std::int64_t /*max_tokens*/) override { attach_full(); }

  struct HostSnapshot final : Snapshot {
    std::shared_ptr<const SequenceSnapshot> state;  // the memory, and layers beside it
  };
  std::shared_ptr<Snapshot> do_snapshot() override {
    auto s = std::make_shared<HostSnapshot>();
    s->state = model_.state()->snapshot();  // has the logits with the rest
    return s;
  }
  void do_restore(const Snapshot& s) override {
    model_.state()->restore(*static_cast<const HostSnapshot&>(s).state);
  }
  void do_save() override {}  // it is the attached memory that computes

 private:
  void attach_full() {
    unpatch(model_);
    model_.reset();
    memory_ = nullptr;
    show_keys();
  }
  /// Slots that are new since the hook came get it too.
  void show_keys() {
    if (!*keys_hook_) return;
    for (std::int64_t l = 0; l < config().n_layers; ++l)
      if (std::shared_ptr<AttentionSlot>& slot = model_.attention(l);
          !dynamic_cast<const ShowingSlot*>(slot.get()))
        slot = std::make_shared<ShowingSlot>(slot, l, keys_hook_);
  }
  std::shared_ptr<KeysHook> keys_hook_ = std::make_shared<KeysHook>();
  Decoder model_;
  std::shared_ptr<EpisodicMemory> memory_;
};

}  // namespace

std::unique_ptr<Engine> load_engine(const std::filesystem::path& model_dir,
                                    const ModelOptions& options) {
  return std::make_unique<HostEngine>(model_dir, options);
}

}  // namespace episodic
