// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whether launches may begin while the one before them ends (launch_early.cuh), for who makes
/// them.

namespace episodic::kernels {

/// Of the calling thread: whether its launches of kernels that can begin early, on a device that
/// can let them, do so. True unless an EarlyLaunches says otherwise.
inline bool& early_launches_allowed() {
  static thread_local bool allowed = true;
  return allowed;
}

/// Says so while it lives. The last one made decides.
class EarlyLaunches {
 public:
  explicit EarlyLaunches(bool allowed) : before_(early_launches_allowed()) {
    early_launches_allowed() = allowed;
  }
  ~EarlyLaunches() { early_launches_allowed() = before_; }
  EarlyLaunches(const EarlyLaunches&) = delete;
  EarlyLaunches& operator=(const EarlyLaunches&) = delete;

 private:
  bool before_;
};

}  // namespace episodic::kernels
