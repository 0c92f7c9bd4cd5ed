// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// JSON schemas as trees: references followed, allOf made one.

#include <string>
#include <string_view>

#include "json_parts.hpp"

namespace episodic::grammar {

/// A schema's text and what can be said of its parts.
class SchemaTree {
 public:
  /// \throws ConfigError
  explicit SchemaTree(std::string_view text);

  const OrderedJson& root() const { return root_; }

  /// \throws ConfigError: "json schema: /a/b: ..."
  [[noreturn]] static void fail(const std::string& at, const std::string& what);
  /// A pointer one step further on.
  static std::string below(const std::string& at, std::string_view key);
  /// Words that say nothing of a value (title, description, ...).
  static bool is_annotation(std::string_view key);

  /// What a "$ref" names. \param at where it stands, for messages
  const OrderedJson& target(const OrderedJson& reference, const std::string& at) const;
  /// The pointer of a reference's target, by which it is known.
  std::string pointer(const OrderedJson& reference, const std::string& at) const;

  /// The schema with all that it must hold at once written into one object, or a boolean: no $ref
  /// and no allOf is left at its top. \throws ConfigError where two demands cannot be joined
  OrderedJson flat(const OrderedJson& schema, const std::string& at, int depth = 0);
  /// What satisfies both.
  OrderedJson both(const OrderedJson& a, const OrderedJson& b, const std::string& at, int depth);

  /// Whether no value satisfies both, as far as it can be seen.
  bool apart(const OrderedJson& a, const OrderedJson& b, const std::string& at, int depth = 0);

 private:
  void count(const std::string& at, int depth);

  OrderedJson root_;
  int steps_ = 0;
};

/// Whether a value is of a type of JSON schemas: "integer" takes 1.0 too.
bool is_of_type(const OrderedJson& value, std::string_view type);

}  // namespace episodic::grammar
