// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// JSON that a caller gives as a text: an object or a list.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace episodic::text {

/// \param label of the parameter, for messages \throws ConfigError where it is not valid JSON, of
/// another type, nested too deep, or has an integer beyond 64 bits (it would be read as a float)
nlohmann::ordered_json read_option(std::string_view text, const std::string& label, bool object,
                                   int depth = 64);

/// JSON on one line with spaces behind colons and commas, as Python writes it and models have read
/// it.
std::string spaced_json(const nlohmann::ordered_json& value);

}  // namespace episodic::text
