// SPDX-License-Identifier: Apache-2.0
#include "packed_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "base/strict_json.hpp"
#include "changed_tensors.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/rules/fp8.hpp"
#include "episodic/cpu/weights.hpp"
#include "json_object.hpp"

namespace episodic {
namespace {

constexpr std::int64_t kOfBlock = 32;    // elements of a block type
constexpr std::int64_t kRowsOfTask = 8;  // outputs that share words of AWQ

/// Integers of a matrix [out, in] with scales and zero points of groups.
struct IntegerMatrix {
  std::int64_t out = 0, in = 0, groups = 0;
  int bits = 4;
  std::vector<std::int32_t> group_of;  // [in], or empty: in order, each of in / groups
  std::vector<float> scales;           // [out, groups]
  std::vector<std::int32_t> zeros;     // [out, groups]
  /// Codes of outputs [first, first + n), written to [n, in].
  std::function<void(std::int64_t first, std::int64_t n, std::uint8_t* codes)> codes;

  std::int64_t group(std::int64_t i) const {
    return group_of.empty() ? i / (in / groups) : group_of[static_cast<std::size_t>(i)];
  }
};

void put_half(float x, std::byte* to) {
  const std::uint16_t half = to_float16(x);
  std::memcpy(to, &half, sizeof half);
}

/// The type that holds its numbers, or all but the rounding of a scale to float16.
TensorType type_for(const IntegerMatrix& m) {
  constexpr float kLeastNormal = 6.103515625e-5f, kLargestHalf = 65504.0f;
  const bool blocks = m.group_of.empty() && m.in % kOfBlock == 0 && m.in / m.groups % kOfBlock == 0;
  const bool halves = std::all_of(m.scales.begin(), m.scales.end(), [](float s) {
    return s == 0 || (std::abs(s) >= kLeastNormal && std::abs(s) * 15 <= kLargestHalf);
  });
  if (!blocks || !halves) return TensorType::bf16;
  const int middle = 1 << (m.bits - 1);
  const bool symmetric =
      std::all_of(m.zeros.begin(), m.zeros.end(), [&](std::int32_t z) { return z == middle; });
  if (m.bits == 8) return symmetric ? TensorType::q8_0 : TensorType::bf16;
  return symmetric ? TensorType::q4_0 : TensorType::q4_1;
}

/// A row of Q4_0, Q4_1 or Q8_0. \param scales, zeros of the row's groups
void pack_blocks(TensorType type, const IntegerMatrix& m, const std::uint8_t* codes,
                 const float* scales, const std::int32_t* zeros, std::byte* to) {
  for (std::int64_t i = 0; i < m.in; i += kOfBlock, to += block_bytes(type), codes += kOfBlock) {
    const std::int64_t g = m.group(i);
    put_half(scales[g], to);
    std::byte* at = to + 2;
    if (type == TensorType::q8_0) {
      for (std::int64_t j = 0; j < kOfBlock; ++j) at[j] = static_cast<std::byte>(codes[j] - 128);
      continue;
    }
    if (type == TensorType::q4_1) {
      put_half(-scales[g] * static_cast<float>(zeros[g]), at);
      at += 2;
    }
    for (std::int64_t j = 0; j < kOfBlock / 2; ++j)  // the second half above the first
      at[j] = static_cast<std::byte>(codes[j] | codes[j + kOfBlock / 2] << 4);
  }
}

std::vector<std::byte> packed(const IntegerMatrix& m, TensorType type) {
  const std::int64_t bytes = cpu::row_bytes(type, m.in);
  std::vector<std::byte> all(static_cast<std::size_t>(m.out * bytes));
  parallel_for((m.out + kRowsOfTask - 1) / kRowsOfTask, [&](std::int64_t task) {
    const std::int64_t first = task * kRowsOfTask, n = std::min(kRowsOfTask, m.out - first);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * m.in));
    std::vector<float> numbers;
    m.codes(first, n, codes.data());
    for (std::int64_t r = 0; r < n; ++r) {
      const std::uint8_t* row = codes.data() + r * m.in;
      const float* scales = m.scales.data() + (first + r) * m.groups;
      const std::int32_t* zeros = m.zeros.data() + (first + r) * m.groups;
      std::byte* const to = all.data() + (first + r) * bytes;
      if (type != TensorType::bf16) {
        pack_blocks(type, m, row, scales, zeros, to);
        continue;
      }
      numbers.resize(static_cast<std::size_t>(m.in));
      for (std::int64_t i = 0; i < m.in; ++i) {
        const std::int64_t g = m.group(i);
        numbers[static_cast<std::size_t>(i)] =
            static_cast<float>(static_cast<std::int32_t>(row[i]) - zeros[g]) * scales[g];
      }
      cpu::quantize_row(type, numbers.data(), m.in, to);
    }
  });
  return all;
}

/// Words of a tensor of int32, which may lie unaligned.
class Words {
 public:
  explicit Words(const StoredTensor& t) : data_(t.data), columns_(t.shape[1]) {}
  std::uint32_t at(std::int64_t row, std::int64_t column) const {
    std::uint32_t word = 0;
    std::memcpy(&word, data_ + (row * columns_ + column) * 4, sizeof word);
    return word;
  }

 private:
  const std::byte* data_;
  std::int64_t columns_;
};

class Unpacking {
 public:
  Unpacking(std::shared_ptr<const TensorSource> tensors, const JsonObject& settings)
      : base_(std::move(tensors)),
        settings_(settings),
        changed_(std::make_shared<ChangedTensors>(base_)) {}

  /// \return null if there was nothing to do
  std::shared_ptr<const TensorSource> all(std::span<const WeightEntry> plan) {
    const std::string method = settings_.string("quant_method", "");
    for (const StoredTensor* t : base_->tensors()) {
      const std::string& name = t->name;
      const auto ends = [&](const char* end) { return name.ends_with(end); };
      if (ends(".qweight") && method == "gptq") {
        scheme_ = "GPTQ";
        put_integers(stem(name, ".qweight"), gptq(stem(name, ".qweight")));
      } else if (ends(".qweight") && method == "awq") {
        scheme_ = "AWQ";
        put_integers(stem(name, ".qweight"), awq(stem(name, ".qweight")));
      } else if (ends(".weight_packed") && t->type == TensorType::u8) {
        scheme_ = "compressed-tensors";
        put_fp4(stem(name, ".weight_packed"), *t);
      } else if (ends(".weight") && t->type == TensorType::u8 &&
                 base_->find(stem(name, ".weight") + ".weight_scale_2")) {
        scheme_ = "NVIDIA ModelOpt";
        put_fp4(stem(name, ".weight"), *t);
      } else if (ends(".weight_packed")) {
        scheme_ = "compressed-tensors";
        put_integers(stem(name, ".weight_packed"), compressed(stem(name, ".weight_packed")));
      } else if (ends(".weight") && t->type == TensorType::i8 && scale_of(name)) {
        scheme_ = "compressed-tensors";
        put_integers(stem(name, ".weight"), signed_bytes(*t));
      } else if (ends(".weight") && t->type == TensorType::f8_e4m3 && scale_of(name)) {
        scheme_ = "FP8";
        put_fp8(*t);
      }
    }
    if (done_.empty()) return nullptr;
    std::set<std::string, std::less<>> planned;
    for (const WeightEntry& e : plan) planned.insert(e.tensor);
    for (const std::string& stem : done_) {
      for (const char* end :
           {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed", ".weight_scale",
            ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale", ".weight_shape",
            ".weight_zero_point", ".weight_g_idx", ".input_scale", ".input_global_scale",
            ".input_zero_point", ".activation_scale", ".output_scale"})
        changed_->leave_out(stem + end);
      const StoredTensor* bias = base_->find(stem + ".bias");
      if (bias && planned.count(stem + ".bias") == 0 && all_zero(*bias))
        changed_->leave_out(stem + ".bias");
    }
    for (const StoredTensor* t : base_->tensors())  // of a cache of keys in FP8
      if (t->name.ends_with(".k_scale") || t->name.ends_with(".v_scale"))
        changed_->leave_out(t->name);
    return changed_;
  }

 private:
  static std::string stem(const std::string& name, std::string_view end) {
    return name.substr(0, name.size() - end.size());
  }

  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    throw FileError(fmt::format(
        "{}: tensor '{}' of {} {}; fetch the weights again, or give them unquantised or as GGUF",
        base_->file_of(tensor).string(), printable(tensor), scheme_, what));
  }

  const StoredTensor& need(const std::string& name, const std::string& beside) const {
    if (const StoredTensor* t = base_->find(name)) return *t;
    fail(beside, fmt::format("has no '{}' beside it", printable(name)));
  }

  /// \param type nothing: F32, F16 or BF16
  void require(const StoredTensor& t, std::optional<TensorType> type,
               const std::vector<std::int64_t>& shape) const {
    const bool plain =
        t.type == TensorType::f32 || t.type == TensorType::f16 || t.type == TensorType::bf16;
    if (type ? t.type != *type : !plain)
      fail(t.name, fmt::format("is stored as {}, not as {}", name_of(t.type),
                               type ? name_of(*type) : "F32, F16 or BF16"));
    if (t.shape != shape)
      fail(t.name, fmt::format("has shape [{}], not [{}] as those beside it call for",
                               fmt::join(t.shape, ", "), fmt::join(shape, ", ")));
  }

  /// \throws FileError unless it is a matrix of words that is not empty
  void require_words(const StoredTensor& t) const {
    if (t.type != TensorType::i32 || t.shape.size() != 2 || t.bytes == 0)
      fail(t.name, fmt::format("is {} of shape [{}], not a matrix of I32", name_of(t.type),
                               fmt::join(t.shape, ", ")));
  }

  std::vector<float> numbers_of(const StoredTensor& t) const {
    std::vector<float> numbers(static_cast<std::size_t>(t.elements()));
    cpu::widen_row(t.type, t.data, t.elements(), numbers.data());
    if (!std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }))
      fail(t.name, "holds NaN or infinity");
    return numbers;
  }

  bool all_zero(const StoredTensor& t) const {
    if (!cpu::is_weight_type(t.type) || block_elements(t.type) != 1) return false;
    const std::vector<float> numbers = numbers_of(t);
    return std::all_of(numbers.begin(), numbers.end(), [](float x) { return x == 0; });
  }

  void put(const std::string& stem, TensorType type, std::int64_t out, std::int64_t in,
           std::vector<std::byte> bytes) {
    if (base_->find(stem + ".weight") && done_.count(stem) > 0)
      fail(stem + ".weight", "stands there in two ways");
    changed_->put(stem + ".weight", type, {out, in}, std::move(bytes));
    done_.insert(stem);
  }

  void put_integers(const std::string& stem, const IntegerMatrix& m) {
    const TensorType type = type_for(m);
    put(stem, type, m.out, m.in, packed(m, type));
  }

  /// Bits and layout that GPTQ and AWQ name in config.json.
  int bits_of(const char* other_key) const {
    const char* key = settings_.has("bits") ? "bits" : other_key;
    const auto bits = static_cast<int>(settings_.integer(key, 1, 16, 4));
    if (bits != 4 && bits != 8)
      settings_.fail(key, fmt::format("= {} is not read; 4 and 8 are", bits));
    return bits;
  }

  /// [in * bits / 32, out]: consecutive inputs of one output in a word; zero points less one.
  IntegerMatrix gptq(const std::string& stem) const {
    const std::string format = settings_.string("checkpoint_format", "gptq");
    if (format != "gptq" && format != "gptq_v2")
      settings_.unsupported("checkpoint_format", format, "gptq, gptq_v2");
    IntegerMatrix m;
    m.bits = bits_of("bits");
    const std::int64_t each = 32 / m.bits;
    const StoredTensor& q = need(stem + ".qweight", stem);
    require_words(q);
    m.in = q.shape[0] * each;
    m.out = q.shape[1];
    const StoredTensor& scales = need(stem + ".scales", q.name);
    m.groups = scales.shape.empty() ? 0 : scales.shape[0];
    require(scales, std::nullopt, {m.groups, m.out});
    if (m.groups < 1 || m.out % each != 0)
      fail(scales.name, fmt::format("has shape [{}]", fmt::join(scales.shape, ", ")));
    read_groups(m, stem + ".g_idx");
    const StoredTensor& zeros = need(stem + ".qzeros", q.name);
    require(zeros, TensorType::i32, {m.groups, m.out / each});
    take_columns(m, scales);
    const Words z(zeros);
    const std::uint32_t mask = (1u << m.bits) - 1;
    const std::int32_t less = format == "gptq" ? 1 : 0;
    for (std::int64_t g = 0; g < m.groups; ++g)
      for (std::int64_t o = 0; o < m.out; ++o)
        m.zeros[static_cast<std::size_t>(o * m.groups + g)] =
            static_cast<std::int32_t>(z.at(g, o / each) >> (o % each * m.bits) & mask) + less;
    m.codes = [words = Words(q), mask, each, bits = m.bits, in = m.in](
                  std::int64_t first, std::int64_t n, std::uint8_t* codes) {
      for (std::int64_t w = 0; w < in / each; ++w)
        for (std::int64_t r = 0; r < n; ++r) {
          const std::uint32_t word = words.at(w, first + r);
          for (std::int64_t j = 0; j < each; ++j)
            codes[r * in + w * each + j] = static_cast<std::uint8_t>(word >> (j * bits) & mask);
        }
    };
    return m;
  }

  /// [in, out / 8]: eight outputs of one input in a word, in an order of their own.
  IntegerMatrix awq(const std::string& stem) const {
    static constexpr int kOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of an output
    const std::string version = settings_.string("version", "gemm");
    if (version != "gemm" && version != "GEMM") settings_.unsupported("version", version, "gemm");
    IntegerMatrix m;
    if (bits_of("w_bit") != 4) settings_.fail("bits", "= 8 is not read for AWQ; 4 is");
    const StoredTensor& q = need(stem + ".qweight", stem);
    require_words(q);
    m.in = q.shape[0];
    m.out = q.shape[1] * 8;
    const StoredTensor& scales = need(stem + ".scales", q.name);
    m.groups = scales.shape.empty() ? 0 : scales.shape[0];
    require(scales, std::nullopt, {m.groups, m.out});
    read_groups(m, "");
    take_columns(m, scales);
    std::fill(m.zeros.begin(), m.zeros.end(), 8);
    if (const StoredTensor* zeros = base_->find(stem + ".qzeros")) {
      require(*zeros, TensorType::i32, {m.groups, m.out / 8});
      const Words z(*zeros);
      for (std::int64_t g = 0; g < m.groups; ++g)
        for (std::int64_t o = 0; o < m.out; ++o)
          m.zeros[static_cast<std::size_t>(o * m.groups + g)] =
              static_cast<std::int32_t>(z.at(g, o / 8) >> (4 * kOrder[o % 8]) & 15);
    }
    m.codes = [words = Words(q), in = m.in](std::int64_t first, std::int64_t n,
                                            std::uint8_t* codes) {
      for (std::int64_t i = 0; i < in; ++i)
        for (std::int64_t r = 0; r < n; ++r)
          codes[r * in + i] = static_cast<std::uint8_t>(
              words.at(i, (first + r) / 8) >> (4 * kOrder[(first + r) % 8]) & 15);
    };
    return m;
  }

  /// compressed-tensors: [out, in * bits / 32], consecutive inputs in a word, 2^(bits - 1) added.
  IntegerMatrix compressed(const std::string& stem) const {
    IntegerMatrix m;
    const StoredTensor& q = need(stem + ".weight_packed", stem);
    require_words(q);
    const StoredTensor& shape = need(stem + ".weight_shape", q.name);
    if (shape.bytes != 16 || shape.type != TensorType::i64)
      fail(shape.name, "does not hold two numbers of 64 bits");
    std::int64_t sizes[2];
    std::memcpy(sizes, shape.data, sizeof sizes);
    m.out = sizes[0];
    m.in = sizes[1];
    const std::int64_t words = q.shape[1];
    m.bits = m.in > 0 && m.in <= words * 8 ? (m.in <= words * 4 ? 8 : 4) : 0;
    const std::int64_t each = m.bits > 0 ? 32 / m.bits : 1;
    if (m.bits == 0 || m.out != q.shape[0] || words != (m.in + each - 1) / each)
      fail(q.name,
           fmt::format("has shape [{}], and its matrix [{}, {}]: only 4 and 8 bits are read",
                       fmt::join(q.shape, ", "), m.out, m.in));
    const StoredTensor& scales = need(stem + ".weight_scale", q.name);
    take_rows(m, scales);
    read_groups(m, stem + ".weight_g_idx");
    if (const StoredTensor* zeros = base_->find(stem + ".weight_zero_point")) {
      require(*zeros, TensorType::i32, {(m.out + each - 1) / each, m.groups});
      const Words z(*zeros);
      for (std::int64_t o = 0; o < m.out; ++o)
        for (std::int64_t g = 0; g < m.groups; ++g)
          m.zeros[static_cast<std::size_t>(o * m.groups + g)] = static_cast<std::int32_t>(
              z.at(o / each, g) >> (o % each * m.bits) & ((1u << m.bits) - 1));
    }
    m.codes = [from = Words(q), each, bits = m.bits, in = m.in](std::int64_t first, std::int64_t n,
                                                                std::uint8_t* codes) {
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t i = 0; i < in; ++i)
          codes[r * in + i] = static_cast<std::uint8_t>(
              from.at(first + r, i / each) >> (i % each * bits) & ((1u << bits) - 1));
    };
    return m;
  }

  /// Signed bytes [out, in], with a scale of each output or of all.
  IntegerMatrix signed_bytes(const StoredTensor& q) const {
    IntegerMatrix m;
    if (q.shape.size() != 2 || q.bytes == 0)
      fail(q.name, fmt::format("has shape [{}], and is no matrix", fmt::join(q.shape, ", ")));
    m.bits = 8;
    m.out = q.shape[0];
    m.in = q.shape[1];
    take_rows(m, *scale_of(q.name));
    read_groups(m, "");
    if (base_->find(stem(q.name, ".weight") + ".weight_zero_point"))
      fail(q.name, "has zero points of its own, which are not read for bytes");
    m.codes = [data = q.data, in = m.in](std::int64_t first, std::int64_t n, std::uint8_t* codes) {
      for (std::int64_t i = 0; i < n * in; ++i)
        codes[i] = static_cast<std::uint8_t>(std::to_integer<unsigned>(data[first * in + i]) ^ 128);
    };
    return m;
  }

  /// Scales [groups, out] to [out, groups]; zero points of the middle.
  void take_columns(IntegerMatrix& m, const StoredTensor& scales) const {
    const std::vector<float> from = numbers_of(scales);
    m.scales.resize(from.size());
    m.zeros.assign(from.size(), 1 << (m.bits - 1));
    for (std::int64_t g = 0; g < m.groups; ++g)
      for (std::int64_t o = 0; o < m.out; ++o)
        m.scales[static_cast<std::size_t>(o * m.groups + g)] =
            from[static_cast<std::size_t>(g * m.out + o)];
  }

  /// Scales [out, groups], [out] or one; zero points of the middle.
  void take_rows(IntegerMatrix& m, const StoredTensor& scales) const {
    if (scales.elements() == 1) {
      require(scales, std::nullopt, scales.shape);
      m.groups = 1;
      m.scales.assign(static_cast<std::size_t>(m.out), numbers_of(scales)[0]);
    } else {
      m.groups = scales.shape.size() == 2 ? scales.shape[1] : 1;
      require(scales, std::nullopt,
              scales.shape.size() == 1 ? std::vector{m.out} : std::vector{m.out, m.groups});
      m.scales = numbers_of(scales);
    }
    m.zeros.assign(m.scales.size(), 1 << (m.bits - 1));
  }

  /// The group of each input, where they are not in order. \param name of its tensor, or ""
  void read_groups(IntegerMatrix& m, const std::string& name) const {
    const StoredTensor* t = name.empty() ? nullptr : base_->find(name);
    if (t) {
      require(*t, TensorType::i32, {m.in});
      m.group_of.resize(static_cast<std::size_t>(m.in));
      std::memcpy(m.group_of.data(), t->data, static_cast<std::size_t>(t->bytes));
      // -1: written before the groups were known
      if (std::all_of(m.group_of.begin(), m.group_of.end(), [](auto g) { return g == -1; }))
        m.group_of.clear();
      for (const std::int32_t g : m.group_of)
        if (g < 0 || g >= m.groups) fail(name, fmt::format("names group {} of {}", g, m.groups));
      const auto in_order = [&] {
        if (m.in % m.groups != 0) return false;
        for (std::int64_t i = 0; i < m.in; ++i)
          if (m.group_of[static_cast<std::size_t>(i)] != i / (m.in / m.groups)) return false;
        return true;
      };
      if (!m.group_of.empty() && in_order()) m.group_of.clear();
    }
    if (m.group_of.empty() && (m.groups < 1 || m.in % m.groups != 0)) {
      // the last group may be a shorter one, of the size that config.json says
      const std::int64_t size = settings_.integer("group_size", 1, m.in, m.in);
      if ((m.in + size - 1) / size != m.groups)
        settings_.fail("group_size",
                       fmt::format("does not cut {} inputs into {} groups", m.in, m.groups));
      for (std::int64_t i = 0; i < m.in; ++i)
        m.group_of.push_back(static_cast<std::int32_t>(i / size));
    }
  }

  const StoredTensor* scale_of(const std::string& weight) const {
    const std::string x = stem(weight, ".weight");
    for (const char* end : {".weight_scale_inv", ".weight_scale"})
      if (const StoredTensor* t = base_->find(x + end)) return t;
    return nullptr;
  }

  /// With a scale of all, of each output, or of each block of outputs and inputs.
  void put_fp8(const StoredTensor& t) {
    if (t.shape.size() != 2 || t.bytes == 0)
      fail(t.name, fmt::format("has shape [{}], and is no matrix", fmt::join(t.shape, ", ")));
    const std::int64_t out = t.shape[0], in = t.shape[1];
    const StoredTensor& s = *scale_of(t.name);
    std::int64_t rows = out, columns = in;  // of a block
    if (s.elements() > 1 &&
        (s.shape.size() == 1 || (s.shape.size() == 2 && s.shape[1] == 1 && s.shape[0] == out))) {
      rows = 1;
      require(s, std::nullopt, s.shape.size() == 1 ? std::vector{out} : std::vector{out, {1}});
    } else if (s.elements() != 1) {
      constexpr std::int64_t kMost = 1 << 20;
      const auto block = settings_.integers("weight_block_size", 2, 1, kMost);
      rows = block ? (*block)[0] : 128;
      columns = block ? (*block)[1] : 128;
      require(s, std::nullopt, {(out + rows - 1) / rows, (in + columns - 1) / columns});
    } else {
      require(s, std::nullopt, s.shape);
    }
    const std::vector<float> scales = numbers_of(s);
    const std::int64_t across = (in + columns - 1) / columns;
    if (holds_nan(t)) fail(t.name, "holds NaN");
    std::vector<std::byte> bytes(static_cast<std::size_t>(out * in * 2));
    parallel_for(out, [&](std::int64_t o) {
      std::vector<float> numbers(static_cast<std::size_t>(in));
      for (std::int64_t i = 0; i < in; ++i)
        numbers[static_cast<std::size_t>(i)] =
            rules::from_fp8(std::to_integer<std::uint8_t>(t.data[o * in + i])) *
            scales[static_cast<std::size_t>(o / rows * across + i / columns)];
      cpu::quantize_row(TensorType::bf16, numbers.data(), in, bytes.data() + o * in * 2);
    });
    put(stem(t.name, ".weight"), TensorType::bf16, out, in, std::move(bytes));
  }

  /// 4-bit floats [out, in / 2], the first of two in the low bits. With powers of two [out, in /
  /// 32] they are MXFP4. With E4M3s [out, in / 16] they are NVFP4, which has one more scale of all:
  /// compressed-tensors divides by it, ModelOpt multiplies.
  void put_fp4(const std::string& stem, const StoredTensor& q) {
    if (q.shape.size() != 2 || q.bytes == 0)
      fail(q.name, fmt::format("has shape [{}], and is no matrix", fmt::join(q.shape, ", ")));
    const std::int64_t out = q.shape[0], bytes = q.shape[1], in = 2 * bytes;
    const StoredTensor& s = need(stem + ".weight_scale", q.name);
    if (s.type == TensorType::u8 || s.type == TensorType::f8_e8m0) {
      require(s, s.type, {out, (in + kOfBlock - 1) / kOfBlock});
      if (in % kOfBlock != 0) fail(q.name, fmt::format("has {} inputs, no multiple of 32", in));
      return put(stem, TensorType::mxfp4, out, in, mxfp4_blocks(q, s));
    }
    constexpr std::int64_t kGroup = 16;
    if (in % kGroup != 0) fail(q.name, fmt::format("has {} inputs, no multiple of 16", in));
    require(s, TensorType::f8_e4m3, {out, in / kGroup});
    const StoredTensor* divisor = base_->find(stem + ".weight_global_scale");
    const StoredTensor& of_all = divisor ? *divisor : need(stem + ".weight_scale_2", q.name);
    require(of_all, std::nullopt, of_all.shape);
    const std::vector<float> one = numbers_of(of_all);
    if (one.size() != 1 || !(one[0] > 0)) fail(of_all.name, "is no number above 0");
    if (holds_nan(s)) fail(s.name, "holds NaN");
    const float factor = divisor ? 1.0f / one[0] : one[0];
    std::vector<std::byte> to(static_cast<std::size_t>(out * in * 2));
    parallel_for(out, [&](std::int64_t o) {
      static constexpr float kNumbers[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
      std::vector<float> numbers(static_cast<std::size_t>(in));
      for (std::int64_t i = 0; i < in; ++i) {
        const auto two = std::to_integer<unsigned>(q.data[o * bytes + i / 2]);
        const unsigned code = two >> (i % 2 * 4) & 15;
        const auto scale = std::to_integer<std::uint8_t>(s.data[o * (in / kGroup) + i / kGroup]);
        const float x = kNumbers[code & 7] * (rules::from_fp8(scale) * factor);
        numbers[static_cast<std::size_t>(i)] = code < 8 ? x : -x;
      }
      cpu::quantize_row(TensorType::bf16, numbers.data(), in, to.data() + o * in * 2);
    });
    put(stem, TensorType::bf16, out, in, std::move(to));
  }

  /// GGUF's blocks: a scale, then the numbers 0 to 15 in the low halves of bytes, 16 to 31 above.
  static std::vector<std::byte> mxfp4_blocks(const StoredTensor& q, const StoredTensor& s) {
    constexpr std::int64_t kBytes = kOfBlock / 2;
    const std::int64_t blocks = q.bytes / kBytes, bytes = block_bytes(TensorType::mxfp4);
    std::vector<std::byte> all(static_cast<std::size_t>(blocks * bytes));
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::byte* to = all.data() + b * bytes;
      *to++ = s.data[b];
      const auto code = [&](std::int64_t i) {
        return std::to_integer<unsigned>(q.data[b * kBytes + i / 2]) >> (i % 2 * 4) & 15;
      };
      for (std::int64_t i = 0; i < kBytes; ++i)
        to[i] = static_cast<std::byte>(code(i) | code(i + kBytes) << 4);
    }
    return all;
  }

  /// Of bytes of E4M3.
  static bool holds_nan(const StoredTensor& t) {
    return std::any_of(t.data, t.data + t.bytes,
                       [](std::byte x) { return (x & std::byte{127}) == std::byte{127}; });
  }

  std::shared_ptr<const TensorSource> base_;
  JsonObject settings_;
  std::shared_ptr<ChangedTensors> changed_;
  std::set<std::string> done_;
  const char* scheme_ = "";  // of what is read now, for messages
};

}  // namespace

std::shared_ptr<const TensorSource> unpacked_weights(std::shared_ptr<const TensorSource> tensors,
                                                     std::string_view config_json,
                                                     std::span<const WeightEntry> plan,
                                                     const std::string& label) {
  const nlohmann::json json =
      parse_strict(config_json, label,
                   {.depth = 12, .array_length = 1 << 16, .keys = 1 << 16, .python_numbers = true});
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json* settings = &none;
  std::string key;
  for (const char* name : {"quantization_config", "compression_config"})
    if (const auto it = json.find(name); it != json.end() && it->is_object()) {
      settings = &*it;
      key = std::string(name) + ".";
      break;
    }
  return Unpacking(std::move(tensors), JsonObject(*settings, label, key)).all(plan);
}

}  // namespace episodic
