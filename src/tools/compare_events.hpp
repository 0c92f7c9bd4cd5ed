// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `episodic compare-events` found, as tables and plots.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/compare.hpp"
#include "analysis/recall_overlap.hpp"
#include "common.hpp"

namespace episodic::tools {

/// One story of the report.
struct ComparedStory {
  analysis::StoryResult result;
  double seconds_reading = 0, seconds_comparing = 0;
  /// Of the layers that a memory served; absent with full attention.
  std::optional<analysis::RecallOverlap> recall;
  std::vector<std::int64_t> recall_layers;  ///< numbers of those layers in the model
};

/// What the report says it was made with.
struct ComparisonSettings {
  std::string model, attention, memory_json;
  analysis::CompareOptions options;
};

/// The result as JSON; every boundary is in it.
Json comparison_json(const std::vector<ComparedStory>& stories, const ComparisonSettings& settings);

/// Files by name: report.md, segmentations.csv, layers.csv, heads.csv, recall.csv, and plots.
std::vector<std::pair<std::string, std::string>> comparison_files(
    const std::vector<ComparedStory>& stories, const ComparisonSettings& settings);

/// A table for a terminal: each method beside random, the mean over the stories.
std::string comparison_summary(const std::vector<ComparedStory>& stories);

}  // namespace episodic::tools
