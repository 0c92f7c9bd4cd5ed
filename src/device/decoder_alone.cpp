// SPDX-License-Identifier: Apache-2.0
// A step of one sequence of a DeviceDecoder.
#include <fmt/format.h>

#include <algorithm>

#include "decoder_impl.hpp"
#include "episodic/base/error.hpp"

namespace episodic {

using device::DecoderPart;

/// The open step, from its ids in device memory to its tokens' surprise.
void DeviceDecoder::Impl::enqueue(std::int64_t n, float* maybe_logits) {
  const DecoderPart all{this, 0, n, activations.positions};
  steps->enqueue({&all, 1}, activations, maybe_logits);
}

/// Keeps the logits and the surprise that the open step begins with, or, where its end was refused,
/// puts them back.
void DeviceDecoder::Impl::copy_outputs(bool back) {
  if (!before_step.data() || !stepped) return;
  auto* const kept = reinterpret_cast<float*>(before_step.data());
  const auto copy = [&](float* now, float* before, std::int64_t n) {
    device::check(cudaMemcpyAsync(back ? now : before, back ? before : now,
                                  static_cast<std::size_t>(n) * sizeof(float),
                                  cudaMemcpyDeviceToDevice, stream()),
                  "keeping logits and surprise");
  };
  copy(last_logits, kept, config().vocab_size);
  copy(surprise, kept + config().vocab_size, last_n);
}

/// What depends on the sequence in a step of one token, but for what is read on the device. Absent
/// where that can be no graph.
std::optional<std::uint32_t> DeviceDecoder::Impl::graph_kind() const {
  // The first token's surprise is no kernel's; such a step comes once in a sequence. A hook is the
  // host's.
  if (!use_graphs || !stepped || keys_hook) return std::nullopt;
  return memory ? memory->step_kind() : 0;
}

/// Launches the graph of an open step of one token. \return false: nothing is enqueued, the step is
/// as it was begun
bool DeviceDecoder::Impl::launch_step(StepKind kind) {
  const std::optional<std::uint32_t> shape = graph_kind();
  if (!shape) return false;
  try {
    return graphs.launch(device::StepGraphs::Key{{this, *shape}}, stream(), [&] {
      const DecoderPart all{this, 0, 1, activations.positions};
      steps->capture({&all, 1}, activations);
    });
  } catch (const DeviceError&) {
    // What is wrong with the step itself is found again without a graph.
    use_graphs = false;
    if (memory) memory->begin_step(1, kind);
    return false;
  }
}

/// The memory may have been reset, restored or loaded by its own calls.
void DeviceDecoder::Impl::follow_memory() {
  if (!memory) return;
  if (memory->tokens() == 0) {
    if (tokens > 0) causal.kept_rows().forget_marks();
    tokens = 0;
    stepped = false;
    ids_since.clear();
  } else if (!causal.empty() && memory->generation() != generation) {
    throw DataError(fmt::format(
        "DeviceDecoder: the memory stands at token {} by a call of its own, but the model's "
        "sliding layers and recurrent states have seen {} tokens; go back by the snapshots of the "
        "model",
        memory->tokens(), tokens));
  }
  generation = memory->generation();
}

/// Of a step that passed check_step.
void DeviceDecoder::Impl::begin_step(std::int64_t n, StepKind kind) {
  follow_memory();
  if (memory) {
    causal.kept_rows().before_step(tokens_now(), n, stream());
    return memory->begin_step(n, kind);
  }
  if (tokens + n > max_tokens)
    throw BudgetError(
        fmt::format("DeviceDecoder::step: there is room for max_tokens = {}, {} are there and {} "
                    "more come; attend with more",
                    max_tokens, tokens, n));
}

/// What can be said of a step before anything is done.
void DeviceDecoder::Impl::check_step(std::span<const std::int64_t> ids) const {
  require_attention();
  if (ids.empty() || static_cast<std::int64_t>(ids.size()) > chunk)
    throw DataError(fmt::format(
        "DeviceDecoder::step: {} tokens, must be in [1, chunk = {}]; feed longer texts in several "
        "steps",
        ids.size(), chunk));
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= config().vocab_size)
      throw DataError(fmt::format(
          "DeviceDecoder::step: ids[{}] = {} is not in the vocabulary of {} tokens; use the "
          "tokenizer of this model",
          i, ids[i], config().vocab_size));
}

/// The host's side of a step that is enqueued, and whose memory's step is ended.
void DeviceDecoder::Impl::finish_step(std::span<const std::int64_t> ids) {
  const auto n = static_cast<std::int64_t>(ids.size());
  tokens = memory ? memory->tokens() : tokens + n;
  last_n = n;
  stepped = true;
  if (keeps_ids) ids_since.insert(ids_since.end(), ids.begin(), ids.end());
}

void DeviceDecoder::Impl::step(std::span<const std::int64_t> ids, StepKind kind,
                               float* maybe_logits) {
  check_step(ids);
  const auto n = static_cast<std::int64_t>(ids.size());
  const device::CurrentDevice current(steps->device);
  begin_step(n, kind);
  try {
    staging.send(activations.positions, 1 + n, stream(), [&](std::int64_t* host) {
      *host = tokens_now();
      std::copy(ids.begin(), ids.end(), host + 1);
    });
    if (n == 1 && !maybe_logits && launch_step(kind)) {
      if (memory) memory->end_launched_step();
    } else {
      copy_outputs(false);
      enqueue(n, maybe_logits);
      try {
        if (memory) memory->end_step(surprise);
      } catch (...) {
        copy_outputs(true);
        throw;
      }
    }
  } catch (...) {
    abandon_step();
    throw;
  }
  finish_step(ids);
}

void DeviceDecoder::step(std::span<const std::int64_t> ids, StepKind kind) {
  impl_->step(ids, kind, nullptr);
}

void DeviceDecoder::step(std::span<const std::int64_t> ids, std::span<float> logits) {
  const std::size_t wanted = ids.size() * static_cast<std::size_t>(impl_->config().vocab_size);
  if (logits.size() != wanted)
    throw DataError(fmt::format("DeviceDecoder::step: room for {} logits, {} tokens have {}",
                                logits.size(), ids.size(), wanted));
  impl_->step(ids, StepKind::decode, logits.data());
  impl_->check_device();
}

}  // namespace episodic
