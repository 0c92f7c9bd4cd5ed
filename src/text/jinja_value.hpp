// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Values of the template language, as Python has them: what a template prints and compares is what
/// the reference prints and compares.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace episodic::text::jinja {

class Value;
using List = std::vector<Value>;
using Named = std::vector<std::pair<std::string, Value>>;  // keys and values, in order

/// A name that has no value: prints as nothing, is false, has no attributes.
struct Undefined {
  std::string name;
};
struct None {};
struct Dict {
  Named items;
  bool writable = false;  // a namespace(): its attributes may be set
  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};
/// What a template may call.
using Function = std::function<Value(List arguments, Named named)>;

/// Copies share lists, dicts and functions; only a namespace is ever changed.
class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined u) : data_(std::move(u)) {}
  Value(bool b) : data_(b) {}
  Value(std::int64_t i) : data_(i) {}
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::move(s)) {}
  Value(const char* s) : data_(std::string(s)) {}
  Value(List list) : data_(std::make_shared<const List>(std::move(list))) {}
  Value(Dict dict) : data_(std::make_shared<Dict>(std::move(dict))) {}
  Value(Function f) : data_(std::make_shared<const Function>(std::move(f))) {}
  static Value from(const nlohmann::ordered_json& json);

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool undefined() const { return is<Undefined>(); }
  bool none() const { return is<None>(); }
  const std::string* string() const { return std::get_if<std::string>(&data_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&data_); }
  const List* list() const { return shared<const List>(); }
  Dict* dict() const { return shared<Dict>(); }
  const Function* function() const { return shared<const Function>(); }
  /// true and false count as 1 and 0. \return whether it is a number
  bool number(double* out) const;
  bool whole(std::int64_t* out) const;

  bool truth() const;
  /// As Python's str() prints it.
  std::string text() const;
  /// As Python's repr() prints it.
  std::string repr() const;
  const char* kind() const;

  friend bool operator==(const Value& a, const Value& b);

 private:
  template <class T>
  T* shared() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&data_);
    return p ? p->get() : nullptr;
  }
  std::variant<Undefined, None, bool, std::int64_t, double, std::string,
               std::shared_ptr<const List>, std::shared_ptr<Dict>, std::shared_ptr<const Function>>
      data_;
};

/// As Python's json.dumps prints it, without escaping what is not ASCII. \param indent -1: one line
std::string to_json_text(const Value& value, int indent);

/// Characters of a UTF-8 text.
List characters(const std::string& text);

/// What is wrong in a template or its use; the caller adds file and line.
[[noreturn]] void fail(const std::string& what);

}  // namespace episodic::text::jinja
