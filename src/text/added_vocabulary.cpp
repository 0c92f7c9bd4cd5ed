// SPDX-License-Identifier: Apache-2.0
#include "added_vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"

namespace episodic::text {
namespace {

constexpr std::size_t kLongestAdded = 4096;
constexpr const char* kStandard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

bool is_standard(const std::string& key) {
  return std::find(std::begin(kStandard), std::end(kStandard), key) != std::end(kStandard);
}

/// A token that is its text alone, or an object.
TokenDescription described(const JsonNode& node) {
  if (node.is_object()) return read_description(node);
  return {.content = node.str(), .special = true, .normalized = false};
}

std::vector<TokenDescription> described_list(const JsonNode& node) {
  std::vector<TokenDescription> out;
  for (std::size_t i = 0; i < node.size(); ++i) out.push_back(described(node.at(i)));
  return out;
}

bool same(const TokenDescription& a, const TokenDescription& b) {
  return a.content == b.content && a.special == b.special && a.single_word == b.single_word &&
         a.lstrip == b.lstrip && a.rstrip == b.rstrip && a.normalized == b.normalized;
}

}  // namespace

TokenDescription read_description(const JsonNode& node) {
  TokenDescription token;
  token.content = node.at("content").str();
  token.special = node.at("special").boolean(false);
  token.single_word = node.at("single_word").boolean(false);
  token.lstrip = node.at("lstrip").boolean(false);
  token.rstrip = node.at("rstrip").boolean(false);
  token.normalized = node.at("normalized").boolean(!token.special);
  return token;
}

void AddedVocabulary::add(const TokenDescription& token) {
  if (token.content.empty()) return;
  // A text is searched for tokens in time that follows the longest of them.
  if (token.content.size() > kLongestAdded)
    throw Error(fmt::format("an added token of {} bytes ('{}...') is longer than {}; shorten it",
                            token.content.size(), printable(token.content.substr(0, 20)),
                            kLongestAdded));
  const auto [at, fresh] =
      index_.emplace(token.content, static_cast<std::int64_t>(entries_.size()));
  if (fresh) {
    const auto [id, is_new] = ids_->emplace(token.content, next_);
    if (is_new) ++next_;
    entries_.push_back({token, id->second, false, false, false});
  }
  Entry& entry = entries_[static_cast<std::size_t>(at->second)];
  if (!fresh && same(entry.token, token)) return;
  // What a token strips is as it was last described. Where it is looked for, as it was when it
  // became special, and as an ordinary token before that: the reference keeps both.
  if (!entry.special) (token.normalized ? entry.in_normalized : entry.raw) = true;
  entry.special = entry.special || token.special;
  entry.token = token;
}

const TokenDescription* AddedVocabulary::find(const std::string& content) const {
  const auto it = index_.find(content);
  return it == index_.end() ? nullptr : &entries_[static_cast<std::size_t>(it->second)].token;
}

std::vector<std::string> key_order(std::string_view config) {
  std::vector<std::string> keys, extra;
  std::string_view outer;  // the last key of the object itself
  int depth = 0;
  for (std::size_t at = 0; at < config.size(); ++at) {
    const char c = config[at];
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c != '"') continue;
    const std::size_t begin = at + 1;
    for (++at; at < config.size() && config[at] != '"'; ++at)
      if (config[at] == '\\') ++at;
    const std::string_view text = config.substr(begin, std::min(at, config.size()) - begin);
    if (at >= config.size()) break;
    const std::size_t next = config.find_first_not_of(" \t\r\n", at + 1);
    if (next == std::string_view::npos || config[next] != ':') continue;
    if (depth == 1) keys.emplace_back(outer = text);
    if (depth == 2 && outer == "extra_special_tokens") extra.emplace_back(text);
  }
  keys.insert(keys.end(), extra.begin(), extra.end());
  return keys;
}

TokenFiles read_token_files(const std::filesystem::path& dir) {
  TokenFiles files{.config_file = dir / "tokenizer_config.json",
                   .special_map_file = dir / "special_tokens_map.json",
                   .added_file = dir / "added_tokens.json"};
  for (const auto& [path, out] : {std::pair(&files.config_file, &files.config),
                                  std::pair(&files.special_map_file, &files.special_map),
                                  std::pair(&files.added_file, &files.added)}) {
    std::error_code ignored;
    if (std::filesystem::exists(*path, ignored)) *out = parse_json_file(*path);
    if (!out->is_null() && !out->is_object()) JsonNode(*path, *out).fail("must be an object");
  }
  if (!files.config.is_null()) {
    const MappedFile config(files.config_file);
    files.order =
        key_order({reinterpret_cast<const char*>(config.bytes().data()), config.bytes().size()});
  }
  return files;
}

NamedTokens::NamedTokens(const TokenFiles& files, AddedVocabulary& vocabulary,
                         const std::vector<std::pair<std::string, std::string>>& defaults) {
  const JsonNode config(files.config_file, files.config);
  const auto set = [&](const std::string& name, const TokenDescription& token) {
    const auto it = std::find_if(named_.begin(), named_.end(),
                                 [&](const auto& entry) { return entry.first == name; });
    it == named_.end() ? named_.emplace_back(name, token) : * it = {name, token};
  };
  const auto forget = [&](const std::string& name) {
    std::erase_if(named_, [&](const auto& entry) { return entry.first == name; });
  };
  for (const auto& [name, content] : defaults)
    set(name, {.content = content, .special = true, .normalized = false});
  std::vector<TokenDescription> extra;
  const auto read_extra = [&](const JsonNode& node) {
    if (!node.is_object()) return extra = described_list(node), void();
    for (const auto& [name, value] : node.json().items())
      if (!value.is_null()) set(name, described(node.at(name)));
  };
  const auto read_map = [&](const JsonNode& node) {
    for (const auto& [key, value] : node.json().items()) {
      if (key == "extra_special_tokens" || key == "additional_special_tokens" ||
          !key.ends_with("_token"))
        continue;
      if (value.is_null())
        forget(key);
      else if (is_standard(key) || value.is_string() ||
               (value.is_object() && value.contains("content")))
        set(key, described(node.at(key)));
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
      if (const JsonNode list = node.at(key); !list.null()) read_extra(list);
  };
  if (!files.config.is_null()) read_map(config);
  std::map<std::int64_t, TokenDescription> by_id;
  const JsonNode decoder = files.config.is_null() ? config : config.at("added_tokens_decoder");
  if (!decoder.null()) {
    if (!decoder.is_object()) decoder.fail("must be an object of ids and tokens");
    for (const auto& [key, value] : decoder.json().items()) {
      std::int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0)
        decoder.fail(fmt::format("'{}' is no token id", key));
      by_id[id] = read_description(decoder.at(key));
    }
  } else {
    if (!files.special_map.is_null()) read_map(JsonNode(files.special_map_file, files.special_map));
    if (!files.added.is_null()) {
      const JsonNode added(files.added_file, files.added);
      if (!added.is_object()) added.fail("must be an object of tokens and ids");
      const auto is_special = [&](const std::string& content) {
        const auto is = [&](const TokenDescription& t) { return t.content == content; };
        return std::any_of(named_.begin(), named_.end(),
                           [&](const auto& entry) {
                             return is_standard(entry.first) && is(entry.second);
                           }) ||
               std::any_of(extra.begin(), extra.end(), is);
      };
      for (const auto& [content, id] : added.json().items()) {
        const std::int64_t at = added.at(content).index(std::int64_t{1} << 31);
        if (files.json_ids.contains(at)) continue;  // tokenizer.json has another token there
        const bool special = is_special(content);
        by_id[at] = {.content = content, .special = special, .normalized = !special};
      }
    }
  }
  // A named token has the flags that a list of tokens gives it.
  for (auto& [name, token] : named_) {
    if (!is_standard(name)) continue;
    const std::string content = token.content;
    for (const auto& [id, listed] : by_id)
      if (listed.content == content) token = listed;
    if (const TokenDescription* known = decoder.null() ? vocabulary.find(content) : nullptr)
      token = *known;
  }
  for (const auto& entry : by_id) {  // clang before 16 lets no lambda have a part by its name
    const TokenDescription& token = entry.second;
    TokenDescription out = token;
    out.special = out.special || std::any_of(named_.begin(), named_.end(), [&](const auto& named) {
                    return named.second.content == token.content;
                  });
    const TokenDescription* known = vocabulary.find(token.content);
    if (known == nullptr || !same(*known, token)) vocabulary.add(out);
  }
  // New tokens get their ids in this order: the usual names, then others as the file has them.
  const auto place = [&](const std::string& name) {
    const auto standard = std::find(std::begin(kStandard), std::end(kStandard), name);
    if (standard != std::end(kStandard)) return std::distance(std::begin(kStandard), standard);
    return std::ssize(kStandard) +
           std::distance(files.order.begin(),
                         std::find(files.order.begin(), files.order.end(), name));
  };
  std::stable_sort(named_.begin(), named_.end(),
                   [&](const auto& a, const auto& b) { return place(a.first) < place(b.first); });
  const auto add_absent = [&](TokenDescription token) {
    token.special = true;
    if (!vocabulary.contains(token.content)) vocabulary.add(token);
  };
  for (const auto& [name, token] : named_) add_absent(token);
  for (const TokenDescription& token : extra) add_absent(token);
}

std::string NamedTokens::content(const std::string& name) const {
  const auto it = std::find_if(named_.begin(), named_.end(),
                               [&](const auto& entry) { return entry.first == name; });
  return it == named_.end() ? "" : it->second.content;
}

}  // namespace episodic::text
