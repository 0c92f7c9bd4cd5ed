// SPDX-License-Identifier: Apache-2.0
#include "jinja_filters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "jinja_builtins.hpp"
#include "jinja_methods.hpp"
#include "jinja_operators.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

constexpr std::string_view kFilters[] = {
    "abs",    "attr",       "batch",       "capitalize", "center",   "count",
    "d",      "default",    "dictsort",    "e",          "escape",   "filesizeformat",
    "first",  "float",      "forceescape", "format",     "groupby",  "indent",
    "int",    "items",      "join",        "last",       "length",   "list",
    "lower",  "map",        "max",         "min",        "pprint",   "random",
    "reject", "rejectattr", "replace",     "reverse",    "round",    "safe",
    "select", "selectattr", "slice",       "sort",       "string",   "striptags",
    "sum",    "title",      "tojson",      "trim",       "truncate", "unique",
    "upper",  "urlencode",  "urlize",      "wordcount",  "wordwrap", "xmlattr"};

}  // namespace

bool is_filter(std::string_view name) {
  return std::find(std::begin(kFilters), std::end(kFilters), name) != std::end(kFilters);
}

Value call_filter(Budget& budget, const std::string& name, const Value& value,
                  const Arguments& arguments) {
  const Budget::Within within(budget);
  budget.step();
  const auto only = [&] { Bound(name, arguments, {}); };
  const auto text = [&] { return soft(budget, value, name.c_str()); };
  if (name == "trim") {
    const Bound a(name, arguments, {"chars"});
    const Value of = text();
    return stripped(budget, of, a.given(0) ? &a.text(0) : nullptr, true, true);
  }
  if (name == "length" || name == "count") {
    only();
    if (const Str* s = value.string()) return s->length;
    if (const Dict* d = value.dict()) return d->items.size();
    if (const Loop* l = value.loop()) return l->items->items.size();
    if (value.generator()) fail(fmt::format("{}: a generator has none", name));
    return iterate(budget, value)->items.size();
  }
  if (name == "upper") return only(), cased(budget, text(), Case::upper);
  if (name == "lower") return only(), cased(budget, text(), Case::lower);
  if (name == "capitalize") return only(), capitalized(budget, text());
  if (name == "title") return only(), title_filter(budget, text());
  if (name == "string") return only(), str_of(budget, value);
  if (name == "safe") {
    only();
    Builder out(budget);
    out.print(value);
    return out.finish(true);
  }
  if (name == "escape" || name == "e" || name == "forceescape")
    return only(), escaped(budget, value, name == "forceescape");
  if (name == "tojson") return json_filter(budget, value, arguments);
  if (name == "default" || name == "d") {
    const Bound a(name, arguments, {"default_value", "boolean"});
    if (!value.undefined() && !(a.flag(1, false) && !value.truth())) return value;
    return a[0] ? *a[0] : text_value(budget, "");
  }
  if (name == "first") {
    only();
    if (Generator* g = value.generator()) {
      Value v;
      return g->take(&v) ? v : undefined_value("the first of nothing");
    }
    if (const Str* s = value.string(); s && !s->bytes.empty())
      return item(budget, value, Integer{0});
    const std::shared_ptr<const Sequence> list = iterate(budget, value);
    return list->items.empty() ? undefined_value("the first of nothing") : list->items.front();
  }
  if (name == "last") {
    only();
    if (value.generator()) fail("last: a generator has none");
    if (const Str* s = value.string(); s && !s->bytes.empty())
      return item(budget, value, Integer{-1});
    const std::shared_ptr<const Sequence> list = iterate(budget, value);
    return list->items.empty() ? undefined_value("the last of nothing") : list->items.back();
  }
  if (name == "join") return joined(budget, value, arguments);
  if (name == "list") {
    only();
    const std::shared_ptr<const Sequence> list = iterate(budget, value);
    if (list->kind == Sequence::Kind::list) return list;
    return list_value(budget, list->items);
  }
  if (name == "items") return only(), items_of(budget, value);
  if (name == "dictsort") return list_value(budget, dict_sort(budget, value, arguments));
  if (name == "reverse") return only(), reversed(budget, value);
  if (name == "replace") {
    const Bound a(name, arguments, {"old", "new", "count"}, 2);
    const StrPtr s = str_of(budget, value), from = str_of(budget, *a[0]),
                 to = str_of(budget, *a[1]);
    return replaced(budget, *s, *from, *to, a.given(2) ? a.whole(2, -1) : -1);
  }
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return chosen(budget, name, value, arguments);
  if (name == "map") return mapped(budget, value, arguments);
  if (name == "sort") return list_value(budget, sort_filter(budget, value, arguments));
  if (name == "unique") return unique(budget, value, arguments);
  if (name == "min" || name == "max") return extreme(budget, name, value, arguments);
  if (name == "groupby") return group_by(budget, value, arguments);
  if (name == "sum") return summed(budget, value, arguments);
  if (name == "batch") return batch(budget, value, arguments);
  if (name == "slice") return slices(budget, value, arguments);
  if (name == "indent") return indented(budget, value, arguments);
  if (name == "truncate") return truncated(budget, value, arguments);
  if (name == "center") {
    const Bound a(name, arguments, {"width"});
    return padded(budget, text(), a.whole(0, 80), nullptr, 0);
  }
  if (name == "wordcount") return only(), count_words(budget, *text().string());
  if (name == "urlencode") return only(), url_encoded(budget, value);
  if (name == "format") {
    if (!arguments.places.empty() && !arguments.named.empty())
      fail("format: takes arguments by their place or by name, not both");
    const Value of = text();
    if (arguments.named.empty())
      return percent(budget, *of.string(), tuple_value(budget, arguments.places));
    DictMaker dict(budget);
    for (const auto& [key, v] : arguments.named) dict.set(text_value(budget, key), v);
    return percent(budget, *of.string(), dict.finish());
  }
  if (name == "attr") {
    const Bound a(name, arguments, {"name"}, 1);
    if (value.undefined())
      fail_undefined(value, fmt::format("'{:.60}' of it is asked for", a.text(0).bytes));
    Value out;
    if (own_attribute(budget, value, a.text(0).bytes, &out)) return out;
    return undefined_value(a.text(0).bytes);
  }
  if (name == "int") return to_integer(budget, value, arguments);
  if (name == "float") return to_float(budget, value, arguments);
  if (name == "round") return rounded(value, arguments);
  if (name == "abs") return only(), absolute(value);
  fail(fmt::format("the filter '{:.60}' is not supported", name));
}

}  // namespace episodic::text::jinja
