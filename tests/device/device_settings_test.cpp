// SPDX-License-Identifier: Apache-2.0
// What a device's memory takes with every number of the settings at the ends of its range and of 64
// bits: it is counted, or refused by name. Nothing is allocated.
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/device/device_memory.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace device_settings_test {

using Member = std::int64_t MemoryConfig::*;

const std::vector<std::pair<const char*, Member>> kLengths = {
    {"n_init", &MemoryConfig::n_init},
    {"n_local", &MemoryConfig::n_local},
    {"n_mem", &MemoryConfig::n_mem},
    {"chunk", &MemoryConfig::chunk},
    {"tau", &MemoryConfig::tau},
    {"min_block", &MemoryConfig::min_block},
    {"max_block", &MemoryConfig::max_block},
    {"min_count", &MemoryConfig::min_count},
    {"n_repr", &MemoryConfig::n_repr},
    {"neighbours", &MemoryConfig::neighbours},
    {"recall_groups", &MemoryConfig::recall_groups},
    {"recall_every", &MemoryConfig::recall_every},
    {"refine_layers", &MemoryConfig::refine_layers},
    {"exact_up_to", &MemoryConfig::exact_up_to},
    {"reweight_top", &MemoryConfig::reweight_top},
    {"device_bytes", &MemoryConfig::device_bytes},
    {"host_bytes", &MemoryConfig::host_bytes},
    {"repr_bytes", &MemoryConfig::repr_bytes},
    {"disk_bytes", &MemoryConfig::disk_bytes},
};

TEST_CASE("a device's plan counts or refuses every number of the settings", "[device][settings]") {
  std::vector<std::int64_t> values{std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max(), 9000000000,
                                   1000000000000000000};
  for (const std::int64_t edge :
       {std::int64_t{0}, std::int64_t{1} << 20, std::int64_t{1} << 31, std::int64_t{1} << 32,
        std::int64_t{1} << 40, std::int64_t{1} << 60, std::int64_t{1} << 62})
    for (const int by : {-1, 0, 1}) values.push_back(edge + by);
  const std::vector<MemoryShape> shapes = {{2, 4, 2, 16, plain_rotary(16, 10000.0)},
                                           {126, 128, 8, 128, plain_rotary(128, 10000.0)}};
  int counted = 0, refused = 0;
  for (const MemoryShape& shape : shapes)
    for (const Reweighting reweight : {Reweighting::none, Reweighting::broad})
      for (const bool each : {false, true})
        for (const std::int64_t max_tokens :
             {std::int64_t{100000}, std::int64_t{1} << 31, std::int64_t{1} << 40,
              std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()})
          for (const auto& [name, member] : kLengths)
            for (const std::int64_t value : values) {
              if (each && reweight != Reweighting::none) continue;
              MemoryConfig config;
              config.*member = value;
              config.reweight = reweight;
              if (each) config.score = RepresentativeScore::max;
              DeviceMemoryOptions options;
              options.max_tokens = max_tokens;
              INFO(name << " = " << value << ", max_tokens = " << max_tokens << ", "
                        << shape.n_layers << " layers, reweight " << name_of(reweight)
                        << (each ? ", score max" : ""));
              DeviceMemoryBytes bytes;
              const std::string said =
                  refusal([&] { bytes = DeviceMemory::bytes_needed(config, shape, options); });
              INFO(said);
              if (said == "no error") {
                ++counted;
                CHECK(bytes.window > 0);
                CHECK(bytes.events >= 0);
                CHECK(bytes.representatives > 0);
                CHECK(bytes.workspace > 0);
                CHECK(bytes.total() < (std::int64_t{1} << 61));
              } else {
                ++refused;
                CHECK(said.size() < 600);
              }
            }
  CHECK(counted > 1000);
  CHECK(refused > 1000);
}

}  // namespace device_settings_test
