// SPDX-License-Identifier: Apache-2.0
// Every combination of the papers' options (docs/settings.md): what goes together attends to what
// it says that it recalled, with the weights that it says, against float64; the rest is refused.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "support/compare.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace driver;

namespace {

constexpr std::int64_t kTokens = 108, kStep = 12;

/// What was seen of a run.
struct Seen {
  std::int64_t recalled = 0, weighted = 0, forgotten = 0;
};

/// Reads the tokens and checks a query of each lane in the last step.
Seen run(const MemoryConfig& config, const MemoryShape& shape, const std::vector<Token>& tokens) {
  std::vector<std::int64_t> given;
  if (config.segmenter == SegmenterKind::given)
    for (std::int64_t t = 7; t < kTokens; t += 5) given.push_back(t);
  EpisodicMemory memory(config, shape, std::move(given));
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> weights;  // layer, group
  memory.set_recall_hook([&](const RecalledEvents& r) {
    weights[{r.layer, r.group}].assign(r.weights.begin(), r.weights.end());
  });
  Seen seen;
  const std::int64_t groups = memory.lanes() / shape.n_layers;
  const std::int64_t heads = shape.n_heads / groups;
  for (std::int64_t at = 0; at < kTokens; at += kStep) {
    weights.clear();
    std::vector<std::int64_t> pending;
    for (std::int64_t s = 0; s < memory.scopes(); ++s)
      pending.push_back(memory.events(s).pending_start());
    const auto out = step(memory, tokens, at, kStep);
    for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
      const std::int64_t scope = memory.scopes() > 1 ? lane : 0, layer = lane / groups;
      const std::vector<EventId>& recalled = memory.recalled(lane).recalled();
      seen.recalled += static_cast<std::int64_t>(recalled.size());
      std::vector<double> factor(static_cast<std::size_t>(at + kStep), -1.0);  // -1: not seen
      const auto fill = [&](std::int64_t first, std::int64_t end, double with) {
        for (std::int64_t t = first; t < std::min(end, at + kStep); ++t)
          factor[static_cast<std::size_t>(t)] = with;
      };
      fill(0, config.n_init, 1);
      fill(pending[static_cast<std::size_t>(scope)], at + kStep, 1);
      const std::vector<float>& of = weights[{layer, lane % groups}];
      REQUIRE(of.size() == recalled.size());
      for (std::size_t i = 0; i < recalled.size(); ++i) {
        const TokenRange& event = memory.events(scope)[recalled[i]];
        fill(event.start, event.end, of[i]);
        seen.weighted += of[i] < 1;
      }
      if (at + kStep < kTokens) continue;
      const std::int64_t p = lane % 2 == 0 ? at + kStep - 1 : at;
      const auto attention = attention_weights(
          tokens, shape, layer, p, config.n_local,
          [&](std::int64_t i) { return factor[static_cast<std::size_t>(i)] >= 0; });
      double worst = 0;
      for (std::int64_t h = lane % groups * heads; h < (lane % groups + 1) * heads; ++h)
        for (std::int64_t c = 0; c < shape.head_dim; ++c) {
          const std::int64_t g = h / (shape.n_heads / shape.n_kv_heads);
          double expected = 0;
          for (std::int64_t i = 0; i <= p; ++i) {
            const bool local = p - i < config.n_local;
            expected += attention[static_cast<std::size_t>(h)][static_cast<std::size_t>(i)] *
                        (local ? 1.0 : factor[static_cast<std::size_t>(i)]) *
                        tokens[static_cast<std::size_t>(i)].v[static_cast<std::size_t>(
                            layer)][static_cast<std::size_t>(g * shape.head_dim + c)];
          }
          const float got =
              out[static_cast<std::size_t>(layer)]
                 [static_cast<std::size_t>(((p - at) * shape.n_heads + h) * shape.head_dim + c)];
          worst = worse_of(worst, std::fabs(got - expected));
        }
      REQUIRE(worst < 2e-5);
    }
  }
  seen.forgotten = static_cast<std::int64_t>(memory.forgotten().size());
  return seen;
}

}  // namespace

TEST_CASE("every combination of options attends to what it says, or is refused",
          "[memory][heavy]") {
  const MemoryShape shape = small_shape(2, 4, 2, 6);
  const auto tokens = random_tokens(shape, kTokens, 15);
  std::int64_t ran = 0, refused = 0, weighted = 0, forgotten = 0;
  struct Search {
    RepresentativeScore score;
    IndexKind index;
  };
  const auto check = [&](const MemoryConfig& c) {
    const bool chooses = c.reweight == Reweighting::narrow || c.reweight == Reweighting::broad;
    const bool contradicts =
        (c.scope == EventScope::head && (c.recall_groups > 1 || c.retention)) ||
        (chooses && c.contiguity > 0) ||
        (c.score == RepresentativeScore::max && (c.reweight != Reweighting::none || c.retention));
    INFO(to_json(c));
    if (contradicts) {
      CHECK_THROWS_AS(EpisodicMemory(c, shape), ConfigError);
      ++refused;
      return;
    }
    const Seen seen = run(c, shape, tokens);
    CHECK(seen.recalled > 0);
    CHECK((seen.weighted > 0) == (c.reweight == Reweighting::exact));
    CHECK((seen.forgotten > 0) == c.retention.has_value());
    ++ran;
    weighted += seen.weighted;
    forgotten += seen.forgotten;
  };
  MemoryConfig c = small_config();
  c.reweight_top = 2;
  c.exact_up_to = 6;  // so that FAISS has a graph
  for (const auto segmenter :
       {SegmenterKind::surprise, SegmenterKind::fixed, SegmenterKind::random, SegmenterKind::given,
        SegmenterKind::k_similarity, SegmenterKind::gaussian}) {
    c.segmenter = segmenter;
    const bool by_keys =
        segmenter == SegmenterKind::k_similarity || segmenter == SegmenterKind::gaussian;
    c.gamma = by_keys ? 0.3 : small_config().gamma;
    for (const auto refine : {Refinement::none, Refinement::modularity, Refinement::conductance,
                              Refinement::intra_inter}) {
      c.refine = refine;
      for (const Search search : {Search{RepresentativeScore::mean, IndexKind::exact},
                                  Search{RepresentativeScore::max, IndexKind::exact},
                                  Search{RepresentativeScore::mean, IndexKind::faiss}}) {
        c.score = search.score;
        c.index = search.index;
        for (const auto scope : {EventScope::sequence, EventScope::head}) {
          c.scope = scope;
          for (const std::int64_t groups : {1, 2}) {
            c.recall_groups = groups;
            for (const auto reweight :
                 {Reweighting::none, Reweighting::exact, Reweighting::narrow, Reweighting::broad}) {
              c.reweight = reweight;
              for (const double contiguity : {0.0, 0.3}) {
                c.contiguity = contiguity;
                c.retention.reset();
                check(c);
                c.retention.emplace().memoria.initial_lifespan = 2;
                c.retention->memoria.alpha = 0.25;
                check(c);
              }
            }
          }
        }
      }
    }
  }
  // For each segmenter and refinement: five of scope, groups and retention, six of reweighting and
  // contiguity, with either index; with the best of several three and two.
  CHECK(ran == 6 * 4 * (2 * 5 * 6 + 3 * 2));
  CHECK(ran + refused == 6 * 4 * 3 * 2 * 2 * 4 * 2 * 2);
  CHECK(weighted > 100);
  CHECK(forgotten > 100);
}
