// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/tensor_type.hpp"

#include <algorithm>
#include <array>

namespace episodic {
namespace {

struct TypeRow {
  TensorType type;
  const char* name;
  std::int64_t elements, bytes;  // of a block
};

constexpr std::array<TypeRow, 38> kTypes{{
    {TensorType::boolean, "BOOL", 1, 1},
    {TensorType::u8, "U8", 1, 1},
    {TensorType::i8, "I8", 1, 1},
    {TensorType::f8_e4m3, "F8_E4M3", 1, 1},
    {TensorType::f8_e5m2, "F8_E5M2", 1, 1},
    {TensorType::f8_e8m0, "F8_E8M0", 1, 1},
    {TensorType::i16, "I16", 1, 2},
    {TensorType::u16, "U16", 1, 2},
    {TensorType::f16, "F16", 1, 2},
    {TensorType::bf16, "BF16", 1, 2},
    {TensorType::i32, "I32", 1, 4},
    {TensorType::u32, "U32", 1, 4},
    {TensorType::f32, "F32", 1, 4},
    {TensorType::f64, "F64", 1, 8},
    {TensorType::i64, "I64", 1, 8},
    {TensorType::u64, "U64", 1, 8},
    {TensorType::c64, "C64", 1, 8},
    {TensorType::q4_0, "Q4_0", 32, 18},
    {TensorType::q4_1, "Q4_1", 32, 20},
    {TensorType::q5_0, "Q5_0", 32, 22},
    {TensorType::q5_1, "Q5_1", 32, 24},
    {TensorType::q8_0, "Q8_0", 32, 34},
    {TensorType::q2_k, "Q2_K", 256, 84},
    {TensorType::q3_k, "Q3_K", 256, 110},
    {TensorType::q4_k, "Q4_K", 256, 144},
    {TensorType::q5_k, "Q5_K", 256, 176},
    {TensorType::q6_k, "Q6_K", 256, 210},
    {TensorType::iq4_nl, "IQ4_NL", 32, 18},
    {TensorType::mxfp4, "MXFP4", 32, 17},
    {TensorType::iq2_xxs, "IQ2_XXS", 256, 66},
    {TensorType::iq2_xs, "IQ2_XS", 256, 74},
    {TensorType::iq2_s, "IQ2_S", 256, 82},
    {TensorType::iq3_xxs, "IQ3_XXS", 256, 98},
    {TensorType::iq3_s, "IQ3_S", 256, 110},
    {TensorType::iq1_s, "IQ1_S", 256, 50},
    {TensorType::iq1_m, "IQ1_M", 256, 56},
    {TensorType::iq4_xs, "IQ4_XS", 256, 136},
    {TensorType::nvfp4, "NVFP4", 64, 36},
}};

const TypeRow& row_of(TensorType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](auto& row) { return row.type == type; });
}

}  // namespace

const char* name_of(TensorType type) { return row_of(type).name; }
std::int64_t block_elements(TensorType type) { return row_of(type).elements; }
std::int64_t block_bytes(TensorType type) { return row_of(type).bytes; }

std::optional<TensorType> plain_type(std::string_view name) {
  for (const TypeRow& row : kTypes)
    if (row.elements == 1 && name == row.name) return row.type;
  return std::nullopt;
}

}  // namespace episodic
