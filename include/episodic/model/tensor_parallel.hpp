// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A model whose heads and feed-forward channels are divided among the ranks of a group
/// (docs/parallel.md). Torch-free.

#include <memory>

#include "episodic/group/group.hpp"
#include "episodic/model/hf_config.hpp"

namespace episodic {

struct OpenModel;  // model/open_model.hpp

/// One rank's share of a model: its heads, whole query groups with their key/value head, and its
/// channels of the feed-forward networks. ModelConfig::ranks says so.
/// \throws ConfigError for a model that is not divided, naming the layer, the reason and the remedy
ModelConfig share_of(const ModelConfig& whole, int rank, int ranks);

/// Makes an open model a rank's share: rows of q, k, v, gate and up, columns of o and down, as they
/// are stored; embedding, norms and head are whole on every rank. Rows lie where they lay, columns
/// are copied. \param group joined by its decoder; of one rank: nothing is done
/// \throws ConfigError as share_of; for columns within a block of a quantised type, naming the
///         tensor; for adapters that are not merged
void take_share(OpenModel& model, std::shared_ptr<Group> group);

}  // namespace episodic
