// SPDX-License-Identifier: Apache-2.0
// Answers held to a grammar, log-probabilities, biases and penalties, through a Generation.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "episodic/session/generation.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

/// Ids 0 to 255 are bytes; then come special tokens, and texts.
constexpr std::int64_t kEnd = 256, kOtherEnd = 257, kSpecial = 258, kBraces = 259, kModel = 264;

class Bytes final : public Tokenizer {
 public:
  std::vector<std::int64_t> encode(std::string_view text, bool) const override {
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special) const override {
    std::string text;
    for (const std::int64_t id : ids) {
      if (id < 256) text += static_cast<char>(id);
      if (id >= kEnd && id <= kSpecial && !skip_special) text += "<|s|>";
      if (id == kBraces) text += "{}";
    }
    return text;
  }
  std::string token(std::int64_t id) const override { return decode({id}, false); }
  std::int64_t id_of(std::string_view) const override { return -1; }
  std::int64_t vocab_size() const override { return kBraces + 1; }
  std::int64_t bos() const override { return -1; }
  std::int64_t eos() const override { return kEnd; }
};

const Bytes kBytes;

std::shared_ptr<const TokenGrammar> held_to(const std::string& gbnf) {
  static const auto trie = std::make_shared<const TokenTrie>(kBytes);
  return std::make_shared<const TokenGrammar>(grammar_of_gbnf(gbnf), trie);
}

/// Logits of a model that wants to write a text, then its end.
std::vector<float> wanting(std::string_view text, std::size_t at) {
  std::vector<float> logits(kModel, 0.0f);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = -static_cast<float>(i % 97) / 97;  // among others, small ids first
  const std::size_t id = at < text.size() ? static_cast<unsigned char>(text[at]) : kEnd;
  logits[id] = 5;
  logits[kSpecial] = 7;  // what it wants most of all
  return logits;
}

GenerateResult answer(GenerateOptions options, std::string_view wants,
                      std::vector<std::int64_t> ends = {kEnd, kOtherEnd}) {
  Generation generation({1}, std::move(options), {kModel, std::move(ends)}, &kBytes);
  for (std::size_t at = 0; !generation.done(); ++at) {
    const Generation::Input input = generation.next_input(4);
    const auto logits = wanting(wants, generation.result().ids.size());
    generation.accept(input.wants_logits ? std::span<const float>(logits)
                                         : std::span<const float>());
  }
  return generation.result();
}

GenerateOptions with(const std::string& gbnf) {
  GenerateOptions options;
  options.grammar = held_to(gbnf);
  return options;
}

}  // namespace

TEST_CASE("constrained: the answer is a text of the grammar, and ends with a stop token") {
  GenerateResult r = answer(with("root ::= \"yes\" | \"no\""), "no");
  CHECK(r.text == "no");
  CHECK(r.ids == std::vector<std::int64_t>{'n', 'o'});
  CHECK(r.finish == FinishReason::stop_token);
  CHECK(r.fed == 2);
  // the model wants something else, and to go on
  r = answer(with("root ::= \"yes\" | \"no\""), "maybe not");
  CHECK((r.text == "yes" || r.text == "no"));
  CHECK(r.finish == FinishReason::stop_token);
  // without the grammar it writes the special token
  CHECK(answer({}, "no").ids.at(0) == kSpecial);
  // the end is only drawn where the text may end, and is forced where nothing else goes on
  r = answer(with("root ::= [a-z]{3,5}"), "ab");
  CHECK(r.ids.size() == 3);
  CHECK(r.finish == FinishReason::stop_token);
  r = answer(with("root ::= [a-z]{3,5}"), "abcdefgh");
  CHECK(r.text == "abcde");
  CHECK(r.finish == FinishReason::stop_token);
  r = answer(with("root ::= \"\""), "x");
  CHECK(r.ids.empty());
  CHECK(r.finish == FinishReason::stop_token);
  // a character of several bytes; max_new may cut it
  r = answer(with("root ::= [\\u20ac]+"), "\xe2\x82\xac\xe2\x82\xac");
  CHECK(r.text == "\xe2\x82\xac\xe2\x82\xac");
  GenerateOptions cut = with("root ::= [\\u20ac]+");
  cut.max_new = 2;
  CHECK(answer(cut, "\xe2\x82\xac").finish == FinishReason::length);
}

TEST_CASE("constrained: without stop tokens a complete text ends the answer") {
  GenerateResult r = answer(with("root ::= \"no\""), "no", {});
  CHECK(r.text == "no");
  CHECK(r.finish == FinishReason::stop_token);
  CHECK(r.fed == 2);
  GenerateOptions ignoring = with("root ::= \"no\"");
  ignoring.ignore_eos = true;
  CHECK(answer(ignoring, "no").finish == FinishReason::stop_token);
  CHECK(answer(ignoring, "no").text == "no");
  GenerateOptions feeding = with("root ::= \"no\"");
  feeding.feed_last = true;
  CHECK(answer(feeding, "no", {}).fed == 2);
  // a token whose text would go on, but that ends answers, is an end
  GenerateOptions letter = with("root ::= [a-c]+");
  letter.stop_tokens = {'b'};
  r = answer(letter, "aab");
  CHECK(r.text == "aa");
  CHECK(r.finish == FinishReason::stop_token);
  CHECK(answer(letter, "b").text != "");  // not where the text may not end
}

TEST_CASE("constrained: stop strings still end the answer, copies go on apart") {
  GenerateOptions options = with("root ::= [a-z.]+");
  options.stop = {"."};
  GenerateResult r = answer(options, "ab.cd");
  CHECK(r.text == "ab");
  CHECK(r.finish == FinishReason::stop_string);

  GenerateOptions drawn = with("root ::= [a-z]{8}");
  drawn.sampling.temperature = 50;
  Generation one({1}, drawn, {kModel, {kEnd}}, &kBytes);
  Generation same = one, other = one;
  other.reseed(99);
  for (Generation* g : {&one, &same, &other})
    while (!g->done()) {
      const Generation::Input input = g->next_input(1);
      const auto logits = wanting("", 9);
      g->accept(input.wants_logits ? std::span<const float>(logits) : std::span<const float>());
    }
  CHECK(one.result().ids == same.result().ids);
  CHECK(one.result().ids != other.result().ids);
  CHECK(other.result().ids.size() == 8);
}

TEST_CASE("constrained: an answer that cannot go on is one error, and stays as it was") {
  // no token of this vocabulary writes a z
  std::vector<std::string> tokens{"a", "b"};
  GenerateOptions options;
  options.grammar = std::make_shared<const TokenGrammar>(grammar_of_gbnf("root ::= \"a\" \"z\""),
                                                         std::make_shared<const TokenTrie>(tokens));
  Generation generation({1}, options, {kModel, {kEnd}}, &kBytes);
  std::vector<float> logits(kModel, 0.0f);
  (void)generation.next_input(1);
  generation.accept(logits);
  CHECK(generation.result().ids == std::vector<std::int64_t>{0});
  (void)generation.next_input(1);
  const std::string said = refusal<DataError>([&] { generation.accept(logits); });
  CHECK(mentions(said, "after 1 tokens no token of the vocabulary goes on"));
  CHECK(generation.result().ids.size() == 1);
  CHECK(!generation.done());
  CHECK(refusal<DataError>([&] { generation.accept(logits); }) == said);
  // the grammar allows a token, and the bias forbids it
  GenerateOptions forbidden = with("root ::= \"a\"");
  forbidden.sampling.logit_bias = {{'a', -100}};
  CHECK(mentions(refusal<DataError>([&] { answer(forbidden, "a"); }), "grammar and logit_bias"));
}

TEST_CASE("constrained: a JSON answer is closed, whatever the model wants") {
  GenerateOptions options;
  options.max_new = 60;
  options.grammar = std::make_shared<const TokenGrammar>(
      grammar_of_json_schema(
          R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})"),
      std::make_shared<const TokenTrie>(kBytes));
  const GenerateResult r = answer(options, "{\"n\":42} and more");
  CHECK(r.text == "{\"n\":42}");
  CHECK(r.finish == FinishReason::stop_token);
  GenerateOptions empty;
  empty.grammar = std::make_shared<const TokenGrammar>(grammar_of_json_object(),
                                                       std::make_shared<const TokenTrie>(kBytes));
  empty.sampling.logit_bias = {{kBraces, 100}};  // one token for a whole object
  CHECK(answer(empty, "").ids == std::vector<std::int64_t>{kBraces});
}

TEST_CASE("logprobs: those of the model, whatever the options make of them") {
  std::mt19937 random(8);
  std::vector<float> logits(kModel);
  for (float& x : logits) x = static_cast<float>(random() % 1000) / 100 - 5;
  logits[7] = logits[3];
  logits[9] = -std::numeric_limits<float>::infinity();
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  GenerateOptions options;
  options.max_new = 3;
  options.logprobs = 4;
  options.sampling.temperature = 0.5;
  options.sampling.top_k = 2;
  options.sampling.logit_bias = {{11, 100}};
  options.grammar = held_to("root ::= [\\x0b]+");
  Generation generation({1}, options, {kModel, {kEnd}}, &kBytes);
  while (!generation.done()) {
    const Generation::Input input = generation.next_input(1);
    generation.accept(input.wants_logits ? std::span<const float>(logits)
                                         : std::span<const float>());
  }
  const GenerateResult& r = generation.result();
  REQUIRE(r.ids == std::vector<std::int64_t>{11, 11, 11});
  REQUIRE(r.logprobs.size() == 3);
  std::vector<std::int64_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  for (const Logprobs& of : r.logprobs) {
    CHECK(of.token.id == 11);
    CHECK(std::abs(of.token.logprob - (logits[11] - std::log(sum))) < 1e-9);
    REQUIRE(of.top.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(of.top[i].id == order[i]);
      CHECK(std::abs(of.top[i].logprob -
                     (logits[static_cast<std::size_t>(order[i])] - std::log(sum))) < 1e-9);
    }
  }
  const Logprobs all = logprobs_of(logits, 9, 1000);
  CHECK(all.top.size() == logits.size());
  CHECK(std::isinf(all.token.logprob));
  CHECK(logprobs_of(logits, 0, 0).top.empty());
  CHECK(answer({}, "ab").logprobs.empty());
  // an end is no token of the answer
  GenerateOptions one;
  one.logprobs = 0;
  one.sampling.logit_bias = {{kSpecial, -100}};
  CHECK(answer(one, "ab").logprobs.size() == 2);
}

TEST_CASE("penalties: presence and frequency count the answer's tokens alone, by the definition") {
  std::mt19937 random(9);
  for (int k = 0; k < 40; ++k) {
    GenerateOptions options;
    options.max_new = 30;
    options.ignore_eos = true;
    options.sampling.presence_penalty = static_cast<double>(random() % 41) / 10 - 2;
    options.sampling.frequency_penalty = static_cast<double>(random() % 41) / 10 - 2;
    options.sampling.repetition_penalty = k % 2 == 0 ? 1 : 1.3;
    if (k % 3 == 0) options.sampling.logit_bias = {{2, 1.5}, {3, -100}, {4, -0.5}};
    const std::vector<std::int64_t> prompt{1, 2, 2};
    Generation generation(prompt, options, {8, {}});
    std::vector<std::int64_t> expected;
    while (!generation.done()) {
      std::vector<float> logits(8);
      for (float& x : logits) x = static_cast<float>(random() % 400) / 100 - 2;
      const Generation::Input input = generation.next_input(8);
      generation.accept(input.wants_logits ? std::span<const float>(logits)
                                           : std::span<const float>());
      if (!input.wants_logits) continue;
      std::size_t best = 0;
      std::vector<double> scores;
      for (std::size_t i = 0; i < 8; ++i) {
        const auto id = static_cast<std::int64_t>(i);
        double s = logits[i];
        const auto bias = options.sampling.logit_bias.find(id);
        if (bias != options.sampling.logit_bias.end())
          s = bias->second == -100 ? -INFINITY : s + bias->second;
        const auto n = std::count(expected.begin(), expected.end(), id);
        const bool seen = n > 0 || id == 1 || id == 2;
        if (seen)
          s = s < 0 ? s * options.sampling.repetition_penalty
                    : s / options.sampling.repetition_penalty;
        s -= static_cast<double>(n) * options.sampling.frequency_penalty +
             (n > 0 ? options.sampling.presence_penalty : 0);
        scores.push_back(s);
        if (s > scores[best]) best = i;
      }
      expected.push_back(static_cast<std::int64_t>(best));
    }
    CHECK(generation.result().ids == expected);
  }
}

TEST_CASE("sampling options: what is out of range is refused by name") {
  const auto says = [](auto change, const char* part) {
    GenerateOptions options;
    change(options.sampling);
    const std::string said = refusal([&] { Generation({1}, options, {kModel, {kEnd}}, &kBytes); });
    INFO(said);
    CHECK(mentions(said, part));
  };
  says([](SamplingOptions& o) { o.presence_penalty = 2.1; }, "presence_penalty is 2.1");
  says([](SamplingOptions& o) { o.frequency_penalty = NAN; }, "frequency_penalty is nan");
  says([](SamplingOptions& o) { o.logit_bias = {{3, 101}}; }, "logit_bias of token 3 is 101");
  says([](SamplingOptions& o) { o.logit_bias = {{kModel, 1}}; }, "token 264 is outside");
  says([](SamplingOptions& o) { o.logit_bias = {{-1, 1}}; }, "token -1 is outside");
}
