// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of attention/attend.hpp; how they become functions: base/inline.hpp.
//
// Few queries (decoding): every key and value is read once, in place.
//
// Floor, of values as wide as keys: 2 * keys * G * d * size_of(dtype) bytes from memory; at 4
// bytes, d = 128, G = 8 and 6272 keys that is 51 MB, 1.3 to 2.7 ms at 38 to 19 GB/s of one core.
// The multiply-adds, 2 * keys * H * d, are 12% of that time, the scores kept for the column sums
// (keys * H floats) 1.6% of the bytes.
//
// The keys that are seen, laid end to end, are cut into splits of kSplit keys, whatever the number
// of threads; each (kv head, split) is a task with its own maximum, sum and output, and the partial
// states are merged in order of the splits.
#include <algorithm>
#include <cmath>

#include "episodic/attention/detail/attend_parts.hpp"
#include "episodic/attention/detail/rows.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"

namespace EPISODIC_NAMESPACE::detail {
namespace attend_few_detail {

inline constexpr std::int64_t kSplit = 256;

// Seen tokens of a segment, and where they stand among all seen keys of the list.
struct Piece {
  const KvSegment* segment;
  Range tokens;
  std::int64_t at;      // number of seen keys before
  std::int64_t number;  // of the segment in its list
  Column column;        // of a relative segment, if column sums are wanted
};

class Few {
 public:
  Few(const cpu::Kernels& k, const AttendShape& shape, const AttendInput& input,
      const AttendOutput& output, const ScoreScale& scale)
      : k_(k),
        shape_(shape),
        input_(input),
        output_(output),
        scale_(scale),
        groups_(shape, input),
        group_(shape.n_heads / shape.n_kv_heads),
        rows_(shape.n_queries * group_),
        d_(shape.head_dim),
        width_(shape.value_dim) {
    for (const auto& list : input.segments) {
      max_keys_ = std::max(max_keys_, seen_keys(list, shape));
      max_pieces_ = std::max(max_pieces_, static_cast<std::int64_t>(list.size()));
    }
    splits_ = (max_keys_ + kSplit - 1) / kSplit;
    s_stride_ = (max_keys_ + 15) / 16 * 16;
  }

  void carve(Carver& c) {
    const std::int64_t heads = shape_.n_kv_heads;
    q_[0] = c.take(heads * rows_ * std::max(d_, width_));
    q_[1] = c.take(heads * rows_ * d_);
    scores_ = c.take(heads * rows_ * s_stride_);
    max_ = c.take(heads * rows_ * splits_);
    sum_ = c.take(heads * rows_ * splits_);
    out_ = c.take(heads * splits_ * rows_ * width_);
    const auto lists = static_cast<std::int64_t>(input_.segments.size());
    pieces_ = c.take<Piece>(lists * max_pieces_);
    n_pieces_ = c.take<std::int64_t>(lists);
    keys_ = c.take<std::int64_t>(lists);
  }

  void run() {
    list_pieces();
    pack_queries();
    const std::int64_t heads = shape_.n_kv_heads;
    const auto each = [&](std::int64_t n, std::int64_t work, const auto& body) {
      if (work < kSerialWork) {
        for (std::int64_t i = 0; i < n; ++i) body(i);
      } else {
        parallel_for(n, body);
      }
    };
    // a key of many short rows costs memory time, not multiply-adds: count at least four rows
    each(heads * splits_, heads * max_keys_ * (d_ + width_) * std::max<std::int64_t>(rows_, 4),
         [&](std::int64_t task) { attend_split(task / splits_, task % splits_); });
    each(heads, heads * rows_ * splits_ * width_, [&](std::int64_t g) { merge(g); });
    const std::int64_t probabilities = heads * rows_ * max_keys_;
    if (!output_.column_sums.empty()) {
      each(heads, 2 * probabilities, [&](std::int64_t g) { add_column_sums(g); });
    }
    if (output_.segment_mass != nullptr || output_.weighted_mass != nullptr) {
      each(heads, probabilities, [&](std::int64_t g) { add_masses(g); });
    }
  }

 private:
  std::int64_t list_of(std::int64_t g) const { return groups_.list_of(g); }

  void list_pieces() {
    const std::int64_t last = shape_.first_position + shape_.n_queries - 1;
    const Columns columns(shape_, input_, output_);
    std::int64_t relative_before = 0;
    for (std::int64_t l = 0; l < groups_.lists; ++l) {
      Piece* piece = pieces_ + l * max_pieces_;
      std::int64_t n = 0, at = 0, number = 0, relative = 0;
      for (const KvSegment& s : input_.segments[static_cast<std::size_t>(l)]) {
        const Range seen = seen_by(s, shape_.n_local, shape_.first_position, last);
        Column column;
        if (s.position == Position::relative) {
          if (columns.wanted()) column = columns.of(l, relative_before, relative);
          ++relative;
        }
        if (seen.size() > 0) piece[n++] = {&s, seen, at, number, column};
        at += seen.size();
        ++number;
      }
      n_pieces_[l] = n;
      keys_[l] = at;
      relative_before += relative;
    }
  }

  // [kind][g][i * group + r][d]: the rows of one kv head side by side, times the factor
  void pack_queries() {
    const TensorView* source[2] = {&input_.q_relative, &input_.q_fixed};
    for (int kind = 0; kind < 2; ++kind) {
      const TensorView& q = *source[kind];
      if (q.data == nullptr) continue;
      for (std::int64_t i = 0; i < shape_.n_queries; ++i) {
        for (std::int64_t h = 0; h < shape_.n_heads; ++h) {
          float* to = q_[kind] + ((h / group_) * rows_ + i * group_ + h % group_) * d_;
          load_row(k_, q.at(i, h), q.dtype, d_, to);
          for (std::int64_t c = 0; c < d_; ++c) to[c] *= scale_.query_factor;
        }
      }
    }
  }

  // The piece that holds key number `key` of list l.
  const Piece* piece_of(std::int64_t l, std::int64_t key) const {
    const Piece* first = pieces_ + l * max_pieces_;
    return std::upper_bound(first, first + n_pieces_[l], key,
                            [](std::int64_t k, const Piece& x) { return k < x.at; }) -
           1;
  }

  // Calls body(piece, first token, tokens, key number in the list) for the pieces of keys
  // [begin, end) of list l.
  template <class Body>
  void for_pieces(std::int64_t l, std::int64_t begin, std::int64_t end, const Body& body) const {
    const Piece* last = pieces_ + l * max_pieces_ + n_pieces_[l];
    for (const Piece* p = piece_of(l, begin); p < last && p->at < end; ++p) {
      const std::int64_t from = std::max(begin, p->at);
      const std::int64_t to = std::min(end, p->at + p->tokens.size());
      body(*p, p->tokens.begin + from - p->at, to - from, from);
    }
  }

  // Tokens [t, t + n) of a piece as rows of kv head g. After the last piece of the split's keys
  // come the values of its first piece.
  cpu::Rows rows_of(const Piece& p, bool values, std::int64_t g, std::int64_t t, std::int64_t n,
                    std::int64_t begin, std::int64_t end) const {
    const KvSegment& s = *p.segment;
    cpu::Rows rows{row_of(s, values, g, t), s.dtype, side_of(s, values).row_stride, n};
    const bool last = p.at + p.tokens.size() >= end;
    if (last && values) return rows;
    const Piece& q = last ? *piece_of(list_of(g), begin) : *(&p + 1);
    const bool values_next = values || last;
    if (q.segment->dtype != s.dtype || side_of(*q.segment, values_next).row_stride != rows.stride)
      return rows;
    const std::int64_t skipped = std::max<std::int64_t>(0, begin - q.at);
    rows.next = row_of(*q.segment, values_next, g, q.tokens.begin + skipped);
    rows.next_n = std::min(q.tokens.size() - skipped, end - q.at - skipped);
    return rows;
  }

  void attend_split(std::int64_t g, std::int64_t split) {
    const std::int64_t l = list_of(g);
    const std::int64_t begin = split * kSplit;
    const std::int64_t end = std::min(keys_[l], begin + kSplit);
    float* max = max_ + g * rows_ * splits_;
    float* sum = sum_ + g * rows_ * splits_;
    float* scores = scores_ + g * rows_ * s_stride_;
    float* out = out_ + (g * splits_ + split) * rows_ * width_;
    std::fill(out, out + rows_ * width_, 0.0f);
    if (begin >= end) {  // another head's list is longer
      for (std::int64_t r = 0; r < rows_; ++r) {
        max[r * splits_ + split] = kLowest;
        sum[r * splits_ + split] = 0.0f;
      }
      return;
    }
    for_pieces(l, begin, end,
               [&](const Piece& p, std::int64_t t, std::int64_t n, std::int64_t key) {
                 const KvSegment& s = *p.segment;
                 const float* q = q_[s.position == Position::fixed] + g * rows_ * d_;
                 k_.dot_rows(q, d_, rows_, rows_of(p, false, g, t, n, begin, end), d_, scores + key,
                             s_stride_);
                 scale_scores(key_scale_of(s, g), n, scores + key);
                 if (scale_.cap > 0.0f) cap_scores(n, scores + key);
                 if (shape_.n_queries > 1) hide(s, t, n, scores + key);
               });
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* row = scores + r * s_stride_ + begin;
      const float m = k_.max_row(row, end - begin);
      max[r * splits_ + split] = m;
      sum[r * splits_ + split] = k_.exp2_row(row, end - begin, m);
    }
    for_pieces(
        l, begin, end, [&](const Piece& p, std::int64_t t, std::int64_t n, std::int64_t key) {
          add_values(rows_of(p, true, g, t, n, begin, end),
                     p.segment->value_weight * value_scale_of(*p.segment, g), scores + key, out);
        });
  }

  void scale_scores(float scale, std::int64_t n, float* scores) const {
    if (scale == 1.0f) return;
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* row = scores + r * s_stride_;
      for (std::int64_t i = 0; i < n; ++i) row[i] *= scale;
    }
  }

  void cap_scores(std::int64_t n, float* scores) const {
    for (std::int64_t r = 0; r < rows_; ++r) k_.soft_cap(scores + r * s_stride_, n, scale_.cap);
  }

  void add_values(const cpu::Rows& values, float weight, const float* p, float* out) const {
    if (weight == 1.0f) {
      k_.add_rows(p, s_stride_, rows_, values, width_, out, width_);
      return;
    }
    // weighted probabilities go to a copy: the column sums want them unweighted
    constexpr std::int64_t kRows = 4;  // at least as many as the kernels take side by side
    float weighted[kRows * kSplit];
    for (std::int64_t first = 0; first < rows_; first += kRows) {
      const std::int64_t n = std::min(kRows, rows_ - first);
      for (std::int64_t r = 0; r < n; ++r) {
        const float* row = p + (first + r) * s_stride_;
        for (std::int64_t i = 0; i < values.n; ++i) weighted[r * kSplit + i] = row[i] * weight;
      }
      k_.add_rows(weighted, kSplit, n, values, width_, out + first * width_, width_);
    }
  }

  // -inf where a query does not see a key: the unseen keys of a query lie at the ends of a piece
  void hide(const KvSegment& s, std::int64_t t, std::int64_t n, float* scores) const {
    for (std::int64_t i = 0; i < shape_.n_queries; ++i) {
      const std::int64_t position = shape_.first_position + i;
      const Range seen = seen_by(s, shape_.n_local, position, position);
      const std::int64_t begin = std::clamp<std::int64_t>(seen.begin - t, 0, n);
      const std::int64_t end = std::clamp<std::int64_t>(seen.end - t, begin, n);
      for (std::int64_t r = i * group_; r < (i + 1) * group_; ++r) {
        float* row = scores + r * s_stride_;
        std::fill(row, row + begin, -std::numeric_limits<float>::infinity());
        std::fill(row + end, row + n, -std::numeric_limits<float>::infinity());
      }
    }
  }

  void merge(std::int64_t g) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* max = max_ + (g * rows_ + r) * splits_;
      float* sum = sum_ + (g * rows_ + r) * splits_;
      const float m = k_.max_row(max, splits_);
      double total = 0.0;
      for (std::int64_t i = 0; i < splits_; ++i) {
        max[i] = std::exp2(max[i] - m);
        total += static_cast<double>(max[i]) * sum[i];
      }
      const std::int64_t row = row_of_output(g, r);
      const float other = beside_keys(input_, row, row % shape_.n_heads);
      const double seen = total;
      total += share_of_other(other, m);
      const float inverse =
          total > 0.0 || std::isnan(total) ? static_cast<float>(1.0 / total) : 0.0f;
      for (std::int64_t i = 0; i < splits_; ++i) max[i] *= inverse;  // now: weight of a split
      const MutableTensorView& rows = output_.out;
      void* place = rows.at(row / shape_.n_heads, row % shape_.n_heads);
      // outputs of 16 bits are summed where this head's queries were
      float* out =
          rows.dtype == DType::float32 ? static_cast<float*>(place) : q_[0] + g * rows_ * width_;
      std::fill(out, out + width_, 0.0f);
      const cpu::Rows states{out_ + (g * splits_ * rows_ + r) * width_, DType::float32,
                             rows_ * width_, splits_};
      k_.add_rows(max, splits_, 1, states, width_, out, width_);
      if (out != place) store_row(k_, out, width_, place, rows.dtype);
      if (output_.lse != nullptr)
        output_.lse[row] = with_other(log_sum_exp_of(m, static_cast<float>(seen)), other);
    }
  }

  void add_column_sums(std::int64_t g) const {
    const std::int64_t l = list_of(g);
    const float* scores = scores_ + g * rows_ * s_stride_;
    const float* weights = max_ + g * rows_ * splits_;
    for (std::int64_t split = 0; split * kSplit < keys_[l]; ++split) {
      for_pieces(l, split * kSplit, std::min(keys_[l], (split + 1) * kSplit),
                 [&](const Piece& p, std::int64_t t, std::int64_t n, std::int64_t key) {
                   if (p.column.to == nullptr) return;
                   float* to = p.column.at(t, g * group_);
                   if (rows_ == group_) {  // one query
                     k_.add_column_sums(scores + key, s_stride_, rows_, weights + split, splits_, n,
                                        to, p.column.stride);
                     return;
                   }
                   for (std::int64_t i = 0; i < n; ++i, to += p.column.stride) {
                     for (std::int64_t r = 0; r < group_; ++r) {
                       float received = 0.0f;
                       for (std::int64_t row = r; row < rows_; row += group_) {
                         received +=
                             scores[row * s_stride_ + key + i] * weights[row * splits_ + split];
                       }
                       to[r] += received;
                     }
                   }
                 });
    }
  }

  // What the segments received from the query heads of kv head g, and each query's sum of
  // probability * value_weight.
  void add_masses(std::int64_t g) const {
    const std::int64_t l = list_of(g);
    const float* weights = max_ + g * rows_ * splits_;
    double* to = output_.segment_mass;
    if (to != nullptr) {
      for (std::int64_t i = 0; i < l; ++i) {
        to += static_cast<std::int64_t>(input_.segments[static_cast<std::size_t>(i)].size()) *
              groups_.heads;
      }
      to += g * group_ - l * groups_.heads;
    }
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float* scores = scores_ + (g * rows_ + r) * s_stride_;
      double weighted = 0.0;
      for (std::int64_t split = 0; split * kSplit < keys_[l]; ++split) {
        const auto weight = static_cast<double>(weights[r * splits_ + split]);
        for_pieces(l, split * kSplit, std::min(keys_[l], (split + 1) * kSplit),
                   [&](const Piece& p, std::int64_t, std::int64_t n, std::int64_t key) {
                     const double mass = weight * k_.sum_row(scores + key, n);
                     weighted += mass * p.segment->value_weight;
                     if (to != nullptr) to[p.number * groups_.heads + r % group_] += mass;
                   });
      }
      if (output_.weighted_mass != nullptr) {
        output_.weighted_mass[row_of_output(g, r)] = static_cast<float>(weighted);
      }
    }
  }

  // Row of [n, H] arrays of row r of kv head g.
  std::int64_t row_of_output(std::int64_t g, std::int64_t r) const {
    return (r / group_) * shape_.n_heads + g * group_ + r % group_;
  }

  const cpu::Kernels& k_;
  const AttendShape& shape_;
  const AttendInput& input_;
  const AttendOutput& output_;
  const ScoreScale& scale_;
  const HeadGroups groups_;
  const std::int64_t group_, rows_, d_, width_;
  std::int64_t max_keys_ = 0, max_pieces_ = 0, splits_ = 0, s_stride_ = 0;
  float* q_[2] = {nullptr, nullptr};  // relative, fixed
  float* scores_ = nullptr;           // [g][row][key]
  float* max_ = nullptr;              // [g][row][split]
  float* sum_ = nullptr;              // [g][row][split]
  float* out_ = nullptr;              // [g][split][row][e]
  Piece* pieces_ = nullptr;           // [list][piece]
  std::int64_t* n_pieces_ = nullptr;  // [list]
  std::int64_t* keys_ = nullptr;      // [list]
};

}  // namespace attend_few_detail

EPISODIC_INLINE void attend_few(const cpu::Kernels& k, const AttendShape& shape,
                                const AttendInput& input, const AttendOutput& output,
                                const ScoreScale& scale, AttendWorkspace& workspace) {
  attend_few_detail::Few few(k, shape, input, output, scale);
  Carver sizes(nullptr);
  few.carve(sizes);
  Carver parts(workspace.floats(sizes.used()));
  few.carve(parts);
  few.run();
}

}  // namespace EPISODIC_NAMESPACE::detail
