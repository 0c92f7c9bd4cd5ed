// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

constexpr std::string_view kMethods[] = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};

/// Where `part` stands last, ending at or before `end`.
std::size_t find_last(Budget& budget, const Str& s, std::string_view part, std::size_t begin,
                      std::size_t end) {
  if (part.size() > end - begin) return kNone;
  if (part.empty()) return end;
  for (std::size_t at = end - part.size() + 1; at-- > begin;) {
    if (at % 64 == 0) budget.step();
    if (s.bytes[at] != part[0]) continue;
    budget.pass(part.size());
    if (s.bytes.compare(at, part.size(), part) == 0) return at;
  }
  return kNone;
}

/// Whether two texts have the same bytes at a place.
bool stands_at(Budget& budget, const Str& s, std::size_t at, std::string_view part) {
  budget.pass(part.size());
  return s.bytes.compare(at, part.size(), part) == 0;
}

/// The bytes of s[begin:end], as find, count, startswith and their like take these. \return false
/// where begin lies behind the end of the text
bool part_of(Budget& budget, const Str& s, const Bound& a, std::size_t first, std::size_t* from,
             std::size_t* to) {
  const auto n = static_cast<Integer>(s.length);
  const auto place = [&](std::size_t i, Integer otherwise) {
    if (!a.given(i)) return otherwise;
    Integer at = a.whole(i, 0);
    if (at < 0) at = std::max<Integer>(0, at + n);
    return at;
  };
  const Integer begin = place(first, 0), end = std::min(place(first + 1, n), n);
  if (begin > n || begin > end) return false;
  *from = byte_of(budget, s, static_cast<std::size_t>(begin));
  *to = byte_of(budget, s, static_cast<std::size_t>(end));
  return true;
}

std::size_t index_of(Budget& budget, const Str& s, std::size_t byte) {
  if (s.ascii()) return byte;
  budget.step(1 + byte / 8);
  return count_characters(std::string_view(s.bytes).substr(0, byte));
}

bool all(Budget& budget, const Str& s, const std::function<bool(std::uint32_t)>& holds) {
  budget.step(1 + s.bytes.size() / 4);
  for (std::size_t at = 0; at < s.bytes.size();) {
    const Character c = character_at(s.bytes, at);
    if (c.code == kNoCharacter || !holds(c.code)) return false;
    at += c.size;
  }
  return !s.bytes.empty();
}

/// Python's islower, isupper: some character has a case, and none the other.
bool one_case(Budget& budget, const Str& s, bool lower) {
  bool found = false;
  const bool none_else = all(budget, s, [&](std::uint32_t c) {
    if (lower ? is_upper(c) || is_title(c) : is_lower(c) || is_title(c)) return false;
    found = found || (lower ? is_lower(c) : is_upper(c));
    return true;
  });
  return none_else && found;
}

bool title_case(Budget& budget, const Str& s) {
  bool found = false, before = false;
  const bool well = all(budget, s, [&](std::uint32_t c) {
    if (is_upper(c) || is_title(c)) {
      if (before) return false;
      found = before = true;
    } else if (is_lower(c)) {
      if (!before) return false;
    } else {
      before = false;
    }
    return true;
  });
  return well && found;
}

List split_right(Budget& budget, const Value& of, const Str* by, Integer most) {
  const Str& s = *of.string();
  List out;
  std::size_t end = s.bytes.size();
  const auto push = [&](std::size_t from, std::size_t to) {
    out.push_back(substring(budget, of, from, to));
  };
  if (by != nullptr) {
    if (by->bytes.empty()) fail("rsplit: the separator is empty");
    for (; most != 0; --most) {
      const std::size_t at = find_last(budget, s, by->bytes, 0, end);
      if (at == kNone) break;
      push(at + by->bytes.size(), end);
      end = at;
    }
    push(0, end);
  } else {
    const auto step_back = [&](bool spaces) {
      while (end > 0) {
        const std::size_t before = begin_of_character(s.bytes, end);
        const Character c = character_at(s.bytes, before);
        if ((c.code != kNoCharacter && is_space(c.code)) != spaces) break;
        end = before;
      }
    };
    budget.step(s.bytes.size() / 8);
    while (true) {
      step_back(true);
      if (end == 0) break;
      const std::size_t last = end;
      if (most-- == 0) {
        push(0, last);
        break;
      }
      step_back(false);
      push(end, last);
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

Value partitioned(Budget& budget, const Value& of, const Str& by, bool last) {
  const Str& s = *of.string();
  if (by.bytes.empty()) fail("partition: the separator is empty");
  const std::size_t at =
      last ? find_last(budget, s, by.bytes, 0, s.bytes.size()) : find(budget, s, by.bytes, 0);
  const Value empty = text_value(budget, "");
  if (at == kNone)
    return tuple_value(budget, last ? List{empty, empty, of} : List{of, empty, empty});
  const std::size_t end = at + by.bytes.size();
  return tuple_value(budget, {substring(budget, of, 0, at), substring(budget, of, at, end),
                              substring(budget, of, end, s.bytes.size())});
}

bool begins_or_ends(Budget& budget, const Str& s, const Bound& a, const std::string& name,
                    bool begins) {
  std::size_t from = 0, to = 0;
  const bool there = part_of(budget, s, a, 1, &from, &to);
  const auto one = [&](const Value& v) {
    const Str* part = v.string();
    if (part == nullptr)
      fail(fmt::format("{}: needs a string or a tuple of strings, not {}", name, v.kind()));
    if (!there || part->bytes.size() > to - from) return false;
    return stands_at(budget, s, begins ? from : to - part->bytes.size(), part->bytes);
  };
  const Sequence* list = a[0]->sequence();
  if (!(list && list->tuple())) return one(*a[0]);
  return std::any_of(list->items.begin(), list->items.end(), one);
}

Value zero_filled(Budget& budget, const Value& of, Integer width) {
  const Str& s = *of.string();
  if (width <= static_cast<Integer>(s.length)) return of;
  const auto missing = width - static_cast<Integer>(s.length);
  if (missing > (1 << 30)) fail("what the template makes grows too long");
  const bool sign = s.bytes.starts_with('+') || s.bytes.starts_with('-');
  Builder out(budget);
  if (sign) out.add(s, 0, 1);
  const Charge charge(budget, static_cast<std::size_t>(missing));
  out.add(std::string(static_cast<std::size_t>(missing), '0'));
  out.add(s, sign ? 1 : 0, s.bytes.size());
  return out.finish();
}

Value tabs_expanded(Budget& budget, const Str& s, Integer size) {
  Builder out(budget);
  MarkCursor marks(s);
  std::size_t column = 0;
  budget.step(s.bytes.size() / 2);
  for (std::size_t at = 0; at < s.bytes.size();) {
    const Character c = character_at(s.bytes, at);
    if (c.code == '\t') {
      if (size > 0) {
        if (size > 100'000) fail("expandtabs: the size is too large");
        const std::size_t n =
            static_cast<std::size_t>(size) - column % static_cast<std::size_t>(size);
        out.add(std::string(n, ' '), marks.at(at));
        column += n;
      }
    } else {
      out.add(s, at, at + c.size);
      column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
    }
    at += c.size;
  }
  return out.finish();
}

}  // namespace

bool is_string_method(std::string_view name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

bool string_method(Budget& budget, const Value& self, const std::string& name,
                   const Arguments& arguments, Value* out) {
  const Str& s = *self.string();
  if (!is_string_method(name)) return false;
  if (s.markup)
    fail(fmt::format("'{}' of what 'safe' or 'escape' returned is not supported", name));
  const auto bound = [&](std::initializer_list<const char*> names, std::size_t required,
                         bool by_name = false) {
    return Bound(name, arguments, names, required, by_name);
  };
  const auto is = [&](const auto& holds) {
    bound({}, 0);
    *out = all(budget, s, holds);
    return true;
  };
  const auto set = [&](Value v) {
    *out = std::move(v);
    return true;
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound a = bound({"chars"}, 0);
    return set(stripped(budget, self, a.given(0) ? &a.text(0) : nullptr, name != "rstrip",
                        name != "lstrip"));
  }
  if (name == "upper") return bound({}, 0), set(cased(budget, self, Case::upper));
  if (name == "lower") return bound({}, 0), set(cased(budget, self, Case::lower));
  if (name == "title") return bound({}, 0), set(cased(budget, self, Case::title));
  if (name == "casefold") return bound({}, 0), set(cased(budget, self, Case::fold));
  if (name == "swapcase") return bound({}, 0), set(cased(budget, self, Case::swap));
  if (name == "capitalize") return bound({}, 0), set(capitalized(budget, self));
  if (name == "split" || name == "rsplit") {
    const Bound a = bound({"sep", "maxsplit"}, 0, true);
    const Str* by = a.given(0) ? &a.text(0) : nullptr;
    const Integer most = a.whole(1, -1);
    return set(list_value(budget, name == "split" ? split(budget, self, by, most)
                                                  : split_right(budget, self, by, most)));
  }
  if (name == "splitlines")
    return set(
        list_value(budget, split_lines(budget, self, bound({"keepends"}, 0, true).flag(0, false))));
  if (name == "partition" || name == "rpartition")
    return set(partitioned(budget, self, bound({"sep"}, 1).text(0), name == "rpartition"));
  if (name == "startswith" || name == "endswith")
    return set(
        begins_or_ends(budget, s, bound({"part", "start", "end"}, 1), name, name == "startswith"));
  if (name == "replace") {
    const Bound a = bound({"old", "new", "count"}, 2);
    return set(replaced(budget, s, a.text(0), a.text(1), a.whole(2, -1)));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex") {
    const Bound a = bound({"part", "start", "end"}, 1);
    const std::string& part = a.text(0).bytes;
    std::size_t from = 0, to = 0, at = kNone;
    if (part_of(budget, s, a, 1, &from, &to)) {
      at = name[0] == 'r' ? find_last(budget, s, part, from, to) : find(budget, s, part, from);
      if (at != kNone && at + part.size() > to) at = kNone;
    }
    if (at == kNone && name.ends_with("index")) fail(fmt::format("{}: is not in it", name));
    return set(at == kNone ? Value(Integer{-1}) : Value(index_of(budget, s, at)));
  }
  if (name == "count") {
    const Bound a = bound({"part", "start", "end"}, 1);
    const std::string& part = a.text(0).bytes;
    std::size_t from = 0, to = 0, n = 0;
    if (!part_of(budget, s, a, 1, &from, &to)) return set(n);
    if (part.empty()) return set(index_of(budget, s, to) - index_of(budget, s, from) + 1);
    for (; (from = find(budget, s, part, from)) != kNone && from + part.size() <= to; ++n)
      from += part.size();
    return set(n);
  }
  if (name == "center" || name == "ljust" || name == "rjust") {
    const Bound a = bound({"width", "fill"}, 1);
    return set(padded(budget, self, a.whole(0, 0), a[1] ? &a.text(1) : nullptr,
                      name == "ljust"   ? -1
                      : name == "rjust" ? 1
                                        : 0));
  }
  if (name == "zfill") return set(zero_filled(budget, self, bound({"width"}, 1).whole(0, 0)));
  if (name == "expandtabs")
    return set(tabs_expanded(budget, s, bound({"tabsize"}, 0, true).whole(0, 8)));
  if (name == "removeprefix" || name == "removesuffix") {
    const Bound a = bound({"part"}, 1);
    const std::string& part = a.text(0).bytes;
    budget.pass(part.size());
    if (name == "removeprefix")
      return set(
          substring(budget, self, s.bytes.starts_with(part) ? part.size() : 0, s.bytes.size()));
    return set(
        substring(budget, self, 0, s.bytes.size() - (s.bytes.ends_with(part) ? part.size() : 0)));
  }
  if (name == "format") return set(formatted(budget, s, arguments));
  if (name == "isalpha") return is(is_alpha);
  if (name == "isalnum") return is(is_alnum);
  if (name == "isdecimal") return is(is_decimal);
  if (name == "isdigit") return is(is_digit);
  if (name == "isnumeric") return is(is_numeric);
  if (name == "isspace") return is(is_space);
  if (name == "isprintable") return is(is_printable), set(s.bytes.empty() || out->truth());
  if (name == "isascii")
    return is([](std::uint32_t c) { return c < 0x80; }), set(s.bytes.empty() || out->truth());
  if (name == "islower" || name == "isupper")
    return bound({}, 0), set(one_case(budget, s, name == "islower"));
  if (name == "istitle") return bound({}, 0), set(title_case(budget, s));
  return false;
}

}  // namespace episodic::text::jinja
