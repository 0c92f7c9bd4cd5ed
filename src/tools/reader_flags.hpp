// SPDX-License-Identifier: Apache-2.0
#pragma once
// --reader: recalled events count by heads that `train-lora --reader` trained.

#include <filesystem>
#include <memory>

#include "common.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/reader_heads.hpp"

namespace episodic::tools {

struct ReaderFlags {
  std::filesystem::path dir;  ///< empty: none

  void add_to(Command& app);
  /// Sets the recall hook of the memory that the engine has now: to be called after each `attach`.
  /// \throws ConfigError for heads of another model, full attention or a memory on a device;
  ///   FileError
  void apply(Engine& engine) const;

 private:
  mutable std::shared_ptr<const ReaderHeads> heads_;  // once they are read
};

}  // namespace episodic::tools
