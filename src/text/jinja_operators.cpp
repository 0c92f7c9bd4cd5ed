// SPDX-License-Identifier: Apache-2.0
#include "jinja_operators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "jinja_builtins.hpp"
#include "jinja_filters.hpp"
#include "jinja_methods.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

/// The place that Python's index means, or npos.
std::size_t index_in(Integer i, std::size_t size) {
  if (i < 0) i += static_cast<Integer>(size);
  return i >= 0 && i < static_cast<Integer>(size) ? static_cast<std::size_t>(i) : kNone;
}

[[noreturn]] void cannot(char op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b})
    if (v->undefined()) fail_undefined(*v, "something is to be computed with it");
  const char* sign = op == '^' ? "**" : op == '\\' ? "//" : nullptr;
  fail(fmt::format("{} {} {} cannot be computed", a.kind(),
                   sign ? sign : std::string(1, op).c_str(), b.kind()));
}

[[noreturn]] void beyond() { fail("an integer beyond 128 bits is not supported"); }

Value power(const Value& a, const Value& b) {
  Integer base = 0, exponent = 0;
  if (a.whole(&base) && b.whole(&exponent) && exponent >= 0) {
    Integer result = 1;
    while (exponent > 0) {
      if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) beyond();
      exponent >>= 1;
      if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) beyond();
    }
    return result;
  }
  double x = 0, y = 0;
  a.number(&x);
  b.number(&y);
  if (x == 0 && y < 0) fail("division by zero");
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y))
    fail("complex numbers are not supported");
  const double out = std::pow(x, y);
  if (std::isinf(out) && std::isfinite(x) && std::isfinite(y)) fail("a float is too large");
  return out;
}

}  // namespace

void fail_undefined(const Value& v, const std::string& what) {
  const auto& name = v.unknown()->name;
  fail(fmt::format("'{:.60}' is undefined, but {}", name ? *name : std::string("a value"), what));
}

void hashable(const Value& v, const char* filter) {
  const Sequence* s = v.sequence();
  if (v.dict() ||
      (s && !s->tuple() && s->kind != Sequence::Kind::range && s->kind != Sequence::Kind::values))
    fail(fmt::format("{}: {} cannot be the key of a mapping", filter, v.kind()));
}

Value compute(char op, const Value& a, const Value& b) {
  Integer i = 0, j = 0;
  double x = 0, y = 0;
  a.number(&x);
  b.number(&y);
  if (op == '^') return power(a, b);
  if ((op == '/' || op == '\\' || op == '%') && y == 0) fail("division by zero");
  if (a.whole(&i) && b.whole(&j)) {
    Integer out = 0;
    switch (op) {
      case '+':
        if (__builtin_add_overflow(i, j, &out)) beyond();
        return out;
      case '-':
        if (__builtin_sub_overflow(i, j, &out)) beyond();
        return out;
      case '*':
        if (__builtin_mul_overflow(i, j, &out)) beyond();
        return out;
      case '/':
        if (j == 1) return x;
        if (static_cast<Integer>(x) != i || static_cast<Integer>(y) != j)
          fail("the quotient of such large integers is not supported");
        return x / y;
      default: {
        if (j == -1) {
          if (op == '%') return Integer{0};
          if (__builtin_sub_overflow(Integer{0}, i, &out)) beyond();
          return out;
        }
        Integer quotient = i / j, rest = i % j;
        if (rest != 0 && (rest < 0) != (j < 0)) {
          rest += j;
          --quotient;
        }
        return op == '%' ? rest : quotient;
      }
    }
  }
  switch (op) {
    case '+':
      return x + y;
    case '-':
      return x - y;
    case '*':
      return x * y;
    case '/':
      return x / y;
    default: {  // as CPython divides floats
      double rest = std::fmod(x, y);
      double quotient = (x - rest) / y;
      if (rest != 0) {
        if ((y < 0) != (rest < 0)) {
          rest += y;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, y);
      }
      if (op == '%') return rest;
      if (quotient == 0) return std::copysign(0.0, x / y);
      const double floor = std::floor(quotient);
      return quotient - floor > 0.5 ? floor + 1 : floor;
    }
  }
}

namespace {

/// A text or list `times` over.
Value repeated(Budget& budget, const Value& v, Integer times) {
  if (times < 0) times = 0;
  const std::size_t size = v.string() ? v.string()->bytes.size() : v.sequence()->items.size();
  if (size == 0) times = 0;
  if (times > Integer{1} << 34) fail("what the template makes grows too long");
  const auto n = static_cast<std::size_t>(times);
  if (v.string()) {
    const Charge enough(budget, size * n);  // before anything is made
    budget.pass(size * n);
  } else {
    const Charge enough(budget, size * n * sizeof(Value));
    budget.step(size * n / 4);
  }
  if (const Str* s = v.string()) {
    if (s->markup) fail("the filter 'safe' within a product is not supported");
    Builder out(budget);
    for (std::size_t i = 0; i < n; ++i) out.add(*s);
    return out.finish();
  }
  List list;
  list.reserve(size * n);
  for (std::size_t i = 0; i < n; ++i)
    list.insert(list.end(), v.sequence()->items.begin(), v.sequence()->items.end());
  return list_value(budget, std::move(list),
                    v.sequence()->tuple() ? Sequence::Kind::tuple : Sequence::Kind::list);
}

}  // namespace

std::shared_ptr<const Sequence> iterate(Budget& budget, const Value& value) {
  budget.step();
  if (value.sequence()) return value.shared_sequence();
  List out;
  if (value.string()) {
    out = characters(budget, value);
  } else if (const Dict* dict = value.dict()) {
    out.reserve(dict->items.size());
    for (const auto& [key, v] : dict->items) out.push_back(key);
  } else if (Generator* g = value.generator()) {
    Value v;
    while (g->take(&v)) out.push_back(v);
  } else if (!value.undefined()) {
    fail(fmt::format("{} cannot be walked over", value.kind()));
  }
  return list_value(budget, std::move(out)).shared_sequence();
}

Value item(Budget& budget, const Value& value, const Value& key) {
  budget.step();
  if (value.undefined()) {
    const auto& name = value.unknown()->name;
    fail(fmt::format("something undefined ('{:.60}') is asked for {}", name ? *name : "",
                     shown(key)));
  }
  Integer i = 0;
  if (const Dict* dict = value.dict()) {
    const Sequence* s = key.sequence();
    if (!key.dict() && !(s && !s->tuple()))
      if (const Value* found = dict->find(budget, key)) return *found;
  } else if (key.whole(&i)) {
    if (const Sequence* s = value.sequence(); s && !s->view()) {
      const std::size_t at = index_in(i, s->items.size());
      if (at != kNone) return s->items[at];
    } else if (const Str* text = value.string()) {
      const std::size_t at = index_in(i, text->length);
      if (at != kNone) {
        if (text->markup) fail("parts of what 'safe' or 'escape' returned are not supported");
        const std::size_t begin = byte_of(budget, *text, at);
        return substring(budget, value, begin, begin + character_at(text->bytes, begin).size);
      }
    }
  }
  Value out;
  if (key.string() && own_attribute(budget, value, key.string()->bytes, &out)) return out;
  return undefined_value(key.string() ? key.string()->bytes.substr(0, 60) : shown(key));
}

Value slice(Budget& budget, const Value& value, const Value& first, const Value& last,
            const Value& step) {
  const Str* text = value.string();
  const Sequence* list = value.sequence();
  if (value.undefined()) fail_undefined(value, "a part of it is asked for");
  if (!text && (!list || list->view()))
    fail(fmt::format("a part of {} is not supported", value.kind()));
  if (text && text->markup) fail("parts of what 'safe' or 'escape' returned are not supported");
  const auto n = static_cast<Integer>(text ? text->length : list->items.size());
  const auto bound = [](const Value& v) -> std::optional<Integer> {
    Integer b = 0;
    if (v.none()) return std::nullopt;
    if (!v.whole(&b)) fail(fmt::format("a slice's bound is {}, not an integer", v.kind()));
    return b;
  };
  for (const Value* v : {&first, &last, &step})
    if (Integer b = 0; !v->none() && !v->whole(&b))
      return undefined_value("a part without a place");
  const Integer by = bound(step).value_or(1);
  if (by == 0) fail("a slice's step is 0");
  const Integer lowest = by > 0 ? 0 : -1, highest = by > 0 ? n : n - 1;
  const auto place = [&](std::optional<Integer> b, Integer otherwise) {
    if (!b) return otherwise;
    return std::clamp(*b < 0 ? *b + n : *b, lowest, highest);
  };
  const Integer from = place(bound(first), by > 0 ? 0 : n - 1);
  const Integer to = place(bound(last), by > 0 ? n : -1);
  const auto more = [&](Integer i) { return by > 0 ? i < to : i > to; };
  if (text && by == 1) {
    if (from >= to) return text_value(budget, "");
    const std::size_t begin = byte_of(budget, *text, static_cast<std::size_t>(from));
    return substring(budget, value, begin, byte_of(budget, *text, static_cast<std::size_t>(to)));
  }
  const Integer size = more(from) ? (to - from + by + (by > 0 ? -1 : 1)) / by : 0;
  const auto count = static_cast<std::size_t>(size);
  if (text) {
    std::vector<std::size_t> begins;
    const Charge charge(budget, text->ascii() ? 0 : (text->length + 1) * sizeof(std::size_t));
    if (!text->ascii())
      for (std::size_t at = 0; at < text->bytes.size(); at += character_at(text->bytes, at).size)
        begins.push_back(at);
    budget.step(begins.size() / 8);
    Builder out(budget);
    for (std::size_t k = 0; k < count; ++k) {
      const auto i = static_cast<std::size_t>(from + static_cast<Integer>(k) * by);
      const std::size_t at = text->ascii() ? i : begins[i];
      out.add(*text, at, at + character_at(text->bytes, at).size);
    }
    return out.finish();
  }
  List out;
  const Charge charge(budget, count * sizeof(Value));
  out.reserve(count);
  for (std::size_t k = 0; k < count; ++k)
    out.push_back(list->items[static_cast<std::size_t>(from + static_cast<Integer>(k) * by)]);
  budget.step(count / 4);
  if (list->kind != Sequence::Kind::range)
    return list_value(budget, std::move(out),
                      list->tuple() ? Sequence::Kind::tuple : Sequence::Kind::list);
  auto part = std::make_shared<Sequence>();
  part->kind = Sequence::Kind::range;
  part->charge = Charge(budget, sizeof(Sequence) + count * sizeof(Value));
  part->start = list->start + from * list->step;
  part->stop = list->start + to * list->step;
  part->step = list->step * by;
  part->items = std::move(out);
  return std::shared_ptr<const Sequence>(std::move(part));
}

bool contains(Budget& budget, const Value& container, const Value& value) {
  budget.step();
  if (const Str* s = container.string()) {
    if (!value.string()) {
      if (value.undefined()) fail_undefined(value, "it is looked for in a string");
      fail(fmt::format("{} cannot be in a string", value.kind()));
    }
    return find(budget, *s, value.string()->bytes, 0) != kNone;
  }
  if (const Dict* dict = container.dict()) {
    hashable(value, "in");
    return dict->find(budget, value) != nullptr;
  }
  if (Generator* g = container.generator()) {
    Value v;
    while (g->take(&v))
      if (v.same(value) || equal(budget, v, value)) return true;
    return false;
  }
  const std::shared_ptr<const Sequence> list = iterate(budget, container);
  return std::any_of(list->items.begin(), list->items.end(),
                     [&](const Value& v) { return v.same(value) || equal(budget, v, value); });
}

Value arithmetic(Budget& budget, char op, const Value& a, const Value& b) {
  budget.step();
  if (a.number() && b.number()) return compute(op, a, b);
  if (op == '+' && a.string() && b.string()) {
    if (a.string()->markup || b.string()->markup) {  // the other one is escaped, as Markup's is
      Builder out(budget);
      for (const Value* one : {&a, &b}) out.add(*escaped(budget, *one, false).string());
      return out.finish(true);
    }
    if (b.string()->bytes.empty()) return a;
    if (a.string()->bytes.empty()) return b;
    Builder out(budget);
    out.add(*a.string());
    out.add(*b.string());
    return out.finish();
  }
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (op == '+' && s && t && s->plain() && t->plain() && s->tuple() == t->tuple()) {
    List list;
    const Charge charge(budget, (s->items.size() + t->items.size()) * sizeof(Value));
    list.reserve(s->items.size() + t->items.size());
    list.insert(list.end(), s->items.begin(), s->items.end());
    list.insert(list.end(), t->items.begin(), t->items.end());
    return list_value(budget, std::move(list),
                      s->tuple() ? Sequence::Kind::tuple : Sequence::Kind::list);
  }
  Integer times = 0;
  if (op == '*' && (a.string() || (s && s->plain())) && b.whole(&times))
    return repeated(budget, a, times);
  if (op == '*' && (b.string() || (t && t->plain())) && a.whole(&times))
    return repeated(budget, b, times);
  if (op == '%' && a.string()) {
    if (a.string()->markup) fail("'%' behind the filter 'safe' is not supported");
    return percent(budget, *a.string(), b);
  }
  if (op == '-' && ((s && s->view()) || (t && t->view())))
    fail("computing with the views of mappings is not supported");
  cannot(op, a, b);
}

}  // namespace episodic::text::jinja
