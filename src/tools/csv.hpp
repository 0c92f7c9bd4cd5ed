// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables that others made.

#include <string>
#include <string_view>
#include <vector>

namespace episodic::tools {

/// What some programs put before UTF-8 text.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Rows of a CSV file with quotation marks as RFC 4180 has them; a byte order mark is left out.
/// \param label path, for messages \throws FileError for a quotation mark that is not closed, a row
///        that has not as many fields as the first, or no rows
std::vector<std::vector<std::string>> parse_csv(std::string_view text, const std::string& label);

}  // namespace episodic::tools
