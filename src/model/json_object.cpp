// SPDX-License-Identifier: Apache-2.0
#include "json_object.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostTokenId = 1 << 24;

/// A value for a message; the numbers that JSON has no words for as Python writes them.
std::string said(const Json& v) {
  const double x = v.is_number_float() ? v.get<double>() : 0;
  if (std::isfinite(x)) return printable_value(v);
  return std::isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
}

}  // namespace

JsonObject::JsonObject(const Json& object, std::string file, std::string prefix)
    : object_(&object), file_(std::move(file)), prefix_(std::move(prefix)) {
  if (!object.is_object()) fail("", "expected a JSON object");
}

const Json* JsonObject::find(const char* key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonObject::null(const char* key) const {
  const auto it = object_->find(key);
  return it != object_->end() && it->is_null();
}

std::optional<JsonObject> JsonObject::object(const char* key) const {
  const Json* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_object()) fail(key, "expected an object or null");
  return JsonObject(*v, file_, prefix_ + key + ".");
}

JsonObject JsonObject::changed_by(const JsonObject& other) const {
  auto merged = std::make_shared<Json>(*object_);
  merged->update(*other.object_);
  JsonObject result(*merged, file_, prefix_);
  result.own_ = std::move(merged);
  return result;
}

std::int64_t JsonObject::integer(const char* key, std::int64_t least, std::int64_t most) const {
  const Json* v = find(key);
  if (!v) fail(key, fmt::format("is missing; expected an integer in [{}, {}]", least, most));
  return checked_integer(key, *v, least, most);
}

std::int64_t JsonObject::integer(const char* key, std::int64_t least, std::int64_t most,
                                 std::int64_t otherwise) const {
  return has(key) ? integer(key, least, most) : otherwise;
}

std::int64_t JsonObject::checked_integer(const char* key, const Json& v, std::int64_t least,
                                         std::int64_t most) const {
  const bool whole = v.is_number_integer();
  const bool huge = v.is_number_unsigned() && v.get<std::uint64_t>() > (std::uint64_t{1} << 62);
  if (!whole || huge || v.get<std::int64_t>() < least || v.get<std::int64_t>() > most)
    fail(key, fmt::format("is {}, expected an integer in [{}, {}]", said(v), least, most));
  return v.get<std::int64_t>();
}

double JsonObject::positive(const char* key, std::optional<double> otherwise) const {
  const Json* v = find(key);
  if (!v && otherwise) return *otherwise;
  if (!v) fail(key, "is missing; expected a positive number");
  const double x = v->is_number() ? v->get<double>() : 0;
  if (!(x > 0) || !std::isfinite(x))
    fail(key, fmt::format("is {}, expected a positive number", said(*v)));
  return x;
}

double JsonObject::number(const char* key, double least, double most,
                          std::optional<double> otherwise) const {
  const Json* v = find(key);
  if (!v && otherwise) return *otherwise;
  if (!v) fail(key, fmt::format("is missing; expected a number in [{}, {}]", least, most));
  return checked_number(key, *v, least, most);
}

double JsonObject::number_or(const char* key, double most, double otherwise) const {
  const Json* v = find(key);
  const double x = v ? checked_number(key, *v, 0, most) : 0;
  return x == 0 ? otherwise : x;
}

double JsonObject::checked_number(const char* key, const Json& v, double least, double most) const {
  const double x = v.is_number() ? v.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(x >= least && x <= most))  // not so for NaN
    fail(key, fmt::format("is {}, expected a number in [{}, {}]", said(v), least, most));
  return x;
}

bool JsonObject::boolean(const char* key, bool otherwise) const {
  const Json* v = find(key);
  if (!v) return otherwise;
  if (!v->is_boolean()) fail(key, fmt::format("is {}, expected true or false", said(*v)));
  return v->get<bool>();
}

std::string JsonObject::string(const char* key, const std::string& otherwise) const {
  const Json* v = find(key);
  if (!v) return otherwise;
  if (!v->is_string()) fail(key, fmt::format("is {}, expected a string", said(*v)));
  return v->get<std::string>();
}

bool JsonObject::is(const char* key, const char* text) const {
  const Json* v = find(key);
  return v && v->is_string() && *v == text;
}

std::pair<double, double> JsonObject::limits(const char* key,
                                             std::pair<double, double> otherwise) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Json* v = list(key, 2);
  if (!v) return otherwise;
  const auto limit = [&](const Json& x) {
    static const Json infinity = {{"__float__", "Infinity"}};
    return x == infinity ? kInfinity : checked_number(key, x, 0, kInfinity);
  };
  const double least = limit((*v)[0]), most = limit((*v)[1]);
  if (least > most) fail(key, fmt::format("has its least {} above its most {}", least, most));
  return {least, most};
}

std::vector<std::int64_t> JsonObject::tokens(const char* key) const {
  const Json* v = find(key);
  std::vector<std::int64_t> ids;
  if (!v) return ids;
  if (!v->is_array()) return {checked_integer(key, *v, -1, kMostTokenId)};
  for (const Json& id : *v) ids.push_back(checked_integer(key, id, -1, kMostTokenId));
  return ids;
}

const Json* JsonObject::list(const char* key, std::int64_t n) const {
  const Json* v = find(key);
  if (!v) return nullptr;
  if (!v->is_array() || static_cast<std::int64_t>(v->size()) != n)
    fail(key, v->is_array() ? fmt::format("has {} entries, expected {}", v->size(), n)
                            : fmt::format("is {}, expected a list of {}", said(*v), n));
  return v;
}

std::vector<double> JsonObject::numbers(const char* key, std::int64_t n, double least,
                                        double most) const {
  const Json* v = list(key, n);
  if (!v) fail(key, fmt::format("is missing; expected a list of {} numbers", n));
  std::vector<double> out;
  for (const Json& x : *v) out.push_back(checked_number(key, x, least, most));
  return out;
}

std::optional<std::vector<std::string>> JsonObject::strings(const char* key, std::int64_t n) const {
  const Json* v = list(key, n);
  if (!v) return std::nullopt;
  std::vector<std::string> out;
  for (const Json& x : *v) {
    if (!x.is_string()) fail(key, fmt::format("holds {}, expected strings", said(x)));
    out.push_back(x.get<std::string>());
  }
  return out;
}

std::optional<std::vector<std::int64_t>> JsonObject::integers(const char* key, std::int64_t n,
                                                              std::int64_t least,
                                                              std::int64_t most) const {
  const Json* v = list(key, n);
  if (!v) return std::nullopt;
  std::vector<std::int64_t> out;
  for (const Json& x : *v) out.push_back(checked_integer(key, x, least, most));
  return out;
}

void JsonObject::fail(const std::string& key, const std::string& what) const {
  throw FileError(key.empty() ? fmt::format("{}: {}", file_, what)
                              : fmt::format("{}: {}{} {}", file_, prefix_, key, what));
}

void JsonObject::unsupported(const std::string& key, const std::string& name,
                             const std::string& supported) const {
  fail(key,
       fmt::format("= \"{}\" is not supported; supported are: {}", printable(name), supported));
}

}  // namespace episodic
