// SPDX-License-Identifier: Apache-2.0
// Serving a model whose layers carry a state from token to token: such a state has seen all tokens
// before it, so a request goes on from one only where it continues every one of them.
#include "support/test.hpp"

#include "../model/expected_logits.hpp"
#include "serving.hpp"

using namespace episodic;
using namespace episodic::server;
using namespace serving;

namespace serve_hybrid_test {

using Ids = std::vector<std::int64_t>;

/// A checkpoint of tests/model/families, whose 72 tokens are characters.
void make_hybrid(const fs::path& dir, const char* family) {
  fs::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"})
    fs::create_symlink(family_checkpoint(family) / file, dir / file);
  json vocabulary;
  for (int i = 0; i < 72; ++i) vocabulary[std::string(1, static_cast<char>('!' + i))] = i;
  const json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", json::array()},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
  program::put(dir / "tokenizer.json", tokenizer.dump());
}

std::unique_ptr<Engine> engine_with(const fs::path& dir, bool memory) {
  auto engine = load_engine(dir);
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = 32;
  config.n_mem = 32;
  config.chunk = 16;
  config.min_block = 4;
  config.max_block = 16;
  if (memory) engine->attach(config);
  return engine;
}

Ids tokens(std::size_t first, std::size_t n, std::int64_t seed) {
  Ids ids;
  for (std::size_t i = first; i < first + n; ++i)
    ids.push_back(3 + (static_cast<std::int64_t>(i) * (11 + seed) + seed) % 68);
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("serve: a recurrent state goes on only where a request continues all that it has seen") {
  const TempDir dir;
  for (const char* family : {"lfm2", "qwen3_5", "granite4"})
    for (const bool memory : {true, false}) {
      INFO(family << (memory ? " with a memory" : " with full attention"));
      const fs::path model = dir / (std::string(family) + (memory ? "-memory" : ""));
      make_hybrid(model, family);
      const auto engine = engine_with(model, memory);
      Service service(*engine);
      const auto answer = [](Service& of, const Ids& prompt) {
        const json body = {{"prompt", prompt}, {"temperature", 0}};
        return of.answer(parse_request(RequestKind::completion, body.dump(), few_tokens()));
      };
      const auto alone = [&](const Ids& prompt) {
        const auto fresh = engine_with(model, memory);
        Service anew(*fresh);
        return answer(anew, prompt).result.ids;
      };
      const Ids first = tokens(0, 120, 0);
      const Served begun = answer(service, first);
      REQUIRE(begun.reused_tokens == 0);
      REQUIRE(begun.result.ids == alone(first));
      REQUIRE(!begun.result.ids.empty());
      // the same beginning, and then another text: the state is behind where they part
      const Ids parted = joined(tokens(0, 80, 0), tokens(0, 40, 5));
      const Served other = answer(service, parted);
      REQUIRE(other.reused_tokens == 0);
      REQUIRE(other.result.ids == alone(parted));
      // a beginning alone
      const Ids beginning = tokens(0, 79, 0);
      const Served shorter = answer(service, beginning);
      REQUIRE(shorter.reused_tokens == 0);
      REQUIRE(shorter.result.ids == alone(beginning));
      // one token less than what has been read, in which the state is behind the prompt's end
      const Ids less(beginning.begin(), beginning.end() - 1);
      REQUIRE(answer(service, less).reused_tokens == 0);
      REQUIRE(answer(service, less).result.ids == alone(less));
      // what continues the answer too is read on
      const Served again = answer(service, first);
      const Ids longer = joined(joined(first, again.result.ids), tokens(200, 30, 1));
      const Served continued = answer(service, longer);
      REQUIRE(continued.reused_tokens >= static_cast<std::int64_t>(first.size()) - 1);
      REQUIRE(continued.result.ids == alone(longer));
      // and what continues its prompt, but not its answer, only from a state that was kept there
      const Ids changed = joined(first, tokens(300, 9, 2));
      const Served back = answer(service, changed);
      REQUIRE((back.reused_tokens == 0 ||
               back.reused_tokens == static_cast<std::int64_t>(first.size()) - 1));
      REQUIRE(back.result.ids == alone(changed));
    }
}

}  // namespace serve_hybrid_test
