// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A model answers a task's examples.

#include <cstdint>
#include <filesystem>
#include <string>

#include "common.hpp"
#include "data/suite.hpp"
#include "engines.hpp"
#include "episodic/session/passages.hpp"
#include "reader_flags.hpp"
#include "run/prediction_file.hpp"

namespace episodic::suites {

struct RunOptions {
  tools::CommonFlags common;
  tools::ModelFlags model;  ///< with --memory
  Suite suite = Suite::infinitebench;
  std::string task;
  std::filesystem::path data, out;
  std::filesystem::path prompts;       ///< empty: our own wording
  std::string prompt_family = "gpt4";  ///< of a file with several
  std::string method = "episodic";     ///< see methods()
  std::string preset;         ///< see base/presets.hpp; changes fields of the memory's settings
  tools::EntryFlags entries;  ///< of methods with a memory: the text's events, cut at sentences
  tools::ReaderFlags reader;  ///< of methods with a memory: trained heads that weight events
  Limits limits = Limits::official;
  std::int64_t limit = 0;       ///< first examples only; 0: all
  std::int64_t max_length = 0;  ///< of method truncate; 0: the model's window
  bool question_step = true;    ///< the question a step of its own; else its last token
  bool beyond_window = false;   ///< method full: also where the model's window ends before
  bool raw = false;             ///< no chat format for a model that has one
  /// A sentence encoder's directory: of methods rag and rag-s, and of episodic to choose events by
  /// their text.
  std::filesystem::path encoder;
  PassageOptions passages;  ///< of method reread
  Shard shard;
};

bool is_method(const std::string& name);
/// "episodic, reread, full, window, truncate, rag, rag-s".
std::string methods();

/// Answers the examples that OUT has not, one line each, and says on stderr how far it is.
/// \return {"done", "skipped", "out", "cut", "max_new"}: answered now, there already, the file, and
/// how many of those now were cut at the task's limit of generated tokens
/// \throws ConfigError, FileError, DataError
Json run_task(const RunOptions& options);

}  // namespace episodic::suites
