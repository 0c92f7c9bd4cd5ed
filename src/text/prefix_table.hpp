// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `PrefixTable`: which strings of a list a text begins with.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace episodic::text {

/// Immutable. The strings must outlive it.
class PrefixTable {
 public:
  using Entry = std::pair<std::string_view, std::int64_t>;

  PrefixTable() = default;
  /// \param entries strings, none empty and each one once, and what each stands for
  explicit PrefixTable(std::vector<Entry> entries) : entries_(std::move(entries)) {
    std::sort(entries_.begin(), entries_.end());
    for (const Entry& e : entries_) ++first_[byte(e.first, 0) + 1];
    for (std::size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
  }

  /// Calls f(bytes, what) for every string that the text begins with, the shortest first.
  template <class F>
  void each(std::string_view text, F&& f) const {
    if (text.empty()) return;
    // Sorted as bytes: those that begin as the text does lie side by side, the shortest in front.
    auto begin = entries_.begin() + static_cast<std::ptrdiff_t>(first_[byte(text, 0)]);
    auto end = entries_.begin() + static_cast<std::ptrdiff_t>(first_[byte(text, 0) + 1]);
    for (std::size_t n = 1; begin != end; ++n) {
      if (begin->first.size() == n) {
        f(n, begin->second);
        ++begin;
      }
      if (n == text.size()) return;
      const std::size_t next = byte(text, n);
      begin =
          std::partition_point(begin, end, [&](const Entry& e) { return byte(e.first, n) < next; });
      end = std::partition_point(begin, end,
                                 [&](const Entry& e) { return byte(e.first, n) <= next; });
    }
  }

  /// Bytes of the longest string that the text begins with; 0: none.
  std::size_t longest(std::string_view text) const {
    std::size_t length = 0;
    each(text, [&](std::size_t n, std::int64_t) { length = n; });
    return length;
  }

 private:
  static std::size_t byte(std::string_view s, std::size_t at) {
    return static_cast<unsigned char>(s[at]);
  }

  std::vector<Entry> entries_;
  std::array<std::size_t, 257> first_{};  // where those begin whose first byte it is
};

}  // namespace episodic::text
