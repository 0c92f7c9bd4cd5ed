// SPDX-License-Identifier: Apache-2.0
#include "kernels/copies.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "episodic/store/codec.hpp"
#include "kernels/device.hpp"

namespace copies_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

using Bytes = std::vector<unsigned char>;
constexpr unsigned char kUntouched = 0xa5;

Bytes random_bytes(std::size_t n, std::mt19937& random) {
  Bytes bytes(n);
  for (unsigned char& b : bytes) b = static_cast<unsigned char>(random());
  return bytes;
}

/// Pinned host memory, which the device maps.
class PinnedBytes {
 public:
  explicit PinnedBytes(const Bytes& from) : size_(from.size()) {
    void* memory = nullptr;
    REQUIRE(cudaHostAlloc(&memory, size_, cudaHostAllocDefault) == cudaSuccess);
    data_ = static_cast<unsigned char*>(memory);
    std::copy(from.begin(), from.end(), data_);
  }
  ~PinnedBytes() { cudaFreeHost(data_); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  unsigned char* data() const { return data_; }
  Bytes host() const { return Bytes(data_, data_ + size_); }

 private:
  unsigned char* data_ = nullptr;
  std::size_t size_;
};

struct Run {
  std::size_t from, to, bytes;
};

cudaError_t copy(const std::vector<Run>& runs, const unsigned char* from, unsigned char* to,
                 std::int32_t count, std::int64_t max_runs, std::int64_t max_blocks) {
  std::vector<CopyRun> list;
  for (const Run& run : runs)
    list.push_back({from + run.from, to + run.to, static_cast<std::int64_t>(run.bytes)});
  const DeviceArray<CopyRun> d_runs(list);
  const DeviceArray<std::int32_t> d_count(std::vector<std::int32_t>{count});
  CopyRunsParams p;
  p.runs = d_runs.data();
  p.count = d_count.data();
  p.max_runs = max_runs;
  p.max_blocks = max_blocks;
  const cudaError_t error = copy_runs(p, nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return error;
}

Bytes expected_of(const std::vector<Run>& runs, const Bytes& from, std::size_t size) {
  Bytes to(size, kUntouched);
  for (const Run& run : runs) std::memcpy(to.data() + run.to, from.data() + run.from, run.bytes);
  return to;
}

TEST_CASE("copy_runs copies runs of every length and alignment, and nothing else") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(4);
  std::vector<Run> runs;
  std::size_t to = 3;
  const auto add = [&](std::size_t from, std::size_t to_shift, std::size_t bytes) {
    to = (to + 15) / 16 * 16 + to_shift;
    runs.push_back({from, to, bytes});
    to += bytes + 1;
  };
  // short ones at every pair of alignments, then lengths around a tile, and a long one
  for (std::size_t bytes : {1u, 15u, 16u, 17u, 40u})
    for (std::size_t from : {0u, 1u, 4u, 13u})
      for (std::size_t shift : {0u, 1u, 4u, 15u}) add(from + 16 * (random() % 64), shift, bytes);
  for (std::size_t bytes : {4095u, 4096u, 4097u, 8192u, 70001u})
    for (std::size_t from : {0u, 2u, 8u}) add(from, bytes % 3, bytes);
  add(7, 0, 0);
  add(16, 0, 64);
  const Bytes from = random_bytes(70100, random);
  const Bytes expected = expected_of(runs, from, to + 16);
  const DeviceArray<unsigned char> source(from);
  for (const std::int64_t blocks : {0, 1, 40})
    episodic_test::in_every_order([&] {
      const DeviceArray<unsigned char> target(Bytes(expected.size(), kUntouched));
      const auto count = static_cast<std::int32_t>(runs.size());
      REQUIRE(copy(runs, source.data(), target.data(), count, count, blocks) == cudaSuccess);
      REQUIRE(target.host() == expected);
    });
}

TEST_CASE("copy_runs takes more runs than a block numbers at once, between host and device") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  std::vector<Run> runs;
  const Bytes from = random_bytes(1 << 14, random);
  std::size_t to = 0;
  for (int i = 0; i < 700; ++i) {
    // most empty or short, so that many numbers of tiles fall together
    const std::size_t bytes = i % 3 == 0 ? 0 : i % 50 == 1 ? 5000 + random() % 4000 : random() % 64;
    runs.push_back({random() % (from.size() - bytes), to, bytes});
    to += bytes;
  }
  const Bytes expected = expected_of(runs, from, to);
  const PinnedBytes pinned(from), back(Bytes(to, kUntouched));
  const DeviceArray<unsigned char> device(Bytes(to, kUntouched));
  REQUIRE(copy(runs, pinned.data(), device.data(), 700, 700, 3) == cudaSuccess);
  REQUIRE(device.host() == expected);
  REQUIRE(copy({{0, 0, to}}, device.data(), back.data(), 1, 1, 3) == cudaSuccess);
  REQUIRE(back.host() == expected);
}

TEST_CASE("copy_runs reads the count on the device, up to the launch's bound") {
  EPISODIC_NEEDS_DEVICE();
  const Bytes from = {1, 2, 3, 4};
  const DeviceArray<unsigned char> source(from);
  const std::vector<Run> runs = {{0, 0, 1}, {1, 1, 1}, {2, 2, 1}, {3, 3, 1}};
  const auto copied = [&](std::int32_t count, std::int64_t max_runs) {
    const DeviceArray<unsigned char> target(Bytes(4, 0));
    REQUIRE(copy(runs, source.data(), target.data(), count, max_runs, 1) == cudaSuccess);
    return target.host();
  };
  REQUIRE(copied(-1, 4) == Bytes{0, 0, 0, 0});
  REQUIRE(copied(0, 4) == Bytes{0, 0, 0, 0});
  REQUIRE(copied(2, 4) == Bytes{1, 2, 0, 0});
  REQUIRE(copied(4, 3) == Bytes{1, 2, 3, 0});
}

TEST_CASE("copy_batch copies all, by a batch or one by one") {
  EPISODIC_NEEDS_DEVICE();
  const episodic_test::DefaultsBehind defaults;
  std::mt19937 random(9);
  const Bytes from = random_bytes(1000, random);
  const PinnedBytes source(from);
  const std::vector<Run> runs = {{0, 500, 100}, {300, 0, 7}, {999, 999, 1}, {100, 20, 200}};
  const auto copied = [&](cudaStream_t stream, bool captured = false) {
    const DeviceArray<unsigned char> target(Bytes(from.size(), kUntouched));
    std::vector<void*> to;
    std::vector<const void*> sources;
    std::vector<std::size_t> bytes;
    for (const Run& run : runs) {
      to.push_back(target.data() + run.to);
      sources.push_back(source.data() + run.from);
      bytes.push_back(run.bytes);
    }
    if (captured)
      REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    REQUIRE(copy_batch(to.data(), sources.data(), bytes.data(), to.size(), stream) == cudaSuccess);
    if (captured) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
      REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
      REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
      REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }
    REQUIRE(cudaGetLastError() == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    return target.host();
  };
  const Bytes expected = expected_of(runs, from, from.size());
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(copied(stream) == expected);
  REQUIRE(copied(nullptr) == expected);
  REQUIRE(copied(stream, true) == expected);  // where no batch may be recorded
#if defined(EPISODIC_EMULATED_CUDA)
  // the copies of `copied` itself: one into the target before, one out of it behind
  const auto calls = [&](cudaStream_t on) {
    emulator::reset_calls();
    REQUIRE(copied(on) == expected);
    return emulator::calls().copies - 2;
  };
  REQUIRE(calls(stream) == 1);
  REQUIRE(calls(nullptr) == 4);
  REQUIRE(calls(cudaStreamLegacy) == 4);
  emulator::set_driver_version(12040);
  REQUIRE(calls(stream) == 4);
  emulator::set_driver_version(13000);
#endif
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

/// What a block of an event's keys [heads, tokens, d] and values [heads, tokens, e] holds, by the
/// store's codec, which has one width for both: a block of keys of each width.
struct EncodedEvent {
  Bytes elements;             // or codes
  std::vector<float> scales;  // of codes
};
EncodedEvent encoded(DType dtype, std::int64_t heads, std::int64_t capacity,
                     episodic::TokenRange range, const std::vector<float>& key, std::int64_t d,
                     const std::vector<float>& value, std::int64_t e) {
  EncodedEvent out;
  const std::int64_t tokens = range.end - range.start;
  const auto add = [&](const float* ring, std::int64_t row) {
    const episodic::StoreShape shape{1, heads, row, dtype};
    std::vector<std::byte> block(static_cast<std::size_t>(episodic::block_bytes(shape, tokens)));
    episodic::encode_block(shape, range, {ring, ring, capacity, capacity * row, row}, block.data());
    if (episodic::is_code(dtype)) {
      const std::size_t before = out.scales.size();
      out.scales.resize(before + static_cast<std::size_t>(heads));
      std::memcpy(&out.scales[before], block.data(), 4 * static_cast<std::size_t>(heads));
    }
    const std::byte* const first = block.data() + episodic::block_bytes(shape, 0);
    const std::int64_t bytes = heads * tokens * row * episodic::size_of(dtype);
    std::transform(first, first + bytes, std::back_inserter(out.elements),
                   [](std::byte b) { return static_cast<unsigned char>(b); });
  };
  add(key.data(), d);
  add(value.data(), e);
  return out;
}

TEST_CASE("event_to_block writes the blocks of the store's codec, of every layer") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(12);
  struct Case {
    std::int64_t kv_heads, d, capacity;
    std::vector<std::int64_t> cuts;
    std::size_t shift;
    std::int64_t value_d = 0;  // 0: d
  };
  const Case cases[] = {
      {1, 8, 5, {3, 4}, 0},                     // one token
      {2, 16, 50, {40, 45, 90}, 0},             // wraps; a whole ring but for five
      {3, 10, 33, {9'999'990, 10'000'000}, 2},  // rows and blocks that are not aligned
      {2, 1200, 7, {5, 12}, 0},                 // a row is more than a tile
      {1, 8, 600, {0, 599}, 0},                 // several tiles of a head
      {2, 16, 50, {40, 45, 90}, 0, 8},          // narrower and wider values
      {3, 10, 33, {9'999'990, 10'000'000}, 2, 13},
      {1, 8, 600, {0, 599}, 1, 1},
      {2, 4, 40, {5, 6, 44}, 0, 1200},
  };
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const Case& c : cases) {
      const std::int64_t value_d = c.value_d > 0 ? c.value_d : c.d;
      constexpr int kLayers = 2;
      std::vector<std::vector<float>> rings;  // keys and values of each layer
      std::deque<DeviceArray<unsigned char>> d_rings;
      for (int i = 0; i < 2 * kLayers; ++i) {
        const std::int64_t ring_size = c.kv_heads * c.capacity * (i % 2 == 0 ? c.d : value_d);
        rings.push_back(episodic_test::normal_floats(static_cast<std::size_t>(ring_size), random));
        d_rings.emplace_back(episodic_test::stored(rings.back(), dtype));
      }
      const DeviceArray<EventBlockLayer> layers(std::vector<EventBlockLayer>{
          {d_rings[0].data(), d_rings[1].data()}, {d_rings[2].data(), d_rings[3].data()}});
      std::vector<std::int64_t> start, end;
      std::vector<std::size_t> at;
      Bytes expected(c.shift, kUntouched);
      for (std::size_t e = 0; e + 1 < c.cuts.size(); ++e) {
        start.push_back(c.cuts[e]);
        end.push_back(c.cuts[e + 1]);
      }
      for (std::size_t l = 0; l < kLayers; ++l)
        for (std::size_t e = 0; e < start.size(); ++e) {
          at.push_back(expected.size());
          const Bytes block = encoded(dtype, c.kv_heads, c.capacity, {start[e], end[e]},
                                      rings[2 * l], c.d, rings[2 * l + 1], value_d)
                                  .elements;
          expected.insert(expected.end(), block.begin(), block.end());
          expected.push_back(kUntouched);
          expected.push_back(kUntouched);
        }
      // one event more, which is left out, and room for another
      start.insert(start.end(), 2, end.back() - 1);
      end.insert(end.end(), 2, end.back());
      const DeviceArray<std::int64_t> d_start(start), d_end(end);
      const DeviceArray<std::int32_t> count(
          std::vector<std::int32_t>{static_cast<std::int32_t>(start.size()) - 1});
      episodic_test::in_every_order([&] {
        const DeviceArray<unsigned char> blocks(Bytes(expected.size(), kUntouched));
        std::vector<void*> to;
        for (std::size_t i = 0; i < at.size(); ++i) {
          to.push_back(blocks.data() + at[i]);
          if ((i + 1) % (start.size() - 2) != 0) continue;
          to.push_back(nullptr);
          to.push_back(blocks.data());
        }
        const DeviceArray<void*> d_to(to);
        EventBlockParams p;
        p.events = {d_start.data(), d_end.data(), count.data(), nullptr,
                    static_cast<std::int64_t>(start.size())};
        p.dtype = p.block_dtype = dtype;
        p.n_kv_heads = c.kv_heads;
        p.head_dim = c.d;
        p.value_dim = c.value_d;
        p.layers = layers.data();
        p.n_layers = kLayers;
        p.ring_capacity = c.capacity;
        p.ring_head_stride = c.capacity * c.d;
        p.value_head_stride = c.capacity * c.value_d;
        p.block = d_to.data();
        p.max_blocks = 2;
        REQUIRE(event_to_block(p, nullptr) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        REQUIRE(blocks.host() == expected);
      });
    }
}

TEST_CASE("event_to_block writes codes and scales with the bits of the store's codec") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(13);
  struct Case {
    std::int64_t kv_heads, d, capacity;
    std::vector<std::int64_t> cuts;
    std::int64_t shift;  // of the blocks
    std::int64_t max_blocks;
    std::int64_t value_d = 0;  // 0: d
  };
  const Case cases[] = {
      {1, 8, 5, {3, 4}, 0, 0},                     // one token
      {2, 16, 50, {40, 45, 90}, 0, 2},             // wraps; a whole ring but for five
      {3, 10, 33, {9'999'990, 10'000'000}, 2, 1},  // rows that are not aligned
      {2, 24, 40, {1, 9, 30}, 1, 3},               // blocks that are not
      {8, 128, 60, {70, 128}, 8, 0},               // several rounds of a block's threads
      {2, 16, 50, {40, 45, 90}, 0, 2, 8},          // narrower and wider values
      {2, 24, 40, {1, 9, 30}, 0, 3, 40},
      {3, 16, 33, {9'999'990, 10'000'000}, 0, 1, 13},
      {2, 10, 33, {7, 8, 40}, 3, 0, 64},
  };
  const auto check = [&](DType dtype, DType code, const Case& c) {
    INFO("d " << c.d << " dtype " << static_cast<int>(dtype) << " code " << name_of(code));
    const std::int64_t value_d = c.value_d > 0 ? c.value_d : c.d;
    constexpr std::size_t kLayers = 2;
    constexpr std::int64_t kFirst = 3;  // number of the first event
    std::vector<std::vector<float>> rings;
    std::deque<DeviceArray<unsigned char>> d_rings;
    for (std::size_t i = 0; i < 2 * kLayers; ++i) {
      const auto head = static_cast<std::size_t>(c.capacity * (i % 2 == 0 ? c.d : value_d));
      const std::size_t ring_size = static_cast<std::size_t>(c.kv_heads) * head;
      rings.push_back(episodic_test::normal_floats(ring_size, random, i == 1 ? 300.0f : 0.02f));
      std::vector<float>& ring = rings.back();
      if (i == 0) std::fill_n(ring.begin(), head, 0.0f);  // a head of zeros
      if (i == 3)                                         // and one whose scale would be denormal
        for (std::size_t at = ring_size - head; at < ring_size; ++at) ring[at] *= 1e-37f;
      d_rings.emplace_back(episodic_test::stored(ring, dtype));
    }
    const std::int64_t n_events = static_cast<std::int64_t>(c.cuts.size()) - 1;
    const std::int64_t tokens = c.cuts.back() - c.cuts.front(), sides = 2 * c.kv_heads;
    const std::int64_t token_bytes = c.kv_heads * (c.d + value_d);
    const std::int64_t layer_bytes = tokens * token_bytes;
    std::vector<std::int64_t> start(c.cuts.begin(), c.cuts.end() - 1),
        end(c.cuts.begin() + 1, c.cuts.end());
    Bytes codes(static_cast<std::size_t>(c.shift), kUntouched);
    std::vector<float> scales;
    for (std::size_t l = 0; l < kLayers; ++l) {
      scales.insert(scales.end(), static_cast<std::size_t>(kFirst * sides), -7.0f);
      for (std::size_t e = 0; e < start.size(); ++e) {
        const EncodedEvent event = encoded(code, c.kv_heads, c.capacity, {start[e], end[e]},
                                           rings[2 * l], c.d, rings[2 * l + 1], value_d);
        scales.insert(scales.end(), event.scales.begin(), event.scales.end());
        codes.insert(codes.end(), event.elements.begin(), event.elements.end());
      }
    }
    const DeviceArray<std::int64_t> d_start(start), d_end(end),
        first(std::vector<std::int64_t>{kFirst});
    const DeviceArray<std::int32_t> count(
        std::vector<std::int32_t>{static_cast<std::int32_t>(n_events)});
    const auto run = [&](DeviceArray<unsigned char>& blocks, DeviceArray<float>& to_scales) {
      std::vector<EventBlockLayer> layers;
      std::vector<void*> to;
      for (std::size_t l = 0; l < kLayers; ++l) {
        layers.push_back(
            {d_rings[2 * l].data(), d_rings[2 * l + 1].data(),
             to_scales.data() + static_cast<std::int64_t>(l) * (kFirst + n_events) * sides});
        for (const std::int64_t at : start)
          to.push_back(blocks.data() + c.shift + static_cast<std::int64_t>(l) * layer_bytes +
                       (at - start.front()) * token_bytes);
      }
      const DeviceArray<EventBlockLayer> d_layers(layers);
      const DeviceArray<void*> d_to(to);
      const DeviceArray<std::int32_t> not_finite(std::vector<std::int32_t>{0});
      EventBlockParams p;
      p.events = {d_start.data(), d_end.data(), count.data(), first.data(), n_events};
      p.dtype = dtype;
      p.block_dtype = code;
      p.n_kv_heads = c.kv_heads;
      p.head_dim = c.d;
      p.value_dim = c.value_d;
      p.layers = d_layers.data();
      p.n_layers = kLayers;
      p.ring_capacity = c.capacity;
      p.ring_head_stride = c.capacity * c.d;
      p.value_head_stride = c.capacity * c.value_d;
      p.block = d_to.data();
      p.max_blocks = c.max_blocks;
      p.not_finite = not_finite.data();
      REQUIRE(event_to_block(p, nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      return not_finite.host()[0];
    };
    episodic_test::in_every_order([&] {
      DeviceArray<unsigned char> blocks(Bytes(codes.size(), kUntouched));
      DeviceArray<float> to_scales(std::vector<float>(scales.size(), -7.0f));
      REQUIRE(run(blocks, to_scales) == 0);
      REQUIRE(blocks.host() == codes);
      REQUIRE(to_scales.host() == scales);
    });
    // What has no code is said, and is zeros; all else is as it was.
    for (const float x :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> broken = rings[2];
      broken[static_cast<std::size_t>(start.back() % c.capacity * c.d + c.d - 1)] = x;
      const Bytes sound = d_rings[2].host(), stored = episodic_test::stored(broken, dtype);
      const auto put = [&](const Bytes& bytes) {
        REQUIRE(cudaMemcpy(d_rings[2].data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice) ==
                cudaSuccess);
      };
      put(stored);
      DeviceArray<unsigned char> blocks(Bytes(codes.size(), kUntouched));
      DeviceArray<float> to_scales(std::vector<float>(scales.size(), -7.0f));
      REQUIRE(run(blocks, to_scales) == 1);
      put(sound);
      Bytes expected = codes;
      std::vector<float> with_zero = scales;
      std::fill_n(
          expected.begin() + c.shift + layer_bytes + (start.back() - start.front()) * token_bytes,
          (end.back() - start.back()) * c.d, static_cast<unsigned char>(0));
      with_zero[scales.size() - static_cast<std::size_t>(sides)] = 0.0f;
      REQUIRE(blocks.host() == expected);
      REQUIRE(to_scales.host() == with_zero);
    }
  };
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const DType code : {DType::int8, DType::fp8})
      for (const Case& c : cases) check(dtype, code, c);
}

TEST_CASE("copies refuse what makes no sense, before anything is copied") {
  CopyRun run;
  std::int32_t count = 0;
  CopyRunsParams r;
  REQUIRE(copy_runs(r, nullptr) == cudaSuccess);  // no runs
  r.max_runs = 1;
  REQUIRE(copy_runs(r, nullptr) == cudaErrorInvalidValue);
  r.runs = &run;
  r.count = &count;
  r.max_blocks = -1;
  REQUIRE(copy_runs(r, nullptr) == cudaErrorInvalidValue);
  r.max_blocks = std::int64_t{1} << 31;
  REQUIRE(copy_runs(r, nullptr) == cudaErrorInvalidValue);
  r.max_blocks = 1;
  r.count = reinterpret_cast<const std::int32_t*>(reinterpret_cast<const char*>(&count) + 1);
  REQUIRE(copy_runs(r, nullptr) == cudaErrorMisalignedAddress);

  unsigned char a = 1, b = 2;
  void* to[] = {&b, nullptr};
  const void* from[] = {&a, &a};
  std::size_t bytes[] = {1, 1};
  REQUIRE(copy_batch(nullptr, nullptr, nullptr, 0, nullptr) == cudaSuccess);
  REQUIRE(copy_batch(to, nullptr, bytes, 1, nullptr) == cudaErrorInvalidValue);
  REQUIRE(copy_batch(to, from, bytes, 2, nullptr) == cudaErrorInvalidValue);
  to[1] = &b;
  bytes[1] = 0;
  REQUIRE(copy_batch(to, from, bytes, 2, nullptr) == cudaErrorInvalidValue);
  REQUIRE(b == 2);

  alignas(16) float ring[16] = {};
  std::int64_t token = 0;
  void* block = nullptr;
  EventBlockParams p;
  p.events = {&token, &token, &count, nullptr, 1};
  p.n_kv_heads = 1;
  p.head_dim = 8;
  const EventBlockLayer layer{ring, ring};
  p.layers = &layer;
  p.n_layers = 1;
  p.ring_capacity = 2;
  p.ring_head_stride = 16;
  p.block = &block;
  const auto refused = [&](auto change, cudaError_t error = cudaErrorInvalidValue) {
    EventBlockParams changed = p;
    change(changed);
    return event_to_block(changed, nullptr) == error;
  };
  REQUIRE(refused([](auto& x) { x.dtype = DType::int8; }));
  REQUIRE(refused([](auto& x) { x.ring_head_stride = 15; }));
  REQUIRE(refused([](auto& x) { x.block = nullptr; }));
  REQUIRE(refused([](auto& x) { x.max_blocks = -1; }));
  REQUIRE(refused([](auto& x) { x.events.count = nullptr; }));
  REQUIRE(refused([](auto& x) { x.layers = nullptr; }));
  REQUIRE(refused([](auto& x) { x.n_layers = std::int64_t{1} << 57; }));
  REQUIRE(refused(
      [&](auto& x) {
        x.layers = reinterpret_cast<const EventBlockLayer*>(reinterpret_cast<char*>(ring) + 4);
      },
      cudaErrorMisalignedAddress));
  REQUIRE(refused([](auto& x) { x.n_layers = 0; }, cudaSuccess));
  REQUIRE(refused([](auto& x) { x.events.max_count = 0; }, cudaSuccess));
}

}  // namespace copies_test
