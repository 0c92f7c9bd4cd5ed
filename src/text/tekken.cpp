// SPDX-License-Identifier: Apache-2.0
#include "tekken.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "byte_level.hpp"
#include "episodic/base/error.hpp"

namespace episodic::text {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 22;
constexpr std::size_t kLongestToken = 1024;  // bytes
constexpr std::size_t kMostWays = std::size_t{1} << 24;

// Those of files that list none, which are of version 7 or older.
constexpr const char* kFirstSpecial[] = {"<unk>",
                                         "<s>",
                                         "</s>",
                                         "[INST]",
                                         "[/INST]",
                                         "[AVAILABLE_TOOLS]",
                                         "[/AVAILABLE_TOOLS]",
                                         "[TOOL_RESULTS]",
                                         "[/TOOL_RESULTS]",
                                         "[TOOL_CALLS]",
                                         "[IMG]",
                                         "<pad>",
                                         "[IMG_BREAK]",
                                         "[IMG_END]",
                                         "[PREFIX]",
                                         "[MIDDLE]",
                                         "[SUFFIX]",
                                         "[SYSTEM_PROMPT]",
                                         "[/SYSTEM_PROMPT]",
                                         "[TOOL_CONTENT]"};

/// The bytes of base64 with its padding; nothing for a text that is none.
std::optional<std::string> from_base64(std::string_view text) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string out;
  unsigned bits = 0;
  for (std::size_t i = 0; i < text.size() - padding; ++i) {
    const std::size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<unsigned>(digit);
    if (i % 4 != 0) out.push_back(static_cast<char>(bits >> (6 - 2 * (i % 4)) & 255));
  }
  return out;
}

/// The entry of a vocabulary in GPT-2's alphabet.
std::string entry_of(std::string_view bytes) {
  std::string entry;
  for (const char c : bytes) entry += byte_level_character(static_cast<unsigned char>(c));
  return entry;
}

/// The bytes of the first `count` tokens, by rank.
std::vector<std::string> ranked_tokens(const JsonNode& vocab, std::int64_t count) {
  if (!vocab.json().is_array() || static_cast<std::int64_t>(vocab.size()) < count)
    vocab.fail(fmt::format("must be an array of at least {} tokens, as config says", count));
  std::vector<std::string> tokens(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const JsonNode entry = vocab.at(static_cast<std::size_t>(i));
    if (entry.at("rank").index(kMostTokens) != i) entry.fail(fmt::format("must have rank {}", i));
    const std::optional<std::string> bytes = from_base64(entry.at("token_bytes").str());
    if (!bytes || bytes->empty() || bytes->size() > kLongestToken)
      entry.at("token_bytes").fail(fmt::format("must be 1 to {} bytes in base64", kLongestToken));
    tokens[static_cast<std::size_t>(i)] = *bytes;
  }
  return tokens;
}

/// Every way to put a token together from two, in the order of the tokens: what joins first in a
/// text is what has the least rank. \param ids of entries in GPT-2's alphabet
IdMerges merges_by_rank(const JsonNode& vocab, const std::vector<std::string>& tokens,
                        std::int64_t first, const StringToId& ids) {
  IdMerges all;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string& token = tokens[rank];
    const std::size_t begin = all.merges.size();
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(std::string_view(token).substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(std::string_view(token).substr(cut));
      if (right == ids.end()) continue;
      all.merges.push_back({static_cast<std::int32_t>(left->second),
                            static_cast<std::int32_t>(right->second),
                            static_cast<std::int32_t>(first) + static_cast<std::int32_t>(rank)});
    }
    std::sort(all.merges.begin() + static_cast<std::ptrdiff_t>(begin), all.merges.end(),
              [](const IdMerge& a, const IdMerge& b) {
                return a.left != b.left ? a.left < b.left : a.right < b.right;
              });
    if (all.merges.size() > kMostWays)
      vocab.fail("has tokens that can be put together from each other in too many ways");
  }
  return all;
}

/// As "added_tokens" of a tokenizer.json; those that the file does not name are called by their id.
Json special_tokens(const JsonNode& list, std::int64_t count) {
  Json added = Json::array();
  const auto add = [&](std::int64_t id, const std::string& content, bool control) {
    added.push_back({{"id", static_cast<std::uint64_t>(id)},
                     {"content", content},
                     {"special", control},
                     {"normalized", false}});
  };
  std::int64_t named = 0;
  if (list.null()) {
    for (const char* name : kFirstSpecial)
      if (named < count) add(named++, name, true);
  } else {
    if (!list.json().is_array() || static_cast<std::int64_t>(list.size()) > count)
      list.fail(fmt::format("must be an array of at most {}, as config says", count));
    for (; named < static_cast<std::int64_t>(list.size()); ++named) {
      const JsonNode token = list.at(static_cast<std::size_t>(named));
      if (token.at("rank").index(kMostTokens) != named)
        token.fail(fmt::format("must have rank {}", named));
      add(named, token.at("token_str").str(), token.at("is_control").boolean(true));
    }
  }
  for (; named < count; ++named) add(named, fmt::format("<SPECIAL_{}>", named), true);
  return added;
}

}  // namespace

TokenizerParts read_tekken(const std::filesystem::path& file) {
  const Json json = parse_json_file(file);
  const JsonNode root(file, json), config = root.at("config"), vocab = root.at("vocab");
  const JsonNode size = config.at("default_vocab_size");
  const std::int64_t all = size.index(kMostTokens);
  const std::int64_t first = config.at("default_num_special_tokens").index(kMostTokens);
  if (first < 3 || all - first < 256)
    size.fail("must be that of 256 bytes and more, and of three special tokens at least");
  const std::vector<std::string> tokens = ranked_tokens(vocab, all - first);

  Json entries = Json::object();
  StringToId ids;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::int64_t id = first + static_cast<std::int64_t>(rank);
    if (!ids.emplace(tokens[rank], id).second)
      vocab.at(rank).fail("stands for bytes that an earlier token stands for");
    entries[entry_of(tokens[rank])] = static_cast<std::uint64_t>(id);  // as a parsed file has it
  }
  for (int byte = 0; byte < 256; ++byte)
    if (!ids.contains(std::string(1, static_cast<char>(byte))))
      vocab.fail(fmt::format("has no token for the byte {}", byte));
  const IdMerges merges = merges_by_rank(vocab, tokens, first, ids);

  const Json added = special_tokens(root.at("special_tokens"), first);
  for (const Json& token : added) {
    const auto& content = token["content"].get_ref<const std::string&>();
    if (content.empty() || !entries.emplace(content, token["id"]).second)
      root.at("special_tokens").fail(fmt::format("'{}' is a token already, or empty", content));
  }
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", config.at("pattern").str()}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json described = {
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", entries}}}};
  TokenizerParts parts = read_parts(file, described, &merges);
  const auto id_of = [&](const char* name) {
    const auto it = parts.ids.find(name);
    return it == parts.ids.end() ? -1 : it->second;
  };
  parts.bos = id_of("<s>");
  parts.eos = id_of("</s>");
  if (parts.bos >= 0) parts.prefix = {parts.bos};
  return parts;
}

}  // namespace episodic::text
