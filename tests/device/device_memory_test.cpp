// SPDX-License-Identifier: Apache-2.0
// DeviceMemory against its host twin and the float64 reference.
#include "episodic/device/device_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "steps.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace {

using namespace device_steps;

/// All tokens in device memory, so that steps follow each other without a wait of the host.
class Uploaded {
 public:
  Uploaded(const std::vector<Token>& tokens, const MemoryShape& shape, DType dtype)
      : element_(size_of(dtype)),
        q_width_(shape.n_heads * shape.head_dim),
        kv_width_(shape.n_kv_heads * shape.head_dim) {
    const auto total = static_cast<std::int64_t>(tokens.size());
    const auto upload = [&](auto member, std::int64_t layer) {
      std::vector<float> rows = rows_of(tokens, member, layer, 0, total);
      return episodic_test::stored(rows, dtype);
    };
    for (std::int64_t l = 0; l < shape.n_layers; ++l) {
      q_.emplace_back(upload(&Token::q, l));
      k_.emplace_back(upload(&Token::k, l));
      v_.emplace_back(upload(&Token::v, l));
      out_.emplace_back(q_.back().size());
    }
    std::vector<float> surprise;
    for (const Token& t : tokens) surprise.push_back(t.surprise);
    surprise_.emplace_back(surprise);
  }

  void attend(DeviceMemory& memory, std::int64_t l, std::int64_t first) const {
    const auto layer = static_cast<std::size_t>(l);
    memory.attend(l, layer_step(memory, q_[layer].data() + first * q_width_ * element_,
                                k_[layer].data() + first * kv_width_ * element_,
                                v_[layer].data() + first * kv_width_ * element_,
                                out_[layer].data() + first * q_width_ * element_));
  }
  void step(DeviceMemory& memory, std::int64_t first, std::int64_t n) const {
    memory.begin_step(n);
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l) attend(memory, l, first);
    memory.end_step(surprise_.front().data() + first);
  }
  /// Of all layers.
  std::vector<std::vector<unsigned char>> outputs() const {
    std::vector<std::vector<unsigned char>> all;
    for (const auto& rows : out_) all.push_back(rows.host());
    return all;
  }

 private:
  std::int64_t element_, q_width_, kv_width_;
  std::deque<DeviceArray<unsigned char>> q_, k_, v_, out_;
  std::deque<DeviceArray<float>> surprise_;
};

/// Feeds both memories the same steps and compares everything that can be seen.
/// \param plain attention is what driver::reference computes: no weights, all layers alike
void compare(const MemoryConfig& config, const MemoryShape& shape, DType dtype, std::int64_t total,
             std::vector<std::int64_t> given = {}, bool plain = true) {
  std::vector<Token> tokens = driver::random_tokens(shape, total, 5);
  round_to(tokens, dtype);
  MemoryConfig of_host = config;
  const bool codes = is_code(config.kv_dtype);
  if (!codes) of_host.kv_dtype = dtype;  // both keep what they see rounded alike
  EpisodicMemory host(of_host, shape, given);
  DeviceMemory device(config, shape, {dtype, total}, nullptr, given);
  std::mt19937 random(9);
  std::int64_t far_steps = 0, recalled_events = 0, lists = 0, equal_lists = 0;
  std::int64_t cuts = 0, equal_cuts = 0;  // final boundaries of either, and of both
  std::vector<bool> is_cut(static_cast<std::size_t>(total), false);  // on the device
  EventTable by_rule(config.n_init, config.min_block, config.max_block);
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
    REQUIRE(b.threshold == a.threshold);
    REQUIRE(b.raw_boundaries == a.raw_boundaries);
    REQUIRE(device.tokens() == host.tokens());
    REQUIRE(b.events_before == by_rule.size());
    // The events are what the rule makes of the device's boundaries, whatever those are.
    REQUIRE(b.final_boundaries.size() == static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const bool ours = b.final_boundaries[i] != 0, theirs = a.final_boundaries[i] != 0;
      is_cut[static_cast<std::size_t>(first - n) + i] = ours;
      cuts += ours || theirs;
      equal_cuts += ours && theirs;
    }
    by_rule.close_up_to(first - config.n_local,
                        [&](std::int64_t t) { return is_cut[static_cast<std::size_t>(t)]; });
    REQUIRE(device.events().all() == by_rule.all());
    REQUIRE(device.events().pending_start() == by_rule.pending_start());
    if (dtype == DType::float32 || config.refine == Refinement::none) {
      REQUIRE(b.events_before == a.events_before);
      REQUIRE(b.final_boundaries == a.final_boundaries);
      REQUIRE(device.events().all() == host.events().all());
      REQUIRE(device.events().pending_start() == host.events().pending_start());
    }
    for (std::int64_t l = 0; l < shape.n_layers; ++l) {
      const std::vector<EventId> recalled = device.recalled(l);
      // In 16 bits queries are rounded once more on a device, and near ties may fall the other way.
      if (dtype == DType::float32) REQUIRE(recalled == host.recalled(l).recalled());
      lists += !recalled.empty();
      equal_lists += !recalled.empty() && recalled == host.recalled(l).recalled();
      std::vector<bool> far(static_cast<std::size_t>(first), false);
      for (std::int64_t t = 0; t < first; ++t)
        far[static_cast<std::size_t>(t)] = t < config.n_init || t >= pending;
      recalled_events += static_cast<std::int64_t>(recalled.size());
      for (const EventId e : recalled)
        for (std::int64_t t = before[e].start; t < before[e].end; ++t)
          far[static_cast<std::size_t>(t)] = true;
      // Over the same events 16 bits give what the host gives, to their rounding.
      const bool as_host =
          dtype == DType::float32 || (codes && recalled == host.recalled(l).recalled());
      const auto& rows = got[static_cast<std::size_t>(l)];
      const std::size_t width = rows.size() / static_cast<std::size_t>(n);
      for (std::int64_t i = 0; i < n; ++i) {
        std::vector<double> reference;
        if (plain)
          reference =
              driver::reference(tokens, shape, l, first - n + i, config.n_local,
                                [&](std::int64_t t) { return far[static_cast<std::size_t>(t)]; });
        for (std::size_t c = 0; c < width; ++c) {
          const auto value = static_cast<double>(rows[static_cast<std::size_t>(i) * width + c]);
          if (plain) REQUIRE(std::abs(value - reference[c]) < tolerance(dtype));
          if (as_host)
            REQUIRE(std::abs(value - static_cast<double>(expected[static_cast<std::size_t>(
                                         l)][static_cast<std::size_t>(i) * width + c])) <
                    tolerance(dtype));
        }
      }
    }
  }
  REQUIRE(far_steps > 5);
  // Refined over keys of 16 bits, whose products host and device sum in another order: where two
  // places are near, they may choose the one or the other.
  INFO(equal_cuts << " of " << cuts << " boundaries are the host's");
  REQUIRE(10 * equal_cuts >= 9 * cuts);
  REQUIRE((recalled_events > 5) == config.recall);
  if (config.refine == Refinement::none) {  // the same events on both
    INFO(equal_lists << " of " << lists << " recall lists are the host's");
    REQUIRE(10 * equal_lists >= 9 * lists);
  }
  const std::int64_t layer = config.recall_layers ? config.recall_layers->front() : 0;
  if (config.recall && dtype == DType::float32)
    for (EventId e = 0; e < host.events().size(); ++e) {
      const std::vector<float> mean = device.representative(layer, e);
      const std::vector<float> same = host.representative(layer, e);
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

TEST_CASE("device memory cuts events by their keys as the host's does") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.segmenter = SegmenterKind::k_similarity;
  config.gamma = 0.5;
  compare(config, shape_of(), DType::float32, 110);
  config.segmenter = SegmenterKind::gaussian;
  config.min_count = 2;
  config.n_init = 0;
  config.refine = Refinement::modularity;
  compare(config, shape_of(3, 2, 2), DType::float32, 110);
  compare(config, shape_of(1), DType::float16, 80);
}

TEST_CASE("device memory reweights what it recalls as the host's does") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.reweight = Reweighting::exact;
  config.contiguity = 0.3;
  compare(config, shape_of(), DType::float32, 130, {}, false);
  config.recall_every = 3;  // what was recalled before is weighed by the step's own query
  compare(config, shape_of(1, 3, 1), DType::float32, 130, {}, false);
  config.recall_every = 1;
  config.contiguity = 0;
  config.reweight = Reweighting::narrow;
  config.reweight_top = 3;
  compare(config, shape_of(), DType::float32, 130);
  config.reweight = Reweighting::broad;
  compare(config, shape_of(1), DType::float32, 130);
  config.reweight_top = 1 << 20;  // all of them
  compare(config, shape_of(1), DType::float32, 100);
}

TEST_CASE("device memory gives each layer its rotary table, scale and soft cap") {
  EPISODIC_NEEDS_DEVICE();
  MemoryShape shape = shape_of(4);
  shape.rotary = {};
  RotaryTable stretched = plain_rotary(16, 500.0);
  stretched.attention_factor = 1.2;
  RotaryTable interleaved = plain_rotary(16, 10000.0);
  interleaved.pairs = RotaryPairs::interleaved;
  shape.layers = {{plain_rotary(16, 10000.0)}, {stretched, 0.4f}, {{}, 0.0f, 2.0f}, {interleaved}};
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.refine = Refinement::modularity;
  compare(config, shape, DType::float32, 120, {}, false);
  compare(config, shape, DType::bfloat16, 60, {}, false);
}

TEST_CASE("device memory attends in 16 bits as the reference does over what it recalled") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  compare(config, shape_of(1), DType::float16, 130);
  config.refine = Refinement::modularity;
  compare(config, shape_of(1), DType::bfloat16, 130);
}

TEST_CASE("device memory keeps events as codes and attends to them as the host's does") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.kv_dtype = GENERATE(DType::int8, DType::fp8);
  config.contiguity = 0.3;
  compare(config, shape_of(), DType::float32, 130, {}, false);
  compare(config, shape_of(), DType::float16, 130, {}, false);
  compare(config, shape_of(2, 6, 2), DType::bfloat16, 130, {}, false);
  config.refine = Refinement::modularity;
  config.reweight = Reweighting::exact;
  compare(config, shape_of(1, 3, 1), DType::float32, 110, {}, false);
  config.reweight = Reweighting::none;
  config.recall_every = 3;
  config.recall_layers = std::vector<std::int64_t>{1};
  compare(config, shape_of(3, 2, 2), DType::float32, 110, {}, false);
}

TEST_CASE("device memory of 8-bit events takes half the bytes of 16 bits, or a quarter of 32") {
  const DType code = GENERATE(DType::int8, DType::fp8);
  MemoryConfig config = driver::small_config();
  const MemoryShape shape = shape_of(2, 8, 4);
  const auto bytes = [&](DType dtype, DType kept) {
    config.kv_dtype = kept;
    return DeviceMemory::bytes_needed(config, shape, {dtype, 3000});
  };
  const DeviceMemoryBytes wide = bytes(DType::bfloat16, DType::bfloat16),
                          narrow = bytes(DType::bfloat16, code);
  REQUIRE(2 * narrow.events == wide.events);
  REQUIRE(4 * bytes(DType::float32, code).events == bytes(DType::float32, DType::float32).events);
  REQUIRE(narrow.window == wide.window);
  // a float for each head's keys and values of an event
  const std::int64_t events = (3000 - config.n_init) / config.min_block + 1;
  const std::int64_t scales = shape.n_layers * events * 2 * shape.n_kv_heads * 4;
  REQUIRE(narrow.representatives - wide.representatives >= scales);
  REQUIRE(narrow.representatives - wide.representatives < scales + 256);
}

TEST_CASE("device memory says at the next look that a closed event has no codes") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(1);
  std::vector<Token> tokens = driver::random_tokens(shape, 48, 3);
  tokens[9].v[0][5] = std::numeric_limits<float>::infinity();
  MemoryConfig config = driver::small_config();
  config.kv_dtype = GENERATE(DType::int8, DType::fp8);
  DeviceMemory memory(config, shape, {DType::float32, 96}, nullptr);
  std::string said;
  for (std::int64_t first = 0; first < 48 && said.empty(); first += 12) try {
      step(memory, tokens, first, 12);
    } catch (const DataError& e) {
      said = e.what();
    }
  REQUIRE(said.find("no 8-bit code") != std::string::npos);
  REQUIRE(said.find("kv_dtype") != std::string::npos);
  memory.reset();
  tokens[9].v[0][5] = 1.0f;
  for (std::int64_t first = 0; first < 48; first += 12) step(memory, tokens, first, 12);
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
    broken.attend(0, layer_step(broken, dq.data(), dk.data(), dk.data(), out.data()));
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
  config.kv_dtype = GENERATE(DType::bfloat16, DType::int8, DType::fp8);
  DeviceMemory all_there(config, shape, {DType::bfloat16, kTokens}, nullptr);
  REQUIRE(all_there.bytes().host == 0);
  const auto expected = outputs(all_there);
  const std::int64_t full = all_there.bytes().total() - all_there.bytes().snapshots;

  // From many slots down to one in each layer.
  const std::int64_t events = all_there.bytes().events;
  std::int64_t previous = full;
  const std::size_t number = config.kv_dtype == DType::bfloat16 ? 0
                             : config.kv_dtype == DType::int8   ? 1
                                                                : 2;
  for (const std::int64_t less :
       episodic_test::in_turn(std::vector{std::int64_t{1}, events / 3, 2 * events / 3}, number)) {
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

TEST_CASE("device memory gives the same bits however its copies overlap with its steps") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 40;
  config.recall_every = 3;
  config.recall_layers = std::vector<std::int64_t>{0, 1, 3};
  const MemoryShape shape = shape_of(4, 2, 1);
  constexpr std::int64_t kTokens = 128;
  const Uploaded tokens(driver::random_tokens(shape, kTokens, 7), shape, DType::bfloat16);
  const auto run = [&](DeviceMemory& memory, bool anew) {
    for (std::int64_t first = 0; first < kTokens;) {
      // Whole chunks, which the rings have the least room for; decoding; a step cut short.
      const std::int64_t rest = kTokens - first;
      const std::int64_t n = first < 84 ? 12 : first < 88 ? 1 : std::min<std::int64_t>(rest, 11);
      if (anew && first % 24 == 0) {
        memory.begin_step(std::min<std::int64_t>(rest, 12));
        for (std::int64_t l = 0; l < 2; ++l) tokens.attend(memory, l, first);
      }
      tokens.step(memory, first, n);
      first += n;
    }
  };
  const auto outputs = [&](DeviceMemory& memory) {
    memory.check();
    return tokens.outputs();
  };
  const DeviceMemoryOptions options = {DType::bfloat16, kTokens};
  config.kv_dtype = GENERATE(
      from_range(episodic_test::sampled(std::vector{DType::bfloat16, DType::int8, DType::fp8}, 2)));
  DeviceMemory all_there(config, shape, options, nullptr);
  run(all_there, false);
  const auto expected = outputs(all_there);
  const DeviceMemoryBytes all = all_there.bytes();
  // What slots take besides is a larger part of events of 8 bits.
  const std::int64_t third = all.events / (is_code(config.kv_dtype) ? 6 : 3);
  episodic_test::in_every_overlap([&] {
    config.device_bytes = all.total() - all.snapshots - 2 * third;
    DeviceMemory narrow(config, shape, options, nullptr);
    REQUIRE(narrow.bytes().host <= all.events);  // but for what is unused behind an array
    REQUIRE(narrow.bytes().host > all.events - 256);
    run(narrow, false);
    REQUIRE((outputs(narrow) == expected));
    config.device_bytes = all.total() - all.snapshots - third;
    DeviceMemory wide(config, shape, options, nullptr);
    run(wide, false);
    REQUIRE((outputs(wide) == expected));
    wide.reset();  // while events are on their way home
    run(wide, true);
    REQUIRE((outputs(wide) == expected));
  });
}

TEST_CASE("device memory over a host cache over files gives the same bits, within its bounds") {
  EPISODIC_NEEDS_DEVICE();
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 12;
  config.min_block = 6;
  const MemoryShape shape = shape_of();
  constexpr std::int64_t kTokens = 360;
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
  config.kv_dtype = GENERATE(
      from_range(episodic_test::sampled(std::vector{DType::float16, DType::int8, DType::fp8}, 1)));
  DeviceMemory all_there(config, shape, {DType::float16, kTokens}, nullptr);
  const auto expected = outputs(all_there);

  const TempDir dir;
  config.disk_dir = dir.path().string();
  const DeviceMemoryBytes all = all_there.bytes();
  config.device_bytes = all.total() - all.snapshots - all.events / 3;
  config.host_bytes =
      least_host_bytes({2, 2, 16, config.kv_dtype}, config.max_block,
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
    narrow.attend(0, layer_step(narrow, dq.data(), dk.data(), dk.data(), out.data()));
    for (auto& rows : step(narrow, tokens, first, n)) got.push_back(std::move(rows));
    first += n;
  }
  REQUIRE(got == expected);

  config.device_bytes = 1000;
  REQUIRE_THROWS_AS(DeviceMemory(config, shape, {DType::float16, kTokens}, nullptr), BudgetError);
  // Too little disk: the step that cannot be kept says so, as often as it is made, and is not
  // counted; reset gives an empty memory again.
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
  const std::int64_t kept = full.tokens(), events = full.n_events();
  REQUIRE_THROWS_AS(step(full, wide_tokens, 0, 12), BudgetError);
  REQUIRE(full.tokens() == kept);
  REQUIRE(full.n_events() == events);
  REQUIRE(full.open_tokens() == 12);
  full.reset();
  step(full, wide_tokens, 0, 12);
}

TEST_CASE("device memory neither allocates nor waits in a step, wherever events lie") {
  EPISODIC_NEEDS_DEVICE();
#if defined(EPISODIC_EMULATED_CUDA)
  const DeviceArray<unsigned char> rows(std::vector<unsigned char>(12 * 64 * 2, 0)),
      out(12 * 64 * 2);
  const DeviceArray<float> surprise(std::vector<float>(12, 1.0f));
  /// Of some steps: on the stream and on those beside it, and of the steps' ends.
  struct Launches {
    std::vector<std::int64_t> on_streams;
    std::int64_t of_ends = 0;
  };
  const auto take = [&](DeviceMemory& memory, int steps, std::int64_t n) {
    Launches launches;
    emulator::reset_calls();
    for (int i = 0; i < steps; ++i) {
      memory.begin_step(n);
      for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)
        memory.attend(l, layer_step(memory, rows.data(), rows.data(), rows.data(), out.data()));
      const std::int64_t in_layers = emulator::calls().launches;
      memory.end_step(surprise.data());
      launches.of_ends += emulator::calls().launches - in_layers;
    }
    REQUIRE(emulator::calls().allocations == 0);
    REQUIRE(emulator::calls().frees == 0);
    REQUIRE(emulator::calls().synchronisations == 0);
    launches.on_streams = emulator::launches_of_streams();
    memory.check();
    return launches;
  };
  MemoryConfig config = driver::small_config();
  const DeviceMemoryOptions options = {DType::bfloat16, 200};
  const std::int64_t before = emulator::device_bytes();
  DeviceMemory memory(config, shape_of(4), options, nullptr);
  REQUIRE(memory.bytes().total() == emulator::device_bytes() - before);
  take(memory, 5, 12);  // until events close
  const Launches all_there = take(memory, 4, 12);
  REQUIRE(all_there.on_streams.size() == 1);
  REQUIRE(all_there.on_streams[0] > 0);
  DeviceMemory one_layer(config, shape_of(1), options, nullptr);
  take(one_layer, 5, 12);
  REQUIRE(take(one_layer, 4, 12).of_ends == all_there.of_ends);  // each for all layers at once

  // One byte less, and events are at home in host memory: beside each step they are written there,
  // layers in parts of 1, 2 and 1, and fetched for 3 layers ahead of their recall.
  config.device_bytes = memory.bytes().total() - memory.bytes().snapshots - 1;
  DeviceMemory tiered(config, shape_of(4), options, nullptr);
  take(tiered, 5, 12);
  constexpr std::int64_t kFetch = 4;  // launches: what is missing, for what, where, and copies
  using Counts = std::vector<std::int64_t>;
  Counts counts = take(tiered, 4, 12).on_streams;
  constexpr std::int64_t kRows = 1;  // behind what is fetched, and no part of the recall any more
  const std::int64_t on_stream = all_there.on_streams[0] + 4 * (4 * (kFetch + kRows) - 1);
  REQUIRE(counts == Counts{on_stream, 4 * 3, 4 * 3 * kFetch});
  // One token at a time, what is closed is written within the step.
  take(tiered, 1, 1);
  counts = take(tiered, 4, 1).on_streams;
  REQUIRE(counts[1] == 0);
  REQUIRE(counts[2] == 4 * 3 * kFetch);
  // Only what ends within a step can be captured.
  tiered.begin_step(12);
  REQUIRE_FALSE(tiered.step_kind());
  tiered.begin_step(1);
  REQUIRE(tiered.step_kind());
  memory.begin_step(12);
  REQUIRE(memory.step_kind());
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("device memory changes its stream between steps and within one, to the same bits") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryConfig config = driver::small_config();
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, 96, 3);
  DeviceMemory one(config, shape, {DType::float32, 96}, nullptr);
  std::vector<std::vector<float>> expected;
  for (std::int64_t first = 0; first < 96; first += 12) expected = step(one, tokens, first, 12);

  cudaStream_t a = nullptr, b = nullptr;
  // Not cudaStreamNonBlocking: the tests' own copies run on the legacy stream.
  REQUIRE(cudaStreamCreateWithFlags(&a, 0) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&b, 0) == cudaSuccess);
  DeviceMemory memory(config, shape, {DType::float32, 96}, a);
  std::vector<std::vector<float>> got;
  for (std::int64_t first = 0; first < 96; first += 12) {
    memory.use_stream(first % 24 == 0 ? b : nullptr);
    got = step(memory, tokens, first, 12);
  }
  REQUIRE(got == expected);

  // What follows is enqueued on the new stream: a capture of it takes the layer's work and nothing
  // is written, until the graph is launched.
  memory.reset();
  memory.use_stream(b);
  const DeviceArray<float> rows(std::vector<float>(12 * 64, 0.5f)),
      out(std::vector<float>(12 * 64, -7.0f));
  REQUIRE(memory.open_tokens() == 0);
  memory.begin_step(12);
  REQUIRE(memory.open_tokens() == 12);
  REQUIRE(cudaStreamBeginCapture(b, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  memory.use_stream(b);  // the same: leaves no mark in the capture
  memory.attend(0, layer_step(memory, rows.data(), rows.data(), rows.data(), out.data()));
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(b, &graph) == cudaSuccess);
  REQUIRE(out.host() == std::vector<float>(12 * 64, -7.0f));
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(executable, b) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(b) == cudaSuccess);
  for (const float x : out.host()) REQUIRE(std::abs(x - 0.5f) < 1e-6f);
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);

  // The new stream is made to wait for the old one: a capturing one refuses to wait for work
  // outside of its capture, and the memory stays where it was.
  REQUIRE(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  REQUIRE_THROWS_AS(memory.use_stream(a), DeviceError);
  REQUIRE(cudaStreamEndCapture(a, &graph) != cudaSuccess);
  static_cast<void>(cudaGetLastError());
  memory.reset();
  for (std::int64_t first = 0; first < 96; first += 12) got = step(memory, tokens, first, 12);
  REQUIRE(got == expected);
  memory.use_stream(nullptr);  // the others may go now
  REQUIRE(cudaStreamDestroy(a) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(b) == cudaSuccess);
  memory.check();
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
  REQUIRE(names(refusal(R"({"score": "max", "reweight": "exact"})"), "score"));
  REQUIRE(names(refusal(R"({"index": "faiss"})"), "faiss"));
  REQUIRE(names(refusal(R"({"kv_dtype": "float16"})"), "kv_dtype = float16"));
  REQUIRE(names(refusal("{}", {DType::int8, 100}), "int8"));
  REQUIRE(names(refusal("{}", {DType::fp8, 100}), "dtype = fp8"));
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
