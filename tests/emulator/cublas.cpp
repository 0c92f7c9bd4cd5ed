// SPDX-License-Identifier: Apache-2.0
#include <cublas_v2.h>

#include <cstdint>

#include "emulator.hpp"
#include "episodic/base/dtype.hpp"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

double load(const void* data, cudaDataType_t type, std::int64_t i) {
  if (type == CUDA_R_32F) return static_cast<double>(static_cast<const float*>(data)[i]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return static_cast<double>(type == CUDA_R_16F ? episodic::from_float16(bits)
                                                : episodic::from_bfloat16(bits));
}

void store(void* data, cudaDataType_t type, std::int64_t i, double value) {
  const auto x = static_cast<float>(value);
  if (type == CUDA_R_32F)
    static_cast<float*>(data)[i] = x;
  else
    static_cast<std::uint16_t*>(data)[i] =
        type == CUDA_R_16F ? episodic::to_float16(x) : episodic::to_bfloat16(x);
}

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void*, std::size_t) {
  return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType_t type_a, int lda, const void* b, cudaDataType_t type_b,
                            int ldb, const void* beta, void* c, cudaDataType_t type_c, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || lda < (op_a == CUBLAS_OP_N ? m : k) ||
      ldb < (op_b == CUBLAS_OP_N ? k : n) || ldc < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (type_a != type_b || (type_c != type_a && type_c != CUDA_R_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const double times = static_cast<double>(*static_cast<const float*>(alpha));
  const double plus = static_cast<double>(*static_cast<const float*>(beta));
  if (emulator::may_multiply(handle->stream) != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
  const cudaError_t error = emulator::enqueue(handle->stream, &emulator::Calls::launches, [=] {
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
          sum += load(a, type_a, op_a == CUBLAS_OP_N ? l * lda + i : i * lda + l) *
                 load(b, type_b, op_b == CUBLAS_OP_N ? j * ldb + l : l * ldb + j);
        const std::int64_t at = j * ldc + i;
        // as the library: what c holds is not read where beta is 0
        store(c, type_c, at, times * sum + (plus == 0 ? 0 : plus * load(c, type_c, at)));
      }
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "refused";
}
