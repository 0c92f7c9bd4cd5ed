// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/session/stop.hpp"
#include "text/added_vocabulary.hpp"

namespace episodic {

namespace fs = std::filesystem;

std::string model_dir_problem(const fs::path& dir) {
  std::error_code error;
  const std::string name = dir.string();
  if (name.empty()) return "no model is named; name a model directory in Hugging Face layout";
  if (fs::exists(dir / "config.json", error)) return {};
  if (is_model_file(dir))
    return dir.extension() == ".gguf"
               ? std::string()
               : fmt::format(
                     "{}: is a file; name the directory that holds config.json, or a .gguf "
                     "file",
                     name);
  if (!fs::exists(dir, error)) {
    const bool like_hub = std::count(name.begin(), name.end(), '/') == 1 && name.front() != '/' &&
                          name.front() != '.' && name.back() != '/';
    return like_hub ? fmt::format(
                          "{0}: there is no such directory. If it is the name of a model on the "
                          "Hugging Face hub, download it first: hf download {0} --local-dir {1}",
                          name, dir.filename().string())
                    : fmt::format("{}: there is no such directory; check the path", name);
  }
  return fmt::format(
      "{}: holds no config.json; name a model directory in Hugging Face layout (config.json, "
      "*.safetensors, tokenizer.json)",
      name);
}

void require_model_dir(const fs::path& dir) {
  if (const std::string problem = model_dir_problem(dir); !problem.empty())
    throw FileError(problem);
}

Model::Model(const fs::path& dir, const ModelOptions& options,
             std::unique_ptr<const ModelExecutor> executor)
    : dir_(dir), options_(options), executor_(std::move(executor)) {
  require_model_dir(dir_);
  if (!executor_) throw ConfigError("Model: the executor is null");
  if (is_model_file(dir_) || !text::tokenizer_file(dir_).empty()) {
    try {
      tokenizer_ = load_model_tokenizer(dir_);
    } catch (const Error& e) {  // whoever has token ids needs none
      tokenizer_problem_ = e.what();
    }
  } else {
    tokenizer_problem_ = fmt::format(
        "{}/tokenizer.json: is not there; copy the model's tokenizer beside its weights, or hand "
        "over token ids",
        dir_.string());
  }
  end_tokens_ = episodic::end_tokens(config(), tokenizer_.get());
}

Model::~Model() = default;

const Tokenizer& Model::tokenizer() const {
  if (!tokenizer_) throw FileError(tokenizer_problem_);
  return *tokenizer_;
}

const ChatTemplate& Model::chat_template() const {
  std::call_once(template_read_,
                 [&] { template_.emplace(load_model_chat_template(dir_, tokenizer())); });
  return *template_;
}

const MemoryIdentity& Model::identity() const {
  std::call_once(identity_read_, [this] { identity_ = identity_of(dir_, options_); });
  return identity_;
}

Generation Model::generation(std::vector<std::int64_t> prompt, GenerateOptions options) const {
  return {
      std::move(prompt), std::move(options), {config().vocab_size, end_tokens_}, tokenizer_.get()};
}

}  // namespace episodic
