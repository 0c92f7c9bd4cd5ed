// SPDX-License-Identifier: Apache-2.0
#pragma once
// --parallel: one model over several processes.

#include <string>

#include "common.hpp"

namespace episodic::tools {

/// --parallel tensor and --group-timeout.
struct ParallelFlags {
  std::string kind;  ///< empty: one process
  double timeout = 60;

  void add_to(Command& app);
  /// Joins the group of all processes, once, before anything is read: model and common flags are
  /// then a rank's, and `json` is written by the first rank alone.
  /// \throws ConfigError, NotBuiltError
  void join(CommonFlags& common, ModelFlags& model, JsonFlag* json = nullptr) const;
};

/// \throws ConfigError for a flag that ranks have no answer to \param given whether it was given
void refuse_with_ranks(const ModelFlags& model, bool given, const char* flag, const char* why);

}  // namespace episodic::tools
