// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "episodic/base/error.hpp"
#include "jinja_builtins.hpp"
#include "jinja_filters.hpp"
#include "jinja_methods.hpp"
#include "jinja_operators.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

using Sequences = std::shared_ptr<const Sequence>;

Value lower_case(Budget& budget, const Value& v) {
  return v.string() ? cased(budget, v, Case::lower) : v;
}

/// value.a.b, or a number as an index, as the reference's make_attrgetter.
class Path {
 public:
  /// \param path none: the value itself
  Path(Budget& budget, const Value* path, bool folds, const Value* otherwise = nullptr)
      : budget_(budget), folds_(folds), otherwise_(otherwise) {
    if (path == nullptr || path->none()) return;
    if (!path->string()) {
      parts_.push_back(*path);
      return;
    }
    const Value dot = text_value(budget, ".");
    for (const Value& part : split(budget, *path, dot.string(), -1)) {
      const Str& s = *part.string();
      Value digits;
      string_method(budget, part, "isdigit", {}, &digits);
      if (digits.truth() && s.bytes.size() > 9)
        fail(fmt::format("the attribute {} is not supported", shown(part)));
      if (digits.truth() && !s.ascii())
        fail(fmt::format("the attribute {} is not supported", shown(part)));
      parts_.push_back(digits.truth() ? Value(Integer{std::stol(s.bytes)}) : part);
    }
  }

  Value operator()(const Value& v) const {
    Value at = v;
    for (const Value& part : parts_) {
      at = item(budget_, at, part);
      if (otherwise_ && !otherwise_->none() && at.undefined()) at = *otherwise_;
    }
    return folds_ ? lower_case(budget_, at) : at;
  }

 private:
  Budget& budget_;
  std::vector<Value> parts_;
  bool folds_;
  const Value* otherwise_;
};

// -- sequences --

/// A generator of what `make` puts in a list: what it throws is thrown when that place is reached.
template <class Make>
Value generated(Budget& budget, Make make) {
  auto g = std::make_shared<Generator>();
  g->charge = Charge(budget, sizeof(Generator) + 32);
  try {
    make(g->items);
  } catch (const DataError& e) {
    g->error = e.what();
  }
  budget.step(g->items.size() / 4);
  g->charge.grow(g->items.capacity() * sizeof(Value));
  for (const Value& v : g->items) g->depth = std::max(g->depth, v.depth() + 1);
  if (g->depth > kDeepest) fail("a value is nested too deep");
  return g;
}

}  // namespace

Value chosen(Budget& budget, const std::string& name, const Value& value, const Arguments& a) {
  return generated(budget, [&](List& out) {
    const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
    if (!value.truth()) return;  // of nothing, nothing
    if (by_attribute && a.places.empty()) fail(name + ": needs the name of an attribute");
    const std::size_t first = by_attribute ? 1 : 0;
    const Path path(budget, by_attribute ? &a.places[0] : nullptr, false);
    Arguments rest;
    std::string test;
    if (a.places.size() > first) {
      if (!a.places[first].string()) fail(name + ": the name of a test must be a string");
      test = a.places[first].string()->bytes;
      rest.places.assign(a.places.begin() + static_cast<std::ptrdiff_t>(first) + 1, a.places.end());
      rest.named = a.named;
    }
    for (const Value& v : Items(budget, value)) {
      budget.step();
      const Value of = path(v);
      if ((test.empty() ? of.truth() : call_test(budget, test, of, rest)) == wanted)
        out.push_back(v);
    }
  });
}

Value mapped(Budget& budget, const Value& value, const Arguments& a) {
  return generated(budget, [&](List& out) {
    if (!value.truth()) return;
    const Value *path = nullptr, *otherwise = nullptr;
    if (a.places.empty())
      for (const auto& [key, v] : a.named) {
        if (key == "attribute")
          path = &v;
        else if (key == "default")
          otherwise = &v;
        else
          fail(fmt::format("map: has no parameter '{:.60}'", key));
      }
    if (a.places.empty() && path == nullptr) fail("map: needs attribute= or the name of a filter");
    const Path get(budget, path, false, otherwise);
    Arguments rest;
    std::string filter;
    if (!a.places.empty()) {
      if (!a.places[0].string()) fail("map: the name of a filter must be a string");
      filter = a.places[0].string()->bytes;
      rest.places.assign(a.places.begin() + 1, a.places.end());
      rest.named = a.named;
    }
    for (const Value& v : Items(budget, value)) {
      budget.step();
      out.push_back(path ? get(v) : call_filter(budget, filter, v, rest));
    }
  });
}

namespace {

/// `items` in the order of `keys`, which are compared as Python compares lists, or, with one key
/// each, as it compares that: equal ones must have an order then, too.
List sorted(Budget& budget, const List& items, const std::vector<List>& keys, bool reverse,
            bool lists) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto less = [&](std::size_t x, std::size_t y) {
    budget.step();
    for (std::size_t i = 0; i < keys[x].size(); ++i) {
      if (lists && equal(budget, keys[x][i], keys[y][i])) continue;
      const int c = compare(budget, keys[x][i], keys[y][i]);
      if (c == 2) fail("sorting nan is not supported");
      return c < 0;
    }
    return false;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return reverse ? less(y, x) : less(x, y); });
  List out;
  out.reserve(items.size());
  for (const std::size_t i : order) out.push_back(items[i]);
  return out;
}

}  // namespace

List sort_filter(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool folds = !a.flag(1, false);
  std::vector<Path> paths;
  if (a.given(2) && a[2]->string()) {
    const Value comma = text_value(budget, ",");
    for (const Value& part : split(budget, *a[2], comma.string(), -1))
      paths.emplace_back(budget, &part, folds);
  } else {
    paths.emplace_back(budget, a[2], folds);
  }
  const Sequences of = iterate(budget, value);
  const Charge charge(budget, of->items.size() * (sizeof(List) + 3 * sizeof(Value)));
  std::vector<List> keys;
  keys.reserve(of->items.size());
  for (const Value& v : of->items) {
    budget.step();
    List key;
    for (const Path& path : paths) key.push_back(path(v));
    keys.push_back(std::move(key));
  }
  return sorted(budget, of->items, keys, a.flag(0, false), true);
}

List dict_sort(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const Dict* dict = value.dict();
  if (dict == nullptr) fail(fmt::format("dictsort: {} is no mapping", value.kind()));
  const bool by_value = a[1] && a.text(1).bytes == "value";
  if (a[1] && !by_value && a.text(1).bytes != "key") fail("dictsort: 'by' must be key or value");
  List items;
  std::vector<List> keys;
  const Charge charge(budget, dict->items.size() * (sizeof(List) + 4 * sizeof(Value)));
  for (const auto& [k, v] : dict->items) {
    items.push_back(tuple_value(budget, {k, v}));
    const Value& by = by_value ? v : k;
    keys.push_back({a.flag(0, false) ? by : lower_case(budget, by)});
  }
  return sorted(budget, items, keys, a.flag(2, false), false);
}

Value unique(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("unique", arguments, {"case_sensitive", "attribute"});
  return generated(budget, [&](List& out) {
    const Path path(budget, a[1], !a.flag(0, false));
    std::set<std::string> texts;
    Charge charge(budget, 0);
    List others;
    for (const Value& v : Items(budget, value)) {
      const Value key = path(v);
      hashable(key, "unique");
      if (const Str* s = key.string()) {
        budget.pass(s->bytes.size());
        if (!texts.insert(s->bytes).second) continue;
        charge.grow(s->bytes.size() + 64);
      } else {
        if (std::any_of(others.begin(), others.end(),
                        [&](const Value& o) { return equal(budget, o, key); }))
          continue;
        charge.grow(sizeof(Value) * 2);
        others.push_back(key);
      }
      out.push_back(v);
    }
  });
}

Value extreme(Budget& budget, const std::string& name, const Value& value,
              const Arguments& arguments) {
  const Bound a(name, arguments, {"case_sensitive", "attribute"});
  const Path path(budget, a[1], !a.flag(0, false));
  const Sequences of = iterate(budget, value);
  if (of->items.empty()) return undefined_value("the least or greatest of nothing");
  std::size_t best = 0;
  Value best_key = path(of->items[0]);
  for (std::size_t i = 1; i < of->items.size(); ++i) {
    Value key = path(of->items[i]);
    const int c = compare(budget, key, best_key);
    if (c == 2) fail(name + ": nan is not supported");
    if (name == "min" ? c >= 0 : c <= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return of->items[best];
}

Value group_by(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const bool folds = !a.flag(2, false);
  const Path path(budget, a[0], folds, a[1]), shown_path(budget, a[0], false, a[1]);
  const Sequences of = iterate(budget, value);
  const Charge charge(budget, of->items.size() * (sizeof(List) + 3 * sizeof(Value)));
  std::vector<List> keys;
  for (const Value& v : of->items) keys.push_back({path(v)});
  const List in_order = sorted(budget, of->items, keys, false, false);
  List groups, group;
  const auto close = [&] {
    if (group.empty()) return;
    Value name = shown_path(group.front());
    groups.push_back(list_value(budget,
                                {std::move(name), list_value(budget, std::exchange(group, {}))},
                                Sequence::Kind::group));
  };
  Value key;
  for (const Value& v : in_order) {
    Value next = path(v);
    if (!group.empty() && !equal(budget, key, next)) close();
    key = std::move(next);
    group.push_back(v);
  }
  close();
  return list_value(budget, std::move(groups));
}

Value summed(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("sum", arguments, {"attribute", "start"});
  const Path path(budget, a[0], false);
  Value total = a[1] ? *a[1] : Value(Integer{0});
  if (total.string()) fail("sum: strings cannot be summed; join them");
  for (const Value& v : Items(budget, value)) total = arithmetic(budget, '+', total, path(v));
  return total;
}

namespace {

std::size_t count_of(const Bound& a, std::size_t i, const char* what) {
  const Integer n = a.whole(i, 0);
  if (n < 1 || n > 10'000'000) fail(fmt::format("{}: must be at least 1, and not too large", what));
  return static_cast<std::size_t>(n);
}

}  // namespace

Value batch(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("batch", arguments, {"linecount", "fill_with"}, 1);
  return generated(budget, [&](List& out) {
    const Integer n = a.whole(0, 0);
    List row;
    for (const Value& v : Items(budget, value)) {
      if (static_cast<Integer>(row.size()) == n)
        out.push_back(list_value(budget, std::exchange(row, {})));
      row.push_back(v);
    }
    if (row.empty()) return;
    if (a.given(1) && static_cast<Integer>(row.size()) < n) {
      if (n > 100'000'000) fail("what the template makes grows too long");
      const auto size = static_cast<std::size_t>(n);
      budget.step(size);
      const Charge charge(budget, size * sizeof(Value));
      row.resize(size, *a[1]);
    }
    out.push_back(list_value(budget, std::move(row)));
  });
}

Value slices(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("slice", arguments, {"slices", "fill_with"}, 1);
  return generated(budget, [&](List& out) {
    const std::size_t n = count_of(a, 0, "slice: 'slices'");
    const Sequences of = iterate(budget, value);
    const std::size_t each = of->items.size() / n, more = of->items.size() % n;
    std::size_t at = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t end = at + each + (i < more ? 1 : 0);
      List part(of->items.begin() + static_cast<std::ptrdiff_t>(at),
                of->items.begin() + static_cast<std::ptrdiff_t>(end));
      if (a.given(1) && i >= more) part.push_back(*a[1]);
      out.push_back(list_value(budget, std::move(part)));
      at = end;
    }
  });
}

Value joined(Budget& budget, const Value& value, const Arguments& arguments) {
  const Bound a("join", arguments, {"d", "attribute"});
  const StrPtr between = a[0] ? str_of(budget, *a[0]) : text_value(budget, "").shared_string();
  const Path path(budget, a[1], false);
  Builder out(budget);
  bool first = true;
  const Sequences of = iterate(budget, value);
  for (const Value& v : of->items) {
    if (!first) out.add(*between);
    first = false;
    out.print(path(v));
  }
  return out.finish();
}

Value reversed(Budget& budget, const Value& value) {
  if (const Str* s = value.string()) {
    if (s->markup) fail("reverse: 'safe' and 'escape' before it are not supported");
    Builder out(budget);
    budget.step(s->bytes.size() / 2);
    for (std::size_t end = s->bytes.size(); end > 0;) {
      const std::size_t begin = begin_of_character(s->bytes, end);
      out.add(*s, begin, end);
      end = begin;
    }
    return out.finish();
  }
  const bool consumed = value.generator() != nullptr;
  if (value.undefined()) return generated(budget, [](List&) {});
  List list = iterate(budget, value)->items;
  std::reverse(list.begin(), list.end());
  if (consumed) return list_value(budget, std::move(list));
  return generated(budget, [&](List& out) { out = std::move(list); });
}

Value items_of(Budget& budget, const Value& value) {
  return generated(budget, [&](List& out) {
    if (value.undefined()) return;
    Value items;
    if (!value.dict()) fail(fmt::format("items: {} is no mapping", value.kind()));
    dict_method(budget, value, "items", {}, &items);
    out = items.sequence()->items;
  });
}

}  // namespace episodic::text::jinja
