// SPDX-License-Identifier: Apache-2.0
#pragma once
// A CUDA device that interprets PTX, behind the CUDA runtime's own entry points (runtime.cpp): what
// nvcc made of host code runs on it unchanged, if it is linked with it instead of the runtime and
// carries uncompressed PTX.
//
// Work on streams is done as it is enqueued, or recorded where its stream captures; how streams
// overlap is the emulator's to show (tests/emulator).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "machine.hpp"

namespace ptx {

/// The architecture that launches are held to, and whose PTX is taken: the newest one in the
/// program that is not newer. At first that of the variable EPISODIC_PTX_ARCH ("8.0"), or 9.0.
void set_architecture(const Architecture& of);
Architecture current_architecture();

/// What kernels did wrong since the last call; forgets it, and the device is sound again.
std::vector<Fault> take_faults();
/// Whether faults are written to stderr as they come: yes at first.
void set_loud(bool loud);

/// Blocks and warps of a launch run forward, backward, or every other launch so (at first).
enum class Order { forward, backward, alternating };
void set_order(Order order);

/// Instructions of warps after which a launch is called endless.
void set_limit(std::uint64_t instructions);

/// What a kernel did in all launches since the beginning.
struct KernelCounts {
  std::uint64_t launches = 0, instructions = 0;  // of warps
  std::uint64_t early_launches = 0;              // that may begin before the one before has ended
  BankCounts banks;
};
std::map<std::string, KernelCounts> kernel_counts();

/// A module of one's own, beside those in the program. \throws TextError
class LoadedModule {
 public:
  explicit LoadedModule(std::string text);
  /// Runs a kernel with parameters as they lie in memory. \throws Fault, also of decoding
  void launch(const std::string& kernel, Dim grid, Dim block, std::vector<unsigned char> params,
              std::uint32_t dynamic_bytes = 0);
  const Module& module() const { return module_; }
  const Program& program(const std::string& kernel);
  /// What the last launch asked of the banks.
  BankCounts banks() const { return banks_; }

 private:
  std::string text_;
  Module module_;
  std::map<std::string, std::uint64_t, std::less<>> globals_;
  std::map<std::string, Program> programs_;
  BankCounts banks_;
};

/// Checks sizes of a launch against the current architecture. \throws Fault of kind `launch`
void check_launch(const Program& program, Dim grid, Dim block, std::uint64_t dynamic_bytes,
                  std::uint64_t allowed_dynamic);

}  // namespace ptx
