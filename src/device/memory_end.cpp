// SPDX-License-Identifier: Apache-2.0
// The end of a DeviceMemory's step: what it enqueues, in order. `enqueue_end` is the device's side,
// `end_step` the host's.
#include <fmt/format.h>

#include <array>

#include "episodic/base/detail/view_checks.hpp"
#include "episodic/base/error.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::emptied;
using kernels::TimelineState;

void DeviceMemory::abandon_step() noexcept { impl_->step.open = false; }

void DeviceMemory::end_step(const SurpriseView& surprise) {
  if (impl_->step.open)
    episodic::detail::check_surprise("end_step", surprise, impl_->step.n, MemoryKind::cuda);
  end_step(surprise.data);
}

void DeviceMemory::end_step(const float* surprise) {
  enqueue_end(surprise);
  impl_->end_step();
}

std::vector<std::exception_ptr> DeviceMemory::end_step_batch(std::span<const EndOfStep> steps) {
  Impl::enqueue_end(steps, nullptr);
  std::vector<std::exception_ptr> failures;
  failures.reserve(steps.size());
  for (const EndOfStep& s : steps) {
    failures.emplace_back();
    Impl& m = *s.memory->impl_;
    try {
      m.end_behind_files();
      m.end_step();
    } catch (...) {
      failures.back() = std::current_exception();
    }
  }
  return failures;
}

void DeviceMemory::end_launched_step() {
  if (!step_kind())
    throw DataError(
        "end_launched_step: no step is open, or its segmenter runs on the host; use end_step");
  impl_->end_step();
}

void DeviceMemory::enqueue_end(const float* surprise) {
  enqueue_end_batch(std::array{EndOfStep{this, surprise}});
}

void DeviceMemory::enqueue_end_batch(std::span<const EndOfStep> steps, CUstream_st* maybe_beside) {
  Impl::enqueue_end(steps, maybe_beside);
  for (const EndOfStep& s : steps) s.memory->impl_->end_behind_files();
}

void DeviceMemory::enqueue_thresholds_batch(std::span<const EndOfStep> steps, CUstream_st* beside) {
  for_sharing(
      steps,
      [](const EndOfStep& a, const EndOfStep& b) {
        return a.memory->impl_->shares_launches(*b.memory->impl_);
      },
      [&](std::span<const EndOfStep> part) {
        Impl& first = *part.front().memory->impl_;
        const device::CurrentDevice current(first.device);
        first.find_thresholds(part, beside);
      });
}

/// But for what comes behind files.
/// \param maybe_on a stream beside the memories', or theirs
void DeviceMemory::Impl::enqueue_end(std::span<const EndOfStep> steps, cudaStream_t maybe_on) {
  for (const EndOfStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    const std::int64_t n_layers = m.sizes.shape.n_layers;
    if (!m.step.open || m.step.next_layer != n_layers)
      throw DataError(
          fmt::format("end_step: layer {} is still to come; call attend for all {} layers first",
                      m.step.next_layer, n_layers));
    if (!s.surprise) throw DataError("end_step: surprise is null");
  }
  for_sharing(
      steps,
      [](const EndOfStep& a, const EndOfStep& b) {
        return a.memory->impl_->shares_launches(*b.memory->impl_);
      },
      [&](std::span<const EndOfStep> part) {
        Impl& first = *part.front().memory->impl_;
        const device::CurrentDevice current(first.device);
        const cudaStream_t on = maybe_on ? maybe_on : first.stream;
        first.find_thresholds(part, on);
        first.find_boundaries(part, on);
        first.close(part, on);
      });
}

/// Of memories that share their launches, this one the first: raw flags by surprise, which is kept
/// for whoever asks, unless they are there. They depend on steps before and on surprise alone.
void DeviceMemory::Impl::find_thresholds(std::span<const EndOfStep> steps, cudaStream_t on) {
  auto& raw_flags = emptied(of_end.raw_flags);
  for (const EndOfStep& s : steps) {
    Impl& m = *s.memory->impl_;
    if (m.step.has_thresholds) continue;
    m.step.has_thresholds = true;
    if (m.keeps_in_files())
      m.timeline.copy_saved(m.before_end, false, cudaMemcpyDeviceToDevice, on);
    raw_flags.push_back(m.timeline.threshold_params(m.step.n, s.surprise));
  }
  device::launch_batch(kernels::surprise_threshold_batch, raw_flags, on, "thresholds");
}

/// Of memories that share their launches, this one the first: what their events received, and
/// boundaries.
void DeviceMemory::Impl::find_boundaries(std::span<const EndOfStep> steps, cudaStream_t on) {
  auto& masses = emptied(of_end.masses);
  auto& counts = emptied(of_end.counts);
  auto& keys = emptied(of_end.keys);
  auto& refinements = emptied(of_end.refinements);
  for (const EndOfStep& s : steps) {
    Impl& m = *s.memory->impl_;
    m.step.has_thresholds = false;  // of this end; it may be refused and come again
    if (m.timeline.by_token_number()) m.timeline.send_flags(m.step.tokens, m.step.n, m.staging, on);
    if (m.timeline.by_keys())
      keys.push_back(m.timeline.key_segmenter_params(m.step.n, m.workspace));
    refinements.push_back(m.timeline.refine_params(m.step.n, m.workspace));
    if (!m.step.far || m.keeps_in_files()) continue;  // end_behind_files
    if (m.retention.has_graph()) masses.push_back(m.retention.receive_params(m.step.lists()));
    counts.push_back(m.retention.count_params(m.step.lists(), m.tiers.lane_scopes()));
  }
  device::launch_batch(kernels::receive_masses_batch, masses, on, "what events received");
  device::launch_batch(kernels::count_recalls_batch, counts, on, "counting recalls");
  device::launch_batch(kernels::segment_by_keys_batch, keys, on, "boundaries from keys");
  device::launch_batch(kernels::refine_boundaries_batch, refinements, on, "refinement");
}

/// Of memories that share their launches, this one the first: relevance, and what the step closes.
void DeviceMemory::Impl::close(std::span<const EndOfStep> steps, cudaStream_t on) {
  auto& relevance = emptied(of_end.relevance);
  auto& closings = emptied(of_end.closings);
  auto& placings = emptied(of_end.places);
  auto& chosen = emptied(of_end.chosen);
  auto& codes = emptied(of_end.codes);
  auto& kept = emptied(of_end.kept);
  for (const EndOfStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    const bool later = m.keeps_in_files();  // end_behind_files
    if (!later) relevance.push_back(m.layers.relevance_params(m.step.n, m.workspace));
    closings.push_back(m.timeline.close_params(m.step.n));
    if (!m.may_close()) continue;
    const kernels::ClosedEvents closed = m.tiers.closed();
    placings.push_back(m.tiers.place_params());
    if (!later) chosen.push_back(m.layers.representative_params(closed));
    if (m.sizes.keeps_codes() && !later) codes.push_back(m.layers.code_params(closed));
    if (!m.tiers.writes_beside(m.step.n))
      kept.push_back(m.tiers.block_params(0, m.sizes.recalling));
  }
  device::launch_batch(kernels::commit_relevance_batch, relevance, on, "relevance");
  device::launch_batch(kernels::close_events_batch, closings, on, "closing events");
  device::launch_batch(kernels::place_events_batch, placings, on, "placing events");
  device::launch_batch(kernels::select_representatives_batch, chosen, on, "representatives");
  device::launch_batch(kernels::encode_representatives_batch, codes, on,
                       "codes of representatives");
  device::launch_batch(kernels::event_to_block_batch, kept, on, "keeping events");
  for (const EndOfStep& s : steps)
    if (Impl& m = *s.memory->impl_; m.may_close() && m.tiers.writes_beside(m.step.n))
      m.tiers.write_out(on);
}

/// Hands the events that this step has closed to the files.
/// \throws as LowerTiers::keep: nothing of the end is left, the step is still open, and may be
/// ended
///         again or begun anew. What it closed lies behind the tables' ends
void DeviceMemory::Impl::keep_closed() {
  std::vector<TimelineState> now;
  try {
    now = timeline.read_states(stream);
  } catch (...) {
    broken = true;  // the device is lost
    step.open = false;
    throw;
  }
  try {
    tiers.keep_closed(now, stream);
  } catch (...) {
    try {
      tiers.drop_closed(now);
      timeline.copy_saved(before_end, true, cudaMemcpyDeviceToDevice, stream);
    } catch (...) {  // the first failure is the one to be told
      broken = true;
      step.open = false;
    }
    throw;
  }
}

/// The rest of a step's end, once files have kept what it closed: what it adds up, and what is made
/// of the closed events in device memory. Positions are those before the step.
void DeviceMemory::Impl::end_behind_files() {
  if (!keeps_in_files()) return;
  const device::CurrentDevice current(device);
  keep_closed();
  const TimelineState* const before = device::DeviceTimeline::states_of(before_end);
  auto& masses = emptied(of_end.masses);
  auto& counts = emptied(of_end.counts);
  auto& relevance = emptied(of_end.relevance);
  auto& chosen = emptied(of_end.chosen);
  auto& codes = emptied(of_end.codes);
  if (retention.has_graph() && step.far) masses.push_back(retention.receive_params(step.lists()));
  if (step.far) {
    counts.push_back(retention.count_params(step.lists(), tiers.lane_scopes()));
    counts.back().steps = &before->steps;
  }
  relevance.push_back(layers.relevance_params(step.n, workspace));
  relevance.back().first_position = &before->tokens;
  chosen.push_back(layers.representative_params(tiers.closed()));
  if (sizes.keeps_codes()) codes.push_back(layers.code_params(tiers.closed()));
  device::launch_batch(kernels::receive_masses_batch, masses, stream, "what events received");
  device::launch_batch(kernels::count_recalls_batch, counts, stream, "counting recalls");
  device::launch_batch(kernels::commit_relevance_batch, relevance, stream, "relevance");
  device::launch_batch(kernels::select_representatives_batch, chosen, stream, "representatives");
  device::launch_batch(kernels::encode_representatives_batch, codes, stream,
                       "codes of representatives");
}

/// The host's side of a step whose work is enqueued.
void DeviceMemory::Impl::end_step() {
  snapshots.state_now.reset();  // of a snapshot within the step
  step.last_first = step.tokens;
  step.last_n = step.n;
  step.tokens += step.n;
  ++step.n_steps;
  step.steps_since_recall = step.next_since_recall;
  step.far_in_last_step = step.far;
  if (step.far) step.lists_are_written = false;
  retention.after_step(step.last_first, step.tokens);
  step.open = false;
}

}  // namespace episodic
