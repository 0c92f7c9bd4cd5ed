// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the papers' options cost: two memories read the same stream, one with an option and one
// without it, chunk by chunk in turn.

#include <string>

#include "support/environment.hpp"
#include "support/layer_flags.hpp"

namespace episodic::bench {

/// Measures every option beside its counterpart, at the shape, context and number of chunks of the
/// flags; their own segmenter, scope, reweight and retention are not looked at.
///
/// - Segmenters from keys: beside a memory that is given the same boundaries, so that both have
///   the same events and what differs is who found them.
/// - `scope: head`: beside the same segmenter over the sequence.
/// - Reweighting and retention: beside a memory without. `own_share` of reweighting is what recall,
///   closing and store took more than there, of the chunk: attention does the same work for a key
///   whatever its value's weight, and takes longer or shorter only as it has more keys or fewer
///   (`keys_ratio`).
/// - The graph of a `Memoria` that holds `engrams` engrams of this layer's width, beside the
///   layer's chunk; it takes as many new ones a step as a chunk closes events on average.
///
/// A segmenter from keys gets the gamma at which the keys that it takes together give about one
/// boundary in `boundary_every` (HEM 2.4), so that all rows have events of about one length.
///
/// \param only rows whose option holds this text, and always the one that compares a memory with
///   itself; empty: all
/// \return {"rows": [{"option", "beside", "limit", "ratio", "ratio_cpu", "own_share", ...}]}; a
///   ratio is the option's seconds a chunk over those beside it, of neighbouring chunks, as
///   {"min", "median", "max", "low", "high"} (`summary_with_interval`). `own_share`, of segmenters
///   from keys: processor seconds of the segmenter by itself on a chunk's keys, over those of the
///   chunk beside it.
Json option_costs(const LayerFlags& flags, std::int64_t engrams, const std::string& only = "");

/// The rows as a table in Markdown.
std::string option_table(const Json& costs);

}  // namespace episodic::bench
