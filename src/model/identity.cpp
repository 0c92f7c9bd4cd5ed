// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/identity.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/safetensors.hpp"

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

}  // namespace

MemoryIdentity identity_of(const std::filesystem::path& model_dir) {
  namespace fs = std::filesystem;
  MemoryIdentity id;
  const fs::path absolute = fs::weakly_canonical(model_dir);
  id.model = absolute.filename().string();
  ByteWriter all;
  all.put(checksum(MappedFile(model_dir / "config.json").bytes()));
  const Weights weights(model_dir);
  for (const TensorView* tensor : weights.tensors()) {
    all.put_string(tensor->name);
    all.put(static_cast<std::uint8_t>(tensor->type));
    all.put_vector(tensor->shape);
    all.put(checksum_of_parts({tensor->data, static_cast<std::size_t>(tensor->bytes)}));
  }
  id.weights = fmt::format("{:016x}", checksum(all.bytes()));
  if (const fs::path tokenizer = model_dir / "tokenizer.json"; fs::exists(tokenizer))
    id.tokenizer = fmt::format("{:016x}", checksum(MappedFile(tokenizer).bytes()));
  return id;
}

}  // namespace episodic
