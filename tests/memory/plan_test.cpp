// SPDX-License-Identifier: Apache-2.0
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/plan.hpp"

using namespace episodic;

namespace {

EpisodicMemory filled(const MemoryConfig& config, const MemoryShape& shape, std::int64_t tokens) {
  EpisodicMemory memory(config, shape);
  const auto stream = driver::random_tokens(shape, tokens, 3);
  for (std::int64_t at = 0; at < tokens; at += config.chunk)
    driver::step(memory, stream, at, std::min(config.chunk, tokens - at));
  return memory;
}

}  // namespace

TEST_CASE("a plan says what a memory then takes", "[memory][plan]") {
  const TempDir temp;
  const MemoryShape shape = driver::small_shape(3, 4, 2, 16);
  for (const bool disk : {false, true})
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      MemoryConfig config = driver::small_config();
      config.kv_dtype = dtype;
      if (disk) config.disk_dir = temp.path().string();
      const EpisodicMemory memory = filled(config, shape, 2000);
      const MemoryCounters c = memory.counters();
      const MemoryPlan plan =
          plan_memory(config, shape, memory.tokens(), memory.events().size(), false);
      CHECK(plan.host.windows == c.window_bytes);
      CHECK(plan.host.representatives >= c.index_bytes);
      CHECK(plan.host.representatives < 2 * c.index_bytes);
      if (disk) {
        CHECK(plan.host.event_store >= c.store.bytes_reserved);
        CHECK(plan.disk.segments > 0);
      } else {
        CHECK(plan.host.event_store >= c.store.bytes_used);
        CHECK(plan.host.event_store < 1.1 * static_cast<double>(c.store.bytes_used) + 100 * 256);
        CHECK(plan.disk.total() == 0);
      }
    }
}

TEST_CASE("a plan that cannot be kept is refused by the budget's name", "[memory][plan]") {
  const MemoryShape shape = driver::small_shape(3, 4, 2, 16);
  MemoryConfig config = driver::small_config();
  const auto said = [&](bool kept) {
    return refusal<BudgetError>([&] { plan_memory(config, shape, 100000, 10000, kept); });
  };
  CHECK(said(false) == "no error");
  config.host_bytes = 1 << 20;
  CHECK(mentions(said(false), "host_bytes"));
  CHECK(said(true) == "no error");
  config.host_bytes = 1000;
  CHECK(mentions(said(true), "host_bytes"));
  config.host_bytes = 0;
  config.disk_bytes = 1 << 20;
  CHECK(mentions(said(true), "disk_bytes"));
  config.disk_bytes = 0;
  config.repr_bytes = 1000;
  CHECK(mentions(said(true), "repr_bytes"));
}
