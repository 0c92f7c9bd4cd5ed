// SPDX-License-Identifier: Apache-2.0
// DeviceMemory against its host twin and the float64 reference.
#include "episodic/device/device_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "steps.hpp"
#include "support/temp_dir.hpp"

namespace {

using namespace device_steps;

/// Feeds both memories the same steps and compares everything that can be seen.
void compare(const MemoryConfig& config, const MemoryShape& shape, DType dtype, std::int64_t total,
             std::vector<std::int64_t> given = {}) {
  std::vector<Token> tokens = driver::random_tokens(shape, total, 5);
  round_to(tokens, dtype);
  EpisodicMemory host(config, shape, given);
  DeviceMemory device(config, shape, {dtype, total}, nullptr, given);
  std::mt19937 random(9);
  std::int64_t far_steps = 0, recalled_events = 0;
  for (std::int64_t first = 0; first < total;) {
    // chunks of every length, decoding between them
    const std::int64_t n = std::min<std::int64_t>(
        total - first,
        random() % 3 == 0 ? 1 : 1 + static_cast<std::int64_t>(random()) % config.chunk);
    const auto expected = driver::step(host, tokens, first, n);
    const std::int64_t pending = device.events().pending_start();
    const EventTable before = device.events();
    const auto got = step(device, tokens, first, n);
    first += n;
    far_steps += first > config.n_local;

    const StepRecord a = host.last_step(), b = device.last_step();
    REQUIRE(b.first == a.first);
    REQUIRE(b.n == a.n);
    REQUIRE(b.events_before == a.events_before);
    REQUIRE(b.threshold == a.threshold);
    REQUIRE(b.raw_boundaries == a.raw_boundaries);
    REQUIRE(device.tokens() == host.tokens());
    if (dtype == DType::float32 || config.refine == Refinement::none) {
      REQUIRE(b.final_boundaries == a.final_boundaries);
      REQUIRE(device.events().all() == host.events().all());
      REQUIRE(device.events().pending_start() == host.events().pending_start());
    }
    for (std::int64_t l = 0; l < shape.n_layers; ++l) {
      const std::vector<EventId> recalled = device.recalled(l);
      // In 16 bits representatives are rounded, and near ties may fall the other way.
      if (dtype == DType::float32) REQUIRE(recalled == host.recalled(l).recalled());
      std::vector<bool> far(static_cast<std::size_t>(first), false);
      for (std::int64_t t = 0; t < first; ++t)
        far[static_cast<std::size_t>(t)] = t < config.n_init || t >= pending;
      recalled_events += static_cast<std::int64_t>(recalled.size());
      for (const EventId e : recalled)
        for (std::int64_t t = before[e].start; t < before[e].end; ++t)
          far[static_cast<std::size_t>(t)] = true;
      const auto& rows = got[static_cast<std::size_t>(l)];
      const std::size_t width = rows.size() / static_cast<std::size_t>(n);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::vector<double> reference =
            driver::reference(tokens, shape, l, first - n + i, config.n_local,
                              [&](std::int64_t t) { return far[static_cast<std::size_t>(t)]; });
        for (std::size_t c = 0; c < width; ++c) {
          const auto value = static_cast<double>(rows[static_cast<std::size_t>(i) * width + c]);
          REQUIRE(std::abs(value - reference[c]) < tolerance(dtype));
          if (dtype == DType::float32)
            REQUIRE(std::abs(value - static_cast<double>(expected[static_cast<std::size_t>(
                                         l)][static_cast<std::size_t>(i) * width + c])) <
                    tolerance(dtype));
        }
      }
    }
  }
  REQUIRE(far_steps > 5);
  REQUIRE((recalled_events > 5) == config.recall);
  const std::int64_t layer = config.recall_layers ? config.recall_layers->front() : 0;
  if (config.recall && dtype == DType::float32)
    for (EventId e = 0; e < host.events().size(); ++e) {
      const std::vector<float> mean = device.representative(layer, e);
      const float* same = host.representative(layer, e);
      for (std::size_t c = 0; c < mean.size(); ++c) REQUIRE(std::abs(mean[c] - same[c]) < 1e-5f);
    }
}

}  // namespace

TEST_CASE("device memory does what the host's does, step by step") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  compare(config, shape_of(), DType::float32, 160);
  config.contiguity = 0.3;
  config.refine = Refinement::modularity;
  compare(config, shape_of(1, 3, 1), DType::float32, 130);
  config.window = ThresholdWindow::chunked;
  config.refine = Refinement::conductance;
  config.recall_every = 3;
  config.recall_layers = std::vector<std::int64_t>{1};
  compare(config, shape_of(3, 2, 2), DType::float32, 130);
}

TEST_CASE("device memory cuts events as every segmenter says, with and without recall") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.segmenter = SegmenterKind::fixed;
  config.refine = Refinement::intra_inter;
  compare(config, shape_of(), DType::float32, 100);
  config.segmenter = SegmenterKind::random;
  config.seed = 4;
  config.n_init = 0;
  compare(config, shape_of(1), DType::float32, 100);
  config.segmenter = SegmenterKind::given;
  config.recall = false;
  compare(config, shape_of(1), DType::float32, 100, {7, 15, 16, 30, 38, 55, 60, 71});
}

TEST_CASE("device memory attends in 16 bits as the reference does over what it recalled") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  compare(config, shape_of(1), DType::float16, 130);
  config.refine = Refinement::modularity;
  compare(config, shape_of(1), DType::bfloat16, 130);
}

TEST_CASE("device memory takes its bytes once, and begins a step anew without a trace") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryConfig config = driver::small_config();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, 120, 3);
  DeviceMemory straight(config, shape, {DType::float32, 120}, nullptr);
  REQUIRE(straight.bytes().total() ==
          DeviceMemory::bytes_needed(config, shape, {DType::float32, 120}).total());
  std::vector<std::vector<float>> expected;
  for (std::int64_t first = 0; first < 120; first += 12)
    expected = step(straight, tokens, first, 12);

  DeviceMemory broken(config, shape, {DType::float32, 120}, nullptr);
  std::vector<std::vector<float>> got;
  for (std::int64_t first = 0; first < 120; first += 12) {
    broken.begin_step(12);  // a step that comes no further than its first layer
    const std::vector<Token> other = driver::random_tokens(shape, 12, 99);
    std::vector<float> q = rows_of(other, &Token::q, 0, 0, 12),
                       k = rows_of(other, &Token::k, 0, 0, 12);
    const DeviceArray<float> dq(q), dk(k), out(q.size());
    broken.attend(0, {dq.data(), dk.data(), dk.data(), 64, 32, 32, out.data()});
    REQUIRE_THROWS_AS(broken.end_step(out.data()), DataError);
    got = step(broken, tokens, first, 12);
  }
  REQUIRE(got == expected);

  broken.reset();
  REQUIRE(broken.tokens() == 0);
  for (std::int64_t first = 0; first < 120; first += 12) got = step(broken, tokens, first, 12);
  REQUIRE(got == expected);
}

TEST_CASE("device memory gives the same bits wherever events lie, within its bound") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 40;
  const MemoryShape shape = shape_of();
  constexpr std::int64_t kTokens = 240;
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
  const auto outputs = [&](DeviceMemory& memory) {
    std::vector<std::vector<float>> all;
    for (std::int64_t first = 0; first < kTokens;) {
      const std::int64_t n = first % 5 == 0 ? 12 : 1;
      for (auto& rows : step(memory, tokens, first, std::min(n, kTokens - first)))
        all.push_back(std::move(rows));
      first += n;
    }
    return all;
  };
  DeviceMemory all_there(config, shape, {DType::bfloat16, kTokens}, nullptr);
  REQUIRE(all_there.bytes().host == 0);
  const auto expected = outputs(all_there);
  const std::int64_t full = all_there.bytes().total();

  // From many slots down to one in each layer.
  const std::int64_t events = all_there.bytes().events;
  std::int64_t previous = full;
  for (const std::int64_t less : {std::int64_t{1}, events / 3, 2 * events / 3}) {
    config.device_bytes = full - less;
    DeviceMemory tiered(config, shape, {DType::bfloat16, kTokens}, nullptr);
    REQUIRE(tiered.bytes().total() <= config.device_bytes);
    REQUIRE(tiered.bytes().total() < previous);
    REQUIRE(tiered.bytes().host == events);
    previous = tiered.bytes().total();
    REQUIRE(outputs(tiered) == expected);
    tiered.reset();
    REQUIRE(outputs(tiered) == expected);
  }
  config.host_bytes = events - 1;
  REQUIRE_THROWS_AS(DeviceMemory(config, shape, {DType::bfloat16, kTokens}, nullptr), BudgetError);
}

TEST_CASE("device memory over a host cache over files gives the same bits, within its bounds") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 12;
  config.min_block = 6;
  const MemoryShape shape = shape_of();
  constexpr std::int64_t kTokens = 600;
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
  const auto outputs = [&](DeviceMemory& memory) {
    std::vector<std::vector<float>> all;
    for (std::int64_t first = 0; first < kTokens;) {
      const std::int64_t n = std::min<std::int64_t>(first % 5 == 0 ? 12 : 1, kTokens - first);
      for (auto& rows : step(memory, tokens, first, n)) all.push_back(std::move(rows));
      first += n;
    }
    return all;
  };
  DeviceMemory all_there(config, shape, {DType::float16, kTokens}, nullptr);
  const auto expected = outputs(all_there);

  const TempDir dir;
  config.disk_dir = dir.path().string();
  config.device_bytes = all_there.bytes().total() - all_there.bytes().events / 3;
  config.host_bytes =
      least_host_bytes({2, 2, 16, DType::float16}, config.max_block,
                       config.n_init + config.chunk + config.n_mem + 2 * config.max_block);
  DeviceMemory tiered(config, shape, {DType::float16, kTokens}, nullptr);
  REQUIRE(tiered.bytes().total() <= config.device_bytes);
  REQUIRE(outputs(tiered) == expected);
  const StoreCounters c = tiered.lower_tiers();
  REQUIRE(c.events == tiered.events().size());
  REQUIRE(c.evictions > 0);  // host memory held less than all of them
  REQUIRE(c.read_bytes > 0);
  REQUIRE(c.bytes_reserved <= config.host_bytes);
  tiered.reset();
  REQUIRE(outputs(tiered) == expected);

  // As few slots as there may be, and every step begun once in vain, recalling other events.
  while (true) try {
      config.device_bytes -= 4096;
      DeviceMemory::bytes_needed(config, shape, {DType::float16, kTokens});
    } catch (const BudgetError&) {
      config.device_bytes += 4096;
      break;
    }
  DeviceMemory narrow(config, shape, {DType::float16, kTokens}, nullptr);
  std::vector<Token> other = driver::random_tokens(shape, 12, 99);
  std::vector<std::vector<float>> got;
  for (std::int64_t first = 0; first < kTokens;) {
    const std::int64_t n = std::min<std::int64_t>(first % 5 == 0 ? 12 : 1, kTokens - first);
    narrow.begin_step(n);
    std::vector<float> q = rows_of(other, &Token::q, 0, 0, n),
                       k = rows_of(other, &Token::k, 0, 0, n);
    const DeviceArray<unsigned char> dq(episodic_test::stored(q, DType::float16)),
        dk(episodic_test::stored(k, DType::float16)), out(dq.size());
    narrow.attend(0, {dq.data(), dk.data(), dk.data(), 64, 32, 32, out.data()});
    for (auto& rows : step(narrow, tokens, first, n)) got.push_back(std::move(rows));
    first += n;
  }
  REQUIRE(got == expected);

  config.device_bytes = 1000;
  REQUIRE_THROWS_AS(DeviceMemory(config, shape, {DType::float16, kTokens}, nullptr), BudgetError);
  // Too little disk: the step that cannot be kept says so, and reset gives a memory again.
  config.device_bytes = 3 << 20;
  config.disk_bytes = 1 << 20;
  config.host_bytes = 1 << 18;
  const MemoryShape wide = shape_of(2, 8, 8);
  const std::vector<Token> wide_tokens = driver::random_tokens(wide, 12, 3);
  DeviceMemory full(config, wide, {DType::float16, 12000}, nullptr);
  std::string refusal;
  try {
    while (full.tokens() < 11900) step(full, wide_tokens, 0, 12);
  } catch (const Error& e) {
    refusal = e.what();
  }
  REQUIRE(refusal.find("disk_bytes") != std::string::npos);
  REQUIRE_THROWS_AS(full.begin_step(1), DataError);
  full.reset();
  step(full, wide_tokens, 0, 12);
}

TEST_CASE("device memory neither allocates nor waits in a step") {
  EPISODIC_NEEDS_DEVICE();
#if defined(EPISODIC_EMULATED_CUDA)
  const MemoryConfig config = driver::small_config();
  const MemoryShape shape = shape_of();
  DeviceMemory memory(config, shape, {DType::bfloat16, 100}, nullptr);
  REQUIRE(memory.bytes().total() == emulator::device_bytes());
  const DeviceArray<unsigned char> rows(std::vector<unsigned char>(12 * 64 * 2, 0)),
      out(12 * 64 * 2);
  const DeviceArray<float> surprise(std::vector<float>(12, 1.0f));
  emulator::reset_calls();
  for (int i = 0; i < 8; ++i) {
    memory.begin_step(12);
    for (std::int64_t l = 0; l < 2; ++l)
      memory.attend(l, {rows.data(), rows.data(), rows.data(), 64, 32, 32, out.data()});
    memory.end_step(surprise.data());
  }
  REQUIRE(emulator::calls().allocations == 0);
  REQUIRE(emulator::calls().frees == 0);
  REQUIRE(emulator::calls().synchronisations == 0);
  REQUIRE(emulator::calls().launches > 8 * 2);
  memory.check();
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("device memory refuses what it cannot do, by name, and says what it would need") {
  const auto refusal = [](const std::string& json,
                          DeviceMemoryOptions options = {DType::float32, 100}) {
    try {
      DeviceMemory(parse_memory_config(json), shape_of(), options, nullptr);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto names = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  REQUIRE(names(refusal(R"({"score": "max"})"), "score"));
  REQUIRE(names(refusal(R"({"index": "faiss"})"), "faiss"));
  REQUIRE(names(refusal(R"({"kv_dtype": "int8"})"), "kv_dtype"));
  REQUIRE(names(refusal("{}", {DType::int8, 100}), "int8"));
  REQUIRE(names(refusal("{}", {DType::float32, 0}), "max_tokens"));
  REQUIRE(names(refusal(R"({"device_bytes": 1000})"), "device_bytes = 1000"));
  REQUIRE(names(refusal(R"({"n_mem": 1000000, "min_block": 1})"), "min_block"));
}

TEST_CASE("device memory reports a NaN surprise at the next look, not by a crash") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(1);
  std::vector<Token> tokens = driver::random_tokens(shape, 24, 3);
  tokens[15].surprise = std::nanf("");
  DeviceMemory memory(driver::small_config(), shape, {DType::float32, 24}, nullptr);
  step(memory, tokens, 0, 12);
  REQUIRE_THROWS_AS(step(memory, tokens, 12, 12), DataError);
  memory.reset();
  step(memory, tokens, 0, 12);
  REQUIRE_THROWS_AS(memory.begin_step(13), DataError);
  tokens.resize(12);
  step(memory, tokens, 0, 12);
  REQUIRE_THROWS_AS(memory.begin_step(1), BudgetError);
}
