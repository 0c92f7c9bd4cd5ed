// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/identity.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/open_model.hpp"
#include "gguf_names.hpp"
#include "text/added_vocabulary.hpp"

namespace episodic {
namespace {

constexpr std::int64_t kPart = std::int64_t{16} << 20;  // bytes of a tensor hashed by one task

/// A checksum over the checksums of the parts: parts can be read by several threads.
std::uint64_t checksum_of_parts(std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<std::uint64_t> sums(static_cast<std::size_t>((size + kPart - 1) / kPart));
  parallel_for(static_cast<std::int64_t>(sums.size()), [&](std::int64_t i) {
    sums[static_cast<std::size_t>(i)] =
        checksum(bytes.subspan(static_cast<std::size_t>(i * kPart),
                               static_cast<std::size_t>(std::min(kPart, size - i * kPart))));
  });
  return checksum_of(std::span<const std::uint64_t>(sums));
}

/// Of all that a GGUF file says about its vocabulary.
std::uint64_t checksum_of_tokenizer(const GgufFile& file) {
  ByteWriter all;
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"})
    all.put_string(std::string(file.string(key).value_or("")));
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"})
    if (const auto* texts = file.strings(key))
      for (const std::string_view text : *texts) all.put_string(std::string(text));
  for (const char* key : {kGgufTokenizerJson, kGgufTokenizerConfig})
    if (const auto text = file.string(key)) all.put_string(std::string(*text));
  if (const auto* scores = file.numbers("tokenizer.ggml.scores")) all.put_vector(*scores);
  if (const auto* types = file.integers("tokenizer.ggml.token_type")) all.put_vector(*types);
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"})
    all.put(file.integer(key).value_or(-1));
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                          "tokenizer.ggml.add_space_prefix"})
    all.put(file.boolean(key).value_or(false));
  return checksum(all.bytes());
}

/// Adds what changes a model's weights without being in its files. Order does not matter to it.
void add_changes(const OpenModel& model, MemoryIdentity& id) {
  if (model.adapters.empty() && !model.quantized) return;
  std::vector<std::string> changes;
  for (const AppliedLora& applied : model.adapters) {
    changes.push_back(fmt::format("lora {} x {}", applied.adapter->fingerprint(), applied.scale));
    id.model += fmt::format(" with adapter {}", applied.adapter->name());
    if (applied.scale != 1) id.model += fmt::format(" x {}", applied.scale);
  }
  std::sort(changes.begin(), changes.end());
  if (model.quantized) {
    changes.emplace_back(name_of(*model.quantized));
    id.model += fmt::format(" as {}", name_of(*model.quantized));
  }
  ByteWriter all;
  all.put_string(id.weights);
  for (const std::string& change : changes) all.put_string(change);
  id.weights = fmt::format("{:016x}", checksum(all.bytes()));
}

}  // namespace

MemoryIdentity identity_of(const OpenModel& model) {
  namespace fs = std::filesystem;
  MemoryIdentity id;
  id.model = fs::weakly_canonical(model.path).filename().string();
  ByteWriter all;
  all.put(checksum(std::as_bytes(std::span(model.config_json))));
  const TensorSource& stored = model.stored ? *model.stored : *model.tensors;
  for (const StoredTensor* tensor : stored.tensors()) {
    all.put_string(tensor->name);
    all.put(static_cast<std::uint8_t>(tensor->type));
    all.put_vector(tensor->shape);
    all.put(checksum_of_parts({tensor->data, static_cast<std::size_t>(tensor->bytes)}));
  }
  id.weights = fmt::format("{:016x}", checksum(all.bytes()));
  add_changes(model, id);
  if (const auto* gguf = dynamic_cast<const GgufSource*>(&stored)) {
    id.tokenizer = fmt::format("{:016x}", checksum_of_tokenizer(gguf->file()));
    return id;
  }
  // tokenizer_config.json decides which tokens begin and end a text
  ByteWriter tokenizer;
  for (const fs::path& file :
       {text::tokenizer_file(model.tokenizer_dir), model.tokenizer_dir / "tokenizer_config.json"})
    if (fs::exists(file)) tokenizer.put(checksum(MappedFile(file).bytes()));
  // By what they change, not by their bytes: where they repeat the others, as most do, memories
  // that were made before they counted stay this model's.
  if (const std::string changes = text::changes_by_token_files(model.tokenizer_dir);
      !changes.empty())
    tokenizer.put_string(changes);
  if (!tokenizer.bytes().empty())
    id.tokenizer = fmt::format("{:016x}", checksum(tokenizer.bytes()));
  return id;
}

MemoryIdentity identity_of(const std::filesystem::path& model_dir) {
  return identity_of(open_model(model_dir));
}

}  // namespace episodic
