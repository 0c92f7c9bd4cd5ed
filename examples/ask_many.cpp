// SPDX-License-Identifier: Apache-2.0
// Read a document once, then answer many questions about it at the same time: each on a thread of
// its own, with a memory of its own over the one that read, which nobody changes any more.
// Usage: example_ask_many MODEL_DIR FILE [QUESTION...]   a question is a thing: "pass key of Tom"
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "episodic/model/patch.hpp"
#include "episodic/session/session.hpp"

namespace {

/// What one reader needs of its own: a decoder on the shared weights, a memory over the base.
std::string answer(const episodic::Decoder& weights, const episodic::Tokenizer& tokenizer,
                   const std::shared_ptr<const episodic::MemoryBase>& base,
                   const std::string& thing) {
  episodic::Decoder model = weights.share_weights();
  const auto memory = std::make_shared<episodic::EpisodicMemory>(base);  // copies no event
  episodic::patch(model, memory);
  episodic::Session session(model, &tokenizer);
  episodic::GenerateOptions options;
  options.max_new = 12;
  options.stop = {".", "\n"};
  return session
      .generate(tokenizer.encode("\n\nWhat is the " + thing + "?\n\nThe " + thing + " is",
                                 /*add_special=*/false),
                options)
      .text;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3 || !std::filesystem::exists(std::filesystem::path(argv[1]) / "config.json")) {
    std::puts("EPISODIC_SKIP: no model. Usage: example_ask_many MODEL_DIR FILE [QUESTION...]");
    return argc >= 3 ? 1 : 2;
  }
  episodic::Decoder model = episodic::Decoder::load(argv[1]);
  const auto tokenizer = episodic::load_tokenizer(argv[1]);
  const auto memory = episodic::patch(model, std::filesystem::path(argv[1]));
  std::ifstream file(argv[2]);
  if (!file) throw std::runtime_error(std::string(argv[2]) + ": cannot be read");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  episodic::Session(model, tokenizer.get()).prefill(tokenizer->encode(text));

  const std::shared_ptr<const episodic::MemoryBase> base = memory->share();
  std::printf("%lld tokens read, %lld events\n", static_cast<long long>(base->tokens()),
              static_cast<long long>(base->events().size()));

  const std::vector<std::string> things(argv + 3, argv + argc);
  std::vector<std::string> answers(things.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < things.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        answers[i] = answer(model, *tokenizer, base, things[i]);
      } catch (const std::exception& e) {
        answers[i] = std::string(" (failed: ") + e.what() + ")";
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < things.size(); ++i)
    std::printf("%s:%s\n", things[i].c_str(), answers[i].c_str());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "ask_many: %s\n", e.what());
  return 1;
}
