// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the handles of the C API stand for.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/session/generation.hpp"
#include "episodic/session/model.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/session/recall_notes.hpp"
#include "episodic/session/sequence.hpp"
#include "handles.hpp"
#include "memory_on_device.hpp"
#include "model_layers.hpp"

namespace episodic::c {

struct ModelObject final : Object {
  static constexpr const char* kKind = "model";
  const char* kind() const override { return kKind; }
  explicit ModelObject(std::shared_ptr<const Model> m) : model(std::move(m)) {}
  std::shared_ptr<const Model> model;
};

struct SequenceObject final : Object {
  static constexpr const char* kKind = "sequence";
  const char* kind() const override { return kKind; }
  explicit SequenceObject(Sequence s) : sequence(std::move(s)) {}
  Sequence sequence;
  std::unique_ptr<PassageFinder> finder;  // once passages were asked for
};

struct MemoryObject final : Object {
  static constexpr const char* kKind = "memory";
  const char* kind() const override { return kKind; }
  explicit MemoryObject(EpisodicMemory m) : host_(std::move(m)) {}
  MemoryObject(EpisodicMemory m, const ModelConfig& model, const ModelConfig& caller)
      : host_(std::move(m)), layers(std::make_unique<ModelLayers>(*host_, model, caller)) {}
  explicit MemoryObject(std::unique_ptr<MemoryOnDevice> m) : on_device(std::move(m)) {}

  SequenceMemory& memory() {
    return host_ ? static_cast<SequenceMemory&>(*host_) : on_device->memory();
  }
  /// The same, to be looked at. \throws DataError for what a device found wrong
  const SequenceMemory& checked() {
    if (on_device) on_device->check();
    return memory();
  }
  /// \throws ConfigError for a memory on a device, naming the call
  EpisodicMemory& on_host(const char* call) {
    if (!host_)
      throw ConfigError(std::string(call) +
                        ": not of a memory on a device, which has no ids and no folder; make the "
                        "memory on the host");
    return *host_;
  }

 private:
  std::optional<EpisodicMemory> host_;  // before what reads it

 public:
  std::unique_ptr<ModelLayers> layers;        // null: the memory serves all layers, as they come
  std::unique_ptr<MemoryOnDevice> on_device;  // null: on the host
};

/// Of a memory or of a sequence.
struct SnapshotObject final : Object {
  static constexpr const char* kKind = "snapshot";
  const char* kind() const override { return kKind; }
  std::shared_ptr<const MemorySnapshot> of_memory;
  std::shared_ptr<const MemoryOnDevice::Logits> logits;  // beside one on a device, if it has some
  std::shared_ptr<const SequenceSnapshot> of_layers;
  std::shared_ptr<const Sequence::Snapshot> of_sequence;
};

struct AnswerObject final : Object {
  static constexpr const char* kKind = "answer";
  const char* kind() const override { return kKind; }
  GenerateResult result;  ///< its text: what is said
  std::string reasoning;
  std::vector<RecalledEvent> recalled;
  std::vector<Passage> passages;
  bool passages_only = false;  ///< nothing else was read before the prompt
};

/// Ids of a text behind what the sequence has read.
std::vector<std::int64_t> ids_behind(const Sequence& sequence, std::string_view text);

inline std::shared_ptr<const Model> model_of(episodic_model handle) {
  return Handles::all().find<ModelObject>(handle)->model;
}

/// A model on a CUDA device. \throws NotBuiltError in builds without CUDA; as load_device_model
std::shared_ptr<const Model> load_on_device(const std::filesystem::path& path, int device);

}  // namespace episodic::c
