// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `RecurrentState`: what the layers without attention carry of one sequence from token to token.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/model/hf_config.hpp"

namespace episodic {

/// Numbers of each layer that carries a state (`LayerSpec::mixer`): those after the last token that
/// counts, and room for those after the step that is open. A step reads `now`, writes all of `next`
/// and counts by `commit`; without that call it leaves no trace. A value: copies are independent.
///
/// A short convolution of L taps keeps what it would read again of the last L - 1 tokens,
/// [L - 1, hidden], the oldest first; zeros stand for tokens before the first. A recurrence keeps
/// the same of its convolution, and the matrices of its heads behind it (RecurrenceSpec::floats).
class RecurrentState {
 public:
  /// One without layers.
  RecurrentState() = default;
  /// That of the empty sequence: zeros.
  explicit RecurrentState(const ModelConfig& config);

  /// True if no layer of the model carries a state.
  bool empty() const { return layers_.empty(); }
  /// Bytes of `now`.
  std::int64_t bytes() const { return static_cast<std::int64_t>(now_.size() * sizeof(float)); }

  /// \throws DataError for a layer that carries no state
  std::span<const float> now(std::int64_t layer) const;
  std::span<float> next(std::int64_t layer);
  /// Replaces `now` of a layer: what was computed elsewhere. \throws DataError for another length
  void set(std::int64_t layer, std::span<const float> numbers);

  /// The step counts: every layer has written its `next`.
  void commit() noexcept { now_.swap(next_); }
  /// Back to the empty sequence.
  void clear() noexcept;

  /// Version, each layer's number and its numbers, and a checksum.
  void save(ByteWriter& to) const;
  /// \throws FileError for damage, another version, and what another model carries: it is then as
  ///         it was
  void load(ByteReader& from);

 private:
  struct Layer {
    std::int64_t number = 0;
    std::size_t first = 0, count = 0;  // of now_ and next_
  };
  const Layer& at(std::int64_t layer) const;
  std::uint64_t checksum() const;

  std::vector<Layer> layers_;
  std::vector<float> now_, next_;
};

/// Floats that a layer carries of a sequence; 0 where it has attention.
std::int64_t recurrent_floats(const ModelConfig& config, const LayerSpec& layer);

/// True if some layer has no attention.
bool has_recurrent_layers(const ModelConfig& config);

/// \throws ConfigError if some layer has no attention, or a gate behind it, for what computes
///         attention alone
/// \param who for the message, "training" for instance
void require_attention_in_all_layers(const ModelConfig& config, const std::string& who);

}  // namespace episodic
