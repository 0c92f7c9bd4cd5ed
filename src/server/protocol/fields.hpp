// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fields of a request's JSON object, each looked at by name, so that one nobody looked at is
// refused.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/server/request_error.hpp"

namespace episodic::server {

/// Fields that say nothing about the tokens of the answer, whatever they hold.
inline constexpr std::string_view kIgnored[] = {
    "model", "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention",
    // llama.cpp: where the prompt is kept, and how samplers behave that are not on
    "cache_prompt", "id_slot", "mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold",
    "repeat_last_n", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers",
    // vLLM
    "priority", "request_id", "cache_salt"};

/// A field that clients send although they ask for nothing by it: these values are taken, and no
/// others. Null always is.
struct AsksForNothing {
  std::string_view name;
  const char* values;  ///< a JSON list; the first one stands in the message
};

/// \throws RequestError naming the field, each call that finds it of the wrong type or range
class Fields {
 public:
  using json = nlohmann::json;
  explicit Fields(const json& object) : object_(object) {}

  /// The field's value; null where it is absent or null.
  const json* find(const char* name) {
    seen_.push_back(name);
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  bool flag(const char* name, bool otherwise = false) {
    const json* value = find(name);
    if (value && !value->is_boolean()) wrong(name, "must be true or false");
    return value ? value->get<bool>() : otherwise;
  }
  /// A text that must be there.
  std::string text(const char* name) {
    const json* value = find(name);
    if (!value) wrong(name, "is missing");
    if (!value->is_string()) wrong(name, "must be a text");
    return value->get<std::string>();
  }
  std::string text(const char* name, const std::string& otherwise) {
    return find(name) ? text(name) : otherwise;
  }
  std::int64_t count(const char* name, std::int64_t least, std::int64_t otherwise) {
    const json* value = find(name);
    if (!value) return otherwise;
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    const bool huge = value->is_number_unsigned() && value->get<std::uint64_t>() > kMost;
    if (huge || !value->is_number_integer() || value->get<std::int64_t>() < least ||
        value->get<std::int64_t>() > kMost)
      wrong(name, fmt::format("must be a whole number of at least {}", least));
    return value->get<std::int64_t>();
  }
  /// The same with an upper end.
  std::int64_t count_up_to(const char* name, std::int64_t most, std::int64_t otherwise) {
    const std::int64_t value = count(name, 0, otherwise);
    if (value > most) wrong(name, fmt::format("must be at most {}", most));
    return value;
  }
  double number(const char* name, double least, double most, double otherwise) {
    const json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_number() || !(value->get<double>() >= least) || !(value->get<double>() <= most))
      wrong(name, fmt::format("must be a number from {} to {}", least, most));
    return value->get<double>();
  }
  /// Fields that are refused unless they ask for what is done anyway.
  void take(std::span<const AsksForNothing> table) {
    for (const AsksForNothing& entry : table) {
      const json* value = find(std::string(entry.name).c_str());
      if (!value) continue;
      const json values = parse_strict(entry.values, entry.name, {});
      if (std::find(values.begin(), values.end(), *value) == values.end())
        wrong(std::string(entry.name),
              values.empty()
                  ? std::string("is not built; leave it out")
                  : fmt::format("is not built; leave it out or give {}", values.front().dump()));
    }
  }
  /// \throws RequestError for a field that nobody looked at
  void require_known() const {
    for (const auto& [name, value] : object_.items())
      if (!value.is_null() && std::find(seen_.begin(), seen_.end(), name) == seen_.end() &&
          std::find(std::begin(kIgnored), std::end(kIgnored), name) == std::end(kIgnored))
        throw RequestError(fmt::format("'{}' is not built; leave it out", printable(name)), name);
  }
  [[noreturn]] static void wrong(const std::string& name, const std::string& what) {
    throw RequestError(fmt::format("'{}' {}", name, what), name);
  }

 private:
  const json& object_;
  std::vector<std::string> seen_;
};

/// The text of a member of a JSON object that has been parsed; empty where no key is written as
/// this name (it may be written with escapes).
inline std::string_view member_text(std::string_view object, std::string_view name) {
  std::size_t at = object.find('{') + 1, depth = 1, begin = std::string_view::npos;
  std::string_view key;
  bool is_key = true;  // the next text is one
  for (; at < object.size() && depth > 0; ++at) {
    const char c = object[at];
    if (c == '"') {
      const std::size_t first = ++at;
      while (object[at] != '"') at += object[at] == '\\' ? 2 : 1;
      if (depth == 1 && is_key) key = object.substr(first, at - first);
    } else if (c == ':' && depth == 1) {
      is_key = false;
      if (key == name) begin = at + 1;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    if ((c == ',' && depth == 1) || depth == 0) {
      if (begin != std::string_view::npos) return object.substr(begin, at - begin);
      is_key = true;
    }
  }
  return {};
}

/// A request's body, which must be one JSON object: deep nesting and endless lists are refused, and
/// what it takes is given back without taking more.
class Body {
 public:
  /// \throws RequestError for what is none
  /// \param text must outlive it
  explicit Body(std::string_view text) : text_(text), tree_(parsed(text)), guard_(tree_) {
    if (!tree_.is_object()) throw RequestError("the request is no JSON object", "");
  }
  const nlohmann::json& operator*() const { return tree_; }

  /// A member's JSON as it was sent: trees do not keep the order of keys, which says in what order
  /// a schema's properties are written. \param path names of members, one within the other, that
  /// are there
  std::string sent(std::initializer_list<const char*> path) const {
    std::string_view value = text_;
    const nlohmann::json* tree = &tree_;
    for (const char* name : path) {
      value = value.empty() ? value : member_text(value, name);
      tree = &tree->at(name);
    }
    return value.empty() ? tree->dump() : std::string(value);
  }

 private:
  static nlohmann::json parsed(std::string_view text) {
    try {
      JsonLimits limits;
      limits.remedy = "send a JSON object";
      return parse_strict(text, "the request", limits);
    } catch (const Error& e) {
      throw RequestError(e.what(), "");
    }
  }

  std::string_view text_;
  nlohmann::json tree_;
  JsonGuard guard_;
};

}  // namespace episodic::server
