// SPDX-License-Identifier: Apache-2.0
// A step of several sequences that share a decoder's weights.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/rethrow.hpp"
#include "decoder_impl.hpp"
#include "episodic/base/error.hpp"

namespace episodic {

using device::Activations;
using device::DecoderPart;
using device::DecoderSteps;

/// Of those that have a memory, in order.
std::vector<DeviceMemory::EndOfStep> DeviceDecoder::Impl::ends_of(
    std::span<const SequenceStep> batch) {
  std::vector<DeviceMemory::EndOfStep> ends;
  for (const SequenceStep& s : batch)
    if (Impl& m = *s.sequence->impl_; m.memory) ends.push_back({&*m.memory, m.surprise});
  return ends;
}

/// Activations of one step of them all.
DecoderSteps::BatchRoom& DeviceDecoder::Impl::batch_room(std::span<const SequenceStep> batch) {
  std::int64_t rows = 0;
  for (const SequenceStep& s : batch) rows += static_cast<std::int64_t>(s.ids.size());
  return batch[0].sequence->impl_->steps->batch_room(rows, static_cast<std::int64_t>(batch.size()));
}

/// What retention gives up before a step, of all in one launch.
void DeviceDecoder::Impl::forget_due(std::span<const SequenceStep> batch) {
  std::vector<DeviceMemory*> memories;
  for (const SequenceStep& s : batch)
    if (Impl& m = *s.sequence->impl_; m.memory) memories.push_back(&*m.memory);
  try {
    DeviceMemory::forget_due(memories);
  } catch (...) {
    // The begin_step of the one that failed does it again, and says so.
  }
}

/// As launch_step, of open steps of several sequences.
template <class Enqueue>
bool DeviceDecoder::Impl::launch_batch(std::span<const SequenceStep> batch,
                                       const Enqueue& enqueue) {
  device::StepGraphs::Key key;
  for (const SequenceStep& s : batch) {
    const Impl& m = *s.sequence->impl_;
    const std::optional<std::uint32_t> shape = m.graph_kind();
    if (!shape || s.ids.size() != 1) return false;
    key.emplace_back(&m, *shape);
  }
  DecoderSteps& steps = *batch[0].sequence->impl_->steps;
  try {
    return steps.batch_graphs.launch(key, steps.stream.get(), enqueue);
  } catch (const DeviceError&) {
    for (const SequenceStep& s : batch) {
      s.sequence->impl_->use_graphs = false;
      s.sequence->impl_->begin_step(1, s.kind);
    }
    return false;
  }
}

/// \throws DataError for a batch that is no step of one model, whatever its sequences are like
void DeviceDecoder::Impl::check_batch(std::span<const SequenceStep> batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Impl& m = *batch[i].sequence->impl_;
    if (m.steps != batch[0].sequence->impl_->steps)
      throw DataError(fmt::format(
          "DeviceDecoder::step_batch: sequence {} of the batch has weights of its own; make it by "
          "share_weights of the first one",
          i));
    for (std::size_t j = 0; j < i; ++j)
      if (batch[j].sequence->impl_.get() == &m)
        throw DataError(fmt::format(
            "DeviceDecoder::step_batch: sequences {} and {} of the batch are the same", j, i));
  }
}

/// Open steps, up to their memories' ends or, as a graph, with them. \return whether as a graph
bool DeviceDecoder::Impl::enqueue_batch(std::span<const SequenceStep> batch) {
  DecoderSteps& steps = *batch[0].sequence->impl_->steps;
  DecoderSteps::BatchRoom& room = batch_room(batch);
  const auto sequences = static_cast<std::int64_t>(batch.size());
  std::vector<DecoderPart> parts;
  std::int64_t rows = 0;
  for (const SequenceStep& s : batch) {
    const auto n = static_cast<std::int64_t>(s.ids.size());
    parts.push_back({s.sequence->impl_.get(), rows, n, room.of.positions + parts.size()});
    rows += n;
  }
  // The ids lie right behind the positions of these sequences, to be one copy.
  Activations activations = room.of;
  activations.ids = activations.positions + sequences;
  room.staging.send(activations.positions, sequences + rows, steps.stream.get(),
                    [&](std::int64_t* host) {
                      std::int64_t* id = host + sequences;
                      for (const SequenceStep& s : batch) {
                        *host++ = s.sequence->impl_->tokens_now();
                        id = std::copy(s.ids.begin(), s.ids.end(), id);
                      }
                    });
  if (launch_batch(batch, [&] { steps.capture(parts, activations); })) return true;
  for (const SequenceStep& s : batch) s.sequence->impl_->copy_outputs(false);
  steps.enqueue(parts, activations, nullptr);
  return false;
}

/// Ends them. \return of each why its memory could not keep its events (files), which does not
/// undo the others' steps; null: it has made its step
std::vector<std::exception_ptr> DeviceDecoder::Impl::end_batch(std::span<const SequenceStep> batch,
                                                               bool launched) {
  const std::vector<DeviceMemory::EndOfStep> ends = ends_of(batch);
  std::vector<std::exception_ptr> of_memories(ends.size());
  if (launched)
    for (const DeviceMemory::EndOfStep& end : ends) end.memory->end_launched_step();
  else
    of_memories = DeviceMemory::end_step_batch(ends);
  std::vector<std::exception_ptr> failures;
  auto of_memory = of_memories.begin();
  for (const SequenceStep& s : batch) {
    Impl& m = *s.sequence->impl_;
    failures.push_back(m.memory ? *of_memory++ : nullptr);
    if (failures.back()) {
      m.abandon_step();
      m.copy_outputs(true);
    } else {
      m.finish_step(s.ids);
    }
  }
  return failures;
}

std::vector<std::exception_ptr> DeviceDecoder::try_step_batch(std::span<const SequenceStep> batch) {
  Impl::check_batch(batch);
  std::vector<std::exception_ptr> failures(batch.size());
  if (batch.empty()) return failures;
  const device::CurrentDevice current(batch[0].sequence->impl_->steps->device);
  std::vector<std::size_t> left(batch.size());  // who is in the step
  std::iota(left.begin(), left.end(), std::size_t{0});
  const auto steps_left = [&] {
    std::vector<SequenceStep> steps;
    for (const std::size_t i : left) steps.push_back(batch[i]);
    return steps;
  };
  // Calls f(step) of each. Who throws leaves the step.
  const auto each = [&](const auto& f) {
    std::erase_if(left, [&](std::size_t i) {
      try {
        f(batch[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
      return failures[i] != nullptr;
    });
  };
  const auto each_alone = [&] {
    each([](const SequenceStep& s) { s.sequence->step(s.ids, s.kind); });
    return failures;
  };
  const auto abandon_steps = [&] {
    for (const std::size_t i : left) batch[i].sequence->impl_->abandon_step();
  };

  each([](const SequenceStep& s) { s.sequence->impl_->check_step(s.ids); });
  if (left.size() > 1) {
    const std::vector<SequenceStep> steps = steps_left();
    Impl::batch_room(steps);
    Impl::forget_due(steps);
    each([](const SequenceStep& s) {
      s.sequence->impl_->begin_step(static_cast<std::int64_t>(s.ids.size()), s.kind);
    });
  }
  if (left.size() < 2) return each_alone();
  const std::vector<SequenceStep> steps = steps_left();
  bool launched = false;
  try {
    launched = Impl::enqueue_batch(steps);
  } catch (...) {
    // A file that cannot be read, a hook that throws: nobody has made the step, and each may begin
    // it anew. Alone, each says whether it was the one.
    abandon_steps();
    return each_alone();
  }
  std::vector<std::exception_ptr> ended;
  try {
    ended = Impl::end_batch(steps, launched);
  } catch (...) {  // the device fails, and no memory is at fault
    abandon_steps();
    throw;
  }
  for (std::size_t i = 0; i < left.size(); ++i) failures[left[i]] = ended[i];
  return failures;
}

void DeviceDecoder::step_batch(std::span<const SequenceStep> batch) {
  if (batch.size() == 1) return batch[0].sequence->step(batch[0].ids, batch[0].kind);
  rethrow_first_of_batch(try_step_batch(batch));
}

}  // namespace episodic
