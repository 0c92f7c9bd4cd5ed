// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/open_model.hpp"

#include <fmt/format.h>

#include <system_error>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/model/tensor_parallel.hpp"
#include "lora_scale.hpp"
#include "other_formats.hpp"
#include "reconcile.hpp"
#include "text_part.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;

std::string configuration_text(const fs::path& path) {
  constexpr std::size_t kLongest = 16 << 20;
  const MappedFile file(path);
  if (file.bytes().size() > kLongest)
    throw FileError(
        fmt::format("{}: {} bytes are too many for a configuration; is it the right file?",
                    path.string(), file.bytes().size()));
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// config.json of a directory that is there.
std::string config_text(const fs::path& dir) {
  std::error_code ignored;
  if (!fs::exists(dir / "config.json", ignored))
    if (const std::string found = found_instead(dir); !found.empty())
      throw FileError(fmt::format("{}: has no config.json; {}", dir.string(), found));
  return configuration_text(dir / "config.json");
}

void check_directory(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::exists(status))
    throw FileError(
        fmt::format("{}: no such directory; give the directory of a model (a hub's name is not "
                    "fetched: download the model first)",
                    path.string()));
  if (!fs::is_directory(status))
    throw FileError(
        fmt::format("{}: is neither a directory nor a file; give the directory that holds "
                    "config.json and model.safetensors, or a GGUF file",
                    path.string()));
}

}  // namespace

bool is_model_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::unique_ptr<Tokenizer> load_model_tokenizer(const fs::path& path) {
  return is_model_file(path) ? load_tokenizer(GgufFile(path)) : load_tokenizer(path);
}

ChatTemplate load_model_chat_template(const fs::path& path, const Tokenizer& tokenizer) {
  if (!is_model_file(path)) return load_chat_template(path);
  const GgufFile file(path);
  const auto source = chat_template(file);
  if (!source)
    throw FileError(fmt::format(
        "{}: has no chat template (tokenizer.chat_template): it is a base model; prompt it "
        "with plain text, not with messages",
        path.string()));
  std::map<std::string, std::string> tokens;
  if (tokenizer.bos() >= 0) tokens["bos_token"] = tokenizer.token(tokenizer.bos());
  if (tokenizer.eos() >= 0) tokens["eos_token"] = tokenizer.token(tokenizer.eos());
  return {*source, path.string(), std::move(tokens)};
}

OpenModel open_model(const fs::path& path) {
  OpenModel model;
  model.path = path;
  if (is_model_file(path)) {
    auto source = std::make_shared<const GgufSource>(path);
    model.config_json = source->config_json();
    model.config = parse_model_config(model.config_json, "", path.string());
    model.tensors = std::move(source);
    reconcile(model);
    return model;
  }
  check_directory(path);
  model.tokenizer_dir = path;
  model.config_json = config_text(path);
  std::error_code ignored;
  if (fs::exists(path / "generation_config.json", ignored))
    model.generation_json = configuration_text(path / "generation_config.json");
  model.config = parse_model_config(model.config_json, model.generation_json, path.string());
  if (!model.config.text_part_of.empty()) {  // from here on it is that part
    nlohmann::json json = parse_strict(model.config_json, path.string(), {.python_numbers = true});
    take_text_part(json, path.string());
    model.config_json = json.dump(1);
  }
  model.tensors = std::make_shared<const Weights>(path);
  reconcile(model);
  return model;
}

OpenModel open_model(const fs::path& path, const ModelOptions& options) {
  OpenModel model = open_model(path);
  if (options.log)
    for (const std::string& note : model.notes) options.log(LogLevel::warning, note);
  for (const LoraChoice& choice : options.lora) {
    require_scale(choice.dir, choice.scale);
    model.adapters.push_back({LoraAdapter::load(choice.dir, model), choice.scale});
  }
  if (options.merge_lora && !model.adapters.empty()) {
    model.stored = model.tensors;
    merge_lora(model, model.adapters);
    model.merged = true;
  }
  if (options.quantize) {
    if (!model.stored) model.stored = model.tensors;
    quantize_weights(model, *options.quantize);
    model.quantized = options.quantize;
  }
  take_share(model, options.group);
  return model;
}

MemoryIdentity identity_of(const fs::path& path, const ModelOptions& options) {
  ModelOptions unchanged = options;
  unchanged.merge_lora = false;
  unchanged.quantize.reset();
  unchanged.group = nullptr;  // the model is the same on every rank
  unchanged.log = {};
  OpenModel model = open_model(path, unchanged);
  model.quantized = options.quantize;
  return identity_of(model);
}

}  // namespace episodic
