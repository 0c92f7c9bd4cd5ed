// SPDX-License-Identifier: Apache-2.0
#include "jinja_render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "episodic/base/error.hpp"
#include "jinja_builtins.hpp"

namespace episodic::text::jinja {
namespace {

using Kind = Expression::Kind;

// No chat template comes near: what does is one that does not end, or is made to fill the memory.
constexpr std::int64_t kMostSteps = 3'000'000;
constexpr std::size_t kMostText = std::size_t{256} << 20;
constexpr std::size_t kLongestRange = 100'000;
constexpr int kMostCalls = 50;

class Renderer {
 public:
  explicit Renderer(Named globals) {
    scopes_.emplace_back();
    for (auto& [name, value] : globals) scopes_[0][name] = std::move(value);
    add_functions();
  }

  std::string run(const Block& block) {
    body(block);
    return std::move(out_);
  }

 private:
  enum class Flow { on, leave, proceed };

  void add_functions() {
    auto& globals = scopes_[0];
    globals["namespace"] = Function([](List arguments, Named named) -> Value {
      Dict dict;
      for (const Value& v : arguments)
        if (const Dict* from = v.dict()) dict = *from;
      for (auto& [key, value] : named) dict.set(key, std::move(value));
      dict.writable = true;
      return dict;
    });
    globals["dict"] = Function([](List, Named named) -> Value {
      Dict dict;
      dict.items = std::move(named);
      return dict;
    });
    globals["raise_exception"] = Function([](List arguments, Named) -> Value {
      fail("the template refuses these messages: " +
           (arguments.empty() ? std::string("it does not say why") : arguments[0].text()));
    });
    globals["range"] = Function([this](List a, Named) -> Value { return range(a); });
  }

  Value range(const List& a) {
    std::int64_t n[3] = {0, 0, 1};
    if (a.empty() || a.size() > 3) fail("range: needs one to three integers");
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!a[i].whole(&n[a.size() == 1 ? 1 : i])) fail("range: needs integers");
    if (n[2] == 0) fail("range: the step is 0");
    List list;
    for (std::int64_t i = n[0]; n[2] > 0 ? i < n[1] : i > n[1]; i += n[2]) {
      count_step();
      if (list.size() == kLongestRange) fail("range: is so long that the template takes too long");
      list.emplace_back(i);
    }
    return list;
  }

  void count_step() {
    if (++steps_ > kMostSteps) fail("the template takes too long; it may have no end");
  }

  void print(const std::string& text) {
    if (out_.size() + text.size() > kMostText) fail("the template prints too much");
    out_ += text;
  }

  // -- statements --

  Flow body(const Block& block) {
    for (const Statement& s : block) {
      count_step();
      const Flow flow = at_line(s.line, [&] { return statement(s); });
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  /// Puts the line before what is wrong, once.
  template <class F>
  auto at_line(int line, F&& f) -> decltype(f()) {
    try {
      return f();
    } catch (const DataError& e) {
      const std::string what = e.what();
      if (what.starts_with("line ")) throw;
      throw DataError(fmt::format("line {}: {}", line, what));
    }
  }

  Flow statement(const Statement& s) {
    switch (s.kind) {
      case Statement::Kind::text:
        print(s.text);
        return Flow::on;
      case Statement::Kind::output:
        print(value(*s.value).text());
        return Flow::on;
      case Statement::Kind::branch:
        return body(value(*s.value).truth() ? s.body : s.other);
      case Statement::Kind::loop:
        return loop(s);
      case Statement::Kind::set:
        set(s);
        return Flow::on;
      case Statement::Kind::macro:
        scopes_.back()[s.text] = macro(s);
        return Flow::on;
      case Statement::Kind::leave:
        return Flow::leave;
      case Statement::Kind::proceed:
        return Flow::proceed;
    }
    return Flow::on;
  }

  void bind(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = value;
      return;
    }
    const List parts = iterate(value);
    if (parts.size() != names.size())
      fail(fmt::format("{} values for {} names", parts.size(), names.size()));
    for (std::size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = parts[i];
  }

  /// A scope that ends with its block, also by an error.
  class Scope {
   public:
    explicit Scope(Renderer& r) : r_(r) { r_.scopes_.emplace_back(); }
    ~Scope() { r_.scopes_.pop_back(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Renderer& r_;
  };

  Flow loop(const Statement& s) {
    List items = iterate(value(*s.value));
    if (s.condition) {
      List kept;
      for (const Value& v : items) {
        const Scope scope(*this);
        bind(s.names, v);
        if (value(*s.condition).truth()) kept.push_back(v);
      }
      items = std::move(kept);
    }
    if (items.empty()) return body(s.other);
    const auto n = static_cast<std::int64_t>(items.size());
    for (std::int64_t i = 0; i < n; ++i) {
      steps_ += 20;  // what a turn costs: a scope, and the fields of `loop`
      const Scope scope(*this);
      bind(s.names, items[static_cast<std::size_t>(i)]);
      scopes_.back()["loop"] = loop_value(items, i);
      const Flow flow = body(s.body);
      if (flow == Flow::leave) break;
    }
    return Flow::on;
  }

  static Value loop_value(const List& items, std::int64_t i) {
    const auto n = static_cast<std::int64_t>(items.size());
    const auto at = [&](std::int64_t j) {
      return j >= 0 && j < n ? items[static_cast<std::size_t>(j)] : Value(Undefined{"item"});
    };
    Dict d;
    d.items = {
        {"index", i + 1},       {"index0", i},        {"revindex", n - i}, {"revindex0", n - i - 1},
        {"first", i == 0},      {"last", i + 1 == n}, {"length", n},       {"previtem", at(i - 1)},
        {"nextitem", at(i + 1)}};
    return d;
  }

  void set(const Statement& s) {
    if (!s.value) {
      std::string before = std::exchange(out_, {});
      {
        const Scope scope(*this);
        body(s.body);
      }
      std::swap(before, out_);
      scopes_.back()[s.names[0]] = Value(std::move(before));
      return;
    }
    Value v = value(*s.value);
    if (s.attribute.empty()) return bind(s.names, v);
    const Value of = name(s.names[0]);
    if (!of.dict() || !of.dict()->writable)
      fail(fmt::format("{}.{} cannot be set: only a namespace's attributes can", s.names[0],
                       s.attribute));
    of.dict()->set(s.attribute, std::move(v));
  }

  Value macro(const Statement& s) {
    return Function([this, &s](List arguments, Named named) -> Value {
      if (arguments.size() > s.parameters.size())
        fail(fmt::format("{}: {} arguments, expected at most {}", s.text, arguments.size(),
                         s.parameters.size()));
      if (++calls_ > kMostCalls) fail(fmt::format("{}: calls itself too often", s.text));
      // A macro sees what stands outside of all loops, and what it is given.
      std::vector<std::map<std::string, Value>> outside;
      for (std::size_t i = 1; i < scopes_.size(); ++i) outside.push_back(std::move(scopes_[i]));
      scopes_.resize(1);
      std::string before = std::exchange(out_, {});
      const auto back = [&] {
        scopes_.resize(1);
        for (auto& scope : outside) scopes_.push_back(std::move(scope));
        std::swap(out_, before);
        --calls_;
      };
      try {
        scopes_.emplace_back();
        for (std::size_t i = 0; i < s.parameters.size(); ++i) {
          const Parameter& p = s.parameters[i];
          Value v = p.value ? value(*p.value) : Value(Undefined{p.name});
          if (i < arguments.size()) v = arguments[i];
          for (auto& [key, given] : named)
            if (key == p.name) v = given;
          scopes_.back()[p.name] = std::move(v);
        }
        for (const auto& [key, given] : named)
          if (std::none_of(s.parameters.begin(), s.parameters.end(),
                           [&key = key](const Parameter& p) { return p.name == key; }))
            fail(fmt::format("{}: has no parameter '{}'", s.text, key));
        body(s.body);
      } catch (...) {
        back();
        throw;
      }
      back();
      return before;
    });
  }

  // -- expressions --

  Value name(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto it = scope->find(name); it != scope->end()) return it->second;
    return Undefined{name};
  }

  Value value(const Expression& e) {
    count_step();
    switch (e.kind) {
      case Kind::literal:
        return e.value;
      case Kind::name:
        return name(e.text);
      case Kind::list: {
        List list;
        for (const auto& part : e.parts) list.push_back(value(*part));
        return list;
      }
      case Kind::dict: {
        Dict dict;
        for (std::size_t i = 0; i < e.parts.size(); i += 2) {
          const Value key = value(*e.parts[i]);
          if (!key.string())
            fail(fmt::format("the keys of a mapping must be strings, not {}", key.kind()));
          dict.set(*key.string(), value(*e.parts[i + 1]));
        }
        return dict;
      }
      case Kind::attribute:
        return attribute(e);
      case Kind::item:
        return item(value(*e.parts[0]), value(*e.parts[1]));
      case Kind::slice:
        return slice(e);
      case Kind::call:
        return call(e);
      case Kind::filter:
        return filter(e);
      case Kind::test: {
        const Value of = value(*e.parts[0]);
        return call_test(e.text, of, places(e));
      }
      case Kind::unary:
        return unary(e);
      case Kind::binary:
        return binary(e);
      case Kind::choice:
        if (value(*e.parts[1]).truth()) return value(*e.parts[0]);
        return e.parts[2] ? value(*e.parts[2]) : Value(Undefined{"the other side of an if"});
    }
    return {};
  }

  List places(const Expression& e) {
    List out;
    for (const Argument& a : e.arguments)
      if (a.name.empty()) out.push_back(value(*a.value));
    return out;
  }
  Named named(const Expression& e) {
    Named out;
    for (const Argument& a : e.arguments)
      if (!a.name.empty()) out.emplace_back(a.name, value(*a.value));
    return out;
  }

  Value attribute(const Expression& e) {
    const Value of = value(*e.parts[0]);
    if (of.undefined())
      fail(fmt::format("'{}' is undefined, but '{}' of it is asked for", shown(*e.parts[0]),
                       e.text));
    if (const Dict* dict = of.dict())
      if (const Value* found = dict->find(e.text)) return *found;
    return Undefined{e.text};
  }

  static std::string shown(const Expression& e) {
    if (e.kind == Kind::name) return e.text;
    if (e.kind == Kind::attribute) return shown(*e.parts[0]) + "." + e.text;
    return "a value";
  }

  Value filter(const Expression& e) {
    const Value of = value(*e.parts[0]);
    return call_filter(e.text, of, places(e), named(e));
  }

  Value call(const Expression& e) {
    const Expression& of = *e.parts[0];
    if (of.kind == Kind::attribute) {
      const Value object = value(*of.parts[0]);
      if (object.undefined())
        fail(fmt::format("'{}' is undefined, but '{}' of it is called", shown(*of.parts[0]),
                         of.text));
      Value out;
      const Dict* dict = object.dict();
      const Value* held = dict ? dict->find(of.text) : nullptr;
      if (!(held && held->function())) {
        if (call_method(object, of.text, places(e), &out)) return out;
        fail(fmt::format("the method '{}' of {} is not supported", of.text, object.kind()));
      }
    }
    const Value function = value(of);
    if (!function.function())
      fail(function.undefined() ? fmt::format("the function '{}' is not supported", shown(of))
                                : fmt::format("{} cannot be called", function.kind()));
    return (*function.function())(places(e), named(e));
  }

  Value slice(const Expression& e) {
    const Value of = value(*e.parts[0]);
    const bool text = of.string() != nullptr;
    const List list = iterate(of);
    const auto n = static_cast<std::int64_t>(list.size());
    const auto bound = [&](std::size_t i) -> std::optional<std::int64_t> {
      if (!e.parts[i]) return std::nullopt;
      const Value v = value(*e.parts[i]);
      if (v.none()) return std::nullopt;
      std::int64_t b = 0;
      if (!v.whole(&b)) fail(fmt::format("a slice's bound is {}, not an integer", v.kind()));
      return b;
    };
    const std::int64_t step = bound(3).value_or(1);
    if (step == 0) fail("a slice's step is 0");
    const std::int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? n : n - 1;
    const auto place = [&](std::optional<std::int64_t> b, std::int64_t otherwise) {
      if (!b) return otherwise;
      return std::clamp(*b < 0 ? *b + n : *b, lowest, highest);
    };
    const std::int64_t first = place(bound(1), step > 0 ? 0 : n - 1);
    const std::int64_t last = place(bound(2), step > 0 ? n : -1);
    List out;
    for (std::int64_t i = first; step > 0 ? i < last : i > last;) {
      out.push_back(list[static_cast<std::size_t>(i)]);
      if (step > n || step < -n) break;
      i += step;
    }
    if (!text) return out;
    std::string joined;
    for (const Value& c : out) joined += *c.string();
    return joined;
  }

  Value unary(const Expression& e) {
    const Value v = value(*e.parts[0]);
    if (e.text == "not") return !v.truth();
    double d = 0;
    if (!v.number(&d)) fail(fmt::format("{} has no sign", v.kind()));
    const bool minus = e.text == "-";
    std::int64_t i = 0;
    if (v.whole(&i)) return minus ? static_cast<std::int64_t>(-static_cast<std::uint64_t>(i)) : i;
    return minus ? -d : d;
  }

  Value binary(const Expression& e) {
    const std::string& op = e.text;
    if (op == "+" || op == "~")
      for (const auto& part : e.parts)
        if (part->kind == Kind::filter && part->text == "safe")
          fail("the filter 'safe' within a sum is not supported");  // escapes the rest as HTML
    Value a = value(*e.parts[0]);
    if (op == "and") return a.truth() ? value(*e.parts[1]) : a;
    if (op == "or") return a.truth() ? a : value(*e.parts[1]);
    const Value b = value(*e.parts[1]);
    if (op == "==") return a == b;
    if (op == "!=") return !(a == b);
    if (op == "<") return compare(a, b) < 0;
    if (op == ">") return compare(a, b) > 0;
    if (op == "<=") return compare(a, b) <= 0;
    if (op == ">=") return compare(a, b) >= 0;
    if (op == "in") return contains(b, a);
    if (op == "not in") return !contains(b, a);
    if (op == "~") return a.text() + b.text();
    return arithmetic(op, a, b);
  }

  Value arithmetic(const std::string& op, const Value& a, const Value& b) {
    if (op == "+" && a.string() && b.string()) {
      if (a.string()->size() + b.string()->size() > kMostText) fail("a text grows too long");
      return *a.string() + *b.string();
    }
    if (op == "+" && a.list() && b.list()) {
      List list = *a.list();
      list.insert(list.end(), b.list()->begin(), b.list()->end());
      return list;
    }
    std::int64_t i = 0, j = 0;
    if (op == "*" && a.string() && b.whole(&j)) {
      const auto times = static_cast<std::size_t>(std::max<std::int64_t>(0, j));
      if (a.string()->size() * std::min(times, kMostText) > kMostText)
        fail("a text grows too long");
      std::string out;
      for (std::size_t k = 0; k < times; ++k) out += *a.string();
      return out;
    }
    double x = 0, y = 0;
    if (!a.number(&x) || !b.number(&y))
      fail(fmt::format("{} {} {} cannot be computed", a.kind(), op, b.kind()));
    if ((op == "/" || op == "//" || op == "%") && y == 0) fail("division by zero");
    if (op == "/") return x / y;
    if (a.whole(&i) && b.whole(&j)) {
      const auto whole = [](auto n) { return Value(static_cast<std::int64_t>(n)); };
      const auto ui = static_cast<std::uint64_t>(i), uj = static_cast<std::uint64_t>(j);
      if (op == "+") return whole(ui + uj);
      if (op == "-") return whole(ui - uj);
      if (op == "*") return whole(ui * uj);
      if (j == -1) return op == "//" ? whole(-ui) : whole(0);
      const std::int64_t rest =
          i % j != 0 && (i % j < 0) != (j < 0) ? i % j + j : i % j;  // Python's
      if (op == "%") return rest;
      if (op == "//") return (i - rest) / j;
    }
    if (op == "+") return x + y;
    if (op == "-") return x - y;
    if (op == "*") return x * y;
    if (op == "//") return std::floor(x / y);
    if (op == "%") return x - y * std::floor(x / y);
    const double power = std::pow(x, y);
    if (a.integer() && b.integer() && *b.integer() >= 0 && std::abs(power) < 9e15)
      return static_cast<std::int64_t>(power);
    return power;
  }

  std::vector<std::map<std::string, Value>> scopes_;
  std::string out_;
  std::int64_t steps_ = 0;
  int calls_ = 0;
};

}  // namespace

std::string render(const Block& block, Named globals) {
  return Renderer(std::move(globals)).run(block);
}

}  // namespace episodic::text::jinja
