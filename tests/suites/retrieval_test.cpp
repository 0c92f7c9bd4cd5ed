// SPDX-License-Identifier: Apache-2.0
// Chunks, the search over their vectors, what a retriever finds, and prompts in a chat format.
#include "support/test.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"
#include "run/chunks.hpp"
#include "run/prompt_writer.hpp"
#include "run/retriever.hpp"
#include "support/refusal.hpp"

using namespace episodic;
using namespace episodic::suites;
namespace fs = std::filesystem;

namespace {

using Numbers = std::vector<std::int64_t>;

std::vector<std::string> texts_of(const std::string& text, const std::vector<Chunk>& chunks) {
  std::vector<std::string> out;
  for (const Chunk& c : chunks) out.push_back(text.substr(c.begin, c.end - c.begin));
  return out;
}

/// Words "w0 w1 ..." of n.
std::string numbered(int n) {
  std::string text;
  for (int i = 0; i < n; ++i)
    text.append("w").append(std::to_string(i)).append(i % 7 == 6 ? "\n\n" : " ");
  return text;
}

const SentenceEncoder& tiny_encoder() {
  static const auto encoder =
      SentenceEncoder::open(fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder/tiny",
                            SentenceEncoder::kAllPositions);
  return encoder;
}

const Tokenizer& shipped_tokenizer() {
  static const auto tokenizer = load_tokenizer(fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6");
  return *tokenizer;
}

Example example_of(const std::string& context, const std::string& input) {
  Example e;
  e.context = context;
  e.input = input;
  return e;
}

const Template& passkey_template() {
  static const Template t("Find it.\n{context}\n\n{input} \nAnswer:", "test");
  return t;
}

}  // namespace

TEST_CASE("chunks of words lie end to end") {
  const std::string text = "  one two,three\n four\tfive ";
  CHECK(texts_of(text, word_chunks(text, 2)) ==
        std::vector<std::string>{"  one two,three\n ", "four\tfive "});
  CHECK(texts_of(text, word_chunks(text, 3)).back() == "five ");
  CHECK(word_chunks(text, 4) == std::vector<Chunk>{{0, text.size()}});
  CHECK(word_chunks("", 300).empty());
  CHECK(word_chunks(" \n", 300).size() == 1);
  // ideographs, kana and hangul are words without spaces; a no-break space parts words
  const std::string mixed = "\xe4\xbd\xa0\xe5\xa5\xbd ok \xe3\x81\x82\xea\xb0\x80\xc2\xa0z";
  CHECK(texts_of(mixed, word_chunks(mixed, 1)) ==
        std::vector<std::string>{"\xe4\xbd\xa0", "\xe5\xa5\xbd ", "ok ", "\xe3\x81\x82",
                                 "\xea\xb0\x80\xc2\xa0", "z"});
  const std::string damaged = "a \xff\xff b\xe4 c";
  const auto chunks = word_chunks(damaged, 1);
  CHECK(chunks.size() == 4);
  const std::string book = numbered(1003);
  const auto all = texts_of(book, word_chunks(book, 300));
  CHECK(all.size() == 4);
  CHECK(std::accumulate(all.begin(), all.end(), std::string()) == book);
  CHECK(all[1].starts_with("w300\n"));
}

TEST_CASE("chunks of events break nowhere but between events") {
  const std::string text = "a b c d e f g h";  // words at even bytes
  using Ends = std::vector<std::size_t>;
  CHECK(texts_of(text, event_chunks(text, Ends{4, 6, 10}, 3)) ==
        std::vector<std::string>{"a b c ", "d e ", "f g h"});
  CHECK(texts_of(text, event_chunks(text, Ends{4, 6, 10}, 2)) ==
        std::vector<std::string>{"a b ", "c ", "d e ", "f g h"});  // an event may be longer
  CHECK(event_chunks(text, Ends{}, 3) == std::vector<Chunk>{{0, text.size()}});
  CHECK(event_chunks(text, Ends{0, text.size(), text.size()}, 300).size() == 1);
  CHECK(event_chunks("", Ends{}, 300).empty());
  // a cut within a word: the word counts where it begins
  CHECK(texts_of("abc def ghi", event_chunks("abc def ghi", Ends{5, 8}, 2)) ==
        std::vector<std::string>{"abc def ", "ghi"});
}

TEST_CASE("chosen chunks come in the order of the text, gaps as empty lines") {
  const std::string text = "aa bb cc dd ";
  const auto chunks = word_chunks(text, 1);
  CHECK(joined(text, chunks, Numbers{0, 2, 3}) == "aa \n\ncc dd ");
  CHECK(joined(text, chunks, Numbers{0, 1, 2, 3}) == text);
  CHECK(joined(text, chunks, Numbers{}).empty());
}

TEST_CASE("the search finds the largest inner products") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const std::size_t n : {0, 1, 4, 5, 6, 700}) {
    const std::size_t width = 24;
    std::vector<float> vectors(n * width), query(width);
    for (float& x : vectors) x = normal(random);
    for (float& x : query) x = normal(random);
    const Numbers found = nearest(vectors, query, 5);
    CHECK(found == nearest_exact(vectors, query, 5));
    CHECK(found.size() == std::min<std::size_t>(n, 5));
    CHECK(std::is_sorted(found.begin(), found.end()));
    const auto score = [&](std::size_t i) {
      return std::inner_product(query.begin(), query.end(),
                                vectors.begin() + static_cast<std::ptrdiff_t>(i * width), 0.0);
    };
    double worst = 1e9;
    for (const std::int64_t i : found) worst = std::min(worst, score(static_cast<std::size_t>(i)));
    for (std::size_t i = 0; i < n; ++i)
      if (!std::binary_search(found.begin(), found.end(), static_cast<std::int64_t>(i)))
        CHECK(score(i) <= worst);
  }
  const std::vector<float> same{1, 0, 1, 0, 1, 0}, query{1, 0};
  CHECK(nearest_exact(same, query, 2) == Numbers{0, 1});
  CHECK(std::string(search_name()).size() > 0);
}

TEST_CASE("a retriever finds the chunk that has the question's words") {
  // The tiny encoder reads 40 tokens: chunks of a few words.
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += i == 17 ? "The pass key is 71432. Remember it. " : "The grass is green. There we go. ";
  int cuts = 0;
  Retriever retriever(tiny_encoder(), [&](const std::string& context) {
    ++cuts;
    return Retriever::Cut{context, word_chunks(context, 7)};
  });
  const auto found = retriever.find(text, "What is the pass key? Remember it.");
  CHECK(found.chunks == 30);
  REQUIRE(found.chosen.size() == kRetrieved);
  CHECK(std::find(found.chosen.begin(), found.chosen.end(), 17) != found.chosen.end());
  CHECK(found.context.find("The pass key is 71432. Remember it.") != std::string::npos);
  // Another question about the same text: nothing is cut or encoded anew.
  CHECK(retriever.find(text, "There we go?").chunks == 30);
  CHECK(cuts == 1);
  // As many chunks as are wanted, or fewer: the whole text.
  const std::string few = "one two three four five six seven eight nine ";
  CHECK(retriever.find(few, "").context == few);
  CHECK(cuts == 2);
  CHECK(retriever.find("", "What?").context.empty());
  CHECK(retriever.find("", "What?").chunks == 0);
}

TEST_CASE("a prompt's tokens are the same wherever its question begins") {
  const Tokenizer& tokenizer = shipped_tokenizer();
  const Example e = example_of("The grass is green. The pass key is 71432.", "What is it?");
  const std::string text = "Find it.\n" + e.context + "\n\nWhat is it? \nAnswer:";
  PromptFormat format{.task = "passkey"};
  const PromptIds whole = PromptWriter(passkey_template(), tokenizer, format).write(e);
  CHECK(whole.ids == tokenizer.encode(text, true));
  const Numbers question(whole.ids.begin() + static_cast<std::ptrdiff_t>(whole.question),
                         whole.ids.end());
  CHECK(tokenizer.decode(question).ends_with("What is it? \nAnswer:"));
  CHECK(tokenizer.decode(question).find("71432") == std::string::npos);
  format.question_step = false;
  const PromptIds last = PromptWriter(passkey_template(), tokenizer, format).write(e);
  CHECK(last.ids == whole.ids);
  CHECK(last.question == whole.ids.size() - 1);
}

TEST_CASE("prompts in a chat format") {
  const Tokenizer& tokenizer = shipped_tokenizer();
  const ChatTemplate chat(
      "{{ bos_token }}<user>{{ messages[0]['content'] | trim }}</user>"
      "{% if add_generation_prompt %}{{ '\n<model>' }}{% endif %}",
      "test", {{"bos_token", "<|bos|>"}});
  const Example e = example_of("The pass key is {71432}.", "What is it?");
  PromptFormat format{.task = "passkey", .chat = &chat};
  const PromptWriter writer(passkey_template(), tokenizer, format);
  const PromptIds prompt = writer.write(e);
  CHECK(tokenizer.decode(prompt.ids, false) ==
        "<|bos|><user>Find it.\nThe pass key is {71432}.\n\nWhat is it? \nAnswer:</user>\n<model>");
  CHECK(prompt.ids[0] == tokenizer.bos());
  CHECK(prompt.ids[1] != tokenizer.bos());  // one, not two
  const Numbers question(prompt.ids.begin() + static_cast<std::ptrdiff_t>(prompt.question),
                         prompt.ids.end());
  const std::string asked = tokenizer.decode(question);
  CHECK(asked.ends_with("What is it? \nAnswer:</user>\n<model>"));
  CHECK(asked.find("71432") == std::string::npos);
  // a template without a question: the last token alone is the question's
  const Template summary("{context}", "test");
  const PromptIds all = PromptWriter(summary, tokenizer, format).write(e);
  CHECK(all.question == all.ids.size() - 1);
  // LongBench cuts the prompt before it wraps it
  format.keep_tokens = 20;
  const PromptIds cut = PromptWriter(passkey_template(), tokenizer, format).write(e);
  const std::string text = tokenizer.decode(cut.ids, false);
  CHECK(text.starts_with("<|bos|><user>Find"));
  CHECK(text.ends_with("Answer:</user>\n<model>"));
  CHECK(text.find("71432") == std::string::npos);
  CHECK(cut.question == cut.ids.size() - 1);
}

TEST_CASE("what is searched for is the input, or what the prompt says after the context") {
  const PromptWriter writer(passkey_template(), shipped_tokenizer(), {.task = "passkey"});
  CHECK(writer.query(example_of("text", "What is it?")) == "What is it?");
  CHECK(writer.query(example_of("text", " \n")) == "\n\n \n \nAnswer:");
  PromptFormat longbench{.suite = Suite::longbench, .task = "gov_report"};
  const Template summary("Report:\n{context}\n\nSummary:", "test");
  CHECK(PromptWriter(summary, shipped_tokenizer(), longbench).query(example_of("text", "")) ==
        "\n\nSummary:");
}
