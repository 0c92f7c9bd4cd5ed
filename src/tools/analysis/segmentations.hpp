// SPDX-License-Identifier: Apache-2.0
#pragma once
// Boundaries of one text by every segmentation that the papers compare, from what a model made of
// it. A boundary is the number of the token that opens an event; the text's first token opens the
// first event and is no boundary. Events may be of any length: what bounds them in a memory
// (max_block, the window) is left out, for that is not what is compared.

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "analysis/keys.hpp"
#include "episodic/base/config.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/key_segmenter.hpp"

namespace episodic::analysis {

using Boundaries = std::vector<std::int64_t>;

/// [text.start, b_1), [b_1, b_2) .. [b_m, text.end).
std::vector<TokenRange> events_between(TokenRange text, std::span<const std::int64_t> boundaries);

/// EM 3.2: surprise above mu + gamma * sigma.
/// \param surprise of tokens 0 .. text.end - 1
/// \param config window, tau and chunk (what `chunked` takes its statistics over)
Boundaries surprise_boundaries(std::span<const float> surprise, const MemoryConfig& config,
                               double gamma, TokenRange text);

/// The same moved, step by step of `config.chunk` tokens as a memory does it (EM 3.3). Boundaries
/// nearer than min_block to the one before are dropped.
/// \param objective not none \param first_layer layers from this one on make the graph
Boundaries refined_boundaries(const RecordedKeys& keys, std::span<const std::int64_t> raw,
                              const MemoryConfig& config, Refinement objective,
                              std::int64_t first_layer, TokenRange text);

/// `count` boundaries at equal distances; fewer where the text is too short for so many.
Boundaries fixed_boundaries(std::int64_t count, TokenRange text);

/// `count` of the text's tokens but the first, each set of them as likely as any other.
Boundaries random_boundaries(std::int64_t count, TokenRange text, std::mt19937_64& random);

/// Boundaries of a KeySegmenter (HEM 2.2 to 2.4) at one gamma after another. What a key
/// says of the event that began at some token does not depend on gamma, so it is computed once for
/// each token that any gamma has begun an event at; the boundaries are those of the KeySegmenter.
class KeyCuts {
 public:
  /// \param key of a token, as KeySegmenter::next takes it; must outlive this
  /// \param heads, head_dim as KeySegmenter's \param settings gamma and n_init are not looked at
  KeyCuts(const KeySegmenterSettings& settings, std::int64_t heads, std::int64_t head_dim,
          TokenRange text, std::function<std::span<const float>(std::int64_t)> key);
  KeyCuts(KeyCuts&&) noexcept;
  ~KeyCuts();

  Boundaries boundaries(double gamma);

 private:
  struct Path;
  KeySegmenterSettings settings_;
  std::int64_t heads_, head_dim_;
  TokenRange text_;
  std::function<std::span<const float>(std::int64_t)> key_;
  std::vector<std::unique_ptr<Path>> paths_;  // by the token that the event began at
};

}  // namespace episodic::analysis
