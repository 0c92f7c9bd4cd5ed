// SPDX-License-Identifier: Apache-2.0
#include "data/jsonl.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"

namespace episodic::suites {

Row::Row(std::filesystem::path path, std::int64_t line, Json object)
    : path_(std::move(path)), line_(line), object_(std::move(object)) {}

bool Row::has(std::string_view field) const { return object_.contains(field); }

const Json* Row::find(std::initializer_list<std::string_view> fields) const {
  for (const std::string_view field : fields)
    if (const auto found = object_.find(field); found != object_.end()) return &*found;
  return nullptr;
}

const Json& Row::at(std::string_view field) const {
  const auto found = object_.find(field);
  if (found == object_.end()) fail(fmt::format("the field \"{}\" is missing", field));
  return *found;
}

std::string Row::text(std::string_view field) const {
  const Json& value = at(field);
  if (!value.is_string()) fail(fmt::format("\"{}\" must be a string", field));
  return value.get<std::string>();
}

std::int64_t Row::integer(std::string_view field) const {
  const Json& value = at(field);
  if (!value.is_number_integer()) fail(fmt::format("\"{}\" must be an integer", field));
  return value.get<std::int64_t>();
}

std::vector<std::string> Row::texts(std::string_view field) const {
  const Json& value = at(field);
  std::vector<std::string> all;
  if (value.is_null()) return all;
  if (!value.is_array()) fail(fmt::format("\"{}\" must be a list of strings", field));
  for (const Json& one : value) {
    if (!one.is_string()) fail(fmt::format("\"{}\" must be a list of strings", field));
    all.push_back(one.get<std::string>());
  }
  return all;
}

std::string Row::id(std::string_view field) const {
  const Json& value = at(field);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_integer()) fail(fmt::format("\"{}\" must be a string or an integer", field));
  return value.dump();
}

void Row::fail(const std::string& what) const {
  throw FileError(fmt::format("{}:{}: {}", path_.string(), line_, what));
}

std::vector<Row> read_rows(const std::filesystem::path& path) {
  const std::string text = tools::read_text(path);
  std::vector<Row> rows;
  std::int64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Row here(path, number, {});
    Json object = parse_ordered(line, fmt::format("{}:{}", path.string(), number),
                                {.remedy = "give one JSON object a line"});
    if (!object.is_object()) here.fail("not a JSON object; give one a line");
    rows.emplace_back(path, number, std::move(object));
  }
  return rows;
}

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace episodic::suites
