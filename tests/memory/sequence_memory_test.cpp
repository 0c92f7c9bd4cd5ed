// SPDX-License-Identifier: Apache-2.0
// The kinds of SequenceMemory on the host, by the test of all kinds.
#include "episodic/memory/episodic_memory.hpp"
#include "sequence_kinds.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;

namespace {

template <class Memory>
std::unique_ptr<SequenceMemory> made(const MemoryConfig& config, const MemoryShape& shape, DType,
                                     std::int64_t) {
  return std::make_unique<Memory>(config, shape);
}

std::vector<sequence_kinds::Kind> kinds_of_host() {
  using sequence_kinds::host_array;
  const std::vector<std::int64_t> dims = {10, 16, 8, 33};
  return {{"HostMemory", true, true, dims, made<HostMemory>, host_array},
          {"EpisodicMemory", true, true, dims, made<EpisodicMemory>, host_array}};
}

}  // namespace

TEST_CASE("every kind of memory on the host takes random steps as the definition says",
          "[memory][kinds][oracle]") {
  sequence_kinds::check_steps(kinds_of_host());
}

TEST_CASE("queries and keys after rotary embedding are turned back by the memory's own table",
          "[memory][kinds][rotary]") {
  for (const auto& kind : kinds_of_host()) sequence_kinds::check_turning_back(kind);
}

TEST_CASE("every kind of memory on the host refuses the same views by name",
          "[memory][kinds][errors]") {
  for (const auto& kind : kinds_of_host()) sequence_kinds::check_refusals(kind);
}
