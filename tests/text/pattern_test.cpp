// SPDX-License-Identifier: Apache-2.0
// What a tokenizer's regular expressions make of texts that mean harm.
#include "text/pattern.hpp"

#include <string>

#include "episodic/base/error.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;
using text::Pattern;
using text::Span;

TEST_CASE("white space of any length is matched, in memory and time that follow its length") {
  // LLaMA 3's expression, where it speaks of white space.
  const Pattern pattern = Pattern::regex("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|\\S+");
  const std::string spaces(12'000'000, ' ');
  std::vector<Span> spans;
  pattern.split(spaces, spans);
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].end == spaces.size());
  pattern.split(spaces + "word", spans);  // the last space goes with nothing
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].end == spaces.size() - 1);
  CHECK(spans[2].match);
  pattern.split(spaces + "\n", spans);
  REQUIRE(spans.size() == 1);
}

TEST_CASE("an expression that tries everything is given up on, with the place and what to do") {
  const Pattern pattern = Pattern::regex("(?:a|a)+[bc]");
  std::vector<Span> spans;
  const std::string said =
      refusal<DataError>([&] { pattern.split("xyz " + std::string(60, 'a'), spans); });
  CHECK(mentions(said, "at byte 0"));
  CHECK(mentions(said, "cut the text"));
}

TEST_CASE("an expression that matches nothing is looked for on behind the next character") {
  const Pattern pattern = Pattern::regex("x*");
  std::vector<Span> spans;
  pattern.split("\u00e9\u20acx\U0001d11e", spans);  // characters of 2, 3, 1 and 4 bytes
  REQUIRE(spans.size() == 4);
  const std::size_t ends[] = {2, 5, 6, 10};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(spans[i].begin == (i == 0 ? 0 : ends[i - 1]));
    CHECK(spans[i].end == ends[i]);
    CHECK(spans[i].match == (i == 2));
  }
}
