// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/patch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "causal_attention.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/episodic_attention.hpp"
#include "episodic/model/memory_settings.hpp"

namespace episodic {
namespace {

/// What a model had before it was patched.
struct Original {
  std::vector<std::shared_ptr<AttentionSlot>> slots;
  std::shared_ptr<SequenceState> state;
};

/// The state of a patched model, which also knows what was there before.
class PatchedState final : public EpisodicState {
 public:
  PatchedState(std::shared_ptr<EpisodicMemory> memory, std::shared_ptr<SequenceState> beside,
               Original original)
      : EpisodicState(std::move(memory), std::move(beside)), original_(std::move(original)) {}

  const Original& original() const { return original_; }
  /// Whether the state that was there before goes on, with layers that are not served.
  bool original_goes_on() const { return beside() && beside() == original_.state; }

 private:
  Original original_;
};

const PatchedState* patched_state(const PatchPoints& points) {
  return points.state ? dynamic_cast<const PatchedState*>(points.state->get()) : nullptr;
}

/// What was there before any patching.
Original original_of(const PatchPoints& points) {
  if (const PatchedState* patched = patched_state(points)) return patched->original();
  Original original;
  for (const auto* slot : points.slots) original.slots.push_back(*slot);
  original.state = *points.state;
  return original;
}

/// Gives all layers their slots at once; nothing in it can fail.
void put(const PatchPoints& points, std::vector<std::shared_ptr<AttentionSlot>> slots,
         std::shared_ptr<SequenceState> state) {
  for (std::size_t l = 0; l < slots.size(); ++l) points.slots[l]->swap(slots[l]);
  points.state->swap(state);
}

PatchPoints points_of(Decoder& model) {
  PatchPoints points;
  for (std::int64_t l = 0; l < model.config().n_layers; ++l)
    points.slots.push_back(&model.attention(l));
  points.state = &model.state();
  return points;
}

std::vector<std::int64_t> checked_layers(const PatchPoints& points, const EpisodicMemory& memory,
                                         std::vector<std::int64_t> layers) {
  const auto n = static_cast<std::int64_t>(points.slots.size());
  if (n == 0 || !points.state)
    throw ConfigError(
        "patch: no layer with an attention slot was found in the model; let each attention module "
        "derive from SlottedAttention, or offer attention(layer) and state()");
  if (layers.empty())
    for (std::int64_t l = 0; l < n; ++l) layers.push_back(l);
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (layers[i] < 0 || layers[i] >= n || (i > 0 && layers[i] <= layers[i - 1]))
      throw ConfigError(
          fmt::format("patch: layers[{}] = {}, must be in [0, {}) and above the one before it", i,
                      layers[i], n));
  if (memory.shape().n_layers != static_cast<std::int64_t>(layers.size()))
    throw ConfigError(
        fmt::format("patch: the memory was made for {} layers, but {} are to be patched; make it "
                    "with n_layers = {}",
                    memory.shape().n_layers, layers.size(), layers.size()));
  return layers;
}

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
  MemoryShape wanted = memory_shape(c, memory.config().n_local);
  if (wanted.ranks == memory.shape().ranks)  // it has a rank's settings already
    wanted.recall_together = memory.shape().recall_together;
  if (const std::string what = difference(memory.shape(), wanted); !what.empty())
    throw ConfigError("patch: the memory was made for another model: " + what +
                      "; open it with the model it was made with");
}

}  // namespace

std::shared_ptr<EpisodicMemory> patch(Decoder& model, const MemoryConfig& config,
                                      std::vector<std::int64_t> given, const LogCallback& log) {
  check_window(model.config(), config, {});
  MemoryShape shape = memory_shape(model.config(), config.n_local);
  const MemoryConfig mine = share_of(config, shape);
  require_host_room(mine, shape);
  auto memory = std::make_shared<EpisodicMemory>(mine, shape, std::move(given));
  patch(model, memory, log);
  return memory;
}

std::shared_ptr<EpisodicMemory> patch(Decoder& model, const std::filesystem::path& model_dir,
                                      const LogCallback& log) {
  const MemoryConfig config = memory_config_of(model_dir);
  return naming_origin(settings_origin(model_dir), [&] { return patch(model, config, {}, log); });
}

void patch(Decoder& model, std::shared_ptr<EpisodicMemory> memory, const LogCallback& log) {
  const ModelConfig& c = model.config();
  check_window(c, memory->config(), log);
  check_memory(c, *memory);
  memory->join(model.group());
  const std::vector<std::int64_t> served = c.memory_layers();
  std::shared_ptr<CausalState> sliding;
  if (static_cast<std::int64_t>(served.size()) < c.n_layers)
    sliding = std::make_shared<CausalState>(c);
  memory->keep_beside(sliding);  // which takes over what was kept of them
  std::vector<std::shared_ptr<AttentionSlot>> slots;
  for (std::int64_t l = 0; l < c.n_layers; ++l) {
    const std::int64_t shares = c.layers[static_cast<std::size_t>(l)].keys_of;
    const auto at = std::find(served.begin(), served.end(), shares >= 0 ? shares : l);
    if (at != served.end())
      slots.push_back(std::make_shared<EpisodicAttention>(memory, at - served.begin(),
                                                          model.sink_logits(l), shares >= 0));
    else if (c.layers[static_cast<std::size_t>(l)].mixer != Mixer::attention)
      slots.push_back(nullptr);
    else
      slots.push_back(causal_slot(sliding, l, model.sink_logits(l)));
  }
  const PatchPoints points = points_of(model);
  auto state =
      std::make_shared<PatchedState>(std::move(memory), std::move(sliding), original_of(points));
  put(points, std::move(slots), std::move(state));
}

void patch(const PatchPoints& points, std::shared_ptr<EpisodicMemory> memory,
           const std::vector<std::int64_t>& layers) {
  if (!memory) throw ConfigError("patch: the memory is null");
  const std::vector<std::int64_t> served = checked_layers(points, *memory, layers);
  Original original = original_of(points);
  std::vector<std::shared_ptr<AttentionSlot>> slots = original.slots;
  for (std::size_t i = 0; i < served.size(); ++i)
    slots[static_cast<std::size_t>(served[i])] =
        std::make_shared<EpisodicAttention>(memory, static_cast<std::int64_t>(i));
  std::shared_ptr<SequenceState> beside;
  if (served.size() < slots.size()) beside = original.state;
  // A fresh memory of a decoder that was patched already begins anew, and the other layers with it.
  const bool anew = patched_state(points) && memory->tokens() == 0;
  if (beside && !anew && beside->tokens() != memory->tokens())
    throw ConfigError(
        fmt::format("patch: the layers that keep their own attention have seen {} tokens, the "
                    "memory {}; reset the decoder's state and start with an empty memory",
                    beside->tokens(), memory->tokens()));
  auto state =
      std::make_shared<PatchedState>(std::move(memory), std::move(beside), std::move(original));
  put(points, std::move(slots), std::move(state));
}

bool unpatch(const PatchPoints& points) {
  const PatchedState* patched = patched_state(points);
  if (!patched) return false;
  if (patched->original_goes_on()) patched->original().state->reset();
  Original original = patched->original();
  put(points, std::move(original.slots), std::move(original.state));
  return true;
}

std::shared_ptr<EpisodicMemory> memory_of(const PatchPoints& points) {
  const PatchedState* patched = patched_state(points);
  return patched ? patched->memory() : nullptr;
}

bool unpatch(Decoder& model) { return unpatch(points_of(model)); }

std::shared_ptr<EpisodicMemory> memory_of(const Decoder& model) {
  const auto* patched = dynamic_cast<const PatchedState*>(model.state().get());
  return patched ? patched->memory() : nullptr;
}

}  // namespace episodic
