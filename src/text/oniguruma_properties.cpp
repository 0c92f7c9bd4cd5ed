// SPDX-License-Identifier: Apache-2.0
// Each class was compared over all characters with Oniguruma's
// (tests/text/make_pattern_vectors.py).
#include "oniguruma_properties.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "character_set.hpp"

namespace episodic::text::onig {
namespace {

// Alphabetic and Lowercase took these in after the Unicode that Debian's PCRE2 knows.
constexpr const char* kAlphabetic =
    "\\p{Alphabetic}\\x{363}-\\x{36f}\\x{c04}\\x{f82}\\x{f83}\\x{1dd3}-\\x{1de6}"
    "\\x{11080}\\x{11081}";
constexpr const char* kLower = "\\p{Lowercase}\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}";
constexpr const char* kSpace = "\\t-\\r\\x{85}\\p{Z}";
constexpr const char* kAsciiSpace = "\\t-\\r ";

std::string alphabetic() { return kAlphabetic; }

/// Names are alike but for case, spaces, _ and -.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-')
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

constexpr std::pair<const char*, const char*> kCategories[] = {
    {"c", "C"},
    {"cc", "Cc"},
    {"cf", "Cf"},
    {"cn", "Cn"},
    {"co", "Co"},
    {"cs", "Cs"},
    {"l", "L"},
    {"lc", "L&"},
    {"ll", "Ll"},
    {"lm", "Lm"},
    {"lo", "Lo"},
    {"lt", "Lt"},
    {"lu", "Lu"},
    {"m", "M"},
    {"mc", "Mc"},
    {"me", "Me"},
    {"mn", "Mn"},
    {"n", "N"},
    {"nd", "Nd"},
    {"nl", "Nl"},
    {"no", "No"},
    {"p", "P"},
    {"pc", "Pc"},
    {"pd", "Pd"},
    {"pe", "Pe"},
    {"pf", "Pf"},
    {"pi", "Pi"},
    {"po", "Po"},
    {"ps", "Ps"},
    {"s", "S"},
    {"sc", "Sc"},
    {"sk", "Sk"},
    {"sm", "Sm"},
    {"so", "So"},
    {"z", "Z"},
    {"zl", "Zl"},
    {"zp", "Zp"},
    {"zs", "Zs"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
    {"surrogate", "Cs"},
    {"letter", "L"},
    {"casedletter", "L&"},
    {"lowercaseletter", "Ll"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"titlecaseletter", "Lt"},
    {"uppercaseletter", "Lu"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"nonspacingmark", "Mn"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"closepunctuation", "Pe"},
    {"finalpunctuation", "Pf"},
    {"initialpunctuation", "Pi"},
    {"otherpunctuation", "Po"},
    {"openpunctuation", "Ps"},
    {"symbol", "S"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"mathsymbol", "Sm"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"spaceseparator", "Zs"},
    // properties of the same name whose characters are the same
    {"any", "Any"},
    {"uppercase", "Uppercase"},
    {"whitespace", "White_Space"},
    {"emoji", "Emoji"},
    {"emojipresentation", "Emoji_Presentation"},
    {"emojimodifier", "Emoji_Modifier"},
    {"emojimodifierbase", "Emoji_Modifier_Base"},
    {"emojicomponent", "Emoji_Component"},
    {"extendedpictographic", "Extended_Pictographic"},
    {"ideographic", "Ideographic"},
    {"hexdigit", "Hex_Digit"},
    {"asciihexdigit", "ASCII_Hex_Digit"},
    {"math", "Math"},
    {"dash", "Dash"},
    {"idstart", "ID_Start"},
    {"xidstart", "XID_Start"},
    {"joincontrol", "Join_Control"},
    {"quotationmark", "Quotation_Mark"},
    {"radical", "Radical"},
    {"regionalindicator", "Regional_Indicator"},
    {"unifiedideograph", "Unified_Ideograph"},
    {"variationselector", "Variation_Selector"},
    {"defaultignorablecodepoint", "Default_Ignorable_Code_Point"},
    {"noncharactercodepoint", "Noncharacter_Code_Point"},
    {"patternwhitespace", "Pattern_White_Space"},
    {"patternsyntax", "Pattern_Syntax"},
    {"softdotted", "Soft_Dotted"},
    {"bidicontrol", "Bidi_Control"},
};

/// Whether PCRE2 has a script of this name.
bool is_script(const std::string& name) {
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; }) &&
         is_pcre2_class("[\\p{sc:" + name + "}]");
}

}  // namespace

std::string word_class(const AsciiRules& ascii, bool within) {
  if (ascii.word || ascii.posix) return "0-9A-Z_a-z";
  return alphabetic() + "\\p{M}\\p{Nd}\\p{Pc}" +
         (within ? "" : "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}");
}

std::string space_class(const AsciiRules& ascii) {
  return ascii.space || ascii.posix ? kAsciiSpace : kSpace;
}

std::optional<ClassText> posix_class(std::string_view name, const AsciiRules& ascii) {
  const bool a = ascii.posix;
  const auto is = [&](const char* n) { return name == n; };
  if (is("alnum")) return ClassText{a ? "0-9A-Za-z" : alphabetic() + "\\p{Nd}"};
  if (is("alpha")) return ClassText{a ? "A-Za-z" : alphabetic()};
  if (is("ascii")) return ClassText{"\\x{0}-\\x{7f}"};
  if (is("blank")) return ClassText{a ? " \\t" : "\\p{Zs}\\t"};
  if (is("cntrl")) return ClassText{a ? "\\x{0}-\\x{1f}\\x{7f}" : "\\p{Cc}"};
  if (is("digit")) return ClassText{a || ascii.digit ? "0-9" : "\\p{Nd}"};
  if (is("graph"))
    return a ? ClassText{"!-~"} : ClassText{"\\p{Z}\\t-\\r\\x{85}\\p{Cc}\\p{Cn}", true};
  if (is("lower")) return ClassText{a ? "a-z" : kLower};
  if (is("print")) return a ? ClassText{" -~"} : ClassText{"\\p{Cc}\\p{Cn}\\p{Zl}\\p{Zp}", true};
  if (is("punct")) return ClassText{a ? "!-\\/:-@\\[-`{-~" : "\\p{P}\\p{S}"};
  if (is("space")) return ClassText{space_class(ascii)};
  if (is("upper")) return ClassText{a ? "A-Z" : "\\p{Uppercase}"};
  if (is("word")) return ClassText{word_class(ascii, true)};
  if (is("xdigit")) return ClassText{"0-9A-Fa-f"};
  return std::nullopt;
}

std::optional<ClassText> property(std::string_view name, const AsciiRules& ascii, bool within) {
  const std::string key = plain(name);
  if (key == "word") return ClassText{word_class(ascii, within)};
  if (key == "punct" && !ascii.posix) return ClassText{"\\p{P}"};  // [:punct:] has the symbols too
  if (const auto posix = posix_class(key, ascii)) return posix;
  if (key == "alphabetic") return ClassText{alphabetic()};
  if (key == "lowercase") return ClassText{kLower};
  if (key == "assigned") return ClassText{"\\p{Cn}", true};
  for (const auto& [theirs, ours] : kCategories)
    if (key == theirs) return ClassText{std::string("\\p{") + ours + "}"};
  if (is_script(key)) return ClassText{"\\p{sc:" + key + "}"};
  return std::nullopt;
}

}  // namespace episodic::text::onig
