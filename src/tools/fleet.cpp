// SPDX-License-Identifier: Apache-2.0
#include "fleet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/group/group.hpp"
#include "episodic/model/tensor_parallel.hpp"
#include "episodic/model/weight_plan.hpp"

namespace episodic::tools {
namespace {

struct Field {
  const char* name;
  double FleetHardware::*value;
  bool positive;
};
constexpr std::array kFields = {
    Field{"device_bytes", &FleetHardware::device_bytes, true},
    Field{"device_rate", &FleetHardware::device_rate, true},
    Field{"device_flops", &FleetHardware::device_flops, true},
    Field{"rate_share", &FleetHardware::rate_share, true},
    Field{"flops_share", &FleetHardware::flops_share, true},
    Field{"link_rate", &FleetHardware::link_rate, true},
    Field{"link_latency", &FleetHardware::link_latency, false},
    Field{"network_rate", &FleetHardware::network_rate, true},
    Field{"network_latency", &FleetHardware::network_latency, false},
    Field{"host_bytes", &FleetHardware::host_bytes, true},
    Field{"host_rate", &FleetHardware::host_rate, true},
    Field{"disk_bytes", &FleetHardware::disk_bytes, true},
    Field{"disk_rate", &FleetHardware::disk_rate, true},
    Field{"hour_price", &FleetHardware::hour_price, false},
};

/// Makers' figures: data sheets of the devices, machines as clouds let them.
std::vector<FleetHardware> known_hardware() {
  constexpr double kG = 1e9, kT = 1e12, kUs = 1e-6;
  FleetHardware h200{.name = "h200", .devices = 8};
  h200.device_bytes = 141 * kG, h200.device_rate = 4.8 * kT, h200.device_flops = 989 * kT;
  h200.link_rate = 450 * kG, h200.link_latency = 10 * kUs;
  h200.network_rate = 50 * kG, h200.network_latency = 20 * kUs;
  h200.host_bytes = 2 * kT, h200.host_rate = 55 * kG;
  h200.disk_bytes = 30 * kT, h200.disk_rate = 40 * kG;
  h200.hour_price = 4;
  FleetHardware h100 = h200;
  h100.name = "h100", h100.device_bytes = 80 * kG, h100.device_rate = 3.35 * kT,
  h100.hour_price = 3;
  FleetHardware a100 = h100;
  a100.name = "a100", a100.device_rate = 2.0 * kT, a100.device_flops = 312 * kT;
  a100.link_rate = 300 * kG, a100.network_rate = 25 * kG, a100.host_rate = 25 * kG;
  a100.disk_rate = 20 * kG, a100.hour_price = 2;
  // One socket of 16 cores with AVX2, as a device of its own.
  FleetHardware cpu{.name = "cpu", .devices = 1, .rate_share = 0.8, .flops_share = 0.6};
  cpu.device_bytes = 256 * kG, cpu.device_rate = 200 * kG, cpu.device_flops = 1.5 * kT;
  cpu.link_rate = 50 * kG, cpu.link_latency = 1 * kUs;
  cpu.network_rate = 3 * kG, cpu.network_latency = 30 * kUs;
  cpu.host_bytes = 256 * kG, cpu.host_rate = 200 * kG;
  cpu.disk_bytes = 8 * kT, cpu.disk_rate = 6 * kG;
  cpu.hour_price = 0.5;
  return {h200, h100, a100, cpu};
}

bool is_vocabulary(WeightRole role) {
  return role == WeightRole::embedding || role == WeightRole::head ||
         role == WeightRole::per_layer_embedding;
}

bool is_expert(WeightRole role) {
  return role == WeightRole::expert_gate || role == WeightRole::expert_up ||
         role == WeightRole::expert_down;
}

/// Layers of a memory that recall.
double recalling(const FleetModel& m, const MemoryConfig& c) {
  if (!c.recall) return 0;
  return c.recall_layers ? static_cast<double>(c.recall_layers->size())
                         : static_cast<double>(m.memory_layers);
}

/// Bytes of a number of an event's keys: a device holds none wider than the model's.
double kv_element(const MemoryConfig& c, double element) {
  return std::min(element, static_cast<double>(size_of(c.kv_dtype)));
}

double row(const FleetModel& m) {  // numbers of a token's keys, or values, of a layer
  return static_cast<double>(m.kv_heads * m.head_dim);
}

/// Whether the scores of a lane are the sum of several ranks'.
bool sums_scores(const FleetModel& m, const MemoryConfig& c, std::int64_t ranks) {
  return ranks > 1 && c.recall && c.scope != EventScope::head &&
         c.lanes_per_layer(m.kv_heads) % ranks != 0;
}

void check(const FleetHardware& h, const FleetLoad& load) {
  const auto positive = [](const char* flag, std::int64_t value) {
    if (value < 1) throw ConfigError(fmt::format("{}: {}, must be at least 1", flag, value));
  };
  positive("--devices", load.devices);
  positive("--ranks", load.ranks);
  positive("--conversations", load.conversations);
  positive("--active", load.active);
  positive("--tokens", load.tokens);
  if (load.shared < 0 || load.shared > load.tokens)
    throw ConfigError(
        fmt::format("--shared: {}, must be at most --tokens {}", load.shared, load.tokens));
  if (!(load.event_tokens >= 1))
    throw ConfigError(fmt::format("--event-tokens: {}, must be at least 1", load.event_tokens));
  if (load.devices % load.ranks != 0)
    throw ConfigError(fmt::format("--ranks: {} do not divide --devices {}; give a divisor of it",
                                  load.ranks, load.devices));
  for (const Field& f : kFields)
    if (!std::isfinite(h.*f.value) || h.*f.value < 0 || (f.positive && h.*f.value == 0))
      throw ConfigError(fmt::format("--hardware: {} = {}, must be {}", f.name, h.*f.value,
                                    f.positive ? "above 0" : "at least 0"));
  if (h.devices < 1)
    throw ConfigError(fmt::format("--hardware: devices = {}, must be at least 1", h.devices));
}

/// Seconds and bytes of the sums of a step of n tokens of so many conversations, of one rank.
StepCost sums(const FleetModel& m, const MemoryConfig& c, const FleetHardware& h, std::int64_t n,
              std::int64_t conversations, std::int64_t n_events, std::int64_t ranks) {
  StepCost cost{.part = "sums between ranks"};
  if (ranks == 1) return cost;
  cost.bytes = step_sum_bytes(m, c, n, conversations, n_events, ranks);
  const bool near = ranks <= h.devices;
  // few bytes go at once; more in two rounds
  const double rounds = Group::sum_bytes(n * m.hidden, 4, static_cast<int>(ranks), 0) ==
                                (ranks - 1) * n * m.hidden * 4
                            ? 1
                            : 2;
  const double messages =
      static_cast<double>(m.summed) * rounds +
      (sums_scores(m, c, ranks) ? 2 * recalling(m, c) * static_cast<double>(conversations) : 0);
  cost.seconds = messages * (near ? h.link_latency : h.network_latency) +
                 cost.bytes / (near ? h.link_rate : h.network_rate);
  return cost;
}

/// Bytes that a step reads of the weights, of one rank, if it has n tokens.
double weight_bytes(const FleetModel& m, const FleetLoad& load, double n) {
  const double met = 1 - std::pow(1 - m.chosen_share, n);  // of the experts, by any of them
  const double layers = m.layer_weights - m.expert_weights + m.expert_weights * met;
  return layers * load.weight_bits / 8 / static_cast<double>(load.ranks) +
         static_cast<double>(m.vocab * m.hidden) * 2;
}

}  // namespace

FleetHardware fleet_hardware(const std::string& name) {
  std::string names;
  for (const FleetHardware& h : known_hardware()) {
    if (h.name == name) return h;
    names += (names.empty() ? "" : ", ") + h.name;
  }
  throw ConfigError(fmt::format("--hardware {}: unknown; there are {}", name, names));
}

FleetHardware fleet_hardware(const std::string& name, const std::string& json,
                             const std::string& label) {
  FleetHardware h = fleet_hardware(name);
  const auto changes = parse_ordered(json, label, {});
  if (!changes.is_object()) throw ConfigError(label + ": must be a JSON object");
  for (const auto& [key, value] : changes.items()) {
    if (!value.is_number()) throw ConfigError(fmt::format("{}: {}: must be a number", label, key));
    if (key == "devices") {
      h.devices = value.get<std::int64_t>();
      continue;
    }
    const auto field =
        std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return key == f.name; });
    if (field == kFields.end()) {
      std::string names = "devices";
      for (const Field& f : kFields) names += fmt::format(", {}", f.name);
      throw ConfigError(fmt::format("{}: {}: unknown; there are {}", label, key, names));
    }
    h.*field->value = value.get<double>();
  }
  return h;
}

FleetModel fleet_model(const ModelConfig& config) {
  FleetModel m;
  m.layers = config.n_layers;
  m.hidden = config.hidden_size;
  m.vocab = config.vocab_size;
  std::set<std::pair<std::string, std::int64_t>> seen;
  double experts = 0, chosen = 0;
  for (const WeightEntry& e : weight_plan(config)) {
    if (!seen.emplace(e.tensor, e.first_row).second) continue;
    const double numbers = static_cast<double>(e.rows) * static_cast<double>(e.columns());
    if (is_vocabulary(e.role)) {
      m.vocab_weights += numbers;
      continue;
    }
    m.layer_weights += numbers;
    if (!is_expert(e.role)) continue;
    const MixtureSpec& mixture = config.layers[static_cast<std::size_t>(e.layer)].mixture;
    experts += numbers;
    chosen += numbers * static_cast<double>(mixture.chosen) / static_cast<double>(mixture.experts);
  }
  m.expert_weights = experts;
  m.chosen_share = experts > 0 ? chosen / experts : 1;
  m.active_weights = m.layer_weights - experts + chosen +
                     static_cast<double>(m.vocab) * static_cast<double>(m.hidden);
  m.summed = 2 * m.layers;
  const std::vector<std::int64_t> served = config.memory_layers();
  m.memory_layers = static_cast<std::int64_t>(served.size());
  const std::set<std::int64_t> of_memory(served.begin(), served.end());
  for (std::int64_t l = 0; l < config.n_layers; ++l) {
    const LayerSpec& s = config.layers[static_cast<std::size_t>(l)];
    if (of_memory.count(l)) {
      m.heads = s.n_heads, m.kv_heads = s.n_kv_heads, m.head_dim = s.head_dim;
    } else if (s.mixer == Mixer::attention) {
      m.local_tokens_bytes +=
          static_cast<double>(std::max<std::int64_t>(s.window, 1) * s.n_kv_heads * s.head_dim) * 4;
    }
  }
  return m;
}

MemoryBytes memory_bytes(const FleetModel& m, const MemoryConfig& c, double tokens, double n_events,
                         double element) {
  MemoryBytes bytes;
  const double layers = static_cast<double>(m.memory_layers),
               in_rings = static_cast<double>(c.n_local + c.chunk);
  bytes.n_events = n_events;
  bytes.windows = layers * row(m) * (3 * in_rings + 2 * static_cast<double>(c.n_init)) * element +
                  m.local_tokens_bytes;
  const double of_event = recalling(m, c) * static_cast<double>(m.heads * m.head_dim);
  bytes.representatives = n_events * of_event * element;
  bytes.codes = n_events * of_event;
  bytes.events = tokens * layers * 2 * row(m) * kv_element(c, element);
  return bytes;
}

double step_sum_bytes(const FleetModel& m, const MemoryConfig& c, std::int64_t n,
                      std::int64_t conversations, std::int64_t n_events, std::int64_t ranks) {
  const int size = static_cast<int>(ranks);
  double bytes = static_cast<double>(m.summed) *
                 static_cast<double>(Group::sum_bytes(n * m.hidden, 4, size, 0));
  if (sums_scores(m, c, ranks))
    bytes += recalling(m, c) * static_cast<double>(conversations) *
             static_cast<double>(Group::sum_bytes(n_events, 4, size, 0));
  return bytes;
}

namespace {

/// What a conversation that is written to adds to a step, of one rank: reads of its window and what
/// it recalls, its search, and what comes from other tiers.
void add_conversations(Fleet& f, const MemoryConfig& c, const FleetHardware& h,
                       const FleetLoad& load, double count, double searches,
                       std::vector<StepCost>& to) {
  const FleetModel& m = f.model;
  const double ranks = static_cast<double>(load.ranks),
               layers = static_cast<double>(m.memory_layers);
  const double rate = h.device_rate * h.rate_share;
  const double pairs = 2 * row(m) / ranks;  // a token's keys and values in a layer
  StepCost window{.part = "attention"};
  window.bytes = count * layers * pairs *
                 (static_cast<double>(c.n_init + c.n_local) * 2 +
                  static_cast<double>(c.n_mem) * kv_element(c, 2));
  window.seconds = window.bytes / rate;
  StepCost search{.part = "search of events"};
  search.bytes = count * searches * (f.memory.codes + f.shared.codes) / ranks;
  search.seconds = search.bytes / rate;
  const double fetched = count * searches * load.changed * static_cast<double>(c.n_mem) *
                         recalling(m, c) * pairs * kv_element(c, 2);
  StepCost host{.part = "events from host memory"}, disk{.part = "events from disk"};
  host.bytes = fetched * (f.host_events + f.disk_events);
  host.seconds = host.bytes / h.host_rate;
  disk.bytes = fetched * f.disk_events;
  disk.seconds = disk.bytes * static_cast<double>(std::min(h.devices, load.devices)) / h.disk_rate;
  to.insert(to.end(), {window, search, host, disk});
}

double seconds_of(const std::vector<StepCost>& parts) {
  double seconds = 0;
  for (const StepCost& part : parts) seconds += part.seconds;
  return seconds;
}

/// Where memories lie. Active ones have windows, representatives and codes on their devices, and
/// events as far as there is room; the others lie in host memory, then on disk.
void place(Fleet& f, const FleetHardware& h, const FleetLoad& load) {
  const double ranks = static_cast<double>(load.ranks), active = static_cast<double>(load.active);
  const double machines =
      std::ceil(static_cast<double>(load.devices) / static_cast<double>(h.devices));
  const MemoryBytes &of = f.memory, &shared = f.shared;
  f.weights = (f.model.layer_weights * load.weight_bits / 8) / ranks + f.model.vocab_weights * 2;
  const double found_by =
      active * (of.representatives + of.codes) + shared.representatives + shared.codes;
  f.device = f.weights + (active * of.windows + found_by) / ranks;
  const double room = std::max(0.0, h.device_bytes * 0.94 - f.device);
  const double events = (active * of.events + shared.events) / ranks;
  f.device_events = events > 0 ? std::min(1.0, room / events) : 1;
  f.device += f.device_events * events;
  if (f.device > h.device_bytes)
    f.does_not_fit.push_back(fmt::format(
        "a device: {} are needed and {} are there, of which weights take {} and representatives "
        "with their codes {}; take more --ranks, fewer --active, longer events (min_block) or "
        "fewer recall_layers",
        bytes_text(static_cast<std::int64_t>(f.device)),
        bytes_text(static_cast<std::int64_t>(h.device_bytes)),
        bytes_text(static_cast<std::int64_t>(f.weights)),
        bytes_text(static_cast<std::int64_t>(found_by / ranks))));
  const double all_active =
      std::min(static_cast<double>(load.conversations), active * static_cast<double>(f.replicas));
  // replicas of one machine read one copy of what is shared
  const double of_shared = shared.events / std::max(1.0, ranks / static_cast<double>(h.devices));
  const double awake = (all_active * of.events / machines + of_shared) * (1 - f.device_events);
  const double asleep = (static_cast<double>(load.conversations) - all_active) *
                        (of.windows + of.representatives + of.events) / machines;
  const double host_room = h.host_bytes * 0.9;
  const double awake_in_host = std::min(awake, host_room);
  f.host = std::min(awake + asleep, host_room);
  f.disk = awake + asleep - f.host;
  const double beside = 1 - f.device_events;
  f.host_events = awake > 0 ? beside * awake_in_host / awake : 0;
  f.disk_events = beside - f.host_events;
  if (f.disk > h.disk_bytes)
    f.does_not_fit.push_back(fmt::format(
        "a machine's disks: {} are needed and {} are there; take more machines, or kv_dtype int8",
        bytes_text(static_cast<std::int64_t>(f.disk)),
        bytes_text(static_cast<std::int64_t>(h.disk_bytes))));
}

}  // namespace

Fleet estimate_fleet(const ModelConfig& config, const MemoryConfig& memory, const FleetHardware& h,
                     const FleetLoad& load) {
  check(h, load);
  if (load.ranks > 1) share_of(config, 0, static_cast<int>(load.ranks));
  Fleet f;
  f.model = fleet_model(config);
  const FleetModel& m = f.model;
  f.replicas = load.devices / load.ranks;
  const auto bytes_of = [&](std::int64_t tokens) {
    const double n = static_cast<double>(tokens);
    return memory_bytes(m, memory, n, std::ceil(n / load.event_tokens), 2);
  };
  f.memory = bytes_of(load.tokens - load.shared);
  f.shared = bytes_of(load.shared);
  f.shared.windows = 0;
  place(f, h, load);
  const double ranks = static_cast<double>(load.ranks), active = static_cast<double>(load.active);
  const double rate = h.device_rate * h.rate_share, flops = h.device_flops * h.flops_share;
  const auto events = static_cast<std::int64_t>(f.memory.n_events + f.shared.n_events);
  const auto products = [&](double n) {
    StepCost cost{.part = "products"};
    cost.bytes = weight_bytes(m, load, n);
    cost.flops = 2 * m.active_weights * n / ranks;
    cost.seconds = std::max(cost.bytes / rate, cost.flops / flops);
    return cost;
  };
  f.token = {products(active)};
  add_conversations(f, memory, h, load, active, 1.0 / static_cast<double>(memory.recall_every),
                    f.token);
  f.token.push_back(sums(m, memory, h, load.active, load.active, events, load.ranks));
  const double n = static_cast<double>(memory.chunk);
  f.chunk = {products(n)};
  add_conversations(f, memory, h, load, 1, 1, f.chunk);
  // scores are made twice: for attention, and for what each key received
  StepCost& attention = f.chunk[1];
  attention.flops = 6 * static_cast<double>(m.heads * m.head_dim * m.memory_layers) * n / ranks *
                    (static_cast<double>(memory.n_init + memory.n_local + memory.n_mem) + n / 2);
  attention.seconds = std::max(attention.seconds, attention.flops / flops);
  f.chunk.push_back(sums(m, memory, h, memory.chunk, 1, events, load.ranks));
  f.token_seconds = seconds_of(f.token);
  f.chunk_seconds = seconds_of(f.chunk);
  const double replicas = static_cast<double>(f.replicas);
  f.written = replicas * active / f.token_seconds;
  f.read = replicas * n / f.chunk_seconds;
  f.wake_seconds = (f.memory.windows + f.memory.representatives) / h.disk_rate;
  const double price = static_cast<double>(load.devices) * h.hour_price / 3600 * 1e6;
  f.price_written = price / f.written;
  f.price_read = price / f.read;
  return f;
}

}  // namespace episodic::tools
