// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The filters, each by its subject. call_filter (jinja_builtins.hpp) finds them by name.

#include <cstddef>
#include <string>
#include <string_view>

#include "jinja_value.hpp"

namespace episodic::text::jinja {

/// Whether there is a filter of this name.
bool is_filter(std::string_view name);
/// As the reference's soft_str: a text, but HTML is not escaped here.
Value soft(Budget& budget, const Value& v, const char* filter);

// -- sequences (jinja_sequence_filters.cpp) -----------------------------------------------------

/// select, reject, selectattr, rejectattr.
Value chosen(Budget& budget, const std::string& name, const Value& value, const Arguments& a);
Value mapped(Budget& budget, const Value& value, const Arguments& a);
List sort_filter(Budget& budget, const Value& value, const Arguments& arguments);
List dict_sort(Budget& budget, const Value& value, const Arguments& arguments);
Value unique(Budget& budget, const Value& value, const Arguments& arguments);
/// min, max.
Value extreme(Budget& budget, const std::string& name, const Value& value,
              const Arguments& arguments);
Value group_by(Budget& budget, const Value& value, const Arguments& arguments);
Value summed(Budget& budget, const Value& value, const Arguments& arguments);
Value batch(Budget& budget, const Value& value, const Arguments& arguments);
Value slices(Budget& budget, const Value& value, const Arguments& arguments);
Value joined(Budget& budget, const Value& value, const Arguments& arguments);
Value reversed(Budget& budget, const Value& value);
Value items_of(Budget& budget, const Value& value);

// -- texts (jinja_text_filters.cpp) -------------------------------------------------------------

Value indented(Budget& budget, const Value& value, const Arguments& arguments);
Value truncated(Budget& budget, const Value& value, const Arguments& arguments);
/// The title filter, which is not the method: only hyphens, spaces and opening brackets part words.
Value title_filter(Budget& budget, const Value& value);
/// \param again whether what is escaped already is escaped once more
Value escaped(Budget& budget, const Value& value, bool again);
Value url_encoded(Budget& budget, const Value& value);
std::size_t count_words(Budget& budget, const Str& s);
Value json_filter(Budget& budget, const Value& value, const Arguments& arguments);

// -- numbers (jinja_number_filters.cpp) ---------------------------------------------------------

Value to_integer(Budget& budget, const Value& v, const Arguments& arguments);
Value to_float(Budget& budget, const Value& v, const Arguments& arguments);
Value rounded(const Value& v, const Arguments& arguments);
Value absolute(const Value& v);

}  // namespace episodic::text::jinja
