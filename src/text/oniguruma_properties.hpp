// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What Oniguruma calls its classes of characters, and how PCRE2 writes them.

#include <optional>
#include <string>
#include <string_view>

namespace episodic::text::onig {

/// Which classes mean ASCII alone: the options (?W), (?D), (?S), and (?P) for all.
struct AsciiRules {
  bool word = false, digit = false, space = false, posix = false;
};

/// Characters as PCRE2 writes them within [ ].
struct ClassText {
  std::string text;
  bool negated = false;  ///< all others are meant
};

/// \w. \param within [ ]: Oniguruma's \w takes six signs more outside of it
std::string word_class(const AsciiRules& ascii, bool within);
/// \s
std::string space_class(const AsciiRules& ascii);
/// The class of [:name:].
std::optional<ClassText> posix_class(std::string_view name, const AsciiRules& ascii);
/// The class of \p{name}; nothing: it is not known, or PCRE2 has it otherwise.
std::optional<ClassText> property(std::string_view name, const AsciiRules& ascii, bool within);

}  // namespace episodic::text::onig
