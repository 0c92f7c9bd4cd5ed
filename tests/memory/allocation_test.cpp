// SPDX-License-Identifier: Apache-2.0
// Counts large allocations while a memory runs. The library's calls are caught at link time
// (--wrap, see CMakeLists.txt) and through operator new.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "driver.hpp"
#include "support/nothrow_new.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

namespace {

std::atomic<bool> g_counting{false};
std::atomic<std::int64_t> g_limit{0}, g_count{0}, g_bytes{0}, g_largest{0};

void note(std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (!g_counting.load(std::memory_order_relaxed) || size < g_limit.load(std::memory_order_relaxed))
    return;
  ++g_count;
  g_bytes += size;
  if (size > g_largest) g_largest = size;
}

void* checked(void* p) {
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace

extern "C" {
void* __real_malloc(std::size_t size);
void* __real_calloc(std::size_t n, std::size_t size);
void* __real_realloc(void* p, std::size_t size);
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
int __real_posix_memalign(void** p, std::size_t alignment, std::size_t size);
void* __real_mmap(void* at, std::size_t size, int protection, int flags, int file, long offset);

void* __wrap_malloc(std::size_t size) { return note(size), __real_malloc(size); }
void* __wrap_calloc(std::size_t n, std::size_t size) {
  return note(n * size), __real_calloc(n, size);
}
void* __wrap_realloc(void* p, std::size_t size) { return note(size), __real_realloc(p, size); }
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return note(size), __real_aligned_alloc(alignment, size);
}
int __wrap_posix_memalign(void** p, std::size_t alignment, std::size_t size) {
  return note(size), __real_posix_memalign(p, alignment, size);
}
void* __wrap_mmap(void* at, std::size_t size, int protection, int flags, int file, long offset) {
  // Address space alone is no memory: that is taken page by page, as the owner accounts for it.
  if (!(flags & MAP_NORESERVE)) note(size);
  return __real_mmap(at, size, protection, flags, file, offset);
}
}

void* operator new(std::size_t size) { return note(size), checked(__real_malloc(size ? size : 1)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  return note(size), checked(__real_aligned_alloc(a, (size + a - 1) / a * a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

using namespace episodic;

namespace {

struct Counted {
  std::int64_t count = 0, bytes = 0, largest = 0;
  std::int64_t store_growth = 0, index_growth = 0, vector_file_growth = 0;
};

/// Reads `warm` steps of `n` tokens, then counts allocations of `limit` bytes or more in `steps`
/// more.
Counted count_allocations(EpisodicMemory& memory, std::int64_t n, std::int64_t warm,
                          std::int64_t steps, std::int64_t limit) {
  const MemoryShape& s = memory.shape();
  const auto width = static_cast<std::size_t>(n * s.n_heads * s.head_dim);
  const auto kv_width = static_cast<std::size_t>(n * s.n_kv_heads * s.head_dim);
  std::vector<float> q(width), k(kv_width), v(kv_width), out(width),
      surprise(static_cast<std::size_t>(n));
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  MemoryCounters before;
  g_limit = limit;
  for (std::int64_t step = 0; step < warm + steps; ++step) {
    for (float& x : surprise)
      x = std::fabs(uniform(generator)) + (generator() % 10 == 0 ? 10.0f : 0.0f);
    if (step == warm) {
      before = memory.counters();
      g_count = g_bytes = g_largest = 0;
      g_counting = true;
    }
    memory.begin_step(n);
    for (std::int64_t l = 0; l < s.n_layers; ++l) {
      for (std::vector<float>* x : {&q, &k, &v})
        for (float& f : *x) f = uniform(generator);
      memory.attend(l, q.data(), k.data(), v.data(), out.data());
    }
    memory.end_step(surprise.data());
  }
  g_counting = false;
  const MemoryCounters after = memory.counters();
  return {g_count,
          g_bytes,
          g_largest,
          after.store.bytes_reserved - before.store.bytes_reserved,
          after.index_bytes - before.index_bytes,
          after.vector_disk_bytes - before.vector_disk_bytes};
}

}  // namespace

TEST_CASE("no KV-sized allocation in steady state", "[memory][allocation]") {
  MemoryConfig c = driver::small_config();
  c.n_local = 128;
  c.n_mem = 64;
  c.chunk = 32;
  c.refine = GENERATE(Refinement::none, Refinement::modularity);
  c.kv_dtype = GENERATE(DType::float32, DType::bfloat16, DType::float16, DType::int8, DType::fp8);
  const bool decoding = GENERATE(false, true), on_disk = GENERATE(false, true);
  const TempDir temp;
  if (on_disk) {
    c.disk_dir = temp.path().string();
    c.host_bytes = 1 << 20;  // a small part of what is stored
  }
  const MemoryShape s = driver::small_shape(2, 4, 2, 64);
  CAPTURE(name_of(c.refine), name_of(c.kv_dtype), decoding, on_disk);
  EpisodicMemory memory(c, s);
  // Half of the keys that one chunk appends to one layer: no copy of keys or values is smaller.
  const std::int64_t limit = c.chunk * s.n_kv_heads * s.head_dim * 4 / 2;
  const Counted prefill = count_allocations(memory, c.chunk, 60, decoding ? 1 : 200, limit);
  const Counted seen = decoding ? count_allocations(memory, 1, 40, 400, limit) : prefill;
  INFO("of " << limit << " bytes or more: " << seen.count << ", " << seen.bytes
             << " bytes, the largest " << seen.largest << "; the store grew by "
             << seen.store_growth << ", the index by " << seen.index_growth);
  REQUIRE(memory.events().size() > 50);
  REQUIRE(memory.counters().recalled_events > 0);
  // Whatever was taken is room for what the memory keeps: slabs of events and of representatives,
  // and the lists that hold an entry per event, which grow by doubling.
  const std::int64_t lists = 128 * (s.n_layers + 1) * memory.events().size();
  // A slab of representatives on its way to a file is put together in memory, once in 1,024 events.
  const std::int64_t slabs = 2 * seen.vector_file_growth;
  CHECK(seen.bytes <= seen.store_growth + seen.index_growth + lists + slabs);
}

TEST_CASE("a memory over a base takes no room for the base's events and windows",
          "[memory][allocation][share]") {
  MemoryConfig c = driver::small_config();
  c.n_local = 512;
  c.chunk = 32;
  c.scope = GENERATE(EventScope::sequence, EventScope::head);
  const MemoryShape s = driver::small_shape(2, 4, 2, 64);
  std::int64_t bytes[2] = {}, events[2] = {};
  for (int i = 0; i < 2; ++i) {
    EpisodicMemory memory(c, s);
    count_allocations(memory, c.chunk, i == 0 ? 40 : 400, 0, 0);
    const auto base = memory.share();
    events[i] = base->events().size();
    g_limit = g_count = g_bytes = g_largest = 0;
    g_counting = true;
    const EpisodicMemory tail(base);
    g_counting = false;
    bytes[i] = g_bytes;
    // A copy of a ring of keys alone would be as large.
    const std::int64_t ring = base->counters().window_bytes / (s.n_layers * 4);
    INFO(bytes[i] << " bytes, the largest of " << g_largest << "; a ring has " << ring);
    CHECK(g_largest < ring / 4);
    CHECK(tail.counters().store.bytes_reserved == 0);
  }
  // Neither their ranges and numbers nor keys, values and representatives: what differs is how long
  // the last recall's lists are.
  REQUIRE(events[1] > events[0] + 500);
  INFO(bytes[0] << " bytes for " << events[0] << " events, " << bytes[1] << " for " << events[1]);
  CHECK(std::abs(bytes[1] - bytes[0]) <= 256);
}

TEST_CASE("a snapshot takes what later steps overwrite, not the window",
          "[memory][allocation][snapshot]") {
  MemoryConfig c = driver::small_config();
  c.n_local = 2048;
  c.chunk = 32;
  const MemoryShape s = driver::small_shape(2, 4, 2, 64);
  EpisodicMemory memory(c, s);
  count_allocations(memory, c.chunk, 100, 0, 0);
  const std::int64_t window = memory.counters().window_bytes;
  const std::int64_t row = 3 * s.n_kv_heads * s.head_dim * 4;  // of a token in a layer
  const auto first = memory.snapshot();
  g_limit = g_count = g_bytes = g_largest = 0;
  g_counting = true;
  const auto again = memory.snapshot();
  g_counting = false;
  INFO(g_bytes << " bytes for a snapshot of a window of " << window);
  CHECK(g_bytes < window / 20);
  // 8 tokens: their rows in each layer, and what any step may take.
  const Counted seen = count_allocations(memory, 1, 0, 8, 8 * row / 2);
  INFO("8 steps of a token took " << seen.bytes);
  CHECK(seen.bytes < window / 20);
  memory.restore(*again);
  CHECK(memory.tokens() == 3200);
}

TEST_CASE("the allocation counter counts", "[memory][allocation]") {
  g_limit = 1000;
  g_count = g_bytes = g_largest = 0;
  g_counting = true;
  std::vector<float> a(1000);
  void* b = std::malloc(5000);
  g_counting = false;
  CHECK(a.size() == 1000);
  CHECK(b != nullptr);
  std::free(b);
  CHECK(g_count == 2);
  CHECK(g_bytes == 9000);
  CHECK(g_largest == 5000);
}
