// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the operators share with filters, tests and methods.

#include <string>

#include "jinja_value.hpp"

namespace episodic::text::jinja {

/// Refuses an undefined value by its name. \param what which use of it is wrong
[[noreturn]] void fail_undefined(const Value& v, const std::string& what);
/// \throws DataError for a value that cannot be the key of a mapping
void hashable(const Value& v, const char* filter);
/// Arithmetic on two numbers. \param op as Expression::Kind::sum has it
Value compute(char op, const Value& a, const Value& b);

}  // namespace episodic::text::jinja
