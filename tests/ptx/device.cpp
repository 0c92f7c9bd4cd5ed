// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <cstdlib>
#include <utility>

#include "decode.hpp"
#include "device_state.hpp"

namespace ptx {
namespace {

Architecture first_architecture() {
  const char* const name = std::getenv("EPISODIC_PTX_ARCH");
  if (!name) return architecture(9, 0);
  const std::string text(name);
  const std::size_t dot = text.find('.');
  if (dot == std::string::npos)
    throw std::invalid_argument("EPISODIC_PTX_ARCH=" + text + ", must be such as 8.0");
  return architecture(std::stoi(text.substr(0, dot)), std::stoi(text.substr(dot + 1)));
}

}  // namespace

DeviceState& state() {
  static DeviceState s = [] {
    DeviceState first;
    first.architecture = first_architecture();
    return first;
  }();
  return s;
}

void set_architecture(const Architecture& of) { state().architecture = of; }
Architecture current_architecture() { return state().architecture; }
void set_loud(bool loud) { state().is_loud = loud; }
void set_order(Order order) { state().order = order; }
void set_limit(std::uint64_t instructions) { state().limit = instructions; }
std::vector<Fault> take_faults() {
  state().lost = 0;
  return std::exchange(state().faults, {});
}
std::map<std::string, KernelCounts> kernel_counts() { return state().counts; }

void check_launch(const Program& program, Dim grid, Dim block, std::uint64_t dynamic_bytes,
                  std::uint64_t allowed_dynamic) {
  const auto refuse = [&](const std::string& what) {
    throw Fault(FaultKind::launch, what + "; of " + program.name);
  };
  const auto text = [](Dim d) {
    return std::to_string(d.x) + " x " + std::to_string(d.y) + " x " + std::to_string(d.z);
  };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535)
    refuse("a grid of " + text(grid));
  if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 ||
      block.z > 64 || block.count() > 1024)
    refuse("a block of " + text(block));
  if (block.count() > static_cast<std::uint64_t>(program.max_threads))
    refuse("a block of " + text(block) + ", compiled for " + std::to_string(program.max_threads));
  constexpr int kStatic = 48 << 10;  // what every device has without opting in
  if (program.static_bytes > kStatic)
    refuse(std::to_string(program.static_bytes) + " bytes of static shared memory");
  if (dynamic_bytes > allowed_dynamic)
    refuse(std::to_string(dynamic_bytes) + " bytes of dynamic shared memory, of " +
           std::to_string(allowed_dynamic) + " allowed");
  const auto of_block = static_cast<std::uint64_t>(state().architecture.shared_of_block);
  if (static_cast<std::uint64_t>(program.static_bytes) + dynamic_bytes > of_block)
    refuse(std::to_string(program.static_bytes) + " static and " + std::to_string(dynamic_bytes) +
           " dynamic bytes of shared memory, of " + std::to_string(of_block));
}

BankCounts run_kernel(const Program& program, Dim grid, Dim block, std::uint32_t dynamic_bytes,
                      std::vector<unsigned char> params, bool is_early) {
  DeviceState& s = state();
  KernelCounts& counts = s.counts[program.name];
  LaunchOptions options;
  options.instructions = s.limit;
  options.backward =
      s.order == Order::backward || (s.order == Order::alternating && counts.launches % 2 == 1);
  options.is_early = is_early;
  ++counts.launches;
  counts.early_launches += is_early;
  Launch launch(program, grid, block, dynamic_bytes, std::move(params), options);
  const auto count = [&] {
    counts.instructions += launch.instructions();
    counts.banks.accesses += launch.banks().accesses;
    counts.banks.least += launch.banks().least;
    counts.banks.passes += launch.banks().passes;
  };
  try {
    launch.run();
  } catch (...) {
    count();
    throw;
  }
  count();
  return launch.banks();
}

LoadedModule::LoadedModule(std::string text)
    : text_(std::move(text)), module_(read_module(text_)), globals_(place_variables(module_)) {}

const Program& LoadedModule::program(const std::string& kernel) {
  const auto found = programs_.find(kernel);
  if (found != programs_.end()) return found->second;
  return programs_.emplace(kernel, decode(module_, module_.functions.at(kernel), globals_))
      .first->second;
}

void LoadedModule::launch(const std::string& kernel, Dim grid, Dim block,
                          std::vector<unsigned char> params, std::uint32_t dynamic_bytes) {
  const Program& p = program(kernel);
  check_launch(p, grid, block, dynamic_bytes,
               static_cast<std::uint64_t>(current_architecture().shared_of_block));
  params.resize(static_cast<std::size_t>(p.param_bytes));
  banks_ = run_kernel(p, grid, block, dynamic_bytes, std::move(params));
}

}  // namespace ptx
