// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a checkpoint is that cannot be opened, so that its error says what was found and what to do:
// weights quantised by a scheme that is not read, files of another format. Torch-free.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// How config.json says that the weights are quantised: "gptq", "awq", ...; empty if it does not.
std::string quantization_said(const nlohmann::json& config);

/// By which scheme a checkpoint's tensors are quantised, going by their names and types, and by
/// what config.json said; in words for a message. Empty: by none that is known.
std::string quantization_found(const TensorSource& tensors, const std::string& said);

/// What to do about quantised weights that are not read.
inline constexpr const char* kDequantise =
    "give a GGUF file of the model, or its weights as they were before (float32, float16 or "
    "bfloat16; dequantize() of transformers makes them)";

/// What a directory holds instead of the model that was looked for, with a remedy; "" if nothing
/// that is known. In words that follow a colon or semicolon.
std::string found_instead(const std::filesystem::path& dir);

/// The same of a file that is no GGUF file, by its first bytes and its name.
std::string found_instead(std::span<const std::byte> begin, const std::filesystem::path& file);

}  // namespace episodic
