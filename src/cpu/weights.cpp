// SPDX-License-Identifier: Apache-2.0
#include "episodic/cpu/weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/aligned_buffer.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "sgemm.hpp"
#include "weights_loops.hpp"

namespace episodic::cpu {

extern const FloatLoops float_loops_portable;
#if EPISODIC_CPU_X86
extern const FloatLoops float_loops_avx2, float_loops_avx512;
extern const IntegerLoops integer_loops_avx2, integer_loops_vnni;
#endif

namespace {

using std::int64_t;
using std::uint16_t;

// -- which loops
// -----------------------------------------------------------------------------------

const FloatLoops& float_loops() {
#if EPISODIC_CPU_X86
  if (kernels().set == InstructionSet::avx512) return float_loops_avx512;
  if (kernels().set == InstructionSet::avx2) return float_loops_avx2;
#endif
  return float_loops_portable;
}

/// Null where there are none: products are then exact.
const IntegerLoops* integer_loops() {
#if EPISODIC_CPU_X86
  if (kernels().set == InstructionSet::avx512 && __builtin_cpu_supports("avx512vnni"))
    return &integer_loops_vnni;
  if (kernels().set != InstructionSet::portable) return &integer_loops_avx2;
#endif
  return nullptr;
}

Sgemm own_sgemm() {
#if EPISODIC_CPU_X86
  if (kernels().set == InstructionSet::avx512) return sgemm_avx512;
  if (kernels().set == InstructionSet::avx2) return sgemm_avx2;
#endif
  return sgemm_portable;
}

/// Null where there are none.
const MatrixLoops* matrix_loops() {
#if EPISODIC_CPU_X86
  if (kernels().set == InstructionSet::avx512) return matrix_loops_amx();
#endif
  return nullptr;
}

// -- scratch
// ---------------------------------------------------------------------------------------

thread_local AlignedBuffer rounded_scratch;  // of the thread that calls multiply_weights
thread_local AlignedBuffer panel_scratch;    // of each thread of its loop
thread_local AlignedBuffer tile_scratch;
thread_local AlignedBuffer narrow_scratch;

// -- how a product is done
// -------------------------------------------------------------------------

enum class Way : std::uint8_t {
  floats,   ///< plain weights, read in place
  integer,  ///< blocks in place, activations rounded
  codes,    ///< blocks unpacked to panels of codes, activations rounded
  widened,  ///< a row of blocks at a time, activations as they are
  panel,    ///< blocks of weights widened, for sgemm
  sgemm,    ///< float32 weights, for sgemm in place
  matrix,   ///< weights and activations rounded to bfloat16, for matrix units
};

constexpr int64_t kFewFloatRows = 4;    // with more, panels and sgemm are faster
constexpr int64_t kFewMatrixRows = 16;  // with fewer, reading the weights once is what counts
constexpr int64_t kPanelIn = 512;       // times 128 outputs: 256 KB
constexpr int64_t kMatrixIn = 2048;     // the same of bfloat16: 512 KB, and few sums written twice

bool plain(TensorType type) { return block_elements(type) == 1; }

bool aligned(const void* p, int64_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }

/// Whether weights of the type are multiplied as integers, with rounded activations.
bool as_integers(TensorType type, Activations activations) {
  return !plain(type) && activations != Activations::exact && integer_loops() != nullptr &&
         integer_loops()->knows(type);
}

Way way_of(const WeightProduct& p, int64_t n, const WeightOptions& options) {
  const bool by_count = options.rows == RowClass::by_count;
  const bool many =
      by_count ? n > few_rows(p.type, options.activations) : options.rows == RowClass::many;
  const bool integer = as_integers(p.type, options.activations);
  if (many) {
    if (options.activations == Activations::bfloat16 && has_matrix_units() &&
        (!by_count || n >= kFewMatrixRows))
      return Way::matrix;
    if (integer && integer_loops()->packs(p.type)) return Way::codes;
    return p.type == TensorType::f32 && aligned(p.weight, 4) ? Way::sgemm : Way::panel;
  }
  if (integer) return Way::integer;
  // loops read elements of two and four bytes where they lie
  return plain(p.type) && aligned(p.weight, block_bytes(p.type)) ? Way::floats : Way::widened;
}

/// Outputs of one task. By the sizes alone, so that sums do not depend on the number of threads.
int64_t outputs_of_task(const WeightProduct& p, Way way) {
  if (way == Way::codes) return 64;
  if (way == Way::panel || way == Way::sgemm || way == Way::matrix) return p.out < 256 ? 64 : 128;
  constexpr int64_t kTaskBytes = 64 << 10;
  return std::clamp<int64_t>(kTaskBytes / std::max<int64_t>(1, row_bytes(p.type, p.in)), 8, 256);
}

struct Task {
  const WeightProduct* product;
  Way way;
  const unsigned char* rounded;  ///< its activations, if the way rounds them
  int64_t first, outputs;        ///< of its product

  const unsigned char* weight() const {
    return static_cast<const unsigned char*>(product->weight) +
           first * row_bytes(product->type, product->in);
  }
};

/// y = tile + bias, or y += that. tile: [rows][outputs].
void store_tile(const Task& task, int64_t row, int64_t rows, const float* tile) {
  const WeightProduct& p = *task.product;
  for (int64_t r = 0; r < rows; ++r, tile += task.outputs) {
    float* y = p.y + (row + r) * p.y_stride + task.first;
    for (int64_t o = 0; o < task.outputs; ++o) {
      const float sum = p.bias != nullptr ? tile[o] + p.bias[task.first + o] : tile[o];
      y[o] = p.add ? y[o] + sum : sum;
    }
  }
}

void run_few(const Task& task, int64_t n) {
  const WeightProduct& p = *task.product;
  // of a tile: those that integer loops unpack weights for once, a multiple of what float loops
  // take
  const int64_t kRows = task.way == Way::integer ? 32 : 30;
  const int64_t row_length = row_bytes(p.type, p.in);
  float* tile = tile_scratch.floats(std::min(n, kRows) * task.outputs);
  for (int64_t r = 0; r < n; r += kRows) {
    const int64_t rows = std::min(kRows, n - r);
    const float* x = p.x + r * p.x_stride;
    FewRows few{.weight = task.weight(),
                .row_bytes = row_length,
                .out = task.outputs,
                .in = p.in,
                .n = rows,
                .y = tile,
                .y_stride = task.outputs};
    if (task.way == Way::integer) {
      integer_loops()->few(p.type, few, task.rounded + r * RoundedLayout(p.in).bytes);
    } else if (task.way == Way::floats) {
      float_loops().few(p.type, few, x, p.x_stride);
    } else {
      float* wide = panel_scratch.floats(p.in);
      few.out = 1;
      for (int64_t o = 0; o < task.outputs; ++o) {
        widen_row(p.type, task.weight() + o * row_length, p.in, wide);
        few.weight = reinterpret_cast<const unsigned char*>(wide);
        few.y = tile + o;
        float_loops().few(TensorType::f32, few, x, p.x_stride);
      }
    }
    store_tile(task, r, rows, tile);
  }
}

void run_codes(const Task& task, int64_t n) {
  const WeightProduct& p = *task.product;
  const IntegerLoops& loops = *integer_loops();
  constexpr int64_t kRows = 64;  // of a tile
  float* tile = tile_scratch.floats(std::min(n, kRows) * task.outputs);
  FewRows product{.weight = task.weight(),
                  .row_bytes = row_bytes(p.type, p.in),
                  .out = task.outputs,
                  .in = p.in,
                  .n = n,
                  .y = tile,
                  .y_stride = task.outputs};
  const int64_t panels = (task.outputs + loops.width - 1) / loops.width;
  unsigned char* packed = panel_scratch.bytes(panels * loops.most_panel_bytes(p.in));
  loops.pack(p.type, product, packed);
  for (int64_t r = 0; r < n; r += kRows) {
    product.n = std::min(kRows, n - r);
    loops.many(p.type, product, packed, task.rounded + r * RoundedLayout(p.in).bytes);
    store_tile(task, r, product.n, tile);
  }
}

/// Puts the bias where sgemm will add to it; what sgemm's beta has to be.
float begin_sums(const Task& task, int64_t n) {
  const WeightProduct& p = *task.product;
  if (p.bias == nullptr) return p.add ? 1.0f : 0.0f;
  const float* bias = p.bias + task.first;
  for (int64_t r = 0; r < n; ++r) {
    float* y = p.y + r * p.y_stride + task.first;
    for (int64_t o = 0; o < task.outputs; ++o) y[o] = p.add ? y[o] + bias[o] : bias[o];
  }
  return 1.0f;
}

void run_sgemm(const Task& task, int64_t n) {
  const Sgemm sgemm = own_sgemm();
  const WeightProduct& p = *task.product;
  float beta = begin_sums(task, n);
  float* y = p.y + task.first;
  if (task.way == Way::sgemm)
    return sgemm(n, task.outputs, p.in, p.x, p.x_stride,
                 reinterpret_cast<const float*>(task.weight()), p.in, beta, y, p.y_stride);
  const int64_t row_length = row_bytes(p.type, p.in);
  // A line more than the width: rows a power of two apart would share few sets of the cache.
  const int64_t stride = std::min(kPanelIn, p.in) + 16;
  float* panel = panel_scratch.floats(task.outputs * stride);
  for (int64_t c = 0; c < p.in; c += kPanelIn, beta = 1.0f) {
    const int64_t width = std::min(kPanelIn, p.in - c);
    const unsigned char* w = task.weight() + row_bytes(p.type, c);
    for (int64_t o = 0; o < task.outputs; ++o)
      widen_row(p.type, w + o * row_length, width, panel + o * stride);
    sgemm(n, task.outputs, width, p.x + c, p.x_stride, panel, stride, beta, y, p.y_stride);
  }
}

/// Weights of `width` columns as bfloat16. \return where they are; `stride` elements between rows
const uint16_t* narrow_weights(const Task& task, int64_t column, int64_t width, int64_t* stride) {
  const WeightProduct& p = *task.product;
  const unsigned char* w = task.weight() + row_bytes(p.type, column);
  const int64_t row_length = row_bytes(p.type, p.in);
  if (p.type == TensorType::bf16 && aligned(w, 2) && row_length % 2 == 0) {
    *stride = p.in;
    return reinterpret_cast<const uint16_t*>(w);
  }
  *stride = kMatrixIn;
  uint16_t* narrow = narrow_scratch.halves(task.outputs * kMatrixIn);
  alignas(64) float wide[kMatrixIn];
  for (int64_t o = 0; o < task.outputs; ++o) {
    widen_row(p.type, w + o * row_length, width, wide);
    kernels().narrow(wide, width, narrow + o * kMatrixIn);
  }
  return narrow;
}

void run_matrix(const Task& task, int64_t n) {
  const WeightProduct& p = *task.product;
  const MatrixLoops& loops = *matrix_loops();
  bool add = begin_sums(task, n) != 0;
  const auto* x = reinterpret_cast<const uint16_t*>(task.rounded);
  uint16_t* panel = panel_scratch.halves(MatrixLoops::rows(task.outputs) *
                                         std::min(kMatrixIn, MatrixLoops::depth(p.in)));
  for (int64_t c = 0; c < p.in; c += kMatrixIn, add = true) {
    const int64_t width = std::min(kMatrixIn, p.in - c);
    int64_t stride = 0;
    const uint16_t* w = narrow_weights(task, c, width, &stride);
    loops.pack(task.outputs, width, w, stride, panel);
    loops.multiply({.n = n,
                    .out = task.outputs,
                    .in = width,
                    .x = x + c * MatrixLoops::kRows,
                    .x_stride = MatrixLoops::kRows * MatrixLoops::depth(p.in),
                    .w = panel,
                    .y = p.y + task.first,
                    .y_stride = p.y_stride,
                    .add = add});
  }
}

/// Bytes of n rounded rows of activations, 0 if the way takes them as they are.
int64_t rounded_size(Way way, int64_t n, int64_t in) {
  if (way == Way::integer || way == Way::codes) return n * RoundedLayout(in).bytes;
  if (way == Way::matrix) return 2 * MatrixLoops::rows(n) * MatrixLoops::depth(in);
  return 0;
}

/// One product of a call.
struct Plan {
  const WeightProduct* product;
  Way way;
  int64_t outputs, tasks;  ///< outputs of a task, number of tasks
  int64_t rounded = 0;     ///< where its rounded activations begin, if it has any
  bool rounds = false;     ///< the first of the products that share them

  int64_t rounded_end(int64_t n) const {
    const int64_t size = rounded_size(way, n, product->in);
    return size > 0 ? rounded + size : 0;
  }
};

thread_local std::vector<Plan> plan_scratch;  // of the thread that calls multiply_weights

const std::vector<Plan>& plan(int64_t n, std::span<const WeightProduct> products,
                              const WeightOptions& options) {
  std::vector<Plan>& plans = plan_scratch;
  plans.clear();
  plans.reserve(products.size());  // nothing points into what moves
  int64_t end = 0;                 // of rounded activations
  for (const WeightProduct& product : products) {
    Plan p{.product = &product, .way = way_of(product, n, options), .outputs = 0, .tasks = 0};
    p.outputs = outputs_of_task(product, p.way);
    p.tasks = (product.out + p.outputs - 1) / p.outputs;
    if (rounded_size(p.way, n, product.in) > 0) {
      const auto shared = std::find_if(plans.begin(), plans.end(), [&](const Plan& before) {
        return before.way == p.way && before.product->x == product.x &&
               before.product->in == product.in && before.product->x_stride == product.x_stride;
      });
      p.rounds = shared == plans.end();
      p.rounded = p.rounds ? end : shared->rounded;
      end = std::max(end, p.rounded_end(n));
    }
    plans.push_back(p);
  }
  return plans;
}

}  // namespace

bool has_matrix_units() { return matrix_loops() != nullptr; }

int64_t few_rows(TensorType type, Activations activations) {
  return as_integers(type, activations) ? integer_loops()->few_rows : kFewFloatRows;
}

bool is_weight_type(TensorType type) {
  return !plain(type) || type == TensorType::f32 || type == TensorType::f16 ||
         type == TensorType::bf16;
}

int64_t row_bytes(TensorType type, int64_t n) {
  return n / block_elements(type) * block_bytes(type);
}

void widen_row(TensorType type, const void* row, int64_t n, float* out) {
  const auto* bytes = static_cast<const unsigned char*>(row);
  if (!plain(type) || aligned(row, block_bytes(type)))
    return float_loops().widen(type, bytes, n, out);
  // elements that are not where their type may lie: by way of some that are
  constexpr int64_t kPiece = 1024;
  alignas(8) unsigned char piece[8 * kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t length = std::min(kPiece, n - i);
    std::memcpy(piece, bytes + row_bytes(type, i),
                static_cast<std::size_t>(row_bytes(type, length)));
    float_loops().widen(type, piece, length, out + i);
  }
}

namespace {

void put_half(float x, unsigned char* to) {
  const std::uint16_t h = to_float16(x);
  std::memcpy(to, &h, 2);
}

/// Scale: the largest magnitude becomes 127.
void quantize_q8_0(const float* x, unsigned char* block) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::abs(x[i]));
  const float scale = most / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
  put_half(scale, block);
  for (int i = 0; i < 32; ++i)
    block[2 + i] = static_cast<unsigned char>(static_cast<int>(std::round(x[i] * inverse)));
}

/// Codes 0..15 stand for -8..7; the scale has the sign that makes the largest magnitude -8.
void quantize_q4_0(const float* x, unsigned char* block) {
  float largest = 0;
  for (int i = 0; i < 32; ++i)
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  const float scale = largest / -8.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
  put_half(scale, block);
  const auto code = [&](int i) { return std::min(15, static_cast<int>(x[i] * inverse + 8.5f)); };
  for (int i = 0; i < 16; ++i)
    block[2 + i] = static_cast<unsigned char>(code(i) | code(i + 16) << 4);
}

/// The scale is the power of two whose largest numbers (4 and 6 times it) are of the magnitude of
/// the largest here.
void quantize_mxfp4(const float* x, unsigned char* block) {
  constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::abs(x[i]));
  const int exponent = most > 0 ? std::clamp(std::ilogb(most) - 2 + 127, 0, 254) : 0;
  block[0] = static_cast<unsigned char>(exponent);
  const auto code = [&](int i) {
    int best = 0;
    const auto off = [&](int c) {
      return std::abs(std::ldexp(kNumbers[c], exponent - 127) - std::abs(x[i]));
    };
    for (int c = 1; c < 8; ++c)
      if (off(c) < off(best)) best = c;
    return best > 0 && x[i] < 0 ? best + 8 : best;
  };
  for (int i = 0; i < 16; ++i)
    block[1 + i] = static_cast<unsigned char>(code(i) | code(i + 16) << 4);
}

}  // namespace

bool quantize_row(TensorType type, const float* x, int64_t n, void* row) {
  auto* to = static_cast<unsigned char*>(row);
  switch (type) {
    case TensorType::f32:
      if (n > 0) std::memcpy(to, x, static_cast<std::size_t>(4 * n));  // no row may have no address
      return true;
    case TensorType::f16:
      for (int64_t i = 0; i < n; ++i) put_half(x[i], to + 2 * i);
      return true;
    case TensorType::bf16:
      for (int64_t i = 0; i < n; ++i) {
        const std::uint16_t h = to_bfloat16(x[i]);
        std::memcpy(to + 2 * i, &h, 2);
      }
      return true;
    case TensorType::q8_0:
      for (int64_t i = 0; i < n; i += 32) quantize_q8_0(x + i, to + i / 32 * 34);
      return true;
    case TensorType::q4_0:
      for (int64_t i = 0; i < n; i += 32) quantize_q4_0(x + i, to + i / 32 * 18);
      return true;
    case TensorType::mxfp4:
      for (int64_t i = 0; i < n; i += 32) quantize_mxfp4(x + i, to + i / 32 * 17);
      return true;
    default:
      return false;
  }
}

void multiply_weights(int64_t n, std::span<const WeightProduct> products,
                      const WeightOptions& options) {
  if (n <= 0) return;
  // Below this many multiply-adds waking another thread costs more than it brings. A product for
  // one row runs at the speed of memory, as if it had a few rows more.
  constexpr int64_t kWorthThreads = 5'000'000, kRowsForFree = 3;
  const std::vector<Plan>& plans = plan(n, products, options);
  int64_t work = 0, tasks = 0, rounded_bytes = 0;
  for (const Plan& p : plans) {
    work += p.product->out * p.product->in * (n + kRowsForFree);
    tasks += p.tasks;
    rounded_bytes = std::max(rounded_bytes, p.rounded_end(n));
  }
  const bool threads = options.parallel && work >= kWorthThreads;
  const auto for_each = [&](int64_t count, auto&& f) {
    if (threads) return parallel_for(count, f);
    for (int64_t i = 0; i < count; ++i) f(i);
  };

  unsigned char* rounded = rounded_bytes > 0 ? rounded_scratch.bytes(rounded_bytes) : nullptr;
  for (const Plan& p : plans) {
    if (!p.rounds) continue;
    if (p.way == Way::matrix) {
      constexpr int64_t kRows = MatrixLoops::kRows;
      for_each(MatrixLoops::rows(n) / kRows, [&](int64_t i) {
        const int64_t first = i * kRows;
        matrix_loops()->round(std::min(kRows, n - first), p.product->in,
                              p.product->x + first * p.product->x_stride, p.product->x_stride,
                              reinterpret_cast<uint16_t*>(rounded + p.rounded) +
                                  first * MatrixLoops::depth(p.product->in));
      });
      continue;
    }
    for_each(n, [&](int64_t r) {
      integer_loops()->round(p.product->x + r * p.product->x_stride, p.product->in,
                             rounded + p.rounded + r * RoundedLayout(p.product->in).bytes);
    });
  }
  for_each(tasks, [&](int64_t i) {
    const Plan* p = plans.data();
    for (; i >= p->tasks; ++p) i -= p->tasks;
    const Task task{.product = p->product,
                    .way = p->way,
                    .rounded = rounded != nullptr ? rounded + p->rounded : nullptr,
                    .first = i * p->outputs,
                    .outputs = std::min(p->outputs, p->product->out - i * p->outputs)};
    if (p->way == Way::panel || p->way == Way::sgemm) return run_sgemm(task, n);
    if (p->way == Way::matrix) return run_matrix(task, n);
    if (p->way == Way::codes) return run_codes(task, n);
    run_few(task, n);
  });
}

}  // namespace episodic::cpu
