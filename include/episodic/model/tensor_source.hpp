// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `TensorSource`: where a model's weights, configuration and tokenizer come from, whatever the
/// files are (a Hugging Face directory, a GGUF file). Torch-free.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace episodic {

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
};

/// Name as in the files: "F32", "BF16", "Q4_K", ...
const char* name_of(TensorType type);

/// Elements in one block: 1 for plain types, 32 or 256 for block types.
std::int64_t block_elements(TensorType type);

/// Bytes of one block; of one element for plain types.
std::int64_t block_bytes(TensorType type);

/// A tensor of a file, where it lies. Row-major, packed, little-endian; `data` may be unaligned. Of
/// a block type the last dimension is a multiple of block_elements.
struct TensorView {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  ///< rank 0 and empty tensors are legal
  const std::byte* data = nullptr;  ///< null if the tensor is empty
  std::int64_t bytes = 0;           ///< elements() / block_elements(type) * block_bytes(type)

  std::int64_t elements() const { return bytes / block_bytes(type) * block_elements(type); }
};

/// Tensors by name. The views stay valid as long as the source.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Null if there is no such tensor.
  virtual const TensorView* find(std::string_view name) const = 0;

  /// All tensors in the order of their names.
  virtual std::vector<const TensorView*> tensors() const = 0;

  /// The file that holds the tensor, or that ought to list it; for messages.
  virtual std::filesystem::path file_of(std::string_view name) const = 0;
};

}  // namespace episodic
