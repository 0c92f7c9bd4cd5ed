// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Memory settings that belong to a model: those in its directory, changes to them, and what the
/// model was trained for. Torch-free.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/tensor_type.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic {

/// The settings that a model directory brings along: its memory.json, or the library's defaults
/// (the paper's, for Mistral-7B) if it has none. \throws FileError, ConfigError naming the file and
/// the key
MemoryConfig memory_config_of(const std::filesystem::path& model_dir);

/// Whether a model directory brings settings along (memory.json).
bool brings_memory_settings(const std::filesystem::path& model_dir);

/// The file that memory_config_of reads; empty if there is none.
std::string settings_origin(const std::filesystem::path& model_dir);

/// Throws the error that is being handled again; a ConfigError or BudgetError with `origin` before
/// its text, where that is not empty.
[[noreturn]] void rethrow_naming(std::string_view origin);

/// Calls f, which uses settings from `origin`. Only a model's shape, or the machine, says of some
/// that they do not fit, long after the file was read: they name it too.
template <class F>
decltype(auto) naming_origin(std::string_view origin, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    rethrow_naming(origin);
  }
}

/// What default_memory looks at in a model.
struct ModelFacts {
  /// Tokens that its attention reached in training: max_positions, or the sliding window where all
  /// layers have one. 0: the model does not say.
  std::int64_t trained_tokens = 0;
  std::int64_t weights = 0;  ///< numbers in them
  /// What most of the weights are stored as; absent where their files are not there yet.
  std::optional<TensorType> stored = {};
};

/// \param options those that the model is opened with: rounded weights count as they are rounded
/// \throws FileError as open_model
ModelFacts model_facts(const std::filesystem::path& model, const ModelOptions& options = {});

/// Settings for a new memory of a model that brings none, and why these.
struct DefaultMemory {
  MemoryConfig config;
  std::string why;  ///< one sentence for people
};

/// The rule by which programs choose: lengths by the model's size and trained length, kv_dtype by
/// its weights (docs/settings.md); all else as in MemoryConfig. Where the model runs does not
/// count, so that a memory is the same wherever it was made.
DefaultMemory default_memory(const ModelFacts& facts);

/// `base` with the fields changed that the JSON object names; the others stay as they are. Byte
/// budgets may be strings with a unit: {"host_bytes": "1.5GB"}; {"preset": "hem"} begins with a
/// paper's system (base/presets.hpp).
/// \param label of the text for messages, empty: none
/// \throws ConfigError naming the key
MemoryConfig change_memory_config(const MemoryConfig& base, std::string_view json,
                                  std::string_view label = "");

/// A sentence for the user where settings reach further than the model was trained for: attention
/// over positions that it never saw gives poor text. Empty if all is well, or if the model does not
/// say how long its window was.
std::string window_warning(const MemoryConfig& config, const ModelConfig& model);

/// Memory that this process can still take, in bytes: what the system has available, within the
/// limits of its control group. -1 if it cannot be found out.
std::int64_t available_host_bytes();

/// Checks, before anything is taken, that the host has room for what a memory takes whatever it
/// reads: sinks, windows and pending tokens of all layers.
/// \throws BudgetError naming n_local and what is needed and available; ConfigError
void require_host_room(const MemoryConfig& config, const MemoryShape& shape);

}  // namespace episodic
