// SPDX-License-Identifier: Apache-2.0
#include "jinja_builtins.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "utf8.hpp"

namespace episodic::text::jinja {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";

const std::string& string_of(const Value& v, const char* what) {
  const std::string* s = v.string();
  if (!s) fail(fmt::format("{}: expected a string, not {}", what, v.kind()));
  return *s;
}

std::int64_t whole_of(const Value& v, const char* what) {
  std::int64_t i = 0;
  if (!v.whole(&i)) fail(fmt::format("{}: expected an integer, not {}", what, v.kind()));
  return i;
}

/// An argument by its place or its name.
Value argument(const List& arguments, const Named& named, std::size_t place, const char* name,
               Value otherwise) {
  if (place < arguments.size()) return arguments[place];
  for (const auto& [key, value] : named)
    if (key == name) return value;
  return otherwise;
}

std::string stripped(const std::string& s, std::string_view of, bool left, bool right) {
  // strip() without arguments also takes Unicode's spaces; those of ASCII are what templates meet
  const std::size_t first = left ? s.find_first_not_of(of) : 0;
  if (first == std::string::npos) return {};
  const std::size_t last = right ? s.find_last_not_of(of) : s.size() - 1;
  return last == std::string::npos ? std::string() : s.substr(first, last + 1 - first);
}

std::string replaced(std::string s, const std::string& from, const std::string& to,
                     std::int64_t most) {
  if (from.empty()) fail("replace: what to look for is empty");
  for (std::size_t at = 0; most != 0 && (at = s.find(from, at)) != std::string::npos; --most) {
    s.replace(at, from.size(), to);
    at += to.size();
  }
  return s;
}

/// Letters of ASCII alone; others stay as they are.
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
std::string mapped(std::string s, char (*f)(char)) {
  std::transform(s.begin(), s.end(), s.begin(), f);
  return s;
}
std::string capitalized(std::string s) {
  s = mapped(std::move(s), lower);
  if (!s.empty()) s[0] = upper(s[0]);
  return s;
}
std::string title(std::string s) {
  bool inside = false;
  for (char& c : s) {
    const bool letter = upper(c) != lower(c) || static_cast<unsigned char>(c) >= 0x80;
    c = inside ? lower(c) : upper(c);
    inside = letter;
  }
  return s;
}

List split(const std::string& s, const List& arguments) {
  List out;
  std::int64_t most = arguments.size() > 1 ? whole_of(arguments[1], "split") : -1;
  if (arguments.empty() || arguments[0].none()) {
    for (std::size_t at = 0; (at = s.find_first_not_of(kSpaces, at)) != std::string::npos;) {
      const std::size_t end =
          most-- == 0 ? s.size() : std::min(s.find_first_of(kSpaces, at), s.size());
      out.emplace_back(s.substr(at, end - at));
      at = end;
    }
    return out;
  }
  const std::string& by = string_of(arguments[0], "split");
  if (by.empty()) fail("split: what to split at is empty");
  std::size_t at = 0;
  for (std::size_t end; most != 0 && (end = s.find(by, at)) != std::string::npos; --most) {
    out.emplace_back(s.substr(at, end - at));
    at = end + by.size();
  }
  out.emplace_back(s.substr(at));
  return out;
}

bool begins_or_ends(const std::string& s, const Value& with, bool begins) {
  if (const List* any = with.list())
    return std::any_of(any->begin(), any->end(),
                       [&](const Value& v) { return begins_or_ends(s, v, begins); });
  const std::string& part = string_of(with, begins ? "startswith" : "endswith");
  return begins ? s.starts_with(part) : s.ends_with(part);
}

bool string_method(const std::string& s, const std::string& name, const List& a, Value* out) {
  const auto chars = [&] {
    return a.empty() || a[0].none() ? std::string(kSpaces) : string_of(a[0], name.c_str());
  };
  const auto needs = [&](std::size_t n) {
    if (a.size() < n) fail(fmt::format("{}: {} arguments, expected {}", name, a.size(), n));
  };
  if (name == "strip") return *out = stripped(s, chars(), true, true), true;
  if (name == "lstrip") return *out = stripped(s, chars(), true, false), true;
  if (name == "rstrip") return *out = stripped(s, chars(), false, true), true;
  if (name == "upper") return *out = mapped(s, upper), true;
  if (name == "lower") return *out = mapped(s, lower), true;
  if (name == "title") return *out = title(s), true;
  if (name == "capitalize") return *out = capitalized(s), true;
  if (name == "split") return *out = split(s, a), true;
  if (name == "splitlines") {
    List lines = split(s, {Value("\n")});
    if (!lines.empty() && !lines.back().truth()) lines.pop_back();
    return *out = std::move(lines), true;
  }
  if (name == "startswith") return needs(1), *out = begins_or_ends(s, a[0], true), true;
  if (name == "endswith") return needs(1), *out = begins_or_ends(s, a[0], false), true;
  if (name == "replace") {
    needs(2);
    const std::int64_t most = a.size() > 2 ? whole_of(a[2], "replace") : -1;
    return *out = replaced(s, string_of(a[0], "replace"), string_of(a[1], "replace"), most), true;
  }
  if (name == "find") {
    needs(1);
    const std::size_t at = s.find(string_of(a[0], "find"));
    if (at == std::string::npos) return *out = std::int64_t{-1}, true;
    return *out = static_cast<std::int64_t>(characters(s.substr(0, at)).size()), true;
  }
  if (name == "count") {
    needs(1);
    return *out = static_cast<std::int64_t>(split(s, {a[0]}).size() - 1), true;
  }
  if (name == "join") {
    needs(1);
    return *out = call_filter("join", a[0], {Value(s)}, {}), true;
  }
  return false;
}

bool dict_method(const Dict& dict, const std::string& name, const List& a, Value* out) {
  if (name == "get") {
    if (a.empty()) fail("get: needs a key");
    const std::string* key = a[0].string();
    const Value* found = key ? dict.find(*key) : nullptr;
    return *out = found ? *found : a.size() > 1 ? a[1] : Value(), true;
  }
  List list;
  for (const auto& [key, value] : dict.items)
    if (name == "items")
      list.push_back(List{Value(key), value});
    else if (name == "keys")
      list.emplace_back(key);
    else if (name == "values")
      list.push_back(value);
    else
      return false;
  if (name != "items" && name != "keys" && name != "values") return false;
  return *out = std::move(list), true;
}

/// value.a.b, or a number as an index.
Value attribute_path(const Value& value, const std::string& path) {
  Value at = value;
  for (const Value& part : split(path, {Value(".")})) {
    const std::string& name = *part.string();
    const bool digits = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    at = item(at, digits && name.size() < 10 ? Value(std::int64_t{std::stol(name)}) : part);
  }
  return at;
}

/// select, reject, selectattr, rejectattr.
Value chosen(const std::string& name, const Value& value, const List& arguments) {
  const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
  const std::size_t first = by_attribute ? 1 : 0;
  if (arguments.size() < first) fail(fmt::format("{}: needs the name of an attribute", name));
  List out;
  if (!value.truth()) return out;  // of nothing, nothing
  for (const Value& v : iterate(value)) {
    const Value of = by_attribute ? attribute_path(v, string_of(arguments[0], name.c_str())) : v;
    const bool truth =
        arguments.size() > first
            ? call_test(
                  string_of(arguments[first], name.c_str()), of,
                  List(arguments.begin() + static_cast<std::ptrdiff_t>(first) + 1, arguments.end()))
            : of.truth();
    if (truth == wanted) out.push_back(v);
  }
  return out;
}

Value mapped_list(const Value& value, const List& arguments, const Named& named) {
  const Value attribute = argument({}, named, 0, "attribute", {});
  const Value otherwise = argument({}, named, 0, "default", Undefined{});
  List out;
  if (!value.truth()) return out;
  for (const Value& v : iterate(value)) {
    if (!attribute.none()) {
      Value of = attribute_path(v, string_of(attribute, "map"));
      out.push_back(of.undefined() ? otherwise : of);
    } else {
      if (arguments.empty()) fail("map: needs attribute= or the name of a filter");
      out.push_back(call_filter(string_of(arguments[0], "map"), v,
                                List(arguments.begin() + 1, arguments.end()), named));
    }
  }
  return out;
}

Value sorted(const Value& value, const List& arguments, const Named& named) {
  const bool reverse = argument(arguments, named, 0, "reverse", false).truth();
  const Value attribute = argument(arguments, named, 2, "attribute", {});
  const auto key = [&](const Value& v) {
    Value k = attribute.none() ? v : attribute_path(v, string_of(attribute, "sort"));
    return k.string() ? Value(mapped(*k.string(), lower)) : k;
  };
  List out = iterate(value);
  std::stable_sort(out.begin(), out.end(), [&](const Value& a, const Value& b) {
    return reverse ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
  return out;
}

Value indented(const std::string& s, const List& arguments, const Named& named) {
  const Value width = argument(arguments, named, 0, "width", std::int64_t{4});
  const bool first = argument(arguments, named, 1, "first", false).truth();
  const bool blank = argument(arguments, named, 2, "blank", false).truth();
  const std::string by = width.string()
                             ? *width.string()
                             : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                               whole_of(width, "indent"), 0, 1000)),
                                           ' ');
  std::string out;
  bool top = true;
  for (const Value& line : split(s, {Value("\n")})) {
    if (!top) out += '\n';
    if (top ? first : blank || line.truth()) out += by;
    out += *line.string();
    top = false;
  }
  return out;
}

Value to_integer(const Value& v, const List& arguments, const Named& named) {
  double d = 0;
  if (v.number(&d) && std::abs(d) < 9e18) return static_cast<std::int64_t>(d);
  if (v.string()) try {
      return std::int64_t{std::stoll(*v.string())};
    } catch (const std::exception&) {  // no number: the default
    }
  return argument(arguments, named, 0, "default", std::int64_t{0});
}

}  // namespace

List iterate(const Value& value) {
  if (const List* list = value.list()) return *list;
  if (const std::string* s = value.string()) return characters(*s);
  if (value.undefined()) return {};
  if (const Dict* dict = value.dict(); dict && !dict->writable) {
    List keys;
    for (const auto& [key, v] : dict->items) keys.emplace_back(key);
    return keys;
  }
  fail(fmt::format("{} cannot be walked over", value.kind()));
}

Value item(const Value& value, const Value& key) {
  if (value.undefined()) {
    // as the reference has it: what is nothing has nothing within it
    fail("something undefined is asked for " + key.repr());
  }
  std::int64_t i = 0;
  if (const Dict* dict = value.dict()) {
    const Value* found = key.string() ? dict->find(*key.string()) : nullptr;
    return found ? *found : Value(Undefined{key.text()});
  }
  if (key.whole(&i)) {
    if (const List* list = value.list()) {
      const auto n = static_cast<std::int64_t>(list->size());
      if (i < 0) i += n;
      return i >= 0 && i < n ? (*list)[static_cast<std::size_t>(i)] : Value(Undefined{key.text()});
    }
    if (const std::string* s = value.string()) return item(Value(characters(*s)), key);
  }
  return Undefined{key.text()};
}

bool contains(const Value& container, const Value& value) {
  if (const std::string* s = container.string())
    return s->find(string_of(value, "in")) != std::string::npos;
  if (const Dict* dict = container.dict()) return value.string() && dict->find(*value.string());
  const List list = iterate(container);
  return std::find(list.begin(), list.end(), value) != list.end();
}

int compare(const Value& a, const Value& b) {
  double x = 0, y = 0;
  if (a.number(&x) && b.number(&y)) return x < y ? -1 : x > y;
  if (a.string() && b.string()) return std::clamp(a.string()->compare(*b.string()), -1, 1);
  fail(fmt::format("{} and {} have no order", a.kind(), b.kind()));
}

bool call_method(const Value& value, const std::string& name, const List& arguments, Value* out) {
  if (const std::string* s = value.string()) return string_method(*s, name, arguments, out);
  if (const Dict* dict = value.dict()) return dict_method(*dict, name, arguments, out);
  return false;
}

Value call_filter(const std::string& name, const Value& value, const List& arguments,
                  const Named& named) {
  const auto text = [&] { return value.text(); };
  if (name == "trim") {
    const Value chars = argument(arguments, named, 0, "chars", {});
    return stripped(text(), chars.none() ? std::string(kSpaces) : string_of(chars, "trim"), true,
                    true);
  }
  if (name == "length" || name == "count") return static_cast<std::int64_t>(iterate(value).size());
  if (name == "upper") return mapped(text(), upper);
  if (name == "lower") return mapped(text(), lower);
  if (name == "capitalize") return capitalized(text());
  if (name == "title") return title(text());
  if (name == "string") return text();
  if (name == "safe") return value;
  if (name == "tojson") {
    const Value indent = argument(arguments, named, 0, "indent", {});
    return to_json_text(value, indent.none() ? -1
                                             : static_cast<int>(std::clamp<std::int64_t>(
                                                   whole_of(indent, "tojson"), 0, 100)));
  }
  if (name == "default" || name == "d") {
    const bool falsy = argument(arguments, named, 1, "boolean", false).truth();
    if (!value.undefined() && !(falsy && !value.truth())) return value;
    return argument(arguments, named, 0, "default_value", "");
  }
  if (name == "first" || name == "last") {
    const List list = iterate(value);
    if (list.empty()) return Undefined{name};
    return name == "first" ? list.front() : list.back();
  }
  if (name == "join") {
    const std::string between = argument(arguments, named, 0, "d", "").text();
    const Value attribute = argument(arguments, named, 1, "attribute", {});
    std::string out;
    bool first = true;
    for (const Value& v : iterate(value)) {
      if (!first) out += between;
      first = false;
      out += attribute.none() ? v.text() : attribute_path(v, string_of(attribute, "join")).text();
    }
    return out;
  }
  if (name == "list") return iterate(value);
  if (name == "items") {
    if (value.undefined()) return List{};
    Value out;
    if (!value.dict() || !dict_method(*value.dict(), "items", {}, &out))
      fail(fmt::format("items: {} is no mapping", value.kind()));
    return out;
  }
  if (name == "dictsort") {
    Value out;
    if (!value.dict() || !dict_method(*value.dict(), "items", {}, &out))
      fail(fmt::format("dictsort: {} is no mapping", value.kind()));
    return sorted(out, {}, {{"attribute", Value("0")}});
  }
  if (name == "reverse") {
    List list = iterate(value);
    std::reverse(list.begin(), list.end());
    if (!value.string()) return list;
    std::string out;
    for (const Value& c : list) out += *c.string();
    return out;
  }
  if (name == "replace") {
    const Value from = argument(arguments, named, 0, "old", {}),
                to = argument(arguments, named, 1, "new", {});
    return replaced(text(), string_of(from, "replace"), string_of(to, "replace"), -1);
  }
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return chosen(name, value, arguments);
  if (name == "map") return mapped_list(value, arguments, named);
  if (name == "sort") return sorted(value, arguments, named);
  if (name == "unique") {
    List out;
    for (const Value& v : iterate(value))
      if (std::find(out.begin(), out.end(), v) == out.end()) out.push_back(v);
    return out;
  }
  if (name == "min" || name == "max") {
    const List list = iterate(value);
    const auto less = [](const Value& a, const Value& b) { return compare(a, b) < 0; };
    if (list.empty()) return Undefined{name};
    return *(name == "min" ? std::min_element(list.begin(), list.end(), less)
                           : std::max_element(list.begin(), list.end(), less));
  }
  if (name == "indent") return indented(text(), arguments, named);
  if (name == "int") return to_integer(value, arguments, named);
  if (name == "float") {
    double d = 0;
    if (value.number(&d)) return d;
    try {
      return std::stod(text());
    } catch (const std::exception&) {
      return argument(arguments, named, 0, "default", 0.0);
    }
  }
  if (name == "abs") {
    double d = 0;
    if (!value.number(&d)) fail(fmt::format("abs: {} is no number", value.kind()));
    return value.integer() ? Value(std::abs(*value.integer())) : Value(std::abs(d));
  }
  fail(fmt::format("the filter '{}' is not supported", name));
}

bool call_test(const std::string& name, const Value& value, const List& arguments) {
  const auto other = [&]() -> const Value& {
    if (arguments.empty()) fail(fmt::format("the test '{}' needs something to compare with", name));
    return arguments[0];
  };
  double d = 0;
  const bool number = value.number(&d);
  if (name == "defined") return !value.undefined();
  if (name == "undefined") return value.undefined();
  if (name == "none") return value.none();
  if (name == "string") return value.string() != nullptr;
  if (name == "number") return number;
  if (name == "integer") return value.integer() != nullptr;
  if (name == "float") return number && !value.integer() && !value.is<bool>();
  if (name == "boolean") return value.is<bool>();
  if (name == "true") return value.is<bool>() && value.truth();
  if (name == "false") return value.is<bool>() && !value.truth();
  if (name == "mapping") return value.dict() != nullptr && !value.dict()->writable;
  if (name == "iterable")
    return value.list() || value.string() || value.undefined() ||
           (value.dict() && !value.dict()->writable);
  if (name == "sequence")
    return value.list() || value.string() || value.undefined() ||
           (value.dict() && !value.dict()->writable);
  if (name == "callable") return value.function() != nullptr;
  if (name == "even" || name == "odd")
    return (whole_of(value, name.c_str()) % 2 != 0) == (name == "odd");
  if (name == "divisibleby") {
    const std::int64_t by = whole_of(other(), "divisibleby");
    if (by == 0) fail("divisibleby: 0");
    return by == -1 || whole_of(value, "divisibleby") % by == 0;
  }
  if (name == "eq" || name == "equalto" || name == "sameas") return value == other();
  if (name == "ne") return !(value == other());
  if (name == "lt" || name == "lessthan") return compare(value, other()) < 0;
  if (name == "gt" || name == "greaterthan") return compare(value, other()) > 0;
  if (name == "le") return compare(value, other()) <= 0;
  if (name == "ge") return compare(value, other()) >= 0;
  if (name == "in") return contains(other(), value);
  fail(fmt::format("the test '{}' is not supported", name));
}

}  // namespace episodic::text::jinja
