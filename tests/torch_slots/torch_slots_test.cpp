// SPDX-License-Identifier: Apache-2.0
// Torch's tensors in the slots of this library, and slots on tensors under a decoder without torch.
#include <ATen/ATen.h>

#include "support/test.hpp"

#include "episodic/base/error.hpp"
#include "episodic/model/episodic_attention.hpp"
#include "episodic/torch_slots/torch_slots.hpp"
#include "support/refusal.hpp"

using namespace episodic;

namespace torch_slots_test {

std::shared_ptr<EpisodicMemory> memory_of_one_layer() {
  MemoryConfig config;
  config.n_local = 64;
  return std::make_shared<EpisodicMemory>(config,
                                          MemoryShape{1, 4, 2, 16, plain_rotary(16, 10000.0)});
}

at::Tensor through_memory(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto memory = memory_of_one_layer();
  memory->begin_step(q.size(0));
  EpisodicAttention slot(memory, 0);
  return attend(slot, q, k, v);
}

TEST_CASE("torch_slots: tensors of any strides and dtype give what packed ones give") {
  at::manual_seed(1);
  const at::Tensor fused = at::randn({6, 8, 16}).to(at::kBFloat16).to(at::kFloat);
  const auto parts = fused.split_with_sizes({4, 2, 2}, 1);
  const at::Tensor expected =
      through_memory(parts[0].contiguous(), parts[1].contiguous(), parts[2].contiguous());
  REQUIRE(expected.sizes() == at::IntArrayRef({6, 64}));
  REQUIRE(expected.is_contiguous());
  REQUIRE(at::equal(through_memory(parts[0], parts[1], parts[2]), expected));
  const auto heads_first = [](const at::Tensor& x) {
    return x.transpose(0, 1).contiguous().transpose(0, 1);
  };
  REQUIRE(
      at::equal(through_memory(heads_first(parts[0]), heads_first(parts[1]), heads_first(parts[2])),
                expected));
  const auto channels_apart = [](const at::Tensor& x) {
    return x.permute({2, 0, 1}).contiguous().permute({1, 2, 0});
  };
  REQUIRE(at::equal(through_memory(channels_apart(parts[0]), parts[1], channels_apart(parts[2])),
                    expected));
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow =
        through_memory(parts[0].to(dtype), parts[1].to(dtype), parts[2].to(dtype));
    REQUIRE(narrow.scalar_type() == dtype);
    REQUIRE(at::equal(
        narrow, through_memory(parts[0].to(dtype).to(at::kFloat), parts[1].to(dtype).to(at::kFloat),
                               parts[2].to(dtype).to(at::kFloat))
                    .to(dtype)));
  }
  // a key that stands for all tokens and heads
  const at::Tensor one = at::randn({1, 1, 16});
  REQUIRE(at::equal(through_memory(parts[0], one.expand({6, 2, 16}), parts[2]),
                    through_memory(parts[0], one.expand({6, 2, 16}).contiguous(), parts[2])));
}

TEST_CASE("torch_slots: what no slot takes is named, and the step goes on") {
  const auto memory = memory_of_one_layer();
  EpisodicAttention slot(memory, 0);
  memory->begin_step(3);
  const at::Tensor q = at::ones({3, 4, 16}), k = at::ones({3, 2, 16});
  const auto said = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return refusal<DataError>([&] { attend(slot, a, b, c); });
  };
  REQUIRE(mentions(said(q, k.to(at::kDouble), k), "k is [3, 2, 16] of Double on cpu"));
  REQUIRE(mentions(said(q, k, k.to(at::kMeta)), "v is [3, 2, 16] of Float on meta"));
  REQUIRE(mentions(said(q.flatten(1), k, k), "q is [3, 64] of Float on cpu"));
  REQUIRE(mentions(said({}, k, k), "q is undefined"));
  REQUIRE(mentions(said(q, q, k), "k is [3, 4, 16] of float32 on cpu, expected [3, 2, 16]"));
  REQUIRE(attend(slot, q, k, k).size(0) == 3);
  EpisodicState state(memory);
  const std::vector<std::int64_t> ids{1, 2, 3};
  REQUIRE(mentions(refusal<DataError>([&] {
                     end_step(state, ids, at::ones({3, 5}, at::kDouble));
                   }),
                   "logits is [3, 5] of Double on cpu"));
  REQUIRE_THROWS_AS(end_step(state, ids, at::ones({2, 5})), DataError);
  // rows of more than is shown, and columns apart
  end_step(state, ids, at::rand({5, 3}).t());
  REQUIRE(memory->tokens() == 3);
}

/// Attends to nothing: each head's output is its query plus a number.
struct Adding final : TorchSlot {
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    ++calls;
    REQUIRE(k.sizes() == v.sizes());
    if (wrong.defined()) return wrong;
    return (q + k.select(1, 0).unsqueeze(1)).flatten(1);
  }
  int calls = 0;
  at::Tensor wrong;
};

TEST_CASE("torch_slots: a slot on tensors serves views of host memory") {
  at::manual_seed(2);
  const at::Tensor q = at::randn({5, 4, 16}), k = at::randn({5, 2, 16});
  Adding slot;
  const at::Tensor expected = attend(slot, q, k, k);  // directly
  REQUIRE(slot.calls == 1);
  at::Tensor wide = at::zeros({5, 4, 20});
  slot.forward(TensorView(q.const_data_ptr(), DType::float32, {5, 4, 16}),
               TensorView(k.const_data_ptr(), DType::float32, {5, 2, 16}),
               TensorView(k.const_data_ptr(), DType::float32, {5, 2, 16}),
               MutableTensorView(wide.mutable_data_ptr(), DType::float32, {5, 4, 16}, {80, 20}));
  REQUIRE(slot.calls == 2);
  REQUIRE(at::equal(wide.narrow(2, 0, 16).flatten(1), expected));
  REQUIRE(at::equal(wide.narrow(2, 16, 4), at::zeros({5, 4, 4})));
  const auto said = [&](MemoryKind where, DType dtype) {
    TensorView keys(k.const_data_ptr(), dtype, {5, 2, 16}, where);
    return refusal<DataError>([&] {
      slot.forward(TensorView(q.const_data_ptr(), DType::float32, {5, 4, 16}), keys, keys,
                   MutableTensorView(wide.mutable_data_ptr(), DType::float32, {5, 4, 16}));
    });
  };
  REQUIRE(mentions(said(MemoryKind::cuda, DType::float32), "k is of float32 on cuda"));
  REQUIRE(mentions(said(MemoryKind::host, DType::int8), "k is of int8 on cpu"));
  slot.wrong = at::zeros({5, 63});
  REQUIRE(mentions(said(MemoryKind::host, DType::float32), "attend gave [5, 63] of Float on cpu"));
}

}  // namespace torch_slots_test
