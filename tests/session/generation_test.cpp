// SPDX-License-Identifier: Apache-2.0
// An answer as a value: what it asks to be fed, what it makes of the logits, and how it ends.
#include "episodic/session/generation.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

constexpr std::int64_t kVocab = 64;

/// A letter a token: 0 is 'a'.
class Letters final : public Tokenizer {
 public:
  std::vector<std::int64_t> encode(std::string_view text, bool) const override {
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(c - 'a');
    return ids;
  }
  std::string decode(const std::vector<std::int64_t>& ids, bool) const override {
    std::string text;
    for (const std::int64_t id : ids) text += static_cast<char>('a' + id);
    return text;
  }
  std::string token(std::int64_t id) const override { return decode({id}, false); }
  std::int64_t id_of(std::string_view token) const override { return token[0] - 'a'; }
  std::int64_t vocab_size() const override { return kVocab; }
  std::int64_t bos() const override { return -1; }
  std::int64_t eos() const override { return -1; }
};

/// A model whose next token is the last one plus the number of tokens read so far, within a to z.
struct Counting {
  std::vector<std::int64_t> fed;
  std::vector<std::size_t> steps;
  std::vector<StepKind> kinds;

  std::vector<float> step(const Generation::Input& input) {
    fed.insert(fed.end(), input.ids.begin(), input.ids.end());
    steps.push_back(input.ids.size());
    kinds.push_back(input.kind);
    std::vector<float> logits(kVocab);
    for (std::size_t i = 0; i < logits.size(); ++i)  // the runners-up follow from the text, too
      logits[i] = static_cast<float>((i * 31 + fed.size() * 17) % 64) / 64.0f;
    logits[static_cast<std::size_t>((fed.back() + static_cast<std::int64_t>(fed.size())) % 26)] = 9;
    return logits;
  }
};

void run(Generation& generation, Counting& model, std::int64_t chunk = 4) {
  while (!generation.done()) {
    const Generation::Input input = generation.next_input(chunk);
    REQUIRE(!input.ids.empty());
    const std::vector<float> logits = model.step(input);
    generation.accept(input.wants_logits ? std::span<const float>(logits)
                                         : std::span<const float>());
  }
  CHECK(generation.next_input(chunk).ids.empty());
}

std::vector<std::int64_t> prompt_of(std::int64_t n) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(i * 5 % 26);
  return ids;
}

/// What greedy choice answers, by the definition of the model alone.
std::vector<std::int64_t> expected(std::vector<std::int64_t> prompt, std::int64_t n) {
  std::vector<std::int64_t> answer;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t next = (prompt.back() + static_cast<std::int64_t>(prompt.size())) % 26;
    prompt.push_back(next);
    answer.push_back(next);
  }
  return answer;
}

const Letters kLetters;

GenerateOptions options_of(std::int64_t max_new) {
  GenerateOptions options;
  options.max_new = max_new;
  return options;
}

}  // namespace

TEST_CASE("generation: the prompt in chunks, its last token by itself, then a token a step") {
  for (const std::int64_t length : {1, 2, 5, 9}) {
    for (const std::int64_t max_new : {0, 1, 6}) {
      INFO(length << " tokens, max_new " << max_new);
      const std::vector<std::int64_t> prompt = prompt_of(length);
      Generation generation(prompt, options_of(max_new), {kVocab, {}}, &kLetters);
      Counting model;
      run(generation, model);
      const GenerateResult& result = generation.result();
      CHECK(result.ids == expected(prompt, max_new));
      CHECK(result.text == kLetters.decode(result.ids, false));
      CHECK(result.finish == FinishReason::length);
      CHECK(result.fed == std::max<std::int64_t>(0, max_new - 1));
      CHECK(static_cast<std::int64_t>(model.fed.size()) == length + result.fed);
      std::size_t read = 0, i = 0;  // whole chunks, what is left, then ones
      for (std::int64_t left = length - 1; left > 0; left -= 4, ++i)
        CHECK(model.steps[i] == static_cast<std::size_t>(std::min<std::int64_t>(4, left)));
      for (; i < model.steps.size(); ++i, ++read) {
        CHECK(model.steps[i] == 1);
        CHECK((model.kinds[i] == StepKind::prompt) == (read == 0));
      }
    }
  }
}

TEST_CASE("generation: logits are wanted only where a token is drawn") {
  Generation generation(prompt_of(6), options_of(2), {kVocab, {}});
  Counting model;
  std::vector<bool> wanted;
  while (!generation.done()) {
    const Generation::Input input = generation.next_input(3);
    wanted.push_back(input.wants_logits);
    const auto logits = model.step(input);
    generation.accept(input.wants_logits ? std::span<const float>(logits)
                                         : std::span<const float>());
  }
  CHECK(wanted == std::vector<bool>{false, false, true, true});
  CHECK(generation.result().text.empty());  // no tokenizer
}

TEST_CASE("generation: ends by a stop token, a stop string, a callback, each with what was fed") {
  const std::vector<std::int64_t> prompt = prompt_of(3), all = expected(prompt, 8);
  {
    Generation generation(prompt, options_of(8), {kVocab, {all[4]}}, &kLetters);
    Counting model;
    run(generation, model);
    CHECK(generation.result().finish == FinishReason::stop_token);
    CHECK(generation.result().ids == std::vector<std::int64_t>(all.begin(), all.begin() + 4));
    CHECK(generation.result().fed == 4);  // the stop token followed all of them
    CHECK(generation.result().stop.empty());
  }
  {
    GenerateOptions options = options_of(8);
    options.ignore_eos = true;
    Generation generation(prompt, options, {kVocab, {all[4]}}, &kLetters);
    Counting model;
    run(generation, model);
    CHECK(generation.result().ids == all);
  }
  {
    GenerateOptions options = options_of(8);
    options.stop = {"no such text", kLetters.decode({all[2], all[3]}, false)};
    Generation generation(prompt, options, {kVocab, {}}, &kLetters);
    Counting model;
    run(generation, model);
    CHECK(generation.result().finish == FinishReason::stop_string);
    CHECK(generation.result().stop == options.stop[1]);
    CHECK(generation.result().text == kLetters.decode({all[0], all[1]}, false));
    CHECK(generation.result().ids.size() == 4);
    CHECK(generation.result().fed == 3);
  }
  for (const bool feed_last : {false, true}) {
    GenerateOptions options = options_of(8);
    options.feed_last = feed_last;
    std::int64_t calls = 0;
    options.on_token = [&](std::int64_t, std::string_view) { return ++calls < 3; };
    Generation generation(prompt, options, {kVocab, {}}, &kLetters);
    Counting model;
    run(generation, model);
    CHECK(generation.result().finish == FinishReason::cancelled);
    CHECK(generation.result().ids.size() == 3);
    CHECK(generation.result().fed == (feed_last ? 3 : 2));
    CHECK(model.fed.size() == prompt.size() + (feed_last ? 3 : 2));
  }
}

TEST_CASE("generation: ends behind a text that its caller knows, whole") {
  const std::vector<std::int64_t> prompt = prompt_of(3), all = expected(prompt, 8);
  for (const bool feed_last : {false, true}) {
    GenerateOptions options = options_of(8);
    options.feed_last = feed_last;
    std::string asked, told;
    options.on_token = [&](std::int64_t, std::string_view text) {
      told += text;
      return true;
    };
    options.ends = [&](std::string_view text) {
      asked += text;
      return asked.size() == 3;
    };
    Generation generation(prompt, options, {kVocab, {}}, &kLetters);
    Counting model;
    run(generation, model);
    CHECK(generation.result().finish == FinishReason::stop_token);
    CHECK(generation.result().ids == std::vector<std::int64_t>(all.begin(), all.begin() + 3));
    CHECK(generation.result().text == asked);
    CHECK(told == asked);
    CHECK(generation.result().fed == (feed_last ? 3 : 2));
  }
  // a stop string that is complete at the same token is what ended it
  GenerateOptions options = options_of(8);
  options.stop = {kLetters.decode({all[0]}, false)};
  options.ends = [](std::string_view) { return true; };
  Generation generation(prompt, options, {kVocab, {}}, &kLetters);
  Counting model;
  run(generation, model);
  CHECK(generation.result().finish == FinishReason::stop_string);
}

TEST_CASE("generation: many at once, a step of each in turn, are what each is alone") {
  std::vector<GenerateOptions> options(6);
  std::vector<Generation> together, alone;
  std::vector<Counting> models(6), others(6);
  for (std::size_t i = 0; i < options.size(); ++i) {
    options[i].max_new = static_cast<std::int64_t>(3 + i);
    options[i].feed_last = i % 2 == 0;
    options[i].sampling.temperature = i % 3 == 0 ? 0.0 : 1.5;
    options[i].sampling.repetition_penalty = i % 3 == 1 ? 1.3 : 1.0;
    options[i].sampling.seed = i;
    const auto prompt = prompt_of(static_cast<std::int64_t>(1 + 3 * i));
    together.emplace_back(prompt, options[i], Generation::Model{kVocab, {}}, &kLetters);
    alone.emplace_back(prompt, options[i], Generation::Model{kVocab, {}}, &kLetters);
    run(alone[i], others[i]);
  }
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < together.size(); ++i) {
      if (together[i].done()) continue;
      any = true;
      const Generation::Input input = together[i].next_input(4);
      const auto logits = models[i].step(input);
      together[i].accept(input.wants_logits ? std::span<const float>(logits)
                                            : std::span<const float>());
    }
  }
  for (std::size_t i = 0; i < together.size(); ++i) {
    CHECK(together[i].result().ids == alone[i].result().ids);
    CHECK(together[i].result().text == alone[i].result().text);
    CHECK(models[i].fed == others[i].fed);
  }
}

TEST_CASE("generation: a copy goes on by itself") {
  GenerateOptions options = options_of(7);
  options.sampling.temperature = 2.0;
  Generation first(prompt_of(4), options, {kVocab, {}}, &kLetters);
  Counting model;
  for (int i = 0; i < 4; ++i) {
    const Generation::Input input = first.next_input(4);
    const auto logits = model.step(input);
    first.accept(input.wants_logits ? std::span<const float>(logits) : std::span<const float>());
  }
  Generation second = first;
  Counting other = model;
  run(first, model);
  CHECK(second.result().ids.size() == 3);
  run(second, other);
  CHECK(second.result().ids == first.result().ids);
  CHECK(second.result().text == first.result().text);
  CHECK(model.fed == other.fed);
}

TEST_CASE("generation: cancelled while it reads or writes, nothing more is wanted") {
  for (const int steps : {0, 1, 3, 5}) {
    Generation generation(prompt_of(9), options_of(6), {kVocab, {}}, &kLetters);
    Counting model;
    for (int i = 0; i < steps; ++i) {
      const Generation::Input input = generation.next_input(4);
      const auto logits = model.step(input);
      generation.accept(input.wants_logits ? std::span<const float>(logits)
                                           : std::span<const float>());
    }
    generation.cancel();
    CHECK(generation.done());
    CHECK(generation.result().finish == FinishReason::cancelled);
    CHECK(generation.next_input(4).ids.empty());
    CHECK(generation.writing() == (steps >= 3));
    CHECK(generation.prompt_read() == (steps >= 3 ? 9 : 4 * steps));
  }
  Generation done(prompt_of(2), options_of(1), {kVocab, {}});
  Counting model;
  run(done, model);
  done.cancel();  // too late
  CHECK(done.result().finish == FinishReason::length);
}

TEST_CASE("generation: logits that nothing can be drawn from leave it as it was") {
  Generation generation(prompt_of(3), options_of(3), {kVocab, {}}, &kLetters);
  Counting model;
  Generation::Input input = generation.next_input(8);
  model.step(input);
  generation.accept({});
  input = generation.next_input(8);
  REQUIRE(input.wants_logits);
  const auto good = model.step(input);
  auto bad = good;
  bad[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(mentions(refusal<DataError>([&] { generation.accept(bad); }), "NaN"));
  CHECK(mentions(refusal<DataError>([&] { generation.accept(std::span(good).first(9)); }),
                 "9 logits"));
  CHECK(!generation.writing());
  generation.accept(good);
  run(generation, model);
  CHECK(generation.result().ids == expected(prompt_of(3), 3));
}

TEST_CASE("generation: what cannot be is refused by name") {
  const auto make = [](std::vector<std::int64_t> prompt, const GenerateOptions& options,
                       const Tokenizer* tokenizer = nullptr) {
    Generation(std::move(prompt), options, {kVocab, {}}, tokenizer);
  };
  CHECK(mentions(refusal<DataError>([&] { make({}, {}); }), "prompt is empty"));
  CHECK(mentions(refusal<DataError>([&] { make({1, kVocab}, {}); }), "token 1 has id 64"));
  CHECK(mentions(refusal<DataError>([&] { make({-1}, {}); }), "token 0 has id -1"));
  CHECK(mentions(refusal<ConfigError>([&] { make({1}, options_of(-1)); }), "max_new = -1"));
  GenerateOptions stops;
  stops.stop = {"x"};
  CHECK(mentions(refusal<ConfigError>([&] { make({1}, stops); }), "tokenizer"));
  stops.stop = {""};
  CHECK(mentions(refusal<ConfigError>([&] { make({1}, stops, &kLetters); }), "empty"));
  Generation generation({1}, {}, {kVocab, {}});
  CHECK(mentions(refusal<ConfigError>([&] { generation.next_input(0); }), "chunk = 0"));
  CHECK(mentions(refusal<ConfigError>([&] { generation.accept({}); }), "next_input"));
}
