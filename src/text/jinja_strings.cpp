// SPDX-License-Identifier: Apache-2.0
#include "jinja_strings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace episodic::text::jinja {
namespace {

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

// -- parts, cases, splitting ----------------------------------------------------------------------

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

}  // namespace episodic::text::jinja
