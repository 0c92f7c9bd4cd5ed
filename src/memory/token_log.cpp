// SPDX-License-Identifier: Apache-2.0
#include "token_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "episodic/base/checksum.hpp"

namespace episodic::detail {
namespace {

constexpr std::uint32_t kFileMagic = 0x4b544945, kBlockMagic = 0x42544945;  // "EITK", "EITB"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMostInBlock = 1 << 16;
constexpr std::int64_t kIdBytes = sizeof(std::uint32_t);
// Bounds of what a damaged list may claim: sums of them stay far from the end of an int64.
constexpr std::uint64_t kMostParts = 1 << 20;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;

struct FileHeader {
  std::uint32_t magic = kFileMagic, version = kVersion;
  std::uint64_t id = 0;
  std::uint64_t check = 0;  // of what stands before it
};

struct BlockHeader {
  std::uint32_t magic = kBlockMagic, count = 0;
  std::int64_t first = 0;  // token
  std::uint64_t file = 0;
  std::uint64_t check = 0;  // of what stands between magic and it, and of the ids
};
static_assert(sizeof(FileHeader) == 24 && sizeof(BlockHeader) == 32, "no padding");

constexpr std::int64_t kHeader = sizeof(FileHeader), kBlockHeader = sizeof(BlockHeader);

struct Block {
  std::int64_t first = 0;
  std::vector<std::uint32_t> ids;
  std::int64_t bytes() const {
    return kBlockHeader + static_cast<std::int64_t>(ids.size()) * kIdBytes;
  }
};

std::uint64_t check_of(const BlockHeader& h, std::span<const std::uint32_t> ids) {
  return checksum_of(ids, checksum(std::as_bytes(std::span(&h, 1)).subspan(4, 20)));
}

io::FileFormat format() {
  const auto header = [](std::uint64_t id) {
    FileHeader h;
    h.id = id;
    h.check = checksum(std::as_bytes(std::span(&h, 1)).first(16));
    const auto bytes = std::as_bytes(std::span(&h, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto fault = [header](std::uint64_t id, std::span<const std::byte> found) {
    return std::ranges::equal(found, header(id)) ? "" : "it is no file of token ids of this name";
  };
  return {io::Kind::tokens, "tokens", "ids", kHeader, header, fault};
}

/// What a file's bytes are read by, and its name.
struct Source {
  std::function<void(std::span<std::byte>, std::int64_t offset)> read;
  std::filesystem::path path;
};

[[noreturn]] void damaged(const Source& file, std::int64_t at) {
  throw FileError(fmt::format(
      "{}: the tokens at byte {} are damaged; take the folder from a copy, or ingest the text anew",
      file.path.string(), at));
}

/// The block at `offset` of a file of `end` bytes.
Block read_block(const Source& file, std::uint64_t id, std::int64_t offset, std::int64_t end) {
  BlockHeader h;
  if (end - offset < kBlockHeader) damaged(file, offset);
  file.read(std::as_writable_bytes(std::span(&h, 1)), offset);
  if (h.magic != kBlockMagic || h.file != id || h.count == 0 || h.count > kMostInBlock ||
      end - offset - kBlockHeader < static_cast<std::int64_t>(h.count) * kIdBytes)
    damaged(file, offset);
  Block block{h.first, std::vector<std::uint32_t>(h.count)};
  file.read(std::as_writable_bytes(std::span(block.ids)), offset + kBlockHeader);
  if (check_of(h, block.ids) != h.check) damaged(file, offset);
  return block;
}

Source open_part(const io::Directory& folder, const TokenLog::Part& part) {
  const auto file =
      std::make_shared<io::File>(io::open_file(folder, format(), {part.id, part.bytes}));
  return {[file](std::span<std::byte> to, std::int64_t at) { file->read(to, at); }, file->path()};
}

}  // namespace

TokenLog::TokenLog(const std::filesystem::path& dir, io::Syscalls& calls, bool writes)
    : folder_(calls, dir), writes_(writes) {}

std::string TokenLog::file_name(std::uint64_t id) { return format().name(id); }

void TokenLog::reserve(std::int64_t n) {
  if (writes_ && pending_.size() >= kMostInBlock) write_pending();
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
  // What follows goes to a new file: a file's blocks lie end to end.
  if (files_) files_->close_current();
  for (; !parts_.empty() && parts_.back().first >= n_tokens; parts_.pop_back())
    if (const auto file = own_file(parts_.back().id)) {
      auto lock = files_->lock();
      files_->give_back(lock, {*file, kHeader}, parts_.back().bytes - kHeader);
    }
  if (!parts_.empty())
    parts_.back().tokens = std::min(parts_.back().tokens, n_tokens - parts_.back().first);
}

std::optional<std::size_t> TokenLog::own_file(std::uint64_t id) const {
  for (std::size_t i = 0; files_ && i < files_->size(); ++i)
    if (files_->has(i) && files_->file(i).id == id) return i;
  return std::nullopt;
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
    Source file;
    if (const auto own = own_file(part.id))
      file = {[this, own](std::span<std::byte> to, std::int64_t at) {
                files_->read({*own, at}, to);
              },
              folder_.path() / file_name(part.id)};
    else
      file = open_part(folder_, part);
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

/// Queues all ids that are in no file yet to be written.
void TokenLog::write_pending() {
  if (!files_) {
    io::AppendFiles::Options options;
    options.keep = true;
    options.reserve = false;  // they are few
    files_ = std::make_unique<io::AppendFiles>(format(), options, folder_);
  }
  while (!pending_.empty()) {
    const auto ids =
        std::span<const std::uint32_t>(pending_).first(std::min(kMostInBlock, pending_.size()));
    const auto count = static_cast<std::int64_t>(ids.size());
    const std::int64_t bytes = kBlockHeader + count * kIdBytes;
    io::WriteQueue::Ready one = io::AppendFiles::make(bytes);
    parts_.reserve(parts_.size() + 1);
    files_->admit(bytes);
    const io::AppendFiles::Place place = files_->place(bytes, {bytes, 1});
    // Nothing fails from here on.
    BlockHeader h;
    h.count = static_cast<std::uint32_t>(count);
    h.first = tokens() - static_cast<std::int64_t>(pending_.size());
    h.file = files_->file(place.file).id;
    h.check = check_of(h, ids);
    std::byte* const to = one.front().own.data();
    std::memcpy(to, &h, sizeof h);
    std::memcpy(to + kBlockHeader, ids.data(), ids.size_bytes());
    files_->write(place, std::move(one));
    if (parts_.empty() || parts_.back().id != h.file) parts_.push_back({h.file, kHeader, h.first});
    parts_.back().bytes += bytes;
    parts_.back().tokens += count;
    pending_.erase(pending_.begin(), pending_.begin() + count);
  }
}

void TokenLog::sync() {
  for (const Part& part : parts_)
    if (!own_file(part.id)) open_part(folder_, part);  // it may have been replaced meanwhile
  if (!pending_.empty()) write_pending();
  if (files_) files_->sync();
}

void TokenLog::rewrite(const std::function<bool(std::int64_t)>& forgotten) {
  std::vector<std::uint32_t> all = read(0, tokens());
  for (std::size_t t = 0; t < all.size(); ++t)
    if (forgotten(static_cast<std::int64_t>(t))) all[t] = kUnknown;
  TokenLog anew;
  anew.folder_ = folder_;
  anew.writes_ = writes_;
  anew.pending_ = std::move(all);
  anew.sync();
  *this = std::move(anew);
}

bool TokenLog::merge_files(std::size_t most) {
  std::vector<std::int64_t> bytes;
  for (const Part& part : parts_) bytes.push_back(part.bytes);
  if (!files_ && !pending_.empty())  // which will be one
    bytes.push_back(kHeader + static_cast<std::int64_t>(pending_.size()) * kIdBytes);
  const std::size_t from = io::first_to_merge(bytes, most);
  if (from == bytes.size()) return false;
  const std::int64_t first = parts_[from].first;
  std::vector<std::uint32_t> ids;
  try {
    ids = read(first, tokens() - first);
  } catch (const Error&) {  // damaged: says so when it is asked for
    return false;
  }
  truncate(first);
  pending_ = std::move(ids);
  return true;
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
    open_part(folder_, p);  // or another memory's file that was given this name
    parts_.push_back(p);
  }
}

void TokenLog::verify(const std::filesystem::path& dir, const Part& part, io::Syscalls& calls) {
  const Source file = open_part(io::Directory(calls, dir), part);
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
