// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every result file says of the machine and the build, and how a program ends.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common.hpp"

namespace episodic::bench {

using tools::Json;

/// Processor, cores, threads, commit, compiler, date, and the load that ran beside the benchmark.
/// \param device name of the one that the model ran on, empty for the host
Json environment(const std::string& device = "");

/// Bytes of the last-level cache; 32 MiB if the system does not say.
std::int64_t last_level_cache_bytes();

/// {"min", "median", "max"}. \param values not empty
Json summary(std::vector<double> values);

/// The same with "low" and "high": between them lies the median of what is measured, with a
/// confidence of 95 % (order statistics; few values give the whole range). For ratios of
/// neighbouring runs, whose extremes say more of the machine than of what is compared.
Json summary_with_interval(std::vector<double> values);

double median(std::vector<double> values);

/// Wall and processor seconds since construction or the last lap.
class Laps {
 public:
  struct Times {
    double wall = 0, cpu = 0;
  };
  Laps() { lap(); }
  Times lap();

 private:
  Times last_;
};

/// Parses the flags, runs, and turns exceptions into exit codes: 0 done, 1 failed (one line on
/// stderr), 2 wrong usage.
int run_program(tools::CommandLine& app, int argc, char** argv, const std::function<void()>& run);

}  // namespace episodic::bench
