// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "json_schema.hpp"

namespace episodic::grammar {
namespace {

constexpr std::size_t kLongestSchema = std::size_t{1} << 20;
constexpr int kDeepestJson = 200;
constexpr int kDeepestJoin = 32;   // demands that are joined within each other
constexpr int kMostSteps = 20000;  // of joining them

bool one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string unescaped(std::string_view percent) {
  std::string out;
  for (std::size_t i = 0; i < percent.size(); ++i) {
    const auto hex = [&](std::size_t k) {
      return k < percent.size() && std::isxdigit(static_cast<unsigned char>(percent[k]));
    };
    if (percent[i] == '%' && hex(i + 1) && hex(i + 2)) {
      out += static_cast<char>(std::stoi(std::string(percent.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += percent[i];
    }
  }
  return out;
}

/// The values that const or enum leave; null: any.
OrderedJson values_of(const OrderedJson& schema) {
  if (schema.contains("const")) return OrderedJson::array({schema["const"]});
  if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
  return nullptr;
}

std::vector<std::string> types_of(const OrderedJson& schema) {
  std::vector<std::string> types;
  const auto at = schema.find("type");
  if (at == schema.end()) return types;
  if (at->is_string()) types.push_back(at->get<std::string>());
  if (at->is_array())
    for (const OrderedJson& type : *at)
      if (type.is_string()) types.push_back(type.get<std::string>());
  return types;
}

bool has(const OrderedJson& list, const OrderedJson& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool requires_name(const OrderedJson& schema, const std::string& name) {
  const auto at = schema.find("required");
  return at != schema.end() && at->is_array() && has(*at, name);
}

const OrderedJson* property(const OrderedJson& schema, const std::string& name) {
  const auto all = schema.find("properties");
  if (all == schema.end() || !all->is_object()) return nullptr;
  const auto at = all->find(name);
  return at == all->end() ? nullptr : &*at;
}

/// Whether what is written for one schema lacks something that the other requires.
bool lacks(const OrderedJson& written, const OrderedJson& other) {
  const auto additional = written.find("additionalProperties");
  const bool open = additional != written.end() && !(additional->is_boolean() && !*additional);
  const auto required = other.find("required");
  if (open || !written.contains("properties") || required == other.end() || !required->is_array())
    return false;
  return std::any_of(required->begin(), required->end(), [&](const OrderedJson& name) {
    return name.is_string() && !property(written, name.get<std::string>()) &&
           !requires_name(written, name.get<std::string>());
  });
}

}  // namespace

bool is_of_type(const OrderedJson& value, std::string_view type) {
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  return type == "array" && value.is_array();
}

SchemaTree::SchemaTree(std::string_view text) {
  if (text.size() > kLongestSchema)
    throw ConfigError(fmt::format("json schema: has {} bytes, at most {} are taken", text.size(),
                                  kLongestSchema));
  JsonLimits limits;
  limits.depth = kDeepestJson;
  limits.remedy = "mend the schema";
  try {
    root_ = parse_ordered(text, "json schema", limits);
  } catch (const FileError& e) {
    throw ConfigError(e.what());
  }
}

void SchemaTree::fail(const std::string& at, const std::string& what) {
  throw ConfigError(
      fmt::format("json schema: {}: {}", at.empty() ? "at its top" : printable(at), what));
}

std::string SchemaTree::below(const std::string& at, std::string_view key) {
  std::string out = at + '/';
  for (const char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

bool SchemaTree::is_annotation(std::string_view key) {
  return one_of(key, {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description",
                      "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator",
                      "example", "contentMediaType"}) ||
         key.starts_with("x-");
}

std::string SchemaTree::pointer(const OrderedJson& reference, const std::string& at) const {
  if (!reference.is_string()) fail(below(at, "$ref"), "must be a string");
  const std::string& text = reference.get_ref<const std::string&>();
  if (text != "#" && !text.starts_with("#/"))
    fail(below(at, "$ref"),
         fmt::format("'{}' is not in this schema; only #/... is supported", printable(text)));
  return unescaped(std::string_view(text).substr(1));
}

const OrderedJson& SchemaTree::target(const OrderedJson& reference, const std::string& at) const {
  const std::string where = pointer(reference, at);
  try {
    return root_.at(OrderedJson::json_pointer(where));
  } catch (const OrderedJson::exception&) {
    fail(below(at, "$ref"), fmt::format("there is no '{}' in this schema", printable(where)));
  }
}

void SchemaTree::count(const std::string& at, int depth) {
  if (depth > kDeepestJoin)
    fail(at, "demands are joined too deep within each other; does one refer to itself by allOf?");
  if (++steps_ > kMostSteps) fail(at, "takes too long to join with what else must hold");
}

OrderedJson SchemaTree::flat(const OrderedJson& schema, const std::string& at, int depth) {
  count(at, depth);
  if (schema.is_boolean()) return schema;
  if (!schema.is_object()) fail(at, "must be an object, true or false");
  OrderedJson out = schema;
  out.erase("$ref");
  out.erase("allOf");
  if (const auto ref = schema.find("$ref"); ref != schema.end())
    out = both(out, flat(target(*ref, at), pointer(*ref, at), depth + 1), at, depth + 1);
  if (const auto all = schema.find("allOf"); all != schema.end()) {
    const std::string here = below(at, "allOf");
    if (!all->is_array()) fail(here, "must be a list");
    for (std::size_t i = 0; i < all->size(); ++i)
      out = both(out, flat((*all)[i], below(here, std::to_string(i)), depth + 1), at, depth + 1);
  }
  return out;
}

OrderedJson SchemaTree::both(const OrderedJson& a, const OrderedJson& b, const std::string& at,
                             int depth) {
  count(at, depth);
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  const auto joined = [&](const OrderedJson& x, const OrderedJson& y, const std::string& where) {
    return both(flat(x, where, depth + 1), flat(y, where, depth + 1), where, depth + 1);
  };
  OrderedJson out = a;
  for (const auto& [key, value] : b.items()) {
    const std::string here = below(at, key);
    const auto known = out.find(key);
    if (key == "properties" || key == "additionalProperties") continue;
    if (known == out.end()) {
      out[key] = value;
      continue;
    }
    if (*known == value || is_annotation(key)) continue;
    const bool numbers = known->is_number() && value.is_number();
    if (key == "required" && known->is_array() && value.is_array()) {
      for (const OrderedJson& name : value)
        if (!has(*known, name)) known->push_back(name);
    } else if (key == "type") {
      OrderedJson common = OrderedJson::array();
      const std::vector<std::string> mine = types_of(out), other = types_of(b);
      const auto in = [](const std::vector<std::string>& list, std::string_view type) {
        return std::find(list.begin(), list.end(), type) != list.end();
      };
      for (const std::string& type : mine)
        if (in(other, type) || (type == "integer" && in(other, "number"))) common.push_back(type);
      if (in(mine, "number") && in(other, "integer") && !has(common, "integer"))
        common.push_back("integer");
      if (common.empty()) fail(here, "no type is among all that must hold at once");
      *known = common;
    } else if (numbers && one_of(key, {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                       "minProperties"})) {
      if (value.get<double>() > known->get<double>()) *known = value;
    } else if (numbers && one_of(key, {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                       "maxProperties"})) {
      if (value.get<double>() < known->get<double>()) *known = value;
    } else if (key == "enum" && known->is_array() && value.is_array()) {
      OrderedJson common = OrderedJson::array();
      for (const OrderedJson& choice : *known)
        if (has(value, choice)) common.push_back(choice);
      *known = common;
    } else if (key == "items") {
      *known = joined(*known, value, here);
    } else {
      fail(here, "differs among schemas that must hold at once, which is not supported");
    }
  }
  // A name is also held to the other's additionalProperties where that one does not name it.
  const auto additional = [](const OrderedJson& schema) -> const OrderedJson* {
    const auto found = schema.find("additionalProperties");
    return found == schema.end() ? nullptr : &*found;
  };
  const OrderedJson *of_a = additional(a), *of_b = additional(b);
  if (of_b) out["additionalProperties"] = of_a ? joined(*of_a, *of_b, at) : *of_b;
  const auto properties = [&](const OrderedJson& schema) {
    const auto found = schema.find("properties");
    if (found == schema.end()) return OrderedJson::object();
    if (!found->is_object()) fail(below(at, "properties"), "must be an object");
    return *found;
  };
  OrderedJson names = properties(a);
  for (auto& [name, value] : names.items()) {
    const std::string here = below(below(at, "properties"), name);
    const OrderedJson* other = property(b, name);
    if (!other) other = of_b;
    if (other) value = joined(value, *other, here);
  }
  const OrderedJson of_both = properties(b);
  for (const auto& [name, value] : of_both.items()) {
    if (names.contains(name)) continue;
    names[name] = of_a ? joined(*of_a, value, below(below(at, "properties"), name)) : value;
  }
  if (a.contains("properties") || b.contains("properties")) out["properties"] = names;
  return out;
}

bool SchemaTree::apart(const OrderedJson& a, const OrderedJson& b, const std::string& at,
                       int depth) {
  if (depth > 3) return false;
  const OrderedJson x = flat(a, at), y = flat(b, at);
  if (x.is_boolean() || y.is_boolean()) return x == false || y == false;
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto every = [&](const OrderedJson& of, const OrderedJson& other) {
      const auto list = of.find(key);
      return list != of.end() && list->is_array() &&
             std::all_of(list->begin(), list->end(),
                         [&](const OrderedJson& one) { return apart(one, other, at, depth + 1); });
    };
    if (every(x, y) || every(y, x)) return true;
  }
  const OrderedJson of_x = values_of(x), of_y = values_of(y);
  const std::vector<std::string> types_x = types_of(x), types_y = types_of(y);
  const auto none_of = [](const OrderedJson& values, const OrderedJson& others,
                          const std::vector<std::string>& types) {
    return std::all_of(values.begin(), values.end(), [&](const OrderedJson& value) {
      const bool typed =
          types.empty() || std::any_of(types.begin(), types.end(),
                                       [&](const auto& t) { return is_of_type(value, t); });
      return !typed || (!others.is_null() && !has(others, value));
    });
  };
  if (!of_x.is_null() && none_of(of_x, of_y, types_y)) return true;
  if (!of_y.is_null() && none_of(of_y, of_x, types_x)) return true;
  if (types_x.empty() || types_y.empty()) return false;
  const auto kind = [](const std::string& type) { return type == "integer" ? "number" : type; };
  const bool types_apart = std::none_of(types_x.begin(), types_x.end(), [&](const auto& t) {
    return std::any_of(types_y.begin(), types_y.end(),
                       [&](const auto& u) { return kind(t) == kind(u); });
  });
  if (types_apart) return true;
  if (types_x != std::vector<std::string>{"object"} || types_x != types_y) return false;
  if (lacks(x, y) && lacks(y, x)) return true;
  const auto properties = x.find("properties");
  if (properties == x.end() || !properties->is_object()) return false;
  for (const auto& [name, value] : properties->items())
    if (const OrderedJson* other = property(y, name);
        other && (requires_name(x, name) || requires_name(y, name)) &&
        apart(value, *other, at, depth + 1))
      return true;
  return false;
}

}  // namespace episodic::grammar
