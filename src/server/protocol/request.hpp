// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests of OpenAI's completions and chat completions.

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "episodic/server/service.hpp"

namespace episodic::server {

/// \param body JSON from outside: deep nesting and endless lists are refused
/// \param defaults of everything that the request leaves open, but a seed: without one it is drawn
/// \param others fields that the caller looks at
/// \throws RequestError naming the field: absent, of the wrong type or range, or one that would
///         change the answer in a way that is not built
Request parse_request(RequestKind kind, std::string_view body, const GenerateOptions& defaults,
                      std::span<const std::string_view> others = {});

/// What a client may set of a chat's template (`chat_template_kwargs`), as JSON: nothing that the
/// server sets. \throws RequestError
std::string template_variables_of(const nlohmann::json& variables);

/// How much a model is to think (`reasoning_effort`, `reasoning.effort`), as variables of its
/// template: `reasoning_effort`, and for "none" `enable_thinking` false too.
/// \param effort null: as the template has it
/// \param field name of the field, for errors
/// \param variables a JSON object or empty; what it sets stays
/// \returns `variables` with what is added. \throws RequestError
std::string variables_with_effort(const nlohmann::json* effort, const char* field,
                                  std::string variables);

}  // namespace episodic::server
