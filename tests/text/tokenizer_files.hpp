// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokenizers written to a folder of their own, as load_tokenizer wants them.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "episodic/text/tokenizer.hpp"

namespace episodic::test {

using Json = nlohmann::json;

class TempDir {
 public:
  TempDir() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() /
            ("episodic_text_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path path_;
};

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
