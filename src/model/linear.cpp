// SPDX-License-Identifier: Apache-2.0
#include "linear.hpp"

#include <algorithm>
#include <cstring>

#include "episodic/base/parallel.hpp"

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

/// How one product is cut: blocks of rows times blocks of columns (outputs).
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

void run_block(const Product& p, std::int64_t n, const Grid& grid, std::int64_t block) {
  const std::int64_t row = block % grid.row_blocks * grid.rows;
  const std::int64_t col = block / grid.row_blocks * grid.cols;
  const int rows = static_cast<int>(std::min(grid.rows, n - row));
  const int cols = static_cast<int>(std::min(grid.cols, p.linear->out - col));
  const int in = static_cast<int>(p.linear->in), out = static_cast<int>(p.linear->out);
  float* y = p.y + row * out + col;
  float beta = p.add ? 1.0f : 0.0f;
  if (p.linear->bias.defined()) {
    const float* bias = p.linear->bias.const_data_ptr<float>() + col;
    for (int i = 0; i < rows; ++i) {
      float* to = y + static_cast<std::int64_t>(i) * out;
      if (p.add)
        for (int c = 0; c < cols; ++c) to[c] += bias[c];
      else
        std::memcpy(to, bias, sizeof(float) * static_cast<std::size_t>(cols));
    }
    beta = 1.0f;
  }
  const float one = 1.0f;
  // column-major eyes: y^T = W x^T
  sgemm_("T", "N", &cols, &rows, &in, &one, p.linear->weight.const_data_ptr<float>() + col * in,
         &in, p.x + row * in, &in, &beta, y, &out);
}

}  // namespace

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
