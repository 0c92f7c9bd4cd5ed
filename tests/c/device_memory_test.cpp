// SPDX-License-Identifier: Apache-2.0
// The C API's memories on a device beside those on the host: the same rows give the same outputs,
// events and lists, whatever is done to them. Built on the emulated device, and in builds with CUDA
// on a device.
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "episodic/c/episodic.h"
#include "kernels/device.hpp"
#include "support/test.hpp"

namespace c_device_memory_test {

using episodic_test::DeviceArray;

constexpr std::int64_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 16, kVocab = 13;
constexpr const char* kSettings =
    R"({"n_init": 4, "n_local": 24, "n_mem": 24, "chunk": 12, "min_block": 3, "max_block": 9,
        "n_repr": 3, "kv_dtype": "float32"})";

episodic_shape shape() {
  episodic_shape s{};
  s.struct_size = sizeof s;
  s.n_layers = kLayers;
  s.n_heads = kHeads;
  s.n_kv_heads = kKvHeads;
  s.head_dim = s.rotary_dim = kDim;
  s.rotary_theta = 10000;
  return s;
}

episodic_device_options options_of(const episodic_shape& s) {
  episodic_device_options options{};
  options.struct_size = sizeof options;
  options.settings = kSettings;
  options.shape = &s;
  options.max_tokens = 400;
  return options;
}

episodic_view view(float* rows, std::int64_t n, std::int64_t heads) {
  episodic_view v{};
  v.struct_size = sizeof v;
  v.data = rows;
  v.n = n;
  v.heads = heads;
  v.dim = kDim;
  return v;
}

/// A memory of the one or other kind, which is freed with it.
struct Freed {
  explicit Freed(episodic_memory m) : memory(m) {}
  ~Freed() { episodic_memory_free(memory); }
  Freed(const Freed&) = delete;
  Freed& operator=(const Freed&) = delete;
  episodic_memory memory;
};

std::unique_ptr<Freed> on_host() {
  const episodic_shape s = shape();
  episodic_memory memory = nullptr;
  REQUIRE(episodic_memory_new(kSettings, &s, &memory) == EPISODIC_OK);
  return std::make_unique<Freed>(memory);
}

std::unique_ptr<Freed> on_device() {
  const episodic_shape s = shape();
  const episodic_device_options options = options_of(s);
  episodic_memory memory = nullptr;
  REQUIRE(episodic_memory_on_device(&options, &memory) == EPISODIC_OK);
  return std::make_unique<Freed>(memory);
}

/// A text: rows and logits of its tokens, the same whatever the steps.
struct Text {
  explicit Text(std::uint32_t seed) : random(seed) {}
  std::vector<float> some(std::int64_t n) {
    std::vector<float> rows(static_cast<std::size_t>(n));
    for (float& x : rows) x = normal(random);
    return rows;
  }
  std::mt19937 random;
  std::normal_distribution<float> normal;
};

/// One step of both, on the same rows. \param by_logits how it ends, else by surprise
void step_both(episodic_memory host, episodic_memory device, Text& text, std::int64_t n,
               bool by_logits, cudaStream_t stream = nullptr) {
  REQUIRE(episodic_memory_begin_step(host, n, n == 1) == EPISODIC_OK);
  REQUIRE(episodic_memory_begin_step(device, n, n == 1) == EPISODIC_OK);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    std::vector<float> q = text.some(n * kHeads * kDim), k = text.some(n * kKvHeads * kDim),
                       v = text.some(n * kKvHeads * kDim), out(q.size());
    const episodic_view of_host[] = {view(q.data(), n, kHeads), view(k.data(), n, kKvHeads),
                                     view(v.data(), n, kKvHeads), view(out.data(), n, kHeads)};
    const DeviceArray<float> dq(q), dk(k), dv(v), dout(q.size());
    const episodic_view of_device[] = {view(dq.data(), n, kHeads), view(dk.data(), n, kKvHeads),
                                       view(dv.data(), n, kKvHeads), view(dout.data(), n, kHeads)};
    REQUIRE(episodic_memory_attend(host, layer, &of_host[0], &of_host[1], &of_host[2],
                                   &of_host[3]) == EPISODIC_OK);
    REQUIRE(episodic_memory_attend(device, layer, &of_device[0], &of_device[1], &of_device[2],
                                   &of_device[3]) == EPISODIC_OK);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    const std::vector<float> got = dout.host();
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - out[i]) < 2e-5f);
  }
  const auto count = static_cast<std::size_t>(n);
  if (by_logits) {
    const std::vector<float> logits = text.some(n * kVocab);
    std::vector<std::int64_t> ids(count);
    for (std::int64_t& id : ids) id = static_cast<std::int64_t>(text.random() % kVocab);
    const DeviceArray<float> there(logits);
    REQUIRE(episodic_memory_end_step_logits(host, ids.data(), count, logits.data(), kVocab,
                                            kVocab) == EPISODIC_OK);
    REQUIRE(episodic_memory_end_step_logits(device, ids.data(), count, there.data(), kVocab,
                                            kVocab) == EPISODIC_OK);
  } else {
    std::vector<float> surprise = text.some(n);
    for (float& x : surprise) x = std::abs(x);
    const DeviceArray<float> there(surprise);
    REQUIRE(episodic_memory_end_step(host, surprise.data(), count) == EPISODIC_OK);
    REQUIRE(episodic_memory_end_step(device, there.data(), count) == EPISODIC_OK);
  }
}

void read_both(episodic_memory host, episodic_memory device, Text& text, std::int64_t tokens,
               bool by_logits, cudaStream_t stream = nullptr) {
  for (std::int64_t at = 0; at < tokens;) {
    const std::int64_t n = std::min(tokens - at, at / 24 % 3 == 1 ? std::int64_t{1} : 12);
    step_both(host, device, text, n, by_logits, stream);
    at += n;
  }
}

template <class T, class F>
std::vector<T> items(const F& f) {
  std::size_t n = 0;
  REQUIRE(f(static_cast<T*>(nullptr), std::size_t{0}, &n) == EPISODIC_OK);
  std::vector<T> all(n);
  if (n > 0) REQUIRE(f(all.data(), n, &n) == EPISODIC_OK);
  return all;
}

/// \return events
std::size_t require_same(episodic_memory host, episodic_memory device) {
  episodic_memory_info a{}, b{};
  a.struct_size = b.struct_size = sizeof a;
  REQUIRE(episodic_memory_get_info(host, &a) == EPISODIC_OK);
  REQUIRE(episodic_memory_get_info(device, &b) == EPISODIC_OK);
  REQUIRE(a.tokens == b.tokens);
  REQUIRE(a.events == b.events);
  REQUIRE(a.lanes == b.lanes);
  REQUIRE(a.chunk == b.chunk);
  REQUIRE(b.kept == 0);
  const auto events = [](episodic_memory m) {
    std::vector<std::int64_t> ends;
    for (const episodic_range& e : items<episodic_range>([&](auto*to, std::size_t n, auto*count) {
           return episodic_memory_events(m, 0, to, n, count);
         }))
      ends.push_back(e.end);
    return ends;
  };
  REQUIRE(events(host) == events(device));
  for (std::int64_t lane = 0; lane < a.lanes; ++lane) {
    const auto recalled = [&](episodic_memory m) {
      return items<std::int64_t>([&](auto* to, std::size_t n, auto* count) {
        return episodic_memory_recalled(m, lane, to, n, count);
      });
    };
    REQUIRE(recalled(host) == recalled(device));
  }
  return static_cast<std::size_t>(a.events);
}

TEST_CASE("c: a memory on a device does what one on the host does") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool by_logits : {false, true}) {
    INFO((by_logits ? "logits" : "surprise"));
    const auto host = on_host(), device = on_device();
    Text text(1);
    read_both(host->memory, device->memory, text, 100, by_logits);
    REQUIRE(require_same(host->memory, device->memory) > 4);

    episodic_snapshot snapshots[2] = {};
    REQUIRE(episodic_memory_snapshot(host->memory, &snapshots[0]) == EPISODIC_OK);
    REQUIRE(episodic_memory_snapshot(device->memory, &snapshots[1]) == EPISODIC_OK);
    read_both(host->memory, device->memory, text, 40, by_logits);
    require_same(host->memory, device->memory);
    REQUIRE(episodic_memory_restore(host->memory, snapshots[0]) == EPISODIC_OK);
    REQUIRE(episodic_memory_restore(device->memory, snapshots[1]) == EPISODIC_OK);
    for (const episodic_snapshot s : snapshots) episodic_snapshot_free(s);
    read_both(host->memory, device->memory, text, 40, by_logits);
    require_same(host->memory, device->memory);

    episodic_memory forks[2] = {};
    REQUIRE(episodic_memory_fork(host->memory, &forks[0]) == EPISODIC_OK);
    REQUIRE(episodic_memory_fork(device->memory, &forks[1]) == EPISODIC_OK);
    const Freed host_fork(forks[0]), device_fork(forks[1]);
    read_both(host->memory, device->memory, text, 30, by_logits);
    Text other(2);
    read_both(host_fork.memory, device_fork.memory, other, 30, by_logits);
    require_same(host->memory, device->memory);
    require_same(host_fork.memory, device_fork.memory);

    REQUIRE(episodic_memory_begin_step(device->memory, 3, 0) == EPISODIC_OK);
    REQUIRE(episodic_memory_abandon_step(device->memory) == EPISODIC_OK);
    REQUIRE(episodic_memory_reset(host->memory) == EPISODIC_OK);
    REQUIRE(episodic_memory_reset(device->memory) == EPISODIC_OK);
    read_both(host->memory, device->memory, text, 60, by_logits);
    std::size_t gone[2] = {};
    REQUIRE(episodic_memory_pin(host->memory, 1, 1) == EPISODIC_CONFIG);  // it has one tier
    REQUIRE(episodic_memory_pin(device->memory, 1, 1) == EPISODIC_OK);
    REQUIRE(episodic_memory_pin(device->memory, 1, 0) == EPISODIC_OK);
    REQUIRE(episodic_memory_forget(host->memory, {8, 9}, &gone[0]) == EPISODIC_OK);
    REQUIRE(episodic_memory_forget(device->memory, {8, 9}, &gone[1]) == EPISODIC_OK);
    REQUIRE(gone[0] == 1);
    REQUIRE(gone[1] == 1);
    read_both(host->memory, device->memory, text, 40, by_logits);
    require_same(host->memory, device->memory);
  }
}

std::string last_error() { return episodic_last_error(); }

TEST_CASE("c: what a memory on a device does not take has a code and a reason") {
  EPISODIC_NEEDS_DEVICE();
  const auto host = on_host(), device = on_device();
  Text text(3);
  step_both(host->memory, device->memory, text, 5, false);
  REQUIRE(episodic_memory_commit(device->memory) == EPISODIC_CONFIG);
  std::size_t n = 0;
  REQUIRE(episodic_memory_ids(device->memory, {0, 3}, nullptr, 0, &n) == EPISODIC_CONFIG);
  REQUIRE(last_error().find("ids: not of a memory on a device") != std::string::npos);
  REQUIRE(episodic_memory_use_stream(host->memory, nullptr) == EPISODIC_CONFIG);
  REQUIRE(last_error().find("use_stream") != std::string::npos);

  const episodic_shape s = shape();
  episodic_device_options options = options_of(s);
  episodic_memory none = nullptr;
  REQUIRE(episodic_memory_on_device(nullptr, &none) == EPISODIC_NULL_ARGUMENT);
  REQUIRE(episodic_memory_on_device(&options, nullptr) == EPISODIC_NULL_ARGUMENT);
  options.shape = nullptr;
  REQUIRE(episodic_memory_on_device(&options, &none) == EPISODIC_NULL_ARGUMENT);
  options = options_of(s);
  options.dtype = 3;
  REQUIRE(episodic_memory_on_device(&options, &none) == EPISODIC_DATA);
  options = options_of(s);
  options.max_tokens = 0;
  REQUIRE(episodic_memory_on_device(&options, &none) == EPISODIC_CONFIG);
  REQUIRE(last_error().find("max_tokens") != std::string::npos);
  options = options_of(s);
  options.device_number = 99;
  REQUIRE(episodic_memory_on_device(&options, &none) == EPISODIC_DEVICE);
  options = options_of(s);
  options.struct_size = 8;
  REQUIRE(episodic_memory_on_device(&options, &none) != EPISODIC_OK);
  REQUIRE(none == nullptr);

  // The steps before ended by surprise: nobody knows what came before this one's first token.
  REQUIRE(episodic_memory_begin_step(device->memory, 1, 1) == EPISODIC_OK);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const DeviceArray<float> q(text.some(kHeads * kDim)), k(text.some(kKvHeads * kDim)),
        v(text.some(kKvHeads * kDim)), out(q.size());
    const episodic_view views[] = {view(q.data(), 1, kHeads), view(k.data(), 1, kKvHeads),
                                   view(v.data(), 1, kKvHeads), view(out.data(), 1, kHeads)};
    REQUIRE(episodic_memory_attend(device->memory, layer, &views[0], &views[1], &views[2],
                                   &views[3]) == EPISODIC_OK);
  }
  const DeviceArray<float> logits(text.some(kVocab));
  const std::int64_t id = 3, unknown = kVocab;
  REQUIRE(episodic_memory_end_step_logits(device->memory, &id, 1, logits.data(), kVocab, kVocab) ==
          EPISODIC_DATA);
  REQUIRE(last_error().find("the logits behind token 4 are not known") != std::string::npos);
  REQUIRE(episodic_memory_end_step_logits(device->memory, &unknown, 1, logits.data(), kVocab,
                                          kVocab) == EPISODIC_DATA);
  REQUIRE(last_error().find("ids[0] = 13") != std::string::npos);

  // What the device finds wrong is told by who waits.
  const DeviceArray<float> nan(std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
  REQUIRE(episodic_memory_end_step(device->memory, nan.data(), 1) == EPISODIC_OK);
  episodic_memory_info info{};
  info.struct_size = sizeof info;
  REQUIRE(episodic_memory_get_info(device->memory, &info) == EPISODIC_DATA);
  REQUIRE(last_error().find("surprise is NaN") != std::string::npos);
}

TEST_CASE("c: a memory on a device moves to another stream") {
  EPISODIC_NEEDS_DEVICE();
  const auto host = on_host(), device = on_device();
  Text text(4);
  read_both(host->memory, device->memory, text, 50, false);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(episodic_memory_use_stream(device->memory, stream) == EPISODIC_OK);
  read_both(host->memory, device->memory, text, 50, false, stream);
  require_same(host->memory, device->memory);
  REQUIRE(episodic_memory_use_stream(device->memory, nullptr) == EPISODIC_OK);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  read_both(host->memory, device->memory, text, 30, false);
  require_same(host->memory, device->memory);
}

}  // namespace c_device_memory_test
