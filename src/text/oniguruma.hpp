// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Oniguruma's regular expressions, which tokenizer.json holds, in the language of PCRE2.

#include <string>
#include <string_view>

namespace episodic::text {

/// An expression for PCRE2 (with UTF, UCP and MULTILINE) that matches what Oniguruma's default
/// syntax lets the given one match. Each construct is translated or refused. Characters that came
/// into Unicode after the version that PCRE2 knows count as unassigned.
/// \throws Error naming the construct, its byte and what to write instead
std::string pcre2_of_oniguruma(std::string_view expression);

}  // namespace episodic::text
