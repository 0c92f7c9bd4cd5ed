// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text of a PTX module, read into functions, variables and statements. Names of registers and
// labels are resolved here; what an opcode does is decided in decode.hpp.

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

/// A module that cannot be read: its line and what is wrong.
class TextError : public std::runtime_error {
 public:
  TextError(int line, const std::string& what)
      : std::runtime_error("PTX line " + std::to_string(line) + ": " + what) {}
};

/// An operand as written.
struct Operand {
  enum class Kind { reg, immediate, symbol, list, address };
  Kind kind = Kind::reg;
  int reg = -1;               // reg, and an address' base: index in Function::registers; -1: `_`
  std::uint64_t bits = 0;     // immediate; of a float its bit pattern
  std::string symbol;         // symbol, special register, and an address' base
  std::int64_t offset = 0;    // address
  bool negated = false;       // !p
  std::vector<Operand> list;  // {a, b, ...}
  std::vector<Operand> pair;  // the predicate of `a|p`: none or one
};

struct Statement {
  int line = 0;
  int guard = -1;  // register of the predicate
  bool guard_negated = false;
  std::string opcode;
  std::vector<Operand> operands;
  std::string label;         // this statement is a label and nothing else
  std::uint32_t used = ~0u;  // of a load: the bytes that are used (pragma used_bytes_mask)
};

enum class Space { generic, global, shared, local, param, constant };

struct Variable {
  std::string name;
  Space space = Space::global;
  std::uint64_t size = 0, align = 1;
  bool is_extern = false;
  std::vector<unsigned char> value;  // of a global one; empty: zeros
};

struct Function {
  std::string name;
  int line = 0;
  bool is_entry = false;
  int max_threads = 0;                               // .maxntid: product; 0: not given
  std::vector<std::string> registers;                // types, "b32"
  std::vector<Variable> params, results, variables;  // variables: shared, local and call's params
  std::vector<Statement> body;
};

struct Module {
  std::string target;  // "sm_80"
  std::vector<Variable> variables;
  std::map<std::string, Function> functions;
};

/// \throws TextError at the first thing it does not understand
Module read_module(std::string_view text);

/// Bytes of a type such as "b32"; 1 for "pred".
int size_of_type(std::string_view type);

}  // namespace ptx
