// SPDX-License-Identifier: Apache-2.0
// Read a document of any length piece by piece, then ask about it more than once: each question
// starts from the memory as the document left it.
// Usage: example_stream_a_document MODEL_DIR FILE|- [QUESTION...]   a question is a thing: "pass
// key of Tom"
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "episodic/model/patch.hpp"
#include "episodic/session/session.hpp"

int main(int argc, char** argv) try {
  if (argc < 3 || !std::filesystem::exists(std::filesystem::path(argv[1]) / "config.json")) {
    std::puts(
        "EPISODIC_SKIP: no model. Usage: example_stream_a_document MODEL_DIR FILE|- [QUESTION...]");
    return argc >= 3 ? 1 : 2;
  }
  episodic::Decoder model = episodic::Decoder::load(argv[1]);
  const auto tokenizer = episodic::load_tokenizer(argv[1]);
  episodic::MemoryConfig config;
  config.n_init = 16;
  config.n_local = 256;
  config.n_mem = 256;
  config.chunk = 256;
  const auto memory = episodic::patch(model, config);
  episodic::Session session(model, tokenizer.get());

  const bool from_stdin = std::string(argv[2]) == "-";
  std::ifstream file;
  if (!from_stdin) file.open(argv[2]);
  std::istream& in = from_stdin ? std::cin : file;
  if (!in) throw std::runtime_error(std::string(argv[2]) + ": cannot be read");

  // Only the tokens that do not fill a chunk yet are held here; all else is in the memory.
  std::vector<std::int64_t> waiting = tokenizer->encode("");  // what opens a text, if anything does
  const auto chunk = static_cast<std::size_t>(config.chunk);
  for (std::string line; std::getline(in, line);) {
    const auto ids = tokenizer->encode(line + "\n", /*add_special=*/false);
    waiting.insert(waiting.end(), ids.begin(), ids.end());
    while (waiting.size() >= chunk) {
      session.prefill(std::span(waiting).first(chunk));
      waiting.erase(waiting.begin(), waiting.begin() + config.chunk);
    }
  }
  if (!waiting.empty()) session.prefill(waiting);
  std::printf("%lld tokens read, %lld events\n", static_cast<long long>(memory->tokens()),
              static_cast<long long>(memory->events().size()));

  const auto read = memory->snapshot();
  for (int i = 3; i < argc; ++i) {
    memory->restore(*read);  // the answer before is forgotten
    const std::string thing = argv[i];
    const auto question = tokenizer->encode(
        "\n\nWhat is the " + thing + "?\n\nThe " + thing + " is", /*add_special=*/false);
    episodic::GenerateOptions options;
    options.max_new = 12;
    options.stop = {".", "\n"};
    std::printf("%s:%s\n", argv[i], session.generate(question, options).text.c_str());
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "stream_a_document: %s\n", e.what());
  return 1;
}
