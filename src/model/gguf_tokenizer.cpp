// SPDX-License-Identifier: Apache-2.0
#include "gguf_tokenizer.hpp"

#include <algorithm>

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

std::vector<std::int64_t> end_tokens(const GgufFile& file) {
  const auto id = [&](const char* name) {
    return file.integer(std::string("tokenizer.ggml.") + name + "_token_id").value_or(-1);
  };
  const GgufEndKeys keys{id("eos"),     id("eot"),     id("eom"),
                         id("fim_pad"), id("fim_rep"), id("fim_sep")};
  if (const auto* tokens = file.strings("tokenizer.ggml.tokens"))
    return gguf_end_tokens(*tokens, keys);
  // A file of ours (quantize): it carries tokenizer.json, and the keys name all that the model had.
  std::vector<std::int64_t> ends;
  for (const std::int64_t end : {keys.eos, keys.eot, keys.eom})
    if (end >= 0 && std::find(ends.begin(), ends.end(), end) == ends.end()) ends.push_back(end);
  return ends;
}

std::optional<std::string_view> chat_template(const GgufFile& file) {
  return file.string("tokenizer.chat_template");
}

}  // namespace episodic
