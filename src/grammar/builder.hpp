// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Grammars put together from parts, by the parsers of both notations.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "program.hpp"

namespace episodic::grammar {

/// A part of a grammar, and a rule, by number.
struct Part {
  std::uint32_t number;
};
struct Rule {
  std::uint32_t number;
};

class Builder {
 public:
  /// \param what begins messages: "grammar"
  explicit Builder(std::string what) : what_(std::move(what)) {}

  Part nothing();
  /// \param bytes whole characters
  Part literal(std::string_view bytes);
  Part characters(const CharacterRanges& set);
  Part sequence(std::vector<Part> parts);
  Part choice(std::vector<Part> parts);
  Part repeat(Part part, std::uint32_t min, std::uint32_t max);
  Part optional(Part part) { return repeat(part, 0, 1); }
  Part call(Rule rule);

  /// \param name for messages: what is wrong with it, and where it stands
  Rule rule(std::string name);
  void define(Rule rule, Part part);

  /// \throws ConfigError naming a rule that begins with itself, or the root if it has no text
  std::shared_ptr<const Program> compile(Rule root) const;

 private:
  friend class Compiler;
  enum class Kind : std::uint8_t { literal, characters, sequence, choice, repeat, call };
  struct Node {
    Kind kind;
    std::uint32_t a = 0, b = 0;  // set; rule; least and most
    std::string text{};          // of a literal
    std::vector<std::uint32_t> parts{};
  };
  Part add(Node node);

  std::string what_;
  std::size_t size_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::string> names_;          // by rule
  std::vector<std::uint32_t> definitions_;  // by rule: a node
  std::vector<CharacterRanges> sets_;
  std::map<CharacterRanges, std::uint32_t> set_numbers_;
};

}  // namespace episodic::grammar
