// SPDX-License-Identifier: Apache-2.0
// What a DeviceMemory asks of the device, the system and the caller: room for every step, its own
// device, memory that outlives the work on it, and one clear error where something is short.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda.hpp"
#include "episodic/base/error.hpp"
#include "kernels/window.hpp"
#include "steps.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"

namespace {

using namespace device_steps;

[[maybe_unused]] MemoryConfig tiered_config(const MemoryShape& shape,
                                            const DeviceMemoryOptions& options) {
  MemoryConfig config = driver::small_config();
  config.n_mem = 40;
  const DeviceMemoryBytes all = DeviceMemory::bytes_needed(config, shape, options);
  config.device_bytes = all.total() - all.snapshots - all.events / 3;
  return config;
}

}  // namespace

TEST_CASE("device memory has room for steps of every length up to its chunk") {
  EPISODIC_NEEDS_DEVICE();
  // Of these sizes a step of 138 tokens needs more workspace than the longest, or one of one token:
  // its few tiles of rows are split over more blocks.
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = 512;
  config.n_mem = 32;
  config.chunk = 160;
  config.min_block = 4;
  config.max_block = 16;
  config.recall = false;
  config.refine = Refinement::none;
  const MemoryShape shape = driver::small_shape(1, 4, 1, 16);
  constexpr std::int64_t kLongest = 160;
  const DeviceArray<float> zeros(std::vector<float>(kLongest * 64, 0.0f)), out(kLongest * 64);
  DeviceMemory memory(config, shape, {DType::float32, 4 * kLongest}, nullptr);
  const auto attend = [&](std::int64_t n) {
    memory.begin_step(n);
    memory.attend(0, layer_step(memory, zeros.data(), zeros.data(), zeros.data(), out.data()));
  };
  for (int i = 0; i < 3; ++i) {
    attend(kLongest);
    memory.end_step(zeros.data());
  }
  REQUIRE_NOTHROW(attend(138));
}

#if defined(EPISODIC_EMULATED_CUDA)
TEST_CASE("what memory held before it was written changes no bit of device memory's results") {
  const episodic_test::DefaultsBehind defaults;
  const MemoryShape shape = shape_of();
  const std::vector<Token> tokens = driver::random_tokens(shape, 150, 5);
  const DeviceMemoryOptions options{DType::float32, 600, DType::float32, 8};  // with codes
  std::vector<MemoryConfig> configs;
  const auto with = [&](auto change) {
    configs.push_back(driver::small_config());
    change(configs.back());
  };
  with([](MemoryConfig&) {});
  with([](MemoryConfig& c) { c.recall_groups = 2; });
  with([](MemoryConfig& c) { c.score = RepresentativeScore::max; });
  with([](MemoryConfig& c) { c.kv_dtype = DType::int8; });
  with([](MemoryConfig& c) { c.segmenter = SegmenterKind::gaussian; });
  with([](MemoryConfig& c) { c.retention.emplace(); });
  for (const Reweighting how : {Reweighting::exact, Reweighting::narrow})
    with([&](MemoryConfig& c) { c.reweight = how; });
  with([](MemoryConfig& c) {
    c.scope = EventScope::head;
    c.segmenter = SegmenterKind::k_similarity;
  });
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const TempDir dir;
    for (const MemoryConfig& config :
         episodic_test::in_turn(tiers(configs[i], shape, options, dir.path()), i)) {
      INFO("configuration " << i << ", disk_dir " << config.disk_dir << ", device_bytes "
                            << config.device_bytes);
      const auto run = [&](emulator::Unwritten what) {
        emulator::set_unwritten(what);
        DeviceMemory memory(config, shape, options, nullptr);
        std::vector<std::vector<float>> all;
        const auto feed = [&](std::int64_t first, std::int64_t end) {
          for (std::int64_t n = 12; first < end;
               first += n, n = std::min<std::int64_t>(n == 12 ? 1 : 12, end - first)) {
            for (auto& rows : step(memory, tokens, first, n)) all.push_back(std::move(rows));
            for (std::int64_t scope = 0; scope < memory.scopes(); ++scope) {
              const StepRecord record = memory.last_step(scope);
              all.push_back(record.threshold);
              std::vector<float> numbers(record.final_boundaries.begin(),
                                         record.final_boundaries.end());
              for (const TokenRange& e : memory.events(scope).all())
                numbers.push_back(static_cast<float>(e.end));
              all.push_back(std::move(numbers));
            }
            for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
              const std::vector<EventId> ids = memory.recalled(lane);
              all.emplace_back(ids.begin(), ids.end());
            }
          }
        };
        feed(0, 100);
        const auto snapshot = memory.snapshot();
        feed(100, 150);
        memory.restore(*snapshot);
        feed(100, 130);
        for (std::int64_t lane = 0; lane < memory.lanes(); ++lane)
          all.push_back(memory.representative(lane, 0));
        REQUIRE(memory.recalled_events() > 10);
        return all;
      };
      const auto expected = run(emulator::Unwritten::not_a_number);
      for (const auto what : episodic_test::in_turn(
               std::vector{emulator::Unwritten::zeros, emulator::Unwritten::ones}, i))
        REQUIRE(run(what) == expected);
    }
  }
}

TEST_CASE("settings of device memory at the ends of their ranges are refused in words, or work") {
  const episodic_test::DefaultsBehind defaults;
  emulator::set_device_capacity(64 << 20);
  emulator::set_pinned_capacity(64 << 20);
  using Change = void (*)(MemoryConfig&, DeviceMemoryOptions&, std::int64_t);
  struct Setting {
    const char* name;
    Change change;
  };
#define EPISODIC_OF_CONFIG(name)                                                      \
  Setting {                                                                           \
#name, [](MemoryConfig & c, DeviceMemoryOptions&, std::int64_t x) { c.name = x; } \
  }
#define EPISODIC_OF_OPTIONS(name)                                                     \
  Setting {                                                                           \
#name, [](MemoryConfig&, DeviceMemoryOptions & o, std::int64_t x) { o.name = x; } \
  }
  const Setting settings[] = {EPISODIC_OF_CONFIG(n_init),        EPISODIC_OF_CONFIG(n_local),
                              EPISODIC_OF_CONFIG(n_mem),         EPISODIC_OF_CONFIG(chunk),
                              EPISODIC_OF_CONFIG(tau),           EPISODIC_OF_CONFIG(min_block),
                              EPISODIC_OF_CONFIG(max_block),     EPISODIC_OF_CONFIG(min_count),
                              EPISODIC_OF_CONFIG(refine_layers), EPISODIC_OF_CONFIG(n_repr),
                              EPISODIC_OF_CONFIG(neighbours),    EPISODIC_OF_CONFIG(recall_groups),
                              EPISODIC_OF_CONFIG(recall_every),  EPISODIC_OF_CONFIG(exact_up_to),
                              EPISODIC_OF_CONFIG(reweight_top),  EPISODIC_OF_CONFIG(device_bytes),
                              EPISODIC_OF_CONFIG(host_bytes),    EPISODIC_OF_CONFIG(repr_bytes),
                              EPISODIC_OF_CONFIG(disk_bytes),    EPISODIC_OF_OPTIONS(max_tokens),
                              EPISODIC_OF_OPTIONS(codes_from),   EPISODIC_OF_OPTIONS(event_tokens)};
#undef EPISODIC_OF_CONFIG
#undef EPISODIC_OF_OPTIONS
  const MemoryShape shape = shape_of();
  std::vector<MemoryConfig> configs;
  const auto with = [&](auto change) {
    configs.push_back(driver::small_config());
    change(configs.back());
  };
  with([](MemoryConfig&) {});
  with([](MemoryConfig& c) { c.score = RepresentativeScore::max; });
  with([](MemoryConfig& c) { c.reweight = Reweighting::broad; });
  with([](MemoryConfig& c) {
    c.scope = EventScope::head;
    c.segmenter = SegmenterKind::gaussian;
    c.kv_dtype = DType::int8;
  });
  with([](MemoryConfig& c) { c.device_bytes = 600'000; });  // events at home on the host
  const std::vector<Token> tokens = driver::random_tokens(shape, 40, 5);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t refused = 0, made = 0, number = 0;  // by default every second combination
  for (const MemoryConfig& base : configs)
    for (const Setting& setting : settings)
      for (const std::int64_t value :
           {-kMost - 1, std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 20,
            std::int64_t{1} << 30, (std::int64_t{1} << 31) - 1, std::int64_t{1} << 31,
            std::int64_t{1} << 40, std::int64_t{1} << 60, std::int64_t{1} << 62, kMost - 1,
            kMost}) {
        if (++number % 2 == 0 && !episodic_test::all_cases()) continue;
        INFO("configuration " << &base - configs.data() << ", " << setting.name << " = " << value);
        MemoryConfig config = base;
        DeviceMemoryOptions options{DType::float32, 200};
        setting.change(config, options, value);
        if (setting.change == settings[6].change && value > 0) config.min_block = 1;
        std::string said;
        bool is_planned = false;
        try {
          const DeviceMemoryBytes bytes = DeviceMemory::bytes_needed(config, shape, options);
          for (const std::int64_t part : {bytes.window, bytes.events, bytes.representatives,
                                          bytes.workspace, bytes.taken, bytes.host})
            REQUIRE(part >= 0);
          is_planned = true;
          DeviceMemory memory(config, shape, options, nullptr);
          for (std::int64_t first = 0; first < 36;
               first += std::min<std::int64_t>(12, config.chunk)) {
            step(memory, tokens, first, std::min<std::int64_t>(12, config.chunk));
            if (config.chunk < 12 && first > 4) break;
          }
          ++made;
        } catch (const ConfigError& error) {
          said = error.what();
        } catch (const BudgetError& error) {
          said = error.what();
        }
        if (said.empty()) continue;
        ++refused;
        REQUIRE(said.find('\n') == std::string::npos);
        // What no device has is told from the settings alone, and by name.
        if (value == kMost && !is_planned) {
          INFO(said);
          REQUIRE(mentions(said, setting.name));
        }
      }
  REQUIRE(refused > episodic_test::all_or(300, 150));
  REQUIRE(made > episodic_test::all_or(300, 150));
}
#endif

TEST_CASE("views that no kernel takes are refused by name, and the step goes on") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(1);
  const DeviceArray<float> zeros(std::vector<float>(2 * 64 + 1, 0.0f)), out(2 * 64 + 1);
  DeviceMemory memory(driver::small_config(), shape, {DType::float32, 60}, nullptr);
  const DeviceMemory::LayerStep sound =
      layer_step(shape, DType::float32, 2, zeros.data(), zeros.data(), zeros.data(), out.data());
  memory.begin_step(2);
  struct Fault {
    const char* says;
    std::function<void(TensorView&)> spoil;
  };
  const std::vector<Fault> of_all = {
      {" is null", [](TensorView& x) { x.data = nullptr; }},
      {" lies in host memory, must lie in CUDA memory",
       [](TensorView& x) { x.memory = MemoryKind::host; }},
      {" is int8", [](TensorView& x) { x.dtype = DType::int8; }},
      {" is float16, but the memory was made for float32",
       [](TensorView& x) { x.dtype = DType::float16; }},
      {" is [3, ", [](TensorView& x) { x.sizes.n = 3; }},
      {", must be [2, ", [](TensorView& x) { x.sizes.heads = 1; }},
      {", must be [2, ", [](TensorView& x) { x.sizes.dim = 8; }},
      {"row stride -8", [](TensorView& x) { x.strides.row = -8; }},
      {"beyond all memory", [](TensorView& x) { x.strides.row = std::int64_t{1} << 61; }},
      {"row stride 8; on a device", [](TensorView& x) { x.strides.row = 8; }},
      {"row stride 68; on a device", [](TensorView& x) { x.strides.row = 68; }},
      {"head stride 24; on a device", [](TensorView& x) { x.strides.head = 24; }},
      {"no multiple of 16 bytes",
       [](TensorView& x) { x.data = static_cast<const char*>(x.data) + 4; }},
  };
  const auto says = [&](const DeviceMemory::LayerStep& step, const char* name, const char* what) {
    const std::string said = refusal<DataError>([&] { memory.attend(0, step); });
    INFO(said << " expected: " << what);
    REQUIRE(mentions(said, std::string("attend: ") + name + " "));
    REQUIRE(mentions(said, what));
  };
  for (const Fault& fault : of_all) {
    DeviceMemory::LayerStep step = sound;
    fault.spoil(step.q), says(step, "q", fault.says);
    step = sound, fault.spoil(step.k), says(step, "k", fault.says);
    step = sound, fault.spoil(step.v), says(step, "v", fault.says);
    TensorView to = sound.out;
    fault.spoil(to);
    step = sound;
    step.out = {to.data ? out.data() + (to.data == sound.out.data ? 0 : 1) : nullptr, to.dtype,
                to.sizes, to.strides, to.memory};
    says(step, "out", fault.says);
  }
  DeviceMemory::LayerStep step = sound;
  step.out.strides.row = 72, says(step, "out", "packed");
  step = sound, step.q.rotary = Rotary::after, says(step, "q", "before rotary embedding");
  step = sound, step.k.rotary = Rotary::after, says(step, "k", "before rotary embedding");
  for (const SurpriseView& wrong :
       {SurpriseView{nullptr, 2, MemoryKind::cuda}, SurpriseView{zeros.data(), 1, MemoryKind::cuda},
        SurpriseView{zeros.data(), 2}})
    REQUIRE(mentions(refusal<DataError>([&] { memory.end_step(wrong); }), "end_step: surprise "));
  REQUIRE(memory.open_tokens() == 2);
  REQUIRE_NOTHROW(memory.attend(0, sound));
  REQUIRE(mentions(refusal<DataError>([&] { memory.end_step(nullptr); }), "surprise is null"));
  REQUIRE_NOTHROW(memory.end_step({zeros.data(), 2, MemoryKind::cuda}));
  REQUIRE_NOTHROW(memory.check());
}

TEST_CASE("what a kernel refuses is named by its field") {
  EPISODIC_NEEDS_DEVICE();
  const DeviceArray<float> zeros(std::vector<float>(64, 0.0f));
  const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{0});
  kernels::AppendParams p;
  p.dtype = DType::float32;
  p.n = p.n_kv_heads = 1;
  p.head_dim = p.k_row_stride = p.v_row_stride = 8;
  p.first_position = position.data();
  p.v = zeros.data();
  p.ring_rotated_key = p.ring_value = zeros.data();
  p.ring_capacity = 1;
  p.ring_head_stride = 8;
  const auto said = [&] {
    return refusal<DeviceError>(
        [&] { device::check(kernels::append_window(p, nullptr), "appending keys and values", p); });
  };
  REQUIRE(mentions(said(), "appending keys and values: "));
  REQUIRE(mentions(said(), "(cudaErrorInvalidValue): the kernel does not take its k"));
  p.v_row_stride = 7;
  REQUIRE(mentions(said(), "does not take its v_row_stride"));
}

TEST_CASE("device memory works on its own device, whichever is current") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_device_count(2);
  const auto on = [](int device) { REQUIRE(cudaSetDevice(device) == cudaSuccess); };
  const auto current = [] {
    int device = -1;
    REQUIRE(cudaGetDevice(&device) == cudaSuccess);
    return device;
  };
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, 120};
  const std::vector<Token> tokens = driver::random_tokens(shape, 120, 5);
  for (const bool tiered : {false, true}) {
    const MemoryConfig config = tiered ? tiered_config(shape, options) : driver::small_config();
    EpisodicMemory host(driver::small_config(), shape);
    on(1);
    cudaStream_t stream = nullptr, other = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    auto memory = std::make_unique<DeviceMemory>(config, shape, options, stream);
    on(0);
    const auto stays = [&](auto&& call) {
      REQUIRE_NOTHROW(call());
      REQUIRE(current() == 0);
    };
    for (std::int64_t first = 0; first < 96; first += 12)
      stays([&] { step(*memory, tokens, first, 12); });
    std::shared_ptr<const MemorySnapshot> snapshot;
    stays([&] { snapshot = memory->snapshot(); });
    stays([&] { step(*memory, tokens, 96, 1); });
    stays([&] { memory->restore(*snapshot); });
    stays([&] { static_cast<void>(memory->events()); });
    stays([&] { static_cast<void>(memory->last_step()); });
    stays([&] { static_cast<void>(memory->recalled(1)); });
    stays([&] { static_cast<void>(memory->recall_lists(1)); });
    stays([&] { static_cast<void>(memory->representative(1, 0)); });
    stays([&] { static_cast<void>(memory->relevance(1, 90, 2)); });
    stays([&] { memory->use_stream(other); });
    stays([&] { step(*memory, tokens, 96, 12); });
    stays([&] { memory->reset(); });
    if (!tiered) {
      stays([&] { memory->load(host); });
      stays([&] { step(*memory, tokens, 0, 12); });
      const std::vector<std::int64_t> ids(12, 1);
      stays([&] { memory->save(host, ids, {}); });
    }
    stays([&] { memory.reset(); });
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
    REQUIRE(cudaStreamDestroy(other) == cudaSuccess);
  }
  on(0);
  emulator::set_device_count(1);
  REQUIRE(cudaGetLastError() == cudaSuccess);
#else
  EPISODIC_SKIP("needs two devices: told to the emulated one");
#endif
}

TEST_CASE("a device's memory ends behind the work that it has enqueued") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, 120};
  const std::vector<Token> tokens = driver::random_tokens(shape, 120, 6);
  const MemoryConfig config = tiered_config(shape, options);
  const auto q = rows_of(tokens, &Token::q, 0, 96, 12), k = rows_of(tokens, &Token::k, 0, 96, 12),
             v = rows_of(tokens, &Token::v, 0, 96, 12);
  const DeviceArray<float> dq(q), dk(k), dv(v), out(q.size());
  const auto attended = [&](bool wait) {
    auto memory = std::make_unique<DeviceMemory>(config, shape, options, nullptr);
    for (std::int64_t first = 0; first < 96; first += 12) step(*memory, tokens, first, 12);
    memory->begin_step(12);
    memory->attend(0, layer_step(*memory, dq.data(), dk.data(), dv.data(), out.data()));
    if (wait) memory->check();
    memory.reset();  // its events lie in page-locked memory, which attention may still read
    return out.host();
  };
  const std::vector<float> expected = attended(true);
  REQUIRE(std::none_of(expected.begin(), expected.end(), [](float x) { return x != x; }));
  emulator::set_overlap(emulator::Overlap::late);
  const std::vector<float> got = attended(false);
  emulator::set_overlap(emulator::Overlap::none);
  REQUIRE((got == expected));
#else
  EPISODIC_SKIP("told to the emulated device, which runs what is enqueued as late as it may");
#endif
}

TEST_CASE("page-locked memory that runs out is said with the setting that takes less") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, 120};
  const MemoryConfig config = tiered_config(shape, options);
  const std::int64_t host = DeviceMemory::bytes_needed(config, shape, options).host;
  REQUIRE(host > 0);
  emulator::set_pinned_capacity(host - 1);
  const std::string said =
      refusal<BudgetError>([&] { DeviceMemory(config, shape, options, nullptr); });
  emulator::set_pinned_capacity(std::int64_t{1} << 50);
  REQUIRE(mentions(said, std::to_string(host)));
  REQUIRE(mentions(said, "host_bytes"));
  REQUIRE(mentions(said, "page-locked"));
  REQUIRE(cudaGetLastError() == cudaSuccess);
#else
  EPISODIC_SKIP("told to the emulated device");
#endif
}

TEST_CASE("a fault on the device is told from a wrong call: the context is lost") {
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  DeviceMemory memory(driver::small_config(), shape_of(), {DType::float32, 24}, nullptr);
  emulator::set_context_lost(cudaErrorIllegalAddress);
  const std::string lost = refusal<DeviceError>([&] { memory.check(); });
  emulator::set_context_lost(cudaSuccess);
  REQUIRE(mentions(lost, "cudaErrorIllegalAddress"));
  REQUIRE(mentions(lost, "context is lost"));
  const std::string wrong =
      refusal<DeviceError>([] { device::check(cudaErrorInvalidValue, "a wrong call"); });
  REQUIRE(mentions(wrong, "a wrong call"));
  REQUIRE_FALSE(mentions(wrong, "lost"));
#else
  EPISODIC_SKIP("told to the emulated device");
#endif
}

TEST_CASE("device memory refuses heads that no device's shared memory holds, by name") {
  const MemoryShape shape = driver::small_shape(1, 128, 128, 256);
  const std::string said = refusal<ConfigError>([&] {
    DeviceMemory::bytes_needed(driver::small_config(), shape, {DType::float16, 100});
  });
  REQUIRE(mentions(said, "128 heads of 256"));
}

TEST_CASE("a restore to tokens that a restore took back is refused, whatever closed between") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(1);
  const std::vector<Token> tokens = driver::random_tokens(shape, 60, 9);
  MemoryConfig config = driver::small_config();
  config.gamma = 1e6;  // no boundary: events close only when they are as long as they may be
  config.max_block = 40;
  DeviceMemory memory(config, shape, {DType::float32, 60}, nullptr);
  for (std::int64_t first = 0; first < 36; first += 12) step(memory, tokens, first, 12);
  const auto early = memory.snapshot();
  step(memory, tokens, 36, 5);
  const auto late = memory.snapshot();
  REQUIRE(memory.events().size() == 0);  // the same number of events in both
  memory.restore(*late);
  memory.restore(*early);
  REQUIRE(mentions(refusal<ConfigError>([&] { memory.restore(*late); }), "36 tokens"));
  memory.restore(*early);  // and is as it was
  step(memory, tokens, 36, 5);
  REQUIRE(memory.tokens() == 41);
}

TEST_CASE("the attention factor of a rotary table counts twice for far keys, as for local ones") {
  EPISODIC_NEEDS_DEVICE();
  // A factor of 2 is undone by queries and keys of half the size, to the bit, if far scores, which
  // choose what is recalled too, carry its square like local ones.
  const MemoryShape plain = shape_of(1);
  MemoryShape scaled = plain;
  scaled.rotary.attention_factor = 2.0;
  const std::vector<Token> tokens = driver::random_tokens(plain, 96, 11);
  std::vector<Token> halves = tokens;
  for (Token& t : halves)
    for (auto* rows : {&t.q, &t.k})
      for (std::vector<float>& row : *rows)
        for (float& x : row) x *= 0.5f;
  MemoryConfig config = driver::small_config();
  config.contiguity = 0.3;
  DeviceMemory one(config, plain, {DType::float32, 96}, nullptr),
      two(config, scaled, {DType::float32, 96}, nullptr);
  bool recalled = false;
  for (std::int64_t first = 0; first < 96; first += 12) {
    REQUIRE((step(one, tokens, first, 12) == step(two, halves, first, 12)));
    REQUIRE(one.recalled(0) == two.recalled(0));
    recalled = recalled || !one.recalled(0).empty();
  }
  REQUIRE(recalled);
}

TEST_CASE("a device's representatives are float32, or take half the bytes where that is asked") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = shape_of(1);
  std::vector<Token> tokens = driver::random_tokens(shape, 96, 12);
  round_to(tokens, DType::bfloat16);
  const MemoryConfig config = driver::small_config();
  DeviceMemory wide(config, shape, {DType::bfloat16, 96}, nullptr),
      narrow(config, shape, {DType::bfloat16, 96, DType::bfloat16}, nullptr);
  for (std::int64_t first = 0; first < 48; first += 12) {  // until the first events close
    step(wide, tokens, first, 12);
    step(narrow, tokens, first, 12);
  }
  REQUIRE((wide.events().all() == narrow.events().all()));
  REQUIRE(wide.events().size() > 0);
  const std::vector<float> exact = wide.representative(0, 0);
  std::vector<float> expected = exact;
  static_cast<void>(episodic_test::stored(expected, DType::bfloat16));
  REQUIRE(expected != exact);  // or the wide ones were no wider
  REQUIRE(narrow.representative(0, 0) == expected);
  const auto bytes = [&](DType dtype) {
    return DeviceMemory::bytes_needed(config, shape, {DType::bfloat16, 96, dtype}).representatives;
  };
  REQUIRE(bytes(DType::float32) - bytes(DType::bfloat16) >= (96 - 4) / 3 * 64 * 2);
  REQUIRE(mentions(refusal<ConfigError>([&] {
                     DeviceMemory::bytes_needed(config, shape, {DType::float32, 96, DType::int8});
                   }),
                   "representatives"));
}
