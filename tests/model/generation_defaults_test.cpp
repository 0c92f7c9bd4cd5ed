// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/generation_defaults.hpp"

#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "support/gguf_writer.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace generation_defaults_test {

GenerationDefaults parse(const std::string& json) {
  return parse_generation_defaults(json, "m/generation_config.json");
}

TEST_CASE("a model's way to draw tokens is that of transformers") {
  const GenerationDefaults none;
  // Qwen2.5-0.5B-Instruct, Llama-3.2-1B-Instruct, SmolLM2-135M-Instruct
  CHECK(parse(R"({"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true,
                  "eos_token_id": [151645, 151643], "repetition_penalty": 1.1, "temperature": 0.7,
                  "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0"})") ==
        GenerationDefaults{0.7, 20, 0.8, 0, 1.1, "generation_config.json"});
  CHECK(parse(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9})") ==
        GenerationDefaults{0.6, 50, 0.9, 0, 1, "generation_config.json"});
  CHECK(parse(R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2})") == none);
  // greedy unless it says otherwise, whatever stands beside it; the penalty counts all the same
  CHECK(parse(R"({"temperature": 0.6, "top_p": 0.9, "top_k": 5})") == none);
  CHECK(parse(R"({"do_sample": false, "temperature": 0.6, "repetition_penalty": 1.05})") ==
        GenerationDefaults{0, 0, 1, 0, 1.05, "generation_config.json"});
  CHECK(parse(R"({"do_sample": true, "top_k": -1, "min_p": 0.05, "temperature": null})") ==
        GenerationDefaults{1, 0, 1, 0.05, 1, "generation_config.json"});
  CHECK(parse("{}") == none);
}

TEST_CASE("what cannot be drawn with is refused by file and key") {
  struct Bad {
    const char *json, *says;
  };
  for (const Bad& bad : std::vector<Bad>{
           {R"({"do_sample": 1})", "do_sample is 1, expected true or false"},
           {R"({"temperature": -0.5})", "temperature is -0.5, expected a number in [0, 100]"},
           {R"({"do_sample": true, "temperature": "hot"})", "temperature is \"hot\""},
           {R"({"top_p": 1.5})", "top_p is 1.5, expected a number in [0, 1]"},
           {R"({"top_k": 2.5})", "top_k is 2.5, expected an integer"},
           {R"({"top_k": 99999999999})", "top_k is 99999999999"},
           {R"({"min_p": [0.1]})", "min_p is [0.1]"},
           {R"({"repetition_penalty": 0})", "repetition_penalty is 0"},
           {R"({"top_k": 1, "top_k": 2})", "the key 'top_k' stands twice"},
           {"[]", "expected a JSON object"},
           {R"({"a": [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]})", "nested more than"},
           {"{\"temperature\": NaN}", "not valid JSON"}}) {
    const std::string said = refusal<FileError>([&] { parse(bad.json); });
    INFO(bad.json << " -> " << said);
    CHECK(said.starts_with("m/generation_config.json: "));
    CHECK(mentions(said, bad.says));
  }
}

TEST_CASE("a directory without the file says nothing, a GGUF file may say it itself") {
  using W = GgufWriter;
  const TempDir dir;
  CHECK(generation_defaults(dir.path()) == GenerationDefaults());
  dir.write("generation_config.json", R"({"do_sample": true})");
  CHECK(generation_defaults(dir.path()).temperature == 1);

  const auto of = [&](const std::function<void(W&)>& put) {
    W w;
    w.put("general.architecture", "llama");
    put(w);
    dir.write("m.gguf", w.bytes());
    return generation_defaults(dir / "m.gguf");
  };
  CHECK(of([](W&) {}) == GenerationDefaults());
  CHECK(of([](W& w) {
          w.put("general.sampling.temp", 0.5f).put("general.sampling.top_k", W::i32, W::raw(20));
          w.put("general.sampling.top_p", 0.75f).put("general.sampling.min_p", 0.25f);
          w.put("general.sampling.penalty_repeat", 1.5f).put("general.sampling.sequence", "kpt");
        }) == GenerationDefaults{0.5, 20, 0.75, 0.25, 1.5, "m.gguf"});
  CHECK(
      mentions(refusal<FileError>([&] { of([](W& w) { w.put("general.sampling.temp", -1.0f); }); }),
               "m.gguf: general.sampling.temp is -1"));
  CHECK(
      mentions(refusal<FileError>([&] { of([](W& w) { w.put("general.sampling.top_p", "x"); }); }),
               "general.sampling.top_p"));
}

}  // namespace generation_defaults_test
