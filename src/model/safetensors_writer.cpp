// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "atomic_file.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"

namespace episodic {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

std::uint64_t bytes_of(const TensorToWrite& t) {
  if (block_elements(t.type) != 1)
    throw DataError(
        fmt::format("write_safetensors: tensor '{}' is {}, which safetensors files "
                    "cannot hold; widen it first",
                    t.name, name_of(t.type)));
  std::uint64_t bytes = static_cast<std::uint64_t>(block_bytes(t.type));
  for (const std::int64_t d : t.shape)
    if (d < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(d), &bytes))
      throw DataError(
          fmt::format("write_safetensors: tensor '{}': a size of {} is out of range", t.name, d));
  return bytes;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& t : tensors) order.push_back(&t);
  // widest elements first: then every tensor starts at a multiple of its element size
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    if (block_bytes(a->type) != block_bytes(b->type))
      return block_bytes(a->type) > block_bytes(b->type);
    return a->name < b->name;
  });

  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite* t : order) {
    if (t->name == "__metadata__" || header.contains(t->name))
      throw DataError(
          fmt::format("write_safetensors: the name '{}' is {}; name the tensor otherwise", t->name,
                      t->name == "__metadata__" ? "reserved" : "used twice"));
    const std::uint64_t end = offset + bytes_of(*t);
    header[t->name] = {
        {"dtype", name_of(t->type)}, {"shape", t->shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    throw DataError(
        fmt::format("write_safetensors: names and metadata must be UTF-8 ({})", e.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts at a multiple of 8 bytes

  AtomicFile file(path);
  const std::uint64_t length = text.size();
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const TensorToWrite* t : order) file.write(t->data, bytes_of(*t));
  file.commit();
}

}  // namespace episodic
