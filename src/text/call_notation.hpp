// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Calls that are not written as {"name": ..., "arguments": {...}}: what stands between their marks
/// is read as a whole.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/text/tool_calls.hpp"

namespace episodic::text {

enum class CallNotation : std::uint8_t {
  json,        ///< {"name": N, "arguments": {...}}
  parameters,  ///< <function=N><parameter=K>V</parameter>...</function>
  lines,       ///< the same, with line breaks around each V
  arg_keys,    ///< N<arg_key>K</arg_key><arg_value>V</arg_value>...
  python,      ///< [N(K=V, ...), ...]
  gemma,       ///< call:N{K:V,...}
  keyed,       ///< [{"N": {...}}, ...]
};

/// Gemma's quotation marks.
inline constexpr std::string_view kGemmaQuote = "<|\"|>";

struct WrittenCall {
  std::string name, arguments;  ///< arguments: a JSON object
};

/// Whether a closing mark behind this text ends the calls; within a value it does not.
bool ends_calls(CallNotation notation, std::string_view text);

/// The calls, of which there is at least one; nothing where any is none, or of no tool. Values
/// without quotation marks are of the type that the tool's schema gives them.
std::optional<std::vector<WrittenCall>> read_calls(CallNotation notation, std::string_view text,
                                                   std::span<const Tool> tools);

/// N(K=V, ...), as Python writes it.
std::string python_call(std::string_view name, const std::string& arguments);

}  // namespace episodic::text
