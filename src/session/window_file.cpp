// SPDX-License-Identifier: Apache-2.0
#include "window_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/unique_id.hpp"
#include "encoder_voice.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/io.hpp"
#include "episodic/memory/kept_memory.hpp"

namespace episodic {
namespace {

constexpr std::uint32_t kWindowMagic = 0x57454945;  // "EIEW"
constexpr std::uint32_t kWindowVersion = 1;
constexpr std::int64_t kMostWindowBytes = std::int64_t{1} << 32;  // of 128 million tokens
constexpr double kLengthError = 0.01;  // of a vector of unit length in float16

io::Syscalls& calls_of(const VectorFolder& folder) {
  return folder.calls ? *folder.calls : io::system_calls();
}

/// What vectors depend on beside the text.
std::string maker_of(const SentenceEncoder& encoder) {
  return fmt::format("{} {} {} {}", encoder.fingerprint(), encoder.max_tokens(),
                     EncoderVoice::kWindow, EncoderVoice::kStep);
}

bool has_unit_length(std::span<const std::uint16_t> numbers) {
  double squares = 0;
  for (const std::uint16_t x : numbers) {
    const double number = from_float16(x);
    squares += number * number;
  }
  return std::abs(std::sqrt(squares) - 1) < kLengthError;  // false where one is no number
}

/// Whether the last commit of the memory is still the one that the vectors were made of.
bool is_current(const VectorFolder& folder) {
  const MemoryManifest now = MemoryManifest::read(folder.dir, calls_of(folder));
  return now.id == folder.memory && now.generation == folder.generation;
}

WindowFile parsed(const std::vector<std::byte>& bytes, const std::string& where,
                  const SentenceEncoder& encoder) {
  const auto refuse = [&](const char* what) { throw FileError(where + ": " + what); };
  ByteReader in(bytes, where);
  if (in.get<std::uint32_t>() != kWindowMagic || in.get<std::uint32_t>() != kWindowVersion)
    refuse("is no file of window vectors of this version");
  const auto sum = in.get<std::uint64_t>();
  const auto payload = std::span(bytes).last(in.left());
  if (checksum(payload) != sum) refuse("its checksum is wrong");
  if (in.get_string() != maker_of(encoder)) refuse("is of another encoder");
  const auto width = static_cast<std::size_t>(encoder.width());
  WindowFile file;
  const std::vector<std::uint64_t> digests = in.get_vector<std::uint64_t>();
  file.numbers = in.get_vector<std::uint16_t>(digests.size() / 2 * width, "numbers");
  if (digests.size() % 2 != 0) refuse("half a digest");
  in.finish();
  for (std::size_t i = 0; i < digests.size(); i += 2)
    file.digests.push_back({digests[i], digests[i + 1]});
  for (std::size_t i = 0; i < file.digests.size(); ++i)
    if (!has_unit_length(std::span(file.numbers).subspan(i * width, width)))
      refuse("a vector is not of unit length");
  return file;
}

}  // namespace

std::string WindowFile::name(const SentenceEncoder& encoder) {
  const std::string maker = maker_of(encoder);
  return fmt::format("encoded-{:016x}.win", checksum_of(std::span<const char>(maker)));
}

bool WindowFile::is_there(const VectorFolder& folder, const SentenceEncoder& encoder) {
  try {
    return io::Directory(calls_of(folder), folder.dir).look(name(encoder)).has_value();
  } catch (const FileError&) {
    return false;
  }
}

std::optional<WindowFile> WindowFile::read(const VectorFolder& folder,
                                           const SentenceEncoder& encoder) {
  try {
    const io::Directory in(calls_of(folder), folder.dir);
    const std::string file = name(encoder);
    if (!in.look(file)) return std::nullopt;
    return parsed(in.read(io::Kind::cache, file, kMostWindowBytes), (folder.dir / file).string(),
                  encoder);
  } catch (const FileError&) {  // its content can be computed
    return std::nullopt;
  }
}

bool WindowFile::write(const VectorFolder& folder, const SentenceEncoder& encoder) const {
  ByteWriter payload;
  payload.put_string(maker_of(encoder));
  payload.put(static_cast<std::uint64_t>(2 * digests.size()));
  for (const TextDigest& d : digests) {
    payload.put(d.low);
    payload.put(d.high);
  }
  payload.put_vector(numbers);
  ByteWriter head;
  head.put(kWindowMagic);
  head.put(kWindowVersion);
  head.put(checksum(payload.bytes()));
  const std::string to = name(encoder);
  const std::string made = fmt::format("{}.{:016x}.new", to, detail::unique_id());
  try {
    const io::Directory out(calls_of(folder), folder.dir);
    if (!is_current(folder)) return false;
    try {
      // Not synced: what a crash makes of it, its checksum shows.
      io::File file = out.create(io::Kind::cache, made);
      file.write(head.bytes(), 0);
      file.write(payload.bytes(), static_cast<std::int64_t>(head.bytes().size()));
      file.close();
      const int r = out.calls().rename(io::Kind::cache, out.fd(), made.c_str(), to.c_str());
      if (r < 0) io::fail(-r, folder.dir / to, "put the new file in its place");
    } catch (const FileError&) {
      out.remove(io::Kind::cache, made);
      return false;
    }
    if (is_current(folder)) return true;
    // A commit may have forgotten some of it, and looked for this file before it was there.
    out.remove(io::Kind::cache, to);
  } catch (const FileError&) {
  }
  return false;
}

}  // namespace episodic
