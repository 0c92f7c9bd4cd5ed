// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Replacing a model's attention by EpisodicAttention in place, and giving it back.

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/memory_layers.hpp"

namespace episodic {

/// Puts EpisodicAttention into the slots of the layers that a memory serves
/// (ModelConfig::memory_layers) and a fresh memory behind them. The other layers, those with a
/// sliding window in a model that has both kinds, get exact sliding-window attention of their own.
/// A model that is already patched gets a fresh memory; its original attention stays what unpatch
/// gives back.
/// \param given boundaries, only for segmenter `given`
/// \param log hears a warning if n_local exceeds the window that the model was trained for
/// \return the memory; the model keeps a share of it
/// \throws ConfigError as below; BudgetError where the machine has no room for the windows
std::shared_ptr<EpisodicMemory> patch(Decoder& model, const MemoryConfig& config,
                                      std::vector<std::int64_t> given = {},
                                      const LogCallback& log = {});

/// The same with the settings of a model directory (memory_config_of).
std::shared_ptr<EpisodicMemory> patch(Decoder& model, const std::filesystem::path& model_dir,
                                      const LogCallback& log = {});

/// The same with a memory that is there already, a kept one for instance.
/// Layers that the memory does not serve, the sliding ones of a model that mixes them with full
/// ones, go on where the memory is: they are kept with it (EpisodicMemory::keep_beside).
/// \throws ConfigError if its shape is not the model's, if its n_local exceeds the sliding window
///         of a layer that it serves; DataError if it holds tokens that nobody kept the sliding
///         layers of, FileError for damaged ones; the model is then untouched
void patch(Decoder& model, std::shared_ptr<EpisodicMemory> memory, const LogCallback& log = {});

/// Gives back the attention that patch replaced, with its state as it was then. False if the model
/// is not patched.
bool unpatch(Decoder& model);

/// The memory of a patched model, null otherwise.
std::shared_ptr<EpisodicMemory> memory_of(const Decoder& model);

// -- a decoder of your own (examples/patch_your_model) --------------------------------------------

/// What patching needs of a decoder that is not this library's. Its class derives from nothing; a
/// model that cannot have such members is wrapped by an object that has them.
///
/// - `n_layers()`: how many layers have attention;
/// - `attention(layer)`: the slot of that layer. While a slot is null, the layer computes its own
///   attention; otherwise it returns what the slot's `forward` makes of its queries, keys and
///   values before rotary embedding (`attend` of torch_slots/torch_slots.hpp, of tensors);
/// - `state()`: null, or the state that the decoder tells of every step: `begin_step` before its
///   first layer, `end_step` after its last.
///
/// References stay valid as long as the decoder.
template <class D>
concept PatchableDecoder = requires(D& decoder, std::int64_t layer) {
  { decoder.n_layers() } -> std::convertible_to<std::int64_t>;
  { decoder.attention(layer) } -> std::same_as<std::shared_ptr<AttentionSlot>&>;
  { decoder.state() } -> std::same_as<std::shared_ptr<SequenceState>&>;
};

/// The places in a decoder that patching writes to; it owns none of them.
struct PatchPoints {
  std::vector<std::shared_ptr<AttentionSlot>*> slots;  ///< of each layer with attention, in order
  std::shared_ptr<SequenceState>* state = nullptr;
};

template <PatchableDecoder D>
PatchPoints patch_points(D& decoder) {
  PatchPoints points;
  const std::int64_t n = decoder.n_layers();
  for (std::int64_t l = 0; l < n; ++l) points.slots.push_back(&decoder.attention(l));
  points.state = &decoder.state();
  return points;
}

/// For a module that is to be found among the submodules of a model: derive it from this beside
/// torch::nn::Module, and let its forward use the slot where there is one.
struct SlottedAttention {
  std::shared_ptr<AttentionSlot> slot;  ///< null: the module's own attention
  virtual ~SlottedAttention() = default;
};

/// The slots of all SlottedAttention in a torch::nn::Module, in the order of registration, which is
/// that of the layers where they were registered in their order. Empty if there are none.
template <class Module>
std::vector<std::shared_ptr<AttentionSlot>*> slots_in(Module& model) {
  std::vector<std::shared_ptr<AttentionSlot>*> slots;
  for (const auto& module : model.modules())
    if (auto* attention = dynamic_cast<SlottedAttention*>(module.get()))
      slots.push_back(&attention->slot);
  return slots;
}

/// Puts a memory behind some layers of a decoder of your own: its layer i serves the decoder's
/// layer layers[i]. The other layers keep their own attention, and the state that was there before,
/// if there was one, goes on to hear of every step with them. A decoder that is patched already
/// gets the memory in place of the former one.
/// \param memory made with the decoder's shape; its n_layers is the number of layers served
/// \param layers ascending; empty: all
/// \throws ConfigError where there is no layer with attention, for layers that are not there, or
///         not as many as the memory's, and where a state that goes on does not stand at the
///         memory's token; the decoder is then untouched
void patch(const PatchPoints& decoder, std::shared_ptr<EpisodicMemory> memory,
           const std::vector<std::int64_t>& layers = {});

/// Gives back what `patch` replaced: slots, and the state as it was (a state that went on with some
/// layers is reset). False if the decoder is not patched.
bool unpatch(const PatchPoints& decoder);

/// The memory of a patched decoder, null otherwise.
std::shared_ptr<EpisodicMemory> memory_of(const PatchPoints& decoder);

template <PatchableDecoder D>
void patch(D& decoder, std::shared_ptr<EpisodicMemory> memory,
           const std::vector<std::int64_t>& layers = {}) {
  patch(patch_points(decoder), std::move(memory), layers);
}

template <PatchableDecoder D>
bool unpatch(D& decoder) {
  return unpatch(patch_points(decoder));
}

template <PatchableDecoder D>
std::shared_ptr<EpisodicMemory> memory_of(D& decoder) {
  return memory_of(patch_points(decoder));
}

}  // namespace episodic
