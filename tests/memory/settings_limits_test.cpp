// SPDX-License-Identifier: Apache-2.0
// Every number of the settings at the ends of its range and of 64 bits: the memory works with it,
// or says which setting is at fault before room is made for anything.
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/memory/sizes.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace settings_limits_test {

/// The integers among the settings, as the JSON has them, those of retention behind a slash.
std::vector<std::string> integers() {
  MemoryConfig config;
  config.retention.emplace();
  config.recall_layers = std::vector<std::int64_t>{0};
  std::vector<std::string> names;
  const Json all = Json::parse(to_json(config));
  for (const auto& [key, value] : all.items()) {
    if (value.is_number_integer()) names.push_back(key);
    if (value.is_object())
      for (const auto& [inner, of] : value.items())
        if (of.is_number_integer()) names.push_back(key + "/" + inner);
  }
  names.push_back("recall_layers");
  return names;
}

/// The small settings with one number in place of theirs.
std::string with(const std::string& name, const Json& value, const Json& more) {
  Json json = Json::parse(to_json(driver::small_config()));
  // A small cache is soon made. Not where the number may ask for a larger one.
  const std::set<std::string> larger{"n_init", "n_mem", "chunk", "min_block", "max_block"};
  if (!larger.contains(name) && more.empty()) json["host_bytes"] = 1 << 20;
  if (const std::size_t slash = name.find('/'); slash != std::string::npos) {
    json["retention"] = Json::object();
    json["retention"][name.substr(slash + 1)] = value;
  } else {
    json[name] = name == "recall_layers" ? Json::array({value}) : value;
  }
  for (const auto& [key, of] : more.items()) json[key] = of;
  return json.dump();
}

/// Makes a memory in each way there is, and reads a few tokens with it.
/// \return the errors, none of which may be of another kind than the library's
std::string use(const std::string& settings, const MemoryShape& shape, bool reads) {
  const TempDir temp;
  std::string said;
  const auto attempt = [&](const char* what, const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      said += std::string(what) + ": " + e.what() + "\n";
      CHECK(std::string(e.what()).size() < 1000);
    }  // anything else fails the test
  };
  static const auto tokens = driver::random_tokens(driver::small_shape(), 96, 3);
  const auto read = [&](EpisodicMemory& memory) {
    for (std::int64_t at = memory.tokens(); reads && at < 96; at += 12)
      driver::step(memory, tokens, at, std::min<std::int64_t>(12, memory.config().chunk));
  };
  MemoryConfig config;
  attempt("settings", [&] { config = parse_memory_config(settings); });
  if (!said.empty()) return said;
  attempt("plan", [&] { plan_memory(config, shape, 1000000, 100000, true); });
  attempt("plan all", [&] {
    plan_memory(config, shape, std::numeric_limits<std::int64_t>::max(),
                std::numeric_limits<std::int64_t>::max(), true);
  });
  attempt("host memory", [&] {
    MemoryConfig in_host = config;
    in_host.disk_dir.clear();
    const HostMemory memory(in_host, shape);
  });
  attempt("with files", [&] {
    MemoryConfig in_files = config;
    in_files.disk_dir = temp.path().string();
    EpisodicMemory memory(in_files, shape);
    read(memory);
    if (!config.retention) EpisodicMemory over(memory.share());
  });
  attempt("kept", [&] {
    KeepOptions keep;
    keep.dir = temp / "m";
    {
      EpisodicMemory memory = EpisodicMemory::create(keep, config, shape);
      read(memory);
      memory.commit();
    }
    EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::write);
    CHECK(verify_memory(keep.dir).damages.empty());
  });
  return said;
}

const std::vector<std::int64_t>& values() {
  static const std::vector<std::int64_t> all = [] {
    std::set<std::int64_t> v;
    const std::int64_t one = 1;
    for (const std::int64_t edge :
         {std::int64_t{0}, one << 20, one << 31, one << 32, one << 40, one << 60, one << 62})
      for (const std::int64_t by : {-1, 0, 1}) v.insert(edge + by);
    v.insert(std::numeric_limits<std::int64_t>::max());
    v.insert(std::numeric_limits<std::int64_t>::min());
    v.insert(9000000000);
    v.insert(1000000000000000000);
    return std::vector<std::int64_t>(v.begin(), v.end());
  }();
  return all;
}

TEST_CASE("every number of the settings, at every end, works or is refused by name",
          "[memory][settings]") {
  const std::vector<std::string> names = integers();
  CHECK(names.size() > 25);
  int refused = 0, worked = 0;
  std::size_t number = 0;  // by default each setting has a third of the values, in turn
  for (const std::string& name : names) {
    ++number;
    for (const std::int64_t value : values()) {
      if (++number % 3 != 0 && !episodic_test::all_cases()) continue;
      // Windows of the longest steps take half a gigabyte; their allocation is tried elsewhere.
      if (name == "chunk" && value > 4096 && value <= (1 << 20)) continue;
      INFO(name << " = " << value);
      const std::string said = use(with(name, value, Json::object()), driver::small_shape(), true);
      // What is wrong with one number names it, but where it is too small for the others.
      if (!said.empty()) {
        const std::string setting = name.substr(name.find('/') + 1);
        INFO(said);
        const bool plan_only = said.starts_with("plan all:") && said.find('\n') == said.size() - 1;
        CHECK((plan_only || mentions(said, setting) || setting == "layer"));
        refused += !plan_only;
        worked += plan_only;
      }
    }
  }
  CHECK(refused > episodic_test::all_or(200, 66));
  CHECK(worked > episodic_test::all_or(200, 66));
}

TEST_CASE("long lengths with shapes of every size are refused before room is made",
          "[memory][settings]") {
  const std::int64_t most = 1 << 20;
  const std::vector<MemoryShape> shapes = {
      driver::small_shape(1, 1, 1, 2), driver::small_shape(126, 128, 8, 128),
      driver::small_shape(1, most, most, 2), driver::small_shape(1, 1, 1, most),
      driver::small_shape(4, most, most, most)};
  for (const MemoryShape& shape : shapes)
    for (const Json& more :
         {Json::object(), Json{{"kv_dtype", "int8"}}, Json{{"kv_dtype", "bfloat16"}},
          Json{{"scope", "head"}}, Json{{"reweight", "broad"}, {"reweight_top", 1 << 20}},
          Json{{"score", "max"}}})
      for (const char* name : {"n_mem", "n_local", "n_init", "max_block", "n_repr"})
        for (const std::int64_t value :
             {std::int64_t{1} << 31, std::int64_t{9000000000}, std::int64_t{1} << 40,
              std::int64_t{1000000000000000000}}) {
          // A table for each of a million heads takes its time, and is no matter of lengths.
          if (more.contains("scope") && shape.n_kv_heads > 1000) continue;
          INFO(name << " = " << value << ", " << shape.n_layers << " layers, " << shape.n_kv_heads
                    << " heads of " << shape.head_dim << ", " << more.dump());
          const std::string text = with(name, value, more);
          MemoryConfig config;
          if (refusal<ConfigError>([&] { config = parse_memory_config(text); }) != "no error")
            continue;
          // Whatever the sum is, the plan counts it or refuses it.
          std::int64_t total = 0;
          const std::string said = refusal([&] {
            const MemoryPlan plan = plan_memory(config, shape, 1 << 20, 1 << 17, true);
            total = plan.host.total();
            CHECK(plan.host.windows >= 0);
            CHECK(plan.host.event_store >= 0);
            CHECK(plan.host.representatives >= 0);
            CHECK(plan.disk.total() >= 0);
          });
          INFO(said);
          CHECK((said != "no error" || total > 0));
          if (said == "no error") CHECK(least_host_bytes(config, shape) > 0);
        }
}

TEST_CASE("a shape beyond any model is refused", "[memory][settings]") {
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{-1}, (std::int64_t{1} << 20) + 1, std::int64_t{1} << 62})
    for (const int field : {0, 1, 2, 3}) {
      MemoryShape shape = driver::small_shape();
      (field == 0   ? shape.n_layers
       : field == 1 ? shape.n_heads
       : field == 2 ? shape.n_kv_heads
                    : shape.head_dim) = value;
      CHECK(mentions(refusal<ConfigError>([&] { HostMemory(driver::small_config(), shape); }),
                     "memory shape:"));
    }
}

TEST_CASE("settings that the attackers' page crashed with", "[memory][settings]") {
  // The shape of recall-2m6.
  const MemoryShape shape = driver::small_shape(4, 8, 8, 32);
  for (const std::int64_t n_mem : {20000, 40000, 256000, 300000, 3000000}) {
    MemoryConfig config;
    config.n_mem = n_mem;
    const std::int64_t least = least_host_bytes(config, shape);
    for (const std::int64_t bytes : {std::int64_t{0}, least, least + 1, least + 4096}) {
      config.host_bytes = bytes;
      const TempDir temp;
      KeepOptions keep;
      keep.dir = temp / "m";
      EpisodicMemory::create(keep, config, shape).commit();
      EpisodicMemory::open(keep, OpenMode::write);
    }
    config.host_bytes = least - 1;
    const TempDir temp;
    KeepOptions keep;
    keep.dir = temp / "m";
    CHECK(mentions(refusal<BudgetError>([&] { EpisodicMemory::create(keep, config, shape); }),
                   std::to_string(least)));
  }
}

}  // namespace settings_limits_test
