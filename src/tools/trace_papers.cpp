// SPDX-License-Identifier: Apache-2.0
#include "trace_papers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"

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
  std::int64_t at_least(const char* key, std::int64_t least) const {
    const auto value = get<std::int64_t>(key);
    if (value < least) refuse(key, fmt::format("is {}, must be at least {}", value, least));
    return value;
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
    const StoredTensor& view = inputs_.at(name);
    if (view.type != TensorType::f32 || view.shape.size() != rank)
      throw FileError(fmt::format("{}: tensor '{}' is {} [{}], expected F32 with {} dimensions",
                                  inputs_.path().string(), name, name_of(view.type),
                                  fmt::join(view.shape, ", "), rank));
    Tensor t{view.shape, std::vector<float>(static_cast<std::size_t>(view.elements()))};
    if (!t.data.empty())
      std::memcpy(t.data.data(), view.data, static_cast<std::size_t>(view.bytes));
    return t;
  }

  /// \throws DataError if some element of a tensor is not what it must be
  template <class Holds>
  void require_all(const char* name, const Tensor& tensor, const char* what, Holds&& holds) const {
    if (!std::all_of(tensor.data.begin(), tensor.data.end(), holds))
      throw DataError(fmt::format("{}: tensor '{}' has an element that is not {}",
                                  inputs_.path().string(), name, what));
  }

 private:
  const Json& json_;
  const std::filesystem::path& file_;
  SafetensorsFile inputs_;
};

// -- hem --

void trace_hem(const Case& test, const std::filesystem::path& out, TraceParts& parts) {
  const Case::Tensor keys = test.tensor("keys", 4);
  test.require_all("keys", keys, "finite", [](float x) { return std::isfinite(x); });
  const auto method = test.get<std::string>("method"), level = test.get<std::string>("level");
  if (method != "k_similarity" && method != "gaussian")
    test.refuse("method", "must be \"k_similarity\" or \"gaussian\"");
  if (level != "sequence" && level != "head")
    test.refuse("level", "must be \"sequence\" or \"head\"");
  KeysToCut to_cut;
  to_cut.keys = keys.data;
  to_cut.tokens = keys.shape[0];
  to_cut.layers = keys.shape[1];
  to_cut.heads = keys.shape[2];
  to_cut.head_dim = keys.shape[3];
  to_cut.per_head = level == "head";
  to_cut.min_block = test.at_least("min_block", 1);
  to_cut.max_block = test.at_least("max_block", to_cut.min_block);
  KeySegmenterSettings& settings = to_cut.settings;
  settings.signal = method == "gaussian" ? KeySignal::gaussian : KeySignal::similarity;
  settings.gamma = test.get<double>("gamma");
  settings.min_count = test.at_least("min_count", 0);
  settings.var_floor = test.get<double>("var_floor");
  settings.n_init = test.at_least("n_init", 0);

  const KeyVerdicts verdicts = parts.cut(to_cut);
  Json events = Json::array(), pending = Json::array();
  for (const EventsOfUnit& unit : parts.close(to_cut, verdicts.opens)) {
    Json ranges = Json::array();
    for (const TokenRange& r : unit.events) ranges.push_back({r.start, r.end});
    events.push_back(ranges);
    pending.push_back(unit.pending_start);
  }
  Json json{{"events", events}, {"pending_start", pending}};
  if (test.has("calibrate_to")) {
    const auto boundaries = [&](TraceParts& by, double gamma) {
      KeysToCut other = to_cut;
      other.settings.gamma = gamma;
      const std::vector<std::uint8_t> opens = by.cut(other).opens;
      return static_cast<std::int64_t>(std::count(opens.begin(), opens.end(), 1));
    };
    // Hundreds of gammas are tried on the host, wherever the one that is found is used.
    const std::unique_ptr<TraceParts> host = trace_parts_of_host();
    const double gamma =
        calibrate_gamma(
            test.get<std::int64_t>("calibrate_to"),
            [&](double tried) { return boundaries(*host, tried); }, 0)  // the cases' grid
            .gamma;
    json["calibrated_gamma"] = gamma;
    json["calibrated_boundaries"] = boundaries(parts, gamma);
  }
  const std::vector<std::int64_t> shape{to_cut.units(), to_cut.tokens};
  write_safetensors(
      out / "trace.safetensors",
      std::vector<TensorToWrite>{{"boundaries", TensorType::u8, shape, verdicts.opens.data()},
                                 {"signal", TensorType::f32, shape, verdicts.signal.data()},
                                 {"threshold", TensorType::f32, shape, verdicts.threshold.data()}});
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

void trace_epman(const Case& test, const std::filesystem::path& out, TraceParts& parts) {
  const Case::Tensor q = test.tensor("q", 3), k = test.tensor("k", 3), v = test.tensor("v", 3);
  const Case::Tensor query = test.tensor("query_encoding", 1);
  const Case::Tensor encodings = test.tensor("event_encodings", 2);
  WeightedAttention attention;
  attention.q = q.data;
  attention.k = k.data;
  attention.v = v.data;
  attention.n = q.shape[0];
  attention.heads = q.shape[1];
  attention.head_dim = q.shape[2];
  attention.kv_heads = k.shape[1];
  attention.start = test.at_least("start", 0);
  attention.n_init = test.at_least("n_init", 0);
  attention.n_local = test.at_least("n_local", 1);
  attention.rope_theta = test.get<double>("rope_theta");
  const auto events = test.get<std::vector<std::array<std::int64_t, 2>>>("events");
  if (attention.n < 1 || k.shape[0] != attention.tokens() || v.shape != k.shape ||
      k.shape[2] != attention.head_dim || attention.kv_heads < 1 ||
      attention.heads % attention.kv_heads != 0)
    test.refuse("start", "and the shapes of q, k and v do not fit each other");
  if (encodings.shape[0] != static_cast<std::int64_t>(events.size()) ||
      encodings.shape[1] != query.shape[0] || query.shape[0] < 1)
    test.refuse("events", "and the encodings are not of one number or width");
  std::int64_t pending = attention.n_init;
  for (const auto& e : events) {
    if (e[0] != pending || e[1] <= e[0] || e[1] > attention.outside())
      test.refuse("events", "must lie one behind the other, from n_init on and before the window");
    attention.events.push_back({e[0], e[1]});
    pending = e[1];
  }

  const Reweight mode = reweight_of(test);
  const std::vector<float> score = parts.scores(query.data, encodings.data);
  const std::vector<WeightedEvent> present =
      parts.choose(mode, test.at_least("K", mode == Reweight::exact ? 0 : 1), score);
  const WeightedOutput result = parts.attend(attention, present);
  Json list = Json::array();
  std::vector<float> weight;
  for (const WeightedEvent& e : present) {
    list.push_back(e.event);
    weight.push_back(e.value_weight);
  }
  const auto count = [](const auto& x) { return static_cast<std::int64_t>(x.size()); };
  const TensorType f32 = TensorType::f32;
  write_safetensors(
      out / "trace.safetensors",
      std::vector<TensorToWrite>{
          {"score", f32, {count(score)}, score.data()},
          {"weight", f32, {count(weight)}, weight.data()},
          {"out", f32, {attention.n, attention.heads, attention.head_dim}, result.out.data()},
          {"mass", f32, {attention.n, attention.heads}, result.mass.data()}});
  write_json(out / "trace.json", {{"present", list}});
}

// -- memoria --

void trace_memoria(const Case& test, const std::filesystem::path& out, TraceParts& parts) {
  const Case::Tensor engrams = test.tensor("engrams", 3), attention = test.tensor("attention", 2);
  const std::int64_t steps = engrams.shape[0], n = engrams.shape[1], width = engrams.shape[2];
  const std::int64_t total = steps * n;
  if (attention.shape != std::vector<std::int64_t>{steps, total})
    test.refuse("inputs.safetensors", "must hold attention of [steps, steps * engrams of a step]");
  test.require_all("attention", attention, "at least 0 and finite",
                   [](float w) { return w >= 0 && std::isfinite(w); });
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
    const std::vector<std::int64_t> forgotten = parts.forget(
        r, memoria.commit(parts.received(r, attention.row(t, total))), memoria.total());
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
                         const std::filesystem::path& case_file, const std::filesystem::path& out,
                         TraceParts& parts) {
  void (*trace)(const Case&, const std::filesystem::path&, TraceParts&) =
      kind == "hem"       ? trace_hem
      : kind == "epman"   ? trace_epman
      : kind == "memoria" ? trace_memoria
                          : nullptr;
  if (!trace) return false;
  trace(Case(json, case_file), out, parts);
  return true;
}

}  // namespace episodic::tools
