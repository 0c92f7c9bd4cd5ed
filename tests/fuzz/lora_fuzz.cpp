// SPDX-License-Identifier: Apache-2.0
// An adapter's two files. The input is adapter_config.json, a line feed, and the header of
// adapter_model.safetensors; behind it lie ones, as many as the largest valid adapter has.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "folder.hpp"
#include "model/tiny_adapter.hpp"

using namespace episodic;

namespace {

TinyShape tiny() {
  TinyShape shape;
  shape.vocab = 7;
  shape.hidden = 4;
  shape.inner = 6;
  shape.layers = 1;
  shape.heads = 2;
  shape.kv_heads = 1;
  shape.dim = 2;
  return shape;
}

struct Model {
  Model() {
    std::filesystem::create_directories(folder.path() / "model");
    std::filesystem::create_directories(folder.path() / "adapter");
    TinyLlama(tiny(), 1).write(folder.path() / "model");
    opened = open_model(folder.path() / "model");
  }
  fuzz::Folder folder;
  OpenModel opened;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Model model;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(input.find('\n'), input.size());
  const std::string header = input.substr(std::min(input.size(), end + 1));
  const std::uint64_t length = header.size();
  std::string tensors(8, '\0');
  std::memcpy(tensors.data(), &length, 8);
  const std::vector<float> ones(64, 1.0f);
  tensors += header;
  tensors.append(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float));
  const std::filesystem::path dir = model.folder.path() / "adapter";
  std::ofstream(dir / "adapter_config.json", std::ios::binary) << input.substr(0, end);
  std::ofstream(dir / "adapter_model.safetensors", std::ios::binary) << tensors;
  try {
    const auto adapter = LoraAdapter::load(dir, model.opened);
    float sum = 0;  // every factor lies where it says
    for (const LoraProduct& p : adapter->products()) {
      for (std::int64_t i = 0; i < p.rank * p.in; ++i) sum += p.a[i];
      for (std::int64_t i = 0; i < p.rank * p.out; ++i) sum += p.b[i];
    }
    if (!std::isfinite(sum)) std::abort();
    OpenModel merged = model.opened;
    merge_lora(merged, std::vector<AppliedLora>{{adapter, 1.0}});
  } catch (const Error&) {
  }
  return 0;
}

namespace fuzz {

void repair(std::string& /*input*/) {}

std::vector<std::string> seeds() {
  const TinyAdapter adapter(tiny());
  nlohmann::json header;
  std::size_t at = 0;
  for (const auto& [name, f] : adapter.factors) {
    const std::size_t bytes = f.numbers.size() * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", f.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  nlohmann::json rich = adapter.config;
  rich["use_rslora"] = true;
  rich["rank_pattern"] = {{"down_proj", 2}};
  rich["alpha_pattern"] = {{"q_proj", 3.5}};
  rich["layers_to_transform"] = {0};
  rich["init_lora_weights"] = "gaussian";
  return {adapter.config.dump() + "\n" + header.dump(), rich.dump() + "\n" + header.dump()};
}

}  // namespace fuzz
