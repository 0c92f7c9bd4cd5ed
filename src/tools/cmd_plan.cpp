// SPDX-License-Identifier: Apache-2.0
// `episodic plan`: what a text will take, before it is read, or the weights downloaded.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <system_error>

#include "base/strict_json.hpp"
#include "commands.hpp"
#include "common.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/model/weight_plan.hpp"
#include "episodic/store/block_tier.hpp"
#include "speed.hpp"

namespace episodic::tools {
namespace {

namespace fs = std::filesystem;

struct PlanFlags {
  CommonFlags common;
  ModelFlags model;
  std::int64_t tokens = 0;
  fs::path dir = ".";
  JsonFlag json;
  int checkpoints = 4;
  bool no_probe = false;
};

/// As they are stored. The files know exactly; before they are there, the configuration does.
std::int64_t weight_bytes(const fs::path& dir, bool& from_files) {
  std::error_code error;
  from_files = is_model_file(dir) || fs::exists(dir / "model.safetensors", error) ||
               fs::exists(dir / "model.safetensors.index.json", error);
  if (!from_files) return 2 * model_facts(dir).weights;  // 16 bits each, as nearly all come
  std::int64_t bytes = 0;
  const OpenModel opened = open_model(dir);  // they stay as they are stored
  for (const StoredTensor* t : opened.tensors->tensors()) bytes += t->bytes;
  return bytes;
}

/// With --quantize: matrices in blocks, what no block fits in float32.
std::int64_t rounded_bytes(const ModelConfig& model, TensorType type) {
  std::int64_t bytes = 0;
  std::set<std::pair<std::string, std::int64_t>> seen;  // a tied head is the embedding's tensor
  for (const WeightEntry& e : weight_plan(model)) {
    if (!seen.emplace(e.tensor, e.first_row).second) continue;
    const std::int64_t columns = e.columns();
    const bool vocabulary = info_of(e.role).block == WeightBlock::vocabulary;
    TensorType to = vocabulary ? TensorType::q8_0 : type;
    if (columns % block_elements(to) != 0 || !is_rounded(e.role)) to = TensorType::f32;
    bytes += e.rows * (columns / block_elements(to)) * block_bytes(to);
  }
  return bytes;
}

/// What the layers without attention carry of a sequence: behind its last token and behind an open
/// step in memory, and once in each state that is kept.
struct CarriedBytes {
  std::int64_t host = 0, disk = 0;
};

CarriedBytes carried_bytes(const PlanFlags& flags, const ModelConfig& model,
                           const MemoryConfig& config) {
  std::int64_t floats = 0;
  for (const LayerSpec& layer : model.layers) floats += recurrent_floats(model, layer);
  const std::int64_t bytes = floats * static_cast<std::int64_t>(sizeof(float));
  return {2 * bytes, (1 + (config.retention ? 0 : flags.checkpoints)) * bytes};
}

/// The plan, or nothing with the reason in `advice` where a budget cannot hold it.
std::optional<MemoryPlan> attempt(const PlanFlags& flags, const MemoryConfig& config,
                                  const MemoryShape& shape, std::int64_t events, Json& advice) {
  try {
    return plan_memory(config, shape, flags.tokens, events, true, flags.checkpoints);
  } catch (const BudgetError& e) {
    advice.push_back(e.what());
    return std::nullopt;
  }
}

/// As attempt, with the budgets that refused taken away, so that there are numbers to show.
MemoryPlan unbounded(const PlanFlags& flags, MemoryConfig config, const MemoryShape& shape,
                     std::int64_t events) {
  config.host_bytes = config.repr_bytes = config.disk_bytes = 0;
  return plan_memory(config, shape, flags.tokens, events, true, flags.checkpoints);
}

std::string available_text(std::int64_t bytes, const char* word) {
  return bytes < 0 ? std::string("unknown") : fmt::format("{} {}", bytes_text(bytes), word);
}

std::string verdict(const Json& json) {
  std::string out = json["fits"].get<bool>() ? "it fits\n" : "it does not fit:\n";
  for (const Json& line : json["advice"]) out += fmt::format("  {}\n", line.get<std::string>());
  return out;
}

/// What the folder would take with other kinds of keys and values; nothing where a budget refuses.
std::optional<std::int64_t> disk_with(const PlanFlags& flags, MemoryConfig config, DType kv_dtype,
                                      const MemoryShape& shape, std::int64_t events) {
  config.kv_dtype = kv_dtype;
  try {
    return unbounded(flags, config, shape, events).disk.total();
  } catch (const ConfigError&) {
    return std::nullopt;  // not with these settings
  }
}

/// How fast the model reads here; nothing where it cannot be found out, with the reason.
std::optional<Speed> probe(const PlanFlags& flags, const MemoryConfig& config, std::int64_t needed,
                           std::string& why_not) {
  constexpr double kSeconds = 2;  // and half a second for the short steps before
  if (flags.no_probe) {
    why_not = "--no-probe";
    return std::nullopt;
  }
  if (const std::int64_t free = available_host_bytes(); free >= 0 && needed > free) {
    why_not = "there is no memory for the weights";
    return std::nullopt;
  }
  try {
    CommonFlags host = flags.common;
    host.device = "cpu";
    const std::unique_ptr<Engine> engine = load_engine(host, flags.model);
    return measure_speed(*engine, config, kSeconds, false);
  } catch (const Error& e) {
    why_not = e.what();  // a plan needs no model that can be run
    return std::nullopt;
  }
}

std::string time_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", std::ceil(seconds));
  if (seconds < 5400) return fmt::format("{:.0f} minutes", seconds / 60);
  if (seconds < 172800) return fmt::format("{:.1f} hours", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

std::int64_t expected_events(const PlanFlags& flags, const MemoryConfig& config) {
  const double mean =
      flags.common.event_tokens > 0 ? flags.common.event_tokens : expected_event_tokens(config);
  // an event has a token at least, whatever --event-tokens says
  return static_cast<std::int64_t>(
      std::ceil(static_cast<double>(flags.tokens) / std::max(1.0, mean)));
}

/// Of the graph that decides what is forgotten: it is the host's on a device too.
std::int64_t graph_bytes(const PlanFlags& flags, const MemoryConfig& config) {
  if (!config.retention) return 0;
  const MemoryShape shape = memory_shape(load_model_config(flags.model.model), config.n_local);
  return unbounded(flags, config, shape, expected_events(flags, config)).host.graph;
}

/// Device memory, and host memory for what has no room there. What the folder of a kept memory
/// takes besides is the plan's without --device.
void report_device(const PlanFlags& flags, const MemoryConfig& config,
                   const std::string& settings_from, const DevicePlan& plan) {
  const auto& d = plan.device;
  const std::int64_t host_free = available_host_bytes();
  const std::int64_t graph = graph_bytes(flags, config);
  const std::int64_t host = plan.host_events + graph;
  const bool device_fits = plan.available < 0 || d.total() <= plan.available;
  const bool host_fits = host_free < 0 || host <= host_free;
  Json advice = Json::array();
  if (!device_fits)
    advice.push_back(fmt::format(
        "device memory: {} are needed and {} are available; set device_bytes below {}, so that "
        "events lie in host memory, or lower n_local or chunk",
        bytes_text(d.total()), bytes_text(plan.available),
        std::max<std::int64_t>(0, plan.available - d.weights - d.activations)));
  if (!host_fits)
    advice.push_back(fmt::format(
        "host memory: {} are needed for events and {} are available; raise device_bytes or read "
        "less text",
        bytes_text(host), bytes_text(host_free)));
  Json json{{"tokens", flags.tokens}, {"fits", device_fits && host_fits}};
  json["device"] = {{"weights", d.weights},       {"activations", d.activations},
                    {"windows", d.windows},       {"representatives", d.representatives},
                    {"event_store", d.events},    {"step", d.step},
                    {"total", d.total()},         {"at_start", plan.at_start},
                    {"available", plan.available}};
  json["host"] = {{"event_store", plan.host_events},
                  {"graph", graph},
                  {"total", host},
                  {"available", host_free}};
  json["disk"] = {{"total", 0}};
  json["advice"] = advice;
  json["settings"] = parse_ordered(to_json(config), "settings", {});
  json["settings_from"] = settings_from;
  flags.json.say(fmt::format(
      "{} tokens\n"
      "  device  {:>10}  weights {}, windows {}, representatives {}, events {}, a step {}; {} at "
      "the start; {}\n"
      "  host    {:>10}  events{}; {}\n"
      "  chosen  {}\n"
      "{}",
      count_text(flags.tokens), bytes_text(d.total()), bytes_text(d.weights), bytes_text(d.windows),
      bytes_text(d.representatives), bytes_text(d.events), bytes_text(d.activations + d.step),
      bytes_text(plan.at_start),
      plan.available < 0 ? std::string("no device here to compare with")
                         : available_text(plan.available, "available"),
      bytes_text(host), graph > 0 ? ", their graph " + bytes_text(graph) : "",
      available_text(host_free, "available"), settings_from, verdict(json)));
  flags.json.write(json);
}

void run(const PlanFlags& flags) {
  require_model_dir(flags.model.model);
  const auto [config, settings_from] = flags.model.new_memory();
  if (const std::optional<DevicePlan> plan =
          plan_for_device(flags.common, flags.model, config, flags.tokens))
    return report_device(flags, config, settings_from, *plan);
  const ModelConfig model = load_model_config(flags.model.model);
  warn_of_window(flags.common, config, model);
  const MemoryShape shape = memory_shape(model, config.n_local);
  bool from_files = false;
  const std::optional<TensorType> rounded = flags.model.options().quantize;
  const std::int64_t weights =
      rounded ? rounded_bytes(model, *rounded) : weight_bytes(flags.model.model, from_files);

  const double mean =
      flags.common.event_tokens > 0 ? flags.common.event_tokens : expected_event_tokens(config);
  const std::int64_t expected = expected_events(flags, config);
  const std::int64_t most = flags.tokens / config.min_block + 1;
  Json advice = Json::array();
  const std::optional<MemoryPlan> planned = attempt(flags, config, shape, expected, advice);
  MemoryPlan plan = planned ? *planned : unbounded(flags, config, shape, expected);
  const CarriedBytes carried = carried_bytes(flags, model, config);
  plan.disk.states += carried.disk;
  const std::int64_t held = weights + carried.host;  // whatever the text

  std::error_code error;
  const std::optional<TierPlace> place = TierPlace::parse(flags.dir);
  fs::path dir = config.disk_dir.empty() ? fs::absolute(place ? fs::path(place->at) : flags.dir)
                                         : fs::path(config.disk_dir);
  while (!fs::exists(dir, error) && dir.has_parent_path() && dir != dir.parent_path())
    dir = dir.parent_path();
  const fs::space_info space = fs::space(dir, error);
  const std::int64_t disk_free = error ? -1 : static_cast<std::int64_t>(space.available);
  const std::int64_t memory_free = available_host_bytes();
  const std::int64_t host = held + plan.host.total();
  const bool host_fits = memory_free < 0 || host <= memory_free;
  const bool disk_fits = disk_free < 0 || plan.disk.total() <= disk_free;
  if (!host_fits)
    advice.push_back(fmt::format(
        "host memory: {} are needed and {} are available; lower host_bytes (events), set "
        "repr_bytes (representatives, now {}) or lower n_local (windows, {})",
        bytes_text(host), bytes_text(memory_free), bytes_text(plan.host.representatives),
        bytes_text(plan.host.windows)));
  if (!disk_fits)
    advice.push_back(fmt::format(
        "{}: {} are needed and {} are free; use another disk, or kv_dtype \"bfloat16\" (half) or "
        "\"int8\" or \"fp8\" (a quarter of float32)",
        dir.string(), bytes_text(plan.disk.total()), bytes_text(disk_free)));
  const auto tiers = [](const MemoryPlan& p) {
    return Json{{"windows", p.host.windows},
                {"representatives", p.host.representatives},
                {"event_store", p.host.event_store},
                {"timeline", p.host.timeline},
                {"graph", p.host.graph}};
  };
  Json json{{"tokens", flags.tokens}, {"events", expected}, {"event_tokens", mean}};
  json["fits"] = planned && host_fits && disk_fits;
  json["device"] = {{"total", 0}};
  json["host"] = tiers(plan);
  json["host"]["weights"] = weights;
  json["host"]["recurrent_states"] = carried.host;
  json["host"]["weights_from"] = from_files ? "files" : "config.json";
  json["host"]["total"] = host;
  json["host"]["available"] = memory_free;
  json["disk"] = {{"segments", plan.disk.segments}, {"vectors", plan.disk.vectors},
                  {"tokens", plan.disk.tokens},     {"states", plan.disk.states},
                  {"total", plan.disk.total()},     {"available", disk_free},
                  {"folder", dir.string()}};
  const auto per_token = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(flags.tokens);
  };
  json["disk"]["per_token"] = per_token(plan.disk.total());
  json["disk"]["by_kv_dtype"] = Json::object();
  std::string smaller;  // kinds that take less
  for (const DType kind : {DType::float32, DType::bfloat16, DType::int8}) {
    const auto bytes = disk_with(flags, config, kind, shape, expected);
    if (!bytes) continue;
    const std::int64_t with_states = *bytes + carried.disk;
    json["disk"]["by_kv_dtype"][name_of(kind)] = with_states;
    if (with_states < plan.disk.total())
      smaller += fmt::format("{}\"{}\" {}", smaller.empty() ? "" : ", ", name_of(kind),
                             bytes_text(with_states));
  }
  json["settings"] = parse_ordered(to_json(config), "settings", {});
  json["settings_from"] = settings_from;
  std::string why_not = "the weights are not here";
  const std::optional<Speed> speed = from_files || rounded
                                         ? probe(flags, config, held + plan.host.windows, why_not)
                                         : std::nullopt;
  std::string time;
  if (speed) {
    const double seconds =
        reading_seconds(*speed, speed->reading_alone, model, config, flags.tokens);
    json["time"] = {{"seconds", seconds},
                    {"tokens_per_second", static_cast<double>(flags.tokens) / seconds},
                    {"probe",
                     {{"tokens", speed->tokens},
                      {"tokens_per_second", speed->reading_alone},
                      {"seconds", speed->seconds}}}};
    time = fmt::format(
        "about {} to read it on these cores, where they are free: {:.0f} tokens a "
        "second (by a probe of {:.1f} s)",
        time_text(seconds), static_cast<double>(flags.tokens) / seconds, speed->seconds);
  } else {
    json["time"] = nullptr;
    json["time_not_known"] = why_not;
    time = fmt::format("not known: {}", why_not);
  }
  Json worst = Json::array();
  const std::optional<MemoryPlan> at_most = attempt(flags, config, shape, most, worst);
  MemoryPlan limit = at_most ? *at_most : unbounded(flags, config, shape, most);
  limit.disk.states += carried.disk;
  json["at_most"] = {{"events", most},
                     {"host", held + limit.host.total()},
                     {"disk", limit.disk.total()},
                     {"fits", at_most.has_value() &&
                                  (memory_free < 0 || held + limit.host.total() <= memory_free) &&
                                  (disk_free < 0 || limit.disk.total() <= disk_free)}};
  json["advice"] = advice;
  flags.json.say(fmt::format(
      "{} tokens in about {} events\n"
      "  memory  {:>10}  weights {}{}{}, windows {}, representatives {}, events {}, "
      "their tables {}{}; {}\n"
      "  disk    {:>10}  events {}, representatives {}, tokens {}, states {}; {}\n"
      "  at most {:>10}  and {} on disk, if every event had {} tokens\n"
      "  a token {:>10}  of disk{}\n"
      "  time    {}\n"
      "  chosen  {}\n"
      "{}",
      count_text(flags.tokens), count_text(expected), bytes_text(host), bytes_text(weights),
      from_files ? "" : " (by config.json)",
      carried.host > 0 ? ", recurrent states " + bytes_text(carried.host) : "",
      bytes_text(plan.host.windows), bytes_text(plan.host.representatives),
      bytes_text(plan.host.event_store), bytes_text(plan.host.timeline),
      plan.host.graph > 0 ? ", their graph " + bytes_text(plan.host.graph) : "",
      available_text(memory_free, "available"), bytes_text(plan.disk.total()),
      bytes_text(plan.disk.segments), bytes_text(plan.disk.vectors), bytes_text(plan.disk.tokens),
      bytes_text(plan.disk.states), available_text(disk_free, "free"),
      bytes_text(held + limit.host.total()), bytes_text(limit.disk.total()), config.min_block,
      bytes_text(static_cast<std::int64_t>(per_token(plan.disk.total()))),
      smaller.empty() ? std::string() : "; all of it with kv_dtype " + smaller, time, settings_from,
      verdict(json)));
  flags.json.write(json);
}

}  // namespace

void add_plan(Command& app) {
  auto flags = std::make_shared<PlanFlags>();
  Command sub = app.subcommand("plan", "What a text will take, before it is read");
  sub.footer(
      "Bytes per tier of a memory kept in --memory-dir, or with --device cuda of a run on a "
      "device, beside\nwhat the machine has; the settings that a new memory gets, and why; and, "
      "where "
      "the weights are there,\nthe time that reading takes here, by a probe of the model for at "
      "most "
      "three seconds. config.json is enough: the weights need not be there "
      "yet (without --device).\n\"fits\" is false and \"advice\" says what to change where "
      "something does not fit; exit code 0 either way.\n\n"
      "Example:\n  episodic plan --model M --tokens 10M --memory-dir book.mem");
  flags->model.add_to(sub, false);
  add_count(sub, "--tokens", flags->tokens, "Length of the text", 1).required();
  sub.option("--memory-dir", flags->dir, "Where the memory will be kept");
  sub.option("--checkpoints", flags->checkpoints, "As of ingest").between(0, 1000).shows_default();
  sub.flag("--no-probe", flags->no_probe,
           "Do not run the model to find out how long reading takes");
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
