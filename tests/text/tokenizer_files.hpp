// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokenizers written to a folder of their own, as load_tokenizer wants them.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "episodic/text/tokenizer.hpp"
#include "support/temp_dir.hpp"

namespace episodic::test {

using Json = nlohmann::json;

inline std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Loads tokenizer.json (and tokenizer_config.json, unless null) given as JSON.
inline std::unique_ptr<Tokenizer> load(const Json& tokenizer, const Json& config = nullptr) {
  const TempDir dir;
  dir.write("tokenizer.json", tokenizer.dump());
  if (!config.is_null()) dir.write("tokenizer_config.json", config.dump());
  return load_tokenizer(dir.path());
}

inline const Json& vectors() {
  static const Json v = Json::parse(
      read_file(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors/tokenizers.json"));
  return v;
}

/// tokenizer.json of one kind of the vectors.
inline Json tokenizer_of(const Json& kind) {
  Json tokenizer = kind["tokenizer"];
  tokenizer["model"] = vectors()["models"][kind["model"].get<std::string>()];
  tokenizer["model"].update(kind["change"]);
  return tokenizer;
}

inline Json tokenizer_named(const std::string& name) {
  for (const Json& kind : vectors()["kinds"])
    if (kind["name"] == name) return tokenizer_of(kind);
  throw std::out_of_range(name);
}

}  // namespace episodic::test
