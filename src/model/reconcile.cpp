// SPDX-License-Identifier: Apache-2.0
#include "reconcile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/strict_json.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/weight_plan.hpp"
#include "gpt_oss_tensors.hpp"
#include "mixture_plan.hpp"
#include "other_formats.hpp"
#include "packed_weights.hpp"
#include "qwen3_next_tensors.hpp"
#include "renamed_tensors.hpp"
#include "text_part.hpp"

namespace episodic {
namespace {

constexpr std::string_view kEmbedding = "embed_tokens.weight", kHead = "lm_head.weight";

/// Whether two matrices hold the same numbers, in whatever types they are stored.
bool same_numbers(const StoredTensor& a, const StoredTensor& b) {
  if (a.shape != b.shape || a.shape.size() != 2) return false;
  if (a.type != b.type && !(cpu::is_weight_type(a.type) && cpu::is_weight_type(b.type)))
    return false;
  const std::int64_t rows = a.shape[0], columns = a.shape[1];
  if (rows == 0 || columns == 0) return true;
  const std::int64_t a_bytes = a.bytes / rows, b_bytes = b.bytes / rows;
  constexpr std::int64_t kRows = 256;
  std::atomic<bool> same{true};
  parallel_for((rows + kRows - 1) / kRows, [&](std::int64_t block) {
    std::vector<float> x, y;
    for (std::int64_t r = block * kRows; r < std::min(rows, (block + 1) * kRows) && same; ++r) {
      const std::byte *from = a.data + r * a_bytes, *other = b.data + r * b_bytes;
      if (a.type == b.type && std::memcmp(from, other, static_cast<std::size_t>(a_bytes)) == 0)
        continue;
      if (!cpu::is_weight_type(a.type)) {
        same = false;
        return;
      }
      x.resize(static_cast<std::size_t>(columns));
      y.resize(x.size());
      cpu::widen_row(a.type, from, columns, x.data());
      cpu::widen_row(b.type, other, columns, y.data());
      if (x != y) same = false;
    }
  });
  return same;
}

/// The head that is there is used, whatever the flag says, as transformers and vLLM have it; and a
/// tied model may have stored its one matrix by either name.
void reconcile_head(OpenModel& m) {
  if (!m.config.tie_word_embeddings) return;
  const StoredTensor* head = m.tensors->find(kHead);
  const StoredTensor* embedding = m.tensors->find("model.embed_tokens.weight");
  if (!head) return;
  if (!embedding) {
    m.tensors = std::make_shared<RenamedTensors>(
        m.tensors, std::map<std::string, std::string>{
                       {std::string(kHead), "model." + std::string(kEmbedding)}});
    m.notes.push_back(fmt::format(
        "{}: the model is tied and stores its embedding as lm_head.weight", m.path.string()));
    return;
  }
  if (same_numbers(*head, *embedding)) return;
  m.config.tie_word_embeddings = false;
  m.notes.push_back(
      fmt::format("{}: config.json has tie_word_embeddings true, but lm_head.weight is there and "
                  "differs from the embedding: the head of the file is used",
                  m.path.string()));
}

/// Weights that other programs quantised, as this one multiplies them.
void unpack(OpenModel& m) {
  auto unpacked = unpacked_weights(m.tensors, m.config_json, weight_plan(m.config),
                                   (m.path / "config.json").string());
  if (!unpacked) return;
  m.stored = std::move(m.tensors);
  m.tensors = std::move(unpacked);
  // where a part is of a scheme that is not read, its name is what a refusal says
  if (quantization_found(*m.tensors, "").empty()) m.config.quantization.clear();
}

/// Weights that are all there as floats are no quantised ones, whatever was left in config.json.
void reconcile_quantization(OpenModel& m) {
  if (m.config.quantization.empty() || !quantization_found(*m.tensors, "").empty()) return;
  const std::vector<WeightEntry> plan = weight_plan(m.config);
  const auto plain = [&](const WeightEntry& e) {
    const StoredTensor* t = m.tensors->find(e.tensor);
    return t && t->shape == e.tensor_shape && cpu::is_weight_type(t->type);
  };
  if (!std::all_of(plan.begin(), plan.end(), plain)) return;
  m.notes.push_back(
      fmt::format("{}: config.json says that the weights are quantised ({}), but they are plain "
                  "{}: used as they are",
                  m.path.string(), printable(m.config.quantization),
                  name_of(m.tensors->find(plan.front().tensor)->type)));
  m.config.quantization.clear();
}

}  // namespace

std::shared_ptr<const TensorSource> with_usual_names(std::shared_ptr<const TensorSource> tensors,
                                                     bool sees, std::string& note) {
  const std::string usual = "model." + std::string(kEmbedding);
  if (tensors->find(usual)) return tensors;
  const std::vector<const StoredTensor*> all = tensors->tensors();
  std::vector<std::string_view> prefixes;
  for (const StoredTensor* t : all) {
    std::string_view name = t->name;
    if (!name.ends_with(kEmbedding)) continue;
    name.remove_suffix(kEmbedding.size());
    if (name.empty() || name.back() == '.') prefixes.push_back(name);
  }
  if (prefixes.size() != 1) return tensors;
  const std::string_view prefix = prefixes[0];
  std::string_view above = prefix;  // of what holds the decoder and its head
  constexpr std::string_view kModel = "model.";
  if (above.ends_with(kModel)) above.remove_suffix(kModel.size());
  std::map<std::string, std::string> names;
  std::map<std::string, int> taken;
  std::map<std::string_view, int> beside;  // parts that see, and their tensors
  for (const StoredTensor* t : all) {
    const std::string_view name = t->name;
    std::string to;
    if (const std::string_view part = part_beside_text(name); sees && !part.empty()) {
      ++beside[part];
      names.emplace(t->name, "");
      continue;
    }
    if (name == kHead || name == std::string(above) + std::string(kHead))
      to = kHead;
    else if (name.starts_with(prefix) && name.find(".lora_") == std::string_view::npos)
      to = std::string(kModel) + std::string(name.substr(prefix.size()));
    else
      return tensors;
    if (++taken[to] > 1) return tensors;
    names.emplace(t->name, to);
  }
  note = prefix.empty() ? "its tensors are those of a model without a head; read as \"model.\""
                        : fmt::format("its tensors are called \"{}...\"; read as \"model.\"",
                                      printable(prefix));
  for (const auto& [part, count] : beside)
    note +=
        fmt::format("; {} ({} tensors) is not read, for the model reads text alone", part, count);
  return std::make_shared<RenamedTensors>(std::move(tensors), names);
}

void reconcile(OpenModel& m) {
  for (const std::string& note : m.config.notes)
    m.notes.push_back(fmt::format("{}: {}", m.path.string(), note));
  std::string note;
  m.tensors = with_usual_names(m.tensors, !m.config.text_part_of.empty(), note);
  if (!note.empty()) m.notes.push_back(fmt::format("{}: {}", m.path.string(), note));
  if (m.config.model_type == "gpt_oss") {
    m.tensors = with_stacked_experts(m.tensors, m.config);
    if (m.config.quantization == "mxfp4") m.config.quantization.clear();  // and so it was read
  }
  if (m.config.model_type == "qwen3_next") m.tensors = with_parted_projections(m.tensors, m.config);
  find_mixture_tensors(*m.tensors, m.config);
  if (!m.tokenizer_dir.empty()) unpack(m);  // no GGUF file has such
  reconcile_head(m);
  reconcile_quantization(m);
}

}  // namespace episodic
