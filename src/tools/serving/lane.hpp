// SPDX-License-Identifier: Apache-2.0
#pragma once
// A sequence that answers one request after another, a step at a time.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "episodic/session/run.hpp"
#include "in_flight.hpp"

namespace episodic::tools {

/// All its requests begin where the sequence stood at first: at the end of a memory, or with
/// nothing. A request whose prompt begins with what the one before read, or read and answered,
/// continues from there. Of the thread that computes.
class Lane {
 public:
  /// \param sequence must outlive it, and is nobody else's from now on
  /// \param max_tokens that a request may come to, answer included; 0: no limit
  Lane(Sequence& sequence, std::int64_t max_tokens);

  /// What became of a request.
  struct Outcome {
    Served served;
    std::exception_ptr failure;
  };

  bool free() const { return request_ == nullptr; }
  /// Number of the last step that it took part in.
  std::uint64_t last_used() const { return last_used_; }
  /// Tokens of a prompt that it need not read again.
  std::size_t reusable(std::span<const std::int64_t> prompt) const;

  /// Takes a request. \param prompt all tokens of its prompt
  void begin(std::shared_ptr<InFlight> request, std::vector<std::int64_t> prompt);
  /// The request of now, null if it is free.
  const std::shared_ptr<InFlight>& request() const { return request_; }
  /// Whether its next step reads a piece of the prompt: a long step, which others wait for.
  bool reads() const { return !answer_; }
  /// Of the next step. Not once `ended`.
  SequenceInput next_input();
  /// The step was made, or failed.
  void take(const StepResult& result, std::uint64_t step);
  /// Nobody wants the answer any more.
  void give_up();
  /// What became of the request, once it has ended; the lane is then free.
  std::optional<Outcome> take_outcome();

 private:
  /// What was read behind the start, and the sequence's state there.
  struct Point {
    std::vector<std::int64_t> ids;
    std::shared_ptr<const Sequence::Snapshot> state;
  };

  static bool continues(std::span<const std::int64_t> prompt, const std::vector<std::int64_t>& ids);
  void forget_requests();
  void begin_answer();
  void accept(const StepResult& result);
  void end_answer();
  void fail(std::exception_ptr failure);

  Sequence& sequence_;
  const std::int64_t max_tokens_;
  std::shared_ptr<const Sequence::Snapshot> start_;  // null with full attention
  Point prompt_end_;                                 // behind the last request's prompt
  std::vector<std::int64_t> read_;                   // all that was read behind the start
  std::uint64_t last_used_ = 0;

  // of the request
  std::shared_ptr<InFlight> request_;
  std::vector<std::int64_t> prompt_;
  std::size_t at_ = 0;       // tokens of the prompt that are read
  std::size_t pending_ = 0;  // tokens of the step that next_input asked for
  std::optional<Generation> answer_;
  Served served_;  // so far
  std::optional<Outcome> outcome_;
};

}  // namespace episodic::tools
