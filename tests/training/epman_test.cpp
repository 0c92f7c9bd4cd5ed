// SPDX-License-Identifier: Apache-2.0
// Training of an adapter under a memory: what is computed, what is learnt, what is written.
#include "episodic/training/epman.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "support/test.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/session/reader_heads.hpp"
#include "episodic/torch_slots/torch_slots.hpp"
#include "episodic/training/retrieval_loss.hpp"
#include "episodic/training/trainable_decoder.hpp"
#include "model/expected_logits.hpp"
#include "model/tiny_llama.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace {

MemoryConfig small_memory() {
  MemoryConfig c;
  c.n_init = 3;
  c.n_local = 12;
  c.n_mem = 16;
  c.chunk = 9;
  c.n_repr = 2;
  c.min_block = 2;
  c.max_block = 6;
  c.tau = 8;
  return c;
}

/// The tokenizer of the shipped model, whose vocabulary tiny models here have.
const Tokenizer& tokenizer() {
  static const auto t = load_tokenizer(fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6");
  return *t;
}

fs::path write_tiny(const TempDir& dir, unsigned seed = 5, std::int64_t vocab = 1024) {
  TinyShape shape;
  shape.vocab = vocab;
  fs::create_directories(dir / "model");
  TinyLlama(shape, seed).write(dir / "model");
  return dir / "model";
}

EpmanExample example(int number) {
  EpmanExample e;
  e.entries = {"The grass is green.\n", "The code of Rosa is " + std::to_string(number) + ".\n",
               "Here we go, there and back again.\n", "The sun is yellow.\n"};
  e.question = "\nWhat is the code of Rosa? It is";
  e.answer = " " + std::to_string(number) + ".\n";
  e.place = "made up";
  return e;
}

EpmanSettings settings() {
  EpmanSettings s;
  s.memory = small_memory();
  s.lora.rank = 3;
  s.lora.alpha = 6;
  s.steps = 6;
  s.batch = 2;
  s.warmup = 0;
  s.learning_rate = 2e-2;
  return s;
}

/// Logits of every row, steps of at most a chunk, then two of one token.
template <class Step>
std::vector<at::Tensor> all_rows(const std::vector<std::int64_t>& ids, std::int64_t chunk,
                                 Step&& step) {
  std::vector<at::Tensor> rows;
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::int64_t at = 0, size = 0; at < n; at += size) {
    size = at + 2 < n ? std::min(chunk, n - 2 - at) : 1;
    rows.push_back(
        step(std::span(ids).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size)))
            .detach()
            .clone());
  }
  return rows;
}

void same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected,
          double tolerance = 1e-4) {
  const at::Tensor a = at::cat(got), b = at::cat(expected);
  REQUIRE(a.sizes() == b.sizes());
  const double largest = b.abs().max().item<double>();
  REQUIRE(largest > 0.1);
  const double difference = (a - b).abs().max().item<double>();
  INFO("logits differ by " << difference << ", they are up to " << largest);
  REQUIRE(difference <= tolerance * largest);
}

/// What the decoder with its memory says of the same tokens.
std::vector<at::Tensor> of_decoder(const OpenModel& model, const MemoryConfig& memory,
                                   const std::vector<std::int64_t>& ids) {
  Decoder decoder = Decoder::load(model);
  patch(decoder, memory);
  return all_rows(ids, memory.chunk, [&](std::span<const std::int64_t> piece) {
    return tensor_of(decoder.forward(piece), at::kCPU);
  });
}

template <class Trainable>
std::vector<at::Tensor> of_trainable(Trainable& decoder, const std::vector<std::int64_t>& ids) {
  const at::NoGradGuard no_grad;
  decoder.begin();
  return all_rows(ids, decoder.memory().config().chunk, [&](std::span<const std::int64_t> piece) {
    return decoder.step(piece, StepKind::decode, static_cast<std::int64_t>(piece.size()));
  });
}

double loss_of(EpmanTrainer& trainer, const std::vector<EpmanExample>& examples) {
  double sum = 0;
  for (const EpmanExample& e : examples) sum += trainer.evaluate(e).loss;
  return sum / static_cast<double>(examples.size());
}

}  // namespace

TEST_CASE("with B = 0 a trainable decoder is the decoder with its memory, in every family") {
  int trained = 0;
  for (const fs::path& dir : family_checkpoints()) {
    INFO(dir.filename().string());
    const OpenModel model = open_model(dir);
    if (model.config.has_mixture() || has_recurrent_layers(model.config)) continue;  // refused
    if (model.config.ropes[0].depends_on_length()) continue;  // sliding layers' tables jump
    const std::string refused =
        refusal<ConfigError>([&] { TrainableDecoder(model, small_memory(), {}); });
    if (mentions(refused, "which is not trained")) continue;
    MemoryConfig memory = small_memory();
    for (const std::int64_t l : model.config.memory_layers()) {
      const std::int64_t window = model.config.layers[static_cast<std::size_t>(l)].window;
      if (window > 0) memory.n_local = std::min(memory.n_local, window);
    }
    const std::vector<std::int64_t> ids = random_ids(70, model.config.vocab_size, 3);
    TrainableDecoder trainable(model, memory, {});
    const std::vector<at::Tensor> got = of_trainable(trainable, ids);
    CHECK(trainable.memory().events().size() > 2);
    same(got, of_decoder(model, memory, ids));
    ++trained;
  }
  REQUIRE(trained >= 25);
}

TEST_CASE("reweighting counts in what is trained as it does in what is run") {
  const TempDir dir;
  const OpenModel model = open_model(write_tiny(dir));
  const std::vector<std::int64_t> ids = random_ids(80, 1024, 8);
  for (const Reweighting mode : {Reweighting::exact, Reweighting::narrow, Reweighting::broad}) {
    INFO(name_of(mode));
    MemoryConfig memory = small_memory();
    memory.reweight = mode;
    memory.reweight_top = 2;
    TrainableDecoder trainable(model, memory, {});
    const std::vector<at::Tensor> plain = of_trainable(trainable, ids);
    same(plain, of_decoder(model, memory, ids));
    trainable.set_recall_hook([](const RecalledEvents& r) {
      for (float& w : r.weights) w = 0.25f;
    });
    const std::vector<at::Tensor> weighted = of_trainable(trainable, ids);
    CHECK((at::cat(weighted) - at::cat(plain)).abs().max().item<double>() > 1e-3);
  }
}

TEST_CASE("a step of a trainable decoder that fails leaves the sequence as it was") {
  const TempDir dir;
  const OpenModel model = open_model(write_tiny(dir));
  const std::vector<std::int64_t> ids = random_ids(90, 1024, 8);
  TrainableDecoder apart(model, small_memory(), {}), failing(model, small_memory(), {});
  const at::NoGradGuard no_grad;
  std::int64_t failures = 0, refuses_in = -1;  // a layer
  failing.set_recall_hook([&](const RecalledEvents& r) {
    if (r.layer == refuses_in) throw DataError("the hook said no");
  });
  at::Tensor a = failing.parameters()[0];  // of A; with B = 0 it changes no logit, but NaN does
  const at::Tensor of_a = a.clone();
  const auto fails = [&](std::span<const std::int64_t> piece) {
    const std::string said = refusal<DataError>([&] { failing.step(piece, StepKind::decode, 1); });
    CHECK(said != "no error");
    CHECK(failing.memory().open_tokens() == 0);
    CHECK(failing.memory().tokens() == apart.memory().tokens());
    ++failures;
    return said;
  };
  for (std::size_t at = 0; at < ids.size(); at += 9) {
    const auto piece = std::span(ids).subspan(at, 9);
    if (at >= 36)
      for (const std::int64_t layer : {0, 1}) {
        refuses_in = layer;
        CHECK(fails(piece) == "the hook said no");
      }
    refuses_in = -1;
    a.fill_(std::numeric_limits<float>::quiet_NaN());
    fails(piece);
    a.copy_(of_a);
    const at::Tensor want = apart.step(piece, StepKind::decode, 9),
                     got = failing.step(piece, StepKind::decode, 9);
    CHECK(at::equal(got, want));
  }
  CHECK(failures == 22);
  CHECK(apart.memory().events().size() > 5);
  // (( )): torch's headers would print vectors of anything
  CHECK((failing.memory().events().all() == apart.memory().events().all()));
}

TEST_CASE("the gradient of a whole reading is its loss's change") {
  const TempDir dir;
  const OpenModel model = open_model(write_tiny(dir));
  MemoryConfig memory = small_memory();
  memory.segmenter = SegmenterKind::fixed;  // so that no boundary moves with the weights
  memory.n_mem = 1000;                      // nor what is recalled: everything is
  TrainableDecoder decoder(model, memory, {.rank = 2, .alpha = 4});
  std::vector<at::Tensor> parameters = decoder.parameters();
  REQUIRE(parameters.size() == 2 * 4 * 2);  // A and B of q, k, v, o in two layers
  {
    const at::NoGradGuard no_grad;
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0, 0.05f);
    for (at::Tensor& p : parameters)  // B away from zero, where A has no gradient
      for (std::int64_t i = 0; i < p.numel(); ++i) p.mutable_data_ptr<float>()[i] += normal(random);
  }
  const std::vector<std::int64_t> ids = random_ids(60, 1024, 4);
  const auto loss = [&] {
    decoder.begin();
    at::Tensor logits;
    for (std::size_t at = 0; at < ids.size(); at += 6)
      logits = decoder.step(std::span(ids).subspan(at, 6), StepKind::decode, 1);
    return logits.select(0, 0).logsumexp(-1) - logits.select(0, 0)[77];
  };
  loss().backward();
  double square = 0;
  for (const at::Tensor& p : parameters) {
    REQUIRE(p.grad().defined());
    CHECK(p.grad().abs().max().item<double>() > 0);
    square += p.grad().square().sum().item<double>();
  }
  const auto moved = [&](double by) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : parameters) p.add_(p.grad(), by);
    const double value = loss().item<double>();
    for (at::Tensor& p : parameters) p.sub_(p.grad(), by);
    return value;
  };
  const double step = 2e-2 / std::sqrt(square);
  const double change = (moved(step) - moved(-step)) / (2 * step);
  INFO("square of the gradient " << square << ", change along it " << change);
  CHECK(change == Approx(square).epsilon(0.02));
}

TEST_CASE("training lowers the loss, and its adapter gives its logits when it is loaded") {
  const TempDir dir;
  const fs::path base = write_tiny(dir);
  const OpenModel model = open_model(base);
  const std::vector<EpmanExample> examples = {example(4711), example(815), example(20)};
  for (const bool through : {true, false}) {
    EpmanSettings s = settings();
    s.through_context = through;
    s.memory.contiguity = 0.3;  // no part of narrow: left out
    EpmanTrainer trainer(model, tokenizer(), s);
    const double before = loss_of(trainer, examples);
    std::int64_t steps = 0;
    trainer.train(examples, [&](const EpmanStep& step) {
      CHECK(step.step == ++steps);
      CHECK(step.gradient > 0);
      CHECK(step.loss > 0);
      return true;
    });
    CHECK(steps == s.steps);
    CHECK(loss_of(trainer, examples) < 0.9 * before);

    const fs::path out = dir / ("adapter" + std::to_string(through));
    trainer.save(out, base.string(),
                 std::vector<std::pair<std::string, std::string>>{{"loss.csv", "step,loss\n"}});
    CHECK(fs::exists(out / "loss.csv"));
    const MemoryConfig memory = trainer.decoder().memory().config();
    const std::vector<std::int64_t> ids = random_ids(50, 1024, 6);
    const std::vector<at::Tensor> expected = of_trainable(trainer.decoder(), ids);
    same(of_decoder(open_model(base, {.lora = {{out}}}), memory, ids), expected);
    same(of_decoder(open_model(base, {.lora = {{out}}, .merge_lora = true}), memory, ids),
         expected);
    const std::vector<at::Tensor> plain = of_decoder(model, memory, ids);
    CHECK((at::cat(plain) - at::cat(expected)).abs().max().item<double>() > 1e-2);
  }
}

TEST_CASE("an adapter trained on a GGUF file loads beside it and beside the directory") {
  const TempDir dir;
  const fs::path base = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families/llama2";
  write_gguf(open_model(base), dir / "m.gguf");
  const OpenModel model = open_model(dir / "m.gguf");
  REQUIRE(model.config.ropes[0].table.pairs == RotaryPairs::interleaved);
  TrainableDecoder decoder(model, small_memory(), {.rank = 2, .alpha = 2});
  for (at::Tensor p : decoder.parameters()) {
    const at::NoGradGuard no_grad;
    p.add_(at::randn(p.sizes(), at::make_generator<at::CPUGeneratorImpl>(p.size(0))),
           0.05);  // rows differ, so that their order counts
  }
  fs::create_directory(dir / "adapter");
  decoder.save(dir / "adapter", "tiny");
  const std::vector<std::int64_t> ids = random_ids(50, model.config.vocab_size, 6);
  const std::vector<at::Tensor> expected = of_trainable(decoder, ids);
  for (const fs::path& at : {dir / "m.gguf", base})
    same(of_decoder(open_model(at, {.lora = {{dir / "adapter"}}}), small_memory(), ids), expected);
  const std::vector<at::Tensor> plain = of_decoder(model, small_memory(), ids);
  CHECK((at::cat(plain) - at::cat(expected)).abs().max().item<double>() > 1e-2);
}

TEST_CASE("an adapter of a model with fused tensors loads where it was trained") {
  for (const fs::path& dir : family_checkpoints()) {
    if (dir.filename() != "phi3") continue;
    const OpenModel model = open_model(dir);
    MemoryConfig memory = small_memory();
    memory.n_local = 11;  // the model's sliding window
    TrainableDecoder decoder(model, memory, {.rank = 2, .alpha = 2});
    for (at::Tensor p : decoder.parameters()) {
      const at::NoGradGuard no_grad;
      p.add_(0.02);
    }
    const TempDir out;
    decoder.save(out.path(), "phi3");
    const std::vector<std::int64_t> ids = random_ids(40, model.config.vocab_size, 1);
    same(of_decoder(open_model(dir, {.lora = {{out.path()}}}), memory, ids),
         of_trainable(decoder, ids));
    return;
  }
  FAIL("no phi3 among the checkpoints");
}

TEST_CASE("the same seed trains the same adapter, whatever the noise") {
  const TempDir dir;
  const OpenModel model = open_model(write_tiny(dir));
  const std::vector<EpmanExample> examples = {example(4711), example(815), example(20)};
  const auto curve = [&](std::uint64_t seed, double beta) {
    EpmanSettings s = settings();
    s.steps = 2;
    s.seed = seed;
    s.beta = beta;
    EpmanTrainer trainer(model, tokenizer(), s);
    std::vector<double> losses;
    trainer.train(examples, [&](const EpmanStep& step) {
      losses.push_back(step.loss);
      return true;
    });
    return losses;
  };
  const auto distance = [](const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == 2);
    REQUIRE(b.size() == 2);
    return std::max(std::abs(a[0] - b[0]), std::abs(a[1] - b[1]));
  };
  const std::vector<double> first = curve(1, 0.2);
  CHECK(distance(first, curve(1, 0.2)) < 1e-4);
  CHECK(distance(first, curve(1, 2.0)) > 1e-4);  // the noise is drawn
  CHECK(distance(first, curve(2, 0.2)) > 1e-4);  // another order of entries and examples
}

TEST_CASE("training ends where it is told to, and leaves nothing half written") {
  const TempDir dir;
  const fs::path base = write_tiny(dir);
  const OpenModel model = open_model(base);
  EpmanTrainer trainer(model, tokenizer(), settings());
  std::int64_t steps = 0;
  trainer.train(std::vector{example(1)}, [&](const EpmanStep&) { return ++steps < 2; });
  CHECK(steps == 2);
  fs::create_directories(dir / "taken");
  dir.write("taken/file", "x");
  CHECK(
      mentions(refusal<FileError>([&] { trainer.save(dir / "taken", "m"); }), "is there already"));
  CHECK(mentions(refusal<FileError>([&] { trainer.save(dir / "no/where", "m"); }), "no folder"));
  {
    const at::NoGradGuard no_grad;
    trainer.decoder().parameters()[1].fill_(std::numeric_limits<float>::quiet_NaN());
  }
  CHECK(mentions(refusal<DataError>([&] { trainer.save(dir / "nan", "m"); }), "not finite"));
  for (const auto& entry : fs::directory_iterator(dir.path()))
    CHECK((entry.path() == base || entry.path() == dir / "taken"));
}

TEST_CASE("training refuses what it cannot train with") {
  const TempDir dir;
  const OpenModel model = open_model(write_tiny(dir));
  const auto refused = [&](auto&& change) {
    EpmanSettings s = settings();
    change(s);
    return refusal<ConfigError>([&] { EpmanTrainer(model, tokenizer(), s); });
  };
  CHECK(mentions(refused([](EpmanSettings& s) { s.lora.rank = 0; }), "rank = 0"));
  CHECK(mentions(refused([](EpmanSettings& s) { s.lora.alpha = NAN; }), "alpha"));
  CHECK(mentions(refused([](EpmanSettings& s) { s.lora.targets = {WeightRole::head}; }), "head"));
  CHECK(mentions(refused([](EpmanSettings& s) { s.beta = 3; }), "beta = 3"));
  CHECK(mentions(refused([](EpmanSettings& s) { s.batch = 0; }), "batch = 0"));
  CHECK(mentions(refused([](EpmanSettings& s) { s.learning_rate = 0; }), "learning_rate = 0"));
  CHECK(mentions(refused([](EpmanSettings& s) { s.memory.scope = EventScope::head; }), "scope"));
  CHECK(mentions(refused([](EpmanSettings& s) { s.memory.recall_groups = 2; }), "recall_groups"));

  EpmanTrainer trainer(model, tokenizer(), settings());
  CHECK(mentions(refusal<DataError>([&] { trainer.train({}); }), "no examples"));

  EpmanSettings wild = settings();
  wild.learning_rate = 1e30;
  EpmanTrainer diverging(model, tokenizer(), wild);
  const std::string said = refusal<DataError>([&] { diverging.train(std::vector{example(4711)}); });
  INFO(said);
  CHECK(mentions(said, "lower the learning rate"));
  CHECK(mentions(said, "made up"));

  // an adapter of another model
  const fs::path out = dir / "adapter";
  trainer.save(out, "tiny");
  const std::string other = refusal<FileError>(
      [&] { open_model(fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6", {.lora = {{out}}}); });
  INFO(other);
  CHECK(mentions(other, "adapter_model.safetensors: has no tensor"));
  OpenModel adapted = open_model(dir / "model", {.lora = {{out}}});
  CHECK(mentions(refusal<ConfigError>([&] { TrainableDecoder(adapted, small_memory(), {}); }),
                 "adapters beside"));
  for (const char* family : {"cohere", "arcee", "ministral3"}) {  // parts without a derivative here
    const OpenModel of =
        open_model(fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families" / family);
    CHECK(mentions(refusal<ConfigError>([&] { TrainableDecoder(of, small_memory(), {}); }),
                   "which is not trained"));
  }
}

namespace {

/// Cross-entropy of the true events by its definition, in float64.
double plain_retrieval_loss(const std::vector<double>& read, const std::vector<double>& write,
                            const std::vector<double>& query,
                            const std::vector<std::vector<double>>& events,
                            const std::vector<std::int64_t>& right, double scale) {
  const std::size_t width = query.size(), out = read.size() / width;
  const auto times = [&](const std::vector<double>& head, const std::vector<double>& x) {
    std::vector<double> y(out, 0.0);
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t c = 0; c < width; ++c) y[o] += head[o * width + c] * x[c];
    return y;
  };
  const std::vector<double> q = times(read, query);
  double all = 0, hit = 0;
  for (std::size_t e = 0; e < events.size(); ++e) {
    const std::vector<double> w = times(write, events[e]);
    double dot = 0, q2 = 0, w2 = 0;
    for (std::size_t o = 0; o < out; ++o) {
      dot += q[o] * w[o];
      q2 += q[o] * q[o];
      w2 += w[o] * w[o];
    }
    const double share = std::exp(scale * dot / std::sqrt(q2 * w2));
    all += share;
    if (std::find(right.begin(), right.end(), static_cast<std::int64_t>(e)) != right.end())
      hit += share;
  }
  return -std::log(hit / all);
}

}  // namespace

TEST_CASE("the retrieval loss and its gradients are those of its definition") {
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  const auto numbers = [&](std::size_t n) {
    std::vector<double> x(n);
    for (double& v : x) v = normal(random);
    return x;
  };
  struct Case {
    std::size_t width, out, events;
    std::vector<std::int64_t> right;
  };
  for (const Case& c :
       std::vector<Case>{{5, 3, 4, {1}}, {1, 1, 3, {0, 2}}, {6, 7, 1, {0}}, {4, 4, 9, {8, 3}}}) {
    constexpr double kScale = 3;
    const std::vector<double> query = numbers(c.width);
    std::vector<double> heads[2] = {numbers(c.out * c.width), numbers(c.out * c.width)};
    std::vector<std::vector<double>> events;
    for (std::size_t e = 0; e < c.events; ++e) events.push_back(numbers(c.width));
    const auto plain = [&] {
      return plain_retrieval_loss(heads[0], heads[1], query, events, c.right, kScale);
    };
    const auto tensor = [&](std::vector<double> x, std::vector<std::int64_t> shape) {
      return at::tensor(x, at::kDouble).reshape(shape);
    };
    const auto out = static_cast<std::int64_t>(c.out), width = static_cast<std::int64_t>(c.width);
    at::Tensor learnt[2];
    for (int i = 0; i < 2; ++i) learnt[i] = tensor(heads[i], {out, width}).set_requires_grad(true);
    std::vector<double> all;
    for (const auto& e : events) all.insert(all.end(), e.begin(), e.end());
    const at::Tensor rows = tensor(all, {static_cast<std::int64_t>(c.events), width});
    const at::Tensor loss = retrieval_loss(
        retrieval_scores(learnt[0], learnt[1], tensor(query, {width}), rows, kScale), c.right);
    REQUIRE(loss.item<double>() == Approx(plain()).epsilon(1e-10).margin(1e-12));
    loss.backward();
    for (int i = 0; i < 2; ++i) {
      const at::Tensor gradient = learnt[i].grad().reshape({-1});
      for (std::size_t at = 0; at < heads[i].size(); ++at) {
        const double kept = heads[i][at], by = 1e-5;
        heads[i][at] = kept + by;
        const double up = plain();
        heads[i][at] = kept - by;
        const double down = plain();
        heads[i][at] = kept;
        REQUIRE(gradient[static_cast<std::int64_t>(at)].item<double>() ==
                Approx((up - down) / (2 * by)).epsilon(1e-4).margin(1e-7));
      }
    }
  }
  const at::Tensor scores = at::zeros({3}, at::kDouble);
  CHECK(mentions(refusal<DataError>([&] { retrieval_loss(scores, {}); }), "no event is true"));
  const std::vector<std::int64_t> beyond{3};
  CHECK(mentions(refusal<DataError>([&] { retrieval_loss(scores, beyond); }), "event 3 of 3"));
  // a question or an event that a head makes nothing of: a score of 0, and no infinite gradient
  at::Tensor head = at::eye(2, at::kDouble).set_requires_grad(true);
  const at::Tensor zero_scores =
      retrieval_scores(head, head, at::zeros({2}, at::kDouble), at::eye(2, at::kDouble), 20);
  CHECK(zero_scores.abs().max().item<double>() == 0);
  const std::vector<std::int64_t> first{0};
  retrieval_loss(zero_scores, first).backward();
  CHECK(head.grad().isfinite().all().item<bool>());
}

TEST_CASE("a reader that is trained finds the true event, and is saved beside the adapter") {
  const TempDir dir;
  const fs::path base = write_tiny(dir);
  const OpenModel model = open_model(base);
  const std::vector<EpmanExample> examples = {example(4711), example(815), example(20)};
  EpmanSettings s = settings();
  s.reader = true;
  s.retrieval_weight = 1;
  s.steps = 12;
  EpmanTrainer trainer(model, tokenizer(), s);
  const auto retrieval = [&] {
    double loss = 0;
    for (const EpmanExample& e : examples) {
      const EpmanOutcome one = trainer.evaluate(e);
      REQUIRE(one.retrieval_loss >= 0);
      REQUIRE(one.retrieved >= 0);
      REQUIRE(one.retrieved <= 1);
      loss += one.retrieval_loss;
    }
    return loss;
  };
  const ReaderHeads untrained = trainer.heads();
  const double before = retrieval();
  std::vector<double> losses;
  trainer.train(examples, [&](const EpmanStep& step) {
    losses.push_back(step.retrieval_loss);
    return true;
  });
  CHECK(losses.front() > 0);
  CHECK(retrieval() < 0.8 * before);
  CHECK(trainer.heads().read != untrained.read);
  CHECK(trainer.heads().write != untrained.write);

  const fs::path out = dir / "adapter";
  trainer.save(out, base.string());
  const ReaderHeads saved = load_reader_heads(out, model);
  CHECK(saved.read == trainer.heads().read);
  CHECK(saved.write == trainer.heads().write);
  // and they read for a memory of that model
  Decoder decoder = Decoder::load(open_model(base, {.lora = {{out}}}));
  const auto memory = patch(decoder, small_memory());
  memory->set_recall_hook(
      weighting(std::make_shared<HeadReader>(std::make_shared<const ReaderHeads>(saved), *memory)));
  const std::vector<std::int64_t> ids = random_ids(60, 1024, 6);
  const auto weighted = all_rows(ids, 9, [&](std::span<const std::int64_t> piece) {
    return tensor_of(decoder.forward(piece), at::kCPU);
  });
  const auto plain = of_decoder(open_model(base, {.lora = {{out}}}), small_memory(), ids);
  CHECK((at::cat(weighted) - at::cat(plain)).abs().max().item<double>() > 1e-4);
  const std::string other = refusal<ConfigError>([&] {
    load_reader_heads(out, open_model(fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6"));
  });
  CHECK(mentions(other, "another model"));
}

TEST_CASE("evidence is what the example says, else what holds the answer") {
  const TempDir dir;
  const OpenModel model = open_model(write_tiny(dir));
  EpmanSettings s = settings();
  s.reader = true;
  s.memory.min_block = 1;
  EpmanTrainer trainer(model, tokenizer(), s);
  const auto loss = [&](const EpmanExample& e) { return trainer.evaluate(e).retrieval_loss; };
  EpmanExample e = example(4711);
  const double found = loss(e);
  CHECK(found > 0);
  e.evidence = {1};
  CHECK(loss(e) == found);
  e.evidence = {0};
  CHECK(loss(e) != found);
  e.evidence = {};
  e.answer = " not in the text";
  CHECK(loss(e) == -1);
  e.answer = " .";  // nothing is left of it to look for
  CHECK(loss(e) == -1);
  e = example(4711);
  e.entries.push_back(" yes");
  e.question = " 1";
  e.evidence = {4};  // it is in the window still
  CHECK(loss(e) == -1);

  EpmanTrainer without(model, tokenizer(), settings());
  CHECK(without.evaluate(example(4711)).retrieval_loss == -1);
  CHECK(mentions(refusal<ConfigError>([&] { without.heads(); }), "no reader"));
  const auto refused = [&](auto&& change) {
    EpmanSettings bad = settings();
    change(bad);
    return refusal<ConfigError>([&] { EpmanTrainer(model, tokenizer(), bad); });
  };
  CHECK(mentions(refused([](EpmanSettings& b) { b.retrieval_weight = -1; }), "retrieval_weight"));
  CHECK(mentions(refused([](EpmanSettings& b) { b.retrieval_scale = 0; }), "retrieval_scale"));
}

TEST_CASE("examples are read, and a line that is none is named") {
  const TempDir dir;
  const std::string good = R"({"entries": ["a ", "b"], "question": "c?", "answer": " d", "id": 1})";
  const auto examples = read_epman_examples(dir.write("good.jsonl", good + "\n\n  \n" + good));
  REQUIRE(examples.size() == 2);
  CHECK(examples[1].entries == std::vector<std::string>{"a ", "b"});
  CHECK(examples[1].question == "c?");
  CHECK(examples[1].answer == " d");
  CHECK(examples[1].evidence.empty());
  const auto told = read_epman_examples(
      dir.write("told.jsonl",
                R"({"entries": ["a ", "b"], "question": "c?", "answer": " d", "evidence": [1]})"));
  CHECK(told[0].evidence == std::vector<std::int64_t>{1});
  CHECK(mentions(examples[1].place, "good.jsonl:4"));
  const auto says = [&](const std::string& line) {
    const fs::path file = dir.write("bad.jsonl", good + "\n" + line + "\n");
    const std::string message = refusal<FileError>([&] { read_epman_examples(file); });
    INFO(message);
    CHECK(mentions(message, file.string() + ":2"));
    return message;
  };
  CHECK(mentions(says("[1]"), "not a JSON object"));
  says("{\"entries\": [\"a\"]");
  says(good + good);
  CHECK(mentions(says(R"({"question": "c", "answer": "d"})"), "entries"));
  CHECK(mentions(says(R"({"entries": [], "question": "c", "answer": "d"})"), "entries"));
  CHECK(mentions(says(R"({"entries": [1], "question": "c", "answer": "d"})"), "expected texts"));
  for (const char* bad : {"2", "[1]", "[-1]", "[0.5]", "[\"0\"]"})
    CHECK(mentions(says(R"({"entries": ["a"], "question": "c", "answer": "d", "evidence": )" +
                        std::string(bad) + "}"),
                   "evidence"));
  CHECK(mentions(says(R"({"entries": ["a"], "answer": "d"})"), "question"));
  CHECK(mentions(says(R"({"entries": ["a"], "question": "c", "answer": ""})"), "answer"));
  CHECK(mentions(refusal<FileError>([&] { read_epman_examples(dir.write("empty", "\n\n")); }),
                 "holds no example"));
  CHECK(mentions(refusal<FileError>([&] { read_epman_examples(dir / "none"); }), "none"));
}
