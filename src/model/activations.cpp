// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/activations.hpp"

#include <atomic>
#include <cstdlib>
#include <string>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

constexpr int kNotSet = -1;
std::atomic<int> chosen = kNotSet;

cpu::Activations of_environment() {
  const char* word = std::getenv("EPISODIC_ACTIVATIONS");
  if (!word || *word == '\0') return cpu::Activations::rounded;
  try {
    return parse_activations(word);
  } catch (const ConfigError& e) {
    throw ConfigError(std::string("EPISODIC_ACTIVATIONS: ") + e.what());
  }
}

}  // namespace

cpu::Activations parse_activations(std::string_view word) {
  if (word == "rounded") return cpu::Activations::rounded;
  if (word == "exact") return cpu::Activations::exact;
  if (word == "bfloat16") return cpu::Activations::bfloat16;
  throw ConfigError("activations '" + printable(word) + "': must be rounded, exact or bfloat16");
}

void set_activations(cpu::Activations activations) { chosen = static_cast<int>(activations); }

cpu::Activations activations() {
  if (const int set = chosen; set != kNotSet) return static_cast<cpu::Activations>(set);
  static const cpu::Activations of_process = of_environment();
  return of_process;
}

}  // namespace episodic
