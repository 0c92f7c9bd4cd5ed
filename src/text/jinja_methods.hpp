// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Methods and attributes of lists, mappings, functions and loops.

#include <string>

#include "jinja_value.hpp"

namespace episodic::text::jinja {

/// \return false if mappings have no such method here
bool dict_method(Budget& budget, const Value& self, const std::string& name,
                 const Arguments& arguments, Value* out);
/// What Python's getattr finds, and a sandbox lets through. \return false if there is nothing
bool own_attribute(Budget& budget, const Value& v, const std::string& name, Value* out);

}  // namespace episodic::text::jinja
