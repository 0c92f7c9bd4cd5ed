// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/patch.hpp"

#include "episodic/base/error.hpp"
#include "episodic/model/episodic_attention.hpp"

namespace episodic {
namespace {

/// The state of a patched model also keeps what was there before.
class PatchedState final : public SequenceState {
 public:
  PatchedState(std::shared_ptr<EpisodicMemory> memory, std::shared_ptr<SequenceState> original,
               std::vector<std::shared_ptr<AttentionSlot>> original_slots)
      : episodic_(std::move(memory)),
        original_(std::move(original)),
        original_slots_(std::move(original_slots)) {}

  void begin_step(std::span<const std::int64_t> ids) override { episodic_.begin_step(ids); }
  void end_step(std::span<const std::int64_t> ids, const at::Tensor& logits) override {
    episodic_.end_step(ids, logits);
  }
  bool wants_all_logits() const override { return episodic_.wants_all_logits(); }
  std::int64_t tokens() const override { return episodic_.tokens(); }
  std::int64_t chunk() const override { return episodic_.chunk(); }
  void reset() override { episodic_.reset(); }

  const std::shared_ptr<EpisodicMemory>& memory() const { return episodic_.memory(); }
  const std::shared_ptr<SequenceState>& original() const { return original_; }
  const std::vector<std::shared_ptr<AttentionSlot>>& original_slots() const {
    return original_slots_;
  }

 private:
  EpisodicState episodic_;
  std::shared_ptr<SequenceState> original_;
  std::vector<std::shared_ptr<AttentionSlot>> original_slots_;
};

}  // namespace

MemoryShape memory_shape(const ModelConfig& c) {
  return {c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.rotary};
}

std::shared_ptr<EpisodicMemory> patch(LlamaModel& model, const MemoryConfig& config,
                                      std::vector<std::int64_t> given) {
  auto memory =
      std::make_shared<EpisodicMemory>(config, memory_shape(model.config()), std::move(given));
  patch(model, memory);
  return memory;
}

void patch(LlamaModel& model, std::shared_ptr<EpisodicMemory> memory) {
  const ModelConfig& c = model.config();
  if (const std::string what = difference(memory->shape(), memory_shape(c)); !what.empty())
    throw ConfigError("patch: the memory was made for another model: " + what +
                      "; open it with the model it was made with");
  std::shared_ptr<SequenceState> original = model.state();
  std::vector<std::shared_ptr<AttentionSlot>> slots;
  if (const auto* patched = dynamic_cast<const PatchedState*>(original.get())) {
    slots = patched->original_slots();
    original = patched->original();
  } else {
    for (std::int64_t l = 0; l < c.n_layers; ++l) slots.push_back(model.attention(l));
  }
  for (std::int64_t l = 0; l < c.n_layers; ++l)
    model.attention(l) = std::make_shared<EpisodicAttention>(memory, l);
  model.state() = std::make_shared<PatchedState>(memory, std::move(original), std::move(slots));
}

bool unpatch(LlamaModel& model) {
  const std::shared_ptr<SequenceState> state = model.state();
  const auto* patched = dynamic_cast<const PatchedState*>(state.get());
  if (!patched) return false;
  for (std::size_t l = 0; l < patched->original_slots().size(); ++l)
    model.attention(static_cast<std::int64_t>(l)) = patched->original_slots()[l];
  model.state() = patched->original();
  return true;
}

std::shared_ptr<EpisodicMemory> memory_of(const LlamaModel& model) {
  const auto* patched = dynamic_cast<const PatchedState*>(model.state().get());
  return patched ? patched->memory() : nullptr;
}

}  // namespace episodic
