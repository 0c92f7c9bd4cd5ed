// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "support/test.hpp"

#include <cmath>
#include <stdexcept>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/session/session.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "tiny_llama.hpp"

using namespace episodic;

namespace slot_test {

/// Hands on to another slot, unless told to fail.
class Probe : public AttentionSlot {
 public:
  explicit Probe(std::shared_ptr<AttentionSlot> inner) : inner_(std::move(inner)) {}
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    ++calls;
    REQUIRE(q.is_contiguous());
    REQUIRE(k.sizes() == v.sizes());
    if (fail) throw std::runtime_error("slot");
    return wrong.defined() ? wrong : inner_->forward(q, k, v);
  }
  int calls = 0;
  bool fail = false;
  at::Tensor wrong;

 private:
  std::shared_ptr<AttentionSlot> inner_;
};

class Listener : public SequenceState {
 public:
  void begin_step(std::span<const std::int64_t> ids, StepKind) override {
    begun.assign(ids.begin(), ids.end());
  }
  void end_step(std::span<const std::int64_t> ids, const at::Tensor& logits) override {
    ended.assign(ids.begin(), ids.end());
    rows = logits.size(0);
  }
  bool wants_all_logits() const override { return all; }
  std::int64_t tokens() const override { return 0; }
  std::int64_t chunk() const override { return 4; }
  void reset() override { ++resets; }
  std::vector<std::int64_t> begun, ended;
  std::int64_t rows = 0;
  int resets = 0;
  bool all = true;
};

struct Silent : AttentionSlot {
  at::Tensor forward(const at::Tensor& q, const at::Tensor&, const at::Tensor&) override {
    return at::zeros({q.size(0), q.size(1) * q.size(2)}, at::kFloat);
  }
};

std::vector<float> values(const at::Tensor& t) {
  const float* p = t.const_data_ptr<float>();
  return {p, p + t.numel()};
}

TEST_CASE("slot: a step that throws in a layer leaves the sequence as it was") {
  const TempDir dir;
  TinyLlama({}, 1).write(dir.path());
  Decoder model = Decoder::load(dir.path()), untouched = model.share_weights();
  const std::vector<std::int64_t> first{1, 2, 3, 4, 5}, failing{9, 8, 7}, second{6, 7};
  auto probe = std::make_shared<Probe>(model.attention(1));
  model.attention(1) = probe;
  model.forward(first);
  probe->fail = true;
  REQUIRE_THROWS_AS(model.forward(failing), std::runtime_error);
  REQUIRE(model.state()->tokens() == 5);
  probe->fail = false;
  untouched.forward(first);
  REQUIRE(values(model.forward(second)) == values(untouched.forward(second)));
  REQUIRE(probe->calls == 3);
}

TEST_CASE("slot: a weight that is not finite is named by the step that meets it") {
  const TempDir dir;
  const TinyLlama whole({}, 1);
  whole.write(dir.path());
  std::vector<TensorToWrite> tensors = whole.tensors();
  std::vector<float> damaged;
  for (TensorToWrite& t : tensors) {
    if (t.name != "model.layers.1.mlp.down_proj.weight") continue;
    const auto* from = static_cast<const float*>(t.data);
    damaged.assign(from, from + t.shape[0] * t.shape[1]);
    damaged[static_cast<std::size_t>(7 * t.shape[1])] = NAN;
    t.data = damaged.data();
  }
  write_safetensors(dir / "model.safetensors", tensors);
  const std::string said =
      "tensor 'model.layers.1.mlp.down_proj.weight' holds NaN or infinity in row 7";
  const std::vector<std::int64_t> ids{1, 2, 3, 4, 5};
  std::vector<float> following(4);
  Decoder model = Decoder::load(dir.path());
  const auto refused = [&](const auto& step) { return mentions(refusal<FileError>(step), said); };

  REQUIRE(refused([&] { model.forward_surprise(ids, following); }));  // its surprise is NaN
  model.reset();
  REQUIRE(refused([&] { Session(model).generate(ids); }));  // no token can be sampled
  Decoder second = model.share_weights();
  MemoryConfig config;
  config.n_local = 64;
  const auto memory = patch(model, config);
  patch(second, config);
  REQUIRE(refused([&] { model.forward(ids); }));  // the memory refuses the step
  REQUIRE(memory->tokens() == 0);
  const Decoder::SequenceStep batch[] = {{&model, ids, {}}, {&second, ids, {}}};
  REQUIRE(refused([&] { Decoder::step_batch(batch); }));
  REQUIRE(memory->tokens() == 0);
  // what is the caller's mistake is said as before
  REQUIRE_THROWS_AS(model.forward(std::vector<std::int64_t>{61}), DataError);
}

TEST_CASE("slot: what a slot returns is checked") {
  const TempDir dir;
  TinyLlama({}, 1).write(dir.path());
  Decoder model = Decoder::load(dir.path());
  auto probe = std::make_shared<Probe>(model.attention(0));
  model.attention(0) = probe;
  const std::vector<std::int64_t> ids{1, 2};
  for (const at::Tensor& wrong :
       {at::zeros({2, 47}, at::kFloat), at::zeros({1, 48}, at::kFloat), at::zeros({96}, at::kFloat),
        at::zeros({2, 48}, at::kDouble), at::zeros({48, 2}, at::kFloat).t()}) {
    probe->wrong = wrong;
    REQUIRE_THROWS_AS(model.forward(ids), DataError);
  }
  model.attention(0) = nullptr;
  REQUIRE_THROWS_AS(model.forward(ids), DataError);
  REQUIRE_THROWS_AS(model.attention(2), DataError);
  REQUIRE_THROWS_AS(model.attention(-1), DataError);
  use_full_attention(model);
  REQUIRE(model.forward(ids).size(0) == 2);
  model.state() = nullptr;
  REQUIRE_THROWS_AS(model.forward(ids), DataError);
}

TEST_CASE("slot: full attention checks what it is given") {
  const TempDir dir;
  TinyLlama({}, 1).write(dir.path());
  Decoder model = Decoder::load(dir.path());
  const auto q = at::zeros({1, 4, 12}, at::kFloat), k = at::zeros({1, 2, 12}, at::kFloat);
  REQUIRE_THROWS_AS(model.attention(0)->forward(q, k, k), DataError);  // outside a step
  const std::vector<std::int64_t> ids{1};
  model.state()->begin_step(ids);
  REQUIRE(model.attention(0)->forward(q, k, k).size(1) == 48);
  REQUIRE_THROWS_AS(model.attention(0)->forward(q, q, k), DataError);
  REQUIRE_THROWS_AS(model.attention(0)->forward(q, k, k.to(at::kDouble)), DataError);
}

TEST_CASE("slot: the state hears of every step and gets the rows that it wants") {
  const TempDir dir;
  TinyLlama({}, 1).write(dir.path());
  Decoder model = Decoder::load(dir.path());
  auto listener = std::make_shared<Listener>();
  model.state() = listener;
  for (std::int64_t l = 0; l < 2; ++l) model.attention(l) = std::make_shared<Silent>();
  const std::vector<std::int64_t> ids{3, 1, 4};
  const auto all = values(model.forward(ids));
  REQUIRE(listener->begun == ids);
  REQUIRE(listener->ended == ids);
  REQUIRE(listener->rows == 3);
  const at::Tensor last = model.forward(ids, LogitRows::last);
  REQUIRE(listener->rows == 3);
  REQUIRE(last.size(0) == 1);
  REQUIRE(values(last) == std::vector<float>(all.end() - last.size(1), all.end()));
  listener->all = false;
  model.forward(ids, LogitRows::last);
  REQUIRE(listener->rows == 1);
  model.reset();
  REQUIRE(listener->resets == 1);
}

TEST_CASE("slot: patch refuses windows that the machine has no room for, before it takes any") {
  const TempDir dir;
  TinyLlama({}, 1).write(dir.path());
  Decoder model = Decoder::load(dir.path()), untouched = model.share_weights();
  for (const std::int64_t many : {std::int64_t{10'000'000'000}, std::int64_t{1'000'000'000'000}}) {
    MemoryConfig config;
    config.n_local = many;
    const std::string said = refusal<BudgetError>([&] { patch(model, config); });
    REQUIRE(mentions(said, "n_local = " + std::to_string(many)));
    REQUIRE(mentions(said, "available"));
    config.n_local = 256;
    config.n_init = many;  // sinks, and what a query then sees, which no machine can count in bytes
    REQUIRE(mentions(refusal([&] { patch(model, config); }), "n_init"));
  }
  REQUIRE(memory_of(model) == nullptr);
  const std::vector<std::int64_t> ids{1, 2, 3};
  REQUIRE(values(model.forward(ids)) == values(untouched.forward(ids)));
}

}  // namespace slot_test
