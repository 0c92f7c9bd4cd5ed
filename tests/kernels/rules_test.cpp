// SPDX-License-Identifier: Apache-2.0
// The rules that host and device share (episodic/base/rules), beside what the CPU's memory does: a
// host that does not compile them yet must do the same, and one that does must not lose it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/rules/closing.hpp"
#include "episodic/base/rules/codes.hpp"
#include "episodic/base/rules/eviction.hpp"
#include "episodic/base/rules/recall.hpp"
#include "episodic/base/rules/refinement.hpp"
#include "episodic/base/rules/threshold.hpp"
#include "episodic/recall/buffers.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/surprise.hpp"
#include "support/recall_reference.hpp"
#include "support/test.hpp"

namespace {

using namespace episodic;

std::int64_t draw(std::mt19937& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

std::vector<float> normal(std::mt19937& random, std::int64_t n) {
  std::normal_distribution<float> distribution;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& f : x) f = distribution(random);
  return x;
}

/// What EM 3.4 recalls: ranks and neighbours by the shared rules, budgets and filling by the
/// reference.
struct RuleRecall {
  std::vector<EventId> similarity, contiguity;

  void step(const MemoryConfig& config, const std::vector<float>& scores, const EventTable& events,
            std::int64_t left_window) {
    const std::int64_t n = events.size(),
                       outside = rules::outside_events(left_window, events.tokens());
    const episodic_test::ReferenceBudget budget = episodic_test::reference_budget(config, outside);
    std::vector<std::uint64_t> ranks;
    for (EventId e = 0; e < n; ++e)
      ranks.push_back(
          rules::event_rank(scores[static_cast<std::size_t>(e)], static_cast<std::int32_t>(e)));
    std::sort(ranks.rbegin(), ranks.rend());
    const bool all_fit = static_cast<double>(events.tokens()) <= budget.similarity;
    similarity.clear();
    if (budget.similarity > 0 && all_fit) {
      for (EventId e = 0; e < n; ++e) similarity.push_back(e);
    } else if (budget.similarity > 0) {
      std::vector<EventId> order;
      for (const std::uint64_t rank : ranks) order.push_back(rules::event_of(rank));
      similarity = episodic_test::reference_fill(order, events, budget.similarity);
    }
    std::vector<EventId> listed;
    const auto list = [&](EventId e) {
      const auto holds = [&](const std::vector<EventId>& all) {
        return std::find(all.begin(), all.end(), e) != all.end();
      };
      if (e >= 0 && e < n && !holds(similarity) && !holds(listed)) listed.push_back(e);
    };
    if (budget.contiguity > 0) {
      const std::int64_t reach = rules::neighbour_reach(config.neighbours, n);
      for (const EventId e : similarity)
        for (std::int64_t i = 0; i < 2 * reach; ++i) list(rules::neighbour(e, i));
      for (const EventId e : contiguity) list(e);
    }
    contiguity = episodic_test::reference_fill(listed, events, budget.contiguity);
  }
};

/// A boundary's best place by the shared rules, from the graph itself.
std::int64_t rule_split(rules::Objective objective, const std::vector<std::vector<double>>& graph,
                        const rules::BoundaryWindow& w, std::int64_t b) {
  const auto sum = [&](std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
    double total = 0;
    for (std::int64_t r = r0; r < r1; ++r)
      for (std::int64_t c = c0; c < c1; ++c)
        total += graph[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
    return total;
  };
  std::vector<rules::SplitScore> scores;
  rules::SplitScore best{-INFINITY, 0.0};
  for (std::int64_t t = w.from; t <= b; ++t) {
    scores.push_back(rules::split_score(
        objective,
        {sum(w.start, t, w.start, t), sum(t, w.end, t, w.end), sum(w.start, t, t, w.end)},
        t - w.start, w.end - t));
    if (scores.back().value > best.value) best = scores.back();
  }
  for (std::int64_t t = b; t >= w.from; --t)
    if (rules::ties_with(scores[static_cast<std::size_t>(t - w.from)], best)) return t;
  return b;
}

}  // namespace

TEST_CASE("rules: events close as the host's table closes them, and stop where there is no room") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t n_init = draw(random, 0, 5), min_block = draw(random, 1, 6),
                       max_block = min_block + draw(random, 0, 9), end = draw(random, 0, 120);
    std::vector<bool> flags(static_cast<std::size_t>(end + 1));
    for (std::size_t t = 0; t < flags.size(); ++t) flags[t] = draw(random, 0, 4) == 0;
    EventTable table(n_init, min_block, max_block);
    rules::Pending pending{n_init, min_block, max_block};
    std::vector<TokenRange> events;
    const auto close = [&](std::int64_t start, std::int64_t stop) {
      events.push_back({start, stop});
      return true;
    };
    for (std::int64_t limit = 0; limit <= end; limit += draw(random, 1, 30)) {
      table.close_up_to(limit, [&](std::int64_t t) { return flags[static_cast<std::size_t>(t)]; });
      for (std::int64_t b = pending.start + 1; b < limit; ++b)
        if (flags[static_cast<std::size_t>(b)])
          REQUIRE(rules::close_at_boundary(pending, b, close));
      REQUIRE(rules::close_pieces(pending, limit, close));
      REQUIRE((events == table.all()));
      REQUIRE(pending.start == table.pending_start());
    }
  }
  rules::Pending pending{0, 2, 4};
  int room = 1;
  const auto close = [&](std::int64_t, std::int64_t) { return room-- > 0; };
  REQUIRE_FALSE(rules::close_at_boundary(pending, 10, close));
  REQUIRE(pending.start == 4);  // what was closed counts, what was not stays pending
}

TEST_CASE("rules: recall as the host's buffers do it, step after step") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    MemoryConfig config;
    config.n_init = draw(random, 0, 6);
    config.chunk = draw(random, 1, 12);
    config.n_mem = draw(random, 0, 60);
    config.n_local = draw(random, 1, 20);
    config.min_block = draw(random, 1, 4);
    config.max_block = config.min_block + draw(random, 0, 8);
    const double shares[] = {0.0, 0.3, 0.7, 1.0};
    config.contiguity = shares[draw(random, 0, 3)];
    config.neighbours = draw(random, 1, 3);
    const auto index = make_index(config, 1, 4);
    EventTable events(config.n_init, config.min_block, config.max_block);
    RecallBuffers host;
    RuleRecall shared;
    std::vector<std::vector<float>> representatives;
    for (int step = 0; step < 12; ++step) {
      for (std::int64_t more = draw(random, 0, 4); more > 0; --more) {
        const std::int64_t start = events.pending_start();
        events.append({start, start + draw(random, config.min_block, config.max_block)});
        // few values, so that scores tie
        std::vector<float> row(4);
        for (float& x : row) x = static_cast<float>(draw(random, -1, 1));
        representatives.push_back(row);
        index->add(row.data(), nullptr, 0);
      }
      std::vector<float> query(4), scores;
      for (float& x : query) x = static_cast<float>(draw(random, -1, 1));
      for (const auto& row : representatives)
        scores.push_back(query[0] * row[0] + query[1] * row[1] + query[2] * row[2] +
                         query[3] * row[3]);
      const std::int64_t left = events.pending_start() + draw(random, 0, 5);
      host.recall(config, *index, events, query.data(),
                  rules::outside_events(left, events.tokens()));
      shared.step(config, scores, events, left);
      REQUIRE(shared.similarity == host.similarity());
      REQUIRE(shared.contiguity == host.contiguity());
    }
  }
}

TEST_CASE("rules: budgets are those of the reference for every share") {
  std::mt19937 random(3);
  MemoryConfig config;
  for (int trial = 0; trial < 5000; ++trial) {
    config.n_init = draw(random, 0, 200);
    config.chunk = draw(random, 1, 600);
    config.n_mem = draw(random, 0, 5000);
    config.contiguity = trial % 5 == 0 ? static_cast<double>(trial % 2)
                                       : static_cast<double>(draw(random, 0, 1000)) / 1000.0;
    const std::int64_t outside = draw(random, 0, 7000);
    const episodic_test::ReferenceBudget reference =
        episodic_test::reference_budget(config, outside);
    const rules::RecallBudget shared = rules::recall_budget(
        config.n_init + config.chunk + config.n_mem - outside, config.contiguity);
    REQUIRE(static_cast<double>(shared.similarity) == reference.similarity);
    REQUIRE(static_cast<double>(shared.contiguity) == reference.contiguity);
  }
}

TEST_CASE("rules: ranks order as scores, then by time; NaN is the smallest score there is") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  using rules::event_rank;
  const float scores[] = {inf, 3e38f, 2.0f, 1.0f, 1e-42f, 0.0f, -1e-42f, -1.0f, -3e38f, -inf};
  for (std::size_t i = 0; i + 1 < std::size(scores); ++i) {
    REQUIRE(event_rank(scores[i], 9) > event_rank(scores[i + 1], 3));
    REQUIRE(event_rank(scores[i], 3) > event_rank(scores[i], 4));
    REQUIRE(rules::event_of(event_rank(scores[i], 12345)) == 12345);
  }
  REQUIRE(event_rank(-0.0f, 1) == event_rank(0.0f, 1));
  REQUIRE(event_rank(nan, 5) == event_rank(-inf, 5));
  REQUIRE(event_rank(-nan, 4) > event_rank(-inf, 5));
  REQUIRE(rules::bin_shift(2047, 2048) == 0);
  REQUIRE(rules::bin_shift(2048, 2048) == 1);
  REQUIRE(rules::bin_shift(~std::uint64_t{0}, 2048) == 53);
}

TEST_CASE("rules: bins of scores keep their order, whatever the centre") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNaN = std::numeric_limits<float>::quiet_NaN(),
                  kMost = std::numeric_limits<float>::max();
  std::mt19937 random(17);
  std::vector<float> scores = {0.0f, -0.0f, kInfinity, -kInfinity, kMost, -kMost, 1e-45f, -1e-45f};
  for (int exponent = -60; exponent <= 60; ++exponent)
    for (const float x : normal(random, 8)) scores.push_back(std::ldexp(x, exponent));
  for (const float x : normal(random, 400)) scores.push_back(300.0f + x);
  std::sort(scores.begin(), scores.end());
  for (const rules::ScoreCentre& centre :
       {rules::ScoreCentre{}, {300.0f, 303.0f}, {-2.0f, 1.0f}, {kMost, kMost}, {-kMost, 1e-45f}}) {
    const rules::ScoreBins bins = rules::score_bins(centre);
    int before = 0;
    for (const float score : scores) {
      const int bin = rules::score_bin(score, bins);
      REQUIRE((bin >= before && bin < rules::kScoreBins));
      before = bin;
    }
    REQUIRE(rules::score_bin(kNaN, bins) == rules::score_bin(-kInfinity, bins));
    REQUIRE(rules::score_bin(0.0f, bins) == rules::score_bin(-0.0f, bins));
  }
  // around the centre they tell scores apart
  const rules::ScoreBins bins = rules::score_bins({300.0f, 303.0f});
  for (float distance = 1.0f; distance < 64.0f; distance *= 2.0f)
    for (const float sign : {1.0f, -1.0f})
      REQUIRE(std::abs(rules::score_bin(300.0f + sign * distance, bins) -
                       rules::score_bin(300.0f + sign * 1.125f * distance, bins)) >= 7);
}

/// A row as kernels/codes.cuh codes it, and what its bound is made of.
struct CodedRow {
  std::vector<int> codes;
  std::vector<float> scale;  // of each block
  double norm = 0, mean = 0, coded = 0, rest = 0;
};
CodedRow code_row(const std::vector<float>& x, const std::vector<float>& mean) {
  CodedRow row;
  const std::size_t width = x.size();
  for (std::size_t first = 0; first < width; first += rules::kCodeBlock) {
    const std::size_t end = std::min<std::size_t>(width, first + rules::kCodeBlock);
    float largest = 0;
    for (std::size_t c = first; c < end; ++c) largest = std::max(largest, std::abs(x[c] - mean[c]));
    const float scale = largest / 127.0f;
    row.scale.push_back(scale);
    for (std::size_t c = first; c < end; ++c) {
      const int code =
          scale > 0 ? static_cast<int>(std::lround((x[c] - mean[c]) * (127.0f / largest))) : 0;
      row.codes.push_back(code);
      const double kept = static_cast<double>(scale) * code;
      const double left = static_cast<double>(x[c]) - static_cast<double>(mean[c]) - kept;
      row.norm += static_cast<double>(x[c]) * static_cast<double>(x[c]);
      row.mean += static_cast<double>(mean[c]) * static_cast<double>(mean[c]);
      row.coded += kept * kept;
      row.rest += left * left;
    }
  }
  for (double* const norm : {&row.norm, &row.mean, &row.coded, &row.rest}) *norm = std::sqrt(*norm);
  return row;
}

/// The sum of scales and codes of both, in real numbers as far as float64 has them.
double coded_product(const CodedRow& row, const std::vector<float>& query) {
  double sum = 0;
  for (std::size_t b = 0; b < row.scale.size(); ++b) {
    const std::size_t first = b * rules::kCodeBlock;
    const std::size_t end = std::min<std::size_t>(query.size(), first + rules::kCodeBlock);
    float largest = 0;
    for (std::size_t c = first; c < end; ++c) largest = std::max(largest, std::abs(query[c]));
    REQUIRE(rules::query_block_is_coded(largest));
    const float inverse = rules::inverse_query_scale(largest);
    std::int64_t total = 0;
    for (std::size_t c = first; c < end; ++c) {
      const rules::QueryCode code = rules::query_code(query[c], inverse);
      total += std::int64_t{row.codes[c]} * (256 * code.high + code.low);
    }
    sum += static_cast<double>(row.scale[b]) * static_cast<double>(rules::query_scale(largest)) *
           static_cast<double>(total);
  }
  return sum;
}

TEST_CASE("rules: codes of rows and queries bound every score, and no term of the bound is spare") {
  std::mt19937 random(18);
  double closest = 0;      // of errors to their bound
  int broken_without = 0;  // bounds that leave the query's codes out, and do not hold
  for (const std::int64_t width : {8, 128, 200, 1024})
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<float> mean = normal(random, width), x = normal(random, width);
      const bool exact = trial % 2 == 0;  // codes leave nothing: only the query's are wrong
      for (std::size_t c = 0; c < x.size(); ++c) {
        if (exact) {
          mean[c] = 0.0f;
          x[c] =
              (c % rules::kCodeBlock == 0 ? 127.0f : static_cast<float>(draw(random, -127, 127))) *
              0x1p-6f;
        } else {
          x[c] += 5.0f * mean[c];
        }
      }
      const CodedRow row = code_row(x, mean);
      std::vector<float> query = normal(random, width);
      if (trial % 3 == 1)  // all but half a step from a code, on the side of the row's
        for (std::size_t c = 0; c < query.size(); ++c)
          query[c] = c % rules::kCodeBlock == 0 ? 1.0f
                                                : (static_cast<float>(draw(random, -3000, 3000)) +
                                                   (row.codes[c] < 0 ? -0.49f : 0.49f)) /
                                                      static_cast<float>(rules::kQuerySteps);
      double score = 0, offset = 0, square = 0;
      for (std::size_t c = 0; c < x.size(); ++c) {
        score += static_cast<double>(query[c]) * static_cast<double>(x[c]);
        offset += static_cast<double>(query[c]) * static_cast<double>(mean[c]);
        square += static_cast<double>(query[c]) * static_cast<double>(query[c]);
      }
      const double error = std::abs(score - offset - coded_product(row, query));
      const double norm = std::sqrt(square);
      const auto bound = [&](double coded) {
        return norm *
               static_cast<double>(rules::code_reach(row.norm, row.mean, coded, row.rest, width));
      };
      // what float32's rounding of the two sums may add, of which the bound has room for twice
      const double rounding =
          static_cast<double>(width / 8 + 256) * 0x1p-24 * norm * (row.norm + row.mean + row.rest);
      CAPTURE(width, trial);
      REQUIRE(error + rounding <= bound(row.coded));
      closest = std::max(closest, error / bound(row.coded));
      // the planted fault: as if the query's codes were the query
      const double without = bound(0.0) - 4.0 * rounding;
      broken_without += error > without;
    }
  REQUIRE(closest > 0.05);
  REQUIRE(broken_without > 100);
  // a row that is too long, or not a number
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  REQUIRE(std::isinf(rules::code_reach(1e15, 0, 0, 0, 8)));
  REQUIRE(std::isinf(rules::code_reach(kNaN, 0, 0, 0, 8)));
  for (const float largest : {1e-21f, 1e15f, std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), 1e-45f})
    REQUIRE(!rules::query_block_is_coded(largest));
  REQUIRE(rules::query_block_is_coded(0.0f));
  for (int steps = -rules::kQuerySteps; steps <= rules::kQuerySteps; ++steps) {
    const rules::QueryCode code = rules::query_code(static_cast<float>(steps), 1.0f);
    REQUIRE(256 * code.high + code.low == steps);
  }
}

TEST_CASE("rules: thresholds are the host's to the bit") {
  std::mt19937 random(4);
  for (const bool moving : {true, false})
    for (int trial = 0; trial < 60; ++trial) {
      const std::int64_t tau = draw(random, 1, 40), n_init = draw(random, 0, 12);
      const double gamma = static_cast<double>(draw(random, 0, 30)) / 10.0;
      SurpriseThreshold host(moving ? ThresholdWindow::moving : ThresholdWindow::chunked, tau,
                             gamma, n_init);
      std::vector<float> all;
      while (all.size() < 90) {
        const auto first = static_cast<std::int64_t>(all.size()), n = draw(random, 1, 30);
        const std::vector<float> surprise = normal(random, n);
        all.insert(all.end(), surprise.begin(), surprise.end());
        std::vector<float> expected(static_cast<std::size_t>(n));
        host.step(surprise.data(), n, expected.data());
        for (std::int64_t i = 0; i < n; ++i) {
          const rules::ThresholdSpan span = moving ? rules::moving_span(first, i, tau)
                                                   : rules::chunked_span(first, n, tau, n_init);
          const auto sum = [&](auto&& term) {
            double lane[rules::kThresholdLanes] = {}, total = 0.0;
            for (std::int64_t t = span.from; t < span.to; ++t) {
              double& own = lane[(t - span.from) % rules::kThresholdLanes];
              own = rules::add(own, term(static_cast<double>(all[static_cast<std::size_t>(t)])));
            }
            for (const double x : lane) total = rules::add(total, x);
            return total;
          };
          const double mean = sum([](double x) { return x; }) / static_cast<double>(span.size());
          const double squares = sum([&](double x) {
            const double diff = rules::add(x, -mean);
            return rules::multiply(diff, diff);
          });
          const float got = first + i > 0 ? rules::threshold_of(mean, squares, span.size(), gamma)
                                          : std::numeric_limits<float>::infinity();
          REQUIRE(got == expected[static_cast<std::size_t>(i)]);
        }
      }
    }
}

TEST_CASE("rules: surprise is refused, clipped and infinite where the host's is") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {1.0f, 2.0f, 3.0f}, {100.0f, -100.0f, 0.0f}, {0.0f, -inf, -inf},    {-inf, 0.0f, 0.0f},
      {inf, 0.0f, 1.0f},  {0.0f, inf, 1.0f},       {-inf, -inf, -inf},    {nan, 1.0f, 1.0f},
      {1.0f, nan, 1.0f},  {3e38f, 3e38f, 3e38f},   {-3e38f, -3e38f, 0.0f}};
  for (const std::vector<float>& row : rows) {
    INFO(row[0] << " " << row[1] << " " << row[2]);
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const float x : row) max = x > max || std::isnan(x) ? static_cast<double>(x) : max;
    for (const float x : row) sum += std::exp(static_cast<double>(x) - max);
    const double log_sum = std::isinf(max) ? max : max + std::log(sum);
    const float shared = rules::surprise_of(log_sum, row[0]);
    const std::int64_t target = 0;
    float host = 0;
    bool refused = false;
    try {
      token_surprise(row.data(), 1, 3, 3, &target, &host);
    } catch (const DataError&) {
      refused = true;
    }
    REQUIRE(std::isnan(shared) == refused);
    if (!refused) REQUIRE((shared == host || std::abs(shared - host) <= 1e-6f * std::abs(host)));
    if (!refused) REQUIRE(shared >= 0.0f);
  }
}

TEST_CASE("rules: boundaries move as the host's refiner moves them, near ties included") {
  std::mt19937 random(5);
  const std::pair<Refinement, rules::Objective> objectives[] = {
      {Refinement::modularity, rules::Objective::modularity},
      {Refinement::conductance, rules::Objective::conductance},
      {Refinement::intra_inter, rules::Objective::intra_inter}};
  for (const auto& [refinement, objective] : objectives)
    for (int trial = 0; trial < 120; ++trial) {
      const std::int64_t n_init = draw(random, 0, 3), min_block = draw(random, 1, 4), d = 6;
      BoundaryRefiner host(refinement, n_init, min_block, 1, d);
      std::int64_t last = -1, last_in_previous = -1, first = 0;
      std::vector<float> keys;
      for (int step = 0; step < 4; ++step) {
        const std::int64_t n = draw(random, 1, 20);
        for (std::int64_t t = 0; t < n; ++t) {
          std::vector<float> key = normal(random, d);
          // runs of equal tokens, tokens without a common channel, and zeros
          if (trial % 4 == 1) std::fill(key.begin(), key.end(), 1.0f);
          if (trial % 4 == 2)
            for (std::int64_t c = 0; c < d; ++c)
              key[static_cast<std::size_t>(c)] = c % 2 == (first + t) / 5 % 2 ? 0.1f : 0.0f;
          if (trial % 4 == 3 && t % 3 == 0) std::fill(key.begin(), key.end(), 0.0f);
          keys.insert(keys.end(), key.begin(), key.end());
        }
        const std::int64_t end = first + n;
        std::vector<std::vector<double>> graph(static_cast<std::size_t>(end),
                                               std::vector<double>(static_cast<std::size_t>(end)));
        for (std::int64_t i = 0; i < end; ++i)
          for (std::int64_t j = 0; j < end; ++j)
            for (std::int64_t c = 0; c < d; ++c)
              graph[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] +=
                  static_cast<double>(keys[static_cast<std::size_t>(i * d + c)]) *
                  static_cast<double>(keys[static_cast<std::size_t>(j * d + c)]);
        std::vector<std::uint8_t> raw(static_cast<std::size_t>(n)), flags(raw.size()),
            expected(raw.size());
        for (std::uint8_t& flag : raw) flag = draw(random, 0, 3) == 0;
        const KeyRing ring{keys.data(), end, 0, d};
        host.step(std::span(&ring, 1), first, raw, expected);
        const std::int64_t low = std::max(n_init, last_in_previous >= 0 ? last_in_previous : first);
        std::int64_t last_in_step = -1;
        for (std::int64_t b = first; b < end; ++b) {
          if (!raw[static_cast<std::size_t>(b - first)]) continue;
          const std::int64_t a = last >= 0 ? last : n_init;
          if (b - a < min_block) continue;
          std::int64_t moved = b;
          if (b - a > min_block) {
            const auto window = rules::boundary_window(a, b, low, end, first, min_block);
            if (window.from <= b) moved = rule_split(objective, graph, window, b);
          }
          flags[static_cast<std::size_t>(moved - first)] = 1;
          last = last_in_step = moved;
        }
        last_in_previous = last_in_step;
        INFO("trial " << trial << ", step " << step);
        REQUIRE(flags == expected);
        first = end;
      }
    }
}

TEST_CASE(
    "rules: free slots first, then the least recently recalled, the earlier of two, pinned last") {
  using rules::Resident;
  REQUIRE(rules::is_free(Resident{}));
  REQUIRE_FALSE(rules::may_leave(Resident{}, 100));  // nothing is in it to leave
  REQUIRE(rules::may_leave({4, 0}, 5));
  REQUIRE_FALSE(rules::may_leave({5, 0}, 5));  // the step's own
  REQUIRE(rules::leaves_before({3, 9}, {4, 1}));
  REQUIRE(rules::leaves_before({4, 1}, {4, 9}));
  REQUIRE_FALSE(rules::leaves_before({4, 9}, {4, 9}));
  REQUIRE(rules::leaves_before({9, 9}, {1, 1, true}));
  REQUIRE_FALSE(rules::leaves_before({1, 1, true}, {9, 9}));
  REQUIRE(rules::leaves_before({1, 9, true}, {2, 1, true}));
}
