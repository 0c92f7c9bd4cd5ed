// SPDX-License-Identifier: Apache-2.0
// How fast a tokenizer encodes a text, on one thread. benchmarks/tokenizers_beside.py runs it
// beside Hugging Face's.

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "episodic/text/tokenizer.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

struct Flags {
  std::filesystem::path model;
  tools::TextFlags text;
  std::int64_t rounds = 5;
  tools::JsonFlag json;
};

void run(const Flags& flags) {
  const std::string text = flags.text.read();
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(flags.model);
  std::vector<double> seconds;
  std::size_t tokens = 0;
  for (std::int64_t round = 0; round <= flags.rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    tokens = tokenizer->encode(text).size();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (round > 0) seconds.push_back(took.count());  // the first warms up
  }
  flags.json.say(fmt::format("{} tokens of {} bytes, {:.2f} MB/s\n", tokens, text.size(),
                             static_cast<double>(text.size()) * 1e-6 / median(seconds)));
  flags.json.write({{"program", "bench_tokenizer"},
                    {"environment", environment()},
                    {"bytes", text.size()},
                    {"tokens", tokens},
                    {"seconds", seconds}});
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::CommandLine app{"How fast a tokenizer encodes a text, on one thread",
                                   "bench_tokenizer"};
  episodic::bench::Flags flags;
  app.option("--model", flags.model, "Directory that holds the tokenizer")
      .required()
      .type_name("DIR");
  flags.text.add_to(app, app, "--text", "Text to encode").required();
  episodic::tools::add_count(app, "--rounds", flags.rounds, "Behind one that does not count", 1);
  flags.json.add_to(app);
  app.footer("Example:\n  bench_tokenizer --model models/recall-2m6 --text book.txt");
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(flags); });
}
