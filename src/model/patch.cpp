// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/patch.hpp"

#include <fmt/format.h>

#include "causal_attention.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/episodic_attention.hpp"
#include "episodic/model/memory_settings.hpp"

namespace episodic {
namespace {

struct PatchedSnapshot final : SequenceSnapshot {
  std::shared_ptr<const SequenceSnapshot> memory, sliding;
};

/// The state of a patched model: the memory, the sliding layers that it does not serve, and what
/// was there before.
class PatchedState final : public SequenceState {
 public:
  PatchedState(std::shared_ptr<EpisodicMemory> memory, std::shared_ptr<CausalState> sliding,
               std::shared_ptr<SequenceState> original,
               std::vector<std::shared_ptr<AttentionSlot>> original_slots)
      : episodic_(std::move(memory)),
        sliding_(std::move(sliding)),
        original_(std::move(original)),
        original_slots_(std::move(original_slots)) {}

  using SequenceState::begin_step;
  void begin_step(std::span<const std::int64_t> ids, StepKind kind) override {
    follow_memory();
    episodic_.begin_step(ids, kind);
    if (sliding_) sliding_->begin_step(ids, kind);
  }
  void end_step(std::span<const std::int64_t> ids, const at::Tensor& logits) override {
    episodic_.end_step(ids, logits);  // may refuse the step
    if (sliding_) sliding_->end_step(ids, logits);
  }
  bool wants_all_logits() const override { return episodic_.wants_all_logits(); }
  bool takes_surprise() const override { return true; }
  void end_step_by_surprise(std::span<const std::int64_t> ids, const StepSurprise& step) override {
    episodic_.end_step_by_surprise(ids, step);  // may refuse the step
    if (sliding_) sliding_->end_step(ids, {});
  }
  std::int64_t tokens() const override { return episodic_.tokens(); }
  std::span<const float> last_logits() const override { return episodic_.last_logits(); }
  std::int64_t chunk() const override { return episodic_.chunk(); }
  void reset() override {
    episodic_.reset();
    if (sliding_) sliding_->reset();
  }

  std::shared_ptr<const SequenceSnapshot> snapshot() const override {
    auto copy = std::make_shared<PatchedSnapshot>();
    copy->memory = episodic_.snapshot();
    if (sliding_) copy->sliding = sliding_->snapshot();
    return copy;
  }
  void restore(const SequenceSnapshot& snapshot) override {
    const auto* copy = dynamic_cast<const PatchedSnapshot*>(&snapshot);
    if (!copy || !copy->sliding != !sliding_) return SequenceState::restore(snapshot);
    episodic_.restore(*copy->memory);  // may refuse
    if (sliding_) sliding_->restore(*copy->sliding);
  }

  const std::shared_ptr<EpisodicMemory>& memory() const { return episodic_.memory(); }
  const std::shared_ptr<SequenceState>& original() const { return original_; }
  const std::vector<std::shared_ptr<AttentionSlot>>& original_slots() const {
    return original_slots_;
  }

 private:
  /// The memory may have been reset or restored by its own calls.
  void follow_memory() {
    if (!sliding_ || sliding_->tokens() == episodic_.tokens()) return;
    if (episodic_.tokens() == 0) return sliding_->reset();
    throw DataError(
        fmt::format("patch: the memory stands at token {}, but the model's sliding layers have "
                    "seen {}; go back by the snapshots of the model's state, not of its memory",
                    episodic_.tokens(), sliding_->tokens()));
  }

  EpisodicState episodic_;
  std::shared_ptr<CausalState> sliding_;  // null if the memory serves all layers
  std::shared_ptr<SequenceState> original_;
  std::vector<std::shared_ptr<AttentionSlot>> original_slots_;
};

void check_window(const ModelConfig& c, const MemoryConfig& config, const LogCallback& log) {
  for (const std::int64_t l : c.memory_layers()) {
    const std::int64_t window = c.layers[static_cast<std::size_t>(l)].window;
    if (window > 0 && config.n_local > window)
      throw ConfigError(
          fmt::format("patch: n_local = {} exceeds the sliding window of {} tokens that layer {} "
                      "has; set n_local to at most that",
                      config.n_local, window, l));
  }
  if (log && c.max_positions > 0 && config.n_local > c.max_positions)
    log(LogLevel::warning,
        fmt::format("n_local = {} exceeds the window of {} tokens that the model was trained for; "
                    "longer texts may come out wrong",
                    config.n_local, c.max_positions));
}

void check_memory(const ModelConfig& c, const EpisodicMemory& memory) {
  const MemoryShape wanted = memory_shape(c, memory.config().n_local);
  if (const std::string what = difference(memory.shape(), wanted); !what.empty())
    throw ConfigError("patch: the memory was made for another model: " + what +
                      "; open it with the model it was made with");
  if (wanted.n_layers != c.n_layers && memory.tokens() > 0)
    throw ConfigError(
        fmt::format("patch: the memory holds {} tokens, and this {} model has sliding layers "
                    "whose keys a memory does not keep; start with an empty memory",
                    memory.tokens(), c.model_type));
}

}  // namespace

std::shared_ptr<EpisodicMemory> patch(Decoder& model, const MemoryConfig& config,
                                      std::vector<std::int64_t> given, const LogCallback& log) {
  check_window(model.config(), config, {});
  const MemoryShape shape = memory_shape(model.config(), config.n_local);
  require_host_room(config, shape);
  auto memory = std::make_shared<EpisodicMemory>(config, shape, std::move(given));
  patch(model, memory, log);
  return memory;
}

std::shared_ptr<EpisodicMemory> patch(Decoder& model, const std::filesystem::path& model_dir,
                                      const LogCallback& log) {
  return patch(model, memory_config_of(model_dir), {}, log);
}

void patch(Decoder& model, std::shared_ptr<EpisodicMemory> memory, const LogCallback& log) {
  const ModelConfig& c = model.config();
  check_window(c, memory->config(), log);
  check_memory(c, *memory);
  std::shared_ptr<SequenceState> original = model.state();
  std::vector<std::shared_ptr<AttentionSlot>> slots;
  if (const auto* patched = dynamic_cast<const PatchedState*>(original.get())) {
    slots = patched->original_slots();
    original = patched->original();
  } else {
    for (std::int64_t l = 0; l < c.n_layers; ++l) slots.push_back(model.attention(l));
  }
  const std::vector<std::int64_t> served = c.memory_layers();
  std::shared_ptr<CausalState> sliding;
  if (static_cast<std::int64_t>(served.size()) < c.n_layers)
    sliding = std::make_shared<CausalState>(c);
  std::int64_t next = 0;
  for (std::int64_t l = 0; l < c.n_layers; ++l) {
    const bool mine = next < static_cast<std::int64_t>(served.size()) &&
                      served[static_cast<std::size_t>(next)] == l;
    if (mine)
      model.attention(l) = std::make_shared<EpisodicAttention>(memory, next++);
    else
      model.attention(l) = causal_slot(sliding, l);
  }
  model.state() = std::make_shared<PatchedState>(memory, std::move(sliding), std::move(original),
                                                 std::move(slots));
}

bool unpatch(Decoder& model) {
  const std::shared_ptr<SequenceState> state = model.state();
  const auto* patched = dynamic_cast<const PatchedState*>(state.get());
  if (!patched) return false;
  for (std::size_t l = 0; l < patched->original_slots().size(); ++l)
    model.attention(static_cast<std::int64_t>(l)) = patched->original_slots()[l];
  model.state() = patched->original();
  return true;
}

std::shared_ptr<EpisodicMemory> memory_of(const Decoder& model) {
  const auto* patched = dynamic_cast<const PatchedState*>(model.state().get());
  return patched ? patched->memory() : nullptr;
}

}  // namespace episodic
