// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The walk over a tree that renders it: statements in jinja_render.cpp, expressions in
/// jinja_evaluate.cpp.

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "jinja_render.hpp"

namespace episodic::text::jinja {

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
  Renderer(Named& globals, Budget& budget);
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;
  /// Takes apart what may hold itself, and chains that are too long to be destroyed by recursion.
  ~Renderer();

  RenderedPrompt run(const Block& block);

 private:
  /// Within each other, of statements and expressions.
  static constexpr int kMostEvaluations = 700;

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

  void enter();
  void set_name(std::string_view name, Value value);
  const ScopePtr& keep_scope();

  // -- functions --

  void add_function(const char* name, std::function<Value(Arguments&)> call);
  void add_functions();
  static void set_attribute(Namespace& space, const std::string& name, Value value);
  Value make_dict(const char* what, const Arguments& a);
  Value range(const Arguments& a);

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

  Flow body(const Block& block);
  Flow statement(const Statement& s);

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

  void bind(const Target& target, const Value& v);
  Flow loop(const Statement& s);
  Value loop_text(const Statement& s, const Value& items, std::size_t depth,
                  const ScopePtr& around);
  Flow run_loop(const Statement& s, const Value& of, std::size_t depth);

  // -- macros --

  Value macro(const Statement& s);
  Value call_macro(const Statement& s, const ScopePtr& around, Arguments& a);

  // -- expressions --

  Value name(const std::string& name);
  Value value(const Expression& e);
  Arguments arguments(const Expression& e);
  static std::string shown(const Expression& e);

  /// \param caller what a call block passes, or null
  Value call(const Expression& e, const Value* caller);
  Value slice_of(const Expression& e);
  static Value signed_value(bool minus, const Value& v);

  /// Texts in a row are put together once, not pair by pair.
  Value sum(const Expression& e);
  Value join(const Expression& e);
  bool compared(char sign, const Value& a, const Value& b);
  Value comparison(const Expression& e);

  Budget& budget_;
  Builder out_;
  ScopePtr scope_;
  std::vector<ScopePtr> scopes_;                    // those that a macro or a loop has seen
  std::vector<std::shared_ptr<Namespace>> spaces_;  // all
  std::vector<Charge> held_;                        // for what is kept to the end
  int depth_ = 0;
};

}  // namespace episodic::text::jinja
