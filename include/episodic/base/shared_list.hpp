// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A list that grows and is cut at its end, whose beginning many copies can share.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Elements that were shared, in a block that never changes, and behind them elements of its own.
/// A copy takes room for the latter alone. Copies on several threads do not meet.
template <class T>
class SharedList {
 public:
  std::size_t size() const { return n_shared_ + own_.size(); }
  bool empty() const { return size() == 0; }
  const T& operator[](std::size_t i) const {
    return i < n_shared_ ? (*shared_)[i] : own_[i - n_shared_];
  }
  /// \pre not empty
  const T& back() const { return (*this)[size() - 1]; }
  /// The elements, copied.
  std::vector<T> all() const {
    std::vector<T> copy;
    copy.reserve(size());
    if (shared_)
      copy.assign(shared_->begin(), shared_->begin() + static_cast<std::ptrdiff_t>(n_shared_));
    copy.insert(copy.end(), own_.begin(), own_.end());
    return copy;
  }

  /// Room for `n` more elements, so that appending them cannot fail.
  void reserve(std::size_t n) {
    const std::size_t needed = own_.size() + n;
    if (needed > own_.capacity()) own_.reserve(std::max(needed, 2 * own_.capacity()));
  }
  void push_back(const T& element) { own_.push_back(element); }
  template <class Iterator>
  void append(Iterator first, Iterator last) {
    own_.insert(own_.end(), first, last);
  }
  /// Forgets the elements from n on; none if there are no more.
  void truncate(std::size_t n) noexcept {
    if (n >= size()) return;
    own_.erase(own_.begin() + static_cast<std::ptrdiff_t>(n - std::min(n, n_shared_)), own_.end());
    n_shared_ = std::min(n, n_shared_);
    if (n_shared_ == 0) shared_.reset();
  }
  void clear() noexcept { truncate(0); }

  /// Makes all elements shared: a copy takes no room for them from now on. Where some were not, all
  /// are copied once.
  void share() {
    if (own_.empty()) return;
    shared_ = std::make_shared<const std::vector<T>>(all());
    n_shared_ = shared_->size();
    own_ = std::vector<T>();
  }

 private:
  std::shared_ptr<const std::vector<T>> shared_;
  std::size_t n_shared_ = 0;  // of its first elements
  std::vector<T> own_;
};

}  // namespace EPISODIC_NAMESPACE
