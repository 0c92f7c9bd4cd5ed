// SPDX-License-Identifier: Apache-2.0
// Windows in pages: every kernel that reads or writes a ring gives the bits that it gives with the
// ring in one piece, whichever pages of a pool it has.
#include "kernels/ring_pages.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention_problem.hpp"
#include "kernels/copies.hpp"
#include "kernels/key_segmenter.hpp"
#include "kernels/product.hpp"
#include "kernels/refine.hpp"
#include "kernels/relevance.hpp"
#include "kernels/rows.hpp"
#include "kernels/window.hpp"

namespace ring_pages_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;
using Bytes = std::vector<unsigned char>;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// A ring of some arrays, [heads, capacity, row] each, whose slots lie in pages: in a pool that has
/// others' pages too, in any order, with gaps in between. Nothing else in the pool may be read
/// (NaN) or written.
class PagedRing {
 public:
  PagedRing(std::int64_t heads, std::int64_t capacity, std::int64_t row, DType dtype,
            int log2_tokens, std::mt19937& random)
      : heads_(heads),
        capacity_(capacity),
        row_(row),
        element_(episodic::size_of(dtype)),
        page_(std::int64_t{1} << log2_tokens),
        head_stride_((page_ * row + 7) / 8 * 8 + 8) {
    const std::int64_t pages = (capacity + page_ - 1) / page_;
    in_pool_ = 2 * pages + 3;
    std::vector<std::int64_t> places(size(in_pool_));
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random);
    for (std::int64_t i = 0; i < pages; ++i)
      table_.push_back(static_cast<std::uint32_t>(places[size(i)]));
    lay_out(log2_tokens);
  }
  /// Of values beside these keys: the same pages, in a pool whose slots have `row` elements.
  PagedRing(const PagedRing& keys, std::int64_t row)
      : heads_(keys.heads_),
        capacity_(keys.capacity_),
        row_(row),
        element_(keys.element_),
        page_(keys.page_),
        head_stride_(row == keys.row_ ? keys.head_stride_ : keys.head_stride_ / keys.row_ * row),
        in_pool_(keys.in_pool_),
        table_(keys.table_) {
    lay_out(keys.pages_.log2_tokens);
  }

  const RingPages& pages() const { return pages_; }
  std::int64_t head_stride() const { return head_stride_; }
  std::uint32_t page_stride() const { return pages_.page_stride; }

  /// A pool with the rows of a ring in one piece, its heads `head_stride` apart; NaN elsewhere.
  unsigned char* add(const Bytes& ring, std::int64_t head_stride) {
    Bytes pool(pool_bytes_, 0xff);
    each_row([&](std::int64_t g, std::int64_t slot, std::size_t in_pool) {
      std::memcpy(&pool[in_pool], &ring[size((g * head_stride + slot * row_) * element_)],
                  size(row_ * element_));
    });
    return pools_.emplace_back(pool).data();
  }
  /// The ring of a pool, in one piece, heads `capacity * row` apart; all else must be untouched.
  Bytes ring(std::size_t number) const {
    Bytes pool = pools_[number].host(), out(size(heads_ * capacity_ * row_ * element_));
    each_row([&](std::int64_t g, std::int64_t slot, std::size_t in_pool) {
      std::memcpy(&out[size((g * capacity_ + slot) * row_ * element_)], &pool[in_pool],
                  size(row_ * element_));
      std::fill_n(pool.begin() + static_cast<std::ptrdiff_t>(in_pool), row_ * element_, 0xff);
    });
    REQUIRE(pool == Bytes(pool_bytes_, 0xff));
    return out;
  }

 private:
  void lay_out(int log2_tokens) {
    stride_ = (heads_ * head_stride_ + 23) / 8 * 8;
    pool_bytes_ = size(in_pool_ * stride_ * element_);
    d_table_.emplace_back(table_);
    pages_ = {d_table_.front().data(), static_cast<std::uint32_t>(stride_), log2_tokens};
  }
  template <class F>
  void each_row(F&& f) const {
    for (std::int64_t g = 0; g < heads_; ++g)
      for (std::int64_t slot = 0; slot < capacity_; ++slot)
        f(g, slot,
          size((table_[size(slot / page_)] * stride_ + g * head_stride_ + slot % page_ * row_) *
               element_));
  }

  std::int64_t heads_, capacity_, row_, element_, page_, head_stride_, in_pool_ = 0, stride_ = 0;
  std::size_t pool_bytes_ = 0;
  std::vector<std::uint32_t> table_;
  std::deque<DeviceArray<std::uint32_t>> d_table_;
  std::deque<DeviceArray<unsigned char>> pools_;
  RingPages pages_;
};

Bytes bytes_at(const void* device, std::int64_t bytes) {
  Bytes out(size(bytes));
  REQUIRE(cudaMemcpy(out.data(), device, out.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  return out;
}

Bytes random_ring(std::int64_t elements, DType dtype, std::mt19937& random) {
  std::vector<float> x = episodic_test::normal_floats(size(elements), random);
  return episodic_test::stored(x, dtype);
}

TEST_CASE("pages: attention of few and many queries, and its column sums") {
  EPISODIC_NEEDS_DEVICE();
  using namespace attention_test;
  std::mt19937 random(3);
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : {1, 5, 40})
      for (const int log2_tokens : {0, 3, 6}) {
        Case c = of(n, 4, n == 5 ? 72 : 64, 20);
        c.first_position = n == 1 ? 30 : 150;  // before and behind the first turn of the ring
        const Problem problem(c, dtype, 5);
        const Result whole = problem.run();
        std::deque<PagedRing> rings;
        const Result paged = problem.run([&](AttentionParams& p) {
          PagedRing& ring = rings.emplace_back(p.n_kv_heads, p.ring_capacity, p.head_dim, dtype,
                                               log2_tokens, random);
          for (const void** array : {&p.local_key, &p.local_value})
            *array = ring.add(
                bytes_at(*array, p.n_kv_heads * p.ring_head_stride * episodic::size_of(dtype)),
                p.ring_head_stride);
          p.ring_head_stride = ring.head_stride();
          p.ring_pages = ring.pages();
        });
        INFO("n " << n << " page 2^" << log2_tokens << " dtype " << static_cast<int>(dtype));
        REQUIRE(difference(whole.out, problem.reference().out) < 0.02);
        REQUIRE(paged.out == whole.out);
        REQUIRE(paged.lse == whole.lse);
        REQUIRE(paged.column_sums == whole.column_sums);
      }
}

TEST_CASE("pages: append_window and a product of heads") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(4);
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kCapacity = 21, kInit = 3;
  for (const DType dtype : kDTypes)
    for (const int log2_tokens : {0, 2, 4})
      for (const std::int64_t d : {8, 24})
        for (const std::int64_t e :
             {d, std::int64_t{5}, std::int64_t{16}, std::int64_t{-6}, -d}) {  // < 0: fused
          const bool fused = e < 0;
          const std::int64_t value_d = fused ? -e : e, n = fused ? 1 : 9, first = 17;
          const std::int64_t row = (kHeads + kKvHeads) * d + kKvHeads * value_d;
          const std::int64_t element = episodic::size_of(dtype);
          const DeviceArray<unsigned char> x(random_ring(fused ? 32 : n * row, dtype, random)),
              weight(random_ring(row * 32, dtype, random)), q(size(row * element));
          const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{first});
          const DeviceArray<float> cos(episodic_test::normal_floats(size(n * d / 2), random)),
              sin(episodic_test::normal_floats(size(n * d / 2), random)),
              fixed(episodic_test::normal_floats(size(d / 2), random));
          const auto write = [&](unsigned char* key, unsigned char* rotated, unsigned char* value,
                                 std::int64_t head_stride, std::int64_t value_head_stride,
                                 const RingPages& pages, std::uint32_t value_page_stride) {
            const DeviceArray<unsigned char> sink_key(size(kKvHeads * kInit * d * element)),
                sink_value(size(kKvHeads * kInit * value_d * element));
            if (fused) {
              ProductParams p;
              p.dtype = dtype;
              p.n = 1;
              p.in = 32;
              p.out = row;
              p.x = x.data();
              p.weight = weight.data();
              HeadsParams heads;
              heads.n_heads = kHeads;
              heads.n_kv_heads = kKvHeads;
              heads.head_dim = heads.rotary_dim = d;
              heads.value_dim = value_d;
              heads.q = q.data();
              heads.q_row_stride = row;
              HeadTarget& to = heads.row[0];
              to.position = position.data();
              to.cos = cos.data();
              to.sin = sin.data();
              to.maybe_ring_key = key;
              to.ring_rotated_key = rotated;
              to.ring_value = value;
              to.ring_capacity = kCapacity;
              to.ring_head_stride = head_stride;
              to.value_head_stride = value_head_stride;
              to.ring_pages = pages;
              to.value_page_stride = value_page_stride;
              to.sink_key = sink_key.data();
              to.sink_value = sink_value.data();
              to.n_init = kInit;
              to.fixed_cos = to.fixed_sin = fixed.data();
              REQUIRE(heads_product(p, heads, nullptr) == cudaSuccess);
            } else {
              AppendParams p;
              p.dtype = dtype;
              p.n = n;
              p.n_kv_heads = kKvHeads;
              p.head_dim = p.rotary_dim = d;
              p.value_dim = value_d;
              p.first_position = position.data();
              p.k = x.data() + kHeads * d * element;
              p.v = x.data() + (kHeads + kKvHeads) * d * element;
              p.k_row_stride = p.v_row_stride = row;
              p.cos = cos.data();
              p.sin = sin.data();
              p.ring_key = key;
              p.ring_rotated_key = rotated;
              p.ring_value = value;
              p.ring_capacity = kCapacity;
              p.ring_head_stride = head_stride;
              p.value_head_stride = value_head_stride;
              p.ring_pages = pages;
              p.value_page_stride = value_page_stride;
              p.sink_key = sink_key.data();
              p.sink_value = sink_value.data();
              p.n_init = kInit;
              REQUIRE(append_window(p, nullptr) == cudaSuccess);
            }
            REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
          };
          const Bytes before = random_ring(kKvHeads * kCapacity * d, dtype, random);
          const Bytes values_before = random_ring(kKvHeads * kCapacity * value_d, dtype, random);
          const DeviceArray<unsigned char> key(before), rotated(before), value(values_before);
          PagedRing keys(kKvHeads, kCapacity, d, dtype, log2_tokens, random);
          PagedRing values(keys, value_d);
          unsigned char* const paged_key = keys.add(before, kCapacity * d);
          unsigned char* const paged_rotated = keys.add(before, kCapacity * d);
          unsigned char* const paged_value = values.add(values_before, kCapacity * value_d);
          write(key.data(), rotated.data(), value.data(), kCapacity * d, kCapacity * value_d, {},
                0);
          write(paged_key, paged_rotated, paged_value, keys.head_stride(), values.head_stride(),
                keys.pages(), values.page_stride());
          REQUIRE(key.host() != before);
          REQUIRE(rotated.host() != before);
          REQUIRE(value.host() != values_before);
          REQUIRE(keys.ring(0) == key.host());
          REQUIRE(keys.ring(1) == rotated.host());
          REQUIRE(values.ring(0) == value.host());
        }
}

TEST_CASE("pages: pending rows of a list") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(5);
  constexpr std::int64_t kHeads = 4, kCapacity = 40, kDim = 16, kMost = 64;
  struct Case {
    std::int64_t lanes, value_dim;  // of kHeads heads side by side; 0: kDim
  };
  for (const Case& c : {Case{1, 0}, {2, 0}, {1, 8}, {2, 40}, {kHeads, 40}}) {
    const DType dtype = DType::bfloat16;
    const std::int64_t lanes = c.lanes, e = c.value_dim > 0 ? c.value_dim : kDim;
    const Bytes keys = random_ring(kHeads * kCapacity * kDim, dtype, random);
    const Bytes values = random_ring(kHeads * kCapacity * e, dtype, random);
    const DeviceArray<unsigned char> key(keys), value(values), sinks(keys), sink_values(values);
    PagedRing key_ring(kHeads, kCapacity, kDim, dtype, 2, random), value_ring(key_ring, e);
    const unsigned char* const paged_key = key_ring.add(keys, kCapacity * kDim);
    const unsigned char* const paged_value = value_ring.add(values, kCapacity * e);
    const DeviceArray<std::int64_t> tokens(std::vector<std::int64_t>{70}),
        n_events(std::vector<std::int64_t>{1});
    const DeviceArray<EventRange> events(std::vector<EventRange>{{4, 47}});
    const DeviceArray<const void*> blocks(std::vector<const void*>(size(lanes), sinks.data()));
    const auto rows_of = [&](const unsigned char* ring_key, const unsigned char* ring_value,
                             std::int64_t head_stride, std::int64_t value_head_stride,
                             const RingPages& pages, std::uint32_t value_page_stride) {
      const DeviceArray<KvRow> rows(size(lanes * kMost));
      const DeviceArray<std::int32_t> count(size(lanes)), overflow(std::vector<std::int32_t>{0});
      RowsParams p;
      p.dtype = dtype;
      p.n_kv_heads = kHeads;
      p.head_dim = kDim;
      p.value_dim = c.value_dim;
      p.n_lanes = lanes;
      p.tokens = tokens.data();
      p.n = 3;
      p.n_init = 4;
      p.n_local = 12;
      p.sink_key = sinks.data();
      p.sink_value = sink_values.data();
      p.ring_key = ring_key;
      p.ring_value = ring_value;
      p.ring_capacity = kCapacity;
      p.ring_head_stride = head_stride;
      p.value_head_stride = value_head_stride;
      p.ring_pages = pages;
      p.value_page_stride = value_page_stride;
      p.n_events = n_events.data();
      p.events = events.data();
      p.event_block = blocks.data();
      p.max_events = 1;
      p.rows = rows.data();
      p.n_rows = count.data();
      p.max_rows = kMost;
      p.overflow = overflow.data();
      REQUIRE(far_rows(p, nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      // the elements that the rows lead to, in place of their addresses
      Bytes out;
      const std::vector<KvRow> all = rows.host();
      const std::vector<std::int32_t> counts = count.host();
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        REQUIRE(counts[size(lane)] == 4 + 14);
        for (std::int64_t r = 0; r < counts[size(lane)]; ++r) {
          const KvRow& row = all[size(lane * kMost + r)];
          for (std::int64_t g = 0; g < kHeads / lanes; ++g) {
            const std::int64_t to_value =
                e == kDim ? g * row.head_stride : g * (row.head_stride / kDim) * e;
            for (const Bytes& part :
                 {bytes_at(static_cast<const unsigned char*>(row.key) + g * row.head_stride * 2,
                           kDim * 2),
                  bytes_at(static_cast<const unsigned char*>(row.value) + to_value * 2, e * 2)})
              out.insert(out.end(), part.begin(), part.end());
          }
        }
      }
      return out;
    };
    REQUIRE(rows_of(paged_key, paged_value, key_ring.head_stride(), value_ring.head_stride(),
                    key_ring.pages(), value_ring.page_stride()) ==
            rows_of(key.data(), value.data(), kCapacity * kDim, kCapacity * e, {}, 0));
  }
}

TEST_CASE("pages: events into blocks and codes, and representatives") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  constexpr std::int64_t kLayers = 2, kEvents = 3;
  const std::vector<std::int64_t> start = {20, 23, 40}, end = {23, 40, 70};  // wraps
  for (const DType dtype : kDTypes)
    for (const std::int64_t d : {10, 16})
      for (const int log2_tokens : {0, 3, 5}) {
        constexpr std::int64_t kHeads = 6, kKvHeads = 2, kCapacity = 55;
        const std::int64_t e = log2_tokens == 0 ? d : log2_tokens == 3 ? 8 : 27;
        PagedRing ring(kKvHeads, kCapacity, d, dtype, log2_tokens, random), value_ring(ring, e);
        std::deque<DeviceArray<unsigned char>> whole;
        std::vector<const unsigned char*> in_one, in_pages;
        for (int i = 0; i < 2 * kLayers; ++i) {
          const std::int64_t row = i % 2 == 0 ? d : e;
          const Bytes elements = random_ring(kKvHeads * kCapacity * row, dtype, random);
          in_one.push_back(whole.emplace_back(elements).data());
          in_pages.push_back((i % 2 == 0 ? ring : value_ring).add(elements, kCapacity * row));
        }
        const DeviceArray<float> relevance(
            episodic_test::normal_floats(size(kCapacity * kHeads), random));
        const DeviceArray<std::int64_t> d_start(start), d_end(end),
            first(std::vector<std::int64_t>{0});
        const DeviceArray<std::int32_t> count(std::vector<std::int32_t>{kEvents});
        const ClosedEvents events{d_start.data(), d_end.data(), count.data(), first.data(),
                                  kEvents};
        const std::int64_t tokens = end.back() - start.front();
        const auto blocks_of = [&](const std::vector<const unsigned char*>& arrays,
                                   std::int64_t head_stride, std::int64_t value_head_stride,
                                   const RingPages& pages, std::uint32_t value_page_stride,
                                   DType to) {
          const std::int64_t element = episodic::size_of(to);
          const DeviceArray<unsigned char> blocks(
              size(kLayers * tokens * kKvHeads * (d + e) * element));
          const DeviceArray<float> scales(size(kLayers * kEvents * 2 * kKvHeads));
          const DeviceArray<std::int32_t> not_finite(std::vector<std::int32_t>{0});
          std::vector<EventBlockLayer> layers;
          std::vector<void*> places;
          for (std::int64_t l = 0; l < kLayers; ++l) {
            layers.push_back({arrays[size(2 * l)], arrays[size(2 * l + 1)],
                              scales.data() + l * kEvents * 2 * kKvHeads});
            for (const std::int64_t at : start)
              places.push_back(blocks.data() +
                               (l * tokens + at - start.front()) * kKvHeads * (d + e) * element);
          }
          const DeviceArray<EventBlockLayer> d_layers(layers);
          const DeviceArray<void*> d_places(places);
          EventBlockParams p;
          p.events = events;
          p.dtype = dtype;
          p.block_dtype = to;
          p.n_kv_heads = kKvHeads;
          p.head_dim = d;
          p.value_dim = e;
          p.layers = d_layers.data();
          p.n_layers = kLayers;
          p.ring_capacity = kCapacity;
          p.ring_head_stride = head_stride;
          p.value_head_stride = value_head_stride;
          p.ring_pages = pages;
          p.value_page_stride = value_page_stride;
          p.block = d_places.data();
          p.not_finite = not_finite.data();
          REQUIRE(event_to_block(p, nullptr) == cudaSuccess);
          REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
          REQUIRE(not_finite.host()[0] == 0);
          Bytes out = blocks.host();
          if (to == DType::int8) {
            const Bytes more =
                bytes_at(scales.data(), static_cast<std::int64_t>(scales.size()) * 4);
            out.insert(out.end(), more.begin(), more.end());
          }
          return out;
        };
        for (const DType to : {dtype, DType::int8})
          REQUIRE(blocks_of(in_pages, ring.head_stride(), value_ring.head_stride(), ring.pages(),
                            value_ring.page_stride(),
                            to) == blocks_of(in_one, kCapacity * d, kCapacity * e, {}, 0, to));

        const auto chosen = [&](const std::vector<const unsigned char*>& arrays,
                                std::int64_t head_stride, const RingPages& pages) {
          const DeviceArray<float> mean(size(kLayers * kEvents * kHeads * d));
          const DeviceArray<std::int32_t> full(std::vector<std::int32_t>{0});
          std::vector<RepresentativeLayer> layers;
          for (std::int64_t l = 0; l < kLayers; ++l)
            layers.push_back({arrays[size(2 * l)], relevance.data(),
                              mean.data() + l * kEvents * kHeads * d, nullptr});
          const DeviceArray<RepresentativeLayer> d_layers(layers);
          RepresentativeParams p;
          p.events = events;
          p.key_dtype = dtype;
          p.n_heads = kHeads;
          p.n_kv_heads = kKvHeads;
          p.head_dim = d;
          p.n_repr = 4;
          p.ring_capacity = kCapacity;
          p.ring_head_stride = head_stride;
          p.ring_pages = pages;
          p.capacity = kEvents;
          p.layers = d_layers.data();
          p.n_layers = kLayers;
          p.full = full.data();
          REQUIRE(select_representatives(p, nullptr) == cudaSuccess);
          REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
          REQUIRE(full.host()[0] == 0);
          return mean.host();
        };
        REQUIRE(chosen(in_pages, ring.head_stride(), ring.pages()) ==
                chosen(in_one, kCapacity * d, {}));
      }
}

TEST_CASE("pages: refinement and segmentation by keys") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(7);
  constexpr std::int64_t kLayers = 2, kHeads = 2, kCapacity = 150, kDim = 16, kPitch = 24, kN = 70;
  for (const DType dtype : kDTypes)
    for (const int log2_tokens : {0, 4}) {
      PagedRing ring(kHeads, kCapacity, kPitch, dtype, log2_tokens, random);
      std::deque<DeviceArray<unsigned char>> whole;
      std::vector<const void*> in_one, in_pages;
      for (int i = 0; i < kLayers; ++i) {
        const Bytes elements = random_ring(kHeads * kCapacity * kPitch, dtype, random);
        in_one.push_back(whole.emplace_back(elements).data());
        in_pages.push_back(ring.add(elements, kCapacity * kPitch));
      }
      std::vector<std::uint8_t> raw(kN);
      for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = i % 13 == 5;
      const DeviceArray<std::uint8_t> d_raw(raw);
      TimelineState began = initial_timeline(0);
      began.tokens = 120;  // this step and the one before wrap around
      began.last_boundary = began.last_in_previous = 110;
      began.pending_start = 110;
      const auto run = [&](const std::vector<const void*>& arrays, std::int64_t head_stride,
                           const RingPages& pages) {
        const DeviceArray<const void*> keys(arrays);
        const DeviceArray<TimelineState> state(std::vector<TimelineState>{began});
        const DeviceArray<std::uint8_t> flags(std::vector<std::uint8_t>(200, 0)),
            cuts(std::vector<std::uint8_t>(kN, 0));
        RefineParams p;
        p.objective = RefineObjective::modularity;
        p.min_block = 2;
        p.n = kN;
        p.max_previous = 80;
        p.state = state.data();
        p.raw = d_raw.data();
        p.flags = flags.data();
        p.flag_capacity = 200;
        p.dtype = dtype;
        p.n_layers = kLayers;
        p.n_kv_heads = kHeads;
        p.head_dim = kDim;
        p.keys = keys.data();
        p.key_capacity = kCapacity;
        p.key_head_stride = head_stride;
        p.key_row_stride = kPitch;
        p.key_pages = pages;
        const DeviceArray<unsigned char> workspace(refine_workspace_bytes(p));
        p.workspace = workspace.data();
        p.workspace_bytes = workspace.size();
        REQUIRE(refine_boundaries(p, nullptr) == cudaSuccess);

        const DeviceArray<KeySegmenterState> segmenter(
            std::vector<KeySegmenterState>{initial_key_segmenter(began.tokens)});
        const DeviceArray<double> moments(size(2 * kLayers * kHeads * kDim));
        const DeviceArray<float> signal(kN);
        KeySegmenterParams s;
        s.signal = log2_tokens == 0 ? KeySignal::similarity : KeySignal::gaussian;
        s.gamma = 1.0;
        s.min_count = 8;
        s.var_floor = 0.05;
        s.n = kN;
        s.state = state.data();
        s.segmenter = segmenter.data();
        s.mean = moments.data();
        s.variance = moments.data() + kLayers * kHeads * kDim;
        s.dtype = dtype;
        s.n_layers = kLayers;
        s.n_kv_heads = kHeads;
        s.head_dim = kDim;
        s.keys = keys.data();
        s.key_capacity = kCapacity;
        s.key_head_stride = head_stride;
        s.key_row_stride = kPitch;
        s.key_pages = pages;
        s.raw = cuts.data();
        s.maybe_signal = signal.data();
        const DeviceArray<unsigned char> room(key_segmenter_workspace_bytes(s));
        s.workspace = room.data();
        s.workspace_bytes = room.size();
        REQUIRE(segment_by_keys(s, nullptr) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        REQUIRE(state.host()[0].errors == 0);
        Bytes out = flags.host();
        for (const Bytes& more : {cuts.host(), bytes_at(signal.data(), 4 * kN)})
          out.insert(out.end(), more.begin(), more.end());
        return out;
      };
      const Bytes expected = run(in_one, kCapacity * kPitch, {});
      REQUIRE(std::count(expected.begin(), expected.begin() + 200, 1) > 2);
      REQUIRE(std::count(expected.begin() + 200, expected.begin() + 270, 1) > 0);
      REQUIRE(run(in_pages, ring.head_stride(), ring.pages()) == expected);
    }
}

TEST_CASE("pages that do not fit are refused by name") {
  const std::uint32_t table[4] = {};
  AppendParams p;
  p.dtype = DType::float32;
  p.n = 4;
  p.n_kv_heads = 2;
  p.head_dim = 8;
  p.k_row_stride = p.v_row_stride = 16;
  p.ring_capacity = 30;
  p.ring_head_stride = 64;  // eight rows
  REQUIRE(invalid_field(p) == std::string("ring_head_stride"));
  p.ring_pages = {table, 64, 3};
  REQUIRE(invalid_field(p) == std::string("first_position"));  // the pages are as they should be
  p.ring_pages.log2_tokens = 4;
  REQUIRE(invalid_field(p) == std::string("ring_head_stride"));
  p.ring_pages.log2_tokens = -1;
  REQUIRE(invalid_field(p) == std::string("ring_pages"));
  p.ring_pages = {table, 60, 3};
  REQUIRE(invalid_field(p) == std::string("ring_pages"));
}

}  // namespace ring_pages_test
