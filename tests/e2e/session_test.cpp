// SPDX-License-Identifier: Apache-2.0
// Session on the shipped model: feeding, stopping, streaming, cancelling, and what it refuses.
#include "support/model.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/model/patch.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/session/session.hpp"

using namespace episodic;

namespace session_test {

namespace fs = std::filesystem;

MemoryConfig small_memory() {
  MemoryConfig c;
  c.n_init = 8;
  c.n_local = 64;
  c.n_mem = 64;
  c.chunk = 32;
  return c;
}

/// A copy of the shipped model with the first number of one float32 or bfloat16 tensor replaced.
fs::path poisoned_model(std::string_view tensor, float value) {
  const fs::path dir = fs::temp_directory_path() / ("episodic-nan-" + std::to_string(::getpid()));
  fs::create_directories(dir);
  for (const char* name : {"config.json", "tokenizer.json"})
    fs::copy_file(shipped_model_dir() / name, dir / name, fs::copy_options::overwrite_existing);
  const SafetensorsFile file(shipped_model_dir() / "model.safetensors");
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  for (const StoredTensor& t : file.tensors()) {
    data.emplace_back(t.data, t.data + t.bytes);
    if (t.name == tensor) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const auto upper = static_cast<std::uint16_t>(bits >> 16);  // its bfloat16, cut off
      if (t.type == TensorType::bf16)
        std::memcpy(data.back().data(), &upper, sizeof upper);
      else
        std::memcpy(data.back().data(), &value, sizeof value);
    }
    tensors.push_back({t.name, t.type, t.shape, nullptr});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = data[i].data();
  write_safetensors(dir / "model.safetensors", tensors);
  return dir;
}

TEST_CASE("generation is the same in one piece, streamed, and after a prefill", "[e2e][session]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto tokenizer = load_tokenizer(shipped_model_dir());
  Decoder model = Decoder::load(shipped_model_dir());
  patch(model, small_memory());
  const auto prompt = tokenizer->encode(
      "The prince looked at the old man and said nothing. He thought of the war and");
  Session session(model, tokenizer.get());
  GenerateOptions options;
  options.max_new = 30;
  const GenerateResult once = session.generate(prompt, options);
  CHECK(once.ids.size() == 30);
  CHECK(once.finish == FinishReason::length);
  CHECK(once.text == tokenizer->decode(once.ids));
  CHECK(session.counters().prefill_tokens == static_cast<std::int64_t>(prompt.size()));
  CHECK(session.counters().decode_tokens == 29);

  model.reset();
  std::string streamed;
  std::vector<std::int64_t> ids;
  options.on_token = [&](std::int64_t id, std::string_view text) {
    streamed += text;
    if (id >= 0) ids.push_back(id);
    return true;
  };
  session.generate(prompt, options);
  CHECK(streamed == once.text);
  CHECK(ids == once.ids);

  model.reset();
  options.on_token = {};
  CHECK(session.prefill(std::span(prompt).first(prompt.size() - 1)) ==
        static_cast<std::int64_t>(prompt.size()) - 1);
  CHECK(session.generate(std::span(prompt).last(1), options).ids ==
        once.ids);  // a prompt of one token
}

TEST_CASE("sampling repeats itself with its seed and differs with another", "[e2e][session]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto tokenizer = load_tokenizer(shipped_model_dir());
  Decoder model = Decoder::load(shipped_model_dir());
  patch(model, small_memory());
  const auto prompt = tokenizer->encode("In the evening");
  const auto draw = [&](std::uint64_t seed) {
    model.reset();
    GenerateOptions options;
    options.max_new = 24;
    options.ignore_eos = true;
    options.sampling = {
        .temperature = 1.0, .top_k = 50, .top_p = 0.95, .repetition_penalty = 1.1, .seed = seed};
    return Session(model, tokenizer.get()).generate(prompt, options).ids;
  };
  CHECK(draw(1) == draw(1));
  CHECK(draw(1) != draw(2));
}

TEST_CASE("stop tokens, stop strings and cancelling end a generation where they should",
          "[e2e][session]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto tokenizer = load_tokenizer(shipped_model_dir());
  Decoder model = Decoder::load(shipped_model_dir());
  patch(model, small_memory());
  const auto prompt = tokenizer->encode("The old prince said that he would");
  const auto run = [&](GenerateOptions options) {
    model.reset();
    options.max_new = 40;
    options.ignore_eos = true;
    return Session(model, tokenizer.get()).generate(prompt, options);
  };
  const GenerateResult all = run({});
  REQUIRE(all.text.size() > 20);

  GenerateOptions options;
  options.stop_tokens = {all.ids[10]};
  const auto first = std::find(all.ids.begin(), all.ids.end(), all.ids[10]) - all.ids.begin();
  GenerateResult r = run(options);
  CHECK(r.finish == FinishReason::stop_token);
  CHECK(static_cast<std::ptrdiff_t>(r.ids.size()) == first);

  options = {};
  options.stop = {all.text.substr(12, 4)};
  r = run(options);
  CHECK(r.finish == FinishReason::stop_string);
  CHECK(r.text == all.text.substr(0, all.text.find(options.stop[0])));

  options = {};
  int seen = 0;
  options.on_token = [&](std::int64_t, std::string_view) { return ++seen < 5; };
  r = run(options);
  CHECK(r.finish == FinishReason::cancelled);
  CHECK(r.ids.size() == 5);

  model.reset();
  Session session(model, tokenizer.get());
  const std::vector<std::int64_t> text(200, 60);
  CHECK(session.prefill(text, [](std::int64_t done, std::int64_t) { return done < 64; }) == 64);
  CHECK(model.state()->tokens() == 64);
}

TEST_CASE("what a session cannot do is refused by name and leaves the state alone",
          "[e2e][session][errors]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  Decoder model = Decoder::load(shipped_model_dir());
  const auto memory = patch(model, small_memory());
  Session session(model);
  const std::vector<std::int64_t> good(40, 70), bad{5, 6, 99999, 7}, negative{-1};
  session.prefill(good);
  CHECK(mentions(refusal([&] { session.generate({}); }), "empty"));
  CHECK(mentions(refusal([&] { session.prefill(bad); }), "99999"));
  CHECK(mentions(refusal([&] { session.generate(negative); }), "-1"));
  CHECK(mentions(refusal([&] { model.forward(bad); }), "99999"));
  GenerateOptions options;
  options.stop = {"x"};
  CHECK(mentions(refusal([&] { session.generate(good, options); }), "tokenizer"));
  options = {};
  options.max_new = -1;
  CHECK(mentions(refusal([&] { session.generate(good, options); }), "max_new"));
  options = {};
  options.sampling.temperature = -0.5;
  CHECK(mentions(refusal([&] { session.generate(good, options); }), "temperature"));
  CHECK(memory->tokens() == 40);
}

TEST_CASE("numbers that are not finite are errors that name them, with the memory and without",
          "[e2e][session][errors]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::int64_t> ids{1, 50, 60};
  // Small weights are looked at before anything is computed.
  fs::path dir = poisoned_model("model.norm.weight", nan);
  CHECK(mentions(refusal([&] { (void)Decoder::load(dir); }), "model.norm.weight"));
  // The others by the step that meets them; finite weights that overflow have none to blame.
  const std::string matrix = "model.layers.0.mlp.down_proj.weight";
  for (const bool overflow : {false, true}) {
    dir = overflow ? poisoned_model("model.norm.weight", std::numeric_limits<float>::max())
                   : poisoned_model(matrix, nan);
    INFO((overflow ? "overflow" : "a weight"));
    const std::string named = overflow ? "infinite" : matrix;
    Decoder model = Decoder::load(dir);
    {
      Session session(model);
      const std::string message = refusal([&] { session.generate(ids); });
      INFO(message);
      CHECK(mentions(message, named));
    }
    const auto memory = patch(model, small_memory());
    const std::string message = refusal([&] { model.forward(ids); });
    INFO(message);
    CHECK(mentions(message, "NaN"));
    CHECK(memory->tokens() == 0);
  }
  fs::remove_all(dir);
}

}  // namespace session_test
