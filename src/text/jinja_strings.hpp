// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Python's methods of strings. What they return remembers which of it is input.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "jinja_unicode.hpp"
#include "jinja_value.hpp"

namespace episodic::text::jinja {

constexpr std::size_t kNone = std::string::npos;

/// Arguments by the names of a function's parameters, as Python binds them.
class Bound {
 public:
  /// \param required how many must be given \param by_name whether they may be given by name
  /// \throws DataError for one too many, unknown, missing or given twice
  Bound(const std::string& function, const Arguments& arguments,
        std::initializer_list<const char*> names, std::size_t required = 0, bool by_name = true);
  /// Null where it is not given.
  const Value* operator[](std::size_t i) const { return values_[i]; }
  bool given(std::size_t i) const { return values_[i] != nullptr && !values_[i]->none(); }
  bool flag(std::size_t i, bool otherwise) const {
    return values_[i] ? values_[i]->truth() : otherwise;
  }
  /// \throws DataError for what is no integer
  Integer whole(std::size_t i, Integer otherwise) const;
  /// \throws DataError for what is no string
  const Str& text(std::size_t i) const;

 private:
  std::string function_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

/// \return false if strings have no such method here
bool string_method(Budget& budget, const Value& self, const std::string& name,
                   const Arguments& arguments, Value* out);
/// What Python's strings have.
bool is_string_method(std::string_view name);

Value substring(Budget& budget, const Value& of, std::size_t begin, std::size_t end);
/// Where the character of an index begins; the end for those beyond. \param i >= 0
std::size_t byte_of(Budget& budget, const Str& s, std::size_t i);
/// Where `part` stands at or behind `from`, or npos.
std::size_t find(Budget& budget, const Str& s, std::string_view part, std::size_t from);
Value stripped(Budget& budget, const Value& of, const Str* characters, bool left, bool right);
Value cased(Budget& budget, const Value& of, Case which);
Value capitalized(Budget& budget, const Value& of);
Value replaced(Budget& budget, const Str& s, const Str& from, const Str& to, Integer most);
/// \param by null: white space
List split(Budget& budget, const Value& of, const Str* by, Integer most);
List split_lines(Budget& budget, const Value& of, bool keep_ends);
/// s between spaces, `width` characters. \param side -1 left, 0 centre, 1 right
Value padded(Budget& budget, const Value& of, Integer width, const Str* fill, int side);
/// The characters, each one a string.
List characters(Budget& budget, const Value& of);
/// str.format with plain fields: {}, {0}, {name}.
Value formatted(Budget& budget, const Str& s, const Arguments& arguments);
/// s % arguments
Value percent(Budget& budget, const Str& s, const Value& arguments);

}  // namespace episodic::text::jinja
