// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/config.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

template <class E, std::size_t N>
using Names = std::array<std::pair<E, const char*>, N>;

constexpr Names<ThresholdWindow, 2> kWindows{
    {{ThresholdWindow::moving, "moving"}, {ThresholdWindow::chunked, "chunked"}}};
constexpr Names<Refinement, 3> kRefinements{{{Refinement::modularity, "modularity"},
                                             {Refinement::conductance, "conductance"},
                                             {Refinement::intra_inter, "intra_inter"}}};
constexpr Names<SegmenterKind, 4> kSegmenters{{{SegmenterKind::surprise, "surprise"},
                                               {SegmenterKind::fixed, "fixed"},
                                               {SegmenterKind::random, "random"},
                                               {SegmenterKind::given, "given"}}};
constexpr Names<RepresentativeScore, 2> kScores{
    {{RepresentativeScore::mean, "mean"}, {RepresentativeScore::max, "max"}}};
constexpr Names<IndexKind, 2> kIndexes{{{IndexKind::exact, "exact"}, {IndexKind::faiss, "faiss"}}};
constexpr Names<DType, 4> kStoredTypes{{{DType::float32, "float32"},
                                        {DType::bfloat16, "bfloat16"},
                                        {DType::float16, "float16"},
                                        {DType::int8, "int8"}}};

template <class E, std::size_t N>
const char* name_in(const Names<E, N>& names, E value, const char* otherwise = "?") {
  for (const auto& [e, name] : names)
    if (e == value) return name;
  return otherwise;
}

/// Reads one key after another and remembers which it knows.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  void integer(const char* key, std::int64_t& out) {
    const Json* v = find(key);
    if (!v) return;
    if (!v->is_number_integer() ||
        (v->is_number_unsigned() && v->get<std::uint64_t>() > (1ull << 62)))
      wrong(key, *v, "an integer");
    out = v->get<std::int64_t>();
  }

  void seed(const char* key, std::uint64_t& out) {
    const Json* v = find(key);
    if (!v) return;
    if (!v->is_number_unsigned()) wrong(key, *v, "an integer >= 0");
    out = v->get<std::uint64_t>();
  }

  void number(const char* key, double& out) {
    const Json* v = find(key);
    if (!v) return;
    if (!v->is_number()) wrong(key, *v, "a number");
    out = v->get<double>();
  }

  void boolean(const char* key, bool& out) {
    const Json* v = find(key);
    if (!v) return;
    if (!v->is_boolean()) wrong(key, *v, "true or false");
    out = v->get<bool>();
  }

  /// \param null_value value of JSON null, if null is allowed
  template <class E, std::size_t N>
  void choice(const char* key, const Names<E, N>& names, E& out,
              std::optional<E> null_value = std::nullopt,
              std::initializer_list<const char*> not_built = {}) {
    const Json* v = find(key);
    if (!v) return;
    if (v->is_null() && null_value) {
      out = *null_value;
      return;
    }
    std::string allowed;
    for (const auto& [e, name] : names) {
      if (v->is_string() && v->get_ref<const std::string&>() == name) {
        out = e;
        return;
      }
      allowed += fmt::format("{}\"{}\"", allowed.empty() ? "" : ", ", name);
    }
    for (const char* name : not_built)
      if (v->is_string() && v->get_ref<const std::string&>() == name)
        throw ConfigError(
            fmt::format("memory configuration: {} = \"{}\" is not built yet; use one of {}", key,
                        name, allowed));
    wrong(key, *v, (null_value ? "null or one of " : "one of ") + allowed);
  }

  void layers(const char* key, std::optional<std::vector<std::int64_t>>& out) {
    const Json* v = find(key);
    if (!v) return;
    out.reset();
    if (v->is_null()) return;
    if (!v->is_array()) wrong(key, *v, "null or a list of layer numbers");
    out.emplace();
    for (const Json& x : *v) {
      if (!x.is_number_integer()) wrong(key, *v, "null or a list of layer numbers");
      out->push_back(x.get<std::int64_t>());
    }
  }

  /// \param null_value value of JSON null
  void text(const char* key, std::string& out, const char* null_value) {
    const Json* v = find(key);
    if (!v) return;
    if (v->is_null()) {
      out = null_value;
      return;
    }
    if (!v->is_string()) wrong(key, *v, "null or a string");
    out = v->get<std::string>();
  }

  /// A setting of the specification that no code serves yet: only its neutral value is taken.
  void neutral(const char* key, const Json& value) {
    const Json* v = find(key);
    refused_.insert(key);
    if (v && *v != value)
      throw ConfigError(
          fmt::format("memory configuration: {} = {} is not built yet; leave it out or "
                      "set it to {}",
                      key, printable_value(*v), printable_value(value)));
  }

  void finish() const {
    for (const auto& [key, value] : object_.items())
      if (!known_.count(key)) {
        std::string all;
        for (const auto& k : known_)
          if (!refused_.count(k)) all += (all.empty() ? "" : ", ") + k;
        throw ConfigError(fmt::format("memory configuration: unknown key \"{}\"; the keys are: {}",
                                      printable(key), all));
      }
  }

 private:
  const Json* find(const char* key) {
    known_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }

  [[noreturn]] static void wrong(const char* key, const Json& value, const std::string& expected) {
    throw ConfigError(fmt::format("memory configuration: {} = {}, expected {}", key,
                                  printable_value(value), expected));
  }

  const Json& object_;
  std::set<std::string> known_;
  std::set<std::string> refused_;  // of them, those that only their neutral value is taken for
};

void require(bool holds, const char* key, double value, const char* range) {
  if (!holds)
    throw ConfigError(fmt::format("memory configuration: {} = {}, must be {}", key, value, range));
}

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

void in_range(const char* key, std::int64_t value, std::int64_t least,
              std::int64_t most = kMostTokens) {
  if (value < least || value > most)
    throw ConfigError(
        fmt::format("memory configuration: {} = {}, must be in [{}, {}]", key, value, least, most));
}

}  // namespace

const char* name_of(ThresholdWindow w) { return name_in(kWindows, w); }
const char* name_of(Refinement r) { return name_in(kRefinements, r, "none"); }
const char* name_of(SegmenterKind s) { return name_in(kSegmenters, s); }
const char* name_of(RepresentativeScore s) { return name_in(kScores, s); }
const char* name_of(IndexKind i) { return name_in(kIndexes, i); }

void MemoryConfig::validate() const {
  in_range("n_init", n_init, 0);
  in_range("n_local", n_local, 1);
  in_range("n_mem", n_mem, 0);
  in_range("chunk", chunk, 1, 1 << 20);
  require(std::isfinite(gamma), "gamma", gamma, "finite");
  in_range("tau", tau, 0);
  in_range("min_block", min_block, 1);
  in_range("max_block", max_block, 1);
  if (min_block > max_block)
    throw ConfigError(
        fmt::format("memory configuration: min_block = {} is larger than max_block = {}; "
                    "lower min_block or raise max_block",
                    min_block, max_block));
  in_range("refine_layers", refine_layers, 0);
  in_range("n_repr", n_repr, 1);
  require(contiguity >= 0 && contiguity <= 1, "contiguity", contiguity, "in [0, 1]");
  in_range("neighbours", neighbours, 1);
  in_range("recall_every", recall_every, 1);
  in_range("exact_up_to", exact_up_to, 0);
  in_range("device_bytes", device_bytes, 0, kMostBytes);
  in_range("host_bytes", host_bytes, 0, kMostBytes);
  in_range("repr_bytes", repr_bytes, 0, kMostBytes);
  in_range("disk_bytes", disk_bytes, 0, kMostBytes);
  if (recall_layers)
    for (const std::int64_t l : *recall_layers) in_range("recall_layers", l, 0);
  if (index == IndexKind::faiss && repr_bytes > 0)
    throw ConfigError(
        fmt::format("memory configuration: index = \"faiss\" keeps all representatives in host "
                    "memory and cannot "
                    "hold repr_bytes = {}; use index = \"exact\" or repr_bytes = 0",
                    repr_bytes));
  if (index == IndexKind::faiss && score == RepresentativeScore::max)
    throw ConfigError(
        "memory configuration: index = \"faiss\" searches by inner product and cannot "
        "serve score = \"max\"; use index = \"exact\" or score = \"mean\"");
}

bool MemoryConfig::same_results(const MemoryConfig& other) const {
  MemoryConfig mine = *this;
  mine.device_bytes = other.device_bytes;
  mine.host_bytes = other.host_bytes;
  mine.repr_bytes = other.repr_bytes;
  mine.disk_bytes = other.disk_bytes;
  mine.disk_dir = other.disk_dir;
  return mine == other;
}

MemoryConfig parse_memory_config(std::string_view text) {
  Json json;
  const JsonGuard guard(json);
  try {
    json = parse_strict(text, "memory configuration",
                        {.depth = 8, .remedy = "check what was given as memory settings"});
  } catch (const FileError& e) {
    throw ConfigError(e.what());
  }
  if (!json.is_object())
    throw ConfigError(
        "memory configuration: expected a JSON object, for example {\"n_local\": 256}");
  MemoryConfig c;
  Reader r(json);
  r.integer("n_init", c.n_init);
  r.integer("n_local", c.n_local);
  r.integer("n_mem", c.n_mem);
  r.integer("chunk", c.chunk);
  r.choice("segmenter", kSegmenters, c.segmenter, {}, {"k_similarity", "gaussian"});
  r.number("gamma", c.gamma);
  r.choice("window", kWindows, c.window);
  r.integer("tau", c.tau);
  r.integer("min_block", c.min_block);
  r.integer("max_block", c.max_block);
  r.seed("seed", c.seed);
  r.choice("refine", kRefinements, c.refine, std::optional(Refinement::none));
  r.integer("refine_layers", c.refine_layers);
  r.integer("n_repr", c.n_repr);
  r.number("contiguity", c.contiguity);
  r.integer("neighbours", c.neighbours);
  r.boolean("recall", c.recall);
  r.layers("recall_layers", c.recall_layers);
  r.integer("recall_every", c.recall_every);
  r.choice("score", kScores, c.score);
  r.choice("index", kIndexes, c.index);
  r.integer("exact_up_to", c.exact_up_to);
  r.choice("kv_dtype", kStoredTypes, c.kv_dtype);
  r.integer("device_bytes", c.device_bytes);
  r.integer("host_bytes", c.host_bytes);
  r.integer("repr_bytes", c.repr_bytes);
  r.integer("disk_bytes", c.disk_bytes);
  r.text("disk_dir", c.disk_dir, "");
  // Named by the specification, served by later work.
  r.neutral("scope", "sequence");
  r.neutral("min_count", nullptr);
  r.neutral("var_floor", nullptr);

  r.neutral("retention", nullptr);
  r.neutral("reweight", nullptr);
  r.finish();
  c.validate();
  return c;
}

// Written out rather than made a tree of: when memory runs out on the way, nothing is lost.
std::string to_json(const MemoryConfig& c) {
  std::string out;
  const auto put = [&](const char* key, const auto& value) {
    out += fmt::format(R"({}"{}":{})", out.empty() ? "{" : ",", key, value);
  };
  const auto quoted = [](const char* name) { return json_string(name); };
  put("n_init", c.n_init);
  put("n_local", c.n_local);
  put("n_mem", c.n_mem);
  put("chunk", c.chunk);
  put("segmenter", quoted(name_of(c.segmenter)));
  put("gamma", c.gamma);
  put("window", quoted(name_of(c.window)));
  put("tau", c.tau);
  put("min_block", c.min_block);
  put("max_block", c.max_block);
  put("seed", c.seed);
  put("refine", c.refine == Refinement::none ? "null" : quoted(name_of(c.refine)));
  put("refine_layers", c.refine_layers);
  put("n_repr", c.n_repr);
  put("contiguity", c.contiguity);
  put("neighbours", c.neighbours);
  put("recall", c.recall);
  put("recall_layers",
      c.recall_layers ? fmt::format("[{}]", fmt::join(*c.recall_layers, ",")) : "null");
  put("recall_every", c.recall_every);
  put("score", quoted(name_of(c.score)));
  put("index", quoted(name_of(c.index)));
  put("exact_up_to", c.exact_up_to);
  put("kv_dtype", quoted(name_of(c.kv_dtype)));
  put("device_bytes", c.device_bytes);
  put("host_bytes", c.host_bytes);
  put("repr_bytes", c.repr_bytes);
  put("disk_bytes", c.disk_bytes);
  put("disk_dir", c.disk_dir.empty() ? "null" : json_string(c.disk_dir));
  return out + "}";
}

}  // namespace episodic
