// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "jinja_builtins.hpp"
#include "jinja_filters.hpp"
#include "jinja_operators.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

constexpr std::string_view kTests[] = {
    "!=",       "<",        "<=",          "==",       ">",           ">=",       "boolean",
    "callable", "defined",  "divisibleby", "eq",       "equalto",     "escaped",  "even",
    "false",    "filter",   "float",       "ge",       "greaterthan", "gt",       "in",
    "integer",  "iterable", "le",          "lessthan", "lower",       "lt",       "mapping",
    "ne",       "none",     "number",      "odd",      "sameas",      "sequence", "string",
    "test",     "true",     "undefined",   "upper"};

bool is_test(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

}  // namespace

bool call_test(Budget& budget, const std::string& name, const Value& value,
               const Arguments& arguments) {
  budget.step();
  const auto none = [&] { Bound(name, arguments, {}); };
  const auto other = [&]() -> const Value& {
    const Bound a(fmt::format("the test '{}'", name), arguments, {"other"}, 1, false);
    return *a[0];
  };
  const auto ordered = [&](const char* sign) { return compare(budget, value, other(), sign); };
  const Sequence* s = value.sequence();
  if (name == "defined") return none(), !value.undefined();
  if (name == "undefined") return none(), value.undefined();
  if (name == "none") return none(), value.none();
  if (name == "string") return none(), value.string() != nullptr;
  if (name == "number") return none(), value.number();
  if (name == "integer") return none(), value.integer() != nullptr;
  if (name == "float") return none(), value.real() != nullptr;
  if (name == "boolean") return none(), value.boolean();
  if (name == "true") return none(), value.boolean() && value.truth();
  if (name == "false") return none(), value.boolean() && !value.truth();
  if (name == "mapping") return none(), value.dict() != nullptr;
  if (name == "iterable")
    return none(), value.string() || s || value.dict() || value.undefined() || value.generator() ||
                       value.loop();
  if (name == "sequence")
    return none(), value.string() || (s && !s->view()) || value.dict() || value.undefined();
  if (name == "callable") return none(), value.function() || value.undefined() || value.loop();
  if (name == "escaped") return none(), value.string() && value.string()->markup;
  if (name == "lower" || name == "upper") {
    none();
    Value out;
    const Value of = str_of(budget, value);
    string_method(budget, of, name == "lower" ? "islower" : "isupper", {}, &out);
    return out.truth();
  }
  if (name == "even" || name == "odd")
    return none(), equal(budget, arithmetic(budget, '%', value, Integer{2}),
                         Integer{name == "odd" ? 1 : 0});
  if (name == "divisibleby") {
    const Bound a(name, arguments, {"num"}, 1);
    return equal(budget, arithmetic(budget, '%', value, *a[0]), Integer{0});
  }
  if (name == "filter" || name == "test") {
    none();
    hashable(value, name.c_str());
    if (!value.string()) return false;
    return name == "filter" ? is_filter(value.string()->bytes) : is_test(value.string()->bytes);
  }
  if (name == "eq" || name == "equalto" || name == "==") return equal(budget, value, other());
  if (name == "ne" || name == "!=") return !equal(budget, value, other());
  if (name == "sameas") {
    // which numbers and strings are one object is Python's secret, but for small integers
    const bool alike = (value.string() && other().string()) || (value.real() && other().real()) ||
                       (value.integer() && other().integer());
    if (alike && !equal(budget, value, other())) return false;
    if (value.integer() && alike && *value.integer() >= -5 && *value.integer() <= 256) return true;
    if (alike) fail(fmt::format("the test 'sameas' of {} is not supported", value.kind()));
    return value.same(other());
  }
  if (name == "lt" || name == "lessthan" || name == "<") return ordered("<") == -1;
  if (name == "gt" || name == "greaterthan" || name == ">") return ordered(">") == 1;
  if (name == "le" || name == "<=") return std::abs(ordered("<=")) != 2 && ordered("<=") <= 0;
  if (name == "ge" || name == ">=") return ordered(">=") == 0 || ordered(">=") == 1;
  if (name == "in") return contains(budget, other(), value);
  fail(fmt::format("the test '{:.60}' is not supported", name));
}

}  // namespace episodic::text::jinja
