// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an event is, on a device: surprise, thresholds, boundary flags and the tables of events of
// one sequence. The twin of `Timeline`, of each scope. It sees keys through refinement and through
// segmenters that read them, and values never.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda.hpp"
#include "episodic/memory/memory_state.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "kernels/close_events.hpp"
#include "kernels/key_segmenter.hpp"
#include "kernels/refine.hpp"
#include "kernels/threshold.hpp"
#include "kernels/timeline_state.hpp"
#include "memory_layout.hpp"
#include "memory_sizes.hpp"

namespace episodic::device {

class DeviceTimeline {
 public:
  using State = kernels::TimelineState;

  /// \param sizes outlive it
  explicit DeviceTimeline(const MemorySizes& sizes) : sizes_(sizes) {}

  // -- places and states ------------------------------------------------------------------------
  void lay_out_tables(MemoryLayout& layout);
  void lay_out_step(MemoryLayout& layout);
  /// \param ring_keys of each layer, in device memory. Waits.
  void upload(const std::vector<const void*>& ring_keys, cudaStream_t stream);
  /// The empty sequence. Waits. \return its states
  std::vector<State> clear(const std::vector<std::int64_t>& given, cudaStream_t stream);

  /// What the end of a step changes, before and behind which it can be kept.
  std::int64_t saved_bytes() const;
  /// Between its place and saved_bytes() at `at`, on the stream.
  void copy_saved(std::byte* at, bool back, cudaMemcpyKind kind, cudaStream_t stream) const;
  /// All of that, of another timeline of these sizes, on the stream.
  void copy(const DeviceTimeline& from, cudaStream_t stream) const;
  /// The states that such a copy has.
  static const State* states_of(const std::byte* saved) {
    return reinterpret_cast<const State*>(saved);
  }

  // -- what other parts' kernels read; null while nothing has a place -----------------------------
  const State* states() const { return state_; }  // [scopes]
  const std::int64_t* first_position() const { return state_ ? &state_->tokens : nullptr; }
  const std::uint32_t* steps() const { return state_ ? &state_->steps : nullptr; }
  const std::int64_t* event_count(std::int64_t scope = 0) const {
    return state_ ? &state_[scope].n_events : nullptr;
  }
  kernels::EventRange* events(std::int64_t scope = 0) const {  // [max_events] and scopes behind it
    return events_ ? events_ + scope * sizes_.max_events : nullptr;
  }

  // -- the end of a step --------------------------------------------------------------------------
  /// Raw flags by surprise, which is kept; those by keys on the device, or by token numbers on the
  /// host, which needs nothing from it, replace them.
  kernels::ThresholdParams threshold_params(std::int64_t n, const float* surprise) const;
  bool by_keys() const { return reads_keys(sizes_.config.segmenter); }
  kernels::KeySegmenterParams key_segmenter_params(std::int64_t n, const Workspace& w) const;
  bool by_token_number() const { return segmenter_ != nullptr; }
  void send_flags(std::int64_t tokens, std::int64_t n, StagingRing& staging, cudaStream_t stream);
  kernels::RefineParams refine_params(std::int64_t n, const Workspace& w) const;
  kernels::CloseEventsParams close_params(std::int64_t n) const;

  // -- these wait ---------------------------------------------------------------------------------
  std::vector<State> read_states(cudaStream_t stream) const;
  State read_state(std::int64_t scope, cudaStream_t stream) const;
  void write_states(const std::vector<State>& states, cudaStream_t stream) const;
  std::vector<kernels::EventRange> read_ranges(std::int64_t scope, std::int64_t first,
                                               std::int64_t end, cudaStream_t stream) const;
  std::vector<TokenRange> read_events(std::int64_t scope, std::int64_t first, std::int64_t end,
                                      cudaStream_t stream) const;
  void write_events(std::int64_t scope, const std::vector<TokenRange>& events,
                    cudaStream_t stream) const;
  /// Of the last step, but for what the host knows of it.
  void read_record(std::int64_t scope, StepRecord& record, cudaStream_t stream) const;
  /// The timelines' part of a memory of the host, but for events.
  void write(const EpisodicMemory& from, const MemoryState& handed, cudaStream_t stream) const;
  static std::vector<State> states_of(const EpisodicMemory& from, const MemoryState& handed);
  void read(const std::vector<State>& now, std::int64_t tokens, MemoryState& to,
            cudaStream_t stream) const;

 private:
  /// What segmenters that read keys carry from step to step, on the host: one for the sequence, or
  /// for each scope.
  struct HostKeySegmenter {
    std::vector<kernels::KeySegmenterState> states;
    std::vector<double> mean, variance;  // [segmenters, channels]
  };
  struct Saved {
    void* of;
    std::int64_t bytes;
  };
  std::array<Saved, 9> saved() const;
  std::int64_t key_segmenters() const { return sizes_.by_head() ? sizes_.scopes : 1; }
  std::int64_t key_channels() const {  // of all of them
    return sizes_.shape.n_layers * sizes_.shape.n_kv_heads * sizes_.shape.head_dim;
  }
  std::int64_t key_variances() const {  // numbers of key_variance_
    return sizes_.config.segmenter == SegmenterKind::gaussian ? key_channels() : 0;
  }
  std::int64_t recent_capacity() const {
    return sizes_.config.effective_tau() + sizes_.config.chunk;
  }
  std::int64_t raw_rows() const { return sizes_.by_head() && by_keys() ? sizes_.scopes : 1; }
  void write_key_segmenter(const HostKeySegmenter& from, cudaStream_t stream) const;
  static std::vector<std::byte> to_bytes(const HostKeySegmenter& from, std::int64_t tokens);
  static HostKeySegmenter from_bytes(const std::vector<std::byte>& bytes, std::int64_t segmenters,
                                     std::int64_t n_init);

  const MemorySizes& sizes_;
  State* state_ = nullptr;                 // [scopes]
  kernels::EventRange* events_ = nullptr;  // [scopes, max_events]
  float* recent_ = nullptr;                // [recent_capacity()]
  float *threshold_ = nullptr, *surprise_ = nullptr;
  std::uint8_t *raw_ = nullptr, *flags_ = nullptr;  // [scopes or 1, n]; [scopes, capacity]
  const void** ring_keys_ = nullptr;                // of all layers
  // where keys set the flags: the event that is growing, and its keys' moments by channel
  kernels::KeySegmenterState* key_segmenter_ = nullptr;  // one, or [scopes]
  double *key_mean_ = nullptr, *key_variance_ = nullptr;
  std::unique_ptr<Segmenter> segmenter_;     // where token numbers alone set the flags; on the host
  std::vector<float> ignored_, thresholds_;  // of its calls
};

}  // namespace episodic::device
