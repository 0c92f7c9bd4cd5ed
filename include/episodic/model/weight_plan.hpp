// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which tensors of a checkpoint are which weights of a decoder: names, shapes, slices of fused
/// tensors, transforms. One list for every executor. Torch-free.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "episodic/model/hf_config.hpp"
#include "episodic/model/tensor_source.hpp"
#include "episodic/model/weight_roles.hpp"

namespace episodic {

/// One weight and where it lies.
struct WeightEntry {
  WeightRole role = WeightRole::embedding;
  std::int64_t layer = -1;                 ///< -1: of no layer
  bool bias = false;                       ///< the bias of that role's product: [rows]
  std::string tensor;                      ///< name in the checkpoint
  std::vector<std::int64_t> tensor_shape;  ///< of the whole tensor
  /// The part of the tensor's rows, which are all its dimensions but the last, flattened.
  std::int64_t first_row = 0, rows = 0;
  double offset = 0;         ///< added to every element (norms that store w for 1 + w)
  std::int64_t expert = -1;  ///< of a mixture; -1: of none alone

  /// Elements of a row.
  std::int64_t columns() const { return tensor_shape.size() > 1 ? tensor_shape.back() : 1; }
};

/// All weights of a model, in the order in which a step needs them.
std::vector<WeightEntry> weight_plan(const ModelConfig& config);

/// A weight where it lies: rows of row-major elements, as they are stored (block types too).
struct WeightView {
  TensorType type = TensorType::f32;
  const std::byte* data = nullptr;  ///< may be unaligned
  std::int64_t rows = 0, columns = 1;
  double offset = 0;  ///< still to be added

  std::int64_t row_bytes() const { return columns / block_elements(type) * block_bytes(type); }
};

/// A plan whose every tensor was found in a checkpoint and has the shape it must have.
class PlannedWeights {
 public:
  /// \throws FileError naming the tensor, its file and what was expected: for a tensor that is
  ///         missing, has another shape or a type that no executor multiplies, for one that the
  ///         plan does not use (the weights are then not of this model_type), for norms and biases
  ///         that hold NaN or infinity, and for an embedding, a head or a last norm of zeros alone.
  ///         Weights that are quantised by a scheme that is not read are told by its name
  PlannedWeights(const ModelConfig& config, std::shared_ptr<const TensorSource> source);

  const std::vector<WeightEntry>& entries() const { return entries_; }

  /// \throws DataError if the plan has no such entry
  WeightView at(WeightRole role, std::int64_t layer = -1, bool bias = false) const;
  bool has(WeightRole role, std::int64_t layer = -1, bool bias = false) const;
  /// The same of an expert. \pre the layer is a mixture that has it
  WeightView of_expert(WeightRole role, std::int64_t layer, std::int64_t expert,
                       bool bias = false) const;

  const std::shared_ptr<const TensorSource>& source() const { return source_; }

  /// Reads every element of every weight: a pass over all the files, for when a model's numbers
  /// went wrong. \throws FileError naming tensor, row and file if one is NaN or infinite
  void require_finite() const;

 private:
  void require_finite(const WeightEntry& entry) const;
  void require_not_all_zero() const;
  const WeightEntry* find(WeightRole role, std::int64_t layer, bool bias,
                          std::int64_t expert) const;
  WeightView at(WeightRole role, std::int64_t layer, bool bias, std::int64_t expert) const;

  std::shared_ptr<const TensorSource> source_;
  std::vector<WeightEntry> entries_;
  std::vector<std::size_t> first_of_layer_;  // entries_ are grouped by layer; -1 first and last
};

}  // namespace episodic
