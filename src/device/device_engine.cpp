// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_engine.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/timeline/surprise.hpp"
#include "head_layout.hpp"

namespace episodic {
namespace {

/// What the changes say of the device's own weights. Those that were rounded to blocks are floats
/// there.
DeviceDecoder::Options changed(DeviceDecoder::Options options, const ModelOptions& changes) {
  if (changes.quantize && !options.dtype) options.dtype = DType::bfloat16;
  options.fp8_weights = options.fp8_weights || changes.fp8;
  return options;
}

/// All sequences of a model share a stream: one thread at a time.
using StreamMutex = std::shared_ptr<std::mutex>;

class DeviceSequence final : public SequenceExecution {
 public:
  DeviceSequence(DeviceDecoder decoder, StreamMutex stream)
      : stream_(std::move(stream)), decoder_(std::move(decoder)) {}
  ~DeviceSequence() override {
    const std::lock_guard lock(*stream_);
    const DeviceDecoder gone = std::move(decoder_);
  }

  DeviceDecoder& decoder() { return decoder_; }

  std::int64_t chunk() const override { return decoder_.chunk(); }
  std::int64_t tokens() const override { return decoder_.tokens(); }

  // -- attention

  void attach(const MemoryConfig& config, std::int64_t max_tokens,
              std::vector<std::int64_t> given) override {
    require_length(max_tokens);
    const std::lock_guard lock(*stream_);
    decoder_.attach_memory(config, max_tokens, std::move(given));
  }
  void attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens) override {
    require_length(max_tokens);
    const std::lock_guard lock(*stream_);
    decoder_.attach_memory(*memory, max_tokens);
  }
  void attach_full_attention(std::int64_t max_tokens) override {
    require_length(max_tokens);
    const std::lock_guard lock(*stream_);
    decoder_.attend_fully(max_tokens);
  }

  SequenceMemory* memory() override { return &decoder_.memory(); }
  MemoryUsage usage(const EpisodicMemory* kept) const override {
    const std::lock_guard lock(*stream_);
    const DeviceMemory& memory = decoder_.memory();
    const DeviceMemoryBytes& bytes = memory.bytes();
    const bool in_folder = kept && kept->kept();
    const StoreCounters files = in_folder ? kept->counters().store : memory.lower_tiers();
    MemoryUsage u;
    u.tokens = memory.tokens();
    u.events = memory.n_events();
    u.recalled_events = memory.recalled_events();
    const DType kept_as = memory.config().kv_dtype;
    u.kv_dtype = is_code(kept_as) ? kept_as : decoder_.dtype();
    u.store_bytes = bytes.events;
    u.host_bytes = bytes.host_taken;
    u.disk_bytes = files.disk_bytes;
    u.index_bytes = bytes.representatives;
    u.window_bytes = bytes.window + bytes.snapshots + decoder_.bytes().caches;
    u.device_bytes = bytes.taken;
    u.step_bytes = bytes.workspace + decoder_.bytes().activations;
    u.weight_bytes = decoder_.bytes().weights;
    return u;
  }
  /// Without the channels that the device pads heads with.
  std::vector<float> representative(std::int64_t lane, EventId event) const override {
    const std::lock_guard lock(*stream_);
    return device::HeadLayout(decoder_.config())
        .of_model(decoder_.memory().representative(lane, event));
  }
  void set_keys_hook(KeysHook hook) override { decoder_.set_keys_hook(std::move(hook)); }

  // -- steps

  void step(std::span<const std::int64_t> ids, StepKind kind) override {
    const std::lock_guard lock(*stream_);
    decoder_.step(ids, kind);
  }
  void step_all(std::span<const std::int64_t> ids, std::span<float> logits) override {
    const std::lock_guard lock(*stream_);
    decoder_.step(ids, logits);
  }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    const std::lock_guard lock(*stream_);
    decoder_.step(ids.subspan(first, n));
    const std::vector<float> surprise = decoder_.surprise();
    std::copy(surprise.begin() + 1, surprise.end(), nll.subspan(first + 1).begin());
    const std::int64_t vocab = decoder_.config().vocab_size;
    if (first == 0) nll[0] = 0;  // nothing comes before it
    if (first + n < ids.size())
      token_surprise(decoder_.logits().data(), 1, vocab, vocab, ids.data() + first + n,
                     nll.data() + first + n);
  }
  std::span<const float> logits() override {
    const std::lock_guard lock(*stream_);
    return decoder_.logits();
  }
  void explain_not_finite() const override { decoder_.explain_not_finite(); }

  // -- states

  struct DeviceState final : State {
    std::shared_ptr<const DeviceDecoder::Snapshot> state;
  };
  std::shared_ptr<const State> snapshot() override {
    const std::lock_guard lock(*stream_);
    auto s = std::make_shared<DeviceState>();
    s->state = decoder_.snapshot();
    return s;
  }
  void restore(const State& s) override {
    const std::lock_guard lock(*stream_);
    decoder_.restore(*static_cast<const DeviceState&>(s).state);
  }
  void save(EpisodicMemory& kept) override {
    const std::lock_guard lock(*stream_);
    decoder_.save(kept);
  }
  std::unique_ptr<SequenceExecution> fork() override {
    const std::lock_guard lock(*stream_);
    return std::make_unique<DeviceSequence>(decoder_.fork(), stream_);
  }
  std::int64_t bytes_for(std::int64_t tokens) const override {
    const std::lock_guard lock(*stream_);
    return decoder_.fork_bytes(tokens);
  }

 private:
  static void require_length(std::int64_t max_tokens) {
    if (max_tokens < 1)
      throw ConfigError(
          "max_tokens: a device takes its room when a memory is attached; say how many tokens the "
          "sequence may come to");
  }

  StreamMutex stream_;
  mutable DeviceDecoder decoder_;  // its getters wait for the device
};

class DeviceExecutor final : public ModelExecutor {
 public:
  explicit DeviceExecutor(DeviceDecoder decoder) : decoder_(std::move(decoder)) {}

  const char* device() const override { return "cuda"; }
  const ModelConfig& config() const override { return decoder_.config(); }
  std::unique_ptr<SequenceExecution> new_sequence() const override {
    return std::make_unique<DeviceSequence>(decoder_.share_weights(), stream_);
  }
  std::vector<std::exception_ptr> run(std::span<const ExecutionStep> steps) const override {
    std::vector<DeviceDecoder::SequenceStep> batch;
    batch.reserve(steps.size());
    for (const ExecutionStep& s : steps)
      batch.push_back({&static_cast<DeviceSequence*>(s.sequence)->decoder(), s.ids, s.kind});
    const std::lock_guard lock(*stream_);
    return DeviceDecoder::try_step_batch(batch);
  }

 private:
  StreamMutex stream_ = std::make_shared<std::mutex>();
  DeviceDecoder decoder_;  // whose weights all sequences share; it has no attention
};

}  // namespace

std::shared_ptr<const Model> load_device_model(const std::filesystem::path& dir,
                                               const DeviceDecoder::Options& options,
                                               const ModelOptions& changes) {
  require_model_dir(dir);
  require_device(options.device);
  return std::make_shared<const Model>(dir, changes,
                                       std::make_unique<const DeviceExecutor>(DeviceDecoder::load(
                                           open_model(dir, changes), changed(options, changes))));
}

std::unique_ptr<Engine> load_device_engine(const std::filesystem::path& model_dir,
                                           const DeviceDecoder::Options& options,
                                           const ModelOptions& changes) {
  return std::make_unique<Engine>(load_device_model(model_dir, options, changes));
}

DevicePlan plan_on_device(const std::filesystem::path& model_dir, const MemoryConfig& config,
                          std::int64_t tokens, const ModelOptions& changes,
                          std::int64_t event_tokens) {
  const ModelConfig m = load_model_config(model_dir);
  const DeviceModelBytes around =
      DeviceDecoder::bytes_needed(model_dir, changed({}, changes), config.chunk, changes);
  const MemoryShape shape = device::HeadLayout(m).shape(memory_shape(m, config.n_local));
  DeviceMemoryOptions options{around.dtype, tokens};
  options.event_tokens = event_tokens;
  const DeviceMemoryBytes memory = DeviceMemory::bytes_needed(config, shape, options);
  DevicePlan plan;
  plan.device = {
      around.weights, around.activations,     memory.window + memory.snapshots + around.caches,
      memory.events,  memory.representatives, memory.workspace};
  plan.at_start = around.weights + around.activations + around.caches + memory.taken;
  plan.host_events = memory.host;
  if (has_device()) plan.available = free_device_bytes();
  return plan;
}

}  // namespace episodic
