// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Grammars that an answer may be held to: GBNF, JSON schemas, any JSON object.

#include <memory>
#include <string_view>

namespace episodic {

namespace grammar {
class Program;
}

/// A set of texts in UTF-8, described by rules. Immutable, cheap to copy; safe to use from several
/// threads. `TokenGrammar` (grammar/token_grammar.hpp) joins it to a vocabulary.
class Grammar {
 public:
  /// Made by the functions below.
  explicit Grammar(std::shared_ptr<const grammar::Program> program);

  /// Whether the whole text is one of the set. Bytes that are not UTF-8 are in no text of any.
  /// \throws DataError for a grammar that is too ambiguous (TokenGrammar says more)
  bool matches(std::string_view text) const;

  const std::shared_ptr<const grammar::Program>& shared_program() const { return program_; }

 private:
  std::shared_ptr<const grammar::Program> program_;
};

/// A grammar in GBNF, llama.cpp's form of BNF: rules `name ::= ...` of which `root` is the first
/// one, "literals", [classes], `.`, `|`, `()`, `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`, # comments.
/// At most 1 MiB. Refused: rules that begin with themselves, rules without an end, tokens by number
/// (`<[7]>`).
/// \throws ConfigError with line and column
Grammar grammar_of_gbnf(std::string_view text);

/// The values that a JSON schema describes, as JSON with at most one space or line break between
/// tokens. Every text of it is JSON that satisfies the schema; not all such texts are in it:
/// properties come in the schema's order, and those it does not name only where
/// `additionalProperties` asks for them, or there are no `properties` (docs/constrained.md).
/// \param schema JSON, at most 1 MiB
/// \throws ConfigError with the JSON pointer of a keyword that is not supported, or cannot hold
Grammar grammar_of_json_schema(std::string_view schema);

/// Any JSON object. A grammar cannot see that a key comes twice.
Grammar grammar_of_json_object();

}  // namespace episodic
