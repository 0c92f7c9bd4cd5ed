// SPDX-License-Identifier: Apache-2.0
// What the layers of a step recall, and the rows that attention reads of it.
#include "memory_impl.hpp"
#include "views.hpp"

namespace episodic {

using device::emptied;
using device::LowerTiers;

/// Whether what a layer recalls and its rows are one launch: nothing comes between them.
bool DeviceMemory::Impl::recalls_rows(const Layer& layer) const {
  return layer.place >= 0 && step.recalls_now && !tiers.files() && !tiers.has_host_tier() &&
         !sizes.takes_top() && !layers.weighs(layer);
}

/// All between a layer's mean queries and its rows, of memories that share their launches and whose
/// rows are a launch of their own.
void DeviceMemory::Impl::recall_apart(std::int64_t l, std::span<const SequenceStep> steps) {
  auto& recalls = emptied(of_layer.recalls_apart);
  auto& scores = emptied(of_layer.scores);
  auto& scores_of_lists = emptied(of_layer.scores_of_lists);
  auto& tops = emptied(of_layer.tops);
  auto& read = emptied(of_layer.read);
  auto& over_host = emptied(of_layer.over_host);
  const auto is_apart = [&](const Impl& m) {
    return m.step.far && !m.recalls_rows(m.layers.at(l));
  };
  for (const SequenceStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    if (!is_apart(m)) continue;
    const Layer& layer = m.layers.at(l);
    const RecallLists& lists = m.lists_of_step(layer);
    // Also of events that the step before recalled: they are weighed by this step's query.
    if (m.layers.weighs(layer)) scores_of_lists.push_back(m.layers.score_params(layer, &lists));
    if (layer.place < 0 || !m.step.recalls_now) continue;
    if (m.sizes.takes_top()) {
      scores.push_back(m.layers.score_params(layer, nullptr));
      tops.push_back(m.layers.top_params(layer, lists, m.maybe_marks(layer)));
    } else {
      recalls.push_back(m.layers.recall_params(layer, m.step, m.maybe_marks(layer), m.workspace));
    }
  }
  device::launch_batch(kernels::recall_events_batch, recalls, stream, "recall");
  device::launch_batch(kernels::score_events_batch, scores, stream, "scores of events");
  device::launch_batch(kernels::recall_top_batch, tops, stream, "recall");
  for (const SequenceStep& s : steps) {
    Impl& m = *s.memory->impl_;
    if (!is_apart(m)) continue;
    const Layer& layer = m.layers.at(l);
    LowerTiers* const files = m.tiers.files();
    const bool fetches = m.step.recalls_now || (files && m.step.lists_are_written);
    if (layer.place < 0 || !fetches) continue;
    const RecallLists& lists = m.lists_of_step(layer);
    if (files) {
      read.push_back(files->fetch(m.layers.first_lane(layer), lists.recalled, lists.sizes, stream));
      read.back().max_blocks = device::kLinkBlocks;
    }
    if (m.tiers.has_host_tier()) over_host.push_back({&m.tiers, m.step.lists()});
  }
  device::launch_batch(kernels::copy_runs_batch, read, stream, "fetching events");
  for (const SequenceStep& s : steps) {
    Impl& m = *s.memory->impl_;
    if (LowerTiers* const files = m.tiers.files(); files && is_apart(m)) files->copies_launched();
  }
  device::DeviceTiers::swap_in(l, over_host, stream);
  device::launch_batch(kernels::score_events_batch, scores_of_lists, stream, "scores of events");
}

/// Queries, lists and rows of the memories of which something lies outside the window.
void DeviceMemory::Impl::recall(std::int64_t l, std::span<const SequenceStep> steps) {
  auto& queries = emptied(of_layer.queries);
  auto& recalls = emptied(of_layer.recalls);
  auto& recalled_rows = emptied(of_layer.recalled_rows);
  auto& rows_alone = emptied(of_layer.rows_alone);
  for (const SequenceStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    const Layer& layer = m.layers.at(l);
    if (s.step.appended || !m.layers.wants_mean_query(layer, m.step)) continue;
    queries.push_back(m.layers.mean_query_params(layer, m.step.n, m.workspace));
    queries.back().q = s.step.q.data;
    queries.back().q_row_stride = device::row_stride(s.step.q);
  }
  device::launch_batch(kernels::mean_fixed_query_batch, queries, stream, "the mean query");
  for (const SequenceStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    if (!m.step.far) continue;
    const Layer& layer = m.layers.at(l);
    const bool in_one = m.recalls_rows(layer);
    if (in_one)
      recalls.push_back(m.layers.recall_params(layer, m.step, m.maybe_marks(layer), m.workspace));
    (in_one ? recalled_rows : rows_alone)
        .push_back(m.layers.rows_params(layer, m.step, m.tiers.places_of(layer)));
  }
  const auto count = static_cast<std::int64_t>(recalls.size());
  device::check_batch(
      kernels::recall_rows_batch(recalls.data(), recalled_rows.data(), count, stream), "recall",
      count, recalls.data(), recalled_rows.data());
  recall_apart(l, steps);
  device::launch_batch(kernels::far_rows_batch, rows_alone, stream, "far rows");
}

}  // namespace episodic
