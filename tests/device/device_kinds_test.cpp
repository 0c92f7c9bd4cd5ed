// SPDX-License-Identifier: Apache-2.0
// DeviceMemory by the test of all kinds of SequenceMemory, beside the host's.
#include <deque>

#include "episodic/device/device_memory.hpp"
#include "kernels/device.hpp"
#include "memory/sequence_kinds.hpp"
#include "steps.hpp"

namespace {

using namespace episodic;
using episodic_test::DeviceArray;
using sequence_kinds::Array;
using sequence_kinds::Bytes;
using sequence_kinds::Kind;

Array device_array(const Bytes& bytes) {
  auto kept = std::make_shared<DeviceArray<unsigned char>>(bytes);
  return {std::shared_ptr<void>(kept, kept->data()), [kept] { return kept->host(); }};
}

Kind host_kind() {
  Kind kind;
  kind.name = "EpisodicMemory";
  kind.any_strides = kind.turns_back = true;
  kind.make = [](const MemoryConfig& config, const MemoryShape& shape, DType, std::int64_t) {
    return std::make_unique<EpisodicMemory>(config, shape);
  };
  kind.array = sequence_kinds::host_array;
  return kind;
}

Kind device_kind(bool turns_back = false) {
  Kind kind;
  kind.name = "DeviceMemory";
  kind.turns_back = turns_back;
  kind.dims = {16, 24, 40};
  kind.rotary_step = 16;
  kind.make = [turns_back](const MemoryConfig& config, const MemoryShape& shape, DType dtype,
                           std::int64_t max_tokens) {
    DeviceMemoryOptions options{dtype, max_tokens};
    options.turns_back = turns_back;
    return std::make_unique<DeviceMemory>(config, shape, options, nullptr);
  };
  kind.array = device_array;
  return kind;
}

TEST_CASE("a memory on a device takes random steps as the definition says, and as the host does") {
  EPISODIC_NEEDS_DEVICE();
  sequence_kinds::check_steps({host_kind(), device_kind()});
}

TEST_CASE("a memory on a device goes on after a step that was abandoned") {
  EPISODIC_NEEDS_DEVICE();
  sequence_kinds::check_abandoning(device_kind());
}

TEST_CASE("a memory on a device refuses the same views by name") {
  EPISODIC_NEEDS_DEVICE();
  for (const bool turns_back : {false, true})
    sequence_kinds::check_refusals(device_kind(turns_back));
}

TEST_CASE("a memory on a device turns queries and keys back that come after rotary embedding") {
  EPISODIC_NEEDS_DEVICE();
  sequence_kinds::check_turning_back(device_kind(true));
}

TEST_CASE("sequences in one step turn back their own queries and keys, each the bits of alone") {
  EPISODIC_NEEDS_DEVICE();
  const MemoryShape shape = sequence_kinds::shape_of(2, 4, 2, 16, 16);
  const MemoryConfig config = driver::small_config();
  DeviceMemoryOptions options{DType::bfloat16, 60};
  options.turns_back = true;
  constexpr std::size_t kSequences = 3;
  std::vector<std::vector<driver::Token>> tokens;
  std::vector<std::unique_ptr<DeviceMemory>> alone, together;
  for (std::size_t i = 0; i < kSequences; ++i) {
    tokens.push_back(driver::random_tokens(shape, 60, 70 + static_cast<std::uint32_t>(i)));
    alone.push_back(std::make_unique<DeviceMemory>(config, shape, options, nullptr));
    together.push_back(std::make_unique<DeviceMemory>(config, shape, options, nullptr));
  }
  for (std::int64_t first = 0, n = 12; first < 60; first += n, n = first % 24 == 0 ? 12 : 6) {
    n = std::min<std::int64_t>(n, 60 - first);
    std::deque<DeviceArray<unsigned char>> arrays;
    const auto upload = [&](std::size_t i, auto member, std::int64_t l) {
      std::vector<float> rows;
      for (std::int64_t t = first; t < first + n; ++t) {
        const auto& row =
            (tokens[i][static_cast<std::size_t>(t)].*member)[static_cast<std::size_t>(l)];
        rows.insert(rows.end(), row.begin(), row.end());
      }
      return arrays.emplace_back(episodic_test::stored(rows, options.dtype)).data();
    };
    for (auto* memories : {&alone, &together})
      for (auto& memory : *memories) memory->begin_step(n);
    for (std::int64_t l = 0; l < shape.n_layers; ++l) {
      std::vector<DeviceMemory::SequenceStep> steps;
      std::vector<std::vector<unsigned char>> want;
      std::vector<const DeviceArray<unsigned char>*> got;
      for (std::size_t i = 0; i < kSequences; ++i) {
        const auto size = static_cast<std::size_t>(n * 4 * 16 * 2);
        const auto& to = arrays.emplace_back(size);
        DeviceMemory::LayerStep step = device_steps::layer_step(
            shape, options.dtype, n, upload(i, &driver::Token::q, l),
            upload(i, &driver::Token::k, l), upload(i, &driver::Token::v, l), to.data());
        if (i != 1) step.q.rotary = Rotary::after;  // one of them in part, one not at all
        if (i == 2) step.k.rotary = Rotary::after;
        alone[i]->attend(l, step);
        want.push_back(to.host());
        const auto& beside = arrays.emplace_back(size);
        step.out.data = beside.data();
        steps.push_back({together[i].get(), step});
        got.push_back(&beside);
      }
      DeviceMemory::attend_batch(l, steps);
      for (std::size_t i = 0; i < kSequences; ++i) REQUIRE(got[i]->host() == want[i]);
    }
    const DeviceArray<float> surprise(std::vector<float>(static_cast<std::size_t>(n), 1.0f));
    for (auto* memories : {&alone, &together})
      for (auto& memory : *memories) memory->end_step(surprise.data());
  }
}

}  // namespace
