// SPDX-License-Identifier: Apache-2.0
// Links the model room, without torch, and meets the library's exception across both.
#include <filesystem>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/episodic_attention.hpp"

int main() {
  auto memory = std::make_shared<episodic::EpisodicMemory>(
      episodic::parse_memory_config(R"({"n_init": 1, "n_local": 8, "n_mem": 8, "chunk": 4})"),
      episodic::MemoryShape{1, 2, 1, 4, episodic::plain_rotary(4, 10000.0)});
  episodic::EpisodicAttention attention(memory, 0);
  memory->begin_step(3);
  const std::vector<float> q(3 * 2 * 4, 1.0f), k(3 * 4, 1.0f), v(3 * 4, 2.5f);
  std::vector<float> out(q.size());
  using episodic::DType, episodic::TensorView, episodic::MutableTensorView;
  attention.forward(TensorView(q.data(), DType::float32, {3, 2, 4}),
                    TensorView(k.data(), DType::float32, {3, 1, 4}),
                    TensorView(v.data(), DType::float32, {3, 1, 4}),
                    MutableTensorView(out.data(), DType::float32, {3, 2, 4}));
  for (const float x : out)
    if (x < 2.499f || x > 2.501f) return 1;  // an average of equal values
  try {
    episodic::Decoder::load("no_such_model");
  } catch (const episodic::Error& error) {
    return std::string(error.what()).find("no_such_model") == std::string::npos;
  }
  return 1;
}
