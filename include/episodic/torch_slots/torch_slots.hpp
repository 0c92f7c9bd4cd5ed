// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Between a decoder whose numbers are torch's tensors and the slots of this library: `attend` and
/// `end_step` give tensors to a slot and a state, TorchSlot is a slot of your own on tensors.
/// In the component episodic::torch (examples/patch_your_layer.cpp, examples/patch_your_model).

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <span>

#include "episodic/model/attention_slot.hpp"

namespace episodic {

/// A slot that computes on tensors: yours, or DeviceAttention.
class TorchSlot : public AttentionSlot {
 public:
  /// \param q [n, H, d], k, v [n, G, d]: before rotary embedding
  /// \return [n, H * d] of q's dtype and device
  virtual at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) = 0;

  /// The device of its tensors.
  virtual c10::Device device() const { return c10::Device(c10::DeviceType::CPU); }

  /// The same of views, for whoever has no torch: tensors over their memory.
  void forward(const TensorView& q, const TensorView& k, const TensorView& v,
               const MutableTensorView& out) final;
};

/// What a slot makes of q, k and v: of tensors directly if it is a TorchSlot, of views of them
/// otherwise. Tensors are read where they lie, in whatever strides; one whose channels are apart is
/// packed first.
/// \return [n, H * d], contiguous, of q's dtype and device
/// \throws DataError naming the tensor that the slot does not take
at::Tensor attend(AttentionSlot& slot, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v);

/// SequenceState::end_step with logits [n, vocab], whose rows may be apart.
/// \throws DataError for logits that are no rows of float32, bfloat16 or float16
void end_step(SequenceState& state, std::span<const std::int64_t> ids, const at::Tensor& logits);

/// A view of rows of logits as a tensor over the same memory.
/// \param device of the memory
at::Tensor tensor_of(const LogitsView& logits, c10::Device device);

}  // namespace episodic
