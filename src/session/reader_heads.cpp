// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/reader_heads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/recall/reweight.hpp"

namespace episodic {
namespace {

constexpr const char* kKind = "episodic_kind";
constexpr const char* kHeads = "reader heads over keys";
constexpr const char* kModel = "model";

bool finite(const std::vector<float>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
}

/// A head of one layer times a vector.
std::vector<float> multiply(const ReaderHeads& heads, const std::vector<float>& head,
                            std::int64_t layer, std::span<const float> vector) {
  if (layer < 0 || layer >= heads.layers)
    throw DataError(
        fmt::format("reader heads: layer {}, but they are of {} layers", layer, heads.layers));
  if (static_cast<std::int64_t>(vector.size()) != heads.width)
    throw DataError(fmt::format("reader heads: a vector of {} numbers, they take {}", vector.size(),
                                heads.width));
  const float* row = head.data() + layer * heads.out * heads.width;
  std::vector<float> out(static_cast<std::size_t>(heads.out));
  for (float& y : out) {
    double sum = 0;
    for (const float x : vector) sum += static_cast<double>(*row++) * x;
    y = static_cast<float>(sum);
  }
  return out;
}

/// A tensor of heads. \throws FileError
std::vector<float> numbers_of(const SafetensorsFile& file, const char* name,
                              std::vector<std::int64_t>& shape) {
  const StoredTensor& view = file.at(name);
  const auto refuse = [&](const std::string& what) {
    throw FileError(
        fmt::format("{}: tensor {} {}; train the heads anew", file.path().string(), name, what));
  };
  if (view.type != TensorType::f32 || view.shape.size() != 3)
    refuse("is no float32 [layers, out, width]");
  if (!shape.empty() && view.shape != shape) refuse("has another shape than the read head");
  shape = view.shape;
  std::vector<float> numbers(static_cast<std::size_t>(view.elements()));
  if (numbers.empty()) refuse("is empty");
  std::memcpy(numbers.data(), view.data, numbers.size() * sizeof(float));
  if (!finite(numbers)) refuse("is not finite");
  return numbers;
}

}  // namespace

ReaderHeads ReaderHeads::identity(std::int64_t layers, std::int64_t width) {
  if (layers < 1 || width < 1)
    throw ConfigError(
        fmt::format("reader heads: {} layers of width {}, both must be >= 1", layers, width));
  ReaderHeads heads;
  heads.layers = layers;
  heads.width = heads.out = width;
  heads.read.assign(static_cast<std::size_t>(layers * width * width), 0.0f);
  for (std::int64_t l = 0; l < layers; ++l)
    for (std::int64_t i = 0; i < width; ++i)
      heads.read[static_cast<std::size_t>((l * width + i) * width + i)] = 1.0f;
  heads.write = heads.read;
  return heads;
}

std::vector<float> ReaderHeads::read_vector(std::int64_t layer,
                                            std::span<const float> query) const {
  return multiply(*this, read, layer, query);
}

std::vector<float> ReaderHeads::write_vector(std::int64_t layer,
                                             std::span<const float> event) const {
  return multiply(*this, write, layer, event);
}

void ReaderHeads::save(const std::filesystem::path& dir) const {
  if (!finite(read) || !finite(write))
    throw DataError("reader heads: a number is not finite; lower the learning rate");
  const std::vector<std::int64_t> shape{layers, out, width};
  const TensorToWrite tensors[] = {{"read", TensorType::f32, shape, read.data()},
                                   {"write", TensorType::f32, shape, write.data()}};
  write_safetensors(dir / kFile, tensors, {{kKind, kHeads}, {kModel, model}});
}

ReaderHeads ReaderHeads::load(const std::filesystem::path& dir) {
  if (!std::filesystem::exists(dir / kFile))
    throw FileError(
        fmt::format("{}: has no {}; name a folder that ReaderHeads::save or train-lora wrote",
                    dir.string(), kFile));
  const SafetensorsFile file(dir / kFile);
  const auto kind = file.metadata().find(kKind), model = file.metadata().find(kModel);
  if (kind == file.metadata().end() || kind->second != kHeads || model == file.metadata().end())
    throw FileError(fmt::format("{}: holds no reader heads, its metadata do not say so; train them",
                                file.path().string()));
  ReaderHeads heads;
  std::vector<std::int64_t> shape;
  heads.read = numbers_of(file, "read", shape);
  heads.write = numbers_of(file, "write", shape);
  heads.layers = shape[0];
  heads.out = shape[1];
  heads.width = shape[2];
  heads.model = model->second;
  return heads;
}

HeadReader::HeadReader(std::shared_ptr<const ReaderHeads> heads, const SequenceMemory& memory)
    : heads_(std::move(heads)), memory_(memory) {
  if (!heads_) throw ConfigError("reader heads: null; load some, or make ReaderHeads::identity");
  const MemoryShape& shape = memory.shape();
  const std::int64_t width = shape.n_heads * shape.head_dim;
  if (heads_->layers != shape.n_layers || heads_->width != width)
    throw ConfigError(fmt::format(
        "reader heads: of {} layers {} wide, but the memory's are {} layers {} wide; take heads "
        "that were trained with this model",
        heads_->layers, heads_->width, shape.n_layers, width));
  if (memory.config().lanes_per_layer(shape.n_kv_heads) != 1)
    throw ConfigError(
        "reader heads: take the queries of all heads of a layer, and this memory recalls by heads "
        "(scope, recall_groups); leave one of the two out");
  written_.resize(static_cast<std::size_t>(heads_->layers));
}

float HeadReader::relevance(std::int64_t layer, std::span<const float> read, EventId event) const {
  std::vector<Written>& known = written_[static_cast<std::size_t>(layer)];
  const std::vector<float> vector = memory_.representative(layer, event);
  if (static_cast<std::size_t>(event) >= known.size())
    known.resize(static_cast<std::size_t>(event) + 1);
  Written& w = known[static_cast<std::size_t>(event)];
  const std::uint64_t sum = checksum_of(std::span<const float>(vector));
  if (w.vector.empty() || w.event != sum) w = {sum, heads_->write_vector(layer, vector)};
  return relevance_score(read, w.vector);
}

float HeadReader::score(std::int64_t layer, std::span<const float> query, EventId event) const {
  return relevance(layer, heads_->read_vector(layer, query), event);
}

void HeadReader::score(const RecalledEvents& recalled, std::span<float> scores) const {
  const std::vector<float> read = heads_->read_vector(recalled.layer, recalled.query);
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] = relevance(recalled.layer, read, recalled.events[i]);
}

ReaderHeads load_reader_heads(const std::filesystem::path& dir, const OpenModel& model) {
  ReaderHeads heads = ReaderHeads::load(dir);
  if (heads.model != identity_of(model.path, {}).weights)
    throw ConfigError(fmt::format(
        "{}: these heads were trained with another model than {}; train them with it, or name "
        "theirs",
        (dir / ReaderHeads::kFile).string(), model.path.string()));
  return heads;
}

}  // namespace episodic
