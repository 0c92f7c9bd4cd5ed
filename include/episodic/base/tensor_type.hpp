// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Element types of tensors in model files, plain ones and block-quantised ones.

#include <cstdint>
#include <optional>
#include <string_view>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Element types of stored tensors. Those after `c64` are GGUF's: a run of elements along a row is
/// packed into a block with scales of its own.
enum class TensorType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  f64,
  i64,
  u64,
  c64,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  mxfp4,    ///< of the Open Compute Project: 4-bit floats with a power of two for each 32
  iq2_xxs,  ///< those that begin with iq: groups of numbers from a codebook
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  iq1_s,
  iq1_m,
  iq4_xs,
  nvfp4,  ///< Nvidia's: 4-bit floats with an E4M3 for each 16
};

/// Name as in the files: "F32", "BF16", "Q4_K", ...
const char* name_of(TensorType type);

/// Elements in one block: 1 for plain types, 32, 64 or 256 for block types.
std::int64_t block_elements(TensorType type);

/// Bytes of one block; of one element for plain types.
std::int64_t block_bytes(TensorType type);

/// The plain type that safetensors files call so ("BF16"); nothing for block types and unknown
/// names.
std::optional<TensorType> plain_type(std::string_view name);

}  // namespace EPISODIC_NAMESPACE
