// SPDX-License-Identifier: Apache-2.0
// `episodic fleet`: what many conversations over long memories take of many devices, computed.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "fleet.hpp"

namespace episodic::tools {
namespace {

struct FleetFlags {
  CommonFlags common;
  ModelFlags model;
  FleetLoad load{.tokens = 1'000'000};
  std::string hardware = "h200", changes;
  JsonFlag json;
};

std::string size_text(double bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); }

Json costs_json(const std::vector<StepCost>& parts) {
  Json json = Json::array();
  for (const StepCost& p : parts)
    json.push_back(
        {{"part", p.part}, {"bytes", p.bytes}, {"flops", p.flops}, {"seconds", p.seconds}});
  return json;
}

std::string costs_text(const char* title, const std::vector<StepCost>& parts, double seconds) {
  std::string text = fmt::format("{}: {:.2f} ms on each device\n", title, seconds * 1e3);
  for (const StepCost& p : parts)
    text += fmt::format("  {:<26} {:>10} {:>12} {:>10.3f} ms\n", p.part, size_text(p.bytes),
                        p.flops > 0 ? fmt::format("{:.2f} Tflop", p.flops / 1e12) : "",
                        p.seconds * 1e3);
  return text;
}

Json fleet_json(const FleetFlags& flags, const FleetHardware& h, const Fleet& f) {
  Json json{{"fits", f.does_not_fit.empty()}, {"advice", f.does_not_fit}};
  json["hardware"] = {{"name", h.name}, {"devices_of_a_machine", h.devices}};
  json["load"] = {{"devices", flags.load.devices}, {"ranks", flags.load.ranks},
                  {"replicas", f.replicas},        {"conversations", flags.load.conversations},
                  {"active", flags.load.active},   {"tokens", flags.load.tokens},
                  {"shared", flags.load.shared}};
  json["conversation"] = {{"events", f.memory.n_events},
                          {"windows", f.memory.windows},
                          {"representatives", f.memory.representatives},
                          {"codes", f.memory.codes},
                          {"event_store", f.memory.events}};
  json["shared"] = {{"events", f.shared.n_events},
                    {"representatives", f.shared.representatives},
                    {"codes", f.shared.codes},
                    {"event_store", f.shared.events}};
  json["device"] = {{"weights", f.weights}, {"total", f.device}, {"room", h.device_bytes}};
  json["machine"] = {
      {"host", f.host}, {"host_room", h.host_bytes}, {"disk", f.disk}, {"disk_room", h.disk_bytes}};
  json["events_in"] = {
      {"device", f.device_events}, {"host", f.host_events}, {"disk", f.disk_events}};
  json["token"] = {{"seconds", f.token_seconds}, {"parts", costs_json(f.token)}};
  json["chunk"] = {{"seconds", f.chunk_seconds}, {"parts", costs_json(f.chunk)}};
  json["tokens_per_second"] = {{"written", f.written}, {"read", f.read}};
  json["wake_seconds"] = f.wake_seconds;
  json["price_of_million"] = {{"written", f.price_written}, {"read", f.price_read}};
  return json;
}

std::string fleet_text(const FleetFlags& flags, const FleetHardware& h, const Fleet& f) {
  const MemoryBytes& of = f.memory;
  std::string text = fmt::format(
      "computed, not measured: {} devices ({}), {} of them for one model, {} replicas\n"
      "a conversation of {} tokens in {} events{}\n"
      "  {} of windows, {} of representatives, {} of their codes, {} of keys and values\n"
      "of {} conversations each replica writes {} at once\n"
      "  device  {:>10} of {}, weights {}\n"
      "  host    {:>10} of {}, of a machine with {} devices\n"
      "  disk    {:>10} of {}\n"
      "  events of those that are written: {:.0f} % on devices, {:.0f} % in host memory, {:.0f} % "
      "on disk\n",
      count_text(flags.load.devices), h.name, count_text(flags.load.ranks), count_text(f.replicas),
      count_text(flags.load.tokens - flags.load.shared),
      count_text(static_cast<std::int64_t>(of.n_events)),
      flags.load.shared > 0
          ? fmt::format(", behind {} that all share", count_text(flags.load.shared))
          : "",
      size_text(of.windows), size_text(of.representatives), size_text(of.codes),
      size_text(of.events), count_text(flags.load.conversations), count_text(flags.load.active),
      size_text(f.device), size_text(h.device_bytes), size_text(f.weights), size_text(f.host),
      size_text(h.host_bytes), h.devices, size_text(f.disk), size_text(h.disk_bytes),
      100 * f.device_events, 100 * f.host_events, 100 * f.disk_events);
  text += costs_text("a token of each of them", f.token, f.token_seconds);
  text += costs_text("a chunk of one of them", f.chunk, f.chunk_seconds);
  text += fmt::format(
      "the fleet writes {} tokens a second, or reads {}\n"
      "  a million tokens written {:.2f}, read {:.3f}, where a device costs {:.2f} an hour\n"
      "  {:.2f} s to bring a conversation back from disk\n",
      count_text(static_cast<std::int64_t>(f.written)),
      count_text(static_cast<std::int64_t>(f.read)), f.price_written, f.price_read, h.hour_price,
      f.wake_seconds);
  text += f.does_not_fit.empty() ? "it fits\n" : "it does not fit:\n";
  for (const std::string& line : f.does_not_fit) text += fmt::format("  {}\n", line);
  return text;
}

void run(FleetFlags flags) {
  const ModelConfig model = load_model_config(flags.model.model);
  const MemoryConfig config = flags.model.new_memory_config();
  const FleetHardware h =
      flags.changes.empty()
          ? fleet_hardware(flags.hardware)
          : fleet_hardware(flags.hardware, read_text(flags.changes), flags.changes);
  flags.load.event_tokens = flags.common.event_tokens > 0 ? std::max(1.0, flags.common.event_tokens)
                                                          : expected_event_tokens(config);
  const Fleet f = estimate_fleet(model, config, h, flags.load);
  flags.json.say(fleet_text(flags, h, f));
  Json json = fleet_json(flags, h, f);
  json["settings"] = settings_json(config);
  flags.json.write(json);
}

}  // namespace

void add_fleet(Command& app) {
  auto flags = std::make_shared<FleetFlags>();
  Command sub = app.subcommand("fleet", "What many conversations take of many devices");
  sub.footer(
      "Arithmetic from shapes, rates and latencies: bytes in every tier and on every wire, tokens "
      "a "
      "second, cost.\nNo model runs, and config.json is enough. \"fits\" is false and \"advice\" "
      "says what to change; exit code 0\neither way. docs/fleet.md has the formulas and what they "
      "leave out.\n\n"
      "Example:\n  episodic fleet --model M --devices 8 --ranks 2 --conversations 100 --active 4 "
      "--tokens 10M");
  flags->model.add_to(sub, false);
  FleetLoad& load = flags->load;
  sub.option("--hardware", flags->hardware, "Devices and the machine around them")
      .one_of({"h200", "h100", "a100", "cpu"})
      .shows_default();
  sub.option("--rates", flags->changes, "JSON file with other rates, sizes and prices of these")
      .type_name("FILE");
  add_count(sub, "--devices", load.devices, "Of the fleet", 1);
  add_count(sub, "--ranks", load.ranks, "Devices that compute one model together", 1);
  add_count(sub, "--conversations", load.conversations, "In all", 1);
  add_count(sub, "--active", load.active, "Of those, what each replica writes at once", 1);
  add_count(sub, "--tokens", load.tokens, "Of a conversation's memory", 1);
  add_count(sub, "--shared", load.shared, "Of those, the ones that all conversations share");
  sub.option("--weight-bits", load.weight_bits, "Bits of a weight of the layers")
      .positive()
      .shows_default();
  sub.option("--changed", load.changed, "Share of recalled tokens that the recall before had not")
      .fraction()
      .shows_default();
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
