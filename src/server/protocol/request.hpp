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

class Fields;
/// `reread`, a number of passages or how to use those that are found, and `rerank`.
/// \throws RequestError
void take_passages(Fields& fields, Request& request);

/// What a client may set of a chat's template, as JSON: nothing that the server sets.
/// \param variables `chat_template_kwargs`; null: none
/// \param effort how much the model is to think: becomes `reasoning_effort`, and for "none"
///        `enable_thinking` false too, where `variables` set neither; null: as the template has it
/// \param field name of the effort's field, for errors
/// \returns a JSON object; empty where nothing is set. \throws RequestError
std::string template_variables_of(const nlohmann::json* variables, const nlohmann::json* effort,
                                  const char* field);

}  // namespace episodic::server
