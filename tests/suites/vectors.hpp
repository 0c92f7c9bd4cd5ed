// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files of the folder of test material, as the suites' tests read them.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/shared.hpp"

namespace suite_vectors {

using Json = nlohmann::ordered_json;

inline std::filesystem::path data_dir() { return *shared_dir() / "data"; }

inline bool have(const std::string& name) {
  return shared_dir() && std::filesystem::exists(data_dir() / name);
}

inline Json json_of(const std::string& name) {
  std::ifstream in(data_dir() / name);
  if (!in) throw std::runtime_error(name + " cannot be read");
  return Json::parse(in);
}

inline std::vector<Json> rows_of(const std::string& name) {
  std::ifstream in(data_dir() / name);
  if (!in) throw std::runtime_error(name + " cannot be read");
  std::vector<Json> rows;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) rows.push_back(Json::parse(line));
  return rows;
}

}  // namespace suite_vectors
