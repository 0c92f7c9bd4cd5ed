// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON of files that came from outside: repeated keys, deep nesting and endless lists are errors.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace episodic {

struct JsonLimits {
  int depth = 16;
  std::size_t array_length = 1 << 20;
};

/// \param label path of the file, for messages \throws FileError
nlohmann::json parse_strict(std::string_view text, std::string_view label,
                            const JsonLimits& limits);

/// A name from a file, fit for a one-line message: control characters replaced, long names cut.
std::string printable(std::string_view name);

}  // namespace episodic
