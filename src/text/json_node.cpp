// SPDX-License-Identifier: Apache-2.0
#include "json_node.hpp"

#include <fmt/format.h>

#include <span>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"

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
  throw FileError(fmt::format("{}: {}{}{}", file_, printable(key_), key_.empty() ? "" : ": ",
                              printable(what, 400)));
}

nlohmann::json parse_json_file(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  const std::span<const std::byte> bytes = mapped.bytes();
  return parse_strict({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string(),
                      kTokenizerJson);
}

}  // namespace episodic::text
