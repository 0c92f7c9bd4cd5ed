// SPDX-License-Identifier: Apache-2.0
#pragma once
// One test for all kinds of SequenceMemory, through its interface alone: random steps whose views
// lie in many ways, against a plain float64 reference and against each other.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sequence_memory.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/test.hpp"

namespace sequence_kinds {

using namespace episodic;
using driver::Token;
using Bytes = std::vector<unsigned char>;

/// \param rotary_step the rotary dimension is a multiple of it, the largest that fits
inline MemoryShape shape_of(std::int64_t layers, std::int64_t heads, std::int64_t kv,
                            std::int64_t d, std::int64_t rotary_step) {
  return {layers, heads, kv, d, plain_rotary(d / rotary_step * rotary_step, 10000.0)};
}

/// An array where a kind of memory takes its views.
struct Array {
  std::shared_ptr<void> data;
  std::function<Bytes()> read;
};

/// A kind of memory, and what a test must know to drive it.
struct Kind {
  std::string name;
  bool any_strides = false;        ///< heads may lie anywhere
  bool turns_back = false;         ///< takes queries and keys after rotary embedding
  std::vector<std::int64_t> dims;  ///< head sizes to be tried
  std::int64_t rotary_step = 2;    ///< rotary dimensions are multiples of it
  /// \param dtype of all views
  std::function<std::unique_ptr<SequenceMemory>(const MemoryConfig&, const MemoryShape&,
                                                DType dtype, std::int64_t max_tokens)>
      make;
  std::function<Array(const Bytes&)> array;
};

inline Array host_array(const Bytes& bytes) {
  auto kept = std::make_shared<Bytes>(bytes);
  return {std::shared_ptr<void>(kept, kept->data()), [kept] { return *kept; }};
}

inline std::size_t element_bytes(DType dtype) { return static_cast<std::size_t>(size_of(dtype)); }

inline void put(float x, DType dtype, unsigned char* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, &x, 4);
    return;
  }
  const std::uint16_t bits = dtype == DType::bfloat16 ? to_bfloat16(x) : to_float16(x);
  std::memcpy(to, &bits, 2);
}

inline float get(const unsigned char* from, DType dtype) {
  float x;
  if (dtype == DType::float32) {
    std::memcpy(&x, from, 4);
    return x;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, 2);
  return dtype == DType::bfloat16 ? from_bfloat16(bits) : from_float16(bits);
}

inline float rounded(float x, DType dtype) {
  unsigned char bytes[4];
  put(x, dtype, bytes);
  return get(bytes, dtype);
}

/// How the heads of q, k and v lie, in one array.
struct Layout {
  std::int64_t of_q = 0, of_k = 0, of_v = 0;  // elements to the first
  TensorStrides q, k, v;
  std::int64_t size = 0;  // of the array
};

/// \param which 0: packed, one behind the other; 1: a fused projection with a gap; 2: by head
inline Layout layout_of(const MemoryShape& s, std::int64_t n, int which) {
  const std::int64_t d = s.head_dim, wide = s.n_heads * d, narrow = s.n_kv_heads * d;
  // Parts begin at multiples of 8 elements, as devices want them.
  const auto room = [](std::int64_t elements) { return (elements + 7) / 8 * 8; };
  Layout l;
  if (which == 1) {
    const std::int64_t row = room(wide + 2 * narrow) + 8;
    l.of_k = wide, l.of_v = wide + narrow, l.size = n * row;
    l.q = l.k = l.v = {row, d};
    return l;
  }
  l.of_k = room(n * wide), l.of_v = l.of_k + room(n * narrow), l.size = l.of_v + n * narrow;
  l.q = which == 0 ? TensorStrides{wide, d} : TensorStrides{d, n * d};
  l.k = l.v = which == 0 ? TensorStrides{narrow, d} : TensorStrides{d, n * d};
  return l;
}

/// x, all of one token and layer, turned to a position in float64: the reference of a rotation.
inline std::vector<float> turned(const std::vector<float>& x, const RotaryTable& table,
                                 std::int64_t heads, std::int64_t d, double position) {
  std::vector<float> y = x;
  const auto half = static_cast<std::int64_t>(table.inverse_frequency.size());
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t c = 0; c < half; ++c) {
      const bool halves = table.pairs == RotaryPairs::halves;
      const auto a = static_cast<std::size_t>(h * d + (halves ? c : 2 * c));
      const auto b = a + static_cast<std::size_t>(halves ? half : 1);
      const double angle = position * table.inverse_frequency[static_cast<std::size_t>(c)];
      const double f = table.attention_factor, cos = std::cos(angle), sin = std::sin(angle);
      y[a] = static_cast<float>(f * (x[a] * cos - x[b] * sin));
      y[b] = static_cast<float>(f * (x[b] * cos + x[a] * sin));
    }
  return y;
}

/// What a step left.
struct Left {
  std::vector<std::vector<float>> out;  // of each layer [n, H * d]
  std::vector<TokenRange> events;
  std::vector<LaneRecall> recall;  // of each layer's first lane
};

/// How a step's views are handed over.
struct HandOver {
  int layout = 0;
  Rotary q = Rotary::before, k = Rotary::before;
};

/// One step through the interface. The rows of the outputs have gaps where the kind writes such.
inline Left step(const Kind& kind, SequenceMemory& memory, const std::vector<Token>& tokens,
                 std::int64_t n, DType dtype, const HandOver& how = {}) {
  const MemoryShape& s = memory.shape();
  const std::int64_t first = memory.tokens(), d = s.head_dim, wide = s.n_heads * d;
  const MemoryKind where = memory.memory_kind();
  constexpr float kOthers = 77.0f;
  Left left;
  memory.begin_step(n);
  REQUIRE(memory.open_tokens() == n);
  for (std::int64_t l = 0; l < s.n_layers; ++l) {
    const auto L = static_cast<std::size_t>(l);
    const Layout lie = layout_of(s, n, how.layout);
    Bytes bytes(static_cast<std::size_t>(lie.size) * element_bytes(dtype));
    for (std::int64_t at = 0; at < lie.size; ++at)
      put(kOthers, dtype, bytes.data() + static_cast<std::size_t>(at) * element_bytes(dtype));
    const auto write = [&](const std::vector<float>& token, std::int64_t i, std::int64_t heads,
                           std::int64_t at, const TensorStrides& strides) {
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t c = 0; c < d; ++c)
          put(token[static_cast<std::size_t>(h * d + c)], dtype,
              bytes.data() + static_cast<std::size_t>(at + i * strides.row + h * strides.head + c) *
                                 element_bytes(dtype));
    };
    const RotaryTable table = s.layer(l).rotary;
    for (std::int64_t i = 0; i < n; ++i) {
      const Token& t = tokens[static_cast<std::size_t>(first + i)];
      const auto as = [&](const std::vector<float>& x, std::int64_t heads, Rotary rotary) {
        return rotary == Rotary::before
                   ? x
                   : turned(x, table, heads, d, static_cast<double>(first + i));
      };
      write(as(t.q[L], s.n_heads, how.q), i, s.n_heads, lie.of_q, lie.q);
      write(as(t.k[L], s.n_kv_heads, how.k), i, s.n_kv_heads, lie.of_k, lie.k);
      write(t.v[L], i, s.n_kv_heads, lie.of_v, lie.v);
    }
    const Array in = kind.array(bytes);
    const std::int64_t gap = kind.any_strides ? 3 : 0, row = wide + gap;
    Bytes before(static_cast<std::size_t>(n * row) * element_bytes(dtype));
    for (std::int64_t at = 0; at < n * row; ++at)
      put(kOthers, dtype, before.data() + static_cast<std::size_t>(at) * element_bytes(dtype));
    const Array to = kind.array(before);
    const auto view = [&](std::int64_t at, std::int64_t heads, const TensorStrides& strides) {
      const auto* base = static_cast<const unsigned char*>(in.data.get());
      return TensorView(base + static_cast<std::size_t>(at) * element_bytes(dtype), dtype,
                        {n, heads, d}, strides, where);
    };
    memory.attend(l, view(lie.of_q, s.n_heads, lie.q).with(how.q),
                  view(lie.of_k, s.n_kv_heads, lie.k).with(how.k),
                  view(lie.of_v, s.n_kv_heads, lie.v),
                  {to.data.get(), dtype, {n, s.n_heads, d}, {row, d}, where});
    const Bytes after = to.read();
    std::vector<float>& out = left.out.emplace_back();
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < row; ++c) {
        const float x =
            get(after.data() + static_cast<std::size_t>(i * row + c) * element_bytes(dtype), dtype);
        if (c < wide)
          out.push_back(x);
        else
          REQUIRE(x == rounded(kOthers, dtype));
      }
  }
  Bytes surprise(static_cast<std::size_t>(n) * 4);
  for (std::int64_t i = 0; i < n; ++i)
    put(tokens[static_cast<std::size_t>(first + i)].surprise, DType::float32,
        surprise.data() + 4 * i);
  const Array of_step = kind.array(surprise);
  memory.end_step({static_cast<const float*>(of_step.data.get()), n, where});
  REQUIRE(memory.tokens() == first + n);
  left.events = memory.events().all();
  for (std::int64_t l = 0; l < s.n_layers; ++l) left.recall.push_back(memory.recall_lists(l));
  return left;
}

/// Largest |a - b|; infinity where one is NaN.
inline double worst(const std::vector<std::vector<float>>& a,
                    const std::vector<std::vector<float>>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t l = 0; l < a.size(); ++l) {
    REQUIRE(a[l].size() == b[l].size());
    for (std::size_t i = 0; i < a[l].size(); ++i)
      most = worse_of(most, std::fabs(static_cast<double>(a[l][i]) - b[l][i]));
  }
  return most;
}

inline bool same_decisions(const Left& a, const Left& b) {
  bool same = a.events == b.events && a.recall.size() == b.recall.size();
  for (std::size_t l = 0; same && l < a.recall.size(); ++l)
    same = a.recall[l].similarity == b.recall[l].similarity &&
           a.recall[l].contiguity == b.recall[l].contiguity;
  return same;
}

/// Of outputs in a dtype: they are rounded once, and on a device what comes between too.
inline double tolerance(DType dtype) {
  return dtype == DType::float32 ? 3e-5 : dtype == DType::float16 ? 8e-3 : 6e-2;
}

/// Random steps of every kind against the definition, in float64, and against the first kind.
inline void check_steps(const std::vector<Kind>& kinds) {
  constexpr std::int64_t kTokens = 150;
  const std::int64_t heads[][2] = {{4, 2}, {1, 1}, {6, 2}, {3, 3}, {5, 1}};
  int setting = 0;
  std::int64_t recalled = 0;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const auto& h : heads) {
      // By default each of the heads in one of the types.
      if (!episodic_test::all_cases() && setting % 3 != setting / 5) {
        ++setting;
        continue;
      }
      std::vector<Left> of_first;
      for (const Kind& kind : kinds) {
        // Kinds are compared at head sizes that all have.
        const std::vector<std::int64_t>& dims = kinds.back().dims;
        const std::int64_t d = dims[static_cast<std::size_t>(setting) % dims.size()];
        const MemoryShape shape = shape_of(2, h[0], h[1], d, kinds.back().rotary_step);
        MemoryConfig config = driver::small_config();
        if (setting % 2 == 1) config.contiguity = 0.3;
        config.kv_dtype = dtype;
        std::vector<Token> tokens =
            driver::random_tokens(shape, kTokens, 900 + static_cast<std::uint32_t>(setting));
        for (Token& t : tokens)
          for (auto* rows : {&t.q, &t.k, &t.v})
            for (auto& layer : *rows)
              for (float& x : layer) x = rounded(x, dtype);
        INFO(kind.name << ", " << name_of(dtype) << ", " << h[0] << " heads of " << d << " over "
                       << h[1]);
        const std::unique_ptr<SequenceMemory> memory = kind.make(config, shape, dtype, kTokens);
        std::mt19937 random(static_cast<std::uint32_t>(setting));
        for (std::size_t i = 0; memory->tokens() < kTokens; ++i) {
          const std::int64_t first = memory->tokens();
          const std::int64_t n =
              std::min<std::int64_t>(kTokens - first, i % 3 == 2 ? 1 : 1 + random() % config.chunk);
          const EventTable before = memory->events();
          const auto layout = static_cast<int>(random() % 3);
          HandOver how;
          how.layout = layout == 2 && !kind.any_strides ? 1 : layout;
          const Left left = step(kind, *memory, tokens, n, dtype, how);
          for (std::int64_t l = 0; l < shape.n_layers; ++l) {
            const LaneRecall& lists = left.recall[static_cast<std::size_t>(l)];
            recalled += static_cast<std::int64_t>(lists.similarity.size());
            const auto far = [&](std::int64_t t) {
              if (t < config.n_init || t >= before.pending_start()) return true;
              const auto holds = [&](EventId e) {
                return t >= before[e].start && t < before[e].end;
              };
              return std::any_of(lists.similarity.begin(), lists.similarity.end(), holds) ||
                     std::any_of(lists.contiguity.begin(), lists.contiguity.end(), holds);
            };
            for (std::int64_t row = 0; row < n; ++row) {
              const std::vector<double> want =
                  driver::reference(tokens, shape, l, first + row, config.n_local, far);
              double most = 0;
              for (std::size_t c = 0; c < want.size(); ++c)
                most = worse_of(
                    most,
                    std::fabs(want[c] - static_cast<double>(left.out[static_cast<std::size_t>(
                                            l)][static_cast<std::size_t>(row) * want.size() + c])));
              REQUIRE(most < tolerance(dtype));
            }
          }
          if (&kind == &kinds.front()) {
            of_first.push_back(left);
          } else {
            // In 16 bits scores are rounded otherwise on a device: near ones may change places.
            const bool same = same_decisions(left, of_first[i]);
            if (dtype == DType::float32) REQUIRE(same);
            if (same) REQUIRE(worst(left.out, of_first[i].out) < tolerance(dtype));
          }
        }
        REQUIRE(memory->events().size() > 5);
      }
      ++setting;
    }
  REQUIRE(recalled > 1000);
}

/// Queries, keys or both after rotary embedding are what they were before it, to rounding.
inline void check_turning_back(const Kind& kind) {
  constexpr std::int64_t kTokens = 160;
  std::mt19937 random(77);
  std::int64_t recalled = 0;
  const int settings = episodic_test::all_or(24, 6);  // of which each has all of its kinds
  for (int setting = 0; setting < settings; ++setting) {
    const auto d = kind.dims[static_cast<std::size_t>(setting) % kind.dims.size()];
    const std::int64_t kv = 1 + setting % 3;
    MemoryShape shape = shape_of(2, kv * (1 + setting % 2), kv, d, kind.rotary_step);
    for (std::int64_t l = 0; l < shape.n_layers; ++l) {  // each layer its own table
      LayerShape layer;
      const std::int64_t steps = 1 + static_cast<std::int64_t>(random() % (d / kind.rotary_step));
      layer.rotary = plain_rotary(kind.rotary_step * steps, std::pow(10.0, 1.0 + random() % 5));
      // frequencies as yarn and others stretch them, and its mscale
      for (double& f : layer.rotary.inverse_frequency) f *= 0.25 + 0.001 * (random() % 750);
      layer.rotary.attention_factor = setting % 3 == 0 ? 1.0 : 0.5 + 0.001 * (random() % 1500);
      layer.rotary.pairs = random() % 2 == 0 ? RotaryPairs::halves : RotaryPairs::interleaved;
      shape.layers.push_back(layer);
    }
    MemoryConfig config = driver::small_config();
    config.n_local = 12 + static_cast<std::int64_t>(random() % 20);
    config.kv_dtype = DType::float32;
    if (setting % 2 == 0) config.refine = Refinement::modularity;
    if (setting % 4 == 1) config.contiguity = 0.3;
    const auto tokens = driver::random_tokens(shape, kTokens, 500 + random() % 100);
    const auto plain = kind.make(config, shape, DType::float32, kTokens);
    const auto turned_back = kind.make(config, shape, DType::float32, kTokens);
    HandOver how;
    INFO(kind.name << ", setting " << setting);
    for (int i = 0; plain->tokens() < kTokens; ++i) {
      const std::int64_t n = std::min<std::int64_t>(kTokens - plain->tokens(),
                                                    i % 3 == 2 ? 1 : 1 + random() % config.chunk);
      const Left want = step(kind, *plain, tokens, n, DType::float32);
      how.layout = static_cast<int>(random() % (kind.any_strides ? 3 : 2));
      how.q = setting % 3 != 1 ? Rotary::after : Rotary::before;
      how.k = setting % 3 != 2 ? Rotary::after : Rotary::before;
      if (i % 5 == 4) {  // a step that is begun anew, its first layer handed over otherwise
        turned_back->begin_step(n);
        REQUIRE(turned_back->open_tokens() == n);
      }
      const Left got = step(kind, *turned_back, tokens, n, DType::float32, how);
      for (const LaneRecall& lists : got.recall)
        recalled += static_cast<std::int64_t>(lists.similarity.size());
      REQUIRE(same_decisions(got, want));
      REQUIRE(worst(got.out, want.out) < 2e-5);
    }
    REQUIRE(plain->events().size() > 5);
    for (EventId e = 0; e < plain->events().size(); ++e) {
      const auto a = plain->representative(1, e), b = turned_back->representative(1, e);
      REQUIRE(worst({a}, {b}) < 1e-5);
    }
  }
  REQUIRE(recalled > 1000);
}

/// The first layers of a step, which is then given up: the memory can be edited, and goes on as one
/// that never began it.
inline void check_abandoning(const Kind& kind) {
  constexpr std::int64_t kTokens = 120;
  INFO(kind.name);
  const MemoryShape shape = shape_of(3, 2, 1, kind.dims.front(), kind.rotary_step);
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 8);
  const MemoryConfig config = driver::small_config();
  const auto plain = kind.make(config, shape, DType::float32, kTokens);
  const auto failing = kind.make(config, shape, DType::float32, kTokens);
  failing->abandon_step();  // none is open
  std::int64_t recalled = 0;
  for (std::int64_t i = 0; plain->tokens() < kTokens; ++i) {
    const std::int64_t n =
        std::min<std::int64_t>(kTokens - plain->tokens(), i % 3 == 2 ? 1 : config.chunk - i % 4);
    const Bytes zeros(element_bytes(DType::float32) *
                      static_cast<std::size_t>(n * shape.n_heads * shape.head_dim));
    const Array rows = kind.array(zeros), to = kind.array(zeros);
    const auto view = [&](std::int64_t heads) {
      return TensorView(rows.data.get(), DType::float32, {n, heads, shape.head_dim},
                        failing->memory_kind());
    };
    failing->begin_step(n);
    for (std::int64_t l = 0; l < i % (shape.n_layers + 1); ++l)
      failing->attend(l, view(shape.n_heads), view(shape.n_kv_heads), view(shape.n_kv_heads),
                      {to.data.get(),
                       DType::float32,
                       {n, shape.n_heads, shape.head_dim},
                       failing->memory_kind()});
    if (failing->events().size() > 4)
      REQUIRE(mentions(refusal<DataError>([&] { failing->forget(i % 4); }), "step"));
    failing->abandon_step();
    REQUIRE(failing->open_tokens() == 0);
    REQUIRE(failing->tokens() == plain->tokens());
    if (failing->events().size() > 4)
      for (SequenceMemory* memory : {failing.get(), plain.get()}) memory->forget(i % 4);
    const Left want = step(kind, *plain, tokens, n, DType::float32);
    const Left got = step(kind, *failing, tokens, n, DType::float32);
    for (const LaneRecall& lists : got.recall)
      recalled += static_cast<std::int64_t>(lists.similarity.size());
    REQUIRE(same_decisions(got, want));
    REQUIRE(got.out == want.out);
  }
  REQUIRE(plain->events().size() > 5);
  REQUIRE(recalled > 10);
}

/// Views that are refused, by name, whatever the kind; the step then goes on.
inline void check_refusals(const Kind& kind) {
  INFO(kind.name);
  MemoryShape shape = shape_of(1, 2, 1, kind.dims.front(), kind.rotary_step);
  const auto memory = kind.make(driver::small_config(), shape, DType::float32, 8);
  const MemoryKind where = memory->memory_kind();
  const TensorSizes wide{2, 2, shape.head_dim}, narrow{2, 1, shape.head_dim};
  const Array array = kind.array(Bytes(static_cast<std::size_t>(4 * 4 * shape.head_dim), 0));
  const Array to = kind.array(Bytes(static_cast<std::size_t>(4 * 4 * shape.head_dim), 0));
  const TensorView q(array.data.get(), DType::float32, wide, where);
  const TensorView k(array.data.get(), DType::float32, narrow, where);
  const MutableTensorView out(to.data.get(), DType::float32, wide, where);
  const auto refused = [&](const char* name, const char* says, auto change) {
    TensorView views[] = {q, k, k};
    MutableTensorView written = out;
    change(views, written);
    const std::string said =
        refusal<DataError>([&] { memory->attend(0, views[0], views[1], views[2], written); });
    INFO(said << " expected: " << says);
    REQUIRE(mentions(said, std::string("attend: ") + name + " "));
    REQUIRE(mentions(said, says));
  };
  using Views = TensorView(&)[3];
  using Written = MutableTensorView&;
  const MemoryKind other = where == MemoryKind::host ? MemoryKind::cuda : MemoryKind::host;
  memory->begin_step(2);
  refused("q", "memory, must lie in", [&](Views v, Written) { v[0].memory = other; });
  refused("out", "memory, must lie in", [&](Views, Written o) { o.memory = other; });
  refused("k", "must be [2, 1, ", [](Views v, Written) { v[1].sizes.heads = 2; });
  refused("v", "must be [2, 1, ", [](Views v, Written) { v[2].sizes.n = 1; });
  refused("q", "is null", [](Views v, Written) { v[0].data = nullptr; });
  refused("out", "is null", [](Views, Written o) { o.data = nullptr; });
  refused("k", "is fp8", [](Views v, Written) { v[1].dtype = DType::fp8; });
  refused("v", "must not be negative", [](Views v, Written) { v[2].strides.row = -8; });
  refused("q", "beyond all memory",
          [](Views v, Written) { v[0].strides.row = std::int64_t{1} << 62; });
  refused("out", "row stride 0", [](Views, Written o) { o.strides.row = 0; });
  if (!kind.turns_back) {
    refused("q", "before rotary embedding", [](Views v, Written) { v[0].rotary = Rotary::after; });
    refused("k", "before rotary embedding", [](Views v, Written) { v[1].rotary = Rotary::after; });
  }
  REQUIRE(memory->open_tokens() == 2);
  memory->attend(0, q, k, k, out);
  const auto* surprise = static_cast<const float*>(array.data.get());
  for (const SurpriseView& wrong :
       {SurpriseView{nullptr, 2, where}, SurpriseView{surprise, 3, where},
        SurpriseView{surprise, 2, other}})
    REQUIRE(mentions(refusal<DataError>([&] { memory->end_step(wrong); }), "end_step: surprise "));
  memory->end_step({surprise, 2, where});
  REQUIRE(memory->tokens() == 2);

  shape.layers = {LayerShape{}};  // turns nothing, and so nothing back
  const auto unturned = kind.make(driver::small_config(), shape, DType::float32, 8);
  unturned->begin_step(2);
  for (const bool keys : {false, true}) {
    const std::string said = refusal<DataError>([&] {
      unturned->attend(0, q.with(keys ? Rotary::before : Rotary::after),
                       k.with(keys ? Rotary::after : Rotary::before), k, out);
    });
    INFO(said);
    REQUIRE(mentions(said, keys ? "attend: k " : "attend: q "));
    REQUIRE(mentions(said, "rotary embedding"));
    if (kind.turns_back) REQUIRE(mentions(said, "no rotary table"));
  }
  unturned->attend(0, q, k, k, out);
}

}  // namespace sequence_kinds
