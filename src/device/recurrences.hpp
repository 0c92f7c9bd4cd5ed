// SPDX-License-Identifier: Apache-2.0
#pragma once
// What recurrences carry of one sequence, on a device: rings of what their convolutions read, as
// those of short convolutions, and the matrices of their heads, twice: a step reads the one and
// writes the other (kernels/linear_recurrence.hpp).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "kept_rows.hpp"
#include "kernels/linear_recurrence.hpp"

namespace episodic::device {

class Recurrences {
 public:
  Recurrences() = default;
  /// \param layers of the model; those without a recurrence are left out
  /// \throws ConfigError for heads that no kernel has
  Recurrences(const ModelConfig& config, std::span<const std::int64_t> layers, std::int64_t chunk);

  bool empty() const { return layers_.empty(); }
  void lay_out(Layout& layout);
  /// Of the convolutions, for KeptRows.
  std::vector<KeptRows::Ring> rings() const;

  /// The state and the sizes of a layer; rows, weights, workspaces and dtype are the caller's to
  /// set. \throws DataError for a layer that is none of these
  kernels::LinearRecurrenceParams params(std::int64_t layer, std::int64_t n,
                                         const std::int64_t* position) const;

  /// The matrices behind so many tokens, which a snapshot copies to host memory. Waits.
  std::vector<float> copy_matrices(std::int64_t tokens, cudaStream_t stream) const;
  /// Puts them back. Waits.
  void put_matrices(const std::vector<float>& copied, std::int64_t tokens,
                    cudaStream_t stream) const;

  /// Between the device and a state behind `tokens` tokens.
  /// \param bytes those from `base` on, as they are or are to be in device memory
  void read(std::span<const std::byte> bytes, const std::byte* base, std::int64_t tokens,
            RecurrentState& to) const;
  void write(const RecurrentState& from, const std::byte* base, std::int64_t tokens,
             std::span<std::byte> bytes) const;

 private:
  struct Layer {
    std::int64_t number = 0;
    RecurrenceSpec spec;
    std::int64_t capacity = 0;  // of the ring, in tokens
    std::byte* ring = nullptr;
    float* matrix = nullptr;      // [2, heads, key_dim, value_dim]
    std::int64_t* tag = nullptr;  // [2, tags()]

    std::int64_t tags() const { return spec.heads * kernels::recurrent_pieces(spec.value_dim); }
    std::size_t matrix_bytes() const {
      return static_cast<std::size_t>(spec.matrix_floats()) * sizeof(float);
    }
  };
  template <class F>
  static void for_rows(const Layer& layer, const std::byte* base, std::int64_t tokens, F&& f);
  static int slot_of(const Layer& layer, const std::int64_t* tags, std::int64_t tokens);

  std::vector<Layer> layers_;
};

}  // namespace episodic::device
