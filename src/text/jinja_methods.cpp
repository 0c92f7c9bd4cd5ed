// SPDX-License-Identifier: Apache-2.0
#include "jinja_methods.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "jinja_builtins.hpp"
#include "jinja_operators.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kNumberAttributes[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};

template <std::size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool list_method(Budget& budget, const Value& self, const std::string& name,
                 const Arguments& arguments, Value* out) {
  const Sequence& s = *self.sequence();
  if (s.view()) return false;
  if (name == "count" || name == "index") {
    const Bound a(name, arguments, {"value", "start", "end"}, 1, false);
    if (name == "count" && a[1]) fail("count: takes one argument");
    const auto n = static_cast<Integer>(s.items.size());
    const auto place = [&](std::size_t i, Integer otherwise) {
      const Integer at = a.whole(i, otherwise);
      return std::clamp<Integer>(at < 0 ? at + n : at, 0, n);
    };
    std::size_t count = 0;
    for (auto i = static_cast<std::size_t>(place(1, 0)); i < static_cast<std::size_t>(place(2, n));
         ++i) {
      if (!s.items[i].same(*a[0]) && !equal(budget, s.items[i], *a[0])) continue;
      if (name == "index") return *out = i, true;
      ++count;
    }
    if (name == "index") fail("index: is not in the list");
    return *out = count, true;
  }
  if (name == "copy" && s.kind == Sequence::Kind::list) {
    const Bound none(name, arguments, {});
    return *out = self, true;
  }
  return false;
}

}  // namespace

bool dict_method(Budget& budget, const Value& self, const std::string& name,
                 const Arguments& arguments, Value* out) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const Bound a("get", arguments, {"key", "default"}, 1, false);
    hashable(*a[0], "get");
    const Value* found = dict.find(budget, *a[0]);
    return *out = found ? *found : a[1] ? *a[1] : Value(), true;
  }
  const bool items = name == "items", keys = name == "keys";
  if (name != "copy" && !items && !keys && name != "values") return false;
  const Bound none(name, arguments, {});
  if (name == "copy") return *out = self, true;
  List list;
  list.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items)
    list.push_back(items ? tuple_value(budget, {key, value}) : keys ? key : value);
  return *out = list_value(budget, std::move(list),
                           items  ? Sequence::Kind::items
                           : keys ? Sequence::Kind::keys
                                  : Sequence::Kind::values),
         true;
}

namespace {

Value join_method(Budget& budget, const Value& self, const Arguments& arguments) {
  const Bound a("join", arguments, {"iterable"}, 1, false);
  Builder out(budget);
  bool first = true;
  for (const Value& v : Items(budget, *a[0])) {
    if (!v.string()) fail(fmt::format("join: holds {}, not a string", v.kind()));
    if (v.string()->markup) fail("join: 'safe' and 'escape' before it are not supported");
    if (!first) out.add(*self.string());
    first = false;
    out.add(*v.string());
  }
  return out.finish();
}

/// Whether Python's type has a method of the name.
bool has_method(const Value& v, const std::string& name) {
  if (v.string()) return is_string_method(name);
  if (v.dict()) return among(kDictMethods, name);
  if (const Sequence* s = v.sequence(); s && !s->view())
    return among(kListMethods, name) && (name != "copy" || s->kind == Sequence::Kind::list);
  if (v.loop()) return name == "cycle" || name == "changed";
  return false;
}

/// What Python's getattr finds that is no method. \return false if there is nothing
bool field(Budget& budget, const Value& v, const std::string& name, Value* out) {
  if (v.number() && among(kNumberAttributes, name))
    fail(fmt::format("'{}' of {} is not supported", name, v.kind()));
  if (const Namespace* space = v.space()) {
    const Value* found = space->find(name);
    return found != nullptr && (*out = *found, true);
  }
  if (const Function* f = v.function()) {
    if (!f->macro)
      fail(fmt::format("'{:.60}' of the function '{}' is not supported", name, f->name));
    if (name == "name") return *out = text_value(budget, f->name), true;
    if (name == "arguments") {
      List names;
      for (const std::string& p : f->parameters) names.push_back(text_value(budget, p));
      return *out = tuple_value(budget, std::move(names)), true;
    }
    if (name == "caller" || name == "catch_kwargs" || name == "catch_varargs" ||
        name == "explicit_caller")
      fail(fmt::format("'{}' of a macro is not supported", name));
    return false;
  }
  if (const Loop* loop = v.loop()) {
    const List& items = loop->items->items;
    const std::size_t i = loop->index0, n = items.size();
    if (name == "index") return *out = i + 1, true;
    if (name == "index0") return *out = i, true;
    if (name == "revindex") return *out = n - i, true;
    if (name == "revindex0") return *out = n - i - 1, true;
    if (name == "first") return *out = i == 0, true;
    if (name == "last") return *out = i + 1 == n, true;
    if (name == "length") return *out = n, true;
    if (name == "depth") return *out = loop->depth0 + 1, true;
    if (name == "depth0") return *out = loop->depth0, true;
    if (name == "previtem")
      return *out = i > 0 ? items[i - 1] : undefined_value("the item before the first"), true;
    if (name == "nextitem")
      return *out = i + 1 < n ? items[i + 1] : undefined_value("the item behind the last"), true;
    return false;
  }
  if (const Sequence* s = v.sequence()) {
    if (s->kind == Sequence::Kind::group && name == "grouper") return *out = s->items[0], true;
    if (s->kind == Sequence::Kind::group && name == "list") return *out = s->items[1], true;
    if (s->kind == Sequence::Kind::range && (name == "start" || name == "stop" || name == "step"))
      return *out = name == "start" ? s->start : name == "stop" ? s->stop : s->step, true;
    if (s->view() && (name == "mapping" || name == "isdisjoint"))
      fail(fmt::format("'{}' of {} is not supported", name, v.kind()));
  }
  return false;
}

Value bound_method(const Value& v, const std::string& name, Budget& budget) {
  auto f = std::make_shared<Function>();
  f->name = name;
  f->depth = v.depth() + 1;
  if (f->depth > kDeepest) fail("a value is nested too deep");
  f->call = [v, name, &budget](Arguments& arguments) {
    Value out;
    if (!call_method(budget, v, name, arguments, &out))
      fail(fmt::format("the method '{}' of {} is not supported", name, v.kind()));
    return out;
  };
  return std::shared_ptr<const Function>(std::move(f));
}

}  // namespace

bool own_attribute(Budget& budget, const Value& v, const std::string& name, Value* out) {
  if (name.starts_with("__") && name.ends_with("__"))
    return *out = undefined_value(name), true;  // none that a sandbox lets through
  if (field(budget, v, name, out)) return true;
  const Sequence* s = v.sequence();
  if ((v.dict() && among(kDictChanges, name)) ||
      (s && s->kind == Sequence::Kind::list && among(kListChanges, name)))
    return *out = undefined_value(name), true;
  if (!has_method(v, name)) return false;
  return *out = bound_method(v, name, budget), true;
}

Value attribute(Budget& budget, const Value& value, const std::string& name) {
  budget.step();
  if (value.undefined()) fail_undefined(value, fmt::format("'{:.60}' of it is asked for", name));
  Value out;
  if (own_attribute(budget, value, name, &out)) return out;
  if (const Dict* dict = value.dict())
    if (const Value* found = dict->find(name)) return *found;
  return undefined_value(name);
}

bool call_method(Budget& budget, const Value& of, const std::string& name,
                 const Arguments& arguments, Value* out) {
  budget.step();
  if (of.string()) {
    if (name == "join" && !of.string()->markup)
      return *out = join_method(budget, of, arguments), true;
    return string_method(budget, of, name, arguments, out);
  }
  if (of.dict()) return dict_method(budget, of, name, arguments, out);
  if (of.sequence()) return list_method(budget, of, name, arguments, out);
  if (Loop* loop = of.loop()) {
    if (!arguments.named.empty()) return false;
    if (name == "cycle") {
      if (arguments.places.empty()) fail("cycle: needs something to go through");
      return *out = arguments.places[loop->index0 % arguments.places.size()], true;
    }
    if (name == "changed") {
      const List& now = arguments.places;
      const bool same = loop->changed_before && now.size() == loop->changed.size() &&
                        std::equal(now.begin(), now.end(), loop->changed.begin(),
                                   [&](const Value& x, const Value& y) {
                                     return x.same(y) || equal(budget, x, y);
                                   });
      if (!same) loop->changed = now;
      loop->changed_before = true;
      return *out = !same, true;
    }
  }
  return false;
}

}  // namespace episodic::text::jinja
