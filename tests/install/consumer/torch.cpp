// SPDX-License-Identifier: Apache-2.0
// Links the adapters to torch's tensors and with them libtorch, and meets the library's exception
// across both.
#include <ATen/ATen.h>

#include <filesystem>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/episodic_attention.hpp"
#include "episodic/torch_slots/torch_slots.hpp"

int main() {
  auto memory = std::make_shared<episodic::EpisodicMemory>(
      episodic::parse_memory_config(R"({"n_init": 1, "n_local": 8, "n_mem": 8, "chunk": 4})"),
      episodic::MemoryShape{1, 2, 1, 4, episodic::plain_rotary(4, 10000.0)});
  episodic::EpisodicAttention attention(memory, 0);
  memory->begin_step(3);
  const at::Tensor out = episodic::attend(attention, at::ones({3, 2, 4}), at::ones({3, 1, 4}),
                                          at::full({3, 1, 4}, 2.5f));
  if (!at::allclose(out, at::full({3, 8}, 2.5f))) return 1;  // an average of equal values
  try {
    episodic::Decoder::load("no_such_model");
  } catch (const episodic::Error& error) {
    return std::string(error.what()).find("no_such_model") == std::string::npos;
  }
  return 1;
}
