// SPDX-License-Identifier: Apache-2.0
// Device memory that is taken as the sequence grows: the same bits as with all of it taken at the
// start, what is held follows the text, and where there is no room nothing is lost.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "device/cuda.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "steps.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace device_growth_test {

using namespace device_steps;

#if defined(EPISODIC_EMULATED_CUDA)

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kTokens = 700;

/// How the emulated device maps memory, while it lives.
struct Mapping {
  explicit Mapping(std::int64_t granularity) { emulator::set_mapping_granularity(granularity); }
  ~Mapping() {
    emulator::set_mapping_granularity(2 << 20);
    emulator::set_reserves_addresses(true);
    emulator::set_mappings_left(-1);
    emulator::set_driver_version(13000);
    emulator::set_same_addresses(true);
    emulator::set_pinned_capacity(std::int64_t{1} << 50);
  }
};

/// A memory on a stream of its own. Its steps of one token are graphs where they can be, on rows
/// whose place stays.
class Driven {
 public:
  Driven(const MemoryConfig& config, const MemoryShape& shape, const DeviceMemoryOptions& options)
      : stream_(device::SideStream::create()), surprise_(static_cast<std::size_t>(config.chunk)) {
    memory = std::make_unique<DeviceMemory>(config, shape, options, stream_.get());
    for (auto* rows : {&q_, &k_, &v_, &out_})
      for (std::int64_t l = 0; l < shape.n_layers; ++l)
        rows->emplace_back(std::make_unique<DeviceArray<float>>(
            static_cast<std::size_t>(config.chunk * shape.n_heads * shape.head_dim)));
  }

  ~Driven() { memory.reset(); }  // before its stream
  /// \return the layers' outputs, one after the other
  std::vector<float> step(const std::vector<Token>& tokens, std::int64_t n, bool check = true) {
    const std::int64_t first = memory->tokens(), layers = memory->shape().n_layers;
    memory->begin_step(n);
    const auto send = [&](float* to, const std::vector<float>& rows) {
      device::check(cudaMemcpyAsync(to, rows.data(), rows.size() * sizeof(float),
                                    cudaMemcpyHostToDevice, stream_.get()),
                    "rows");
    };
    for (std::int64_t l = 0; l < layers; ++l) {
      send(at(q_, l).data(), rows_of(tokens, &Token::q, l, first, n));
      send(at(k_, l).data(), rows_of(tokens, &Token::k, l, first, n));
      send(at(v_, l).data(), rows_of(tokens, &Token::v, l, first, n));
    }
    std::vector<float> surprise;
    for (std::int64_t i = first; i < first + n; ++i)
      surprise.push_back(tokens[static_cast<std::size_t>(i)].surprise);
    send(surprise_.data(), surprise);
    const auto enqueue = [&] {
      for (std::int64_t l = 0; l < layers; ++l)
        memory->attend(l, layer_step(*memory, at(q_, l).data(), at(k_, l).data(), at(v_, l).data(),
                                     at(out_, l).data()));
    };
    const auto kind = memory->step_kind();
    if (n == 1 && kind) {
      auto graph = graphs_.find(*kind);
      if (graph == graphs_.end()) {
        device::Graph made = device::Graph::capture(stream_.get(), [&] {
          enqueue();
          memory->enqueue_end(surprise_.data());
        });
        graph = graphs_.emplace(*kind, std::move(made)).first;
      }
      graph->second.launch(stream_.get());
      memory->end_launched_step();
      ++launched;
    } else {
      enqueue();
      memory->end_step(surprise_.data());
    }
    std::vector<float> all;
    if (!check) return all;
    memory->check();
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::vector<float> rows = at(out_, l).host();
      all.insert(all.end(), rows.begin(),
                 rows.begin() + n * memory->shape().n_heads * memory->shape().head_dim);
    }
    return all;
  }

  std::unique_ptr<DeviceMemory> memory;
  std::int64_t launched = 0;  // graphs

 private:
  using Rows = std::vector<std::unique_ptr<DeviceArray<float>>>;
  static DeviceArray<float>& at(const Rows& rows, std::int64_t l) {
    return *rows[static_cast<std::size_t>(l)];
  }
  device::SideStream stream_;
  Rows q_, k_, v_, out_;
  DeviceArray<float> surprise_;
  std::map<std::uint32_t, device::Graph> graphs_;
};

/// What a life shows: outputs, and events where it was looked at.
struct Seen {
  std::vector<std::vector<float>> outputs;
  std::vector<std::vector<TokenRange>> events;
  bool operator==(const Seen&) const = default;
};

/// A life drawn from `seed`: steps of all lengths, ways back, a reset, a memory of the host.
/// \param around called with what begins a step, which it may call more than once
template <class Step>
Seen live(Driven& driven, const EpisodicMemory& host, std::uint32_t seed, Step&& around) {
  const MemoryShape& shape = driven.memory->shape();
  std::mt19937 random(seed);
  std::vector<Token> tokens = driver::random_tokens(shape, kTokens + 1, seed);
  Seen seen;
  std::shared_ptr<const MemorySnapshot> snapshot;
  for (int i = 0; i < 40; ++i) {
    DeviceMemory& memory = *driven.memory;
    const auto what = random() % 24;
    if (what == 0) snapshot = memory.snapshot();
    if (what == 1 && snapshot && snapshot->tokens() <= memory.tokens()) {
      try {
        memory.restore(*snapshot);
      } catch (const ConfigError&) {  // the memory went back behind it
        snapshot = nullptr;
      }
    }
    if (what == 2 && i % 3 == 0) memory.reset();
    if (what == 3 && i % 2 == 0) memory.load(host);
    if (what == 4 || what == 5) {  // what was forgotten before is no new row's
      const auto scope = static_cast<std::int64_t>(i) % memory.scopes();
      if (const std::int64_t events = memory.events(scope).size(); events > 0)
        memory.forget(static_cast<std::int64_t>(random()) % events, scope);
    }
    const std::int64_t n = std::min<std::int64_t>(
        kTokens - memory.tokens(),
        random() % 2 == 0 ? 1 : 1 + static_cast<std::int64_t>(random()) % memory.config().chunk);
    if (n < 1) {
      memory.reset();
      continue;
    }
    seen.outputs.push_back(around([&] { return driven.step(tokens, n); }));
    if (i % 9 == 0) seen.events.push_back(memory.events(i % memory.scopes()).all());
  }
  for (std::int64_t s = 0; s < driven.memory->scopes(); ++s)
    seen.events.push_back(driven.memory->events(s).all());
  return seen;
}

std::vector<float> once(const std::function<std::vector<float>()>& step) { return step(); }

MemoryConfig life_config() {
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  config.n_mem = 12;
  return config;
}

void check_grown(std::initializer_list<int> all_settings) {
  const MemoryShape shape = shape_of();
  const TempDir dir;
  for (const int settings : all_settings) {
    MemoryConfig plain = life_config();
    if (settings == 6) plain.kv_dtype = DType::fp8;  // its scales grow too
    DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
    if (settings > 6) plain.scope = EventScope::head;  // to the rows of the head with most
    if (settings == 7) plain.segmenter = SegmenterKind::k_similarity;
    if (settings == 9) plain.score = RepresentativeScore::max;
    if (settings == 1 || settings == 8) {  // slabs of codes
      plain.min_block = plain.max_block = 1;
      options.codes_from = 64;
    } else if (settings == 2) {
      plain.reweight = Reweighting::broad;
      plain.contiguity = 0;
    } else if (settings == 3) {
      plain.reweight = Reweighting::exact;
      plain.contiguity = 0;
      plain.segmenter = SegmenterKind::k_similarity;
    } else if (settings > 3 && settings < 6) {
      plain.recall_groups = 2;  // arrays of each lane grow by themselves
      if (settings == 5) plain.reweight = Reweighting::exact, plain.contiguity = 0;
    }
    EpisodicMemory host(plain, shape);
    const std::vector<Token> tokens = driver::random_tokens(shape, 300, 77);
    for (std::int64_t first = 0; first < 300; first += 12) driver::step(host, tokens, first, 12);
    const bool with_files = settings == 0 || settings == 4 || settings == 6 || settings == 7;
    std::vector<MemoryConfig> configs = tiers(plain, shape, options, dir.path());
    if (!with_files) configs.pop_back();
    for (const MemoryConfig& config :
         episodic_test::in_turn(configs, static_cast<std::size_t>(settings + 2))) {
      const auto seed = static_cast<std::uint32_t>(settings + 1);
      const Mapping mapping(0);
      std::optional<Seen> expected;
      {
        Driven whole(config, shape, options);
        REQUIRE(whole.memory->bytes().taken == whole.memory->bytes().total());
        expected = live(whole, host, seed, once);
      }
      emulator::set_mapping_granularity(kPage);
      Driven grown(config, shape, options);
      REQUIRE(grown.memory->bytes().taken < grown.memory->bytes().total());
      REQUIRE((live(grown, host, seed, once) == *expected));
      REQUIRE(grown.memory->bytes().taken <= grown.memory->bytes().total());
      REQUIRE((config.device_bytes == 0 || grown.memory->bytes().total() <= config.device_bytes));
      if (config.disk_dir.empty()) REQUIRE(grown.launched > 5);
    }
  }
}

TEST_CASE("device memory that grows gives the bits of one that is all there, whatever it lives") {
  check_grown({0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE(
    "device memory of each head's events that grows gives the bits of one that is all there") {
  check_grown({7, 8, 9});
}

TEST_CASE("device memory that grows does so in every order of its streams") {
  const episodic_test::DefaultsBehind defaults;
  const Mapping mapping(kPage);
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
  const TempDir dir;
  EpisodicMemory host(life_config(), shape);
  std::size_t number = 0;
  for (const MemoryConfig& config : tiers(life_config(), shape, options, dir.path())) {
    std::optional<Seen> expected;
    using emulator::Overlap;
    std::vector<Overlap> overlaps = episodic_test::in_turn(
        std::vector{Overlap::late, Overlap::early, Overlap::shuffled}, number++);
    overlaps.insert(overlaps.begin(), Overlap::none);
    for (const Overlap overlap : overlaps) {
      emulator::set_overlap(overlap, 5);
      Driven grown(config, shape, options);
      const Seen seen = live(grown, host, 9, once);
      if (!expected) expected = seen;
      REQUIRE((seen == *expected));
      // It ends behind what it has enqueued: what is unmapped earlier would fault.
      const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 9);
      grown.memory->reset();
      for (int i = 0; i < 10; ++i) grown.step(tokens, 12, false);
      grown.memory.reset();
    }
    emulator::set_overlap(emulator::Overlap::none);
  }
}

/// \param arrays that grow, of which a piece each may be more than is needed
void check_held(EventScope scope, std::int64_t arrays) {
  const Mapping mapping(kPage);
  const MemoryShape shape = shape_of();
  MemoryConfig config = driver::small_config();
  config.scope = scope;
  config.max_block = 40;
  config.gamma = 1e6;  // no boundary: events of 40 tokens, where 3 would do
  constexpr std::int64_t kLong = 2400;
  const DeviceMemoryOptions options{DType::float32, kLong, DType::float32, 0};
  const std::vector<Token> tokens = driver::random_tokens(shape, kLong, 3);
  const std::int64_t before = emulator::device_bytes();
  Driven driven(config, shape, options);
  DeviceMemory& memory = *driven.memory;
  const auto held = [&] { return emulator::device_bytes() - before; };
  const DeviceMemoryBytes start = memory.bytes();
  // Graphs and the rows of this test are counted too, so only differences are compared from here.
  const std::int64_t beside = held() - start.taken;
  REQUIRE(beside >= 0);
  REQUIRE(DeviceMemory::bytes_needed(config, shape, options).total() <= start.total());
  REQUIRE(start.total() - start.taken > 16 * kPage);
  std::int64_t previous = start.taken, took = 0, steps = 0;
  const auto grow = [&](std::int64_t until, std::int64_t n) {
    while (memory.tokens() < until) {
      emulator::reset_calls();
      driven.step(tokens, n, false);
      if (n > 1) REQUIRE(emulator::calls().synchronisations == 0);
      took += memory.bytes().taken > previous;
      REQUIRE(memory.bytes().taken >= previous);
      previous = memory.bytes().taken;
      ++steps;
      if (steps % 50 == 0) memory.check();
    }
    memory.check();
  };
  grow(600, 10);
  const std::int64_t quarter = memory.bytes().taken;
  REQUIRE(quarter < start.taken + (start.total() - start.taken) / 2);
  grow(1200, 10);
  const std::int64_t half = memory.bytes().taken;
  REQUIRE(half > quarter);
  took = steps = 0;
  grow(1400, 1);
  REQUIRE(steps == 200);
  REQUIRE(took <= 20);  // a page has room for the keys and values of 16 tokens
  REQUIRE(memory.events().size() == (1400 - config.n_init - config.n_local) / 40);
  // Events of 40 tokens: of their representatives a thirteenth of what was reckoned with. What is
  // ahead of them: a sixteenth, and a piece of each array.
  const std::int64_t pieces = arrays * kPage;
  const std::int64_t rows = 2 * memory.events().size() * 64 * 4, keys = 2 * 1400 * 2 * 2 * 16 * 4;
  REQUIRE(memory.bytes().taken - start.taken < (rows + keys) * 17 / 16 + 2 * pieces);
  // A reset keeps it, and the next sequence takes no more.
  const std::int64_t kept = memory.bytes().taken;
  memory.reset();
  grow(1200, 10);
  REQUIRE(memory.bytes().taken == kept);
  driven.memory.reset();
  REQUIRE(held() <= beside + 64 * 1024);
}

TEST_CASE("device memory that is held follows the text, and most steps take none") {
  check_held(EventScope::sequence, 8);
  if (episodic_test::all_cases()) check_held(EventScope::head, 20);
}

TEST_CASE("where memory cannot be mapped all of it is taken at the start") {
  const episodic_test::DefaultsBehind defaults;
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
  EpisodicMemory host(life_config(), shape);
  std::optional<Seen> expected;
  for (const int lack : {0, 1, 2, 3}) {
    const Mapping mapping(lack == 0 ? 0 : kPage);
    if (lack == 1) emulator::set_reserves_addresses(false);
    if (lack == 2) emulator::set_driver_version(10000);         // has no such calls
    if (lack == 3) emulator::set_mapping_granularity(2 << 20);  // of which this is less than one
    const std::int64_t before = emulator::device_bytes();
    {
      DeviceMemory alone(life_config(), shape, options, nullptr);
      REQUIRE(emulator::device_bytes() - before == alone.bytes().total());
      REQUIRE(alone.bytes().taken == alone.bytes().total());
    }
    Driven whole(life_config(), shape, options);
    const Seen seen = live(whole, host, 4, once);
    if (!expected) expected = seen;
    REQUIRE((seen == *expected));
  }
}

TEST_CASE("a step for which a device has no memory is refused, and may be begun again") {
  const episodic_test::DefaultsBehind defaults;
  const Mapping mapping(kPage);
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
  EpisodicMemory host(life_config(), shape);
  const std::vector<Token> tokens = driver::random_tokens(shape, 300, 77);
  for (std::int64_t first = 0; first < 300; first += 12) driver::step(host, tokens, first, 12);
  const TempDir dir;
  std::size_t number = 0;
  for (const MemoryConfig& config : tiers(life_config(), shape, options, dir.path())) {
    std::optional<Seen> expected;
    {
      Driven calm(config, shape, options);
      expected = live(calm, host, 6, once);
    }
    for (const std::int64_t left :
         episodic_test::in_turn(std::vector<std::int64_t>{0, 1, 3}, number++)) {
      Driven driven(config, shape, options);
      std::int64_t refused = 0;
      const Seen seen = live(driven, host, 6, [&](const auto& step) {
        std::int64_t more = left;
        for (;; ++more) {
          emulator::set_mappings_left(more);  // it fails at the first piece, the second, ...
          emulator::reset_calls();
          try {
            const auto rows = step();
            emulator::set_mappings_left(-1);
            return rows;
          } catch (const BudgetError& e) {
            ++refused;
            REQUIRE(mentions(e.what(), "begin the step again"));
            REQUIRE(emulator::calls().launches == 0);
            REQUIRE(driven.memory->open_tokens() == 0);
            driven.memory->check();
          }
        }
      });
      REQUIRE((seen == *expected));
      if (left == 0) REQUIRE(refused > 1);
      // A memory of the host that has no room leaves this one as it was.
      DeviceMemory small(config, shape, options, nullptr);
      emulator::set_mappings_left(1);
      REQUIRE_THROWS_AS(small.load(host), BudgetError);
      emulator::set_mappings_left(-1);
      REQUIRE(small.tokens() == 0);
      small.load(host);
      REQUIRE(small.tokens() == 300);
      REQUIRE(small.events().all() == host.events().all());
    }
  }
  // Nor is there room for the first of it.
  emulator::set_mappings_left(0);
  const std::string said =
      refusal<BudgetError>([&] { DeviceMemory(life_config(), shape, options, nullptr); });
  emulator::set_mappings_left(-1);
  REQUIRE(mentions(said, "before its first token"));
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("device_bytes is divided for events of a length that is expected, and holds") {
  const Mapping mapping(kPage);
  const MemoryShape shape = shape_of();
  MemoryConfig config = life_config();
  config.max_block = 30;
  config.gamma = 1e6;
  DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 8);
  const auto feed = [&](Driven& driven) {
    std::vector<std::vector<float>> all;
    while (driven.memory->tokens() < kTokens)
      all.push_back(
          driven.step(tokens, std::min<std::int64_t>(7, kTokens - driven.memory->tokens())));
    return all;
  };
  Driven unbounded(config, shape, options);
  const auto expected = feed(unbounded);
  const DeviceMemoryBytes worst = unbounded.memory->bytes();
  // The longest sequence of the shortest events does not fit, whatever lies in slots.
  config.device_bytes = worst.window + worst.workspace + worst.representatives / 4 * 3;
  REQUIRE_THROWS_AS(DeviceMemory(config, shape, options, nullptr), BudgetError);
  options.event_tokens = 25;
  Driven driven(config, shape, options);
  REQUIRE(driven.memory->bytes().total() <= config.device_bytes);
  REQUIRE(driven.memory->bytes().host > 0);
  REQUIRE(feed(driven) == expected);
  REQUIRE(driven.memory->bytes().taken <= config.device_bytes);
  // Shorter events come to the bound, and the step that would pass it says so.
  config.gamma = 0;
  config.refine = Refinement::none;
  Driven shorter(config, shape, options);
  const std::string said = refusal<BudgetError>([&] { feed(shorter); });
  REQUIRE(mentions(said, "device_bytes = " + std::to_string(config.device_bytes)));
  REQUIRE(shorter.memory->bytes().taken <= config.device_bytes);
  const std::int64_t reached = shorter.memory->tokens();
  REQUIRE(reached > 100);
  REQUIRE_THROWS_AS(shorter.step(tokens, 7), BudgetError);
  shorter.memory->check();
  REQUIRE(shorter.memory->tokens() == reached);
  options.event_tokens = 31;
  REQUIRE(
      mentions(refusal<ConfigError>([&] { DeviceMemory::bytes_needed(config, shape, options); }),
               "event_tokens = 31"));
}

/// Events at home in page-locked memory, of which the device has slots.
MemoryConfig home_config(const MemoryShape& shape, const DeviceMemoryOptions& options) {
  MemoryConfig config = life_config();
  const DeviceMemoryBytes bytes = DeviceMemory::bytes_needed(config, shape, options);
  config.device_bytes = bytes.total() - bytes.snapshots - bytes.events / 3;
  return config;
}

TEST_CASE("page-locked memory grows with the sequence, and a little ahead of it") {
  const episodic_test::DefaultsBehind defaults;
  const Mapping mapping(kPage);
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 3);
  const std::int64_t before = emulator::pinned_bytes();
  std::vector<std::vector<float>> expected;
  for (const bool grows : {false, true}) {
    emulator::set_same_addresses(grows);  // else all of it is locked at the start
    Driven driven(home_config(shape, options), shape, options);
    const DeviceMemoryBytes start = driven.memory->bytes();
    REQUIRE(start.host > 16 * kPage);
    REQUIRE(start.host_taken == (grows ? 0 : start.host));
    std::vector<std::vector<float>> got;
    std::int64_t half = 0;
    while (driven.memory->tokens() < kTokens) {
      got.push_back(
          driven.step(tokens, std::min<std::int64_t>(10, kTokens - driven.memory->tokens())));
      if (driven.memory->tokens() == kTokens / 2) half = driven.memory->bytes().host_taken;
    }
    if (!grows) {
      expected = got;
      continue;
    }
    REQUIRE(got == expected);
    REQUIRE(half > 0);
    REQUIRE(half < start.host * 3 / 4);
    REQUIRE(driven.memory->bytes().host_taken > half);
    // Up to the end of the last piece.
    REQUIRE(driven.memory->bytes().host_taken <= (start.host + kPage - 1) / kPage * kPage);
    // A reset keeps it.
    const std::int64_t kept = driven.memory->bytes().host_taken;
    driven.memory->reset();
    REQUIRE(driven.step(tokens, 10) == expected.front());
    REQUIRE(driven.memory->bytes().host_taken >= kept);
    driven.memory.reset();
    REQUIRE(emulator::pinned_bytes() == before);
  }
}

TEST_CASE("a step for which no memory can be locked is refused, and may be begun again") {
  const episodic_test::DefaultsBehind defaults;
  const Mapping mapping(kPage);
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, kTokens, DType::float32, 0};
  const std::vector<Token> tokens = driver::random_tokens(shape, kTokens, 3);
  std::vector<std::vector<float>> expected;
  {
    Driven calm(home_config(shape, options), shape, options);
    while (calm.memory->tokens() < 300) expected.push_back(calm.step(tokens, 10));
  }
  Driven driven(home_config(shape, options), shape, options);
  std::int64_t refused = 0;
  for (const std::vector<float>& rows : expected)
    for (std::int64_t more = 0;; more += kPage) {  // none, a page, two
      emulator::set_pinned_capacity(emulator::pinned_bytes() + more);
      emulator::reset_calls();
      try {
        const std::vector<float> got = driven.step(tokens, 10);
        REQUIRE(got == rows);
        break;
      } catch (const BudgetError& e) {
        ++refused;
        REQUIRE(mentions(e.what(), "page-locked"));
        REQUIRE(mentions(e.what(), "begin the step again"));
        REQUIRE(mentions(e.what(), "host_bytes"));
        REQUIRE(emulator::calls().launches == 0);
        REQUIRE(driven.memory->open_tokens() == 0);
      }
    }
  REQUIRE(refused > 2);
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

#else

TEST_CASE("device memory that grows is told to the emulated device") {
  EPISODIC_SKIP("its pieces are too large for memories of tests");
}

#endif

std::string gigabytes(std::int64_t bytes) {
  std::string text = fmt::format("{:.1f}", 1e-9 * static_cast<double>(bytes));
  if (text.size() > 5) text.insert(text.size() - 5, ",");
  return text + " GB";
}

TEST_CASE("docs/kernels.md has what long sequences take as it is computed") {
  MemoryConfig config;  // as in the paper
  config.n_init = 128, config.n_local = 4096, config.n_mem = 2048, config.chunk = 512;
  config.min_block = 8, config.max_block = 128;
  const MemoryShape shape{32, 32, 8, 128, plain_rotary(128, 500000.0)};
  const auto row = [&](const std::string& name, auto&& of) {
    std::string text = "| " + name + " |";
    for (const std::int64_t tokens : {1'000'000, 10'000'000})
      text += " " + gigabytes(of(tokens)) + " |";
    return text + "\n";
  };
  const auto bytes = [&](std::int64_t tokens, DType dtype, std::int64_t codes, std::int64_t event) {
    return DeviceMemory::bytes_needed(config, shape,
                                      {DType::bfloat16, tokens, dtype, codes, event});
  };
  std::string table =
      "| LLaMA-3.1-8B in 16 bits, the paper's settings | 1M tokens | 10M tokens |\n|---|---|---|\n";
  table += row("keys and values, where they are at home on the device",
               [&](auto tokens) { return bytes(tokens, DType::float32, 4096, 0).events; });
  for (const auto& [name, dtype, codes] :
       {std::tuple{"float32, codes", DType::float32, std::int64_t{4096}},
        std::tuple{"16 bits, no codes", DType::bfloat16, std::int64_t{0}}})
    for (const std::int64_t event : {8, 32})
      table += row(fmt::format("representatives ({}) and tables, events of {}: {}", name, event,
                               event == 8 ? "addresses" : "memory"),
                   [&, dtype = dtype, codes = codes](auto tokens) {
                     return bytes(tokens, dtype, codes, event).representatives;
                   });
  table += row("taken before the first token",
               [&](auto tokens) { return bytes(tokens, DType::float32, 4096, 0).taken; });
  table += row("of it for snapshots",
               [&](auto tokens) { return bytes(tokens, DType::float32, 4096, 0).snapshots; });
  INFO("\n" << table);
  std::ifstream in(std::string(EPISODIC_SOURCE_DIR) + "/docs/kernels.md");
  const std::string docs(std::istreambuf_iterator<char>(in), {});
  REQUIRE(docs.find(table) != std::string::npos);
}

}  // namespace device_growth_test
