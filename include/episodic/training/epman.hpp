// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// EpMAN's denoising training (EpMAN 3.5, appendix E): a model learns to answer from what
/// its memory recalls while the recalled events' weights are noise. Torch-free.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/model/frozen_products.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/training/lora_settings.hpp"

namespace episodic {

class TrainableDecoder;  // training/trainable_decoder.hpp

struct ReaderHeads;  // session/reader_heads.hpp

/// A text, a question about it, and the answer. Nothing is put between them: entries, question and
/// answer bring their own white space.
struct EpmanExample {
  std::vector<std::string> entries;  ///< the text in pieces that may come in any order
  /// Numbers of the entries that the answer follows from; empty: those that hold it as a text,
  /// white space and marks around it left out. Only the reader's training looks at them.
  std::vector<std::int64_t> evidence;
  std::string question;
  std::string answer;  ///< what the model should go on with behind the question
  std::string place;   ///< where it came from, for messages: "FILE:LINE"
};

/// Examples from a file of one JSON object a line: {"entries": [...], "question": "...",
/// "answer": "..."}, and where it is known "evidence": [numbers of entries, from 0]; empty lines
/// are passed over, other keys too. \throws FileError naming file and line, of a line that is no
/// such object; naming the file, where
///         it holds no example
std::vector<EpmanExample> read_epman_examples(const std::filesystem::path& path);

struct EpmanSettings {
  LoraSettings lora;
  /// Of each example. `reweight` is `narrow` (and `contiguity` 0) where it says neither `narrow`
  /// nor `broad`: training attends to the top K events, K being `reweight_top`.
  MemoryConfig memory;
  /// While question and answer are read, each recalled event's weight is drawn uniformly from
  /// [1 - beta * K * 0.1, 1], once an example, the same in all layers. 0: no noise; at most 10 / K.
  double beta = 0.2;
  /// Entries come in another order whenever an example comes again. (The paper shuffles the top K
  /// events as well: in this memory they share one position, so their order is no input.)
  bool shuffle = true;
  /// Gradients also reach the text's keys and values; false: those of question and answer alone,
  /// in about a third of the time.
  bool through_context = true;
  /// Trains read and write heads over the memory's key space as well (session/reader_heads.hpp):
  /// behind the question, the loss gets `retrieval_weight` times the cross-entropy of the true
  /// events (those that share tokens with the evidence) among all closed ones, by a softmax over
  /// `retrieval_scale` times the cosines, mean over the layers (EpMAN 3.5). Several true
  /// events count together. Its gradient reaches the heads alone: which tokens represent an event
  /// is not differentiated. An example whose evidence is still in the window has no such term.
  bool reader = false;
  double retrieval_weight = 0.1;  ///< >= 0
  double retrieval_scale = 20;    ///< > 0; the paper gives none, this one is sentence-transformers'
  std::int64_t steps = 200;       ///< of the optimiser, >= 0
  std::int64_t batch = 4;         ///< examples a step, >= 1
  double learning_rate = 2e-3;    ///< of AdamW, after `warmup` steps; falls linearly to 0
  std::int64_t warmup = 10;       ///< steps over which it rises, >= 0
  double weight_decay = 0;        ///< >= 0
  double clip = 1;                ///< largest norm of a step's gradient; > 0
  std::uint64_t seed = 0;         ///< of order and noise; the adapter's own is in `lora`

  /// \throws ConfigError naming the setting
  void validate() const;
};

/// How an example went: its answer's tokens, each after the right ones before it.
struct EpmanOutcome {
  double loss = 0;          ///< mean over the answer's tokens, nats
  std::int64_t tokens = 0;  ///< of the answer
  std::int64_t right = 0;   ///< of them, those that were the likeliest
  /// Of the reader, if it is trained and the evidence was in closed events; else -1.
  double retrieval_loss = -1;  ///< cross-entropy, nats
  double retrieved = -1;       ///< share of layers in which a true event had the largest score
};

/// A step of the optimiser, for a curve.
struct EpmanStep {
  std::int64_t step = 0;       ///< from 1
  double loss = 0;             ///< mean over the step's examples
  double right = 0;            ///< share of answer tokens that were the likeliest
  double retrieval_loss = -1;  ///< mean over the examples that have one; -1: none, or no reader
  double gradient = 0;         ///< its norm before clipping
  double learning_rate = 0;
  double seconds = 0;  ///< since training began
};

/// Trains an adapter. The settings' memory reads each example by itself: its text in chunks, the
/// question as a step of its own, then the answer token by token, as in use.
class EpmanTrainer {
 public:
  /// Both must outlive it. \param products as TrainableDecoder has them
  /// \throws ConfigError, as TrainableDecoder
  EpmanTrainer(const OpenModel& model, const Tokenizer& tokenizer, EpmanSettings settings,
               std::shared_ptr<FrozenProducts> products = nullptr);
  ~EpmanTrainer();

  /// Makes the settings' steps over the examples, in an order drawn anew for each pass.
  /// \param after_step called after each; false ends training there
  /// \throws DataError for no examples, an example without tokens in its question or answer, and a
  ///         loss or gradient that is not finite; all name the example
  void train(std::span<const EpmanExample> examples,
             const std::function<bool(const EpmanStep&)>& after_step = {});

  /// Without noise, shuffling or gradients. \throws DataError as train
  EpmanOutcome evaluate(const EpmanExample& example);

  /// The reader's heads as they are now. \throws ConfigError without `reader`
  ReaderHeads heads() const;

  /// The model that is trained; its recall hook is the trainer's.
  TrainableDecoder& decoder();
  const EpmanSettings& settings() const;

  /// A folder with the adapter, the reader's heads (ReaderHeads::kFile) and further files (name,
  /// content), which appears whole or not at all. \param base what adapter_config.json calls the
  /// model \throws FileError, also if something is there already; DataError as
  /// TrainableDecoder::save
  void save(const std::filesystem::path& dir, const std::string& base,
            std::span<const std::pair<std::string, std::string>> further = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// \throws FileError if `dir` is there and is no empty folder, or the folder around it is not there
void require_new_folder(const std::filesystem::path& dir);

}  // namespace episodic
