// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of attention/attend.hpp; how they become functions: base/inline.hpp.
//
// Many queries (prefill): blocked products over tiles of query rows.
//
// A tile is a run of queries of one query head, or of several heads of a group when the queries are
// few: at most kTileLanes rows ("lanes"), standing side by side in panels of the kernels' width.
// Per tile the seen keys pass by in blocks of kBlock: keys and values of a block are staged
// (widened, weighted) into the second-level cache, where they serve all panels; each panel makes
// its scores S^T = K q, softmax and out^T += V^T P^T while they lie in the first-level cache. With
// lanes along the vectors neither K nor V is transposed, and softmax and masks need no horizontal
// operation. The softmax runs with a running maximum per lane; probabilities of relative keys are
// kept, each block with the maximum it was made under, and are summed over the lanes when the final
// maximum and sum are known. Of the other segments' probabilities only the sum per lane is kept
// ("runs"), if anyone asks for masses. A panel skips the keys of a block that none of its queries
// sees, so the work lost at the two edges of the window is half a panel of keys each, not half a
// tile.
//
// Floor, of values as wide as keys: 4 * n * H * d flops per seen key. Bytes per tile of 256 lanes
// and key: 2 * d * 4 read to stage, against 4 * 256 * d flops, that is 128 flops per byte; 1 kB
// written and read of kept probabilities, 128 flops per byte at d = 128; the tile's q and out (3 *
// 4 * 256 * d) pass through the second-level cache once per block, 110 flops per byte. Keys and
// values are read n / 256 * H / G times in all.
//
// The cut into tiles, blocks and panels depends on the shape only, and sums over tiles are taken in
// order, so results do not depend on the number of threads.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "episodic/attention/detail/attend_parts.hpp"
#include "episodic/attention/detail/rows.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace attend_many_detail {

inline constexpr std::int64_t kTileLanes = 256;
inline constexpr std::int64_t kMinTasks = 16;  // smaller tiles are cut until there are so many
inline constexpr std::int64_t kBlockTarget = 128;

// Keys of one block: seen tokens of one kind of position, from several segments.
struct Block {
  std::int64_t n = 0;
  bool masked = false;         // low and high are set, and some lane may not see some key
  std::int64_t first_run = 0;  // number of the tile's runs in the blocks before
};

// The keys of one segment in one block of a tile.
struct Run {
  std::int64_t segment;  // number in its list
  std::int64_t block;    // number in the tile
  Range rows;            // of the block
};

// One worker's scratch.
struct Scratch {
  float* q[2];               // relative, fixed: [panel][d][lane]
  float* out;                // [panel][e][lane]
  float* rows;               // [lane][d or e] of a panel, between float32 and 16 bits
  float* keys;               // staged rows
  float* values;             // staged rows
  float* e;                  // [panel][key][lane], a block of fixed keys
  float* kept;               // [block][panel][key][lane], relative keys
  float* kept_max;           // [block][panel * lane]
  float *max, *sum, *alpha;  // [panel * lane]
  float *inverse, *weight;   // [panel * lane]
  float* received;           // [key], of one head
  Run* runs;                 // [run] of a tile
  float* run_sums;           // [run][panel * lane], probabilities under the block's maximum
  float* run_max;            // [block][panel * lane]
  std::int32_t *low, *high;  // [key], queries that see it
  std::int32_t* lane_query;  // [panel * lane]
};

class Many {
 public:
  Many(const cpu::Kernels& k, const AttendShape& shape, const AttendInput& input,
       const AttendOutput& output, const ScoreScale& scale)
      : k_(k),
        shape_(shape),
        input_(input),
        output_(output),
        scale_(scale),
        groups_(shape, input),
        columns_(shape, input, output),
        group_(shape.n_heads / shape.n_kv_heads),
        d_(shape.head_dim),
        width_(shape.value_dim),
        lanes_(k.panel_lanes),
        block_((kBlockTarget + k.key_multiple - 1) / k.key_multiple * k.key_multiple) {
    std::int64_t limit = kTileLanes;
    for (;; limit /= 2) {
      cut(limit);
      if (tasks_ >= kMinTasks || limit <= 2 * lanes_ || limit <= 64) break;
    }
    if (columns_.wanted()) {
      for (const auto& list : input.segments) {
        relative_ = std::max(relative_, relative_keys(list));
        for (std::int64_t t = 0; t < query_tiles_; ++t) {
          std::int64_t n = 0;
          for (const KvSegment& s : list) {
            if (s.position == Position::relative) n += seen(s, t).size();
          }
          kept_keys_ = std::max(kept_keys_, n);
        }
      }
    }
    kept_blocks_ = (kept_keys_ + block_ - 1) / block_;
    std::int64_t keys = 0;
    for (const auto& list : input.segments) keys = std::max(keys, seen_keys(list, shape));
    if (output.segment_mass != nullptr || output.weighted_mass != nullptr) {
      for (const auto& list : input.segments) {
        max_segments_ = std::max(max_segments_, static_cast<std::int64_t>(list.size()));
      }
      max_blocks_ = keys / block_ + 2;  // either kind may end within a block
      max_runs_ = max_segments_ + max_blocks_;
    }
    work_ = shape.n_queries * shape.n_heads * (d_ + width_) * keys;
    workers_ = work_ < kSerialWork ? 1 : std::min<std::int64_t>(max_threads(), tasks_);
  }

  void carve(Carver& c, Scratch* scratch) {
    partial_ = c.take(query_tiles_ * shape_.n_heads * relative_);
    partial_mass_ = c.take<double>(query_tiles_ * shape_.n_heads * max_segments_);
    const std::int64_t width = panels_ * lanes_;
    for (std::int64_t w = 0; w < workers_; ++w) {
      Scratch s;
      s.q[0] = c.take(width * d_);
      s.q[1] = c.take(width * d_);
      s.out = c.take(width * width_);
      s.rows = c.take(wide_rows() * std::max(d_, width_));
      s.keys = c.take(whole_strips(d_) * block_);
      s.values = c.take(whole_strips(width_) * block_);
      s.e = c.take(width * block_);
      s.kept = c.take(kept_blocks_ * width * block_);
      s.kept_max = c.take(kept_blocks_ * width);
      for (float** p : {&s.max, &s.sum, &s.alpha, &s.inverse, &s.weight}) *p = c.take(width);
      s.received = c.take(kept_keys_);
      s.runs = c.take<Run>(max_runs_);
      s.run_sums = c.take(max_runs_ * width);
      s.run_max = c.take(max_blocks_ * width);
      s.low = c.take<std::int32_t>(block_);
      s.high = c.take<std::int32_t>(block_);
      s.lane_query = c.take<std::int32_t>(width);
      if (scratch != nullptr) scratch[w] = s;
    }
  }

  static std::int64_t whole_strips(std::int64_t channels) {
    return (channels + cpu::kStrip - 1) / cpu::kStrip * cpu::kStrip;
  }

  // Rows that are converted on the way in or out: a panel's, or none.
  std::int64_t wide_rows() const {
    const bool typed = input_.q_relative.dtype != DType::float32 ||
                       input_.q_fixed.dtype != DType::float32 ||
                       output_.out.dtype != DType::float32;
    return typed ? lanes_ : 0;
  }

  std::int64_t workers() const { return workers_; }

  void run(const Scratch* scratch) {
    // workers draw tiles, so that scratch belongs to a worker and not to a tile
    std::atomic<std::int64_t> next{0};
    parallel_for(workers_, [&](std::int64_t w) {
      for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
        Tile tile(*this, scratch[w], task);
        tile.attend();
      }
    });
    if (relative_ > 0) add_column_sums();
    if (output_.segment_mass != nullptr) add_segment_masses();
  }

 private:
  // Queries of tile t of a head, and what they see of a segment.
  Range queries(std::int64_t t) const {
    const std::int64_t begin = t * tile_queries_;
    return {begin, std::min(shape_.n_queries, begin + tile_queries_)};
  }
  Range seen(const KvSegment& s, std::int64_t t) const {
    const Range q = queries(t);
    return seen_by(s, shape_.n_local, shape_.first_position + q.begin,
                   shape_.first_position + q.end - 1);
  }

  void cut(std::int64_t limit) {
    const std::int64_t n = shape_.n_queries;
    const std::int64_t tiles = (n + limit - 1) / limit;
    tile_queries_ = (n + tiles - 1) / tiles;
    if (tiles > 1) tile_queries_ = (tile_queries_ + lanes_ - 1) / lanes_ * lanes_;
    query_tiles_ = (n + tile_queries_ - 1) / tile_queries_;
    const std::int64_t fit = std::clamp<std::int64_t>(limit / tile_queries_, 1, group_);
    head_tiles_ = (group_ + fit - 1) / fit;
    tile_heads_ = (group_ + head_tiles_ - 1) / head_tiles_;
    panels_ = (tile_heads_ * tile_queries_ + lanes_ - 1) / lanes_;
    tasks_ = shape_.n_kv_heads * head_tiles_ * query_tiles_;
  }

  class Tile {
   public:
    Tile(const Many& many, const Scratch& scratch, std::int64_t task)
        : m_(many),
          k_(many.k_),
          s_(scratch),
          d_(many.d_),
          width_(many.width_),
          lanes_(many.lanes_) {
      query_tile_ = task % m_.query_tiles_;
      const std::int64_t heads = task / m_.query_tiles_;
      g_ = heads / m_.head_tiles_;
      const std::int64_t r = heads % m_.head_tiles_ * m_.tile_heads_;
      head0_ = g_ * m_.group_ + r;
      n_heads_ = std::clamp<std::int64_t>(m_.group_ - r, 0, m_.tile_heads_);
      queries_ = m_.queries(query_tile_);
      n_lanes_ = n_heads_ * queries_.size();
      panels_ = (n_lanes_ + lanes_ - 1) / lanes_;
      list_ = m_.input_.segments[static_cast<std::size_t>(m_.groups_.list_of(g_))];
    }

    void attend() {
      if (n_lanes_ == 0) return;
      const std::int64_t width = panels_ * lanes_;
      std::fill(s_.max, s_.max + width, kLowest);
      std::fill(s_.sum, s_.sum + width, 0.0f);
      std::fill(s_.out, s_.out + width * width_, 0.0f);
      for (std::int64_t lane = 0; lane < width; ++lane) {
        s_.lane_query[lane] =
            lane < n_lanes_ ? static_cast<std::int32_t>(query_of(lane)) : -1;  // -1 sees nothing
      }
      pass(Position::fixed);
      const std::int64_t kept = pass(Position::relative);
      finish();
      if (m_.relative_ > 0) sum_columns(kept);
      if (m_.max_runs_ > 0) sum_runs();
    }

   private:
    std::int64_t head_of(std::int64_t lane) const { return head0_ + lane / queries_.size(); }
    std::int64_t query_of(std::int64_t lane) const {
      return queries_.begin + lane % queries_.size();
    }
    std::int64_t row_of_lane(std::int64_t lane) const {
      return query_of(lane) * m_.shape_.n_heads + head_of(lane);
    }

    // All keys of one kind, block by block. Returns the number of keys.
    std::int64_t pass(Position position) {
      Block block;
      std::int64_t keys = 0;
      bool packed = false;
      block.first_run = n_runs_;
      const auto flush = [&] {
        if (!packed) pack(position);
        packed = true;
        product(block, position, keys / m_.block_);
        keys += block.n;
        block = {};
        block.first_run = n_runs_;
        ++n_blocks_;
      };
      for (std::size_t i = 0; i < list_.size(); ++i) {
        const KvSegment& s = list_[i];
        if (s.position != position) continue;
        Range left = m_.seen(s, query_tile_);
        while (left.size() > 0) {
          const Range take{left.begin, std::min(left.end, left.begin + m_.block_ - block.n)};
          if (m_.max_runs_ > 0) {
            s_.runs[n_runs_++] = {
                static_cast<std::int64_t>(i), n_blocks_, {block.n, block.n + take.size()}};
          }
          add(s, take, block);
          left.begin = take.end;
          if (block.n == m_.block_) flush();
        }
      }
      if (block.n > 0) flush();
      return keys;
    }

    void pack(Position position) {
      const bool fixed = position == Position::fixed;
      const TensorView& q = fixed ? m_.input_.q_fixed : m_.input_.q_relative;
      const float* rows[kMaxLanes];
      for (std::int64_t p = 0; p < panels_; ++p) {
        const std::int64_t n = std::min(lanes_, n_lanes_ - p * lanes_);
        for (std::int64_t l = 0; l < n; ++l) {
          const std::int64_t lane = p * lanes_ + l;
          const void* row = q.at(query_of(lane), head_of(lane));
          if (q.dtype == DType::float32) {
            rows[l] = static_cast<const float*>(row);
          } else {
            k_.to_float(row, q.dtype, d_, s_.rows + l * d_);
            rows[l] = s_.rows + l * d_;
          }
        }
        k_.pack(rows, n, d_, m_.scale_.query_factor, s_.q[fixed] + p * d_ * lanes_);
      }
    }

    void add(const KvSegment& s, const Range& take, Block& block) {
      const std::int64_t at = block.n * cpu::kStrip;
      k_.stage(row_of(s, false, g_, take.begin), s.dtype, s.row_stride, take.size(), d_,
               key_scale_of(s, g_), s_.keys + at, m_.block_);
      k_.stage(row_of(s, true, g_, take.begin), s.dtype, side_of(s, true).row_stride, take.size(),
               width_, s.value_weight * value_scale_of(s, g_), s_.values + at, m_.block_);
      for (std::int64_t t = take.begin; t < take.end; ++t) {
        std::int32_t* low = s_.low + block.n;
        std::int32_t* high = s_.high + block.n;
        seen_from(s, m_.shape_, t, low, high);
        block.masked |= *low > queries_.begin || *high < queries_.end;
        ++block.n;
      }
    }

    void product(const Block& block, Position position, std::int64_t number) {
      const bool keep = position == Position::relative && m_.relative_ > 0;
      const std::int64_t panel_size = m_.block_ * lanes_;
      float* e = keep ? s_.kept + number * m_.panels_ * panel_size : s_.e;
      const float* q = s_.q[position == Position::fixed];
      for (std::int64_t p = 0; p < panels_; ++p, e += panel_size) {
        Range keys{0, block.n};
        if (block.masked) keys = seen_keys_of(p, block);
        float* scores = e + keys.begin * lanes_;
        float* max = s_.max + p * lanes_;
        if (keys.size() > 0) {
          const float* rows = s_.keys + keys.begin * cpu::kStrip;
          k_.scores(q + p * d_ * lanes_, d_, rows, m_.block_, keys.size(), scores);
          if (m_.scale_.cap > 0.0f) k_.soft_cap(scores, keys.size() * lanes_, m_.scale_.cap);
          if (block.masked) {
            k_.mask(scores, keys.size(), s_.low + keys.begin, s_.high + keys.begin,
                    s_.lane_query + p * lanes_);
          }
          k_.softmax(scores, keys.size(), max, s_.sum + p * lanes_, s_.alpha);
          if (m_.max_runs_ > 0) add_runs(block, p, keys, e);
          k_.accumulate(scores, keys.size(), s_.values + keys.begin * cpu::kStrip, m_.block_,
                        width_, s_.alpha, s_.out + p * width_ * lanes_);
        }
        if (m_.max_runs_ > 0) {
          if (keys.size() == 0) add_runs(block, p, keys, e);
          std::copy(max, max + lanes_, s_.run_max + (n_blocks_ * m_.panels_ + p) * lanes_);
        }
        if (keep) {
          std::fill(e, e + keys.begin * lanes_, 0.0f);
          std::fill(e + keys.end * lanes_, e + block.n * lanes_, 0.0f);
          std::copy(max, max + lanes_, s_.kept_max + (number * m_.panels_ + p) * lanes_);
        }
      }
    }

    // Sums of each run of the block over the rows `seen` of a panel's probabilities e.
    void add_runs(const Block& block, std::int64_t panel, const Range& seen, const float* e) {
      for (std::int64_t i = block.first_run; i < n_runs_; ++i) {
        const Range rows{std::max(seen.begin, s_.runs[i].rows.begin),
                         std::min(seen.end, s_.runs[i].rows.end)};
        k_.lane_sums(e + rows.begin * lanes_, std::max<std::int64_t>(0, rows.size()),
                     s_.run_sums + (i * m_.panels_ + panel) * lanes_);
      }
    }

    // The part of a block outside of which no lane of the panel sees a key.
    Range seen_keys_of(std::int64_t panel, const Block& block) const {
      const std::int64_t first = panel * lanes_;
      const std::int64_t last = std::min(first + lanes_, n_lanes_) - 1;
      std::int64_t low = query_of(first), high = query_of(last);
      if (head_of(first) != head_of(last)) {
        low = queries_.begin;
        high = queries_.end - 1;
      }
      const auto hidden = [&](std::int64_t i) { return s_.low[i] > high || s_.high[i] <= low; };
      Range keys{0, block.n};
      while (keys.begin < keys.end && hidden(keys.begin)) ++keys.begin;
      while (keys.begin < keys.end && hidden(keys.end - 1)) --keys.end;
      return keys;
    }

    void finish() {
      float* rows[kMaxLanes];
      for (std::int64_t lane = 0; lane < panels_ * lanes_; ++lane) {
        const float sum = s_.sum[lane];
        const bool seen = lane < n_lanes_ && sum != 0.0f;
        const float other =
            lane < n_lanes_ ? beside_keys(m_.input_, row_of_lane(lane), head_of(lane)) : kNothing;
        const float all = sum + static_cast<float>(share_of_other(other, s_.max[lane]));
        s_.inverse[lane] = seen ? 1.0f / all : 0.0f;
        if (lane < n_lanes_ && m_.output_.lse != nullptr) {
          m_.output_.lse[row_of_lane(lane)] = with_other(log_sum_exp_of(s_.max[lane], sum), other);
        }
      }
      for (std::int64_t p = 0; p < panels_; ++p) {
        const std::int64_t n = std::min(lanes_, n_lanes_ - p * lanes_);
        const MutableTensorView& out = m_.output_.out;
        const auto place = [&](std::int64_t l) {
          return out.at(query_of(p * lanes_ + l), head_of(p * lanes_ + l));
        };
        const bool in_place = out.dtype == DType::float32;
        for (std::int64_t l = 0; l < n; ++l) {
          rows[l] = in_place ? static_cast<float*>(place(l)) : s_.rows + l * width_;
        }
        k_.unpack(s_.out + p * width_ * lanes_, n, width_, s_.inverse + p * lanes_, rows);
        if (in_place) continue;
        for (std::int64_t l = 0; l < n; ++l) store_row(k_, rows[l], width_, place(l), out.dtype);
      }
    }

    // What each relative key received from the lanes of each head, to the tile's own row of the
    // partial sums.
    void sum_columns(std::int64_t keys) {
      const std::int64_t panel_size = m_.block_ * lanes_;
      for (std::int64_t h = 0; h < n_heads_; ++h) {
        const std::int64_t lane0 = h * queries_.size(), lane1 = lane0 + queries_.size();
        const std::int64_t p0 = lane0 / lanes_, p1 = (lane1 - 1) / lanes_ + 1;
        // lanes of the neighbours in the outer panels weigh nothing
        float* inverse = s_.alpha;
        std::copy(s_.inverse + p0 * lanes_, s_.inverse + p1 * lanes_, inverse);
        std::fill(inverse, inverse + lane0 - p0 * lanes_, 0.0f);
        std::fill(inverse + lane1 - p0 * lanes_, inverse + (p1 - p0) * lanes_, 0.0f);
        for (std::int64_t b = 0; b * m_.block_ < keys; ++b) {
          k_.block_weight(s_.kept_max + (b * m_.panels_ + p0) * lanes_, s_.max + p0 * lanes_,
                          inverse, (p1 - p0) * lanes_, s_.weight);
          k_.column_sums(s_.kept + (b * m_.panels_ + p0) * panel_size, panel_size, p1 - p0,
                         s_.weight, std::min(m_.block_, keys - b * m_.block_),
                         s_.received + b * m_.block_);
        }
        scatter(head0_ + h);
      }
    }

    // What each segment received from the lanes of each head, to the tile's own row of the partial
    // masses; and the weighted mass of each lane, which no other tile has.
    void sum_runs() {
      const std::int64_t width = m_.panels_ * lanes_, used = panels_ * lanes_;
      double* masses =
          m_.partial_mass_ + (query_tile_ * m_.shape_.n_heads + head0_) * m_.max_segments_;
      std::fill(masses, masses + n_heads_ * m_.max_segments_, 0.0);
      float* weighted = s_.alpha;  // free by now
      std::fill(weighted, weighted + used, 0.0f);
      for (std::int64_t i = 0; i < n_runs_; ++i) {
        const Run& run = s_.runs[i];
        if (i == 0 || s_.runs[i - 1].block != run.block) {
          k_.block_weight(s_.run_max + run.block * width, s_.max, s_.inverse, used, s_.weight);
        }
        const float* sums = s_.run_sums + i * width;
        const float factor = list_[static_cast<std::size_t>(run.segment)].value_weight;
        for (std::int64_t h = 0; h < n_heads_; ++h) {
          double mass = 0.0;
          for (std::int64_t l = h * queries_.size(); l < (h + 1) * queries_.size(); ++l) {
            const float probability = sums[l] * s_.weight[l];
            mass += probability;
            weighted[l] += probability * factor;
          }
          masses[h * m_.max_segments_ + run.segment] += mass;
        }
      }
      if (m_.output_.weighted_mass == nullptr) return;
      for (std::int64_t lane = 0; lane < n_lanes_; ++lane) {
        m_.output_.weighted_mass[row_of_lane(lane)] = weighted[lane];
      }
    }

    void scatter(std::int64_t head) const {
      float* to = m_.partial_ + (query_tile_ * m_.shape_.n_heads + head) * m_.relative_;
      const float* from = s_.received;
      for (const KvSegment& s : list_) {
        if (s.position != Position::relative) continue;
        const Range seen = m_.seen(s, query_tile_);
        std::fill(to, to + seen.begin, 0.0f);
        std::copy(from, from + seen.size(), to + seen.begin);
        std::fill(to + seen.end, to + s.length, 0.0f);
        from += seen.size();
        to += s.length;
      }
    }

    const Many& m_;
    const cpu::Kernels& k_;
    const Scratch& s_;
    const std::int64_t d_, width_, lanes_;
    std::int64_t query_tile_, g_, head0_, n_heads_, n_lanes_, panels_;
    std::int64_t n_runs_ = 0, n_blocks_ = 0;
    Range queries_;
    std::span<const KvSegment> list_;
  };

  // partial [query tile][head][key] -> column_sums, tiles in order
  void add_column_sums() {
    constexpr std::int64_t kRun = 64;
    const std::int64_t n = (relative_ + kRun - 1) / kRun;
    const auto body = [&](std::int64_t task) {
      add_columns_of(task / n, {task % n * kRun, (task % n + 1) * kRun});
    };
    if (workers_ == 1) {
      for (std::int64_t task = 0; task < groups_.lists * n; ++task) body(task);
    } else {
      parallel_for(groups_.lists * n, body);
    }
  }

  // Keys [run.begin, run.end) of a list's relative segments, laid end to end.
  void add_columns_of(std::int64_t l, const Range& run) {
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < l; ++i) {
      before += count_relative(input_.segments[static_cast<std::size_t>(i)]);
    }
    std::int64_t at = 0, relative = 0;
    for (const KvSegment& s : input_.segments[static_cast<std::size_t>(l)]) {
      if (s.position != Position::relative) continue;
      const std::int64_t from = std::max(run.begin, at), to = std::min(run.end, at + s.length);
      if (from < to) add_run(l, columns_.of(l, before, relative), at, {from, to});
      at += s.length;
      ++relative;
    }
  }

  // Keys [keys.begin, keys.end) of a segment that begins at key `at`.
  void add_run(std::int64_t l, const Column& column, std::int64_t at, const Range& keys) {
    const std::int64_t heads = shape_.n_heads;
    for (std::int64_t h = l * groups_.heads; h < (l + 1) * groups_.heads; ++h) {
      const float* from = partial_ + h * relative_ + keys.begin;
      float* to = column.at(keys.begin - at, h);
      for (std::int64_t i = 0; i < keys.size(); ++i) {
        float sum = 0.0f;
        for (std::int64_t t = 0; t < query_tiles_; ++t) sum += from[t * heads * relative_ + i];
        to[i * column.stride] += sum;
      }
    }
  }

  // partial_mass [query tile][head][segment] -> segment_mass, tiles in order
  void add_segment_masses() {
    double* to = output_.segment_mass;
    for (std::int64_t l = 0; l < groups_.lists; ++l) {
      const auto n = static_cast<std::int64_t>(input_.segments[static_cast<std::size_t>(l)].size());
      for (std::int64_t t = 0; t < query_tiles_; ++t) {
        for (std::int64_t h = 0; h < groups_.heads; ++h) {
          const double* from =
              partial_mass_ + (t * shape_.n_heads + l * groups_.heads + h) * max_segments_;
          for (std::int64_t i = 0; i < n; ++i) to[i * groups_.heads + h] += from[i];
        }
      }
      to += n * groups_.heads;
    }
  }

  static constexpr std::int64_t kMaxLanes = 64;  // of a panel

  const cpu::Kernels& k_;
  const AttendShape& shape_;
  const AttendInput& input_;
  const AttendOutput& output_;
  const ScoreScale& scale_;
  const HeadGroups groups_;
  const Columns columns_;
  const std::int64_t group_, d_, width_, lanes_, block_;
  std::int64_t tile_queries_ = 0, tile_heads_ = 0, query_tiles_ = 0, head_tiles_ = 0;
  std::int64_t panels_ = 0, tasks_ = 0, workers_ = 0, work_ = 0;
  std::int64_t relative_ = 0, kept_keys_ = 0, kept_blocks_ = 0;
  std::int64_t max_segments_ = 0, max_blocks_ = 0, max_runs_ = 0;  // 0: nobody asks for masses
  float* partial_ = nullptr;
  double* partial_mass_ = nullptr;
};

}  // namespace attend_many_detail

EPISODIC_INLINE void attend_many(const cpu::Kernels& k, const AttendShape& shape,
                                 const AttendInput& input, const AttendOutput& output,
                                 const ScoreScale& scale, AttendWorkspace& workspace) {
  attend_many_detail::Many many(k, shape, input, output, scale);
  const auto parts = [&](Carver& c, bool fill) {
    auto* scratch = c.take<attend_many_detail::Scratch>(many.workers());
    many.carve(c, fill ? scratch : nullptr);
    return scratch;
  };
  Carver sizes(nullptr);
  parts(sizes, false);
  Carver carver(workspace.floats(sizes.used()));
  many.run(parts(carver, true));
}

}  // namespace EPISODIC_NAMESPACE::detail
