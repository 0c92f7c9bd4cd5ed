// SPDX-License-Identifier: Apache-2.0
// Attention sinks on a device: held to the host's memory of the same sinks, step by step.
#include <cmath>
#include <iterator>
#include <vector>

#include "beside_host.hpp"

namespace device_sinks_test {

using namespace device_steps;

TEST_CASE("a device's memory attends with sinks as the host's does", "[device][sinks]") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of();
  const auto tokens = driver::random_tokens(shape, 220, 93);
  const driver::Sinks sinks = driver::random_sinks(shape, 94);
  for (const bool by_head : {false, true}) {
    MemoryConfig config = driver::small_config();
    if (by_head) config.scope = EventScope::head;
    const DeviceMemoryOptions options{DType::float32, 256, DType::float32, 1};
    EpisodicMemory host(config, shape);
    DeviceMemory device(config, shape, options, nullptr);
    const std::int64_t lengths[] = {12, 12, 1, 7, 12, 1, 1, 12};
    std::int64_t recalled = 0;
    for (std::size_t i = 0; host.tokens() + 12 <= 220; ++i) {
      step_both(host, device, tokens, lengths[i % std::size(lengths)], sinks);
      for (std::int64_t l = 0; l < host.lanes(); ++l)
        recalled += static_cast<std::int64_t>(host.recalled(l).recalled().size());
    }
    REQUIRE(recalled > 20);
    for (std::int64_t l = 0; l < shape.n_layers; ++l) {  // keys received as much
      const auto expected = host.relevance(l, host.tokens() - 12, 12);
      const auto got = device.relevance(l, host.tokens() - 12, 12);
      REQUIRE(got.size() == expected.size());
      for (std::size_t k = 0; k < got.size(); ++k) REQUIRE(std::abs(got[k] - expected[k]) < 1e-5f);
    }
  }
}

}  // namespace device_sinks_test
