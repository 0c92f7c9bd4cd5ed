// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A JSON value that knows where it stands, so that every complaint names file and key.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/strict_json.hpp"

namespace episodic::text {

/// View of a value inside a parsed file; the file's `nlohmann::json` must outlive it.
class JsonNode {
 public:
  JsonNode(const std::filesystem::path& file, const nlohmann::json& json)
      : file_(file.string()), json_(&json) {}

  /// The value of a key; a missing key is a null node. \throws FileError if this is no object
  JsonNode at(const std::string& key) const;
  /// Element of an array. \throws FileError if this is no array; index < size()
  JsonNode at(std::size_t index) const;

  bool null() const { return json_->is_null(); }
  bool is_object() const { return json_->is_object(); }
  /// Number of elements. \throws FileError if this is neither array nor object
  std::size_t size() const;

  /// \throws FileError if the value is of another type
  const std::string& str() const;
  bool boolean() const;
  /// The value, or `otherwise` if there is none.
  bool boolean(bool otherwise) const { return null() ? otherwise : boolean(); }
  /// An integer in [0, limit). \throws FileError
  std::int64_t index(std::int64_t limit) const;

  const nlohmann::json& json() const { return *json_; }

  /// \throws FileError "<file>: <key>: <what>"
  [[noreturn]] void fail(const std::string& what) const;

 private:
  JsonNode(const JsonNode& parent, std::string key, const nlohmann::json& json)
      : file_(parent.file_), key_(std::move(key)), json_(&json) {}

  std::string file_, key_;
  const nlohmann::json* json_;
};

/// What a tokenizer's JSON may be. Deeper than sequences of sequences may be (kMaxNesting, two
/// levels each). Vocabularies are large; of a key that stands twice the last one counts, as for
/// Hugging Face.
inline constexpr JsonLimits kTokenizerJson{.depth = 64,
                                           .array_length = std::size_t{1} << 22,
                                           .keys = std::size_t{1} << 22,
                                           .repeated_keys = true};

/// Parses a file. \throws FileError
nlohmann::json parse_json_file(const std::filesystem::path& file);

}  // namespace episodic::text
