// SPDX-License-Identifier: Apache-2.0
// A decoder's stream, and its products of many rows: cuBLAS's, of weights that are plain or that
// are widened for it.
#include <fmt/format.h>

#include <algorithm>

#include "decoder_step.hpp"
#include "episodic/base/error.hpp"

namespace episodic::device {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(fmt::format("cuBLAS: {}: {}", what, cublasGetStatusString(status)));
}

cudaDataType_t cublas_type(DType dtype) {
  return dtype == DType::float32 ? CUDA_R_32F : dtype == DType::float16 ? CUDA_R_16F : CUDA_R_16BF;
}

}  // namespace

using device::check;

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
Stream::~Stream() {
  if (stream_) static_cast<void>(cudaStreamDestroy(stream_));
}

Cublas::Cublas(cudaStream_t stream) {
  check(cublasCreate(&handle_), "starting it");
  check(cublasSetStream(handle_, stream), "setting its stream");
  // Its own workspace would be allocated in the first products, and may not be in a capture.
  workspace_ = DeviceBuffer(kWorkspaceBytes, "the products' workspace", "free some");
  check(cublasSetWorkspace(handle_, workspace_.data(), kWorkspaceBytes), "its workspace");
}
Cublas::~Cublas() {
  if (handle_) static_cast<void>(cublasDestroy(handle_));
}

void Cublas::multiply(const DeviceLinear& w, DType from, const void* x, std::int64_t n, DType to,
                      void* y, bool add, std::int64_t y_stride) const {
  const float one = 1.0f, beta = add ? 1.0f : 0.0f;
  check(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(w.out),
                     static_cast<int>(n), static_cast<int>(w.in), &one, w.weight, cublas_type(from),
                     static_cast<int>(w.in), x, cublas_type(from), static_cast<int>(w.in), &beta, y,
                     cublas_type(to), static_cast<int>(y_stride > 0 ? y_stride : w.out),
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "a product");
}

void Cublas::multiply_back(const DeviceLinear& w, DType dtype, const void* dy, std::int64_t n,
                           void* dx) const {
  const float one = 1.0f, zero = 0.0f;
  const cudaDataType_t type = cublas_type(dtype);
  check(cublasGemmEx(handle_, CUBLAS_OP_N, CUBLAS_OP_N, static_cast<int>(w.in), static_cast<int>(n),
                     static_cast<int>(w.out), &one, w.weight, type, static_cast<int>(w.in), dy,
                     type, static_cast<int>(w.out), &zero, dx, type, static_cast<int>(w.in),
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "a product");
}

/// Of blocks some rows at a time are widened, in room that the next product finds free: all of it
/// is on one stream.
void DecoderSteps::multiply(const DeviceLinear& w, const void* x, std::int64_t n, DType to, void* y,
                            bool add) {
  if (!w.in_blocks()) return cublas_.multiply(w, dtype, x, n, to, y, add);
  const std::int64_t row = w.in * size_of(dtype), at_once = weights.slab_bytes / row;
  for (std::int64_t first = 0; first < w.out; first += at_once) {
    kernels::WidenBlocksParams widen;
    widen.dtype = dtype;
    widen.from = w.blocks;
    widen.first = w.first + first;
    widen.rows = std::min(at_once, w.out - first);
    widen.in = w.in;
    widen.y = weights.slab;
    check(kernels::widen_blocks(widen, stream.get()), "weights in blocks", widen);
    DeviceLinear piece;
    piece.weight = weights.slab;
    piece.out = widen.rows;
    piece.in = w.in;
    cublas_.multiply(piece, dtype, x, n, to, static_cast<std::byte*>(y) + first * size_of(to), add,
                     w.out);
  }
}

void DecoderSteps::embed_rows(const kernels::EmbedParams& p) {
  const DeviceLinear& table = weights.embedding;
  if (!table.in_blocks()) return check(kernels::embed_tokens(p, stream.get()), "embedding", p);
  check(kernels::embed_blocks(p, table.blocks.part[0], stream.get()), "embedding", p,
        table.blocks.part[0]);
}

}  // namespace episodic::device
