// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Files of one JSON object a line, or of one list of objects, read so that whatever is wrong is
/// named by file, line or entry, and field.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::suites {

using Json = nlohmann::ordered_json;

/// A value inside a file, which errors name by its path: `data[2].paragraphs[0].context`.
class Field {
 public:
  /// \param where the file, and the line or entry that the value is of
  Field(const Json& value, std::string where, std::string path = "")
      : value_(&value), where_(std::move(where)), path_(std::move(path)) {}
  bool has(const char* name) const { return value_->is_object() && value_->contains(name); }
  // \throws FileError naming file and field where it is missing or of another type
  Field at(const char* name) const;
  Field at(std::size_t i) const;
  std::size_t size() const;  ///< of a list
  const std::string& text() const;
  std::int64_t integer() const;
  const Json& json() const { return *value_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const Json* value_;
  std::string where_, path_;
};

/// An object and where it stands.
class Row {
 public:
  /// \param number of its line, or of its place in a list
  Row(std::filesystem::path path, std::int64_t number, bool in_list, Json object);

  bool has(std::string_view field) const;
  /// The first of the fields that is there, null if none is.
  const Json* find(std::initializer_list<std::string_view> fields) const;

  // \throws FileError naming file, line and field where it is missing or of another type
  const Json& at(std::string_view field) const;
  std::string text(std::string_view field) const;
  std::int64_t integer(std::string_view field) const;
  const Json& list(std::string_view field) const;
  /// A list of strings; null is the empty list.
  std::vector<std::string> texts(std::string_view field) const;
  /// A string, or a number as it is written.
  std::string id(std::string_view field) const;

  const Json& object() const { return object_; }
  /// The same for what lies deeper. Lives as long as the row does.
  Field field() const;
  std::int64_t number() const { return number_; }
  /// "line 3" or "entry 3".
  std::string place() const;
  /// "file:line: what", or "file: entry 3: what". \throws FileError always
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::filesystem::path path_;
  std::int64_t number_;
  bool in_list_;
  Json object_;
};

/// All rows; empty lines are passed over. A file that begins with "[{" is one list of objects, each
/// of which is parsed by itself. \param path "-" is stdin
/// \throws FileError naming file and line or entry, of a line that is no JSON object too (two
/// objects
///   glued together, for one, as in a released file), is nested too deep or names a field twice,
///   and of a list that ends too early
std::vector<Row> read_rows(const std::filesystem::path& path);

/// Compact JSON on one line; bytes that are no UTF-8 become U+FFFD.
std::string to_line(const Json& json);

}  // namespace episodic::suites
