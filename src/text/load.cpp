// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/strict_json.hpp"
#include "bert.hpp"
#include "episodic/base/error.hpp"
#include "episodic/text/gguf_vocabulary.hpp"
#include "hf_tokenizer.hpp"
#include "sentence_piece.hpp"

namespace episodic {
namespace text {
namespace {

std::vector<AddedToken> read_added(const JsonNode& list) {
  std::vector<AddedToken> added;
  if (list.null()) return added;
  if (!list.json().is_array()) list.fail("must be an array");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonNode node = list.at(i);
    const bool special = node.at("special").boolean(false);
    added.push_back({node.at("id").index(std::int64_t{1} << 31), node.at("content").str(), special,
                     node.at("single_word").boolean(false), node.at("lstrip").boolean(false),
                     node.at("rstrip").boolean(false), node.at("normalized").boolean(!special)});
    if (added.back().content.empty()) node.at("content").fail("must not be empty");
  }
  return added;
}

/// Puts vocabulary and added tokens into one table without holes.
void make_entries(const JsonNode& root, const std::vector<AddedToken>& added, TokenizerParts& p) {
  p.ids = std::visit([](const auto& model) { return model.vocabulary(); }, p.model);
  for (std::size_t i = 0; i < added.size(); ++i) {
    const auto [it, fresh] = p.ids.emplace(added[i].content, added[i].id);
    if (!fresh && it->second != added[i].id)
      root.at("added_tokens")
          .at(i)
          .at("id")
          .fail(fmt::format("'{}' has id {} here and {} elsewhere", added[i].content, added[i].id,
                            it->second));
  }
  p.entries.resize(p.ids.size());
  p.special.assign(p.ids.size(), false);
  std::vector<bool> taken(p.ids.size(), false);
  for (const auto& [token, id] : p.ids) {
    const auto i = static_cast<std::size_t>(id);
    if (i >= taken.size())
      root.at("model").at("vocab").fail(fmt::format(
          "'{}' has id {}, but with the added tokens there are {} tokens: ids must run from 0 "
          "without holes",
          token, id, taken.size()));
    if (taken[i])
      root.at("model").at("vocab").fail(
          fmt::format("id {} is given to '{}' and to '{}'", id, p.entries[i], token));
    taken[i] = true;
    p.entries[i] = token;
  }
  for (const AddedToken& a : added)
    if (a.special) p.special[static_cast<std::size_t>(a.id)] = true;
}

void read_template(const JsonNode& node, TokenizerParts& p) {
  const JsonNode single = node.at("single"), specials = node.at("special_tokens");
  bool before = true;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonNode item = single.at(i);
    if (!item.at("Sequence").null()) {
      if (!before) item.fail("the text is in the template twice");
      before = false;
      continue;
    }
    const JsonNode name = item.at("SpecialToken").at("id");
    const JsonNode ids = specials.at(name.str()).at("ids");
    for (std::size_t j = 0; j < ids.size(); ++j)
      (before ? p.prefix : p.suffix)
          .push_back(ids.at(j).index(static_cast<std::int64_t>(p.entries.size())));
  }
  if (before) single.fail("the text is not in the template");
}

void read_post_processor(const JsonNode& node, TokenizerParts& p, bool& has_template, int depth) {
  if (node.null()) return;
  if (depth > kMaxNesting) node.fail("is nested too deep");
  const JsonNode type = node.at("type");
  if (type.str() == "Sequence") {
    const JsonNode list = node.at("processors");
    for (std::size_t i = 0; i < list.size(); ++i)
      read_post_processor(list.at(i), p, has_template, depth + 1);
  } else if (type.str() == "TemplateProcessing") {
    if (has_template) node.fail("only one template is supported");
    has_template = true;
    read_template(node, p);
  } else if (type.str() != "ByteLevel") {
    type.fail(
        fmt::format("post-processor '{}' is not supported (TemplateProcessing, ByteLevel and "
                    "Sequence are)",
                    type.str()));
  }
}

std::int64_t configured(const JsonNode& node, const TokenizerParts& p) {
  if (node.null()) return -1;
  const JsonNode content = node.is_object() ? node.at("content") : node;
  const auto it = p.ids.find(content.str());
  if (it == p.ids.end())
    node.fail(fmt::format("'{}' is not a token of {}", content.str(), p.file.string()));
  return it->second;
}

/// bos, eos and whether they are put around a text.
void read_config(const JsonNode& root, TokenizerParts& p, bool has_template) {
  p.bos = configured(root.at("bos_token"), p);
  p.eos = configured(root.at("eos_token"), p);
  const JsonNode add_bos = root.at("add_bos_token"), add_eos = root.at("add_eos_token");
  const JsonNode kind = root.at("tokenizer_class");
  // Hugging Face's LLaMA classes make the template anew from these keys, the others keep theirs
  const bool remakes = !kind.null() && kind.str().starts_with("LlamaTokenizer");
  if (has_template && !remakes) return;
  if (!add_bos.null()) {
    p.prefix.clear();
    if (add_bos.boolean()) {
      if (p.bos < 0) add_bos.fail("is true, but bos_token is missing");
      p.prefix.push_back(p.bos);
    }
  }
  if (!add_eos.null()) {
    p.suffix.clear();
    if (add_eos.boolean()) {
      if (p.eos < 0) add_eos.fail("is true, but eos_token is missing");
      p.suffix.push_back(p.eos);
    }
  }
}

/// The parts that tokenizer.json describes; whether it says what stands around a text.
TokenizerParts read_parts(const std::filesystem::path& file, const nlohmann::json& json,
                          bool& has_template) {
  const JsonNode root(file, json);
  PreTokenizer pre_tokenizer(root.at("pre_tokenizer"));
  const bool byte_level = pre_tokenizer.byte_level();
  using Model = decltype(TokenizerParts::model);
  const JsonNode model = root.at("model");
  const bool word_piece = model.at("type").json() == "WordPiece";
  TokenizerParts p{.file = file,
                   .normalizer = Normalizer(root.at("normalizer")),
                   .pre_tokenizer = std::move(pre_tokenizer),
                   .model = word_piece ? Model(WordPiece(model)) : Model(Bpe(model, byte_level)),
                   .decoder = Decoder(root.at("decoder"))};
  const std::vector<AddedToken> added = read_added(root.at("added_tokens"));
  make_entries(root, added, p);
  for (const AddedToken& a : added)
    if (a.normalized)
      p.normalized_added.add(p.normalizer(a.content), a);
    else
      p.raw_added.add(a.content, a);
  has_template = false;
  read_post_processor(root.at("post_processor"), p, has_template, 0);
  return p;
}

/// \param file tokenizer.json, or BERT's vocab.txt
TokenizerParts read_directory(const std::filesystem::path& file) {
  bool has_template = false;
  const nlohmann::json json =
      file.filename() == kBertVocabulary ? bert_tokenizer_json(file) : parse_json_file(file);
  TokenizerParts p = read_parts(file, json, has_template);
  const std::filesystem::path config = file.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config)) {
    const nlohmann::json settings = parse_json_file(config);
    read_config(JsonNode(config, settings), p, has_template);
  }
  return p;
}

/// A text that lies in another file, within what parse_json_file allows.
nlohmann::json parse_text(const std::filesystem::path& file, std::string_view text) {
  return parse_strict(text, file.string(),
                      {.depth = 64,
                       .array_length = std::size_t{1} << 22,
                       .keys = std::size_t{1} << 22,
                       .repeated_keys = true});
}

/// The same of texts that lie in another file.
TokenizerParts read_texts(const std::filesystem::path& file, std::string_view tokenizer_json,
                          std::string_view config_json) {
  bool has_template = false;
  TokenizerParts p = read_parts(file, parse_text(file, tokenizer_json), has_template);
  if (!config_json.empty()) {
    const nlohmann::json json = parse_text(file, config_json);
    read_config(JsonNode(file, json), p, has_template);
  }
  return p;
}

}  // namespace

TokenizerParts read_parts(const std::filesystem::path& file, const nlohmann::json& json) {
  bool has_template = false;
  return read_parts(file, json, has_template);
}

}  // namespace text

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir) {
  std::filesystem::path file = model_dir / "tokenizer.json";
  const auto there = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(model_dir / name, ignored);
  };
  if (!there("tokenizer.json")) {
    if (there("tokenizer.model")) return text::load_sentence_piece(model_dir);
    if (there(text::kBertVocabulary)) file = model_dir / text::kBertVocabulary;
  }
  try {
    return std::make_unique<text::HfTokenizer>(text::read_directory(file));
  } catch (const FileError&) {
    throw;
  } catch (const Error& e) {
    throw FileError(fmt::format("{}: {}", file.string(), e.what()));
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::filesystem::path& file,
                                          std::string_view tokenizer_json,
                                          std::string_view config_json) {
  try {
    return std::make_unique<text::HfTokenizer>(text::read_texts(file, tokenizer_json, config_json));
  } catch (const FileError&) {
    throw;
  } catch (const Error& e) {
    throw FileError(fmt::format("{}: {}", file.string(), e.what()));
  }
}

}  // namespace episodic
