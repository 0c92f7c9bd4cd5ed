// SPDX-License-Identifier: Apache-2.0
#pragma once
// What many conversations over long memories take of many devices: by arithmetic, from shapes,
// rates and latencies. Nothing here runs a model.

#include <cstdint>
#include <string>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/model/hf_config.hpp"

namespace episodic::tools {

/// A device and the machine around it. Rates in bytes a second, latencies in seconds.
struct FleetHardware {
  std::string name;
  std::int64_t devices = 8;  ///< in a machine
  double device_bytes = 0;
  double device_rate = 0;     ///< of its memory
  double device_flops = 0;    ///< of dense 16-bit products
  double rate_share = 0.56;   ///< of device_rate that a token reaches, and
  double flops_share = 0.36;  ///< of device_flops that reading reaches
  double link_rate = 0;       ///< between devices of a machine, one way, of each device
  double link_latency = 0;    ///< of a message there
  double network_rate = 0;    ///< between machines, one way, of each device
  double network_latency = 0;
  double host_bytes = 0;  ///< of a machine's memory
  double host_rate = 0;   ///< from there to a device, of each device
  double disk_bytes = 0;  ///< of a machine's disks
  double disk_rate = 0;   ///< of all of them together
  double hour_price = 0;  ///< of a device
};

/// "h200", "h100", "a100", "cpu". \throws ConfigError that lists them
FleetHardware fleet_hardware(const std::string& name);
/// The same changed by a JSON object of these fields. \throws ConfigError naming the field
FleetHardware fleet_hardware(const std::string& name, const std::string& json,
                             const std::string& label);

/// What is asked of the fleet.
struct FleetLoad {
  std::int64_t devices = 8;        ///< of the fleet
  std::int64_t ranks = 1;          ///< devices that compute one model
  std::int64_t conversations = 1;  ///< in all
  std::int64_t active = 1;         ///< of those that a replica writes at once
  std::int64_t tokens = 0;         ///< of a conversation's memory
  std::int64_t shared = 0;         ///< of those, what all conversations share (a base)
  double event_tokens = 14;        ///< mean length of an event
  double weight_bits = 16;         ///< of a weight of the layers
  double changed = 0.1;            ///< share of the recalled tokens that the recall before had not
};

/// A model's shapes, as they cost. Of the whole model.
struct FleetModel {
  std::int64_t layers = 0, hidden = 0, vocab = 0;
  double layer_weights = 0;   ///< numbers in all layers
  double active_weights = 0;  ///< of which a token uses
  double expert_weights = 0;  ///< of layer_weights: those that some tokens use
  double chosen_share = 1;    ///< of the experts, for a token
  double vocab_weights = 0;   ///< head and embedding; once where they are tied
  std::int64_t summed = 0;    ///< products of a step whose outputs ranks add up
  std::int64_t memory_layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double local_tokens_bytes = 0;  ///< of layers that no memory serves: their windows
};

FleetModel fleet_model(const ModelConfig& config);

/// Bytes of a conversation's memory, of all ranks together.
struct MemoryBytes {
  double windows = 0;          ///< keys before and after rotation, values, sinks
  double representatives = 0;  ///< of events
  double codes = 0;            ///< of those, which a search reads
  double events = 0;           ///< keys and values
  double n_events = 0;
};
/// \param element bytes of a number of windows and representatives
MemoryBytes memory_bytes(const FleetModel& model, const MemoryConfig& config, double tokens,
                         double n_events, double element);

/// Bytes that one rank sends for a step of n tokens of so many conversations with `n_events` events
/// each: sums of o and down, and of scores where ranks recall together (docs/parallel.md). Rank 0's
/// step ids, an outcome and boundaries that move come on top.
double step_sum_bytes(const FleetModel& model, const MemoryConfig& config, std::int64_t n,
                      std::int64_t conversations, std::int64_t n_events, std::int64_t ranks);

/// Where a step's time goes, of one replica.
struct StepCost {
  std::string part;
  double bytes = 0, flops = 0, seconds = 0;
};

struct Fleet {
  FleetModel model;
  MemoryBytes memory;  ///< of a conversation, but for what all share
  MemoryBytes shared;  ///< that, without windows
  std::int64_t replicas = 0;
  double weights = 0;  ///< bytes on a device
  double device = 0;   ///< bytes on a device, with what is active
  double device_events = 0, host_events = 0, disk_events = 0;  ///< shares of events by tier
  double host = 0, disk = 0;                                   ///< bytes on a machine
  std::vector<StepCost> token;  ///< of a step in which every active conversation writes one
  std::vector<StepCost> chunk;  ///< of a chunk that is read
  double token_seconds = 0, chunk_seconds = 0;
  double written = 0, read = 0;              ///< tokens a second of the fleet
  double wake_seconds = 0;                   ///< to bring its windows and representatives from disk
  double price_written = 0, price_read = 0;  ///< of a million tokens
  std::vector<std::string> does_not_fit;     ///< with the remedy
};

/// \throws ConfigError naming the flag for numbers that no fleet has, or ranks that do not divide
/// the model
Fleet estimate_fleet(const ModelConfig& model, const MemoryConfig& config,
                     const FleetHardware& hardware, const FleetLoad& load);

}  // namespace episodic::tools
