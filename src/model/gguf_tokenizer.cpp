// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/gguf.hpp"
#include "episodic/text/gguf_vocabulary.hpp"
#include "gguf_names.hpp"

namespace episodic {

std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file) {
  const auto key = [](const char* name) { return std::string("tokenizer.ggml.") + name; };
  const auto id = [&](const char* name) { return file.integer(key(name)).value_or(-1); };
  if (const auto json = file.string(kGgufTokenizerJson))
    return make_tokenizer(file.path(), *json, file.string(kGgufTokenizerConfig).value_or(""));
  const auto model = file.string(key("model"));
  if (!model) file.fail(key("model"), "is missing: the file holds no tokenizer");
  GgufVocabulary v{.file = file.path(),
                   .model = std::string(*model),
                   .pre = std::string(file.string(key("pre")).value_or("")),
                   .tokens = {},
                   .scores = {},
                   .types = {},
                   .merges = {},
                   .bos = id("bos_token_id"),
                   .eos = id("eos_token_id"),
                   .unknown = id("unknown_token_id"),
                   .add_bos = file.boolean(key("add_bos_token")),
                   .add_eos = file.boolean(key("add_eos_token")),
                   .add_space_prefix = file.boolean(key("add_space_prefix"))};
  if (const auto* list = file.strings(key("tokens"))) v.tokens = *list;
  if (const auto* list = file.numbers(key("scores"))) v.scores = *list;
  if (const auto* list = file.integers(key("token_type"))) v.types = *list;
  if (const auto* list = file.strings(key("merges"))) v.merges = *list;
  return make_tokenizer(v);
}

std::optional<std::string_view> chat_template(const GgufFile& file) {
  return file.string("tokenizer.chat_template");
}

}  // namespace episodic
