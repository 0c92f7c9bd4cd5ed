// SPDX-License-Identifier: Apache-2.0
#include "linear.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/activations.hpp"

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

/// How one product of float32 weights is cut: blocks of rows times blocks of columns (outputs).
struct Grid {
  std::int64_t rows = 0, cols = 0;  // of a block
  std::int64_t row_blocks = 1, col_blocks = 1;

  Grid(std::int64_t n, const Linear& w, bool cut) : rows(n), cols(w.out) {
    if (!cut) return;
    // few rows: bound by reading W, so many small blocks; else blocks that MKL runs at full speed
    constexpr std::int64_t kFewRows = 16, kRowBlock = 128;
    if (n > kRowBlock + kRowBlock / 2) rows = kRowBlock;
    cols = n < kFewRows ? 64 : w.out < 1024 ? 128 : 256;
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

void sgemm(std::int64_t n, std::int64_t out, std::int64_t in, const float* x, std::int64_t x_stride,
           const float* w, std::int64_t w_stride, float beta, float* y, std::int64_t y_stride) {
  static const cpu::Sgemm own = cpu::own_sgemm();
  if (own != nullptr && n >= cpu::kOwnSgemmRows)
    return own(n, out, in, x, x_stride, w, w_stride, beta, y, y_stride);
  const OneThreadPerCall guard;
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  const int rows = narrow(n), cols = narrow(out), depth = narrow(in);
  const int ldx = narrow(x_stride), ldw = narrow(w_stride), ldy = narrow(y_stride);
  const float one = 1.0f;
  // column-major eyes: y^T = W x^T
  sgemm_("T", "N", &cols, &rows, &depth, &one, w, &ldw, x, &ldx, &beta, y, &ldy);
}

/// Weights that are not float32: as they lie for few rows, in panels for many.
void multiply_stored(std::int64_t n, std::span<const Product> products, Cut cut) {
  constexpr std::size_t kMost = 8;  // one call's products share a loop and the rounding of x
  cpu::WeightProduct stored[kMost];
  for (std::size_t first = 0; first < products.size(); first += kMost) {
    const std::size_t count = std::min(kMost, products.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const Product& p = products[first + i];
      const Linear& w = *p.linear;
      stored[i] = {w.type, w.weight, w.out, w.in, w.bias, p.x, w.in, p.y, w.out, p.add};
    }
    cpu::multiply_weights(
        n, {stored, count},
        {.sgemm = sgemm, .activations = activations(), .parallel = cut == Cut::blocks});
  }
}

void run_block(const Product& p, std::int64_t n, const Grid& grid, std::int64_t block) {
  const std::int64_t row = block % grid.row_blocks * grid.rows;
  const std::int64_t col = block / grid.row_blocks * grid.cols;
  const Block b{p, row, std::min(grid.rows, n - row), col,
                std::min(grid.cols, p.linear->out - col)};
  const Linear& w = *p.linear;
  const float beta = begin_with_bias(b);
  sgemm(b.rows, b.cols, w.in, b.x(), w.in, reinterpret_cast<const float*>(b.weight()), w.in, beta,
        b.y(), w.out);
}

}  // namespace

bool can_multiply(TensorType type) { return cpu::is_weight_type(type); }

void multiply(std::int64_t n, std::span<const Product> products, Cut cut) {
  const bool floats = std::all_of(products.begin(), products.end(), [](const Product& p) {
    return p.linear->type == TensorType::f32;
  });
  constexpr std::int64_t kFewRows = 4;
  if (!floats || activations() == cpu::Activations::bfloat16 ||
      (n <= kFewRows && cpu::beats_blas()))
    return multiply_stored(n, products, cut);
  // Below this many multiply-adds (about 0.1 ms) waking another thread costs more than it brings. A
  // product for one row runs at the speed of memory, as if it had a few rows more.
  constexpr std::int64_t kWorthThreads = 5'000'000, kRowsForFree = 3;
  std::int64_t work = 0;
  for (const Product& p : products) work += p.linear->out * p.linear->in * (n + kRowsForFree);
  const bool blocks = cut == Cut::blocks && work >= kWorthThreads;
  std::int64_t total = 0;
  for (const Product& p : products) total += Grid(n, *p.linear, blocks).blocks();
  const auto run = [&](std::int64_t i) {
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
