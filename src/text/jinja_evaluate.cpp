// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "jinja_builtins.hpp"
#include "jinja_renderer.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

using Kind = Expression::Kind;

}  // namespace

Value Renderer::name(const std::string& name) {
  const std::size_t cost = 1 + name.size() / 16;  // of a look into a scope, in quarters of a step
  std::size_t looks = 0;
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->around.get()) {
    if (++looks % 4 == 0 || cost > 1) budget_.step(cost);
    if (const auto it = scope->names.find(name); it != scope->names.end()) return it->second;
  }
  return undefined_value(name);
}

Value Renderer::value(const Expression& e) {
  const Deeper deeper(*this);
  budget_.step();
  switch (e.kind) {
    case Kind::literal:
      return e.value;
    case Kind::name:
      return name(e.text);
    case Kind::list:
    case Kind::tuple: {
      List list;
      list.reserve(e.parts.size());
      for (const auto& part : e.parts) list.push_back(value(*part));
      return list_value(budget_, std::move(list),
                        e.kind == Kind::list ? Sequence::Kind::list : Sequence::Kind::tuple);
    }
    case Kind::dict: {
      DictMaker dict(budget_);
      for (std::size_t i = 0; i < e.parts.size(); i += 2) {
        const Value key = value(*e.parts[i]);
        dict.set(key, value(*e.parts[i + 1]));
      }
      return dict.finish();
    }
    case Kind::attribute: {
      const Value of = value(*e.parts[0]);
      if (of.undefined())
        fail(fmt::format("'{}' is undefined, but '{:.60}' of it is asked for", shown(*e.parts[0]),
                         e.text));
      return attribute(budget_, of, e.text);
    }
    case Kind::item: {
      const Value of = value(*e.parts[0]);
      return item(budget_, of, value(*e.parts[1]));
    }
    case Kind::slice:
      return slice_of(e);
    case Kind::call:
      return at_line(e.line, [&] { return call(e, nullptr); });
    case Kind::filter:
      return at_line(e.line, [&] {
        const Value of = value(*e.parts[0]);
        return call_filter(budget_, e.text, of, arguments(e));
      });
    case Kind::test:
      return at_line(e.line, [&] {
        const Value of = value(*e.parts[0]);
        return Value(call_test(budget_, e.text, of, arguments(e)));
      });
    case Kind::not_:
      return !value(*e.parts[0]).truth();
    case Kind::sign:
      return signed_value(e.text == "-", value(*e.parts[0]));
    case Kind::sum:
      return sum(e);
    case Kind::join:
      return join(e);
    case Kind::all:
    case Kind::any: {
      Value v = value(*e.parts[0]);
      for (std::size_t i = 1; i < e.parts.size() && v.truth() == (e.kind == Kind::all); ++i)
        v = value(*e.parts[i]);
      return v;
    }
    case Kind::compare:
      return comparison(e);
    case Kind::choice:
      if (value(*e.parts[1]).truth()) return value(*e.parts[0]);
      return e.parts[2] ? value(*e.parts[2]) : undefined_value("the other side of an if");
  }
  return {};
}

Arguments Renderer::arguments(const Expression& e) {
  Arguments out;
  for (const Argument& a : e.arguments)
    if (a.name.empty())
      out.places.push_back(value(*a.value));
    else
      out.named.emplace_back(a.name, value(*a.value));
  return out;
}

std::string Renderer::shown(const Expression& e) {
  std::string out;
  const Expression* at = &e;
  for (int i = 0; i < 8 && at->kind == Kind::attribute; ++i) {
    out = fmt::format(".{:.40}{}", at->text, out);
    at = at->parts[0].get();
  }
  return (at->kind == Kind::name ? fmt::format("{:.40}", at->text) : "a value") + out;
}

Value Renderer::call(const Expression& e, const Value* caller) {
  const Expression& of = *e.parts[0];
  Value function;
  if (of.kind == Kind::attribute) {
    const Value object = value(*of.parts[0]);
    if (object.undefined())
      fail(fmt::format("'{}' is undefined, but '{:.60}' of it is called", shown(*of.parts[0]),
                       of.text));
    // a method, without making a function of it first
    if ((object.string() || object.sequence() || object.loop()) && !caller) {
      Value out;
      if (call_method(budget_, object, of.text, arguments(e), &out)) return out;
      fail(fmt::format("the method '{:.60}' of {} is not supported", of.text, object.kind()));
    }
    function = attribute(budget_, object, of.text);
    if (function.undefined())
      fail(fmt::format("the method '{:.60}' of {} is not supported", of.text, object.kind()));
  } else {
    function = value(of);
  }
  Arguments given = arguments(e);
  if (caller) given.named.emplace_back("caller", *caller);
  if (const Loop* loop = function.loop()) {
    const Bound a("loop", given, {"iterable"}, 1);
    if (!loop->recurse) fail("the loop must be marked 'recursive' to be called");
    return loop->recurse(*a[0]);
  }
  if (!function.function())
    fail(function.undefined() ? fmt::format("the function '{}' is not supported", shown(of))
                              : fmt::format("{} cannot be called", function.kind()));
  return function.function()->call(given);
}

Value Renderer::slice_of(const Expression& e) {
  const Value of = value(*e.parts[0]);
  Value bounds[3];
  for (std::size_t i = 0; i < 3; ++i)
    if (e.parts[i + 1]) bounds[i] = value(*e.parts[i + 1]);
  return slice(budget_, of, bounds[0], bounds[1], bounds[2]);
}

Value Renderer::signed_value(bool minus, const Value& v) {
  Integer i = 0;
  if (v.whole(&i)) {
    if (minus && __builtin_sub_overflow(Integer{0}, i, &i))
      fail("an integer beyond 128 bits is not supported");
    return i;
  }
  if (const double* d = v.real()) return minus ? -*d : *d;
  fail(fmt::format("{} has no sign", v.kind()));
}

Value Renderer::sum(const Expression& e) {
  Value v = value(*e.parts[0]);
  std::optional<Builder> text;
  const auto finish = [&] {
    if (!text) return;
    v = text->finish();
    text.reset();
  };
  const auto plain = [](const Value& one) { return one.string() && !one.string()->markup; };
  for (std::size_t i = 1; i < e.parts.size(); ++i) {
    const Value next = value(*e.parts[i]);
    if (e.text[i - 1] == '+' && (text || plain(v)) && plain(next)) {
      if (!text) {
        if (i + 1 == e.parts.size()) return arithmetic(budget_, '+', v, next);
        text.emplace(budget_);
        text->add(*v.string());
      }
      text->add(*next.string());
      continue;
    }
    finish();
    v = arithmetic(budget_, e.text[i - 1], v, next);
  }
  finish();
  return v;
}

Value Renderer::join(const Expression& e) {
  Builder out(budget_);
  for (const auto& part : e.parts) {
    out.print(value(*part));
  }
  return out.finish();
}

bool Renderer::compared(char sign, const Value& a, const Value& b) {
  switch (sign) {
    case '=':
      return equal(budget_, a, b);
    case '!':
      return !equal(budget_, a, b);
    case '<':
      return compare(budget_, a, b, "<") == -1;
    case '>':
      return compare(budget_, a, b, ">") == 1;
    case 'l': {
      const int c = compare(budget_, a, b, "<=");
      return c == -1 || c == 0;
    }
    case 'g': {
      const int c = compare(budget_, a, b, ">=");
      return c == 1 || c == 0;
    }
    default:
      return contains(budget_, b, a) == (sign == 'i');
  }
}

Value Renderer::comparison(const Expression& e) {
  Value left = value(*e.parts[0]);
  for (std::size_t i = 1; i < e.parts.size(); ++i) {
    Value right = value(*e.parts[i]);
    if (!compared(e.text[i - 1], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

}  // namespace episodic::text::jinja
