// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// JSON that came from outside: the one place where the library and its programs parse any. Deep
/// nesting, endless lists and repeated keys are errors, found before the tree they describe is
/// made: code that walks a tree may recurse, and what a message repeats fits on its line.

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace episodic {

struct JsonLimits {
  int depth = 16;
  std::size_t array_length = 1 << 20;  ///< entries of one list
  std::size_t keys = 1 << 20;          ///< of one object
  std::size_t bytes = std::size_t{256} << 20;
  /// For large tables that are known to have none: looking for them takes time.
  bool repeated_keys = false;
  /// Takes the NaN, Infinity and -Infinity that Python's json writes, as the numbers they are.
  bool python_numbers = false;
  const char* remedy = "fetch the file again";
};

/// \param label path of the file, for messages \throws FileError
nlohmann::json parse_strict(std::string_view text, std::string_view label,
                            const JsonLimits& limits);

/// The same of an object with very many entries: each is handed over when it has been read, and
/// kept by nobody here. Repeated keys are the caller's to find.
/// \throws FileError also where the text is no object
void parse_entries(std::string_view text, std::string_view label, const JsonLimits& limits,
                   const std::function<void(const std::string& key, nlohmann::json& value)>& entry);

/// The same with the order of keys kept, for what people will read. An object may have a few
/// thousand keys at most, whatever the limits say: a key is found by looking at all before it.
nlohmann::ordered_json parse_ordered(std::string_view text, std::string_view label,
                                     JsonLimits limits);

/// Empties a tree when the scope ends. Its destructor alone takes memory for each list and object
/// that holds something, and ends the process where there is none.
class JsonGuard {
 public:
  explicit JsonGuard(nlohmann::json& tree) : tree_(tree) {}
  JsonGuard(const JsonGuard&) = delete;
  JsonGuard& operator=(const JsonGuard&) = delete;
  ~JsonGuard();

 private:
  nlohmann::json& tree_;
};

/// Text from a file, fit for a one-line message: what no terminal should be sent is replaced, long
/// texts are cut.
std::string printable(std::string_view text, std::size_t longest = 160);

/// A value of parsed JSON, fit for a one-line message.
std::string printable_value(const nlohmann::json& value);
std::string printable_value(const nlohmann::ordered_json& value);

/// A string as JSON writes it, with its quotation marks; bytes that are not UTF-8 are replaced.
std::string json_string(std::string_view text);

}  // namespace episodic
