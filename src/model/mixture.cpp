// SPDX-License-Identifier: Apache-2.0
#include "mixture.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "elementwise.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/activations.hpp"

namespace episodic {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

/// A router decides by small differences: its activations are not rounded.
void multiply_exactly(const Linear& w, std::int64_t n, const float* x, float* y, RowClass rows) {
  const cpu::WeightProduct product{w.type, w.weight, w.out, w.in, w.bias, x, w.in, y, w.out, false};
  cpu::multiply_weights(n, {&product, 1}, {.activations = cpu::Activations::exact, .rows = rows});
}

void activate(const MixtureSpec& spec, Activation activation, float* gate, const float* up,
              std::int64_t n) {
  if (spec.slope > 0)
    return clamped_silu_times(static_cast<float>(spec.slope), static_cast<float>(spec.limit), gate,
                              up, n);
  (activation == Activation::silu ? silu_times : gelu_times)(gate, up, n);
}

/// NaN goes before all numbers, so that the row shows it.
bool goes_before(float s, float t) { return s > t || (std::isnan(s) && !std::isnan(t)); }

/// Whether the experts of a group are looked at: fewer than chosen_groups groups go before it.
bool is_looked_at(const MixtureSpec& spec, std::int64_t group, const float* score,
                  const float* choice_bias) {
  const std::int64_t size = spec.experts / spec.groups;
  const auto rank_of = [&](std::int64_t g) {
    float best = -INFINITY, second = -INFINITY;
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float s = choice_bias ? score[e] + choice_bias[e] : score[e];
      second = std::max(second, std::min(s, best));
      best = std::max(best, s);
    }
    return spec.group_by_two ? best + second : best;
  };
  const float own = rank_of(group);
  std::int64_t before = 0;
  for (std::int64_t g = 0; g < spec.groups; ++g)
    if (const float other = rank_of(g); other > own || (other == own && g < group)) ++before;
  return before < spec.chosen_groups;
}

/// The experts of the largest scores, the largest first.
void take_best(const MixtureSpec& spec, const float* score, const float* choice_bias,
               ChosenExpert* to) {
  const std::int64_t k = spec.chosen;
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < spec.experts; ++e) {
    if (spec.groups > 0 && e % (spec.experts / spec.groups) == 0 &&
        !is_looked_at(spec, e / (spec.experts / spec.groups), score, choice_bias)) {
      e += spec.experts / spec.groups - 1;
      continue;
    }
    const float s = choice_bias ? score[e] + choice_bias[e] : score[e];
    if (count == k && !goes_before(s, to[k - 1].weight)) continue;
    std::int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && goes_before(s, to[at - 1].weight); --at) to[at] = to[at - 1];
    to[at] = {e, s};
  }
}

/// Softmax of all scores, of the chosen ones alone where they are divided by their sum anyway.
void weigh_by_softmax(const MixtureSpec& spec, const float* score, ChosenExpert* chosen) {
  const std::int64_t k = spec.chosen;
  float most = score[chosen[0].expert];
  for (std::int64_t i = 1; i < k; ++i) most = std::max(most, score[chosen[i].expert]);
  float sum = 0;
  if (!spec.normalised) {
    for (std::int64_t e = 0; e < spec.experts; ++e) most = std::max(most, score[e]);
    for (std::int64_t e = 0; e < spec.experts; ++e) sum += std::exp(score[e] - most);
  }
  for (std::int64_t i = 0; i < k; ++i) {
    chosen[i].weight = std::exp(score[chosen[i].expert] - most);
    if (spec.normalised) sum += chosen[i].weight;
  }
  for (std::int64_t i = 0; i < k; ++i) chosen[i].weight /= sum;
}

void weigh_by_scores(const MixtureSpec& spec, const float* score, ChosenExpert* chosen) {
  float sum = 0;
  for (std::int64_t i = 0; i < spec.chosen; ++i) {
    chosen[i].weight = score[chosen[i].expert];
    sum += chosen[i].weight;
  }
  if (!spec.normalised) return;
  constexpr float kLeast = 1e-20f;  // of scores that are all 0
  for (std::int64_t i = 0; i < spec.chosen; ++i) chosen[i].weight /= sum + kLeast;
}

}  // namespace

void choose_experts(const MixtureSpec& spec, const float* choice_bias, float* products,
                    ChosenExpert* to) {
  const bool softmax = spec.scoring == RouterScoring::softmax;
  if (!softmax)
    for (std::int64_t e = 0; e < spec.experts; ++e) products[e] = sigmoid(products[e]);
  if (softmax && choice_bias) {  // which is for probabilities
    const float most = *std::max_element(products, products + spec.experts);
    float sum = 0;
    for (std::int64_t e = 0; e < spec.experts; ++e)
      sum += products[e] = std::exp(products[e] - most);
    for (std::int64_t e = 0; e < spec.experts; ++e) products[e] /= sum;
  }
  // Products are in the order of their softmax, and keep differences that it rounds away.
  take_best(spec, products, choice_bias, to);
  if (softmax && !choice_bias)
    weigh_by_softmax(spec, products, to);
  else
    weigh_by_scores(spec, products, to);
  if (spec.scaling != 1)
    for (std::int64_t i = 0; i < spec.chosen; ++i) to[i].weight *= static_cast<float>(spec.scaling);
  std::sort(to, to + spec.chosen,
            [](const ChosenExpert& a, const ChosenExpert& b) { return a.expert < b.expert; });
}

void Mixture::run(const MixtureSpec& spec, const MixtureWeights& weights, Activation activation,
                  std::int64_t n, const float* x, float* y, RowClass rows, const float* router_x) {
  const std::int64_t hidden = weights.router.in;
  for (std::int64_t first = 0; first < n; first += kMixtureRows) {
    const float* const from = x + first * hidden;
    const Call call{spec,       weights,
                    activation, std::min(kMixtureRows, n - first),
                    from,       router_x ? router_x + first * hidden : from,
                    rows,       hidden};
    route(call);
    sort_by_expert(call);
    const std::int64_t pairs = call.n * spec.chosen;
    rows_.floats(pairs * hidden);
    gate_.floats(pairs * spec.width);
    up_.floats(pairs * spec.width);
    if (call.n == 1)
      run_one_row(call);
    else
      run_experts(call);
    if (spec.shared_width > 0) run_shared(call);
    add_up(call, y + first * hidden);
  }
}

void Mixture::route(const Call& call) {
  const MixtureSpec& spec = call.spec;
  float* const scores = scores_.floats(call.n * spec.experts);
  multiply_exactly(call.weights.router, call.n, call.router_x, scores, call.rows);
  chosen_.resize(index(call.n * spec.chosen));
  constexpr std::int64_t kRows = 32;  // of a task
  parallel_for((call.n + kRows - 1) / kRows, [&](std::int64_t block) {
    for (std::int64_t i = block * kRows; i < std::min(call.n, (block + 1) * kRows); ++i) {
      ChosenExpert* const chosen = chosen_.data() + i * spec.chosen;
      choose_experts(spec, call.weights.choice_bias, scores + i * spec.experts, chosen);
      if (const float* const of = call.weights.expert_scale)
        for (std::int64_t k = 0; k < spec.chosen; ++k) chosen[k].weight *= of[chosen[k].expert];
    }
  });
}

/// By counting. Rows of one expert stay in their order.
void Mixture::sort_by_expert(const Call& call) {
  begin_.assign(index(call.spec.experts + 1), 0);
  for (const ChosenExpert& c : chosen_) ++begin_[index(c.expert + 1)];
  active_.clear();
  active_.reserve(index(call.spec.experts));
  for (std::int64_t e = 0; e < call.spec.experts; ++e) {
    if (begin_[index(e + 1)] > 0) active_.push_back(e);
    begin_[index(e + 1)] += begin_[index(e)];
  }
  place_.resize(chosen_.size());
  row_.resize(chosen_.size());
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    place_[i] = begin_[index(chosen_[i].expert)]++;
    row_[index(place_[i])] = static_cast<std::int64_t>(i) / call.spec.chosen;
  }
  for (std::size_t e = begin_.size() - 1; e > 0; --e) begin_[e] = begin_[e - 1];
  begin_[0] = 0;
}

/// All products of its experts side by side: one loop over threads for gates and ups, which share
/// the rounding of the row, and one for downs.
void Mixture::run_one_row(const Call& call) {
  const std::int64_t width = call.spec.width, k = call.spec.chosen;
  products_.clear();
  products_.reserve(index(2 * k));
  const auto add = [&](const Linear& w, const float* x, float* y) {
    products_.push_back({w.type, w.weight, w.out, w.in, w.bias, x, w.in, y, w.out, false});
  };
  for (std::int64_t i = 0; i < k; ++i) {
    const std::size_t e = index(chosen_[index(i)].expert);
    add(call.weights.gate[e], call.x, gate_.floats() + i * width);
    add(call.weights.up[e], call.x, up_.floats() + i * width);
  }
  const cpu::WeightOptions options{.activations = activations(), .rows = call.rows};
  cpu::multiply_weights(1, products_, options);
  activate(call.spec, call.activation, gate_.floats(), up_.floats(), k * width);
  products_.clear();
  for (std::int64_t i = 0; i < k; ++i)
    add(call.weights.down[index(chosen_[index(i)].expert)], gate_.floats() + i * width,
        rows_.floats() + i * call.hidden);
  cpu::multiply_weights(1, products_, options);
}

/// A thread takes an expert as a whole where there are enough of them; else each product is cut.
void Mixture::run_experts(const Call& call) {
  constexpr std::int64_t kExpertsOfThread = 2;  // rows are not spread evenly
  const auto active = static_cast<std::int64_t>(active_.size());
  if (active < kExpertsOfThread * max_threads()) {
    for (const std::int64_t e : active_) run_expert(call, e, true);
    return;
  }
  parallel_for(active, [&](std::int64_t i) { run_expert(call, active_[index(i)], false); });
}

void Mixture::run_expert(const Call& call, std::int64_t expert, bool parallel) {
  const std::size_t e = index(expert);
  const std::int64_t first = begin_[e], n = begin_[e + 1] - first, width = call.spec.width;
  float* const rows = rows_.floats() + first * call.hidden;
  float* const gate = gate_.floats() + first * width;
  float* const up = up_.floats() + first * width;
  for (std::int64_t i = 0; i < n; ++i)
    std::memcpy(rows + i * call.hidden, call.x + row_[index(first + i)] * call.hidden,
                index(call.hidden) * sizeof(float));
  const Cut cut = parallel ? Cut::blocks : Cut::whole;
  const Product gate_up[] = {{&call.weights.gate[e], rows, gate}, {&call.weights.up[e], rows, up}};
  multiply(n, gate_up, cut, call.rows);
  activate(call.spec, call.activation, gate, up, n * width);
  const Product down{&call.weights.down[e], gate, rows};
  multiply(n, {&down, 1}, cut, call.rows);
}

void Mixture::run_shared(const Call& call) {
  const MixtureWeights& w = call.weights;
  const std::int64_t width = call.spec.shared_width;
  float* const gate = shared_in_.floats(2 * call.n * width);
  float* const up = gate + call.n * width;
  const Product gate_up[] = {{&w.shared_gate, call.x, gate}, {&w.shared_up, call.x, up}};
  multiply(call.n, gate_up, Cut::blocks, call.rows);
  activate(call.spec, call.activation, gate, up, call.n * width);
  const Product down{&w.shared_down, gate, shared_.floats(call.n * call.hidden)};
  multiply(call.n, {&down, 1}, Cut::blocks, call.rows);
  if (!call.spec.shared_gate) return;
  float* const factor = factor_.floats(call.n);
  multiply_exactly(w.shared_router, call.n, call.x, factor, call.rows);
  for (std::int64_t i = 0; i < call.n; ++i) factor[i] = sigmoid(factor[i]);
}

void Mixture::add_up(const Call& call, float* y) const {
  const std::int64_t hidden = call.hidden, k = call.spec.chosen;
  const bool shared = call.spec.shared_width > 0, gated = call.spec.shared_gate;
  constexpr std::int64_t kRows = 8;  // of a task
  parallel_for((call.n + kRows - 1) / kRows, [&](std::int64_t block) {
    for (std::int64_t i = block * kRows; i < std::min(call.n, (block + 1) * kRows); ++i) {
      float* const to = y + i * hidden;
      std::fill_n(to, hidden, 0.0f);
      for (std::int64_t j = i * k; j < (i + 1) * k; ++j)
        add_scaled(chosen_[index(j)].weight, rows_.floats() + place_[index(j)] * hidden, to,
                   hidden);
      if (shared)
        add_scaled(gated ? factor_.floats()[i] : 1.0f, shared_.floats() + i * hidden, to, hidden);
    }
  });
}

}  // namespace episodic
