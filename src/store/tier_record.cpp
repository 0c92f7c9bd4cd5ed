// SPDX-License-Identifier: Apache-2.0
#include "episodic/store/tier_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

constexpr std::uint32_t kRecordMagic = 0x52544945;  // "EITR"
constexpr std::uint32_t kRecordVersion = 1;
constexpr std::size_t kMostRecord = std::size_t{64} << 20;
constexpr int kEndAttempts = 50;

std::vector<std::byte> record_bytes(std::string_view text) {
  ByteWriter body;
  body.put(static_cast<std::int64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                         std::chrono::system_clock::now().time_since_epoch())
                                         .count()));
  body.put_string(std::string(text));
  const std::vector<std::byte> checked = body.take();
  ByteWriter all;
  all.put(kRecordMagic);
  all.put(kRecordVersion);
  all.put(checksum(checked));
  std::vector<std::byte> out = all.take();
  out.insert(out.end(), checked.begin(), checked.end());
  return out;
}

}  // namespace

bool is_tier_record(std::span<const std::byte> head) {
  std::uint32_t magic = 0;
  if (head.size() < sizeof magic) return false;
  std::copy_n(head.data(), sizeof magic, reinterpret_cast<std::byte*>(&magic));
  return magic == kRecordMagic;
}

std::optional<TierRecord> read_tier_record(BlockTier& tier, const std::string& name) {
  const BlockTier::Head head = tier.head(name);
  if (head.bytes.empty()) return std::nullopt;
  const std::string where = fmt::format("{}/{}", tier.where(), name);
  const auto refuse = [&](const char* what) {
    throw FileError(fmt::format("{}: {}; remove it", where, what));
  };
  if (!is_tier_record(head.bytes)) refuse("is no record");
  ByteReader from(head.bytes, where);
  from.get<std::uint32_t>();
  if (from.get<std::uint32_t>() != kRecordVersion)
    refuse("was written by another version of episodic");
  const auto sum = from.get<std::uint64_t>();
  if (checksum(std::span(head.bytes).last(from.left())) != sum)
    refuse("is damaged: its checksum is wrong");
  TierRecord record;
  record.written = from.get<std::int64_t>();
  record.text = from.get_string();
  record.version = head.version;
  from.finish();
  return record;
}

bool exchange_tier_record(BlockTier& tier, const std::string& name, std::int64_t version,
                          std::string_view text) {
  if (text.size() >= kMostRecord)
    throw DataError(fmt::format("{}/{}: a record of {} bytes, of which {} are too many",
                                tier.where(), name, text.size(), kMostRecord));
  return tier.exchange(name, version, record_bytes(text));
}

bool end_tier_name(BlockTier& tier, const std::string& name) {
  for (int attempt = 0; attempt < kEndAttempts; ++attempt) {
    const BlockTier::Head head = tier.head(name);
    if (head.bytes.empty()) return false;
    if (tier.exchange(name, head.version, {})) return true;
  }
  throw FileError(fmt::format("{}/{}: others write there again and again; try again later",
                              tier.where(), name));
}

}  // namespace episodic
