// SPDX-License-Identifier: Apache-2.0
#include "float32_model.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <vector>

#include "episodic/model/safetensors.hpp"

namespace program {

namespace fs = std::filesystem;

fs::path float32_copy(const fs::path& from, const fs::path& to) {
  fs::create_directory(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from))
    if (entry.path().extension() == ".json")
      fs::copy_file(entry.path(), to / entry.path().filename());
  const episodic::SafetensorsFile file(from / "model.safetensors");
  std::vector<std::vector<float>> values;
  std::vector<episodic::TensorToWrite> tensors;
  for (const episodic::StoredTensor& t : file.tensors()) {
    std::vector<std::uint16_t> stored(static_cast<std::size_t>(t.elements()));
    std::memcpy(stored.data(), t.data, static_cast<std::size_t>(t.bytes));
    std::vector<float>& wide = values.emplace_back();
    for (const std::uint16_t x : stored)
      wide.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16));
    tensors.push_back({t.name, episodic::TensorType::f32, t.shape, wide.data()});
  }
  episodic::write_safetensors(to / "model.safetensors", tensors);
  return to;
}

}  // namespace program
