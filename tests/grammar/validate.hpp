// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a value satisfies a JSON schema, by the words of the standard (2020-12), keyword by
// keyword.

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>

namespace episodic::test {

using Json = nlohmann::json;

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& v) const { return valid(v, root_); }

 private:
  static std::size_t characters(const std::string& s) {
    std::size_t n = 0;
    for (const char c : s) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
    return n;
  }
  static bool is(const Json& v, const std::string& type) {
    if (type == "integer") return v.is_number() && std::floor(v.get<double>()) == v.get<double>();
    if (type == "number") return v.is_number();
    if (type == "string") return v.is_string();
    if (type == "object") return v.is_object();
    if (type == "array") return v.is_array();
    if (type == "boolean") return v.is_boolean();
    if (type == "null") return v.is_null();
    throw std::out_of_range(type);
  }

  bool valid(const Json& v, const Json& s) const {
    if (s.is_boolean()) return s.get<bool>();
    const auto all = [&](const Json& list, auto check) {
      std::size_t n = 0;
      for (const Json& one : list) n += check(one) ? 1 : 0;
      return n;
    };
    const auto holds = [&](const Json& one) { return valid(v, one); };
    for (const auto& [key, x] : s.items()) {
      if (key == "$ref" && !valid(v, root_.at(Json::json_pointer(x.get<std::string>().substr(1)))))
        return false;
      if (key == "allOf" && all(x, holds) != x.size()) return false;
      if (key == "anyOf" && all(x, holds) == 0) return false;
      if (key == "oneOf" && all(x, holds) != 1) return false;
      if (key == "const" && v != x) return false;
      if (key == "enum" && std::find(x.begin(), x.end(), v) == x.end()) return false;
      if (key == "type" && x.is_string() && !is(v, x)) return false;
      if (key == "type" && x.is_array() && all(x, [&](const Json& t) { return is(v, t); }) == 0)
        return false;
      if (v.is_string() && !string(v, key, x)) return false;
      if (v.is_number() && !number(v.get<double>(), key, x)) return false;
      if (v.is_array() && !array(v, key, x, s)) return false;
      if (v.is_object() && !object(v, key, x, s)) return false;
    }
    return true;
  }
  bool string(const Json& v, const std::string& key, const Json& x) const {
    const auto& text = v.get_ref<const std::string&>();
    if (key == "minLength") return characters(text) >= x.get<std::size_t>();
    if (key == "maxLength") return characters(text) <= x.get<std::size_t>();
    if (key == "pattern") return std::regex_search(text, std::regex(x.get<std::string>()));
    return true;
  }
  bool number(double v, const std::string& key, const Json& x) const {
    if (key == "minimum") return v >= x.get<double>();
    if (key == "maximum") return v <= x.get<double>();
    if (key == "exclusiveMinimum") return v > x.get<double>();
    if (key == "exclusiveMaximum") return v < x.get<double>();
    return true;
  }
  bool array(const Json& v, const std::string& key, const Json& x, const Json& s) const {
    const std::size_t first = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    if (key == "minItems") return v.size() >= x.get<std::size_t>();
    if (key == "maxItems") return v.size() <= x.get<std::size_t>();
    if (key == "prefixItems")
      for (std::size_t i = 0; i < std::min(first, v.size()); ++i)
        if (!valid(v[i], x[i])) return false;
    if (key == "items")
      for (std::size_t i = first; i < v.size(); ++i)
        if (!valid(v[i], x)) return false;
    return true;
  }
  bool object(const Json& v, const std::string& key, const Json& x, const Json& s) const {
    if (key == "minProperties") return v.size() >= x.get<std::size_t>();
    if (key == "maxProperties") return v.size() <= x.get<std::size_t>();
    if (key == "required")
      for (const Json& name : x)
        if (!v.contains(name.get<std::string>())) return false;
    for (const auto& [name, value] : v.items()) {
      const bool named = s.contains("properties") && s["properties"].contains(name);
      if (key == "properties" && named && !valid(value, x[name])) return false;
      if (key == "additionalProperties" && !named && !valid(value, x)) return false;
    }
    return true;
  }

  const Json& root_;
};

}  // namespace episodic::test
