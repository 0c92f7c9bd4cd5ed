// SPDX-License-Identifier: Apache-2.0
#include "closed_text.hpp"

#include <algorithm>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

std::int32_t known_id(std::int64_t id) {
  return static_cast<std::int32_t>(std::max<std::int64_t>(id, -1));
}

/// Calls f(first, end, forgotten) for stretches of tokens [first, end) side by side, each forgotten
/// as a whole or not at all; as long as f says true.
template <class F>
bool for_stretches(const SequenceMemory& memory, std::int64_t first, std::int64_t end, F&& f) {
  const EventTable& table = memory.events();
  const std::vector<EventId>& forgotten = memory.forgotten();
  for (auto e_at = std::lower_bound(forgotten.begin(), forgotten.end(), table.first_behind(first));
       e_at != forgotten.end(); ++e_at) {
    const EventId e = *e_at;
    const TokenRange gone{std::max(table[e].start, first), std::min(table[e].end, end)};
    if (gone.start >= gone.end) continue;
    if (!f(first, gone.start, false) || !f(gone.start, gone.end, true)) return false;
    first = gone.end;
  }
  return f(first, end, false);
}

}  // namespace

std::int64_t closed_end(const SequenceMemory& memory) {
  if (memory.config().scope == EventScope::head)
    throw ConfigError(
        "passages: scope = head: each head has events of its own, which have no text in common; "
        "take scope = sequence");
  const EventTable& table = memory.events();
  return table.size() > 0 ? table.pending_start() : 0;
}

void add_closed_ids(const SequenceMemory& memory, std::span<const std::int64_t> ids,
                    std::vector<std::int32_t>& known) {
  const std::int64_t first = std::ssize(known), end = first + std::ssize(ids);
  known.resize(static_cast<std::size_t>(end), -1);
  for_stretches(memory, first, end, [&](std::int64_t from, std::int64_t to, bool forgotten) {
    if (!forgotten)
      std::transform(ids.begin() + (from - first), ids.begin() + (to - first), known.begin() + from,
                     known_id);
    return true;
  });
}

bool are_closed_ids(const SequenceMemory& memory, std::span<const std::int64_t> ids,
                    std::span<const std::int32_t> known) {
  return for_stretches(
      memory, 0, std::ssize(known), [&](std::int64_t from, std::int64_t to, bool forgotten) {
        const auto some =
            known.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
        if (forgotten)
          return std::all_of(some.begin(), some.end(), [](std::int32_t id) { return id == -1; });
        return std::equal(some.begin(), some.end(), ids.begin() + from,
                          [](std::int32_t a, std::int64_t b) { return a == known_id(b); });
      });
}

}  // namespace episodic
