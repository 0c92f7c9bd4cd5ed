// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models that see, of which the text part is read: config.json has it as text_config, and the
// weights of what sees lie beside its own.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace episodic {

/// Replaces the configuration of a model that sees by that of its text part.
/// \param label of the file, for messages
/// \return the model_type that it had; empty: it is no such model, and as it was
std::string take_text_part(nlohmann::json& config, const std::string& label);

/// The model_type of each that is known.
std::vector<std::string_view> models_with_text_part();

/// The part that sees, or hands on what it saw, which a tensor is of: "vision_tower"; empty: none.
std::string_view part_beside_text(std::string_view tensor);

}  // namespace episodic
