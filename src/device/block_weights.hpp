// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which weights stay in blocks on a device, and how they get there (kernels/blocks.hpp).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cuda.hpp"
#include "episodic/model/weight_plan.hpp"
#include "kernels/blocks.hpp"

namespace episodic::device {

/// As what the kernels keep weights of a file's type; nothing: as numbers of the model's dtype.
std::optional<kernels::BlockType> block_type_of(TensorType type);

/// Whether matrices stay in blocks at all: not where activations are exact (model/activations.hpp),
/// which products of blocks round.
bool keeps_blocks();

/// Rows of these weights behind each other, whose places are still to be taken. No parts where they
/// are widened: one of them is no block type of the kernels, or something is added to it, or their
/// types differ in a way that the products do not take.
/// \param gated the first half of the rows opens the other one
/// \param fp8 whether plain weights become E4M3
kernels::BlockWeights plan_blocks(std::span<const WeightView> weights, bool gated,
                                  bool fp8 = false);

/// Takes the parts' places. \param c may only count
void lay_out_blocks(Layout& c, kernels::BlockWeights& blocks, std::int64_t in);

/// Copies rows into their places, some at a time.
class BlockLoader {
 public:
  /// Copies bytes to the device, and is done with their source when it returns.
  using Copy = std::function<void(void* to, const void* from, std::int64_t bytes)>;
  explicit BlockLoader(Copy copy) : copy_(std::move(copy)) {}

  /// `count` rows to row `first` of all parts' rows, within one part. \param source (i): which row
  /// of `from` is the i-th
  /// \throws DataError where a row that becomes E4M3 has a number that is not finite
  void load(const kernels::BlockWeights& to, std::int64_t first, const WeightView& from,
            std::int64_t count, const std::function<std::int64_t(std::int64_t)>& source);

 private:
  Copy copy_;
  void round_row(const WeightView& from, std::int64_t row, const kernels::BlockPlanesAt& to);

  std::vector<std::byte> planes_;
  std::vector<float> wide_;
  std::vector<std::uint8_t> codes_;
};

}  // namespace episodic::device
