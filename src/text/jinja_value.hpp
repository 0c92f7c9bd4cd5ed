// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Values of the template language, as Python has them: what a template prints and compares is what
/// the reference prints and compares. Everything that a template can make longer is charged to a
/// Budget, and no value nests deeper than kDeepest, so that code that walks one may recurse.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "episodic/text/tokenizer.hpp"

namespace episodic::text::jinja {

/// Python's integers have no end; what does not fit here is refused, never rounded.
__extension__ typedef __int128 Integer;

/// What is wrong in a template or its use; the caller adds file and line.
[[noreturn]] void fail(const std::string& what);

constexpr int kDeepest = 200;  // lists within lists, and so on
/// \throws DataError for more than kDeepest
void too_deep(int depth);

/// What one rendering may take: steps, about as long as each other, and bytes that are held.
class Budget {
 public:
  Budget(std::uint64_t steps, std::size_t bytes) : steps_(steps), bytes_(bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  /// \throws DataError when there are none left
  void step(std::uint64_t n = 1) {
    if (n > steps_) {
      steps_ = 0;  // so that nothing goes on that a generator kept silent about
      spent();
    }
    steps_ -= n;
  }
  /// The steps of reading or copying so many bytes.
  void pass(std::size_t bytes) { step(1 + bytes / 64); }
  void take(std::size_t bytes) {
    if (bytes > bytes_) full();
    bytes_ -= bytes;
  }
  void give(std::size_t bytes) noexcept { bytes_ += bytes; }

  /// One filter within another, as `map` applies them; the stack has an end.
  class Within {
   public:
    explicit Within(Budget& budget) : budget_(budget) {
      if (budget_.filters_ >= kMostFilters) fail("filters are nested too deep");
      ++budget_.filters_;
    }
    ~Within() { --budget_.filters_; }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    static constexpr int kMostFilters = 50;
    Budget& budget_;
  };

 private:
  [[noreturn]] static void spent();
  [[noreturn]] static void full();

  std::uint64_t steps_;
  std::size_t bytes_;
  int filters_ = 0;
};

/// Bytes of a budget, given back at the end.
class Charge {
 public:
  Charge() = default;
  Charge(Budget& budget, std::size_t bytes) : budget_(&budget), bytes_(bytes) {
    budget.take(bytes);
  }
  Charge(Charge&& o) noexcept
      : budget_(std::exchange(o.budget_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  Charge& operator=(Charge&& o) noexcept {
    std::swap(budget_, o.budget_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~Charge() {
    if (budget_) budget_->give(bytes_);
  }
  void grow(std::size_t bytes) {
    if (budget_ == nullptr) return;
    budget_->take(bytes);
    bytes_ += bytes;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  Budget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A text, and which of its bytes come from messages or variables.
struct Str {
  std::string bytes;
  std::vector<TextSpan> input;  ///< ascending, none empty, none touching
  std::size_t length = 0;       ///< characters; a byte that is part of none counts as one
  bool markup = false;          ///< what the filters `safe` and `escape` return
  Charge charge;
  bool ascii() const { return length == bytes.size(); }
};
using StrPtr = std::shared_ptr<const Str>;

class Value;
using List = std::vector<Value>;
using Named = std::vector<std::pair<std::string, Value>>;
struct Arguments {
  List places;
  Named named;
};

/// A name that has no value: prints as nothing, is false, has no attributes.
struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};

struct Sequence;
struct Dict;
struct Namespace;
struct Function;
struct Generator;
struct Loop;

/// Copies share what they hold. Only namespaces, generators and loops ever change.
class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined u) : data_(std::move(u)) {}
  Value(bool b) : data_(b) {}
  Value(Integer i) : data_(i) {}
  Value(std::size_t i) : data_(static_cast<Integer>(i)) {}
  Value(double d) : data_(d) {}
  Value(StrPtr s) : data_(std::move(s)) {}
  Value(std::shared_ptr<const Sequence> s) : data_(std::move(s)) {}
  Value(std::shared_ptr<const Dict> d) : data_(std::move(d)) {}
  Value(std::shared_ptr<Namespace> n) : data_(std::move(n)) {}
  Value(std::shared_ptr<const Function> f) : data_(std::move(f)) {}
  Value(std::shared_ptr<Generator> g) : data_(std::move(g)) {}
  Value(std::shared_ptr<Loop> l) : data_(std::move(l)) {}
  Value(const void*) = delete;  // a pointer is no bool

  bool undefined() const { return is<Undefined>(); }
  bool none() const { return is<None>(); }
  bool boolean() const { return is<bool>(); }
  const Integer* integer() const { return std::get_if<Integer>(&data_); }  ///< no bool
  const double* real() const { return std::get_if<double>(&data_); }
  const Undefined* unknown() const { return std::get_if<Undefined>(&data_); }
  const Str* string() const { return get<StrPtr>(); }
  StrPtr shared_string() const { return *std::get_if<StrPtr>(&data_); }
  const Sequence* sequence() const { return get<std::shared_ptr<const Sequence>>(); }
  std::shared_ptr<const Sequence> shared_sequence() const {
    return *std::get_if<std::shared_ptr<const Sequence>>(&data_);
  }
  const Dict* dict() const { return get<std::shared_ptr<const Dict>>(); }
  Namespace* space() const { return get<std::shared_ptr<Namespace>>(); }
  const Function* function() const { return get<std::shared_ptr<const Function>>(); }
  Generator* generator() const { return get<std::shared_ptr<Generator>>(); }
  Loop* loop() const { return get<std::shared_ptr<Loop>>(); }

  /// true and false count as 1 and 0. \return whether it is a whole number
  bool whole(Integer* out) const;
  bool number() const { return boolean() || integer() || real(); }
  /// The nearest float. \return whether it is a number
  bool number(double* out) const;

  bool truth() const;
  /// How a message names it.
  const char* kind() const;
  /// How deep it nests.
  int depth() const;
  /// Whether both are one object, or equal ones of those that hold nothing.
  bool same(const Value& other) const;

 private:
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  template <class P>
  auto get() const -> decltype(std::declval<const P&>().get()) {
    const P* p = std::get_if<P>(&data_);
    return p ? p->get() : nullptr;
  }
  std::variant<Undefined, None, bool, Integer, double, StrPtr, std::shared_ptr<const Sequence>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Function>, std::shared_ptr<Generator>, std::shared_ptr<Loop>>
      data_;
};

struct Sequence {
  enum class Kind : std::uint8_t { list, tuple, range, keys, values, items, group };
  Kind kind = Kind::list;
  List items;
  int depth = 1;
  Integer start = 0, stop = 0, step = 1;  ///< of a range
  Charge charge;
  bool plain() const { return kind == Kind::list || tuple(); }
  bool tuple() const { return kind == Kind::tuple || kind == Kind::group; }
  bool view() const { return kind == Kind::keys || kind == Kind::values || kind == Kind::items; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::map<std::string_view, std::size_t> names;  ///< of keys that are strings
  int depth = 1;
  Charge charge;
  const Value* find(std::string_view key) const {
    const auto at = names.find(key);
    return at == names.end() ? nullptr : &items[at->second].second;
  }
  const Value* find(Budget& budget, const Value& key) const;
};

struct Namespace {
  std::map<std::string, std::size_t> names;
  std::vector<std::pair<std::string, Value>> items;
  int depth = 1;
  Charge charge;
  const Value* find(const std::string& name) const {
    const auto at = names.find(name);
    return at == names.end() ? nullptr : &items[at->second].second;
  }
  void set(const std::string& name, Value value);
};

/// What a template may call.
struct Function {
  std::string name;
  std::function<Value(Arguments&)> call;
  std::vector<std::string> parameters = {};  ///< of a macro
  bool macro = false;
  int depth = 0;  ///< of what it holds, as Value::depth
};

/// What Python computes as it is asked for, and gives out once. It is computed at once here; what
/// went wrong is said when that place is reached.
struct Generator {
  List items;
  std::size_t next = 0;
  std::string error;
  int depth = 1;
  Charge charge;
  bool take(Value* out);
};

/// `loop` within a loop.
struct Loop {
  std::shared_ptr<const Sequence> items;
  std::size_t index0 = 0, depth0 = 0;
  bool changed_before = false;
  List changed;
  std::function<Value(const Value&)> recurse;
};

// -- making values ------------------------------------------------------------------------------

Value text_value(Budget& budget, std::string_view text, bool input = false);
/// Text of the template itself, which outlives every rendering.
Value literal_text(std::string text);
Value list_value(Budget& budget, List items, Sequence::Kind kind = Sequence::Kind::list);
inline Value tuple_value(Budget& budget, List items) {
  return list_value(budget, std::move(items), Sequence::Kind::tuple);
}
Value undefined_value(std::string_view name);

/// Makes a mapping. A key that comes again keeps its place, and gets the later value.
class DictMaker {
 public:
  explicit DictMaker(Budget& budget);
  /// \throws DataError for keys that cannot be any
  void set(const Value& key, Value value);
  Value finish();

 private:
  Budget& budget_;
  std::shared_ptr<Dict> dict_;
};

/// JSON from outside; its strings are input.
Value from_json(Budget& budget, const nlohmann::ordered_json& json);

/// Builds a text of parts, and keeps which of them are input.
class Builder {
 public:
  explicit Builder(Budget& budget) : budget_(&budget), charge_(budget, 0) {}
  void add(std::string_view text, bool input = false);
  void add(const Str& s) { add(s, 0, s.bytes.size()); }
  void add(const Str& s, std::size_t begin, std::size_t end);
  /// As Python's str() prints it.
  void print(const Value& value);
  /// As Python's repr() prints it.
  void repr(const Value& value, int depth = 0);
  std::size_t size() const { return bytes_.size(); }
  Value finish(bool markup = false);
  const std::string& bytes() const { return bytes_; }
  std::string& take_bytes() { return bytes_; }
  std::vector<TextSpan>& take_input() { return input_; }

 private:
  void room(std::size_t bytes);
  void mark(std::size_t begin, std::size_t end);

  Budget* budget_;
  Charge charge_;
  std::string bytes_;
  std::vector<TextSpan> input_;
};

/// The text that str() gives; a string is itself.
StrPtr str_of(Budget& budget, const Value& value);
/// For messages: short, of one line.
std::string shown(const Value& value);

// -- comparing ----------------------------------------------------------------------------------

bool equal(Budget& budget, const Value& a, const Value& b);
/// -1, 0 or 1; 2 where a NaN has no order. \throws DataError for values that have no order
int compare(Budget& budget, const Value& a, const Value& b, const char* sign = "<");

// -- JSON ---------------------------------------------------------------------------------------

struct JsonStyle {
  bool ascii = false, sorted = false, lines = false;
  std::string indent, between = ", ", behind_key = ": ";
};
/// As Python's json.dumps prints it.
Value to_json(Budget& budget, const Value& value, const JsonStyle& style);

/// As Python prints numbers.
std::string integer_text(Integer i);
std::string float_text(double d);

}  // namespace episodic::text::jinja
