// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the short convolutions of a model carry of one sequence, on a device: rings, as those of
// keys and values, so that snapshots share their rows in the same way (KeptRows).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "kept_rows.hpp"
#include "kernels/short_convolution.hpp"

namespace episodic::device {

/// Rings of B * x in float32, [capacity, width]: of the tokens that the next one sees, and of a
/// step. A step that fails leaves them as they count: its rows are others, and are written again.
class ShortConvolutions {
 public:
  ShortConvolutions() = default;
  /// \param layers of the model; those with attention are left out
  ShortConvolutions(const ModelConfig& config, std::span<const std::int64_t> layers,
                    std::int64_t chunk);

  bool empty() const { return layers_.empty(); }
  void lay_out(Layout& layout);
  std::vector<KeptRows::Ring> rings() const;

  /// The state and the taps' sizes of a layer; rows, weights and dtype are the caller's to set.
  /// \throws DataError for a layer that is none of these
  kernels::ShortConvolutionParams params(std::int64_t layer, std::int64_t n,
                                         const std::int64_t* position) const;

  /// Between the rings and a state behind `tokens` tokens.
  /// \param bytes those from `base` on, as they are or are to be in device memory
  void read(std::span<const std::byte> bytes, const std::byte* base, std::int64_t tokens,
            RecurrentState& to) const;
  void write(const RecurrentState& from, const std::byte* base, std::int64_t tokens,
             std::span<std::byte> bytes) const;

 private:
  struct Layer {
    std::int64_t number = 0, taps = 0, capacity = 0;  // in tokens
    std::byte* ring = nullptr;
  };
  template <class F>
  void for_rows(const Layer& layer, const std::byte* base, std::int64_t tokens, F&& f) const;

  std::int64_t width_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace episodic::device
