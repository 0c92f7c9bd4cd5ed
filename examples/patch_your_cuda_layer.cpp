// SPDX-License-Identifier: Apache-2.0
// A decoder of your own on a CUDA device, in bfloat16 (random weights, no feed-forward): its slots
// hold attention through a memory on that device. Nothing comes back to the host but what is
// printed.
#include <ATen/ATen.h>

#include <cstdio>

#include "episodic/device_torch/device_attention.hpp"

constexpr std::int64_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 32, kHidden = 128, kVocab = 64;
constexpr std::int64_t kChunk = 64, kTokens = 6400;

struct YourDecoder {
  at::TensorOptions on = at::dtype(at::kBFloat16).device(at::kCUDA);
  at::Tensor embedding = at::randn({kVocab, kHidden}, on);
  // q, k and v in one projection: the memory reads the parts of its rows where they lie
  at::Tensor qkv = at::randn({kLayers, kHidden, (kHeads + 2 * kKvHeads) * kDim}, on) / 16;
  at::Tensor o = at::randn({kLayers, kHeads* kDim, kHidden}, on) / 16;
  std::vector<std::shared_ptr<episodic::AttentionSlot>> slots{kLayers};

  /// ids [n] and logits [n, vocab] on the device
  at::Tensor forward(const at::Tensor& ids) {
    const auto n = ids.numel();
    at::Tensor x = embedding.index_select(0, ids);
    for (std::int64_t l = 0; l < kLayers; ++l) {
      const at::Tensor rows =
          at::layer_norm(x, {kHidden}).matmul(qkv[l]).view({n, kHeads + 2 * kKvHeads, kDim});
      const auto parts = rows.split_with_sizes({kHeads, kKvHeads, kKvHeads}, 1);
      x = x + episodic::attend(*slots[l], parts[0], parts[1], parts[2]).matmul(o[l]);
    }
    return at::layer_norm(x, {kHidden}).matmul(embedding.t());
  }
};

int main() {
  if (!at::hasCUDA()) {
    std::printf("no CUDA device, or a libtorch without CUDA\n");
    return 0;
  }
  YourDecoder decoder;
  const episodic::MemoryConfig config{.n_init = 4, .n_local = 128, .n_mem = 64, .chunk = kChunk};
  const auto memory = std::make_shared<episodic::TorchDeviceMemory>(
      config,
      episodic::MemoryShape{kLayers, kHeads, kKvHeads, kDim, episodic::plain_rotary(kDim, 10000.0)},
      episodic::DeviceMemoryOptions{episodic::DType::bfloat16, kTokens}, at::kCUDA);
  for (std::int64_t l = 0; l < kLayers; ++l)
    decoder.slots[l] = std::make_shared<episodic::DeviceAttention>(memory, l);
  while (memory->tokens() < kTokens) {
    const at::Tensor ids = at::randint(kVocab, {kChunk}, decoder.on.dtype(at::kLong));
    memory->begin_step(kChunk);
    memory->end_step(ids, decoder.forward(ids));
  }
  const auto events = memory->run([](episodic::DeviceMemory& m) {
    m.check();  // says what the device found wrong, and waits for it
    return m.events().size();
  });
  std::printf("read on %s to %ld tokens, %ld events\n", memory->device().str().c_str(),
              long{memory->tokens()}, long{events});
  return events > 0 ? 0 : 1;
}
