// SPDX-License-Identifier: Apache-2.0

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/episodic_attention.hpp"
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
  void forward(const TensorView& q, const TensorView& k, const TensorView& v,
               const MutableTensorView& out) override {
    ++calls;
    for (const TensorView& x : {q, k, v, TensorView(out)}) REQUIRE(x.packed());
    REQUIRE(k.sizes.heads == v.sizes.heads);
    REQUIRE(out.sizes.heads == q.sizes.heads);
    if (fail) throw std::runtime_error("slot");
    inner_->forward(q, k, v, out);
  }
  int calls = 0;
  bool fail = false;

 private:
  std::shared_ptr<AttentionSlot> inner_;
};

class Listener : public SequenceState {
 public:
  void begin_step(std::span<const std::int64_t> ids, StepKind) override {
    begun.assign(ids.begin(), ids.end());
  }
  void end_step(std::span<const std::int64_t> ids, const LogitsView& logits) override {
    ended.assign(ids.begin(), ids.end());
    rows = logits.rows;
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
  void forward(const TensorView&, const TensorView&, const TensorView&,
               const MutableTensorView& out) override {
    std::fill_n(static_cast<float*>(out.data), out.sizes.n * out.sizes.heads * out.sizes.dim, 0.0f);
  }
};

std::vector<float> values(const LogitsView& t) { return {t.floats().begin(), t.floats().end()}; }

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

TEST_CASE("slot: a layer without a slot, or a model without a state, is refused") {
  const TempDir dir;
  TinyLlama({}, 1).write(dir.path());
  Decoder model = Decoder::load(dir.path());
  const std::vector<std::int64_t> ids{1, 2};
  model.attention(0) = nullptr;
  REQUIRE_THROWS_AS(model.forward(ids), DataError);
  REQUIRE_THROWS_AS(model.attention(2), DataError);
  REQUIRE_THROWS_AS(model.attention(-1), DataError);
  use_full_attention(model);
  REQUIRE(model.forward(ids).rows == 2);
  model.state() = nullptr;
  REQUIRE_THROWS_AS(model.forward(ids), DataError);
}

TEST_CASE("slot: full attention checks what it is given") {
  const TempDir dir;
  TinyLlama({}, 1).write(dir.path());
  Decoder model = Decoder::load(dir.path());
  std::vector<float> numbers(4 * 4 * 12), written(numbers.size(), -1.0f);
  const TensorView q(numbers.data(), DType::float32, {1, 4, 12});
  const TensorView k(numbers.data(), DType::float32, {1, 2, 12});
  const MutableTensorView out(written.data(), DType::float32, {1, 4, 12});
  const auto refused = [&](const TensorView& a, const TensorView& b, const TensorView& c,
                           const MutableTensorView& to, const char* named) {
    return mentions(refusal<DataError>([&] { model.attention(0)->forward(a, b, c, to); }),
                    std::string("causal attention: ") + named + " must be packed float32 rows");
  };
  REQUIRE(refused(q, k, k, out, "q"));  // outside a step
  const std::vector<std::int64_t> ids{1};
  model.state()->begin_step(ids);
  REQUIRE(refused(q, q, k, out, "k"));
  TensorView halves = k, apart = q, elsewhere = k;
  halves.dtype = DType::bfloat16;
  apart.strides.head = 24;
  elsewhere.memory = MemoryKind::cuda;
  REQUIRE(refused(q, k, halves, out, "v"));
  REQUIRE(refused(apart, k, k, out, "q"));
  REQUIRE(refused(q, elsewhere, k, out, "k"));
  REQUIRE(refused(q, k, k, MutableTensorView(written.data(), DType::float32, {1, 2, 12}), "out"));
  REQUIRE(written == std::vector<float>(written.size(), -1.0f));
  model.attention(0)->forward(q, k, k, out);
  REQUIRE(std::count(written.begin(), written.end(), -1.0f) ==
          static_cast<std::ptrdiff_t>(written.size()) - 48);
}

TEST_CASE("slot: a memory reads and writes rows where they lie, in any strides and dtype") {
  constexpr std::int64_t kRows = 5, kHeads = 4, kKvHeads = 2, kDim = 16;
  MemoryConfig config;
  config.n_local = 64;
  const MemoryShape shape{1, kHeads, kKvHeads, kDim, plain_rotary(kDim, 10000.0)};
  std::vector<float> fused(kRows * (kHeads + 2 * kKvHeads) * kDim);
  for (std::size_t i = 0; i < fused.size(); ++i)
    fused[i] = from_bfloat16(to_bfloat16(std::sin(static_cast<float>(i * i % 1013))));
  std::vector<std::uint16_t> halves;
  for (const float x : fused) halves.push_back(to_bfloat16(x));
  // [n, heads, d] each, packed one behind another
  const auto part = [&](std::int64_t first, std::int64_t heads) {
    std::vector<float> rows;
    for (std::int64_t i = 0; i < kRows; ++i) {
      const auto from = fused.begin() + (i * (kHeads + 2 * kKvHeads) + first) * kDim;
      rows.insert(rows.end(), from, from + heads * kDim);
    }
    return rows;
  };
  const std::vector<float> q = part(0, kHeads), k = part(kHeads, kKvHeads),
                           v = part(kHeads + kKvHeads, kKvHeads);
  std::vector<float> expected(q.size());
  const auto attend = [&](const TensorView& a, const TensorView& b, const TensorView& c,
                          const MutableTensorView& to) {
    const auto memory = std::make_shared<EpisodicMemory>(config, shape);
    memory->begin_step(kRows);
    EpisodicAttention(memory, 0).forward(a, b, c, to);
  };
  attend({q.data(), DType::float32, {kRows, kHeads, kDim}},
         {k.data(), DType::float32, {kRows, kKvHeads, kDim}},
         {v.data(), DType::float32, {kRows, kKvHeads, kDim}},
         {expected.data(), DType::float32, {kRows, kHeads, kDim}});

  constexpr std::int64_t kRow = (kHeads + 2 * kKvHeads) * kDim;
  const auto view = [&](const auto& of, DType dtype, std::int64_t first, std::int64_t heads) {
    return TensorView(of.data() + first * kDim, dtype, {kRows, heads, kDim}, {kRow, kDim});
  };
  // heads first, as some models keep what attention gives
  std::vector<float> heads_first(q.size());
  attend(view(fused, DType::float32, 0, kHeads), view(fused, DType::float32, kHeads, kKvHeads),
         view(fused, DType::float32, kHeads + kKvHeads, kKvHeads),
         {heads_first.data(), DType::float32, {kRows, kHeads, kDim}, {kDim, kRows * kDim}});
  std::vector<std::uint16_t> narrow(q.size());
  attend(view(halves, DType::bfloat16, 0, kHeads), view(halves, DType::bfloat16, kHeads, kKvHeads),
         view(halves, DType::bfloat16, kHeads + kKvHeads, kKvHeads),
         {narrow.data(), DType::bfloat16, {kRows, kHeads, kDim}});
  for (std::int64_t i = 0; i < kRows; ++i)
    for (std::int64_t h = 0; h < kHeads; ++h)
      for (std::int64_t c = 0; c < kDim; ++c) {
        const auto at = static_cast<std::size_t>((i * kHeads + h) * kDim + c);
        REQUIRE(heads_first[static_cast<std::size_t>((h * kRows + i) * kDim + c)] == expected[at]);
        REQUIRE(narrow[at] == to_bfloat16(expected[at]));
      }
  // what it cannot take is named
  const auto memory = std::make_shared<EpisodicMemory>(config, shape);
  memory->begin_step(kRows);
  EpisodicAttention slot(memory, 0);
  const TensorView good = view(fused, DType::float32, 0, kHeads);
  const TensorView keys = view(fused, DType::float32, kHeads, kKvHeads);
  const MutableTensorView out(expected.data(), DType::float32, {kRows, kHeads, kDim});
  const auto said = [&](const TensorView& a, const TensorView& b, const TensorView& c,
                        const MutableTensorView& to) {
    return refusal<DataError>([&] { slot.forward(a, b, c, to); });
  };
  TensorView codes = good, elsewhere = keys;
  codes.dtype = DType::int8;
  elsewhere.memory = MemoryKind::cuda;
  REQUIRE(mentions(said(codes, keys, keys, out), "q is [5, 4, 16] of int8 on cpu"));
  REQUIRE(mentions(said(good, elsewhere, keys, out), "k is [5, 2, 16] of float32 on cuda"));
  REQUIRE(mentions(said(good, keys, good, out), "v is [5, 4, 16] of float32 on cpu"));
  REQUIRE(mentions(
      said(good, keys, keys, MutableTensorView(expected.data(), DType::float32, {4, 4, 16})),
      "out is [4, 4, 16]"));
  slot.forward(good, keys, keys, out);  // and the step goes on
}

TEST_CASE("slot: a state takes logits in any dtype and with rows apart") {
  constexpr std::int64_t kVocab = 40, kRows = 3, kStride = 53;
  MemoryConfig config;
  config.n_local = 64;
  const MemoryShape shape{1, 2, 1, 8, plain_rotary(8, 10000.0)};
  std::vector<float> packed, apart(kRows * kStride, NAN);
  std::vector<std::uint16_t> bf16(kRows * kStride, 0x7fc0), f16(kRows * kStride, 0x7e00);
  for (std::int64_t i = 0; i < kRows; ++i)
    for (std::int64_t c = 0; c < kVocab; ++c) {
      const float x = static_cast<float>((i * 17 + c * c) % 29) / 4 - 3;  // which all types have
      packed.push_back(x);
      const auto at = static_cast<std::size_t>(i * kStride + c);
      apart[at] = x;
      bf16[at] = to_bfloat16(x);
      f16[at] = to_float16(x);
    }
  const std::vector<std::int64_t> ids{4, 9, 31};
  const std::vector<float> row(2 * 8, 0.5f);
  const auto surprise = [&](const LogitsView& logits) {
    const auto memory = std::make_shared<EpisodicMemory>(config, shape);
    EpisodicState state(memory);
    state.begin_step(ids);
    std::vector<float> q(kRows * 16, 0.5f), out(q.size());
    EpisodicAttention(memory, 0).forward(
        {q.data(), DType::float32, {kRows, 2, 8}}, {q.data(), DType::float32, {kRows, 1, 8}},
        {q.data(), DType::float32, {kRows, 1, 8}}, {out.data(), DType::float32, {kRows, 2, 8}});
    state.end_step(ids, logits);
    std::vector<float> seen = memory->last_step().surprise;
    seen.insert(seen.end(), state.last_logits().begin(), state.last_logits().end());
    return seen;
  };
  const std::vector<float> expected = surprise({packed.data(), kRows, kVocab});
  REQUIRE(std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
  REQUIRE(surprise({apart.data(), kRows, kVocab, kStride}) == expected);
  REQUIRE(surprise({bf16.data(), kRows, kVocab, kStride, DType::bfloat16}) == expected);
  REQUIRE(surprise({f16.data(), kRows, kVocab, kStride, DType::float16}) == expected);
  for (const LogitsView& wrong :
       {LogitsView(packed.data(), 2, kVocab), LogitsView(),
        LogitsView(packed.data(), kRows, kVocab, kVocab - 1),
        LogitsView(packed.data(), kRows, kVocab, kVocab, DType::int8),
        LogitsView(packed.data(), kRows, kVocab, kVocab, DType::float32, MemoryKind::cuda)})
    REQUIRE(mentions(refusal<DataError>([&] { surprise(wrong); }), "expected logits [3, vocab]"));
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
  const LogitsView last = model.forward(ids, LogitRows::last);
  REQUIRE(listener->rows == 3);
  REQUIRE(last.rows == 1);
  REQUIRE(values(last) == std::vector<float>(all.end() - last.vocab, all.end()));
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
