// SPDX-License-Identifier: Apache-2.0
#include "jinja_value.hpp"

#include <fmt/format.h>

#include <cmath>

#include "episodic/base/error.hpp"
#include "utf8.hpp"

namespace episodic::text::jinja {
namespace {

/// As Python prints a float: the shortest that reads back, with a point or an exponent.
std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  const double size = std::abs(d);
  if (size != 0 && (size < 1e-4 || size >= 1e16)) return fmt::format("{:e}", d);
  std::string s = fmt::format("{}", d);
  return s.find_first_of(".e") == std::string::npos ? s + ".0" : s;
}

std::string quoted(const std::string& s) {
  const char quote =
      s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : s) {
    if (c == quote || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", c);
    else
      out += c;
  }
  return out + quote;
}

nlohmann::ordered_json to_json(const Value& v) {
  if (v.none()) return nullptr;
  if (v.is<bool>()) return v.truth();
  if (const auto* i = v.integer()) return *i;
  if (const auto* s = v.string()) return *s;
  double d = 0;
  if (v.number(&d)) return d;
  if (const List* list = v.list()) {
    auto array = nlohmann::ordered_json::array();
    for (const Value& x : *list) array.push_back(to_json(x));
    return array;
  }
  if (const Dict* dict = v.dict()) {
    auto object = nlohmann::ordered_json::object();
    for (const auto& [key, x] : dict->items) object[key] = to_json(x);
    return object;
  }
  fail(fmt::format("tojson: {} cannot be written as JSON", v.kind()));
}

/// json.dumps puts a space behind commas and colons where nlohmann's one line has none.
void dump(const nlohmann::ordered_json& json, int indent, int depth, std::string& out) {
  const bool object = json.is_object();
  if (!object && !json.is_array()) {
    out += json.is_number_float()
               ? float_text(json.get<double>())
               : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return;
  }
  if (json.empty()) {
    out += object ? "{}" : "[]";
    return;
  }
  const auto new_line = [&](int d) {
    if (indent >= 0) out += '\n' + std::string(static_cast<std::size_t>(indent * d), ' ');
  };
  out += object ? '{' : '[';
  bool first = true;
  for (auto it = json.begin(); it != json.end(); ++it) {
    if (!first) out += indent >= 0 ? "," : ", ";
    first = false;
    new_line(depth + 1);
    if (object) {
      dump(it.key(), indent, depth + 1, out);
      out += ": ";
    }
    dump(it.value(), indent, depth + 1, out);
  }
  new_line(depth);
  out += object ? '}' : ']';
}

}  // namespace

void fail(const std::string& what) { throw DataError(what); }

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items)
    if (name == key) return &value;
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
  for (auto& [name, old] : items)
    if (name == key) {
      old = std::move(value);
      return;
    }
  items.emplace_back(key, std::move(value));
}

Value Value::from(const nlohmann::ordered_json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& x : json) list.push_back(from(x));
    return list;
  }
  Dict dict;
  for (const auto& [key, x] : json.items()) dict.items.emplace_back(key, from(x));
  return dict;
}

bool Value::whole(std::int64_t* out) const {
  if (const auto* b = std::get_if<bool>(&data_)) return *out = *b, true;
  if (const auto* i = integer()) return *out = *i, true;
  return false;
}

bool Value::number(double* out) const {
  std::int64_t i = 0;
  if (whole(&i)) return *out = static_cast<double>(i), true;
  if (const auto* d = std::get_if<double>(&data_)) return *out = *d, true;
  return false;
}

bool Value::truth() const {
  double d = 0;
  if (number(&d)) return d != 0;
  if (const auto* s = string()) return !s->empty();
  if (const auto* l = list()) return !l->empty();
  if (const auto* m = dict()) return m->writable || !m->items.empty();
  return function() != nullptr;
}

std::string Value::text() const {
  if (undefined()) return {};
  if (const auto* s = string()) return *s;
  return repr();
}

std::string Value::repr() const {
  if (undefined()) return "Undefined";
  if (none()) return "None";
  if (const auto* b = std::get_if<bool>(&data_)) return *b ? "True" : "False";
  if (const auto* i = integer()) return fmt::format("{}", *i);
  if (const auto* d = std::get_if<double>(&data_)) return float_text(*d);
  if (const auto* s = string()) return quoted(*s);
  std::string out;
  if (const auto* l = list()) {
    for (const Value& v : *l) out += (out.empty() ? "" : ", ") + v.repr();
    return '[' + out + ']';
  }
  if (const auto* m = dict()) {
    for (const auto& [key, v] : m->items)
      out += (out.empty() ? "" : ", ") + quoted(key) + ": " + v.repr();
    return '{' + out + '}';
  }
  fail("a function cannot be printed");
}

const char* Value::kind() const {
  static constexpr const char* kNames[] = {"undefined",  "none",      "a boolean",
                                           "an integer", "a float",   "a string",
                                           "a list",     "a mapping", "a function"};
  return kNames[data_.index()];
}

bool operator==(const Value& a, const Value& b) {
  double x = 0, y = 0;
  if (a.number(&x) && b.number(&y)) return x == y;
  if (a.data_.index() != b.data_.index()) return false;
  if (const auto* s = a.string()) return *s == *b.string();
  if (const auto* l = a.list()) return *l == *b.list();
  if (const auto* m = a.dict()) {
    if (m->items.size() != b.dict()->items.size()) return false;
    for (const auto& [key, v] : m->items) {
      const Value* other = b.dict()->find(key);
      if (!other || !(v == *other)) return false;
    }
    return true;
  }
  return a.none() || a.undefined() || (a.function() && a.function() == b.function());
}

std::string to_json_text(const Value& value, int indent) {
  std::string out;
  dump(to_json(value), indent, 0, out);
  return out;
}

List characters(const std::string& text) {
  List out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = std::max<std::size_t>(1, utf8_length(text, at));
    out.emplace_back(text.substr(at, n));
    at += n;
  }
  return out;
}

}  // namespace episodic::text::jinja
