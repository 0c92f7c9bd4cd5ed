// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Files of one JSON object a line, read so that whatever is wrong is named by file, line and
/// field.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::suites {

using Json = nlohmann::ordered_json;

/// An object and where it stands.
class Row {
 public:
  Row(std::filesystem::path path, std::int64_t line, Json object);

  bool has(std::string_view field) const;
  /// The first of the fields that is there, null if none is.
  const Json* find(std::initializer_list<std::string_view> fields) const;

  // \throws FileError naming file, line and field where it is missing or of another type
  const Json& at(std::string_view field) const;
  std::string text(std::string_view field) const;
  std::int64_t integer(std::string_view field) const;
  /// A list of strings; null is the empty list.
  std::vector<std::string> texts(std::string_view field) const;
  /// A string, or a number as it is written.
  std::string id(std::string_view field) const;

  const Json& object() const { return object_; }
  std::int64_t line() const { return line_; }
  /// "file:line: what". \throws FileError always
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::filesystem::path path_;
  std::int64_t line_;
  Json object_;
};

/// All rows; empty lines are passed over. \param path "-" is stdin
/// \throws FileError naming file and line, of a line that is no JSON object too (two objects glued
///   together, for one, as in a released file), is nested too deep or names a field twice
std::vector<Row> read_rows(const std::filesystem::path& path);

/// Compact JSON on one line; bytes that are no UTF-8 become U+FFFD.
std::string to_line(const Json& json);

}  // namespace episodic::suites
