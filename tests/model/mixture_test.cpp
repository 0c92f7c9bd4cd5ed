// SPDX-License-Identifier: Apache-2.0
// A mixture of experts against a plain computation in float64, and what is promised of its bits.
#include "model/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/activations.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/weight_plan.hpp"
#include "expected_logits.hpp"
#include "model/mixture_plan.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace mixture_test {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A matrix as it is stored, and the numbers that it stands for.
struct Matrix {
  Matrix(std::mt19937& random, TensorType type, std::int64_t out, std::int64_t in, float scale = 1)
      : numbers(at(out * in)) {
    std::normal_distribution<float> normal(0, scale / std::sqrt(static_cast<float>(in)));
    linear = {type, nullptr, nullptr, out, in};
    bytes.resize(at(out * linear.row_bytes()));
    for (float& x : numbers) x = normal(random);
    for (std::int64_t o = 0; o < out; ++o) {
      std::byte* const row = bytes.data() + o * linear.row_bytes();
      REQUIRE(cpu::quantize_row(type, numbers.data() + o * in, in, row));
      cpu::widen_row(type, row, in, numbers.data() + o * in);
    }
    linear.weight = bytes.data();
  }
  Matrix(Matrix&&) = default;

  void put_bias(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (std::int64_t o = 0; o < linear.out; ++o) bias.push_back(normal(random));
    linear.bias = bias.data();
  }

  double dot(std::int64_t out, const std::vector<double>& x) const {
    double sum = linear.bias ? static_cast<double>(linear.bias[out]) : 0.0;
    for (std::int64_t c = 0; c < linear.in; ++c)
      sum += static_cast<double>(numbers[at(out * linear.in + c)]) * x[at(c)];
    return sum;
  }

  std::vector<std::byte> bytes;
  std::vector<float> numbers, bias;
  Linear linear;
};

double silu(double x) { return x / (1 + std::exp(-x)); }

/// A random mixture with all of its parts, and what it says in float64.
struct Model {
  Model(std::mt19937& random, MixtureSpec of, std::int64_t hidden_size, TensorType type,
        std::int64_t favourite = -1)
      : spec(of),
        hidden(hidden_size),
        router(random, TensorType::f32, of.experts, hidden, 2),
        shared_router(random, TensorType::f32, 1, hidden) {
    std::normal_distribution<float> normal;
    bias.resize(at(spec.experts));
    for (float& b : bias) b = 0.5f * normal(random);
    if (favourite >= 0) bias[at(favourite)] = 100;
    if (spec.bias == RouterBias::product) router.linear.bias = bias.data();
    if (spec.bias == RouterBias::choice) weights.choice_bias = bias.data();
    weights.router = router.linear;
    for (std::int64_t e = 0; e < spec.experts; ++e) {
      gate.emplace_back(random, type, spec.width, hidden);
      up.emplace_back(random, type, spec.width, hidden);
      down.emplace_back(random, type, hidden, spec.width);
      if (spec.expert_bias)
        for (auto* product : {&gate, &up, &down}) product->back().put_bias(random);
      weights.gate.push_back(gate.back().linear);
      weights.up.push_back(up.back().linear);
      weights.down.push_back(down.back().linear);
    }
    if (spec.shared_width > 0) {
      shared = std::make_unique<std::vector<Matrix>>();
      shared->emplace_back(random, type, spec.shared_width, hidden);
      shared->emplace_back(random, type, spec.shared_width, hidden);
      shared->emplace_back(random, type, hidden, spec.shared_width);
      weights.shared_gate = (*shared)[0].linear;
      weights.shared_up = (*shared)[1].linear;
      weights.shared_down = (*shared)[2].linear;
      weights.shared_router = shared_router.linear;
    }
  }

  std::vector<double> scores(const std::vector<double>& x) const {
    std::vector<double> s(at(spec.experts));
    double most = -1e300, sum = 0;
    for (std::int64_t e = 0; e < spec.experts; ++e)
      most = std::max(most, s[at(e)] = router.dot(e, x));
    if (spec.scoring == RouterScoring::sigmoid) {
      for (double& v : s) v = 1 / (1 + std::exp(-v));
      return s;
    }
    for (double& v : s) sum += v = std::exp(v - most);
    for (double& v : s) v /= sum;
    return s;
  }

  double activated(double g, double u) const {
    if (spec.slope == 0) return silu(g) * u;
    g = std::min(g, spec.limit);
    return g / (1 + std::exp(-spec.slope * g)) * (std::clamp(u, -spec.limit, spec.limit) + 1);
  }

  void add_expert(const Matrix& gate_of, const Matrix& up_of, const Matrix& down_of, double weight,
                  const std::vector<double>& x, std::vector<double>& y) const {
    std::vector<double> inner(at(gate_of.linear.out));
    for (std::int64_t c = 0; c < gate_of.linear.out; ++c)
      inner[at(c)] = activated(gate_of.dot(c, x), up_of.dot(c, x));
    for (std::int64_t c = 0; c < down_of.linear.out; ++c)
      y[at(c)] += weight * down_of.dot(c, inner);
  }

  std::vector<double> reference(const float* row) const {
    const std::vector<double> x(row, row + hidden);
    const std::vector<double> s = scores(x);
    std::vector<std::int64_t> order(at(spec.experts));
    for (std::int64_t e = 0; e < spec.experts; ++e) order[at(e)] = e;
    const auto choice = [&](std::int64_t e) {
      return s[at(e)] + (spec.bias == RouterBias::choice ? static_cast<double>(bias[at(e)]) : 0.0);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return choice(a) > choice(b); });
    double sum = 0;
    for (std::int64_t i = 0; i < spec.chosen; ++i) sum += s[at(order[at(i)])];
    std::vector<double> y(at(hidden));
    for (std::int64_t i = 0; i < spec.chosen; ++i) {
      const std::size_t e = at(order[at(i)]);
      add_expert(gate[e], up[e], down[e], spec.scaling * s[e] / (spec.normalised ? sum : 1.0), x,
                 y);
    }
    if (shared)
      add_expert((*shared)[0], (*shared)[1], (*shared)[2],
                 spec.shared_gate ? 1 / (1 + std::exp(-shared_router.dot(0, x))) : 1.0, x, y);
    return y;
  }

  std::vector<float> run(Mixture& mixture, std::int64_t n, const float* x, RowClass rows) const {
    std::vector<float> y(at(n * hidden));
    mixture.run(spec, weights, Activation::silu, n, x, y.data(), rows);
    return y;
  }

  MixtureSpec spec;
  std::int64_t hidden;
  Matrix router, shared_router;
  std::vector<float> bias;
  std::vector<Matrix> gate, up, down;
  std::unique_ptr<std::vector<Matrix>> shared;
  MixtureWeights weights;
};

std::vector<float> rows_of(std::mt19937& random, std::int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> x(at(n));
  for (float& v : x) v = normal(random);
  return x;
}

/// Relative to the size of a row's numbers.
void near(const Model& model, const std::vector<float>& x, const std::vector<float>& y,
          double error) {
  const auto n = static_cast<std::int64_t>(x.size()) / model.hidden;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::vector<double> wanted = model.reference(x.data() + i * model.hidden);
    double largest = 0, off = 0;
    for (std::int64_t c = 0; c < model.hidden; ++c) {
      largest = std::max(largest, std::abs(wanted[at(c)]));
      off =
          std::max(off, std::abs(wanted[at(c)] - static_cast<double>(y[at(i * model.hidden + c)])));
    }
    INFO("row " << i << " of " << n << ": off by " << off << ", numbers up to " << largest);
    REQUIRE(off <= error * largest);  // not so for NaN
  }
}

struct ActivationsScope {
  explicit ActivationsScope(cpu::Activations a) : before(activations()) { set_activations(a); }
  ~ActivationsScope() { set_activations(before); }
  cpu::Activations before;
};

/// Every kind of router, sizes that no vector divides.
std::vector<MixtureSpec> kinds(std::mt19937& random, std::int64_t multiple) {
  std::vector<MixtureSpec> all;
  for (const RouterScoring scoring : {RouterScoring::softmax, RouterScoring::sigmoid})
    for (const RouterBias bias : {RouterBias::none, RouterBias::product, RouterBias::choice})
      for (const bool normalised : {false, true}) {
        MixtureSpec s;
        s.experts = 1 + static_cast<std::int64_t>(random() % 19);
        s.chosen = 1 + static_cast<std::int64_t>(random()) % std::min<std::int64_t>(s.experts, 6);
        s.width = multiple * (1 + static_cast<std::int64_t>(random() % 3));
        if (random() % 2) s.shared_width = 2 * multiple;
        s.shared_gate = s.shared_width > 0 && random() % 2;
        s.scoring = scoring, s.bias = bias, s.normalised = normalised;
        if (random() % 2) s.scaling = 2.5;
        all.push_back(s);
      }
  MixtureSpec s{.experts = 6, .chosen = 3, .width = 2 * multiple, .normalised = true};  // gpt-oss
  s.bias = RouterBias::product, s.expert_bias = true, s.slope = 1.702, s.limit = 0.7;
  all.push_back(s);
  return all;
}

TEST_CASE("mixture: it is what float64 says, of every kind of router and type of weights") {
  std::mt19937 random(47);
  Mixture mixture;  // one for all: buffers of other sizes are no harm
  const ActivationsScope exact(cpu::Activations::exact);
  for (const TensorType type :
       {TensorType::f32, TensorType::bf16, TensorType::q8_0, TensorType::q4_0, TensorType::mxfp4}) {
    const bool blocks = block_elements(type) > 1;
    for (const MixtureSpec& spec : kinds(random, blocks ? 32 : 13))
      for (const std::int64_t n : {1, 2, 3, 17}) {
        const Model model(random, spec, blocks ? 64 : 27, type);
        const std::vector<float> x = rows_of(random, n * model.hidden);
        INFO(name_of(type) << ": " << spec.experts << " experts, " << spec.chosen << " chosen");
        near(model, x, model.run(mixture, n, x.data(), n > 4 ? RowClass::many : RowClass::few),
             2e-5);
      }
  }
}

TEST_CASE("mixture: rounded activations are near, and the router does not see them") {
  std::mt19937 random(48);
  Mixture mixture;
  const ActivationsScope rounded(cpu::Activations::rounded);
  MixtureSpec spec{.experts = 9, .chosen = 3, .width = 96, .normalised = true};
  for (const std::int64_t n : {1, 40}) {
    const Model model(random, spec, 128, TensorType::q8_0);
    const std::vector<float> x = rows_of(random, n * model.hidden);
    near(model, x, model.run(mixture, n, x.data(), RowClass::many), 0.05);
  }
}

TEST_CASE("mixture: more rows than it takes at once, and all of them to one expert") {
  std::mt19937 random(49);
  Mixture mixture;
  MixtureSpec spec{.experts = 7, .chosen = 2, .width = 5, .normalised = true};
  const Model any(random, spec, 11, TensorType::f32);
  const std::int64_t n = kMixtureRows + 3;
  const std::vector<float> x = rows_of(random, n * any.hidden);
  near(any, x, any.run(mixture, n, x.data(), RowClass::many), 2e-5);
  spec.bias = RouterBias::product;
  const Model one(random, spec, 11, TensorType::f32, 4);
  near(one, x, one.run(mixture, n, x.data(), RowClass::many), 2e-5);
  SECTION("the result may lie where the rows were") {
    std::vector<float> y = x;
    mixture.run(any.spec, any.weights, Activation::silu, n, y.data(), y.data(), RowClass::many);
    REQUIRE(y == any.run(mixture, n, x.data(), RowClass::many));
  }
}

TEST_CASE("mixture: a row's bits are its own in any company, with any number of threads") {
  std::mt19937 random(50);
  const int before = max_threads();
  for (const TensorType type : {TensorType::f32, TensorType::bf16, TensorType::q8_0})
    for (const RowClass rows : {RowClass::few, RowClass::many})
      for (const std::int64_t experts : {3, 16}) {
        MixtureSpec spec{.experts = experts, .chosen = 2, .width = 64, .shared_width = 32};
        spec.shared_gate = true;
        const Model model(random, spec, 96, type);
        const std::int64_t n = 23;
        const std::vector<float> x = rows_of(random, n * model.hidden);
        Mixture mixture;
        const std::vector<float> all = model.run(mixture, n, x.data(), rows);
        for (const int threads : {1, 3}) {
          set_max_threads(threads);
          REQUIRE(model.run(mixture, n, x.data(), rows) == all);
        }
        set_max_threads(before);
        for (const std::int64_t count : {1, 2, 7})
          for (std::int64_t first = 0; first + count <= n; first += count) {
            const std::vector<float> part =
                model.run(mixture, count, x.data() + first * model.hidden, rows);
            REQUIRE(std::memcmp(part.data(), all.data() + first * model.hidden,
                                part.size() * sizeof(float)) == 0);
          }
      }
}

std::vector<std::int64_t> experts_of(const std::vector<ChosenExpert>& chosen) {
  std::vector<std::int64_t> experts;
  for (const ChosenExpert& c : chosen) experts.push_back(c.expert);
  return experts;
}

TEST_CASE("mixture: of equal scores the expert of the lower number is chosen") {
  using List = std::vector<std::int64_t>;
  for (const RouterScoring scoring : {RouterScoring::softmax, RouterScoring::sigmoid}) {
    MixtureSpec spec{.experts = 6, .chosen = 3, .normalised = true, .scoring = scoring};
    std::vector<ChosenExpert> chosen(3);
    const auto choose = [&](std::vector<float> products, const float* bias = nullptr) {
      choose_experts(spec, bias, products.data(), chosen.data());
      return experts_of(chosen);
    };
    CHECK(choose({1, 1, 1, 1, 1, 1}) == List{0, 1, 2});
    for (const ChosenExpert& c : chosen) CHECK(c.weight == chosen[0].weight);
    CHECK(choose({0, 2, 1, 2, 1, 1}) == List{1, 2, 3});
    CHECK(choose({-5, -5, 7, -5, -5, -4}) == List{0, 2, 5});
    // where a softmax is 0 of all but one, its products still say which are next
    CHECK(choose({-3000, -2000, 900, -1000, -900, -2500}) ==
          (scoring == RouterScoring::softmax ? List{2, 3, 4} : List{0, 1, 2}));
    const float bias[] = {0, 0, 0, 5, 5, 5};
    CHECK(choose({9, 8, 7, 1, 2, 3}, bias) == List{3, 4, 5});
    CHECK(chosen[2].weight > chosen[0].weight);
    // NaN is not passed over in silence
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(choose({1, 1, 1, nan, 1, 1})[2] == 3);
    float sum = 0;
    for (const ChosenExpert& c : chosen) sum += c.weight;
    CHECK(std::isnan(sum));
    choose({nan, nan, nan, nan, nan, nan});
  }
}

// -- weights and configurations

OpenModel with_config(const char* family, const char* key, const std::string& value) {
  OpenModel model = open_model(family_checkpoint(family));
  std::string& text = model.config_json;
  const std::string quoted = std::string("\"") + key + "\":";
  if (const std::size_t found = text.find(quoted); found != std::string::npos) {
    const std::size_t end = text.find_first_of(",\n", found);
    text.replace(found, end - found, quoted + " " + value);
  } else {
    text.insert(text.find('{') + 1, quoted + " " + value + ",");
  }
  model.config = parse_model_config(text, "", "changed");
  find_mixture_tensors(*model.tensors, model.config);
  return model;
}

std::string refused(const char* family, const char* key, const std::string& value) {
  return refusal<FileError>([&] { Decoder::load(with_config(family, key, value)); });
}

TEST_CASE("mixture: numbers that fit no model are refused by their key") {
  CHECK(mentions(refused("qwen3_moe", "num_experts", "0"), "num_experts"));
  CHECK(mentions(refused("qwen3_moe", "num_experts", "-7"), "num_experts"));
  CHECK(mentions(refused("qwen3_moe", "num_experts", "1000000000000"), "num_experts"));
  CHECK(mentions(refused("qwen3_moe", "num_experts", "2"), "num_experts_per_tok = 3 exceeds"));
  CHECK(mentions(refused("qwen3_moe", "num_experts_per_tok", "8"), "exceeds num_experts = 7"));
  CHECK(mentions(refused("qwen3_moe", "num_experts_per_tok", "0"), "num_experts_per_tok"));
  CHECK(mentions(refused("qwen3_moe", "num_local_experts", "9"), "differs from num_experts = 7"));
  CHECK(mentions(refused("qwen3_moe", "moe_intermediate_size", "0"), "moe_intermediate_size"));
  CHECK(mentions(refused("qwen3_moe", "decoder_sparse_step", "0"), "decoder_sparse_step"));
  CHECK(mentions(refused("qwen3_moe", "decoder_sparse_step", "5"), "no layer with experts"));
  CHECK(mentions(refused("mixtral", "num_local_experts", "0"), "num_local_experts"));
  CHECK(mentions(refused("mixtral", "num_experts_per_tok", "6"), "num_experts_per_tok"));
  CHECK(mentions(refused("olmoe", "clip_qkv", "8.0"), "clip_qkv"));
  CHECK(mentions(refused("qwen2_moe", "shared_expert_intermediate_size", "0"),
                 "shared_expert_intermediate_size"));
  // many layers of many experts: refused before a plan of all of them is made
  OpenModel model = with_config("qwen3_moe", "num_hidden_layers", "16000");
  CHECK(model.config.n_layers == 16000);
  CHECK(mentions(refusal<FileError>([] {
                   std::string text = open_model(family_checkpoint("qwen3_moe")).config_json;
                   text.replace(text.find("\"num_experts\": 7"), 16, "\"num_experts\": 8000");
                   text.replace(text.find("\"num_hidden_layers\": 2"), 22,
                                "\"num_hidden_layers\": 16000");
                   parse_model_config(text, "", "large");
                 }),
                 "num_experts = 8000 in each of 16000 layers"));
}

TEST_CASE("mixture: tensors that are missing or of another shape are refused by name") {
  CHECK(mentions(refused("qwen3_moe", "num_experts", "8"), "mlp.gate.weight' has shape [7, 24]"));
  CHECK(mentions(refused("qwen3_moe", "moe_intermediate_size", "21"), "experts.0.gate_proj"));
  CHECK(mentions(refused("qwen3_moe", "mlp_only_layers", "[1]"), "model.layers.1.mlp.gate_proj"));
  CHECK(mentions(refused("granitemoe", "intermediate_size", "35"),
                 "input_linear.weight' has shape [5, 72, 24]"));
  CHECK(mentions(refused("qwen3_moe_fused", "moe_intermediate_size", "19"), "[6, 40, 24]"));
  const auto without = [](const char* family, const std::string& name) {
    class Without final : public TensorSource {
     public:
      Without(std::shared_ptr<const TensorSource> from, std::string name)
          : from_(std::move(from)), name_(std::move(name)) {}
      const StoredTensor* find(std::string_view name) const override {
        return name == name_ ? nullptr : from_->find(name);
      }
      std::vector<const StoredTensor*> tensors() const override {
        std::vector<const StoredTensor*> all = from_->tensors();
        std::erase_if(all, [&](const StoredTensor* t) { return t->name == name_; });
        return all;
      }
      std::filesystem::path file_of(std::string_view) const override { return "weights"; }

     private:
      std::shared_ptr<const TensorSource> from_;
      std::string name_;
    };
    OpenModel model = open_model(family_checkpoint(family));
    REQUIRE(model.tensors->find(name));
    const auto source = std::make_shared<Without>(model.tensors, name);
    find_mixture_tensors(*source, model.config);
    return refusal<FileError>([&] { PlannedWeights(model.config, source); });
  };
  for (const auto& [family, name] : {std::pair{"qwen3_moe", "mlp.experts.6.down_proj.weight"},
                                     {"qwen3_moe", "mlp.experts.0.up_proj.weight"},
                                     {"qwen3_moe", "mlp.gate.weight"},
                                     {"mixtral", "block_sparse_moe.experts.4.w2.weight"},
                                     {"mixtral", "block_sparse_moe.gate.weight"},
                                     {"granitemoe", "block_sparse_moe.output_linear.weight"},
                                     {"granitemoeshared", "shared_mlp.input_linear.weight"},
                                     {"qwen2_moe", "mlp.shared_expert_gate.weight"},
                                     {"qwen3_moe_fused", "mlp.experts.gate_up_proj"}}) {
    const std::string tensor = std::string("model.layers.1.") + name;
    INFO(family << ' ' << tensor);
    CHECK(mentions(without(family, tensor), "has no tensor '" + tensor + "'"));
  }
}

TEST_CASE("mixture: experts lie in their tensors as the plan says") {
  const OpenModel model = open_model(family_checkpoint("granitemoe"));
  const PlannedWeights weights(model.config, model.tensors);
  const StoredTensor& in =
      *model.tensors->find("model.layers.1.block_sparse_moe.input_linear.weight");
  const std::byte* next = in.data;
  for (std::int64_t e = 0; e < 5; ++e) {
    const WeightView gate = weights.of_expert(WeightRole::expert_gate, 1, e);
    const WeightView up = weights.of_expert(WeightRole::expert_up, 1, e);
    CHECK(gate.data == next);
    CHECK(up.data == gate.data + gate.rows * gate.row_bytes());
    next = up.data + up.rows * up.row_bytes();
  }
  CHECK(next == in.data + in.bytes);
  CHECK_FALSE(weights.has(WeightRole::gate, 1));
  CHECK_THROWS_AS(weights.of_expert(WeightRole::expert_down, 1, 5), DataError);
  const OpenModel sparse = open_model(family_checkpoint("qwen3_moe_sparse"));
  const PlannedWeights mixed(sparse.config, sparse.tensors);
  CHECK(mixed.has(WeightRole::gate, 0));
  CHECK_FALSE(mixed.has(WeightRole::router, 0));
  CHECK(mixed.has(WeightRole::router, 1));
  CHECK(mixed.has(WeightRole::gate, 3));
}

}  // namespace mixture_test
