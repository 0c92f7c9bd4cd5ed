// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rounding a model's matrices to blocks of 8 or 4 bits, in memory or into a GGUF file. Torch-free.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "episodic/base/callbacks.hpp"
#include "episodic/base/tensor_type.hpp"
#include "episodic/model/weight_roles.hpp"

namespace episodic {

struct OpenModel;  // model/open_model.hpp

/// What quantize_weights makes of a matrix of this role with rows of so many numbers; nothing: it
/// stays as it is. \param type Q8_0 or Q4_0
std::optional<TensorType> rounded_as(WeightRole role, std::int64_t columns, TensorType type);

/// "q8_0" or "q4_0", what weights can be rounded to; nothing for other names.
std::optional<TensorType> quantized_type(std::string_view name);

/// Rounds the matrices of an open model as ggml's reference does: blocks of 32 along a row, each
/// with a scale of 16 bits. Embedding and head are Q8_0 for either type, for they suffer most;
/// norms and biases, routers of experts, and matrices whose rows are no multiple of 32 long, stay
/// as they are stored.
/// The files stay as they are; the rounded matrices lie in memory.
/// \throws ConfigError for another type, for weights that are quantised already, and where no
///         matrix can be rounded; DataError naming a tensor whose numbers are not finite or too
///         large
void quantize_weights(OpenModel& model, TensorType type);

/// Writes an open model as a GGUF file (version 3), which this library and llama.cpp read: its
/// weights as they are now (quantize_weights), its configuration and its tokenizer. The file
/// appears whole or not at all.
/// \param overwrite whether a file that is there may be replaced
/// \throws ConfigError for what GGUF has no words for (a rope, a window, a tokenizer), naming it,
///         for a model that came from a GGUF file, and for adapters that are not merged;
///         FileError where the file is there already, or cannot be written
void write_gguf(const OpenModel& model, const std::filesystem::path& path, bool overwrite = false,
                const ProgressCallback& progress = {});

}  // namespace episodic
