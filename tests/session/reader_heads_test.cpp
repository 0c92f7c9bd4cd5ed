// SPDX-License-Identifier: Apache-2.0
// Trained heads as a reader: against plain float64 products, and files that hold them.
#include "episodic/session/reader_heads.hpp"

#include "support/test.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/safetensors.hpp"
#include "memory/driver.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;
using namespace driver;
namespace fs = std::filesystem;

namespace reader_heads_test {

const fs::path kModel = fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6";

std::int64_t width_of(const MemoryShape& shape) { return shape.n_heads * shape.head_dim; }

ReaderHeads random_heads(std::int64_t layers, std::int64_t width, std::int64_t out,
                         unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  ReaderHeads heads;
  heads.layers = layers;
  heads.width = width;
  heads.out = out;
  heads.model = "m";
  for (auto* head : {&heads.read, &heads.write})
    for (std::int64_t i = 0; i < layers * out * width; ++i) head->push_back(normal(random));
  return heads;
}

/// max(0, cosine(R query, W event)) by the definition.
double expected(const ReaderHeads& heads, std::int64_t layer, std::span<const float> query,
                std::span<const float> event) {
  double dot = 0, q2 = 0, e2 = 0;
  for (std::int64_t o = 0; o < heads.out; ++o) {
    double q = 0, e = 0;
    for (std::int64_t c = 0; c < heads.width; ++c) {
      const auto at = static_cast<std::size_t>((layer * heads.out + o) * heads.width + c);
      q += static_cast<double>(heads.read[at]) * query[static_cast<std::size_t>(c)];
      e += static_cast<double>(heads.write[at]) * event[static_cast<std::size_t>(c)];
    }
    dot += q * e;
    q2 += q * q;
    e2 += e * e;
  }
  return q2 > 0 && e2 > 0 ? std::max(0.0, dot / std::sqrt(q2 * e2)) : 0.0;
}

std::shared_ptr<const ReaderHeads> shared(ReaderHeads heads) {
  return std::make_shared<const ReaderHeads>(std::move(heads));
}

TEST_CASE("heads weight events by the cosine of what they make of query and event") {
  const MemoryShape shape = small_shape();
  for (const std::int64_t out : {std::int64_t{1}, std::int64_t{5}, width_of(shape)}) {
    const auto tokens = random_tokens(shape, 160, 5);
    const ReaderHeads heads = random_heads(shape.n_layers, width_of(shape), out);
    EpisodicMemory memory(small_config(), shape);
    const RecallHook hook = weighting(std::make_shared<HeadReader>(shared(heads), memory));
    std::int64_t seen = 0;
    double least = 1, most = 0;
    memory.set_recall_hook([&](const RecalledEvents& r) {
      hook(r);
      for (std::size_t i = 0; i < r.events.size(); ++i, ++seen) {
        const auto event = memory.representative(r.layer, r.events[i]);
        REQUIRE(r.weights[i] == Approx(expected(heads, r.layer, r.query, event)).margin(1e-5));
        least = std::min(least, static_cast<double>(r.weights[i]));
        most = std::max(most, static_cast<double>(r.weights[i]));
      }
    });
    for (std::int64_t at = 0; at < 160; at += 10) step(memory, tokens, at, 10);
    CHECK(seen > 20);
    CHECK(most > least);
  }
}

TEST_CASE("heads that change nothing are the key-space reader") {
  const MemoryShape shape = small_shape();
  const auto tokens = random_tokens(shape, 120, 6);
  EpisodicMemory by_keys(small_config(), shape), by_heads(small_config(), shape);
  by_keys.set_recall_hook(weighting(std::make_shared<KeyReader>(by_keys)));
  by_heads.set_recall_hook(weighting(std::make_shared<HeadReader>(
      shared(ReaderHeads::identity(shape.n_layers, width_of(shape))), by_heads)));
  for (std::int64_t at = 0; at < 120; at += 12)
    CHECK(step(by_keys, tokens, at, 12) == step(by_heads, tokens, at, 12));
  CHECK(by_heads.events().size() > 3);
}

TEST_CASE("heads write an event anew where a memory that went back closed another") {
  const MemoryShape shape = small_shape();
  const ReaderHeads heads = random_heads(shape.n_layers, width_of(shape), 4);
  const auto tokens = random_tokens(shape, 160, 8), other = random_tokens(shape, 160, 9);
  EpisodicMemory memory(small_config(), shape);
  const HeadReader reader(shared(heads), memory);
  const std::vector<float> query(static_cast<std::size_t>(width_of(shape)), 0.5f);
  const auto right = [&] {
    for (std::int64_t l = 0; l < shape.n_layers; ++l)
      for (EventId e = 0; e < memory.events().size(); ++e)
        REQUIRE(reader.score(l, query, e) ==
                Approx(expected(heads, l, query, memory.representative(l, e))).margin(1e-5));
  };
  for (std::int64_t at = 0; at < 80; at += 10) step(memory, tokens, at, 10);
  const auto snapshot = memory.snapshot();
  for (std::int64_t at = 80; at < 160; at += 10) step(memory, tokens, at, 10);
  right();
  memory.restore(*snapshot);
  for (std::int64_t at = 80; at < 160; at += 10) step(memory, other, at, 10);
  right();
  const std::vector<float> nothing(query.size(), 0.0f);
  CHECK(reader.score(0, nothing, 0) == 0.0f);
}

TEST_CASE("heads are the same when they are read back") {
  const TempDir dir;
  const ReaderHeads heads = random_heads(2, 7, 3);
  heads.save(dir.path());
  const ReaderHeads back = ReaderHeads::load(dir.path());
  CHECK(back.layers == 2);
  CHECK(back.width == 7);
  CHECK(back.out == 3);
  CHECK(back.read == heads.read);
  CHECK(back.write == heads.write);
  CHECK(back.model == "m");
}

TEST_CASE("heads of another width or model, and files that hold none, are refused by name") {
  const MemoryShape shape = small_shape();
  EpisodicMemory memory(small_config(), shape);
  const std::int64_t width = width_of(shape);
  const auto refused = [&](ReaderHeads heads) {
    return refusal<ConfigError>([&] { HeadReader(shared(std::move(heads)), memory); });
  };
  CHECK(mentions(refused(random_heads(shape.n_layers, width + 1, 3)), "the memory's are"));
  CHECK(mentions(refused(random_heads(shape.n_layers + 1, width, 3)), "layers"));
  CHECK(mentions(refusal<ConfigError>([&] { HeadReader(nullptr, memory); }), "null"));
  MemoryConfig grouped = small_config();
  grouped.recall_groups = 2;
  EpisodicMemory by_groups(grouped, shape);
  CHECK(mentions(refusal<ConfigError>([&] {
                   HeadReader(shared(random_heads(shape.n_layers, width, 3)), by_groups);
                 }),
                 "recall_groups"));
  CHECK(mentions(refusal<ConfigError>([] { ReaderHeads::identity(0, 4); }), "0 layers"));
  const HeadReader reader(shared(random_heads(shape.n_layers, width, 3)), memory);
  CHECK(mentions(refusal<DataError>([&] { reader.score(0, std::vector<float>(3), 0); }),
                 "a vector of 3"));
  CHECK(mentions(refusal<DataError>([&] {
                   reader.score(99, std::vector<float>(static_cast<std::size_t>(width)), 0);
                 }),
                 "layer 99"));

  const TempDir dir;
  CHECK(mentions(refusal<FileError>([&] { ReaderHeads::load(dir.path()); }), ReaderHeads::kFile));
  ReaderHeads nan = random_heads(1, 2, 2);
  nan.write[1] = std::numeric_limits<float>::quiet_NaN();
  CHECK(mentions(refusal<DataError>([&] { nan.save(dir.path()); }), "not finite"));
  const std::map<std::string, std::string> metadata{{"episodic_kind", "reader heads over keys"},
                                                    {"model", "m"}};
  const auto file_says = [&](const std::vector<TensorToWrite>& tensors, const auto& said) {
    write_safetensors(dir / ReaderHeads::kFile, tensors, said);
    const std::string message = refusal<FileError>([&] { ReaderHeads::load(dir.path()); });
    INFO(message);
    CHECK(mentions(message, ReaderHeads::kFile));
    return message;
  };
  const TensorToWrite read{"read", TensorType::f32, {1, 2, 2}, nan.read.data()};
  const std::map<std::string, std::string> none;
  CHECK(mentions(file_says({read}, none), "holds no reader heads"));
  CHECK(mentions(file_says({read}, metadata), "write"));
  CHECK(
      mentions(file_says({read, {"write", TensorType::f32, {1, 1, 4}, nan.read.data()}}, metadata),
               "another shape"));
  CHECK(
      mentions(file_says({read, {"write", TensorType::f32, {1, 2, 2}, nan.write.data()}}, metadata),
               "not finite"));
  CHECK(mentions(file_says({{"read", TensorType::f32, {4}, nan.read.data()}}, metadata),
                 "[layers, out, width]"));

  const OpenModel model = open_model(kModel);
  ReaderHeads heads = random_heads(4, 256, 2);
  heads.save(dir.path());
  CHECK(mentions(refusal<ConfigError>([&] { load_reader_heads(dir.path(), model); }),
                 "another model"));
  heads.model = identity_of(kModel).weights;
  heads.save(dir.path());
  CHECK(load_reader_heads(dir.path(), model).read == heads.read);
}

}  // namespace reader_heads_test
