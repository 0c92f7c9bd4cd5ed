// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/decoder.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "support/compare.hpp"
#include "support/temp_dir.hpp"
#include "tiny_llama.hpp"

using namespace episodic;

namespace llama_test {

std::vector<float> values(const LogitsView& t) { return {t.floats().begin(), t.floats().end()}; }

/// Feeds the ids in chunks of the given size, all rows.
std::vector<float> run(Decoder& model, const std::vector<std::int64_t>& ids, std::size_t chunk) {
  std::vector<float> all;
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    const auto part = std::span(ids).subspan(at, std::min(chunk, ids.size() - at));
    const auto rows = values(model.forward(part));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

void same(const std::vector<float>& got, const std::vector<std::vector<double>>& expected) {
  double largest = 0, worst = 0;
  std::size_t i = 0;
  REQUIRE(got.size() == expected.size() * expected[0].size());
  for (const auto& row : expected)
    for (const double x : row) {
      largest = std::max(largest, std::abs(x));
      worst = worse_of(worst, std::abs(x - static_cast<double>(got[i++])));
    }
  INFO("difference " << worst << " of values up to " << largest);
  REQUIRE(largest > 0.1);
  REQUIRE(worst < 2e-5 * std::max(1.0, largest));
}

void contains(const std::string& text, const std::string& part) {
  INFO(text << "   should contain   " << part);
  REQUIRE(mentions(text, part));
}

TEST_CASE("llama: logits are those of a float64 reference") {
  const std::vector<TinyShape> shapes{
      {},
      {.heads = 3, .kv_heads = 3, .dim = 8, .tied = true},
      {.heads = 5, .kv_heads = 1, .dim = 6},
      {.vocab = 17,
       .hidden = 30,
       .inner = 7,
       .layers = 3,
       .attention_bias = true,
       .mlp_bias = true},
      {.type = TensorType::bf16},
      {.tied = true, .type = TensorType::f16},
      {.vocab = 131, .hidden = 129, .inner = 65, .layers = 1, .heads = 1, .kv_heads = 1, .dim = 2},
  };
  unsigned seed = 1;
  for (const TinyShape& shape : shapes) {
    const TempDir dir;
    const TinyLlama tiny(shape, ++seed);
    tiny.write(dir.path());
    Decoder model = Decoder::load(dir.path());
    for (const std::int64_t n : {1, 2, 19}) {
      INFO("shape " << seed << ", " << n << " tokens");
      const auto ids = random_ids(n, shape.vocab, seed);
      const auto expected = tiny.logits(ids);
      model.reset();
      same(values(model.forward(ids)), expected);
      REQUIRE(model.state()->tokens() == n);
    }
  }
}

TEST_CASE("llama: products cut into blocks give the reference's logits too") {
  for (const TensorType type : {TensorType::f32, TensorType::bf16, TensorType::f16}) {
    INFO("weights of " << name_of(type));
    const TempDir dir;
    // enough multiply-adds for the blocked path, with ragged last blocks; more than 64 rows
    const TinyLlama tiny({.vocab = 301,
                          .hidden = 150,
                          .inner = 270,
                          .layers = 1,
                          .dim = 34,
                          .attention_bias = true,
                          .mlp_bias = true,
                          .type = type},
                         5);
    tiny.write(dir.path());
    Decoder model = Decoder::load(dir.path());
    const auto ids = random_ids(201, 301, 6);
    const auto expected = tiny.logits(ids);
    same(values(model.forward(ids)), expected);
    for (const std::size_t chunk : {7, 15, 16, 60, 64, 65, 200}) {
      model.reset();
      same(run(model, ids, chunk), expected);
    }
  }
}

TEST_CASE("llama: large layers are cut product by product") {
  const TempDir dir;
  const TinyLlama tiny({.vocab = 20,
                        .hidden = 500,
                        .inner = 3000,
                        .layers = 1,
                        .heads = 2,
                        .kv_heads = 1,
                        .dim = 20,
                        .mlp_bias = true},
                       7);
  tiny.write(dir.path());
  Decoder model = Decoder::load(dir.path());
  const auto ids = random_ids(70, 20, 8);
  const auto expected = tiny.logits(ids);
  same(values(model.forward(ids)), expected);
  model.reset();
  same(run(model, ids, 9), expected);
}

TEST_CASE("llama: chunks give what one step gives") {
  const TempDir dir;
  const TinyLlama tiny({}, 3);
  tiny.write(dir.path());
  Decoder model = Decoder::load(dir.path());
  const auto ids = random_ids(300, tiny.shape.vocab, 4);
  const auto whole = values(model.forward(ids));
  for (const std::size_t chunk : {1, 7, 256, 299}) {
    model.reset();
    const auto parts = run(model, ids, chunk);
    REQUIRE(parts.size() == whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) REQUIRE(std::abs(parts[i] - whole[i]) < 1e-4f);
    REQUIRE(model.state()->tokens() == 300);
  }
}

TEST_CASE("llama: the last row alone is the last row of all") {
  const TempDir dir;
  const TinyLlama tiny({}, 9);
  tiny.write(dir.path());
  Decoder model = Decoder::load(dir.path());
  const auto ids = random_ids(30, tiny.shape.vocab, 1);
  const auto all = values(model.forward(ids));
  model.reset();
  const LogitsView last = model.forward(ids, LogitRows::last);
  REQUIRE(last.rows == 1);
  REQUIRE(last.vocab == tiny.shape.vocab);
  const auto row = values(last);
  for (std::size_t i = 0; i < row.size(); ++i)
    REQUIRE(std::abs(row[i] - all[all.size() - row.size() + i]) < 1e-5f);
}

TEST_CASE(
    "llama: logits follow the last token after every kind of step, and stay where one cannot "
    "begin") {
  const TempDir dir;
  const TinyLlama tiny({}, 9);
  tiny.write(dir.path());
  Decoder model = Decoder::load(dir.path());
  const auto last = [&] {
    return std::vector<float>(model.logits().begin(), model.logits().end());
  };
  const auto last_row = [](const LogitsView& of) {
    const std::span<const float> row = of.row(of.rows - 1);
    return std::vector<float>(row.begin(), row.end());
  };
  REQUIRE_THROWS_AS(model.logits(), DataError);
  const auto all = last_row(model.forward(random_ids(3, 50, 1)));
  REQUIRE(last() == all);
  std::vector<float> following(4);
  const auto surprised = last_row(model.forward_surprise(random_ids(5, 50, 2), following));
  REQUIRE(last() == surprised);
  model.step(random_ids(2, 50, 3));
  REQUIRE(last() != surprised);
  const auto kept = last();
  model.forward(random_ids(2, 50, 4));
  REQUIRE(last() != kept);
  const auto before = last();
  model.attention(1) = nullptr;
  REQUIRE_THROWS_AS(model.step(random_ids(2, 50, 3)), DataError);
  REQUIRE(last() == before);
}

TEST_CASE("llama: equal to the bit for any number of threads, and from run to run") {
  const TempDir floats, halves;
  const TinyShape shape{.vocab = 301, .hidden = 150, .inner = 270, .layers = 2, .dim = 34};
  TinyShape half = shape;
  half.type = TensorType::bf16;
  TinyLlama(shape, 5).write(floats.path());
  TinyLlama(half, 5).write(halves.path());
  const TempDir& dir = GENERATE(true, false) ? floats : halves;
  const auto ids = random_ids(333, 301, 6);
  const int before = max_threads();
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 8, 1}) {
    set_max_threads(threads);
    Decoder model = Decoder::load(dir.path());
    for (const std::size_t chunk : {256, 40, 3}) {
      model.reset();
      auto got = run(model, ids, chunk);
      for (int i = 0; i < 5; ++i) {
        const auto next = values(model.forward({&ids[static_cast<std::size_t>(i)], 1}));
        got.insert(got.end(), next.begin(), next.end());
      }
      if (chunk != 256) continue;
      if (first.empty()) first = got;
      INFO(threads << " threads");
      REQUIRE(std::memcmp(first.data(), got.data(), first.size() * sizeof(float)) == 0);
    }
  }
  set_max_threads(before);
}

TEST_CASE("llama: bad tokens change nothing") {
  const TempDir dir;
  const TinyLlama tiny({}, 2);
  tiny.write(dir.path());
  Decoder model = Decoder::load(dir.path());
  const auto ids = random_ids(5, 61, 3);
  model.forward(ids);
  REQUIRE_THROWS_AS(model.forward({}), DataError);
  for (const std::int64_t bad : {std::int64_t{61}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    const std::vector<std::int64_t> some{1, bad};
    try {
      model.forward(some);
      FAIL("taken");
    } catch (const DataError& e) {
      contains(e.what(), "ids[1] = " + std::to_string(bad) + " is not in the vocabulary of 61");
    }
  }
  REQUIRE(model.state()->tokens() == 5);
  const auto after = values(model.forward(ids));
  Decoder fresh = Decoder::load(dir.path());
  fresh.forward(ids);
  REQUIRE(values(fresh.forward(ids)) == after);
}

TEST_CASE("llama: models on shared weights do not meet") {
  const TempDir dir;
  const TinyLlama tiny({}, 2);
  tiny.write(dir.path());
  Decoder a = Decoder::load(dir.path());
  const auto ids = random_ids(9, 61, 3);
  const auto expected = values(a.forward(ids));
  Decoder b = a.share_weights();
  REQUIRE(b.state()->tokens() == 0);
  REQUIRE(values(b.forward(ids)) == expected);
  REQUIRE(a.attention(0) != b.attention(0));
  b.forward(ids);
  REQUIRE(a.state()->tokens() == 9);
  Decoder c = std::move(a);
  REQUIRE(c.state()->tokens() == 9);
}

TEST_CASE("llama: sharded weights") {
  const TempDir whole, parts;
  const TinyLlama tiny({}, 4);
  tiny.write(whole.path());
  parts.write("config.json", tiny.config().dump());
  const auto tensors = tiny.tensors();
  const std::span all(tensors);
  write_safetensors(parts / "model-1.safetensors", all.first(7));
  write_safetensors(parts / "model-2.safetensors", all.subspan(7));
  nlohmann::json map;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    map[tensors[i].name] = i < 7 ? "model-1.safetensors" : "model-2.safetensors";
  parts.write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  const auto ids = random_ids(9, 61, 3);
  Decoder a = Decoder::load(whole.path()), b = Decoder::load(parts.path());
  REQUIRE(values(a.forward(ids)) == values(b.forward(ids)));
}

TEST_CASE("llama: missing and misshapen weights are named") {
  const TempDir dir;
  const TinyLlama tiny({}, 4);
  contains(refusal<FileError>([&] { Decoder::load(dir.path()); }), "config.json: cannot be opened");
  dir.write("config.json", tiny.config().dump());
  contains(refusal<FileError>([&] { Decoder::load(dir.path()); }), "neither model.safetensors");
  auto tensors = tiny.tensors();
  const auto load_with = [&](auto change) {
    auto changed = tensors;
    change(changed);
    write_safetensors(dir / "model.safetensors", changed);
    return refusal<FileError>([&] { Decoder::load(dir.path()); });
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string error =
        load_with([&](auto& t) { t.erase(t.begin() + static_cast<long>(i)); });
    contains(error, "model.safetensors: has no tensor '" + tensors[i].name + "'");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string error = load_with([&](auto& t) { t[i].shape.back() -= 1; });
    contains(error, "model.safetensors: tensor '" + tensors[i].name + "' has shape [");
  }
  const std::vector<std::int32_t> integers(61 * 24);
  const std::string error = load_with([&](auto& t) {
    for (auto& w : t)
      if (w.name == "lm_head.weight") w = {w.name, TensorType::i32, w.shape, integers.data()};
  });
  contains(error, "tensor 'lm_head.weight' is stored as I32; store it as F32, F16 or BF16");
}

}  // namespace llama_test
