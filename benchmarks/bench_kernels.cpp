// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels, each beside its limit: a product of as many flops or a copy of as many bytes,
// measured on the same device in turn with it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <regex>

#include "flags.hpp"
#include "kernels/attention.hpp"
#include "kernels/codes.hpp"
#include "kernels/copies.hpp"
#include "kernels/limits.hpp"
#include "kernels/recall.hpp"
#include "kernels/refine.hpp"
#include "kernels/relevance.hpp"
#include "kernels/surprise.hpp"
#include "kernels/threshold.hpp"
#include "kernels/window.hpp"
#include "support/device.hpp"

namespace episodic::bench {
namespace {

using Json = nlohmann::json;

/// The large shape of benchmarks/README.md: an 8B model with the paper's settings.
struct Shape {
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128;
  std::int64_t n_init = 128, n_local = 4096, n_mem = 2048, chunk = 512, n_repr = 4;
  std::int64_t vocab = 128256, events = 31250, event_tokens = 32, refine_layers = 12;
  std::int64_t copies = 8192, copy_kib = 16;  ///< runs of copy_kib to 8 * copy_kib

  bool operator==(const Shape&) const = default;
};

struct Flags : Shape {
  int runs = 50, warm_up = 5, device = 0;
  std::string only, commit;
  bool plain_launches = false;
  std::filesystem::path json;

  Json to_json() const {
    return {{"heads", heads},
            {"kv_heads", kv_heads},
            {"head_dim", head_dim},
            {"n_init", n_init},
            {"n_local", n_local},
            {"n_mem", n_mem},
            {"chunk", chunk},
            {"n_repr", n_repr},
            {"vocab", vocab},
            {"events", events},
            {"event_tokens", event_tokens},
            {"refine_layers", refine_layers},
            {"copies", copies},
            {"copy_kib", copy_kib},
            {"runs", runs},
            {"warm_up", warm_up},
            {"early_launches", !plain_launches}};
  }
};

/// What issue 5 wants of a figure on an H200.
struct Aim {
  double least_fraction = 0;  ///< of the limit's rate
  double most_beyond = 0;     ///< seconds beyond the limit's
  double most = 0;            ///< seconds
};

/// What a figure stands beside.
struct Limit {
  std::string name;
  std::function<void()> run;
  double scale = 1;  ///< seconds of the limit = scale * seconds of `run`
};

struct Figure {
  std::string name;
  double flops = 0, bytes = 0;  ///< of the work: what is counted is said in `counted`
  std::string counted = {};
  Aim aim = {};
};

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags), only_(flags.only) {}

  DeviceClock& clock() { return clock_; }
  cudaStream_t stream() const { return clock_.stream(); }
  bool wanted(const std::string& name) const { return std::regex_search(name, only_); }

  Limit copy_of(double bytes) { return {"copy", clock_.copy(static_cast<std::int64_t>(bytes)), 1}; }
  Limit product_of(double flops) {
    const DeviceClock::Square square = clock_.square_product(flops);
    return {fmt::format("gemm {0}x{0}x{0}", square.side), square.run, flops / square.flops};
  }

  /// Measures `run` and its limit in turn, prints a line of the table and keeps the result.
  void measure(const Figure& figure, const std::function<void()>& run, const Limit& limit,
               const std::function<void()>& prepare = {}) {
    const auto seconds =
        clock_.in_turn({{run, prepare}, {limit.run, {}}}, flags_.runs, flags_.warm_up);
    const double own = median(seconds[0]), floor = limit.scale * median(seconds[1]);
    // the aims are those of the shape that is the default
    const Aim aim = static_cast<const Shape&>(flags_) == Shape() ? figure.aim : Aim();
    std::string wanted = "-";
    std::optional<bool> met;
    if (aim.least_fraction > 0) {
      wanted = fmt::format(">= {:.2f}", aim.least_fraction);
      met = floor / own >= aim.least_fraction;
    } else if (aim.most_beyond > 0) {
      wanted = fmt::format("<= {:.0f} us beyond", 1e6 * aim.most_beyond);
      met = own - floor <= aim.most_beyond;
    } else if (aim.most > 0) {
      wanted = fmt::format("<= {:.0f} us", 1e6 * aim.most);
      met = own <= aim.most;
    }
    const double rate = (figure.flops > 0 ? 1e-12 * figure.flops : 1e-9 * figure.bytes);
    std::printf(
        "%s\n",
        fmt::format("{:<34} {:>10.1f} {:>10.1f} {:>9.1f} {:<8} {:>10.1f} {:>8.2f}  {:<18} {}",
                    figure.name, 1e6 * own,
                    1e6 * *std::min_element(seconds[0].begin(), seconds[0].end()), rate / own,
                    figure.flops > 0 ? "TFLOP/s" : "GB/s", 1e6 * floor, floor / own, wanted,
                    met ? (*met ? "yes" : "NO") : "-")
            .c_str());
    std::fflush(stdout);
    Json result{{"name", figure.name},
                {"counted", figure.counted},
                {"seconds", summary(seconds[0])},
                {"limit", limit.name},
                {"limit_seconds", floor},
                {"limit_seconds_measured", summary(seconds[1])},
                {"limit_scale", limit.scale},
                {"fraction_of_limit", floor / own},
                {"seconds_beyond_limit", own - floor},
                {"aim", wanted}};
    if (figure.flops > 0) {
      result["flops"] = figure.flops;
      result["flops_per_second"] = figure.flops / own;
      result["limit_flops_per_second"] = figure.flops / floor;
    } else {
      result["bytes"] = figure.bytes;
      result["bytes_per_second"] = figure.bytes / own;
      result["limit_bytes_per_second"] = figure.bytes / floor;
    }
    if (met) result["aim_met"] = *met;
    results_.push_back(std::move(result));
  }

  const Json& results() const { return results_; }

 private:
  static Json summary(const std::vector<double>& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return {{"min", *low}, {"median", median(values)}, {"max", *high}};
  }

  const Flags& flags_;
  std::regex only_;
  DeviceClock clock_;
  Json results_ = Json::array();
};

/// One number in device memory.
template <class T>
DeviceArray<T> scalar(T value) {
  return DeviceArray<T>(std::vector<T>{value});
}

std::vector<float> noise(std::int64_t n, float low, float high) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = uniform(random);
  return x;
}

constexpr std::int64_t kPosition = 1000000;  ///< of the step's first token: far into a sequence

/// cos and sin [n, d / 2] of positions first .. first + n - 1.
class Angles {
 public:
  Angles(Bench& bench, std::int64_t n, std::int64_t first, std::int64_t head_dim)
      : cos_(n * head_dim / 2), sin_(n * head_dim / 2) {
    std::vector<double> inverse;
    for (std::int64_t c = 0; c < head_dim; c += 2)
      inverse.push_back(
          std::pow(500000.0, -static_cast<double>(c) / static_cast<double>(head_dim)));
    const DeviceArray<double> frequencies(inverse);
    const auto position = scalar(first);
    kernels::RotaryAnglesParams p;
    p.n = n;
    p.n_frequencies = head_dim / 2;
    p.first_position = position.data();
    p.inverse_frequency = frequencies.data();
    p.cos = cos_.data();
    p.sin = sin_.data();
    check(kernels::rotary_angles(p, bench.stream()), "rotary_angles");
    check(cudaStreamSynchronize(bench.stream()), "rotary_angles");
  }
  const float* cos() const { return cos_.data(); }
  const float* sin() const { return sin_.data(); }

 private:
  DeviceArray<float> cos_, sin_;
};

/// n queries over sinks, events that lie scattered, and a full window; bfloat16.
void attention(Bench& bench, const Flags& f, std::int64_t n) {
  const std::string name = n == 1 ? "attention, decode" : fmt::format("attention, {} queries", n);
  if (!bench.wanted(name)) return;
  const std::int64_t far = f.n_init + f.n_mem, capacity = f.n_local + n - 1,
                     width = f.heads * f.head_dim;
  const auto first = scalar(kPosition);
  const NormalArray q(n * width, DType::bfloat16);
  const NormalArray ring_key(f.kv_heads * capacity * f.head_dim, DType::bfloat16);
  const NormalArray ring_value(f.kv_heads * capacity * f.head_dim, DType::bfloat16);
  const NormalArray home(2 * f.kv_heads * std::max<std::int64_t>(1, far) * f.head_dim,
                         DType::bfloat16);
  const Angles own(bench, n, kPosition, f.head_dim), fixed(bench, 1, f.n_local - 1, f.head_dim);

  // Blocks as the store has them: keys [G, length, d], values behind them. The sinks are one more.
  struct Block {
    std::int64_t first, length;
  };
  std::vector<Block> blocks;
  if (f.n_init > 0) blocks.push_back({0, f.n_init});
  for (std::int64_t t = f.n_init; t < far; t += f.event_tokens)
    blocks.push_back({t, std::min(f.event_tokens, far - t)});
  std::vector<std::size_t> places(blocks.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::shuffle(places.begin(), places.end(), std::mt19937(3));
  std::vector<std::int64_t> starts(blocks.size());  // where each lies, in tokens
  std::int64_t used = 0;
  for (const std::size_t b : places) {
    starts[b] = used;
    used += blocks[b].length;
  }
  std::vector<kernels::KvRow> rows;
  for (std::size_t b = 0; b < blocks.size(); ++b)
    for (std::int64_t t = 0; t < blocks[b].length; ++t) {
      const std::int64_t size = f.kv_heads * blocks[b].length * f.head_dim;
      const auto* key = reinterpret_cast<const std::uint16_t*>(home.data()) +
                        2 * f.kv_heads * f.head_dim * starts[b] + t * f.head_dim;
      rows.push_back({key, key + size, blocks[b].first + t,
                      static_cast<std::int32_t>(blocks[b].length * f.head_dim), 1.0f});
    }
  const DeviceArray<kernels::KvRow> d_rows(rows);
  const auto n_rows = scalar(static_cast<std::int32_t>(far));
  const DeviceArray<std::uint16_t> out(n * width);
  const DeviceArray<float> columns(capacity * f.heads);

  kernels::AttentionParams p;
  p.dtype = DType::bfloat16;
  p.n_queries = n;
  p.n_heads = f.heads;
  p.n_kv_heads = f.kv_heads;
  p.head_dim = p.rotary_dim = f.head_dim;
  p.n_local = f.n_local;
  p.q = q.data();
  p.q_row_stride = width;
  p.first_position = first.data();
  p.query_cos = own.cos();
  p.query_sin = own.sin();
  p.fixed_cos = fixed.cos();
  p.fixed_sin = fixed.sin();
  p.rows = d_rows.data();
  p.n_rows = n_rows.data();
  p.max_rows = far;
  p.local_key = ring_key.data();
  p.local_value = ring_value.data();
  p.ring_capacity = capacity;
  p.ring_head_stride = capacity * f.head_dim;
  p.out = out.data();
  p.maybe_column_sums = columns.data();
  const DeviceArray<unsigned char> workspace(
      static_cast<std::int64_t>(kernels::attention_workspace_bytes(p)));
  p.workspace = workspace.data();
  p.workspace_bytes = static_cast<std::size_t>(workspace.size());
  const DeviceArray<std::uint32_t> arrived(
      std::vector<std::uint32_t>(kernels::kAttentionCounters * f.kv_heads, 0));
  p.maybe_arrived = arrived.data();

  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const auto run = [&] { check(kernels::segmented_attention(p, bench.stream()), "attention"); };
  for (const bool sums : {true, false}) {
    p.maybe_column_sums = sums ? columns.data() : nullptr;
    Figure figure{name + (sums ? ", column sums" : "")};
    if (n == 1) {
      figure.bytes = 4 * d(f.kv_heads * f.head_dim * (far + f.n_local));
      figure.counted = "keys and values of all tokens attended, once";
      bench.measure(figure, run, bench.copy_of(figure.bytes));
      continue;
    }
    figure.flops = 4 * d(n * width) * d(far + f.n_local);
    figure.counted =
        "4 n H d K, K = n_init + n_mem + n_local keys that each query sees; the second pass for "
        "column sums and masked pairs count nothing";
    if (sums) figure.aim.least_fraction = 0.5;
    bench.measure(figure, run, bench.product_of(figure.flops));
  }
  if (n == 1) return;

  // The two products of that shape by cuBLAS, scores written out and no softmax: what a plain
  // implementation pays at least.
  const std::int64_t queries = n * f.heads / f.kv_heads, keys = far + f.n_local;
  const NormalArray key(keys * f.head_dim, DType::bfloat16);
  const DeviceArray<std::uint16_t> scores(queries * keys), head_out(queries * f.head_dim);
  Figure figure{"its two products by cuBLAS"};
  figure.flops = 4 * d(n * width) * d(keys);
  figure.counted =
      "4 n H d K; for each kv head one product [n H / G, d] [d, K] and one [.., K] [K, d]";
  bench.measure(
      figure,
      [&] {
        for (std::int64_t g = 0; g < f.kv_heads; ++g) {
          bench.clock().multiply(queries, keys, f.head_dim, q.data(), key.data(), scores.data());
          bench.clock().multiply(queries, f.head_dim, keys, scores.data(), key.data(),
                                 head_out.data());
        }
      },
      bench.product_of(figure.flops));
}

void surprise(Bench& bench, const Flags& f, DType dtype) {
  const std::string name = fmt::format("surprise, {}", name_of(dtype));
  if (!bench.wanted(name)) return;
  const NormalArray logits(f.chunk * f.vocab, dtype);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < f.chunk; ++i) ids.push_back(i * 7919 % f.vocab);
  const DeviceArray<std::int64_t> targets(ids);
  const DeviceArray<float> out(f.chunk);
  kernels::SurpriseParams p;
  p.logits = logits.data();
  p.dtype = dtype;
  p.n = f.chunk;
  p.vocab = p.row_stride = f.vocab;
  p.targets = targets.data();
  p.surprise = out.data();
  Figure figure{name};
  figure.bytes = static_cast<double>(f.chunk * f.vocab * size_of(dtype));
  figure.counted = "the logits once";
  figure.aim.least_fraction = 0.7;
  bench.measure(
      figure, [&] { check(kernels::token_surprise(p, bench.stream()), "surprise"); },
      bench.copy_of(figure.bytes));
}

/// The first surprise of a step: one row, which several blocks share.
void surprise_of_token(Bench& bench, const Flags& f) {
  const std::string name = "surprise, decode";
  if (!bench.wanted(name)) return;
  const NormalArray logits(f.vocab, DType::float32);
  const DeviceArray<std::int64_t> target(std::vector<std::int64_t>{f.vocab / 2});
  const DeviceArray<float> out(1);
  const DeviceArray<kernels::OnlineSoftmax> parts(kernels::kSurpriseParts);
  const auto arrived = scalar(std::uint32_t{0});
  kernels::SurpriseParams p;
  p.logits = logits.data();
  p.n = 1;
  p.vocab = p.row_stride = f.vocab;
  p.targets = target.data();
  p.surprise = out.data();
  p.maybe_parts = parts.data();
  p.maybe_arrived = arrived.data();
  Figure figure{name};
  figure.bytes = static_cast<double>(f.vocab * 4);
  figure.counted = "the logits once; so few that the limit is a launch";
  bench.measure(
      figure, [&] { check(kernels::token_surprise(p, bench.stream()), "surprise"); },
      bench.copy_of(figure.bytes));
}

void threshold(Bench& bench, const Flags& f, std::int64_t n) {
  const std::string name = n == 1 ? "threshold, decode" : fmt::format("threshold, {} tokens", n);
  if (!bench.wanted(name)) return;
  kernels::TimelineState initial = kernels::initial_timeline(f.n_init);
  initial.tokens = kPosition;
  const auto state = scalar(initial);
  const DeviceArray<float> values(noise(n, 0, 4)), recent(noise(f.n_local + n, 0, 4)), out(n);
  const DeviceArray<std::uint8_t> raw(n);
  kernels::ThresholdParams p;
  p.tau = f.n_local;
  p.n_init = f.n_init;
  p.n = n;
  p.state = state.data();
  p.surprise = values.data();
  p.recent = recent.data();
  p.recent_capacity = recent.size();
  p.threshold = out.data();
  p.raw = raw.data();
  Figure figure{name};
  figure.bytes = static_cast<double>(4 * (f.n_local + 3 * n) + n);
  figure.counted = "the window and the step's values once; so few that the limit is a launch";
  bench.measure(
      figure, [&] { check(kernels::surprise_threshold(p, bench.stream()), "threshold"); },
      bench.copy_of(figure.bytes));
}

/// Modularity over the previous step and this one, whole.
void refinement(Bench& bench, const Flags& f) {
  const std::string name = fmt::format("refinement, {0}+{0}, {1} layers", f.chunk, f.refine_layers);
  if (!bench.wanted(name)) return;
  const std::int64_t capacity = 2 * f.chunk, n_flags = 4 * f.chunk;
  kernels::TimelineState initial = kernels::initial_timeline(f.n_init);
  initial.tokens = f.n_init + 4 * f.chunk;
  initial.last_boundary = initial.last_in_previous = initial.tokens - f.chunk;
  const auto before = scalar(initial), state = scalar(initial);
  std::vector<std::uint8_t> flagged;
  for (std::int64_t i = 0; i < f.chunk; ++i) flagged.push_back(i % 30 == 15);  // an event of 30
  const DeviceArray<std::uint8_t> raw(flagged), flags(n_flags);
  check(cudaMemset(flags.data(), 0, static_cast<std::size_t>(n_flags)), "flags");
  const std::int64_t per_layer = f.kv_heads * capacity * f.head_dim;
  const NormalArray keys(f.refine_layers * per_layer, DType::bfloat16);
  std::vector<const void*> pointers;
  for (std::int64_t layer = 0; layer < f.refine_layers; ++layer)
    pointers.push_back(keys.data() + 2 * layer * per_layer);
  const DeviceArray<const void*> d_pointers(pointers);
  kernels::RefineParams p;
  p.objective = kernels::RefineObjective::modularity;
  p.n_init = f.n_init;
  p.min_block = 8;
  p.n = p.max_previous = f.chunk;
  p.state = state.data();
  p.raw = raw.data();
  p.flags = flags.data();
  p.flag_capacity = n_flags;
  p.dtype = DType::bfloat16;
  p.n_layers = f.refine_layers;
  p.n_kv_heads = f.kv_heads;
  p.head_dim = f.head_dim;
  p.keys = d_pointers.data();
  p.key_capacity = capacity;
  p.key_head_stride = capacity * f.head_dim;
  p.key_row_stride = f.head_dim;
  const DeviceArray<unsigned char> workspace(
      static_cast<std::int64_t>(kernels::refine_workspace_bytes(p)));
  p.workspace = workspace.data();
  p.workspace_bytes = static_cast<std::size_t>(workspace.size());
  Figure figure{name};
  figure.flops = static_cast<double>(capacity * capacity) *
                 static_cast<double>(f.refine_layers * f.kv_heads * f.head_dim);
  figure.counted = "the upper triangle of the graph: M^2 L G d, M tokens at hand";
  // 2 % of a chunk at the prefill rate that is aimed at, 20,000 tokens/s
  figure.aim.most = 0.02 * static_cast<double>(f.chunk) / 20000;
  bench.measure(
      figure, [&] { check(kernels::refine_boundaries(p, bench.stream()), "refinement"); },
      bench.product_of(figure.flops),
      [&] {
        check(cudaMemcpyAsync(state.data(), before.data(), sizeof initial, cudaMemcpyDeviceToDevice,
                              bench.stream()),
              "the state");
      });
}

void recall(Bench& bench, const Flags& f, bool by_codes, DType dtype) {
  const std::string name = fmt::format("recall{}, {} events{}", by_codes ? " by codes" : "",
                                       f.events, dtype == DType::float32 ? ", float32" : "");
  if (!bench.wanted(name)) return;
  const std::int64_t width = f.heads * f.head_dim;
  std::vector<kernels::EventRange> ranges;
  for (std::int64_t e = 0; e < f.events; ++e)
    ranges.push_back({f.n_init + e * f.event_tokens, f.n_init + (e + 1) * f.event_tokens});
  const DeviceArray<kernels::EventRange> events(ranges);
  const NormalArray representatives(f.events * width, dtype);
  const NormalArray query(width, DType::float32);
  const auto n_events = scalar(f.events), tokens = scalar(ranges.back().end + f.n_local);
  kernels::RecallParams p;
  p.n_events = n_events.data();
  p.events = events.data();
  p.max_events = f.events;
  p.n_init = f.n_init;
  p.tokens = tokens.data();
  p.n = f.chunk;
  p.representatives = representatives.data();
  p.dtype = dtype;
  p.width = width;
  p.query = reinterpret_cast<const float*>(query.data());
  const std::int64_t rows_with_codes = by_codes ? f.events : 0;
  const DeviceArray<std::int8_t> codes(rows_with_codes * kernels::code_stride(width));
  const DeviceArray<float> code_bounds(rows_with_codes * kernels::code_floats(width));
  const DeviceArray<kernels::CodeLayer> code_layer(
      std::vector<kernels::CodeLayer>{{representatives.data(), codes.data(), code_bounds.data()}});
  const auto none = scalar(std::int64_t{0});
  const auto all = scalar(static_cast<std::int32_t>(f.events));
  if (by_codes) {
    p.codes_from = 1;
    p.codes = codes.data();
    p.code_bounds = code_bounds.data();
    kernels::CodeParams encode;
    encode.events = {nullptr, nullptr, all.data(), none.data(), f.events};
    encode.dtype = p.dtype;
    encode.width = width;
    encode.capacity = f.events;
    encode.layers = code_layer.data();
    encode.n_layers = 1;
    check(kernels::encode_representatives(encode, bench.stream()), "codes");
  }
  p.n_local = f.n_local;
  p.n_mem = f.n_mem;
  p.chunk = f.chunk;
  p.min_block = std::min<std::int64_t>(8, f.event_tokens);
  p.contiguity = 0.3;
  const DeviceArray<kernels::DeviceEventId> similarity(kernels::recall_room(p)),
      queue(similarity.size()), recalled(similarity.size());
  const DeviceArray<std::int32_t> sizes(std::vector<std::int32_t>(3, 0));
  p.queue = p.contiguity_list = queue.data();
  p.queue_size = sizes.data() + 1;
  p.similarity = similarity.data();
  p.recalled = recalled.data();
  p.sizes = sizes.data();
  const DeviceArray<unsigned char> workspace(
      static_cast<std::int64_t>(kernels::recall_workspace_bytes(p)));
  const DeviceArray<std::uint32_t> arrived(std::vector<std::uint32_t>(1, 0));
  const DeviceArray<unsigned long long> histogram(
      std::vector<unsigned long long>(rules::kScoreBins, 0));
  const DeviceArray<rules::ScoreCentre> centre(std::vector<rules::ScoreCentre>(1));
  p.arrived = arrived.data();
  p.histogram = histogram.data();
  p.centre = centre.data();
  p.workspace = workspace.data();
  p.workspace_bytes = static_cast<std::size_t>(workspace.size());
  Figure figure{name};
  figure.bytes = static_cast<double>(
      f.events * (by_codes ? kernels::code_bytes(width) : width * size_of(dtype)));
  figure.counted = by_codes ? "the codes once" : "the representatives once";
  figure.aim.most_beyond = 15e-6;
  bench.measure(
      figure, [&] { check(kernels::recall_events(p, bench.stream()), "recall"); },
      bench.copy_of(figure.bytes));
}

/// The events that a chunk closes: their relevance, representatives and blocks.
void closing(Bench& bench, const Flags& f) {
  const std::int64_t n = f.chunk, capacity = f.n_local + n - 1, width = f.heads * f.head_dim;
  const std::int64_t count = std::max<std::int64_t>(1, n / f.event_tokens);
  const NormalArray ring_key(f.kv_heads * capacity * f.head_dim, DType::bfloat16);
  const NormalArray ring_value(f.kv_heads * capacity * f.head_dim, DType::bfloat16);
  const DeviceArray<float> columns(noise(capacity * f.heads, 0, 1)),
      relevance(noise(capacity * f.heads, 0, 1));
  const std::int64_t first = kPosition + n - count * f.event_tokens;
  std::vector<std::int64_t> starts, ends;
  for (std::int64_t e = 0; e < count; ++e) {
    starts.push_back(first + e * f.event_tokens);
    ends.push_back(starts.back() + f.event_tokens);
  }
  const DeviceArray<std::int64_t> d_starts(starts), d_ends(ends);
  const auto position = scalar(kPosition), first_id = scalar(std::int64_t{0});
  const auto d_count = scalar(static_cast<std::int32_t>(count)), full = scalar(std::int32_t{0});
  kernels::ClosedEvents events;
  events.start = d_starts.data();
  events.end = d_ends.data();
  events.count = d_count.data();
  events.first_id = first_id.data();
  events.max_count = count;

  if (bench.wanted("relevance")) {
    kernels::RelevanceParams p;
    p.n = n;
    p.n_heads = f.heads;
    p.n_local = f.n_local;
    p.first_position = position.data();
    p.capacity = capacity;
    const auto layer = scalar(kernels::RelevanceLayer{columns.data(), relevance.data()});
    p.layers = layer.data();
    p.n_layers = 1;
    Figure figure{"relevance"};
    figure.bytes = static_cast<double>(3 * capacity * f.heads * 4);
    figure.counted = "column sums read, relevance read and written";
    bench.measure(
        figure, [&] { check(kernels::commit_relevance(p, bench.stream()), "relevance"); },
        bench.copy_of(figure.bytes));
  }
  if (bench.wanted("representatives")) {
    const DeviceArray<std::uint16_t> mean(count * width);
    kernels::RepresentativeParams p;
    p.events = events;
    p.n_heads = f.heads;
    p.n_kv_heads = f.kv_heads;
    p.head_dim = f.head_dim;
    p.n_repr = f.n_repr;
    p.ring_capacity = capacity;
    p.ring_head_stride = capacity * f.head_dim;
    p.repr_dtype = DType::bfloat16;
    p.capacity = count;
    const auto layer = scalar(
        kernels::RepresentativeLayer{ring_key.data(), relevance.data(), mean.data(), nullptr});
    p.layers = layer.data();
    p.n_layers = 1;
    p.full = full.data();
    Figure figure{"representatives"};
    figure.bytes = static_cast<double>(4 * count * f.event_tokens * f.heads +
                                       2 * count * width * (f.n_repr + 1));
    figure.counted =
        "relevance of the events' tokens, n_repr keys of each event read, one row written";
    bench.measure(
        figure,
        [&] { check(kernels::select_representatives(p, bench.stream()), "representatives"); },
        bench.copy_of(figure.bytes));
  }
  if (bench.wanted("events to blocks")) {
    const std::int64_t block = 2 * f.kv_heads * f.event_tokens * f.head_dim;
    const DeviceArray<std::uint16_t> home(count * block);
    std::vector<void*> blocks;
    for (std::int64_t e = 0; e < count; ++e) blocks.push_back(home.data() + e * block);
    const DeviceArray<void*> d_blocks(blocks);
    kernels::EventBlockParams p;
    p.events = events;
    p.n_kv_heads = f.kv_heads;
    p.head_dim = f.head_dim;
    const auto layer = scalar(kernels::EventBlockLayer{ring_key.data(), ring_value.data()});
    p.layers = layer.data();
    p.n_layers = 1;
    p.ring_capacity = capacity;
    p.ring_head_stride = capacity * f.head_dim;
    p.block = d_blocks.data();
    Figure figure{"events to blocks"};
    figure.bytes = static_cast<double>(4 * count * block);
    figure.counted = "keys and values of the events read and written";
    bench.measure(
        figure, [&] { check(kernels::event_to_block(p, bench.stream()), "blocks"); },
        bench.copy_of(figure.bytes));
  }
}

void append(Bench& bench, const Flags& f) {
  const std::string name = fmt::format("append, {} tokens", f.chunk);
  if (!bench.wanted(name)) return;
  const std::int64_t n = f.chunk, capacity = f.n_local + n - 1, row = f.kv_heads * f.head_dim;
  const NormalArray k(n * row, DType::bfloat16), v(n * row, DType::bfloat16);
  const DeviceArray<std::uint16_t> key(capacity * row), rotated(capacity * row),
      value(capacity * row);
  const DeviceArray<std::uint16_t> sink_key(f.n_init * row), sink_value(f.n_init * row);
  const Angles angles(bench, n, kPosition, f.head_dim);
  const auto position = scalar(kPosition);
  kernels::AppendParams p;
  p.n = n;
  p.n_kv_heads = f.kv_heads;
  p.head_dim = p.rotary_dim = f.head_dim;
  p.first_position = position.data();
  p.k = k.data();
  p.v = v.data();
  p.k_row_stride = p.v_row_stride = row;
  p.cos = angles.cos();
  p.sin = angles.sin();
  p.ring_key = key.data();
  p.ring_rotated_key = rotated.data();
  p.ring_value = value.data();
  p.ring_capacity = capacity;
  p.ring_head_stride = capacity * f.head_dim;
  p.sink_key = sink_key.data();
  p.sink_value = sink_value.data();
  p.n_init = f.n_init;
  Figure figure{name};
  figure.bytes = static_cast<double>(5 * n * row * 2 + n * f.head_dim * 4);
  figure.counted = "keys and values read, the three rings written, the angles";
  bench.measure(
      figure, [&] { check(kernels::append_window(p, bench.stream()), "append"); },
      bench.copy_of(figure.bytes));
}

/// Page-locked host memory.
class Pinned {
 public:
  explicit Pinned(std::int64_t bytes) {
    check(cudaHostAlloc(&data_, static_cast<std::size_t>(bytes), cudaHostAllocDefault),
          "pinned host memory");
    std::memset(data_, 1, static_cast<std::size_t>(bytes));
  }
  ~Pinned() { static_cast<void>(cudaFreeHost(data_)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }

 private:
  void* data_ = nullptr;
};

/// A gather of many runs from scattered places, within the device and from pinned host memory.
void copies(Bench& bench, const Flags& f) {
  if (!bench.wanted("gather")) return;
  std::mt19937_64 random(5);
  std::vector<std::int64_t> lengths;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < f.copies; ++i) {
    // a multiple of 256 bytes: a key or value row of d = 128 in bfloat16
    const std::int64_t steps = f.copy_kib * 4;
    lengths.push_back(256 * (steps + static_cast<std::int64_t>(
                                         random() % static_cast<std::uint64_t>(7 * steps + 1))));
    total += lengths.back();
  }
  std::vector<std::size_t> order(lengths.size());  // in which they lie at their source
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::int64_t> places(lengths.size());
  std::int64_t used = 0;
  for (const std::size_t i : order) {
    places[i] = used;
    used += lengths[i];
  }
  const DeviceArray<unsigned char> to(total);
  const auto count = scalar(static_cast<std::int32_t>(f.copies));
  const auto gather = [&](const std::string& where, const unsigned char* from, cudaMemcpyKind kind,
                          bool batched, double counted) {
    std::vector<kernels::CopyRun> runs;
    std::vector<void*> destinations;
    std::vector<const void*> sources;
    std::vector<std::size_t> bytes;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      runs.push_back({from + places[i], to.data() + at, lengths[i]});
      sources.push_back(runs.back().from);
      destinations.push_back(runs.back().to);
      bytes.push_back(static_cast<std::size_t>(lengths[i]));
      at += lengths[i];
    }
    const DeviceArray<kernels::CopyRun> d_runs(runs);
    kernels::CopyRunsParams p;
    p.runs = d_runs.data();
    p.count = count.data();
    p.max_runs = f.copies;
    Figure figure{fmt::format("gather, {}{}", where, batched ? ", copy engines" : "")};
    figure.bytes = counted * static_cast<double>(total);
    figure.counted = counted == 2 ? "every byte read and written" : "every byte over the link once";
    figure.aim.least_fraction = 0.85;
    bench.measure(figure,
                  [&] {
                    check(batched ? kernels::copy_batch(destinations.data(), sources.data(),
                                                        bytes.data(), bytes.size(), bench.stream())
                                  : kernels::copy_runs(p, bench.stream()),
                          "a gather");
                  },
                  {"one cudaMemcpyAsync", [&, kind] {
                     check(cudaMemcpyAsync(to.data(), from, static_cast<std::size_t>(total), kind,
                                           bench.stream()),
                           "a copy");
                   }});
  };
  {
    const NormalArray from(total / 2 + 1, DType::bfloat16);
    gather("device", from.data(), cudaMemcpyDeviceToDevice, false, 2);
  }
  const Pinned from(total);
  gather("pinned host", from.data(), cudaMemcpyHostToDevice, false, 1);
  gather("pinned host", from.data(), cudaMemcpyHostToDevice, true, 1);
}

void run(const Flags& flags) {
  use_device(flags.device);
  if (flags.plain_launches) kernels::set_early_launches(false);
  Json document{{"program", "bench_kernels"},
                {"environment", device_environment(flags.commit)},
                {"flags", flags.to_json()}};
  const Json& env = document["environment"];
  std::printf(
      "%s\n",
      fmt::format("{}, compute capability {}, CUDA {} on driver for {}, commit {}, {}",
                  env["device"].get<std::string>(), env["compute_capability"].get<std::string>(),
                  env["toolkit"].get<std::string>(), env["driver_cuda"].get<std::string>(),
                  env["commit"].get<std::string>(), env["date"].get<std::string>())
          .c_str());
  std::printf("%s\n",
              fmt::format("{:<34} {:>10} {:>10} {:>18} {:>10} {:>8}  {:<18} {}", "figure",
                          "median us", "min us", "rate", "limit us", "fraction", "aim", "met")
                  .c_str());
  Bench bench(flags);
  // Written as it goes: a run that is broken off keeps what it has.
  const auto save = [&] {
    document["results"] = bench.results();
    if (flags.json.empty()) return;
    std::ofstream out(flags.json);
    out << document.dump(1) << '\n';
    if (!out.flush())
      throw std::runtime_error(fmt::format("{}: cannot be written", flags.json.string()));
  };
  save();
  const std::function<void()> figures[] = {
      [&] { attention(bench, flags, flags.chunk); },
      [&] { attention(bench, flags, 1); },
      [&] { surprise(bench, flags, DType::float32); },
      [&] { surprise(bench, flags, DType::bfloat16); },
      [&] { surprise_of_token(bench, flags); },
      [&] { threshold(bench, flags, flags.chunk); },
      [&] { threshold(bench, flags, 1); },
      [&] { refinement(bench, flags); },
      [&] { recall(bench, flags, false, DType::bfloat16); },
      [&] { recall(bench, flags, true, DType::bfloat16); },
      [&] { recall(bench, flags, false, DType::float32); },
      [&] { recall(bench, flags, true, DType::float32); },
      [&] { closing(bench, flags); },
      [&] { append(bench, flags); },
      [&] { copies(bench, flags); },
  };
  for (const auto& figure : figures) {
    figure();
    save();
  }
  if (bench.results().empty())
    throw std::runtime_error(fmt::format("--only {}: no figure has such a name", flags.only));
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic::bench;
  using episodic::tools::UsageError;
  episodic::tools::CommandLine app{
      "The CUDA kernels on a device, each beside its limit measured in turn", "bench_kernels"};
  app.footer(
      "Example:\n  bench_kernels --json out.json\n  bench_kernels --only 'attention|surprise' "
      "--runs 200\n\nExit codes: 0 measured, 1 no device or an error (one line on stderr), 2 wrong "
      "usage.");
  Flags flags;
  const auto add = [&](const char* name, std::int64_t& value, const char* text, std::int64_t least,
                       std::int64_t most) {
    app.option(name, value, text).between(least, most).shows_default();
  };
  add("--heads", flags.heads, "Query heads H", 1, 1024);
  add("--kv-heads", flags.kv_heads, "Key and value heads G, a divisor of H", 1, 1024);
  add("--head-dim", flags.head_dim, "d, a multiple of 16", 16, 256);
  add("--n-init", flags.n_init, "Sink tokens", 1, 1 << 20);
  add("--n-local", flags.n_local, "Local window", 1, 1 << 20);
  add("--n-mem", flags.n_mem, "Tokens of recalled events", 0, 1 << 20);
  add("--chunk", flags.chunk, "Tokens of a step", 2, 1 << 14);
  add("--n-repr", flags.n_repr, "Representatives of an event and head", 1, 1024);
  add("--vocab", flags.vocab, "Logits of a row", 2, 1 << 20);
  add("--events", flags.events, "Closed events that recall looks at", 1, 1 << 22);
  add("--event-tokens", flags.event_tokens, "Tokens of an event", 1, 1024);
  add("--refine-layers", flags.refine_layers, "Layers in refinement's graph", 1, 256);
  add("--copies", flags.copies, "Runs of the gather", 1, 1 << 20);
  add("--copy-kib", flags.copy_kib, "The shortest of them, in KiB; the longest has 8 times that", 1,
      1 << 14);
  app.option("--runs", flags.runs, "Timed runs of each figure").between(1, 100000).shows_default();
  app.option("--warm-up", flags.warm_up, "Runs before them").between(0, 100000).shows_default();
  app.flag("--plain-launches", flags.plain_launches,
           "No launch begins before the one before it has ended");
  app.option("--only", flags.only, "Only figures whose name matches this regular expression");
  app.option("--device", flags.device, "Number of the device").not_negative();
  app.option("--commit", flags.commit,
             "Commit to name in the result (default: EPISODIC_COMMIT, else the build's)");
  app.option("--json", flags.json, "Result file");
  try {
    if (!app.parse(argc, argv)) return 0;
    if (flags.heads % flags.kv_heads != 0) throw UsageError("--kv-heads: must divide --heads");
    if (flags.head_dim % 16 != 0) throw UsageError("--head-dim: must be a multiple of 16");
    if (flags.event_tokens > flags.chunk)
      throw UsageError("--event-tokens: must not be more than --chunk");
    try {
      static_cast<void>(std::regex(flags.only));
    } catch (const std::regex_error& e) {
      throw UsageError(std::string("--only: ") + e.what());
    }
    run(flags);
  } catch (const UsageError& e) {
    return app.refuse(e);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_kernels: %s\n", e.what());
    return 1;
  }
  return 0;
}
