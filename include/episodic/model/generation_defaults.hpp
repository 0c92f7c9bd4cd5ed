// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `generation_defaults`: how a model's makers say that its tokens should be drawn. Torch-free.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace episodic {

/// As Hugging Face's `generate` takes them: greedy unless `do_sample` is true, and then with
/// temperature 1 and top_k 50 where the file does not say. The repetition penalty counts in both.
struct GenerationDefaults {
  double temperature = 0;  ///< 0: greedy
  std::int64_t top_k = 0;  ///< 0: all
  double top_p = 1, min_p = 0, repetition_penalty = 1;
  /// The file that says so, for people; empty: the model has none, or it says nothing of this.
  std::string source;

  bool operator==(const GenerationDefaults&) const = default;
};

/// Of a Hugging Face directory's generation_config.json, or of a GGUF file's general.sampling.*
/// (temp, top_k, top_p, min_p, penalty_repeat; without temp: greedy).
/// \throws FileError naming file and key of a value that cannot be
GenerationDefaults generation_defaults(const std::filesystem::path& model);

/// The same from the text of a generation_config.json. \param file its path, for messages
GenerationDefaults parse_generation_defaults(std::string_view json, const std::string& file);

}  // namespace episodic
