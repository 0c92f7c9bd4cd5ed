// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// GPT-2's printable alphabet: every byte is written as one character of a vocabulary entry.

#include <optional>
#include <string>
#include <string_view>

namespace episodic::text {

/// The character (UTF-8) that stands for a byte.
const std::string& byte_level_character(unsigned char byte);

/// The bytes an entry stands for, none if a character in it stands for no byte.
std::optional<std::string> byte_level_bytes(std::string_view entry);

}  // namespace episodic::text
