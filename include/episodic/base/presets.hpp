// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The papers' systems by name: what each changes in the settings of a memory. Lengths that belong
/// to the model (window, budget, chunk) stay as they are.

#include <span>
#include <string>
#include <string_view>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

struct Preset {
  const char* name;
  const char* what;  ///< paper and settings, in a line
  void (*apply)(MemoryConfig&);
};

/// All of them.
std::span<const Preset> presets();

/// "em-llm-s, em-llm-sm, ...", for a message or a help text.
std::string preset_names();

/// Changes `config` to a paper's system. \throws ConfigError for an unknown name, listing them
void apply_preset(MemoryConfig& config, std::string_view name);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/base/impl/presets.hpp"
#endif
