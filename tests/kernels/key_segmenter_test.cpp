// SPDX-License-Identifier: Apache-2.0
#include "kernels/key_segmenter.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "episodic/model/safetensors.hpp"
#include "kernels/close_events.hpp"
#include "kernels/device.hpp"
#include "kernels/refine.hpp"
#include "support/refine_reference.hpp"
#include "support/same_bits.hpp"
#include "support/shared.hpp"

namespace key_segmenter_test {

using episodic::DType;
using episodic::kernels::initial_key_segmenter;
using episodic::kernels::initial_timeline;
using episodic::kernels::key_segmenter_workspace_bytes;
using episodic::kernels::KeySegmenterParams;
using episodic::kernels::KeySegmenterState;
using episodic::kernels::KeySignal;
using episodic::kernels::segment_by_keys;
using episodic::kernels::TimelineState;
using episodic_test::DeviceArray;
using episodic_test::KeyStream;

constexpr KeySignal kSignals[] = {KeySignal::similarity, KeySignal::gaussian};

struct Settings {
  KeySignal signal = KeySignal::similarity;
  bool per_head = false;
  double gamma = 1.0;
  std::int64_t min_count = 1;
  double var_floor = 0.05;
  std::int64_t n_init = 0;
};

/// Of every timeline, one after the other.
struct Result {
  std::vector<std::uint8_t> raw;
  std::vector<float> signal, threshold;
};

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// HEM 2.2, 2.3 with the moments computed anew for each key from the event's list of keys.
/// \param heads the timeline's (layer, head)s
void reference_timeline(const Settings& settings, const KeyStream& s,
                        const std::vector<std::pair<std::int64_t, std::int64_t>>& heads,
                        Result& out) {
  const auto n = static_cast<std::int64_t>(s.raw.size());
  std::int64_t start = settings.n_init;
  std::vector<double> recorded;
  for (std::int64_t t = 0; t < n; ++t) {
    double value = std::numeric_limits<double>::quiet_NaN(), threshold = value;
    bool cut = false;
    if (t > start && t - start >= settings.min_count) {
      value = 0.0;
      for (const auto& [layer, head] : heads)
        for (std::int64_t c = 0; c < s.d; ++c) {
          const auto key = [&](std::int64_t i) {
            return static_cast<double>(
                s.all[index(layer)][index((i * s.n_heads + head) * s.d + c)]);
          };
          double mean = 0.0, variance = 0.0;
          for (std::int64_t i = start; i < t; ++i) mean += key(i) / static_cast<double>(t - start);
          for (std::int64_t i = start; i < t; ++i)
            variance += (key(i) - mean) * (key(i) - mean) / static_cast<double>(t - start);
          variance = std::max(variance, settings.var_floor);
          const double diff = key(t) - mean;
          value +=
              settings.signal == KeySignal::similarity
                  ? mean * key(t)
                  : -0.5 * (std::log(2.0 * std::acos(-1.0) * variance) + diff * diff / variance);
        }
      value /= static_cast<double>(heads.size());
      if (recorded.size() >= 2) {
        const auto count = static_cast<double>(recorded.size());
        double mean = 0.0, squares = 0.0;
        for (const double x : recorded) mean += x / count;
        for (const double x : recorded) squares += (x - mean) * (x - mean);
        threshold = mean - settings.gamma * std::sqrt(squares / (count - 1.0));
        cut = value < threshold;
      }
      if (cut)
        start = t, recorded.clear();
      else
        recorded.push_back(value);
    }
    out.raw.push_back(cut);
    out.signal.push_back(static_cast<float>(value));
    out.threshold.push_back(static_cast<float>(threshold));
  }
}

Result reference(const Settings& settings, const KeyStream& s) {
  Result out;
  std::vector<std::pair<std::int64_t, std::int64_t>> all;
  for (std::int64_t layer = 0; layer < s.n_layers; ++layer)
    for (std::int64_t head = 0; head < s.n_heads; ++head) all.emplace_back(layer, head);
  if (!settings.per_head) reference_timeline(settings, s, all, out);
  for (std::size_t i = 0; settings.per_head && i < all.size(); ++i)
    reference_timeline(settings, s, {all[i]}, out);
  return out;
}

/// The sequence in these steps, with rings that hold one step's keys and NaN elsewhere.
Result run(const Settings& settings, const KeyStream& s, DType dtype,
           const std::vector<std::int64_t>& steps) {
  const auto n_tokens = static_cast<std::int64_t>(s.raw.size());
  const std::int64_t timelines = settings.per_head ? s.n_layers * s.n_heads : 1;
  const std::int64_t capacity = *std::max_element(steps.begin(), steps.end()) + 3;
  const std::int64_t pitch = s.d + 1;
  std::vector<TimelineState> states(index(timelines), initial_timeline(settings.n_init));
  const DeviceArray<KeySegmenterState> segmenter(
      std::vector<KeySegmenterState>(index(timelines), initial_key_segmenter(settings.n_init)));
  const std::size_t moments = index(s.n_layers * s.n_heads * s.d);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const DeviceArray<double> mean(std::vector<double>(moments, nan)),
      variance(std::vector<double>(moments, nan));
  Result out;
  out.raw.resize(index(timelines * n_tokens), 9);
  out.signal.resize(out.raw.size());
  out.threshold.resize(out.raw.size());
  for (const std::int64_t n : steps) {
    const std::int64_t first = states[0].tokens;
    std::vector<std::unique_ptr<DeviceArray<unsigned char>>> rings;
    std::vector<const void*> pointers;
    for (std::int64_t layer = 0; layer < s.n_layers; ++layer) {
      std::vector<float> ring(index(s.n_heads * capacity * pitch),
                              std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t t = first; t < first + n; ++t)
        for (std::int64_t h = 0; h < s.n_heads; ++h)
          std::copy_n(s.all[index(layer)].data() + (t * s.n_heads + h) * s.d, s.d,
                      ring.data() + (h * capacity + t % capacity) * pitch);
      rings.push_back(
          std::make_unique<DeviceArray<unsigned char>>(episodic_test::stored(ring, dtype)));
      pointers.push_back(rings.back()->data());
    }
    const DeviceArray<const void*> keys(pointers);
    const DeviceArray<TimelineState> state(states);
    const DeviceArray<std::uint8_t> raw(index(timelines * n));
    const DeviceArray<float> signal(raw.size()), threshold(raw.size());
    KeySegmenterParams p;
    p.signal = settings.signal;
    p.per_head = settings.per_head;
    p.gamma = settings.gamma;
    p.min_count = settings.min_count;
    p.var_floor = settings.var_floor;
    p.n = n;
    p.state = state.data();
    p.segmenter = segmenter.data();
    p.mean = mean.data();
    p.variance = variance.data();
    p.dtype = dtype;
    p.n_layers = s.n_layers;
    p.n_kv_heads = s.n_heads;
    p.head_dim = s.d;
    p.keys = keys.data();
    p.key_capacity = capacity;
    p.key_head_stride = capacity * pitch;
    p.key_row_stride = pitch;
    p.raw = raw.data();
    p.maybe_signal = signal.data();
    p.maybe_threshold = threshold.data();
    const DeviceArray<unsigned char> workspace(key_segmenter_workspace_bytes(p));
    p.workspace = workspace.data();
    p.workspace_bytes = workspace.size();
    REQUIRE(segment_by_keys(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const std::vector<std::uint8_t> flags = raw.host();
    const std::vector<float> signals = signal.host(), thresholds = threshold.host();
    for (std::int64_t u = 0; u < timelines; ++u)
      for (std::int64_t i = 0; i < n; ++i) {
        out.raw[index(u * n_tokens + first + i)] = flags[index(u * n + i)];
        out.signal[index(u * n_tokens + first + i)] = signals[index(u * n + i)];
        out.threshold[index(u * n_tokens + first + i)] = thresholds[index(u * n + i)];
      }
    for (const KeySegmenterState& after : segmenter.host())
      REQUIRE(after.next == std::max(first + n, settings.n_init));
    for (TimelineState& one : states) one.tokens += n;  // as close_events would
  }
  return out;
}

bool near(float got, float expected, double tolerance, double size) {
  if (std::isnan(expected)) return std::isnan(got);
  return std::abs(static_cast<double>(got) - static_cast<double>(expected)) <= tolerance * size;
}

using episodic_test::same_bits;

/// \return number of cuts
int compare(const Settings& settings, const KeyStream& s, DType dtype,
            const std::vector<std::int64_t>& steps) {
  const Result expected = reference(settings, s);
  std::vector<Result> results;
  episodic_test::in_every_order([&] { results.push_back(run(settings, s, dtype, steps)); });
  int cuts = 0;
  for (const Result& got : results) {
    REQUIRE(got.raw == expected.raw);
    for (std::size_t i = 0; i < got.raw.size(); ++i) {
      REQUIRE(near(got.signal[i], expected.signal[i], 1e-6,
                   std::max(1.0, std::abs(static_cast<double>(expected.signal[i])))));
      REQUIRE(near(got.threshold[i], expected.threshold[i], 1e-6,
                   std::max(1.0, std::abs(static_cast<double>(expected.threshold[i])))));
      cuts += got.raw[i];
    }
    REQUIRE(same_bits(got.signal, results[0].signal));
    REQUIRE(same_bits(got.threshold, results[0].threshold));
  }
  return cuts;
}

std::vector<std::int64_t> random_steps(std::mt19937& random, std::int64_t n, std::int64_t longest) {
  std::vector<std::int64_t> steps;
  while (n > 0) {
    const std::int64_t most = random() % 4 ? longest : 1;
    steps.push_back(
        std::min(n, 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most))));
    n -= steps.back();
  }
  return steps;
}

TEST_CASE("key segmenter kernel equals HEM 2.2 to 2.4 as printed, per head and over the sequence") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(81);
  int cuts = 0;
  for (int seed = 0; seed < 16; ++seed) {
    Settings settings;
    settings.signal = kSignals[seed % 2];
    settings.per_head = seed / 2 % 2;
    settings.gamma = 0.5 * (seed % 5);
    settings.min_count = seed % 4;
    settings.n_init = static_cast<std::int64_t>(random() % 9);
    // the last ones: several blocks for a timeline
    const std::int64_t dim = seed < 12 ? 1 + static_cast<std::int64_t>(random() % 20) : 300;
    const std::int64_t n = 1 + static_cast<std::int64_t>(random() % (seed < 12 ? 110 : 60));
    KeyStream s(random, n, 1 + seed % 2, 1 + seed % 3, dim, 1, 0.0);
    const DType dtype = seed % 3 == 0   ? DType::float32
                        : seed % 3 == 1 ? DType::bfloat16
                                        : DType::float16;
    for (auto& layer : s.all) episodic_test::stored(layer, dtype);
    cuts += compare(settings, s, dtype, random_steps(random, n, seed % 4 ? 70 : 9));
  }
  REQUIRE(cuts > 60);
}

TEST_CASE("key segmenter kernel: every event as short as can be, in one step and token by token") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(82);
  // A threshold that no signal reaches: each cuts that may.
  KeyStream s(random, 70, 1, 1, 260, 1, 0.0);
  Settings settings;
  settings.gamma = -1e6;
  settings.min_count = 0;
  const Result whole = run(settings, s, DType::float32, {70});
  REQUIRE(std::count(whole.raw.begin(), whole.raw.end(), 1) == 23);  // 3, 6, .. 69
  REQUIRE(compare(settings, s, DType::float32, std::vector<std::int64_t>(70, 1)) > 0);
  REQUIRE(compare(settings, s, DType::float32, {69, 1}) > 0);
}

TEST_CASE("key segmenter kernel: equal keys are one event, and what is not a number ends none") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(83);
  for (const KeySignal signal : kSignals)
    for (const bool per_head : {false, true}) {
      Settings settings;
      settings.signal = signal;
      settings.per_head = per_head;
      settings.gamma = 0.0;
      KeyStream s(random, 70, 1, 2, 16, 1, 0.0);
      for (std::int64_t t = 1; t < 70; ++t)
        std::copy_n(s.all[0].data(), 32, s.all[0].data() + t * 32);
      for (const std::uint8_t flag : run(settings, s, DType::bfloat16, {33, 37}).raw)
        REQUIRE(flag == 0);
      std::fill_n(s.all[0].data() + 40 * 32, 32, std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t i = 50 * 32; i < 70 * 32; ++i) s.all[0][index(i)] *= -30.0f;
      for (const std::uint8_t flag : run(settings, s, DType::bfloat16, {33, 37}).raw)
        REQUIRE(flag == 0);
    }
}

TEST_CASE("key segmenter kernel passes the golden cases, with refine and close_events behind it") {
  EPISODIC_NEEDS_DEVICE();
  const auto shared = shared_dir();
  if (!shared || !std::filesystem::is_directory(*shared / "golden"))
    EPISODIC_SKIP("../shared/golden is not there");
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*shared / "golden")) {
    if (entry.path().filename().string().rfind("hem", 0) != 0) continue;
    ++cases;
    const auto json = [&](const char* name) {
      std::ifstream in(entry.path() / name);
      REQUIRE(in);
      return nlohmann::json::parse(in);
    };
    const nlohmann::json test = json("case.json"), lists = json("expected.json");
    const episodic::SafetensorsFile inputs(entry.path() / "inputs.safetensors"),
        expected(entry.path() / "expected.safetensors");
    const episodic::StoredTensor& keys = inputs.at("keys");
    const std::int64_t n = keys.shape[0], layers = keys.shape[1], heads = keys.shape[2];
    std::mt19937 random(84);
    KeyStream s(random, n, layers, heads, keys.shape[3], 1, 0.0);
    const std::int64_t width = heads * s.d;
    for (std::int64_t t = 0; t < n; ++t)
      for (std::int64_t layer = 0; layer < layers; ++layer)
        std::memcpy(s.all[index(layer)].data() + t * width,
                    keys.data + (t * layers + layer) * width * 4, index(width * 4));
    Settings settings;
    settings.signal = test["method"] == "gaussian" ? KeySignal::gaussian : KeySignal::similarity;
    settings.per_head = test["level"] == "head";
    settings.gamma = test["gamma"];
    settings.min_count = test["min_count"];
    settings.var_floor = test["var_floor"];
    settings.n_init = test["n_init"];
    const Result got = run(settings, s, DType::float32, {n / 3, 1, n - n / 3 - 1});

    const auto* boundaries = reinterpret_cast<const std::uint8_t*>(expected.at("boundaries").data);
    REQUIRE(expected.at("boundaries").elements() == static_cast<std::int64_t>(got.raw.size()));
    for (std::size_t i = 0; i < got.raw.size(); ++i) REQUIRE(got.raw[i] == boundaries[i]);
    for (const auto& [name, values] :
         {std::pair("signal", &got.signal), std::pair("threshold", &got.threshold)}) {
      std::vector<float> e(values->size());
      std::memcpy(e.data(), expected.at(name).data, e.size() * sizeof(float));
      const double tolerance = test["tolerance"][name];
      for (std::size_t row = 0; row < e.size(); row += index(n)) {
        double size = 1e-30;
        for (std::size_t i = row; i < row + index(n); ++i)
          if (!std::isnan(e[i])) size = std::max(size, std::abs(static_cast<double>(e[i])));
        for (std::size_t i = row; i < row + index(n); ++i)
          REQUIRE(near((*values)[i], e[i], tolerance, size));
      }
    }

    // Events of each timeline by the closing rule, limit N: a window of one token, and one more.
    const auto timelines = static_cast<std::int64_t>(got.raw.size()) / n;
    const std::int64_t max_block = test["max_block"], capacity = n + max_block + 1;
    TimelineState before = initial_timeline(settings.n_init);
    before.tokens = 1;
    const DeviceArray<TimelineState> state(std::vector<TimelineState>(index(timelines), before));
    std::vector<std::uint8_t> later;  // tokens 1 .. N - 1, and one that is the window
    for (std::int64_t u = 0; u < timelines; ++u) {
      const auto at = got.raw.begin() + u * n;
      later.insert(later.end(), at + 1, at + n);
      later.push_back(0);
    }
    const DeviceArray<std::uint8_t> raw(later), flags(index(timelines * capacity));
    const DeviceArray<episodic::kernels::EventRange> events(index(timelines * n));
    episodic::kernels::RefineParams keep;
    keep.n = n;
    keep.n_timelines = timelines;
    keep.state = state.data();
    keep.raw = raw.data();
    keep.flags = flags.data();
    keep.flag_capacity = capacity;
    REQUIRE(refine_boundaries(keep, nullptr) == cudaSuccess);
    episodic::kernels::CloseEventsParams close;
    close.n_local = 1;
    close.min_block = test["min_block"];
    close.max_block = max_block;
    close.n = n;
    close.n_timelines = timelines;
    close.state = state.data();
    close.flags = flags.data();
    close.flag_capacity = n + max_block + 1;
    close.events = events.data();
    close.event_capacity = n;
    REQUIRE(close_events(close, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    for (std::int64_t u = 0; u < timelines; ++u) {
      const TimelineState after = state.host()[index(u)];
      nlohmann::json ranges = nlohmann::json::array();
      for (std::int64_t i = 0; i < after.n_events; ++i) {
        const episodic::kernels::EventRange e = events.host()[index(u * n + i)];
        ranges.push_back({e.start, e.end});
      }
      REQUIRE(ranges == lists["events"][index(u)]);
      REQUIRE(lists["pending_start"][index(u)] == after.pending_start);
    }
  }
  REQUIRE(cases == 3);
}

TEST_CASE("key segmenter kernel refuses parameters that make no sense, without a device") {
  KeySegmenterParams p;
  REQUIRE(key_segmenter_workspace_bytes(p) == 0);
  REQUIRE(segment_by_keys(p, nullptr) == cudaErrorInvalidValue);  // no keys
  p.n_layers = p.n_kv_heads = 2;
  p.head_dim = 8;
  REQUIRE(segment_by_keys(p, nullptr) == cudaSuccess);  // no tokens
  p.n = 4;
  REQUIRE(segment_by_keys(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  TimelineState state;
  KeySegmenterState segmenter;
  double moments[32];
  std::uint8_t raw[4];
  alignas(256) static unsigned char workspace[512];
  const void* keys[2] = {workspace, workspace};
  p.state = &state;
  p.segmenter = &segmenter;
  p.mean = moments;
  p.keys = keys;
  p.key_capacity = 4;
  p.key_row_stride = 8;
  p.raw = raw;
  p.workspace = workspace + 8;
  p.workspace_bytes = key_segmenter_workspace_bytes(p);
  REQUIRE(p.workspace_bytes > 0);
  REQUIRE(segment_by_keys(p, nullptr) == cudaErrorMisalignedAddress);
  p.workspace = workspace;
  KeySegmenterParams bad = p;
  --bad.workspace_bytes;
  REQUIRE(segment_by_keys(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.key_capacity = 3;
  REQUIRE(segment_by_keys(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.signal = KeySignal::gaussian, bad.variance = moments;  // var_floor 0
  REQUIRE(segment_by_keys(bad, nullptr) == cudaErrorInvalidValue);
  bad.var_floor = 0.1, bad.variance = nullptr;
  REQUIRE(segment_by_keys(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.min_count = -1;
  REQUIRE(segment_by_keys(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.dtype = DType::int8;
  REQUIRE(segment_by_keys(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.per_head = true, bad.n_layers = 1 << 20;  // more timelines than a grid takes
  REQUIRE(segment_by_keys(bad, nullptr) == cudaErrorInvalidValue);
  bad = p, bad.n_layers = std::int64_t{1} << 40;
  REQUIRE(key_segmenter_workspace_bytes(bad) == 0);
}

}  // namespace key_segmenter_test
