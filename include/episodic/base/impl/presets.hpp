// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of base/presets.hpp; how they become functions: base/inline.hpp.
#include "episodic/base/presets.hpp"

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace presets_detail {

/// EM-LLM's S, which the others begin from: nothing of another system stays.
inline void surprise_alone(MemoryConfig& c) {
  c.segmenter = SegmenterKind::surprise;
  c.scope = EventScope::sequence;
  c.recall_groups = 1;
  c.refine = Refinement::none;
  c.contiguity = 0;
  c.score = RepresentativeScore::mean;
  c.reweight = Reweighting::none;
  c.retention.reset();
}

inline constexpr Preset kPresets[] = {
    {"em-llm-s", "EM-LLM, surprise alone (EM 3.2)", surprise_alone},
    {"em-llm-sm", "EM-LLM, surprise refined by modularity (EM 3.3)",
     [](MemoryConfig& c) {
       surprise_alone(c);
       c.refine = Refinement::modularity;
     }},
    {"em-llm-sm+c", "the same with a contiguity buffer of 0.3 (EM 3.4)",
     [](MemoryConfig& c) {
       surprise_alone(c);
       c.refine = Refinement::modularity;
       c.contiguity = 0.3;
     }},
    {"infllm", "InfLLM: blocks of max_block tokens, no refinement",
     [](MemoryConfig& c) {
       surprise_alone(c);
       c.segmenter = SegmenterKind::fixed;
     }},
    {"hem", "hierarchical events: each head's own, by similarity of keys (HEM 2.2 to 2.4)",
     [](MemoryConfig& c) {
       surprise_alone(c);
       c.segmenter = SegmenterKind::k_similarity;
       c.scope = EventScope::head;
     }},
    {"epman", "EpMAN: entries of 256 tokens, the 5 most relevant and their neighbours (EpMAN 3.5)",
     [](MemoryConfig& c) {
       surprise_alone(c);
       c.segmenter = SegmenterKind::fixed;
       c.max_block = 256;
       c.reweight = Reweighting::broad;
       c.reweight_top = 5;
     }},
    {"memoria", "EM-LLM S whose events live and die by association (Memoria 3)",
     [](MemoryConfig& c) {
       surprise_alone(c);
       c.retention.emplace();
     }},
};

}  // namespace presets_detail

EPISODIC_INLINE std::span<const Preset> presets() { return presets_detail::kPresets; }

EPISODIC_INLINE std::string preset_names() {
  std::string names;
  for (const Preset& p : presets_detail::kPresets)
    names += concat(names.empty() ? "" : ", ", p.name);
  return names;
}

EPISODIC_INLINE void apply_preset(MemoryConfig& config, std::string_view name) {
  for (const Preset& p : presets_detail::kPresets)
    if (name == p.name) return p.apply(config);
  throw ConfigError(concat("preset \"", name, "\": there are ", preset_names()));
}

}  // namespace EPISODIC_NAMESPACE
