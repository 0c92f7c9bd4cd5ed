// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Filters, tests, methods and operators of the template language.

#include <memory>
#include <string>

#include "jinja_value.hpp"

namespace episodic::text::jinja {

Value call_filter(Budget& budget, const std::string& name, const Value& value,
                  const Arguments& arguments);
bool call_test(Budget& budget, const std::string& name, const Value& value,
               const Arguments& arguments);
/// A method of a string, list or mapping. \return false if it has none of that name
bool call_method(Budget& budget, const Value& of, const std::string& name,
                 const Arguments& arguments, Value* out);

/// What a loop or `list` walks over; a generator is empty then. \throws DataError for what cannot
/// be
std::shared_ptr<const Sequence> iterate(Budget& budget, const Value& value);
/// The same, to be walked over in place: `for (const Value& v : Items(budget, value))`.
class Items {
 public:
  Items(Budget& budget, const Value& value) : sequence_(iterate(budget, value)) {}
  List::const_iterator begin() const { return sequence_->items.begin(); }
  List::const_iterator end() const { return sequence_->items.end(); }

 private:
  std::shared_ptr<const Sequence> sequence_;
};
/// value[key], then what `attribute` finds; undefined where there is none.
Value item(Budget& budget, const Value& value, const Value& key);
/// value.name: what Python's type has of that name, then an item; undefined where there is none.
Value attribute(Budget& budget, const Value& value, const std::string& name);
/// value[first:last:step], each of which may be none.
Value slice(Budget& budget, const Value& value, const Value& first, const Value& last,
            const Value& step);
/// Whether `container` holds `value`.
bool contains(Budget& budget, const Value& container, const Value& value);
/// \param op as Expression::Kind::sum has it
Value arithmetic(Budget& budget, char op, const Value& a, const Value& b);

}  // namespace episodic::text::jinja
