// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/engine.hpp"

#include <utility>

namespace episodic {
namespace {

std::vector<std::int64_t> ids_of(const Tokenizer& tokenizer, std::string_view text, bool opens) {
  return opens ? tokenizer.encode(text) : encode_continuation(tokenizer, text);
}

}  // namespace

Engine::Engine(std::shared_ptr<const Model> model)
    : Sequence(std::move(model)), session_(*this, has_tokenizer() ? &tokenizer() : nullptr) {}

std::int64_t Engine::read(std::string_view text, const ProgressCallback& progress) {
  return read(ids_of(tokenizer(), text, tokens() == 0), progress);
}

std::int64_t Engine::read(std::span<const std::int64_t> ids, const ProgressCallback& progress) {
  return session_.prefill(ids, progress);
}

GenerateResult Engine::generate(std::string_view prompt, const GenerateOptions& options) {
  return generate(ids_of(tokenizer(), prompt, tokens() == 0), options);
}

GenerateResult Engine::generate(std::span<const std::int64_t> prompt,
                                const GenerateOptions& options) {
  return session_.generate(prompt, options);
}

GenerateResult Engine::ask(std::string_view question, const GenerateOptions& options) {
  return ask(ids_of(tokenizer(), question, tokens() == 0), options);
}

GenerateResult Engine::ask(std::span<const std::int64_t> question, const GenerateOptions& options) {
  const std::shared_ptr<const Snapshot> before = snapshot();
  GenerateResult result;
  try {
    result = generate(question, options);
  } catch (...) {
    restore(*before);
    throw;
  }
  restore(*before);
  return result;
}

}  // namespace episodic
