// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `DeviceMemory`: one sequence's episodic memory on a CUDA device (EM 3), on views of device
/// memory. The twin of `EpisodicMemory`; torch-free. In builds with CUDA.

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/tensor_view.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/timeline/step_kind.hpp"

struct CUstream_st;  // what a cudaStream_t points to

namespace episodic {

namespace device {
struct HeadPlace;
}

struct DeviceMemoryOptions {
  /// Of queries, keys, values, outputs and everything that is kept: float32, float16 or bfloat16.
  /// Events are int8 or fp8 where the configuration's kv_dtype says so: as the host's store has
  /// them.
  DType dtype = DType::bfloat16;
  std::int64_t max_tokens = 0;  ///< tokens that the sequence may come to, >= 1
  /// Of representative vectors: float32, as the host's memory has them, or a 16-bit dtype. That
  /// takes half the bytes, and half the time of a search, but rounds scores by 2^-9 (bfloat16) or
  /// 2^-11 of theirs: events whose scores are nearer than that may be recalled in another order.
  DType representatives = DType::float32;
  /// From so many events on a search reads 8-bit codes of the vectors first (docs/search.md), and
  /// the vectors of those events alone that the codes leave: the same lists to the bit. Codes take
  /// a little more than a byte a channel beside the vectors, if the sequence may come to so many
  /// events at all, and are left out where device_bytes has no room for them. 0: no codes.
  /// kCodesWherePaid: from where codes are computed to take less time than a scan of the vectors.
  /// For 4,096 channels that is 2,761 events in float32 and 8,465 in 16 bits.
  static constexpr std::int64_t kCodesWherePaid = -1;
  std::int64_t codes_from = kCodesWherePaid;
  /// Tokens that an event has on average, min_block to max_block, for a device whose memory grows:
  /// how device_bytes is divided between what is kept of each event and the rest, slots for keys
  /// and values above all. A sequence whose events are shorter comes to device_bytes before
  /// max_tokens: begin_step then throws BudgetError. 0: min_block, with which none does.
  std::int64_t event_tokens = 0;
  /// Whether queries and keys may come after rotary embedding: a step then has room to turn them
  /// back, chunk (H + G) d elements.
  bool turns_back = false;
  /// Whether device memory has room for snapshots (DeviceMemoryBytes::snapshots), if there is
  /// enough of it.
  bool room_for_snapshots = true;
};

/// Device memory of a DeviceMemory, in bytes: what a sequence of max_tokens takes, its events as
/// long as options.event_tokens says. What is kept of events is taken as the sequence grows, where
/// the device can map memory behind addresses and the whole is 16 such pieces at least (mostly of
/// 2 MiB); else all of it when the memory is made.
struct DeviceMemoryBytes {
  std::int64_t window = 0;           ///< sinks, rings and relevance of all layers
  std::int64_t events = 0;           ///< keys and values of closed events: all, or slots
  std::int64_t representatives = 0;  ///< with codes, scales of 8-bit events, tables over events
  std::int64_t workspace = 0;        ///< of a step, and what whole pieces of memory take more
  /// For snapshots: rows for `chunk` more tokens, and two copies of what steps change in place.
  /// Left out where device_bytes, or the device, has no room for it: they then lie in host memory.
  std::int64_t snapshots = 0;
  /// Taken now, at most total() with event_tokens = 0; of bytes_needed: taken when it is made.
  std::int64_t taken = 0;
  std::int64_t host = 0;  ///< page-locked host memory: the events, where the device has slots only
  /// Of it, locked now: it grows with the sequence too, where the device reads locked memory at the
  /// host's addresses, and a little ahead of it.
  std::int64_t host_taken = 0;
  /// Of device memory.
  std::int64_t total() const { return window + events + representatives + workspace + snapshots; }
};

/// One sequence's memory on the current device. Drive it step by step, as an EpisodicMemory:
///
///     memory.begin_step(n);
///     for (layer ...) memory.attend(layer, q, k, v, out);   // in order, each layer once
///     memory.end_step(surprise);
///
/// Tiers: if everything fits device_bytes (0: no bound), all events are at home in device memory.
/// Otherwise device memory holds as many as the bound leaves slots for, the least recently recalled
/// leaving first, and they are at home
///   in page-locked host memory, if host_bytes (0: no bound) holds them or there is no disk_dir:
///     what is recalled is fetched by the device itself. Both ways over the host's link run beside
///     the stream: what a step of several tokens closes is written home while the next step
///     computes, and what a layer recalls is fetched for the next layer too, while it attends;
///   else in a DiskStore, a cache within host_bytes over segment files within disk_bytes. What a
///     layer recalls is read by the host as a piece of the stream's work (cudaLaunchHostFunc), on a
///     thread of the CUDA runtime: of a step's calls the last layer's attend waits for it, and its
///     end.
/// Results are the same bits.
///
/// Every call enqueues work on the stream, or on streams of its own that the stream waits for where
/// it must, and returns. Boundaries, events, recall and its lists are
/// decided on the device; nothing is copied to the host, allocated or waited for until one of the
/// calls that say so (with files a step's last layer and its end), but for what begin_step does.
/// With `retention` it waits for the step before, where that has reached a multiple of `chunk`
/// tokens: what is then forgotten is decided on the host, and the next step may not recall it. And
/// it takes more device memory now and then, as the sequence grows, and waits where there is none
/// left, to throw BudgetError only if there must be more. What the device finds wrong (a NaN
/// surprise) is kept there and thrown by the next such call; the sequence must then be reset or
/// restored. One thread at a time. Every call works on the device that was current when the memory
/// was made, whatever is current then, and leaves the current device as it was.
class DeviceMemory final : public SequenceMemory {
 public:
  /// \param stream of the current device; outlives the memory, or its use by it (use_stream).
  /// \param given boundaries, only for segmenter `given`
  /// \throws ConfigError; BudgetError naming device_bytes or host_bytes and what is needed, also
  ///         when the device, or the system's page-locked memory, has no room; DeviceError
  DeviceMemory(const MemoryConfig& config, const MemoryShape& shape,
               const DeviceMemoryOptions& options, CUstream_st* stream,
               std::vector<std::int64_t> given = {});
  /// Waits for the stream.
  ~DeviceMemory() override;
  DeviceMemory(DeviceMemory&&) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) noexcept;

  /// What such a memory takes. Needs no device.
  /// \throws ConfigError for settings that a device does not have (yet), named
  static DeviceMemoryBytes bytes_needed(const MemoryConfig& config, const MemoryShape& shape,
                                        const DeviceMemoryOptions& options);

  /// From here on enqueues on `stream`, of the same device, which waits for all that the memory has
  /// enqueued; the host does not. Also within a step. The same stream: nothing happens. The stream
  /// before may be destroyed then. Not while one of the two captures, nor under a DeviceDecoder.
  /// \throws DeviceError: the stream is the one before
  void use_stream(CUstream_st* stream);

  /// Opens a step of n tokens, 1 <= n <= chunk. A step that was open is begun anew.
  /// \throws DataError, BudgetError if the sequence would grow beyond max_tokens, or there is no
  ///         device memory for what this step may close: nothing is enqueued then, and the step may
  ///         be begun again, when there is room or with fewer tokens
  void begin_step(std::int64_t n, StepKind kind = StepKind::decode) override;
  void abandon_step() noexcept override;

  MemoryKind memory_kind() const override { return MemoryKind::cuda; }

  /// One layer's part of a step: views of `dtype` in device memory, aligned to 16 bytes. The heads
  /// of a token lie side by side (stride d), tokens at multiples of 8 elements, apart. Queries and
  /// keys come before rotary embedding, or after it where options.turns_back says so.
  struct LayerStep {
    TensorView q;           ///< [n, H, d]
    TensorView k, v;        ///< [n, G, d]
    MutableTensorView out;  ///< [n, H, d] packed, written; overlaps none of the others
    /// Of the dot products, > 0, in place of the shape's; 0: as the shape says. For a model whose
    /// scores are scaled in another way: the host's decoder scales its queries instead.
    float scale = 0.0f;
    /// Null, or [H] in device memory: as AttendInput::sink_logits.
    const float* sink_logits = nullptr;
    /// Of a step of one token: k and v are not read, for a kernel that `head_place` told where they
    /// belong has put them there.
    bool appended = false;
  };
  /// For who makes a layer's queries, keys and values in a kernel of his own (src/device), in a
  /// step of one token: where they belong. Call it right before that kernel, and `attend` behind
  /// it.
  device::HeadPlace head_place(std::int64_t layer);
  /// \throws DataError naming the parameter, before anything is enqueued, for a view that
  ///         SequenceMemory refuses, of another dtype, that lies otherwise than LayerStep says, or
  ///         that comes after rotary embedding in a memory that does not turn it back; of the last
  ///         layer, with a disk tier, FileError if events could not be read: the step is not made,
  ///         of none in a batch, and may be begun anew
  void attend(std::int64_t layer, const LayerStep& step);
  void attend(std::int64_t layer, const TensorView& q, const TensorView& k, const TensorView& v,
              const MutableTensorView& out) override;

  // -- several sequences in one step ------------------------------------------------------------
  // Memories on one stream, each in an open step of its own. Neighbours in the list whose shapes
  // and dtypes are the same share the kernels' launches, whatever their lengths; all are left the
  // same bits as alone.

  /// attend of each. \throws DataError as attend: then of none
  struct SequenceStep {
    DeviceMemory* memory = nullptr;
    LayerStep step;
  };
  static void attend_batch(std::int64_t layer, std::span<const SequenceStep> steps);

  /// What their retention gives up is forgotten, of all in one launch, before steps of memories on
  /// one stream; begin_step does it for its own memory alone.
  static void forget_due(std::span<DeviceMemory* const> memories);

  /// The rotary angles of their open steps, before head_place, which else asks for each one's own.
  static void enqueue_angles(std::span<DeviceMemory* const> memories);

  /// end_step of each. \return of each what it threw because its events cannot be kept; null: it
  /// has made its step. \throws DataError as end_step: then none has
  struct EndOfStep {
    DeviceMemory* memory = nullptr;
    const float* surprise = nullptr;  ///< as of end_step
  };
  static std::vector<std::exception_ptr> end_step_batch(std::span<const EndOfStep> steps);

  /// \param surprise of the step's tokens, device memory; that of token 0 is ignored
  /// \throws DataError as SequenceMemory; with a disk tier BudgetError, DiskFullError, FileError if
  /// the step's events cannot be kept: the step is taken back and still open, as on the host; it
  /// may be ended again, when there is room, or begun anew
  void end_step(const SurpriseView& surprise) override;
  /// \param surprise [n] nats, device memory
  void end_step(const float* surprise);

  // -- steps as graphs --------------------------------------------------------------------------
  // What a step enqueues may be captured once and launched again in its place: whatever depends on
  // the sequence but for the kind of the step is read on the device.
  //
  //     memory.begin_step(n);
  //     if (!(graph = graphs[memory.step_kind()])) graph = capture(attend ..., enqueue_end(...));
  //     launch(graph);
  //     memory.end_launched_step();

  /// Open steps of one kind and one n enqueue the same work, given the same pointers: calls to
  /// attend, enqueue_thresholds_batch and enqueue_end alone. begin_step enqueues waits for copies
  /// of steps before and, where memory grows, little copies now and then; it is no part of a graph.
  /// Kinds are small numbers, few, and those of before a reset hold after it, but of a memory that
  /// shared a home with forks (then others come). Absent where the
  /// step's work cannot be captured: the host takes part in it (segmenters by token number, a disk
  /// tier), or it goes on beside the next step (several tokens, with events at home in page-locked
  /// memory). Absent where no step is open.
  std::optional<std::uint32_t> step_kind() const;

  /// Enqueues what end_step does and leaves the step open; it may be begun anew.
  void enqueue_end(const float* surprise);
  /// The same of several memories, which share launches as in end_step_batch.
  /// \param maybe_beside a stream that is behind their last attend and that theirs is behind before
  ///        the next step, for steps with a kind; null: their own
  static void enqueue_end_batch(std::span<const EndOfStep> steps,
                                CUstream_st* maybe_beside = nullptr);
  /// The part of that which waits for no layer: thresholds over surprise, which must be there; the
  /// end leaves it out then. For steps with a kind. \param beside a stream that is behind the steps
  /// before, and that the end is behind
  static void enqueue_thresholds_batch(std::span<const EndOfStep> steps, CUstream_st* beside);

  /// Ends the open step, of whose work a graph was launched. Enqueues nothing.
  /// \throws DataError where the step has no kind
  void end_launched_step();

  /// Back to the empty sequence. Device memory that it grew into stays taken, for the next one.
  void reset() override;

  const MemoryConfig& config() const override;
  const MemoryShape& shape() const override;
  const DeviceMemoryOptions& options() const;
  const DeviceMemoryBytes& bytes() const;
  /// Tokens of the finished steps.
  std::int64_t tokens() const override;
  /// Tables of events: 1, the sequence's, or with scope `head` one for each key/value head of each
  /// layer, l * G + g.
  std::int64_t scopes() const;
  /// Lanes of all layers, P in each: lane p of layer l is l * P + p.
  std::int64_t lanes() const;
  /// Tokens of the step that is open, 0 if none is.
  std::int64_t open_tokens() const override;
  /// Another number after each reset, restore and load.
  std::int64_t generation() const;
  /// Whether events are at home in files, which may refuse a step at its end.
  bool over_files() const;
  /// Of the store below the device; zeros where events are at home in device or page-locked memory.
  StoreCounters lower_tiers() const;

  // -- these wait for the device ------------------------------------------------------------------

  /// \throws DataError for what the device found wrong since the last reset, DeviceError
  void check() const;
  /// Copies, which the next such call overwrites. \param scope as of an EpisodicMemory
  const EventTable& events(std::int64_t scope = 0) const override;
  const StepRecord& last_step(std::int64_t scope = 0) const override;
  /// Closed events of all scopes.
  std::int64_t n_events() const;
  /// Events that a lane attended in the last step, in order of time.
  std::vector<EventId> recalled(std::int64_t lane) const;
  LaneRecall recall_lists(std::int64_t lane) const override;
  /// Events that lanes have attended, over all lanes and finished steps, those that were gone back
  /// behind too; of a memory that was loaded from the host with what that had counted.
  std::int64_t recalled_events() const;
  /// The same of each event of a scope.
  std::vector<EventRecalls> recall_counts(std::int64_t scope = 0) const;
  /// Representative vector [H / P * d] of an event in a lane. \throws DataError if there is none
  std::vector<float> representative(std::int64_t lane, EventId event) const override;
  /// r(i) of tokens [first, first + n) in a layer: [n, H]; all must be among the last
  /// n_local + max_block + chunk tokens. \throws DataError
  std::vector<float> relevance(std::int64_t layer, std::int64_t first,
                               std::int64_t n) const override;

  /// Association and lifespans of the events, as HostMemory::retention: null without `retention`,
  /// valid until the memory changes.
  const Memoria* retention() const;

  // -- states; these wait for the device too ------------------------------------------------------

  /// To come back to. It copies neither closed events nor windows: the steps behind it do, those
  /// beyond the first `chunk` tokens, to host memory, and only the rows that they overwrite. What
  /// steps change in place is copied within the device (DeviceMemoryBytes::snapshots).
  std::shared_ptr<const MemorySnapshot> snapshot() const override;
  /// Back to a snapshot of this memory: later events are forgotten, earlier ones were never copied.
  /// \throws ConfigError for a snapshot of another memory, or one older than a restore to before it
  ///         (to fewer tokens): the tokens between are gone
  void restore(const MemorySnapshot& snapshot) override;

  /// A further memory on the same stream that goes on from here, of the same settings and
  /// max_tokens. Keys, values and representatives of closed events are there once, as far as they
  /// fill pieces of 8 MiB that were taken at once; what is left of them, windows and tables are
  /// copied within the device. In page-locked memory they are there once. Each may live longer than
  /// the other. Neither can go back behind this point: snapshots of before are good for nothing.
  /// Both may forget and pin by themselves.
  /// \throws ConfigError where events are at home in files; DataError in an open step, and as
  ///         `check`; BudgetError: this memory is then as it was
  DeviceMemory fork();
  /// Device memory that a fork takes to go on for so many tokens, if they close the shortest events
  /// and all of what is final is shared.
  std::int64_t fork_bytes(std::int64_t tokens) const;

  /// Files are the host memory's: `save` brings one up to date.
  std::string refusal(Capability capability) const override;

  // -- edits; these wait for the device -----------------------------------------------------------

  /// Never recalls this event again. Its keys, values and vector stay in device memory, unread,
  /// until the memory ends; `save` makes the host's memory forget it, and hands none of them on.
  /// \throws DataError if there is no such event, it is pinned, or a step is open
  void forget(EventId event, std::int64_t scope = 0) override;
  /// All events, of every scope, that share a token with the range, which must lie in closed events
  /// of each. \return those of scope 0
  std::vector<EventId> forget(TokenRange tokens) override;
  const std::vector<EventId>& forgotten(std::int64_t scope = 0) const override;
  /// A pinned event leaves the device's slots, and the tiers below, last and cannot be forgotten;
  /// so it does in the host's memory once that is saved, if it has a folder or a disk tier. What is
  /// recalled does not change. \throws DataError if there is no such event, or it was forgotten
  void pin(EventId event, bool pinned = true, std::int64_t scope = 0) override;

  /// Becomes a memory of the host (of the same settings and shape): it then goes on as that would.
  /// \throws ConfigError naming the setting; BudgetError beyond max_tokens or device memory: it is
  ///         then as it was, or empty where it shares events with a fork; FileError where events
  ///         cannot be read: then empty
  void load(const EpisodicMemory& from);
  /// Brings the host's memory that this one was loaded from up to this one's state: events closed
  /// since, windows, thresholds. A kept one is then ready for `commit`.
  /// \param ids of the tokens since the last load or save \param last_logits [vocab] that follow
  ///        the last token, or empty
  /// \throws ConfigError if it is not that memory or has gone on by itself; DataError where an
  /// event
  ///         that it has pinned by itself since was forgotten here: all else is saved; BudgetError,
  ///         DiskFullError, FileError: it is then as it was, but for events that this one had gone
  ///         back behind (EpisodicMemory::advance)
  void save(EpisodicMemory& to, std::span<const std::int64_t> ids,
            std::span<const float> last_logits);

 private:
  class Snapshot;
  struct Impl;
  explicit DeviceMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
