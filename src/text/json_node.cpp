// SPDX-License-Identifier: Apache-2.0
#include "json_node.hpp"

#include <fmt/format.h>

#include <fstream>

#include "episodic/base/error.hpp"

namespace episodic::text {
namespace {
const nlohmann::json kNull;
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!json_->is_object()) fail("must be an object");
  const auto it = json_->find(key);
  return {*this, key_.empty() ? key : key_ + "." + key, it == json_->end() ? kNull : *it};
}

JsonNode JsonNode::at(std::size_t index) const {
  if (!json_->is_array()) fail("must be an array");
  return {*this, fmt::format("{}[{}]", key_, index), (*json_)[index]};
}

std::size_t JsonNode::size() const {
  if (!json_->is_array() && !json_->is_object()) fail("must be an array or an object");
  return json_->size();
}

const std::string& JsonNode::str() const {
  if (!json_->is_string()) fail("must be a string");
  return json_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!json_->is_boolean()) fail("must be true or false");
  return json_->get<bool>();
}

std::int64_t JsonNode::index(std::int64_t limit) const {
  if (!json_->is_number_unsigned() ||
      json_->get<std::uint64_t>() >= static_cast<std::uint64_t>(limit))
    fail(fmt::format("must be an integer from 0 to {}", limit - 1));
  return json_->get<std::int64_t>();
}

void JsonNode::fail(const std::string& what) const {
  throw FileError(fmt::format("{}: {}{}{}", file_, key_, key_.empty() ? "" : ": ", what));
}

nlohmann::json parse_json_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw FileError(fmt::format("{}: cannot be opened", file.string()));
  try {
    return nlohmann::json::parse(in);
  } catch (const nlohmann::json::exception& e) {
    throw FileError(fmt::format("{}: is not valid JSON ({})", file.string(), e.what()));
  }
}

}  // namespace episodic::text
