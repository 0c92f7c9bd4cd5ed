// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The bytes of a segment file: a header page, then records. A record is an event's blocks, lane
/// after lane; a block is a 64-byte header and the codec's bytes, padded to 64. Each block says
/// whose it is and carries its checksum, so one read is enough to know that it is the right one.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/append_files.hpp"
#include "episodic/base/io.hpp"
#include "episodic/store/codec.hpp"
#include "episodic/store/event_store.hpp"

namespace episodic::segment_file {

constexpr std::int64_t kPage =
    4096;                           ///< of the file header, and what synced lengths are rounded to
constexpr std::int64_t kLine = 64;  ///< of block headers, and what payloads are padded to

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Bytes of one lane of an event of n tokens in a file.
std::int64_t block_stride(const StoreShape& shape, std::int64_t n);

/// Which block it is: no two blocks of a machine's files share it with different bytes.
struct BlockName {
  std::uint64_t segment = 0;
  EventId event = 0;
  std::int64_t lane = 0;
  TokenRange range;
};

/// Fills in the header and the padding around a payload that lies at block + kLine.
void seal_block(const StoreShape& shape, const BlockName& name, std::byte* block);

/// What is wrong with a block; empty if it is the one named, whole. Reads block_stride bytes.
std::string block_fault(const StoreShape& shape, const BlockName& name, const std::byte* block);

/// Names and headers of files of a shape.
io::FileFormat format_of(const StoreShape& shape);

}  // namespace episodic::segment_file
