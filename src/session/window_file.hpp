// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The file of a memory's folder that keeps an encoder's vectors (docs/format.md): a cache, which
/// is believed only as far as it can be checked.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "episodic/session/window_vectors.hpp"
#include "window_store.hpp"

namespace episodic {

/// Vectors with the digests of their texts.
struct WindowFile {
  std::vector<TextDigest> digests;
  std::vector<std::uint16_t> numbers;  ///< [digests, width], float16

  /// What it is called beside a memory. Encoders with other weights have another one.
  static std::string name(const SentenceEncoder& encoder);
  /// Whether there is one, whole or not.
  static bool is_there(const VectorFolder& folder, const SentenceEncoder& encoder);
  /// Nothing where there is none, or none that is whole and of this encoder.
  static std::optional<WindowFile> read(const VectorFolder& folder, const SentenceEncoder& encoder);
  /// In place of what is there. \return whether it was written: not where the folder cannot be
  /// written or is full, and not where the memory has another commit by now
  bool write(const VectorFolder& folder, const SentenceEncoder& encoder) const;
};

}  // namespace episodic
