// SPDX-License-Identifier: Apache-2.0
#include "jinja_render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "jinja_builtins.hpp"
#include "jinja_renderer.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

constexpr std::size_t kLongestRange = 100'000;  // the reference's

constexpr std::string_view kGlobals[] = {"cycler",    "dict",  "joiner",         "lipsum",
                                         "namespace", "range", "raise_exception"};

}  // namespace

Renderer::Renderer(Named& globals, Budget& budget)
    : budget_(budget), out_(budget), scope_(std::make_shared<Scope>()) {
  add_functions();
  for (auto& [name, value] : globals) scope_->names[name] = std::move(value);
  enter();  // what a template sets hides what it is given
}

Renderer::~Renderer() {
  for (const auto& space : spaces_) space->items.clear();
  for (const ScopePtr& scope : scopes_)
    for (Scope* s = scope.get(); s != nullptr && !s->emptied; s = s->around.get()) {
      s->emptied = true;
      s->names.clear();
    }
}

RenderedPrompt Renderer::run(const Block& block) {
  body(block);
  return {std::move(out_.take_bytes()), std::move(out_.take_input())};
}

void Renderer::enter() {
  budget_.step(4);
  auto inner = std::make_shared<Scope>();
  inner->around = std::move(scope_);
  scope_ = std::move(inner);
}

void Renderer::set_name(std::string_view name, Value value) {
  scope_->names.insert_or_assign(name, std::move(value));
}

const ScopePtr& Renderer::keep_scope() {
  if (scope_->kept) return scope_;
  held_.emplace_back(budget_, 512);
  scope_->kept = true;
  scopes_.push_back(scope_);
  return scope_;
}

void Renderer::add_function(const char* name, std::function<Value(Arguments&)> call) {
  auto f = std::make_shared<Function>();
  f->name = name;
  f->call = std::move(call);
  scope_->names[name] = std::shared_ptr<const Function>(std::move(f));
}

void Renderer::add_functions() {
  add_function("namespace", [this](Arguments& a) -> Value {
    auto space = std::make_shared<Namespace>();
    space->charge = Charge(budget_, sizeof(Namespace) + 256);
    const Value of = make_dict("namespace", a);
    for (const auto& [key, value] : of.dict()->items) {
      if (!key.string()) fail("namespace: the names of attributes must be strings");
      set_attribute(*space, key.string()->bytes, value);
    }
    spaces_.push_back(space);
    return space;
  });
  add_function("dict", [this](Arguments& a) { return make_dict("dict", a); });
  add_function("raise_exception", [this](Arguments& a) -> Value {
    const Bound bound("raise_exception", a, {"message"}, 1);
    fail("the template refuses these messages: " + str_of(budget_, *bound[0])->bytes);
  });
  add_function("range", [this](Arguments& a) { return range(a); });
  for (const char* name : {"cycler", "joiner", "lipsum"})
    add_function(name, [name](Arguments&) -> Value {
      fail(fmt::format("the function '{}' is not supported", name));
    });
}

void Renderer::set_attribute(Namespace& space, const std::string& name, Value value) {
  if (name.starts_with('_'))
    fail(fmt::format("a namespace's attribute must not begin with '_': {:.60}", name));
  space.set(name, std::move(value));
}

Value Renderer::make_dict(const char* what, const Arguments& a) {
  DictMaker dict(budget_);
  if (a.places.size() > 1) fail(fmt::format("{}: takes one mapping at most", what));
  if (!a.places.empty()) {
    const Value& from = a.places[0];
    if (const Dict* other = from.dict()) {
      for (const auto& [key, value] : other->items) dict.set(key, value);
    } else {
      for (const Value& pair : Items(budget_, from)) {
        const auto parts = iterate(budget_, pair);
        if (parts->items.size() != 2) fail(fmt::format("{}: needs pairs", what));
        dict.set(parts->items[0], parts->items[1]);
      }
    }
  }
  for (const auto& [key, value] : a.named) dict.set(text_value(budget_, key), value);
  return dict.finish();
}

Value Renderer::range(const Arguments& a) {
  Integer n[3] = {0, 0, 1};
  if (!a.named.empty()) fail("range: takes no arguments by name");
  if (a.places.empty() || a.places.size() > 3) fail("range: needs one to three integers");
  for (std::size_t i = 0; i < a.places.size(); ++i)
    if (!a.places[i].whole(&n[a.places.size() == 1 ? 1 : i])) fail("range: needs integers");
  if (n[2] == 0) fail("range: the step is 0");
  auto list = std::make_shared<Sequence>();
  list->kind = Sequence::Kind::range;
  list->start = n[0];
  list->stop = n[1];
  list->step = n[2];
  list->charge = Charge(budget_, sizeof(Sequence));
  for (Integer i = n[0]; n[2] > 0 ? i < n[1] : i > n[1];) {
    budget_.step();
    if (list->items.size() == kLongestRange)
      fail("range: is so long that the template takes too long");
    list->items.emplace_back(i);
    if (__builtin_add_overflow(i, n[2], &i)) break;
  }
  list->charge.grow(list->items.capacity() * sizeof(Value));
  return std::shared_ptr<const Sequence>(std::move(list));
}

Renderer::Flow Renderer::body(const Block& block) {
  const Deeper deeper(*this);
  for (const Statement& s : block) {
    budget_.step();
    const Flow flow = at_line(s.line, [&] { return statement(s); });
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Renderer::Flow Renderer::statement(const Statement& s) {
  switch (s.kind) {
    case Statement::Kind::text:
      out_.add(s.text);
      return Flow::on;
    case Statement::Kind::output:
      out_.print(value(*s.value));
      return Flow::on;
    case Statement::Kind::branch:
      for (const Branch& b : s.more->branches)
        if (!b.condition || value(*b.condition).truth()) return body(b.body);
      return Flow::on;
    case Statement::Kind::loop:
      return loop(s);
    case Statement::Kind::set:
      bind(s.more->target, value(*s.value));
      return Flow::on;
    case Statement::Kind::capture:
    case Statement::Kind::filter: {
      Value printed = captured([&] {
        const InScope inner(*this);
        body(s.more->body);
      });
      if (s.value) {
        const InScope inner(*this);
        set_name(kPrinted, std::move(printed));
        printed = value(*s.value);
      }
      if (s.kind == Statement::Kind::filter)
        out_.print(printed);
      else
        bind(s.more->target, printed);
      return Flow::on;
    }
    case Statement::Kind::macro:
      set_name(s.text, macro(s));
      return Flow::on;
    case Statement::Kind::call: {
      const Value caller = macro(s);
      out_.print(call(*s.value, &caller));
      return Flow::on;
    }
    case Statement::Kind::with: {
      List values;
      for (const auto& [target, expression] : s.more->bindings)
        values.push_back(value(*expression));
      const InScope inner(*this);
      for (std::size_t i = 0; i < values.size(); ++i) bind(s.more->bindings[i].first, values[i]);
      return body(s.more->body);
    }
    case Statement::Kind::leave:
      return Flow::leave;
    case Statement::Kind::proceed:
      return Flow::proceed;
  }
  return Flow::on;
}

void Renderer::bind(const Target& target, const Value& v) {
  budget_.step();
  if (!target.attribute.empty()) {
    const Value of = name(target.name);
    if (!of.space())
      fail(fmt::format("{:.60}.{:.60} cannot be set: only a namespace's attributes can",
                       target.name, target.attribute));
    return set_attribute(*of.space(), target.attribute, v);
  }
  if (!target.name.empty()) return set_name(target.name, v);
  const auto parts = iterate(budget_, v);
  if (parts->items.size() != target.parts.size())
    fail(fmt::format("{} values for {} names", parts->items.size(), target.parts.size()));
  for (std::size_t i = 0; i < target.parts.size(); ++i) bind(target.parts[i], parts->items[i]);
}

Renderer::Flow Renderer::loop(const Statement& s) {
  const Value items = value(*s.value);
  if (!s.more->recursive) return run_loop(s, items, 0);
  // runs as a function of its own, each time anew
  out_.print(loop_text(s, items, 0, scope_));
  return Flow::on;
}

Value Renderer::loop_text(const Statement& s, const Value& items, std::size_t depth,
                          const ScopePtr& around) {
  const Deeper deeper(*this);
  return captured([&] {
    const InScope outside(*this, around);
    run_loop(s, items, depth);
  });
}

Renderer::Flow Renderer::run_loop(const Statement& s, const Value& of, std::size_t depth) {
  auto items = iterate(budget_, of);
  if (s.more->condition) {
    List kept;
    for (const Value& v : items->items) {
      const InScope inner(*this);
      bind(s.more->target, v);
      if (value(*s.more->condition).truth()) kept.push_back(v);
    }
    items = list_value(budget_, std::move(kept)).shared_sequence();
  }
  if (items->items.empty()) {
    const InScope inner(*this);
    return body(s.more->other);
  }
  auto loop = std::make_shared<Loop>();
  loop->items = items;
  loop->depth0 = depth;
  const Charge charge(budget_, sizeof(Loop) + 64);
  // what it remembers may hold the loop itself
  const std::shared_ptr<void> forget(nullptr, [loop](void*) { loop->changed.clear(); });
  if (s.more->recursive) {
    loop->recurse = [this, &s, depth, around = keep_scope()](const Value& inner) {
      return loop_text(s, inner, depth + 1, around);
    };
  }
  for (; loop->index0 < items->items.size(); ++loop->index0) {
    const InScope inner(*this);
    set_name("loop", loop);
    bind(s.more->target, items->items[loop->index0]);
    if (body(s.more->body) == Flow::leave) break;
  }
  return Flow::on;
}

Value Renderer::macro(const Statement& s) {
  auto f = std::make_shared<Function>();
  f->name = s.text;
  f->macro = true;
  held_.emplace_back(budget_, sizeof(Function) + 128);
  for (const Parameter& p : s.more->parameters) f->parameters.push_back(p.name);
  f->call = [this, &s, around = keep_scope()](Arguments& a) { return call_macro(s, around, a); };
  return std::shared_ptr<const Function>(std::move(f));
}

Value Renderer::call_macro(const Statement& s, const ScopePtr& around, Arguments& a) {
  const Deeper deeper(*this);
  const std::vector<Parameter>& parameters = s.more->parameters;
  const InScope outside(*this, around);
  const InScope inner(*this);
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    budget_.step(1 + a.named.size() / 2);
    for (auto it = a.named.begin(); it != a.named.end(); ++it)
      if (it->first == name) {
        Value v = std::move(it->second);
        a.named.erase(it);
        return v;
      }
    return std::nullopt;
  };
  std::vector<std::optional<Value>> given(parameters.size());
  bool names_caller = false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    given[i] = i < a.places.size() ? std::optional(a.places[i]) : take(parameters[i].name);
    names_caller = names_caller || parameters[i].name == "caller";
  }
  if (s.more->caller && !names_caller) {
    auto caller = take("caller");
    set_name("caller", caller && !caller->none() ? *caller : undefined_value("caller"));
  }
  if (s.more->kwargs) {
    DictMaker rest(budget_);
    for (auto& [name, v] : a.named) rest.set(text_value(budget_, name), v);
    set_name("kwargs", rest.finish());
  } else if (!a.named.empty()) {
    fail(fmt::format("{:.60}: has no parameter '{:.60}'", s.text, a.named.front().first));
  }
  if (s.more->varargs) {
    const std::size_t taken = std::min(parameters.size(), a.places.size());
    set_name("varargs",
             tuple_value(budget_, List(a.places.begin() + static_cast<std::ptrdiff_t>(taken),
                                       a.places.end())));
  } else if (a.places.size() > parameters.size()) {
    fail(fmt::format("{:.60}: {} arguments, expected at most {}", s.text, a.places.size(),
                     parameters.size()));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    set_name(p.name, given[i]  ? std::move(*given[i])
                     : p.value ? value(*p.value)
                               : undefined_value(p.name));
  }
  return captured([&] { body(s.more->body); });
}

bool is_global(std::string_view name) {
  return std::find(std::begin(kGlobals), std::end(kGlobals), name) != std::end(kGlobals);
}

RenderedPrompt render(const Block& block, Named globals, Budget& budget) {
  return Renderer(globals, budget).run(block);
}

}  // namespace episodic::text::jinja
