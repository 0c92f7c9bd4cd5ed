// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `LatentSpec`: attention whose keys and values follow from one short vector of each token, as
/// data (latent attention, DeepSeek V2, arXiv 2405.04434). Torch-free.

#include <cstdint>

namespace episodic {

/// A head has a part that turns, whose key is the same in all heads, and a part that does not. Its
/// scores q . W c are those of W^T q with the latent c itself, so attention sees one key head: the
/// turning part and c, `width()` channels, which are the value too. What it gives of c goes through
/// each head's product of values. A memory then keeps one short row of a token for all heads.
struct LatentSpec {
  std::int64_t rank = 0;     ///< of c; 0: the layer has ordinary heads
  std::int64_t q_rank = 0;   ///< between the two products that make queries; 0: there is one
  std::int64_t turning = 0;  ///< channels of a head that turn (qk_rope_head_dim)
  std::int64_t still = 0;    ///< and those that do not (qk_nope_head_dim)
  std::int64_t value = 0;    ///< channels of a head's value (v_head_dim)
  bool bias = false;         ///< of the products that make c and the queries' short vector

  std::int64_t width() const { return turning + rank; }  ///< of the head that attention sees
  std::int64_t query() const { return turning + still; }
  explicit operator bool() const { return rank > 0; }
  bool operator==(const LatentSpec&) const = default;
};

}  // namespace episodic
