// SPDX-License-Identifier: Apache-2.0
// Memoria's sorting task (Memoria 5.1, after the infinity-former's): a small transformer reads a
// sequence of symbols a segment at a time, then writes the symbols by how often they came. What it
// knows of earlier segments is what `Memoria` recalls; beside it a cache of the segment before
// (Transformer-XL) and nothing at all.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/retention/memoria.hpp"
#include "support/environment.hpp"
#include "training/adamw.hpp"

namespace episodic::bench {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

struct Flags {
  tools::CommonFlags common;
  std::string method = "memoria";
  std::int64_t length = 1024, segment = 128, symbols = 20, batch = 16, steps = 1000, tests = 50;
  std::int64_t width = 64, heads = 4, layers = 3, engrams = 8;
  double rate = 2e-3;
  std::uint64_t seed = 1;
  tools::JsonFlag json;
};

/// A sequence's symbols, then the symbols sorted, the most frequent first, equals by number.
struct Example {
  std::vector<std::int64_t> text, sorted;
};

/// Symbols are drawn from a mixture of two random distributions that goes from the one to the other
/// along the sequence, so that no part of it says how often each comes.
Example draw(std::mt19937_64& random, std::int64_t length, std::int64_t symbols) {
  const auto k = static_cast<std::size_t>(symbols);
  std::array<std::vector<double>, 2> p;
  std::exponential_distribution<double> exponential;  // normalised: uniform over distributions
  for (auto& weights : p) {
    weights.resize(k);
    for (double& w : weights) w = exponential(random);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& w : weights) w /= sum;
  }
  Example e;
  std::vector<std::int64_t> counts(k);
  std::vector<double> mixed(k);
  constexpr std::int64_t kPieces = 64;  // of the sequence, each with a mixture of its own
  for (std::int64_t piece = 0; piece < kPieces; ++piece) {
    const double to_second = static_cast<double>(piece) / (kPieces - 1);
    for (std::size_t s = 0; s < k; ++s) mixed[s] = (1 - to_second) * p[0][s] + to_second * p[1][s];
    std::discrete_distribution<std::int64_t> symbol(mixed.begin(), mixed.end());
    while (static_cast<std::int64_t>(e.text.size()) < (piece + 1) * length / kPieces)
      ++counts[static_cast<std::size_t>(e.text.emplace_back(symbol(random)))];
  }
  e.sorted.resize(k);
  std::iota(e.sorted.begin(), e.sorted.end(), std::int64_t{0});
  std::stable_sort(e.sorted.begin(), e.sorted.end(), [&](std::int64_t a, std::int64_t b) {
    return counts[static_cast<std::size_t>(a)] > counts[static_cast<std::size_t>(b)];
  });
  return e;
}

/// y = x W + b over the last dimension.
struct Affine {
  Tensor weight, bias;
  Tensor operator()(const Tensor& x) const { return at::matmul(x, weight) + bias; }
};

struct Norm {
  Tensor weight, bias;
  Tensor operator()(const Tensor& x) const { return at::layer_norm(x, {x.size(-1)}, weight, bias); }
};

/// Attention of several heads; `mass` is what each key received of all heads and queries.
struct Attention {
  Affine q, k, v, out;
  std::int64_t heads = 1;

  /// \param mask added to the scores, [n, m] or [B, 1, 1, m]; undefined: none
  Tensor operator()(const Tensor& x, const Tensor& from, const Tensor& mask,
                    Tensor* mass = nullptr) const {
    const auto split = [&](const Tensor& t) {
      return t.view({t.size(0), t.size(1), heads, -1}).transpose(1, 2);
    };
    const Tensor queries = split(q(x)), keys = split(k(from)), values = split(v(from));
    Tensor scores = at::matmul(queries, keys.transpose(-1, -2)) /
                    std::sqrt(static_cast<double>(queries.size(-1)));
    if (mask.defined()) scores = scores + mask;
    const Tensor weights = scores.softmax(-1);
    if (mass) *mass = weights.detach().sum({1, 2});
    return out(at::matmul(weights, values).transpose(1, 2).reshape_as(x));
  }
};

struct Layer {
  Norm before_self, before_cross, before_feed;
  Attention self, cross;
  Affine up, down;
};

/// What the model keeps of a batch's sequences from segment to segment.
struct State {
  Tensor hidden;                  // [B, n, d], the last segment's, of the last layer
  std::vector<Tensor> before;     // of each layer: what the last segment attended to (cache)
  std::vector<Memoria> memories;  // one a sequence
  std::vector<Tensor> engrams;    // [B, engrams, d] of each step
  std::int64_t recalled_short = 0, recalled_long = 0, calls = 0;
};

class Model {
 public:
  Model(const Flags& flags) : flags_(flags) {
    at::manual_seed(flags.seed);
    const std::int64_t d = flags.width, vocab = flags.symbols + 1;  // the last says: now sort
    embedding_ = leaf(at::randn({vocab, d}) * 0.3);
    position_ = leaf(at::randn({std::max(flags.segment, flags.symbols), d}) * 0.1);
    for (std::int64_t l = 0; l < flags.layers; ++l)
      layers_.push_back({norm(d), norm(d), norm(d), attention(d), attention(d), affine(d, 4 * d),
                         affine(4 * d, d)});
    final_ = norm(d);
    head_ = affine(d, flags.symbols);
    if (memoria()) {
      questions_ = leaf(at::randn({flags.engrams, d}) * 0.3);
      abstractor_ = attention(d);
      engram_norm_ = norm(d);
    }
  }

  const std::vector<Tensor>& parameters() const { return parameters_; }

  State begin(std::int64_t batch) const {
    State state;
    MemoriaConfig config;
    config.n_short = config.n_long = flags_.engrams;
    config.short_term_capacity = 4 * flags_.engrams;
    if (memoria())
      state.memories.assign(static_cast<std::size_t>(batch), Memoria(config, flags_.width));
    return state;
  }

  /// Logits [B, n, symbols] of the next symbol. \param ids [B, n], a segment at most
  Tensor segment(const Tensor& ids, State& state) const {
    const std::int64_t n = ids.size(1);
    Tensor x = embedding_.index({ids}) + position_.narrow(0, 0, n);
    const Recalled recalled = recall(state);
    Tensor received;
    const Tensor causal = at::full({n, n}, -INFINITY).triu(1);
    std::vector<Tensor> before;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const Tensor read = layer.before_self(x);
      Tensor from = read, mask = causal;
      if (cache()) {
        before.push_back(read.detach());
        if (!state.before.empty()) {
          from = at::cat({state.before[l], read}, 1);
          mask = at::cat({at::zeros({n, state.before[l].size(1)}), causal}, 1);
        }
      }
      x = x + layer.self(read, from, mask);
      if (recalled.vectors.defined()) {
        Tensor mass;
        x = x + layer.cross(layer.before_cross(x), recalled.vectors, recalled.mask, &mass);
        received = received.defined() ? received + mass : mass;
      }
      x = x + layer.down(at::gelu(layer.up(layer.before_feed(x))));
    }
    if (recalled.vectors.defined()) commit(received, state);
    state.before = std::move(before);
    state.hidden = x;
    return head_(final_(x));
  }

 private:
  /// The engrams that a segment attends to: the step's own, then those recalled.
  struct Recalled {
    Tensor vectors;  // [B, K, d]; undefined in the first segment, and without Memoria
    Tensor mask;     // [B, 1, 1, K]: minus infinity where a sequence recalled fewer
  };

  bool memoria() const { return flags_.method == "memoria"; }
  bool cache() const { return flags_.method == "cache"; }

  Recalled recall(State& state) const {
    if (!memoria() || !state.hidden.defined()) return {};
    const std::int64_t batch = state.hidden.size(0), own = flags_.engrams, d = flags_.width;
    const Tensor made = engram_norm_(
        abstractor_(questions_.unsqueeze(0).expand({batch, own, d}), state.hidden, {}));
    state.engrams.push_back(made);
    const Tensor vectors = made.detach();
    const Tensor unit = (vectors / vectors.norm(2, {-1}, /*keepdim=*/true)).contiguous();
    const std::int64_t most = own + 2 * flags_.engrams;
    Tensor ids = at::zeros({batch, most}, at::kLong);
    Tensor mask = at::full({batch, 1, 1, most}, -INFINITY);
    for (std::int64_t b = 0; b < batch; ++b) {
      // Engrams are numbered as they come, `own` of them a step: a number is a place among all.
      const Memoria::Recall& r = state.memories[static_cast<std::size_t>(b)].recall(
          {unit.const_data_ptr<float>() + b * own * d, static_cast<std::size_t>(own * d)}, own);
      std::int64_t* to = ids.mutable_data_ptr<std::int64_t>() + b * most;
      std::int64_t count = 0;
      for (const auto* list : {&r.working, &r.short_term, &r.long_term})
        for (const std::int64_t id : *list) to[count++] = id;
      std::fill_n(mask.mutable_data_ptr<float>() + b * most, count, 0.0f);
      state.recalled_short += std::ssize(r.short_term);
      state.recalled_long += std::ssize(r.long_term);
      ++state.calls;
    }
    const Tensor all = at::cat(state.engrams, 1);
    return {all.gather(1, ids.unsqueeze(-1).expand({batch, most, d})), mask};
  }

  /// \param received [B, K] attention of all layers, heads and queries
  void commit(const Tensor& received, State& state) const {
    const float* from = received.const_data_ptr<float>();
    for (Memoria& memory : state.memories) {
      const std::int64_t n = memory.last_recall().size();
      const float* recalled = from + flags_.engrams;  // behind the step's own
      memory.commit(std::vector<double>(recalled, recalled + n));
      from += received.size(1);
    }
  }

  Tensor leaf(const Tensor& values) {
    Tensor t = values.detach().clone();
    t.requires_grad_(true);
    parameters_.push_back(t);
    return t;
  }
  Affine affine(std::int64_t in, std::int64_t out) {
    return {leaf(at::randn({in, out}) / std::sqrt(static_cast<double>(in))),
            leaf(at::zeros({out}))};
  }
  Norm norm(std::int64_t d) { return {leaf(at::ones({d})), leaf(at::zeros({d}))}; }
  Attention attention(std::int64_t d) {
    return {affine(d, d), affine(d, d), affine(d, d), affine(d, d), flags_.heads};
  }

  Flags flags_;
  std::vector<Tensor> parameters_;
  Tensor embedding_, position_, questions_;
  std::vector<Layer> layers_;
  Norm final_, engram_norm_;
  Affine head_;
  Attention abstractor_;
};

/// A batch of examples as tensors.
struct Batch {
  Tensor text, question, sorted;  // [B, length], [B, symbols]: what is read and what follows
};

Batch draw_batch(std::mt19937_64& random, const Flags& flags) {
  Batch b{at::empty({flags.batch, flags.length}, at::kLong),
          at::empty({flags.batch, flags.symbols}, at::kLong),
          at::empty({flags.batch, flags.symbols}, at::kLong)};
  for (std::int64_t i = 0; i < flags.batch; ++i) {
    const Example e = draw(random, flags.length, flags.symbols);
    std::copy(e.text.begin(), e.text.end(),
              b.text.mutable_data_ptr<std::int64_t>() + i * flags.length);
    std::int64_t* question = b.question.mutable_data_ptr<std::int64_t>() + i * flags.symbols;
    question[0] = flags.symbols;  // "now sort"
    std::copy(e.sorted.begin(), e.sorted.end() - 1, question + 1);
    std::copy(e.sorted.begin(), e.sorted.end(),
              b.sorted.mutable_data_ptr<std::int64_t>() + i * flags.symbols);
  }
  return b;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
}

struct Read {
  Tensor text_loss, sort_loss;
  double right = 0;  // share of the sorted symbols, each given those before it
};

/// Reads a batch from begin to end. The next symbol of the text is asked for too: what says how
/// often each comes lately is then worth keeping.
Read read(const Model& model, const Flags& flags, const Batch& batch, State& state) {
  Read result;
  std::vector<Tensor> losses;
  for (std::int64_t first = 0; first < flags.length; first += flags.segment) {
    const std::int64_t n = std::min(flags.segment, flags.length - first);
    const Tensor logits = model.segment(batch.text.narrow(1, first, n), state);
    if (n > 1)
      losses.push_back(
          cross_entropy(logits.narrow(1, 0, n - 1), batch.text.narrow(1, first + 1, n - 1)));
  }
  result.text_loss = at::stack(losses).mean();
  const Tensor logits = model.segment(batch.question, state);
  result.sort_loss = cross_entropy(logits, batch.sorted);
  result.right = logits.detach().argmax(-1).eq(batch.sorted).to(at::kFloat).mean().item<double>();
  return result;
}

void run(const Flags& flags) {
  if (flags.width % flags.heads != 0)
    throw tools::UsageError(
        fmt::format("--heads {} does not divide --width {}", flags.heads, flags.width));
  flags.common.apply_on_host();
  std::mt19937_64 random(flags.seed), other(flags.seed + 1'000'000);
  Model model(flags);
  AdamW optimiser(model.parameters(), 0.01);
  Json curve = Json::array();
  double right = 0, loss = 0;
  tools::ProgressBar bar("training", flags.common.quiet);
  const ProgressCallback progress = bar.callback();
  constexpr std::int64_t kWarmup = 50, kReport = 50;
  for (std::int64_t step = 1; step <= flags.steps; ++step) {
    State state = model.begin(flags.batch);
    const Read said = read(model, flags, draw_batch(random, flags), state);
    optimiser.zero_grad();
    (said.sort_loss + 0.1 * said.text_loss).backward();
    optimiser.clip(1.0);
    const double left = 1 - static_cast<double>(step) / static_cast<double>(flags.steps + 1);
    optimiser.step(flags.rate * std::min(1.0, static_cast<double>(step) / kWarmup) * left);
    right += said.right / kReport;
    loss += said.sort_loss.item<double>() / kReport;
    if (step % kReport == 0) {
      curve.push_back({{"step", step}, {"loss", loss}, {"accuracy", right}});
      right = loss = 0;
    }
    if (progress) progress(step, flags.steps);
  }
  const at::NoGradGuard no_grad;
  std::vector<double> tested;
  State state;
  std::int64_t short_term = 0, long_term = 0, calls = 0;
  for (std::int64_t i = 0; i < flags.tests; ++i) {
    state = model.begin(flags.batch);
    tested.push_back(read(model, flags, draw_batch(other, flags), state).right);
    short_term += state.recalled_short;
    long_term += state.recalled_long;
    calls += state.calls;
  }
  const double mean = std::accumulate(tested.begin(), tested.end(), 0.0) / std::ssize(tested);
  double squares = 0;
  for (const double x : tested) squares += (x - mean) * (x - mean);
  const auto n = static_cast<double>(tested.size());
  const double error = n > 1 ? std::sqrt(squares / (n * (n - 1))) : 0.0;
  flags.json.say(fmt::format("{}, {} symbols: {:.3f} of the sorted symbols right (+- {:.3f})\n",
                             flags.method, flags.length, mean, error));
  const double steps = std::max(1.0, static_cast<double>(calls));
  flags.json.write({{"environment", environment()},
                    {"method", flags.method},
                    {"length", flags.length},
                    {"segment", flags.segment},
                    {"symbols", flags.symbols},
                    {"layers", flags.layers},
                    {"width", flags.width},
                    {"engrams", flags.engrams},
                    {"batch", flags.batch},
                    {"steps", flags.steps},
                    {"seed", flags.seed},
                    {"accuracy", mean},
                    {"standard_error", error},
                    {"recalled_short_a_step", static_cast<double>(short_term) / steps},
                    {"recalled_long_a_step", static_cast<double>(long_term) / steps},
                    {"training", curve}});
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  episodic::tools::CommandLine app{
      "Memoria's sorting task: a small transformer reads symbols a segment at a time, then writes "
      "them by how often they came",
      "memoria_sorting"};
  episodic::bench::Flags flags;
  app.option("--method", flags.method, "What it knows of earlier segments")
      .one_of({"memoria", "cache", "none"})
      .shows_default();
  app.option("--length", flags.length, "Symbols of a sequence")
      .between(64, 1 << 20)
      .shows_default();
  app.option("--segment", flags.segment, "Symbols read at once").between(2, 65536).shows_default();
  app.option("--symbols", flags.symbols, "Different symbols").between(2, 1000).shows_default();
  app.option("--batch", flags.batch, "Sequences of a training step").positive().shows_default();
  app.option("--steps", flags.steps, "Training steps").positive().shows_default();
  app.option("--tests", flags.tests, "Batches to test on").positive().shows_default();
  app.option("--width", flags.width, "Of the model").positive().shows_default();
  app.option("--heads", flags.heads, "Of its attention").positive().shows_default();
  app.option("--layers", flags.layers, "Of the model").positive().shows_default();
  app.option("--engrams", flags.engrams,
             "Made of a segment; as many are recalled from short-term and from long-term memory")
      .positive()
      .shows_default();
  app.option("--rate", flags.rate, "Learning rate").shows_default();
  app.option("--seed", flags.seed, "Seed").shows_default();
  flags.json.add_to(app);
  flags.common.add_to(app);
  app.footer("Example:\n  memoria_sorting --method memoria --length 1024 --json memoria-1024.json");
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(flags); });
}
