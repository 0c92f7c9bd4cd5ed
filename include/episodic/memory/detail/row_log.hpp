// SPDX-License-Identifier: Apache-2.0
#pragma once
// How snapshots share a window with the memory that goes on: rows of its rings are saved when they
// are about to be overwritten, and put back when the memory goes back. So a snapshot of a long
// window costs what the steps behind it overwrite, and no more.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// What was overwritten between one snapshot and the next later one. The window as it was at a
/// snapshot is the present one with the rows of all later logs and of its own put back, the latest
/// first. A snapshot holds its own, each log the next; the memory only watches the last, and saves
/// nothing when no snapshot is left.
struct RowLog {
  /// Rows of one layer's rings, where tokens [first, end) went: what was there before.
  struct Layer {
    std::int64_t first = 0, end = 0;
    std::vector<std::byte> rows;  ///< [end - first, 3, G, d] in the rings' dtype and order
  };

  RowLog(std::int64_t at_token, std::uint64_t of_version, std::size_t n_layers)
      : tokens(at_token), version(of_version), layers(n_layers, {at_token, at_token, {}}) {}
  ~RowLog() {  // in turn: a chain may be longer than the stack is deep
    for (std::shared_ptr<RowLog> next = std::move(later); next && next.use_count() == 1;)
      next = std::exchange(next->later, nullptr);
  }
  RowLog(const RowLog&) = delete;
  RowLog& operator=(const RowLog&) = delete;

  /// Nothing was overwritten since.
  void clear() noexcept {
    for (Layer& layer : layers) layer.end = layer.first, layer.rows.clear();
    later = nullptr;
  }

  const std::int64_t tokens;    ///< of the sequence then
  const std::uint64_t version;  ///< of the window: it may change without tokens (advance)
  std::vector<Layer> layers;
  std::shared_ptr<RowLog> later;  ///< null: the memory's last one
};

}  // namespace EPISODIC_NAMESPACE::detail
