// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Engine`: a model with its tokenizer and the memory that its attention reads, on the host or on
/// a CUDA device alike. Torch-free; the host's engine is part of episodic::episodic, the device's
/// of episodic::device (device/device_engine.hpp).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/sequence_memory.hpp"
#include "episodic/model/keys_hook.hpp"
#include "episodic/model/language_model.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/session.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// What a memory holds and takes, in bytes. -1: it has no such thing.
struct MemoryUsage {
  std::int64_t tokens = 0, events = 0;
  DType kv_dtype = DType::float32;   ///< of keys and values in events
  std::int64_t recalled_events = 0;  ///< over all layers and steps
  std::int64_t store_bytes = 0;      ///< keys and values of events
  std::int64_t host_bytes = 0;       ///< host memory taken for them
  std::int64_t disk_bytes = 0;
  std::int64_t index_bytes = 0;  ///< representatives in memory
  std::int64_t window_bytes = 0;
  std::optional<double> index_recall;  ///< of an approximate index: share of the exact list
  std::int64_t device_bytes = -1;      ///< that the memory has taken there
  std::int64_t step_bytes = -1;        ///< on a device: workspace of a step
  std::int64_t weight_bytes = -1;      ///< on a device
};

/// A memory that is kept in a folder, as a model opens it.
struct KeptFolder {
  std::filesystem::path dir;
  OpenMode mode = OpenMode::write;
  /// device_bytes, host_bytes, repr_bytes and disk_bytes of this run; absent: as they were kept.
  std::optional<MemoryConfig> budgets = {};
  int checkpoints = 4;         ///< earlier states that stay, for `rewind`
  std::int64_t at_token = -1;  ///< the newest state with at most this many tokens; -1: the last
};

/// Opens the memory in a folder for the model in a directory. Reads the weights once, to compare
/// their fingerprint.
/// \param options adapters and rounding of the model: a memory made with others is another memory
/// \throws as EpisodicMemory::open
EpisodicMemory open_memory(const std::filesystem::path& model_dir, const KeptFolder& folder,
                           const ModelOptions& options = {});

/// Makes an empty memory in a new or empty folder. \param given boundaries, only for segmenter
/// `given` \throws as EpisodicMemory::create
EpisodicMemory create_memory(const std::filesystem::path& model_dir, const KeptFolder& folder,
                             const MemoryConfig& config, const ModelOptions& options = {},
                             std::vector<std::int64_t> given = {});

/// A model, its tokenizer and one sequence. It is a LanguageModel, so a Session feeds it too.
///
/// \code
/// auto engine = load_engine("models/recall-2m6");
/// engine->attach();    // an empty memory with the settings of memory.json
/// engine->read(book);  // any length
/// std::string answer = engine->ask("\n\n\nWho closed the door?\n\nIt was").text;
/// \endcode
///
/// One thread at a time. `logits` always belong to the last token of the sequence, whatever was
/// restored or attached since the last step. What libtorch throws arrives as Error, and as
/// BudgetError where it found no memory; a step that failed so may be made again.
class Engine : public LanguageModel {
 public:
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() override;

  /// The directory it was loaded from.
  const std::filesystem::path& model_dir() const { return dir_; }
  /// What was done with its weights.
  const ModelOptions& model_options() const { return options_; }
  /// \throws FileError if the directory has no tokenizer, or one that cannot be used
  const Tokenizer& tokenizer() const;
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  /// "cpu" or "cuda".
  virtual const char* device() const = 0;

  // -- what attention reads -------------------------------------------------------------------
  // Each of these calls replaces what was there; at first it is full attention over no tokens.
  // `max_tokens` bounds the tokens that the sequence may come to: a device takes its room for them
  // when it attaches and needs the number; the host does not.

  /// An empty memory with the settings of the model's directory (memory_config_of).
  void attach(std::int64_t max_tokens = 0);
  /// An empty memory. \param given boundaries, only for segmenter `given`
  /// \throws ConfigError; BudgetError where the machine has no room for the windows
  void attach(const MemoryConfig& config, std::int64_t max_tokens = 0,
              std::vector<std::int64_t> given = {});
  /// A memory that is there already goes on. A device computes with a copy: see `save`.
  /// \throws ConfigError for another model's memory, or for what a device does not have
  void attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens = 0);
  /// The memory in a folder; made there, with the settings of the model's directory, if the folder
  /// holds none. \return it
  std::shared_ptr<EpisodicMemory> attach(const KeptFolder& folder, std::int64_t max_tokens = 0);
  /// Every token before every other, as the model was made; from the empty sequence.
  void attach_full_attention(std::int64_t max_tokens = 0);

  /// True if there is a memory, false with full attention.
  bool has_memory() const { return has_memory_; }
  /// The memory that attention reads, on the host or the device; null with full attention.
  virtual SequenceMemory* memory() = 0;
  const SequenceMemory* memory() const { return const_cast<Engine*>(this)->memory(); }
  /// The memory that was handed to `attach`, null if it made its own.
  const std::shared_ptr<EpisodicMemory>& kept() const { return kept_; }

  // -- what it can do -------------------------------------------------------------------------

  bool can(Capability capability) const { return refusal(capability).empty(); }
  /// Why it cannot, and what to do instead; empty if it can. What the calls below throw as
  /// ConfigError.
  std::string refusal(Capability capability) const;

  // -- reading and answering ------------------------------------------------------------------

  /// Reads a text after what was read before; the tokenizer's special tokens (BOS) open an empty
  /// sequence only. \return tokens read \throws as Session::prefill, FileError without a tokenizer
  std::int64_t read(std::string_view text, const ProgressCallback& progress = {});
  std::int64_t read(std::span<const std::int64_t> ids, const ProgressCallback& progress = {});

  /// Continues: prompt and answer become part of the sequence. \throws as Session::generate
  GenerateResult generate(std::string_view prompt, const GenerateOptions& options = {});
  GenerateResult generate(std::span<const std::int64_t> prompt,
                          const GenerateOptions& options = {});

  /// Answers from what was read and comes back: the sequence is then as it was.
  /// \throws as generate, ConfigError if it has no snapshots
  GenerateResult ask(std::string_view question, const GenerateOptions& options = {});
  GenerateResult ask(std::span<const std::int64_t> question, const GenerateOptions& options = {});

  /// The session behind these calls; its counters count them.
  Session& session() { return *session_; }

  // -- states ---------------------------------------------------------------------------------

  /// The state now, logits included; shares the events with the memory.
  struct Snapshot {
    virtual ~Snapshot() = default;
    std::int64_t tokens = 0;
    std::uint64_t attachment = 0;  ///< of the engine, counted by `attach`
  };
  std::shared_ptr<const Snapshot> snapshot();
  /// Back to it, any number of times. \throws ConfigError for a snapshot of what is no longer
  /// attached, or of a branch that a restore to an earlier one gave up
  void restore(const Snapshot& snapshot);

  /// Back to the state after the first `tokens` tokens: a kept memory starts again from its newest
  /// state before them and reads what lies between once more. What was forgotten or pinned since
  /// the last commit is undone with it. Nothing is durable until `commit`. \throws ConfigError
  /// beyond the end; DataError where tokens were forgotten that it would have
  ///         to read: nothing has changed then; FileError: the engine has then no memory
  void rewind(std::int64_t tokens, const ProgressCallback& progress = {});

  /// Brings the memory that was handed to `attach` up to what was read since. Nothing to do on the
  /// host, where that memory computes.
  void save();
  /// Makes all that was read durable (EpisodicMemory::commit); saves first.
  void commit();

  /// Never recalls these again. \throws ConfigError where `can` says no, DataError as
  /// EpisodicMemory
  void forget(EventId event, std::int64_t scope = 0);
  std::vector<EventId> forget(TokenRange tokens);
  void pin(EventId event, bool pinned = true, std::int64_t scope = 0);

  // -- what the memory made of the steps. \throws ConfigError with full attention ---------------

  // Scopes and lanes are the memory's (EpisodicMemory::scopes, lanes).

  StepRecord last_step(std::int64_t scope = 0) const { return inspected().last_step(scope); }
  EventTable events(std::int64_t scope = 0) const { return inspected().events(scope); }
  /// Closed events; 0 with full attention.
  std::int64_t n_events() const;
  /// Recall lists of a lane in the last step; a lane is a layer where each layer has one.
  LaneRecall recalled(std::int64_t lane) const { return inspected().recall_lists(lane); }
  virtual std::vector<float> representative(std::int64_t lane, EventId event) const {
    return inspected().representative(lane, event);
  }
  std::vector<float> relevance(std::int64_t layer, std::int64_t first, std::int64_t n) const {
    return inspected().relevance(layer, first, n);
  }
  virtual MemoryUsage usage() const = 0;

  /// For analyses: what the layers give attention to keep, from the next step on, whatever is
  /// attached. An empty hook ends it. On a device the host then waits for every layer.
  virtual void set_keys_hook(KeysHook hook) = 0;

  // -- steps that give more than `step` does ----------------------------------------------------

  using LanguageModel::step;
  /// One step. \param logits [n, vocab] of all its rows, written
  virtual void step(std::span<const std::int64_t> ids, std::span<float> logits) = 0;
  /// Reads ids[first, first + n) in one step and sets the negative log-likelihood, in nats, of the
  /// tokens of `ids` that are known by then: nll[t] of token t; that of ids[0] is 0.
  /// \param nll as long as ids \throws DataError for others, and where [first, first + n) is empty
  ///        or not within ids; nothing is read then
  virtual void score(std::span<const std::int64_t> ids, std::size_t first, std::size_t n,
                     std::span<float> nll) = 0;

 protected:
  explicit Engine(const std::filesystem::path& model_dir, const ModelOptions& options = {});

  virtual void do_attach(const MemoryConfig& config, std::int64_t max_tokens,
                         std::vector<std::int64_t> given) = 0;
  virtual void do_attach(std::shared_ptr<EpisodicMemory> memory, std::int64_t max_tokens) = 0;
  virtual void do_attach_full_attention(std::int64_t max_tokens) = 0;
  virtual std::shared_ptr<Snapshot> do_snapshot() = 0;
  virtual void do_restore(const Snapshot& snapshot) = 0;
  virtual void do_save() = 0;
  void require(Capability capability) const;

 private:
  /// \throws ConfigError with full attention
  const SequenceMemory& inspected() const;

  struct Attaching;

  std::filesystem::path dir_;
  ModelOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string tokenizer_problem_;  // why there is none
  std::unique_ptr<Session> session_;
  std::shared_ptr<EpisodicMemory> kept_;
  KeptFolder folder_;  // of kept_, if it is kept
  std::int64_t max_tokens_ = 0;
  std::uint64_t attachment_ = 0;
  bool has_memory_ = false;
};

/// The model of a directory in host memory, float32 through libtorch (episodic::episodic).
/// \param options adapters beside or merged into its weights, and rounding of them
/// \throws FileError, DataError naming the file, tensor or key
std::unique_ptr<Engine> load_engine(const std::filesystem::path& model_dir,
                                    const ModelOptions& options = {});

/// What stands at a path that should be a model directory, as a sentence: empty if it has a
/// config.json. A missing folder, a file, a GGUF file, the name of a model on a hub, a folder with
/// weights but no configuration: each with what to do.
std::string model_dir_problem(const std::filesystem::path& model_dir);

/// \throws FileError with model_dir_problem, if there is one
void require_model_dir(const std::filesystem::path& model_dir);

}  // namespace episodic
