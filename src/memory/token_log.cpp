// SPDX-License-Identifier: Apache-2.0
#include "token_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/checksum.hpp"
#include "base/unique_id.hpp"

namespace episodic::detail {
namespace {

constexpr std::uint32_t kFileMagic = 0x4b544945, kBlockMagic = 0x42544945;  // "EITK", "EITB"
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kHeader = 24;       // of the file: magic, version, id, checksum
constexpr std::int64_t kBlockHeader = 32;  // magic, count, first token, file id, checksum
constexpr std::int64_t kMostInBlock = 1 << 16;
constexpr std::int64_t kIdBytes = sizeof(std::uint32_t);
// Bounds of what a damaged list may claim: sums of them stay far from the end of an int64.
constexpr std::uint64_t kMostParts = 1 << 20;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;

struct Block {
  std::int64_t first = 0;
  std::vector<std::uint32_t> ids;
  std::int64_t bytes() const { return kBlockHeader + static_cast<std::int64_t>(ids.size()) * 4; }
};

std::uint64_t block_checksum(std::uint32_t count, std::int64_t first, std::uint64_t file,
                             std::span<const std::uint32_t> ids) {
  ByteWriter head;
  head.put(count);
  head.put(first);
  head.put(file);
  return checksum_of(ids, checksum(head.bytes()));
}

std::vector<std::byte> file_header(std::uint64_t id) {
  ByteWriter w;
  w.put(kFileMagic);
  w.put(kVersion);
  w.put(id);
  w.put(checksum(w.bytes()));
  return w.take();
}

[[noreturn]] void damaged(const io::File& file, std::int64_t at) {
  throw FileError(fmt::format(
      "{}: the tokens at byte {} are damaged; take the folder from a copy, or ingest the text anew",
      file.path().string(), at));
}

/// The block at `offset` of a file of `end` bytes.
Block read_block(const io::File& file, std::uint64_t id, std::int64_t offset, std::int64_t end) {
  std::vector<std::byte> head(kBlockHeader);
  if (end - offset < kBlockHeader) damaged(file, offset);
  file.read(head, offset);
  ByteReader r(head, file.path().string());
  const auto magic = r.get<std::uint32_t>(), count = r.get<std::uint32_t>();
  Block block;
  block.first = r.get<std::int64_t>();
  const auto owner = r.get<std::uint64_t>(), sum = r.get<std::uint64_t>();
  if (magic != kBlockMagic || owner != id || count == 0 || count > kMostInBlock ||
      end - offset - kBlockHeader < static_cast<std::int64_t>(count) * 4)
    damaged(file, offset);
  block.ids.resize(count);
  file.read(std::as_writable_bytes(std::span(block.ids)), offset + kBlockHeader);
  if (block_checksum(count, block.first, id, block.ids) != sum) damaged(file, offset);
  return block;
}

io::File open_part(const io::Directory& folder, const TokenLog::Part& part) {
  io::File file = folder.open(io::Kind::tokens, TokenLog::file_name(part.id));
  std::vector<std::byte> head(kHeader);
  file.read(head, 0);
  if (head != file_header(part.id)) damaged(file, 0);
  return file;
}

}  // namespace

TokenLog::TokenLog(const std::filesystem::path& dir, io::Syscalls& calls) : folder_(calls, dir) {}

std::string TokenLog::file_name(std::uint64_t id) { return fmt::format("tokens-{:016x}.ids", id); }

void TokenLog::reserve(std::int64_t n) {
  const std::size_t needed = pending_.size() + static_cast<std::size_t>(n);
  if (needed > pending_.capacity()) pending_.reserve(std::max(needed, 2 * pending_.capacity()));
}

void TokenLog::push(const std::int64_t* ids, std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; ++i)
    pending_.push_back(ids ? static_cast<std::uint32_t>(ids[i]) : kUnknown);
}

std::int64_t TokenLog::tokens() const {
  const std::int64_t written = parts_.empty() ? 0 : parts_.back().first + parts_.back().tokens;
  return written + static_cast<std::int64_t>(pending_.size());
}

void TokenLog::truncate(std::int64_t n_tokens) noexcept {
  const std::int64_t written = tokens() - static_cast<std::int64_t>(pending_.size());
  if (n_tokens >= written) {
    pending_.resize(static_cast<std::size_t>(std::min(tokens(), n_tokens) - written));
    return;
  }
  pending_.clear();
  while (!parts_.empty() && parts_.back().first >= n_tokens) parts_.pop_back(), own_last_ = false;
  if (!parts_.empty() && parts_.back().first + parts_.back().tokens > n_tokens) {
    parts_.back().tokens = n_tokens - parts_.back().first;
    own_last_ = false;  // what follows goes to a new file: a file's blocks lie end to end
  }
}

std::vector<std::uint32_t> TokenLog::read(std::int64_t first, std::int64_t n) const {
  if (first < 0 || n < 0 || first > tokens() || n > tokens() - first)
    throw DataError(
        fmt::format("{} tokens from {} on asked for, but the memory has {}", n, first, tokens()));
  std::vector<std::uint32_t> out;
  out.reserve(static_cast<std::size_t>(n));
  const std::int64_t end = first + n;
  const auto take = [&](std::int64_t from, std::span<const std::uint32_t> ids) {
    const std::int64_t a = std::max(first, from);
    const std::int64_t b = std::min(end, from + static_cast<std::int64_t>(ids.size()));
    for (std::int64_t t = a; t < b; ++t) out.push_back(ids[static_cast<std::size_t>(t - from)]);
  };
  for (const Part& part : parts_) {
    if (part.first >= end || part.first + part.tokens <= first) continue;
    const io::File file = open_part(folder_, part);
    std::int64_t token = part.first;
    for (std::int64_t at = kHeader; token < part.first + part.tokens;) {
      const Block block = read_block(file, part.id, at, part.bytes);
      if (block.first != token) damaged(file, at);
      const auto size = static_cast<std::int64_t>(block.ids.size());
      take(token, std::span(block.ids).first(
                      static_cast<std::size_t>(std::min(size, part.first + part.tokens - token))));
      token += size;
      at += block.bytes();
    }
  }
  take(tokens() - static_cast<std::int64_t>(pending_.size()), pending_);
  return out;
}

void TokenLog::sync() {
  if (pending_.empty()) return;
  const std::int64_t first = tokens() - static_cast<std::int64_t>(pending_.size());
  if (!own_last_) {
    Part part;
    part.id = unique_id();
    part.first = first;
    io::File file = folder_.create(io::Kind::tokens, file_name(part.id));
    file.write(file_header(part.id), 0);
    part.bytes = kHeader;
    file_ = std::move(file);
    parts_.push_back(part);
    own_last_ = true;
  }
  Part& part = parts_.back();
  ByteWriter w;
  for (std::size_t at = 0; at < pending_.size(); at += kMostInBlock) {
    const std::span ids = std::span<const std::uint32_t>(pending_).subspan(
        at, std::min<std::size_t>(kMostInBlock, pending_.size() - at));
    const auto count = static_cast<std::uint32_t>(ids.size());
    const std::int64_t token = first + static_cast<std::int64_t>(at);
    w.put(kBlockMagic);
    w.put(count);
    w.put(token);
    w.put(part.id);
    w.put(block_checksum(count, token, part.id, ids));
    for (const std::uint32_t id : ids) w.put(id);
  }
  file_.write(w.bytes(), part.bytes);
  file_.sync();
  part.bytes += static_cast<std::int64_t>(w.bytes().size());
  part.tokens += static_cast<std::int64_t>(pending_.size());
  pending_.clear();
}

void TokenLog::rewrite(const std::function<bool(std::int64_t)>& forgotten) {
  std::vector<std::uint32_t> all = read(0, tokens());
  for (std::size_t t = 0; t < all.size(); ++t)
    if (forgotten(static_cast<std::int64_t>(t))) all[t] = kUnknown;
  TokenLog anew;
  anew.folder_ = folder_;
  anew.pending_ = std::move(all);
  anew.sync();
  *this = std::move(anew);
}

void TokenLog::save(ByteWriter& to) const {
  to.put(static_cast<std::uint64_t>(parts_.size()));
  for (const Part& p : parts_) {
    to.put(p.id);
    to.put(p.bytes);
    to.put(p.first);
    to.put(p.tokens);
  }
}

void TokenLog::load(ByteReader& from) {
  parts_.clear();
  pending_.clear();
  own_last_ = false;
  const auto n = from.get<std::uint64_t>();
  const auto check = [&](bool right) {
    if (!right) throw FileError(from.where() + ": the list of token files is damaged");
  };
  check(n <= kMostParts);
  for (std::uint64_t i = 0; i < n; ++i) {
    Part p;
    p.id = from.get<std::uint64_t>();
    p.bytes = from.get<std::int64_t>();
    p.first = from.get<std::int64_t>();
    p.tokens = from.get<std::int64_t>();
    check(p.first == tokens() && p.bytes >= kHeader && p.bytes <= kMostBytes && p.tokens >= 0 &&
          p.tokens <= (p.bytes - kHeader) / kIdBytes);
    // Now, not when the tokens are asked for: then room for them was made already.
    const auto file = folder_.look(file_name(p.id));
    if (!file || !file->regular || file->bytes < p.bytes)
      throw FileError(fmt::format(
          "{}: is missing or cut short ({} bytes were committed); take the folder from a copy",
          (folder_.path() / file_name(p.id)).string(), p.bytes));
    parts_.push_back(p);
  }
}

void TokenLog::verify(const std::filesystem::path& dir, const Part& part, io::Syscalls& calls) {
  const io::File file = open_part(io::Directory(calls, dir), part);
  std::int64_t token = part.first, at = kHeader;
  while (at < part.bytes) {
    const Block block = read_block(file, part.id, at, part.bytes);
    if (block.first != token) damaged(file, at);
    token += static_cast<std::int64_t>(block.ids.size());
    at += block.bytes();
  }
  if (token < part.first + part.tokens) damaged(file, at);
}

}  // namespace episodic::detail
