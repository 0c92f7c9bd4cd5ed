// SPDX-License-Identifier: Apache-2.0
#include "support/environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <new>

#include "episodic/base/parallel.hpp"
#include "support/commit.hpp"

namespace episodic::bench {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

std::string cpu_field(const std::string& name) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(name, 0) == 0)
      if (const std::size_t colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown";
}

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

Json environment(const std::string& device) {
  const std::string flags = " " + cpu_field("flags") + " ";
  Json simd = Json::array();
  for (const char* name : {"avx2", "avx512f", "avx512_bf16", "amx_tile"})
    if (flags.find(fmt::format(" {} ", name)) != std::string::npos) simd.push_back(name);
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  Json json{{"cpu", cpu_field("model name")},
            {"cpu_family_model", cpu_field("cpu family") + "/" + cpu_field("model\t")},
            {"simd", simd},
            {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
            {"threads", max_threads()},
            {"last_level_cache_bytes", last_level_cache_bytes()},
            {"load_average_at_start", load},
            {"commit", commit_name()},
            {"compiler", kCompiler},
            {"build_type", EPISODIC_BUILD_TYPE},
            {"date", date}};
  if (!device.empty()) json["device"] = device;
  return json;
}

std::int64_t last_level_cache_bytes() {
  // sysconf would ask the processor, which in a virtual machine tells of the whole host.
  std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::int64_t kib = 0;
  return in >> kib && kib > 0 ? kib << 10 : std::int64_t{32} << 20;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Json summary(std::vector<double> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {{"min", *low}, {"median", median(values)}, {"max", *high}};
}

Json summary_with_interval(std::vector<double> values) {
  Json result = summary(values);
  std::sort(values.begin(), values.end());
  // Of n values, the number below the median is binomial: n / 2, give or take sqrt(n) / 2.
  const auto n = static_cast<double>(values.size());
  const auto skipped = static_cast<std::size_t>(std::max(0.0, (n - 1.96 * std::sqrt(n)) / 2 - 1));
  result["low"] = values[skipped];
  result["high"] = values[values.size() - 1 - skipped];
  return result;
}

Laps::Times Laps::lap() {
  const Times now{seconds_of(CLOCK_MONOTONIC), seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
  const Times passed{now.wall - last_.wall, now.cpu - last_.cpu};
  last_ = now;
  return passed;
}

int run_program(tools::CommandLine& app, int argc, char** argv, const std::function<void()>& run) {
  tools::limit_spinning(argv);
  try {
    if (app.parse(argc, argv)) run();
  } catch (const tools::UsageError& e) {
    return app.refuse(e);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory; lower --context or --layers\n", app.name().c_str());
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", app.name().c_str(), tools::on_one_line(e).c_str());
    return 1;
  }
  return 0;
}

}  // namespace episodic::bench
