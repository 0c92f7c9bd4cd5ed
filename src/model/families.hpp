// SPDX-License-Identifier: Apache-2.0
#pragma once
// What distinguishes the families of decoders: a row of a table each, and a short function.

#include <string>

#include "episodic/model/hf_config.hpp"
#include "json_object.hpp"

namespace episodic {

/// Fills all of `config` but the special tokens. \throws FileError naming the key
void read_family(const JsonObject& in, ModelConfig& config);

}  // namespace episodic
