// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How much a tokenizer may make of a text: its file can multiply texts without end.

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "episodic/base/error.hpp"

namespace episodic::text {

/// Bytes that the steps of a normalizer or decoder may write for one text.
class Growth {
 public:
  /// \param what for the message \param bytes of the text that comes in
  Growth(std::string_view what, std::size_t bytes)
      : what_(what), bytes_(bytes), most_(kTimes * bytes + kFree) {}

  /// \throws DataError if one step's output is longer than all that is left
  void check(std::size_t bytes) const {
    if (bytes > most_)
      throw DataError(
          fmt::format("the {} of the tokenizer makes more than {} bytes of a text of {}; take out "
                      "the steps that multiply the text (Replace, Prepend)",
                      what_, kTimes * bytes_ + kFree, bytes_));
  }
  /// The output stays: what comes after it has less left. \throws DataError
  void keep(std::size_t bytes) {
    check(bytes);
    most_ -= bytes;
  }

 private:
  // Unicode's longest compatibility form is 11 times its character, a mark for a space 3 times.
  static constexpr std::size_t kTimes = 64, kFree = 1 << 20;

  std::string_view what_;
  std::size_t bytes_, most_;
};

/// Steps of one kind in tokenizer.json, at the most.
constexpr std::size_t kMostSteps = 128;

}  // namespace episodic::text
