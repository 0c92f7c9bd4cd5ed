// SPDX-License-Identifier: Apache-2.0
// Golden cases without a model by the host's classes.
#include <algorithm>

#include "episodic/attention/attend.hpp"
#include "episodic/attention/rotary.hpp"
#include "trace_parts.hpp"

namespace episodic::tools {
namespace {

class HostParts final : public TraceParts {
 public:
  KeyVerdicts cut(const KeysToCut& c) override {
    const std::int64_t row = c.layers * c.heads * c.head_dim;
    const std::int64_t width = row / c.units();
    KeyVerdicts verdicts;
    for (std::int64_t u = 0; u < c.units(); ++u) {
      KeySegmenter segmenter(c.settings, c.per_head ? 1 : c.layers * c.heads, c.head_dim);
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        const KeySegmenter::Verdict v = segmenter.next(c.keys.subspan(
            static_cast<std::size_t>(t * row + u * width), static_cast<std::size_t>(width)));
        verdicts.opens.push_back(v.opens);
        verdicts.signal.push_back(static_cast<float>(v.signal));
        verdicts.threshold.push_back(static_cast<float>(v.threshold));
      }
    }
    return verdicts;
  }

  std::vector<EventsOfUnit> close(const KeysToCut& c,
                                  const std::vector<std::uint8_t>& opens) override {
    std::vector<EventsOfUnit> units;
    for (std::int64_t u = 0; u < c.units(); ++u) {
      EventTable table(c.settings.n_init, c.min_block, c.max_block);
      table.close_up_to(c.tokens, [&](std::int64_t t) {
        return opens[static_cast<std::size_t>(u * c.tokens + t)] != 0;
      });
      units.push_back({table.all(), table.pending_start()});
    }
    return units;
  }

  std::vector<float> scores(std::span<const float> query,
                            std::span<const float> encodings) override {
    std::vector<float> all;
    for (; !encodings.empty(); encodings = encodings.subspan(query.size()))
      all.push_back(relevance_score(query, encodings.first(query.size())));
    return all;
  }

  std::vector<WeightedEvent> choose(Reweight mode, std::int64_t top_k,
                                    const std::vector<float>& scores) override {
    return reweighted_events(mode, top_k, scores);
  }

  // EM 3.1: sinks, pending tokens and recalled events at the fixed position, the window rotated.
  WeightedOutput attend(const WeightedAttention& a,
                        const std::vector<WeightedEvent>& present) override {
    const std::int64_t n = a.n, H = a.heads, G = a.kv_heads, d = a.head_dim;
    const RotaryTable rotary = plain_rotary(d, a.rope_theta);
    RotaryAngles fixed, relative, of_keys;
    fixed.compute(rotary, a.n_local - 1, 1);
    relative.compute(rotary, a.start, n);
    of_keys.compute(rotary, 0, a.tokens());
    std::vector<float> q_fixed(a.q.size()), q_relative(a.q.size()), rotated(a.k.size());
    rotate(rotary, fixed, n, H, d, a.q.data(), H * d, d, q_fixed.data(), H * d, d);
    rotate(rotary, relative, n, H, d, a.q.data(), H * d, d, q_relative.data(), H * d, d);
    rotate(rotary, of_keys, a.tokens(), G, d, a.k.data(), G * d, d, rotated.data(), G * d, d);
    std::vector<KvSegment> segments;
    const auto push = [&](std::int64_t first, std::int64_t end, Position position, float weight) {
      if (first >= end) return;
      KvSegment s;
      s.key = (position == Position::fixed ? a.k.data() : rotated.data()) + first * G * d;
      s.value = a.v.data() + first * G * d;
      s.length = end - first;
      s.first_token = first;
      s.head_stride = d;
      s.row_stride = G * d;
      s.position = position;
      s.value_weight = weight;
      segments.push_back(s);
    };
    push(0, std::min(a.n_init, a.outside()), Position::fixed, 1.0f);
    for (const WeightedEvent& e : present) {
      const TokenRange& range = a.events[static_cast<std::size_t>(e.event)];
      push(range.start, range.end, Position::fixed, e.value_weight);
    }
    push(a.events.empty() ? a.n_init : a.events.back().end, a.outside(), Position::fixed, 1.0f);
    push(std::max<std::int64_t>(0, a.start + 1 - a.n_local), a.tokens(), Position::relative, 1.0f);

    AttendWorkspace workspace;
    WeightedOutput result;
    result.out.resize(a.q.size());
    result.mass.resize(static_cast<std::size_t>(n * H));
    const std::span<const KvSegment> all(segments);
    AttendOutput output;
    output.out = {result.out.data(), {n, H, d}};
    output.weighted_mass = result.mass.data();
    episodic::attend(
        {n, H, G, d, a.start, a.n_local},
        {{q_relative.data(), {n, H, d}}, {q_fixed.data(), {n, H, d}}, std::span(&all, 1)}, output,
        workspace);
    return result;
  }

  std::vector<double> received(const Memoria::Recall& recall,
                               std::span<const float> attention) override {
    std::vector<double> weights;
    for (const auto* recalled : {&recall.short_term, &recall.long_term})
      for (const std::int64_t id : *recalled)
        weights.push_back(attention[static_cast<std::size_t>(id)]);
    return weights;
  }

  std::vector<std::int64_t> forget(const Memoria::Recall&, const std::vector<std::int64_t>& engrams,
                                   std::int64_t) override {
    return engrams;
  }
};

}  // namespace

std::unique_ptr<TraceParts> trace_parts_of_host() { return std::make_unique<HostParts>(); }

}  // namespace episodic::tools
