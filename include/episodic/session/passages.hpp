// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `PassageFinder`: where in a long text the answer to a question may stand, so that the model
/// reads that place again, near and in order. Torch-free.
///
/// \code
/// PassageFinder finder(engine.shared_model());
/// finder.read(*engine.memory(), engine.known_ids());
/// const std::vector<Passage> found = finder.find("Who closed the door?");
/// engine.ask(joined_text(found) + "\n\nWho closed the door?");
/// \endcode
///
/// A memory recalls for each layer by its queries, and that is what attention needs. To *find* a
/// place it is a weak guide: queries and keys lie in different directions, and what all queries
/// have in common outweighs what one asks. The finder compares like with like. It has two voices,
/// or three (ours):
///
/// - *keys*: a question's mean key against each event's representative keys, head by head in every
///   second layer, by their cosine after whitening (the inner product of the inverse covariance of
///   the events' keys). Both sides are centred: events by their mean, questions by the mean of a
///   few questions about nothing. This voice finds other words than the text's.
/// - *words*: BM25 over the words around each event, near ones counting more, rare ones more still.
/// - *encoder*, where there is one: the cosine of its vectors of the question and of 48 tokens
///   about each event.
///
/// Their ranks are fused: weights times 1 / (5 + rank), summed. Words weigh as much as the best
/// place has of the question's words, keys the rest, an encoder as much as both.
///
/// With `PassageOptions::rerank` the model then reads the best of them, each alone, and how likely
/// it makes the question behind each decides (Sachan et al. 2022, "Improving Passage Retrieval with
/// Zero-Shot Question Generation"), the square of the fused score being a prior (ours).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/memory/sequence_memory.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/session/model.hpp"
#include "episodic/session/window_vectors.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

/// A stretch of a text that was read, to be read again.
struct Passage {
  TokenRange tokens;  ///< of the sequence
  std::string text;
  /// In (0, 1]: 1 is what every voice ranks first. A tenth part is one voice's tenth place, about.
  /// Reranked, the likelihood of the question behind it times the square of that score, as a share
  /// of the best one's, for each of the question's tokens (geometric mean).
  double score = 0;
  /// Reranked: how much likelier the passage makes the question than no passage does, in nats for
  /// each of the question's tokens. Negative for a question about something else. A question
  /// without content ("Tell me more.") gains from any passage. 0 where it was not reranked.
  double gain = 0;
  /// Reranked: the same beside the middle one of the candidates instead of none (their median),
  /// with six more tokens that tell nothing: little can be told of a question of one word. It is
  /// high where the question is about this place rather than about the text (`is_sure`).
  double lead = 0;
  bool operator==(const Passage&) const = default;
};

struct PassageOptions {
  std::int64_t count = 3;     ///< most passages, >= 0
  std::int64_t tokens = 128;  ///< of each; borders move to sentence ends that are near. >= 1
  /// Candidates that the model reads, with the question behind each: those that make it likeliest
  /// come first. Each costs as much as reading the passage and the question. 0: none; what is below
  /// `count` counts as `count`.
  std::int64_t rerank = 0;
  /// With `rerank`: two places of what is in no closed event yet, the window, are candidates too,
  /// by their words. For whoever answers without the window.
  bool window = false;

  /// What answered most questions where a small model read the passages alone (docs/finding.md).
  static PassageOptions finds() { return {.count = 3, .tokens = 32, .rerank = 8, .window = true}; }
};

/// Whether the best of the passages is what the question asks for, as far as a model can tell: its
/// `lead` is at least 0.7 nats a token (ours; docs/finding.md has what was measured). An answer
/// from such passages alone needs no memory. Not so where nothing in the text answers, where the
/// text says it in many places, and for requests about the whole text or the conversation.
///
/// \param passages of one `find` with `rerank` of 4 or more; without it never
bool is_sure(std::span<const Passage> passages);

/// Where a question is read that passages were found for.
enum class PassageUse {
  behind_memory,  ///< behind them and the memory, which is attended to as well
  alone,          ///< behind them, by a sequence that holds nothing else
  /// `PassageOptions::finds` alone, where they are surely what the question asks for (`is_sure`);
  /// else `PassageOptions` behind the memory. What `ask` does by default in a chat format
  where_sure
};

/// What a question is read behind.
struct FoundPassages {
  std::vector<Passage> passages;  ///< best first
  /// They are to be read by a sequence that holds nothing else; otherwise behind the memory. Never
  /// where there are none, as of a memory whose text is all in its window.
  bool alone = false;
};

/// Finds passages of what one sequence has read. One thread at a time.
class PassageFinder {
 public:
  /// Reads a few short questions with the model when it is first asked.
  /// \throws ConfigError for a null model; FileError for one without a tokenizer
  explicit PassageFinder(std::shared_ptr<const Model> model);
  ~PassageFinder();
  PassageFinder(PassageFinder&&) noexcept;
  PassageFinder& operator=(PassageFinder&&) noexcept;

  /// A further voice: a sentence encoder's, which finds other words than the text's best. From the
  /// next `read` on, which encodes all of the text that has no vectors yet: about as much work as a
  /// model of 30M parameters has with reading it. Null: no more.
  void set_vectors(std::shared_ptr<WindowVectors> vectors);
  /// The same with vectors of its own. \param encoder must outlive the finder; null: no more
  void set_encoder(const SentenceEncoder* encoder);
  /// From the next `read` on the encoder's vectors are taken from this folder, and left there where
  /// it has them not yet. To be said again after each commit. Nothing without an encoder
  void keep_vectors(VectorFolder folder);

  /// Takes in the events that closed since the last call; begins anew where the sequence went back
  /// or is another one. Then encodes.
  /// \param ids of the sequence's tokens from its first on; negative: unknown or forgotten, in no
  ///        passage. Those behind the closed events are the window's.
  /// \param progress of the encoder, in pieces of the text. Where it says false the rest waits for
  ///        the next call
  /// \throws ConfigError for scope `head`: the events have no text in common. DataError for fewer
  ///         ids than the closed events have tokens
  void read(const SequenceMemory& memory, std::span<const std::int64_t> ids,
            const ProgressCallback& progress = {});
  /// The two halves of `read`, for whoever may not keep the memory from others as long as the
  /// encoder takes: `encode` needs it no more. Where the sequence only went on since the last call,
  /// `follow` costs what was added: what is known already is not looked at.
  /// \param ids_of ids of a range of tokens, asked for those that are needed
  void follow(const SequenceMemory& memory,
              const std::function<std::vector<std::int64_t>(TokenRange)>& ids_of);
  void follow(const SequenceMemory& memory, std::span<const std::int64_t> ids);
  /// \return whether all of the text has its vectors
  bool encode(const ProgressCallback& progress = {});

  /// The passages that have most to do with the question, best first; fewer where there are fewer.
  /// What is not in a closed event yet is in none, but for `PassageOptions::window`.
  /// \param progress of the candidates that the model reads. Where it says false, there are none
  /// \throws DataError for an empty question; ConfigError for options out of their range
  std::vector<Passage> find(std::string_view question, const PassageOptions& options = {},
                            const ProgressCallback& progress = {});
  /// The same, with where to read them. \param options not those of `where_sure`, which has its own
  FoundPassages find_for(PassageUse use, std::string_view question,
                         const PassageOptions& options = PassageOptions::finds(),
                         const ProgressCallback& progress = {});

  /// Events that it knows.
  std::int64_t events() const;
  /// Host memory that it takes, in bytes.
  std::int64_t bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The passages' texts in the order of the text that they are of, a line of "..." between two.
std::string joined_text(std::span<const Passage> passages);

}  // namespace episodic
