// SPDX-License-Identifier: Apache-2.0
// Events at home in files, below slots of device memory: who waits for whom, and files that fail.
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "damaged_files.hpp"
#include "episodic/base/error.hpp"
#include "steps.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

namespace device_files_test {

using namespace device_steps;
using Outputs = std::vector<std::vector<float>>;

constexpr std::int64_t kTokens = 200, kRoom = 600;

/// Of which the device holds few events, and the host's cache as few as it may.
MemoryConfig over_files(const MemoryConfig& config, const MemoryShape& shape, const TempDir& dir) {
  return tiers(config, shape, {DType::float16, kRoom}, dir.path()).back();
}

/// Outputs of steps from token `first` to `end`, of 12 tokens and of one in turn.
Outputs feed(DeviceMemory& memory, const std::vector<Token>& tokens, std::int64_t first,
             std::int64_t end) {
  Outputs all;
  for (std::int64_t n = 12; first < end;
       first += n, n = n == 12 ? 1 : std::min<std::int64_t>(12, end - first))
    for (auto& rows : step(memory, tokens, first, n)) all.push_back(std::move(rows));
  return all;
}

/// Calls of attend for all layers of a step, whose arrays are in `arrays`.
std::vector<DeviceMemory::LayerStep> uploaded(const std::vector<Token>& tokens,
                                              const MemoryShape& shape, std::int64_t first,
                                              std::int64_t n,
                                              std::deque<DeviceArray<unsigned char>>& arrays) {
  const auto on_device = [&](std::vector<float> rows) {
    return arrays.emplace_back(episodic_test::stored(rows, DType::float16)).data();
  };
  const std::int64_t q_width = shape.n_heads * shape.head_dim;
  std::vector<DeviceMemory::LayerStep> layers;
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    layers.push_back(
        layer_step(shape, DType::float16, n, on_device(rows_of(tokens, &Token::q, l, first, n)),
                   on_device(rows_of(tokens, &Token::k, l, first, n)),
                   on_device(rows_of(tokens, &Token::v, l, first, n)),
                   on_device(std::vector<float>(static_cast<std::size_t>(n * q_width)))));
  return layers;
}

TEST_CASE("events are read from files without a wait of who enqueues the layers") {
  EPISODIC_NEEDS_DEVICE();
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  constexpr std::int64_t kLayers = 3;
  for (const EventScope scope : {EventScope::sequence, EventScope::head})
    for (const auto overlap : {emulator::Overlap::none, emulator::Overlap::late,
                               emulator::Overlap::early, emulator::Overlap::shuffled}) {
      if (scope == EventScope::head && overlap != emulator::Overlap::shuffled) continue;
      const MemoryShape shape = shape_of(kLayers);
      MemoryConfig config = driver::small_config();
      config.scope = scope;
      const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
      DeviceMemory all_there(config, shape, {DType::float16, kRoom}, nullptr);
      const Outputs expected = feed(all_there, tokens, 0, 140);
      const TempDir dir;
      DeviceMemory memory(over_files(config, shape, dir), shape, {DType::float16, kRoom}, nullptr);
      emulator::set_overlap(overlap, 3);
      REQUIRE(feed(memory, tokens, 0, 140) == expected);
      for (const std::int64_t n : {12, 1}) {
        std::deque<DeviceArray<unsigned char>> arrays;
        const std::vector<DeviceMemory::LayerStep> layers = uploaded(tokens, shape, 140, n, arrays);
        const DeviceArray<float> surprise(std::vector<float>(static_cast<std::size_t>(n), 1.0f));
        memory.begin_step(n);
        emulator::reset_calls();
        for (std::int64_t l = 0; l < kLayers; ++l) {
          memory.attend(l, layers[static_cast<std::size_t>(l)]);
          // The last layer asks whether a file failed.
          REQUIRE(emulator::calls().synchronisations == (l + 1 < kLayers ? 0 : 1));
        }
        REQUIRE(emulator::calls().allocations == 0);
        REQUIRE(emulator::calls().host_functions == kLayers);
        memory.end_step(surprise.data());
        memory.check();
      }
      emulator::set_overlap(emulator::Overlap::none);
    }
#else
  EPISODIC_SKIP("counted on the emulated device");
#endif
}

TEST_CASE("a file that fails ends the step, which may be begun anew") {
  EPISODIC_NEEDS_DEVICE();
  for (const EventScope scope : {EventScope::sequence, EventScope::head}) {
    const MemoryShape shape = shape_of();
    MemoryConfig config = driver::small_config();
    config.scope = scope;
    const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
    DeviceMemory all_there(config, shape, {DType::float16, kRoom}, nullptr);
    feed(all_there, tokens, 0, 140);
    const Outputs expected = feed(all_there, tokens, 140, kTokens);
    const TempDir dir, dir_beside;
    DeviceMemory memory(over_files(config, shape, dir), shape, {DType::float16, kRoom}, nullptr);
    DeviceMemory beside(over_files(config, shape, dir_beside), shape, {DType::float16, kRoom},
                        nullptr);
    for (DeviceMemory* const m : {&memory, &beside}) feed(*m, tokens, 0, 140);
    const auto events = memory.events().size();

    damage(dir.path());
    int failed = 0;
    std::string said;
    for (const std::int64_t n : {12, 1, 7}) try {
        step(memory, tokens, 140 + failed % 3, n);
        FAIL("a step was made of damaged events");
      } catch (const FileError& e) {
        ++failed;
        said = e.what();
      }
    REQUIRE(failed == 3);
    INFO(said);
    REQUIRE(said.find(dir.path().string()) != std::string::npos);
    REQUIRE(memory.tokens() == 140);
    REQUIRE(memory.events().size() == events);

    // Of several sequences none makes the step.
    std::deque<DeviceArray<unsigned char>> arrays;
    const std::vector<DeviceMemory::LayerStep> layers = uploaded(tokens, shape, 140, 12, arrays);
    for (DeviceMemory* const m : {&beside, &memory}) m->begin_step(12);
    const auto attend = [&](std::int64_t l) {
      const DeviceMemory::LayerStep& layer = layers[static_cast<std::size_t>(l)];
      DeviceMemory::attend_batch(
          l, std::vector<DeviceMemory::SequenceStep>{{&beside, layer}, {&memory, layer}});
    };
    for (std::int64_t l = 0; l + 1 < shape.n_layers; ++l) attend(l);
    REQUIRE_THROWS_AS(attend(shape.n_layers - 1), FileError);

    damage(dir.path());  // back
    for (DeviceMemory* const m : {&memory, &beside}) {
      REQUIRE(m->tokens() == 140);
      REQUIRE(feed(*m, tokens, 140, kTokens) == expected);
    }
  }
}

/// What can be seen of a memory between two steps.
struct Seen {
  explicit Seen(const DeviceMemory& memory)
      : tokens(memory.tokens()),
        n_events(memory.n_events()),
        recalled_events(memory.recalled_events()) {
    for (std::int64_t s = 0; s < memory.scopes(); ++s) {
      events.push_back(memory.events(s).all());
      pending.push_back(memory.events(s).pending_start());
      const StepRecord record = memory.last_step(s);
      flags.push_back(record.final_boundaries);
      flags.push_back(record.raw_boundaries);
      numbers.push_back(record.threshold);
      numbers.push_back(record.surprise);
      for (const EventRecalls& r : memory.recall_counts(s)) {
        recalls.push_back(r.recalls);
        recalls.push_back(r.last_recall);
      }
    }
    const std::int64_t known = std::min<std::int64_t>(tokens, 24);
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)
      numbers.push_back(memory.relevance(l, tokens - known, known));
  }
  bool operator==(const Seen&) const = default;
  std::int64_t tokens, n_events, recalled_events;
  std::vector<std::vector<TokenRange>> events;
  std::vector<std::int64_t> pending, recalls;
  std::vector<std::vector<std::uint8_t>> flags;
  std::vector<std::vector<float>> numbers;
};

TEST_CASE("a step whose events files cannot keep is taken back, and may be ended again or anew") {
  EPISODIC_NEEDS_DEVICE();
  int of_all = 0;
  for (const int settings : {0, 1, 2, 3}) {
    INFO("settings " << settings);
    const MemoryShape shape = shape_of();
    MemoryConfig config = driver::small_config();
    if (settings == 1) config.scope = EventScope::head;
    if (settings == 2) config.segmenter = SegmenterKind::gaussian;
    if (settings == 3) config.kv_dtype = DType::int8;
    const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 7);
    DeviceMemory all_there(config, shape, {DType::float16, kRoom}, nullptr);
    const TempDir dir;
    DeviceMemory memory(over_files(config, shape, dir), shape, {DType::float16, kRoom}, nullptr);
    REQUIRE(memory.over_files());
    REQUIRE(!all_there.over_files());
    for (DeviceMemory* const m : {&all_there, &memory}) feed(*m, tokens, 0, 96);
    int refused = 0, way = 0;
    for (std::int64_t first = 96, n = 12; first < kTokens;
         first += n, n = n == 12 ? 1 : std::min<std::int64_t>(12, kTokens - first)) {
      const Outputs expected = step(all_there, tokens, first, n);
      std::deque<DeviceArray<unsigned char>> arrays;
      std::vector<float> of_step;
      for (std::int64_t i = first; i < first + n; ++i)
        of_step.push_back(tokens[static_cast<std::size_t>(i)].surprise);
      const DeviceArray<float> surprise(of_step);
      const std::vector<DeviceMemory::LayerStep> layers = uploaded(tokens, shape, first, n, arrays);
      const auto attend = [&] {
        memory.begin_step(n);
        for (std::int64_t l = 0; l < shape.n_layers; ++l)
          memory.attend(l, layers[static_cast<std::size_t>(l)]);
      };
      const Seen before(memory);
      attend();
      bool made = false;
      {
        const FullFiles
            full;  // over both attempts: the writer's thread would make good use of a gap
        for (int attempt = 0; attempt < 2 && !made; ++attempt) {
          try {
            memory.end_step(surprise.data());
            made = true;
          } catch (const Error& e) {
            REQUIRE(mentions(e.what(), dir.path().string()));
            REQUIRE(Seen(memory) == before);
            REQUIRE(memory.open_tokens() == n);
          }
        }
      }
      if (!made) {
        ++refused;
        if (++way % 2 == 0) attend();  // anew
        memory.end_step(surprise.data());
      }
      memory.check();
      REQUIRE(memory.tokens() == first + n);
      // The results of the step that was made, and all that both memories know behind it.
      for (std::int64_t l = 0; l < shape.n_layers; ++l) {
        std::vector<unsigned char> rows(
            static_cast<std::size_t>(n * shape.n_heads * shape.head_dim * size_of(DType::float16)));
        REQUIRE(cudaMemcpy(rows.data(), layers[static_cast<std::size_t>(l)].out.data, rows.size(),
                           cudaMemcpyDeviceToHost) == cudaSuccess);
        REQUIRE(episodic_test::floats(rows, DType::float16) ==
                expected[static_cast<std::size_t>(l)]);
      }
      REQUIRE(Seen(memory) == Seen(all_there));
      for (std::int64_t lane = 0; lane < memory.lanes(); ++lane)
        REQUIRE(memory.recalled(lane) == all_there.recalled(lane));
    }
    // How many depends on how far the writer's thread has come: a cache takes what it has room for.
    REQUIRE(refused > 0);
    of_all += refused;
    const EventId last = memory.events(0).size() - 1;
    REQUIRE(memory.representative(0, last) == all_there.representative(0, last));
    memory.reset();
    REQUIRE(memory.tokens() == 0);
  }
  REQUIRE(of_all > 6);
}

}  // namespace device_files_test
