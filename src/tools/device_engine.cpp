// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/device/device_llama.hpp"
#include "episodic/model/memory_layers.hpp"

namespace episodic::tools {
namespace {

class DeviceEngine final : public Engine {
 public:
  explicit DeviceEngine(const std::filesystem::path& dir) : model_(DeviceLlama::load(dir)) {}

  LanguageModel& model() override { return model_; }

  void remember(const MemoryConfig& config, std::int64_t max_tokens,
                std::vector<std::int64_t> given) override {
    forget();
    model_.remember(config, max_tokens, std::move(given));
    remembers_ = true;
  }
  void remember(std::shared_ptr<EpisodicMemory> kept, std::int64_t max_tokens) override {
    forget();
    model_.remember(*kept, max_tokens);
    kept_ = std::move(kept);
    remembers_ = true;
  }
  void attend_fully(std::int64_t max_tokens) override {
    forget();
    // A window as long as the text is plain causal attention.
    MemoryConfig config;
    config.n_init = config.n_mem = 0;
    config.n_local = max_tokens;
    config.recall = false;
    model_.remember(config, max_tokens);
  }
  void save() override {
    if (kept_) model_.save(*kept_);
  }

  std::function<void()> snapshot() override {
    memory();
    return [this, state = model_.snapshot()] { model_.restore(*state); };
  }

  StepRecord last_step() const override { return memory().last_step(); }
  EventTable events() const override { return memory().events(); }
  Recall recalled(std::int64_t layer) const override {
    DeviceMemory::Recall lists = memory().recall_lists(layer);
    return {std::move(lists.similarity), std::move(lists.contiguity)};
  }
  std::vector<float> representative(std::int64_t layer, EventId event) const override {
    return memory().representative(layer, event);
  }
  std::vector<float> relevance(std::int64_t layer, std::int64_t first,
                               std::int64_t n) const override {
    return memory().relevance(layer, first, n);
  }

  std::int64_t n_events() const override { return remembers_ ? memory().events().size() : 0; }
  Json memory_json() const override {
    if (!remembers_) return {};
    const DeviceMemoryBytes& bytes = memory().bytes();
    const StoreCounters files = kept_ ? kept_->counters().store : memory().lower_tiers();
    return {{"tokens", memory().tokens()},
            {"events", n_events()},
            {"kv_dtype", name_of(model_.dtype())},
            {"device_bytes", bytes.total()},
            {"host_bytes", bytes.host},
            {"disk_bytes", files.disk_bytes},
            {"store_bytes", bytes.events},
            {"index_bytes", bytes.representatives},
            {"window_bytes", bytes.window},
            {"step_bytes", bytes.workspace + model_.bytes().activations},
            {"weight_bytes", model_.bytes().weights}};
  }

  void step(std::span<const std::int64_t> ids, std::span<float> logits) override {
    model_.step(ids, logits);
  }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    model_.step(ids.subspan(first, n));
    model_.memory().check();
    const std::vector<float> surprise = model_.memory().last_step().surprise;
    std::copy(surprise.begin(), surprise.end(), nll.begin() + static_cast<std::ptrdiff_t>(first));
  }

 private:
  void forget() {
    remembers_ = false;
    kept_ = nullptr;
  }
  DeviceMemory& memory() const {
    if (!remembers_) throw ConfigError("--full-attention: there is no memory to ask");
    return model_.memory();
  }

  mutable DeviceLlama model_;
  bool remembers_ = false;
  std::shared_ptr<EpisodicMemory> kept_;  // the model's memory is a copy of it, then its future
};

bool on_device(const CommonFlags& common) {
  return common.device == "cuda" || (common.device == "auto" && has_device());
}

}  // namespace

std::unique_ptr<Engine> load_device_engine(const CommonFlags& common,
                                           const std::filesystem::path& model) {
  if (!on_device(common)) return nullptr;
  return std::make_unique<DeviceEngine>(model);
}

std::optional<DevicePlan> plan_on_device(const CommonFlags& common,
                                         const std::filesystem::path& model,
                                         const MemoryConfig& config, std::int64_t tokens) {
  if (!on_device(common)) return std::nullopt;
  const ModelConfig m = load_model_config(model);
  const DeviceModelBytes around = DeviceLlama::bytes_needed(model, {}, config.chunk);
  const DeviceMemoryBytes memory =
      DeviceMemory::bytes_needed(config, memory_shape(m, config.n_local), {around.dtype, tokens});
  DevicePlan plan;
  plan.device = {around.weights, around.activations,     memory.window,
                 memory.events,  memory.representatives, memory.workspace};
  plan.host_events = memory.host;
  if (has_device()) plan.available = free_device_bytes();
  return plan;
}

}  // namespace episodic::tools
