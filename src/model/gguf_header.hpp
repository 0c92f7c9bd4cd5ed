// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bytes of a GGUF file before its tensors.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// ggml's number of a type of tensors; nothing for one that GGUF has not.
std::optional<std::uint32_t> gguf_type_number(TensorType type);

inline constexpr std::uint64_t kGgufAlignment = 32;  // of tensors; what the format assumes

enum class GgufValueKind : std::uint32_t {
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  text = 8,
  array = 9
};

class GgufHeader {
 public:
  void put(const std::string& key, std::int64_t value) {
    begin(key, GgufValueKind::u32);
    raw(static_cast<std::uint32_t>(value));
  }
  void put(const std::string& key, double value) {
    begin(key, GgufValueKind::f32);
    raw(static_cast<float>(value));
  }
  void put(const std::string& key, bool value) {
    begin(key, GgufValueKind::boolean);
    raw(static_cast<std::uint8_t>(value));
  }
  void put(const std::string& key, std::string_view value) {
    begin(key, GgufValueKind::text);
    text(value);
  }
  void put(const std::string& key, const char* value) { put(key, std::string_view(value)); }
  void put(const std::string& key, const std::vector<std::string>& values) {
    begin_array(key, GgufValueKind::text, values.size());
    for (const std::string& value : values) text(value);
  }
  void put(const std::string& key, const std::vector<bool>& values) {
    begin_array(key, GgufValueKind::boolean, values.size());
    for (const bool value : values) raw(static_cast<std::uint8_t>(value));
  }
  void put(const std::string& key, const std::vector<float>& values) {
    begin_array(key, GgufValueKind::f32, values.size());
    for (const float value : values) raw(value);
  }
  void put(const std::string& key, const std::vector<std::int32_t>& values) {
    begin_array(key, GgufValueKind::i32, values.size());
    for (const std::int32_t value : values) raw(value);
  }

  /// \param shape rows first, as StoredTensor has it
  void tensor(const std::string& name, std::uint32_t type, const std::vector<std::int64_t>& shape,
              std::uint64_t offset) {
    std::swap(bytes_, tensors_);
    text(name);
    raw(static_cast<std::uint32_t>(shape.size()));
    for (auto d = shape.rbegin(); d != shape.rend(); ++d) raw(static_cast<std::uint64_t>(*d));
    raw(type);
    raw(offset);
    std::swap(bytes_, tensors_);
    ++n_tensors_;
  }

  /// All of it, padded to where the data begin.
  std::string finish() const {
    GgufHeader whole;
    whole.bytes_ = "GGUF";
    whole.raw(std::uint32_t{3});
    whole.raw(n_tensors_);
    whole.raw(n_values_);
    whole.bytes_ += bytes_ + tensors_;
    whole.bytes_.resize(
        (whole.bytes_.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment, '\0');
    return std::move(whole.bytes_);
  }

 private:
  template <class T>
  void raw(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    raw(static_cast<std::uint64_t>(value.size()));
    bytes_.append(value);
  }
  void begin(const std::string& key, GgufValueKind kind) {
    text(key);
    raw(static_cast<std::uint32_t>(kind));
    ++n_values_;
  }
  void begin_array(const std::string& key, GgufValueKind kind, std::size_t n) {
    begin(key, GgufValueKind::array);
    raw(static_cast<std::uint32_t>(kind));
    raw(static_cast<std::uint64_t>(n));
  }

  std::string bytes_, tensors_;
  std::uint64_t n_values_ = 0, n_tensors_ = 0;
};

}  // namespace episodic
