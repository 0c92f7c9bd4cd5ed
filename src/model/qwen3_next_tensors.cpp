// SPDX-License-Identifier: Apache-2.0
#include "qwen3_next_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "changed_tensors.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

/// Rows that each key head has in a tensor, one kind behind another, and the tensors whose rows
/// those of the kinds become.
struct PartedRows {
  const char* name;
  std::vector<std::int64_t> kinds;                         // rows of a key head
  std::vector<std::pair<const char*, std::size_t>> parts;  // and of how many kinds each is made
};

/// Rows of the kinds [first, first + count) of all heads, kind by kind.
std::vector<std::byte> rows_of(const StoredTensor& t, const std::vector<std::int64_t>& kinds,
                               std::int64_t heads, std::size_t first, std::size_t count) {
  std::int64_t of_head = 0;
  for (const std::int64_t rows : kinds) of_head += rows;
  const auto row_bytes = static_cast<std::size_t>(t.bytes / t.shape[0]);
  std::vector<std::byte> out;
  std::int64_t before = 0;
  for (std::size_t kind = 0; kind < first + count; before += kinds[kind++]) {
    if (kind < first) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::byte* const from =
          t.data + static_cast<std::size_t>(h * of_head + before) * row_bytes;
      out.insert(out.end(), from, from + static_cast<std::size_t>(kinds[kind]) * row_bytes);
    }
  }
  return out;
}

void part(const TensorSource& from, const std::string& prefix, const PartedRows& rows,
          const RecurrenceSpec& r, std::int64_t hidden, ChangedTensors& to) {
  const std::string name = fmt::format("{}{}.weight", prefix, rows.name);
  const StoredTensor* t = from.find(name);
  if (!t) return;  // the plan says what is missing
  std::int64_t of_head = 0;
  for (const std::int64_t n : rows.kinds) of_head += n;
  const std::vector<std::int64_t> shape{r.key_heads * of_head, hidden};
  if (t->shape != shape)
    throw FileError(fmt::format(
        "{}: tensor '{}' has shape [{}], config.json calls for [{}] by the recurrent heads' "
        "numbers and sizes, and hidden_size; weights and config.json must be of one model",
        from.file_of(name).string(), name, fmt::join(t->shape, ", "), fmt::join(shape, ", ")));
  std::size_t kind = 0;
  for (const auto& [part_name, count] : rows.parts) {
    std::int64_t height = 0;
    for (std::size_t i = kind; i < kind + count; ++i) height += r.key_heads * rows.kinds[i];
    to.put(fmt::format("{}{}.weight", prefix, part_name), t->type, {height, hidden},
           rows_of(*t, rows.kinds, r.key_heads, kind, count));
    kind += count;
  }
  to.leave_out(name);
}

}  // namespace

std::shared_ptr<const TensorSource> with_parted_projections(
    std::shared_ptr<const TensorSource> tensors, const ModelConfig& config) {
  auto parted = std::make_shared<ChangedTensors>(tensors);
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    const RecurrenceSpec& r = config.layers[l].recurrence;
    if (!r) continue;
    const std::int64_t heads = r.heads / r.key_heads, values = heads * r.value_dim;
    const PartedRows projections[] = {
        {"in_proj_qkvz",
         {r.key_dim, r.key_dim, values, values},
         {{"in_proj_qkv", 3}, {"in_proj_z", 1}}},
        {"in_proj_ba", {heads, heads}, {{"in_proj_b", 1}, {"in_proj_a", 1}}}};
    const std::string prefix = fmt::format("model.layers.{}.linear_attn.", l);
    for (const PartedRows& rows : projections)
      part(*tensors, prefix, rows, r, config.hidden_size, *parted);
  }
  return parted;
}

}  // namespace episodic
