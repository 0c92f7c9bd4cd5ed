// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/safetensors.hpp"

#include <cstring>
#include <numeric>

#include "episodic/base/error.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace safetensors_test {

/// The bytes of a file with this header and this much data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

SafetensorsContent parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "some.safetensors");
}

std::string error_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const FileError& e) {
    return e.what();
  }
  return "no error";
}

/// Each message names the file, so that only the rest is asked for.
void refuses(const std::string& header, std::size_t data, const std::string& because) {
  const std::string error = error_of(file_of(header, data));
  INFO(header << " -> " << error);
  REQUIRE(error.find("some.safetensors: ") == 0);
  REQUIRE(error.find(because) != std::string::npos);
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

void contains(const std::string& text, const std::string& part) {
  INFO(text << "   should contain   " << part);
  REQUIRE(mentions(text, part));
}

TEST_CASE("safetensors: what was written is read back") {
  const TempDir dir;
  std::vector<float> f(6);
  std::iota(f.begin(), f.end(), -2.5f);
  const std::vector<std::int64_t> l{1, -2, std::int64_t{1} << 40};
  const std::vector<std::int32_t> i{7, -7};
  const std::vector<std::uint8_t> u{1, 2, 255};
  const std::vector<TensorToWrite> tensors{
      {"z.f", TensorType::f32, {2, 3}, f.data()}, {"u", TensorType::u8, {3}, u.data()},
      {"l", TensorType::i64, {3}, l.data()},      {"i", TensorType::i32, {1, 2}, i.data()},
      {"scalar", TensorType::f32, {}, f.data()},  {"empty", TensorType::f32, {0, 4}, nullptr}};
  write_safetensors(dir / "a.safetensors", tensors, {{"format", "pt"}});
  const SafetensorsFile file(dir / "a.safetensors");
  REQUIRE(file.tensors().size() == 6);
  REQUIRE(file.metadata().at("format") == "pt");
  for (const TensorToWrite& t : tensors) {
    const StoredTensor& view = file.at(t.name);
    REQUIRE(view.type == t.type);
    REQUIRE(view.shape == t.shape);
    if (view.bytes > 0)
      REQUIRE(std::memcmp(view.data, t.data, static_cast<std::size_t>(view.bytes)) == 0);
    REQUIRE(reinterpret_cast<std::uintptr_t>(view.data) %
                static_cast<std::size_t>(block_bytes(view.type)) ==
            0);
  }
  REQUIRE(file.at("scalar").elements() == 1);
  REQUIRE(file.at("empty").elements() == 0);
  REQUIRE(file.find("nothing") == nullptr);
  contains(refusal<FileError>([&] { file.at("nothing"); }), "'nothing'");

  // other order, same bytes; nothing but the two files remains
  std::vector<TensorToWrite> reversed(tensors.rbegin(), tensors.rend());
  write_safetensors(dir / "b.safetensors", reversed, {{"format", "pt"}});
  const MappedFile a(dir / "a.safetensors"), b(dir / "b.safetensors");
  REQUIRE(std::ranges::equal(a.bytes(), b.bytes()));
  REQUIRE(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 2);
}

TEST_CASE("safetensors: the writer refuses what it cannot write") {
  const TempDir dir;
  const float x = 1;
  const std::vector<TensorToWrite> twice(2, {"w", TensorType::f32, {1}, &x});
  REQUIRE_THROWS_AS(write_safetensors(dir / "f", twice), DataError);
  const std::vector<TensorToWrite> negative{{"w", TensorType::f32, {-1}, &x}};
  REQUIRE_THROWS_AS(write_safetensors(dir / "f", negative), DataError);
  const std::vector<TensorToWrite> reserved{{"__metadata__", TensorType::f32, {1}, &x}};
  REQUIRE_THROWS_AS(write_safetensors(dir / "f", reserved), DataError);
  const std::vector<TensorToWrite> good{{"w", TensorType::f32, {1}, &x}};
  contains(refusal<FileError>([&] { write_safetensors(dir / "no" / "f", good); }),
           "cannot be written");
  REQUIRE(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("safetensors: every dtype is known by its name") {
  for (const char* name : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I16", "U16", "F16",
                           "BF16", "I32", "U32", "F32", "F64", "I64", "U64", "C64"}) {
    const std::string header = one(name, "[0]", "[0,0]");
    const auto content = parse(file_of(header, 0));
    REQUIRE(std::string(name_of(content.tensors.at(0).type)) == name);
  }
}

TEST_CASE("safetensors: padding, metadata only and unclaimed bytes are legal") {
  REQUIRE(parse(file_of("{}      ", 0)).tensors.empty());
  REQUIRE(parse(file_of(R"({"__metadata__":{"a":"b"}})", 0)).metadata.at("a") == "b");
  const std::string file = file_of(one("U8", "[2]", "[3,5]"), 9);  // which the content points into
  const auto content = parse(file);
  REQUIRE(std::to_integer<int>(content.tensors.at(0).data[0]) == 3);
}

TEST_CASE("safetensors: a missing file, a directory, an empty file") {
  const TempDir dir;
  const std::string missing = refusal<FileError>([&] { SafetensorsFile(dir / "no.safetensors"); });
  contains(missing, "no.safetensors: cannot be opened");
  contains(refusal<FileError>([&] { SafetensorsFile(dir.path()); }), "not a regular file");
  dir.write("empty.safetensors", "");
  contains(refusal<FileError>([&] { SafetensorsFile(dir / "empty.safetensors"); }), "too few");
}

TEST_CASE("safetensors: a truncated file") {
  const std::string whole = file_of(one("F32", "[2,2]", "[0,16]"), 16);
  REQUIRE(parse(whole).tensors.size() == 1);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string error = error_of(whole.substr(0, n));
    INFO(n << " " << error);
    REQUIRE(error != "no error");
  }
  contains(error_of(whole.substr(0, whole.size() - 1)),
           "'w': its data ends at byte 16, but the file "
           "holds 15");
}

TEST_CASE("safetensors: a header length that lies") {
  std::string bytes = file_of(one("F32", "[1]", "[0,4]"), 4);
  for (const std::uint64_t lie :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{10}, std::uint64_t(bytes.size()),
        std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    std::memcpy(bytes.data(), &lie, 8);
    const std::string error = error_of(bytes);
    INFO(lie << " " << error);
    REQUIRE(error != "no error");
  }
  contains(error_of(bytes), "claims 18446744073709551615 bytes");
}

TEST_CASE("safetensors: a header that is no JSON object") {
  refuses("{", 0, "not valid JSON");
  refuses("[]", 0, "not a JSON object");
  refuses("\"w\"", 0, "not a JSON object");
  refuses("{\"w\xff\":1}", 0, "not valid JSON");
  refuses("{\"a\":[[[[[[[[1]]]]]]]]}", 0, "deep");
  refuses(R"({"w":3})", 0, "not an object");
  refuses(R"({"__metadata__":[]})", 0, "__metadata__");
  refuses(R"({"__metadata__":{"a":1}})", 0, "__metadata__");
}

TEST_CASE("safetensors: an incomplete entry") {
  refuses(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4, "'w': its header entry has no dtype");
  refuses(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4, "no shape");
  refuses(R"({"w":{"dtype":"F32","shape":[1]}})", 4, "no data_offsets");
}

TEST_CASE("safetensors: an unknown dtype") {
  refuses(one("F99", "[1]", "[0,4]"), 4, "'w': its dtype \"F99\" is not known");
  refuses(R"({"w":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "not known");
}

TEST_CASE("safetensors: a shape that does not fit") {
  refuses(one("F32", "[3]", "[0,16]"), 16, "span 16 bytes, but shape and dtype need 12");
  refuses(one("F32", "4", "[0,16]"), 16, "shape is not a list");
  refuses(one("F32", "[-4]", "[0,16]"), 16, "integers >= 0");
  refuses(one("F32", "[4.0]", "[0,16]"), 16, "integers >= 0");
  refuses(one("F32", "[4294967296,4294967296,4294967296]", "[0,16]"), 16, "overflows");
  refuses(one("F32", "[9223372036854775808]", "[0,16]"), 16, "overflows");
  refuses(one("F32", "[0,4294967296,4294967296]", "[0,0]"), 16, "overflows");
  refuses(one("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]", "[0,16]"), 16, "dimensions");
}

TEST_CASE("safetensors: ranges that do not hold") {
  refuses(one("F32", "[1]", "[4,0]"), 16, "backwards");
  refuses(one("F32", "[4]", "[4,20]"), 16, "truncated");
  refuses(one("F32", "[4]", "[0,18446744073709551615]"), 16, "truncated");
  refuses(one("F32", "[4]", "[0,99999999999999999999]"), 16, "integers >= 0");
  refuses(one("F32", "[4]", "[0]"), 16, "two numbers");
  refuses(one("F32", "[4]", "[-1,15]"), 16, "integers >= 0");
}

TEST_CASE("safetensors: overlapping tensors") {
  refuses(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
          8, "'a' and 'b' overlap");
}

TEST_CASE("safetensors: a repeated name") {
  refuses(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
          8, "'w' stands twice");
  refuses(R"({"w":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4,
          "'dtype' stands twice");
}

void write_one(const std::filesystem::path& path, const std::string& name, float value) {
  const TensorToWrite t{name, TensorType::f32, {1}, &value};
  write_safetensors(path, {&t, 1});
}

TEST_CASE("weights: one file, or shards by their index") {
  const TempDir dir;
  contains(refusal<FileError>([&] { Weights w(dir.path()); }), "neither model.safetensors");
  write_one(dir / "one-of-2.safetensors", "a", 1);
  write_one(dir / "two-of-2.safetensors", "b", 2);
  dir.write("model.safetensors.index.json",
            R"({"metadata":{"total_size":8},"weight_map":{"a":"one-of-2.safetensors",)"
            R"("b":"two-of-2.safetensors"}})");
  {
    const Weights w(dir.path());
    float b = 0;
    std::memcpy(&b, w.at("b").data, 4);
    REQUIRE(b == 2);
    REQUIRE(w.file_of("b").filename() == "two-of-2.safetensors");
    REQUIRE(w.find("c") == nullptr);
    const std::string error = refusal<FileError>([&] { w.at("c"); });
    contains(error, "model.safetensors.index.json: has no tensor 'c'");
  }
  write_one(dir / "model.safetensors", "c", 3);
  REQUIRE(Weights(dir.path()).find("c") != nullptr);
}

TEST_CASE("weights: a missing shard") {
  const TempDir dir;
  dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"gone.safetensors"}})");
  contains(refusal<FileError>([&] { Weights w(dir.path()); }),
           "gone.safetensors: is not there, but model.safetensors.index.json lists it");
}

TEST_CASE("weights: a shard without the tensor that the index promises") {
  const TempDir dir;
  write_one(dir / "s.safetensors", "a", 1);
  dir.write("model.safetensors.index.json", R"({"weight_map":{"b":"s.safetensors"}})");
  contains(refusal<FileError>([&] { Weights w(dir.path()); }), "s.safetensors: has no tensor 'b'");
}

TEST_CASE("weights: a shard name that leaves the directory") {
  const TempDir dir;
  for (const char* name : {"../s.safetensors", "..", ".", "", "/etc/passwd", "a/b.safetensors",
                           "a\\\\b", "a\\u0000b"}) {
    dir.write("model.safetensors.index.json",
              std::string(R"({"weight_map":{"a":")") + name + "\"}}");
    contains(refusal<FileError>([&] { Weights w(dir.path()); }), "not a plain file name");
  }
}

TEST_CASE("weights: a damaged index") {
  const TempDir dir;
  for (const char* text : {"", "{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"x","a":"y"}})"}) {
    dir.write("model.safetensors.index.json", text);
    contains(refusal<FileError>([&] { Weights w(dir.path()); }), "model.safetensors.index.json: ");
  }
}

}  // namespace safetensors_test
