// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What is known of a template with tools: its form of calls, and what it writes itself.

#include <cstdint>
#include <string>
#include <string_view>

#include "episodic/text/tool_calls.hpp"
#include "reasoning_form.hpp"
#include "tool_call_form.hpp"

namespace episodic {

struct ToolCallFormat::Impl {
  ChatTemplate chat;
  const text::ToolCallForm* form;
  std::string refusal;                             ///< of tools; empty: none
  const text::ReasoningForm* reasoning = nullptr;  ///< null: the template shows none
  bool takes_system = false;
  bool developer = false;          ///< it has a role of that name
  bool writes_tools = false;       ///< the variable `tools`
  bool tools_in_message = false;   ///< the member `tools`, a text, of a system message
  bool writes_calls = false;       ///< the member `tool_calls` of an assistant's message
  bool several_calls = false;      ///< more than one in a message
  bool arguments_as_text = false;  ///< it expects JSON there, not an object
  bool writes_results = false;     ///< messages with the role `tool`
  /// It refuses a message that calls with both a text and what was thought.
  bool one_text_before_calls = false;

  /// What an answer is parted at.
  const text::ReasoningForm& marks() const {
    return reasoning ? *reasoning : text::general_reasoning();
  }
};

namespace text {

/// An id that every template takes: nine letters and digits.
std::string short_call_id(std::uint64_t number);

}  // namespace text
}  // namespace episodic
