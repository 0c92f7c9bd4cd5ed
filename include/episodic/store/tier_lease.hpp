// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `TierLease`: the right of one writer to a name on a tier, for as long as this object lives.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "episodic/base/inline.hpp"
#include "episodic/store/block_tier.hpp"

namespace EPISODIC_NAMESPACE {

/// A thread renews it each third of its time. If the process dies, it runs out. If the process
/// sleeps through its time another writer may take it: `renew` tells, and BlockTier::exchange
/// refuses whoever is late.
class TierLease {
 public:
  /// \param seconds after which others may have it if it is not renewed
  /// \param other gets who has it \return null if another one has it \throws FileError
  static std::unique_ptr<TierLease> take(std::shared_ptr<BlockTier> tier, const std::string& name,
                                         double seconds, BlockTier::Lease* other = nullptr);
  /// Gives it back.
  ~TierLease();
  TierLease(const TierLease&) = delete;
  TierLease& operator=(const TierLease&) = delete;

  /// \return who has it now, if not this one \throws FileError
  std::optional<BlockTier::Lease> renew();

 private:
  TierLease(std::shared_ptr<BlockTier> tier, std::string name, BlockTier::Lease mine);

  std::shared_ptr<BlockTier> tier_;
  std::string name_;
  BlockTier::Lease mine_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread renews_;
};

}  // namespace EPISODIC_NAMESPACE
