// SPDX-License-Identifier: Apache-2.0
// The input is the list of token files that a state holds, as long as its first byte says, and then
// a token file.
#include <algorithm>
#include <cstring>
#include <span>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "folder.hpp"
#include "memory/token_log.hpp"

using namespace episodic;
using detail::TokenLog;

namespace {

constexpr std::size_t kHeader = 24, kBlockHeader = 32;

struct Files {
  fuzz::Folder folder;
  std::string name, good, list;
  std::uint64_t id = 0;

  Files() {
    TokenLog log(folder.path(), io::system_calls());
    const std::int64_t ids[] = {1, 2, 3, 4, 5, 6, 7};
    log.push(ids, 7);
    log.sync();
    log.push(ids, 3);
    log.push(nullptr, 2);
    log.sync();
    id = log.parts()[0].id;
    name = TokenLog::file_name(id);
    good = folder.read(name);
    ByteWriter w;
    log.save(w);
    list.assign(reinterpret_cast<const char*>(w.bytes().data()), w.bytes().size());
  }
};

Files& files() {
  static Files files;
  return files;
}

/// The checksums of the first block made right, if it can be one.
void put_checksums(std::string& file) {
  if (file.size() < kHeader + kBlockHeader) return;
  const auto sum = [&](std::size_t at, std::size_t n, std::uint64_t seed) {
    return checksum(std::as_bytes(std::span(file.data() + at, n)), seed);
  };
  const auto put = [&](std::size_t at, std::uint64_t value) {
    std::memcpy(file.data() + at, &value, sizeof value);
  };
  put(kHeader - 8, sum(0, kHeader - 8, 0));
  std::uint32_t count;
  std::memcpy(&count, file.data() + kHeader + 4, sizeof count);
  const std::size_t body = kHeader + kBlockHeader;
  if (count > (file.size() - body) / 4) return;
  put(kHeader + 24, sum(body, std::size_t{count} * 4, sum(kHeader + 4, 20, 0)));
}

void use(std::span<const std::byte> list, const std::string& file) {
  Files& f = files();
  f.folder.write(f.name, file);
  try {
    TokenLog log(f.folder.path(), io::system_calls());
    ByteReader from(list, "fuzz");
    log.load(from);
    for (const TokenLog::Part& part : log.parts())
      TokenLog::verify(f.folder.path(), part, io::system_calls());
    const std::vector<std::uint32_t> all = log.read(0, log.tokens());
    fuzz::require(static_cast<std::int64_t>(all.size()) == log.tokens(), "all tokens are read");
    log.truncate(log.tokens() / 2);
    fuzz::require(log.read(log.tokens(), 0).empty(), "no tokens are read");
  } catch (const Error& e) {
    fuzz::require(std::string_view(e.what()).size() < 2000, "a message is short");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string input =
      fuzz::with_id({reinterpret_cast<const char*>(data), size}, fuzz::kTokensId, files().id);
  const std::size_t length = std::min<std::size_t>(data[0], size - 1);
  const std::vector<char> copy(input.begin() + 1,
                               input.begin() + 1 + static_cast<std::ptrdiff_t>(length));
  std::string file = input.substr(1 + length);
  use(std::as_bytes(std::span(copy)), file);
  put_checksums(file);
  use(std::as_bytes(std::span(copy)), file);
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  const Files& f = files();
  return {
      with_id(std::string(1, static_cast<char>(f.list.size())) + f.list + f.good, f.id, kTokensId)};
}
void repair(std::string&) {}

}  // namespace fuzz
