// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How launchers check their parameters: the first field that does not fit, by its name. A launcher
/// and its invalid_field() ask the same function, so that neither refuses what the other takes.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace episodic::kernels {

/// What is wrong with a call's parameters.
struct FieldError {
  const char* field = nullptr;  ///< null: nothing
  cudaError_t error = cudaSuccess;
  explicit operator bool() const { return field != nullptr; }
};

/// What a workspace that begins with several arrays is aligned to: cudaMalloc gives no less.
constexpr std::int64_t kWorkspaceAlignment = 256;

}  // namespace episodic::kernels

// For functions that return a FieldError. `params.field` must be there: a name cannot outlive its
// field. The conditions of a function are asked in order, each only where those before it hold.

/// Ends the function unless the condition holds, which is about this field.
#define EPISODIC_FIELD(params, field, ...)                                                     \
  do {                                                                                         \
    static_cast<void>(sizeof((params).field));                                                 \
    if (!(__VA_ARGS__)) return ::episodic::kernels::FieldError{#field, cudaErrorInvalidValue}; \
  } while (false)
/// Ends the function if the field, a pointer, is null.
#define EPISODIC_FIELD_GIVEN(params, field) EPISODIC_FIELD(params, field, (params).field != nullptr)
/// Ends the function if the field, a pointer, is not aligned; null is.
#define EPISODIC_FIELD_ALIGNED(params, field, bytes)                              \
  do {                                                                            \
    if (reinterpret_cast<::std::uintptr_t>((params).field) % (bytes) != 0)        \
      return ::episodic::kernels::FieldError{#field, cudaErrorMisalignedAddress}; \
  } while (false)
