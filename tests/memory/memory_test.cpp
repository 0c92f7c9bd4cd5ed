// SPDX-License-Identifier: Apache-2.0
#include "support/compare.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"

using namespace episodic;
using driver::random_tokens;
using driver::small_config;
using driver::small_shape;
using driver::step;

namespace {

/// Largest |x - reference| over the outputs of a step, all layers.
template <class Far>
double worst_error(const std::vector<std::vector<float>>& out,
                   const std::vector<driver::Token>& tokens, const MemoryShape& s,
                   std::int64_t first, std::int64_t n, std::int64_t n_local, Far far) {
  double worst = 0;
  for (std::int64_t l = 0; l < s.n_layers; ++l)
    for (std::int64_t i = 0; i < n; ++i) {
      const std::vector<double> e = driver::reference(tokens, s, l, first + i, n_local,
                                                      [&](std::int64_t t) { return far(l, t); });
      for (std::size_t c = 0; c < e.size(); ++c)
        worst = worse_of(
            worst,
            std::fabs(out[static_cast<std::size_t>(l)][static_cast<std::size_t>(i) * e.size() + c] -
                      e[c]));
    }
  return worst;
}

/// Runs a whole stream; returns all outputs and every decision as one flat list to compare.
std::vector<float> fingerprint(const MemoryConfig& config, const std::vector<driver::Token>& tokens,
                               std::int64_t chunk) {
  EpisodicMemory memory(config, small_shape());
  std::vector<float> all;
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(tokens.size());) {
    const std::int64_t n = std::min(chunk, static_cast<std::int64_t>(tokens.size()) - at);
    for (const auto& layer : step(memory, tokens, at, n))
      all.insert(all.end(), layer.begin(), layer.end());
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)
      for (const EventId e : memory.recalled(l).recalled()) all.push_back(static_cast<float>(e));
    at += n;
  }
  for (const TokenRange& r : memory.events().all()) all.push_back(static_cast<float>(r.start));
  return all;
}

}  // namespace

TEST_CASE("inside the window the memory is plain causal attention", "[memory][oracle]") {
  const MemoryShape s = small_shape();
  const MemoryConfig c = small_config();
  const auto tokens = random_tokens(s, c.n_local, 1);
  EpisodicMemory memory(c, s);
  for (std::int64_t at = 0; at < c.n_local; at += 8) {
    const auto out = step(memory, tokens, at, 8);
    CHECK(worst_error(out, tokens, s, at, 8, c.n_local, [](auto, auto) { return false; }) < 3e-6);
  }
  CHECK(memory.events().size() == 0);
}

TEST_CASE("recall everything is full attention with far keys at the fixed position",
          "[memory][oracle]") {
  for (const std::int64_t chunk : {1, 5, 12, 40}) {  // 40 > n_local
    MemoryConfig c = small_config();
    c.n_mem = 100000;
    c.chunk = chunk;
    const MemoryShape s = small_shape(2, 6, 2, 7 + 1);
    const auto tokens = random_tokens(s, 160, 2);
    EpisodicMemory memory(c, s);
    for (std::int64_t at = 0; at < 160;) {
      const std::int64_t n = std::min<std::int64_t>(chunk, 160 - at);
      const auto out = step(memory, tokens, at, n);
      CHECK(worst_error(out, tokens, s, at, n, c.n_local, [](auto, auto) { return true; }) < 5e-6);
      at += n;
    }
    CHECK(memory.events().size() > 5);
  }
}

TEST_CASE("layers with rotary tables, scales and attention factors of their own",
          "[memory][oracle]") {
  MemoryShape s = small_shape(4, 4, 2, 10);
  s.layers.resize(4);
  s.layers[0].rotary = plain_rotary(10, 10000.0);
  s.layers[1].rotary = plain_rotary(6, 500.0);  // in part
  s.layers[1].scale = 0.2f;
  s.layers[2].rotary = plain_rotary(10, 1e6);
  s.layers[2].rotary.attention_factor = 1.4;  // of local and far scores alike
  s.layers[3].rotary = {};                    // no rotary embedding
  MemoryConfig c = small_config();
  c.n_mem = 100000;  // everything is recalled
  const auto tokens = random_tokens(s, 140, 41);
  EpisodicMemory memory(c, s);
  for (std::int64_t at = 0; at < 140; at += 10) {
    const auto out = step(memory, tokens, at, 10);
    CHECK(worst_error(out, tokens, s, at, 10, c.n_local, [](auto, auto) { return true; }) < 1e-5);
  }
  CHECK(memory.events().size() > 5);
}

TEST_CASE("each query sees sinks, pending, recalled events and its window, each once", "[memory]") {
  for (const DType dtype :
       {DType::float32, DType::bfloat16, DType::float16, DType::int8, DType::fp8}) {
    for (const std::int64_t n_local : {10, 24}) {
      MemoryConfig c = small_config();
      c.n_local = n_local;
      c.contiguity = 0.3;
      c.refine = Refinement::modularity;
      c.kv_dtype = dtype;
      const MemoryShape s = small_shape(3, 4, 1, 6);
      const auto tokens = random_tokens(s, 200, 3);
      EpisodicMemory memory(c, s);
      bool left_out = false;
      for (std::int64_t at = 0, i = 0; at < 200; ++i) {
        const std::int64_t n = std::min<std::int64_t>({12, 1 + i % 13, 200 - at});
        const std::int64_t pending = memory.events().pending_start();
        const EventTable before = memory.events();
        const auto out = step(memory, tokens, at, n);
        const auto far = [&](std::int64_t l, std::int64_t t) {
          if (t < c.n_init || t >= pending) return true;
          const auto& list = memory.recalled(l).recalled();
          const bool in = std::any_of(list.begin(), list.end(), [&](EventId e) {
            return t >= before[e].start && t < before[e].end;
          });
          left_out = left_out || !in;
          return in;
        };
        // int8: half a code of the largest of some 50 normal numbers is 0.011, in keys and values
        // fp8: a 16th of each element
        const double allowed = dtype == DType::float32    ? 5e-6
                               : dtype == DType::float16  ? 3e-3
                               : dtype == DType::bfloat16 ? 2e-2
                               : dtype == DType::int8     ? 4e-2
                                                          : 2.5e-1;
        CHECK(worst_error(out, tokens, s, at, n, c.n_local, far) < allowed);
        at += n;
      }
      CHECK(left_out);  // the recall did choose
    }
  }
}

TEST_CASE("a step whose events cannot be stored is refused whole, and can be taken again",
          "[memory]") {
  for (const DType dtype : {DType::float16}) {
    MemoryConfig c = small_config();
    c.n_local = 5;
    c.chunk = 40;
    c.kv_dtype = dtype;
    const MemoryShape s = small_shape();
    const auto tokens = random_tokens(s, 120, 21);
    auto bad = tokens;
    bad[50].v[1][3] = 1e6f;
    EpisodicMemory memory(c, s), twin(c, s);
    std::vector<std::vector<float>> out, want;
    std::int64_t refused = 0;
    for (std::int64_t at = 0; at < 120;
         at += 40) {  // a step's events are closed in it: 40 > n_local
      if (at == 40) {
        const std::int64_t events = memory.events().size();
        const std::int64_t stored = memory.counters().store.events;
        try {
          step(memory, bad, at, 40);
        } catch (const DataError& e) {
          ++refused;
          const std::string message = e.what();
          CHECK(message.find("token 50") != std::string::npos);
          CHECK(message.find("kv_dtype") != std::string::npos);
        }
        CHECK(memory.events().size() == events);
        CHECK(memory.counters().store.events == stored);
      }
      out = step(memory, tokens, at, 40);
      want = step(twin, tokens, at, 40);
    }
    CHECK(refused == 1);
    CHECK(out == want);
    CHECK(memory.events().all() == twin.events().all());
    CHECK(memory.counters().store.events == memory.events().size());
  }
}

TEST_CASE("decisions and outputs do not depend on the number of threads", "[memory][threads]") {
  MemoryConfig c = small_config();
  c.refine = Refinement::conductance;
  c.contiguity = 0.3;
  const auto tokens = random_tokens(small_shape(), 300, 4);
  const int threads = max_threads();
  set_max_threads(1);
  const std::vector<float> one = fingerprint(c, tokens, 12);
  set_max_threads(3);
  const std::vector<float> three = fingerprint(c, tokens, 12);
  const std::vector<float> again = fingerprint(c, tokens, 12);
  set_max_threads(threads);
  CHECK(one == three);  // to the bit
  CHECK(three == again);
}

TEST_CASE("moving surprise gives the same events however the stream is cut", "[memory]") {
  MemoryConfig c = small_config();
  const auto tokens = random_tokens(small_shape(), 300, 5);
  std::vector<std::vector<TokenRange>> events;
  for (const std::int64_t chunk : {1, 5, 12}) {
    EpisodicMemory memory(c, small_shape());
    for (std::int64_t at = 0; at < 300; at += chunk)
      step(memory, tokens, at, std::min<std::int64_t>(chunk, 300 - at));
    events.push_back(memory.events().all());
  }
  CHECK(events[0].size() > 10);
  CHECK(events[0] == events[1]);
  CHECK(events[0] == events[2]);
}

TEST_CASE("a snapshot brings everything back to the bit", "[memory][snapshot]") {
  MemoryConfig c = small_config();
  c.contiguity = 0.3;
  c.refine = Refinement::modularity;
  const auto tokens = random_tokens(small_shape(), 400, 6);
  const auto other = random_tokens(small_shape(), 400, 7);
  EpisodicMemory memory(c, small_shape());
  for (std::int64_t at = 0; at < 200; at += 10) step(memory, tokens, at, 10);
  const auto snapshot = memory.snapshot();
  const auto continue_with = [&](const std::vector<driver::Token>& t) {
    std::vector<float> all;
    for (std::int64_t at = 200; at < 400; at += 10)
      for (const auto& layer : step(memory, t, at, 10))
        all.insert(all.end(), layer.begin(), layer.end());
    return all;
  };
  const std::vector<float> first = continue_with(tokens);
  memory.restore(*snapshot);
  CHECK(memory.tokens() == 200);
  CHECK(continue_with(other) != first);
  memory.restore(*snapshot);
  CHECK(continue_with(tokens) == first);

  EpisodicMemory stranger(c, small_shape());
  CHECK_THROWS_AS(stranger.restore(*snapshot), ConfigError);
  memory.restore(*snapshot);
  const auto later = (continue_with(tokens), memory.snapshot());
  memory.restore(*snapshot);
  CHECK_THROWS_AS(memory.restore(*later), ConfigError);  // its events were given anew
}

TEST_CASE("a step that fails can be begun anew and leaves no trace", "[memory][errors]") {
  MemoryConfig c = small_config();
  c.contiguity = 0.3;
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 240, 8);
  const std::int64_t vocab = 7;
  const auto run = [&](bool disturb) {
    EpisodicMemory memory(c, s);
    std::vector<float> all;
    std::vector<float> logits(static_cast<std::size_t>(12 * vocab));
    std::vector<std::int64_t> ids(12);
    for (std::int64_t at = 0; at < 240; at += 12) {
      for (int attempt = disturb ? 0 : 1; attempt < 2; ++attempt) {
        memory.begin_step(12);
        std::vector<float> out;
        for (std::int64_t l = 0; l < s.n_layers; ++l) {
          std::vector<float> q, k, v, o(static_cast<std::size_t>(12 * s.n_heads * s.head_dim));
          for (std::int64_t i = at; i < at + 12; ++i) {
            const auto& t = tokens[static_cast<std::size_t>(i)];
            const auto layer = static_cast<std::size_t>(l);
            q.insert(q.end(), t.q[layer].begin(), t.q[layer].end());
            k.insert(k.end(), t.k[layer].begin(), t.k[layer].end());
            v.insert(v.end(), t.v[layer].begin(), t.v[layer].end());
          }
          if (attempt == 0) std::reverse(q.begin(), q.end());  // what is then thrown away
          memory.attend(l, q.data(), k.data(), v.data(), o.data());
          out.insert(out.end(), o.begin(), o.end());
        }
        for (std::size_t i = 0; i < logits.size(); ++i)
          logits[i] = tokens[static_cast<std::size_t>(at) + i / static_cast<std::size_t>(vocab)]
                          .q[0][i % 8];
        for (std::size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<std::int64_t>((at + static_cast<std::int64_t>(i)) * 5 % vocab);
        if (attempt == 0) {
          logits[static_cast<std::size_t>(at) % logits.size()] =
              std::numeric_limits<float>::quiet_NaN();
          CHECK_THROWS_AS(memory.end_step(ids.data(), logits.data(), vocab, vocab), DataError);
          CHECK(memory.tokens() == at);
        } else {
          memory.end_step(ids.data(), logits.data(), vocab, vocab);
          all.insert(all.end(), out.begin(), out.end());
        }
      }
    }
    for (std::int64_t t = 230; t < 240; ++t)
      all.insert(all.end(), memory.relevance(1, t), memory.relevance(1, t) + s.n_heads);
    return all;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("a NaN or an infinity in q, k or v is refused by name before the step counts",
          "[memory][errors]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 120, 23);
  const MemoryConfig c = small_config();
  EpisodicMemory memory(c, s), twin(c, s);
  const float values[] = {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  std::int64_t tried = 0;
  for (std::int64_t at = 0; at < 120; at += 12) {
    for (const char* name : {"q", "k", "v"}) {
      auto bad = tokens;
      const std::int64_t token = at + tried % 12, layer = tried % 2;
      driver::Token& t = bad[static_cast<std::size_t>(token)];
      auto& rows = name[0] == 'q' ? t.q : name[0] == 'k' ? t.k : t.v;
      std::vector<float>& row = rows[static_cast<std::size_t>(layer)];
      row[static_cast<std::size_t>(tried) % row.size()] = values[tried % 3];
      const std::string said = refusal<DataError>([&] { step(memory, bad, at, 12); });
      INFO(said);
      CHECK(mentions(said, std::string(name) + " of token " + std::to_string(token) + " "));
      CHECK(mentions(said, "layer " + std::to_string(layer)));
      CHECK(memory.tokens() == at);
      ++tried;
    }
    CHECK(step(memory, tokens, at, 12) == step(twin, tokens, at, 12));
  }
  CHECK(tried == 30);
  // The largest number there is, is one.
  auto large = random_tokens(s, 1, 24);
  large[0].v[0][0] = std::numeric_limits<float>::max();
  EpisodicMemory(c, s).begin_step(1);
  EpisodicMemory fresh(c, s);
  CHECK_NOTHROW(step(fresh, large, 0, 1));
}

// The parts of a projection of q, k and v side by side, in any dtype, against packed copies of the
// same numbers in float32: all that follows must have the same bits.
TEST_CASE("attend reads a fused projection where it lies, and writes outputs of any dtype",
          "[memory][strides]") {
  const MemoryShape s = small_shape();
  const std::int64_t H = s.n_heads, G = s.n_kv_heads, d = s.head_dim;
  const std::int64_t row = (H + 2 * G) * d + 3, out_row = H * d + 2;  // and what others keep behind
  constexpr float kOthers = 7.0f;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const auto to_bits = [&](float x) {
      return dtype == DType::bfloat16 ? to_bfloat16(x) : to_float16(x);
    };
    const auto from_bits = [&](std::uint16_t x) {
      return dtype == DType::bfloat16 ? from_bfloat16(x) : from_float16(x);
    };
    const auto rounded = [&](float x) {
      return dtype == DType::float32 ? x : from_bits(to_bits(x));
    };
    for (const DType kv_dtype : {DType::float32, DType::bfloat16, DType::int8, DType::fp8}) {
      INFO(name_of(dtype) << " into windows of " << name_of(kv_dtype));
      MemoryConfig c = small_config();
      c.kv_dtype = kv_dtype;
      EpisodicMemory memory(c, s), twin(c, s);
      auto tokens = random_tokens(s, 200, 77);
      for (driver::Token& t : tokens)
        for (auto* rows : {&t.q, &t.k, &t.v})
          for (auto& layer : *rows)
            for (float& x : layer) x = rounded(x);
      for (std::int64_t at = 0, n = 1; at + n <= 200; at += n, n = n % 12 + 1) {
        const auto want = step(twin, tokens, at, n);
        memory.begin_step(n);
        for (std::int64_t l = 0; l < s.n_layers; ++l) {
          const auto L = static_cast<std::size_t>(l);
          std::vector<float> wide(static_cast<std::size_t>(n * row), kOthers);
          for (std::int64_t i = 0; i < n; ++i) {
            const driver::Token& t = tokens[static_cast<std::size_t>(at + i)];
            float* to = wide.data() + i * row;
            for (const auto* rows : {&t.q, &t.k, &t.v})
              to = std::copy((*rows)[L].begin(), (*rows)[L].end(), to);
          }
          std::vector<std::uint16_t> narrow;
          if (dtype != DType::float32)
            std::transform(wide.begin(), wide.end(), std::back_inserter(narrow), to_bits);
          const auto part = [&](std::int64_t first, std::int64_t heads) {
            const void* data = narrow.empty() ? static_cast<const void*>(wide.data() + first)
                                              : static_cast<const void*>(narrow.data() + first);
            return TensorView(data, dtype, {n, heads, d}, {row, d});
          };
          std::vector<float> out(static_cast<std::size_t>(n * out_row), kOthers);
          std::vector<std::uint16_t> out_bits(out.size(), to_bits(kOthers));
          void* to =
              narrow.empty() ? static_cast<void*>(out.data()) : static_cast<void*>(out_bits.data());
          memory.attend(l, part(0, H), part(H * d, G), part((H + G) * d, G),
                        {to, dtype, {n, H, d}, {out_row, d}});
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t x = 0; x < out_row; ++x) {
              const auto e = static_cast<std::size_t>(i * out_row + x);
              const float got = narrow.empty() ? out[e] : from_bits(out_bits[e]);
              const float is =
                  x < H * d ? rounded(want[L][static_cast<std::size_t>(i * H * d + x)]) : kOthers;
              REQUIRE(got == is);
            }
        }
        std::vector<float> surprise;
        for (std::int64_t i = at; i < at + n; ++i)
          surprise.push_back(tokens[static_cast<std::size_t>(i)].surprise);
        memory.end_step(surprise.data());
      }
      CHECK(memory.events().size() > 20);
      CHECK(memory.digest() == twin.digest());
    }
  }
}

TEST_CASE("attend over the queries' own rows", "[memory][strides]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 120, 78);
  EpisodicMemory memory(small_config(), s), twin(small_config(), s);
  for (std::int64_t at = 0; at < 120; at += 12) {
    const auto want = step(twin, tokens, at, 12);
    memory.begin_step(12);
    std::vector<float> surprise;
    for (std::int64_t l = 0; l < s.n_layers; ++l) {
      std::vector<float> q, k, v;
      for (std::int64_t i = at; i < at + 12; ++i) {
        const driver::Token& t = tokens[static_cast<std::size_t>(i)];
        const auto append = [&](std::vector<float>& to, const auto& layers) {
          to.insert(to.end(), layers[static_cast<std::size_t>(l)].begin(),
                    layers[static_cast<std::size_t>(l)].end());
        };
        append(q, t.q), append(k, t.k), append(v, t.v);
        if (l == 0) surprise.push_back(t.surprise);
      }
      memory.attend(l, q.data(), k.data(), v.data(), q.data());
      CHECK(q == want[static_cast<std::size_t>(l)]);
    }
    memory.end_step(surprise.data());
  }
}

TEST_CASE("rows that cannot be read or written are refused by name, and the step goes on",
          "[memory][strides][errors]") {
  const MemoryShape s = small_shape();
  EpisodicMemory memory(small_config(), s);
  std::vector<float> q(static_cast<std::size_t>(2 * s.n_heads * s.head_dim)), out = q;
  std::vector<float> k(static_cast<std::size_t>(2 * s.n_kv_heads * s.head_dim)), v = k;
  const TensorSizes wide{2, s.n_heads, s.head_dim}, narrow{2, s.n_kv_heads, s.head_dim};
  const TensorView good[] = {{q.data(), wide}, {k.data(), narrow}, {v.data(), narrow}};
  const MutableTensorView to(out.data(), wide);
  // What is wrong with a view, and what must be said of it.
  struct Fault {
    const char* says;
    std::function<void(TensorView&)> spoil;
  };
  const std::int64_t far = std::int64_t{1} << 56, most = std::numeric_limits<std::int64_t>::max();
  const std::vector<Fault> faults = {
      {" is null", [](TensorView& x) { x.data = nullptr; }},
      {" is int8", [](TensorView& x) { x.dtype = DType::int8; }},
      {" is fp8", [](TensorView& x) { x.dtype = DType::fp8; }},
      {" lies in CUDA memory", [](TensorView& x) { x.memory = MemoryKind::cuda; }},
      {" is [3, ", [](TensorView& x) { x.sizes.n = 3; }},
      {" is [0, ", [](TensorView& x) { x.sizes.n = 0; }},
      {", must be [2, ", [](TensorView& x) { x.sizes.heads = 1; }},
      {", must be [2, ", [](TensorView& x) { x.sizes.heads = -1; }},
      {", must be [2, ", [](TensorView& x) { x.sizes.dim = 11; }},
      {"row stride -80", [](TensorView& x) { x.strides.row = -80; }},
      {"head stride -1", [](TensorView& x) { x.strides.head = -1; }},
      {"beyond all memory", [&](TensorView& x) { x.strides.row = far; }},
      {"beyond all memory",
       [&](TensorView& x) {
         x.strides = {most, most};
       }},
      {"beyond all memory", [&](TensorView& x) { x.strides.head = far; }}};
  memory.begin_step(2);
  for (std::size_t which = 0; which < 3; ++which)
    for (const Fault& fault : faults) {
      TensorView views[] = {good[0], good[1], good[2]};
      fault.spoil(views[which]);
      const std::string said =
          refusal<DataError>([&] { memory.attend(0, views[0], views[1], views[2], to); });
      INFO(said << " expected:" << fault.says);
      CHECK(mentions(said, std::string("attend: ") + "qkv"[which] + " "));
      CHECK(mentions(said, fault.says));
      CHECK(said.find('\n') == std::string::npos);
    }
  for (const Fault& fault : faults) {
    TensorView spoilt = to;
    fault.spoil(spoilt);
    MutableTensorView x(spoilt.data ? out.data() : nullptr, spoilt.dtype, spoilt.sizes,
                        spoilt.strides, spoilt.memory);
    const std::string said =
        refusal<DataError>([&] { memory.attend(0, good[0], good[1], good[2], x); });
    INFO(said << " expected:" << fault.says);
    CHECK(mentions(said, "attend: out "));
    CHECK(mentions(said, fault.says));
  }
  for (const TensorStrides strides : {TensorStrides{s.head_dim, s.head_dim},
                                      {0, s.head_dim},
                                      {s.n_heads * s.head_dim, 0},
                                      {s.n_heads * s.head_dim - 1, s.head_dim},
                                      {s.head_dim - 1, 2 * s.head_dim - 1}}) {
    const std::string said = refusal<DataError>([&] {
      memory.attend(0, good[0], good[1], good[2], {out.data(), DType::float32, wide, strides});
    });
    INFO(said);
    CHECK(mentions(said, "attend: out has "));
    CHECK(mentions(said, "overlap"));
  }
  // a number that is none is found behind strides too
  q[static_cast<std::size_t>(s.head_dim) + 3] = std::numeric_limits<float>::infinity();
  const TensorView by_head(q.data(), DType::float32, wide, {s.head_dim, 2 * s.head_dim});
  CHECK(mentions(refusal<DataError>([&] { memory.attend(0, by_head, good[1], good[2], to); }),
                 "q of token 1 in layer 0 holds inf"));
  // and the step goes on, with one row for all tokens and one for all heads
  q.assign(q.size(), 0.5f);
  CHECK(memory.tokens() == 0);
  for (std::int64_t l = 0; l < s.n_layers; ++l)
    memory.attend(l, {q.data(), DType::float32, wide, {0, 0}}, good[1], good[2], to);
  for (const SurpriseView& wrong : {SurpriseView{nullptr, 2}, SurpriseView{out.data(), 1},
                                    SurpriseView{out.data(), 2, MemoryKind::cuda}})
    CHECK(mentions(refusal<DataError>([&] { memory.end_step(wrong); }), "end_step: surprise "));
  memory.end_step(SurpriseView{out.data(), 2});
  CHECK(memory.tokens() == 2);
}

TEST_CASE("several tokens at once recall, wherever they come, and so does a prompt's last",
          "[memory]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 320, 25);
  MemoryConfig c = small_config();
  c.contiguity = 0.3;
  c.recall_every = 5;
  MemoryConfig always = c;
  always.recall_every = 1;
  // A memory that recalls at every step, over the same sequence: the same lists where both recall.
  // (Contiguity's queue follows the recalls, so similarity alone is compared.)
  EpisodicMemory memory(c, s), twin(always, s);
  const auto both = [&](std::int64_t at, std::int64_t n, StepKind kind = StepKind::decode) {
    step(memory, tokens, at, n, kind);
    step(twin, tokens, at, n, kind);
    return memory.recalled(0).similarity() == twin.recalled(0).similarity() &&
           memory.recalled(1).similarity() == twin.recalled(1).similarity();
  };
  for (std::int64_t at = 0; at < 200; at += 10) both(at, 10);
  CHECK(both(200, 1));
  std::int64_t differ = 0;
  for (std::int64_t at = 201; at < 203; ++at) differ += !both(at, 1);
  CHECK(both(203, 3));  // in the middle of the count
  CHECK(both(206, 1));
  for (std::int64_t at = 207; at < 209; ++at) differ += !both(at, 1);
  CHECK(both(209, 1, StepKind::prompt));  // a body of one token
  CHECK(both(210, 1, StepKind::prompt));  // and the last
  for (std::int64_t at = 211; at < 215; ++at) differ += !both(at, 1);
  CHECK(both(215, 1));
  CHECK(differ > 3);  // else the comparison would say nothing
}

TEST_CASE("misuse and impossible settings are refused by name", "[memory][errors]") {
  MemoryConfig c = small_config();
  c.min_block = 10;
  CHECK(mentions(refusal([&] { EpisodicMemory(c, small_shape()); }), "min_block"));
  c = small_config();
  c.host_bytes = 100;
  CHECK(mentions(refusal([&] { EpisodicMemory(c, small_shape()); }), "host_bytes"));
  c = small_config();
  c.refine = Refinement::modularity;
  c.refine_layers = 2;
  CHECK(mentions(refusal([&] { EpisodicMemory(c, small_shape()); }), "refine_layers"));
  c = small_config();
  c.recall_layers = {{5}};
  CHECK(mentions(refusal([&] { EpisodicMemory(c, small_shape()); }), "recall_layers"));
  CHECK(
      mentions(refusal([&] { EpisodicMemory(small_config(), small_shape(2, 5, 2)); }), "n_heads"));
  MemoryShape shape = small_shape();
  shape.rotary = {};
  CHECK(mentions(refusal([&] { EpisodicMemory(small_config(), shape); }), "rotary is empty"));
  shape.layers.resize(2);  // said of each layer, it is meant
  CHECK_NOTHROW(EpisodicMemory(small_config(), shape));
  shape.layers.resize(1);
  CHECK(mentions(refusal([&] { EpisodicMemory(small_config(), shape); }), "1 layers are listed"));
  shape.layers.resize(2);
  shape.layers[1].scale = -1.0f;
  CHECK(mentions(refusal([&] { EpisodicMemory(small_config(), shape); }), "scale"));
  shape.layers[1] = {plain_rotary(20, 10000.0)};
  CHECK(mentions(refusal([&] { EpisodicMemory(small_config(), shape); }), "rotary_dim"));

  EpisodicMemory memory(small_config(), small_shape());
  CHECK(mentions(refusal([&] { memory.begin_step(0); }), "n = 0"));
  CHECK(mentions(refusal([&] { memory.begin_step(13); }), "chunk"));
  std::vector<float> x(4 * 10 * 12);
  CHECK(mentions(refusal([&] { memory.attend(0, x.data(), x.data(), x.data(), x.data()); }),
                 "begin_step"));
  memory.begin_step(1);
  CHECK(mentions(refusal([&] { memory.attend(1, x.data(), x.data(), x.data(), x.data()); }),
                 "out of turn"));
  CHECK(mentions(refusal([&] { memory.end_step(x.data()); }), "layers"));
}

TEST_CASE("a full host budget stops growth and loses nothing", "[memory][errors]") {
  MemoryConfig c = small_config();
  const MemoryShape s = small_shape();
  c.host_bytes = 40 * 1024;
  const auto tokens = random_tokens(s, 400, 9);
  EpisodicMemory memory(c, s);
  std::int64_t at = 0;
  bool refused = false;
  for (; at + 12 <= 400; at += 12) {
    CHECK(memory.counters().store.bytes_reserved <= c.host_bytes);
    const std::int64_t events = memory.events().size();
    try {
      step(memory, tokens, at, 12);
    } catch (const BudgetError& e) {
      refused = true;
      CHECK(std::string(e.what()).find("host_bytes") != std::string::npos);
      CHECK(memory.tokens() == at);
      CHECK(memory.events().size() == events);
      break;
    }
  }
  CHECK(refused);
  CHECK(memory.counters().store.bytes_used > c.host_bytes / 2);
}

TEST_CASE("without recall there is no store and no far event is seen", "[memory]") {
  MemoryConfig c = small_config();
  c.recall = false;
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 150, 10);
  EpisodicMemory memory(c, s);
  for (std::int64_t at = 0; at < 150; at += 10) {
    const std::int64_t pending = memory.events().pending_start();
    const auto out = step(memory, tokens, at, 10);
    CHECK(worst_error(out, tokens, s, at, 10, c.n_local,
                      [&](auto, std::int64_t t) { return t < c.n_init || t >= pending; }) < 5e-6);
  }
  CHECK(memory.events().size() > 5);
  CHECK(memory.counters().store.bytes_used == 0);
}

TEST_CASE("recall_every keeps the events of the last recall between two decode steps", "[memory]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 260, 11);
  const auto changes = [&](std::int64_t every) {
    MemoryConfig c = small_config();
    c.recall_every = every;
    EpisodicMemory memory(c, s);
    for (std::int64_t at = 0; at < 200; at += 10) step(memory, tokens, at, 10);
    std::vector<int> changed;
    std::vector<EventId> before;
    for (std::int64_t at = 200; at < 260; ++at) {
      step(memory, tokens, at, 1);
      if (memory.recalled(0).recalled() != before) changed.push_back(static_cast<int>(at - 200));
      before = memory.recalled(0).recalled();
    }
    return changed;
  };
  const std::vector<int> seldom = changes(7);
  CHECK(seldom.size() > 2);
  for (const int step_number : seldom) CHECK(step_number % 7 == 0);
  CHECK(changes(1).size() > seldom.size());
}

TEST_CASE("layers outside recall_layers recall nothing and store nothing", "[memory]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 200, 12);
  MemoryConfig c = small_config();
  EpisodicMemory all(c, s);
  c.recall_layers = {{1}};
  EpisodicMemory one(c, s);
  for (std::int64_t at = 0; at < 200; at += 10) {
    step(all, tokens, at, 10);
    step(one, tokens, at, 10);
  }
  CHECK(one.recalled(0).recalled().empty());
  CHECK(one.recalled(1).recalled() == all.recalled(1).recalled());
  CHECK(2 * one.counters().store.bytes_used == all.counters().store.bytes_used);
}

TEST_CASE(
    "representatives are the keys that got most attention, from all queries of their window") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 200, 31);
  for (const std::int64_t n_local : {10, 24}) {
    MemoryConfig c = small_config();
    c.n_local = n_local;
    EpisodicMemory memory(c, s);
    // Attention that each key got while it was local: [layer][token][head]
    std::vector<std::vector<std::vector<double>>> got(
        2, std::vector<std::vector<double>>(200, std::vector<double>(4, 0.0)));
    std::int64_t in_one_step = 0;  // events whose last token left the window in the step it came in
    for (std::int64_t at = 0, i = 0; at < 200; ++i) {
      const std::int64_t n = std::min<std::int64_t>({12, 1 + i % 13, 200 - at});
      const EventTable before = memory.events();
      step(memory, tokens, at, n);
      for (std::int64_t l = 0; l < s.n_layers; ++l) {
        const auto far = [&](std::int64_t t) {
          const auto& list = memory.recalled(l).recalled();
          return t < c.n_init || t >= before.pending_start() ||
                 std::any_of(list.begin(), list.end(),
                             [&](EventId e) { return t >= before[e].start && t < before[e].end; });
        };
        for (std::int64_t p = at; p < at + n; ++p) {
          const auto weights = driver::attention_weights(tokens, s, l, p, n_local, far);
          for (std::size_t h = 0; h < 4; ++h)
            for (std::int64_t t = std::max<std::int64_t>(0, p - n_local + 1); t <= p; ++t)
              got[static_cast<std::size_t>(l)][static_cast<std::size_t>(t)][h] +=
                  weights[h][static_cast<std::size_t>(t)];
        }
      }
      at += n;
      for (EventId e = before.size(); e < memory.events().size(); ++e) {
        const TokenRange range = memory.events()[e];
        in_one_step += range.end > at - n;
        for (std::int64_t l = 0; l < s.n_layers; ++l) {
          const auto L = static_cast<std::size_t>(l);
          const std::vector<float> mean = memory.representative(l, e);
          REQUIRE(mean.size() == 40);
          for (std::size_t h = 0; h < 4; ++h) {
            std::vector<std::int64_t> order;
            for (std::int64_t t = range.start; t < range.end; ++t) order.push_back(t);
            std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
              return got[L][static_cast<std::size_t>(a)][h] >
                     got[L][static_cast<std::size_t>(b)][h];
            });
            order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(c.n_repr)));
            for (std::size_t d = 0; d < 10; ++d) {
              double sum = 0;
              for (const std::int64_t t : order)
                sum += tokens[static_cast<std::size_t>(t)].k[L][h / 2 * 10 + d];
              const double expected = sum / static_cast<double>(order.size());
              REQUIRE(std::abs(mean[h * 10 + d] - expected) < 1e-5);
            }
          }
        }
      }
    }
    REQUIRE(memory.events().size() > 10);
    if (n_local < c.chunk) REQUIRE(in_one_step > 0);
  }
}

TEST_CASE("what waits outside the window for its event is taken off the budget of recall") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 400, 23);
  std::mt19937 random(4);
  for (const std::int64_t block : {1, 3, 5, 8}) {
    MemoryConfig c = small_config();
    c.segmenter = SegmenterKind::fixed;
    c.min_block = c.max_block = block;
    EpisodicMemory memory(c, s);
    bool part = false;
    for (std::int64_t t = 0; t < 400;) {
      const std::int64_t n = std::min<std::int64_t>(400 - t, 1 + random() % c.chunk);
      const std::int64_t n_events = memory.events().size(), in_events = n_events * block;
      step(memory, tokens, t, n);
      t += n;
      // EM 3.4: all events are of one size here, so that their number follows from the budget.
      const std::int64_t capacity =
          c.n_init + c.chunk + c.n_mem -
          std::max<std::int64_t>(0, std::max<std::int64_t>(0, t - c.n_local) - in_events);
      std::int64_t expected = 0;
      for (std::int64_t total = 0; expected < n_events && total < capacity; total += block) {
        const std::int64_t with = total + block;
        if (with >= capacity && with - capacity >= capacity - total) break;
        ++expected;
      }
      part = part || expected < n_events;
      for (std::int64_t l = 0; l < s.n_layers; ++l)
        REQUIRE(static_cast<std::int64_t>(memory.recalled(l).recalled().size()) == expected);
    }
    REQUIRE(part);
  }
}

TEST_CASE("windows that no machine has room for are one error that names n_local") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EPISODIC_SKIP("sanitizers end the process where so much is asked for");
#endif
  MemoryConfig config = driver::small_config();
  config.n_local = std::int64_t{1} << 40;
  CHECK(mentions(refusal<BudgetError>([&] { EpisodicMemory(config, driver::small_shape()); }),
                 "n_local"));
  CHECK(mentions(refusal<BudgetError>([&] { HostMemory(config, driver::small_shape()); }),
                 "layers take"));
}

TEST_CASE("a recall hook sees the events with their scores and weights their values",
          "[memory][hook]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 200, 61);
  const MemoryConfig c = small_config();
  EpisodicMemory memory(c, s), plain(c, s);
  // In time order; weights by event number, so that each is another.
  const auto weight_of = [](EventId e) { return 0.25f + static_cast<float>(e % 5) / 4.0f; };
  std::int64_t calls = 0;
  bool fail = false;
  memory.set_recall_hook([&](const RecalledEvents& r) {
    ++calls;
    REQUIRE(r.events.size() == r.scores.size());
    REQUIRE(r.events.size() == r.weights.size());
    REQUIRE(std::is_sorted(r.events.begin(), r.events.end()));
    for (std::size_t i = 0; i < r.events.size(); ++i) {
      REQUIRE(r.weights[i] == 1.0f);
      double dot = 0;
      const std::vector<float> mean = memory.representative(r.layer, r.events[i]);
      for (std::size_t j = 0; j < mean.size(); ++j)
        dot += static_cast<double>(mean[j]) * static_cast<double>(r.query[j]);
      REQUIRE(std::fabs(dot - static_cast<double>(r.scores[i])) < 1e-4);
      r.weights[i] = weight_of(r.events[i]);
    }
    if (fail) throw std::runtime_error("the hook's own");
  });
  for (std::int64_t at = 0; at < 200; at += 10) {
    const EventTable before = memory.events();
    if (at == 150) {  // what it throws refuses the step
      fail = true;
      CHECK_THROWS_WITH(step(memory, tokens, at, 10), "the hook's own");
      fail = false;
    }
    const auto out = step(memory, tokens, at, 10);
    const auto unweighted = step(plain, tokens, at, 10);
    CHECK(memory.recalled(0).recalled() == plain.recalled(0).recalled());
    // Values are weighted, the softmax is not: the same reference over weighted values.
    for (std::int64_t l = 0; l < s.n_layers; ++l) {
      auto weighted = tokens;
      for (const EventId e : memory.recalled(l).recalled())
        for (std::int64_t t = before[e].start; t < before[e].end; ++t)
          for (float& x : weighted[static_cast<std::size_t>(t)].v[static_cast<std::size_t>(l)])
            x *= weight_of(e);
      const auto far = [&](std::int64_t layer, std::int64_t t) {
        if (t < c.n_init || t >= before.pending_start()) return true;
        const auto& list = memory.recalled(layer).recalled();
        return std::any_of(list.begin(), list.end(),
                           [&](EventId e) { return t >= before[e].start && t < before[e].end; });
      };
      double worst = 0;
      for (std::int64_t i = 0; i < 10; ++i) {
        const std::vector<double> want = driver::reference(
            weighted, s, l, at + i, c.n_local, [&](std::int64_t t) { return far(l, t); });
        for (std::size_t j = 0; j < want.size(); ++j)
          worst =
              worse_of(worst, std::fabs(static_cast<double>(out[static_cast<std::size_t>(
                                            l)][static_cast<std::size_t>(i) * want.size() + j]) -
                                        want[j]));
      }
      CHECK(worst < 1e-5);
    }
    if (at >= 100) CHECK(out != unweighted);
  }
  CHECK(calls > 10);
  memory.set_recall_hook({});
  const std::int64_t calls_before = calls;
  memory.begin_step(1);  // and no more
  CHECK(calls == calls_before);
  memory.set_recall_hook(
      [](const RecalledEvents& r) { r.weights[0] = std::numeric_limits<float>::quiet_NaN(); });
  CHECK(mentions(refusal<DataError>([&] { step(memory, tokens, 190, 10); }), "recall hook"));
}

/// Says no to every loop that is not to run on the calling thread.
class NoThreads final : public Executor {
 public:
  int concurrency() const override { return 2; }
  void run(std::int64_t, void (*)(void*, std::int64_t), void*) override {
    throw Error("no threads today");
  }
};

TEST_CASE("a step that may not fail any more ends where threads are refused", "[memory][threads]") {
  const MemoryShape shape = small_shape();
  const auto tokens = random_tokens(shape, 240, 41);
  EpisodicMemory alike(small_config(), shape), memory(small_config(), shape);
  const auto feed = [&](EpisodicMemory& m, std::int64_t at) { return step(m, tokens, at, 12); };
  std::vector<std::vector<std::vector<float>>> expected, found;
  for (std::int64_t at = 0; at < 240; at += 12) expected.push_back(feed(alike, at));
  NoThreads none;
  std::int64_t refused = 0, ended = 0;
  std::vector<float> surprise;
  for (std::int64_t at = 0; at < 240; at += 12) {
    // The step's end runs into the refusal, be it in what can fail or in what cannot.
    memory.begin_step(12);
    found.emplace_back();
    for (std::int64_t l = 0; l < shape.n_layers; ++l) {
      std::vector<float> q, k, v;
      for (std::int64_t i = at; i < at + 12; ++i) {
        const driver::Token& t = tokens[static_cast<std::size_t>(i)];
        const auto layer = static_cast<std::size_t>(l);
        q.insert(q.end(), t.q[layer].begin(), t.q[layer].end());
        k.insert(k.end(), t.k[layer].begin(), t.k[layer].end());
        v.insert(v.end(), t.v[layer].begin(), t.v[layer].end());
      }
      found.back().emplace_back(q.size());
      memory.attend(l, q.data(), k.data(), v.data(), found.back().back().data());
    }
    surprise.clear();
    for (std::int64_t i = at; i < at + 12; ++i)
      surprise.push_back(tokens[static_cast<std::size_t>(i)].surprise);
    try {
      const ExecutorScope scope(none);
      memory.end_step(surprise.data());
      ++ended;
    } catch (const Error&) {
      ++refused;
      CHECK(memory.tokens() == at);
      memory.end_step(surprise.data());
    }
    CHECK(memory.tokens() == at + 12);
  }
  CHECK(ended > 0);
  CHECK(refused > 0);
  CHECK(found == expected);
  CHECK(memory.events().size() == alike.events().size());
}
