// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `run`: one step of many sequences, reading and writing mixed. Torch-free.
///
/// \code
/// struct Talk { episodic::Sequence sequence; episodic::Generation answer; };
/// std::vector<Talk> talks = ...;  // answer = model->generation(prompt)
/// std::vector<Talk*> open;
/// do {
///   std::vector<episodic::SequenceInput> inputs;
///   open.clear();
///   for (Talk& t : talks) {
///     if (t.answer.done()) continue;
///     inputs.push_back({&t.sequence, t.answer.next_input(t.sequence.chunk())});
///     open.push_back(&t);
///   }
///   const auto results = episodic::run(*model, inputs);
///   for (std::size_t i = 0; i < open.size(); ++i)
///     results[i] ? open[i]->answer.accept(results[i].logits) : open[i]->answer.cancel();
/// } while (!open.empty());
/// \endcode

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "episodic/session/generation.hpp"
#include "episodic/session/model.hpp"
#include "episodic/session/sequence.hpp"

namespace episodic {

/// What one sequence is to read in a step.
struct SequenceInput {
  Sequence* sequence = nullptr;
  std::span<const std::int64_t> ids;  ///< 1 to Sequence::chunk() of them
  StepKind kind = StepKind::prompt;   ///< of a step of one token; longer ones are read text
  /// False: the result has no logits, and a device need not be waited for.
  bool wants_logits = true;

  SequenceInput() = default;
  SequenceInput(Sequence* of, std::span<const std::int64_t> tokens, StepKind step_kind,
                bool logits = true)
      : sequence(of), ids(tokens), kind(step_kind), wants_logits(logits) {}
  SequenceInput(Sequence* of, const Generation::Input& input)
      : SequenceInput(of, input.ids, input.kind, input.wants_logits) {}
};

/// What came of it. Converts to true if the sequence has made its step.
struct StepResult {
  /// What kept the sequence from its step, null if nothing did. The sequence is as it was before,
  /// and may be stepped again.
  std::exception_ptr error;
  /// [vocab] that follow the sequence's last token, valid until its next step; empty where they
  /// were not wanted, and with an error.
  std::span<const float> logits;

  explicit operator bool() const { return error == nullptr; }
  /// The error in one line; empty without one.
  std::string message() const;
  /// Throws the error, if there is one.
  void require() const;
};

/// One step of all these sequences: the weights are read once for all of them. Each gives what it
/// would give alone, to the bit, whatever the others are (docs/sequences.md).
///
/// What is wrong with one input is that one's result, and leaves the others alone: DataError for no
/// sequence, no ids, more than its chunk, ids out of the vocabulary, a sequence of another model,
/// or one that an earlier input names already; and whatever its step throws (NaN logits, a memory
/// without room, a file that cannot be read). It returns a result for each input, in their order.
///
/// Any number of threads may call it at once, each for sequences of its own.
std::vector<StepResult> run(const Model& model, std::span<const SequenceInput> inputs);

}  // namespace episodic
