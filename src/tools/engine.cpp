// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/timeline/surprise.hpp"
#include "kept.hpp"
#if EPISODIC_HAS_DEVICE
#include "episodic/device/device_llama.hpp"
#endif

namespace episodic::tools {
namespace {

class HostEngine final : public Engine {
 public:
  HostEngine(const ModelFlags& flags, const MemoryConfig& config)
      : model_(LlamaModel::load(flags.model)) {
    if (!flags.full_attention) memory_ = patch(model_, config);
  }
  LanguageModel& model() override { return model_; }
  StepRecord last_step() const override {
    if (!memory_) throw ConfigError("--full-attention: there is no memory to ask");
    return memory_->last_step();
  }
  std::int64_t events() const override { return memory_ ? memory_->events().size() : 0; }
  Json memory_json() const override { return memory_ ? tools::memory_json(*memory_) : Json(); }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    const at::Tensor logits = model_.forward(ids.subspan(first, n));
    const std::size_t scored = std::min(n, ids.size() - first - 1);
    token_surprise(logits.const_data_ptr<float>(), static_cast<std::int64_t>(scored),
                   model_.config().vocab_size, logits.stride(0), ids.data() + first + 1,
                   nll.data() + first + 1);
  }

 private:
  LlamaModel model_;
  std::shared_ptr<EpisodicMemory> memory_;
};

#if EPISODIC_HAS_DEVICE
class DeviceEngine final : public Engine {
 public:
  DeviceEngine(const ModelFlags& flags, MemoryConfig config, std::int64_t max_tokens)
      : model_(DeviceLlama::load(flags.model)), full_attention_(flags.full_attention) {
    if (full_attention_) {
      // A window as long as the text is plain causal attention.
      config = {};
      config.n_init = config.n_mem = 0;
      config.n_local = max_tokens;
      config.recall = false;
    }
    model_.remember(config, max_tokens);
  }
  LanguageModel& model() override { return model_; }
  StepRecord last_step() const override { return memory().last_step(); }
  std::int64_t events() const override { return full_attention_ ? 0 : memory().events().size(); }
  Json memory_json() const override {
    if (full_attention_) return {};
    const DeviceMemoryBytes& bytes = memory().bytes();
    return {{"tokens", memory().tokens()},
            {"events", events()},
            {"device_bytes", bytes.total()},
            {"host_bytes", bytes.host},
            {"store_bytes", bytes.events},
            {"index_bytes", bytes.representatives},
            {"window_bytes", bytes.window},
            {"step_bytes", bytes.workspace + model_.bytes().activations},
            {"weight_bytes", model_.bytes().weights}};
  }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    model_.step(ids.subspan(first, n));
    memory().check();
    const std::vector<float> surprise = memory().last_step().surprise;
    std::copy(surprise.begin(), surprise.end(), nll.begin() + static_cast<std::ptrdiff_t>(first));
  }

 private:
  DeviceMemory& memory() const { return model_.memory(); }
  mutable DeviceLlama model_;
  bool full_attention_;
};
#endif

#if !EPISODIC_HAS_DEVICE
void refuse_cuda(const CommonFlags& common) {
  if (common.device == "cuda")
    throw NotBuiltError(
        "--device cuda: this build has no CUDA path; build with -DEPISODIC_CUDA=ON, or use "
        "--device cpu");
}
#endif

}  // namespace

std::unique_ptr<Engine> make_engine(const CommonFlags& common, const ModelFlags& flags,
                                    const MemoryConfig& config, std::int64_t max_tokens) {
#if EPISODIC_HAS_DEVICE
  if (common.device == "cuda" || (common.device == "auto" && has_device()))
    return std::make_unique<DeviceEngine>(flags, config, max_tokens);
#else
  static_cast<void>(max_tokens);
  refuse_cuda(common);
#endif
  return std::make_unique<HostEngine>(flags, config);
}

std::optional<DevicePlan> plan_on_device(const CommonFlags& common, const ModelFlags& flags,
                                         const MemoryConfig& config, std::int64_t tokens) {
#if EPISODIC_HAS_DEVICE
  const bool there = has_device();
  if (common.device == "cpu" || (common.device == "auto" && !there)) return std::nullopt;
  const ModelConfig m = load_model_config(flags.model);
  const DeviceModelBytes model = DeviceLlama::bytes_needed(flags.model, {}, config.chunk);
  const DeviceMemoryBytes memory = DeviceMemory::bytes_needed(
      config, {m.n_layers, m.n_heads, m.n_kv_heads, m.head_dim, m.rotary}, {model.dtype, tokens});
  DevicePlan plan;
  plan.device = {model.weights, model.activations,      memory.window,
                 memory.events, memory.representatives, memory.workspace};
  plan.host_events = memory.host;
  if (there) plan.available = free_device_bytes();
  return plan;
#else
  static_cast<void>(flags);
  static_cast<void>(config);
  static_cast<void>(tokens);
  refuse_cuda(common);
  return std::nullopt;
#endif
}

}  // namespace episodic::tools
