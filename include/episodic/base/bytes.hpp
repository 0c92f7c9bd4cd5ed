// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Plain values to bytes and back, for what a memory keeps. Little-endian, unpadded; the reader
/// checks every length before it believes it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

class ByteWriter {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    put_raw(&value, sizeof(T));
  }
  /// The number of elements, then the elements.
  template <class T>
  void put_span(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T>);
    put(static_cast<std::uint64_t>(values.size()));
    put_raw(values.data(), values.size_bytes());
  }
  template <class T>
  void put_vector(const std::vector<T>& values) {
    put_span(std::span<const T>(values));
  }
  void put_string(const std::string& s) { put_span(std::span<const char>(s)); }

  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put_raw(const void* from, std::size_t n) {
    if (n == 0) return;
    const std::size_t at = bytes_.size();
    bytes_.resize(at + n);
    std::memcpy(bytes_.data() + at, from, n);
  }
  std::vector<std::byte> bytes_;
};

/// \throws FileError "WHERE: ..." when the bytes end before a value does
class ByteReader {
 public:
  static constexpr std::uint32_t kNewest = 0xffffffff;
  /// \param version of the format that wrote them, for those who read several
  ByteReader(std::span<const std::byte> bytes, std::string where, std::uint32_t version = kNewest)
      : bytes_(bytes), where_(std::move(where)), version_(version) {}
  std::uint32_t version() const { return version_; }

  template <class T>
  T get() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    T value;
    get_raw(&value, sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> get_vector() {
    static_assert(std::is_arithmetic_v<T>);
    const auto n = get<std::uint64_t>();
    if (n > (bytes_.size() - at_) / sizeof(T)) cut();
    std::vector<T> values(static_cast<std::size_t>(n));
    get_raw(values.data(), values.size() * sizeof(T));
    return values;
  }
  /// A vector that must have `n` elements.
  template <class T>
  std::vector<T> get_vector(std::size_t n, const char* what) {
    std::vector<T> values = get_vector<T>();
    if (values.size() != n)
      throw FileError(where_ + ": " + what + " has " + std::to_string(values.size()) +
                      " elements, expected " + std::to_string(n));
    return values;
  }
  std::string get_string() {
    const std::vector<char> chars = get_vector<char>();
    return {chars.begin(), chars.end()};
  }

  std::size_t left() const { return bytes_.size() - at_; }
  const std::string& where() const { return where_; }
  /// \throws FileError unless everything was read
  void finish() const {
    if (left() != 0)
      throw FileError(where_ + ": " + std::to_string(left()) + " bytes more than expected");
  }

 private:
  [[noreturn]] void cut() const {
    throw FileError(where_ + ": ends before what it should hold; it is truncated or damaged");
  }
  void get_raw(void* to, std::size_t n) {
    if (n > left()) cut();
    if (n > 0) std::memcpy(to, bytes_.data() + at_, n);
    at_ += n;
  }
  std::span<const std::byte> bytes_;
  std::string where_;
  std::uint32_t version_;
  std::size_t at_ = 0;
};

}  // namespace EPISODIC_NAMESPACE
