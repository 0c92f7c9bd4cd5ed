// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the programs share: flags every one of them has, files in and out, progress on stderr.

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/base/config.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/open_model.hpp"
#include "flags.hpp"
#include "spinning.hpp"

namespace episodic::tools {

using Json = nlohmann::ordered_json;

/// A flag that takes a count with or without a unit (100K); its default stands in the help.
Option add_count(Command& app, const std::string& name, std::int64_t& value,
                 const std::string& help, std::int64_t least = 0);

/// --json FILE.
struct JsonFlag {
  std::filesystem::path path;

  void add_to(Command& app, const std::string& what = "Result as JSON");
  bool wanted() const { return !path.empty(); }
  /// True if JSON goes to stdout, where nothing else may be written then.
  bool on_stdout() const { return path == "-"; }
  /// Writes it if it was asked for. \throws FileError
  void write(const Json& json) const;
  /// Text for people on stdout, unless JSON goes there.
  void say(const std::string& text) const;
};

/// --text FILE or the like, with --encoding.
struct TextFlags {
  std::filesystem::path text;
  std::string encoding = "utf-8";

  /// \param flag its name, "--text" \param required whether it must be given
  Option add_to(Command& app, Command& group, const std::string& flag, const std::string& help);
  /// The file as UTF-8. \throws as read_document
  std::string read() const;
};

/// A text as one printable line: line feeds, other control characters and bytes that are no UTF-8
/// as in C.
std::string on_one_line(const std::string& text);
/// What an exception says, on one line; libtorch's backtraces are left out.
std::string on_one_line(const std::exception& e);

/// Bytes of the UTF-8 character at `text[i]`, 0 if there is none.
std::size_t utf8_length(std::string_view text, std::size_t i);

/// A text file as UTF-8; `-` is stdin. \param encoding utf-8, latin-1 or utf-16
/// \throws FileError; DataError where it is empty, binary or not of that encoding, with the remedy
std::string read_document(const std::filesystem::path& path, const std::string& encoding);

/// --threads, --device, --activations, --quiet.
struct CommonFlags {
  int threads = 0;  ///< 0: what OpenMP chooses
  std::string device = "auto";
  double event_tokens = 0;  ///< mean length of an event to reckon with; 0: not said
  std::string activations;  ///< empty: as EPISODIC_ACTIVATIONS says
  bool quiet = false;

  /// \param with_model whether the program runs a model: --device means nothing to the others, and
  /// its help says so
  void add_to(Command& app, bool with_model = true);
  /// event_tokens for a device: rounded down, so that no event of that length is too many.
  std::int64_t whole_event_tokens() const;
  /// Sets the thread count, and what products do with activations.
  void apply() const;
  /// The same in a benchmark of the host's loops, whatever there is.
  /// \throws ConfigError for --device cuda, --event-tokens and --activations, which would change
  /// nothing
  void apply_on_host() const;
};

/// --model DIR with --lora, --merge-lora, --quantize, --memory FILE|JSON and --full-attention.
struct ModelFlags {
  std::filesystem::path model;
  std::string memory;
  std::vector<std::string> lora;  ///< DIR or DIR:SCALE
  bool merge_lora = false;
  std::string quantize;  ///< empty: weights as they are stored
  /// The ranks that the model is divided among (ParallelFlags); null: one process.
  std::shared_ptr<Group> group = {};
  bool full_attention = false;

  /// \param model_required whether the command line refuses one without --model
  void add_to(Command& app, bool with_full_attention = true, bool model_required = true);
  /// What is done with the weights. \throws ConfigError naming the flag
  ModelOptions options() const;
  /// The memory's settings: MODEL/memory.json or the paper's, changed by --memory. What
  /// measurements go by, so that they mean the same from model to model.
  MemoryConfig memory_config() const;
  /// Those of a new memory that is there to be used: a model without memory.json gets what suits it
  /// (default_memory), changed by --memory. A --memory that names one of the lengths that the rule
  /// chooses has made up its mind: it changes the paper's settings, as it always did.
  MemoryConfig new_memory_config() const { return new_memory().config; }
  struct NewMemory {
    MemoryConfig config;
    std::string from;  ///< where they come from, for people
  };
  NewMemory new_memory() const;
  /// Other settings, changed by --memory.
  MemoryConfig changed(const MemoryConfig& base) const;
  /// Where these settings are from, for messages: MODEL/memory.json, --memory, or both, since a key
  /// is not told apart once they are one. Empty: from neither.
  std::string settings_origin() const;

 private:
  /// The settings themselves. \throws ConfigError naming their origin if the model's shape says no
  MemoryConfig fitting(MemoryConfig config) const;
  /// What --memory says, and what it is called in messages. \throws FileError
  std::pair<std::string, std::string> memory_text() const;
};

/// Mean event length to reckon with: fixed steps are known; surprise with the settings of the
/// shipped model gave 13.7 tokens at min_block 8, and longer minima lengthen events in proportion.
double expected_event_tokens(const MemoryConfig& config);

/// Says on stderr that settings reach further than the model was trained for, if they do.
void warn_of_window(const CommonFlags& common, const MemoryConfig& config,
                    const ModelConfig& model);

/// Takes what is said when a model is opened (ModelOptions::log) to stderr; nothing with --quiet.
LogCallback model_log(const CommonFlags& common);

/// The exit code of a program that has done its work: 1, with a line, where stdout did not take all
/// that was written to it.
int finished(const char* program);

/// Whole file, whatever its bytes; "-" is stdin. \throws FileError, also for more than `most` bytes
std::string read_text(const std::filesystem::path& path, std::size_t most);
/// The same of what may be long, a text or its ids. \throws FileError also for more than the
/// machine has room for, and for a device, which has no end
std::string read_text(const std::filesystem::path& path);

/// \throws FileError naming the file and the JSON error
Json read_json(const std::filesystem::path& path);

/// A memory's settings as results hold them.
Json settings_json(const MemoryConfig& config);

/// Token ids from a file: a JSON array, or an object with "ids" or "tokens".
std::vector<std::int64_t> read_ids(const std::filesystem::path& path);

/// Writes through a temporary file and a rename, so that no reader sees half. \throws FileError
void write_text(const std::filesystem::path& path, const std::string& text);
/// The same where what has the name is not trusted: whatever it is or leads to, it is replaced.
void replace_text(const std::filesystem::path& path, const std::string& text);

/// The JSON with a newline, to a file or (empty path or "-") stdout.
void write_json(const std::filesystem::path& path, const Json& json);

/// The file a shared default model lies in: beside the sources, or installed beside the program.
/// \throws FileError if there is none
std::filesystem::path shipped_model();

/// Resident memory of this process in bytes, now and at its peak.
std::int64_t resident_bytes();
std::int64_t peak_resident_bytes();

/// One line about `done` of `total` tokens after so many seconds, no wider than `columns`: what
/// does not fit is left out, the time that is left last.
std::string progress_line(const std::string& label, std::int64_t done, std::int64_t total,
                          double seconds, int columns);

/// Progress for a file or a pipe: a whole line now and then, instead of one that is drawn over.
class ProgressLog {
 public:
  explicit ProgressLog(std::string label) : label_(std::move(label)) {}
  /// The line that is due after so many seconds, with its line feed; empty: none is. The first is
  /// due after ten seconds, the next a minute behind the last, and one at the end of what had any.
  std::string line(std::int64_t done, std::int64_t total, double seconds);

 private:
  std::string label_;
  double due_ = 10;
  bool told_ = false;
};

/// How far a long job is, on stderr: on a terminal a bar, drawn at most ten times a second;
/// elsewhere the lines of ProgressLog.
class ProgressBar {
 public:
  ProgressBar(std::string label, bool quiet);
  ~ProgressBar();
  /// A callback for the library that keeps this bar; it never cancels.
  ProgressCallback callback();

 private:
  void draw(std::int64_t done, std::int64_t total);
  double seconds() const;

  std::string label_;
  bool on_, terminal_;
  bool drawn_ = false;
  ProgressLog log_;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace episodic::tools
