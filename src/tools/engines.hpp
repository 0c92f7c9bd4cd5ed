// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where --device says that the model runs.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common.hpp"
#include "episodic/device/device_engine.hpp"
#include "episodic/model/frozen_products.hpp"
#include "episodic/model/generation_defaults.hpp"
#include "episodic/session/engine.hpp"

namespace episodic::tools {

/// The model where --device says, with --lora and --quantize: `auto` takes a device if this build
/// has a CUDA path and there is one. \throws NotBuiltError for cuda in a build without it,
/// DeviceError, FileError, DataError
std::unique_ptr<Engine> load_engine(const CommonFlags& common, const ModelFlags& flags);

/// A model as it is stored, computed in float32 on a device too, whatever the type of its weights:
/// what a run is checked by.
std::unique_ptr<Engine> load_float32_engine(const CommonFlags& common,
                                            const std::filesystem::path& model);

/// The same with an empty memory, or --full-attention.
std::unique_ptr<Engine> make_engine(const CommonFlags& common, const ModelFlags& flags,
                                    const MemoryConfig& config, std::int64_t max_tokens);

/// Gives the engine an empty memory, or full attention, as the flags say. Warns of settings that
/// reach further than the model was trained for. \param given boundaries, only for segmenter
/// `given`
void attach(Engine& engine, const CommonFlags& common, const ModelFlags& flags,
            const MemoryConfig& config, std::int64_t max_tokens,
            std::vector<std::int64_t> given = {});

/// --entries: events are entries of whole sentences (EpMAN 3.5), cut in the text that is read.
struct EntryFlags {
  std::int64_t longest = 0;  ///< tokens; 0: the memory's own segmenter

  void add_to(Command& app);
  /// The settings with it: segmenter `given`, min_block 1, max_block no less. \throws ConfigError
  /// for others that it does not go with
  MemoryConfig apply(MemoryConfig config) const;
  /// The boundaries of a text as it is read; none without the flag.
  std::vector<std::int64_t> starts(const Engine& engine, const MemoryConfig& config,
                                   std::span<const std::int64_t> ids) const;
};

/// A new memory in a folder, for max_tokens more. What a device refuses, it refuses before there is
/// a folder. Warns as attach does.
std::shared_ptr<EpisodicMemory> create_kept(const CommonFlags& common, const ModelFlags& flags,
                                            const ModelConfig& model, const MemoryConfig& config,
                                            const KeptFolder& folder, std::int64_t max_tokens,
                                            std::vector<std::int64_t> given = {});

/// Most tokens of an answer that ends with its turn, where nobody says another bound: a model that
/// repeats itself never ends it.
inline constexpr std::int64_t kLongestAnswer = 4096;

/// --max-new, the sampling's flags, --stop and --ignore-eos, as far as they were given.
struct GenerationFlags {
  std::optional<std::int64_t> max_new, top_k;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<double> presence_penalty, frequency_penalty;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  /// What counts where a flag is not given, for the help.
  enum class Otherwise : std::uint8_t {
    greedy,  ///< 128 tokens; with --chat to the end of the turn
    model    ///< as the model's files say, to the end of the turn
  };
  void add_to(Command& app, Otherwise otherwise);
  /// Of a prompt that is continued as it is (128 tokens), or of an answer in the model's chat
  /// format; greedy. \throws ConfigError for a value out of its range
  GenerateOptions options(bool chat) const;
  /// Of an answer in the model's chat format, drawn as the model's files say.
  GenerateOptions options(const GenerationDefaults& defaults) const;
  /// Says on stderr that an answer ended for want of tokens, where nobody gave a bound.
  void note_if_cut(const CommonFlags& common, const GenerateResult& result) const;

 private:
  GenerateOptions over(GenerateOptions options) const;
};

/// --grammar and --json-schema: what an answer is held to.
struct GrammarFlags {
  std::filesystem::path grammar, json_schema;

  void add_to(Command& app);
  /// The grammar of the file, nothing without the flags; to be called before a book is read.
  /// \throws FileError, ConfigError
  std::optional<Grammar> read() const;
};

/// Holds answers to a grammar, if there is one.
void constrain(GenerateOptions& options, const std::optional<Grammar>& grammar,
               const Tokenizer& tokenizer);

/// "greedy", or "temperature 0.7, top_p 0.8".
std::string sampling_text(const SamplingOptions& options);

/// with_device.cpp only: whether --device means a device, be one there or not.
bool on_device(const CommonFlags& common);

/// with_device.cpp only: as on_device. \throws DeviceError where require_device does, naming the
/// flag
bool on_usable_device(const CommonFlags& common);

// with_device.cpp, and in builds without a CUDA path no_device.cpp:

/// What load_engine would compute on: the device's name, empty for the host. \throws as it does
std::string device_name_of(const CommonFlags& common);

/// Null where --device means the host. \param dtype of the device's weights and activations;
/// absent: as the weights are stored
std::unique_ptr<Engine> load_engine_on_device(const CommonFlags& common,
                                              const std::filesystem::path& model,
                                              const ModelOptions& changes,
                                              std::optional<DType> dtype);

/// Memory that is free where --device computes, in bytes; -1: it cannot be found out.
std::int64_t free_memory(const CommonFlags& common);

/// The products of training where --device says a device; null: torch's, on the host.
/// \throws NotBuiltError as load_engine, and as load_device_products
std::unique_ptr<FrozenProducts> products_on_device(const CommonFlags& common,
                                                   const OpenModel& model);

/// For --device cuda, also without a device, and for `auto` where there is one; nothing for the
/// host. \throws as load_engine and plan_on_device
std::optional<DevicePlan> plan_for_device(const CommonFlags& common, const ModelFlags& flags,
                                          const MemoryConfig& config, std::int64_t tokens);

}  // namespace episodic::tools
