// SPDX-License-Identifier: Apache-2.0
#pragma once
// From the text of a kernel to a program of the machine.

#include <map>
#include <string>

#include "machine.hpp"

namespace ptx {

/// Global variables of a module, by name: where they lie.
using Globals = std::map<std::string, std::uint64_t, std::less<>>;

/// Places the module's variables into memory.
Globals place_variables(const Module& module);

/// \throws Fault of kind `unknown` at an opcode, or a form of one, that the machine does not know
Program decode(const Module& module, const Function& kernel, const Globals& globals);

}  // namespace ptx
