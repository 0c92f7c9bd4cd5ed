// SPDX-License-Identifier: Apache-2.0
// A steady step of a DeviceMemory allocates nothing on the host's heap. Counted through operator
// new; what the emulated device allocates for itself does not count.
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <new>
#include <vector>

#include "emulated_device.hpp"
#include "steps.hpp"
#include "support/nothrow_new.hpp"
#include "support/temp_dir.hpp"

namespace {

thread_local bool counting = false;
thread_local std::int64_t counted = 0;

void* taken(void* memory) {
  if (counting && emulator::own_work == 0) ++counted;
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  return taken(std::malloc(size > 0 ? size : 1));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  return taken(std::aligned_alloc(a, (size + a - 1) / a * a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace device_allocations_test {

using namespace device_steps;

/// A sequence's tokens in device memory, fed one step after the other.
class Sequence {
 public:
  Sequence(const MemoryConfig& config, const MemoryShape& shape, const DeviceMemoryOptions& options,
           std::uint32_t seed)
      : memory(config, shape, options, nullptr) {
    std::vector<Token> tokens = driver::random_tokens(shape, options.max_tokens, seed);
    round_to(tokens, options.dtype);
    for (std::int64_t l = 0; l < shape.n_layers; ++l)
      for (auto member : {&Token::q, &Token::k, &Token::v}) {
        std::vector<float> rows = rows_of(tokens, member, l, 0, options.max_tokens);
        rows_.emplace_back(episodic_test::stored(rows, options.dtype));
      }
    std::vector<float> surprise;
    for (const Token& t : tokens) surprise.push_back(t.surprise);
    surprise_.emplace_back(surprise);
    out_.emplace_back(rows_.front().size());
  }
  DeviceMemory::SequenceStep of_layer(std::int64_t l) {
    const MemoryShape& s = memory.shape();
    const std::int64_t wide = s.n_heads * s.head_dim, narrow = s.n_kv_heads * s.head_dim,
                       element = size_of(memory.options().dtype);
    const auto at = [&](std::int64_t which, std::int64_t width) {
      return rows_[static_cast<std::size_t>(3 * l + which)].data() +
             memory.tokens() * width * element;
    };
    return {&memory,
            layer_step(memory, at(0, wide), at(1, narrow), at(2, narrow), out_.front().data())};
  }
  DeviceMemory::EndOfStep end() { return {&memory, surprise_.front().data() + memory.tokens()}; }
  DeviceMemory memory;

 private:
  std::deque<DeviceArray<unsigned char>> rows_, out_;
  std::deque<DeviceArray<float>> surprise_;
};

/// Allocations of a step of n tokens of each sequence, in launches that they share.
std::int64_t allocations(std::deque<Sequence>& all, std::int64_t n) {
  counted = 0;
  std::array<DeviceMemory::SequenceStep, 2> steps;
  for (Sequence& s : all) {
    counting = true;
    s.memory.begin_step(n);
    counting = false;
  }
  for (std::int64_t l = 0; l < all.front().memory.shape().n_layers; ++l) {
    for (std::size_t i = 0; i < all.size(); ++i) steps[i] = all[i].of_layer(l);
    counting = true;
    DeviceMemory::attend_batch(l, {steps.data(), all.size()});
    counting = false;
  }
  if (all.size() == 1) {
    const float* const surprise = all.front().end().surprise;
    counting = true;
    all.front().memory.end_step(surprise);
    counting = false;
    return counted;
  }
  // What it returns is a list, one allocation.
  const std::array<DeviceMemory::EndOfStep, 2> ends{all[0].end(), all[1].end()};
  counting = true;
  const std::vector<std::exception_ptr> failures = DeviceMemory::end_step_batch(ends);
  counting = false;
  for (const std::exception_ptr& failure : failures) REQUIRE(!failure);
  return counted - 1;
}

TEST_CASE("a steady step of device memory allocates nothing on the host's heap") {
  const MemoryShape shape = shape_of();
  const DeviceMemoryOptions options{DType::float32, 400};
  std::vector<MemoryConfig> configs;
  const auto with = [&](auto change) {
    configs.push_back(driver::small_config());
    change(configs.back());
  };
  with([](MemoryConfig&) {});
  with([](MemoryConfig& c) { c.refine = Refinement::none; });
  with([](MemoryConfig& c) { c.recall_groups = 2; });
  with([](MemoryConfig& c) { c.scope = EventScope::head; });
  with([](MemoryConfig& c) { c.kv_dtype = DType::int8; });
  with([](MemoryConfig& c) { c.segmenter = SegmenterKind::gaussian; });
  with([](MemoryConfig& c) {
    c.segmenter = SegmenterKind::fixed;
    c.refine = Refinement::none;
  });
  for (const Reweighting how : {Reweighting::exact, Reweighting::narrow, Reweighting::broad})
    with([&](MemoryConfig& c) { c.reweight = how; });
  {  // events at home in page-locked memory
    const DeviceMemoryBytes all = DeviceMemory::bytes_needed(configs.front(), shape, options);
    with([&](MemoryConfig& c) { c.device_bytes = all.total() - all.snapshots - all.events / 3; });
  }
  for (std::size_t i = 0; i < configs.size(); ++i)
    for (const std::size_t sequences : {1, 2}) {
      if (sequences == 2 && i > 0 && i + 1 < configs.size())
        continue;  // one of each tier is enough
      INFO("configuration " << i << ", sequences " << sequences);
      std::deque<Sequence> all;
      for (std::size_t s = 0; s < sequences; ++s)
        all.emplace_back(configs[i], shape, options, static_cast<std::uint32_t>(5 + s));
      // Lists get their length in the first steps of each kind: within the window and beyond it.
      for (int step = 0; step < 12; ++step) {
        allocations(all, configs[i].chunk);
        allocations(all, 1);
      }
      std::int64_t steady = 0;
      for (int step = 0; step < 6; ++step) {
        steady += allocations(all, configs[i].chunk);
        steady += allocations(all, 1);
      }
      for (Sequence& s : all) {
        s.memory.check();
        REQUIRE(s.memory.n_events() > 10);
        REQUIRE(s.memory.recalled_events() > 30);
      }
      REQUIRE(steady == 0);
    }
}

TEST_CASE("allocations are counted where there are some") {
  counted = 0;
  counting = true;
  ::operator delete(::operator new(1));
  {
    const emulator::OwnWork own;
    ::operator delete(::operator new(1));
  }
  counting = false;
  REQUIRE(counted == 1);
}

}  // namespace device_allocations_test
