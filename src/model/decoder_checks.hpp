// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder's step looks at before and after.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "linear.hpp"

namespace episodic {

/// \throws DataError for a step of no tokens, or of ids out of the vocabulary
inline void require_ids(std::span<const std::int64_t> ids, std::int64_t vocab) {
  if (ids.empty()) throw DataError("Decoder::forward: no tokens; a step needs at least one");
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw DataError(
          fmt::format("Decoder::forward: ids[{}] = {} is not in the vocabulary of {} "
                      "tokens; use the tokenizer of this model",
                      i, ids[i], vocab));
}

/// Places in a batch: steps of one token, then others that are multiplied as few rows, then the
/// rest, so that each kind reads the weights once.
inline std::vector<std::size_t> by_length(std::span<const Decoder::SequenceStep> batch) {
  std::vector<std::size_t> order(batch.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto kind = [&](std::size_t i) {
    const auto n = static_cast<std::int64_t>(batch[i].ids.size());
    return n <= 1 ? 0 : class_of(n) == RowClass::few ? 1 : 2;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return kind(a) < kind(b); });
  return order;
}

/// \throws DataError for a layer without its slot, and for a state that is not there or keeps
///         nothing for the model's layers without attention
inline void require_attention(std::span<const std::shared_ptr<AttentionSlot>> slots,
                              const std::shared_ptr<SequenceState>& state,
                              const ModelConfig& config) {
  for (std::size_t layer = 0; layer < slots.size(); ++layer)
    if (!slots[layer] && config.layers[layer].mixer == Mixer::attention)
      throw DataError(
          fmt::format("Decoder::forward: the attention slot of layer {} is empty; put "
                      "one there, or call use_full_attention",
                      layer));
  if (!state)
    throw DataError(
        "Decoder::forward: the model has no sequence state; put one there, or call "
        "use_full_attention");
  if (!state->recurrent() && has_recurrent_layers(config))
    throw DataError(
        "Decoder::forward: the sequence state keeps nothing for layers without attention; put one "
        "there that does (SequenceState::recurrent), or call use_full_attention");
}

/// \throws DataError on all ranks where one was given another step than the first
inline void require_same_step(Group& group, const SequenceState* state,
                              std::span<const std::int64_t> ids, StepKind kind) {
  std::vector<std::int64_t> given{static_cast<std::int64_t>(kind), state ? state->tokens() : 0};
  given.insert(given.end(), ids.begin(), ids.end());
  if (group.of_first(given) != given)
    throw DataError(
        fmt::format("Decoder: rank {} of {} was given another step than rank 0; feed all ranks the "
                    "same tokens in the same steps",
                    group.rank(), group.size()));
}

/// Makes a step on all ranks of a group or on none. \param group null: one process
template <class F>
auto on_all_ranks(Group* group, const SequenceState* state, std::span<const std::int64_t> ids,
                  StepKind kind, F&& step_of) {
  return as_one(group, [&] {
    if (group) require_same_step(*group, state, ids, kind);
    return step_of();
  });
}

/// One step after another, as a group makes them.
inline std::vector<std::exception_ptr> try_in_turn(std::span<const Decoder::SequenceStep> batch) {
  std::vector<std::exception_ptr> errors(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    try {
      batch[i].sequence->step(batch[i].ids, batch[i].kind);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  }
  return errors;
}

inline bool is_data_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const DataError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace episodic
