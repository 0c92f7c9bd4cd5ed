// SPDX-License-Identifier: Apache-2.0
// Models whose heads and channels are divided among ranks, against the same model in one process.
#include "tensor_parallel.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "episodic/model/quantize.hpp"
#include "episodic/model/tensor_parallel.hpp"
#include "episodic/model/weight_plan.hpp"
#include "model/elementwise.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace tensor_parallel_test;
using episodic_test::message_of;
using episodic_test::run_ranks;
using episodic_test::try_ranks;
namespace fs = std::filesystem;

namespace {

const fs::path kFamilies = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families";

/// Logits of all rows of all steps.
std::vector<std::vector<float>> logits_of(Decoder& model, std::span<const std::int64_t> ids) {
  std::vector<std::vector<float>> all;
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::int64_t first = 0, at = 0; first < n; ++at) {
    const std::int64_t length = step_length(at, n - first);
    const LogitsView rows = model.forward(
        ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(length)));
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      const auto row = rows.row(i);
      all.emplace_back(row.begin(), row.end());
    }
    first += length;
  }
  return all;
}

/// Every rank has the whole's logits to rounding, and all ranks have the same bits.
void compare_logits(const fs::path& dir, int ranks, std::int64_t vocab) {
  const std::vector<std::int64_t> ids = random_ids(40, vocab, 5);
  Decoder whole = opened(dir, nullptr);
  const auto expected = logits_of(whole, ids);
  std::vector<std::vector<std::vector<float>>> made(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    Decoder model = opened(dir, group);
    made[static_cast<std::size_t>(group->rank())] = logits_of(model, ids);
  });
  for (const auto& rows : made) {
    REQUIRE(rows == made[0]);
    REQUIRE(rows.size() == expected.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      REQUIRE(relative_error(expected[i], rows[i]) < 1e-4);
  }
}

MemoryConfig memory_config(const std::string& more = "") {
  return parse_memory_config(
      R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2, "max_block": 6,
          "n_repr": 2, "contiguity": 0.3, "gamma": 0.5)" +
      more + "}");
}

/// What a step leaves of boundaries, events and recall, and its logits.
struct Seen {
  std::vector<std::vector<std::uint8_t>> boundaries;
  std::vector<std::vector<EventId>> recalled;
  std::vector<float> logits;
};

std::vector<Seen> read(Decoder& model, EpisodicMemory& memory, std::span<const std::int64_t> ids) {
  std::vector<Seen> all;
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::int64_t first = 0, at = 0; first < n; ++at) {
    const std::int64_t length = step_length(at, n - first);
    model.step(ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(length)),
               StepKind::prompt);
    Seen& seen = all.emplace_back();
    for (std::int64_t s = 0; s < memory.scopes(); ++s)
      seen.boundaries.push_back(memory.last_step(s).final_boundaries);
    for (std::int64_t l = 0; l < memory.lanes(); ++l)
      seen.recalled.push_back(memory.recalled(l).recalled());
    const auto row = model.logits();
    seen.logits.assign(row.begin(), row.end());
    first += length;
  }
  return all;
}

void compare_memories(const fs::path& dir, int ranks, const MemoryConfig& config,
                      std::int64_t vocab) {
  const std::vector<std::int64_t> ids = random_ids(230, vocab, 8);
  Decoder whole = opened(dir, nullptr);
  const auto memory = patch(whole, config);
  const std::vector<Seen> expected = read(whole, *memory, ids);
  REQUIRE(memory->events().size() > 5);
  std::vector<std::vector<Seen>> made(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    Decoder model = opened(dir, group);
    const auto mine = patch(model, config);
    require(mine->shape().ranks == ranks, "other ranks");
    made[static_cast<std::size_t>(group->rank())] = read(model, *mine, ids);
  });
  std::size_t recalled = 0;
  for (std::size_t at = 0; at < expected.size(); ++at) {
    const Seen& all = expected[at];
    for (int r = 0; r < ranks; ++r) {
      const Seen& seen = made[static_cast<std::size_t>(r)][at];
      REQUIRE(seen.logits == made[0][at].logits);  // to the bit
      REQUIRE(relative_error(all.logits, seen.logits) < 1e-4);
      const auto lists_alike = [&](const auto& part, const auto& of_whole) {
        // one of all heads, or of each layer this rank's among those of all ranks
        const auto layers = static_cast<std::size_t>(memory->shape().n_layers);
        const std::size_t each = of_whole.size() / layers, share = part.size() / layers;
        for (std::size_t i = 0; i < part.size(); ++i) {
          const std::size_t there =
              part.size() == of_whole.size()
                  ? i
                  : i / share * each + static_cast<std::size_t>(r) * share + i % share;
          REQUIRE(part[i] == of_whole[there]);
          recalled += part[i].size();
        }
      };
      lists_alike(seen.boundaries, all.boundaries);
      lists_alike(seen.recalled, all.recalled);
    }
  }
  REQUIRE(recalled > 0);
}

/// Tensors of random bytes under a model's names.
class RandomTensors final : public TensorSource {
 public:
  RandomTensors(const ModelConfig& config, TensorType matrices) {
    std::mt19937 rng(4);
    for (const WeightEntry& e : weight_plan(config)) {
      StoredTensor t{e.tensor, e.tensor_shape.size() > 1 ? matrices : TensorType::f32,
                     e.tensor_shape, nullptr, 0};
      std::int64_t elements = 1;
      for (const std::int64_t d : t.shape) elements *= d;
      t.bytes = elements / block_elements(t.type) * block_bytes(t.type);
      std::vector<std::byte>& bytes = bytes_[e.tensor];
      bytes.resize(static_cast<std::size_t>(t.bytes));
      if (t.type == TensorType::f32 && t.shape.size() == 1)
        for (std::int64_t i = 0; i < elements; ++i)
          reinterpret_cast<float*>(bytes.data())[i] = 1.0f + 0.01f * static_cast<float>(i);
      else
        for (std::byte& b : bytes) b = static_cast<std::byte>(rng() % 64 + 1);
      t.data = bytes.data();
      tensors_[e.tensor] = t;
    }
  }
  const StoredTensor* find(std::string_view name) const override {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : &at->second;
  }
  std::vector<const StoredTensor*> tensors() const override {
    std::vector<const StoredTensor*> all;
    for (const auto& [name, t] : tensors_) all.push_back(&t);
    return all;
  }
  fs::path file_of(std::string_view) const override { return "made.gguf"; }

 private:
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::vector<std::byte>> bytes_;
};

std::vector<float> widened(const WeightView& v) {
  std::vector<float> out(static_cast<std::size_t>(v.rows * v.columns));
  widen(v.type, v.data, v.rows * v.columns, out.data());
  return out;
}

}  // namespace

TEST_CASE("tensor parallel: a dense model gives its logits on 2 and 4 ranks") {
  const int ranks = GENERATE(2, 4);
  const TensorType type = GENERATE(TensorType::f32, TensorType::bf16);
  TinyShape shape = divided_shape();
  shape.type = type;
  shape.tied = ranks == 4;
  const TempDir dir;
  TinyLlama(shape, 3).write(dir.path());
  compare_logits(dir.path(), ranks, shape.vocab);
}

TEST_CASE("tensor parallel: every family gives its logits on 2 ranks, or is refused by name") {
  std::set<std::string> computed, refused;
  for (const auto& entry : fs::directory_iterator(kFamilies)) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    const std::string name = entry.path().filename().string();
    const OpenModel model = open_model(entry.path());
    try {
      static_cast<void>(share_of(model.config, 0, 2));
    } catch (const ConfigError& e) {
      INFO(name << ": " << e.what());
      CHECK(std::string(e.what()).starts_with("tensor parallel: "));
      refused.insert(name);
      continue;
    }
    INFO(name);
    CHECK_NOTHROW(compare_logits(entry.path(), 2, model.config.vocab_size));
    computed.insert(name);
  }
  for (const char* name :
       {"llama3", "mistral_window", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "glm4",
        "starcoder2", "stablelm_parallel", "smollm3", "nemotron", "exaone4", "apertus",
        // mixtures, with shared experts, biases and sinks; states in place of attention
        "mixtral", "qwen2_moe", "qwen3_moe", "granitemoeshared", "gpt_oss", "lfm2", "qwen3_5",
        "granite4_rope"}) {
    INFO(name);
    CHECK(computed.count(name) == 1);
  }
  for (const char* name : {"olmo2", "olmoe", "deepseek_v3", "cohere"}) {
    INFO(name);
    CHECK(refused.count(name) == 1);
  }
}

TEST_CASE("tensor parallel: boundaries, events and recall lists are those of one process") {
  const int ranks = GENERATE(2, 4);
  const std::string more =
      GENERATE(as<std::string>(), R"(, "refine": "modularity")", R"(, "refine": "conductance")",
               R"(, "scope": "head")", R"(, "recall_groups": 4)", R"(, "kv_dtype": "bfloat16")");
  const TempDir dir;
  const TinyShape shape = divided_shape();
  TinyLlama(shape, 3).write(dir.path());
  compare_memories(dir.path(), ranks, memory_config(more), shape.vocab);
}

TEST_CASE("tensor parallel: sliding layers beside a memory") {
  for (const char* family : {"gemma3", "gemma2"}) {
    const fs::path dir = kFamilies / family;
    const ModelConfig config = load_model_config(dir);
    INFO(family);
    compare_memories(dir, 2, memory_config(R"(, "refine": "modularity")"), config.vocab_size);
  }
}

TEST_CASE("tensor parallel: mixtures and states in place of attention beside a memory") {
  for (const char* family : {"mixtral", "gpt_oss", "lfm2"}) {
    const fs::path dir = kFamilies / family;
    const ModelConfig config = load_model_config(dir);
    INFO(family);
    compare_memories(dir, 2, memory_config(R"(, "refine": "modularity")"), config.vocab_size);
  }
}

TEST_CASE("tensor parallel: a step sends what the formula says") {
  const int ranks = GENERATE(2, 4);
  const TinyShape shape = divided_shape();
  const TempDir dir;
  TinyLlama(shape, 3).write(dir.path());
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    Decoder model = opened(dir.path(), group);
    for (const std::int64_t n : {40, 1}) {
      const std::int64_t before = group->counters().bytes;
      model.step(random_ids(n, shape.vocab, 6), StepKind::prompt);
      // of each layer two sums of the residual stream; the first rank says which step it is
      std::int64_t expected =
          2 * shape.layers * Group::sum_bytes(n * shape.hidden, 4, ranks, group->rank());
      if (group->rank() == 0) expected += (ranks - 1) * 8 * (n + 3);
      require(group->counters().bytes - before == expected, "other bytes");
    }
  });
}

TEST_CASE("tensor parallel: weights in blocks are cut between them") {
  const TempDir dir;
  TinyShape shape = divided_shape();
  shape.hidden = 64;
  shape.inner = 128;
  shape.dim = 16;
  TinyLlama(shape, 3).write(dir.path());
  const TensorType type = GENERATE(TensorType::q8_0, TensorType::q4_0);
  const auto rounded = [&](const std::shared_ptr<Group>& group) {
    ModelOptions options;
    options.quantize = type;
    options.group = group;
    return Decoder::load(open_model(dir.path(), options));
  };
  const std::vector<std::int64_t> ids = random_ids(30, shape.vocab, 5);
  Decoder whole = rounded(nullptr);
  const auto expected = logits_of(whole, ids);
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Decoder model = rounded(group);
    const auto made = logits_of(model, ids);
    for (std::size_t i = 0; i < made.size(); ++i)
      require(relative_error(expected[i], made[i]) < 2e-2, "other logits");  // rounded activations
  });
}

TEST_CASE("tensor parallel: each rank has its rows and columns of every type of weights") {
  TinyShape shape = divided_shape();
  shape.vocab = 4;
  shape.hidden = 256;
  shape.inner = 512;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.dim = 128;
  shape.attention_bias = shape.mlp_bias = false;
  shape.layers = 1;
  const ModelConfig config =
      parse_model_config(TinyLlama(shape, 1).config().dump(), "", "made.gguf");
  using T = TensorType;
  const TensorType type =
      GENERATE(T::f32, T::f16, T::bf16, T::q4_0, T::q4_1, T::q5_0, T::q5_1, T::q8_0, T::q2_k,
               T::q3_k, T::q4_k, T::q5_k, T::q6_k, T::iq4_nl, T::mxfp4, T::iq2_xxs, T::iq2_xs,
               T::iq2_s, T::iq3_xxs, T::iq3_s, T::iq1_s, T::iq1_m, T::iq4_xs, T::nvfp4);
  INFO(name_of(type));
  const auto tensors = std::make_shared<const RandomTensors>(config, type);
  const PlannedWeights whole(config, tensors);
  const auto ends = make_thread_group(2);
  for (int rank = 0; rank < 2; ++rank) {
    OpenModel model;
    model.config = config;
    model.tensors = tensors;
    take_share(model, ends[static_cast<std::size_t>(rank)]);
    const PlannedWeights mine(model.config, model.tensors);
    for (const WeightRole role : kLayerProducts) {
      const WeightView part = mine.at(role, 0), all = whole.at(role, 0);
      const bool by_columns = role == WeightRole::o || role == WeightRole::down;
      REQUIRE(part.rows * part.columns * 2 == all.rows * all.columns);
      REQUIRE((part.columns != all.columns) == by_columns);
      const std::vector<float> x = widened(part), y = widened(all);
      bool same = true;
      for (std::int64_t r = 0; r < part.rows; ++r)
        for (std::int64_t c = 0; c < part.columns; ++c) {
          const std::int64_t row = by_columns ? r : rank * part.rows + r;
          const std::int64_t column = by_columns ? rank * part.columns + c : c;
          same &= std::memcmp(&x[static_cast<std::size_t>(r * part.columns + c)],
                              &y[static_cast<std::size_t>(row * all.columns + column)], 4) == 0;
        }
      CHECK(same);
    }
    CHECK(mine.at(WeightRole::head).data == whole.at(WeightRole::head).data);  // nothing is copied
    CHECK(mine.at(WeightRole::q, 0).data ==
          whole.at(WeightRole::q, 0).data +
              rank * mine.at(WeightRole::q, 0).rows * whole.at(WeightRole::q, 0).row_bytes());
  }
}

TEST_CASE("tensor parallel: what is not divided is refused by name") {
  const TempDir dir;
  TinyShape shape = divided_shape();
  TinyLlama(shape, 3).write(dir.path());
  const auto refusal = [&](int ranks, const ModelOptions& given = {}) {
    const auto ends = make_thread_group(ranks);
    ModelOptions options = given;
    options.group = ends[0];
    try {
      open_model(dir.path(), options);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refusal(2).empty());
  CHECK_THAT(refusal(8), Catch::Matchers::Contains("8 ranks do not divide the 4 key/value heads"));
  CHECK_THAT(refusal(3), Catch::Matchers::Contains("3 ranks do not divide the 4 key/value heads"));
  ModelOptions blocks;
  blocks.quantize = TensorType::q8_0;  // 64 columns in two blocks
  CHECK(refusal(2, blocks).empty());
  CHECK_THAT(refusal(4, blocks),
             Catch::Matchers::Contains("in blocks of 32 numbers, and 4 ranks have 16 of its 64"));
}

TEST_CASE("tensor parallel: ranks that are fed other tokens make no step") {
  const TempDir dir;
  const TinyShape shape = divided_shape();
  TinyLlama(shape, 3).write(dir.path());
  const std::vector<std::int64_t> ids = random_ids(20, shape.vocab, 5);
  const auto errors = try_ranks(3 - 1, [&](const std::shared_ptr<Group>& group) {
    Decoder model = opened(dir.path(), group);
    patch(model, memory_config());
    model.step(std::span(ids).first(10), StepKind::prompt);
    std::string said;
    try {
      model.step(std::span(ids).subspan(group->rank() == 0 ? 0u : 5u, 7), StepKind::prompt);
    } catch (const Error& e) {
      said = e.what();
    }
    require(said.find("rank 1 of 2 was given another step than rank 0") != std::string::npos ||
                said.find("rank 1 of 2: Decoder") != std::string::npos,
            "it said: " + said);
    require(model.tokens() == 10, "the step counted");
    // and all go on
    model.step(std::span(ids).subspan(10, 10), StepKind::prompt);
    require(model.tokens() == 20, "the step did not count");
  });
  for (const auto& error : errors) CHECK(message_of(error).empty());
}
