// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/hf_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/model/gguf.hpp"
#include "families.hpp"
#include "other_formats.hpp"
#include "text_part.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

Json parse_file(std::string_view text, const std::string& file) {
  return parse_strict(
      text, file, {.depth = 12, .array_length = 1 << 16, .keys = 1 << 16, .python_numbers = true});
}

/// What transformers' class of this family passes over, and who wrote it may have meant.
void note_unread(const Json& json, ModelConfig& c) {
  const auto above = [&](const char* key, std::int64_t n) {
    const auto it = json.find(key);
    return it != json.end() && it->is_number() && *it > n;
  };
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
    if (above(key, 1) && !c.has_mixture())
      c.notes.push_back(
          fmt::format("{} = {} says nothing of model_type \"{}\", which has no experts", key,
                      printable_value(json[key]), c.model_type));
  constexpr std::string_view kSeeAll[] = {"llama", "olmo2",      "granite",
                                          "olmoe", "granitemoe", "granitemoeshared"};
  const bool windows =
      std::find(std::begin(kSeeAll), std::end(kSeeAll), c.model_type) == std::end(kSeeAll);
  if (const auto it = json.find("sliding_window"); !windows && it != json.end() && !it->is_null())
    c.notes.push_back(
        fmt::format("sliding_window = {} says nothing of model_type \"{}\", whose layers see all",
                    printable_value(*it), c.model_type));
}

/// True, with a note, for a token id that no step can give: transformers never meets it either.
bool impossible(const char* key, std::int64_t id, ModelConfig& c) {
  if (id >= 0 && id < c.vocab_size) return false;
  const std::string note = fmt::format(
      "{} = {} is not among the {} tokens of the vocabulary; ignored", key, id, c.vocab_size);
  if (std::find(c.notes.begin(), c.notes.end(), note) == c.notes.end()) c.notes.push_back(note);
  return true;
}

std::string_view text_of(const MappedFile& file) {
  constexpr std::size_t kLongest = 16 << 20;
  if (file.bytes().size() > kLongest)
    throw FileError(
        fmt::format("{}: {} bytes are too many for a configuration; is it the right file?",
                    file.path().string(), file.bytes().size()));
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// The union: a model that ends by what one file alone says would otherwise never stop.
void set_ends(const std::vector<std::int64_t>& of_config,
              const std::optional<std::vector<std::int64_t>>& of_generation, ModelConfig& c) {
  const auto add = [&](const std::vector<std::int64_t>& ids) {
    for (const std::int64_t id : ids)
      if (!impossible("eos_token_id", id, c) &&
          std::find(c.eos_tokens.begin(), c.eos_tokens.end(), id) == c.eos_tokens.end())
        c.eos_tokens.push_back(id);
  };
  if (of_generation) add(*of_generation);
  const std::size_t first = c.eos_tokens.size();
  add(of_config);
  if (of_generation && c.eos_tokens.size() > first)
    c.ends_note = fmt::format(
        "answers end at the tokens {}: config.json names some as eos_token_id that "
        "generation_config.json does not; make the files agree",
        fmt::join(c.eos_tokens, ", "));
}

}  // namespace

ModelConfig parse_model_config(std::string_view config_json, std::string_view generation_json,
                               std::string_view label) {
  const std::string file = fmt::format("{}/config.json", label);
  Json json = parse_file(config_json, file);
  ModelConfig c;
  c.text_part_of = take_text_part(json, file);
  const JsonObject in(json, file, c.text_part_of.empty() ? "" : "text_config.");
  c.quantization = quantization_said(json);
  read_family(in, c);

  auto bos = in.tokens("bos_token_id");
  std::optional<std::vector<std::int64_t>> of_generation;
  if (!generation_json.empty()) {
    const std::string generation_file = fmt::format("{}/generation_config.json", label);
    const Json generation = parse_file(generation_json, generation_file);
    const JsonObject g(generation, generation_file);
    if (g.has("bos_token_id")) bos = g.tokens("bos_token_id");
    if (g.has("eos_token_id")) of_generation = g.tokens("eos_token_id");
  }
  if (!bos.empty()) c.bos_token = bos[0];
  if (c.bos_token != -1 && impossible("bos_token_id", c.bos_token, c)) c.bos_token = -1;
  set_ends(in.tokens("eos_token_id"), of_generation, c);
  note_unread(json, c);
  return c;
}

ModelConfig load_model_config(const std::filesystem::path& dir) {
  if (std::error_code none; std::filesystem::is_regular_file(dir, none))
    return parse_model_config(gguf_config_json(GgufFile(dir)), "", dir.string());
  const MappedFile config(dir / "config.json");
  std::optional<MappedFile> generation;
  std::error_code ignored;
  if (std::filesystem::exists(dir / "generation_config.json", ignored))
    generation.emplace(dir / "generation_config.json");
  return parse_model_config(text_of(config), generation ? text_of(*generation) : "", dir.string());
}

}  // namespace episodic
