// SPDX-License-Identifier: Apache-2.0
// How many launches a step of a decoder on the device is: the tables of docs/kernels.md.
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "episodic/device/device_decoder.hpp"
#include "kernels/device.hpp"
#include "model/tiny_llama.hpp"
#include "support/temp_dir.hpp"

#if defined(EPISODIC_EMULATED_CUDA)
namespace {

using namespace episodic;

/// Whether the documentation has this line, up to what it says behind it.
bool documented(const std::string& line) {
  std::ifstream file(std::string(EPISODIC_SOURCE_DIR) + "/docs/kernels.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find("\n" + line) != std::string::npos;
}

/// Launches of one step of n tokens behind `before` others. Attention is split over its keys, as
/// it is for one sequence of any real model.
std::int64_t launches(const TempDir& dir, const MemoryConfig* memory, std::size_t before,
                      std::size_t n) {
  DeviceDecoder model = DeviceDecoder::load(dir.path(), {std::nullopt, 0, false});
  if (memory)
    model.attach_memory(*memory, 700);
  else
    model.attend_fully(400, 40);
  const std::vector<std::int64_t> ids(40, 7);
  for (std::size_t done = 0; done < before; done += 40) model.step(ids);
  emulator::reset_calls();
  model.step(std::span(ids).first(n));
  return emulator::calls().launches;
}

struct Counted {
  std::int64_t each_layer, rest;
};

/// By the difference that a layer makes.
Counted count(bool biased, const MemoryConfig* memory, std::size_t before, std::size_t n) {
  std::int64_t of[2];
  for (const std::int64_t layers : {2, 3}) {
    TinyShape shape;
    shape.dim = 16;
    shape.hidden = 40;
    shape.inner = 48;  // as in any real model, rows of whole 16 bytes
    shape.layers = layers;
    shape.attention_bias = shape.mlp_bias = biased;
    shape.type = TensorType::bf16;
    const TempDir dir;
    TinyLlama(shape, 7).write(dir.path());
    of[layers - 2] = launches(dir, memory, before, n);
  }
  return {of[1] - of[0], of[0] - 2 * (of[1] - of[0])};
}

}  // namespace
#endif

TEST_CASE("a step of a decoder is as many launches as docs/kernels.md says") {
#if defined(EPISODIC_EMULATED_CUDA)
  MemoryConfig config = parse_memory_config(
      R"({"n_init": 3, "n_local": 300, "n_mem": 40, "chunk": 40, "min_block": 4, "max_block": 10,
          "refine": "modularity"})");
  struct Row {
    const char* name;
    const MemoryConfig* memory;
    std::size_t before, n;
  };
  for (const Row& row : {Row{"decode, full attention", nullptr, 40, 1},
                         Row{"prefill, full attention", nullptr, 40, 40},
                         Row{"decode, inside the window", &config, 40, 1},
                         Row{"prefill, inside the window", &config, 40, 40},
                         Row{"decode, with recall", &config, 480, 1},
                         Row{"prefill, with recall", &config, 480, 40}}) {
    const Counted c = count(false, row.memory, row.before, row.n);
    const std::string line = std::string("| ") + row.name + " | " + std::to_string(c.each_layer) +
                             " | " + std::to_string(c.rest) + " |";
    INFO(line);
    REQUIRE(documented(line));
    // Biases of q, k and v are a launch more where the products are cuBLAS's.
    const Counted biased = count(true, row.memory, row.before, row.n);
    REQUIRE(biased.each_layer == c.each_layer + (row.n > 1));
    REQUIRE(biased.rest == c.rest);
  }
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}
