// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The forms that models write calls in: a table. A form is read by `ToolCallParser` and written
/// where a template does not write calls itself.

#include <array>
#include <string>
#include <string_view>

#include "call_notation.hpp"

namespace episodic::text {

/// Texts that are empty are not there.
struct ToolCallForm {
  std::string_view name = {};
  /// The form of a template that has all of `present` and none of `absent`; of several the first.
  std::array<std::string_view, 2> present = {};
  std::array<std::string_view, 2> absent = {};
  /// Why it cannot be read; empty: it can.
  std::string_view refusal = {};

  // Reading. White space may stand between the parts.
  std::array<std::string_view, 4> opens = {};   ///< what a call, or a list of calls, begins with
  std::array<std::string_view, 4> closes = {};  ///< what may stand behind a call, in any order
  /// A call without an opening text too, at the answer's beginning or behind another call, then
  /// with a semicolon or comma between them.
  bool bare = false;
  /// True: the name stands before the arguments. False: {"name": ..., "arguments": {...}} or a list
  /// of them.
  bool named = false;
  std::string_view before_name = {};                ///< may stand there
  std::array<std::string_view, 2> after_name = {};  ///< may stand there, in this order
  std::string_view id_mark = {};                    ///< before a call's id, which is ignored
  /// What stands between an opening and a closing text. JSON is read there in any case.
  CallNotation notation = CallNotation::json;
  std::string_view quote = {};  ///< what its texts stand between, where that is a mark
  bool channels = false;        ///< an answer is messages in channels (channel_reader.hpp)

  // Writing: begin, then calls with separators between them, then end.
  std::string_view begin = {}, call = {}, arguments = {}, call_end = {}, separator = {}, end = {};
  /// What of it stands between name and arguments when an answer is constrained: no special token.
  std::string_view constrained_arguments = {};
  bool one_call = false;  ///< further calls cannot be forced
  bool nine_ids = false;  ///< the template wants ids of nine letters and digits
};

/// The form of a template's text; null where it shows none.
const ToolCallForm* find_form(std::string_view template_text);

/// Hermes' form, under the name "general": for templates that have none.
const ToolCallForm& general_form();

}  // namespace episodic::text
