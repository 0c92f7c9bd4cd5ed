// SPDX-License-Identifier: Apache-2.0
#include "episodic/store/tier_lease.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <utility>

#include "base/unique_id.hpp"

namespace episodic {
namespace {

std::string this_process() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return fmt::format("process {} on {}", ::getpid(), *host ? host : "a host without a name");
}

}  // namespace

std::unique_ptr<TierLease> TierLease::take(std::shared_ptr<BlockTier> tier, const std::string& name,
                                           double seconds, BlockTier::Lease* other) {
  BlockTier::Lease mine{fmt::format("{:016x}", detail::unique_id()), this_process(), seconds};
  if (auto holder = tier->take_lease(name, mine)) {
    if (other) *other = std::move(*holder);
    return nullptr;
  }
  return std::unique_ptr<TierLease>(new TierLease(std::move(tier), name, std::move(mine)));
}

TierLease::TierLease(std::shared_ptr<BlockTier> tier, std::string name, BlockTier::Lease mine)
    : tier_(std::move(tier)), name_(std::move(name)), mine_(std::move(mine)) {
  renews_ = std::thread([this] {
    const std::chrono::duration<double> pause(mine_.seconds / 3);
    std::unique_lock lock(mutex_);
    while (!stopping_.wait_for(lock, pause, [&] { return stop_; })) {
      lock.unlock();
      try {
        // One that somebody has taken over stays theirs, and the next commit says so.
        if (renew()) return;
      } catch (const std::exception&) {  // a tier that is away may come back
      }
      lock.lock();
    }
  });
}

TierLease::~TierLease() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  renews_.join();
  try {
    tier_->end_lease(name_, mine_.token);
  } catch (const std::exception&) {  // it runs out
  }
}

std::optional<BlockTier::Lease> TierLease::renew() { return tier_->take_lease(name_, mine_); }

}  // namespace episodic
