// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading the keys of one JSON object of a configuration file, each with its range checked.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace episodic {

/// Null counts as absent, as Hugging Face has it, but where a reader asks for `null`.
class JsonObject {
 public:
  using Json = nlohmann::json;

  /// \param file for messages \param prefix of keys in messages, with its dot
  /// \throws FileError if it is no object
  JsonObject(const Json& object, std::string file, std::string prefix = "");

  bool has(const char* key) const { return find(key) != nullptr; }
  bool null(const char* key) const;  ///< present, and null
  std::optional<JsonObject> object(const char* key) const;
  bool empty() const { return object_->empty(); }
  /// The same with the keys of another object added or replaced.
  JsonObject changed_by(const JsonObject& other) const;

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const;
  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most,
                       std::int64_t otherwise) const;
  /// A finite number above 0; without `otherwise` the key must be there.
  double positive(const char* key, std::optional<double> otherwise = std::nullopt) const;
  /// A number of [least, most]; without `otherwise` the key must be there.
  double number(const char* key, double least, double most,
                std::optional<double> otherwise = std::nullopt) const;
  /// A number in [0, most], where Python's `x or otherwise` is meant: 0 is as if it were absent.
  double number_or(const char* key, double most, double otherwise) const;
  bool boolean(const char* key, bool otherwise) const;
  std::string string(const char* key, const std::string& otherwise) const;
  /// Whether it is this string.
  bool is(const char* key, const char* text) const;
  /// The least and the most of a number that is not below 0: a list of both. Infinity may be spelt
  /// {"__float__": "Infinity"}, as transformers 5 does.
  std::pair<double, double> limits(const char* key, std::pair<double, double> otherwise) const;
  /// One token id or a list of them.
  std::vector<std::int64_t> tokens(const char* key) const;
  /// A list of exactly n numbers in [least, most].
  std::vector<double> numbers(const char* key, std::int64_t n, double least, double most) const;
  /// A list of exactly n strings; nothing if the key is absent.
  std::optional<std::vector<std::string>> strings(const char* key, std::int64_t n) const;
  /// A list of exactly n integers in [least, most]; nothing if the key is absent.
  std::optional<std::vector<std::int64_t>> integers(const char* key, std::int64_t n,
                                                    std::int64_t least, std::int64_t most) const;

  [[noreturn]] void fail(const std::string& key, const std::string& what) const;
  /// "= "name" is not supported; supported are: a, b" for key
  [[noreturn]] void unsupported(const std::string& key, const std::string& name,
                                const std::string& supported) const;

 private:
  const Json* find(const char* key) const;
  std::int64_t checked_integer(const char* key, const Json& v, std::int64_t least,
                               std::int64_t most) const;
  double checked_number(const char* key, const Json& v, double least, double most) const;
  const Json* list(const char* key, std::int64_t n) const;

  const Json* object_;
  std::shared_ptr<const Json> own_;  // of an object that stands in no file as it is
  std::string file_, prefix_;
};

}  // namespace episodic
