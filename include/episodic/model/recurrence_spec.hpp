// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `RecurrenceSpec`: a layer whose heads carry a matrix from token to token, as data. Torch-free.

#include <cstdint>
#include <limits>

namespace episodic {

/// What a token does to the matrix of a head.
enum class RecurrenceKind : std::uint8_t {
  gated_delta,  ///< writes what the matrix does not say of the key yet (arXiv 2412.06464)
  mamba2,       ///< adds to it (arXiv 2405.21060); keys are its B, queries its C, values its x
};

/// Of each head h with a matrix S [key_dim, value_dim], its query q, key k and value v, a decay and
/// a weight of the token:
///
///     gated_delta: S = decay S + k (weight (v - k^T decay S))^T,  y = q^T S
///     mamba2:      S = decay S + k (weight v)^T,                  y = q^T S + skip[h] v
///
/// q, k and v pass a convolution over the last `taps` tokens and a SiLU before.
struct RecurrenceSpec {
  RecurrenceKind kind = RecurrenceKind::gated_delta;
  std::int64_t heads = 0;      ///< 0: the layer is none
  std::int64_t key_heads = 0;  ///< which share their queries and keys; they divide the heads
  std::int64_t key_dim = 0, value_dim = 0;  ///< of a head
  std::int64_t taps = 0;
  bool tiled = false;      ///< head h has the keys of h % key_heads, not of h / (heads / key_heads)
  bool conv_bias = false;  ///< of the convolution
  bool bias = false;       ///< of the products
  double least_step = 0;   ///< of Mamba2's time steps
  double most_step = std::numeric_limits<double>::infinity();

  explicit operator bool() const { return heads > 0; }
  bool delta() const { return kind == RecurrenceKind::gated_delta; }
  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return heads * value_dim; }
  /// What the convolution sees of a token: q, k, v, or in Mamba2 v, k, q.
  std::int64_t channels() const { return 2 * keys() + values(); }
  std::int64_t first_query() const { return delta() ? 0 : values() + keys(); }
  std::int64_t first_key() const { return delta() ? keys() : values(); }
  std::int64_t first_value() const { return delta() ? 2 * keys() : 0; }
  std::int64_t key_head(std::int64_t head) const {
    return tiled ? head % key_heads : head / (heads / key_heads);
  }
  /// Channels that share a norm behind the recurrence.
  std::int64_t norm_width() const { return delta() ? value_dim : values() / key_heads; }

  /// Floats of a sequence: [taps - 1, channels] that the convolution sees again, the oldest first,
  /// and behind them [heads, key_dim, value_dim].
  std::int64_t tail_floats() const { return (taps - 1) * channels(); }
  std::int64_t matrix_floats() const { return heads * key_dim * value_dim; }
  std::int64_t floats() const { return tail_floats() + matrix_floats(); }

  bool operator==(const RecurrenceSpec&) const = default;
};

}  // namespace episodic
