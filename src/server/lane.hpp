// SPDX-License-Identifier: Apache-2.0
#pragma once
// A sequence that is given one piece of work after another, a step at a time.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "episodic/server/in_flight.hpp"
#include "episodic/session/run.hpp"

namespace episodic::server {

/// All its work begins at one StartingPoint. A prompt that begins with what the work before read,
/// or read and answered, continues from there. Of the thread that computes.
///
/// A lane over a sequence of its user's (Work::sequence) takes one piece of work, which continues
/// where that sequence stands.
class Lane {
 public:
  /// \param max_tokens that work may come to, answer included; 0: no limit
  /// \param alone there is no other lane (StartingPoint::sequence)
  /// \throws as Sequence::fork
  Lane(std::shared_ptr<StartingPoint> start, std::int64_t max_tokens, bool alone);
  Lane(std::shared_ptr<Sequence> sequence, std::int64_t max_tokens);

  /// What a memory did so far.
  struct Counts {
    std::int64_t recalled = 0;  ///< events, over all layers and steps
    /// Events that were read, per lane of the memory; of those in a disk tier, the ones that lay in
    /// host memory. Of the host's memories.
    std::int64_t reads = 0, hits = 0;
  };
  /// What became of its work.
  struct Outcome {
    Served served;
    std::exception_ptr failure;
    Counts counts;  ///< of its steps
  };

  bool free() const { return request_ == nullptr; }
  /// Of its memory; all 0 with full attention.
  MemoryUsage usage() const;
  /// Null over a sequence of its user's.
  const std::shared_ptr<StartingPoint>& start() const { return start_; }
  /// Whether its memory is counted with its starting point's.
  bool at_root() const { return start_ && start_->gave(*sequence_); }
  /// Memory that its sequence takes, about: for the largest work that it had.
  std::int64_t bytes() const { return bytes_; }
  /// Number of the last step that it took part in.
  std::uint64_t last_used() const { return last_used_; }
  /// Tokens of a prompt that it need not read again.
  std::size_t reusable(std::span<const std::int64_t> prompt) const;

  /// Takes a request. \param prompt all tokens of its prompt
  void begin(std::shared_ptr<InFlight> request, std::vector<std::int64_t> prompt);
  /// The request of now, null if it is free.
  const std::shared_ptr<InFlight>& request() const { return request_; }
  /// Whether its next step reads a piece of the prompt, before the step that the answer starts
  /// from.
  bool reads() const { return !answer_; }
  /// Tokens that are left to read so. Where `reads`.
  std::size_t left_to_read() const { return to_read() - at_; }
  /// Tokens of its longest step.
  std::size_t chunk() const { return static_cast<std::size_t>(sequence_->chunk()); }
  /// Whether its next step may give the answer's first token.
  bool starts_answer() const { return answer_ && answer_->result().ids.empty(); }
  /// Of the next step. Not once `ended`.
  SequenceInput next_input();
  /// The step was made, or failed.
  void take(const StepResult& result, std::uint64_t step);
  /// Nobody wants the answer any more.
  void give_up();
  bool ended() const { return outcome_.has_value(); }
  /// What became of the request, once it has ended; the lane is then free.
  std::optional<Outcome> take_outcome();

 private:
  /// What was read behind the start, and the sequence's state there.
  struct Point {
    std::vector<std::int64_t> ids;
    std::shared_ptr<const Sequence::Snapshot> state;
  };

  static bool continues(std::span<const std::int64_t> prompt, const std::vector<std::int64_t>& ids);
  /// Tokens of the prompt that are read before its last step: all with `reads_only`.
  std::size_t to_read() const;
  Counts counts() const;
  void forget_requests();
  void begin_answer();
  void accept(const StepResult& result);
  void note_recalls();
  void end_answer();
  void end(std::exception_ptr failure);
  void fail(std::exception_ptr failure);

  std::shared_ptr<StartingPoint> start_;
  std::shared_ptr<Sequence> sequence_;
  const std::int64_t max_tokens_;
  std::shared_ptr<const Sequence::Snapshot> start_state_;  // null with full attention
  Point prompt_end_;                                       // behind the last request's prompt
  std::vector<std::int64_t> read_;                         // all that was read behind the start
  std::uint64_t last_used_ = 0;
  std::int64_t bytes_ = 0;

  // of the request
  std::shared_ptr<InFlight> request_;
  std::vector<std::int64_t> prompt_;
  std::size_t at_ = 0;       // tokens of the prompt that are read
  std::size_t pending_ = 0;  // tokens of the step that next_input asked for
  std::optional<Generation> answer_;
  std::optional<RecallNotes> notes_;
  Served served_;  // so far
  Counts before_;  // its steps
  std::optional<Outcome> outcome_;
};

}  // namespace episodic::server
