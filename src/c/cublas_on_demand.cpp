// SPDX-License-Identifier: Apache-2.0
// cuBLAS for a library that is linked without it, as that of a wheel is: 100 MB and more that only
// a device needs. Its functions are found when the first model is put on a device.
#include <cublas_v2.h>
#include <dlfcn.h>

#include <string>

#include "episodic/base/error.hpp"

namespace {

#define EPISODIC_TEXT_OF(x) #x
#define EPISODIC_TEXT(x) EPISODIC_TEXT_OF(x)
constexpr const char* kName = "libcublas.so." EPISODIC_TEXT(CUBLAS_VER_MAJOR);
#if CUBLAS_VER_MAJOR > 12  // NVIDIA's names
constexpr const char* kPackage = "\"nvidia-cublas==" EPISODIC_TEXT(CUBLAS_VER_MAJOR) ".*\"";
#else
constexpr const char* kPackage = "nvidia-cublas-cu" EPISODIC_TEXT(CUBLAS_VER_MAJOR);
#endif

/// \throws DeviceError where the library, or the function, is missing
template <class Function>
Function* found(const char* name) {
  // one that is loaded already, such as torch's or that of a package, goes by its name too
  static void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw episodic::DeviceError(std::string("cuBLAS: ") + kName + " is not there; pip install " +
                                kPackage +
                                ", or install CUDA's libraries where the loader finds them");
  void* const function = dlsym(library, name);
  if (!function)
    throw episodic::DeviceError(std::string("cuBLAS: ") + kName + " has no " + name +
                                "; install a newer one of CUDA " + EPISODIC_TEXT(CUBLAS_VER_MAJOR));
  return reinterpret_cast<Function*>(function);
}

}  // namespace

// Their names in cublas_v2.h are macros for those of the library.
#define EPISODIC_FOUND(function) \
  static const auto call = found<decltype(function)>(EPISODIC_TEXT(function))

extern "C" {

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  EPISODIC_FOUND(cublasCreate);
  return call(handle);
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  EPISODIC_FOUND(cublasDestroy);
  return call(handle);
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  EPISODIC_FOUND(cublasSetStream);
  return call(handle, stream);
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes) {
  EPISODIC_FOUND(cublasSetWorkspace);
  return call(handle, workspace, bytes);
}
const char* cublasGetStatusString(cublasStatus_t status) {
  EPISODIC_FOUND(cublasGetStatusString);
  return call(status);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType a_type, int lda, const void* b,
                            cudaDataType b_type, int ldb, const void* beta, void* c,
                            cudaDataType c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm) {
  using Function =
      cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                     const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                     const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
  static const auto call = found<Function>("cublasGemmEx");
  return call(handle, transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c,
              c_type, ldc, compute, algorithm);
}

}  // extern "C"
