// SPDX-License-Identifier: Apache-2.0
// What a fleet is said to take, beside what runs count, and by hand.
#include "fleet.hpp"

#include <algorithm>

#include "episodic/base/error.hpp"
#include "model/tensor_parallel.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::tools;
using namespace tensor_parallel_test;
using episodic_test::run_ranks;

namespace {

MemoryConfig small_memory(const std::string& more = "") {
  return parse_memory_config(
      R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2, "max_block": 6,
          "gamma": 0.5, "refine": null)" +
      more + "}");
}

template <class F>
std::string refusal_of(const F& f) {
  try {
    f();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

/// Tokens in the events of a table, which follow each other.
std::int64_t tokens_of(const EventTable& events) {
  const EventId n = events.size();
  return n > 0 ? events[n - 1].end - events[0].start : 0;
}

}  // namespace

TEST_CASE("the bytes of a step are those that ranks send") {
  const int ranks = GENERATE(2, 4);
  const std::string more =
      GENERATE("", R"(, "scope": "head", "segmenter": "k_similarity")", R"(, "recall_groups": 4)");
  const TinyShape shape = divided_shape();
  const TempDir dir;
  TinyLlama(shape, 3).write(dir.path());
  const MemoryConfig config = small_memory(more);
  const FleetModel whole = fleet_model(load_model_config(dir.path()));
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    Decoder model = opened(dir.path(), group);
    const auto memory = patch(model, config);
    std::int64_t scored = 0;
    for (std::int64_t step = 0; step < 24; ++step) {
      const std::int64_t n = step % 4 == 2 ? 1 : 10;
      const std::int64_t events = memory->events().size(), before = group->counters().bytes;
      model.step(random_ids(n, shape.vocab, 6 + static_cast<unsigned>(step)), StepKind::prompt);
      // events that all fit are not ranked, and the first rank says which step it is
      const bool ranked = events > 0 && tokens_of(memory->events()) > 2 * config.n_mem;
      if (!ranked) continue;
      ++scored;
      auto expected = static_cast<std::int64_t>(step_sum_bytes(whole, config, n, 1, events, ranks));
      if (group->rank() == 0) expected += (ranks - 1) * 8 * (n + 3);
      require(group->counters().bytes - before == expected, "other bytes");
    }
    require(scored > 5, "nothing was ranked");
  });
}

TEST_CASE("a memory's keys, values and representatives are those that it holds") {
  const TinyShape shape = divided_shape();
  const TempDir dir;
  TinyLlama(shape, 3).write(dir.path());
  const MemoryConfig config = small_memory();
  Decoder model = opened(dir.path(), nullptr);
  const auto memory = patch(model, config);
  for (int step = 0; step < 20; ++step)
    model.step(random_ids(10, shape.vocab, 6 + static_cast<unsigned>(step)), StepKind::prompt);
  const std::int64_t tokens = tokens_of(memory->events()), events = memory->events().size();
  REQUIRE(events > 10);
  const MemoryBytes bytes =
      memory_bytes(fleet_model(load_model_config(dir.path())), config, static_cast<double>(tokens),
                   static_cast<double>(events), 4);
  const StoreCounters counted = memory->counters().store;
  REQUIRE(bytes.events == static_cast<double>(counted.bytes_used));
  REQUIRE(bytes.representatives ==
          static_cast<double>(events * shape.layers * shape.heads * shape.dim * 4));
  REQUIRE(bytes.codes == bytes.representatives / 4);
}

TEST_CASE("seconds, tiers and prices by hand") {
  const TinyShape shape = divided_shape();
  const TempDir dir;
  TinyLlama(shape, 3).write(dir.path());
  const ModelConfig model = load_model_config(dir.path());
  const MemoryConfig config = small_memory(R"(, "kv_dtype": "bfloat16")");
  FleetHardware h = fleet_hardware("cpu");
  h.device_rate = 1e6, h.rate_share = 0.5, h.device_flops = 1e12, h.flops_share = 0.5;
  h.hour_price = 3.6;
  FleetLoad load;
  load.devices = 3;
  load.active = 2;
  load.conversations = 6;
  load.tokens = 1400;
  const Fleet f = estimate_fleet(model, config, h, load);
  REQUIRE(f.does_not_fit.empty());
  REQUIRE(f.replicas == 3);
  REQUIRE(f.memory.n_events == 100);
  const double layers = static_cast<double>(shape.layers);
  const double pairs = 2.0 * static_cast<double>(shape.kv_heads * shape.dim);
  REQUIRE(f.memory.events == 1400 * layers * pairs * 2);
  // all events are on the devices
  REQUIRE(f.device_events == 1.0);
  REQUIRE(f.token[1].bytes == 2 * layers * pairs * 2 * (3 + 16 + 16));
  REQUIRE(f.token[1].seconds == f.token[1].bytes / 0.5e6);
  REQUIRE(f.token[2].bytes == 2 * 100 * layers * static_cast<double>(shape.heads * shape.dim));
  REQUIRE(f.token[3].bytes == 0.0);
  REQUIRE(f.token[5].bytes == 0.0);  // one rank
  double seconds = 0;
  for (const StepCost& part : f.token) seconds += part.seconds;
  REQUIRE(f.token_seconds == seconds);
  REQUIRE(f.written == 3 * 2 / seconds);
  REQUIRE(std::abs(f.price_written - 3 * 1e-3 * 1e6 / f.written) < 1e-9 * f.price_written);

  // what all share lies once on each device, and is searched by each
  load.shared = 700;
  const Fleet together = estimate_fleet(model, config, h, load);
  REQUIRE(together.token[2].bytes == f.token[2].bytes);
  REQUIRE(together.token_seconds == f.token_seconds);
  REQUIRE(std::abs(f.device - together.device -
                   (f.memory.representatives + f.memory.codes + f.memory.events) / 2) < 1e-6);
  load.shared = 0;

  // no room for events: they come from host memory, a tenth of what is recalled anew
  h.device_bytes = f.device - f.memory.events;
  h.host_bytes = 1e9;
  const Fleet tight = estimate_fleet(model, config, h, load);
  REQUIRE(tight.device_events < 0.6);
  REQUIRE(tight.host_events == 1 - tight.device_events);
  REQUIRE(std::abs(tight.token[3].bytes / (2 * 0.1 * 16 * layers * pairs * 2 * tight.host_events) -
                   1) < 1e-12);
  // and no room for windows and representatives
  h.device_bytes = 1e4;
  const Fleet none = estimate_fleet(model, config, h, load);
  REQUIRE(none.does_not_fit.size() == 1);
  REQUIRE(none.does_not_fit[0].find("recall_layers") != std::string::npos);
}

TEST_CASE("what is none is refused by its name") {
  const TinyShape shape = divided_shape();
  const TempDir dir;
  TinyLlama(shape, 3).write(dir.path());
  const ModelConfig model = load_model_config(dir.path());
  const MemoryConfig config = small_memory();
  const auto refused = [&](const FleetLoad& load, const std::string& name) {
    const std::string message =
        refusal_of([&] { estimate_fleet(model, config, fleet_hardware("h200"), load); });
    INFO(message);
    REQUIRE(message.find(name) != std::string::npos);
  };
  refused({.devices = 8, .ranks = 3, .tokens = 10}, "--ranks");
  refused({.devices = 0, .tokens = 10}, "--devices");
  refused({.devices = 8, .ranks = 8, .tokens = 10}, "heads");
  refused({.active = 0, .tokens = 10}, "--active");
  refused({.tokens = 10, .shared = 11}, "--shared");
  refused({.tokens = 10, .event_tokens = 0.5}, "--event-tokens");
  const auto rates = [](const std::string& json) {
    return refusal_of([&] { fleet_hardware("h200", json, "rates.json"); });
  };
  REQUIRE(fleet_hardware("h200", R"({"device_rate": 5e12, "devices": 4})", "").device_rate == 5e12);
  REQUIRE(rates(R"({"speed": 1})").find("device_rate") != std::string::npos);
  REQUIRE(rates(R"({"device_rate": "fast"})").find("rates.json: device_rate") != std::string::npos);
  REQUIRE(refusal_of([] { fleet_hardware("abacus"); }).find("h200") != std::string::npos);
  REQUIRE(refusal_of([&] {
            estimate_fleet(model, config, fleet_hardware("h200", R"({"disk_rate": 0})", ""),
                           {.tokens = 10});
          }).find("disk_rate") != std::string::npos);
}
