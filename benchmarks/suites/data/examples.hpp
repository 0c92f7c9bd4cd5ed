// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Examples of the suites' released files, and files of predictions, ours and the published
/// programs'.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/jsonl.hpp"

namespace episodic::suites {

/// One question about one context.
struct Example {
  std::string id;
  std::string context, input;
  Json gold;                         ///< as the scorers take it
  std::vector<std::string> options;  ///< of multiple-choice tasks
  Json all_classes;                  ///< LongBench: list or null
  std::int64_t length = 0;           ///< LongBench: as the data says; else words of the context
  Json depth, tokens;                ///< of our generators, null elsewhere
  std::map<std::string, std::string> slots;  ///< of the template, beside those of the suite
  std::string reply_start;  ///< first words of the answer, which the model goes on with
  Json details;             ///< object of what else the scorer takes, or null
};

/// A file's rows, each with an id of its own: predictions are told apart by them.
class DataRows {
 public:
  /// \param id the field that holds it. Where no row has it, a row's id is its place, from 0
  /// \throws FileError for an id that an earlier row has too, and for a file without a row
  DataRows(const std::filesystem::path& path, std::string_view id);
  std::size_t size() const { return rows_.size(); }
  const Row& operator[](std::size_t i) const { return rows_[i]; }
  const std::string& id(std::size_t i) const { return ids_[i]; }
  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.end(); }

 private:
  std::vector<Row> rows_;
  std::vector<std::string> ids_;
};

/// What is there, or null.
const Json& or_null(const Json* found);

/// THUDM/LongBench's files. \throws FileError naming file, line, field; for an id that an earlier
///   row has too, and for a file without a row
std::vector<Example> read_longbench(const std::filesystem::path& path);

/// OpenBMB/InfiniteBench's files, older ones (`content`) too. Golds of code_debug and
/// longbook_choice_eng become [text, letter]. \throws FileError as read_longbench
std::vector<Example> read_infinitebench(const std::filesystem::path& path, std::string_view task);

/// What a model answered.
struct Prediction {
  std::string id;  ///< its line's number where the file has no ids, as the official LongBench's
  std::string text;
  Json gold;  ///< null if the file does not hold it
  Json all_classes, details;
  std::optional<std::int64_t> length;
  Json row;  ///< all of the line
};

/// A file of predictions after it was looked through.
struct Predictions {
  std::vector<Prediction> kept;                        ///< of doubled ids the first
  std::vector<std::string> doubled, missing, unknown;  ///< ids, beside those of the data
};

/// Fields: `pred`, `prediction`, `hypothesis` or `response`; `answers`, `answer`, `ground_truth`,
/// `outputs` or `label`; `id`, `_id`, `question_id` or `index`.
/// \param data if given, golds are taken from it and ids compared; ordered as the data is
/// \throws FileError naming file, line and field; ConfigError if there are neither golds nor data
Predictions read_predictions(const std::filesystem::path& path,
                             const std::vector<Example>* data = nullptr);

}  // namespace episodic::suites
