// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The "normalizer" of tokenizer.json.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "growth.hpp"
#include "json_node.hpp"

namespace episodic::text {

/// Unicode normal forms, Prepend, Replace and BertNormalizer, one after another.
class Normalizer {
 public:
  Normalizer() = default;
  /// \throws FileError for a normalizer that is not supported
  explicit Normalizer(const JsonNode& node) { add(node, 0); }

  bool empty() const { return steps_.empty(); }
  /// Bytes that are not UTF-8 pass unchanged.
  /// \param growth what the text may become
  std::string operator()(std::string text, const Growth& growth) const;

 private:
  void add(const JsonNode& node, int depth);
  std::vector<std::function<std::string(const std::string&, const Growth&)>> steps_;
};

/// The text in a Unicode normal form. \param options UTF8PROC_COMPOSE or _DECOMPOSE, with _COMPAT
std::string normal_form(const std::string& text, int options);

/// Sequences in tokenizer.json may be nested so deep.
constexpr int kMaxNesting = 16;

}  // namespace episodic::text
