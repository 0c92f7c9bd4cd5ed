// SPDX-License-Identifier: Apache-2.0
// Load a model, patch it, let it answer from a text twenty times longer than its window.
// Usage: example_quickstart MODEL_DIR
#include <cstdio>
#include <exception>
#include <filesystem>

#include "episodic/model/patch.hpp"
#include "episodic/session/session.hpp"

int main(int argc, char** argv) try {
  if (argc != 2 || !std::filesystem::exists(std::filesystem::path(argv[1]) / "config.json")) {
    std::puts("EPISODIC_SKIP: no model. Usage: example_quickstart MODEL_DIR");
    return argc == 2 ? 1 : 2;
  }
  episodic::Decoder model = episodic::Decoder::load(argv[1]);
  const auto tokenizer = episodic::load_tokenizer(argv[1]);

  // What the model was trained for; a large model takes the defaults, which are the paper's.
  episodic::MemoryConfig config;
  config.n_init = 16;
  config.n_local = 256;
  config.n_mem = 256;
  config.chunk = 256;
  const auto memory = episodic::patch(model, config);

  std::string text = "The pass key is 60453. Remember it. 60453 is the pass key.\n";
  for (int i = 0; i < 160; ++i)
    text +=
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
        "again.\n";

  episodic::Session session(model, tokenizer.get());
  session.prefill(tokenizer->encode(text));

  // The question is a step of its own, so that it alone decides what is recalled.
  const auto question =
      tokenizer->encode("\n\nWhat is the pass key?\n\nThe pass key is", /*add_special=*/false);
  episodic::GenerateOptions options;
  options.max_new = 12;
  options.on_token = [](std::int64_t, std::string_view piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    return true;
  };
  std::printf("%lld tokens read, window %lld, %lld events. The pass key is",
              static_cast<long long>(memory->tokens()), static_cast<long long>(config.n_local),
              static_cast<long long>(memory->events().size()));
  session.generate(question, options);
  std::puts("");

  episodic::unpatch(model);  // the model's own attention is back
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "quickstart: %s\n", e.what());
  return 1;
}
