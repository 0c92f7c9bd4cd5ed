// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"

namespace episodic {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

/// A file under a temporary name; gone unless commit was reached.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path) : path_(path), temporary_(path) {
    static std::atomic<unsigned> serial{0};
    temporary_ += fmt::format(".{}.{}.part", ::getpid(), serial++);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) fail();
  }

  ~AtomicFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!committed_) ::unlink(temporary_.c_str());
  }

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t n) {
    const char* p = static_cast<const char*>(data);
    while (n > 0) {
      const ssize_t written = ::write(fd_, p, std::min<std::size_t>(n, std::size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      p += written;
      n -= static_cast<std::size_t>(written);
    }
  }

  void commit() {
    if (::fsync(fd_) != 0) fail();
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) fail();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    committed_ = true;
  }

 private:
  [[noreturn]] void fail() {
    const int code = errno;
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    ::unlink(temporary_.c_str());  // a constructor that throws runs no destructor
    throw FileError(
        fmt::format("{}: cannot be written ({}); check the directory and the space left",
                    path_.string(), std::strerror(code)));
  }

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  bool committed_ = false;
};

std::uint64_t bytes_of(const TensorToWrite& t) {
  if (block_elements(t.type) != 1)
    throw DataError(
        fmt::format("write_safetensors: tensor '{}' is {}, which safetensors files "
                    "cannot hold; widen it first",
                    t.name, name_of(t.type)));
  std::uint64_t bytes = static_cast<std::uint64_t>(block_bytes(t.type));
  for (const std::int64_t d : t.shape)
    if (d < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(d), &bytes))
      throw DataError(
          fmt::format("write_safetensors: tensor '{}': a size of {} is out of range", t.name, d));
  return bytes;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& t : tensors) order.push_back(&t);
  // widest elements first: then every tensor starts at a multiple of its element size
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    if (block_bytes(a->type) != block_bytes(b->type))
      return block_bytes(a->type) > block_bytes(b->type);
    return a->name < b->name;
  });

  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite* t : order) {
    if (t->name == "__metadata__" || header.contains(t->name))
      throw DataError(
          fmt::format("write_safetensors: the name '{}' is {}; name the tensor otherwise", t->name,
                      t->name == "__metadata__" ? "reserved" : "used twice"));
    const std::uint64_t end = offset + bytes_of(*t);
    header[t->name] = {
        {"dtype", name_of(t->type)}, {"shape", t->shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    throw DataError(
        fmt::format("write_safetensors: names and metadata must be UTF-8 ({})", e.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts at a multiple of 8 bytes

  AtomicFile file(path);
  const std::uint64_t length = text.size();
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const TensorToWrite* t : order) file.write(t->data, bytes_of(*t));
  file.commit();
}

}  // namespace episodic
