// SPDX-License-Identifier: Apache-2.0
// Gemma 3 270M, as scripts/real_model writes it, against a float32 run of the reference
// implementation.

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/model/patch.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/surprise.hpp"
#include "support/shared.hpp"
#include "text/random_texts.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace {

/// Where scripts/real_model leaves it; nothing if it is not there.
struct Material {
  fs::path model, golden;
};

std::optional<Material> material() {
  const auto model = real_model_dir();
  const auto shared = shared_dir();
  if (!model || !shared || !fs::exists(*shared / "golden/gemma3_270m")) return std::nullopt;
  return Material{*model, *shared / "golden/gemma3_270m"};
}

#define NOT_HERE "the real model or its golden run is not here: scripts/real_model, and ../shared"

template <class T>
std::vector<T> elements(const StoredTensor& t) {
  std::vector<T> out(static_cast<std::size_t>(t.elements()));
  std::memcpy(out.data(), t.data, out.size() * sizeof(T));
  return out;
}

/// What the reference says of one text.
struct Golden {
  std::vector<std::int64_t> ids, rows, top_ids, greedy;
  std::vector<float> nll, top_logits;

  Golden(const fs::path& dir, const std::string& name) {
    const SafetensorsFile file(dir / "expected.safetensors");
    ids = elements<std::int64_t>(file.at(name + ".ids"));
    rows = elements<std::int64_t>(file.at(name + ".rows"));
    top_ids = elements<std::int64_t>(file.at(name + ".top_ids"));
    nll = elements<float>(file.at(name + ".nll"));
    top_logits = elements<float>(file.at(name + ".top_logits"));
    std::ifstream in(dir / "expected.json");
    greedy = nlohmann::json::parse(in).at(name).at("greedy_ids").get<std::vector<std::int64_t>>();
  }
};

/// Feeds the first n ids of a text in chunks and compares every row with the reference's. Returns
/// the id that follows the last.
std::int64_t check_text(Decoder& model, const Golden& golden, std::size_t n) {
  constexpr std::size_t kChunk = 128, kTop = 16;
  const std::int64_t vocab = model.config().vocab_size;
  double sum = 0, expected_sum = 0;
  std::int64_t next = -1;
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::size_t rows = std::min(kChunk, n - first);
    const LogitsView logits = model.forward(std::span(golden.ids).subspan(first, rows));
    const float* from = logits.floats().data();
    const std::size_t followed = std::min(rows, golden.ids.size() - 1 - first);
    std::vector<float> nll(followed);
    token_surprise(from, static_cast<std::int64_t>(followed), vocab, vocab,
                   golden.ids.data() + first + 1, nll.data());
    for (std::size_t i = 0; i < followed; ++i) {
      INFO("row " << first + i << ": nll " << nll[i] << " instead of " << golden.nll[first + i]);
      REQUIRE(std::abs(nll[i] - golden.nll[first + i]) < 2e-3f);
      sum += static_cast<double>(nll[i]);
      expected_sum += static_cast<double>(golden.nll[first + i]);
    }
    for (std::size_t r = 0; r < golden.rows.size(); ++r) {
      const auto row = static_cast<std::size_t>(golden.rows[r]);
      if (row < first || row >= first + rows) continue;
      for (std::size_t k = 0; k < kTop; ++k) {
        const auto id = golden.top_ids[r * kTop + k];
        const float got = from[static_cast<std::int64_t>(row - first) * vocab + id];
        INFO("row " << row << ", id " << id);
        REQUIRE(std::abs(got - golden.top_logits[r * kTop + k]) < 2e-3f);
      }
    }
    const float* last = from + static_cast<std::int64_t>(rows - 1) * vocab;
    next = std::max_element(last, last + vocab) - last;
  }
  REQUIRE(std::abs(sum - expected_sum) < 1e-4 * expected_sum);
  return next;
}

void check_greedy(Decoder& model, std::int64_t next, const Golden& golden) {
  for (const std::int64_t expected : golden.greedy) {
    REQUIRE(next == expected);
    const LogitsView logits = model.forward({&next, 1});
    const float* row = logits.floats().data();
    next = std::max_element(row, row + logits.vocab) - row;
  }
}

}  // namespace

TEST_CASE("real model: the package's GGUF computes what its converted form does", "[heavy]") {
  const auto here = material();
  const fs::path gguf = here ? here->model / "gemma-3-270m-q4_k_m.gguf" : fs::path();
  if (!here || !fs::exists(gguf)) EPISODIC_SKIP(NOT_HERE);
  Decoder model = Decoder::load(gguf);  // 4 to 8 bits a weight, multiplied as they lie
  const Golden book(here->golden, "frankenstein_2048");
  constexpr std::size_t kTokens = 256, kChunk = 128, kDecoded = 16;
  const std::int64_t vocab = model.config().vocab_size;
  double sum = 0, expected = 0, apart = 0;
  std::size_t first = 0;
  while (first < kTokens) {
    // chunks multiply widened weights, single tokens round activations to 8 bits: both are tried
    const std::size_t n =
        first < kTokens - kDecoded ? std::min(kChunk, kTokens - kDecoded - first) : 1;
    const LogitsView logits = model.forward(std::span(book.ids).subspan(first, n));
    std::vector<float> nll(n);
    token_surprise(logits.floats().data(), static_cast<std::int64_t>(n), vocab, vocab,
                   book.ids.data() + first + 1, nll.data());
    for (std::size_t i = 0; i < n; ++i) {
      const double difference = std::abs(static_cast<double>(nll[i]) - book.nll[first + i]);
      INFO("row " << first + i << ": nll " << nll[i] << " instead of " << book.nll[first + i]);
      REQUIRE(difference < 0.5);
      apart += difference;
      sum += nll[i];
      expected += book.nll[first + i];
    }
    first += n;
  }
  INFO("mean nll " << sum / kTokens << " instead of " << expected / kTokens << ", apart "
                   << apart / kTokens);
  REQUIRE(std::abs(sum - expected) < 0.01 * expected);
  REQUIRE(apart < 0.05 * kTokens);
}

TEST_CASE("real model: every token's nll, the top logits and the greedy text", "[heavy]") {
  const auto here = material();
  if (!here) EPISODIC_SKIP(NOT_HERE);
  Decoder model = Decoder::load(here->model);
  const Golden passkey(here->golden, "passkey_1068");
  check_greedy(model, check_text(model, passkey, passkey.ids.size()), passkey);
  model.reset();
  const Golden book(here->golden, "frankenstein_2048");
  check_text(model, book, 700);  // beyond the sliding windows of 512
}

TEST_CASE("real model: the memory inside its window gives the reference's numbers", "[heavy]") {
  const auto here = material();
  if (!here) EPISODIC_SKIP(NOT_HERE);
  Decoder model = Decoder::load(here->model);
  MemoryConfig config;
  config.n_local = 2048;
  config.chunk = 128;
  const auto memory = patch(model, config);
  REQUIRE(memory->shape().n_layers == 3);
  const Golden passkey(here->golden, "passkey_1068");
  check_greedy(model, check_text(model, passkey, passkey.ids.size()), passkey);
}

// Every run has the shipped model's answers (tests/e2e).
TEST_CASE("real model: the memory answers with a number that left the window", "[heavy][long]") {
  const auto here = material();
  if (!here) EPISODIC_SKIP(NOT_HERE);
  const auto shared = shared_dir();
  if (!fs::exists(*shared / "data/texts/war_and_peace.txt")) EPISODIC_SKIP("no texts in ../shared");
  const auto tokenizer = load_tokenizer(here->model);
  std::ifstream in(*shared / "data/texts/war_and_peace.txt");
  std::string book(30000, ' ');
  in.seekg(200000).read(book.data(), static_cast<std::streamsize>(book.size()));
  const auto words = tokenizer->encode(book, false);
  REQUIRE(words.size() > 4200);

  // 4K tokens, the key at three tenths of them: 1.8K tokens before the window
  constexpr std::size_t kTokens = 4000, kDepth = 1200;
  auto ids = tokenizer->encode(
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
      "I will quiz you about the important information there.\n\n");
  const auto add = [&](const std::vector<std::int64_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  add({words.begin() + 20, words.begin() + kDepth});
  add(tokenizer->encode("\nThe pass key is 58246. Remember it. 58246 is the pass key.\n", false));
  add({words.begin() + kDepth, words.begin() + kTokens});
  const auto question = tokenizer->encode("\n\nWhat is the pass key?\n\nThe pass key is", false);

  Decoder model = Decoder::load(here->model);
  MemoryConfig config;
  config.n_local = 1024;
  patch(model, config);
  for (std::size_t at = 0; at < ids.size(); at += 512)
    model.forward(std::span(ids).subspan(at, std::min<std::size_t>(512, ids.size() - at)),
                  LogitRows::last);
  // the question is a step of its own, asked with the memory and of the window alone
  const auto answer = [&](Decoder& of) {
    std::vector<std::int64_t> out;
    LogitsView row = of.forward(question, LogitRows::last);
    for (int i = 0; i < 7; ++i) {
      const float* logits = row.floats().data();
      out.push_back(std::max_element(logits, logits + row.vocab) - logits);
      row = of.forward({&out.back(), 1}, LogitRows::last);
    }
    return tokenizer->decode(out);
  };
  const std::string with_memory = answer(model);
  INFO(with_memory);
  REQUIRE(with_memory.find("58246") != std::string::npos);

  Decoder window = model.share_weights();
  config.recall = false;
  patch(window, config);
  const std::size_t tail = ids.size() - 1500;  // what a window of 1024 sees, and more
  for (std::size_t at = tail; at < ids.size(); at += 500)
    window.forward(std::span(ids).subspan(at, 500), LogitRows::last);
  REQUIRE(answer(window).find("58246") == std::string::npos);
}

TEST_CASE("real model: the tokenizer's vectors") {
  const auto here = material();
  if (!here) EPISODIC_SKIP(NOT_HERE);
  const auto tokenizer = load_tokenizer(here->model);
  std::ifstream in(here->golden / "tokenizer_vectors.json");
  const auto vectors = nlohmann::json::parse(in);
  REQUIRE(vectors.size() >= 10);
  for (const auto& v : vectors) {
    const auto text = v.at("text").get<std::string>();
    const auto ids = v.at("ids").get<std::vector<std::int64_t>>();
    INFO(text);
    REQUIRE(tokenizer->encode(text) == ids);
    const std::vector<std::int64_t> own(ids.begin() + 1, ids.end());  // without the added BOS
    REQUIRE(tokenizer->decode(own, false) == v.at("decoded").get<std::string>());
  }
}

TEST_CASE("real model: a hundred thousand random texts encode and decode as Hugging Face does") {
  const auto model = real_model_dir();
  if (!model) EPISODIC_SKIP("no real model; scripts/real_model fetches it");
  const auto tokenizer = load_tokenizer(*model);
  for (const auto& row : test::random_vectors()["real"]) {
    if (row["name"] != "gemma3_270m") continue;
    test::RandomTexts texts;
    test::TextSums sums;
    for (int n = row["count"].get<int>(); n > 0; --n) sums.add(*tokenizer, texts.next());
    CHECK(std::to_string(sums.ids) == row["ids"].get<std::string>());
    CHECK(std::to_string(sums.texts) == row["texts"].get<std::string>());
  }
}
