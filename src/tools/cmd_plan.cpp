// SPDX-License-Identifier: Apache-2.0
// `episodic plan`: what a text will take, before it is read.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <system_error>

#include "commands.hpp"
#include "common.hpp"
#include "engine.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/safetensors.hpp"

namespace episodic::tools {
namespace {

namespace fs = std::filesystem;

struct PlanFlags {
  CommonFlags common;
  ModelFlags model;
  std::int64_t tokens = 0;
  double event_tokens = 0;
  fs::path dir = ".", json;
  int checkpoints = 4;
};

/// Of the system's memory, in bytes; -1 if it does not say.
std::int64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string key, unit; in >> key;) {
    std::int64_t kilobytes = 0;
    in >> kilobytes;
    std::getline(in, unit);
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return -1;
}

/// Mean event length to reckon with: fixed steps are known; surprise with the settings of the
/// shipped model gave 13.7 tokens at min_block 8, and longer minima lengthen events in proportion.
double expected_event_tokens(const MemoryConfig& c) {
  if (c.segmenter == SegmenterKind::fixed) return static_cast<double>(c.max_block);
  if (c.segmenter == SegmenterKind::random)
    return static_cast<double>(c.min_block + c.max_block) / 2.0;
  return std::min(static_cast<double>(c.max_block), 1.7 * static_cast<double>(c.min_block));
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

double megabytes(std::int64_t bytes) { return 1e-6 * static_cast<double>(bytes); }

/// Device memory, and host memory for what has no room there. What the folder of a kept memory
/// takes besides is the plan's without --device.
void report_device(const PlanFlags& flags, const DevicePlan& plan) {
  const auto& d = plan.device;
  const std::int64_t host_free = available_memory();
  const bool device_fits = plan.available < 0 || d.total() <= plan.available;
  const bool host_fits = host_free < 0 || plan.host_events <= host_free;
  Json advice = Json::array();
  if (!device_fits)
    advice.push_back(fmt::format(
        "device memory: {} bytes are needed and {} are available; set device_bytes below {}, so "
        "that events lie in host memory, or lower n_local or chunk",
        d.total(), plan.available,
        std::max<std::int64_t>(0, plan.available - d.weights - d.activations)));
  if (!host_fits)
    advice.push_back(fmt::format(
        "host memory: {} bytes are needed for events and {} are available; raise device_bytes or "
        "read less text",
        plan.host_events, host_free));
  Json json{{"tokens", flags.tokens}, {"fits", device_fits && host_fits}};
  json["device"] = {{"weights", d.weights},    {"activations", d.activations},
                    {"windows", d.windows},    {"representatives", d.representatives},
                    {"event_store", d.events}, {"step", d.step},
                    {"total", d.total()},      {"available", plan.available}};
  json["host"] = {
      {"event_store", plan.host_events}, {"total", plan.host_events}, {"available", host_free}};
  json["disk"] = {{"total", 0}};
  json["advice"] = advice;
  fmt::print(
      stderr,
      "{} tokens\n"
      "  device {:10.1f} MB  (weights {:.1f}, windows {:.1f}, representatives {:.1f}, events "
      "{:.1f}, a step {:.1f}{})\n"
      "  host   {:10.1f} MB  (events; {:.1f} available)\n"
      "  {}\n",
      flags.tokens, megabytes(d.total()), megabytes(d.weights), megabytes(d.windows),
      megabytes(d.representatives), megabytes(d.events), megabytes(d.activations + d.step),
      plan.available < 0 ? std::string("; no device here to compare with")
                         : fmt::format("; {:.1f} available", megabytes(plan.available)),
      megabytes(plan.host_events), megabytes(host_free),
      json["fits"].get<bool>() ? "it fits" : "it does not fit:");
  for (const Json& line : advice) fmt::print(stderr, "  {}\n", line.get<std::string>());
  write_json(flags.json, json);
}

void run(const PlanFlags& flags) {
  if (const std::optional<DevicePlan> plan = plan_on_device(
          flags.common, flags.model.model, flags.model.memory_config(), flags.tokens))
    return report_device(flags, *plan);
  const ModelConfig model = load_model_config(flags.model.model);
  const MemoryConfig config = flags.model.memory_config();
  const MemoryShape shape = memory_shape(model);
  std::int64_t weights = 0;
  const Weights files(flags.model.model);
  for (const TensorView* t : files.tensors()) weights += 4 * t->elements();  // float32 in memory

  const double mean = flags.event_tokens > 0 ? flags.event_tokens : expected_event_tokens(config);
  const auto expected =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(flags.tokens) / mean));
  const std::int64_t most = flags.tokens / config.min_block + 1;
  Json advice = Json::array();
  const std::optional<MemoryPlan> planned = attempt(flags, config, shape, expected, advice);
  const MemoryPlan plan = planned ? *planned : unbounded(flags, config, shape, expected);

  std::error_code error;
  fs::path dir = config.disk_dir.empty() ? fs::absolute(flags.dir) : fs::path(config.disk_dir);
  while (!fs::exists(dir, error) && dir.has_parent_path() && dir != dir.parent_path())
    dir = dir.parent_path();
  const fs::space_info space = fs::space(dir, error);
  const std::int64_t disk_free = error ? -1 : static_cast<std::int64_t>(space.available);
  const std::int64_t memory_free = available_memory();
  const std::int64_t host = weights + plan.host.total();
  const bool host_fits = memory_free < 0 || host <= memory_free;
  const bool disk_fits = disk_free < 0 || plan.disk.total() <= disk_free;
  if (!host_fits)
    advice.push_back(fmt::format(
        "host memory: {} bytes are needed and {} are available; lower host_bytes (events), set "
        "repr_bytes (representatives, now {} bytes) or lower n_local (windows, {} bytes)",
        host, memory_free, plan.host.representatives, plan.host.windows));
  if (!disk_fits)
    advice.push_back(
        fmt::format("{}: {} bytes are needed and {} are free; use another disk, or kv_dtype "
                    "\"bfloat16\" (half) "
                    "or \"int8\" (a quarter of float32)",
                    dir.string(), plan.disk.total(), disk_free));
  const auto tiers = [](const MemoryPlan& p) {
    return Json{{"windows", p.host.windows},
                {"representatives", p.host.representatives},
                {"event_store", p.host.event_store}};
  };
  Json json{{"tokens", flags.tokens}, {"events", expected}, {"event_tokens", mean}};
  json["fits"] = planned && host_fits && disk_fits;
  json["device"] = {{"total", 0}};
  json["host"] = tiers(plan);
  json["host"]["weights"] = weights;
  json["host"]["total"] = host;
  json["host"]["available"] = memory_free;
  json["disk"] = {{"segments", plan.disk.segments}, {"vectors", plan.disk.vectors},
                  {"tokens", plan.disk.tokens},     {"states", plan.disk.states},
                  {"total", plan.disk.total()},     {"available", disk_free},
                  {"folder", dir.string()}};
  Json worst = Json::array();
  const std::optional<MemoryPlan> at_most = attempt(flags, config, shape, most, worst);
  const MemoryPlan limit = at_most ? *at_most : unbounded(flags, config, shape, most);
  json["at_most"] = {
      {"events", most},
      {"host", weights + limit.host.total()},
      {"disk", limit.disk.total()},
      {"fits", at_most.has_value() &&
                   (memory_free < 0 || weights + limit.host.total() <= memory_free) &&
                   (disk_free < 0 || limit.disk.total() <= disk_free)}};
  json["advice"] = advice;
  fmt::print(
      stderr,
      "{} tokens in about {} events\n"
      "  host   {:10.1f} MB  (weights {:.1f}, windows {:.1f}, representatives {:.1f}, events "
      "{:.1f}; {:.1f} available)\n"
      "  disk   {:10.1f} MB  (events {:.1f}, representatives {:.1f}, tokens {:.1f}, states "
      "{:.1f}; {:.1f} free)\n"
      "  {}\n",
      flags.tokens, expected, megabytes(host), megabytes(weights), megabytes(plan.host.windows),
      megabytes(plan.host.representatives), megabytes(plan.host.event_store),
      megabytes(memory_free), megabytes(plan.disk.total()), megabytes(plan.disk.segments),
      megabytes(plan.disk.vectors), megabytes(plan.disk.tokens), megabytes(plan.disk.states),
      megabytes(disk_free), json["fits"].get<bool>() ? "it fits" : "it does not fit:");
  for (const Json& line : advice) fmt::print(stderr, "  {}\n", line.get<std::string>());
  write_json(flags.json, json);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* sub = app.add_subcommand("plan", "What a text will take, before it is read");
  sub->footer(
      "Bytes per tier of a memory kept in --memory-dir, or with --device cuda of a run on a "
      "device, "
      "beside what the machine has. \"fits\" is "
      "false and\n\"advice\" says what to change where something does not fit; exit code 0 either "
      "way.\n\n"
      "Example:\n  episodic plan --model M --tokens 10000000 --memory-dir book.mem");
  flags->model.add_to(*sub, false);
  sub->add_option("--tokens", flags->tokens, "Length of the text")
      ->required()
      ->check(CLI::PositiveNumber);
  sub->add_option("--event-tokens", flags->event_tokens, "Mean length of an event")
      ->check(CLI::PositiveNumber);
  sub->add_option("--memory-dir", flags->dir, "Where the memory will be kept");
  sub->add_option("--checkpoints", flags->checkpoints, "As of ingest")->check(CLI::Range(0, 1000));
  sub->add_option("--json", flags->json, "Result file (default: stdout)");
  flags->common.add_to(*sub);
  sub->callback([flags] { run(*flags); });
}

}  // namespace episodic::tools
