// SPDX-License-Identifier: Apache-2.0
#pragma once
// GGUF files for tests, written from the format's description.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

class GgufWriter {
 public:
  enum Kind : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
  };

  template <class T>
  static std::string raw(T value) {
    std::string out(sizeof(T), '\0');
    std::memcpy(out.data(), &value, sizeof(T));
    return out;
  }
  static std::string text(const std::string& s) {
    return raw(static_cast<std::uint64_t>(s.size())) + s;
  }

  /// A value as raw bytes.
  GgufWriter& put(const std::string& key, Kind kind, const std::string& bytes) {
    metadata_ += text(key) + raw(static_cast<std::uint32_t>(kind)) + bytes;
    ++values_;
    return *this;
  }
  GgufWriter& put(const std::string& key, const std::string& s) {
    return put(key, string, text(s));
  }
  GgufWriter& put(const std::string& key, const char* s) { return put(key, std::string(s)); }
  GgufWriter& put(const std::string& key, std::uint32_t x) { return put(key, u32, raw(x)); }
  GgufWriter& put(const std::string& key, float x) { return put(key, f32, raw(x)); }
  GgufWriter& put(const std::string& key, bool x) {
    return put(key, boolean, raw(static_cast<std::uint8_t>(x)));
  }
  template <class T>
  GgufWriter& put_array(const std::string& key, Kind kind, const std::vector<T>& values) {
    std::string bytes =
        raw(static_cast<std::uint32_t>(kind)) + raw(static_cast<std::uint64_t>(values.size()));
    for (const T& v : values) {
      if constexpr (std::is_same_v<T, std::string>)
        bytes += text(v);
      else
        bytes += raw(v);
    }
    return put(key, array, bytes);
  }

  /// \param shape rows first; the file has it the other way round
  GgufWriter& tensor(const std::string& name, std::uint32_t type,
                     const std::vector<std::uint64_t>& shape, const std::string& data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return listed(name, type, shape, data_.size(), data);
  }
  /// With an offset that may be wrong.
  GgufWriter& listed(const std::string& name, std::uint32_t type,
                     const std::vector<std::uint64_t>& shape, std::uint64_t offset,
                     const std::string& data) {
    tensors_ += text(name) + raw(static_cast<std::uint32_t>(shape.size()));
    for (auto d = shape.rbegin(); d != shape.rend(); ++d) tensors_ += raw(*d);
    tensors_ += raw(type) + raw(offset);
    data_ += data;
    ++n_tensors_;
    return *this;
  }
  GgufWriter& floats(const std::string& name, const std::vector<std::uint64_t>& shape,
                     const std::vector<float>& x) {
    return tensor(name, 0, shape,
                  std::string(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float)));
  }

  std::string bytes() const {
    std::string out = "GGUF" + raw(version) + raw(n_tensors_) + raw(values_) + metadata_ + tensors_;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }

  std::uint32_t version = 3;
  std::uint64_t alignment = 32;

 private:
  std::string metadata_, tensors_, data_;
  std::uint64_t values_ = 0, n_tensors_ = 0;
};
