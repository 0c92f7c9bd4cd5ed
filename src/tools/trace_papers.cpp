// SPDX-License-Identifier: Apache-2.0
#include "trace_papers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <span>

#include "episodic/attention/attend.hpp"
#include "episodic/attention/rotary.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/recall/reweight.hpp"
#include "episodic/retention/memoria.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/key_segmenter.hpp"

namespace episodic::tools {
namespace {

/// case.json and inputs.safetensors, read with errors that name the file.
class Case {
 public:
  Case(const Json& json, const std::filesystem::path& file)
      : json_(json), file_(file), inputs_(file.parent_path() / "inputs.safetensors") {}

  template <class T>
  T get(const char* key) const {
    try {
      return json_.at(key).get<T>();
    } catch (const Json::exception& e) {
      throw FileError(fmt::format("{}: key \"{}\" is missing or of the wrong type ({})",
                                  file_.string(), key, e.what()));
    }
  }
  bool has(const char* key) const { return json_.contains(key); }

  [[noreturn]] void refuse(const char* key, const std::string& what) const {
    throw FileError(fmt::format("{}: {} {}", file_.string(), key, what));
  }

  struct Tensor {
    std::vector<std::int64_t> shape;
    std::vector<float> data;
    std::span<const float> row(std::int64_t i, std::int64_t width) const {
      return std::span(data).subspan(static_cast<std::size_t>(i * width),
                                     static_cast<std::size_t>(width));
    }
  };
  Tensor tensor(const char* name, std::size_t rank) const {
    const TensorView& view = inputs_.at(name);
    if (view.type != TensorType::f32 || view.shape.size() != rank)
      throw FileError(fmt::format("{}: tensor '{}' is {} [{}], expected F32 with {} dimensions",
                                  inputs_.path().string(), name, name_of(view.type),
                                  fmt::join(view.shape, ", "), rank));
    Tensor t{view.shape, std::vector<float>(static_cast<std::size_t>(view.elements()))};
    if (!t.data.empty())
      std::memcpy(t.data.data(), view.data, static_cast<std::size_t>(view.bytes));
    return t;
  }

 private:
  const Json& json_;
  const std::filesystem::path& file_;
  SafetensorsFile inputs_;
};

Json ranges_of(const EventTable& events) {
  Json list = Json::array();
  for (const TokenRange& r : events.all()) list.push_back({r.start, r.end});
  return list;
}

// -- hem --

void trace_hem(const Case& test, const std::filesystem::path& out) {
  const Case::Tensor keys = test.tensor("keys", 4);
  const std::int64_t n = keys.shape[0], heads = keys.shape[1] * keys.shape[2], d = keys.shape[3];
  const auto method = test.get<std::string>("method"), level = test.get<std::string>("level");
  if (method != "k_similarity" && method != "gaussian")
    test.refuse("method", "must be \"k_similarity\" or \"gaussian\"");
  if (level != "sequence" && level != "head")
    test.refuse("level", "must be \"sequence\" or \"head\"");
  KeySegmenterSettings settings;
  settings.signal = method == "gaussian" ? KeySignal::gaussian : KeySignal::similarity;
  settings.gamma = test.get<double>("gamma");
  settings.min_count = test.get<std::int64_t>("min_count");
  settings.var_floor = test.get<double>("var_floor");
  settings.n_init = test.get<std::int64_t>("n_init");
  const bool per_head = level == "head";
  const std::int64_t units = per_head ? heads : 1, width = per_head ? d : heads * d;

  const auto key_of = [&](std::int64_t token, std::int64_t unit) {
    return std::span(keys.data).subspan(static_cast<std::size_t>(token * heads * d + unit * width),
                                        static_cast<std::size_t>(width));
  };
  const auto make = [&](double gamma) {
    KeySegmenterSettings s = settings;
    s.gamma = gamma;
    return KeySegmenter(s, per_head ? 1 : heads, d);
  };
  std::vector<std::uint8_t> flags;
  std::vector<float> signal, threshold;
  Json events = Json::array(), pending = Json::array();
  for (std::int64_t u = 0; u < units; ++u) {
    KeySegmenter segmenter = make(settings.gamma);
    for (std::int64_t t = 0; t < n; ++t) {
      const KeySegmenter::Verdict v = segmenter.next(key_of(t, u));
      flags.push_back(v.opens);
      signal.push_back(static_cast<float>(v.signal));
      threshold.push_back(static_cast<float>(v.threshold));
    }
    EventTable table(settings.n_init, test.get<std::int64_t>("min_block"),
                     test.get<std::int64_t>("max_block"));
    table.close_up_to(
        n, [&](std::int64_t t) { return flags[static_cast<std::size_t>(u * n + t)] != 0; });
    events.push_back(ranges_of(table));
    pending.push_back(table.pending_start());
  }
  Json json{{"events", events}, {"pending_start", pending}};
  if (test.has("calibrate_to")) {
    const CalibratedGamma found =
        calibrate_gamma(test.get<std::int64_t>("calibrate_to"), [&](double gamma) {
          std::int64_t count = 0;
          for (std::int64_t u = 0; u < units; ++u) {
            KeySegmenter segmenter = make(gamma);
            for (std::int64_t t = 0; t < n; ++t) count += segmenter.next(key_of(t, u)).opens;
          }
          return count;
        });
    json["calibrated_gamma"] = found.gamma;
    json["calibrated_boundaries"] = found.boundaries;
  }
  write_safetensors(
      out / "trace.safetensors",
      std::vector<TensorToWrite>{{"boundaries", TensorType::u8, {units, n}, flags.data()},
                                 {"signal", TensorType::f32, {units, n}, signal.data()},
                                 {"threshold", TensorType::f32, {units, n}, threshold.data()}});
  write_json(out / "trace.json", json);
}

// -- epman --

Reweight reweight_of(const Case& test) {
  const auto mode = test.get<std::string>("mode");
  if (mode == "exact") return Reweight::exact;
  if (mode == "narrow") return Reweight::narrow;
  if (mode == "broad") return Reweight::broad;
  test.refuse("mode", "must be \"exact\", \"narrow\" or \"broad\"");
}

void trace_epman(const Case& test, const std::filesystem::path& out) {
  const Case::Tensor q = test.tensor("q", 3), k = test.tensor("k", 3), v = test.tensor("v", 3);
  const Case::Tensor query = test.tensor("query_encoding", 1);
  const Case::Tensor encodings = test.tensor("event_encodings", 2);
  const std::int64_t n = q.shape[0], H = q.shape[1], d = q.shape[2], G = k.shape[1];
  const auto start = test.get<std::int64_t>("start"), n_init = test.get<std::int64_t>("n_init"),
             n_local = test.get<std::int64_t>("n_local");
  const auto events = test.get<std::vector<std::array<std::int64_t, 2>>>("events");
  if (k.shape[0] != start + n || v.shape != k.shape || k.shape[2] != d || G < 1 || H % G != 0)
    test.refuse("start", "and the shapes of q, k and v do not fit each other");
  if (encodings.shape[0] != static_cast<std::int64_t>(events.size()) ||
      encodings.shape[1] != query.shape[0])
    test.refuse("events", "and the encodings are not of one number or width");

  std::vector<float> score;
  for (std::int64_t e = 0; e < encodings.shape[0]; ++e)
    score.push_back(relevance_score(query.data, encodings.row(e, encodings.shape[1])));
  const std::vector<WeightedEvent> present =
      reweighted_events(reweight_of(test), test.get<std::int64_t>("K"), score);

  // Spec 1: sinks, pending tokens and recalled events at the fixed position, the window rotated.
  const RotaryTable rotary = plain_rotary(d, test.get<double>("rope_theta"));
  RotaryAngles fixed, relative, of_keys;
  fixed.compute(rotary, n_local - 1, 1);
  relative.compute(rotary, start, n);
  of_keys.compute(rotary, 0, start + n);
  std::vector<float> q_fixed(q.data.size()), q_relative(q.data.size()), rotated(k.data.size());
  rotate(rotary, fixed, n, H, d, q.data.data(), H * d, d, q_fixed.data(), H * d, d);
  rotate(rotary, relative, n, H, d, q.data.data(), H * d, d, q_relative.data(), H * d, d);
  rotate(rotary, of_keys, start + n, G, d, k.data.data(), G * d, d, rotated.data(), G * d, d);
  const std::int64_t outside = std::max<std::int64_t>(0, start + n - n_local);
  std::vector<KvSegment> segments;
  const auto push = [&](std::int64_t first, std::int64_t end, Position position, float weight) {
    if (first >= end) return;
    KvSegment s;
    s.key = (position == Position::fixed ? k.data : rotated).data() + first * G * d;
    s.value = v.data.data() + first * G * d;
    s.length = end - first;
    s.first_token = first;
    s.head_stride = d;
    s.row_stride = G * d;
    s.position = position;
    s.value_weight = weight;
    segments.push_back(s);
  };
  push(0, std::min(n_init, outside), Position::fixed, 1.0f);
  std::int64_t pending = n_init;
  for (const auto& e : events) {
    if (e[0] != pending || e[1] <= e[0] || e[1] > outside)
      test.refuse("events", "must lie one behind the other, from n_init on and before the window");
    pending = e[1];
  }
  for (const WeightedEvent& e : present)
    push(events[static_cast<std::size_t>(e.event)][0], events[static_cast<std::size_t>(e.event)][1],
         Position::fixed, e.value_weight);
  push(pending, outside, Position::fixed, 1.0f);
  push(std::max<std::int64_t>(0, start + 1 - n_local), start + n, Position::relative, 1.0f);

  const AttendShape shape{n, H, G, d, start, n_local};
  AttendWorkspace workspace;
  std::vector<float> output(q.data.size()), mass(static_cast<std::size_t>(n * H)), weight;
  const std::span<const KvSegment> all(segments);
  AttendOutput result;
  result.out = output.data();
  result.weighted_mass = mass.data();
  attend(shape, {q_relative.data(), q_fixed.data(), std::span(&all, 1)}, result, workspace);
  Json list = Json::array();
  for (const WeightedEvent& e : present) {
    list.push_back(e.event);
    weight.push_back(e.value_weight);
  }
  const auto count = [](const auto& x) { return static_cast<std::int64_t>(x.size()); };
  const TensorType f32 = TensorType::f32;
  write_safetensors(out / "trace.safetensors",
                    std::vector<TensorToWrite>{{"score", f32, {count(score)}, score.data()},
                                               {"weight", f32, {count(weight)}, weight.data()},
                                               {"out", f32, {n, H, d}, output.data()},
                                               {"mass", f32, {n, H}, mass.data()}});
  write_json(out / "trace.json", {{"present", list}});
}

// -- memoria --

void trace_memoria(const Case& test, const std::filesystem::path& out) {
  const Case::Tensor engrams = test.tensor("engrams", 3), attention = test.tensor("attention", 2);
  const std::int64_t steps = engrams.shape[0], n = engrams.shape[1], width = engrams.shape[2];
  const std::int64_t total = steps * n;
  if (attention.shape != std::vector<std::int64_t>{steps, total})
    test.refuse("inputs.safetensors", "must hold attention of [steps, steps * engrams of a step]");
  MemoriaConfig config;
  config.n_short = test.get<std::int64_t>("N_stm");
  config.n_long = test.get<std::int64_t>("N_ltm");
  config.short_term_capacity = test.get<std::int64_t>("stm_capacity");
  config.depth = test.get<std::int64_t>("N_depth");
  config.initial_lifespan = test.get<double>("initial_lifespan");
  config.alpha = test.get<double>("alpha");
  Memoria memoria(config, width);
  std::vector<float> lifespan;
  Json list = Json::array();
  for (std::int64_t t = 0; t < steps; ++t) {
    const Memoria::Recall r = memoria.recall(engrams.row(t, n * width), n);
    std::vector<double> weights;
    for (const auto* recalled : {&r.short_term, &r.long_term})
      for (const std::int64_t id : *recalled)
        weights.push_back(attention.row(t, total)[static_cast<std::size_t>(id)]);
    const std::vector<std::int64_t> forgotten = memoria.commit(weights);
    for (std::int64_t id = 0; id < total; ++id)
      lifespan.push_back(static_cast<float>(memoria.lifespan(id)));
    list.push_back({{"working", r.working},
                    {"short_term_recalled", r.short_term},
                    {"initial", r.initial},
                    {"found", r.found},
                    {"long_term_recalled", r.long_term},
                    {"forgotten", forgotten},
                    {"short_term", memoria.short_term()},
                    {"long_term", memoria.long_term()}});
  }
  std::vector<std::int32_t> counts;
  for (std::int64_t a = 0; a < total; ++a)
    for (std::int64_t b = 0; b < total; ++b)
      counts.push_back(static_cast<std::int32_t>(memoria.count(a, b)));
  write_safetensors(
      out / "trace.safetensors",
      std::vector<TensorToWrite>{{"lifespan", TensorType::f32, {steps, total}, lifespan.data()},
                                 {"count", TensorType::i32, {total, total}, counts.data()}});
  write_json(out / "trace.json", {{"steps", list}});
}

}  // namespace

bool trace_without_model(const std::string& kind, const Json& json,
                         const std::filesystem::path& case_file, const std::filesystem::path& out) {
  void (*trace)(const Case&, const std::filesystem::path&) = kind == "hem"       ? trace_hem
                                                             : kind == "epman"   ? trace_epman
                                                             : kind == "memoria" ? trace_memoria
                                                                                 : nullptr;
  if (!trace) return false;
  trace(Case(json, case_file), out);
  return true;
}

}  // namespace episodic::tools
