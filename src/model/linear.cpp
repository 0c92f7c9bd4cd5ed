// SPDX-License-Identifier: Apache-2.0
#include "linear.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "elementwise.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"

// torch's BLAS, by its standard name: a call costs far less than at::mm, which matters for one
// token
extern "C" void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);
// only where torch was built with MKL
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int n);

namespace episodic {
namespace {

/// MKL would split a call made outside a parallel loop by the number of threads.
class OneThreadPerCall {
 public:
  OneThreadPerCall() : before_(MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~OneThreadPerCall() {
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(before_);
  }
  OneThreadPerCall(const OneThreadPerCall&) = delete;
  OneThreadPerCall& operator=(const OneThreadPerCall&) = delete;

 private:
  int before_;
};

// Few rows: bound by reading W, so many small blocks. From this many on, blocks of stored weights
// are widened and multiplied by sgemm.
constexpr std::int64_t kFewRows = 16;
constexpr std::int64_t kRowBlock = 128;

/// How one product is cut: blocks of rows times blocks of columns (outputs).
struct Grid {
  std::int64_t rows = 0, cols = 0;  // of a block
  std::int64_t row_blocks = 1, col_blocks = 1;

  Grid(std::int64_t n, const Linear& w, bool cut) : rows(n), cols(w.out) {
    const bool stored = w.type != TensorType::f32;
    if (!cut && !stored) return;
    if (stored) {
      // all rows of x at once, so that a block of weights is widened once; it stays in cache
      constexpr std::int64_t kPanel = 1 << 18;  // elements
      cols = n < kFewRows ? 64 : std::clamp<std::int64_t>(kPanel / w.in / 16 * 16, 16, 256);
    } else {
      // blocks that MKL runs at full speed
      if (n > kRowBlock + kRowBlock / 2) rows = kRowBlock;
      cols = n < kFewRows ? 64 : w.out < 1024 ? 128 : 256;
    }
    row_blocks = (n + rows - 1) / rows;
    col_blocks = (w.out + cols - 1) / cols;
  }

  std::int64_t blocks() const { return row_blocks * col_blocks; }
};

/// A block of outputs for a block of rows.
struct Block {
  const Product& product;
  std::int64_t row, rows, col, cols;

  const float* x() const { return product.x + row * product.linear->in; }
  float* y() const { return product.y + row * product.linear->out + col; }
  const std::byte* weight() const {
    return product.linear->weight + col * product.linear->row_bytes();
  }
};

/// What y holds before the product is added to it. \return the factor of y in the product
float begin_with_bias(const Block& b) {
  const Linear& w = *b.product.linear;
  if (!w.bias) return b.product.add ? 1.0f : 0.0f;
  const float* bias = w.bias + b.col;
  for (std::int64_t i = 0; i < b.rows; ++i) {
    float* to = b.y() + i * w.out;
    if (b.product.add)
      for (std::int64_t c = 0; c < b.cols; ++c) to[c] += bias[c];
    else
      std::memcpy(to, bias, sizeof(float) * static_cast<std::size_t>(b.cols));
  }
  return 1.0f;
}

void multiply_floats(const Block& b, const float* weight) {
  const Linear& w = *b.product.linear;
  const int rows = static_cast<int>(b.rows), cols = static_cast<int>(b.cols);
  const int in = static_cast<int>(w.in), out = static_cast<int>(w.out);
  const float one = 1.0f, beta = begin_with_bias(b);
  // column-major eyes: y^T = W x^T
  sgemm_("T", "N", &cols, &rows, &in, &one, weight, &in, b.x(), &in, &beta, b.y(), &out);
}

/// Weights of 16 bits: widened in registers for few rows, else as a panel that sgemm reads.
void multiply_stored(const Block& b) {
  const Linear& w = *b.product.linear;
  thread_local std::vector<float> panel;
  const cpu::Kernels& kernels = cpu::kernels();
  const bool few = b.rows < kFewRows;
  const bool in_place = few && w.type == TensorType::bf16;
  if (!in_place) {
    panel.resize(static_cast<std::size_t>(b.cols * w.in));
    if (w.type == TensorType::bf16)
      kernels.widen(reinterpret_cast<const std::uint16_t*>(b.weight()), b.cols * w.in,
                    panel.data());
    else
      widen(w.type, b.weight(), b.cols * w.in, panel.data());
  }
  if (!few) {
    for (std::int64_t i = 0; i < b.rows; i += kRowBlock)
      multiply_floats({b.product, b.row + i, std::min(kRowBlock, b.rows - i), b.col, b.cols},
                      panel.data());
    return;
  }
  const bool keep = begin_with_bias(b) != 0.0f;
  float sums[64];
  for (std::int64_t i = 0; i < b.rows; ++i) {
    const float* x = b.x() + i * w.in;
    if (in_place)
      kernels.dots_bf16(x, reinterpret_cast<const std::uint16_t*>(b.weight()), b.cols, w.in, w.in,
                        sums);
    else
      kernels.dots(x, panel.data(), b.cols, w.in, w.in, sums);
    float* y = b.y() + i * w.out;
    for (std::int64_t c = 0; c < b.cols; ++c) y[c] = keep ? y[c] + sums[c] : sums[c];
  }
}

void run_block(const Product& p, std::int64_t n, const Grid& grid, std::int64_t block) {
  const std::int64_t row = block % grid.row_blocks * grid.rows;
  const std::int64_t col = block / grid.row_blocks * grid.cols;
  const Block b{p, row, std::min(grid.rows, n - row), col,
                std::min(grid.cols, p.linear->out - col)};
  if (p.linear->type == TensorType::f32)
    multiply_floats(b, reinterpret_cast<const float*>(b.weight()));
  else
    multiply_stored(b);
}

}  // namespace

bool can_multiply(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
}

void multiply(std::int64_t n, std::span<const Product> products, Cut cut) {
  // Below this many multiply-adds (about 0.1 ms) waking another thread costs more than it brings. A
  // product for one row runs at the speed of memory, as if it had a few rows more.
  constexpr std::int64_t kWorthThreads = 5'000'000, kRowsForFree = 3;
  std::int64_t work = 0;
  for (const Product& p : products) work += p.linear->out * p.linear->in * (n + kRowsForFree);
  const bool blocks = cut == Cut::blocks && work >= kWorthThreads;
  std::int64_t total = 0;
  for (const Product& p : products) total += Grid(n, *p.linear, blocks).blocks();
  const auto run = [&](std::int64_t i) {
    const OneThreadPerCall guard;
    for (const Product& p : products) {
      const Grid grid(n, *p.linear, blocks);
      if (i < grid.blocks()) return run_block(p, n, grid, i);
      i -= grid.blocks();
    }
  };
  if (blocks) {
    parallel_for(total, run);
  } else {
    for (std::int64_t i = 0; i < total; ++i) run(i);
  }
}

}  // namespace episodic
