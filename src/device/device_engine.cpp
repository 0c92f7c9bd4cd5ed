// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_engine.hpp"

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/timeline/surprise.hpp"
#include "head_layout.hpp"
#include "session/step_lengths.hpp"

namespace episodic {
namespace {

/// Weights that were rounded to blocks are floats on the device.
DeviceDecoder::Options with_dtype(DeviceDecoder::Options options, const ModelOptions& changes) {
  if (changes.quantize && !options.dtype) options.dtype = DType::bfloat16;
  return options;
}

class DeviceEngine final : public Engine {
 public:
  DeviceEngine(const std::filesystem::path& dir, const DeviceDecoder::Options& options,
               const ModelOptions& changes)
      : Engine(dir, changes), model_(DeviceDecoder::load(open_model(dir, changes), options)) {}

  const char* device() const override { return "cuda"; }

  const ModelConfig& config() const override { return model_.config(); }
  std::int64_t chunk() const override { return model_.chunk(); }
  std::int64_t tokens() const override { return model_.tokens(); }
  void step(std::span<const std::int64_t> ids, StepKind kind) override { model_.step(ids, kind); }
  std::span<const float> logits() override { return model_.logits(); }

  /// Of the model's channels, without those that the device pads heads with.
  std::vector<float> representative(std::int64_t lane, EventId event) const override {
    return device::HeadLayout(model_.config()).of_model(Engine::representative(lane, event));
  }

  SequenceMemory* memory() override { return has_memory() ? &model_.memory() : nullptr; }
  MemoryUsage usage() const override {
    require(Capability::inspect);
    const DeviceMemoryBytes& bytes = model_.memory().bytes();
    const bool in_folder = kept() && kept()->kept();
    const StoreCounters files =
        in_folder ? kept()->counters().store : model_.memory().lower_tiers();
    MemoryUsage u;
    u.tokens = model_.memory().tokens();
    u.events = model_.memory().n_events();
    u.recalled_events = model_.memory().recalled_events();
    const DType kept_as = model_.memory().config().kv_dtype;
    u.kv_dtype = is_code(kept_as) ? kept_as : model_.dtype();
    u.store_bytes = bytes.events;
    u.host_bytes = bytes.host_taken;
    u.disk_bytes = files.disk_bytes;
    u.index_bytes = bytes.representatives;
    u.window_bytes = bytes.window + model_.bytes().caches;
    u.device_bytes = bytes.taken;
    u.step_bytes = bytes.workspace + model_.bytes().activations;
    u.weight_bytes = model_.bytes().weights;
    return u;
  }

  void set_keys_hook(KeysHook hook) override { model_.set_keys_hook(std::move(hook)); }

  void step(std::span<const std::int64_t> ids, std::span<float> logits) override {
    model_.step(ids, logits);
  }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    require_scorable(ids, first, n, nll, config().vocab_size);
    model_.step(ids.subspan(first, n));
    // The step before this one has scored the first token; only the others are new.
    const std::vector<float> surprise = model_.surprise();
    std::copy(surprise.begin() + 1, surprise.end(), nll.subspan(first + 1).begin());
    if (first == 0) nll[0] = 0;  // nothing comes before it
    if (first + n < ids.size())
      token_surprise(model_.logits().data(), 1, config().vocab_size, config().vocab_size,
                     ids.data() + first + n, nll.data() + first + n);
  }

 protected:
  void do_attach(const MemoryConfig& config, std::int64_t max_tokens,
                 std::vector<std::int64_t> given) override {
    require_length(max_tokens);
    model_.attach_memory(config, max_tokens, std::move(given));
  }
  void do_attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens) override {
    require_length(max_tokens);
    model_.attach_memory(*memory, max_tokens);
  }
  void do_attach_full_attention(std::int64_t max_tokens) override {
    require_length(max_tokens);
    model_.attend_fully(max_tokens);
  }

  struct OnDevice final : Snapshot {
    std::shared_ptr<const DeviceDecoder::Snapshot> state;
  };
  std::shared_ptr<Snapshot> do_snapshot() override {
    auto s = std::make_shared<OnDevice>();
    s->state = model_.snapshot();
    return s;
  }
  void do_restore(const Snapshot& s) override {
    model_.restore(*static_cast<const OnDevice&>(s).state);
  }
  void do_save() override { model_.save(*kept()); }

 private:
  static void require_length(std::int64_t max_tokens) {
    if (max_tokens < 1)
      throw ConfigError(
          "max_tokens: a device takes its room when a memory is attached; say how many tokens the "
          "sequence may come to");
  }
  mutable DeviceDecoder model_;  // its getters wait for the device
};

}  // namespace

std::unique_ptr<Engine> load_device_engine(const std::filesystem::path& model_dir,
                                           const DeviceDecoder::Options& options,
                                           const ModelOptions& changes) {
  require_device(options.device);
  return std::make_unique<DeviceEngine>(model_dir, with_dtype(options, changes), changes);
}

DevicePlan plan_on_device(const std::filesystem::path& model_dir, const MemoryConfig& config,
                          std::int64_t tokens, const ModelOptions& changes,
                          std::int64_t event_tokens) {
  const ModelConfig m = load_model_config(model_dir);
  const DeviceModelBytes around =
      DeviceDecoder::bytes_needed(model_dir, with_dtype({}, changes), config.chunk);
  const MemoryShape shape = device::HeadLayout(m).shape(memory_shape(m, config.n_local));
  DeviceMemoryOptions options{around.dtype, tokens};
  options.event_tokens = event_tokens;
  const DeviceMemoryBytes memory = DeviceMemory::bytes_needed(config, shape, options);
  DevicePlan plan;
  plan.device = {around.weights, around.activations,     memory.window + around.caches,
                 memory.events,  memory.representatives, memory.workspace};
  plan.at_start = around.weights + around.activations + around.caches + memory.taken;
  plan.host_events = memory.host;
  if (has_device()) plan.available = free_device_bytes();
  return plan;
}

}  // namespace episodic
