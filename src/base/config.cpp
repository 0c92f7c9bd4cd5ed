// SPDX-License-Identifier: Apache-2.0
// The settings as JSON. What needs none of it: episodic/base/impl/config.hpp.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/config_difference.hpp"
#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/impl/config.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;
using namespace config_detail;

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

  void integer_or_null(const char* key, std::int64_t& out, std::int64_t null_value) {
    if (const Json* v = find(key); v && v->is_null())
      out = null_value;
    else
      integer(key, out);
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
              std::optional<E> null_value = std::nullopt) {
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

  /// null, or an object read by `read(Reader&)`.
  template <class Read>
  void object(const char* key, Read&& read) {
    const Json* v = find(key);
    if (!v || v->is_null()) return;
    if (!v->is_object()) wrong(key, *v, "null or an object of settings");
    Reader inner(*v);
    inner.where_ = where_ + ": " + key;
    read(inner);
    inner.finish();
  }

  void finish() const {
    for (const auto& [key, value] : object_.items())
      if (!known_.count(key)) {
        std::string all;
        for (const auto& k : known_) all += (all.empty() ? "" : ", ") + k;
        throw ConfigError(
            fmt::format("{}: unknown key \"{}\"; the keys are: {}", where_, printable(key), all));
      }
  }

 private:
  const Json* find(const char* key) {
    known_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }

  [[noreturn]] void wrong(const char* key, const Json& value, const std::string& expected) const {
    throw ConfigError(
        fmt::format("{}: {} = {}, expected {}", where_, key, printable_value(value), expected));
  }

  const Json& object_;
  std::set<std::string> known_;
  std::string where_ = "memory configuration";
};

}  // namespace

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
  r.choice("segmenter", kSegmenters, c.segmenter);
  r.choice("scope", kScopes, c.scope);
  r.number("gamma", c.gamma);
  r.choice("window", kWindows, c.window);
  r.integer("tau", c.tau);
  r.integer("min_block", c.min_block);
  r.integer("max_block", c.max_block);
  r.seed("seed", c.seed);
  r.integer("min_count", c.min_count);
  r.number("var_floor", c.var_floor);
  r.choice("refine", kRefinements, c.refine, std::optional(Refinement::none));
  r.integer("refine_layers", c.refine_layers);
  r.integer("n_repr", c.n_repr);
  r.number("contiguity", c.contiguity);
  r.integer("neighbours", c.neighbours);
  r.boolean("recall", c.recall);
  r.layers("recall_layers", c.recall_layers);
  r.integer("recall_groups", c.recall_groups);
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
  r.choice("reweight", kReweightings, c.reweight, std::optional(Reweighting::none));
  r.integer("reweight_top", c.reweight_top);
  r.object("retention", [&](Reader& of) {
    RetentionConfig& retention = c.retention.emplace();
    of.integer("N_stm", retention.memoria.n_short);
    of.integer("N_ltm", retention.memoria.n_long);
    of.integer("stm_capacity", retention.memoria.short_term_capacity);
    of.integer("N_depth", retention.memoria.depth);
    of.number("initial_lifespan", retention.memoria.initial_lifespan);
    of.number("alpha", retention.memoria.alpha);
    of.choice("search", kLongTermSearches, retention.memoria.search);
    of.choice("wiring", kWirings, retention.memoria.wiring);
    of.choice("recall", kEngramRecalls, retention.recall);
    of.integer_or_null("layer", retention.layer, -1);
  });
  r.finish();
  c.validate();
  return c;
}

namespace {
std::string json_of(const RetentionConfig& r) {
  const MemoriaConfig& m = r.memoria;
  return fmt::format(
      R"({{"N_stm":{},"N_ltm":{},"stm_capacity":{},"N_depth":{},"initial_lifespan":{},"alpha":{},"search":"{}","wiring":"{}","recall":"{}","layer":{}}})",
      m.n_short, m.n_long, m.short_term_capacity, m.depth, m.initial_lifespan, m.alpha,
      name_of(m.search), name_of(m.wiring), name_of(r.recall),
      r.layer < 0 ? "null" : std::to_string(r.layer));
}
}  // namespace

namespace {
/// put(key, value as JSON) for every setting, in the order of the documentation.
template <class Put>
void each_setting(const MemoryConfig& c, const Put& put_text) {
  const auto put = [&](const char* key, const auto& value) {
    put_text(key, fmt::format("{}", value));
  };
  const auto quoted = [](const char* name) { return json_string(name); };
  put("n_init", c.n_init);
  put("n_local", c.n_local);
  put("n_mem", c.n_mem);
  put("chunk", c.chunk);
  put("segmenter", quoted(name_of(c.segmenter)));
  put("scope", quoted(name_of(c.scope)));
  put("gamma", c.gamma);
  put("window", quoted(name_of(c.window)));
  put("tau", c.tau);
  put("min_block", c.min_block);
  put("max_block", c.max_block);
  put("seed", c.seed);
  put("min_count", c.min_count);
  put("var_floor", c.var_floor);
  put("refine", c.refine == Refinement::none ? "null" : quoted(name_of(c.refine)));
  put("refine_layers", c.refine_layers);
  put("n_repr", c.n_repr);
  put("contiguity", c.contiguity);
  put("neighbours", c.neighbours);
  put("recall", c.recall);
  put("recall_layers",
      c.recall_layers ? fmt::format("[{}]", fmt::join(*c.recall_layers, ",")) : "null");
  put("recall_groups", c.recall_groups);
  put("recall_every", c.recall_every);
  put("score", quoted(name_of(c.score)));
  put("index", quoted(name_of(c.index)));
  put("exact_up_to", c.exact_up_to);
  put("reweight", c.reweight == Reweighting::none ? "null" : quoted(name_of(c.reweight)));
  put("reweight_top", c.reweight_top);
  put("retention", c.retention ? json_of(*c.retention) : "null");
  put("kv_dtype", quoted(name_of(c.kv_dtype)));
  put("device_bytes", c.device_bytes);
  put("host_bytes", c.host_bytes);
  put("repr_bytes", c.repr_bytes);
  put("disk_bytes", c.disk_bytes);
  put("disk_dir", c.disk_dir.empty() ? "null" : json_string(c.disk_dir));
}
}  // namespace

// Written out rather than made a tree of: when memory runs out on the way, nothing is lost.
std::string to_json(const MemoryConfig& c) {
  std::string out;
  each_setting(c, [&](const char* key, const std::string& value) {
    out += fmt::format(R"({}"{}":{})", out.empty() ? "{" : ",", key, value);
  });
  return out + "}";
}

std::string difference(const MemoryConfig& made, MemoryConfig given) {
  given.device_bytes = made.device_bytes;  // what may differ
  given.host_bytes = made.host_bytes;
  given.repr_bytes = made.repr_bytes;
  given.disk_bytes = made.disk_bytes;
  given.disk_dir = made.disk_dir;
  if (given.effective_min_count() == made.effective_min_count()) given.min_count = made.min_count;
  std::vector<std::string> others;
  each_setting(given, [&](const char*, const std::string& value) { others.push_back(value); });
  std::string out;
  std::size_t at = 0;
  each_setting(made, [&](const char* key, const std::string& value) {
    const std::string& other = others[at++];
    if (value != other)
      out += fmt::format("{}{} is {}, not {}", out.empty() ? "" : "; ", key, value, other);
  });
  return out;
}

}  // namespace episodic
