// SPDX-License-Identifier: Apache-2.0
// The head in pieces of the vocabulary: the same surprise and the same last logits, to the bit.
#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/timeline/surprise.hpp"
#include "support/temp_dir.hpp"
#include "tiny_llama.hpp"

using namespace episodic;

namespace head_test {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int64_t> random_ids(std::int64_t n, std::int64_t vocab) {
  std::mt19937 random(5);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < n; ++i)
    ids.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(vocab)));
  return ids;
}

std::vector<float> row(const LogitsView& logits, std::int64_t i) {
  const float* from = logits.floats().data() + i * logits.vocab;
  return {from, from + logits.vocab};
}

/// Surprise of logits [n, vocab] handed over in pieces of these lengths.
std::vector<float> in_pieces(const std::vector<float>& logits, std::int64_t n, std::int64_t vocab,
                             const std::vector<std::int64_t>& targets,
                             const std::vector<std::int64_t>& lengths) {
  SurpriseInPieces pieces;
  pieces.begin(n, vocab, targets.data());
  std::int64_t first = 0;
  for (const std::int64_t cols : lengths) {
    std::vector<float> tile;
    for (std::int64_t i = 0; i < n; ++i)
      tile.insert(tile.end(), logits.begin() + i * vocab + first,
                  logits.begin() + i * vocab + first + cols);
    pieces.add(tile.data(), cols, cols);
    first += cols;
  }
  std::vector<float> out(static_cast<std::size_t>(n));
  pieces.finish(out.data());
  return out;
}

TEST_CASE("head: surprise from pieces is that of whole rows, to the bit") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 7.0f);
  constexpr std::int64_t n = 5, vocab = 3 * 1024 + 77;
  std::vector<float> logits(n * vocab);
  for (float& x : logits) x = normal(random);
  for (std::int64_t i = 0; i < vocab; ++i)  // a row that rises: every piece has another largest one
    logits[static_cast<std::size_t>(vocab + i)] = 0.01f * static_cast<float>(i);
  std::fill_n(logits.begin() + 2 * vocab, 2048, -std::numeric_limits<float>::infinity());
  const std::vector<std::int64_t> targets{0, vocab - 1, 2100, 1024, 1023};
  std::vector<float> whole(n);
  token_surprise(logits.data(), n, vocab, vocab, targets.data(), whole.data());
  REQUIRE(in_pieces(logits, n, vocab, targets, {1024, 2048, 77}) == whole);
  REQUIRE(in_pieces(logits, n, vocab, targets, {1024, 1024, 1024 + 77}) == whole);
  REQUIRE(in_pieces(logits, n, vocab, targets, {vocab}) == whole);
  for (std::int64_t i = 0; i < n; ++i) {  // and both are what float64 says
    double sum = 0, max = -1e30;
    const float* x = logits.data() + i * vocab;
    for (std::int64_t c = 0; c < vocab; ++c) max = std::max(max, static_cast<double>(x[c]));
    for (std::int64_t c = 0; c < vocab; ++c) sum += std::exp(x[c] - max);
    const double want = max + std::log(sum) - x[targets[static_cast<std::size_t>(i)]];
    REQUIRE(std::abs(whole[static_cast<std::size_t>(i)] - want) < 2e-6 * (1 + std::abs(want)));
  }
}

TEST_CASE("head: pieces that do not fit, and rows that are not finite, are refused") {
  const std::int64_t target = 3;
  std::vector<float> x(2048, 0.5f);
  float out = 0;
  SurpriseInPieces pieces;
  REQUIRE_THROWS_AS(pieces.begin(1, 3, &target), DataError);
  pieces.begin(1, 2048, &target);
  REQUIRE_THROWS_AS(pieces.add(x.data(), 1000, 1000), DataError);  // not the last: 1024 at least
  REQUIRE_THROWS_AS(pieces.add(x.data(), 3072, 3072), DataError);
  REQUIRE_THROWS_AS(pieces.add(x.data(), 0, 0), DataError);
  pieces.add(x.data(), 1024, 1024);
  REQUIRE_THROWS_AS(pieces.finish(&out), DataError);
  x[7] = kNaN;  // of the second piece
  pieces.add(x.data(), 1024, 1024);
  REQUIRE_THROWS_AS(pieces.finish(&out), DataError);
  pieces.begin(1, 2048, &target);  // begun anew, all is forgotten
  x[7] = 0.5f;
  pieces.add(x.data(), 2048, 2048);
  pieces.finish(&out);
  REQUIRE(std::abs(out - std::log(2048.0f)) < 1e-4f);
}

TEST_CASE("head: a decoder computes it in pieces where nobody asks for all logits") {
  for (const TensorType type : {TensorType::f32, TensorType::bf16}) {
    // Long enough for several pieces at 200 rows: 2048 logits each.
    const TinyShape shape{.vocab = 9 * 1024 + 13, .hidden = 24, .type = type};
    const TempDir dir;
    TinyLlama(shape, 2).write(dir.path());
    Decoder model = Decoder::load(dir.path()), other = model.share_weights();
    for (const std::int64_t n : {1, 2, 200}) {
      model.reset();
      other.reset();
      const auto ids = random_ids(n, shape.vocab);
      const LogitsView all = model.forward(ids);
      std::vector<float> want(static_cast<std::size_t>(n - 1)), got(want.size());
      token_surprise(all.floats().data(), n - 1, shape.vocab, shape.vocab, ids.data() + 1,
                     want.data());
      const LogitsView last = other.forward_surprise(ids, got);
      INFO(name_of(type) << ", " << n << " tokens");
      REQUIRE(got == want);
      REQUIRE(row(last, 0) == row(all, n - 1));
      REQUIRE(other.tokens() == n);
      std::vector<float> wrong(static_cast<std::size_t>(n));
      REQUIRE_THROWS_AS(other.forward_surprise(ids, wrong), DataError);
      REQUIRE(other.tokens() == n);
    }
  }
}

TEST_CASE("head: a memory finds the same events either way") {
  const TinyShape shape{.vocab = 5 * 1024, .hidden = 24};
  const TempDir dir;
  TinyLlama(shape, 4).write(dir.path());
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = 160;
  config.n_mem = 64;
  config.chunk = 128;
  config.min_block = 4;
  config.max_block = 32;
  Decoder whole = Decoder::load(dir.path()), pieces = whole.share_weights();
  const auto a = patch(whole, config), b = patch(pieces, config);
  const auto ids = random_ids(1000, shape.vocab);
  for (std::size_t first = 0; first < ids.size(); first += 128) {
    const auto step = std::span(ids).subspan(first, std::min<std::size_t>(128, ids.size() - first));
    whole.forward(step, LogitRows::all);
    pieces.forward(step, LogitRows::last);
    REQUIRE(a->last_step().surprise == b->last_step().surprise);
    REQUIRE(a->last_logits() == b->last_logits());
  }
  REQUIRE(a->events().size() > 10);
  REQUIRE(a->events().size() == b->events().size());
  for (EventId e = 0; e < a->events().size(); ++e) REQUIRE(a->events()[e] == b->events()[e]);
}

TEST_CASE("head: a memory refuses surprises that do not fit its step") {
  const TinyShape shape;
  const TempDir dir;
  TinyLlama(shape, 4).write(dir.path());
  Decoder model = Decoder::load(dir.path());
  MemoryConfig config;
  config.n_local = 512;
  const auto memory = patch(model, config);
  const std::vector<std::int64_t> ids{1, 2, 3};
  std::vector<float> last(61, 0.1f), following{1.0f, 2.0f};
  const auto end = [&](const std::vector<std::int64_t>& tokens, const StepSurprise& step) {
    memory->reset();
    memory->begin_step(3);
    const std::vector<float> rows(3 * 48, 0.1f);
    std::vector<float> out(3 * 48);
    for (std::int64_t l = 0; l < 2; ++l)
      memory->attend(l, rows.data(), rows.data(), rows.data(), out.data());
    memory->end_step(tokens.data(), step);
  };
  end(ids, {following, last});
  REQUIRE(memory->tokens() == 3);
  REQUIRE(memory->last_step().surprise == std::vector<float>{0.0f, 1.0f, 2.0f});
  const std::vector<float> one{1.0f}, bad{1.0f, kNaN};
  std::vector<float> broken = last;
  broken[60] = kNaN;
  REQUIRE_THROWS_AS(end(ids, {one, last}), DataError);
  REQUIRE_THROWS_AS(end(ids, {bad, last}), DataError);
  REQUIRE_THROWS_AS(end(ids, {following, {}}), DataError);
  REQUIRE_THROWS_AS(end(ids, {following, broken}), DataError);
  REQUIRE_THROWS_AS(end({1, 2, 61}, {following, last}), DataError);
  REQUIRE(memory->tokens() == 0);
}

}  // namespace head_test
