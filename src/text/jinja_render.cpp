// SPDX-License-Identifier: Apache-2.0
#include "jinja_render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "episodic/base/error.hpp"
#include "jinja_builtins.hpp"
#include "jinja_strings.hpp"

namespace episodic::text::jinja {
namespace {

using Kind = Expression::Kind;

constexpr std::size_t kLongestRange = 100'000;  // the reference's
constexpr int kMostEvaluations = 700;           // within each other, of statements and expressions

constexpr std::string_view kGlobals[] = {"cycler",    "dict",  "joiner",         "lipsum",
                                         "namespace", "range", "raise_exception"};

/// The names of a block. Macros keep the scopes around them, and scopes keep macros: the renderer
/// keeps every scope that a macro has seen, and empties it at the end.
struct Scope {
  std::map<std::string_view, Value> names;
  std::shared_ptr<Scope> around;
  bool kept = false;  // to the end of the rendering
  bool emptied = false;
};
using ScopePtr = std::shared_ptr<Scope>;

class Renderer {
 public:
  Renderer(Named& globals, Budget& budget)
      : budget_(budget), out_(budget), scope_(std::make_shared<Scope>()) {
    add_functions();
    for (auto& [name, value] : globals) scope_->names[name] = std::move(value);
    enter();  // what a template sets hides what it is given
  }
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;
  /// Takes apart what may hold itself, and chains that are too long to be destroyed by recursion.
  ~Renderer() {
    for (const auto& space : spaces_) space->items.clear();
    for (const ScopePtr& scope : scopes_)
      for (Scope* s = scope.get(); s != nullptr && !s->emptied; s = s->around.get()) {
        s->emptied = true;
        s->names.clear();
      }
  }

  RenderedPrompt run(const Block& block) {
    body(block);
    return {std::move(out_.take_bytes()), std::move(out_.take_input())};
  }

 private:
  enum class Flow : std::uint8_t { on, leave, proceed };

  /// Bounds what is evaluated within each other, and so the stack.
  class Deeper {
   public:
    explicit Deeper(Renderer& r) : r_(r) {
      if (r_.depth_ >= kMostEvaluations)
        fail("the template calls itself too often, or is nested too deep");
      ++r_.depth_;
    }
    ~Deeper() { --r_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Renderer& r_;
  };

  /// Another scope for a while, also where an error ends it.
  class InScope {
   public:
    InScope(Renderer& r, ScopePtr scope)
        : r_(r), before_(std::exchange(r.scope_, std::move(scope))) {}
    /// A new one within the present.
    explicit InScope(Renderer& r) : r_(r), before_(r.scope_) { r_.enter(); }
    ~InScope() { r_.scope_ = std::move(before_); }
    InScope(const InScope&) = delete;
    InScope& operator=(const InScope&) = delete;

   private:
    Renderer& r_;
    ScopePtr before_;
  };

  void enter() {
    budget_.step(4);
    auto inner = std::make_shared<Scope>();
    inner->around = std::move(scope_);
    scope_ = std::move(inner);
  }

  void set_name(std::string_view name, Value value) {
    scope_->names.insert_or_assign(name, std::move(value));
  }

  const ScopePtr& keep_scope() {
    if (scope_->kept) return scope_;
    held_.emplace_back(budget_, 512);
    scope_->kept = true;
    scopes_.push_back(scope_);
    return scope_;
  }

  // -- functions --

  void add_function(const char* name, std::function<Value(Arguments&)> call) {
    auto f = std::make_shared<Function>();
    f->name = name;
    f->call = std::move(call);
    scope_->names[name] = std::shared_ptr<const Function>(std::move(f));
  }

  void add_functions() {
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

  static void set_attribute(Namespace& space, const std::string& name, Value value) {
    if (name.starts_with('_'))
      fail(fmt::format("a namespace's attribute must not begin with '_': {:.60}", name));
    space.set(name, std::move(value));
  }

  Value make_dict(const char* what, const Arguments& a) {
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

  Value range(const Arguments& a) {
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

  // -- statements --

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

  Flow body(const Block& block) {
    const Deeper deeper(*this);
    for (const Statement& s : block) {
      budget_.step();
      const Flow flow = at_line(s.line, [&] { return statement(s); });
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow statement(const Statement& s) {
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

  /// What `print` prints, as a text.
  template <class Print>
  Value captured(Print print) {
    Builder before(budget_);
    std::swap(before, out_);
    try {
      print();
    } catch (...) {
      std::swap(before, out_);
      throw;
    }
    std::swap(before, out_);
    return before.finish();
  }

  void bind(const Target& target, const Value& v) {
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

  Flow loop(const Statement& s) {
    const Value items = value(*s.value);
    if (!s.more->recursive) return run_loop(s, items, 0);
    // runs as a function of its own, each time anew
    out_.print(loop_text(s, items, 0, scope_));
    return Flow::on;
  }

  Value loop_text(const Statement& s, const Value& items, std::size_t depth,
                  const ScopePtr& around) {
    const Deeper deeper(*this);
    return captured([&] {
      const InScope outside(*this, around);
      run_loop(s, items, depth);
    });
  }

  Flow run_loop(const Statement& s, const Value& of, std::size_t depth) {
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

  // -- macros --

  Value macro(const Statement& s) {
    auto f = std::make_shared<Function>();
    f->name = s.text;
    f->macro = true;
    held_.emplace_back(budget_, sizeof(Function) + 128);
    for (const Parameter& p : s.more->parameters) f->parameters.push_back(p.name);
    f->call = [this, &s, around = keep_scope()](Arguments& a) { return call_macro(s, around, a); };
    return std::shared_ptr<const Function>(std::move(f));
  }

  Value call_macro(const Statement& s, const ScopePtr& around, Arguments& a) {
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

  // -- expressions --

  Value name(const std::string& name) {
    const std::size_t cost = 1 + name.size() / 16;  // of a look into a scope, in quarters of a step
    std::size_t looks = 0;
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->around.get()) {
      if (++looks % 4 == 0 || cost > 1) budget_.step(cost);
      if (const auto it = scope->names.find(name); it != scope->names.end()) return it->second;
    }
    return undefined_value(name);
  }

  Value value(const Expression& e) {
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

  Arguments arguments(const Expression& e) {
    Arguments out;
    for (const Argument& a : e.arguments)
      if (a.name.empty())
        out.places.push_back(value(*a.value));
      else
        out.named.emplace_back(a.name, value(*a.value));
    return out;
  }

  static std::string shown(const Expression& e) {
    std::string out;
    const Expression* at = &e;
    for (int i = 0; i < 8 && at->kind == Kind::attribute; ++i) {
      out = fmt::format(".{:.40}{}", at->text, out);
      at = at->parts[0].get();
    }
    return (at->kind == Kind::name ? fmt::format("{:.40}", at->text) : "a value") + out;
  }

  /// \param caller what a call block passes, or null
  Value call(const Expression& e, const Value* caller) {
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

  Value slice_of(const Expression& e) {
    const Value of = value(*e.parts[0]);
    Value bounds[3];
    for (std::size_t i = 0; i < 3; ++i)
      if (e.parts[i + 1]) bounds[i] = value(*e.parts[i + 1]);
    return slice(budget_, of, bounds[0], bounds[1], bounds[2]);
  }

  static Value signed_value(bool minus, const Value& v) {
    Integer i = 0;
    if (v.whole(&i)) {
      if (minus && __builtin_sub_overflow(Integer{0}, i, &i))
        fail("an integer beyond 128 bits is not supported");
      return i;
    }
    if (const double* d = v.real()) return minus ? -*d : *d;
    fail(fmt::format("{} has no sign", v.kind()));
  }

  static void refuse_markup(const Value& v) {
    if (v.string() && v.string()->markup)
      fail("the filter 'safe' within a sum is not supported");  // escapes the rest as HTML
  }

  /// Texts in a row are put together once, not pair by pair.
  Value sum(const Expression& e) {
    Value v = value(*e.parts[0]);
    std::optional<Builder> text;
    const auto finish = [&] {
      if (!text) return;
      v = text->finish();
      text.reset();
    };
    for (std::size_t i = 1; i < e.parts.size(); ++i) {
      const Value next = value(*e.parts[i]);
      if (e.text[i - 1] == '+' && (text || v.string()) && next.string()) {
        refuse_markup(next);
        if (!text) {
          refuse_markup(v);
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

  Value join(const Expression& e) {
    Builder out(budget_);
    for (const auto& part : e.parts) {
      const Value v = value(*part);
      refuse_markup(v);
      out.print(v);
    }
    return out.finish();
  }

  bool compared(char sign, const Value& a, const Value& b) {
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

  Value comparison(const Expression& e) {
    Value left = value(*e.parts[0]);
    for (std::size_t i = 1; i < e.parts.size(); ++i) {
      Value right = value(*e.parts[i]);
      if (!compared(e.text[i - 1], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  Budget& budget_;
  Builder out_;
  ScopePtr scope_;
  std::vector<ScopePtr> scopes_;                    // those that a macro or a loop has seen
  std::vector<std::shared_ptr<Namespace>> spaces_;  // all
  std::vector<Charge> held_;                        // for what is kept to the end
  int depth_ = 0;
};

}  // namespace

bool is_global(std::string_view name) {
  return std::find(std::begin(kGlobals), std::end(kGlobals), name) != std::end(kGlobals);
}

RenderedPrompt render(const Block& block, Named globals, Budget& budget) {
  return Renderer(globals, budget).run(block);
}

}  // namespace episodic::text::jinja
