// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "added_vocabulary.hpp"
#include "base/strict_json.hpp"
#include "bert.hpp"
#include "episodic/base/error.hpp"
#include "episodic/text/gguf_vocabulary.hpp"
#include "hf_tokenizer.hpp"
#include "sentence_piece.hpp"
#include "tekken.hpp"

namespace episodic {
namespace text {
namespace {

/// Puts the model's vocabulary and the added tokens into one table without holes.
void make_entries(const JsonNode& root, const AddedVocabulary& added, TokenizerParts& p) {
  p.entries.resize(p.ids.size());
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
  p.special.assign(p.ids.size(), false);
  added.each_special([&](std::int64_t id) { p.special[static_cast<std::size_t>(id)] = true; });
  std::size_t bytes = 0;
  added.each_searched(
      [&](const TokenDescription& t, std::int64_t, int) { bytes += t.content.size(); });
  Growth growth("normalizer", bytes);
  added.each_searched([&](const TokenDescription& t, std::int64_t id, int where) {
    const AddedToken token{id,       t.content, t.special,   t.single_word,
                           t.lstrip, t.rstrip,  t.normalized};
    if (where == 0) return p.raw_added.add(t.content, token);
    const std::string normalized = p.normalizer(t.content, growth);
    growth.keep(normalized.size());
    p.normalized_added.add(normalized, token);
    if (t.normalized && normalized != t.content) p.shown[id] = normalized;
  });
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

/// What the class brings along where the files leave it out. transformers has LLaMA's class for
/// vocabularies of SentencePiece alone.
std::vector<std::pair<std::string, std::string>> defaults_of(const TokenFiles& files,
                                                             bool byte_level) {
  if (files.config.is_null() || byte_level) return {};
  const JsonNode kind = JsonNode(files.config_file, files.config).at("tokenizer_class");
  if (kind.null() || !kind.str().starts_with("LlamaTokenizer")) return {};
  return {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
}

/// Those of tokenizer.json itself.
void add_tokens(const JsonNode& root, TokenFiles& files, AddedVocabulary& added) {
  const JsonNode list = root.at("added_tokens");
  if (list.null()) return;
  if (!list.json().is_array()) list.fail("must be an array");
  for (std::size_t i = 0; i < list.size(); ++i) {
    files.json_ids.insert(list.at(i).at("id").index(std::int64_t{1} << 31));
    added.add(read_description(list.at(i)));
  }
}

/// The parts that tokenizer.json describes, and the tokens that the files beside it add.
TokenizerParts read_parts(const std::filesystem::path& file, const nlohmann::json& json,
                          TokenFiles files, const IdMerges* merges = nullptr) {
  const JsonNode root(file, json);
  PreTokenizer pre_tokenizer(root.at("pre_tokenizer"));
  const bool byte_level = pre_tokenizer.byte_level();
  using Model = decltype(TokenizerParts::model);
  const JsonNode model = root.at("model");
  const bool word_piece = model.at("type").json() == "WordPiece";
  TokenizerParts p{
      .file = file,
      .normalizer = Normalizer(root.at("normalizer")),
      .pre_tokenizer = std::move(pre_tokenizer),
      .model = word_piece ? Model(WordPiece(model)) : Model(Bpe(model, byte_level, merges)),
      .decoder = Decoder(root.at("decoder"))};
  p.ids = std::visit([](const auto& m) { return m.vocabulary(); }, p.model);
  AddedVocabulary added(p.ids);
  add_tokens(root, files, added);
  const NamedTokens named(files, added, defaults_of(files, byte_level));
  make_entries(root, added, p);
  bool has_template = false;
  read_post_processor(root.at("post_processor"), p, has_template, 0);
  // add_bos_token and add_eos_token do not count beside a tokenizer.json, whose template says what
  // stands around a text: so has it transformers 5.24 (4.x obeyed them for LLaMA's classes).
  const auto id = [&](const char* name) {
    const auto it = p.ids.find(named.content(name));
    return it == p.ids.end() ? -1 : it->second;
  };
  p.bos = id("bos_token");
  p.eos = id("eos_token");
  return p;
}

/// \param file tokenizer.json, or BERT's vocab.txt
TokenizerParts read_directory(const std::filesystem::path& file) {
  const nlohmann::json json =
      file.filename() == kBertVocabulary ? bert_tokenizer_json(file) : parse_json_file(file);
  return read_parts(file, json, read_token_files(file.parent_path()));
}

/// Ids, flags and names that the files give to added tokens. \param root null: of a
/// tokenizer.model, from which texts are read without them
std::string added_text(const JsonNode* root, TokenFiles files) {
  StringToId ids;
  bool byte_level = false;
  AddedVocabulary added(ids);
  if (root) {
    byte_level = PreTokenizer(root->at("pre_tokenizer")).byte_level();
    const JsonNode model = root->at("model").at("vocab");
    for (const auto& [token, id] : model.json().items())
      if (id.is_number_integer()) ids.emplace(token, id.get<std::int64_t>());
    added = AddedVocabulary(ids);
    add_tokens(*root, files, added);
  }
  const NamedTokens named(
      files, added,
      root ? defaults_of(files, byte_level) : std::vector<std::pair<std::string, std::string>>());
  nlohmann::json out{named.content("bos_token"), named.content("eos_token")};
  if (root) {
    added.each_searched([&](const TokenDescription& t, std::int64_t id, int where) {
      out.push_back(
          {t.content, id, where, t.special, t.single_word, t.lstrip, t.rstrip, t.normalized});
    });
    added.each_special([&](std::int64_t id) { out.push_back(id); });
  }
  return out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// A text that lies in another file, within what parse_json_file allows.
nlohmann::json parse_text(const std::filesystem::path& file, std::string_view text) {
  return parse_strict(text, file.string(), kTokenizerJson);
}

/// The same of texts that lie in another file.
TokenizerParts read_texts(const std::filesystem::path& file, std::string_view tokenizer_json,
                          std::string_view config_json) {
  TokenFiles files{.config_file = file};
  if (!config_json.empty()) {
    files.config = parse_text(file, config_json);
    files.order = key_order(config_json);
  }
  if (!files.config.is_null() && !files.config.is_object())
    JsonNode(file, files.config).fail("must be an object");
  return read_parts(file, parse_text(file, tokenizer_json), std::move(files));
}

/// Where there is no file of a kind that is read: names one that is not.
void refuse_other_kinds(const std::filesystem::path& dir) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    const std::filesystem::path name = entry.path().filename();
    if (name == "vocab.json" || name.extension() == ".tiktoken")
      throw FileError(fmt::format(
          "{}: tokenizers of this kind are not read; take the model's tokenizer.json, or have "
          "transformers write one: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
          entry.path().string()));
  }
}

}  // namespace

std::string changes_by_token_files(const std::filesystem::path& dir) {
  try {
    const TokenFiles all = read_token_files(dir);
    if (all.special_map.is_null() && all.added.is_null()) return {};
    const std::filesystem::path file = dir / "tokenizer.json";
    nlohmann::json json;
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) json = parse_json_file(file);
    const JsonNode root(file, json);
    const JsonNode* const described = json.is_null() ? nullptr : &root;
    TokenFiles others = all;
    others.special_map = others.added = nullptr;
    std::string text = added_text(described, all);
    return text == added_text(described, others) ? std::string() : text;
  } catch (const Error&) {
    return {};  // who reads texts is told what is wrong; who has ids needs no tokenizer
  }
}

std::filesystem::path tokenizer_file(const std::filesystem::path& dir) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model", kTekken})
    if (std::filesystem::exists(dir / name, ignored)) return dir / name;
  return {};
}

TokenizerParts read_parts(const std::filesystem::path& file, const nlohmann::json& json,
                          const IdMerges* merges) {
  return read_parts(file, json, TokenFiles{}, merges);
}

}  // namespace text

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir) {
  std::filesystem::path file = text::tokenizer_file(model_dir);
  if (file.filename() == "tokenizer.model") return text::load_sentence_piece(model_dir);
  if (file.empty()) {
    std::error_code ignored;
    const bool bert = std::filesystem::exists(model_dir / text::kBertVocabulary, ignored);
    if (!bert) text::refuse_other_kinds(model_dir);
    file = model_dir / (bert ? text::kBertVocabulary : "tokenizer.json");
  }
  try {
    return std::make_unique<text::HfTokenizer>(
        file.filename() == text::kTekken ? text::read_tekken(file) : text::read_directory(file));
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
