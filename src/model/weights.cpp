// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <system_error>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"
#include "other_formats.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// A shard's name comes from the index file: it must be a plain file name in the same directory.
void check_shard_name(const std::string& name, const fs::path& index) {
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain)
    throw FileError(
        fmt::format("{}: the shard name '{}' is not a plain file name; shards must lie "
                    "beside the index",
                    index.string(), printable(name)));
}

/// tensor -> shard
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const MappedFile file(index);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  const Json root = parse_strict(text, index.string(), {});
  const auto it = root.is_object() ? root.find("weight_map") : root.end();
  if (!root.is_object() || it == root.end() || !it->is_object())
    throw FileError(
        fmt::format("{}: has no \"weight_map\" object; fetch the file again", index.string()));
  std::map<std::string, std::string> map;
  for (const auto& [tensor, shard] : it->items()) {
    if (!shard.is_string())
      throw FileError(fmt::format("{}: weight_map '{}' is not a file name; fetch the file again",
                                  index.string(), printable(tensor)));
    check_shard_name(shard.get_ref<const std::string&>(), index);
    map.emplace(tensor, shard.get<std::string>());
  }
  return map;
}

}  // namespace

Weights::Weights(const fs::path& dir) {
  std::error_code ignored;
  const fs::path single = dir / "model.safetensors", index = dir / "model.safetensors.index.json";
  if (fs::exists(single, ignored)) {
    listing_ = single;
    files_.emplace_back(single);
    for (const StoredTensor& t : files_[0].tensors()) places_.emplace(t.name, Place{0, &t});
    return;
  }
  if (!fs::exists(index, ignored)) {
    const std::string found = found_instead(dir);
    throw FileError(fmt::format(
        "{}: holds neither model.safetensors nor model.safetensors.index.json; {}", dir.string(),
        found.empty() ? "give the directory of a model in safetensors format" : found));
  }
  listing_ = index;
  const auto map = read_weight_map(index);
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, shard] : map) {
    if (!opened.emplace(shard, files_.size()).second) continue;
    if (!fs::exists(dir / shard, ignored))
      throw FileError(fmt::format("{}: is not there, but {} lists it; fetch all parts of the model",
                                  (dir / shard).string(), index.filename().string()));
    files_.emplace_back(dir / shard);
  }
  for (const auto& [tensor, shard] : map) {
    const std::size_t file = opened.at(shard);
    const StoredTensor* view = files_[file].find(tensor);
    if (!view)
      throw FileError(
          fmt::format("{}: has no tensor '{}', which {} promises there; fetch both again",
                      files_[file].path().string(), printable(tensor), index.filename().string()));
    places_.emplace(tensor, Place{file, view});
  }
  // what a part holds beyond the list is the model's too
  for (std::size_t file = 0; file < files_.size(); ++file)
    for (const StoredTensor& t : files_[file].tensors()) places_.emplace(t.name, Place{file, &t});
}

const StoredTensor* Weights::find(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? nullptr : it->second.view;
}

const StoredTensor& Weights::at(std::string_view name) const {
  if (const StoredTensor* view = find(name)) return *view;
  throw FileError(
      fmt::format("{}: has no tensor '{}', which config.json calls for; weights and "
                  "config.json must be of one model",
                  listing_.string(), name));
}

fs::path Weights::file_of(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? listing_ : files_[it->second.file].path();
}

std::vector<const StoredTensor*> Weights::tensors() const {
  std::vector<const StoredTensor*> all;
  for (const auto& [name, place] : places_) all.push_back(place.view);
  return all;
}

}  // namespace episodic
