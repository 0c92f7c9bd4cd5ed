// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cases of decisions.cpp that drive a memory by its steps: HostMemory with headers alone,
// EpisodicMemory where the library is linked.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "case.hpp"
#ifdef EPISODIC_COMPILED
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/retention/memoria.hpp"
#else
#include "episodic/core.hpp"
#endif

namespace decisions {

#ifdef EPISODIC_COMPILED
using Memory = EpisodicMemory;
#else
using Memory = HostMemory;
#endif

inline std::string numbered(const char* name, std::int64_t step, std::int64_t lane) {
  return name + std::to_string(step) + "." + std::to_string(lane);
}

inline void print_recalled(const Memory& memory, std::int64_t step) {
  for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
    print(numbered("similarity", step, lane), memory.recalled(lane).similarity());
    print(numbered("contiguity", step, lane), memory.recalled(lane).contiguity());
  }
}

// -- kind 3: a made-up sequence, one of several settings ------------------------------------------

struct Setting {
  MemoryConfig config;
  MemoryShape shape;
};

/// The settings of a made-up sequence: each turns on what the others leave off.
inline Setting setting(std::int64_t number) {
  MemoryConfig c;
  c.n_init = 4, c.n_local = 24, c.n_mem = 32, c.chunk = 16;
  c.min_block = 3, c.max_block = 12, c.n_repr = 2;
  c.gamma = 0.8;
  c.contiguity = 0.3;
  MemoryShape s{2, 4, 2, 16, plain_rotary(16, 10000.0)};
  switch (number) {
    case 0:
      c.refine = Refinement::modularity;
      c.kv_dtype = DType::bfloat16;
      break;
    case 1:
      c.segmenter = SegmenterKind::k_similarity, c.scope = EventScope::head;
      break;
    case 2:
      c.segmenter = SegmenterKind::gaussian, c.scope = EventScope::head;
      c.gamma = 0.3, c.var_floor = 1.0;
      c.refine = Refinement::conductance;
      c.kv_dtype = DType::int8;
      break;
    case 3:
      c.recall_groups = 2, c.recall_every = 3, c.recall_layers = {{1, 2}};
      c.refine = Refinement::intra_inter;
      c.window = ThresholdWindow::chunked;
      // One layer's pairs interleave, one has a scale and a cap of its own, one turns nothing.
      s = {3, 6, 2, 10, {}};
      s.layers = {{plain_rotary(8, 500.0), 0.0f, 0.0f},
                  {plain_rotary(10, 10000.0), 0.5f, 20.0f},
                  {{}, 0.0f, 0.0f}};
      s.layers[0].rotary.pairs = RotaryPairs::interleaved;
      break;
    case 4:
      c.retention.emplace();
      c.retention->memoria.n_long = 3, c.retention->memoria.short_term_capacity = 6;
      c.retention->memoria.initial_lifespan = 3, c.retention->memoria.alpha = 2;
      c.refine = Refinement::modularity;
      break;
    case 5:
      c.reweight = Reweighting::exact;
      c.score = RepresentativeScore::mean;
      s = {1, 3, 1, 6, plain_rotary(6, 10000.0)};
      break;
    case 6:
      c.score = RepresentativeScore::max, c.neighbours = 2, c.contiguity = 0.7;
      c.n_local = 33, c.chunk = 7;  // nothing divides anything
      s = {2, 5, 5, 7, plain_rotary(6, 10000.0)};
      break;
    default:
      throw DataError("case: unknown setting");
  }
  return {c, s};
}

/// Feeds a memory tokens that come in topics, and prints what it decides.
class Sequence {
 public:
  Sequence(const Setting& setting, std::uint64_t seed)
      : memory_(setting.config, setting.shape), numbers_(seed) {
    memory_.set_attention_hook([this](const AttendedEvents& e) { masses_.push_back(e.mass[0]); });
  }
  Memory& memory() { return memory_; }

  void feed(std::int64_t tokens, std::int64_t at_once, StepKind kind) {
    for (const std::int64_t end = memory_.tokens() + tokens; memory_.tokens() < end;)
      step(std::min(at_once, end - memory_.tokens()), kind);
  }

  /// What there is now, in full.
  void print_all() {
    const std::string at = "@" + std::to_string(steps_);
    for (std::int64_t s = 0; s < memory_.scopes(); ++s) {
      const std::string of = std::to_string(s) + at;
      print_events("events" + of, memory_.events(s));
      print("forgotten" + of, memory_.forgotten(s));
    }
    for (std::int64_t lane = 0; lane < memory_.lanes(); ++lane) {
      const EventId e = memory_.events(memory_.scopes() > 1 ? lane : 0).size() - 1;
      Floats mean;
      try {
        mean = memory_.representative(lane, e);
      } catch (const DataError& no) {  // of a layer that does not recall, or no event
        print_message("representative" + std::to_string(lane) + at, no);
      }
      print("~representative" + std::to_string(lane) + at, mean);
    }
    const float* r = memory_.relevance(0, memory_.tokens() - 9);
    print("~relevance" + at,
          std::span(r, r ? static_cast<std::size_t>(memory_.shape().n_heads) : 0));
    const MemoryCounters c = memory_.counters();
    print("counters" + at, Ints{c.tokens, c.steps, c.events, c.recalled_events, c.window_bytes,
                                c.store.events, c.store.bytes_used});
    print("~masses" + at, masses_);
    masses_.clear();
    if (const Memoria* graph = memory_.retention())
      print("engrams" + at, Ints{graph->size(), graph->total()});
  }

  /// The message of an error, letter by letter.
  static void print_message(const std::string& name, const Error& error) {
    const std::string text = error.what();
    print(name, std::vector<int>(text.begin(), text.end()));
  }

 private:
  void step(std::int64_t n, StepKind kind) {
    const MemoryShape& s = memory_.shape();
    Floats q(static_cast<std::size_t>(n * s.n_heads * s.head_dim)), out(q.size());
    Floats k(static_cast<std::size_t>(n * s.n_kv_heads * s.head_dim)), v(k.size());
    Floats surprise(static_cast<std::size_t>(n));
    const std::int64_t first = memory_.tokens();
    memory_.begin_step(n, kind);
    for (std::int64_t l = 0; l < s.n_layers; ++l) {
      numbers_.fill(q), numbers_.fill(k), numbers_.fill(v);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(k.size()); ++i) {
        const std::int64_t token = first + i / (s.n_kv_heads * s.head_dim);
        const std::int64_t channel = i % s.head_dim;  // its topic is told by its keys
        if (channel % 5 == token / 7 % 5) k[static_cast<std::size_t>(i)] += 1.5f;
      }
      memory_.attend(l, q.data(), k.data(), v.data(), out.data());
      print(numbered("~out", steps_, l), out);
    }
    for (std::int64_t i = 0; i < n; ++i)
      surprise[static_cast<std::size_t>(i)] =
          2.0f + numbers_.next() + ((first + i) % 7 == 0 ? 1.5f : 0.0f);
    memory_.end_step(surprise.data());
    print_recalled(memory_, steps_);
    for (std::int64_t scope = 0; scope < memory_.scopes(); ++scope) {
      print(numbered("raw", steps_, scope), memory_.last_step(scope).raw_boundaries);
      print(numbered("final", steps_, scope), memory_.last_step(scope).final_boundaries);
    }
    ++steps_;
  }

  Memory memory_;
  Numbers numbers_;
  std::int64_t steps_ = 0;
  std::vector<double> masses_;
};

/// Prints how something is refused.
template <class Call>
void print_refusal(const char* name, Call&& call) {
  try {
    call();
  } catch (const Error& refused) {
    return Sequence::print_message(name, refused);
  }
  throw DataError(std::string(name) + ": was not refused");
}

/// A life: prompt, answer, back to a snapshot, another answer, edits, the end and a new beginning.
inline void run_sequence(const Case& test) {
  const Setting s = setting(test.integer("setting"));
  Sequence sequence(s, static_cast<std::uint64_t>(test.integer("seed")));
  Memory& memory = sequence.memory();
  sequence.feed(208, s.config.chunk, StepKind::prompt);
  const auto asked = memory.snapshot();
  sequence.feed(12, 1, StepKind::decode);
  sequence.feed(40, 5, StepKind::prompt);
  sequence.print_all();
  memory.restore(*asked);
  sequence.feed(10, 1, StepKind::decode);
  sequence.print_all();

  if (s.config.reweight == Reweighting::none)
    memory.set_recall_hook([](const RecalledEvents& e) { e.weights[0] = 0.5f; });
  memory.forget(1, memory.scopes() - 1);
  const TokenRange third = memory.events()[2];
  print("hit", memory.forget(TokenRange{third.start + 1, third.start + 3}));
  sequence.feed(48, s.config.chunk, StepKind::prompt);
  memory.restore(*memory.snapshot());
  sequence.feed(6, 1, StepKind::decode);
  sequence.print_all();
  print("hit_events", Ints{memory.events().size()});

  print_refusal("no_step", [&] { memory.end_step(static_cast<const float*>(nullptr)); });
  print_refusal("too_many", [&] { memory.begin_step(s.config.chunk + 1); });
  print_refusal("window", [&] { memory.forget(TokenRange{0, memory.tokens()}); });
  print_refusal("no_event", [&] { memory.forget(memory.events().size()); });
  print_refusal("disk_dir", [&] {
    MemoryConfig on_disk = s.config;
    on_disk.disk_dir = "somewhere";
    HostMemory refused(on_disk, s.shape);
  });
  memory.begin_step(1);
  Floats bad(static_cast<std::size_t>(s.shape.n_heads * s.shape.head_dim), NAN), out(bad.size());
  print_refusal("nan", [&] { memory.attend(0, bad.data(), bad.data(), bad.data(), out.data()); });

  memory.reset();
  print_refusal("former", [&] { memory.restore(*asked); });
  sequence.feed(100, s.config.chunk, StepKind::prompt);
  sequence.print_all();
}

// -- kind 4: a golden case of a whole model -------------------------------------------------------

/// A Llama of plain loops, attended to by a memory.
class Model {
 public:
  explicit Model(const Case& test) {
    const Ints shape = test.integers("shape");
    hidden_ = shape[1], inner_ = shape[5], vocab_ = shape[6];
    shape_ = {shape[0], shape[2], shape[3], shape[4],
              plain_rotary(shape[4], test.number("rope_theta"))};
    eps_ = test.number("eps");
    embedding_ = test.floats("model.embed_tokens.weight");
    head_ = test.has("lm_head.weight") ? test.floats("lm_head.weight") : embedding_;
    norm_ = test.floats("model.norm.weight");
    for (std::int64_t l = 0; l < shape_.n_layers; ++l) {
      const auto part = [&](const char* name) {
        return test.floats(("model.layers." + std::to_string(l) + "." + name + ".weight").c_str());
      };
      layers_.push_back({part("input_layernorm"), part("post_attention_layernorm"),
                         part("self_attn.q_proj"), part("self_attn.k_proj"),
                         part("self_attn.v_proj"), part("self_attn.o_proj"), part("mlp.gate_proj"),
                         part("mlp.up_proj"), part("mlp.down_proj")});
    }
  }
  const MemoryShape& shape() const { return shape_; }
  std::int64_t vocab() const { return vocab_; }

  /// One step. \return logits [n, vocab]
  Floats feed(Memory& memory, std::span<const std::int64_t> ids, StepKind kind) const {
    const auto n = static_cast<std::int64_t>(ids.size());
    const std::int64_t width = shape_.n_heads * shape_.head_dim;
    const std::int64_t kv_width = shape_.n_kv_heads * shape_.head_dim;
    Floats x;
    for (const std::int64_t id : ids)
      x.insert(x.end(), embedding_.begin() + id * hidden_, embedding_.begin() + (id + 1) * hidden_);
    memory.begin_step(n, kind);
    for (std::int64_t l = 0; l < shape_.n_layers; ++l) {
      const Layer& layer = layers_[static_cast<std::size_t>(l)];
      const Floats seen = normed(x, layer.attention_norm);
      const Floats q = product(seen, layer.q, hidden_, width);
      const Floats k = product(seen, layer.k, hidden_, kv_width);
      const Floats v = product(seen, layer.v, hidden_, kv_width);
      Floats attended(q.size());
      memory.attend(l, q.data(), k.data(), v.data(), attended.data());
      add(x, product(attended, layer.o, width, hidden_));
      const Floats inner = normed(x, layer.mlp_norm);
      Floats gate = product(inner, layer.gate, hidden_, inner_);
      const Floats up = product(inner, layer.up, hidden_, inner_);
      for (std::size_t i = 0; i < gate.size(); ++i)
        gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
      add(x, product(gate, layer.down, inner_, hidden_));
    }
    const Floats logits = product(normed(x, norm_), head_, hidden_, vocab_);
    memory.end_step(ids.data(), logits.data(), vocab_, vocab_);
    return logits;
  }

 private:
  struct Layer {
    Floats attention_norm, mlp_norm, q, k, v, o, gate, up, down;
  };

  /// \param x [rows, in] \param w [out, in] \return [rows, out]
  static Floats product(const Floats& x, const Floats& w, std::int64_t in, std::int64_t out) {
    Floats y;
    for (auto row = x.begin(); row != x.end(); row += in)
      for (auto weights = w.begin(); weights != w.begin() + in * out; weights += in) {
        double sum = 0;
        for (std::int64_t c = 0; c < in; ++c) sum += static_cast<double>(row[c]) * weights[c];
        y.push_back(static_cast<float>(sum));
      }
    return y;
  }
  Floats normed(Floats x, const Floats& w) const {
    for (auto row = x.begin(); row != x.end(); row += hidden_) {
      double square = 0;
      for (std::int64_t c = 0; c < hidden_; ++c) square += static_cast<double>(row[c]) * row[c];
      const double scale = 1 / std::sqrt(square / static_cast<double>(hidden_) + eps_);
      for (std::int64_t c = 0; c < hidden_; ++c)
        row[c] = static_cast<float>(row[c] * scale * w[static_cast<std::size_t>(c)]);
    }
    return x;
  }
  static void add(Floats& x, const Floats& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  MemoryShape shape_;
  std::int64_t hidden_ = 0, inner_ = 0, vocab_ = 0;
  double eps_ = 0;
  Floats embedding_, head_, norm_;
  std::vector<Layer> layers_;
};

inline MemoryConfig config_of(const Case& test) {
  MemoryConfig c;
  c.n_init = test.integer("n_init"), c.n_local = test.integer("n_local");
  c.n_mem = test.integer("n_mem"), c.chunk = test.integer("chunk");
  c.n_repr = test.integer("n_repr"), c.tau = test.integer("tau");
  c.min_block = test.integer("min_block"), c.max_block = test.integer("max_block");
  c.gamma = test.number("gamma"), c.contiguity = test.number("contiguity");
  c.neighbours = test.integer("neighbours"), c.refine_layers = test.integer("refine_layers");
  c.min_count = test.integer("min_count"), c.var_floor = test.number("var_floor");
  c.window = static_cast<ThresholdWindow>(test.integer("window"));
  c.refine = static_cast<Refinement>(test.integer("refine"));
  c.segmenter = static_cast<SegmenterKind>(test.integer("segmenter"));
  return c;
}

inline void run_model(const Case& test) {
  const Model model(test);
  Memory memory(config_of(test), model.shape(), test.integers("boundaries"));
  const Ints tokens = test.integers("tokens"), rows = test.integers("logit_rows");
  const auto n_tokens = static_cast<std::int64_t>(tokens.size());
  const std::int64_t prompt = n_tokens - test.integer("decode"), heads = model.shape().n_heads;
  Ints raw, final_flags, events_before;
  Floats surprise, logits,
      relevance(static_cast<std::size_t>(model.shape().n_layers * n_tokens * heads));
  std::int64_t steps = 0;
  for (std::int64_t first = 0; first < n_tokens; ++steps) {
    const std::int64_t n = first < prompt ? std::min(memory.config().chunk, prompt - first) : 1;
    const Floats got = model.feed(
        memory,
        std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
        StepKind::decode);
    const StepRecord& step = memory.last_step();
    raw.insert(raw.end(), step.raw_boundaries.begin(), step.raw_boundaries.end());
    final_flags.insert(final_flags.end(), step.final_boundaries.begin(),
                       step.final_boundaries.end());
    surprise.insert(surprise.end(), step.surprise.begin(), step.surprise.end());
    events_before.push_back(step.events_before);
    print_recalled(memory, steps);
    for (std::int64_t i = 0; i < n; ++i)
      if (rows.empty() || std::binary_search(rows.begin(), rows.end(), first + i))
        logits.insert(logits.end(), got.begin() + i * model.vocab(),
                      got.begin() + (i + 1) * model.vocab());
    for (std::int64_t l = 0; l < model.shape().n_layers; ++l)  // it may still grow in the window
      for (std::int64_t t = std::max<std::int64_t>(0, first - memory.config().n_local);
           t < first + n; ++t)
        std::copy_n(memory.relevance(l, t), heads, relevance.begin() + (l * n_tokens + t) * heads);
    first += n;
  }
  Floats representatives;
  for (std::int64_t l = 0; l < model.shape().n_layers; ++l)
    for (EventId e = 0; e < memory.events().size(); ++e) {
      const Floats mean = memory.representative(l, e);
      representatives.insert(representatives.end(), mean.begin(), mean.end());
    }
  print("raw_boundaries", raw);
  print("final_boundaries", final_flags);
  print("events_before", events_before);
  print_events("events", memory.events());
  print("~surprise", surprise);
  print("~representatives", representatives);
  print("~relevance", relevance);
  print("~logits", logits);
}

}  // namespace decisions
