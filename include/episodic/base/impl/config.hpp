// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of base/config.hpp; how they become functions: base/inline.hpp.
#include "episodic/base/config.hpp"

#include <array>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace config_detail {

template <class E, std::size_t N>
using Names = std::array<std::pair<E, const char*>, N>;

inline constexpr Names<ThresholdWindow, 2> kWindows{
    {{ThresholdWindow::moving, "moving"}, {ThresholdWindow::chunked, "chunked"}}};
inline constexpr Names<Refinement, 3> kRefinements{{{Refinement::modularity, "modularity"},
                                                    {Refinement::conductance, "conductance"},
                                                    {Refinement::intra_inter, "intra_inter"}}};
inline constexpr Names<SegmenterKind, 6> kSegmenters{{{SegmenterKind::surprise, "surprise"},
                                                      {SegmenterKind::fixed, "fixed"},
                                                      {SegmenterKind::random, "random"},
                                                      {SegmenterKind::given, "given"},
                                                      {SegmenterKind::k_similarity, "k_similarity"},
                                                      {SegmenterKind::gaussian, "gaussian"}}};
inline constexpr Names<EventScope, 2> kScopes{
    {{EventScope::sequence, "sequence"}, {EventScope::head, "head"}}};
inline constexpr Names<RepresentativeScore, 2> kScores{
    {{RepresentativeScore::mean, "mean"}, {RepresentativeScore::max, "max"}}};
inline constexpr Names<IndexKind, 2> kIndexes{
    {{IndexKind::exact, "exact"}, {IndexKind::faiss, "faiss"}}};
inline constexpr Names<Reweighting, 3> kReweightings{{{Reweighting::exact, "exact"},
                                                      {Reweighting::narrow, "narrow"},
                                                      {Reweighting::broad, "broad"}}};
inline constexpr Names<EngramRecall, 2> kEngramRecalls{
    {{EngramRecall::graph, "graph"}, {EngramRecall::attended, "attended"}}};
inline constexpr Names<Wiring, 2> kWirings{
    {{Wiring::hebbian, "hebbian"}, {Wiring::random, "random"}}};
inline constexpr Names<LongTermSearch, 2> kLongTermSearches{
    {{LongTermSearch::graph, "graph"}, {LongTermSearch::full, "full"}}};
inline constexpr Names<DType, 5> kStoredTypes{{{DType::float32, "float32"},
                                               {DType::bfloat16, "bfloat16"},
                                               {DType::float16, "float16"},
                                               {DType::int8, "int8"},
                                               {DType::fp8, "fp8"}}};

template <class E, std::size_t N>
const char* name_in(const Names<E, N>& names, E value, const char* otherwise = "?") {
  for (const auto& [e, name] : names)
    if (e == value) return name;
  return otherwise;
}

inline void require(bool holds, const char* key, double value, const char* range) {
  if (!holds)
    throw ConfigError(concat("memory configuration: ", key, " = ", value, ", must be ", range));
}

inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

inline void in_range(const char* key, std::int64_t value, std::int64_t least,
                     std::int64_t most = kMostTokens) {
  if (value < least || value > most)
    throw ConfigError(concat("memory configuration: ", key, " = ", value, ", must be in [", least,
                             ", ", most, "]"));
}

/// Settings that contradict each other, each with the reason.
inline void check_combinations(const MemoryConfig& c) {
  const auto refuse = [](const std::string& what) {
    throw ConfigError("memory configuration: " + what);
  };
  if (c.scope == EventScope::head && c.recall_groups != 1)
    refuse(concat("scope = \"head\" recalls for each key/value head; recall_groups = ",
                  c.recall_groups, " has nothing to add, leave it out"));
  if (c.reweight != Reweighting::none && c.score == RepresentativeScore::max)
    refuse(
        "reweight needs one vector an event to take a cosine with, score = \"max\" keeps several; "
        "use score = \"mean\"");
  const bool chooses = c.reweight == Reweighting::narrow || c.reweight == Reweighting::broad;
  if (chooses && c.contiguity > 0)
    refuse(concat("reweight = \"", name_of(c.reweight),
                  "\" chooses the events itself; contiguity = ", c.contiguity,
                  " has no part in it, set it to 0",
                  c.reweight == Reweighting::narrow ? " (\"broad\" takes neighbours)" : ""));
  if (!c.retention) return;
  c.retention->memoria.validate();
  if (c.retention->layer < -1) refuse("retention: layer must be a layer's number or null");
  if (c.scope == EventScope::head)
    refuse(
        "retention links the events of one table, scope = \"head\" has one for each head; use "
        "scope = \"sequence\"");
  if (!c.recall)
    refuse(
        "retention judges events by the attention they receive when recalled; it needs recall = "
        "true");
  if (c.retention->recall == EngramRecall::attended &&
      c.retention->memoria.search == LongTermSearch::full)
    refuse(
        "retention: recall = \"attended\" takes what the layers attended to and searches no "
        "long-term memory; search = \"full\" has no part in it, leave it out");
  if (c.score == RepresentativeScore::max)
    refuse(
        "retention needs one vector an event, score = \"max\" keeps several; use score = "
        "\"mean\"");
}

}  // namespace config_detail

EPISODIC_INLINE const char* name_of(ThresholdWindow w) {
  return config_detail::name_in(config_detail::kWindows, w);
}
EPISODIC_INLINE const char* name_of(Refinement r) {
  return config_detail::name_in(config_detail::kRefinements, r, "none");
}
EPISODIC_INLINE const char* name_of(SegmenterKind s) {
  return config_detail::name_in(config_detail::kSegmenters, s);
}
EPISODIC_INLINE const char* name_of(EventScope s) {
  return config_detail::name_in(config_detail::kScopes, s);
}
EPISODIC_INLINE const char* name_of(RepresentativeScore s) {
  return config_detail::name_in(config_detail::kScores, s);
}
EPISODIC_INLINE const char* name_of(IndexKind i) {
  return config_detail::name_in(config_detail::kIndexes, i);
}
EPISODIC_INLINE const char* name_of(Reweighting r) {
  return config_detail::name_in(config_detail::kReweightings, r, "none");
}

EPISODIC_INLINE const char* name_of(EngramRecall r) {
  return config_detail::name_in(config_detail::kEngramRecalls, r);
}
EPISODIC_INLINE const char* name_of(Wiring w) {
  return config_detail::name_in(config_detail::kWirings, w);
}
EPISODIC_INLINE const char* name_of(LongTermSearch s) {
  return config_detail::name_in(config_detail::kLongTermSearches, s);
}

EPISODIC_INLINE void MemoryConfig::validate() const {
  using namespace config_detail;
  in_range("n_init", n_init, 0);
  in_range("n_local", n_local, 1);
  in_range("n_mem", n_mem, 0);
  in_range("chunk", chunk, 1, 1 << 20);
  require(std::isfinite(gamma), "gamma", gamma, "finite");
  in_range("tau", tau, 0);
  in_range("min_block", min_block, 1);
  in_range("max_block", max_block, 1);
  if (min_block > max_block)
    throw ConfigError(concat("memory configuration: min_block = ", min_block,
                             " is larger than max_block = ", max_block,
                             "; lower min_block or raise max_block"));
  in_range("min_count", min_count, 0);
  require(std::isfinite(var_floor) && var_floor > 0, "var_floor", var_floor, "> 0");
  in_range("refine_layers", refine_layers, 0);
  in_range("n_repr", n_repr, 1);
  require(contiguity >= 0 && contiguity <= 1, "contiguity", contiguity, "in [0, 1]");
  in_range("neighbours", neighbours, 1);
  in_range("recall_groups", recall_groups, 1);
  in_range("recall_every", recall_every, 1);
  in_range("exact_up_to", exact_up_to, 0);
  in_range("reweight_top", reweight_top, 1, 1 << 20);
  in_range("device_bytes", device_bytes, 0, kMostBytes);
  in_range("host_bytes", host_bytes, 0, kMostBytes);
  in_range("repr_bytes", repr_bytes, 0, kMostBytes);
  in_range("disk_bytes", disk_bytes, 0, kMostBytes);
  if (recall_layers)
    for (const std::int64_t l : *recall_layers) in_range("recall_layers", l, 0);
  if (index == IndexKind::faiss && repr_bytes > 0)
    throw ConfigError(
        concat("memory configuration: index = \"faiss\" keeps all representatives in host memory "
               "and cannot hold repr_bytes = ",
               repr_bytes, "; use index = \"exact\" or repr_bytes = 0"));
  if (index == IndexKind::faiss && score == RepresentativeScore::max)
    throw ConfigError(
        "memory configuration: index = \"faiss\" searches by inner product and cannot "
        "serve score = \"max\"; use index = \"exact\" or score = \"mean\"");
  check_combinations(*this);
}

EPISODIC_INLINE bool MemoryConfig::same_results(const MemoryConfig& other) const {
  MemoryConfig mine = *this;
  mine.device_bytes = other.device_bytes;
  mine.host_bytes = other.host_bytes;
  mine.repr_bytes = other.repr_bytes;
  mine.disk_bytes = other.disk_bytes;
  mine.disk_dir = other.disk_dir;
  if (mine.effective_min_count() == other.effective_min_count()) mine.min_count = other.min_count;
  return mine == other;
}

}  // namespace EPISODIC_NAMESPACE
