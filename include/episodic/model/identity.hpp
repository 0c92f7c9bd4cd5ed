// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whose memory is it: fingerprints of a model directory. Torch-free.

#include <filesystem>

#include "episodic/memory/kept_memory.hpp"

namespace episodic {

/// Fingerprints of config.json with all weights, and of tokenizer.json with tokenizer_config.json
/// (empty if there is neither), and what special_tokens_map.json and added_tokens.json change of
/// them.
/// Reads all of the weights once: about as long as loading them, and then they are in the page
/// cache. Names and order of the files do not matter, every tensor's name, type, shape and bytes
/// do. \throws FileError for missing or damaged files
MemoryIdentity identity_of(const std::filesystem::path& model_dir);

}  // namespace episodic
