// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the targets about a memory's files share: a folder in memory, and a small memory in it.

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "support/temp_dir.hpp"
#include "target.hpp"

namespace fuzz {

/// A folder that goes with the process, in memory where the system has such a place.
class Folder : public TempDir {
 public:
  Folder()
      : TempDir(std::filesystem::is_directory("/dev/shm")
                    ? "/dev/shm"
                    : std::filesystem::temp_directory_path()) {}

  std::string read(const std::string& name) const {
    std::ifstream in(path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

/// The files of a run have ids of its own, which an input that is kept for later runs cannot know:
/// inputs have these in their places.
constexpr std::uint64_t kSegmentId = 0x3144497367655321, kVectorsId = 0x3144497365566321,
                        kTokensId = 0x314449736b6f5421;

/// Bytes with every occurrence of one id, little-endian, replaced by another.
inline std::string with_id(std::string bytes, std::uint64_t from, std::uint64_t to) {
  const std::string_view before(reinterpret_cast<const char*>(&from), sizeof from);
  const std::string_view after(reinterpret_cast<const char*>(&to), sizeof to);
  for (std::size_t at = 0; (at = bytes.find(before, at)) != std::string::npos; at += sizeof to)
    bytes.replace(at, sizeof to, after);
  return bytes;
}

inline episodic::MemoryConfig small_config() {
  episodic::MemoryConfig c;
  c.n_init = 2;
  c.n_local = 8;
  c.n_mem = 8;
  c.chunk = 4;
  c.n_repr = 2;
  c.min_block = 2;
  c.max_block = 5;
  c.host_bytes = 1 << 20;
  return c;
}

inline episodic::MemoryShape small_shape() {
  return {2, 2, 1, 4, episodic::plain_rotary(4, 10000.0)};
}

/// A step of n tokens, whose keys and values depend on where they stand.
inline void step(episodic::EpisodicMemory& memory, std::int64_t n) {
  const episodic::MemoryShape& s = memory.shape();
  const auto values = [&](std::int64_t heads, int salt) {
    std::vector<float> x(static_cast<std::size_t>(n * heads * s.head_dim));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(static_cast<float>(memory.tokens() % 1000 * 31 + salt) +
                      static_cast<float>(i) * 0.7f);
    return x;
  };
  std::vector<float> surprise(static_cast<std::size_t>(n), 0.5f);
  surprise[0] = 6.0f;
  memory.begin_step(n);
  for (std::int64_t l = 0; l < s.n_layers; ++l) {
    const std::vector<float> q = values(s.n_heads, 1), k = values(s.n_kv_heads, 2),
                             v = values(s.n_kv_heads, 3);
    std::vector<float> out(q.size());
    memory.attend(l, q.data(), k.data(), v.data(), out.data());
  }
  memory.end_step(surprise.data());
}

/// A memory of some events in folder / "m".
inline void make_memory(const Folder& folder) {
  episodic::KeepOptions keep;
  keep.dir = folder.path() / "m";
  keep.identity = {"tiny", "w", "t"};
  episodic::EpisodicMemory memory =
      episodic::EpisodicMemory::create(keep, small_config(), small_shape());
  for (int i = 0; i < 12; ++i) step(memory, 4);
  memory.commit();
}

}  // namespace fuzz
