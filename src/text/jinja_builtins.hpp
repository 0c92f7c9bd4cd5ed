// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Filters, tests and methods of the template language.

#include <string>

#include "jinja_value.hpp"

namespace episodic::text::jinja {

Value call_filter(const std::string& name, const Value& value, const List& arguments,
                  const Named& named);
bool call_test(const std::string& name, const Value& value, const List& arguments);
/// A method of a string or a mapping. \return false if the value has none of that name
bool call_method(const Value& value, const std::string& name, const List& arguments, Value* out);
/// What a loop or `list` walks over. \throws DataError for what cannot be
List iterate(const Value& value);
/// value[key], undefined where there is none.
Value item(const Value& value, const Value& key);
/// Whether `container` holds `value`.
bool contains(const Value& container, const Value& value);
/// -1, 0 or 1. \throws DataError for values that have no order
int compare(const Value& a, const Value& b);

}  // namespace episodic::text::jinja
