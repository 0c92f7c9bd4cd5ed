// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the reference reader's limit
constexpr std::size_t kMostTensors = 1 << 20;          // also bounds shapes, which share the limit
constexpr std::size_t kHighestRank = 16;

/// One tensor entry of the header, checked step by step.
class Entry {
 public:
  Entry(std::string_view label, const std::string& name, const Json& value)
      : label_(label), name_(name), value_(value) {
    if (!value.is_object()) fail("its header entry is not an object");
  }

  StoredTensor read(std::span<const std::byte> data) const {
    StoredTensor view;
    view.name = name_;
    view.type = type();
    // the second: no part of the shape overflows
    std::uint64_t bytes = static_cast<std::uint64_t>(block_bytes(view.type)), without_zeros = bytes;
    const Json& shape = list("shape");
    if (shape.size() > kHighestRank)
      fail(fmt::format("has {} dimensions, more than {}", shape.size(), kHighestRank));
    for (const Json& dim : shape) {
      const std::uint64_t d = count(dim, "shape");
      if (d > kMostBytes ||
          __builtin_mul_overflow(without_zeros, std::max<std::uint64_t>(1, d), &without_zeros) ||
          without_zeros > kMostBytes)
        fail(fmt::format("its shape {} overflows", printable_value(shape)));
      bytes *= d;
      view.shape.push_back(static_cast<std::int64_t>(d));
    }
    const Json& offsets = list("data_offsets");
    if (offsets.size() != 2) fail("its data_offsets are not two numbers");
    const std::uint64_t begin = count(offsets[0], "data_offsets");
    const std::uint64_t end = count(offsets[1], "data_offsets");
    if (begin > end) fail(fmt::format("its data_offsets [{}, {}] run backwards", begin, end));
    if (end > data.size())
      fail(
          fmt::format("its data ends at byte {}, but the file holds {} bytes of data: the file is "
                      "truncated",
                      end, data.size()));
    if (end - begin != bytes)
      fail(fmt::format("its data_offsets span {} bytes, but shape and dtype need {}", end - begin,
                       bytes));
    view.bytes = static_cast<std::int64_t>(bytes);
    if (bytes) view.data = data.data() + begin;
    return view;
  }

 private:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

  const Json& member(const char* key) const {
    const auto it = value_.find(key);
    if (it == value_.end()) fail(fmt::format("its header entry has no {}", key));
    return *it;
  }

  const Json& list(const char* key) const {
    const Json& v = member(key);
    if (!v.is_array()) fail(fmt::format("its {} is not a list", key));
    return v;
  }

  std::uint64_t count(const Json& v, const char* key) const {
    if (!v.is_number_unsigned())
      fail(fmt::format("its {} holds something else than integers >= 0", key));
    return v.get<std::uint64_t>();
  }

  TensorType type() const {
    const Json& v = member("dtype");
    if (v.is_string())
      if (const auto type = plain_type(v.get_ref<const std::string&>())) return *type;
    fail(
        fmt::format("its dtype {} is not known; store it as F32, F16 or BF16", printable_value(v)));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: tensor '{}': {}; fetch or convert the file again", label_,
                                printable(name_), what));
  }

  std::string_view label_;
  const std::string& name_;
  const Json& value_;
};

void refuse_overlaps(const std::vector<StoredTensor>& tensors, std::string_view label) {
  std::vector<const StoredTensor*> by_place;
  for (const StoredTensor& t : tensors)
    if (t.bytes) by_place.push_back(&t);
  std::sort(by_place.begin(), by_place.end(), [](auto* a, auto* b) { return a->data < b->data; });
  for (std::size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i - 1]->data + by_place[i - 1]->bytes > by_place[i]->data)
      throw FileError(
          fmt::format("{}: tensors '{}' and '{}' overlap; fetch or convert the file again", label,
                      printable(by_place[i - 1]->name), printable(by_place[i]->name)));
}

std::map<std::string, std::string> read_metadata(const Json& value, std::string_view label) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object())
    throw FileError(
        fmt::format("{}: __metadata__ is not an object; convert the file again", label));
  for (const auto& [key, v] : value.items()) {
    if (!v.is_string())
      throw FileError(fmt::format("{}: __metadata__ '{}' is not a string; convert the file again",
                                  label, printable(key)));
    metadata.emplace(key, v.get<std::string>());
  }
  return metadata;
}

[[noreturn]] void repeated(const std::string& name, std::string_view label) {
  throw FileError(
      fmt::format("{}: the key '{}' stands twice; remove one of them", label, printable(name)));
}

}  // namespace

SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, std::string_view label) {
  if (bytes.size() < kLengthBytes)
    throw FileError(fmt::format("{}: {} bytes are too few for a safetensors file; fetch it again",
                                label, bytes.size()));
  std::uint64_t length = 0;
  for (std::uint64_t i = 0; i < kLengthBytes; ++i)
    length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > bytes.size() - kLengthBytes)
    throw FileError(
        fmt::format("{}: its header claims {} bytes, but only {} follow: truncated, or no "
                    "safetensors file; fetch it again",
                    label, length, bytes.size() - kLengthBytes));
  if (length > kLongestHeader)
    throw FileError(
        fmt::format("{}: its header claims {} bytes, more than the format's {}; convert "
                    "the file again",
                    label, length, kLongestHeader));
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  const auto data = bytes.subspan(kLengthBytes + length);
  if (header.empty() || header[0] != '{')
    throw FileError(
        fmt::format("{}: its header is not a JSON object; is it a safetensors file?", label));
  SafetensorsContent content;
  bool metadata = false;
  // one by one: the tree of a header takes ten times its bytes
  const JsonLimits limits{.depth = 3, .array_length = kMostTensors, .keys = kMostTensors};
  parse_entries(header, label, limits, [&](const std::string& name, const Json& value) {
    if (name != "__metadata__")
      return content.tensors.push_back(Entry(label, name, value).read(data));
    if (metadata) repeated(name, label);
    metadata = true;
    content.metadata = read_metadata(value, label);
  });
  auto& tensors = content.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i - 1].name == tensors[i].name) repeated(tensors[i].name, label);
  refuse_overlaps(content.tensors, label);
  return content;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), content_(parse_safetensors(file_.bytes(), path.string())) {}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto& all = content_.tensors;
  const auto it =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const StoredTensor& t, std::string_view n) { return t.name < n; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  if (const StoredTensor* view = find(name)) return *view;
  throw FileError(
      fmt::format("{}: has no tensor '{}'; is it the right file?", path().string(), name));
}

}  // namespace episodic
