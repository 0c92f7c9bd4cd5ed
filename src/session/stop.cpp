// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/stop.hpp"

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    if (stop.empty()) throw ConfigError("stop strings must not be empty");
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped()) return {};
  held_ += text;
  std::size_t best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const std::size_t end = at + stop.size();
    if (end > best_end || (end == best_end && stop.size() <= matched_.size())) continue;
    best_end = end;
    matched_ = stop;
  }
  std::size_t keep = 0;  // bytes at the end that begin a stop string
  if (!stopped()) {
    for (const std::string& stop : stops_)
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
        if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
  }
  const std::size_t out = stopped() ? best_end - matched_.size() : held_.size() - keep;
  std::string ready = held_.substr(0, out);
  stopped() ? held_.clear() : static_cast<void>(held_.erase(0, out));
  return ready;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace episodic
