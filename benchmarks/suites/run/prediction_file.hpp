// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A file of predictions that grows by one line an example, and may be cut off at any moment.

#include <filesystem>
#include <string>
#include <unordered_set>

#include "data/jsonl.hpp"

namespace episodic::suites {

/// The file beside OUT that says what OUT was made with.
std::filesystem::path settings_path(const std::filesystem::path& out);

/// `part` of `of` as `--shard` takes it: "1/4", or "auto": what MPI or SLURM started.
struct Shard {
  std::int64_t part = 0, of = 1;
  /// \throws ConfigError naming the flag
  static Shard parse(const std::string& text);
  /// OUT of this part: OUT itself if there is one part, else preds.1-of-4.jsonl for preds.jsonl.
  std::filesystem::path file(const std::filesystem::path& out) const;
};

class PredictionFile {
 public:
  /// Opens or makes OUT, locked against a second writer. What a kill left of a last line is
  /// dropped. \param settings that decide what comes out; those OUT was made with must be the same
  ///   but for "environment": what stands there stays that of OUT's first rows, and calls that add
  ///   rows elsewhere are listed under "later_environments"
  /// \throws FileError naming file and line, and if another process writes it; ConfigError naming
  ///   the setting that differs
  PredictionFile(const std::filesystem::path& out, const Json& settings);
  ~PredictionFile();
  PredictionFile(const PredictionFile&) = delete;
  PredictionFile& operator=(const PredictionFile&) = delete;

  bool has(const std::string& id) const { return done_.contains(id); }
  /// Appends a row with "id"; it is on the disk when this returns. \throws FileError
  void append(const Json& row);

 private:
  [[noreturn]] void fail(const char* what) const;
  /// Settings of the rows that are there and of those to come. Written before a row is.
  void write_settings();

  std::filesystem::path path_;
  Json settings_;
  bool settings_written_ = false;
  int file_ = -1;
  std::unordered_set<std::string> done_;
};

/// One file of several shards' rows, in the order of the data.
/// \return {"rows", "doubled", "missing", "missing_index"}: what was found beside the examples
///   there are, and the places in the data of those that have no row
/// \throws ConfigError if the shards were made with other settings, FileError
Json merge_predictions(const std::vector<std::filesystem::path>& shards,
                       const std::filesystem::path& out);

}  // namespace episodic::suites
