// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/training/epman.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

/// A field's text. \throws FileError naming the place
std::string text_of(const Json& object, const char* field, const std::string& place) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string() || it->get_ref<const std::string&>().empty())
    throw FileError(fmt::format("{}: \"{}\" must be a text that is not empty", place, field));
  return it->get<std::string>();
}

EpmanExample example_of(std::string_view line, const std::string& place) {
  Json object = parse_strict(line, place, {.remedy = "give one JSON object a line"});
  const JsonGuard guard(object);
  if (!object.is_object()) throw FileError(place + ": not a JSON object; give one a line");
  EpmanExample example;
  example.place = place;
  const auto entries = object.find("entries");
  if (entries == object.end() || !entries->is_array() || entries->empty())
    throw FileError(place + ": \"entries\" must be a list of texts that is not empty");
  for (const Json& one : *entries) {
    if (!one.is_string())
      throw FileError(
          fmt::format("{}: \"entries\" has {}, expected texts", place, printable_value(one)));
    example.entries.push_back(one.get<std::string>());
  }
  if (const auto evidence = object.find("evidence"); evidence != object.end()) {
    if (!evidence->is_array()) throw FileError(place + ": \"evidence\" must be a list of numbers");
    for (const Json& one : *evidence) {
      if (!one.is_number_integer() || one.get<std::int64_t>() < 0 ||
          one.get<std::int64_t>() >= static_cast<std::int64_t>(example.entries.size()))
        throw FileError(fmt::format("{}: \"evidence\" has {}, expected numbers of entries, 0 to {}",
                                    place, printable_value(one), example.entries.size() - 1));
      example.evidence.push_back(one.get<std::int64_t>());
    }
  }
  example.question = text_of(object, "question", place);
  example.answer = text_of(object, "answer", place);
  return example;
}

}  // namespace

std::vector<EpmanExample> read_epman_examples(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  std::vector<EpmanExample> examples;
  std::int64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    examples.push_back(example_of(line, fmt::format("{}:{}", path.string(), number)));
  }
  if (examples.empty())
    throw FileError(fmt::format(
        "{}: holds no example; give a JSON object with entries, question and answer a line",
        path.string()));
  return examples;
}

}  // namespace episodic
