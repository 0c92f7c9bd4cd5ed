// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What retrieval works on: a text cut into chunks, and the chunks whose vectors are nearest to the
/// question's.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::suites {

/// Bytes [begin, end) of a text.
struct Chunk {
  std::size_t begin = 0, end = 0;
  bool operator==(const Chunk&) const = default;
};

/// Chunks of `words` words (the last one of what is left), end to end from the text's first byte to
/// its last. A word is what white space parts; a Chinese, Japanese or Korean character is one too.
std::vector<Chunk> word_chunks(std::string_view text, std::int64_t words);

/// Chunks of whole events: as many side by side as have no more than `words` words together, at
/// least one.
/// \param ends byte behind each event, ascending; bytes behind the last one are an event as well
std::vector<Chunk> event_chunks(std::string_view text, std::span<const std::size_t> ends,
                                std::int64_t words);

/// The chunks' texts in the order of the text, an empty line where something between two was left
/// out. All chunks together give the text itself.
/// \param chosen numbers of chunks, ascending
std::string joined(std::string_view text, std::span<const Chunk> chunks,
                   std::span<const std::int64_t> chosen);

/// Numbers of the `top` vectors (all, if there are fewer) with the largest inner product with
/// `query`, ascending. By FAISS (IndexFlatIP) in builds with it, else by nearest_exact.
/// \param vectors [n, query.size()]
std::vector<std::int64_t> nearest(std::span<const float> vectors, std::span<const float> query,
                                  std::int64_t top);

/// The same by a plain scan in float64; of equal ones the first.
std::vector<std::int64_t> nearest_exact(std::span<const float> vectors,
                                        std::span<const float> query, std::int64_t top);

/// What `nearest` searches with, for results.
const char* search_name();

}  // namespace episodic::suites
