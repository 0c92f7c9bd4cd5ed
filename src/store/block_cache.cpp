// SPDX-License-Identifier: Apache-2.0
#include "block_cache.hpp"

#include <algorithm>
#include <bit>
#include <new>

namespace episodic {

BlockCache::BlockCache(std::span<std::byte> arena, std::span<std::uint32_t> table)
    : arena_(arena), table_(table) {
  std::fill(table.begin(), table.end(), kNone);
  for (auto& lists : holes_) lists.fill(kNone);
  // The last line is a block that is never free, so that no hole looks beyond the arena.
  const auto lines =
      static_cast<std::uint32_t>(static_cast<std::int64_t>(arena.size()) / kLine - 1);
  new (&(*this)[0]) Block;
  new (&(*this)[lines]) Block;
  (*this)[lines].state = State::clean;
  set_lines(0, lines);
  add_hole(0);
}

std::uint32_t& BlockCache::bucket(EventId event, std::int64_t lane) const {
  std::uint64_t h = static_cast<std::uint64_t>(event) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(lane) * 0xd1b54a32d192ed03u;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9u;
  h ^= h >> 32;
  return table_[static_cast<std::size_t>(h) & (table_.size() - 1)];
}

std::uint32_t BlockCache::find(EventId event, std::int64_t lane) const {
  std::uint32_t at = bucket(event, lane);
  while (at != kNone && ((*this)[at].event != event || (*this)[at].lane != lane))
    at = (*this)[at].chain;
  return at;
}

std::uint32_t BlockCache::insert(EventId event, std::int64_t lane, std::int64_t bytes,
                                 bool pinned) {
  const std::uint32_t at =
      take_hole(static_cast<std::uint32_t>((bytes + kOverhead + kLine - 1) / kLine));
  if (at == kNone) return kNone;
  Block& b = (*this)[at];
  b.event = event;
  b.lane = static_cast<std::int32_t>(lane);
  b.leases = 0;
  b.state = State::filling;
  b.pinned = pinned;
  std::uint32_t& first = bucket(event, lane);
  b.chain = first;
  first = at;
  link(at);
  ++blocks_;
  return at;
}

void BlockCache::erase(std::uint32_t at) {
  Block& b = (*this)[at];
  std::uint32_t* from = &bucket(b.event, b.lane);
  while (*from != at) from = &(*this)[*from].chain;
  *from = b.chain;
  unlink(at);
  --blocks_;
  b.state = State::free;
  // Join with free neighbours.
  std::uint32_t start = at, lines = b.lines;
  if (const std::uint32_t above = at + b.lines; (*this)[above].state == State::free) {
    remove_hole(above);
    lines += (*this)[above].lines;
  }
  if (b.below != 0 && (*this)[at - b.below].state == State::free) {
    start = at - b.below;
    remove_hole(start);
    lines += (*this)[start].lines;
  }
  set_lines(start, lines);
  add_hole(start);
}

void BlockCache::touch(std::uint32_t at) {
  unlink(at);
  link(at);
}

void BlockCache::pin(std::uint32_t at, bool pinned) {
  unlink(at);
  (*this)[at].pinned = pinned;
  link(at);
}

bool BlockCache::evict() {
  for (const Uses& uses : uses_)
    for (std::uint32_t at = uses.oldest; at != kNone; at = (*this)[at].newer)
      if ((*this)[at].state == State::clean && (*this)[at].leases == 0) {
        erase(at);
        return true;
      }
  return false;
}

std::pair<int, int> BlockCache::list_of(std::uint32_t lines) {
  const int power = std::bit_width(lines) - 1;
  const int step = power >= kStepBits
                       ? static_cast<int>((lines >> (power - kStepBits)) & (kSteps - 1))
                       : static_cast<int>((lines << (kStepBits - power)) & (kSteps - 1));
  return {power, step};
}

std::uint32_t BlockCache::take_hole(std::uint32_t lines) {
  // Every hole of a higher list is large enough. In the size's own list only some are; the first
  // few are looked at, so that a hole of just this size is used again.
  constexpr int kTries = 8;
  const auto [power, step] = list_of(lines);
  std::uint32_t at = holes_[static_cast<std::size_t>(power)][static_cast<std::size_t>(step)];
  for (int i = 0; at != kNone && (*this)[at].lines < lines; ++i)
    at = i < kTries ? (*this)[at].newer : kNone;
  if (at == kNone) {
    std::size_t p = static_cast<std::size_t>(power);
    const std::uint32_t higher = steps_[p] & ~((2u << step) - 1);
    if (higher != 0) {
      at = holes_[p][static_cast<std::size_t>(std::countr_zero(higher))];
    } else {
      const std::uint64_t more = powers_ & ~((std::uint64_t{2} << power) - 1);
      if (more == 0) return kNone;
      p = static_cast<std::size_t>(std::countr_zero(more));
      at = holes_[p][static_cast<std::size_t>(std::countr_zero(steps_[p]))];
    }
  }
  remove_hole(at);
  const std::uint32_t rest = (*this)[at].lines - lines;
  if (rest > 1) {  // a tag and at least one line
    new (&(*this)[at + lines]) Block;
    set_lines(at, lines);
    set_lines(at + lines, rest);
    add_hole(at + lines);
  }
  return at;
}

void BlockCache::set_lines(std::uint32_t at, std::uint32_t lines) {
  (*this)[at].lines = lines;
  (*this)[at + lines].below = lines;
}

void BlockCache::add_hole(std::uint32_t at) {
  Block& b = (*this)[at];
  const auto [power, step] = list_of(b.lines);
  std::uint32_t& first = holes_[static_cast<std::size_t>(power)][static_cast<std::size_t>(step)];
  b.state = State::free;
  b.older = kNone;
  b.newer = first;
  if (first != kNone) (*this)[first].older = at;
  first = at;
  steps_[static_cast<std::size_t>(power)] |= 1u << step;
  powers_ |= std::uint64_t{1} << power;
}

void BlockCache::remove_hole(std::uint32_t at) {
  const Block& b = (*this)[at];
  const auto [power, step] = list_of(b.lines);
  const auto p = static_cast<std::size_t>(power);
  std::uint32_t& first = holes_[p][static_cast<std::size_t>(step)];
  if (b.newer != kNone) (*this)[b.newer].older = b.older;
  if (b.older != kNone)
    (*this)[b.older].newer = b.newer;
  else
    first = b.newer;
  if (first != kNone) return;
  steps_[p] &= ~(1u << step);
  if (steps_[p] == 0) powers_ &= ~(std::uint64_t{1} << power);
}

void BlockCache::link(std::uint32_t at) {
  Block& b = (*this)[at];
  Uses& uses = uses_[b.pinned];
  b.newer = kNone;
  b.older = uses.newest;
  (uses.newest == kNone ? uses.oldest : (*this)[uses.newest].newer) = at;
  uses.newest = at;
}

void BlockCache::unlink(std::uint32_t at) {
  const Block& b = (*this)[at];
  Uses& uses = uses_[b.pinned];
  (b.older == kNone ? uses.oldest : (*this)[b.older].newer) = b.newer;
  (b.newer == kNone ? uses.newest : (*this)[b.newer].older) = b.older;
}

}  // namespace episodic
