// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a GGUF file's keys tokenizer.ggml.* say beyond the tokenizer itself.

#include <cstdint>
#include <vector>

#include "episodic/model/gguf.hpp"

namespace episodic {

/// Tokens that end an answer, without repeats (text/gguf_vocabulary.hpp).
std::vector<std::int64_t> end_tokens(const GgufFile& file);

}  // namespace episodic
