// SPDX-License-Identifier: Apache-2.0
#pragma once
// Device memory of the interpreter: allocations with guards around them, and beside every byte what
// is known of it: whether it was ever written, and by whom it was last written and read.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

namespace ptx {

/// What a program did wrong, by kind.
enum class FaultKind {
  launch,         // sizes that the architecture refuses
  out_of_bounds,  // no memory there, or memory that is another's
  misaligned,
  uninitialised,  // a value that nothing wrote is used
  race,           // two accesses of one place, at least one a write, that nothing orders
  asynchronous,   // what a copy or a wgmma still uses is touched before it was waited for
  proxy,          // a wgmma reads what no fence.proxy.async made visible to it
  barrier,        // a barrier that not all threads reach
  warp,           // a warp-wide instruction that not all lanes of its mask reach
  endless,
  unknown,  // an opcode or a form of one that the interpreter does not know
};
const char* name_of(FaultKind kind);

class Fault : public std::runtime_error {
 public:
  Fault(FaultKind of, const std::string& what)
      : std::runtime_error(std::string(name_of(of)) + ": " + what), kind(of) {}
  FaultKind kind;
};

/// Who touched a word (or a byte) last. Numbers of accesses are given by the machine (Interval);
/// 0: nobody.
struct Cell {
  std::uint32_t write = 0;
  std::uint32_t read[2] = {0, 0};  // of different threads, where there were two
};

/// Cells of a range of memory: one a word, until something narrower than a word is accessed.
class Shadow {
 public:
  void reset(std::size_t bytes) {
    bytes_ = bytes;
    clear();
  }
  void clear() {
    cells_.reset();
    split_ = false;
  }
  /// The cells of [offset, offset + size).
  Cell* at(std::size_t offset, std::size_t size, std::size_t& n_cells) {
    if (!cells_) make((bytes_ + 3) / 4);
    if (!split_ && (offset % 4 != 0 || size % 4 != 0)) split();
    n_cells = split_ ? size : size / 4;
    return cells_.get() + (split_ ? offset : offset / 4);
  }
  /// Bytes of a cell.
  std::size_t granule() const { return split_ ? 1 : 4; }

 private:
  struct Free {
    void operator()(Cell* p) const { std::free(p); }
  };
  void make(std::size_t n) {
    // zero pages until they are touched
    cells_.reset(static_cast<Cell*>(std::calloc(n + 1, sizeof(Cell))));
    if (!cells_) throw std::bad_alloc();
  }
  void split() {
    const auto words = std::move(cells_);
    make(bytes_ + 4);
    for (std::size_t i = 0; i < bytes_; ++i) cells_[i] = words[i / 4];
    split_ = true;
  }
  std::unique_ptr<Cell[], Free> cells_;
  std::size_t bytes_ = 0;
  bool split_ = false;
};

/// A range of device or page-locked memory.
struct Allocation {
  unsigned char* data = nullptr;
  std::size_t size = 0;
  bool of_host = false;  // the host writes it as it likes: always set
  bool is_constant = false;
  std::unique_ptr<unsigned char[]> set;  // a byte each: whether it was ever written; null: all
  Shadow shadow;
};

/// All of them.
class Memory {
 public:
  static Memory& instance();
  /// \return null where the capacity does not suffice; its contents: 0xff, and never written
  Allocation* allocate(std::size_t size, bool of_host);
  /// \return false if nothing begins there
  bool release(void* data);
  /// What holds `address`, or null.
  Allocation* find(std::uint64_t address);
  std::size_t device_bytes() const { return device_bytes_; }
  void set_capacity(std::size_t bytes) { capacity_ = bytes; }
  std::size_t capacity() const { return capacity_; }
  /// Forgets who touched what.
  void clear_shadows();

 private:
  struct Block {
    Allocation allocation;
    void* raw = nullptr;
  };
  std::map<std::uint64_t, Block> blocks_;  // by address
  Allocation* latest_ = nullptr;
  std::size_t device_bytes_ = 0, capacity_ = std::size_t{64} << 30;
};

}  // namespace ptx
