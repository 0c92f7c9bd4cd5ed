// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "episodic/base/error.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace behavior_test {

using Ids = std::vector<std::int64_t>;

std::string random_bytes(std::mt19937& random, std::size_t n) {
  static const std::vector<std::string> parts{"the",
                                              " king",
                                              "\n",
                                              "  ",
                                              "12",
                                              "\xe2\x96\x81",
                                              "\xff",
                                              "\xc3",
                                              "\xc3\xa9",
                                              "\xf0\x9f\x98\x80",
                                              "\xe4\xbd",
                                              "\xed\xa0\x80",
                                              "\xf4\x90\x80\x80",
                                              "'ll",
                                              std::string(1, '\0')};
  std::string text;
  for (; n > 0; --n) text += parts[random() % parts.size()];
  return text;
}

/// Splits a text into UTF-8 characters (of valid text).
std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> out;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) out.emplace_back();
    out.back() += c;
  }
  return out;
}

bool valid_utf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::exception&) {
    return false;
  }
}

TEST_CASE("byte-level kinds give back any bytes") {
  std::mt19937 random(3);
  for (const char* name : {"gpt2", "llama3", "deepseek"}) {
    const auto tokenizer = load(tokenizer_named(name));
    for (int i = 0; i < 200; ++i) {
      const std::string text = random_bytes(random, random() % 20);
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    }
  }
}

TEST_CASE("byte fallback keeps invalid bytes") {
  const auto tokenizer = load(tokenizer_named("llama2"));
  for (const std::string& text : {std::string("a\xff\xc3"), std::string("\xe4\xbd"),
                                  std::string("king\xed\xa0\x80 the\0x", 12)})
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
}

TEST_CASE("merges agree with the definition, on short words and long ones") {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    // a random vocabulary over few characters, so that many merges compete
    std::vector<std::string> tokens{"a", "b", "\xc3\xa9", "\xe2\x96\x81"};
    Json merges = Json::array();
    std::map<std::pair<std::string, std::string>, int> ranks;
    while (tokens.size() < 40) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end())
        tokens.push_back(left + right);
      if (ranks.emplace(std::pair(left, right), merges.size()).second)
        merges.push_back(Json::array({left, right}));
    }
    Json vocab = Json::object();
    for (std::size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
    const auto tokenizer =
        load({{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}});
    const auto merged = [&](const std::string& text) {  // by the definition
      std::vector<std::string> word = characters(text);
      while (true) {
        int best = -1;
        std::size_t at = 0;
        for (std::size_t i = 0; i + 1 < word.size(); ++i) {
          const auto it = ranks.find({word[i], word[i + 1]});
          if (it == ranks.end() || (best >= 0 && it->second >= best)) continue;
          best = it->second;
          at = i;
        }
        if (best < 0) break;
        word[at] += word[at + 1];
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      }
      Ids ids;
      for (const std::string& w : word) ids.push_back(vocab[w].get<std::int64_t>());
      return ids;
    };
    for (const std::size_t length : {0u, 1u, 2u, 7u, 23u, 24u, 25u, 26u, 60u, 300u}) {
      std::string text;
      for (std::size_t i = 0; i < length; ++i) text += tokens[random() % 4];
      CHECK(tokenizer->encode(text) == merged(text));
      CHECK(tokenizer->encode(text + text) == merged(text + text));
    }
  }
}

TEST_CASE("a long word takes no quadratic time") {
  const auto seconds = [](const Tokenizer& t, const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    CHECK(t.decode(t.encode(text)) == text);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (const char* name : {"gpt2", "llama2"}) {
    const auto tokenizer = load(tokenizer_named(name));
    std::string word;
    while (word.size() < 400000) word += "theking";
    CHECK(seconds(*tokenizer, word) < 5);  // quadratic: minutes
    CHECK(seconds(*tokenizer, std::string(400000, ' ') + "a") < 5);
  }
}

TEST_CASE("streamed text is the decoded text, cut between characters") {
  std::mt19937 random(9);
  for (const Json& kind : vectors()["kinds"]) {
    const auto tokenizer = load(tokenizer_of(kind));
    for (int i = 0; i < 20; ++i) {
      Ids ids;
      for (int n = 0; n < 60; ++n)
        ids.push_back(static_cast<std::int64_t>(
            random() % static_cast<std::uint64_t>(tokenizer->vocab_size())));
      StreamDecoder stream(*tokenizer);
      std::string text;
      for (const std::int64_t id : ids) text += stream.push(id);
      text += stream.finish();
      INFO(kind["name"].get<std::string>());
      CHECK(text == tokenizer->decode(ids));
      CHECK(stream.finish().empty());
    }
    const std::string valid = " the king\xf0\x9f\x98\x80 \xe4\xbd\xa0\xe5\xa5\xbd\xc3\xa9 the";
    if (kind["name"] == "llama2_unknown") continue;
    StreamDecoder stream(*tokenizer);
    std::string text;
    for (const std::int64_t id : tokenizer->encode(valid)) {
      const std::string piece = stream.push(id);
      CHECK(valid_utf8(piece));
      text += piece;
    }
    CHECK(stream.finish().empty());
    CHECK(text == tokenizer->decode(tokenizer->encode(valid)));
  }
}

TEST_CASE("a stream leaves special tokens out, except those that are to be shown") {
  std::size_t seen = 0;
  for (const Json& kind : vectors()["kinds"]) {
    const auto tokenizer = load(tokenizer_of(kind));
    std::vector<std::int64_t> special;
    for (std::int64_t id = 0; id < tokenizer->vocab_size(); ++id)
      if (tokenizer->decode({id}, true) != tokenizer->decode({id}, false)) special.push_back(id);
    if (special.size() < 2) continue;
    ++seen;
    const Ids word = tokenizer->encode("the", false);
    Ids ids = word;
    ids.insert(ids.end(), {special[0], special[1]});
    ids.insert(ids.end(), word.begin(), word.end());
    const auto streamed = [&](std::vector<std::int64_t> shown) {
      StreamDecoder stream(*tokenizer, std::move(shown));
      std::string text;
      for (const std::int64_t id : ids) text += stream.push(id);
      return text + stream.finish();
    };
    INFO(kind["name"].get<std::string>());
    CHECK(streamed({}) == tokenizer->decode(ids));
    CHECK(streamed({special[1]}) == tokenizer->decode(word) +
                                        tokenizer->decode({special[1]}, false) +
                                        tokenizer->decode(word));
  }
  CHECK(seen > 0);
}

TEST_CASE("an id out of range is a DataError and leaves a stream as it was") {
  const auto tokenizer = load(tokenizer_named("llama2"));
  CHECK_THROWS_AS(tokenizer->decode({tokenizer->vocab_size()}), DataError);
  CHECK_THROWS_AS(tokenizer->decode({-1}), DataError);
  CHECK_THROWS_AS(tokenizer->token(-1), DataError);
  StreamDecoder stream(*tokenizer);
  CHECK_THROWS_AS(stream.push(1 << 30), DataError);
  CHECK(stream.push(tokenizer->id_of("e")) == "e");
}

TEST_CASE("tokens, ids and the configured ends") {
  const Json json = tokenizer_named("llama3");
  const auto plain = load(json);
  CHECK(plain->bos() == -1);
  CHECK(plain->eos() == -1);
  CHECK(plain->id_of("no such token") == -1);
  CHECK(plain->vocab_size() == plain->id_of(" and his") + 1);
  for (std::int64_t id = 0; id < plain->vocab_size(); ++id)
    CHECK(plain->id_of(plain->token(id)) == id);
  const auto configured =
      load(json, {{"bos_token", "<|bos|>"}, {"eos_token", {{"content", "<|eos|>"}}}});
  CHECK(configured->bos() == 0);
  CHECK(configured->eos() == 1);
}

TEST_CASE("what is put around a text") {
  const Json gpt2 = tokenizer_named("gpt2"), llama3 = tokenizer_named("llama3");
  const Json ends = {{"bos_token", "<|bos|>"}, {"eos_token", "<|eos|>"}};
  const auto with = [&](Json changes) {
    Json config = ends;
    config.update(changes);
    return config;
  };
  const auto around = [](const Tokenizer& t) {
    Ids ids = t.encode("a");
    REQUIRE(t.encode("a", false).size() == 1);
    ids.erase(std::find(ids.begin(), ids.end(), t.encode("a", false)[0]));
    return ids;
  };
  CHECK(around(*load(gpt2, ends)) == Ids{});
  // What tokenizer.json says stays, whatever the class and these keys: as in transformers 5.24.
  CHECK(around(*load(gpt2, with({{"add_bos_token", true}}))) == Ids{});
  CHECK(around(*load(gpt2, with({{"add_bos_token", true}, {"add_eos_token", true}}))) == Ids{});
  CHECK(around(*load(llama3, ends)) == Ids{0});
  CHECK(around(*load(llama3, with({{"add_bos_token", false}}))) == Ids{0});
  CHECK(around(*load(llama3, with({{"add_bos_token", false},
                                   {"tokenizer_class", "LlamaTokenizerFast"}}))) == Ids{0});
  CHECK(around(*load(llama3, with({{"tokenizer_class", "LlamaTokenizerFast"}}))) == Ids{0});
  CHECK(around(*load(gpt2, with({{"tokenizer_class", "LlamaTokenizerFast"}}))) == Ids{});
}

TEST_CASE("one tokenizer serves several threads") {
  const auto tokenizer = load(tokenizer_named("qwen2"));
  const std::string text = " The king and his three daughters, 1234 cafe\xcc\x81\n\n";
  const Ids expected = tokenizer->encode(text);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += tokenizer->encode(text) != expected;
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("BERT's tokenizer from vocab.txt alone is that of tokenizer.json") {
  const Json json = tokenizer_named("bert");
  std::vector<std::string> lines(json["model"]["vocab"].size());
  for (const auto& [entry, id] : json["model"]["vocab"].items())
    lines[id.get<std::size_t>()] = entry;
  std::string text;
  for (const std::string& line : lines) text += line + "\r\n";
  const TempDir dir;
  dir.write("vocab.txt", text);
  const auto ours = load_tokenizer(dir.path()), other = load(json);
  CHECK(ours->vocab_size() == other->vocab_size());
  for (const Json& t : vectors()["texts"]) {
    const auto ids = other->encode(t.get<std::string>());
    CHECK(ours->encode(t.get<std::string>()) == ids);
    CHECK(ours->decode(ids) == other->decode(ids));
  }
  dir.write("tokenizer_config.json", R"({"do_lower_case": false, "strip_accents": null})");
  CHECK(load_tokenizer(dir.path())->encode("The") != ours->encode("The"));
  CHECK(load_tokenizer(dir.path())->encode("the") == ours->encode("the"));
}

TEST_CASE("WordPiece drops bytes that are no text, and gives up long words only") {
  const auto bert = load(tokenizer_named("bert"));
  CHECK(bert->encode("the\xff king \xe4\xbd") == bert->encode("the king "));
  const std::int64_t unknown = bert->id_of("[UNK]");
  const auto has_unknown = [&](const std::string& text) {
    const auto ids = bert->encode(text, false);
    return std::find(ids.begin(), ids.end(), unknown) != ids.end();
  };
  CHECK_FALSE(has_unknown(std::string(100, 'a')));
  CHECK(bert->encode(std::string(101, 'a'), false) == std::vector<std::int64_t>{unknown});
  // where no control characters are dropped, such a byte makes its word unknown
  const auto raw = load(tokenizer_named("bert_cased"));
  CHECK(raw->encode("\xff the", false).front() == unknown);
  CHECK(raw->encode("\xff the", false).back() == raw->encode("the", false).back());
}

}  // namespace behavior_test
