// SPDX-License-Identifier: Apache-2.0
// Patching a torch::nn model that is not this library's: the one of examples/patch_your_model.
#include "../examples/patch_your_model/your_model.hpp"

#include <torch/utils.h>

#include "support/test.hpp"

#include "episodic/base/error.hpp"
#include "support/refusal.hpp"

using namespace episodic;

namespace own_model_test {

MemoryConfig small(std::int64_t n_local = 256) {
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = n_local;
  config.n_mem = 64;
  config.chunk = 64;
  config.min_block = 8;
  return config;
}

std::shared_ptr<EpisodicMemory> memory_for(const yours::Sequence& sequence, std::int64_t layers,
                                           const MemoryConfig& config = small()) {
  return std::make_shared<EpisodicMemory>(config, sequence.shape(layers));
}

yours::Sizes of_layers(std::int64_t n) {
  yours::Sizes sizes;
  sizes.layers = n;
  return sizes;
}

torch::Tensor random_ids(std::int64_t n) { return torch::randint(0, 96, {n}, torch::kLong); }

/// The sequence in one step without a memory, and in steps of `piece` tokens.
torch::Tensor in_steps(yours::Sequence& sequence, const torch::Tensor& ids, std::int64_t piece) {
  std::vector<torch::Tensor> logits;
  for (const torch::Tensor& step : ids.split(piece)) logits.push_back(sequence.step(step));
  return torch::cat(logits);
}

/// torch's own products on one thread: with several, their bits depend on how many cores were free.
struct OneThread {
  OneThread() : before(torch::get_num_threads()) { torch::set_num_threads(1); }
  ~OneThread() { torch::set_num_threads(before); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  int before;
};

double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

/// A state that counts, as that of a decoder with a cache of its own.
struct Counting final : SequenceState {
  void begin_step(std::span<const std::int64_t>, StepKind) override {}
  void end_step(std::span<const std::int64_t> ids, const LogitsView& logits) override {
    rows = logits.rows;
    seen += static_cast<std::int64_t>(ids.size());
  }
  bool wants_all_logits() const override { return true; }
  std::int64_t tokens() const override { return seen; }
  std::int64_t chunk() const override { return 64; }
  void reset() override { seen = 0; }
  std::int64_t seen = 0, rows = 0;
};

TEST_CASE("own model: inside the window the logits are those of its own attention", "[proof]") {
  const OneThread one_thread;
  torch::manual_seed(1);
  yours::Sequence sequence(yours::random_model(of_layers(3)));
  const torch::Tensor ids = random_ids(150);
  const torch::Tensor own = sequence.step(ids);
  for (const std::int64_t piece : {1, 7, 64}) {
    const auto memory = memory_for(sequence, 3);
    patch(sequence, memory);
    REQUIRE(memory_of(sequence) == memory);
    REQUIRE(largest_difference(in_steps(sequence, ids, piece), own) < 1e-5);
    REQUIRE(memory->tokens() == 150);
  }
  REQUIRE(unpatch(sequence));
  REQUIRE(memory_of(sequence) == nullptr);
  REQUIRE(torch::equal(sequence.step(ids), own));
  REQUIRE_FALSE(unpatch(sequence));
  REQUIRE(torch::equal(sequence.step(ids), own));
}

TEST_CASE("own model: what left the window is recalled, and changes the logits") {
  torch::manual_seed(2);
  const yours::Model model = yours::random_model();
  const torch::Tensor passage = torch::arange(0, 16, torch::kLong);
  const torch::Tensor text = torch::randint(16, 96, {1200}, torch::kLong);
  const auto read = [&](bool recall) {
    yours::Sequence sequence(model);
    MemoryConfig config = small(64);
    config.recall = recall;
    const auto memory = memory_for(sequence, 2, config);
    patch(sequence, memory);
    in_steps(sequence, text.slice(0, 0, 128), 64);
    sequence.step(passage);
    in_steps(sequence, text.slice(0, 128), 64);
    const torch::Tensor logits = sequence.step(passage);
    bool found = false;
    for (const EventId event : memory->recalled(0).similarity()) {
      const TokenRange range = memory->events()[event];
      found = found || (range.start < 144 && range.end > 128);
    }
    REQUIRE(found == recall);
    REQUIRE(unpatch(sequence));
    return logits;
  };
  REQUIRE(largest_difference(read(true), read(false)) > 1e-3);
}

TEST_CASE("own model: patching twice begins anew and keeps the way back") {
  const OneThread one_thread;
  torch::manual_seed(3);
  yours::Sequence sequence(yours::random_model());
  const torch::Tensor ids = random_ids(64);
  const torch::Tensor own = sequence.step(ids);
  const auto first = memory_for(sequence, 2), second = memory_for(sequence, 2);
  patch(sequence, first);
  sequence.step(random_ids(30));
  patch(sequence, second);
  REQUIRE(memory_of(sequence) == second);
  REQUIRE(largest_difference(sequence.step(ids), own) < 1e-5);
  REQUIRE(first->tokens() == 30);
  REQUIRE(second->tokens() == 64);
  REQUIRE(unpatch(sequence));
  REQUIRE(sequence.state() == nullptr);
  REQUIRE(sequence.attention(0) == nullptr);
  REQUIRE(torch::equal(sequence.step(ids), own));
}

TEST_CASE("own model: some layers, the others keep their own attention and state") {
  const OneThread one_thread;
  torch::manual_seed(4);
  yours::Sequence sequence(yours::random_model(of_layers(4)));
  const torch::Tensor ids = random_ids(60);
  const torch::Tensor own = sequence.step(ids);
  const auto state = std::make_shared<Counting>();
  sequence.state() = state;
  const auto memory = memory_for(sequence, 2);
  patch(sequence, memory, {1, 3});
  REQUIRE(sequence.attention(0) == nullptr);
  REQUIRE(sequence.attention(1) != nullptr);
  REQUIRE(largest_difference(sequence.step(ids), own) < 1e-5);
  REQUIRE(state->seen == 60);
  REQUIRE(state->rows == 60);
  SECTION("the former state hears a reset of the memory, and not of a rewinding") {
    memory->reset();
    sequence.step(random_ids(10));
    REQUIRE(state->seen == 10);
    const auto snapshot = memory->snapshot();
    sequence.step(random_ids(10));
    memory->restore(*snapshot);
    REQUIRE(mentions(refusal<DataError>([&] { sequence.step(ids); }),
                     "at token 10, but the model's other layers have seen 20"));
  }
  SECTION("another choice of layers begins anew") {
    patch(sequence, memory_for(sequence, 1), {0});
    REQUIRE(sequence.attention(1) == nullptr);
    REQUIRE(largest_difference(sequence.step(ids), own) < 1e-5);
    REQUIRE(state->seen == 60);
  }
  SECTION("a memory that has read cannot go on without the other layers") {
    const auto read = memory_for(sequence, 2);
    yours::Sequence other(yours::random_model());
    patch(other, read);
    other.step(ids.slice(0, 0, 20));
    REQUIRE(mentions(refusal<ConfigError>([&] {
                       patch(sequence, read, {0, 1});
                     }),
                     "have seen 60 tokens, the memory 20"));
    REQUIRE(memory_of(sequence) == memory);
  }
  REQUIRE(unpatch(sequence));
  REQUIRE(sequence.state() == state);
  REQUIRE(state->seen == 0);
  REQUIRE(torch::equal(sequence.step(ids), own));
}

TEST_CASE("own model: nothing to patch, layers that are not there, another shape") {
  torch::manual_seed(5);
  torch::nn::Linear bare(4, 4);
  PatchPoints points;
  points.slots = slots_in(*bare);
  std::shared_ptr<SequenceState> state;
  points.state = &state;
  yours::Sequence sequence(yours::random_model());
  const auto memory = memory_for(sequence, 2);
  const auto refused = [&](auto&& f) { return refusal<ConfigError>(f); };
  REQUIRE(mentions(refused([&] { patch(points, memory); }), "no layer with an attention slot"));
  REQUIRE_FALSE(unpatch(points));
  REQUIRE(state == nullptr);
  REQUIRE(mentions(refused([&] { patch(sequence, nullptr); }), "memory is null"));
  REQUIRE(mentions(refused([&] { patch(sequence, memory, {0, 2}); }), "layers[1] = 2"));
  REQUIRE(mentions(refused([&] { patch(sequence, memory, {1, 0}); }), "layers[1] = 0"));
  REQUIRE(mentions(refused([&] { patch(sequence, memory, {-1, 0}); }), "layers[0] = -1"));
  REQUIRE(mentions(refused([&] { patch(sequence, memory, {1}); }),
                   "made for 2 layers, but 1 are to be patched"));
  REQUIRE(sequence.attention(0) == nullptr);
  REQUIRE(sequence.state() == nullptr);

  // a memory made for other heads is noticed by the first step, which leaves it as it was
  yours::Sizes sizes;
  sizes.heads = 8;
  sizes.head_dim = 16;
  yours::Sequence wide(yours::random_model(sizes));
  patch(wide, memory);
  REQUIRE(mentions(refusal<DataError>([&] { wide.step(random_ids(3)); }),
                   "q is [3, 8, 16] of float32 on cpu, expected [3, 4, 32]"));
  REQUIRE(memory->tokens() == 0);
}

TEST_CASE("own model: dtype or device changed after patching") {
  torch::manual_seed(6);
  yours::Model model = yours::random_model();
  yours::Sequence sequence(model);
  const torch::Tensor ids = random_ids(96);
  const torch::Tensor own = sequence.step(ids);
  const auto memory = memory_for(sequence, 2);
  patch(sequence, memory);
  const torch::Tensor first = sequence.step(ids.slice(0, 0, 48));

  SECTION("bfloat16 is computed with, in the model's dtype") {
    model->to(torch::kBFloat16);
    const torch::Tensor logits = sequence.step(ids.slice(0, 48));
    REQUIRE(logits.scalar_type() == torch::kBFloat16);
    REQUIRE(largest_difference(logits.to(torch::kFloat), own.slice(0, 48)) < 0.05);
    REQUIRE(memory->tokens() == 96);
  }
  SECTION("what is not computed with is one error, and the sequence goes on after it") {
    model->to(torch::kDouble);
    REQUIRE(mentions(refusal<DataError>([&] { sequence.step(ids.slice(0, 48)); }),
                     "q is [48, 4, 32] of Double on cpu"));
    REQUIRE(memory->tokens() == 48);
    model->to(torch::kFloat);
    // a device that every torch has
    const auto meta = torch::empty({48, 4, 32}, torch::kMeta);
    sequence.state()->begin_step({ids.const_data_ptr<std::int64_t>(), 48});
    REQUIRE(mentions(refusal<DataError>([&] { attend(*sequence.attention(0), meta, meta, meta); }),
                     "q is [48, 4, 32] of Float on meta"));
    REQUIRE(memory->tokens() == 48);
    const torch::Tensor second = sequence.step(ids.slice(0, 48));
    REQUIRE(largest_difference(torch::cat({first, second}), own) < 1e-5);
  }
  REQUIRE(unpatch(sequence));
}

}  // namespace own_model_test
