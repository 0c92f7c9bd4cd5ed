// SPDX-License-Identifier: Apache-2.0
// What the header-only core decides. Compiled twice: with headers alone and nothing but the
// standard library (standard_only.hpp), and against the compiled library. check_decisions.py gives
// both the same cases and compares what they print, with each other and with what the case expects.
//
// usage: decisions < CASE
//   CASE: words and numbers, "NAME COUNT VALUE..." for each input; "kind 1 K" says which of the
//   functions below reads them. Prints "NAME VALUE..." lines; "~NAME": equal but for rounding.
#include <cstdio>
#include <iostream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "episodic/core.hpp"

namespace {

using namespace episodic;
using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

/// The inputs of a case by name.
class Case {
 public:
  explicit Case(std::istream& in) {
    std::string name;
    for (std::size_t n = 0; in >> name >> n;) {
      std::vector<double>& values = values_[name];
      values.resize(n);
      for (double& value : values) in >> value;
      if (!in) throw DataError("case: \"" + name + "\" has too few numbers");
    }
  }
  const std::vector<double>& all(const char* name) const {
    const auto it = values_.find(name);
    if (it == values_.end()) throw DataError("case: no \"" + std::string(name) + "\"");
    return it->second;
  }
  double number(const char* name) const { return all(name).at(0); }
  std::int64_t integer(const char* name) const { return static_cast<std::int64_t>(number(name)); }
  Ints integers(const char* name) const {
    Ints out;
    for (const double x : all(name)) out.push_back(static_cast<std::int64_t>(x));
    return out;
  }
  Floats floats(const char* name) const {
    Floats out;
    for (const double x : all(name)) out.push_back(static_cast<float>(x));
    return out;
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

template <class Values>
void print(const std::string& name, const Values& values) {
  std::printf("%s", name.c_str());
  for (const auto& x : values) {
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(x)>>)
      std::printf(" %.9g", static_cast<double>(x));
    else
      std::printf(" %lld", static_cast<long long>(x));
  }
  std::printf("\n");
}

void print_events(const std::string& name, const EventTable& events) {
  Ints bounds;
  for (const TokenRange& e : events.all()) bounds.insert(bounds.end(), {e.start, e.end});
  print(name, bounds);
  print("pending_" + name, Ints{events.pending_start()});
}

// -- kind 0: given surprise or boundaries, step by step -------------------------------------------

void run_timeline(const Case& test) {
  MemoryConfig config;
  config.n_init = test.integer("n_init");
  config.n_local = test.integer("n_local");
  config.min_block = test.integer("min_block");
  config.max_block = test.integer("max_block");
  config.gamma = test.number("gamma");
  config.tau = test.integer("tau");
  config.window = test.integer("chunked") ? ThresholdWindow::chunked : ThresholdWindow::moving;
  const Ints given = test.integers("boundaries");
  config.segmenter = given.empty() ? SegmenterKind::surprise : SegmenterKind::given;
  config.validate();
  const Floats surprise = test.floats("surprise");
  Timeline timeline(config, {}, static_cast<std::int64_t>(surprise.size()), given);
  Ints raw, closed_before;
  std::int64_t first = 0;
  for (const std::int64_t n : test.integers("steps")) {
    timeline.begin(n, StepKind::decode);
    timeline.read(surprise.data() + first);
    timeline.decide({});
    timeline.commit();
    first += n;
    const StepRecord& step = timeline.last_step();
    raw.insert(raw.end(), step.raw_boundaries.begin(), step.raw_boundaries.end());
    closed_before.push_back(step.events_before);
  }
  print("raw_boundaries", raw);
  print("events_before", closed_before);
  print_events("events", timeline.events());
}

// -- kind 1: boundaries from keys (HEM 2.2, 2.4) --------------------------------------------------

void run_keys(const Case& test) {
  const Ints shape = test.integers("shape");  // tokens, layers, heads, channels
  const std::int64_t n = shape[0], layers = shape[1], heads = shape[2], d = shape[3];
  const Floats keys = test.floats("keys");
  MemoryConfig config;
  config.n_init = test.integer("n_init");
  config.min_block = test.integer("min_block");
  config.max_block = test.integer("max_block");
  config.gamma = test.number("gamma");
  config.min_count = test.integer("min_count");
  config.var_floor = test.number("var_floor");
  config.segmenter =
      test.integer("gaussian") ? SegmenterKind::gaussian : SegmenterKind::k_similarity;
  config.scope = test.integer("by_head") ? EventScope::head : EventScope::sequence;
  config.validate();
  Timeline timeline(config, {layers, heads, d}, n);
  std::vector<KeyRing> rings;
  for (std::int64_t l = 0; l < layers; ++l)
    rings.push_back({keys.data() + l * heads * d, n, d, layers * heads * d});
  const Floats surprise(static_cast<std::size_t>(n));  // looked at by no key segmenter
  std::vector<Ints> flags(static_cast<std::size_t>(timeline.scopes()));
  constexpr std::int64_t kStep = 24;
  for (std::int64_t first = 0; first < n; first += kStep) {
    timeline.begin(std::min(kStep, n - first), StepKind::prompt);
    timeline.read(surprise.data() + first);
    timeline.decide(rings);
    timeline.commit();
    for (std::int64_t s = 0; s < timeline.scopes(); ++s) {
      const auto& raw = timeline.last_step(s).raw_boundaries;
      Ints& all = flags[static_cast<std::size_t>(s)];
      all.insert(all.end(), raw.begin(), raw.end());
    }
  }
  for (std::size_t s = 0; s < flags.size(); ++s) {
    EventTable events(config.n_init, config.min_block, config.max_block);
    events.close_up_to(n, [&](std::int64_t t) { return flags[s][static_cast<std::size_t>(t)]; });
    print("boundaries" + std::to_string(s), flags[s]);
    print_events("events" + std::to_string(s), events);
  }
}

// -- kind 2: reweighted attention over events in place (EpMAN 3.2) --------------------------------

void run_reweighted(const Case& test) {
  const Ints shape = test.integers("shape");  // queries, heads, kv heads, channels
  const std::int64_t n = shape[0], heads = shape[1], kv_heads = shape[2], d = shape[3];
  const std::int64_t start = test.integer("start"), n_local = test.integer("n_local");
  const Floats q = test.floats("q"), k = test.floats("k"), v = test.floats("v");
  const Floats reader = test.floats("query_encoding"), encodings = test.floats("event_encodings");
  const Ints bounds = test.integers("events");

  Floats score;
  for (std::size_t at = 0; at < encodings.size(); at += reader.size())
    score.push_back(relevance_score(reader, std::span(encodings).subspan(at, reader.size())));
  const auto present =
      reweighted_events(static_cast<Reweight>(test.integer("mode")), test.integer("top_k"), score);

  const RotaryTable table = plain_rotary(d, test.number("rope_theta"));
  RotaryAngles all, fixed;
  all.compute(table, 0, start + n);
  fixed.compute_fixed(table, n_local);
  Floats rotated(k.size()), relative(q.size()), same(q.size());
  rotate(table, all.rows(), start + n, kv_heads, d, k.data(), rotated.data());
  AttendWorkspace workspace;
  rotate_queries(table, all.rows(start, n), fixed.rows(), n, heads, d, q.data(),
                 {relative.data(), same.data(), nullptr}, workspace);

  std::vector<KvSegment> list;
  const auto add = [&](std::int64_t begin, std::int64_t end, Position position, float weight) {
    KvSegment s;
    s.key = (position == Position::fixed ? k : rotated).data() + begin * kv_heads * d;
    s.value = v.data() + begin * kv_heads * d;
    s.length = end - begin;
    s.first_token = begin;
    s.head_stride = d;
    s.row_stride = kv_heads * d;
    s.position = position;
    s.value_weight = weight;
    list.push_back(s);
  };
  add(0, test.integer("n_init"), Position::fixed, 1.0f);
  Ints numbers;
  for (const WeightedEvent& e : present) {
    const auto at = static_cast<std::size_t>(2 * e.event);
    add(bounds[at], bounds[at + 1], Position::fixed, e.value_weight);
    numbers.push_back(e.event);
  }
  add(bounds.back(), start + n, Position::fixed, 1.0f);  // pending
  add(std::max<std::int64_t>(0, start - n_local + 1), start + n, Position::relative, 1.0f);

  const std::span<const KvSegment> lists[] = {list};
  Floats out(q.size()), mass(static_cast<std::size_t>(n * heads));
  AttendOutput output;
  output.out = out.data();
  output.weighted_mass = mass.data();
  attend({.n_queries = n,
          .n_heads = heads,
          .n_kv_heads = kv_heads,
          .head_dim = d,
          .first_position = start,
          .n_local = n_local},
         {relative.data(), same.data(), lists}, output, workspace);
  print("present", numbers);
  print("~score", score);
  print("~out", out);
  print("~mass", mass);
}

// -- kind 3: all parts together, as a memory's step has them --------------------------------------

/// Numbers that are the same everywhere: no library promises that of its distributions.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  float next() {  // about normal
    float sum = 0;
    for (int i = 0; i < 6; ++i) sum += uniform();
    return sum;
  }
  float uniform() {  // in [-0.5, 0.5), 16 bits
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 48) - 32768) / 65536.0f;
  }
  void fill(std::span<float> x) {
    for (float& value : x) value = next();
  }

 private:
  std::uint64_t state_;
};

/// One sequence of two layers whose tokens come in topics; every part of the core takes part.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : numbers_(seed) {
    config_.n_init = 4, config_.n_local = 24, config_.n_mem = 32, config_.chunk = kChunk;
    config_.min_block = 3, config_.max_block = 12, config_.n_repr = 2;
    config_.refine = Refinement::modularity;
    config_.contiguity = 0.3;
    config_.gamma = 0.8;
    config_.kv_dtype = DType::bfloat16;
    config_.validate();
    timeline_ = Timeline(config_, {kLayers, kKvHeads, kDim}, kTokens);
    store_ = make_host_store({kLayers, kKvHeads, kDim, config_.kv_dtype}, 0, config_.max_block);
    for (Layer& layer : layers_) {
      layer.index = make_index(config_, kHeads, kDim);
      layer.keys.resize(kTokens * kKvHeads * kDim);
      layer.rotated = layer.values = layer.keys;
      layer.relevance.resize(kTokens * kHeads);
    }
  }

  void run() {
    std::int64_t steps = 0;
    for (std::int64_t first = 0; first < kTokens; first += kChunk, ++steps) {
      store_->begin_step(steps);
      timeline_.begin(kChunk, StepKind::prompt);
      for (std::int64_t l = 0; l < kLayers; ++l) attend_layer(l, first);
      close(first);
    }
    print("final_boundaries", boundaries_);
    print_events("events", timeline_.events());
  }

 private:
  static constexpr std::int64_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 16, kChunk = 16,
                                kTokens = 320;
  struct Layer {
    Floats keys, rotated, values, relevance;
    std::unique_ptr<RepresentativeIndex> index;
    RecallBuffers buffers;
  };

  /// Keys and values of the step's tokens; a token's topic is told by its keys.
  void append(Layer& layer, std::int64_t first) {
    constexpr std::int64_t kWidth = kKvHeads * kDim;
    for (std::int64_t t = first; t < first + kChunk; ++t) {
      const std::int64_t topic = t / 7 % 5;
      for (std::int64_t c = 0; c < kWidth; ++c) {
        const auto at = static_cast<std::size_t>(t * kWidth + c);
        layer.keys[at] = numbers_.next() + (c % 5 == topic ? 1.5f : 0.0f);
        layer.values[at] = numbers_.next();
      }
    }
    RotaryAngles angles;
    angles.compute(table_, first, kChunk);
    rotate(table_, angles.rows(), kChunk, kKvHeads, kDim, layer.keys.data() + first * kWidth,
           layer.rotated.data() + first * kWidth);
  }

  void attend_layer(std::int64_t l, std::int64_t first) {
    Layer& layer = layers_[l];
    append(layer, first);
    Floats q(kChunk * kHeads * kDim), relative(q.size()), fixed(q.size()), mean(kHeads * kDim);
    numbers_.fill(q);
    RotaryAngles position, far;
    position.compute(table_, first, kChunk);
    far.compute_fixed(table_, config_.n_local);
    rotate_queries(table_, position.rows(), far.rows(), kChunk, kHeads, kDim, q.data(),
                   {relative.data(), fixed.data(), mean.data()}, workspace_);

    const std::int64_t total = first + kChunk;
    const EventTable& events = timeline_.events();
    const std::int64_t outside =
        std::max<std::int64_t>(0, total - config_.n_local) - events.tokens();
    layer.buffers.recall(config_, *layer.index, events, mean.data(),
                         std::max<std::int64_t>(0, outside));
    print("similarity", layer.buffers.similarity());
    print("contiguity", layer.buffers.contiguity());

    std::vector<KvSegment> list;
    store_->acquire(l, layer.buffers.recalled(), list);
    const auto add = [&](std::int64_t begin, std::int64_t end, Position kind) {
      if (begin >= end) return;
      KvSegment s;
      s.key =
          (kind == Position::fixed ? layer.keys : layer.rotated).data() + begin * kKvHeads * kDim;
      s.value = layer.values.data() + begin * kKvHeads * kDim;
      s.length = end - begin;
      s.first_token = begin;
      s.head_stride = kDim;
      s.row_stride = kKvHeads * kDim;
      s.position = kind;
      list.push_back(s);
    };
    add(0, std::min(config_.n_init, total), Position::fixed);
    add(events.pending_start(), total, Position::fixed);
    const std::int64_t window = std::max<std::int64_t>(0, first - config_.n_local + 1);
    add(window, total, Position::relative);

    float* const received[] = {layer.relevance.data() + window * kHeads};
    const std::span<const KvSegment> lists[] = {list};
    Floats out(q.size());
    AttendOutput output;
    output.out = out.data();
    output.column_sums = received;
    attend({.n_queries = kChunk,
            .n_heads = kHeads,
            .n_kv_heads = kKvHeads,
            .head_dim = kDim,
            .first_position = first,
            .n_local = config_.n_local},
           {relative.data(), fixed.data(), lists}, output, workspace_);
    store_->release(l);
    print("~out", out);
  }

  /// The end of the step: boundaries, and the events that they close.
  void close(std::int64_t first) {
    Floats surprise(kChunk);
    for (std::int64_t i = 0; i < kChunk; ++i)
      surprise[static_cast<std::size_t>(i)] =
          2.0f + numbers_.next() + ((first + i) % 7 == 0 ? 1.5f : 0.0f);
    timeline_.read(surprise.data());
    std::vector<KeyRing> rings;
    for (const Layer& layer : layers_)
      rings.push_back({layer.keys.data(), kTokens, kDim, kKvHeads * kDim});
    timeline_.decide(rings);
    const std::vector<TokenRange>& closed = timeline_.closed();
    EventId event = timeline_.events().size();
    store_->append(closed);
    for (const TokenRange& range : closed) {
      for (std::int64_t l = 0; l < kLayers; ++l) store_event(event, range, l);
      ++event;
    }
    timeline_.commit();
    const auto& flags = timeline_.last_step().final_boundaries;
    boundaries_.insert(boundaries_.end(), flags.begin(), flags.end());
  }

  void store_event(EventId event, const TokenRange& range, std::int64_t l) {
    Layer& layer = layers_[l];
    store_->write(event, l,
                  {layer.keys.data(), layer.values.data(), kTokens, kDim, kKvHeads * kDim});
    Floats mean(kHeads * kDim);
    select_representatives(
        {layer.keys.data() + range.start * kKvHeads * kDim, kDim, kKvHeads * kDim},
        layer.relevance.data() + range.start * kHeads, range.size(), kHeads, kKvHeads, kDim,
        config_.n_repr, mean.data(), nullptr);
    layer.index->add(mean.data(), nullptr, config_.n_repr);
  }

  Numbers numbers_;
  MemoryConfig config_;
  RotaryTable table_ = plain_rotary(kDim, 10000.0);
  Timeline timeline_;
  std::unique_ptr<EventStore> store_;
  Layer layers_[kLayers];
  AttendWorkspace workspace_;
  Ints boundaries_;
};

void run(const Case& test) {
  switch (test.integer("kind")) {
    case 0:
      return run_timeline(test);
    case 1:
      return run_keys(test);
    case 2:
      return run_reweighted(test);
    case 3:
      return Sequence(static_cast<std::uint64_t>(test.integer("seed"))).run();
    default:
      throw DataError("case: unknown kind");
  }
}

}  // namespace

int main() {
  try {
    run(Case(std::cin));
  } catch (const episodic::Error& e) {
    std::fprintf(stderr, "decisions: %s\n", e.what());
    return 1;
  }
  return 0;
}
