// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `MemoryConfig`: every setting of an episodic memory. Its JSON form is the same in case files, on
/// command lines, in snapshots and here; unknown keys are errors.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/memoria_config.hpp"

namespace EPISODIC_NAMESPACE {

enum class ThresholdWindow : std::uint8_t { moving, chunked };
enum class Refinement : std::uint8_t { none, modularity, conductance, intra_inter };
enum class SegmenterKind : std::uint8_t { surprise, fixed, random, given, k_similarity, gaussian };
/// Whose events: the sequence's, or each key/value head's of each layer (HEM 2.4).
enum class EventScope : std::uint8_t { sequence, head };
enum class RepresentativeScore : std::uint8_t { mean, max };
enum class IndexKind : std::uint8_t { exact, faiss };
/// How recalled events count in attention (EpMAN 3.2): `exact`, each event's values times
/// its relevance max(0, cosine); `narrow`, the `reweight_top` most relevant events, as they are;
/// `broad`, those and the events next to them.
enum class Reweighting : std::uint8_t { none, exact, narrow, broad };

/// Settings of one memory. Lengths and budgets named n_* are in tokens. Defaults are those of the
/// paper for Mistral-7B (EM D.1), S variant.
struct MemoryConfig {
  // -- context of a query (EM 3.1) --
  std::int64_t n_init = 128;    ///< sink tokens at the start, always attended; >= 0
  std::int64_t n_local = 4096;  ///< local window; >= 1
  std::int64_t n_mem = 2048;    ///< retrieval budget; >= 0
  std::int64_t chunk = 512;     ///< C, tokens of one prefill step; >= 1

  // -- segmentation (EM 3.2) --
  SegmenterKind segmenter = SegmenterKind::surprise;  ///< who sets the raw boundary flags
  /// `head`: each lane (key/value head of a layer) has boundaries, events, representatives and
  /// recall of its own; the segmenters that read keys, and refinement, then read that head's alone.
  EventScope scope = EventScope::sequence;
  /// Threshold mu + gamma * sigma of surprise; mean - gamma * deviation of the segmenters from
  /// keys.
  double gamma = 1.0;
  ThresholdWindow window = ThresholdWindow::moving;  ///< over which tokens mu and sigma are taken
  std::int64_t tau = 0;                              ///< length of that window; 0 = n_local
  std::int64_t min_block = 8;                        ///< shortest event; >= 1
  std::int64_t max_block = 128;  ///< longest event; >= min_block; also the step of `fixed`
  std::uint64_t seed = 0;        ///< of the `random` segmenter
  /// Keys an event holds before one may end it (HEM 2.2). 0: as many as the segmenter needs,
  /// `effective_min_count`.
  std::int64_t min_count = 0;
  double var_floor = 0.01;  ///< least variance of a channel, `gaussian` only; > 0

  // -- refinement (EM 3.3) --
  Refinement refine = Refinement::none;
  std::int64_t refine_layers = 0;  ///< first layer whose keys enter the graph

  // -- recall (EM 3.4) --
  std::int64_t n_repr = 4;      ///< representative tokens per event and query head; >= 1
  double contiguity = 0.0;      ///< k_r, share of the budget for neighbours in time; [0, 1]
  std::int64_t neighbours = 1;  ///< how far those neighbours reach; >= 1
  bool recall = true;           ///< false: sinks, window and pending only
  std::optional<std::vector<std::int64_t>> recall_layers;  ///< layers that recall; absent = all
  /// Groups of key/value heads in a layer that recall by themselves (EM 3.4), a divisor of their
  /// number; one lane each. Scope `head` has as many as heads, whatever this says.
  std::int64_t recall_groups = 1;
  std::int64_t recall_every = 1;  ///< decode steps between two recalls; >= 1
  RepresentativeScore score = RepresentativeScore::mean;  ///< mean vector, or best of n_repr
  IndexKind index = IndexKind::exact;
  std::int64_t exact_up_to = 4096;  ///< events up to which `index: faiss` still searches exactly
  /// Other than none: events are ranked by the cosine of query and representative vector, which
  /// are then kept at unit length.
  Reweighting reweight = Reweighting::none;
  std::int64_t reweight_top = 5;  ///< K of `narrow` and `broad`; >= 1

  // -- what is kept (Memoria 3) --
  std::optional<RetentionConfig> retention;  ///< absent: nothing is ever forgotten by itself

  // -- storage (EM appendix C.3) --
  /// Of keys and values in events and in the window. int8 and fp8 (E4M3) with a scale per head of
  /// an event; their windows stay float32.
  DType kv_dtype = DType::float32;
  /// Upper bound of everything that a memory takes on a CUDA device; 0 = no bound. Without a device
  /// the host's memory is the top tier, and this is not looked at.
  std::int64_t device_bytes = 0;
  /// Upper bound of event storage in host memory. 0: no bound without a disk tier; with one, a
  /// cache of moderate size.
  std::int64_t host_bytes = 0;
  std::int64_t repr_bytes = 0;  ///< upper bound of representatives in host memory; 0 = no bound
  std::int64_t disk_bytes = 0;  ///< upper bound of what the disk tier takes; 0 = no bound
  std::string
      disk_dir;  ///< folder of the disk tier; empty = none. A kept memory has its own folder

  /// The same settings but for budgets and places, which may change from run to run: they decide
  /// where things lie, never what comes out.
  bool same_results(const MemoryConfig& other) const;

  /// tau with its default resolved.
  std::int64_t effective_tau() const { return tau > 0 ? tau : n_local; }

  /// min_count with its default resolved: 4 for `gaussian`, else 1. A variance is of several keys.
  /// That of one or two is so small by chance that the first densities are tens of nats too low;
  /// the threshold then lies below all that follow, and no key ends an event.
  std::int64_t effective_min_count() const {
    if (min_count > 0) return min_count;
    return segmenter == SegmenterKind::gaussian ? kLeastKeysOfGaussian : 1;
  }
  static constexpr std::int64_t kLeastKeysOfGaussian = 4;

  /// Throws ConfigError naming the parameter, its value and the range it must lie in.
  void validate() const;

  /// Lanes of a layer: groups of its key/value heads with events or recall of their own.
  std::int64_t lanes_per_layer(std::int64_t n_kv_heads) const {
    return scope == EventScope::head ? n_kv_heads : recall_groups;
  }

  bool operator==(const MemoryConfig&) const = default;
};

// -- as JSON: in the compiled library alone --

/// Parses the JSON object; absent keys keep their defaults, the result is validated.
/// \throws ConfigError for malformed JSON, an unknown key, a wrong type or a value out of
///         range.
MemoryConfig parse_memory_config(std::string_view json);

/// The JSON object of all settings; parse_memory_config(to_json(c)) == c.
std::string to_json(const MemoryConfig& config);

// -- names --

/// Names as they stand in the JSON ("moving", "modularity", ...).
const char* name_of(ThresholdWindow);
const char* name_of(Refinement);
const char* name_of(SegmenterKind);
const char* name_of(EventScope);
const char* name_of(RepresentativeScore);
const char* name_of(IndexKind);
const char* name_of(Reweighting);
const char* name_of(EngramRecall);
const char* name_of(LongTermSearch);
const char* name_of(Wiring);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/base/impl/config.hpp"
#endif
