// SPDX-License-Identifier: Apache-2.0
#include "jinja_strings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

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

bool in_set(Budget& budget, const Str* set, std::uint32_t code, std::string_view bytes) {
  if (set == nullptr) return code != kNoCharacter && is_space(code);
  budget.pass(set->bytes.size());
  if (set->ascii()) return bytes.size() == 1 && set->bytes.find(bytes[0]) != kNone;
  for (std::size_t at = 0; at < set->bytes.size();) {
    const Character c = character_at(set->bytes, at);
    if (std::string_view(set->bytes).substr(at, c.size) == bytes) return true;
    at += c.size;
  }
  return false;
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

/// Each character as `change` has it, given what stands before. Input stays input.
Value each(Budget& budget, const Str& s,
           const std::function<std::string(std::uint32_t, std::size_t)>& change) {
  Builder out(budget);
  MarkCursor marks(s);
  budget.step(s.bytes.size() / 2);
  for (std::size_t at = 0; at < s.bytes.size();) {
    const Character c = character_at(s.bytes, at);
    if (c.code == kNoCharacter)
      out.add(s, at, at + 1);
    else
      out.add(change(c.code, at), marks.at(at));
    at += c.size;
  }
  return out.finish();
}

std::string lowered(const Str& s, std::uint32_t c, std::size_t at) {
  return c == 0x3a3 ? lower_sigma(s.bytes, at) : in_case(c, Case::lower);
}

Value titled(Budget& budget, const Str& s) {
  bool before = false;
  return each(budget, s, [&](std::uint32_t c, std::size_t at) {
    std::string out = before ? lowered(s, c, at) : in_case(c, Case::title);
    before = is_cased(c);
    return out;
  });
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

/// str.format with plain fields: {}, {0}, {name}.
Value formatted(Budget& budget, const Str& s, const Arguments& arguments) {
  Builder out(budget);
  std::size_t next = 0, done = 0;
  const auto refuse = [](std::string_view field) {
    fail(fmt::format("format: the field '{{{}}}' is not supported (plain ones are)", field));
  };
  budget.pass(s.bytes.size());
  bool counted = false, numbered = false;
  for (std::size_t at = 0; at < s.bytes.size();) {
    const char c = s.bytes[at];
    if (c != '{' && c != '}') {
      ++at;
      continue;
    }
    out.add(s, done, at);
    if (at + 1 < s.bytes.size() && s.bytes[at + 1] == c) {
      out.add(s, at, at + 1);
      done = at += 2;
      continue;
    }
    const std::size_t end = c == '{' ? s.bytes.find('}', at) : kNone;
    if (end == kNone) fail("format: a single brace");
    const std::string field = s.bytes.substr(at + 1, std::min<std::size_t>(end - at - 1, 200));
    const Value* value = nullptr;
    if (field.empty() || (field.size() < 6 && field.find_first_not_of("0123456789") == kNone)) {
      (field.empty() ? counted : numbered) = true;
      if (counted && numbered) fail("format: numbered and counted fields do not go together");
      const std::size_t i = field.empty() ? next++ : std::stoul(field);
      if (i >= arguments.places.size()) fail(fmt::format("format: has no argument {}", i));
      value = &arguments.places[i];
    } else {
      if (field.find_first_of(".[:!{") != kNone) refuse(field);
      for (const auto& [name, v] : arguments.named)
        if (name == field) value = &v;
      if (value == nullptr) fail(fmt::format("format: has no argument '{}'", field));
    }
    if (value->string() && value->string()->markup) refuse(field);
    out.print(*value);
    done = at = end + 1;
  }
  out.add(s, done, s.bytes.size());
  return out.finish();
}

}  // namespace

// -- arguments ------------------------------------------------------------------------------------

Bound::Bound(const std::string& function, const Arguments& arguments,
             std::initializer_list<const char*> names, std::size_t required, bool by_name)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (arguments.places.size() > names.size())
    fail(fmt::format("{}: {} arguments, expected at most {}", function, arguments.places.size(),
                     names.size()));
  for (std::size_t i = 0; i < arguments.places.size(); ++i) values_[i] = &arguments.places[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = std::find(names_.begin(), names_.end(), name);
    if (at == names_.end() || !by_name)
      fail(fmt::format("{}: has no parameter '{}'", function, name));
    const Value*& place = values_[static_cast<std::size_t>(at - names_.begin())];
    if (place != nullptr) fail(fmt::format("{}: '{}' is given twice", function, name));
    place = &value;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (values_[i] == nullptr) fail(fmt::format("{}: '{}' is missing", function, names_[i]));
}

Integer Bound::whole(std::size_t i, Integer otherwise) const {
  if (values_[i] == nullptr) return otherwise;
  Integer out = 0;
  if (!values_[i]->whole(&out))
    fail(fmt::format("{}: '{}' must be an integer, not {}", function_, names_[i],
                     values_[i]->kind()));
  return out;
}

const Str& Bound::text(std::size_t i) const {
  const Str* s = values_[i] ? values_[i]->string() : nullptr;
  if (s == nullptr)
    fail(fmt::format("{}: '{}' must be a string, not {}", function_, names_[i],
                     values_[i] ? values_[i]->kind() : "left out"));
  if (s->markup)
    fail(fmt::format("{}: 'safe' and 'escape' before it are not supported", function_));
  return *s;
}

// -- what filters use too -------------------------------------------------------------------------

bool is_string_method(std::string_view name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

Value substring(Budget& budget, const Value& of, std::size_t begin, std::size_t end) {
  const Str& s = *of.string();
  if (begin == 0 && end == s.bytes.size()) return of;
  Builder out(budget);
  out.add(s, begin, end);
  return out.finish();
}

std::size_t byte_of(Budget& budget, const Str& s, std::size_t i) {
  if (i >= s.length) return s.bytes.size();
  if (s.ascii()) return i;
  budget.step(1 + i / 8);
  std::size_t at = 0;
  while (i-- > 0) at += character_at(s.bytes, at).size;
  return at;
}

std::size_t find(Budget& budget, const Str& s, std::string_view part, std::size_t from) {
  if (from > s.bytes.size()) return kNone;
  if (part.empty()) return from;
  // Piece by piece, so that the steps are taken before the work. The C library reads short parts
  // anew at every place where they might be, long ones twice at most.
  constexpr std::size_t kPiece = 1 << 16;
  for (; from + part.size() <= s.bytes.size(); from += kPiece) {
    const std::size_t n = std::min(s.bytes.size() - from, kPiece + part.size() - 1);
    budget.step(1 + n / 64 + n * std::min<std::size_t>(part.size(), 256) / 1024);
    if (const void* at = ::memmem(s.bytes.data() + from, n, part.data(), part.size()))
      return static_cast<std::size_t>(static_cast<const char*>(at) - s.bytes.data());
  }
  return kNone;
}

Value stripped(Budget& budget, const Value& of, const Str* characters, bool left, bool right) {
  const Str& s = *of.string();
  std::size_t begin = 0, end = s.bytes.size();
  const auto inside = [&](std::size_t at, std::size_t size, std::uint32_t code) {
    return in_set(budget, characters, code, std::string_view(s.bytes).substr(at, size));
  };
  while (left && begin < end) {
    const Character c = character_at(s.bytes, begin);
    if (!inside(begin, c.size, c.code)) break;
    begin += c.size;
  }
  budget.step(begin / 4);
  while (right && end > begin) {
    const std::size_t before = begin_of_character(s.bytes, end);
    if (!inside(before, end - before, character_at(s.bytes, before).code)) break;
    end = before;
  }
  budget.step((s.bytes.size() - end) / 4);
  return substring(budget, of, begin, end);
}

Value cased(Budget& budget, const Value& of, Case which) {
  const Str& s = *of.string();
  if (s.ascii() && (which == Case::lower || which == Case::upper || which == Case::fold)) {
    const bool up = which == Case::upper;
    const auto other = [&](char c) { return up ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z'; };
    budget.pass(s.bytes.size());
    if (std::none_of(s.bytes.begin(), s.bytes.end(), other)) return of;
    const Charge charge(budget, s.bytes.size());
    std::string bytes = s.bytes;
    for (char& c : bytes)
      if (other(c)) c = static_cast<char>(c ^ 0x20);
    Builder out(budget);
    std::size_t at = 0;
    for (const TextSpan& span : s.input) {
      out.add(std::string_view(bytes).substr(at, span.begin - at));
      out.add(std::string_view(bytes).substr(span.begin, span.end - span.begin), true);
      at = span.end;
    }
    out.add(std::string_view(bytes).substr(at));
    return out.finish();
  }
  if (which == Case::title) return titled(budget, s);
  return each(budget, s, [&](std::uint32_t c, std::size_t at) {
    if (which == Case::lower || (which == Case::swap && c == 0x3a3)) return lowered(s, c, at);
    return in_case(c, which);
  });
}

Value capitalized(Budget& budget, const Value& of) {
  const Str& s = *of.string();
  return each(budget, s, [&](std::uint32_t c, std::size_t at) {
    return at == 0 ? in_case(c, Case::title) : lowered(s, c, at);
  });
}

Value replaced(Budget& budget, const Str& s, const Str& from, const Str& to, Integer most) {
  Builder out(budget);
  std::size_t done = 0;
  if (from.bytes.empty()) {  // before each character, and at the end
    for (std::size_t at = 0; most != 0; --most) {
      budget.step();
      out.add(to);
      if (at == s.bytes.size()) break;
      const std::size_t n = character_at(s.bytes, at).size;
      out.add(s, at, at + n);
      done = at += n;
    }
  } else {
    for (; most != 0; --most) {
      const std::size_t at = find(budget, s, from.bytes, done);
      if (at == kNone) break;
      out.add(s, done, at);
      out.add(to);
      done = at + from.bytes.size();
    }
  }
  out.add(s, done, s.bytes.size());
  return out.finish();
}

List split(Budget& budget, const Value& of, const Str* by, Integer most) {
  const Str& s = *of.string();
  List out;
  std::size_t begin = 0;
  const auto push = [&](std::size_t from, std::size_t to) {
    out.push_back(substring(budget, of, from, to));
  };
  if (by != nullptr) {
    if (by->bytes.empty()) fail("split: the separator is empty");
    for (; most != 0; --most) {
      const std::size_t at = find(budget, s, by->bytes, begin);
      if (at == kNone) break;
      push(begin, at);
      begin = at + by->bytes.size();
    }
    push(begin, s.bytes.size());
    return out;
  }
  const auto skip = [&](std::size_t at, bool spaces) {
    while (at < s.bytes.size()) {
      const Character c = character_at(s.bytes, at);
      if ((c.code != kNoCharacter && is_space(c.code)) != spaces) break;
      at += c.size;
    }
    return at;
  };
  budget.step(s.bytes.size() / 8);
  while ((begin = skip(begin, true)) < s.bytes.size()) {
    if (most-- == 0) {
      push(begin, s.bytes.size());
      break;
    }
    const std::size_t end = skip(begin, false);
    push(begin, end);
    begin = end;
  }
  return out;
}

List split_lines(Budget& budget, const Value& of, bool keep_ends) {
  const Str& s = *of.string();
  List out;
  budget.step(s.bytes.size() / 8);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < s.bytes.size();) {
    const Character c = character_at(s.bytes, at);
    std::size_t end = at + c.size;
    if (c.code != kNoCharacter && is_line_end(c.code)) {
      if (c.code == '\r' && end < s.bytes.size() && s.bytes[end] == '\n') ++end;
      out.push_back(substring(budget, of, begin, keep_ends ? end : at));
      begin = end;
    }
    at = end;
  }
  if (begin < s.bytes.size()) out.push_back(substring(budget, of, begin, s.bytes.size()));
  return out;
}

Value padded(Budget& budget, const Value& of, Integer width, const Str* fill, int side) {
  const Str& s = *of.string();
  if (fill != nullptr && fill->length != 1) fail("the character to fill with must be one");
  if (width <= static_cast<Integer>(s.length)) return of;
  const Integer missing = width - static_cast<Integer>(s.length);
  if (missing > (1 << 30)) fail("what the template makes grows too long");
  const auto n = static_cast<std::size_t>(missing);
  // as CPython divides what cannot be divided
  const std::size_t left = side < 0   ? 0
                           : side > 0 ? n
                                      : n / 2 + (n & static_cast<std::size_t>(width) & 1);
  Builder out(budget);
  const Value space = text_value(budget, " ");
  const auto pad = [&](std::size_t count) {
    budget.step(count / 8);
    while (count-- > 0) out.add(fill ? *fill : *space.string());
  };
  pad(left);
  out.add(s);
  pad(n - left);
  return out.finish();
}

List characters(Budget& budget, const Value& of) {
  const Str& s = *of.string();
  List out;
  const Charge charge(budget, s.length * sizeof(Value));
  out.reserve(s.length);
  for (std::size_t at = 0; at < s.bytes.size();) {
    const std::size_t n = character_at(s.bytes, at).size;
    out.push_back(substring(budget, of, at, at + n));
    at += n;
  }
  return out;
}

// -- s % arguments --------------------------------------------------------------------------------

Value percent(Budget& budget, const Str& s, const Value& arguments) {
  Builder out(budget);
  const Sequence* tuple =
      arguments.sequence() && arguments.sequence()->tuple() ? arguments.sequence() : nullptr;
  const Dict* dict = arguments.dict();
  std::size_t next = 0, done = 0;
  bool named = false;
  budget.pass(s.bytes.size());
  for (std::size_t at = 0; (at = s.bytes.find('%', at)) != kNone;) {
    out.add(s, done, at);
    std::size_t i = at + 1;
    const Value* value = nullptr;
    if (i < s.bytes.size() && s.bytes[i] == '(') {
      const std::size_t end = s.bytes.find(')', i);
      if (end == kNone) fail("%: a name has no end");
      if (dict == nullptr) fail(fmt::format("%: needs a mapping, not {}", arguments.kind()));
      const std::string name = s.bytes.substr(i + 1, end - i - 1);
      value = dict->find(name);
      if (value == nullptr) fail(fmt::format("%: the mapping has no '{:.60}'", name));
      named = true;
      i = end + 1;
    }
    std::string flags;
    while (i < s.bytes.size() && std::string_view("-+ 0#").find(s.bytes[i]) != kNone &&
           flags.size() < 5)
      flags += s.bytes[i++];
    const auto number = [&] {
      Integer n = 0;
      while (i < s.bytes.size() && s.bytes[i] >= '0' && s.bytes[i] <= '9' && n < 100'000)
        n = n * 10 + (s.bytes[i++] - '0');
      return n;
    };
    const Integer width = number();
    Integer precision = -1;
    if (i < s.bytes.size() && s.bytes[i] == '.') {
      ++i;
      precision = number();
    }
    if (i >= s.bytes.size()) fail("%: the format ends too early");
    const char type = s.bytes[i++];
    done = at = i;
    if (type == '%') {
      if (value || !flags.empty() || width != 0) fail("%: '%' with a width is not supported");
      out.add("%");
      continue;
    }
    if (std::string_view("srdiufFeEgGxXoc").find(type) == kNone)
      fail(fmt::format("%: the conversion '{}' is not supported", std::string(1, type)));
    if (value == nullptr) {
      if (tuple ? next >= tuple->items.size() : next > 0) fail("%: too few arguments");
      value = tuple ? &tuple->items[next] : &arguments;
      ++next;
    }
    const bool left = flags.find('-') != kNone, zero = flags.find('0') != kNone && !left;
    Value piece;
    if (type == 's' || type == 'r') {
      Builder made(budget);
      if (type == 's')
        made.print(*value);
      else
        made.repr(*value);
      piece = made.finish();
      if (precision >= 0)
        piece = substring(budget, piece, 0,
                          byte_of(budget, *piece.string(), static_cast<std::size_t>(precision)));
    } else if (type == 'c') {
      if (!value->string() || value->string()->length != 1) fail("%c: needs one character");
      piece = *value;
    } else {
      double d = 0;
      Integer whole = 0;
      if (!value->number(&d)) fail(fmt::format("%{}: needs a number, not {}", type, value->kind()));
      std::string digits;
      bool minus = false;
      if (std::string_view("diuxXo").find(type) != kNone) {
        if (!value->whole(&whole)) {
          if (type == 'x' || type == 'X' || type == 'o')
            fail(fmt::format("%{}: needs an integer, not {}", type, value->kind()));
          if (!(std::abs(d) < 1e38)) fail("%d: the number is too large");
          whole = static_cast<Integer>(d);
        }
        if (flags.find('#') != kNone || precision > 0)
          fail("%: '#' and a precision of integers are not supported");
        minus = whole < 0;
        if (type == 'x' || type == 'X' || type == 'o') {
          const unsigned base = type == 'o' ? 8 : 16;
          Integer rest = minus ? -whole : whole;
          do {
            const auto digit = static_cast<unsigned>(rest % base);
            digits += "0123456789abcdef"[digit];
            rest /= base;
          } while (rest > 0);
          std::reverse(digits.begin(), digits.end());
          if (type == 'X')
            for (char& c : digits)
              if (c >= 'a') c = static_cast<char>(c - 32);
        } else {
          digits = integer_text(whole);
          if (minus) digits.erase(0, 1);
        }
      } else {
        if (!std::isfinite(d) || flags.find('#') != kNone || precision > 300)
          fail("%: this conversion of a float is not supported");
        minus = std::signbit(d);
        digits =
            fmt::format(fmt::runtime(fmt::format(
                            "{{:.{}{}}}", precision < 0 ? 6 : static_cast<int>(precision), type)),
                        std::abs(d));
      }
      std::string sign = minus                      ? "-"
                         : flags.find('+') != kNone ? "+"
                         : flags.find(' ') != kNone ? " "
                                                    : "";
      if (zero && static_cast<Integer>(sign.size() + digits.size()) < width)
        digits.insert(0, static_cast<std::size_t>(width) - sign.size() - digits.size(), '0');
      piece = text_value(budget, sign + digits);
    }
    out.add(*padded(budget, piece, width, nullptr, left ? -1 : 1).string());
  }
  out.add(s, done, s.bytes.size());
  if (tuple ? next < tuple->items.size()
            : next == 0 && !named && !dict && !arguments.sequence() && !arguments.undefined())
    fail("%: too many arguments");
  return out.finish();
}

// -- methods --------------------------------------------------------------------------------------

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
