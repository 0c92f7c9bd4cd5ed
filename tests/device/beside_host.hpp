// SPDX-License-Identifier: Apache-2.0
#pragma once
// A DeviceMemory beside the host's memory of the same settings, step by step.

#include <algorithm>
#include <cmath>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "steps.hpp"

namespace device_steps {

/// Both, after the same steps.
inline void require_same(const EpisodicMemory& host, const DeviceMemory& device) {
  REQUIRE(device.tokens() == host.tokens());
  for (std::int64_t s = 0; s < host.scopes(); ++s) {
    REQUIRE(device.events(s).all() == host.events(s).all());
    REQUIRE(device.forgotten(s) == host.forgotten(s));
  }
  const bool by_time =
      host.config().reweight == Reweighting::narrow || host.config().reweight == Reweighting::broad;
  const auto ordered = [&](std::vector<EventId> list) {  // the device lists a top K by time
    if (by_time) std::sort(list.begin(), list.end());
    return list;
  };
  for (std::int64_t l = 0; l < host.lanes(); ++l) {
    REQUIRE(device.recall_lists(l).similarity == ordered(host.recall_lists(l).similarity));
    REQUIRE(device.recall_lists(l).contiguity == ordered(host.recall_lists(l).contiguity));
    REQUIRE(device.recalled(l) == host.recalled(l).recalled());
    const std::vector<EventId>& gone = device.forgotten(host.scopes() > 1 ? l : 0);
    for (const EventId e : device.recalled(l))
      REQUIRE_FALSE(std::binary_search(gone.begin(), gone.end(), e));
  }
}

inline void step_both(EpisodicMemory& host, DeviceMemory& device, const std::vector<Token>& tokens,
                      std::int64_t n, const driver::Sinks& sinks = {}) {
  const auto expected = driver::step(host, tokens, host.tokens(), n, StepKind::decode, sinks);
  const auto got = step(device, tokens, device.tokens(), n, sinks);
  float most = 0.0f;
  for (std::size_t l = 0; l < got.size(); ++l)
    for (std::size_t i = 0; i < got[l].size(); ++i) {
      const float error = std::abs(got[l][i] - expected[l][i]);
      if (!(error <= most)) most = error;  // NaN too
    }
  REQUIRE(most < 2e-5f);
  require_same(host, device);
}

}  // namespace device_steps
