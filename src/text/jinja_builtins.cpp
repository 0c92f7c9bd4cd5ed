// SPDX-License-Identifier: Apache-2.0
#include "jinja_builtins.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "episodic/base/error.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

using Sequences = std::shared_ptr<const Sequence>;

constexpr std::string_view kFilters[] = {
    "abs",    "attr",       "batch",       "capitalize", "center",   "count",
    "d",      "default",    "dictsort",    "e",          "escape",   "filesizeformat",
    "first",  "float",      "forceescape", "format",     "groupby",  "indent",
    "int",    "items",      "join",        "last",       "length",   "list",
    "lower",  "map",        "max",         "min",        "pprint",   "random",
    "reject", "rejectattr", "replace",     "reverse",    "round",    "safe",
    "select", "selectattr", "slice",       "sort",       "string",   "striptags",
    "sum",    "title",      "tojson",      "trim",       "truncate", "unique",
    "upper",  "urlencode",  "urlize",      "wordcount",  "wordwrap", "xmlattr"};
constexpr std::string_view kTests[] = {
    "!=",       "<",        "<=",          "==",       ">",           ">=",       "boolean",
    "callable", "defined",  "divisibleby", "eq",       "equalto",     "escaped",  "even",
    "false",    "filter",   "float",       "ge",       "greaterthan", "gt",       "in",
    "integer",  "iterable", "le",          "lessthan", "lower",       "lt",       "mapping",
    "ne",       "none",     "number",      "odd",      "sameas",      "sequence", "string",
    "test",     "true",     "undefined",   "upper"};

template <std::size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kNumberAttributes[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};

[[noreturn]] void fail_undefined(const Value& v, const std::string& what) {
  const auto& name = v.unknown()->name;
  fail(fmt::format("'{:.60}' is undefined, but {}", name ? *name : std::string("a value"), what));
}

/// As the reference's soft_str: a text, but HTML is not escaped here.
Value soft(Budget& budget, const Value& v, const char* filter) {
  if (v.string() && v.string()->markup)
    fail(fmt::format("{}: 'safe' and 'escape' before it are not supported", filter));
  return str_of(budget, v);
}

Value undefined_for(const char* what) { return undefined_value(what); }

Value lower_case(Budget& budget, const Value& v) {
  return v.string() ? cased(budget, v, Case::lower) : v;
}

std::string_view view_of(const Str& s) { return s.bytes; }

// -- attributes by paths --

/// value.a.b, or a number as an index, as the reference's make_attrgetter.
class Path {
 public:
  /// \param path none: the value itself
  Path(Budget& budget, const Value* path, bool folds, const Value* otherwise = nullptr)
      : budget_(budget), folds_(folds), otherwise_(otherwise) {
    if (path == nullptr || path->none()) return;
    if (!path->string()) {
      parts_.push_back(*path);
      return;
    }
    const Value dot = text_value(budget, ".");
    for (const Value& part : split(budget, *path, dot.string(), -1)) {
      const Str& s = *part.string();
      Value digits;
      string_method(budget, part, "isdigit", {}, &digits);
      if (digits.truth() && s.bytes.size() > 9)
        fail(fmt::format("the attribute {} is not supported", shown(part)));
      if (digits.truth() && !s.ascii())
        fail(fmt::format("the attribute {} is not supported", shown(part)));
      parts_.push_back(digits.truth() ? Value(Integer{std::stol(s.bytes)}) : part);
    }
  }

  Value operator()(const Value& v) const {
    Value at = v;
    for (const Value& part : parts_) {
      at = item(budget_, at, part);
      if (otherwise_ && !otherwise_->none() && at.undefined()) at = *otherwise_;
    }
    return folds_ ? lower_case(budget_, at) : at;
  }

 private:
  Budget& budget_;
  std::vector<Value> parts_;
  bool folds_;
  const Value* otherwise_;
};

// -- sequences --

/// A generator of what `make` puts in a list: what it throws is thrown when that place is reached.
template <class Make>
Value generated(Budget& budget, Make make) {
  auto g = std::make_shared<Generator>();
  g->charge = Charge(budget, sizeof(Generator) + 32);
  try {
    make(g->items);
  } catch (const DataError& e) {
    g->error = e.what();
  }
  budget.step(g->items.size() / 4);
  g->charge.grow(g->items.capacity() * sizeof(Value));
  for (const Value& v : g->items) g->depth = std::max(g->depth, v.depth() + 1);
  if (g->depth > kDeepest) fail("a value is nested too deep");
  return g;
}

/// select, reject, selectattr, rejectattr.
Value chosen(Budget& budget, const std::string& name, const Value& value, const Arguments& a) {
  return generated(budget, [&](List& out) {
    const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
    if (!value.truth()) return;  // of nothing, nothing
    if (by_attribute && a.places.empty()) fail(name + ": needs the name of an attribute");
    const std::size_t first = by_attribute ? 1 : 0;
    const Path path(budget, by_attribute ? &a.places[0] : nullptr, false);
    Arguments rest;
    std::string test;
    if (a.places.size() > first) {
      if (!a.places[first].string()) fail(name + ": the name of a test must be a string");
      test = a.places[first].string()->bytes;
      rest.places.assign(a.places.begin() + static_cast<std::ptrdiff_t>(first) + 1, a.places.end());
      rest.named = a.named;
    }
    for (const Value& v : Items(budget, value)) {
      budget.step();
      const Value of = path(v);
      if ((test.empty() ? of.truth() : call_test(budget, test, of, rest)) == wanted)
        out.push_back(v);
    }
  });
}

Value mapped(Budget& budget, const Value& value, const Arguments& a) {
  return generated(budget, [&](List& out) {
    if (!value.truth()) return;
    const Value *path = nullptr, *otherwise = nullptr;
    if (a.places.empty())
      for (const auto& [key, v] : a.named) {
        if (key == "attribute")
          path = &v;
        else if (key == "default")
          otherwise = &v;
        else
          fail(fmt::format("map: has no parameter '{:.60}'", key));
      }
    if (a.places.empty() && path == nullptr) fail("map: needs attribute= or the name of a filter");
    const Path get(budget, path, false, otherwise);
    Arguments rest;
    std::string filter;
    if (!a.places.empty()) {
      if (!a.places[0].string()) fail("map: the name of a filter must be a string");
      filter = a.places[0].string()->bytes;
      rest.places.assign(a.places.begin() + 1, a.places.end());
      rest.named = a.named;
    }
    for (const Value& v : Items(budget, value)) {
      budget.step();
      out.push_back(path ? get(v) : call_filter(budget, filter, v, rest));
    }
  });
}

/// `items` in the order of `keys`, which are compared as Python compares lists, or, with one key
/// each, as it compares that: equal ones must have an order then, too.
List sorted(Budget& budget, const List& items, const std::vector<List>& keys, bool reverse,
            bool lists) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto less = [&](std::size_t x, std::size_t y) {
    budget.step();
    for (std::size_t i = 0; i < keys[x].size(); ++i) {
      if (lists && equal(budget, keys[x][i], keys[y][i])) continue;
      const int c = compare(budget, keys[x][i], keys[y][i]);
      if (c == 2) fail("sorting nan is not supported");
      return c < 0;
    }
    return false;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return reverse ? less(y, x) : less(x, y); });
  List out;
  out.reserve(items.size());
  for (const std::size_t i : order) out.push_back(items[i]);
  return out;
}

List sort_filter(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool folds = !a.flag(1, false);
  std::vector<Path> paths;
  if (a.given(2) && a[2]->string()) {
    const Value comma = text_value(budget, ",");
    for (const Value& part : split(budget, *a[2], comma.string(), -1))
      paths.emplace_back(budget, &part, folds);
  } else {
    paths.emplace_back(budget, a[2], folds);
  }
  const Sequences of = iterate(budget, value);
  const Charge charge(budget, of->items.size() * (sizeof(List) + 3 * sizeof(Value)));
  std::vector<List> keys;
  keys.reserve(of->items.size());
  for (const Value& v : of->items) {
    budget.step();
    List key;
    for (const Path& path : paths) key.push_back(path(v));
    keys.push_back(std::move(key));
  }
  return sorted(budget, of->items, keys, a.flag(0, false), true);
}

List dict_sort(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const Dict* dict = value.dict();
  if (dict == nullptr) fail(fmt::format("dictsort: {} is no mapping", value.kind()));
  const bool by_value = a[1] && a.text(1).bytes == "value";
  if (a[1] && !by_value && a.text(1).bytes != "key") fail("dictsort: 'by' must be key or value");
  List items;
  std::vector<List> keys;
  const Charge charge(budget, dict->items.size() * (sizeof(List) + 4 * sizeof(Value)));
  for (const auto& [k, v] : dict->items) {
    items.push_back(tuple_value(budget, {k, v}));
    const Value& by = by_value ? v : k;
    keys.push_back({a.flag(0, false) ? by : lower_case(budget, by)});
  }
  return sorted(budget, items, keys, a.flag(2, false), false);
}

void hashable(const Value& v, const char* filter) {
  const Sequence* s = v.sequence();
  if (v.dict() ||
      (s && !s->tuple() && s->kind != Sequence::Kind::range && s->kind != Sequence::Kind::values))
    fail(fmt::format("{}: {} cannot be the key of a mapping", filter, v.kind()));
}

Value unique(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("unique", arguments, {"case_sensitive", "attribute"});
  return generated(budget, [&](List& out) {
    const Path path(budget, a[1], !a.flag(0, false));
    std::set<std::string> texts;
    Charge charge(budget, 0);
    List others;
    for (const Value& v : Items(budget, value)) {
      const Value key = path(v);
      hashable(key, "unique");
      if (const Str* s = key.string()) {
        budget.pass(s->bytes.size());
        if (!texts.insert(s->bytes).second) continue;
        charge.grow(s->bytes.size() + 64);
      } else {
        if (std::any_of(others.begin(), others.end(),
                        [&](const Value& o) { return equal(budget, o, key); }))
          continue;
        charge.grow(sizeof(Value) * 2);
        others.push_back(key);
      }
      out.push_back(v);
    }
  });
}

Value extreme(Budget& budget, const std::string& name, const Value& value,
              const Arguments& arguments) {
  const Bound a(name, arguments, {"case_sensitive", "attribute"});
  const Path path(budget, a[1], !a.flag(0, false));
  const Sequences of = iterate(budget, value);
  if (of->items.empty()) return undefined_for("the least or greatest of nothing");
  std::size_t best = 0;
  Value best_key = path(of->items[0]);
  for (std::size_t i = 1; i < of->items.size(); ++i) {
    Value key = path(of->items[i]);
    const int c = compare(budget, key, best_key);
    if (c == 2) fail(name + ": nan is not supported");
    if (name == "min" ? c >= 0 : c <= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return of->items[best];
}

Value group_by(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const bool folds = !a.flag(2, false);
  const Path path(budget, a[0], folds, a[1]), shown_path(budget, a[0], false, a[1]);
  const Sequences of = iterate(budget, value);
  const Charge charge(budget, of->items.size() * (sizeof(List) + 3 * sizeof(Value)));
  std::vector<List> keys;
  for (const Value& v : of->items) keys.push_back({path(v)});
  const List in_order = sorted(budget, of->items, keys, false, false);
  List groups, group;
  const auto close = [&] {
    if (group.empty()) return;
    Value name = shown_path(group.front());
    groups.push_back(list_value(budget,
                                {std::move(name), list_value(budget, std::exchange(group, {}))},
                                Sequence::Kind::group));
  };
  Value key;
  for (const Value& v : in_order) {
    Value next = path(v);
    if (!group.empty() && !equal(budget, key, next)) close();
    key = std::move(next);
    group.push_back(v);
  }
  close();
  return list_value(budget, std::move(groups));
}

Value summed(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("sum", arguments, {"attribute", "start"});
  const Path path(budget, a[0], false);
  Value total = a[1] ? *a[1] : Value(Integer{0});
  if (total.string()) fail("sum: strings cannot be summed; join them");
  for (const Value& v : Items(budget, value)) total = arithmetic(budget, '+', total, path(v));
  return total;
}

std::size_t count_of(const Bound& a, std::size_t i, const char* what) {
  const Integer n = a.whole(i, 0);
  if (n < 1 || n > 10'000'000) fail(fmt::format("{}: must be at least 1, and not too large", what));
  return static_cast<std::size_t>(n);
}

Value batch(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("batch", arguments, {"linecount", "fill_with"}, 1);
  return generated(budget, [&](List& out) {
    const Integer n = a.whole(0, 0);
    List row;
    for (const Value& v : Items(budget, value)) {
      if (static_cast<Integer>(row.size()) == n)
        out.push_back(list_value(budget, std::exchange(row, {})));
      row.push_back(v);
    }
    if (row.empty()) return;
    if (a.given(1) && static_cast<Integer>(row.size()) < n) {
      if (n > 100'000'000) fail("what the template makes grows too long");
      const auto size = static_cast<std::size_t>(n);
      budget.step(size);
      const Charge charge(budget, size * sizeof(Value));
      row.resize(size, *a[1]);
    }
    out.push_back(list_value(budget, std::move(row)));
  });
}

Value slices(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("slice", arguments, {"slices", "fill_with"}, 1);
  return generated(budget, [&](List& out) {
    const std::size_t n = count_of(a, 0, "slice: 'slices'");
    const Sequences of = iterate(budget, value);
    const std::size_t each = of->items.size() / n, more = of->items.size() % n;
    std::size_t at = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t end = at + each + (i < more ? 1 : 0);
      List part(of->items.begin() + static_cast<std::ptrdiff_t>(at),
                of->items.begin() + static_cast<std::ptrdiff_t>(end));
      if (a.given(1) && i >= more) part.push_back(*a[1]);
      out.push_back(list_value(budget, std::move(part)));
      at = end;
    }
  });
}

Value joined(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("join", arguments, {"d", "attribute"});
  const StrPtr between = a[0] ? str_of(budget, *a[0]) : text_value(budget, "").shared_string();
  const Path path(budget, a[1], false);
  Builder out(budget);
  bool first = true;
  const Sequences of = iterate(budget, value);
  for (const Value& v : of->items) {
    if (!first) out.add(*between);
    first = false;
    out.print(path(v));
  }
  return out.finish();
}

Value reversed(Budget& budget, const Value& value) {
  if (const Str* s = value.string()) {
    if (s->markup) fail("reverse: 'safe' and 'escape' before it are not supported");
    Builder out(budget);
    budget.step(s->bytes.size() / 2);
    for (std::size_t end = s->bytes.size(); end > 0;) {
      const std::size_t begin = begin_of_character(s->bytes, end);
      out.add(*s, begin, end);
      end = begin;
    }
    return out.finish();
  }
  const bool consumed = value.generator() != nullptr;
  if (value.undefined()) return generated(budget, [](List&) {});
  List list = iterate(budget, value)->items;
  std::reverse(list.begin(), list.end());
  if (consumed) return list_value(budget, std::move(list));
  return generated(budget, [&](List& out) { out = std::move(list); });
}

// -- texts --

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

/// The title filter, which is not the method: only hyphens, spaces and opening brackets part words.
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

// -- numbers --

/// A number's text without spaces around and underscores between digits, and with ASCII's digits.
/// Empty: it is none.
std::string number_text(Budget& budget, const Value& v) {
  const Value bare = stripped(budget, v, nullptr, true, true);
  const std::string& s = bare.string()->bytes;
  std::string out;
  bool digit_before = false;
  budget.pass(s.size());
  if (s.size() > 100'000) fail("a number is too long");
  for (std::size_t at = 0; at < s.size();) {
    const Character c = character_at(s, at);
    at += c.size;
    if (c.code == '_') {
      if (!digit_before || at == s.size() || !is_alnum(character_at(s, at).code)) return {};
      digit_before = false;
      continue;
    }
    if (c.code == kNoCharacter) return {};
    digit_before = is_decimal(c.code) || (c.code < 0x80 && is_alpha(c.code));
    if (is_decimal(c.code))
      out += static_cast<char>('0' + decimal_value(c.code));
    else if (c.code < 0x80)
      out += static_cast<char>(c.code);
    else
      return {};
  }
  return out;
}

std::optional<Value> integer_of(const std::string& text, int base) {
  std::size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const bool minus = at == 1 && text[0] == '-';
  if (base != 10 && text.size() > at + 2 && text[at] == '0') {
    const char mark = static_cast<char>(text[at + 1] | 0x20);
    if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b'))
      at += 2;
  }
  if (at == text.size()) return std::nullopt;
  Integer value = 0;
  bool too_large = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const int digit = c >= '0' && c <= '9'                      ? c - '0'
                      : is_alpha(static_cast<unsigned char>(c)) ? (c | 0x20) - 'a' + 10
                                                                : 99;
    if (digit >= base) return std::nullopt;
    too_large = too_large || __builtin_mul_overflow(value, Integer{base}, &value) ||
                __builtin_add_overflow(value, Integer{minus ? -digit : digit}, &value);
  }
  if (too_large) fail("an integer beyond 128 bits is not supported");
  return Value(value);
}

std::optional<double> float_of(const std::string& text) {
  std::size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  std::string rest = text.substr(at);
  std::transform(rest.begin(), rest.end(), rest.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  double d = 0;
  if (rest == "inf" || rest == "infinity") {
    d = std::numeric_limits<double>::infinity();
  } else if (rest == "nan") {
    d = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (rest.empty() || rest.find_first_not_of("0123456789.e+-") != kNone || rest[0] == 'e' ||
        rest == ".")
      return std::nullopt;
    if (rest[0] == '+' || rest[0] == '-') return std::nullopt;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), d);
    if (end != rest.data() + rest.size()) return std::nullopt;
    if (error == std::errc::result_out_of_range) fail("a float out of range is not supported");
    if (error != std::errc()) return std::nullopt;
  }
  return text[0] == '-' ? -d : d;
}

Value integer_of(double d) {
  if (!(std::abs(d) < 1e38)) fail("an integer beyond 128 bits is not supported");
  return static_cast<Integer>(d);
}

Value to_integer(Budget& budget, const Value& v, const Arguments& arguments) {
  const Bound a("int", arguments, {"default", "base"});
  const Value otherwise = a[0] ? *a[0] : Value(Integer{0});
  const Integer base = a.whole(1, 10);
  Integer whole = 0;
  if (v.whole(&whole)) return whole;
  if (const double* d = v.real()) {
    if (std::isnan(*d)) return otherwise;
    if (std::isinf(*d)) fail("int: infinity is no integer");
    return integer_of(*d);
  }
  if (v.undefined()) fail_undefined(v, "'int' of it is asked for");
  if (!v.string()) return otherwise;
  if (base < 2 || base > 36) fail("int: this base is not supported");
  const std::string text = number_text(budget, v);
  if (text.empty()) return otherwise;
  if (const auto i = integer_of(text, static_cast<int>(base))) return *i;
  const auto d = float_of(text);
  return d && std::isfinite(*d) ? integer_of(*d) : otherwise;
}

Value to_float(Budget& budget, const Value& v, const Arguments& arguments) {
  const Bound a("float", arguments, {"default"});
  const Value otherwise = a[0] ? *a[0] : Value(0.0);
  double d = 0;
  if (v.number(&d)) return d;
  if (v.undefined()) fail_undefined(v, "'float' of it is asked for");
  if (!v.string()) return otherwise;
  const auto value = float_of(number_text(budget, v));
  return value ? Value(*value) : otherwise;
}

Value compute(char op, const Value& a, const Value& b);

Value rounded(const Value& v, const Arguments& arguments) {
  const Bound a("round", arguments, {"precision", "method"});
  const Integer precision = a.whole(0, 0);
  const std::string method = a[1] ? a.text(1).bytes : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("round: 'method' must be common, ceil or floor");
  double d = 0;
  if (!v.number(&d)) fail(fmt::format("round: {} is no number", v.kind()));
  if (precision < 0 || precision > 300) fail("round: this precision is not supported");
  Integer whole = 0;
  const bool is_whole = v.whole(&whole);
  if (method == "common") {
    if (is_whole) return whole;
    if (!std::isfinite(d)) return d;
    const std::string text = fmt::format("{:.{}f}", d, static_cast<int>(precision));
    std::from_chars(text.data(), text.data() + text.size(), d);
    return d;
  }
  if (precision > 22) fail("round: this precision is not supported");
  Integer scale = 1;
  for (Integer i = 0; i < precision; ++i) scale *= 10;
  Value scaled = compute('*', v, scale);
  if (const double* large = scaled.real()) {
    if (!std::isfinite(*large)) fail("round: infinity and nan cannot be rounded so");
    scaled = integer_of(method == "ceil" ? std::ceil(*large) : std::floor(*large));
  }
  return compute('/', scaled, scale);
}

Value absolute(const Value& v) {
  Integer i = 0;
  if (v.whole(&i)) {
    if (__builtin_sub_overflow(Integer{0}, i, &i))
      fail("an integer beyond 128 bits is not supported");
    Integer was = 0;
    v.whole(&was);
    return was < 0 ? i : was;
  }
  if (v.real()) return std::abs(*v.real());
  fail(fmt::format("abs: {} is no number", v.kind()));
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

// -- methods of lists and mappings --

bool list_method(Budget& budget, const Value& self, const std::string& name,
                 const Arguments& arguments, Value* out) {
  const Sequence& s = *self.sequence();
  if (s.view()) return false;
  if (name == "count" || name == "index") {
    const Bound a(name, arguments, {"value", "start", "end"}, 1, false);
    if (name == "count" && a[1]) fail("count: takes one argument");
    const auto n = static_cast<Integer>(s.items.size());
    const auto place = [&](std::size_t i, Integer otherwise) {
      const Integer at = a.whole(i, otherwise);
      return std::clamp<Integer>(at < 0 ? at + n : at, 0, n);
    };
    std::size_t count = 0;
    for (auto i = static_cast<std::size_t>(place(1, 0)); i < static_cast<std::size_t>(place(2, n));
         ++i) {
      if (!s.items[i].same(*a[0]) && !equal(budget, s.items[i], *a[0])) continue;
      if (name == "index") return *out = i, true;
      ++count;
    }
    if (name == "index") fail("index: is not in the list");
    return *out = count, true;
  }
  if (name == "copy" && s.kind == Sequence::Kind::list) {
    const Bound none(name, arguments, {});
    return *out = self, true;
  }
  return false;
}

bool dict_method(Budget& budget, const Value& self, const std::string& name,
                 const Arguments& arguments, Value* out) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const Bound a("get", arguments, {"key", "default"}, 1, false);
    hashable(*a[0], "get");
    const Value* found = dict.find(budget, *a[0]);
    return *out = found ? *found : a[1] ? *a[1] : Value(), true;
  }
  const bool items = name == "items", keys = name == "keys";
  if (name != "copy" && !items && !keys && name != "values") return false;
  const Bound none(name, arguments, {});
  if (name == "copy") return *out = self, true;
  List list;
  list.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items)
    list.push_back(items ? tuple_value(budget, {key, value}) : keys ? key : value);
  return *out = list_value(budget, std::move(list),
                           items  ? Sequence::Kind::items
                           : keys ? Sequence::Kind::keys
                                  : Sequence::Kind::values),
         true;
}

Value join_method(Budget& budget, const Value& self, const Arguments& arguments) {
  const Bound a("join", arguments, {"iterable"}, 1, false);
  Builder out(budget);
  bool first = true;
  for (const Value& v : Items(budget, *a[0])) {
    if (!v.string()) fail(fmt::format("join: holds {}, not a string", v.kind()));
    if (v.string()->markup) fail("join: 'safe' and 'escape' before it are not supported");
    if (!first) out.add(*self.string());
    first = false;
    out.add(*v.string());
  }
  return out.finish();
}

/// Whether Python's type has a method of the name.
bool has_method(const Value& v, const std::string& name) {
  if (v.string()) return is_string_method(name);
  if (v.dict()) return among(kDictMethods, name);
  if (const Sequence* s = v.sequence(); s && !s->view())
    return among(kListMethods, name) && (name != "copy" || s->kind == Sequence::Kind::list);
  if (v.loop()) return name == "cycle" || name == "changed";
  return false;
}

/// What Python's getattr finds that is no method. \return false if there is nothing
bool field(Budget& budget, const Value& v, const std::string& name, Value* out) {
  if (v.number() && among(kNumberAttributes, name))
    fail(fmt::format("'{}' of {} is not supported", name, v.kind()));
  if (const Namespace* space = v.space()) {
    const Value* found = space->find(name);
    return found != nullptr && (*out = *found, true);
  }
  if (const Function* f = v.function()) {
    if (!f->macro)
      fail(fmt::format("'{:.60}' of the function '{}' is not supported", name, f->name));
    if (name == "name") return *out = text_value(budget, f->name), true;
    if (name == "arguments") {
      List names;
      for (const std::string& p : f->parameters) names.push_back(text_value(budget, p));
      return *out = tuple_value(budget, std::move(names)), true;
    }
    if (name == "caller" || name == "catch_kwargs" || name == "catch_varargs" ||
        name == "explicit_caller")
      fail(fmt::format("'{}' of a macro is not supported", name));
    return false;
  }
  if (const Loop* loop = v.loop()) {
    const List& items = loop->items->items;
    const std::size_t i = loop->index0, n = items.size();
    if (name == "index") return *out = i + 1, true;
    if (name == "index0") return *out = i, true;
    if (name == "revindex") return *out = n - i, true;
    if (name == "revindex0") return *out = n - i - 1, true;
    if (name == "first") return *out = i == 0, true;
    if (name == "last") return *out = i + 1 == n, true;
    if (name == "length") return *out = n, true;
    if (name == "depth") return *out = loop->depth0 + 1, true;
    if (name == "depth0") return *out = loop->depth0, true;
    if (name == "previtem")
      return *out = i > 0 ? items[i - 1] : undefined_value("the item before the first"), true;
    if (name == "nextitem")
      return *out = i + 1 < n ? items[i + 1] : undefined_value("the item behind the last"), true;
    return false;
  }
  if (const Sequence* s = v.sequence()) {
    if (s->kind == Sequence::Kind::group && name == "grouper") return *out = s->items[0], true;
    if (s->kind == Sequence::Kind::group && name == "list") return *out = s->items[1], true;
    if (s->kind == Sequence::Kind::range && (name == "start" || name == "stop" || name == "step"))
      return *out = name == "start" ? s->start : name == "stop" ? s->stop : s->step, true;
    if (s->view() && (name == "mapping" || name == "isdisjoint"))
      fail(fmt::format("'{}' of {} is not supported", name, v.kind()));
  }
  return false;
}

Value bound_method(const Value& v, const std::string& name, Budget& budget) {
  auto f = std::make_shared<Function>();
  f->name = name;
  f->depth = v.depth() + 1;
  if (f->depth > kDeepest) fail("a value is nested too deep");
  f->call = [v, name, &budget](Arguments& arguments) {
    Value out;
    if (!call_method(budget, v, name, arguments, &out))
      fail(fmt::format("the method '{}' of {} is not supported", name, v.kind()));
    return out;
  };
  return std::shared_ptr<const Function>(std::move(f));
}

/// What Python's getattr finds, and a sandbox lets through. \return false if there is nothing
bool own_attribute(Budget& budget, const Value& v, const std::string& name, Value* out) {
  if (name.starts_with("__") && name.ends_with("__"))
    return *out = undefined_value(name), true;  // none that a sandbox lets through
  if (field(budget, v, name, out)) return true;
  const Sequence* s = v.sequence();
  if ((v.dict() && among(kDictChanges, name)) ||
      (s && s->kind == Sequence::Kind::list && among(kListChanges, name)))
    return *out = undefined_value(name), true;
  if (!has_method(v, name)) return false;
  return *out = bound_method(v, name, budget), true;
}

/// The place that Python's index means, or npos.
std::size_t index_in(Integer i, std::size_t size) {
  if (i < 0) i += static_cast<Integer>(size);
  return i >= 0 && i < static_cast<Integer>(size) ? static_cast<std::size_t>(i) : kNone;
}

[[noreturn]] void cannot(char op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b})
    if (v->undefined()) fail_undefined(*v, "something is to be computed with it");
  const char* sign = op == '^' ? "**" : op == '\\' ? "//" : nullptr;
  fail(fmt::format("{} {} {} cannot be computed", a.kind(),
                   sign ? sign : std::string(1, op).c_str(), b.kind()));
}

[[noreturn]] void beyond() { fail("an integer beyond 128 bits is not supported"); }

Value power(const Value& a, const Value& b) {
  Integer base = 0, exponent = 0;
  if (a.whole(&base) && b.whole(&exponent) && exponent >= 0) {
    Integer result = 1;
    while (exponent > 0) {
      if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) beyond();
      exponent >>= 1;
      if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) beyond();
    }
    return result;
  }
  double x = 0, y = 0;
  a.number(&x);
  b.number(&y);
  if (x == 0 && y < 0) fail("division by zero");
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y))
    fail("complex numbers are not supported");
  const double out = std::pow(x, y);
  if (std::isinf(out) && std::isfinite(x) && std::isfinite(y)) fail("a float is too large");
  return out;
}

Value compute(char op, const Value& a, const Value& b) {
  Integer i = 0, j = 0;
  double x = 0, y = 0;
  a.number(&x);
  b.number(&y);
  if (op == '^') return power(a, b);
  if ((op == '/' || op == '\\' || op == '%') && y == 0) fail("division by zero");
  if (a.whole(&i) && b.whole(&j)) {
    Integer out = 0;
    switch (op) {
      case '+':
        if (__builtin_add_overflow(i, j, &out)) beyond();
        return out;
      case '-':
        if (__builtin_sub_overflow(i, j, &out)) beyond();
        return out;
      case '*':
        if (__builtin_mul_overflow(i, j, &out)) beyond();
        return out;
      case '/':
        if (j == 1) return x;
        if (static_cast<Integer>(x) != i || static_cast<Integer>(y) != j)
          fail("the quotient of such large integers is not supported");
        return x / y;
      default: {
        if (j == -1) {
          if (op == '%') return Integer{0};
          if (__builtin_sub_overflow(Integer{0}, i, &out)) beyond();
          return out;
        }
        Integer quotient = i / j, rest = i % j;
        if (rest != 0 && (rest < 0) != (j < 0)) {
          rest += j;
          --quotient;
        }
        return op == '%' ? rest : quotient;
      }
    }
  }
  switch (op) {
    case '+':
      return x + y;
    case '-':
      return x - y;
    case '*':
      return x * y;
    case '/':
      return x / y;
    default: {  // as CPython divides floats
      double rest = std::fmod(x, y);
      double quotient = (x - rest) / y;
      if (rest != 0) {
        if ((y < 0) != (rest < 0)) {
          rest += y;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, y);
      }
      if (op == '%') return rest;
      if (quotient == 0) return std::copysign(0.0, x / y);
      const double floor = std::floor(quotient);
      return quotient - floor > 0.5 ? floor + 1 : floor;
    }
  }
}

/// A text or list `times` over.
Value repeated(Budget& budget, const Value& v, Integer times) {
  if (times < 0) times = 0;
  const std::size_t size = v.string() ? v.string()->bytes.size() : v.sequence()->items.size();
  if (size == 0) times = 0;
  if (times > Integer{1} << 34) fail("what the template makes grows too long");
  const auto n = static_cast<std::size_t>(times);
  if (v.string()) {
    const Charge enough(budget, size * n);  // before anything is made
    budget.pass(size * n);
  } else {
    const Charge enough(budget, size * n * sizeof(Value));
    budget.step(size * n / 4);
  }
  if (const Str* s = v.string()) {
    if (s->markup) fail("the filter 'safe' within a product is not supported");
    Builder out(budget);
    for (std::size_t i = 0; i < n; ++i) out.add(*s);
    return out.finish();
  }
  List list;
  list.reserve(size * n);
  for (std::size_t i = 0; i < n; ++i)
    list.insert(list.end(), v.sequence()->items.begin(), v.sequence()->items.end());
  return list_value(budget, std::move(list),
                    v.sequence()->tuple() ? Sequence::Kind::tuple : Sequence::Kind::list);
}

}  // namespace

// -- what the renderer uses -----------------------------------------------------------------------

std::shared_ptr<const Sequence> iterate(Budget& budget, const Value& value) {
  budget.step();
  if (value.sequence()) return value.shared_sequence();
  List out;
  if (value.string()) {
    out = characters(budget, value);
  } else if (const Dict* dict = value.dict()) {
    out.reserve(dict->items.size());
    for (const auto& [key, v] : dict->items) out.push_back(key);
  } else if (Generator* g = value.generator()) {
    Value v;
    while (g->take(&v)) out.push_back(v);
  } else if (!value.undefined()) {
    fail(fmt::format("{} cannot be walked over", value.kind()));
  }
  return list_value(budget, std::move(out)).shared_sequence();
}

Value item(Budget& budget, const Value& value, const Value& key) {
  budget.step();
  if (value.undefined()) {
    const auto& name = value.unknown()->name;
    fail(fmt::format("something undefined ('{:.60}') is asked for {}", name ? *name : "",
                     shown(key)));
  }
  Integer i = 0;
  if (const Dict* dict = value.dict()) {
    const Sequence* s = key.sequence();
    if (!key.dict() && !(s && !s->tuple()))
      if (const Value* found = dict->find(budget, key)) return *found;
  } else if (key.whole(&i)) {
    if (const Sequence* s = value.sequence(); s && !s->view()) {
      const std::size_t at = index_in(i, s->items.size());
      if (at != kNone) return s->items[at];
    } else if (const Str* text = value.string()) {
      const std::size_t at = index_in(i, text->length);
      if (at != kNone) {
        if (text->markup) fail("parts of what 'safe' or 'escape' returned are not supported");
        const std::size_t begin = byte_of(budget, *text, at);
        return substring(budget, value, begin, begin + character_at(text->bytes, begin).size);
      }
    }
  }
  Value out;
  if (key.string() && own_attribute(budget, value, key.string()->bytes, &out)) return out;
  return undefined_value(key.string() ? key.string()->bytes.substr(0, 60) : shown(key));
}

Value attribute(Budget& budget, const Value& value, const std::string& name) {
  budget.step();
  if (value.undefined()) fail_undefined(value, fmt::format("'{:.60}' of it is asked for", name));
  Value out;
  if (own_attribute(budget, value, name, &out)) return out;
  if (const Dict* dict = value.dict())
    if (const Value* found = dict->find(name)) return *found;
  return undefined_value(name);
}

Value slice(Budget& budget, const Value& value, const Value& first, const Value& last,
            const Value& step) {
  const Str* text = value.string();
  const Sequence* list = value.sequence();
  if (value.undefined()) fail_undefined(value, "a part of it is asked for");
  if (!text && (!list || list->view()))
    fail(fmt::format("a part of {} is not supported", value.kind()));
  if (text && text->markup) fail("parts of what 'safe' or 'escape' returned are not supported");
  const auto n = static_cast<Integer>(text ? text->length : list->items.size());
  const auto bound = [](const Value& v) -> std::optional<Integer> {
    Integer b = 0;
    if (v.none()) return std::nullopt;
    if (!v.whole(&b)) fail(fmt::format("a slice's bound is {}, not an integer", v.kind()));
    return b;
  };
  for (const Value* v : {&first, &last, &step})
    if (Integer b = 0; !v->none() && !v->whole(&b))
      return undefined_value("a part without a place");
  const Integer by = bound(step).value_or(1);
  if (by == 0) fail("a slice's step is 0");
  const Integer lowest = by > 0 ? 0 : -1, highest = by > 0 ? n : n - 1;
  const auto place = [&](std::optional<Integer> b, Integer otherwise) {
    if (!b) return otherwise;
    return std::clamp(*b < 0 ? *b + n : *b, lowest, highest);
  };
  const Integer from = place(bound(first), by > 0 ? 0 : n - 1);
  const Integer to = place(bound(last), by > 0 ? n : -1);
  const auto more = [&](Integer i) { return by > 0 ? i < to : i > to; };
  if (text && by == 1) {
    if (from >= to) return text_value(budget, "");
    const std::size_t begin = byte_of(budget, *text, static_cast<std::size_t>(from));
    return substring(budget, value, begin, byte_of(budget, *text, static_cast<std::size_t>(to)));
  }
  const Integer size = more(from) ? (to - from + by + (by > 0 ? -1 : 1)) / by : 0;
  const auto count = static_cast<std::size_t>(size);
  if (text) {
    std::vector<std::size_t> begins;
    const Charge charge(budget, text->ascii() ? 0 : (text->length + 1) * sizeof(std::size_t));
    if (!text->ascii())
      for (std::size_t at = 0; at < text->bytes.size(); at += character_at(text->bytes, at).size)
        begins.push_back(at);
    budget.step(begins.size() / 8);
    Builder out(budget);
    for (std::size_t k = 0; k < count; ++k) {
      const auto i = static_cast<std::size_t>(from + static_cast<Integer>(k) * by);
      const std::size_t at = text->ascii() ? i : begins[i];
      out.add(*text, at, at + character_at(text->bytes, at).size);
    }
    return out.finish();
  }
  List out;
  const Charge charge(budget, count * sizeof(Value));
  out.reserve(count);
  for (std::size_t k = 0; k < count; ++k)
    out.push_back(list->items[static_cast<std::size_t>(from + static_cast<Integer>(k) * by)]);
  budget.step(count / 4);
  if (list->kind != Sequence::Kind::range)
    return list_value(budget, std::move(out),
                      list->tuple() ? Sequence::Kind::tuple : Sequence::Kind::list);
  auto part = std::make_shared<Sequence>();
  part->kind = Sequence::Kind::range;
  part->charge = Charge(budget, sizeof(Sequence) + count * sizeof(Value));
  part->start = list->start + from * list->step;
  part->stop = list->start + to * list->step;
  part->step = list->step * by;
  part->items = std::move(out);
  return std::shared_ptr<const Sequence>(std::move(part));
}

bool contains(Budget& budget, const Value& container, const Value& value) {
  budget.step();
  if (const Str* s = container.string()) {
    if (!value.string()) {
      if (value.undefined()) fail_undefined(value, "it is looked for in a string");
      fail(fmt::format("{} cannot be in a string", value.kind()));
    }
    return find(budget, *s, view_of(*value.string()), 0) != kNone;
  }
  if (const Dict* dict = container.dict()) {
    hashable(value, "in");
    return dict->find(budget, value) != nullptr;
  }
  if (Generator* g = container.generator()) {
    Value v;
    while (g->take(&v))
      if (v.same(value) || equal(budget, v, value)) return true;
    return false;
  }
  const Sequences list = iterate(budget, container);
  return std::any_of(list->items.begin(), list->items.end(),
                     [&](const Value& v) { return v.same(value) || equal(budget, v, value); });
}

Value arithmetic(Budget& budget, char op, const Value& a, const Value& b) {
  budget.step();
  if (a.number() && b.number()) return compute(op, a, b);
  const auto text = [](const Value& v) {
    if (v.string()->markup) fail("the filter 'safe' within a sum is not supported");
  };
  if (op == '+' && a.string() && b.string()) {
    text(a);
    text(b);
    if (b.string()->bytes.empty()) return a;
    if (a.string()->bytes.empty()) return b;
    Builder out(budget);
    out.add(*a.string());
    out.add(*b.string());
    return out.finish();
  }
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (op == '+' && s && t && s->plain() && t->plain() && s->tuple() == t->tuple()) {
    List list;
    const Charge charge(budget, (s->items.size() + t->items.size()) * sizeof(Value));
    list.reserve(s->items.size() + t->items.size());
    list.insert(list.end(), s->items.begin(), s->items.end());
    list.insert(list.end(), t->items.begin(), t->items.end());
    return list_value(budget, std::move(list),
                      s->tuple() ? Sequence::Kind::tuple : Sequence::Kind::list);
  }
  Integer times = 0;
  if (op == '*' && (a.string() || (s && s->plain())) && b.whole(&times))
    return repeated(budget, a, times);
  if (op == '*' && (b.string() || (t && t->plain())) && a.whole(&times))
    return repeated(budget, b, times);
  if (op == '%' && a.string()) {
    text(a);
    return percent(budget, *a.string(), b);
  }
  if (op == '-' && ((s && s->view()) || (t && t->view())))
    fail("computing with the views of mappings is not supported");
  cannot(op, a, b);
}

bool call_method(Budget& budget, const Value& of, const std::string& name,
                 const Arguments& arguments, Value* out) {
  budget.step();
  if (of.string()) {
    if (name == "join" && !of.string()->markup)
      return *out = join_method(budget, of, arguments), true;
    return string_method(budget, of, name, arguments, out);
  }
  if (of.dict()) return dict_method(budget, of, name, arguments, out);
  if (of.sequence()) return list_method(budget, of, name, arguments, out);
  if (Loop* loop = of.loop()) {
    if (!arguments.named.empty()) return false;
    if (name == "cycle") {
      if (arguments.places.empty()) fail("cycle: needs something to go through");
      return *out = arguments.places[loop->index0 % arguments.places.size()], true;
    }
    if (name == "changed") {
      const List& now = arguments.places;
      const bool same = loop->changed_before && now.size() == loop->changed.size() &&
                        std::equal(now.begin(), now.end(), loop->changed.begin(),
                                   [&](const Value& x, const Value& y) {
                                     return x.same(y) || equal(budget, x, y);
                                   });
      if (!same) loop->changed = now;
      loop->changed_before = true;
      return *out = !same, true;
    }
  }
  return false;
}

Value call_filter(Budget& budget, const std::string& name, const Value& value,
                  const Arguments& arguments) {
  const Budget::Within within(budget);
  budget.step();
  const auto only = [&] { Bound(name, arguments, {}); };
  const auto text = [&] { return soft(budget, value, name.c_str()); };
  if (name == "trim") {
    const Bound a(name, arguments, {"chars"});
    const Value of = text();
    return stripped(budget, of, a.given(0) ? &a.text(0) : nullptr, true, true);
  }
  if (name == "length" || name == "count") {
    only();
    if (const Str* s = value.string()) return s->length;
    if (const Dict* d = value.dict()) return d->items.size();
    if (const Loop* l = value.loop()) return l->items->items.size();
    if (value.generator()) fail(fmt::format("{}: a generator has none", name));
    return iterate(budget, value)->items.size();
  }
  if (name == "upper") return only(), cased(budget, text(), Case::upper);
  if (name == "lower") return only(), cased(budget, text(), Case::lower);
  if (name == "capitalize") return only(), capitalized(budget, text());
  if (name == "title") return only(), title_filter(budget, text());
  if (name == "string") return only(), str_of(budget, value);
  if (name == "safe") {
    only();
    Builder out(budget);
    out.print(value);
    return out.finish(true);
  }
  if (name == "escape" || name == "e" || name == "forceescape")
    return only(), escaped(budget, value, name == "forceescape");
  if (name == "tojson") return json_filter(budget, value, arguments);
  if (name == "default" || name == "d") {
    const Bound a(name, arguments, {"default_value", "boolean"});
    if (!value.undefined() && !(a.flag(1, false) && !value.truth())) return value;
    return a[0] ? *a[0] : text_value(budget, "");
  }
  if (name == "first") {
    only();
    if (Generator* g = value.generator()) {
      Value v;
      return g->take(&v) ? v : undefined_for("the first of nothing");
    }
    if (const Str* s = value.string(); s && !s->bytes.empty())
      return item(budget, value, Integer{0});
    const Sequences list = iterate(budget, value);
    return list->items.empty() ? undefined_for("the first of nothing") : list->items.front();
  }
  if (name == "last") {
    only();
    if (value.generator()) fail("last: a generator has none");
    if (const Str* s = value.string(); s && !s->bytes.empty())
      return item(budget, value, Integer{-1});
    const Sequences list = iterate(budget, value);
    return list->items.empty() ? undefined_for("the last of nothing") : list->items.back();
  }
  if (name == "join") return joined(budget, value, arguments);
  if (name == "list") {
    only();
    const Sequences list = iterate(budget, value);
    if (list->kind == Sequence::Kind::list) return list;
    return list_value(budget, list->items);
  }
  if (name == "items") {
    only();
    return generated(budget, [&](List& out) {
      if (value.undefined()) return;
      Value items;
      if (!value.dict()) fail(fmt::format("items: {} is no mapping", value.kind()));
      dict_method(budget, value, "items", {}, &items);
      out = items.sequence()->items;
    });
  }
  if (name == "dictsort") return list_value(budget, dict_sort(budget, value, arguments));
  if (name == "reverse") return only(), reversed(budget, value);
  if (name == "replace") {
    const Bound a(name, arguments, {"old", "new", "count"}, 2);
    const StrPtr s = str_of(budget, value), from = str_of(budget, *a[0]),
                 to = str_of(budget, *a[1]);
    return replaced(budget, *s, *from, *to, a.given(2) ? a.whole(2, -1) : -1);
  }
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return chosen(budget, name, value, arguments);
  if (name == "map") return mapped(budget, value, arguments);
  if (name == "sort") return list_value(budget, sort_filter(budget, value, arguments));
  if (name == "unique") return unique(budget, value, arguments);
  if (name == "min" || name == "max") return extreme(budget, name, value, arguments);
  if (name == "groupby") return group_by(budget, value, arguments);
  if (name == "sum") return summed(budget, value, arguments);
  if (name == "batch") return batch(budget, value, arguments);
  if (name == "slice") return slices(budget, value, arguments);
  if (name == "indent") return indented(budget, value, arguments);
  if (name == "truncate") return truncated(budget, value, arguments);
  if (name == "center") {
    const Bound a(name, arguments, {"width"});
    return padded(budget, text(), a.whole(0, 80), nullptr, 0);
  }
  if (name == "wordcount") return only(), count_words(budget, *text().string());
  if (name == "urlencode") return only(), url_encoded(budget, value);
  if (name == "format") {
    if (!arguments.places.empty() && !arguments.named.empty())
      fail("format: takes arguments by their place or by name, not both");
    const Value of = text();
    if (arguments.named.empty())
      return percent(budget, *of.string(), tuple_value(budget, arguments.places));
    DictMaker dict(budget);
    for (const auto& [key, v] : arguments.named) dict.set(text_value(budget, key), v);
    return percent(budget, *of.string(), dict.finish());
  }
  if (name == "attr") {
    const Bound a(name, arguments, {"name"}, 1);
    if (value.undefined())
      fail_undefined(value, fmt::format("'{:.60}' of it is asked for", a.text(0).bytes));
    Value out;
    if (own_attribute(budget, value, a.text(0).bytes, &out)) return out;
    return undefined_value(a.text(0).bytes);
  }
  if (name == "int") return to_integer(budget, value, arguments);
  if (name == "float") return to_float(budget, value, arguments);
  if (name == "round") return rounded(value, arguments);
  if (name == "abs") return only(), absolute(value);
  fail(fmt::format("the filter '{:.60}' is not supported", name));
}

bool call_test(Budget& budget, const std::string& name, const Value& value,
               const Arguments& arguments) {
  budget.step();
  const auto none = [&] { Bound(name, arguments, {}); };
  const auto other = [&]() -> const Value& {
    const Bound a(fmt::format("the test '{}'", name), arguments, {"other"}, 1, false);
    return *a[0];
  };
  const auto ordered = [&](const char* sign) { return compare(budget, value, other(), sign); };
  const Sequence* s = value.sequence();
  if (name == "defined") return none(), !value.undefined();
  if (name == "undefined") return none(), value.undefined();
  if (name == "none") return none(), value.none();
  if (name == "string") return none(), value.string() != nullptr;
  if (name == "number") return none(), value.number();
  if (name == "integer") return none(), value.integer() != nullptr;
  if (name == "float") return none(), value.real() != nullptr;
  if (name == "boolean") return none(), value.boolean();
  if (name == "true") return none(), value.boolean() && value.truth();
  if (name == "false") return none(), value.boolean() && !value.truth();
  if (name == "mapping") return none(), value.dict() != nullptr;
  if (name == "iterable")
    return none(), value.string() || s || value.dict() || value.undefined() || value.generator() ||
                       value.loop();
  if (name == "sequence")
    return none(), value.string() || (s && !s->view()) || value.dict() || value.undefined();
  if (name == "callable") return none(), value.function() || value.undefined() || value.loop();
  if (name == "escaped") return none(), value.string() && value.string()->markup;
  if (name == "lower" || name == "upper") {
    none();
    Value out;
    const Value of = str_of(budget, value);
    string_method(budget, of, name == "lower" ? "islower" : "isupper", {}, &out);
    return out.truth();
  }
  if (name == "even" || name == "odd")
    return none(), equal(budget, arithmetic(budget, '%', value, Integer{2}),
                         Integer{name == "odd" ? 1 : 0});
  if (name == "divisibleby") {
    const Bound a(name, arguments, {"num"}, 1);
    return equal(budget, arithmetic(budget, '%', value, *a[0]), Integer{0});
  }
  if (name == "filter" || name == "test") {
    none();
    hashable(value, name.c_str());
    if (!value.string()) return false;
    return name == "filter" ? among(kFilters, value.string()->bytes)
                            : among(kTests, value.string()->bytes);
  }
  if (name == "eq" || name == "equalto" || name == "==") return equal(budget, value, other());
  if (name == "ne" || name == "!=") return !equal(budget, value, other());
  if (name == "sameas") {
    // which numbers and strings are one object is Python's secret, but for small integers
    const bool alike = (value.string() && other().string()) || (value.real() && other().real()) ||
                       (value.integer() && other().integer());
    if (alike && !equal(budget, value, other())) return false;
    if (value.integer() && alike && *value.integer() >= -5 && *value.integer() <= 256) return true;
    if (alike) fail(fmt::format("the test 'sameas' of {} is not supported", value.kind()));
    return value.same(other());
  }
  if (name == "lt" || name == "lessthan" || name == "<") return ordered("<") == -1;
  if (name == "gt" || name == "greaterthan" || name == ">") return ordered(">") == 1;
  if (name == "le" || name == "<=") return std::abs(ordered("<=")) != 2 && ordered("<=") <= 0;
  if (name == "ge" || name == ">=") return ordered(">=") == 0 || ordered(">=") == 1;
  if (name == "in") return contains(budget, other(), value);
  fail(fmt::format("the test '{:.60}' is not supported", name));
}

}  // namespace episodic::text::jinja
