// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests of OpenAI's Responses API, and the items that its conversations are made of.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/server/conversations.hpp"
#include "protocol/json.hpp"

namespace episodic::server {

struct ResponsesRequest {
  TurnStart start;
  std::optional<bool> store;  ///< absent: where the server keeps responses
  std::string instructions;
  Json input = Json::array();  ///< items, each with an id
  Json said;                   ///< what the response repeats of the request
  std::string variables;       ///< of the chat template, as JSON; may be empty
  GenerateOptions options;
  std::optional<AnswerFormat> format;  ///< nothing: any text
  std::vector<Tool> tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  bool stream = false;
  bool progress = false;  ///< of a stream: tells how much of a long prompt is read
  bool recall = false;    ///< tells which events were recalled
};

/// \param body JSON from outside \param defaults of everything that the request leaves open, but a
/// seed: without one it is drawn
/// \throws RequestError naming the field
ResponsesRequest parse_responses_request(std::string_view body, const GenerateOptions& defaults);

/// Items from outside, checked, each as it is kept: with an id, a type and a status, and content as
/// a list of parts. \param name of the field, for messages \throws RequestError
Json items_of(const nlohmann::json& items, const std::string& name);

/// What a chat template is given of items that `items_of` made, or that a response put out.
std::vector<ChatMessage> messages_of_items(const Json& items);
/// The same of a response's output: one message of the assistant.
ChatMessage answer_of_items(const Json& output);

/// Gives results of functions the names of these. \param turn that may have some \param history
/// what was said before it \throws RequestError for a result of a call that nobody made
void name_results(std::vector<ChatMessage>& turn, std::span<const ChatMessage> history);

/// Functions of a request, or of a kept one. \throws RequestError
std::vector<Tool> response_tools_of(const std::string& json);

/// Up to 16 pairs of texts; null: none. \throws RequestError
Json metadata_of(const nlohmann::json* metadata);

}  // namespace episodic::server
