// SPDX-License-Identifier: Apache-2.0
// A memory that stands for a model's layers, of a model whose channels lie in another order than
// its caller's: a GGUF file of a llama keeps the two channels of a rotary pair side by side.
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "episodic/c/episodic.h"
#include "episodic/model/open_model.hpp"
#include "episodic/model/quantize.hpp"
#include "support/model.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

namespace c_layers_test {

constexpr std::int64_t kLayers = 4, kHeads = 4, kKvHeads = 2, kDim = 64, kTokens = 16;

/// Of the shipped model, as its caller in Python sees it.
episodic_shape shape() {
  episodic_shape s{};
  s.struct_size = sizeof s;
  s.n_layers = kLayers;
  s.n_heads = kHeads;
  s.n_kv_heads = kKvHeads;
  s.head_dim = s.rotary_dim = kDim;
  s.rotary_theta = 10000;
  return s;
}

episodic_view view(std::vector<float>& rows, std::int64_t heads) {
  episodic_view v{};
  v.struct_size = sizeof v;
  v.data = rows.data();
  v.n = kTokens;
  v.heads = heads;
  v.dim = kDim;
  return v;
}

/// What the layers give over so many steps of rows that are always the same.
std::vector<float> outputs(episodic_memory memory, int steps) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> q(kTokens * kHeads * kDim), k(kTokens * kKvHeads * kDim), v(k), out(q), all;
  std::vector<float> surprise(kTokens);
  const episodic_view views[] = {view(q, kHeads), view(k, kKvHeads), view(v, kKvHeads),
                                 view(out, kHeads)};
  for (int step = 0; step < steps; ++step) {
    REQUIRE(episodic_memory_begin_step(memory, kTokens, 0) == EPISODIC_OK);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      for (std::vector<float>* rows : {&q, &k, &v})
        for (float& x : *rows) x = normal(random);
      REQUIRE(episodic_memory_attend(memory, layer, &views[0], &views[1], &views[2], &views[3]) ==
              EPISODIC_OK);
      all.insert(all.end(), out.begin(), out.end());
    }
    for (float& x : surprise) x = 2 + normal(random);
    REQUIRE(episodic_memory_end_step(memory, surprise.data(), surprise.size()) == EPISODIC_OK);
  }
  return all;
}

TEST_CASE("c: channels are put in the order that a model's file has") {
  if (no_model()) return;
  const TempDir dir;
  const std::string gguf = (dir / "model.gguf").string();
  episodic::write_gguf(episodic::open_model(shipped_model_dir()), gguf);
  episodic_shape s = shape();
  episodic_memory_options options{};
  options.struct_size = sizeof options;
  options.settings =
      R"({"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 16, "min_block": 4, "max_block": 16,
                          "kv_dtype": "float32"})";
  options.shape = &s;
  std::array<std::vector<float>, 3> all;
  for (int i = 0; i < 3; ++i) {  // a memory of no model, of the directory, and of the file
    const std::string path = i == 1 ? shipped_model_dir().string() : gguf;
    options.model = i == 0 ? nullptr : path.c_str();
    episodic_memory memory = nullptr;
    REQUIRE(episodic_memory_make(&options, &memory) == EPISODIC_OK);
    all[static_cast<std::size_t>(i)] = outputs(memory, 20);
    std::size_t recalled = 0;
    REQUIRE(episodic_memory_recalled(memory, 0, nullptr, 0, &recalled) == EPISODIC_OK);
    CHECK(recalled > 0);
    if (i == 2) {  // it says that the caller's rows are those of its pairs: then others must differ
      s.interleaved = 1;
      episodic_memory other = nullptr;
      REQUIRE(episodic_memory_make(&options, &other) == EPISODIC_OK);
      const std::vector<float> otherwise = outputs(other, 1);
      float most = 0;
      for (std::size_t j = 0; j < otherwise.size(); ++j)
        most = std::max(most, std::abs(otherwise[j] - all[2][j]));
      CHECK(most > 0.1f);
      CHECK(episodic_memory_free(other) == EPISODIC_OK);
    }
    CHECK(episodic_memory_free(memory) == EPISODIC_OK);
  }
  CHECK(all[0] == all[1]);
  // sums in another order, which may now and then rank two events the other way round
  std::size_t others = 0;
  for (std::size_t j = 0; j < all[0].size(); ++j) others += std::abs(all[0][j] - all[2][j]) > 1e-4f;
  INFO(others << " of " << all[0].size());
  CHECK(others < all[0].size() / 20);
}

TEST_CASE("c: a folder is that of one model") {
  if (no_model()) return;
  const TempDir dir;
  const std::string gguf = (dir / "model.gguf").string(), folder = (dir / "m").string();
  episodic::write_gguf(episodic::open_model(shipped_model_dir()), gguf);
  const std::string path = shipped_model_dir().string();
  episodic_memory_options options{};
  options.struct_size = sizeof options;
  options.folder = folder.c_str();
  options.writes = 1;
  options.model = path.c_str();
  episodic_memory memory = nullptr;
  REQUIRE(episodic_memory_make(&options, &memory) == EPISODIC_OK);
  REQUIRE(episodic_memory_commit(memory) == EPISODIC_OK);
  REQUIRE(episodic_memory_free(memory) == EPISODIC_OK);
  options.model = gguf.c_str();
  CHECK(episodic_memory_make(&options, &memory) == EPISODIC_CONFIG);
  CHECK(std::string(episodic_last_error()).find("the weights of") != std::string::npos);
  // a sequence of the model opens it, and the other way round
  episodic_model model = nullptr;
  episodic_sequence sequence = nullptr;
  REQUIRE(episodic_model_load(path.c_str(), nullptr, &model) == EPISODIC_OK);
  REQUIRE(episodic_sequence_new(model, &sequence) == EPISODIC_OK);
  REQUIRE(episodic_sequence_open(sequence, folder.c_str(), 1, nullptr, 0) == EPISODIC_OK);
  const std::string text = "The old man walked slowly to the river.";
  REQUIRE(episodic_sequence_read(sequence, text.data(), text.size(), nullptr, nullptr, nullptr) ==
          EPISODIC_OK);
  REQUIRE(episodic_sequence_commit(sequence) == EPISODIC_OK);
  REQUIRE(episodic_sequence_free(sequence) == EPISODIC_OK);
  options.model = path.c_str();
  REQUIRE(episodic_memory_make(&options, &memory) == EPISODIC_OK);
  std::array<std::int64_t, 4> ids{};
  std::size_t n = 0;
  REQUIRE(episodic_memory_ids(memory, {0, 4}, ids.data(), ids.size(), &n) == EPISODIC_OK);
  std::vector<std::int64_t> wanted(256);
  REQUIRE(episodic_model_encode(model, text.data(), text.size(), 1, wanted.data(), wanted.size(),
                                &n) == EPISODIC_OK);
  CHECK(std::equal(ids.begin(), ids.end(), wanted.begin()));
  CHECK(episodic_memory_free(memory) == EPISODIC_OK);
  CHECK(episodic_model_free(model) == EPISODIC_OK);
}

}  // namespace c_layers_test
