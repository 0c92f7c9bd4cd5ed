// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Added tokens as they come together from several files.

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "added_tokens.hpp"
#include "bpe.hpp"
#include "json_node.hpp"

namespace episodic::text {

/// A token as a file describes it. Its id is the vocabulary's, or the next free one: that is how
/// Hugging Face's tokenizers 0.23 and transformers 5.24 have it, whatever id the file says.
struct TokenDescription {
  std::string content;
  bool special = false, single_word = false, lstrip = false, rstrip = false, normalized = true;
};

/// "content", "special", "lstrip" and so on. \throws FileError
TokenDescription read_description(const JsonNode& node);

/// Takes tokens one after another, and gives ids to those that have none.
class AddedVocabulary {
 public:
  /// \param ids of the model; grows
  explicit AddedVocabulary(StringToId& ids)
      : ids_(&ids), next_(static_cast<std::int64_t>(ids.size())) {}

  /// Of a token that is there, the flags change.
  void add(const TokenDescription& token);
  bool contains(const std::string& content) const { return index_.contains(content); }
  /// The flags that a token has; null: it was not added.
  const TokenDescription* find(const std::string& content) const;

  /// Calls f(token, id, where): looked for in the raw text (0) or in the normalized one (1).
  template <class F>
  void each_searched(F&& f) const {
    for (const Entry& e : entries_) {
      if (e.raw) f(e.token, e.id, 0);
      if (e.in_normalized) f(e.token, e.id, 1);
    }
  }
  /// Calls f(token, id) for every token.
  template <class F>
  void each(F&& f) const {
    for (const Entry& e : entries_) f(e.token, e.id);
  }
  /// Calls f(id) for special tokens.
  template <class F>
  void each_special(F&& f) const {
    for (const Entry& e : entries_)
      if (e.special) f(e.id);
  }

 private:
  struct Entry {
    TokenDescription token;
    std::int64_t id;
    bool special = false, raw = false, in_normalized = false;
  };

  StringToId* ids_;
  std::int64_t next_;
  std::vector<Entry> entries_;
  StringToId index_;  // of entries_
};

/// The JSON files beside tokenizer.json that may hold tokens (tokenizer_config.json,
/// special_tokens_map.json, added_tokens.json); null: there is none.
struct TokenFiles {
  std::filesystem::path config_file = {}, special_map_file = {}, added_file = {};
  nlohmann::json config = {}, special_map = {}, added = {};
  std::vector<std::string> order =
      {};  ///< of the config's keys, and of those of extra_special_tokens
  std::set<std::int64_t> json_ids = {};  ///< that tokenizer.json gives its added tokens
};

/// TokenFiles::order. \param config text of a tokenizer_config.json that parses
std::vector<std::string> key_order(std::string_view config);

/// Those that a directory has. \throws FileError for one that is no JSON object
TokenFiles read_token_files(const std::filesystem::path& dir);

/// What special_tokens_map.json and added_tokens.json change of a directory's tokenizer: its added
/// tokens and its begin and end, as one text. Empty where the other files say the same, as most do,
/// and where the tokenizer cannot be read.
std::string changes_by_token_files(const std::filesystem::path& dir);

/// The file of a directory in which a decoder's tokenizer stands: tokenizer.json before
/// tokenizer.model before tekken.json. Empty: there is none.
std::filesystem::path tokenizer_file(const std::filesystem::path& dir);

/// Named special tokens after all files: "bos_token" and so on.
class NamedTokens {
 public:
  /// \param defaults for what the files leave out (LLaMA's class has <s> and </s>)
  NamedTokens(const TokenFiles& files, AddedVocabulary& vocabulary,
              const std::vector<std::pair<std::string, std::string>>& defaults);
  /// Empty: there is none.
  std::string content(const std::string& name) const;

 private:
  std::vector<std::pair<std::string, TokenDescription>> named_;
};

}  // namespace episodic::text
