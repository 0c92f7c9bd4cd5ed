// SPDX-License-Identifier: Apache-2.0
// Reweighting (EpMAN 3.2) and association and forgetting (Memoria 3) inside a memory, against
// what the stand-alone parts and a plain reference say of what the hooks show.
#include "episodic/memory/plan.hpp"
#include "episodic/retention/memoria.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/recall/reweight.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace driver;
namespace fs = std::filesystem;

namespace {

MemoryConfig retaining() {
  MemoryConfig c = small_config();
  c.retention.emplace();
  c.retention->memoria.n_short = 3;
  c.retention->memoria.n_long = 2;
  c.retention->memoria.short_term_capacity = 6;
  c.retention->memoria.depth = 3;
  c.retention->memoria.initial_lifespan = 4;
  c.retention->memoria.alpha = 3;
  return c;
}

std::vector<float> unit(std::vector<float> v) {
  double square = 0;
  for (const float x : v) square += static_cast<double>(x) * x;
  const double factor = 1 / std::sqrt(square);
  for (float& x : v) x = static_cast<float>(x * factor);
  return v;
}

/// Tokens [at, to), 12 a step. \return what attention gave, step by step and layer by layer
std::vector<float> feed(EpisodicMemory& memory, const std::vector<Token>& tokens, std::int64_t at,
                        std::int64_t to) {
  std::vector<float> out;
  for (; at < to; at += 12)
    for (const auto& layer : step(memory, tokens, at, 12))
      out.insert(out.end(), layer.begin(), layer.end());
  return out;
}

/// Of the files with this extension in a memory's folder.
std::int64_t bytes_of(const fs::path& dir, const char* extension) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.path().extension() == extension) bytes += fs::file_size(entry.path());
  return static_cast<std::int64_t>(bytes);
}

/// A stand-alone Memoria that is told what a memory's hook shows.
class Shadow {
 public:
  Shadow(const MemoryConfig& config, const MemoryShape& shape)
      : config_(config), graph_(config.retention->memoria, shape.n_heads * shape.head_dim) {}

  void listen_to(EpisodicMemory& memory) {
    memory.set_attention_hook([this](const AttendedEvents& a) {
      for (std::size_t i = 0; i < a.events.size(); ++i) received_[a.events[i]] += a.mass[i];
    });
  }
  /// Behind a step. \return what is gone now
  std::vector<std::int64_t> follow(const EpisodicMemory& memory, std::int64_t layer) {
    const std::int64_t chunks = memory.tokens() / config_.chunk;
    if (chunks == chunks_) return {};  // Memoria's step is a chunk of the text
    chunks_ = chunks;
    std::vector<float> vectors;
    std::vector<std::int64_t> ids;
    EventId e = graph_.total();
    for (; e < memory.events().size(); ++e) {
      if (memory.events()[e].end >= chunks * config_.chunk - config_.n_local) break;
      if (std::count(memory.forgotten().begin(), memory.forgotten().end(), e) > 0) continue;
      const std::vector<float> v = unit(memory.representative(layer, e));
      vectors.insert(vectors.end(), v.begin(), v.end());
      ids.push_back(e);
    }
    if (ids.empty()) return {};
    std::vector<std::pair<double, std::int64_t>> ranked;
    std::vector<std::int64_t> attended;
    for (const auto& [event, mass] : received_)
      if (mass > 0 && graph_.holds(event)) ranked.emplace_back(-mass, event);
    std::sort(ranked.begin(), ranked.end());
    for (const auto& [mass, event] : ranked) attended.push_back(event);
    const bool by_attention = config_.retention->recall == EngramRecall::attended;
    const Memoria::Recall& r =
        by_attention ? graph_.recall(vectors, ids, e, attended) : graph_.recall(vectors, ids, e);
    recalled += r.size();
    for (const auto* list : {&r.short_term, &r.long_term})
      for (const std::int64_t id : *list) unattended += received_[id] == 0;
    std::vector<double> attention;
    for (const auto* list : {&r.short_term, &r.long_term})
      for (const std::int64_t id : *list) attention.push_back(received_[id]);
    received_.clear();
    return graph_.commit(attention);
  }
  const Memoria& graph() const { return graph_; }
  std::int64_t recalled = 0, unattended = 0;

 private:
  const MemoryConfig config_;
  Memoria graph_;
  std::int64_t chunks_ = 0;
  std::map<EventId, double> received_;
};

}  // namespace

TEST_CASE("a memory shows what attention each recalled event received", "[memory][retention]") {
  const MemoryShape shape = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(shape, 240, 31);
  for (const auto scope : {EventScope::sequence, EventScope::head}) {
    MemoryConfig c = small_config();
    c.scope = scope;
    if (scope == EventScope::head) c.segmenter = SegmenterKind::k_similarity, c.gamma = 0.5;
    EpisodicMemory memory(c, shape);
    std::int64_t calls = 0, at = 0;
    std::vector<std::vector<float>> fixed_rows;
    memory.set_attention_hook([&](const AttendedEvents& a) {
      ++calls;
      // In float64: probabilities of all keys that each query of the step sees.
      const std::int64_t lanes = memory.lanes() / shape.n_layers, H = shape.n_heads / lanes;
      const std::int64_t lane = a.layer * lanes + a.group;
      const EventTable& events = memory.events(memory.scopes() > 1 ? lane : 0);
      std::vector<double> expected(a.events.size(), 0.0);
      for (std::int64_t p = at; p < at + 12; ++p)
        for (std::int64_t h = a.group * H; h < (a.group + 1) * H; ++h) {
          const std::int64_t g = h / (shape.n_heads / shape.n_kv_heads);
          const auto l = static_cast<std::size_t>(a.layer);
          const Token& query = tokens[static_cast<std::size_t>(p)];
          const auto near = turned(query.q[l], shape, a.layer, h, static_cast<double>(p));
          const auto far =
              turned(query.q[l], shape, a.layer, h, static_cast<double>(c.n_local - 1));
          double total = 0;
          std::vector<double> parts(a.events.size(), 0.0);
          for (std::int64_t i = 0; i <= p; ++i) {
            const bool local = p - i < c.n_local;
            std::size_t event = a.events.size();
            for (std::size_t e = 0; e < a.events.size(); ++e)
              if (i >= events[a.events[e]].start && i < events[a.events[e]].end) event = e;
            const bool seen =
                local || i < c.n_init || i >= events.pending_start() || event < a.events.size();
            if (!seen) continue;
            const auto key = turned(tokens[static_cast<std::size_t>(i)].k[l], shape, a.layer, g,
                                    local ? static_cast<double>(i) : 0.0);
            double dot = 0;
            for (std::size_t x = 0; x < key.size(); ++x) dot += (local ? near : far)[x] * key[x];
            const double w = std::exp(dot / std::sqrt(static_cast<double>(shape.head_dim)));
            total += w;
            if (event < a.events.size() && !local) parts[event] += w;
          }
          for (std::size_t e = 0; e < parts.size(); ++e) expected[e] += parts[e] / total;
        }
      double worst = 0;
      for (std::size_t e = 0; e < expected.size(); ++e)
        worst = worse_of(worst, std::fabs(expected[e] - a.mass[e]) / std::max(1.0, expected[e]));
      REQUIRE(worst < 1e-5);
    });
    for (at = 0; at < 240; at += 12) step(memory, tokens, at, 12);
    REQUIRE(calls > 20);
  }
}

TEST_CASE("exact reweighting multiplies values by the cosine of query and event",
          "[memory][reweight]") {
  const MemoryShape shape = small_shape(1, 4, 2, 10);
  const auto tokens = random_tokens(shape, 240, 32);
  MemoryConfig c = small_config();
  c.reweight = Reweighting::exact;
  EpisodicMemory memory(c, shape);
  std::int64_t seen = 0;
  std::vector<float> weights;
  memory.set_recall_hook([&](const RecalledEvents& r) {
    weights.assign(r.weights.begin(), r.weights.end());
    for (std::size_t i = 0; i < r.events.size(); ++i) {
      const std::vector<float> event = memory.representative(0, r.events[i]);
      REQUIRE(std::fabs(r.weights[i] - relevance_score(r.query, event)) < 1e-5);
      REQUIRE(std::fabs(relevance_score(event, event) - 1) < 1e-6);
      seen += r.weights[i] > 0 && r.weights[i] < 1;
    }
  });
  // The same weights given by hand to a memory without the setting, where both recall the same.
  EpisodicMemory plain(small_config(), shape);
  std::int64_t compared = 0;
  plain.set_recall_hook([&](const RecalledEvents& r) {
    if (weights.size() == r.weights.size())
      std::copy(weights.begin(), weights.end(), r.weights.begin());
  });
  for (std::int64_t at = 0; at < 240; at += 12) {
    const auto a = step(memory, tokens, at, 12), b = step(plain, tokens, at, 12);
    if (memory.recalled(0).recalled() != plain.recalled(0).recalled()) continue;
    compared += !memory.recalled(0).recalled().empty();
    double worst = 0;
    for (std::size_t i = 0; i < a[0].size(); ++i)
      worst = worse_of(worst, std::fabs(static_cast<double>(a[0][i] - b[0][i])));
    REQUIRE(worst < 1e-5);
  }
  REQUIRE(seen > 20);
  REQUIRE(compared > 2);
}

TEST_CASE("narrow and broad reweighting recall what the reader's scores say",
          "[memory][reweight]") {
  const MemoryShape shape = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(shape, 360, 33);
  for (const auto mode : {Reweighting::narrow, Reweighting::broad})
    for (const auto scope : {EventScope::sequence, EventScope::head}) {
      MemoryConfig c = small_config();
      c.reweight = mode;
      c.reweight_top = 3;
      c.scope = scope;
      if (scope == EventScope::head) c.segmenter = SegmenterKind::k_similarity, c.gamma = 0.5;
      EpisodicMemory memory(c, shape);
      std::int64_t calls = 0;
      memory.set_recall_hook([&](const RecalledEvents& r) {
        ++calls;
        const std::int64_t lanes = memory.lanes() / shape.n_layers;
        const std::int64_t lane = r.layer * lanes + r.group;
        const std::int64_t n = memory.events(memory.scopes() > 1 ? lane : 0).size();
        std::vector<float> scores;
        for (EventId e = 0; e < n; ++e)
          scores.push_back(relevance_score(r.query, memory.representative(lane, e)));
        const auto expected = reweighted_events(
            mode == Reweighting::narrow ? Reweight::narrow : Reweight::broad, 3, scores);
        std::vector<EventId> events;
        for (const WeightedEvent& e : expected) events.push_back(e.event);
        REQUIRE(std::vector<EventId>(r.events.begin(), r.events.end()) == events);
        for (const float w : r.weights) REQUIRE(w == 1.0f);
      });
      for (std::int64_t at = 0; at < 360; at += 12) step(memory, tokens, at, 12);
      REQUIRE(calls > 20);
    }
}

TEST_CASE("retention forgets what a stand-alone Memoria forgets, told the same",
          "[memory][retention]") {
  const MemoryShape shape = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(shape, 12 * 80, 34);
  struct Case {
    std::int64_t groups, layer, looks_at;
    EngramRecall recall;
  };
  // layer 1 is the middle of two
  for (const auto& [groups, layer, looks_at, recall] :
       {Case{1, -1, 1, EngramRecall::graph}, Case{1, 0, 0, EngramRecall::graph},
        Case{2, 0, 0, EngramRecall::graph}, Case{1, -1, 1, EngramRecall::attended}}) {
    MemoryConfig c = retaining();
    c.recall_groups = groups;
    c.retention->layer = layer;
    c.retention->recall = recall;
    EpisodicMemory memory(c, shape);
    Shadow shadow(c, shape);
    shadow.listen_to(memory);
    std::set<std::int64_t> gone;
    std::int64_t longest = 0, forgotten_before = 0;
    for (std::int64_t at = 0; at < 12 * 80;) {
      // Forgotten events are out of the lists from the next step on.
      const std::int64_t n = at % 240 >= 228 ? 1 : 12;
      step(memory, tokens, at, n);
      REQUIRE(memory.forgotten() == std::vector<EventId>(gone.begin(), gone.end()));
      // One that someone else forgets between its closing and its chunk's end is no engram.
      if (groups == 1 && memory.events().size() > memory.retention()->total() && n == 1) {
        const EventId e = memory.retention()->total();
        if (gone.insert(e).second) memory.forget(e), ++forgotten_before;
      }
      if (groups == 1) {
        for (const std::int64_t e : shadow.follow(memory, looks_at)) gone.insert(e);
        REQUIRE(memory.retention()->short_term() == shadow.graph().short_term());
        REQUIRE(memory.retention()->long_term() == shadow.graph().long_term());
        for (EventId e = 0; e < memory.events().size(); ++e)
          REQUIRE(std::fabs(memory.retention()->lifespan(e) - shadow.graph().lifespan(e)) < 1e-9);
      } else {
        for (EventId e = 0; e < memory.retention()->total(); ++e)
          if (!memory.retention()->holds(e)) gone.insert(e);
      }
      for (std::int64_t lane = 0; lane < memory.lanes(); ++lane)
        for (const EventId e : memory.recalled(lane).recalled()) longest = std::max(longest, e);
      at += n;
    }
    // It is bounded: most of what came is gone.
    REQUIRE(memory.events().size() > 60);
    REQUIRE(memory.retention()->size() < memory.events().size() / 2);
    REQUIRE(memory.counters().store.events < memory.events().size() / 2 + 12);
    REQUIRE(longest > 40);
    if (groups > 1) continue;
    INFO(forgotten_before << " forgotten before their chunk's end");
    REQUIRE(forgotten_before > 0);
    REQUIRE(shadow.recalled > 20);
    // The graph recalls what was not attended to as well.
    REQUIRE((shadow.unattended == 0) == (recall == EngramRecall::attended));
  }
}

TEST_CASE("what is forgotten does not depend on how the text is cut into steps",
          "[memory][retention]") {
  constexpr std::int64_t kTokens = 48 * 60;
  const MemoryShape shape = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(shape, kTokens, 37);
  for (const EngramRecall recall : {EngramRecall::graph, EngramRecall::attended})
    for (const std::int64_t n_mem : {kTokens, std::int64_t{96}}) {
      // Of few events, other steps recall others, and who is recalled is who was attended to.
      if (n_mem < kTokens && recall == EngramRecall::attended) continue;
      MemoryConfig c = retaining();
      c.chunk = 48;
      c.n_mem = n_mem;  // all: the steps then differ in nothing that is attended to
      c.retention->recall = recall;
      std::vector<std::int64_t> held, events, forgotten;
      std::vector<std::vector<EventId>> which;
      for (const std::int64_t n : {48, 16, 4, 1}) {
        EpisodicMemory memory(c, shape);
        for (std::int64_t at = 0; at < kTokens; at += n) step(memory, tokens, at, n);
        held.push_back(memory.retention()->size());
        events.push_back(memory.events().size());
        REQUIRE(memory.retention()->steps() > 50);
        std::vector<EventId>& mine = which.emplace_back();
        for (EventId e = 0; e < memory.events().size(); ++e)
          if (memory.retention()->holds(e)) mine.push_back(e);
      }
      INFO("n_mem " << n_mem << ", held " << held[0] << " " << held[1] << " " << held[2] << " "
                    << held[3] << " of " << events[0]);
      for (std::size_t i = 1; i < held.size(); ++i) {
        REQUIRE(std::abs(events[i] - events[0]) <= 1);  // the last one may close in a later step
        if (n_mem == kTokens) {
          REQUIRE(which[i] == which[0]);
        } else {  // each step has a recall of its own, so attention is not the same
          REQUIRE(std::abs(held[i] - held[0]) * 2 < held[0]);
        }
      }
      REQUIRE(held[0] * 3 < events[0]);
    }
}

TEST_CASE("a kept memory under retention shrinks, is opened again and goes back to snapshots",
          "[memory][kept][retention]") {
  const MemoryShape shape = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(shape, 12 * 120, 35);
  const MemoryConfig c = retaining();
  EpisodicMemory whole(c, shape);
  MemoryConfig keeps_all = c;
  keeps_all.retention.reset();
  const TempDir temp;
  EpisodicMemory all = EpisodicMemory::create({temp / "all"}, keeps_all, shape);
  {
    EpisodicMemory memory = EpisodicMemory::create({temp / "m"}, c, shape);
    for (std::int64_t at = 0; at < 720; at += 120) {
      REQUIRE(feed(memory, tokens, at, at + 120) == feed(whole, tokens, at, at + 120));
      const auto snapshot = memory.snapshot();
      const auto other = whole.snapshot();
      const auto expected = feed(whole, tokens, at + 120, at + 180);
      REQUIRE(feed(memory, tokens, at + 120, at + 180) == expected);
      memory.restore(*snapshot);
      whole.restore(*other);
      memory.commit();
      feed(all, tokens, at, at + 120);
      all.commit();
      REQUIRE(verify_memory(temp / "m").damages.empty());
    }
    memory.commit();
  }
  REQUIRE(bytes_of(temp / "m", ".seg") * 2 < bytes_of(temp / "all", ".seg"));
  EpisodicMemory memory = EpisodicMemory::open({temp / "m"}, OpenMode::write, &shape);
  REQUIRE(memory.retention()->size() == whole.retention()->size());
  REQUIRE(feed(memory, tokens, 720, 1200) == feed(whole, tokens, 720, 1200));
  REQUIRE(memory.forgotten() == whole.forgotten());
  // An event that someone else forgets leaves the graph as well; a pinned one stays.
  const EventId held = memory.retention()->long_term().empty()
                           ? memory.retention()->short_term().front()
                           : memory.retention()->long_term().front();
  memory.pin(held);
  REQUIRE_THROWS_AS(memory.forget(held), DataError);
  memory.pin(held, false);
  memory.forget(held);
  REQUIRE_FALSE(memory.retention()->holds(held));
  memory.pin(memory.retention()->short_term().front());
  const EventId pinned = memory.retention()->short_term().front();
  feed(memory, tokens, 1200, 1440);
  memory.commit();
  REQUIRE_FALSE(memory.retention()->holds(pinned));
  REQUIRE(!std::binary_search(memory.forgotten().begin(), memory.forgotten().end(), pinned));
  memory.reset();
  REQUIRE(memory.retention()->size() == 0);
  REQUIRE(memory.retention()->total() == 0);
}

// Every run has the index and its files give up what it forgets (tests/recall).
TEST_CASE("representatives of what retention forgets leave host memory and files",
          "[memory][kept][retention][long]") {
  // so wide that a slab of representatives is 16 events
  const MemoryShape shape = small_shape(2, 16, 2, 1024);
  const auto tokens = random_tokens(shape, 12 * 300, 36);
  MemoryConfig c = retaining(), keeps_all = retaining();
  keeps_all.retention.reset();
  const TempDir temp;
  EpisodicMemory whole(c, shape), all(keeps_all, shape);
  std::int64_t most = 0;
  for (std::int64_t at = 0; at < 3600; at += 240) {
    EpisodicMemory memory = at == 0 ? EpisodicMemory::create({temp / "m"}, c, shape)
                                    : EpisodicMemory::open({temp / "m"}, OpenMode::write, &shape);
    REQUIRE(feed(memory, tokens, at, at + 120) == feed(whole, tokens, at, at + 120));
    memory.commit();
    REQUIRE(feed(memory, tokens, at + 120, at + 240) == feed(whole, tokens, at + 120, at + 240));
    memory.commit();
    REQUIRE(memory.forgotten().size() > 0);
    REQUIRE(verify_memory(temp / "m").damages.empty());
    most = std::max(most, bytes_of(temp / "m", ".vec"));
    feed(all, tokens, at, at + 240);
  }
  const std::int64_t n_events = all.events().size(), held = whole.retention()->size();
  REQUIRE(10 * (held + 16) < n_events);
  const std::int64_t row = 16 * 1024 * 4;
  // Twice what is remembered, and as much dead in a file that is not yet half dead; their codes.
  INFO(most / row << " rows of " << n_events << " events, " << held << " held");
  CHECK(most < 2 * 2 * 2 * (held + 16) * (row + row / 4 + 200));
  CHECK(whole.counters().index_bytes < all.counters().index_bytes / 5);
  const MemoryPlan plan = plan_memory(c, shape, whole.tokens(), n_events, true);
  CHECK(plan.host.representatives >= whole.counters().index_bytes);
  CHECK(plan.disk.vectors >= most);
}

TEST_CASE("retention that names a layer that cannot serve is refused", "[memory][retention]") {
  MemoryConfig c = retaining();
  c.retention->layer = 2;
  REQUIRE(mentions(refusal<ConfigError>([&] { EpisodicMemory(c, small_shape()); }), "layer 2"));
  c.retention->layer = 1;
  c.recall_layers = {{0}};
  REQUIRE(mentions(refusal<ConfigError>([&] { EpisodicMemory(c, small_shape()); }), "layer 1"));
  c.retention->layer = -1;
  c.recall_layers = std::vector<std::int64_t>{};
  REQUIRE(
      mentions(refusal<ConfigError>([&] { EpisodicMemory(c, small_shape()); }), "recall_layers"));
}
