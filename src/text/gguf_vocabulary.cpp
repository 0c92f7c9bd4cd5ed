// SPDX-License-Identifier: Apache-2.0
// The vocabulary becomes what a tokenizer.json would say, which the readers of that format then
// build: one tokenizer for both kinds of files.
#include "episodic/text/gguf_vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "episodic/base/error.hpp"
#include "gguf_ends.hpp"
#include "hf_tokenizer.hpp"
#include "prefix_table.hpp"
#include "sentence_piece_file.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kNormal = 1, kControl = 3, kUserDefined = 4;
constexpr std::size_t kMostTokens = 1 << 24;
constexpr std::size_t kLeastWays = 1 << 20, kWaysPerToken = 16, kMostWork = std::size_t{1} << 31;
constexpr std::size_t kLongestToken = 4096;  // bytes; SentencePiece's pieces have a few dozen

/// How byte-level vocabularies cut a text into words, by the names that conversion gives the rules.
struct Rule {
  const char* name;
  const char* pattern;         ///< null: GPT-2's
  bool digits = false;         ///< each digit a word of its own, then GPT-2's pattern
  bool ignore_merges = false;  ///< a word that is a token is that token
  bool add_bos = false;        ///< where the file does not say
  bool nfc = false;
};

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr Rule kRules[] = {
    {"default", nullptr},
    {"gpt-2", nullptr},
    {"phi-2", nullptr},
    {"olmo", nullptr},
    {"llama-bpe", kLlama3, false, true, true},
    {"llama3", kLlama3, false, true, true},
    {"llama-v3", kLlama3, false, true, true},
    {"dbrx", kLlama3},
    {"smaug-bpe", kLlama3},
    {"qwen2", kQwen2, false, false, false, true},
    {"deepseek-r1-qwen", kQwen2, false, false, false, true},
    {"smollm", nullptr, true},
    {"refact", nullptr, true},
    {"starcoder", nullptr, true},
    {"tekken", kTekken, false, true, true},
    {"gpt-4o", kGpt4o},
};

[[noreturn]] void fail(const GgufVocabulary& v, const char* key, const std::string& what) {
  throw FileError(fmt::format("{}: tokenizer.ggml.{} {}", v.file.string(), key, what));
}

const Rule& rule_of(const GgufVocabulary& v) {
  const std::string_view name = v.pre.empty() ? "default" : std::string_view(v.pre);
  std::string known;
  for (const Rule& rule : kRules) {
    if (name == rule.name) return rule;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", rule.name);
  }
  fail(v, "pre", fmt::format("= '{}' is not supported; supported are: {}", name, known));
}

void check(const GgufVocabulary& v) {
  if (v.tokens.empty() || v.tokens.size() > kMostTokens)
    fail(v, "tokens",
         fmt::format("has {} entries, expected 1 to {}", v.tokens.size(), kMostTokens));
  if (!v.types.empty() && v.types.size() != v.tokens.size())
    fail(v, "token_type",
         fmt::format("has {} entries for {} tokens", v.types.size(), v.tokens.size()));
  const auto in_range = [&](std::int64_t id, const char* key) {
    if (id < -1 || id >= static_cast<std::int64_t>(v.tokens.size()))
      fail(v, key, fmt::format("= {} is no token of {}", id, v.tokens.size()));
  };
  in_range(v.bos, "bos_token_id");
  in_range(v.eos, "eos_token_id");
  in_range(v.unknown, "unknown_token_id");
}

std::int64_t type_of(const GgufVocabulary& v, std::size_t id) {
  return v.types.empty() ? kNormal : v.types[id];
}

/// The tokens' texts, each one once: files pad vocabularies with empty or repeated entries, which
/// no text can become.
std::vector<std::string> unique_tokens(const GgufVocabulary& v) {
  std::vector<std::string> out;
  std::unordered_map<std::string_view, std::size_t> seen;
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    const bool fresh = !v.tokens[id].empty() && seen.emplace(v.tokens[id], id).second;
    out.push_back(fresh ? std::string(v.tokens[id]) : fmt::format("[unused token {}]", id));
    if (!fresh && !seen.emplace(out.back(), id).second)
      fail(v, "tokens", fmt::format("holds '{}' twice", out.back()));
  }
  return out;
}

Json added_tokens(const GgufVocabulary& v, const std::vector<std::string>& tokens) {
  Json added = Json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::int64_t type = type_of(v, id);
    if (type != kControl && type != kUserDefined) continue;
    // with SentencePiece's spaces in it, it is looked for where spaces have become those
    const bool normalized = tokens[id].find(text::kSpaceMark) != std::string::npos;
    added.push_back({{"id", id},
                     {"content", tokens[id]},
                     {"special", type == kControl},
                     {"normalized", normalized}});
  }
  return added;
}

Json vocabulary_of(const std::vector<std::string>& tokens) {
  Json vocab = Json::object();
  for (std::size_t id = 0; id < tokens.size(); ++id) vocab[tokens[id]] = id;
  return vocab;
}

/// SentencePiece joins the two neighbours whose piece has the highest score. As ranked merges:
/// every way to put a piece together from two, best piece first.
text::IdMerges merges_by_score(const GgufVocabulary& v, const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  std::vector<text::PrefixTable::Entry> entries;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    ids.emplace(tokens[id], static_cast<std::int32_t>(id));
    entries.emplace_back(tokens[id], static_cast<std::int64_t>(id));
  }
  const text::PrefixTable prefixes(std::move(entries));
  // LLaMA's vocabularies have two ways for each token.
  const std::size_t most_ways = std::max<std::size_t>(kLeastWays, kWaysPerToken * tokens.size());
  std::size_t work = 0;  // bytes looked at
  std::vector<text::IdMerge> ways;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (type_of(v, id) != kNormal) continue;
    if (token.size() > kLongestToken)
      fail(v, "tokens",
           fmt::format("holds one of {} bytes, more than {}", token.size(), kLongestToken));
    const std::size_t first = ways.size();
    prefixes.each(token, [&](std::size_t cut, std::int64_t left) {
      work += token.size() - cut;
      if (cut == token.size() || (static_cast<unsigned char>(token[cut]) & 0xc0) == 0x80) return;
      if (const auto right = ids.find(token.substr(cut)); right != ids.end())
        ways.push_back(
            {static_cast<std::int32_t>(left), right->second, static_cast<std::int32_t>(id)});
    });
    if (ways.size() > most_ways || work > kMostWork)
      fail(v, "tokens",
           fmt::format("can be put together from each other in more than {} ways: this is no "
                       "vocabulary of SentencePiece; convert the file again",
                       std::min(ways.size(), most_ways)));
    std::sort(ways.begin() + static_cast<std::ptrdiff_t>(first), ways.end(),
              [](const text::IdMerge& a, const text::IdMerge& b) {
                return a.left != b.left ? a.left < b.left : a.right < b.right;
              });
  }
  std::stable_sort(ways.begin(), ways.end(), [&](const text::IdMerge& a, const text::IdMerge& b) {
    return v.scores[static_cast<std::size_t>(a.both)] > v.scores[static_cast<std::size_t>(b.both)];
  });
  return {std::move(ways), tokens};
}

/// The merges as the file lists them.
Json listed_merges(const GgufVocabulary& v) {
  if (v.merges.empty()) fail(v, "merges", "is missing; convert the file again");
  Json merges = Json::array();
  for (const std::string_view merge : v.merges) merges.push_back(std::string(merge));
  return merges;
}

/// SentencePiece's spaces and bytes. \param listed merges are in the file (Gemma 4); else they
/// follow from the scores
Json sentence_piece(const GgufVocabulary& v, const std::vector<std::string>& tokens, bool listed) {
  if (!listed && v.scores.size() != tokens.size())
    fail(v, "scores", fmt::format("has {} entries for {} tokens", v.scores.size(), tokens.size()));
  if (!listed &&
      std::any_of(v.scores.begin(), v.scores.end(), [](double s) { return std::isnan(s); }))
    fail(v, "scores", "holds something that is no number");
  const bool prefix = v.add_space_prefix.value_or(!listed);
  const Json literal_space = {{"String", " "}}, literal_mark = {{"String", text::kSpaceMark}};
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", text::kSpaceMark}});
  normalizers.push_back(
      {{"type", "Replace"}, {"pattern", literal_space}, {"content", text::kSpaceMark}});
  Json decoders = {{{"type", "Replace"}, {"pattern", literal_mark}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1u}, {"stop", 0u}});
  Json model = {{"type", "BPE"},
                {"byte_fallback", true},
                {"fuse_unk", true},
                {"vocab", vocabulary_of(tokens)}};
  if (listed) model["merges"] = listed_merges(v);
  if (v.unknown >= 0) model["unk_token"] = tokens[static_cast<std::size_t>(v.unknown)];
  return {{"added_tokens", added_tokens(v, tokens)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model", model}};
}

Json byte_level(const GgufVocabulary& v, const Rule& rule, const std::vector<std::string>& tokens) {
  const Json merges = listed_merges(v);
  Json stages = Json::array();
  if (rule.digits) stages.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (rule.pattern != nullptr)
    stages.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", rule.pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  stages.push_back({{"type", "ByteLevel"},
                    {"add_prefix_space", v.add_space_prefix.value_or(false)},
                    {"use_regex", rule.pattern == nullptr}});
  return {{"added_tokens", added_tokens(v, tokens)},
          {"normalizer", rule.nfc ? Json{{"type", "NFC"}} : Json(nullptr)},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", stages}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"ignore_merges", rule.ignore_merges},
            {"vocab", vocabulary_of(tokens)},
            {"merges", merges}}}};
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const GgufVocabulary& vocabulary) {
  check(vocabulary);
  GgufVocabulary v = vocabulary;
  v.types = text::corrected_types(v.tokens, std::move(v.types));
  const std::vector<std::string> tokens = unique_tokens(v);
  const bool scores = v.model == "llama";
  const bool listed = v.model == "gemma4";
  if (!scores && !listed && v.model != "gpt2")
    fail(v, "model",
         fmt::format("= '{}' is not supported; supported are: llama, gpt2, gemma4", v.model));
  const bool pieces = scores || listed;
  const Rule* rule = pieces ? nullptr : &rule_of(v);
  try {
    const Json json = pieces ? sentence_piece(v, tokens, listed) : byte_level(v, *rule, tokens);
    const auto merges = scores ? std::optional(merges_by_score(v, tokens)) : std::nullopt;
    text::TokenizerParts parts = text::read_parts(v.file, json, merges ? &*merges : nullptr);
    parts.bos = v.bos;
    parts.eos = v.eos;
    if (v.bos >= 0 && v.add_bos.value_or(pieces || rule->add_bos)) parts.prefix = {v.bos};
    if (v.eos >= 0 && v.add_eos.value_or(false)) parts.suffix = {v.eos};
    return std::make_unique<text::HfTokenizer>(std::move(parts));
  } catch (const FileError&) {
    throw;
  } catch (const Error& e) {
    throw FileError(fmt::format("{}: {}", v.file.string(), e.what()));
  }
}

}  // namespace episodic
