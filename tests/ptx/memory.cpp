// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <cstring>

namespace ptx {
namespace {

/// Bytes before and after every allocation that belong to nobody.
constexpr std::size_t kGuard = 4096;
constexpr std::size_t kAlignment = 256;  // cudaMalloc's

}  // namespace

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::launch:
      return "launch";
    case FaultKind::out_of_bounds:
      return "out of bounds";
    case FaultKind::misaligned:
      return "misaligned";
    case FaultKind::uninitialised:
      return "uninitialised";
    case FaultKind::race:
      return "race";
    case FaultKind::asynchronous:
      return "asynchronous copy";
    case FaultKind::proxy:
      return "proxy";
    case FaultKind::barrier:
      return "barrier";
    case FaultKind::warp:
      return "warp";
    case FaultKind::endless:
      return "endless";
    case FaultKind::unknown:
      return "unknown instruction";
  }
  return "?";
}

Memory& Memory::instance() {
  static Memory memory;
  return memory;
}

Allocation* Memory::allocate(std::size_t size, bool of_host) {
  if (size > capacity_ || (!of_host && size > capacity_ - device_bytes_)) return nullptr;
  const std::size_t whole = (size + 2 * kGuard + kAlignment - 1) / kAlignment * kAlignment;
  void* raw = std::aligned_alloc(kAlignment, whole);
  if (!raw) return nullptr;
  Block block;
  block.raw = raw;
  Allocation& a = block.allocation;
  a.data = static_cast<unsigned char*>(raw) + kGuard;
  a.size = size;
  a.of_host = of_host;
  std::memset(raw, 0xff, whole);
  if (!of_host) {
    a.set = std::make_unique<unsigned char[]>(size);
    device_bytes_ += size;
  }
  a.shadow.reset(size);
  const auto at = reinterpret_cast<std::uint64_t>(a.data);
  return &blocks_.emplace(at, std::move(block)).first->second.allocation;
}

bool Memory::release(void* data) {
  const auto found = blocks_.find(reinterpret_cast<std::uint64_t>(data));
  if (found == blocks_.end()) return false;
  if (latest_ == &found->second.allocation) latest_ = nullptr;
  if (!found->second.allocation.of_host) device_bytes_ -= found->second.allocation.size;
  std::free(found->second.raw);
  blocks_.erase(found);
  return true;
}

Allocation* Memory::find(std::uint64_t address) {
  const auto holds = [address](const Allocation& a) {
    return address - reinterpret_cast<std::uint64_t>(a.data) < a.size;
  };
  if (latest_ && holds(*latest_)) return latest_;
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  Allocation& a = std::prev(after)->second.allocation;
  if (!holds(a)) return nullptr;
  latest_ = &a;
  return latest_;
}

void Memory::clear_shadows() {
  for (auto& [address, block] : blocks_) block.allocation.shadow.clear();
}

}  // namespace ptx
