// SPDX-License-Identifier: Apache-2.0
#include "data/jsonl.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"

namespace episodic::suites {

Field Field::at(const char* name) const {
  const std::string path = path_.empty() ? name : fmt::format("{}.{}", path_, name);
  if (!value_->is_object()) fail("must be an object");
  const auto found = value_->find(name);
  if (found == value_->end()) Field(*value_, where_, path).fail("is missing");
  return {*found, where_, path};
}

Field Field::at(std::size_t i) const {
  if (i >= size()) fail(fmt::format("has no entry {}", i));
  return {(*value_)[i], where_, fmt::format("{}[{}]", path_, i)};
}

std::size_t Field::size() const {
  if (!value_->is_array()) fail("must be a list");
  return value_->size();
}

const std::string& Field::text() const {
  if (!value_->is_string()) fail("must be a string");
  return value_->get_ref<const std::string&>();
}

std::int64_t Field::integer() const {
  if (!value_->is_number_integer()) fail("must be an integer");
  return value_->get<std::int64_t>();
}

void Field::fail(const std::string& what) const {
  throw FileError(path_.empty() ? fmt::format("{}: {}", where_, what)
                                : fmt::format("{}: \"{}\" {}", where_, path_, what));
}

Row::Row(std::filesystem::path path, std::int64_t number, bool in_list, Json object)
    : path_(std::move(path)), number_(number), in_list_(in_list), object_(std::move(object)) {}

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

const Json& Row::list(std::string_view field) const {
  const Json& value = at(field);
  if (!value.is_array()) fail(fmt::format("\"{}\" must be a list", field));
  return value;
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

Field Row::field() const {
  return {object_, in_list_ ? fmt::format("{}: {}", path_.string(), place())
                            : fmt::format("{}:{}", path_.string(), number_)};
}

std::string Row::place() const {
  return fmt::format("{} {}", in_list_ ? "entry" : "line", number_);
}

void Row::fail(const std::string& what) const {
  throw FileError(in_list_ ? fmt::format("{}: {}: {}", path_.string(), place(), what)
                           : fmt::format("{}:{}: {}", path_.string(), number_, what));
}

namespace {

constexpr const char* kBlanks = " \t\r\n";

/// Where a JSON object that begins at `at` ends, by its braces alone; npos if the text ends first.
std::size_t end_of_object(std::string_view text, std::size_t at) {
  std::int64_t open = 0;
  for (bool quoted = false; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\')
        ++at;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++open;
    } else if ((c == '}' || c == ']') && --open == 0) {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

/// Whether the text is a list whose first entry is an object. Other lists are no rows of either
/// kind, and are refused as lines.
bool is_list(std::string_view text) {
  const std::size_t open = text.find_first_not_of(kBlanks);
  if (open == std::string_view::npos || text[open] != '[') return false;
  const std::size_t first = text.find_first_not_of(kBlanks, open + 1);
  return first != std::string_view::npos && text[first] == '{';
}

/// Large files are lists of a few hundred objects: no tree is made of more than one of them.
std::vector<Row> rows_of_list(std::string_view text, const std::filesystem::path& path) {
  std::vector<Row> rows;
  const auto fail = [&](const char* what) {
    throw FileError(fmt::format("{}: {} after entry {}; fetch the file again", path.string(), what,
                                rows.size()));
  };
  std::size_t at = text.find('[') + 1;
  while (true) {
    at = text.find_first_not_of(kBlanks, at);
    if (at == std::string_view::npos) fail("the list ends too early");
    const auto number = static_cast<std::int64_t>(rows.size()) + 1;
    if (text[at] != '{') Row(path, number, true, {}).fail("not a JSON object");
    const std::size_t end = end_of_object(text, at);
    if (end == std::string_view::npos) fail("the list ends too early");
    rows.emplace_back(path, number, true,
                      parse_ordered(text.substr(at, end - at),
                                    fmt::format("{}: entry {}", path.string(), number), {}));
    at = text.find_first_not_of(kBlanks, end);
    if (at == std::string_view::npos) fail("the list ends too early");
    if (text[at] == ']') break;
    if (text[at] != ',') fail("there is no comma");
    ++at;
  }
  if (text.find_first_not_of(kBlanks, at + 1) != std::string_view::npos)
    fail("there is something behind the list");
  return rows;
}

}  // namespace

std::vector<Row> read_rows(const std::filesystem::path& path) {
  const std::string text = tools::read_text(path);
  if (is_list(text)) return rows_of_list(text, path);
  std::vector<Row> rows;
  std::int64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Row here(path, number, false, {});
    Json object = parse_ordered(line, fmt::format("{}:{}", path.string(), number),
                                {.remedy = "give one JSON object a line"});
    if (!object.is_object()) here.fail("not a JSON object; give one a line");
    rows.emplace_back(path, number, false, std::move(object));
  }
  return rows;
}

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace episodic::suites
