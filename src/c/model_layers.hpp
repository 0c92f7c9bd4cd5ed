// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// All layers of a model in front of a memory that serves some of them.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/base/tensor_view.hpp"
#include "episodic/c/episodic.h"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/episodic_attention.hpp"
#include "episodic/model/hf_config.hpp"
#include "model/causal_attention.hpp"

namespace episodic::c {

/// A model that is described by its attention alone: what memories and windows need of one.
/// \param layers [shape.n_layers], or null: all as the shape says \throws ApiError, ConfigError
ModelConfig described_model(const episodic_shape& shape, const episodic_layer* layers);

/// Refuses a description that is not the model's. Frequencies may differ by their rounding to
/// float32, and pairs may lie otherwise. \throws ConfigError
void require_same_model(const ModelConfig& model, const ModelConfig& described,
                        const std::string& path);

/// The steps of a model's layers: those that the memory serves go to it, the others attend to their
/// windows, in the order in which the model has them.
class ModelLayers {
 public:
  /// \param memory of this model; takes over what was kept beside it. Outlives this
  /// \param caller the model as the caller describes it: how the channels of its rows lie
  /// \throws ConfigError where n_local exceeds the window of a served layer; as keep_beside
  ModelLayers(EpisodicMemory& memory, const ModelConfig& model, const ModelConfig& caller);

  /// For a memory that goes on from the same tokens.
  std::unique_ptr<ModelLayers> over(EpisodicMemory& other) const;

  void begin_step(std::int64_t n, StepKind kind);
  void attend(std::int64_t layer, const TensorView& q, const TensorView& k, const TensorView& v,
              const MutableTensorView& out);
  /// \throws DataError where layers are missing
  void require_all_attended() const;
  /// The memory's step has ended: what is beside it follows.
  void ended();
  /// To begin, abandon, reset, snapshot and restore.
  EpisodicState& state() { return state_; }

 private:
  struct Layer {
    std::int64_t served = -1;  // its number in the memory; -1: it attends to its window
    float ratio = 1;           // of the scale of its scores to 1 / sqrt(head_dim)
    std::int64_t paired = 0;   // channels whose pairs the caller has in another order
    bool to_interleaved = false;
  };

  /// Rows as the model has them: where they lie if nothing has to be done, else in `buffer`.
  TensorView rows(const char* name, const Layer& layer, const TensorView& given, std::int64_t heads,
                  float ratio, bool pairs, std::vector<float>& buffer) const;

  EpisodicMemory* memory_;
  ModelConfig model_, caller_;
  std::vector<Layer> layers_;
  std::shared_ptr<CausalState> windows_;  // null: the memory serves all layers
  EpisodicState state_;
  std::vector<float> q_, k_, v_, out_;
  std::int64_t next_ = 0;  // layer of the open step
};

}  // namespace episodic::c
