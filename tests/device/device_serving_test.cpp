// SPDX-License-Identifier: Apache-2.0
// Many answers of a server's scheduler on a device: in the same steps, from one memory that is
// there once, within the room that the device has.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/device/device_engine.hpp"
#include "episodic/server/scheduler.hpp"
#include "kernels/device.hpp"
#include "model/tiny_llama.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

namespace device_serving_test {

using namespace episodic;
using namespace episodic::server;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kMaxTokens = 400;

Ids some_ids(std::size_t n, std::int64_t seed) {
  Ids ids;
  for (std::size_t i = 0; i < n; ++i)
    ids.push_back((static_cast<std::int64_t>(i) * (seed + 7) + seed * seed) % 61);
  return ids;
}

/// A model on a device, and a memory of 200 tokens there, or full attention.
struct House {
  explicit House(bool with_memory = true) {
    TinyShape shape;
    shape.dim = 16;
    shape.hidden = 40;
    shape.inner = 48;
    shape.type = TensorType::f32;
    TinyLlama(shape, 7).write(dir.path());
    model = load_device_model(dir.path());
    auto root = std::make_shared<Sequence>(model);
    if (with_memory) {
      root->attach(parse_memory_config(
                       R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2,
                  "max_block": 6, "n_repr": 2})"),
                   kMaxTokens);
      const Ids text = some_ids(200, 1);
      for (std::size_t at = 0; at < text.size(); at += 10)
        root->step(std::span(text).subspan(at, 10), StepKind::prompt);
    }
    start = std::make_shared<StartingPoint>(std::move(root), kMaxTokens);
  }
  Work work(std::int64_t seed) const {
    Work work;
    work.prompt.text = some_ids(12 + static_cast<std::size_t>(seed) * 5, seed + 20);
    work.options.max_new = 9 + seed;
    work.start = start;
    return work;
  }
  SchedulerOptions options(std::size_t parallel) const {
    SchedulerOptions options;
    options.max_tokens = kMaxTokens;
    options.parallel = parallel;
    return options;
  }

  TempDir dir;
  std::shared_ptr<const Model> model;
  std::shared_ptr<StartingPoint> start;
};

std::vector<Served> all_at_once(Scheduler& scheduler, const House& house, std::int64_t n) {
  std::vector<std::shared_ptr<InFlight>> asked;
  for (std::int64_t i = 0; i < n; ++i)
    asked.push_back(scheduler.submit(scheduler.take_place(), house.work(i)));
  std::vector<Served> all;
  for (const auto& request : asked) {
    while (!request->wait(std::chrono::seconds(10)).ended) {
    }
    all.push_back(request->served());
  }
  return all;
}

TEST_CASE("serving: answers on a device at once are those of one after the other") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool with_memory : {true, false}) {
    INFO((with_memory ? "memory" : "full attention"));
    const House house(with_memory);
    REQUIRE_FALSE(house.start->single());
    std::vector<Ids> alone;
    std::uint64_t steps_alone = 0;
    {
      Scheduler scheduler(house.model, house.options(1));
      for (std::int64_t i = 0; i < 4; ++i)
        alone.push_back(scheduler.answer(house.work(i)).result.ids);
      steps_alone = scheduler.counters().steps;
      REQUIRE(scheduler.counters().sequences == 1);
    }
    Scheduler scheduler(house.model, house.options(4));
    for (int again = 0; again < 2; ++again) {
      const std::vector<Served> together = all_at_once(scheduler, house, 4);
      for (std::size_t i = 0; i < 4; ++i) REQUIRE(together[i].result.ids == alone[i]);
    }
    REQUIRE(scheduler.counters().sequences == 4);
    REQUIRE(scheduler.counters().steps < 2 * steps_alone);
  }
}

#if defined(EPISODIC_EMULATED_CUDA)

TEST_CASE("serving: work waits where a device has no room for another sequence") {
  const emulator::DefaultsBehind behind;
  const House house;
  std::vector<Ids> expected;
  std::int64_t with_one = 0;
  {
    Scheduler scheduler(house.model, house.options(2));
    for (std::int64_t i = 0; i < 4; ++i)
      expected.push_back(scheduler.answer(house.work(i)).result.ids);
  }
  const std::int64_t before = emulator::device_bytes();
  {
    const Sequence one(house.start->sequence()->fork());
    with_one = emulator::device_bytes() - before;
  }
  emulator::set_device_capacity(before + 5 * with_one / 2);
  Scheduler scheduler(house.model, house.options(4));
  const std::vector<Served> together = all_at_once(scheduler, house, 4);
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(together[i].result.ids == expected[i]);
  REQUIRE(scheduler.counters().sequences <= 2);
  REQUIRE(scheduler.counters().failed == 0);
}

TEST_CASE("serving: a device with room for one sequence answers one at a time") {
  const emulator::DefaultsBehind behind;
  const House with_room;
  emulator::set_device_capacity(emulator::device_bytes() + (1 << 10));
  auto root = with_room.start->sequence(true);
  const auto start = std::make_shared<StartingPoint>(root, kMaxTokens);
  REQUIRE(start->single());
  Work work = with_room.work(0);
  work.start = start;
  Scheduler scheduler(with_room.model, with_room.options(1));
  REQUIRE(scheduler.answer(work).result.ids.size() == 9);
}

#endif

TEST_CASE("serving: passages of a memory that lies on a device alone are refused by name") {
  EPISODIC_NEEDS_DEVICE();
  const House house;
  REQUIRE(mentions(
      refusal<ConfigError>([&] { house.start->passages(PassageUse::behind_memory, "why", {}); }),
      "device"));
}

}  // namespace device_serving_test
