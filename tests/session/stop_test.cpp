// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/stop.hpp"

#include <algorithm>
#include <random>

#include "episodic/base/error.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

std::string random_word(std::mt19937& random, std::size_t n) {
  std::string word;
  for (; n > 0; --n) word += static_cast<char>('a' + random() % 3);
  return word;
}

/// Text before the stop string that is complete first, the longest of those; all if there is none.
std::string naive(const std::string& text, const std::vector<std::string>& stops,
                  std::string& matched) {
  for (std::size_t end = 0; end <= text.size(); ++end) {
    for (const std::string& stop : stops)
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          stop.size() > matched.size())
        matched = stop;
    if (!matched.empty()) return text.substr(0, end - matched.size());
  }
  return text;
}

}  // namespace

namespace {

class EosOnly : public Tokenizer {
 public:
  explicit EosOnly(std::int64_t eos) : eos_(eos) {}
  std::vector<std::int64_t> encode(std::string_view, bool) const override { return {}; }
  std::string decode(const std::vector<std::int64_t>&, bool) const override { return {}; }
  std::string token(std::int64_t) const override { return "<|im_end|>"; }
  std::int64_t id_of(std::string_view) const override { return -1; }
  std::int64_t vocab_size() const override { return 300; }
  std::int64_t bos() const override { return -1; }
  std::int64_t eos() const override { return eos_; }

 private:
  std::int64_t eos_;
};

}  // namespace

TEST_CASE("an answer ends at the tokens of the model's files and of its tokenizer") {
  using Ids = std::vector<std::int64_t>;
  ModelConfig c;
  c.vocab_size = 300;
  const EosOnly none(-1), end(258), beyond(300);
  CHECK(end_tokens(c, nullptr).empty());
  CHECK(end_tokens(c, &none).empty());
  CHECK(end_tokens(c, &end) == Ids{258});  // config.json says nothing
  CHECK(end_tokens_warning(c, &end).find("'<|im_end|>' (258)") != std::string::npos);
  c.eos_tokens = {256};
  c.ends_note = "note";
  CHECK(end_tokens(c, &end) == Ids{256, 258});
  CHECK(end_tokens_warning(c, &end).find("256, 258") != std::string::npos);
  CHECK(end_tokens(c, &beyond) == Ids{256});
  CHECK(end_tokens_warning(c, &beyond) == "note");
  c.eos_tokens = {258, 256};
  CHECK(end_tokens(c, &end) == Ids{258, 256});
  CHECK(end_tokens_warning(c, &end) == "note");
}

TEST_CASE("stop strings are found however the text is cut") {
  std::mt19937 random(4);
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = random_word(random, 1 + random() % 6);
    const std::string text = random_word(random, random() % 30);
    std::string matched;
    const std::string expected = naive(text, stops, matched);
    StopMatcher matcher(stops);
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = std::min<std::size_t>(random() % 5, text.size() - at);
      out += matcher.push(text.substr(at, n));
      at += n;
      // no more is held back than could still become a stop string
      const std::size_t held = matcher.stopped() ? 0 : at - out.size();
      bool needed = held == 0;
      for (const std::string& stop : stops)
        needed = needed || (held < stop.size() && stop.starts_with(text.substr(at - held, held)));
      CHECK(needed);
    }
    out += matcher.finish();
    CHECK(out == expected);
    CHECK(matcher.stopped() == !matched.empty());
    CHECK(matcher.matched() == matched);
    stopped += matcher.stopped();
  }
  CHECK(stopped > 500);
}

TEST_CASE("nothing comes out after a stop") {
  StopMatcher matcher({"\n\nUser:", "###"});
  CHECK(matcher.push("Hello\n") == "Hello");
  CHECK(matcher.push("\nUs") == "");
  CHECK(matcher.push("e ##") == "\n\nUse ");
  CHECK(matcher.push("# more") == "");
  CHECK(matcher.stopped());
  CHECK(matcher.matched() == "###");
  CHECK(matcher.push("more") == "");
  CHECK(matcher.finish() == "");
}

TEST_CASE("an empty stop string is a ConfigError, no stop strings pass everything") {
  CHECK_THROWS_AS(StopMatcher({"a", ""}), ConfigError);
  StopMatcher matcher({});
  CHECK(matcher.push("abc") == "abc");
  CHECK(matcher.finish() == "");
}
