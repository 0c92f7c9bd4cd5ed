// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Retrieval for the methods rag and rag-s: the chunks of a context that are nearest to a question.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "episodic/model/sentence_encoder.hpp"
#include "run/chunks.hpp"

namespace episodic::suites {

/// As in EM-LLM's comparison with retrieval (its appendix): chunks of 300 words, the best five.
inline constexpr std::int64_t kChunkWords = 300, kRetrieved = 5;

class Retriever {
 public:
  /// A context and its chunks; their bytes count in `text`.
  struct Cut {
    std::string text;
    std::vector<Chunk> chunks;
  };
  using Cutter = std::function<Cut(const std::string& context)>;

  /// \param encoder must outlive it
  Retriever(const SentenceEncoder& encoder, Cutter cutter);

  struct Found {
    std::string context;               ///< the chosen chunks, as `joined` puts them together
    std::vector<std::int64_t> chosen;  ///< numbers of chunks, ascending
    std::int64_t chunks = 0;           ///< that there are
  };
  /// The chunks of a context whose vectors are nearest to the question's. The last context's chunks
  /// and vectors are remembered: it may be asked again.
  Found find(const std::string& context, const std::string& question);

 private:
  const SentenceEncoder& encoder_;
  Cutter cutter_;
  bool any_ = false;
  std::string context_;
  Cut cut_;
  std::vector<float> vectors_;  // [chunks, width]
};

}  // namespace episodic::suites
