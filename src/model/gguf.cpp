// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "other_formats.hpp"

namespace episodic {
namespace {

constexpr std::uint64_t kDefaultAlignment = 32, kMostAlignment = 1 << 20;
constexpr std::uint32_t kMostDimensions = 4;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
constexpr std::uint64_t kMostElements = 1 << 24;  // of a list in the metadata
constexpr std::uint64_t kMostKeys = 1 << 16;      // of the metadata
constexpr int kDeepest = 4;                       // arrays of arrays

/// Kinds of metadata values by their number in the file.
enum Kind : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

struct TypeNumber {
  std::uint32_t number;
  TensorType type;
};
constexpr TypeNumber kTypes[] = {
    {0, TensorType::f32},     {1, TensorType::f16},      {2, TensorType::q4_0},
    {3, TensorType::q4_1},    {6, TensorType::q5_0},     {7, TensorType::q5_1},
    {8, TensorType::q8_0},    {10, TensorType::q2_k},    {11, TensorType::q3_k},
    {12, TensorType::q4_k},   {13, TensorType::q5_k},    {14, TensorType::q6_k},
    {20, TensorType::iq4_nl}, {24, TensorType::i8},      {25, TensorType::i16},
    {26, TensorType::i32},    {27, TensorType::i64},     {28, TensorType::f64},
    {30, TensorType::bf16},   {39, TensorType::mxfp4},   {16, TensorType::iq2_xxs},
    {17, TensorType::iq2_xs}, {18, TensorType::iq3_xxs}, {19, TensorType::iq1_s},
    {21, TensorType::iq3_s},  {22, TensorType::iq2_s},   {23, TensorType::iq4_xs},
    {29, TensorType::iq1_m},  {40, TensorType::nvfp4},
};

std::string names_of_types() {
  std::string names;
  for (const TypeNumber& t : kTypes)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(t.type));
  return names;
}

/// Reads from the front; every length is checked against what is left.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view label) : bytes_(bytes), label_(label) {}

  template <class T>
  T get(const std::string& what) {
    T value;
    if (left() < sizeof(T)) cut(what);
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string_view string(const std::string& what) {
    const auto length = get<std::uint64_t>(what);
    if (length > left())
      fail(fmt::format("{} claims {} bytes, but only {} follow: truncated or damaged", what, length,
                       left()));
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }

  /// A number of elements of at least so many bytes each.
  std::uint64_t count(const std::string& what, std::uint64_t least_bytes) {
    const auto n = get<std::uint64_t>(what);
    if (n > left() / least_bytes)
      fail(
          fmt::format("{} claims {} elements, more than the {} bytes that follow hold: truncated "
                      "or damaged",
                      what, n, left()));
    return n;
  }

  void skip(std::uint64_t n) { at_ += n; }  // n <= left()
  std::uint64_t left() const { return bytes_.size() - at_; }
  std::uint64_t at() const { return at_; }

  /// Damage.
  [[noreturn]] void fail(const std::string& what) const {
    refuse(what + "; fetch or convert the file again");
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", label_, what));
  }

 private:
  [[noreturn]] void cut(const std::string& what) const {
    fail(fmt::format("ends within {}: truncated or damaged", what));
  }

  std::span<const std::byte> bytes_;
  std::string_view label_;
  std::uint64_t at_ = 0;
};

std::uint64_t bytes_of(std::uint32_t kind) {
  switch (kind) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
    case kString:  // at least its length
      return 8;
    case kArray:
      return 12;  // at least the kind and number of its elements
    default:
      return 0;
  }
}

std::int64_t read_integer(Reader& in, std::uint32_t kind, const std::string& what) {
  switch (kind) {
    case kU8:
      return in.get<std::uint8_t>(what);
    case kI8:
      return in.get<std::int8_t>(what);
    case kU16:
      return in.get<std::uint16_t>(what);
    case kI16:
      return in.get<std::int16_t>(what);
    case kU32:
      return in.get<std::uint32_t>(what);
    case kI32:
      return in.get<std::int32_t>(what);
    case kU64: {
      const auto value = in.get<std::uint64_t>(what);
      if (value > kMostBytes) in.fail(fmt::format("{} is {}, which is out of range", what, value));
      return static_cast<std::int64_t>(value);
    }
    default:
      return in.get<std::int64_t>(what);
  }
}

double read_number(Reader& in, std::uint32_t kind, const std::string& what) {
  return kind == kF32 ? static_cast<double>(in.get<float>(what)) : in.get<double>(what);
}

bool read_bool(Reader& in, const std::string& what) {
  const auto value = in.get<std::uint8_t>(what);
  if (value > 1) in.fail(fmt::format("{} is a truth value of {}", what, value));
  return value != 0;
}

GgufValue read_array(Reader& in, const std::string& what, int depth);

GgufValue read_value(Reader& in, std::uint32_t kind, const std::string& what) {
  switch (kind) {
    case kF32:
    case kF64:
      return read_number(in, kind, what);
    case kBool:
      return read_bool(in, what);
    case kString:
      return in.string(what);
    case kArray:
      return read_array(in, what, 1);
    default:
      if (bytes_of(kind) == 0)
        in.fail(fmt::format("{} is of kind {}, which the format does not have", what, kind));
      return read_integer(in, kind, what);
  }
}

GgufValue read_array(Reader& in, const std::string& what, int depth) {
  const auto kind = in.get<std::uint32_t>(what);
  const std::uint64_t least = bytes_of(kind);
  if (least == 0)
    in.fail(fmt::format("{} is an array of kind {}, which the format does not have", what, kind));
  const std::uint64_t n = in.count(what, least);
  if (n > kMostElements)
    in.fail(fmt::format("{} claims {} elements, more than {}", what, n, kMostElements));
  const auto all = [&](auto values, auto&& read) -> GgufValue {
    values.reserve(n);
    for (std::uint64_t i = 0; i < n; ++i) values.push_back(read());
    return values;
  };
  switch (kind) {
    case kF32:
    case kF64:
      return all(std::vector<double>(), [&] { return read_number(in, kind, what); });
    case kBool:
      return all(std::vector<bool>(), [&] { return read_bool(in, what); });
    case kString:
      return all(std::vector<std::string_view>(), [&] { return in.string(what); });
    case kArray:
      if (depth == kDeepest) in.fail(fmt::format("{} is nested too deep", what));
      for (std::uint64_t i = 0; i < n; ++i) read_array(in, what, depth + 1);
      return GgufNested{};
    default:
      return all(std::vector<std::int64_t>(), [&] { return read_integer(in, kind, what); });
  }
}

/// The data's begin: after the header, at the next multiple of the file's alignment.
std::uint64_t alignment_of(const GgufContent& content, const Reader& in) {
  const auto it = content.metadata.find("general.alignment");
  if (it == content.metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<std::int64_t>(&it->second);
  if (value == nullptr || *value < 1 || *value > static_cast<std::int64_t>(kMostAlignment) ||
      !std::has_single_bit(static_cast<std::uint64_t>(*value)))
    in.fail(fmt::format("general.alignment is no power of two up to {}", kMostAlignment));
  return static_cast<std::uint64_t>(*value);
}

struct Listed {
  StoredTensor view;
  std::uint64_t offset;  // within the data
};

Listed read_listed(Reader& in) {
  Listed t;
  t.view.name = in.string("a tensor's name");
  const std::string what = fmt::format("tensor '{}'", printable(t.view.name));
  const auto rank = in.get<std::uint32_t>(what);
  if (rank > kMostDimensions)
    in.fail(fmt::format("{} has {} dimensions, more than {}", what, rank, kMostDimensions));
  std::uint64_t elements = 1, without_zeros = 1;  // the second: no part of the shape overflows
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto d = in.get<std::uint64_t>(what);
    if (d > kMostBytes ||
        __builtin_mul_overflow(without_zeros, std::max<std::uint64_t>(1, d), &without_zeros) ||
        without_zeros > kMostBytes)
      in.fail(fmt::format("{}: its shape overflows", what));
    elements *= d;
    t.view.shape.insert(t.view.shape.begin(),
                        static_cast<std::int64_t>(d));  // the file: innermost first
  }
  const auto number = in.get<std::uint32_t>(what);
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const TypeNumber& known) { return known.number == number; });
  if (type == std::end(kTypes))
    in.refuse(
        fmt::format("{} is of type number {}, which is not supported; convert the model to "
                    "one of: {}",
                    what, number, names_of_types()));
  t.view.type = type->type;
  const auto block = static_cast<std::uint64_t>(block_elements(t.view.type));
  const std::uint64_t row =
      t.view.shape.empty() ? 1 : static_cast<std::uint64_t>(t.view.shape.back());
  if (row % block != 0)
    in.fail(fmt::format("{}: rows of {} elements are no whole blocks of {} ({})", what, row, block,
                        name_of(t.view.type)));
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block, static_cast<std::uint64_t>(block_bytes(t.view.type)),
                             &bytes) ||
      bytes > kMostBytes)
    in.fail(fmt::format("{}: its shape overflows", what));
  t.view.bytes = static_cast<std::int64_t>(bytes);
  t.offset = in.get<std::uint64_t>(what);
  return t;
}

void place(Listed& t, std::span<const std::byte> data, std::uint64_t alignment, const Reader& in) {
  const std::string what = fmt::format("tensor '{}'", printable(t.view.name));
  const auto bytes = static_cast<std::uint64_t>(t.view.bytes);
  if (t.offset % alignment != 0)
    in.fail(fmt::format("{}: its offset {} is no multiple of the alignment {}", what, t.offset,
                        alignment));
  if (t.offset > data.size() || bytes > data.size() - t.offset)
    in.fail(
        fmt::format("{}: needs {} bytes at offset {}, but the file holds {} bytes of data: the "
                    "file is truncated",
                    what, bytes, t.offset, data.size()));
  if (bytes > 0) t.view.data = data.data() + t.offset;
}

void refuse_overlaps(const std::vector<StoredTensor>& tensors, const Reader& in) {
  std::vector<const StoredTensor*> by_place;
  for (const StoredTensor& t : tensors)
    if (t.bytes > 0) by_place.push_back(&t);
  std::sort(by_place.begin(), by_place.end(), [](auto* a, auto* b) { return a->data < b->data; });
  for (std::size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i - 1]->data + by_place[i - 1]->bytes > by_place[i]->data)
      in.fail(fmt::format("tensors '{}' and '{}' overlap", printable(by_place[i - 1]->name),
                          printable(by_place[i]->name)));
}

void check_start(Reader& in, std::span<const std::byte> bytes, std::string_view label) {
  if (const std::string what = found_instead(bytes.first(std::min<std::size_t>(64, bytes.size())),
                                             std::filesystem::path(label));
      !what.empty() && in.left() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) != 0)
    in.refuse("is no GGUF file: " + what);
  if (in.left() < 24) in.fail(fmt::format("{} bytes are too few for a GGUF file", in.left()));
  if (in.get<std::uint32_t>("its magic") != 0x46554747)  // "GGUF"
    in.fail("is no GGUF file: it does not begin with GGUF");
  const auto version = in.get<std::uint32_t>("its version");
  if (version == 0x02000000 || version == 0x03000000)
    in.fail("is a big-endian GGUF file, which is not supported");
  if (version != 2 && version != 3)
    in.fail(fmt::format("is of GGUF version {}; supported are 2 and 3", version));
}

}  // namespace

std::optional<std::uint32_t> gguf_type_number(TensorType type) {
  for (const TypeNumber& t : kTypes)
    if (t.type == type) return t.number;
  return std::nullopt;
}

GgufContent parse_gguf(std::span<const std::byte> bytes, std::string_view label) {
  Reader in(bytes, label);
  check_start(in, bytes, label);
  // the least that an entry takes: name's length, dimensions, type, offset; key's length, kind,
  // value
  const std::uint64_t n_tensors = in.count("its list of tensors", 24);
  const std::uint64_t n_values = in.count("its metadata", 13);
  if (n_values > kMostKeys)
    in.fail(fmt::format("its metadata claim {} keys, more than {}", n_values, kMostKeys));
  GgufContent content;
  for (std::uint64_t i = 0; i < n_values; ++i) {
    const std::string_view key = in.string("a key of the metadata");
    const std::string what = fmt::format("'{}'", printable(key));
    const auto kind = in.get<std::uint32_t>(what);
    GgufValue value = read_value(in, kind, what);
    if (!content.metadata.emplace(key, std::move(value)).second)
      in.fail(fmt::format("the key {} stands twice", what));
  }
  const std::uint64_t alignment = alignment_of(content, in);
  if (n_tensors > in.left() / 24)
    in.fail(
        fmt::format("claims {} tensors, more than the {} bytes that follow can list: truncated "
                    "or damaged",
                    n_tensors, in.left()));
  std::vector<Listed> listed;
  for (std::uint64_t i = 0; i < n_tensors; ++i) listed.push_back(read_listed(in));

  const std::uint64_t padding = (alignment - in.at() % alignment) % alignment;
  in.skip(std::min(padding, in.left()));
  const auto data = bytes.subspan(in.at());
  for (Listed& t : listed) {
    place(t, data, alignment, in);
    content.tensors.push_back(std::move(t.view));
  }
  auto& tensors = content.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i - 1].name == tensors[i].name)
      in.fail(fmt::format("tensor '{}' stands twice", printable(tensors[i].name)));
  refuse_overlaps(tensors, in);
  return content;
}

namespace {

/// NAME-00001-of-00003.gguf
struct SplitName {
  std::string stem;
  std::int64_t number = 0, count = 0;
};

std::optional<SplitName> split_name(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  constexpr std::size_t kTail = std::string_view("-00001-of-00001.gguf").size();
  if (name.size() < kTail) return std::nullopt;
  const std::string_view tail = std::string_view(name).substr(name.size() - kTail);
  const auto number = [](std::string_view digits) -> std::int64_t {
    std::int64_t value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return -1;
      value = value * 10 + (c - '0');
    }
    return value;
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf")
    return std::nullopt;
  SplitName split{.stem = name.substr(0, name.size() - kTail),
                  .number = number(tail.substr(1, 5)),
                  .count = number(tail.substr(10, 5))};
  if (split.number < 1 || split.count < split.number) return std::nullopt;
  return split;
}

GgufContent parse_file(const MappedFile& file) {
  return parse_gguf(file.bytes(), file.path().string());
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) {
  const auto split = split_name(path);
  const std::int64_t count = split ? split->count : 1;
  for (std::int64_t i = 0; i < count; ++i) {
    std::filesystem::path part = path;
    if (split)
      part.replace_filename(fmt::format("{}-{:05}-of-{:05}.gguf", split->stem, i + 1, count));
    std::error_code ignored;
    if (split && part != path && !std::filesystem::exists(part, ignored))
      throw FileError(fmt::format("{}: part {} of {} is not beside {}; fetch it too", part.string(),
                                  i + 1, count, path.filename().string()));
    MappedFile file(part);
    GgufContent content = parse_file(file);
    parts_.push_back({std::move(file), std::move(content)});
    const auto& metadata = parts_.back().content.metadata;
    const auto says = [&](std::string_view key, std::int64_t otherwise) {
      const auto it = metadata.find(key);
      const auto* value = it == metadata.end() ? nullptr : std::get_if<std::int64_t>(&it->second);
      return value == nullptr ? otherwise : *value;
    };
    if (says("split.count", count) != count || says("split.no", i) != i)
      throw FileError(fmt::format(
          "{}: says that it is part {} of {}, its name says {} of {}; give the files of a split "
          "model the names they had",
          part.string(), says("split.no", i) + 1, says("split.count", count), i + 1, count));
  }
  for (std::size_t i = 0; i < parts_.size(); ++i)
    for (const StoredTensor& t : parts_[i].content.tensors)
      if (!places_.emplace(t.name, Place{i, &t}).second)
        throw FileError(
            fmt::format("{}: tensor '{}' stands in another part too; fetch the parts "
                        "again",
                        parts_[i].file.path().string(), printable(t.name)));
}

std::vector<const StoredTensor*> GgufFile::tensors() const {
  std::vector<const StoredTensor*> all;
  for (const auto& [name, place] : places_) all.push_back(place.view);
  return all;
}

const StoredTensor* GgufFile::find(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? nullptr : it->second.view;
}

std::filesystem::path GgufFile::file_of(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? path() : parts_[it->second.part].file.path();
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto& metadata = parts_.front().content.metadata;
  const auto it = metadata.find(key);
  return it == metadata.end() ? nullptr : &it->second;
}

void GgufFile::fail(std::string_view key, const std::string& what) const {
  throw FileError(fmt::format("{}: {} {}", path().string(), printable(key), what));
}

namespace {

/// The value as a T; null if there is none.
template <class T>
const T* typed(const GgufFile& file, const GgufValue* value, std::string_view key,
               const char* kind) {
  if (value == nullptr) return nullptr;
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr) file.fail(key, fmt::format("is no {}; convert the file again", kind));
  return typed;
}

template <class T>
std::optional<T> copy(const T* value) {
  return value == nullptr ? std::nullopt : std::optional<T>(*value);
}

}  // namespace

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  return copy(typed<std::int64_t>(*this, value(key), key, "integer"));
}
std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* v = value(key);
  if (v != nullptr)
    if (const auto* whole = std::get_if<std::int64_t>(v)) return static_cast<double>(*whole);
  return copy(typed<double>(*this, v, key, "number"));
}
std::optional<bool> GgufFile::boolean(std::string_view key) const {
  return copy(typed<bool>(*this, value(key), key, "truth value"));
}
std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  return copy(typed<std::string_view>(*this, value(key), key, "string"));
}
const std::vector<std::int64_t>* GgufFile::integers(std::string_view key) const {
  return typed<std::vector<std::int64_t>>(*this, value(key), key, "list of integers");
}
const std::vector<double>* GgufFile::numbers(std::string_view key) const {
  return typed<std::vector<double>>(*this, value(key), key, "list of numbers");
}
const std::vector<bool>* GgufFile::booleans(std::string_view key) const {
  return typed<std::vector<bool>>(*this, value(key), key, "list of truth values");
}
const std::vector<std::string_view>* GgufFile::strings(std::string_view key) const {
  return typed<std::vector<std::string_view>>(*this, value(key), key, "list of strings");
}

}  // namespace episodic
