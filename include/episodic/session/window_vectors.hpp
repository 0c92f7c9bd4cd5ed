// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `WindowVectors`: a sentence encoder's vectors of the windows of texts, computed once for all who
/// find passages there (session/passages.hpp), and left beside kept memories. Torch-free.
///
/// \code
/// const auto encoder = std::make_shared<const SentenceEncoder>(SentenceEncoder::open(dir));
/// const auto vectors = std::make_shared<WindowVectors>(encoder);
/// PassageFinder finder(model);
/// finder.set_vectors(vectors);                       // shared with other finders
/// finder.keep_vectors(VectorFolder::of(*memory));    // and with later processes
/// finder.read(*memory, memory->token_ids(0, memory->tokens()));
/// \endcode
///
/// A vector is kept in float16, 2 bytes a number: with all-MiniLM-L6-v2, 768 bytes for 24 tokens of
/// text. It belongs to the text of a window, whatever sequence the text stands in.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "episodic/base/callbacks.hpp"
#include "episodic/base/io.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// The folder of a kept memory as it stood at one commit. Vectors of its text lie there in a file
/// that is only a cache (docs/format.md). Nothing depends on the file: one that is missing, damaged
/// or of another encoder is made anew, and one that cannot be written is not written. It is written
/// while the memory's last commit is still this one, so that it never brings back what a later
/// commit has forgotten.
struct VectorFolder {
  std::filesystem::path dir;  ///< empty: none
  std::uint64_t memory = 0;   ///< MemoryManifest::id
  std::int64_t generation = 0;
  io::Syscalls* calls = nullptr;  ///< null: the real ones

  /// Of a memory at its last commit; none where it is kept in no folder.
  static VectorFolder of(const EpisodicMemory& memory);
};

struct WindowVectorsCounters {
  std::int64_t vectors = 0, bytes = 0;  ///< there now
  std::int64_t encoded = 0;             ///< windows that the encoder read
  std::int64_t reused = 0;              ///< windows whose vector was there, or in a folder
  std::int64_t refused = 0;             ///< windows that found no room
};

/// May be used from several threads, by any number of finders. Windows are encoded 16 at a time,
/// those of one finder after those of another.
class WindowVectors {
 public:
  static constexpr std::int64_t kBytes = std::int64_t{512} << 20;  ///< of 16 million tokens, about

  /// \param bytes of all vectors. Those that no finder holds any more go first, the longest unused
  ///        before others. A text that finds no room is found by keys and words alone from there on
  /// \throws ConfigError for a null encoder and for bytes < 0
  explicit WindowVectors(std::shared_ptr<const SentenceEncoder> encoder,
                         std::int64_t bytes = kBytes);
  ~WindowVectors();
  WindowVectors(const WindowVectors&) = delete;
  WindowVectors& operator=(const WindowVectors&) = delete;

  const SentenceEncoder& encoder() const;
  WindowVectorsCounters counters() const;

  /// Computes what a finder will need of a kept memory's closed events, and leaves it in the
  /// memory's folder. To be called after a commit.
  /// \param progress in windows. Where it says false the rest is left out
  /// \return whether all of the text has its vectors
  /// \throws ConfigError for a memory that is not kept, and as PassageFinder::read
  bool keep(const EpisodicMemory& memory, const Tokenizer& tokenizer,
            const ProgressCallback& progress = {});

 private:
  friend class EncoderVoice;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
