// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "jinja_filters.hpp"
#include "jinja_operators.hpp"
#include "jinja_strings.hpp"
#include "utf8.hpp"

namespace episodic::text::jinja {
Value soft(Budget& budget, const Value& v, const char* filter) {
  if (v.string() && v.string()->markup)
    fail(fmt::format("{}: 'safe' and 'escape' before it are not supported", filter));
  return str_of(budget, v);
}

Value indented(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("indent", arguments, {"width", "first", "blank"});
  if (!value.string()) {
    if (value.undefined()) fail_undefined(value, "'indent' needs a string");
    fail(fmt::format("indent: needs a string, not {}", value.kind()));
  }
  soft(budget, value, "indent");
  Value by;
  if (a[0] && a[0]->string()) {
    by = *a[0];
  } else {
    const Integer width = a.whole(0, 4);
    if (width > 100'000) fail("indent: 'width' is too large");
    by =
        text_value(budget, std::string(static_cast<std::size_t>(std::max<Integer>(width, 0)), ' '));
  }
  Builder ended(budget);
  ended.add(*value.string());
  ended.add("\n");
  const List lines = split_lines(budget, ended.finish(), false);
  Builder out(budget);
  if (a.flag(1, false)) out.add(*by.string());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.add("\n");
      if (a.flag(2, false) || lines[i].truth()) out.add(*by.string());
    }
    out.add(*lines[i].string());
  }
  return out.finish();
}

Value truncated(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const Value dots = a[2] ? *a[2] : text_value(budget, "...");
  if (!dots.string()) fail("truncate: 'end' must be a string");
  const Integer length = a.whole(0, 255), leeway = a.given(3) ? a.whole(3, 5) : 5;
  const auto end = static_cast<Integer>(dots.string()->length);
  if (length < end || leeway < 0) fail("truncate: 'length' or 'leeway' is too small");
  const Dict* dict = value.dict();
  const Sequence* list = value.sequence();
  const std::size_t size = value.string() ? value.string()->length
                           : dict         ? dict->items.size()
                           : list         ? list->items.size()
                                          : 0;
  if (!value.string() && !dict && !list && !value.undefined())
    fail(fmt::format("truncate: needs a string, not {}", value.kind()));
  if (static_cast<Integer>(size) <= length + leeway) return value;
  if (!value.string()) fail(fmt::format("truncate: needs a string, not {}", value.kind()));
  soft(budget, value, "truncate");
  const Str& s = *value.string();
  Value kept =
      substring(budget, value, 0, byte_of(budget, s, static_cast<std::size_t>(length - end)));
  if (!a.flag(1, false)) {
    Value parts;
    const Value space = text_value(budget, " ");
    string_method(budget, kept, "rsplit", {{space, Value(Integer{1})}, {}}, &parts);
    kept = parts.sequence()->items.front();
  }
  Builder out(budget);
  out.add(*kept.string());
  out.add(*dots.string());
  return out.finish();
}

Value title_filter(Budget& budget, const Value& value) {
  const Str& s = *value.string();
  Builder out(budget);
  budget.step(s.bytes.size() / 8);
  const auto parts = [&](std::size_t at) {
    const Character c = character_at(s.bytes, at);
    return c.code != kNoCharacter &&
           (is_space(c.code) ||
            (c.code < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code)) != kNone));
  };
  for (std::size_t at = 0; at < s.bytes.size();) {
    const bool between = parts(at);
    std::size_t end = at;
    while (end < s.bytes.size() && parts(end) == between) end += character_at(s.bytes, end).size;
    const std::size_t first = at + character_at(s.bytes, at).size;
    out.add(*cased(budget, substring(budget, value, at, first), Case::upper).string());
    out.add(*cased(budget, substring(budget, value, first, end), Case::lower).string());
    at = end;
  }
  return out.finish();
}

Value escaped(Budget& budget, const Value& value, bool again) {
  if (value.string() && value.string()->markup && !again) return value;
  const StrPtr s = str_of(budget, value);
  Builder out(budget);
  MarkCursor marks(*s);
  for (std::size_t at = 0; at < s->bytes.size(); ++at) {
    const char c = s->bytes[at];
    const char* instead = c == '&'    ? "&amp;"
                          : c == '<'  ? "&lt;"
                          : c == '>'  ? "&gt;"
                          : c == '"'  ? "&#34;"
                          : c == '\'' ? "&#39;"
                                      : nullptr;
    if (instead)
      out.add(instead, marks.at(at));
    else
      out.add(*s, at, at + 1);
  }
  return out.finish(true);
}

Value url_encoded(Budget& budget, const Value& value) {
  if (value.undefined()) return text_value(budget, "");
  if (!value.string() && !value.number() && !value.none())
    fail(fmt::format("urlencode: {} is not supported", value.kind()));
  const StrPtr s = str_of(budget, value);
  Builder out(budget);
  MarkCursor marks(*s);
  for (std::size_t at = 0; at < s->bytes.size(); ++at) {
    const char c = s->bytes[at];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~/").find(c) != kNone;
    if (plain)
      out.add(*s, at, at + 1);
    else
      out.add(fmt::format("%{:02X}", static_cast<unsigned char>(c)), marks.at(at));
  }
  return out.finish();
}

std::size_t count_words(Budget& budget, const Str& s) {
  budget.step(s.bytes.size() / 4);
  std::size_t n = 0;
  bool inside = false;
  for (std::size_t at = 0; at < s.bytes.size();) {
    const Character c = character_at(s.bytes, at);
    const bool word = c.code != kNoCharacter && (c.code == '_' || is_alnum(c.code));
    n += word && !inside;
    inside = word;
    at += c.size;
  }
  return n;
}

Value json_filter(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = a.flag(0, false);
  style.sorted = a.flag(3, false);
  if (a.given(1)) {
    style.lines = true;
    style.between = ",";
    if (a[1]->string()) {
      style.indent = a.text(1).bytes;
    } else {
      const Integer width = a.whole(1, 0);
      if (width > 1000) fail("tojson: 'indent' is too large");
      style.indent.assign(static_cast<std::size_t>(std::max<Integer>(width, 0)), ' ');
    }
  }
  if (a.given(2)) {
    const Sequence* pair = a[2]->sequence();
    if (!pair || pair->items.size() != 2 || !pair->items[0].string() || !pair->items[1].string())
      fail("tojson: 'separators' must be two strings");
    style.between = pair->items[0].string()->bytes;
    style.behind_key = pair->items[1].string()->bytes;
  }
  return to_json(budget, value, style);
}

}  // namespace episodic::text::jinja
