// SPDX-License-Identifier: Apache-2.0
#pragma once
// What device.cpp and runtime.cpp share.

#include "device.hpp"

namespace ptx {

struct DeviceState {
  Architecture architecture;
  std::vector<Fault> faults;
  int lost = 0;  // the error that every call says after a fault
  bool is_loud = true;
  Order order = Order::alternating;
  std::uint64_t limit = LaunchOptions{}.instructions;
  std::map<std::string, KernelCounts> counts;
};
DeviceState& state();

/// \param is_early it may begin before the launch before it has ended. \throws Fault
BankCounts run_kernel(const Program& program, Dim grid, Dim block, std::uint32_t dynamic_bytes,
                      std::vector<unsigned char> params, bool is_early = false);

}  // namespace ptx
