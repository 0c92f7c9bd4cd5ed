// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/timeline/surprise.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

class HostEngine final : public Engine {
 public:
  explicit HostEngine(const std::filesystem::path& dir) : model_(LlamaModel::load(dir)) {}

  LanguageModel& model() override { return model_; }

  void remember(const MemoryConfig& config, std::int64_t /*max_tokens*/,
                std::vector<std::int64_t> given) override {
    memory_ = patch(model_, config, std::move(given));
  }
  void remember(std::shared_ptr<EpisodicMemory> kept, std::int64_t /*max_tokens*/) override {
    patch(model_, kept);
    memory_ = std::move(kept);
  }
  void attend_fully(std::int64_t /*max_tokens*/) override {
    unpatch(model_);
    model_.reset();
    memory_ = nullptr;
  }
  void save() override {}  // it is the kept memory that computes

  std::function<void()> snapshot() override {
    memory();
    return [state = model_.state(), at = model_.state()->snapshot()] { state->restore(*at); };
  }

  StepRecord last_step() const override { return memory().last_step(); }
  EventTable events() const override { return memory().events(); }
  Recall recalled(std::int64_t layer) const override {
    const RecallBuffers& buffers = memory().recalled(layer);
    return {buffers.similarity(), buffers.contiguity()};
  }
  std::vector<float> representative(std::int64_t layer, EventId event) const override {
    return memory_->representative(layer, event);
  }
  std::vector<float> relevance(std::int64_t layer, std::int64_t first,
                               std::int64_t n) const override {
    std::vector<float> all;
    for (std::int64_t t = first; t < first + n; ++t) {
      const float* r = memory().relevance(layer, t);
      if (!r) throw DataError(fmt::format("relevance: token {} left the window long ago", t));
      all.insert(all.end(), r, r + memory_->shape().n_heads);
    }
    return all;
  }

  std::int64_t n_events() const override { return memory_ ? memory_->events().size() : 0; }
  Json memory_json() const override { return memory_ ? tools::memory_json(*memory_) : Json(); }

  void step(std::span<const std::int64_t> ids, std::span<float> logits) override {
    const at::Tensor rows = model_.forward(ids);
    std::copy_n(rows.const_data_ptr<float>(), rows.numel(), logits.begin());
  }
  void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
             std::span<float> nll) override {
    const at::Tensor logits = model_.forward(ids.subspan(first, n));
    const std::size_t scored = std::min(n, ids.size() - first - 1);
    token_surprise(logits.const_data_ptr<float>(), static_cast<std::int64_t>(scored),
                   model_.config().vocab_size, logits.stride(0), ids.data() + first + 1,
                   nll.data() + first + 1);
  }

 private:
  const EpisodicMemory& memory() const {
    if (!memory_) throw ConfigError("--full-attention: there is no memory to ask");
    return *memory_;
  }

  LlamaModel model_;
  std::shared_ptr<EpisodicMemory> memory_;
};

}  // namespace

std::unique_ptr<Engine> load_host_engine(const std::filesystem::path& model) {
  return std::make_unique<HostEngine>(model);
}

}  // namespace episodic::tools
