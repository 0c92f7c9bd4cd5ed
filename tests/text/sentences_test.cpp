// SPDX-License-Identifier: Apache-2.0
// Ends of sentences, and entries of whole sentences.
#include "support/test.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/text/sentences.hpp"

using namespace episodic;

namespace {

std::vector<std::string> sentences(const std::string& text) {
  std::vector<std::string> all;
  std::size_t begin = 0;
  for (const std::size_t end : sentence_ends(text)) {
    all.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return all;
}

/// A token is a word with the space before it, a mark, or a line break: ids into a list.
class WordTokenizer : public Tokenizer {
 public:
  std::vector<std::int64_t> encode(std::string_view text, bool) const override {
    std::vector<std::int64_t> ids;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = at + 1;
      if (text[at] != '.' && text[at] != '\n')
        while (end < text.size() && text[end] != ' ' && text[end] != '.' && text[end] != '\n')
          ++end;
      words_.emplace_back(text.substr(at, end - at));
      ids.push_back(static_cast<std::int64_t>(words_.size()) - 1);
      at = end;
    }
    return ids;
  }
  std::string decode(const std::vector<std::int64_t>& ids, bool) const override {
    std::string text;
    for (const std::int64_t id : ids) text += token(id);
    return text;
  }
  std::string token(std::int64_t id) const override {
    if (id < 0 || id >= vocab_size()) throw DataError("no such token");
    return words_[static_cast<std::size_t>(id)];
  }
  std::int64_t id_of(std::string_view) const override { return -1; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(words_.size()); }
  std::int64_t bos() const override { return -1; }
  std::int64_t eos() const override { return -1; }

 private:
  mutable std::vector<std::string> words_;
};

}  // namespace

TEST_CASE("sentences end where a reader ends them") {
  using List = std::vector<std::string>;
  REQUIRE(sentences("").empty());
  REQUIRE(sentences("no mark") == List{"no mark"});
  REQUIRE(sentences("One. Two! Three?") == List{"One.", " Two!", " Three?"});
  REQUIRE(sentences("\"Go.\" He went. (So it ended.) Next") ==
          List{"\"Go.\"", " He went.", " (So it ended.)", " Next"});
  REQUIRE(sentences("\"Stop!\" he said. Then...") == List{"\"Stop!\" he said.", " Then..."});
  REQUIRE(sentences("Wait... and see. End?! Yes.") == List{"Wait... and see.", " End?!", " Yes."});
  REQUIRE(sentences("Mr. Smith met J. R. Tolkien in the U.S. Army at 3.14 p.m. sharp. Then") ==
          List{"Mr. Smith met J. R. Tolkien in the U.S. Army at 3.14 p.m. sharp.", " Then"});
  REQUIRE(sentences("See Fig. 3 and e.g. Eq. 4. All of it.") ==
          List{"See Fig. 3 and e.g. Eq. 4.", " All of it."});
  REQUIRE(sentences("A title\n\nA line\nthat goes on. \nNext") ==
          List{"A title\n\n", "A line\nthat goes on. \n", "Next"});
  REQUIRE(sentences(
              "\xE4\xBB\x96\xE6\x9D\xA5\xE3\x80\x82\xE2\x80\x9C\xE8\xB5\xB0\xEF\xBC\x81\xE2\x80\x9D"
              "\xE5\xA5\xBD") ==  // He came. "Go!" Good, in Chinese
          List{"\xE4\xBB\x96\xE6\x9D\xA5\xE3\x80\x82",
               "\xE2\x80\x9C\xE8\xB5\xB0\xEF\xBC\x81\xE2\x80\x9D", "\xE5\xA5\xBD"});
  REQUIRE(sentences("It was\xE2\x80\xA6 Late. \xFF\xFE bytes. End") ==
          List{"It was\xE2\x80\xA6", " Late.", " \xFF\xFE bytes.", " End"});
}

TEST_CASE("the ends of any bytes are ascending and reach the end") {
  std::mt19937 random(7);
  const std::string alphabet = "aB. .!?\n\"') \xE3\x80\x82\xC3\xA9\xFF";
  for (int run = 0; run < 3000; ++run) {
    std::string text;
    for (std::size_t n = random() % 40; n > 0; --n) text += alphabet[random() % alphabet.size()];
    std::size_t before = 0;
    const std::vector<std::size_t> ends = sentence_ends(text);
    for (const std::size_t end : ends) {
      REQUIRE(end > before);
      before = end;
    }
    REQUIRE(before == text.size());
  }
}

TEST_CASE("entries are whole sentences as long as they fit") {
  const WordTokenizer tokenizer;
  const auto starts = [&](const std::string& text, std::int64_t longest, std::int64_t first = 0) {
    return entry_starts(tokenizer, tokenizer.encode(text, false), longest, first);
  };
  using List = std::vector<std::int64_t>;
  // sentences of 3, 4, 3 and 6 tokens
  const std::string text = "One two. Three four five. Six seven. Eight nine ten eleven twelve.";
  REQUIRE(starts(text, 100).empty());
  REQUIRE(starts(text, 16) == List{});
  REQUIRE(starts(text, 15) == List{10});
  REQUIRE(starts(text, 9) == List{7});
  REQUIRE(starts(text, 7) == List{7, 10});
  REQUIRE(starts(text, 6) == List{3, 7, 10});
  REQUIRE(starts(text, 5) == List{3, 7, 10, 15});  // the last is too long by one
  REQUIRE(starts(text, 2) == List{2, 3, 5, 7, 9, 10, 12, 14});
  REQUIRE(starts(text, 1).size() == 15);
  // behind sinks: the first entry begins in the middle of a sentence
  REQUIRE(starts(text, 6, 1) == List{7, 10});
  REQUIRE(starts(text, 100, 50).empty());
  REQUIRE(entry_starts(tokenizer, {}, 4).empty());
  REQUIRE_THROWS_AS(starts(text, 0), ConfigError);
  REQUIRE_THROWS_AS(entry_starts(tokenizer, List{1000000}, 4), DataError);
}

TEST_CASE("entries of a random text fit, and end early only where a sentence does not fit") {
  std::mt19937 random(11);
  for (int run = 0; run < 200; ++run) {
    const WordTokenizer tokenizer;
    std::string text = "Ax";
    const int words = static_cast<int>(random() % 120);
    for (int w = 0; w < words; ++w) text += random() % 6 == 0 ? ". Bo" : " c";
    const std::vector<std::int64_t> ids = tokenizer.encode(text, false);
    const std::int64_t longest = 1 + static_cast<std::int64_t>(random() % 20);
    const auto n = static_cast<std::int64_t>(ids.size());
    // where sentences end, in tokens: behind each full stop, and the end
    std::vector<std::int64_t> ends;
    for (std::int64_t t = 0; t < n; ++t)
      if (tokenizer.token(ids[static_cast<std::size_t>(t)]) == "." || t == n - 1)
        ends.push_back(t + 1);
    std::vector<std::int64_t> starts = entry_starts(tokenizer, ids, longest);
    starts.insert(starts.begin(), 0);
    starts.push_back(n);
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
      const std::int64_t begin = starts[i], end = starts[i + 1];
      REQUIRE(end > begin);
      REQUIRE(end - begin <= longest);
      const auto next = std::upper_bound(ends.begin(), ends.end(), end);  // the first end behind it
      if (std::find(ends.begin(), ends.end(), end) != ends.end())
        REQUIRE((next == ends.end() || *next - begin > longest));  // one more did not fit
      else
        REQUIRE(end - begin == longest);  // cut within a sentence
    }
  }
}
