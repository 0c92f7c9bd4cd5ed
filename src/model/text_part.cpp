// SPDX-License-Identifier: Apache-2.0
#include "text_part.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

struct WithTextPart {
  const char* model_type;
  const char* text_type;  // of a text_config that does not say it
  bool tied;              // where nothing says it
};
constexpr WithTextPart kModels[] = {{"gemma3", "gemma3_text", true},
                                    {"gemma4", "gemma4_text", true},
                                    {"mistral3", "mistral", true},
                                    {"qwen3_5", "qwen3_5_text", false},
                                    {"qwen3_5_moe", "qwen3_5_moe_text", false}};
// "mtp" guesses further tokens
constexpr const char* kParts[] = {"vision_tower", "multi_modal_projector", "embed_vision",
                                  "audio_tower",  "embed_audio",           "visual",
                                  "mtp"};

}  // namespace

std::string take_text_part(nlohmann::json& config, const std::string& label) {
  if (!config.is_object()) return "";
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return "";
  for (const WithTextPart& model : kModels) {
    if (*type != model.model_type) continue;
    const auto text = config.find("text_config");
    if (text == config.end() || !text->is_object())
      throw FileError(fmt::format(
          "{}: text_config is missing, where a model of model_type \"{}\" has the settings of its "
          "text part; fetch config.json again",
          label, model.model_type));
    nlohmann::json own = *text;
    if (!own.contains("model_type")) own["model_type"] = model.text_type;
    // what is said of the whole model holds for its text part
    for (const char* key :
         {"tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"})
      if (const auto whole = config.find(key); whole != config.end()) own[key] = *whole;
    if (!own.contains("tie_word_embeddings")) own["tie_word_embeddings"] = model.tied;
    config = std::move(own);
    return model.model_type;
  }
  return "";
}

std::vector<std::string_view> models_with_text_part() {
  std::vector<std::string_view> all;
  for (const WithTextPart& model : kModels) all.emplace_back(model.model_type);
  return all;
}

std::string_view part_beside_text(std::string_view tensor) {
  constexpr std::string_view kModel = "model.";
  if (tensor.starts_with(kModel)) tensor.remove_prefix(kModel.size());
  for (const std::string_view part : kParts)
    if (tensor.starts_with(part) && tensor.substr(part.size()).starts_with('.')) return part;
  return "";
}

}  // namespace episodic
