// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the programs share: flags every one of them has, files in and out, progress on stderr.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/base/config.hpp"

namespace episodic::tools {

using Json = nlohmann::ordered_json;

/// --threads, --device, --quiet.
struct CommonFlags {
  int threads = 0;  ///< 0: what OpenMP chooses
  std::string device = "auto";
  bool quiet = false;

  /// \param with_model whether the program runs a model: --device means nothing to the others, and
  /// its help says so
  void add_to(CLI::App& app, bool with_model = true);
  /// Sets the thread count.
  void apply() const;
  /// The same in a program that runs its model on the host, whatever there is.
  /// \throws NotBuiltError for --device cuda
  void apply_on_host() const;
};

/// --model DIR with --memory FILE|JSON and --full-attention.
struct ModelFlags {
  std::filesystem::path model;
  std::string memory;
  bool full_attention = false;

  void add_to(CLI::App& app, bool with_full_attention = true);
  /// The memory's settings: --memory, else MODEL/memory.json, else the defaults.
  MemoryConfig memory_config() const;
};

/// Starts the program anew with a short GOMP_SPINCOUNT, unless the caller chose how threads wait:
/// on cores that others use too, threads that spin for milliseconds at the end of every loop cost
/// ten times what they gain, and threads that never spin lose a sixth on idle cores. OpenMP reads
/// the variable when it is loaded, so it is too late to set it here. Under a limit of address space
/// OpenBLAS is told to make no workers, which would wait for memory for ever.
void limit_spinning(char** argv);

/// Whole file; "-" is stdin. \throws FileError
std::string read_text(const std::filesystem::path& path);

/// \throws FileError naming the file and the JSON error
Json read_json(const std::filesystem::path& path);

/// Token ids from a file: a JSON array, or an object with "ids" or "tokens".
std::vector<std::int64_t> read_ids(const std::filesystem::path& path);

/// Writes through a temporary file and a rename, so that no reader sees half. \throws FileError
void write_text(const std::filesystem::path& path, const std::string& text);

/// The JSON with a newline, to a file or (empty path) stdout.
void write_json(const std::filesystem::path& path, const Json& json);

/// The file a shared default model lies in: beside the sources, or installed beside the program.
/// \throws FileError if there is none
std::filesystem::path shipped_model();

/// Resident memory of this process in bytes, now and at its peak.
std::int64_t resident_bytes();
std::int64_t peak_resident_bytes();

/// A bar on stderr, drawn at most ten times a second; silent when stderr is no terminal.
class ProgressBar {
 public:
  ProgressBar(std::string label, bool quiet);
  ~ProgressBar();
  /// A callback for the library that keeps this bar; it never cancels.
  ProgressCallback callback();

 private:
  void draw(std::int64_t done, std::int64_t total);

  std::string label_;
  bool on_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace episodic::tools
