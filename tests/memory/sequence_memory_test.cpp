// SPDX-License-Identifier: Apache-2.0
// The kinds of SequenceMemory on the host, by the test of all kinds.
#include <limits>

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

sequence_kinds::Kind kind_of_host(const char* name, decltype(sequence_kinds::Kind::make) make) {
  sequence_kinds::Kind kind;
  kind.name = name;
  kind.any_strides = kind.turns_back = true;
  kind.dims = {10, 16, 8, 33};
  kind.make = std::move(make);
  kind.array = sequence_kinds::host_array;
  return kind;
}

std::vector<sequence_kinds::Kind> kinds_of_host() {
  return {kind_of_host("HostMemory", made<HostMemory>),
          kind_of_host("EpisodicMemory", made<EpisodicMemory>)};
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

TEST_CASE("every kind of memory on the host goes on after a step that was abandoned",
          "[memory][kinds][errors]") {
  for (const auto& kind : kinds_of_host()) sequence_kinds::check_abandoning(kind);
}

TEST_CASE("every kind of memory on the host refuses the same views by name",
          "[memory][kinds][errors]") {
  for (const auto& kind : kinds_of_host()) sequence_kinds::check_refusals(kind);
}

TEST_CASE("rotated keys and queries that are no numbers, or none once turned back, are refused",
          "[memory][kinds][errors][rotary]") {
  MemoryShape shape = sequence_kinds::shape_of(1, 2, 1, 8, 2);
  shape.rotary.attention_factor = 1e-30;  // 1e20 turned back is beyond all floats
  HostMemory memory(driver::small_config(), shape);
  std::vector<float> q(2 * 2 * 8, 0.5f), k(2 * 8, 0.5f), out(q.size());
  const TensorView queries(q.data(), {2, 2, 8}), keys(k.data(), {2, 1, 8});
  const MutableTensorView to(out.data(), {2, 2, 8});
  const auto said = [&](const TensorView& x, const TensorView& y) {
    memory.begin_step(2);
    return refusal<DataError>([&] { memory.attend(0, x, y, keys, to); });
  };
  k[11] = std::numeric_limits<float>::infinity();
  CHECK(mentions(said(queries, keys.with(Rotary::after)), "k of token 1 in layer 0 holds inf"));
  k[11] = 1e20f;
  CHECK(mentions(said(queries, keys.with(Rotary::after)),
                 "k, turned back by its position, of token 1 in layer 0 holds "));
  k[11] = 0.5f;
  q[17] = std::numeric_limits<float>::quiet_NaN();
  CHECK(mentions(said(queries.with(Rotary::after), keys), "q of token 1 in layer 0 holds nan"));
  shape.rotary.attention_factor = 0.0;
  HostMemory flat(driver::small_config(), shape);
  flat.begin_step(2);
  CHECK(mentions(
      refusal<DataError>([&] { flat.attend(0, queries, keys.with(Rotary::after), keys, to); }),
      "attention_factor"));
  CHECK(memory.tokens() == 0);
}
