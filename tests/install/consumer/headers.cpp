// SPDX-License-Identifier: Apache-2.0
// Events of a made-up signal, kept and found again, with headers alone: by the parts, and by the
// memory that puts them together.
#include <vector>

#include "episodic/core.hpp"

namespace {

bool memory_recalls() {
  episodic::MemoryConfig config;
  config.n_init = 2, config.n_local = 8, config.n_mem = 8, config.chunk = 8;
  config.min_block = 2, config.max_block = 8, config.n_repr = 1;
  constexpr std::int64_t kHeads = 2, kDim = 4;
  episodic::HostMemory memory(config, {1, kHeads, 1, kDim, episodic::plain_rotary(kDim, 10000.0)});
  while (memory.tokens() < 96) {
    const auto n = static_cast<std::size_t>(config.chunk);
    std::vector<float> q(n * kHeads * kDim, 0.5f), k(n * kDim), v(k.size(), 1.0f), out(q.size()),
        surprise(n);
    for (std::size_t i = 0; i < n; ++i) {  // a peak, and a direction of its own, every six tokens
      const auto token = static_cast<std::size_t>(memory.tokens()) + i;
      k[i * kDim + token / 6 % kDim] = 1.0f;
      surprise[i] = token % 6 == 0 ? 3.0f : 1.0f;
    }
    memory.begin_step(config.chunk);
    memory.attend(0, q.data(), k.data(), v.data(), out.data());
    memory.end_step(surprise.data());
    for (const float x : out)  // all values are one
      if (x < 0.999f || x > 1.001f) return false;
  }
  return memory.events().size() > 10 && !memory.recalled(0).recalled().empty();
}

}  // namespace

int main() {
  constexpr std::int64_t kTokens = 64, kDim = 4;
  episodic::MemoryConfig config;
  config.n_init = 2;
  config.n_local = 8;
  config.min_block = 2;
  config.max_block = 8;
  config.gamma = 1.0;
  config.validate();

  std::vector<float> surprise(kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t)  // a peak every six tokens
    surprise[static_cast<std::size_t>(t)] = t % 6 == 0 ? 3.0f : 1.0f;
  episodic::Timeline timeline(config, {}, kTokens);
  timeline.begin(kTokens, episodic::StepKind::prompt);
  timeline.read(surprise.data());
  timeline.decide({});
  timeline.commit();

  const auto index = episodic::make_index(config, 1, kDim);
  for (std::int64_t event = 0; event < timeline.events().size(); ++event) {
    std::vector<float> mean(kDim);
    mean[static_cast<std::size_t>(event % kDim)] = 1.0f + static_cast<float>(event);
    index->add(mean.data(), nullptr, 0);
  }
  const std::vector<float> query = {0, 0, 1, 0};
  std::vector<episodic::ScoredEvent> found;
  index->search(query.data(), 1, found);
  // the last event whose vector points where the query does
  const std::int64_t n = timeline.events().size();
  const bool right = memory_recalls() && n > 6 && found.size() == 1 && found[0].event % kDim == 2 &&
                     found[0].event + kDim >= n;
  return right ? 0 : 1;
}
