// SPDX-License-Identifier: Apache-2.0
#include "run/fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <vector>

#include "data/sha256.hpp"
#include "episodic/base/error.hpp"

namespace episodic::suites {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kEnd = 1 << 20, kPiece = 64 << 10, kPieces = 64;

/// Adds the bytes from `begin` to `end`.
void add_bytes(Sha256& hash, std::ifstream& in, const fs::path& file, std::uint64_t begin,
               std::uint64_t end) {
  std::vector<char> buffer(kEnd);
  in.seekg(static_cast<std::streamoff>(begin));
  while (begin < end) {
    const std::uint64_t n = std::min<std::uint64_t>(buffer.size(), end - begin);
    if (!in.read(buffer.data(), static_cast<std::streamsize>(n)))
      throw FileError(fmt::format("{}: cannot be read to its end; check the file", file.string()));
    hash.add({buffer.data(), static_cast<std::size_t>(n)});
    begin += n;
  }
}

std::ifstream open(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || fs::is_directory(file))
    throw FileError(fmt::format("{}: cannot be opened", file.string()));
  return in;
}

void add_samples(Sha256& hash, const fs::path& file) {
  std::ifstream in = open(file);
  const std::uint64_t size = fs::file_size(file);
  hash.add(fmt::format("{}\n{}\n", file.filename().string(), size));
  if (size <= 2 * kEnd + kPieces * kPiece) return add_bytes(hash, in, file, 0, size);
  add_bytes(hash, in, file, 0, kEnd);
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    const std::uint64_t begin = kEnd + (size - 2 * kEnd - kPiece) / kPieces * i;
    add_bytes(hash, in, file, begin, begin + kPiece);
  }
  add_bytes(hash, in, file, size - kEnd, size);
}

/// Whether the file decides what a model answers: not its memory.json, which settings hold anyway.
bool counts(const fs::path& file) {
  const std::string name = file.filename().string(), kind = file.extension().string();
  if (kind == ".safetensors" || kind == ".gguf" || kind == ".jinja" || kind == ".model")
    return true;
  return name == "config.json" || name == "adapter_config.json" || name.starts_with("tokenizer");
}

}  // namespace

std::string file_sha256(const fs::path& file) {
  Sha256 hash;
  std::ifstream in = open(file);
  add_bytes(hash, in, file, 0, fs::file_size(file));
  return hash.hex();
}

std::string sampled_sha256(const fs::path& model) {
  std::vector<fs::path> files;
  if (fs::is_directory(model)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(model))
      if (entry.is_regular_file() && counts(entry.path())) files.push_back(entry.path());
  } else {
    files.push_back(model);
  }
  std::sort(files.begin(), files.end());
  Sha256 hash;
  for (const fs::path& file : files) add_samples(hash, file);
  return hash.hex();
}

}  // namespace episodic::suites
