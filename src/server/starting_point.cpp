// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/starting_point.hpp"

#include <fmt/format.h>

#include <utility>

#include "episodic/base/error.hpp"

namespace episodic::server {

StartingPoint::StartingPoint(std::shared_ptr<Sequence> root, std::int64_t max_tokens)
    : root_(std::move(root)), max_tokens_(max_tokens) {
  if (!root_) throw ConfigError("StartingPoint: the sequence is null");
  tokens_ = root_->tokens();
  ids_ = root_->known_ids();
  const bool memory = root_->has_memory();
  if (memory)
    if (const std::string why = root_->refusal(Capability::snapshot); !why.empty())
      throw ConfigError(
          fmt::format("serving goes back to the same state for each request: {}", why));
  if (memory) usage_ = root_->usage();
  try {
    root_->fork();
  } catch (const ConfigError& e) {  // a device, retention, an index that searching changes
    single_ = true;
    why_single_ = e.what();
    if (memory) here_ = root_->snapshot();
  }
}

std::shared_ptr<Sequence> StartingPoint::sequence() {
  const std::lock_guard lock(mutex_);
  if (!single_) return std::make_shared<Sequence>(root_->fork());
  if (here_)
    root_->restore(*here_);
  else if (root_->tokens() > 0)
    root_->attach_full_attention(max_tokens_);
  return root_;
}

}  // namespace episodic::server
