// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "changed_tensors.hpp"
#include "elementwise.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/weight_plan.hpp"

namespace episodic {
namespace {

constexpr float kLargestHalf = 65504.0f;

/// The largest magnitude whose block has a scale within 16 bits: divided by 127, and by 8.
float largest_number(TensorType type) {
  return type == TensorType::q8_0 ? kLargestHalf * 127 : kLargestHalf * 8;
}

/// \param file for messages
std::vector<std::byte> rounded(const StoredTensor& t, TensorType type, const std::string& file) {
  const std::int64_t columns = t.shape.back(), rows = t.elements() / columns;
  const std::int64_t from_bytes = cpu::row_bytes(t.type, columns);
  const std::int64_t to_bytes = cpu::row_bytes(type, columns);
  const float most = largest_number(type);
  std::vector<std::byte> out(static_cast<std::size_t>(rows * to_bytes));
  std::vector<char> bad(static_cast<std::size_t>(rows), 0);  // written by many threads
  parallel_for(rows, [&](std::int64_t row) {
    std::vector<float> numbers(static_cast<std::size_t>(columns));
    widen(t.type, t.data + row * from_bytes, columns, numbers.data());
    // not so for NaN
    const bool good =
        std::all_of(numbers.begin(), numbers.end(), [&](float x) { return std::abs(x) <= most; });
    if (good) cpu::quantize_row(type, numbers.data(), columns, out.data() + row * to_bytes);
    bad[static_cast<std::size_t>(row)] = !good;
  });
  if (const auto it = std::find(bad.begin(), bad.end(), 1); it != bad.end())
    throw DataError(
        fmt::format("{}: tensor '{}' holds NaN, infinity or a number too large for {} in row {}; "
                    "fetch or train the weights again",
                    file, t.name, name_of(type), it - bad.begin()));
  return out;
}

}  // namespace

std::optional<TensorType> quantized_type(std::string_view name) {
  if (name == "q8_0") return TensorType::q8_0;
  if (name == "q4_0") return TensorType::q4_0;
  return std::nullopt;
}

std::optional<TensorType> rounded_as(WeightRole role, std::int64_t columns, TensorType type) {
  const TensorType to = info_of(role).block == WeightBlock::vocabulary ? TensorType::q8_0 : type;
  if (!is_rounded(role) || columns % block_elements(to) != 0) return std::nullopt;
  return to;
}

void quantize_weights(OpenModel& model, TensorType type) {
  if (type != TensorType::q8_0 && type != TensorType::q4_0)
    throw ConfigError(
        fmt::format("quantize: weights cannot be rounded to {}; use q8_0 or q4_0", name_of(type)));
  // before anything is rounded: the tensors are all there, of the right shape and type
  const PlannedWeights planned(model.config, model.tensors);
  auto changed = std::make_shared<ChangedTensors>(model.tensors);
  std::set<std::string> done;  // parts of a fused tensor, and a tied head, share one
  int matrices = 0;
  for (const WeightEntry& e : planned.entries()) {
    if (e.bias || e.tensor_shape.size() < 2 || !done.insert(e.tensor).second) continue;
    if (!is_rounded(e.role)) continue;
    const StoredTensor& t = *model.tensors->find(e.tensor);
    const std::string file = model.tensors->file_of(e.tensor).string();
    if (block_elements(t.type) != 1)
      throw ConfigError(
          fmt::format("{}: tensor '{}' is quantised already ({}); use the model as it is, or its "
                      "weights in float",
                      file, e.tensor, name_of(t.type)));
    const std::optional<TensorType> to = rounded_as(e.role, e.columns(), type);
    if (!to) continue;
    changed->put(e.tensor, *to, t.shape, rounded(t, *to, file));
    ++matrices;
  }
  if (matrices == 0)
    throw ConfigError(
        fmt::format("{}: no matrix has rows of a multiple of 32 numbers, so none can be rounded to "
                    "{}; use the weights as they are",
                    model.path.string(), name_of(type)));
  model.tensors = std::move(changed);
}

}  // namespace episodic
